/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/plugin.h: the plugin ABI: everything that the author of a plugin needs.
 *
 * A plugin is a shared object that exports one function, ctrt_plugin_v1. The functions that it may call are in the
 * host table, so it needs no symbol of libctrt and is not linked with it. The exceptions are communicators
 * (comm-*.so), strategies (strategy-*.so) and backends whose devices have several members (backend-*-multi.so), which
 * also call the public functions and are linked with libctrt.so.
 *
 * Every table begins with its size, is passed by pointer and only grows at its end. A slot may be called only if it
 * lies within the size and is not NULL (CTRT_SLOT). Unless its comment says otherwise, a slot returns CTRT_OK, or a
 * negative status after host->fail(), and may be called from any thread, also by several threads at the same time.
 * After CTRT_OK its results are written: a handle or an address that it returns is not NULL, and a number is not
 * negative. After a failure the caller does not use them. The library reports a slot that returns something else as an
 * error of the plugin (CTRT_ERR_PLUGIN).
 *
 * `ctrt check --contract PLUGIN.so` checks whether a plugin keeps this contract; doc/plugin-contract.md lists the check
 * of each sentence. `ctrt check PLUGIN.so` checks what its kernels compute.
 *
 * Order of calls:
 *   dlopen -> ctrt_plugin_v1() (pure) -> sizes and ABI validated -> component probe (cheap, opens nothing)
 *   -> plugin init(host), once, before the first use of a component -> component slots. A plugin is never unloaded. */
#ifndef CTRT_PLUGIN_H
#define CTRT_PLUGIN_H

#include "ctrt/types.h"

CTRT_BEGIN_DECLS

/* The ABI's version. Tables of equal major versions are compatible; the minor version counts additions. */
#define CTRT_PLUGIN_ABI_MAJOR 1u
#define CTRT_PLUGIN_ABI_MINOR 0u

/* True if `table` is large enough to have slot `member` and the slot is not NULL. */
#define CTRT_SLOT(table, member)                                                                                  \
    ((table) != NULL                                                                                              \
     && (table)->size >= (size_t)((const char *)(&(table)->member + 1) - (const char *)(table))                   \
     && (table)->member != NULL)

/* Like CTRT_SLOT, for members whose value 0 is meaningful: tests the size only. */
#define CTRT_HAS(table, member)                                                                                   \
    ((table) != NULL && (table)->size >= (size_t)((const char *)(&(table)->member + 1) - (const char *)(table)))

/* ---- arguments of kernels --------------------------------------------------------------------------------------- */

enum {                              /* ctrt_view.flags */
    CTRT_VIEW_CONTIGUOUS = 1,       /* row-major without gaps */
    CTRT_VIEW_CHANNELS_LAST = 2,    /* 4-d NCHW shape stored as NHWC without gaps */
    CTRT_VIEW_HOST_SCALAR = 4,      /* one element in host memory with strides 0, on any device */
    CTRT_VIEW_PINNED = 8            /* pinned host memory; the core waits for pending copies before a kernel gets it */
};

/* A tensor as a kernel gets it. Shapes and strides count elements; entries at index ndim and above are unspecified. */
typedef struct ctrt_view {
    void *data;                     /* address of element [0,0,...] on the device */
    int64_t numel;
    uint8_t dtype;                  /* ctrt_dtype */
    uint8_t ndim;
    uint16_t flags;                 /* CTRT_VIEW_*; _CONTIGUOUS and _CHANNELS_LAST are set whenever they apply */
    uint32_t reserved;
    int64_t shape[CTRT_MAX_DIMS];
    int64_t strides[CTRT_MAX_DIMS];
    void *owner;                    /* for the core: the storage; kernels must not use it */
} ctrt_view;

struct ctrt_kernel;

/* One execution of an op. Views of optional inputs may be NULL where the op's contract says so. Inputs never
 * overlap outputs, except as the identical view of an in-place op (CTRT_KERNEL_INPLACE). Inputs may overlap each other.
 *
 * A kernel reads and writes only the memory from the first to the last element of each view, and its workspace: a
 * vector load must not read beyond the last element, where memory may not be mapped. It writes all elements of the
 * outputs and nothing between them, and does not change inputs, unless the op's contract says otherwise.
 * `data` is aligned to the size of an element only, because a view may begin anywhere in its storage.
 *
 * On a device with queues, run() enqueues the work on `queue` and returns. Everything that the call points to
 * (views, arrays, attributes, elements of HOST_SCALAR views) is valid until run() returns; the memory of operands
 * and workspace is valid until the work is done. Several threads may be in run() at the same time, also of one kernel
 * and one device, but calls for one queue do not overlap. On a synchronous device the work is done when run()
 * returns. */
