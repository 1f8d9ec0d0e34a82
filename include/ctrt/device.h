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
