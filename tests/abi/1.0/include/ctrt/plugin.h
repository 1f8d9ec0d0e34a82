/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_PLUGIN_H
#define CTRT_PLUGIN_H
#include "ctrt/types.h"
CTRT_BEGIN_DECLS
#define CTRT_PLUGIN_ABI_MAJOR 1u
#define CTRT_PLUGIN_ABI_MINOR 0u
#define CTRT_SLOT(table, member)                                                                                  \
    ((table) != NULL                                                                                              \
     && (table)->size >= (size_t)((const char *)(&(table)->member + 1) - (const char *)(table))                   \
     && (table)->member != NULL)
#define CTRT_HAS(table, member)                                                                                   \
    ((table) != NULL && (table)->size >= (size_t)((const char *)(&(table)->member + 1) - (const char *)(table)))
enum {
    CTRT_VIEW_CONTIGUOUS = 1,
    CTRT_VIEW_CHANNELS_LAST = 2,
    CTRT_VIEW_HOST_SCALAR = 4,
    CTRT_VIEW_PINNED = 8
};
typedef struct ctrt_view {
    void *data;
    int64_t numel;
    uint8_t dtype;
    uint8_t ndim;
    uint16_t flags;
    uint32_t reserved;
    int64_t shape[CTRT_MAX_DIMS];
    int64_t strides[CTRT_MAX_DIMS];
    void *owner;
} ctrt_view;
struct ctrt_kernel;
typedef struct ctrt_call {
    size_t size;
    void *device;
    void *queue;
    const ctrt_view *const *inputs;
    const ctrt_view *const *outputs;
    uint32_t n_inputs, n_outputs;
    const void *attributes;
    void *workspace;
    size_t workspace_bytes;
    const struct ctrt_kernel *kernel;
    uint64_t sequence;
} ctrt_call;
enum {
    CTRT_KERNEL_STRIDED = 1,
    CTRT_KERNEL_INPLACE = 2,
    CTRT_KERNEL_CHANNELS_LAST = 4,
    CTRT_KERNEL_FOUND_INF = 8
};
#define CTRT_DTYPE_BIT(dtype) ((uint64_t)1 << (dtype))
typedef struct ctrt_kernel {
    size_t size;
    const char *op;
    uint64_t dtypes;
    int32_t score;
    uint32_t flags;
    ctrt_status (*run)(const ctrt_call *call);
    bool (*accepts)(const ctrt_call *call);
    ctrt_status (*workspace)(const ctrt_call *call, size_t *bytes);
} ctrt_kernel;
typedef struct ctrt_reduce_attributes {
    size_t size;
    uint32_t dims;
} ctrt_reduce_attributes;
typedef struct ctrt_range_attributes {
    size_t size;
    ctrt_scalar lo, hi;
    bool has_lo, has_hi;
} ctrt_range_attributes;
typedef struct ctrt_gelu_attributes {
    size_t size;
    bool tanh;
} ctrt_gelu_attributes;
typedef struct ctrt_conv_attributes {
    size_t size;
    int64_t stride[2], padding[2], dilation[2], groups;
} ctrt_conv_attributes;
typedef struct ctrt_pool_attributes {
    size_t size;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} ctrt_pool_attributes;