typedef struct ctrt_call {
    size_t size;
    void *device;                           /* handle from device->open() */
    void *queue;                            /* queue to enqueue on; NULL on synchronous devices */
    const ctrt_view *const *inputs;
    const ctrt_view *const *outputs;        /* kernels write the data, not the view */
    uint32_t n_inputs, n_outputs;
    const void *attributes;                 /* struct ctrt_*_attributes of the op, or NULL */
    void *workspace;                        /* memory of the size that workspace() requested; 64-byte aligned */
    size_t workspace_bytes;
    const struct ctrt_kernel *kernel;       /* the kernel whose run() is called; a kernel that calls another sets it */
    uint64_t sequence;                      /* number of this call on its queue, from 1; 0 without queues */
} ctrt_call;

enum {                              /* ctrt_kernel.flags */
    CTRT_KERNEL_STRIDED = 1,        /* accepts any strides (also zero and negative); otherwise inputs are contiguous */
    CTRT_KERNEL_INPLACE = 2,        /* output 0 may be the same view as input 0 (the same pointer in `inputs` and
                                     * `outputs`), and then also as other inputs (x += x). Without the flag it is memory
                                     * of its own. Other outputs are inputs only where the op's contract says so (=x),
                                     * for all kernels of the op, with or without the flag. */
    CTRT_KERNEL_CHANNELS_LAST = 4,  /* 4-d operands may also be channels-last, all of them */
    CTRT_KERNEL_FOUND_INF = 8       /* sgd_step, adam_step: may have the operands `found_inf` and `skipped` */
};

#define CTRT_DTYPE_BIT(dtype) ((uint64_t)1 << (dtype))

/* A kernel: the code of one op on one backend for a set of dtypes. Among the kernels whose `dtypes` contain the op's
 * key dtype (ctrt/contracts.def) and whose accepts() returns true, the one with the best score is selected;
 * the core caches the selection. */
typedef struct ctrt_kernel {
    size_t size;
    const char *op;                                 /* name in ctrt/ops.def; a kernel of another name is never called,
                                                     * and is logged when the first device of the backend is used */
    uint64_t dtypes;                                /* set of CTRT_DTYPE_BIT; other bits are 0 */
    int32_t score;                                  /* 0 is normal; larger wins */
    uint32_t flags;                                 /* CTRT_KERNEL_* */
    ctrt_status (*run)(const ctrt_call *call);      /* required */
    bool (*accepts)(const ctrt_call *call);         /* Optional: returns false for unsupported shapes or layouts.
                                                     * Must not read the data. */
    /* Optional: writes the bytes of workspace that run() needs. Must not read the data. call->workspace_bytes is 0,
     * or a size that could not be allocated. In the latter case, a kernel that can run with less writes a smaller
     * size (0: none); any other kernel writes the same size again, and the op fails. */
    ctrt_status (*workspace)(const ctrt_call *call, size_t *bytes);
} ctrt_kernel;

/* ---- attributes of ops ------------------------------------------------------------------------------------------
 *
 * ctrt/contracts.def has for each op the operands of its kernel, what it computes, its struct of attributes, and the
 * meaning of the structs' members. `ctrt ops NAME` prints it; the manual page ctrt-kernels(7) has all of it. */

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

/* ---- functions that the library provides to plugins ------------------------------------------------------------- */

struct ctrt_backend;

/* The value of a parameter. `text` is valid until the process ends; NULL if unset. */
typedef struct ctrt_param_value {
    const char *text;
    int64_t integer;            /* INT, BYTES (bytes), BOOL (0, 1), ENUM (position of the word) */
    bool is_set;                /* set by the environment or the program, not by default */
} ctrt_param_value;

typedef struct ctrt_host {
    size_t size;
    uint32_t abi_major, abi_minor;
    /* Sets the calling thread's error message and returns `status`. */
    ctrt_status (*fail)(ctrt_status status, const char *format, ...) CTRT_PRINTF(2, 3);
    void (*log)(ctrt_log_level level, const char *component, const char *format, ...) CTRT_PRINTF(3, 4);
    /* Host memory; failure injection can make alloc fail. alloc returns NULL if there is no memory. */
    void *(*alloc)(size_t bytes);
    void (*free)(void *pointer);
    /* Declares `param` (repeated declarations are allowed) and reads its value. A malformed value is an error whose
     * message contains it. */
    ctrt_status (*param)(ctrt_param_value *out, const ctrt_param *param);
    /* Returns the tables of another backend, which is loaded if necessary; NULL if there is none. For overlays. */
    const struct ctrt_backend *(*backend)(const char *name);
    /* Returns the calling thread's last error message, to pass an error on later or elsewhere; valid until its next
     * failure. */
    const char *(*message)(void);
    /* Writes a description of the owner of the device memory at `address` ("the result of matmul in encoder.0") and
     * returns true, or returns false if it is not known. May be called in a signal handler: never
     * blocks on a lock and does not allocate. */
    bool (*describe)(char *text, size_t bytes, const void *address);
    /* Like pthread_atfork (NULL: nothing to do), for locks that a plugin takes when it is called. `before` runs after
     * the library has taken its own locks, which is the usual lock order; the other two run before the library releases
     * them. */
    ctrt_status (*at_fork)(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));
    /* Pass every new descriptor through this function: descriptors of the library are never 0, 1 or 2, even in a
     * program that was started with one of them closed. Returns `fd` if it is above 2 or negative; otherwise closes it
     * and returns a duplicate with FD_CLOEXEC, or -1 with errno. */
    int (*descriptor)(int fd);
} ctrt_host;

