/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/device.h: devices: finding, naming, choosing.
 *
 * A device is named "TYPE" or "TYPE:INDEX" ("cpu", "cuda:1"), wherever a device is asked for. TYPE alone means the thread's
 * current device of that type. Handles are interned: one per device, equal pointers mean equal devices, never released.
 * All functions may be called from any thread. */
#ifndef CTRT_DEVICE_H
#define CTRT_DEVICE_H

#include "ctrt/base.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_device ctrt_device;

/* A device's name taken apart: type and index, -1 for "the current one at the time of use". */
typedef struct ctrt_device_spec {
    char type[32];
    int index;
} ctrt_device_spec;

/* Parses `text`. Refused with CTRT_ERR_INVALID_ARGUMENT: empty or unknown-looking types, "cuda:", "cuda:01", "cuda:-1",
 * "cpu:1" and above. A bare number ("1") is an index of the best accelerator type. Whether the device exists is not asked. */
CTRT_API ctrt_status ctrt_device_parse(ctrt_device_spec *out, const char *text);

/* Writes "type" or "type:index" into `buffer` (at most `bytes`, always terminated); the inverse of ctrt_device_parse. */
CTRT_API ctrt_status ctrt_device_format(char *buffer, size_t bytes, const ctrt_device_spec *spec);

/* Opens the device named `name`: "cpu", "cuda:1", or "auto" (CTRT_DEVICE, else the best device present); NULL is "auto".
 * Loads the one plugin that provides it. Errors: CTRT_ERR_NO_DEVICE with what was tried, why each candidate was refused, the known
 * names and the nearest match; CTRT_ERR_FORKED when the device was opened before a fork and cannot follow. */
CTRT_API ctrt_status ctrt_device_get(ctrt_device **out, const char *name);

/* The same as ctrt_device_get(out, "auto"). */
CTRT_API ctrt_status ctrt_device_auto(ctrt_device **out);

/* Is there at least one usable device of `type`? Never fails, opens nothing, survives fork. When false and `why` is not NULL, *why
 * points to a reason in words, valid until this thread's next call of this function. */
CTRT_API bool ctrt_is_available(const char *type, const char **why);

/* How many devices of `type` are visible; 0 when there are none or the type is unknown. Opens nothing. */
CTRT_API int ctrt_device_count(const char *type);

/* The `index`-th visible device over all types, best type first, as a name ("cuda:0"); CTRT_ERR_NOT_FOUND past the last.
 * Opens nothing, but asks every plugin. */
CTRT_API ctrt_status ctrt_device_list(ctrt_device_spec *out, size_t index);

/* Facts that a program can ask of a device. Unknown: 0, -1 or "". */
typedef struct ctrt_device_properties {
    char name[128], uuid[64], pci[32];
    uint64_t total_memory;              /* bytes */
    int compute_major, compute_minor;
    int processors;                     /* cores or multiprocessors that may be used */
    int clock_khz;
    int numa_node;
    int ecc;                            /* 1 on, 0 off, -1 unknown */
    bool host_memory;                   /* the host can read and write its memory */
    bool asynchronous;                  /* work is queued on streams */
    char cpus[256];                     /* processors near the device: "0-31,64-95" */
    ctrt_dtype float_default;           /* of new tensors there that are to have the default dtype; CTRT_DTYPE_DEFAULT: ctrt_default_dtype() */
    ctrt_dtype matrix_dtype;            /* in which matrices and convolutions of f32 are multiplied: CTRT_F32, unless the device says less */
} ctrt_device_properties;

/* Facts about the device `name` without opening it. CTRT_ERR_NO_DEVICE when the index is out of range. */
CTRT_API ctrt_status ctrt_device_get_properties(ctrt_device_properties *out, const char *name);

/* "cuda:1", or "cpu". Static lifetime. "(null)" for NULL. */
CTRT_API const char *ctrt_device_name(const ctrt_device *device);
/* "cuda", "cpu". Static lifetime. */
CTRT_API const char *ctrt_device_type(const ctrt_device *device);
/* The index after masking; -1 for the CPU, as PyTorch's get_device. */
CTRT_API int ctrt_device_index(const ctrt_device *device);

/* Free and total bytes of the device, over all processes. */
CTRT_API ctrt_status ctrt_device_memory_info(ctrt_device *device, uint64_t *free_bytes, uint64_t *total_bytes);

/* Waits until all work of the device is done. CTRT_OK at once on a synchronous device. */
CTRT_API ctrt_status ctrt_device_synchronize(ctrt_device *device);
/* How often the host has waited for work of `device` (NULL: the default device) since it was opened: ctrt_item, copies
 * to and from the host that return when they are complete, synchronizing a stream, an event or the device, and the
 * library's own waits. 0 on a synchronous device. The metrics have it too (ctrt_memory_metrics). Thread-safe. */
CTRT_API uint64_t ctrt_device_synchronizations(ctrt_device *device);

/* This thread's current device of its type, which "cuda" without index means; a new thread starts with index 0. Where an op
 * runs depends on its operands alone. NULL: CTRT_ERR_INVALID_ARGUMENT. */
CTRT_API ctrt_status ctrt_device_set_current(ctrt_device *device);

/* The thread's current device of `type`, opening it if need be; NULL: of the best type. */
CTRT_API ctrt_status ctrt_device_get_current(ctrt_device **out, const char *type);

