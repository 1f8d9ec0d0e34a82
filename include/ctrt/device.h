/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/device.h: discovers, names and selects devices.
 *
 * A device name is "TYPE" or "TYPE:INDEX" ("cpu", "cuda:1"). TYPE alone means the calling thread's current device of
 * that type. Device handles are interned: there is one per device, so equal pointers mean equal devices. They are
 * never released. All functions are thread-safe. */
#ifndef CTRT_DEVICE_H
#define CTRT_DEVICE_H

#include "ctrt/base.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_device ctrt_device;

/* A parsed device name. `index` -1: the current device of that type at the time of use. */
typedef struct ctrt_device_spec {
    char type[32];
    int index;
} ctrt_device_spec;

/* Parses the device name `text`. A bare number ("1") is an index of the best accelerator type. Does not check
 * whether the device exists. CTRT_ERR_INVALID_ARGUMENT for an empty or malformed type, "cuda:", "cuda:01",
 * "cuda:-1", "cpu:1" and above. */
CTRT_API ctrt_status ctrt_device_parse(ctrt_device_spec *out, const char *text);

/* Writes "type" or "type:index" into `buffer`, whose size is `bytes`; the inverse of ctrt_device_parse. The text is
 * always terminated. CTRT_ERR_INVALID_ARGUMENT for an invalid spec and a buffer that is too small. */
CTRT_API ctrt_status ctrt_device_format(char *buffer, size_t bytes, const ctrt_device_spec *spec);

/* Opens the device named `name`: "cpu", "cuda:1", or "auto" (the device in CTRT_DEVICE, else the best device
 * present). NULL means "auto". Loads only the plugin that provides the device. In a process that a launcher has started
 * (torchrun, mpirun, srun, ctrt run), "auto" is the device whose index is the local rank, modulo the number of devices,
 * if CTRT_DEVICE is unset or names a type without an index.
 *
 * Errors: CTRT_ERR_NO_DEVICE, with a message that lists what was tried, why each candidate was rejected, the known
 * types and the nearest match; CTRT_ERR_FORKED if the device was opened before a fork and cannot be used in the
 * child. */
CTRT_API ctrt_status ctrt_device_get(ctrt_device **out, const char *name);

/* The same as ctrt_device_get(out, "auto"). */
CTRT_API ctrt_status ctrt_device_auto(ctrt_device **out);

/* Returns whether at least one device of `type` can be used. Never fails, opens no device and works after a fork. If
 * the result is false and `why` is not NULL, *why points to the reason, valid until the calling thread's next call
 * of this function. */
CTRT_API bool ctrt_is_available(const char *type, const char **why);

/* Returns the number of visible devices of `type`; 0 if there are none or the type is unknown. Opens no device. */
CTRT_API int ctrt_device_count(const char *type);

/* Writes the `index`-th visible device of all types, best type first. Opens no device, but queries every backend
 * plugin. CTRT_ERR_NOT_FOUND past the last one. */
CTRT_API ctrt_status ctrt_device_list(ctrt_device_spec *out, size_t index);

/* Properties of a device. Unknown values are 0, -1 or "". */
typedef struct ctrt_device_properties {
    size_t size;
    char name[128], uuid[64], pci[32];
    uint64_t total_memory;              /* bytes */
    int compute_major, compute_minor;
    int processors;                     /* cores or multiprocessors that this process may use */
    int clock_khz;
    int numa_node;
    int ecc;                            /* 1 on, 0 off, -1 unknown */
    bool host_memory;                   /* the host can access the device's memory directly */
    bool asynchronous;                  /* work runs asynchronously on streams */
    char cpus[256];                     /* CPUs near the device: "0-31,64-95" */
    ctrt_dtype float_default;           /* Default dtype of tensors created on this device; CTRT_DTYPE_DEFAULT: the
                                         * process's (ctrt_default_dtype). */
    ctrt_dtype matrix_dtype;            /* Precision in which f32 matrix products and convolutions multiply:
                                         * CTRT_F32, or a lower one. */
} ctrt_device_properties;
#define CTRT_DEVICE_PROPERTIES CTRT_SIZED_(ctrt_device_properties)

/* Writes the properties of device `name` without opening it. CTRT_ERR_NO_DEVICE if the index is out of range. */
CTRT_API ctrt_status ctrt_device_get_properties(ctrt_device_properties *out, const char *name);