/* The same; `fd` before init, where a probe has no host table. `fd` is evaluated once. */
#define CTRT_PLUGIN_DESCRIPTOR(host, fd) (CTRT_SLOT(host, descriptor) ? (host)->descriptor(fd) : (fd))

/* ---- backends --------------------------------------------------------------------------------------------------- */

enum {                                  /* ctrt_device_info.flags */
    CTRT_DEVICE_HOST_MEMORY = 1,        /* the host can access the device's memory at the same addresses */
    CTRT_DEVICE_ASYNCHRONOUS = 2        /* work runs asynchronously on queues */
};

/* Properties of a device, written by the backend. Unknown values are 0 or "". New members are appended. */
typedef struct ctrt_device_info {
    size_t size;
    char name[128];                     /* "AMD EPYC 9355" */
    char uuid[64];                      /* "GPU-..." */
    char pci[32];                       /* "0000:65:00.0" */
    uint64_t total_memory;              /* bytes */
    int32_t compute_major, compute_minor;
    int32_t processors;                 /* cores or multiprocessors that this process may use */
    int32_t clock_khz;
    int32_t numa_node;                  /* -1: unknown */
    uint32_t flags;                     /* CTRT_DEVICE_* */
    int32_t ecc;                        /* 1 on, 0 off, -1 unknown */
    int32_t reserved;
    char cpus[256];                     /* CPUs near the device: "0-31,64-95" */
} ctrt_device_info;

/* A process that has memory on a device. */
typedef struct ctrt_device_process {
    int64_t pid;
    uint64_t memory;                    /* bytes; UINT64_MAX: unknown */
} ctrt_device_process;

/* Utilization of a device, over all processes. Unknown values are -1, or 0 for sizes in bytes. New members are
 * appended. */
typedef struct ctrt_device_usage {
    size_t size;
    uint64_t total_memory, used_memory, free_memory;    /* bytes */
    int32_t busy, memory_busy;          /* percent of the last sampling period in which kernels ran, and in which
                                         * memory was read or written */
    int32_t temperature;                /* degrees Celsius */
    int32_t power, power_limit;         /* milliwatts */
    int32_t clock_khz;
    int32_t process_count;              /* number of processes; at most process_room of them are written */
    int32_t process_room;               /* set by the caller, together with `processes` */
    ctrt_device_process *processes;
} ctrt_device_usage;

enum {                                  /* ctrt_device_link.kind: what connects two devices */
    CTRT_LINK_UNKNOWN, CTRT_LINK_NVLINK, CTRT_LINK_BOARD, CTRT_LINK_SWITCH, CTRT_LINK_SWITCHES, CTRT_LINK_BRIDGE,
    CTRT_LINK_NODE, CTRT_LINK_SYSTEM
};

/* Interconnect from one device to another of its type. New members are appended. */
typedef struct ctrt_device_link {
    size_t size;
    int32_t direct;                     /* 1: it can access the other's memory; 0: copies go through host memory; -1:
                                         * unknown */
    int32_t kind;                       /* CTRT_LINK_*: one board, one PCI switch, several switches, a host bridge, a
                                         * NUMA node, the whole machine */
    int32_t links;                      /* NVLinks between the two; 0: none, or through switches */
    int32_t reserved;
} ctrt_device_link;

typedef struct ctrt_device_table {      /* required; required slots: count, describe, open, close */
    size_t size;
    ctrt_status (*count)(int32_t *count);                               /* opens no context; works after a fork */
    /* Likewise. The caller zeroes *info and sets info->size; nothing is written after that many bytes. Other indices
     * than 0 to count - 1 are errors. */
    ctrt_status (*describe)(int32_t index, ctrt_device_info *info);
    /* Called for a device that is not open in this process; *device must not be NULL. In a child that was forked after
     * this, the slots of the device either work, or return CTRT_ERR_FORKED; free, close and the destroy slots then
     * leave the parent's memory, queues and events as they are. */
    ctrt_status (*open)(void **device, int32_t index);
    /* Called when queues, events, graphs and memory of the device are freed; their work may still run, so close waits
     * for it. Frees everything; open may follow. */
    void (*close)(void *device);
    /* Optional. The free bytes are at most the total; sizes are below 2^63. */
    ctrt_status (*memory_info)(void *device, uint64_t *free_bytes, uint64_t *total_bytes);
    /* Optional; must open nothing, like count and describe. The caller sets `size` and initialises all other members
     * to "unknown". */
    ctrt_status (*usage)(int32_t index, ctrt_device_usage *usage);
    ctrt_status (*link)(int32_t index, int32_t peer, ctrt_device_link *link);
} ctrt_device_table;