/* Makes `device` current and remembers what was; pairs nest. NULL: push changes nothing, but still needs its pop. */
CTRT_API ctrt_status ctrt_device_push(ctrt_device *device);
/* Restores. CTRT_ERR_STATE without a matching push. */
CTRT_API ctrt_status ctrt_device_pop(void);

/* Where factories put tensors when told NULL as device: process-wide; default: ctrt_device_auto's. Existing tensors stay. */
CTRT_API ctrt_status ctrt_set_default_device(ctrt_device *device);
CTRT_API ctrt_status ctrt_default_device(ctrt_device **out);

/* ---- what goes on on the devices, over all processes ----
 *
 * Asked without opening anything, at any time; of CUDA devices through NVML, which tells what nvidia-smi shows. Each answer is taken anew. */

/* Unknown: -1; bytes: 0. */
typedef struct ctrt_usage {
    int busy, memory_busy;              /* percent of the time lately in which work ran; in which memory was read or written */
    uint64_t total_memory, used_memory, free_memory;
    int temperature;                    /* degrees Celsius */
    double power, power_limit;          /* watts */
    int clock_khz;
    int processes;                      /* how many have memory there */
} ctrt_usage;

/* Device `name` ("cuda:1", before or after it is opened). CTRT_ERR_NOT_SUPPORTED with the reason when its backend cannot tell. */
CTRT_API ctrt_status ctrt_device_get_usage(ctrt_usage *out, const char *name);

typedef struct ctrt_process {
    int64_t pid;                        /* as this process sees it; in containers often the host's */
    uint64_t memory;                    /* bytes of the device; UINT64_MAX: unknown */
    char name[32];                      /* of the program; "" unknown */
} ctrt_process;

/* Writes the processes that have memory on device `name` to list[room], those with most memory first, and how many there are to *count,
 * which may be more. list may be NULL when room is 0. */
CTRT_API ctrt_status ctrt_device_get_processes(ctrt_process *list, size_t *count, size_t room, const char *name);

/* The load of all visible devices of `type` (NULL: the best accelerator's) as a table for people, which the caller frees with free():
 *
 *     | ID | GPU | MEM |
 *     ------------------
 *     |  0 | 87% | 34% |
 *
 * nan: unknown. full: also memory, temperature, power, name, and a line for each process. */
CTRT_API ctrt_status ctrt_show_utilization(char **out, const char *type, bool full);

typedef enum ctrt_pick_order {          /* which of those that are free come first */
    CTRT_PICK_FIRST,                    /* lowest index */
    CTRT_PICK_LAST,                     /* highest index */
    CTRT_PICK_RANDOM,
    CTRT_PICK_LOAD,                     /* least busy */
    CTRT_PICK_MEMORY                    /* smallest part of its memory in use */
} ctrt_pick_order;

/* What ctrt_pick_devices takes for free. Zeros mean what stands in brackets; CTRT_ZERO means the number 0. */
typedef struct ctrt_pick_options {
    const char *type;                   /* [the best accelerator's] */
    ctrt_pick_order order;
    double max_load, max_memory;        /* parts of 1 that must not be reached [0.5] */
    uint64_t min_free;                  /* bytes that must be free */
    bool unknown_is_free;               /* a device that cannot tell its load counts as idle */
    const int *exclude;                 /* indices not to be taken */
    size_t exclude_count;
    int attempts;                       /* so often it looks [1] */
    double interval;                    /* seconds between attempts [900] */
} ctrt_pick_options;

/* Chooses up to `room` devices that others leave free and writes their names' parts to list, how many to *count. options: NULL for all
 * defaults. CTRT_ERR_NOT_FOUND when none is free, with the load of each. It reserves nothing: others may look at the same time. */
CTRT_API ctrt_status ctrt_pick_devices(ctrt_device_spec *list, size_t *count, size_t room, const ctrt_pick_options *options);

/* The way between two devices of one type, as of the first one. Unknown: -1 or "". */
typedef struct ctrt_link {
    int direct;                         /* 1: copies to the other go straight; 0: through the host; -1: unknown, or of different types */
    int links;                          /* NVLinks that join the two; 0: none, or through switches */
    char kind[32];                      /* "NVLink", "PCI switch", "host bridge", "system", ... */
} ctrt_link;

/* The link from device `name` to `peer`. Opens no device. Between devices that are open a link that the backend calls direct is tried
 * once, by copying 4 KiB, as before the first copy: one that does not deliver what was sent is reported as not direct. Thread-safe. */
CTRT_API ctrt_status ctrt_device_get_link(ctrt_link *out, const char *name, const char *peer);

/* ---- plugins ---- */

/* What became of one plugin file or component. Strings live until the process ends. */
typedef struct ctrt_plugin_info {
    const char *file;                   /* path; "" for a name that was not found */
    const char *plugin, *version;       /* as the plugin says; "" when it could not be asked */
    const char *kind, *component;       /* "backend", "cpu"; "" when the file was refused */
    const char *state;                  /* "ready", "loaded", "refused", "disabled", "absent" */
    const char *reason;                 /* why, in words; "" when all is well */
    int score;
} ctrt_plugin_info;

/* The `index`-th component or refused file, of every plugin file found (they are all opened, none is initialised);
 * CTRT_ERR_NOT_FOUND past the last. */
CTRT_API ctrt_status ctrt_plugin_list(ctrt_plugin_info *out, size_t index);

/* The `index`-th folder in which plugins are searched, first to last; NULL past the last. Static lifetime. */
CTRT_API const char *ctrt_plugin_folder(size_t index);

CTRT_END_DECLS

#endif