/* Returns the device's name, "cuda:1" or "cpu"; "(null)" for NULL. The string is valid until the process ends. */
CTRT_API const char *ctrt_device_name(const ctrt_device *device);
/* Returns the device's type, "cuda" or "cpu". The string is valid until the process ends. */
CTRT_API const char *ctrt_device_type(const ctrt_device *device);
/* Returns the device's index among the visible devices (CTRT_VISIBLE_DEVICES); -1 for the CPU, as PyTorch's
 * get_device. */
CTRT_API int ctrt_device_index(const ctrt_device *device);

/* Writes the free and the total memory of the device in bytes; memory that other processes use is not free. `device`
 * NULL: the default device. CTRT_ERR_NOT_SUPPORTED if the backend does not report it. */
CTRT_API ctrt_status ctrt_device_memory_info(ctrt_device *device, uint64_t *free_bytes, uint64_t *total_bytes);

/* Blocks until all work of the device is done; NULL: the default device. Returns CTRT_OK immediately on a synchronous
 * device. */
CTRT_API ctrt_status ctrt_device_synchronize(ctrt_device *device);
/* Returns how often the host has waited for work of `device` (NULL: the default device) since it was opened. The host
 * waits in ctrt_item, in blocking copies to and from the host, in synchronizing a stream, an event or the device, and
 * in the library's own waits. 0 on a synchronous device. ctrt_memory_metrics also reports it. */
CTRT_API uint64_t ctrt_device_synchronizations(ctrt_device *device);

/* Makes `device` the calling thread's current device of its type, which a name without an index ("cuda") refers to.
 * A new thread starts with index 0. Ops do not use the current device: they run where their operands are.
 * CTRT_ERR_INVALID_ARGUMENT for NULL. */
CTRT_API ctrt_status ctrt_device_set_current(ctrt_device *device);

/* Writes the calling thread's current device of `type` and opens it if necessary. `type` NULL: the best type. */
CTRT_API ctrt_status ctrt_device_get_current(ctrt_device **out, const char *type);

/* Makes `device` current and saves the previous current device; pairs of push and pop nest. With NULL the push
 * changes nothing, but still needs its pop. */
CTRT_API ctrt_status ctrt_device_push(ctrt_device *device);
/* Restores the current device that the matching push saved. CTRT_ERR_STATE without a matching push. */
CTRT_API ctrt_status ctrt_device_pop(void);
/* ctrt_on_device(device) { ... } makes `device` current in the following statement or block (ctrt/base.h). */
CTRT_BLOCK_LEAVE_(ctrt_on_device_leave_, ctrt_device_pop())
#define ctrt_on_device(device) CTRT_BLOCK_TRY_(ctrt_on_device_leave_, ctrt_device_push(device))

/* Sets the process-wide default device, on which tensors are created when a function's `device` is NULL. It is
 * initially the device of ctrt_device_auto. Existing tensors stay where they are. */
CTRT_API ctrt_status ctrt_set_default_device(ctrt_device *device);
/* Writes the process-wide default device, and opens it if necessary. */
CTRT_API ctrt_status ctrt_default_device(ctrt_device **out);

/* ---- utilization of the devices, over all processes ----
 *
 * These functions open no device and can be called at any time. For CUDA devices they use NVML, the source of
 * nvidia-smi's values. Each call reads the current values. */

/* Utilization of a device. Unknown values are -1, or 0 for sizes in bytes. */
typedef struct ctrt_usage {
    size_t size;
    int busy, memory_busy;              /* percent of the last sampling period in which kernels ran, and in which
                                         * memory was read or written */
    uint64_t total_memory, used_memory, free_memory;
    int temperature;                    /* degrees Celsius */
    double power, power_limit;          /* watts */
    int clock_khz;
    int processes;                      /* number of processes that have memory on the device */
} ctrt_usage;
#define CTRT_USAGE CTRT_SIZED_(ctrt_usage)

/* Writes the utilization of device `name` ("cuda:1"), which need not be open. CTRT_ERR_NOT_SUPPORTED, with the
 * reason, if its backend does not report it. */
CTRT_API ctrt_status ctrt_device_get_usage(ctrt_usage *out, const char *name);

/* A process that has memory on a device. */
typedef struct ctrt_process {
    int64_t pid;                        /* in this process's PID namespace; in containers often the host's */
    uint64_t memory;                    /* bytes of the device; UINT64_MAX: unknown */
    char name[32];                      /* program name; "": unknown */
    uint64_t reserved[3];               /* 0 */
} ctrt_process;

/* Writes the processes that have memory on device `name` to list[capacity], those with most memory first. *count
 * receives their number, which may exceed `capacity`. `list` may be NULL if `capacity` is 0. CTRT_ERR_NOT_SUPPORTED if
 * the backend does not report processes. */