enum ctrt_copy_kind { CTRT_COPY_TO_DEVICE, CTRT_COPY_TO_HOST, CTRT_COPY_ON_DEVICE };

typedef struct ctrt_memory_table {      /* required; required slots: alloc, free, copy, fill */
    size_t size;
    /* Aligned to at least 64 bytes; bytes > 0. CTRT_ERR_OUT_OF_MEMORY if there is not enough, whatever the size. */
    ctrt_status (*alloc)(void *device, void **address, size_t bytes);
    /* `bytes`: as in alloc. The work that uses the memory is done. Does not fail. */
    void (*free)(void *device, void *address, size_t bytes);
    /* copy and fill are enqueued on `queue`, which is not NULL on a device with queues. Without queues it is NULL, and
     * the work is done on return. (Devices with queues are those with CTRT_DEVICE_ASYNCHRONOUS.) Sizes and addresses
     * have any alignment, and `bytes` may be 0. `to` and `from` do not overlap. `kind`: enum ctrt_copy_kind. Host
     * memory may be pageable, pinned by host_alloc, or registered. A copy on a queue may return before it is done, also
     * with pageable memory: the caller keeps host memory allocated, and the source unchanged, until the work is done.
     * So a backend whose API needs pinned memory either waits or has a pinned buffer of its own. */
    ctrt_status (*copy)(void *device, void *queue, void *to, const void *from, size_t bytes, int kind);
    ctrt_status (*fill)(void *device, void *queue, void *address, int byte, size_t bytes);
    /* Optional: pinned host memory for this device, aligned to at least 64 bytes; peer-to-peer copies; sharing between
     * processes. Each pair of slots both or none. */
    ctrt_status (*host_alloc)(void *device, void **address, size_t bytes);
    void (*host_free)(void *device, void *address, size_t bytes);
    /* copy_peer is called only if can_access_peer(to_device, from_device). `queue` is one of to_device, or NULL without
     * queues; the caller has ordered the work of from_device before. */
    bool (*can_access_peer)(void *device, void *peer);
    ctrt_status (*copy_peer)(void *to_device, void *to, void *from_device, const void *from, size_t bytes, void *queue);
    /* export_memory writes a new descriptor of memory that alloc returned (CTRT_ERR_NOT_SUPPORTED: it was not allocated
     * for that); the caller closes it. import_memory maps memory of another process, for `free`, and does not close
     * `fd`. The memory exists until all processes have freed it. */
    ctrt_status (*export_memory)(void *device, void *address, size_t bytes, int *fd);
    ctrt_status (*import_memory)(void *device, void **address, size_t bytes, int fd);
    /* Optional, all five or none: reserve allocates address ranges without memory, and map adds memory to a part of
     * one. Offsets and sizes are multiples of page_bytes. Mapped memory has the properties of alloc's. */
    size_t page_bytes;
    ctrt_status (*reserve)(void *device, void **address, size_t bytes);
    void (*unreserve)(void *device, void *address, size_t bytes);
    ctrt_status (*map)(void *device, void *address, size_t bytes);      /* CTRT_ERR_OUT_OF_MEMORY: nothing is mapped */
    void (*unmap)(void *device, void *address, size_t bytes);
    /* Optional, all four or none: stream-ordered allocation. `ordered` returns whether this device supports it; it is
     * called when the device's memory is set up. If it returns true, alloc_on and free_on replace alloc and free.
     * alloc_on: work enqueued on `queue` from now on may use the memory. Work on other queues may use the memory if it
     * is ordered after all work that is on `queue` now. If `queue` is being captured, any work may use the memory.
     * free_on: the memory is freed when all work that is on `queue` now is done; the caller has enqueued waits for
     * other queues' work there. trim: releases the freed memory that the device caches, including that of pending
     * frees. */
    bool (*ordered)(void *device);
    ctrt_status (*alloc_on)(void *device, void **address, size_t bytes, void *queue);
    void (*free_on)(void *device, void *address, size_t bytes, void *queue);
    void (*trim)(void *device);
    /* Optional, both or none: pins memory of the host that exists already, for all devices of the backend, so that they
     * copy from and to it as from host_alloc's. Address and size are multiples of the host's page size.
     * host_unregister is called when no work uses the memory any more. */
    ctrt_status (*host_register)(void *device, void *address, size_t bytes);
    void (*host_unregister)(void *device, void *address, size_t bytes);
} ctrt_memory_table;