typedef struct ctrt_norm_attributes {
    size_t size;
    double epsilon, momentum;
    bool training;
} ctrt_norm_attributes;
typedef struct ctrt_cross_entropy_attributes {
    size_t size;
    int64_t ignore_index;
    double label_smoothing;
} ctrt_cross_entropy_attributes;
typedef struct ctrt_attention_attributes {
    size_t size;
    double scale;
    bool causal;
} ctrt_attention_attributes;
typedef struct ctrt_index_attributes {
    size_t size;
    int64_t value;
} ctrt_index_attributes;
typedef struct ctrt_random_attributes {
    size_t size;
    uint64_t seed, offset;
    double a, b;
    int64_t lo, hi;
    const uint64_t *place;
} ctrt_random_attributes;
typedef struct ctrt_sgd_attributes {
    size_t size;
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize, first;
    const double *replayed;
} ctrt_sgd_attributes;
typedef struct ctrt_adam_attributes {
    size_t size;
    double lr, beta1, beta2, epsilon, weight_decay;
    bool decoupled;
    bool maximize;
    int64_t step;
    const double *replayed;
} ctrt_adam_attributes;
typedef struct ctrt_amp_attributes {
    size_t size;
    double growth_factor, backoff_factor;
    double min_scale;
    int64_t growth_interval;
} ctrt_amp_attributes;
struct ctrt_backend;
typedef struct ctrt_param_value {
    const char *text;
    int64_t integer;
    bool is_set;
} ctrt_param_value;
typedef struct ctrt_host {
    size_t size;
    uint32_t abi_major, abi_minor;
    ctrt_status (*fail)(ctrt_status status, const char *format, ...) CTRT_PRINTF(2, 3);
    void (*log)(ctrt_log_level level, const char *component, const char *format, ...) CTRT_PRINTF(3, 4);
    void *(*alloc)(size_t bytes);
    void (*free)(void *pointer);
    ctrt_status (*param)(ctrt_param_value *out, const ctrt_param *param);
    const struct ctrt_backend *(*backend)(const char *name);
    const char *(*message)(void);
    bool (*describe)(char *text, size_t bytes, const void *address);
    ctrt_status (*at_fork)(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));
    int (*descriptor)(int fd);
} ctrt_host;
#define CTRT_PLUGIN_DESCRIPTOR(host, fd) (CTRT_SLOT(host, descriptor) ? (host)->descriptor(fd) : (fd))
enum {
    CTRT_DEVICE_HOST_MEMORY = 1,
    CTRT_DEVICE_ASYNCHRONOUS = 2
};
typedef struct ctrt_device_info {
    size_t size;
    char name[128];
    char uuid[64];
    char pci[32];
    uint64_t total_memory;
    int32_t compute_major, compute_minor;
    int32_t processors;
    int32_t clock_khz;
    int32_t numa_node;
    uint32_t flags;
    int32_t ecc;
    int32_t reserved;
    char cpus[256];
} ctrt_device_info;
typedef struct ctrt_device_process {
    int64_t pid;
    uint64_t memory;
} ctrt_device_process;
typedef struct ctrt_device_usage {
    size_t size;
    uint64_t total_memory, used_memory, free_memory;
    int32_t busy, memory_busy;
    int32_t temperature;
    int32_t power, power_limit;
    int32_t clock_khz;
    int32_t process_count;
    int32_t process_room;
    ctrt_device_process *processes;
} ctrt_device_usage;
enum {
    CTRT_LINK_UNKNOWN, CTRT_LINK_NVLINK, CTRT_LINK_BOARD, CTRT_LINK_SWITCH, CTRT_LINK_SWITCHES, CTRT_LINK_BRIDGE,
    CTRT_LINK_NODE, CTRT_LINK_SYSTEM
};
typedef struct ctrt_device_link {
    size_t size;
    int32_t direct;
    int32_t kind;
    int32_t links;
    int32_t reserved;
} ctrt_device_link;
typedef struct ctrt_device_table {
    size_t size;
    ctrt_status (*count)(int32_t *count);
    ctrt_status (*describe)(int32_t index, ctrt_device_info *info);
    ctrt_status (*open)(void **device, int32_t index);
    void (*close)(void *device);
    ctrt_status (*memory_info)(void *device, uint64_t *free_bytes, uint64_t *total_bytes);
    ctrt_status (*usage)(int32_t index, ctrt_device_usage *usage);
    ctrt_status (*link)(int32_t index, int32_t peer, ctrt_device_link *link);
} ctrt_device_table;
enum ctrt_copy_kind { CTRT_COPY_TO_DEVICE, CTRT_COPY_TO_HOST, CTRT_COPY_ON_DEVICE };
typedef struct ctrt_memory_table {
    size_t size;
    ctrt_status (*alloc)(void *device, void **address, size_t bytes);
    void (*free)(void *device, void *address, size_t bytes);
    ctrt_status (*copy)(void *device, void *queue, void *to, const void *from, size_t bytes, int kind);
    ctrt_status (*fill)(void *device, void *queue, void *address, int byte, size_t bytes);
    ctrt_status (*host_alloc)(void *device, void **address, size_t bytes);
    void (*host_free)(void *device, void *address, size_t bytes);
    bool (*can_access_peer)(void *device, void *peer);
    ctrt_status (*copy_peer)(void *to_device, void *to, void *from_device, const void *from, size_t bytes, void *queue);
    ctrt_status (*export_memory)(void *device, void *address, size_t bytes, int *fd);
    ctrt_status (*import_memory)(void *device, void **address, size_t bytes, int fd);
    size_t page_bytes;
    ctrt_status (*reserve)(void *device, void **address, size_t bytes);
    void (*unreserve)(void *device, void *address, size_t bytes);
    ctrt_status (*map)(void *device, void *address, size_t bytes);
    void (*unmap)(void *device, void *address, size_t bytes);
    bool (*ordered)(void *device);
    ctrt_status (*alloc_on)(void *device, void **address, size_t bytes, void *queue);
    void (*free_on)(void *device, void *address, size_t bytes, void *queue);
    void (*trim)(void *device);
    ctrt_status (*host_register)(void *device, void *address, size_t bytes);
    void (*host_unregister)(void *device, void *address, size_t bytes);
} ctrt_memory_table;
typedef struct ctrt_queue_table {
    size_t size;
    ctrt_status (*create)(void *device, void **queue, int32_t priority);
    void (*destroy)(void *device, void *queue);
    ctrt_status (*synchronize)(void *device, void *queue);
    ctrt_status (*query)(void *device, void *queue, bool *idle);
    ctrt_status (*wait_event)(void *device, void *queue, void *event);
    ctrt_status (*host_call)(void *device, void *queue, void (*function)(void *), void *argument);
    ctrt_status (*event_create)(void *device, void **event, bool timing);
    void (*event_destroy)(void *device, void *event);
    ctrt_status (*event_record)(void *device, void *event, void *queue);
    ctrt_status (*event_query)(void *device, void *event, bool *done);
    ctrt_status (*event_synchronize)(void *device, void *event);
    ctrt_status (*event_elapsed)(void *device, void *from, void *to, double *milliseconds);
    ctrt_status (*error)(void *device, void *queue, uint64_t *sequence);
    ctrt_status (*reset)(void *device, void *queue);
    ctrt_status (*native)(void *device, void *queue, void **handle);
} ctrt_queue_table;
typedef struct ctrt_kernel_table {
    size_t size;
    const ctrt_kernel *kernels;
    size_t count;
    size_t stride;
    ctrt_status (*prepare)(void *device);
    void (*single_thread)(bool on);
    void (*end_threads)(void);
} ctrt_kernel_table;
typedef struct ctrt_capture_table {
    size_t size;
    ctrt_status (*begin)(void *device, void *queue);
    ctrt_status (*end)(void *device, void *queue, void **graph);
    ctrt_status (*replay)(void *device, void *graph, void *queue);
    void (*destroy)(void *device, void *graph);
} ctrt_capture_table;
typedef struct ctrt_layout_table {
    size_t size;
    ctrt_status (*get)(void *device, const ctrt_view *view, ctrt_layout *layout);
    ctrt_status (*set)(void *device, const ctrt_view *view, const ctrt_layout *layout);
    ctrt_status (*counts)(void *device, ctrt_layout_counts *counts);
    const char *(*member)(void *device, int32_t index);
} ctrt_layout_table;
enum {
    CTRT_BACKEND_OWN_MEMORY = 1
};
typedef struct ctrt_backend {
    size_t size;
    const ctrt_device_table *device;
    const ctrt_memory_table *memory;
    const ctrt_queue_table *queue;
    const ctrt_kernel_table *kernels;
    const ctrt_capture_table *capture;
    const char *default_memory;
    const char *base;
    uint32_t float_default;
    uint32_t matrix_dtype;
    uint32_t flags;
    uint32_t reserved;
    const ctrt_layout_table *layout;
} ctrt_backend;
typedef struct ctrt_kernels {
    size_t size;
    const ctrt_kernel_table *kernels;
} ctrt_kernels;
enum {
    CTRT_SOURCE_ORDERED = 1
};
typedef struct ctrt_memory_source {
    size_t size;
    void *state;
    ctrt_status (*alloc)(void *state, void **address, size_t bytes, void *queue);
    void (*free)(void *state, void *address, size_t bytes, void *queue);
    const char *device_name;
    uint32_t device_flags;
    uint32_t flags;
    uint64_t total_bytes;
    ctrt_status (*fence_new)(void *state, void **fence, void *queue);
    ctrt_status (*fence_wait)(void *state, void *fence, void *queue);
    bool (*fence_done)(void *state, void *fence);
    void *(*fence_join)(void *state, void *a, void *b);
    void (*fence_free)(void *state, void *fence);
    ctrt_status (*copy)(void *state, void *to, const void *from, size_t bytes, int kind, void *queue);
    ctrt_status (*host_alloc)(void *state, void **address, size_t bytes);
    void (*host_free)(void *state, void *address, size_t bytes);
    size_t page_bytes;
    ctrt_status (*reserve)(void *state, void **address, size_t bytes);
    void (*unreserve)(void *state, void *address, size_t bytes);
    ctrt_status (*map)(void *state, void *address, size_t bytes);
    void (*unmap)(void *state, void *address, size_t bytes);
    ctrt_status (*fence_status)(void *state, void *fence, bool *done);
    ctrt_status (*alloc_spare)(void *state, void **address, size_t bytes, void *queue);
} ctrt_memory_source;
typedef struct ctrt_block {
    void *address;
    size_t bytes;
    void *cookie;
    void *fence;
} ctrt_block;
typedef struct ctrt_memory_policy_stats {
    size_t size;
    uint64_t reserved_bytes;
    uint64_t cached_bytes;
    uint64_t source_allocs, source_frees;
    ctrt_stat segment[CTRT_POOLS], reserved[CTRT_POOLS];
    ctrt_stat inactive_split[CTRT_POOLS], inactive_split_bytes[CTRT_POOLS];
    ctrt_stat oversize_segment;
    uint64_t max_split;
    uint64_t retries;
    uint64_t largest_free;
    ctrt_stat spilled, spilled_bytes;
} ctrt_memory_policy_stats;
enum { CTRT_BLOCK_INACTIVE, CTRT_BLOCK_ACTIVE, CTRT_BLOCK_AWAITING };
typedef struct ctrt_memory_piece {
    size_t size;
    bool segment;
    bool large;
    bool expandable;
    uint8_t block_state;
    void *address;
    size_t bytes;
    void *queue;
    void *name;
} ctrt_memory_piece;
enum {
    CTRT_MEMORY_FENCES = 1,
    CTRT_MEMORY_MOVES = 2
};
typedef struct ctrt_memory_policy {
    size_t size;
    ctrt_status (*create)(void **policy, const ctrt_memory_source *source, const char *options);
    void (*destroy)(void *policy);
    ctrt_status (*alloc)(void *policy, ctrt_block *block, size_t bytes, void *queue);
    void (*free)(void *policy, const ctrt_block *block, void *queue);
    uint32_t flags;
    uint32_t reserved;
    void (*trim)(void *policy);
    void (*stats)(void *policy, ctrt_memory_policy_stats *stats);
    void (*walk)(void *policy, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument);
    ctrt_status (*use)(void *policy, const ctrt_block *block, void *queue, void **address);
    void (*unuse)(void *policy, const ctrt_block *block, void *queue);
    ctrt_status (*clone)(void *policy, void **copy, const ctrt_memory_source *source);
    ctrt_status (*alloc_spare)(void *policy, ctrt_block *block, size_t bytes, void *queue);
    void (*reset_peaks)(void *policy);
    const char *(*gaps_option)(void *policy);
} ctrt_memory_policy;
typedef enum ctrt_component_kind {
    CTRT_COMPONENT_BACKEND = 1,
    CTRT_COMPONENT_KERNELS = 2,
    CTRT_COMPONENT_MEMORY = 3,
    CTRT_COMPONENT_COMM = 4,
    CTRT_COMPONENT_STRATEGY = 5,
    CTRT_COMPONENT_HOOK = 6,
    CTRT_COMPONENT_IMAGE = 7,
    CTRT_COMPONENT_KIND_MAX_ = 0x7fffffff
} ctrt_component_kind;
#define CTRT_PROBE_AGAIN (-0x7fffffff - 1)
typedef struct ctrt_component {
    size_t size;
    ctrt_component_kind kind;
    int32_t score;
    const char *name;
    const void *table;
    int32_t (*probe)(char *reason, size_t reason_bytes);
} ctrt_component;
typedef struct ctrt_plugin {
    size_t size;
    uint32_t abi_major, abi_minor;
    const char *name;
    const char *version;
    const char *description;
    const ctrt_component *components;
    size_t component_count;
    size_t component_stride;
    ctrt_status (*init)(const ctrt_host *host);
} ctrt_plugin;
typedef const ctrt_plugin *(*ctrt_plugin_entry)(uint32_t host_abi_major, uint32_t host_abi_minor);
CTRT_API const ctrt_plugin *ctrt_plugin_v1(uint32_t host_abi_major, uint32_t host_abi_minor);
#define CTRT_PLUGIN_DEFINE(name, version, description, components, init)                                              \
    const ctrt_plugin *ctrt_plugin_v1(uint32_t host_abi_major, uint32_t host_abi_minor)                               \
    {                                                                                                                 \
        static const ctrt_plugin plugin = {                                                                           \
            sizeof(ctrt_plugin), CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR, name, version, description, components, \
            sizeof(components) / sizeof((components)[0]), sizeof((components)[0]), init                               \
        };                                                                                                            \
        (void)host_abi_major, (void)host_abi_minor;                                                                   \
        return &plugin;                                                                                               \
    }
CTRT_END_DECLS
#endif