CTRT_API ctrt_status ctrt_device_get_processes(ctrt_process *list, size_t *count, size_t capacity, const char *name);

/* Writes a table with the utilization of all visible devices of `type` (NULL: the best accelerator type) to *out;
 * the caller frees it with free():
 *
 *     | ID | GPU | MEM |
 *     ------------------
 *     |  0 | 87% | 34% |
 *
 * "nan" stands for unknown. `full` adds memory, temperature, power, name, and a line for each process. */
CTRT_API ctrt_status ctrt_show_utilization(char **out, const char *type, bool full);

typedef enum ctrt_pick_order {          /* order of preference among the free devices */
    CTRT_PICK_FIRST,                    /* lowest index */
    CTRT_PICK_LAST,                     /* highest index */
    CTRT_PICK_RANDOM,
    CTRT_PICK_LOAD,                     /* least busy */
    CTRT_PICK_MEMORY                    /* smallest fraction of its memory in use */
} ctrt_pick_order;

/* Criteria of ctrt_pick_devices; the defaults are in brackets. */
typedef struct ctrt_pick_options {
    size_t initialized;                 /* the size; CTRT_PICK_OPTIONS sets it */
    const char *type;                   /* NULL: the best accelerator's */
    ctrt_pick_order order;
    double max_load, max_memory;        /* fractions; a device is free only below both [0.5] */
    uint64_t min_free;                  /* bytes of free memory required */
    bool unknown_is_free;               /* a device that does not report its utilization counts as idle */
    const int *exclude;                 /* indices of devices to exclude */
    size_t exclude_count;
    int attempts;                       /* number of times that the devices are examined [1] */
    double interval;                    /* seconds between attempts [900] */
} ctrt_pick_options;
#define CTRT_PICK_OPTIONS { sizeof(ctrt_pick_options), 0, CTRT_PICK_FIRST, 0.5, 0.5, 0, false, 0, 0, 1, 900 }

/* Selects up to `capacity` free devices and writes their names to `list` and their number to *count. `options` NULL:
 * all defaults. CTRT_ERR_NOT_FOUND, with the load of each device in the message, if none is free. Reserves nothing:
 * another process may select the same devices at the same time. Blocks between attempts. */
CTRT_API ctrt_status ctrt_pick_devices(ctrt_device_spec *list, size_t *count, size_t capacity,
                                       const ctrt_pick_options *options);

/* Interconnect between two devices of one type, as the first one reports it. Unknown values are -1 or "". */
typedef struct ctrt_link {
    size_t size;
    int direct;                         /* 1: peer-to-peer copies; 0: copies through host memory; -1: unknown, or of
                                         * different types */
    int links;                          /* NVLinks between the two; 0: none, or through switches */
    char kind[32];                      /* "NVLink", "PCI switch", "host bridge", "system", ... */
} ctrt_link;
#define CTRT_LINK CTRT_SIZED_(ctrt_link)

/* Writes the link from device `name` to `peer`. Opens no device. If both devices are open and the backend reports a
 * direct link, the link is tested once by copying 4 KiB, as before the first copy between them; a link that corrupts
 * the data is reported as not direct. */
CTRT_API ctrt_status ctrt_device_get_link(ctrt_link *out, const char *name, const char *peer);

/* ---- plugins ---- */

/* State of one plugin file or component. The strings are valid until the process ends. */
typedef struct ctrt_plugin_info {
    size_t size;
    const char *file;                   /* path; "" for a name without a file */
    const char *plugin, *version;       /* from the plugin; "" if the file could not be queried */
    const char *kind, *component;       /* "backend", "cpu"; "" if the file was refused */
    const char *state;                  /* "ready", "loaded", "refused", "disabled", "absent", "crashed" (with
                                         * CTRT_PROBE=child) */
    const char *reason;                 /* explanation; "" if there is no problem */
    int score;
} ctrt_plugin_info;
#define CTRT_PLUGIN_INFO CTRT_SIZED_(ctrt_plugin_info)

/* Writes the `index`-th component or refused file of all plugin files. Opens every plugin file found, but
 * initialises none. CTRT_ERR_NOT_FOUND past the last one. */
CTRT_API ctrt_status ctrt_plugin_list(ctrt_plugin_info *out, size_t index);

/* Returns the `index`-th folder in which plugins are searched, in search order; NULL past the last one. The string
 * is valid until the process ends. */
CTRT_API const char *ctrt_plugin_folder(size_t index);

CTRT_END_DECLS

#endif