/* Queues of work. The work of one queue runs in the order in which it was enqueued; queues run concurrently. A
 * failure of work, which is detected later, ends its queue: subsequent work on the queue is dropped, and
 * synchronize, query and error return the status with a message that names the work, until reset. (Work that was
 * enqueued before one of them returned the failure may run, but its results are not used.) Event records and
 * waits still take place, in order. Other queues continue. An event stands for all work that was on the queue when
 * the event was recorded; one that was never recorded is done. Recording it again replaces the record; earlier waits
 * keep the old one. event_destroy may be called directly after wait_event. */
typedef struct ctrt_queue_table {       /* Optional; without it, all work is complete when a slot returns. A device
                                         * without CTRT_DEVICE_ASYNCHRONOUS may have the slots synchronize and reset
                                         * only, for work that the core does not order (queue is NULL). With the flag,
                                         * these are required: create, destroy, synchronize, wait_event, and the slots
                                         * of events up to event_synchronize. */
    size_t size;
    /* Any priority is allowed; lower runs first. *queue must not be NULL. */
    ctrt_status (*create)(void *device, void **queue, int32_t priority);
    /* Work that is on the queue still runs; events that were recorded on it can be used. May wait for that work, but
     * the caller does not rely on it. */
    void (*destroy)(void *device, void *queue);
    /* Returns when all work that is on the queue now is done; work of other threads may follow meanwhile. queue NULL,
     * here and in query, error and reset: all queues of the device that are not captured. (In all other slots, queue is
     * not NULL.) */
    ctrt_status (*synchronize)(void *device, void *queue);
    ctrt_status (*query)(void *device, void *queue, bool *idle);
    ctrt_status (*wait_event)(void *device, void *queue, void *event);
    /* Calls the function when the work before it is done; later work of the queue waits for its return. The function
     * may wait, but does not use the device. Optional: used by tests. */
    ctrt_status (*host_call)(void *device, void *queue, void (*function)(void *), void *argument);
    ctrt_status (*event_create)(void *device, void **event, bool timing);
    void (*event_destroy)(void *device, void *event);
    ctrt_status (*event_record)(void *device, void *event, void *queue);
    ctrt_status (*event_query)(void *device, void *event, bool *done);
    ctrt_status (*event_synchronize)(void *device, void *event);
    ctrt_status (*event_elapsed)(void *device, void *from, void *to, double *milliseconds);
    /* Optional. error: returns the failure of a queue, if it is known already; *sequence receives ctrt_call.sequence
     * of the op that failed, 0 for other work. reset: makes the queue usable again after a failure;
     * CTRT_ERR_DEVICE_LOST if the device itself is lost. */
    ctrt_status (*error)(void *device, void *queue, uint64_t *sequence);
    ctrt_status (*reset)(void *device, void *queue);
    /* Optional. Writes the queue's handle in the API of the device (cuda: a CUstream), and makes the device current in
     * the calling thread for users of that API. */
    ctrt_status (*native)(void *device, void *queue, void **handle);
} ctrt_queue_table;

typedef struct ctrt_kernel_table {      /* optional; without it every op needs the CPU fallback */
    size_t size;
    const ctrt_kernel *kernels;
    size_t count;
    size_t stride;                      /* bytes from one kernel to the next: sizeof(ctrt_kernel) at the plugin's
                                         * compile time, or more if the plugin keeps data behind each kernel. A copy of
                                         * a kernel has all of these bytes. */
    /* Optional: called before the first kernel runs, to load libraries or select code for the CPU. */
    ctrt_status (*prepare)(void *device);
    /* Optional: `on` makes kernels that the calling thread runs use no other threads; false ends that. For callers
     * that have several threads of their own. */
    void (*single_thread)(bool on);
    /* Optional: ends and joins the threads that kernels started for the calling thread. Kernels that it runs later
     * start new ones. ctrt_shutdown calls this. */
    void (*end_threads)(void);
} ctrt_kernel_table;

/* Graph capture: work of queues, recorded as a graph that can be enqueued repeatedly. Between begin and end, work
 * that is enqueued on `queue` is recorded and does not run. Queues that wait for an event of it in the meantime join
 * the capture, and `queue` waits for them before end. Memory may be allocated in the meantime. */
typedef struct ctrt_capture_table {     /* all slots or none */
    size_t size;
    ctrt_status (*begin)(void *device, void *queue);
    /* also called after a failure; then no graph is returned */
    ctrt_status (*end)(void *device, void *queue, void **graph);
    ctrt_status (*replay)(void *device, void *graph, void *queue);
    void (*destroy)(void *device, void *graph);             /* all replays of the graph are done */
} ctrt_capture_table;

