/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_DEVICE_H
#define CTRT_DEVICE_H
#include "ctrt/base.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_device ctrt_device;
typedef struct ctrt_device_spec {
    char type[32];
    int index;
} ctrt_device_spec;
CTRT_API ctrt_status ctrt_device_parse(ctrt_device_spec *out, const char *text);
CTRT_API ctrt_status ctrt_device_format(char *buffer, size_t bytes, const ctrt_device_spec *spec);
CTRT_API ctrt_status ctrt_device_get(ctrt_device **out, const char *name);
CTRT_API ctrt_status ctrt_device_auto(ctrt_device **out);
CTRT_API bool ctrt_is_available(const char *type, const char **why);
CTRT_API int ctrt_device_count(const char *type);
CTRT_API ctrt_status ctrt_device_list(ctrt_device_spec *out, size_t index);
typedef struct ctrt_device_properties {
    size_t size;
    char name[128], uuid[64], pci[32];
    uint64_t total_memory;
    int compute_major, compute_minor;
    int processors;
    int clock_khz;
    int numa_node;
    int ecc;
    bool host_memory;
    bool asynchronous;
    char cpus[256];
    ctrt_dtype float_default;
    ctrt_dtype matrix_dtype;
} ctrt_device_properties;
#define CTRT_DEVICE_PROPERTIES CTRT_SIZED_(ctrt_device_properties)
CTRT_API ctrt_status ctrt_device_get_properties(ctrt_device_properties *out, const char *name);
CTRT_API const char *ctrt_device_name(const ctrt_device *device);
CTRT_API const char *ctrt_device_type(const ctrt_device *device);
CTRT_API int ctrt_device_index(const ctrt_device *device);
CTRT_API ctrt_status ctrt_device_memory_info(ctrt_device *device, uint64_t *free_bytes, uint64_t *total_bytes);
CTRT_API ctrt_status ctrt_device_synchronize(ctrt_device *device);
CTRT_API uint64_t ctrt_device_synchronizations(ctrt_device *device);
CTRT_API ctrt_status ctrt_device_set_current(ctrt_device *device);
CTRT_API ctrt_status ctrt_device_get_current(ctrt_device **out, const char *type);
CTRT_API ctrt_status ctrt_device_push(ctrt_device *device);
CTRT_API ctrt_status ctrt_device_pop(void);
CTRT_BLOCK_LEAVE_(ctrt_on_device_leave_, ctrt_device_pop())
#define ctrt_on_device(device) CTRT_BLOCK_TRY_(ctrt_on_device_leave_, ctrt_device_push(device))
CTRT_API ctrt_status ctrt_set_default_device(ctrt_device *device);
CTRT_API ctrt_status ctrt_default_device(ctrt_device **out);
typedef struct ctrt_usage {
    size_t size;
    int busy, memory_busy;
    uint64_t total_memory, used_memory, free_memory;
    int temperature;
    double power, power_limit;
    int clock_khz;
    int processes;
} ctrt_usage;
#define CTRT_USAGE CTRT_SIZED_(ctrt_usage)
CTRT_API ctrt_status ctrt_device_get_usage(ctrt_usage *out, const char *name);
typedef struct ctrt_process {
    int64_t pid;
    uint64_t memory;
    char name[32];
    uint64_t reserved[3];
} ctrt_process;
CTRT_API ctrt_status ctrt_device_get_processes(ctrt_process *list, size_t *count, size_t capacity, const char *name);
CTRT_API ctrt_status ctrt_show_utilization(char **out, const char *type, bool full);
typedef enum ctrt_pick_order {
    CTRT_PICK_FIRST,
    CTRT_PICK_LAST,
    CTRT_PICK_RANDOM,
    CTRT_PICK_LOAD,
    CTRT_PICK_MEMORY
} ctrt_pick_order;
typedef struct ctrt_pick_options {
    size_t initialized;
    const char *type;
    ctrt_pick_order order;
    double max_load, max_memory;
    uint64_t min_free;
    bool unknown_is_free;
    const int *exclude;
    size_t exclude_count;
    int attempts;
    double interval;
} ctrt_pick_options;
#define CTRT_PICK_OPTIONS { sizeof(ctrt_pick_options), 0, CTRT_PICK_FIRST, 0.5, 0.5, 0, false, 0, 0, 1, 900 }
CTRT_API ctrt_status ctrt_pick_devices(ctrt_device_spec *list, size_t *count, size_t capacity,
                                       const ctrt_pick_options *options);
typedef struct ctrt_link {
    size_t size;
    int direct;
    int links;
    char kind[32];
} ctrt_link;
#define CTRT_LINK CTRT_SIZED_(ctrt_link)
CTRT_API ctrt_status ctrt_device_get_link(ctrt_link *out, const char *name, const char *peer);
typedef struct ctrt_plugin_info {
    size_t size;
    const char *file;
    const char *plugin, *version;
    const char *kind, *component;
    const char *state;
    const char *reason;
    int score;
} ctrt_plugin_info;
#define CTRT_PLUGIN_INFO CTRT_SIZED_(ctrt_plugin_info)
CTRT_API ctrt_status ctrt_plugin_list(ctrt_plugin_info *out, size_t index);
CTRT_API const char *ctrt_plugin_folder(size_t index);
CTRT_END_DECLS
#endif