/* Devices that distribute each tensor over several members. `view`: any view of a tensor of the device. */
typedef struct ctrt_layout_table {
    size_t size;
    ctrt_status (*get)(void *device, const ctrt_view *view, ctrt_layout *layout);
    ctrt_status (*set)(void *device, const ctrt_view *view, const ctrt_layout *layout);    /* keeps the values */
    ctrt_status (*counts)(void *device, ctrt_layout_counts *counts);    /* the caller sets counts->size */
    /* Optional: returns the name of a member, "sim:2", which is valid until close; NULL if there is no such member. */
    const char *(*member)(void *device, int32_t index);
} ctrt_layout_table;

enum {                                  /* ctrt_backend.flags */
    CTRT_BACKEND_OWN_MEMORY = 1         /* each storage must be one block of the backend: the memory policy is always
                                         * default_memory, also if CTRT_MEMORY is set */
};

typedef struct ctrt_backend {
    size_t size;
    const ctrt_device_table *device;
    const ctrt_memory_table *memory;
    const ctrt_queue_table *queue;
    const ctrt_kernel_table *kernels;
    const ctrt_capture_table *capture;
    const char *default_memory;         /* default memory policy of this backend's devices if CTRT_MEMORY is not set;
                                         * NULL: direct */
    /* Optional: this backend's devices are another backend's under a second name: device i is base:i, with its
     * memory, streams and allocator. `kernels` takes precedence over the base's kernels; the other tables are
     * ignored and may be NULL. */
    const char *base;
    uint32_t float_default;             /* default ctrt_dtype of tensors created on these devices; 0: the process's
                                         * default */
    /* Precision (ctrt_dtype) in which f32 matrix products and convolutions multiply (they accumulate in f32); 0:
     * f32. Used by programs that compare results. */
    uint32_t matrix_dtype;
    uint32_t flags;                     /* CTRT_BACKEND_* */
    uint32_t reserved;
    const ctrt_layout_table *layout;    /* optional */
} ctrt_backend;

/* Kernels that are added to another backend's (component kind `kernels`; the component has that backend's name). */
typedef struct ctrt_kernels {
    size_t size;
    const ctrt_kernel_table *kernels;
} ctrt_kernels;

/* ---- memory policies -------------------------------------------------------------------------------------------- */

enum {                                  /* ctrt_memory_source.flags */
    CTRT_SOURCE_ORDERED = 1             /* free is ordered on its queue, so that no wait is needed for work on that
                                         * queue */
};

/* The memory source of a policy: the backend, or the next policy of a stack "a+b". */
typedef struct ctrt_memory_source {
    size_t size;
    void *state;
    ctrt_status (*alloc)(void *state, void **address, size_t bytes, void *queue);
    /* `bytes` and `queue`: as in alloc. Unless the source is CTRT_SOURCE_ORDERED or another policy, the work that uses
     * the memory must be done. */
    void (*free)(void *state, void *address, size_t bytes, void *queue);
    const char *device_name;            /* "cpu", "cuda:1" */
    uint32_t device_flags;              /* CTRT_DEVICE_* */
    uint32_t flags;                     /* CTRT_SOURCE_* */
    uint64_t total_bytes;               /* of the device; 0: unknown, or, from some point of a dry run on, no limit */
    /* A fence stands for work on one or several queues; it is done when all of that work is done. NULL is a fence
     * that is done. The slots are present on every device; without queues every fence is NULL. */
    ctrt_status (*fence_new)(void *state, void **fence, void *queue);   /* for all work that is on `queue` now */
    /* Makes work enqueued on `queue` from now on wait; queue NULL: blocks the caller. The caller keeps ownership of
     * the fence. */
    ctrt_status (*fence_wait)(void *state, void *fence, void *queue);
    bool (*fence_done)(void *state, void *fence);
    /* takes ownership of both; never fails, because it waits if necessary */
    void *(*fence_join)(void *state, void *a, void *b);
    void (*fence_free)(void *state, void *fence);
    /* Copies on `queue`, for policies that move memory. Host memory is pinned if the device has pinned memory. */
    ctrt_status (*copy)(void *state, void *to, const void *from, size_t bytes, int kind, void *queue);
    ctrt_status (*host_alloc)(void *state, void **address, size_t bytes);
    void (*host_free)(void *state, void *address, size_t bytes);
    /* As in ctrt_memory_table; NULL and 0 if the source does not support page mapping. */
    size_t page_bytes;
    ctrt_status (*reserve)(void *state, void **address, size_t bytes);
    void (*unreserve)(void *state, void *address, size_t bytes);
    ctrt_status (*map)(void *state, void *address, size_t bytes);
    void (*unmap)(void *state, void *address, size_t bytes);
    /* Sets *done to whether the fence's work has ended. If it has ended, returns CTRT_OK, or the failure that made a
     * queue drop this work or work before it; resetting the queue does not change that result. Does not block. */
    ctrt_status (*fence_status)(void *state, void *fence, bool *done);
    /* Like alloc, for memory that is not needed yet: neither releases cached memory nor moves blocks to satisfy the
     * request. */
    ctrt_status (*alloc_spare)(void *state, void **address, size_t bytes, void *queue);
} ctrt_memory_source;

/* A block that a policy allocates. `bytes` is the size that the statistics count (not less than requested); the
 * caller uses only the requested size. `cookie` belongs to the policy. */
typedef struct ctrt_block {
    void *address;
    size_t bytes;
    void *cookie;
    /* For policies with CTRT_MEMORY_FENCES. In free: work of other queues that still uses the block; the policy
     * takes ownership, and the memory must not be used before that work is done. From alloc: work that the first
     * user must wait for; the caller takes ownership. NULL: none. */
    void *fence;
} ctrt_block;

/* What `stats` of a memory policy reports. */
typedef struct ctrt_memory_policy_stats {
    size_t size;
    uint64_t reserved_bytes;            /* allocated from the source and not released */
    uint64_t cached_bytes;              /* the part of those that is free for reuse */
    uint64_t source_allocs, source_frees;
    /* The core counts allocated blocks; the policy counts these. */
    ctrt_stat segment[CTRT_POOLS], reserved[CTRT_POOLS];                 /* count, bytes */
    /* free blocks next to used ones in a segment */
    ctrt_stat inactive_split[CTRT_POOLS], inactive_split_bytes[CTRT_POOLS];
    ctrt_stat oversize_segment;  /* at least max_split bytes */
    uint64_t max_split;                 /* bytes; 0: no limit */
    uint64_t retries;                   /* source allocations that failed and were repeated after the cache was
                                         * released */
    uint64_t largest_free;              /* bytes of the largest free block */
    ctrt_stat spilled, spilled_bytes;    /* Blocks whose bytes are on the host; allocated: moved to the host;
                                                 * freed: moved back, or freed there. */
} ctrt_memory_policy_stats;

/* What `walk` reports: each segment, followed by its blocks in order of their addresses. */
/* free; allocated; free after its fence is done */
enum { CTRT_BLOCK_INACTIVE, CTRT_BLOCK_ACTIVE, CTRT_BLOCK_AWAITING };
typedef struct ctrt_memory_piece {
    size_t size;
    bool segment;                       /* true: a segment; false: a block of the last segment */
    bool large;                         /* in the large pool */
    bool expandable;                    /* a segment that is extended by pages */
    uint8_t block_state;                /* CTRT_BLOCK_*; of blocks */
    void *address;
    size_t bytes;
    void *queue;                        /* of a segment: the queue whose allocations it serves */
    void *name;                         /* of a movable block: its permanent name, while its bytes are at `address` */
} ctrt_memory_piece;

enum {                                  /* ctrt_memory_policy.flags */
    CTRT_MEMORY_FENCES = 1,             /* uses fences in ctrt_block; otherwise the core waits before free */
    CTRT_MEMORY_MOVES = 2               /* blocks can move; `use` returns their current address */
};

/* A memory policy (component kind `memory`). One instance per device. On a device with host memory, a forked child goes
 * on using its policies (host->at_fork), on others it does not. */
typedef struct ctrt_memory_policy {
    size_t size;                        /* required slots: create, destroy, alloc, free */
    /* `options`: the text after the name in CTRT_MEMORY ("max_split=64m,gc=0.8"), or "". `source` outlives the
     * policy. */
    ctrt_status (*create)(void **policy, const ctrt_memory_source *source, const char *options);
    void (*destroy)(void *policy);      /* all blocks are free; returns all memory to the source */
    /* Addresses are aligned to at least 64 bytes if the source's are; bytes > 0. A failure of the source is passed on,
     * except that CTRT_ERR_OUT_OF_MEMORY may be handled. */
    ctrt_status (*alloc)(void *policy, ctrt_block *block, size_t bytes, void *queue);
    void (*free)(void *policy, const ctrt_block *block, void *queue);   /* `queue`: as in alloc */
    uint32_t flags;                     /* CTRT_MEMORY_* */
    uint32_t reserved;
    /* Optional. trim: releases cached memory. stats: writes the statistics. */
    void (*trim)(void *policy);
    void (*stats)(void *policy, ctrt_memory_policy_stats *stats);
    /* Optional: reports all segments and blocks, with the policy's locks held; `visit` must not call the policy. */
    void (*walk)(void *policy, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument);
    /* Required with CTRT_MEMORY_MOVES. Called before work that uses the block is enqueued on `queue`: moves the
     * block back to the device if necessary, pins it until unuse, and writes its current address. Calls nest.
     * `block` is as alloc wrote it; its address is the block's name, which is valid while the block is allocated,
     * wherever the bytes are. */
    ctrt_status (*use)(void *policy, const ctrt_block *block, void *queue, void **address);
    void (*unuse)(void *policy, const ctrt_block *block, void *queue);
    /* Optional: creates a second instance in the same state over another source whose blocks are not real memory, for
     * dry runs. Cookies of allocated blocks are those of the original. */
    ctrt_status (*clone)(void *policy, void **copy, const ctrt_memory_source *source);
    /* Optional: like alloc, but never releases memory to the source to satisfy the request. Without this slot, alloc
     * must also not do so, unless the policy has CTRT_MEMORY_MOVES. */
    ctrt_status (*alloc_spare)(void *policy, ctrt_block *block, size_t bytes, void *queue);
    /* Optional: sets all peaks of `stats` to the current values. */
    void (*reset_peaks)(void *policy);
    /* Optional: returns the option with which a request could have used free memory that is in several blocks, as in
     * CTRT_MEMORY and with what it does, for the message that memory ran out: "max_split=64m does not split large
     * segments". NULL: none, or it is set already. Static. */
    const char *(*gaps_option)(void *policy);
} ctrt_memory_policy;

/* ---- the plugin itself ------------------------------------------------------------------------------------------ */

typedef enum ctrt_component_kind {
    CTRT_COMPONENT_BACKEND = 1,         /* table: ctrt_backend */
    CTRT_COMPONENT_KERNELS = 2,         /* table: ctrt_kernels */
    CTRT_COMPONENT_MEMORY = 3,          /* table: ctrt_memory_policy */
    CTRT_COMPONENT_COMM = 4,            /* table: ctrt_comm_engine, in ctrt/comm_plugin.h */
    CTRT_COMPONENT_STRATEGY = 5,        /* table: ctrt_strategy, in ctrt/strategy_plugin.h */
    CTRT_COMPONENT_HOOK = 6,            /* any table, which the library only lists: for a tool that knows the plugin,
                                         * such as the tests of simulated devices */
    CTRT_COMPONENT_IMAGE = 7,           /* table: ctrt_image_codec, in ctrt/image_plugin.h */
    CTRT_COMPONENT_KIND_MAX_ = 0x7fffffff
} ctrt_component_kind;

#define CTRT_PROBE_AGAIN (-0x7fffffff - 1)

typedef struct ctrt_component {
    size_t size;
    ctrt_component_kind kind;
    int32_t score;                      /* of two components with one name, the one with the larger score is used */
    const char *name;                   /* "cpu": at most 31 lower-case letters, digits and '-'; begins with a letter,
                                         * does not end with '-'. The file is KIND-NAME.so. */
    const void *table;                  /* begins with size_t size */
    /* Optional: returns whether the component can work on this machine: above 0 yes, with larger values for better
     * ones; else no. Writes one line with the reason ("" is allowed for yes). CTRT_PROBE_AGAIN: unknown because of a
     * temporary shortage; the next use probes again. Must be cheap, open no context and work after a fork. If the
     * vendor's functions start threads or cannot be used after a fork, call them in a child process
     * (ctrt/probe_plugin.h). */
    int32_t (*probe)(char *reason, size_t reason_bytes);
} ctrt_component;

typedef struct ctrt_plugin {
    size_t size;
    uint32_t abi_major, abi_minor;      /* CTRT_PLUGIN_ABI_MAJOR, _MINOR at compile time */
    const char *name;                   /* "backend-cpu" */
    const char *version;
    const char *description;
    const ctrt_component *components;
    size_t component_count;
    size_t component_stride;            /* sizeof(ctrt_component) at compile time */
    /* Optional: stores the host table and declares parameters. Also called when parameters are listed, even if the
     * probe returned no, so it must not need the device; in that case a failure has no effect. Called once, before any
     * slot except probe. Called again only after it returned CTRT_ERR_OUT_OF_MEMORY or CTRT_ERR_IO, which mean a
     * temporary shortage (descriptors, memory, input). The caller holds no lock that the host's functions take, so init
     * may start threads that use the host, and wait for them; a backend's init may also fork. host->backend returns
     * NULL for a plugin whose init waits for this one. */
    ctrt_status (*init)(const ctrt_host *host);
} ctrt_plugin;

/* The only exported symbol of a plugin. Pure: returns constant data, no side effects. It may check the host's ABI
 * version. */
typedef const ctrt_plugin *(*ctrt_plugin_entry)(uint32_t host_abi_major, uint32_t host_abi_minor);
CTRT_API const ctrt_plugin *ctrt_plugin_v1(uint32_t host_abi_major, uint32_t host_abi_minor);

/* Defines ctrt_plugin_v1 and the plugin's table, with the ABI version of this header. Use it once, at file scope, in C
 * or C++, without a semicolon. `name`, `version`, `description`: string literals. `components`: an array of
 * ctrt_component. `init`: as in ctrt_plugin, or NULL.
 *
 *     static const ctrt_component components[] = {
 *         { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .name = "mine", .table = &backend },
 *     };
 *     CTRT_PLUGIN_DEFINE("backend-mine", "1.0", "my accelerator", components, init) */
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
