/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/cuda.h: declarations shared by the host-side files of this backend. */
#ifndef CUDA_CUDA_H
#define CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "ctrt/plugin.h"
#include "driver_api.h"
#include "kernels/kernel_error.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define CUDA_DEVICES 64                     /* maximum per process; sets of devices are 64-bit masks */

extern const ctrt_host *cuda_host;

/* ---- driver.c ---- */

extern struct cuda_driver cuda_driver;      /* filled by cuda_driver_load */
extern int cuda_driver_version;             /* 12040 is CUDA 12.4; 0: unknown */

extern pid_t cuda_driver_process;           /* process that initialised CUDA; 0: none */

/* cuda_driver_load() loads libcuda.so.1 and looks up its entry points, without cuInit. cuda_driver_open() does that and
 * then calls cuInit. Each step runs once per process. Later calls return the same result, except after CTRT_ERR_IO:
 * then the next call tries again. cuda_driver_open() returns CTRT_ERR_FORKED in a child whose parent called cuInit.
 * Thread-safe. */
ctrt_status cuda_driver_load(void);
ctrt_status cuda_driver_open(void);
bool cuda_driver_tried(void);               /* true if this process or a parent called cuInit */

/* ---- diagnose.c ---- */

/* Writes into `text` (of size `bytes`) why there is no CUDA device, as found in /proc, /sys and /dev. `result`: the
 * error of the driver call, or -1 if libcuda.so.1 could not be loaded. `dl_error`: the message of dlerror(), or
 * NULL. */
void cuda_diagnose(char *text, size_t bytes, cu_result result, const char *dl_error);
/* probe() of the component: returns 1 if libcuda.so.1 can be loaded, CTRT_PROBE_AGAIN after a temporary failure, else
 * 0, with the reason in `reason`. Calls no function of the driver. */
int32_t cuda_probe(char *reason, size_t bytes);

/* ---- device.c ---- */

enum cuda_library_slot { CUDA_LIBRARY_LT, CUDA_LIBRARY_DNN, CUDA_LIBRARY_SLOTS };

struct cuda_device {
    char name[24];                          /* "cuda:1" */
    int index;
    cu_device ordinal;
    cu_context context;
    pid_t process;                          /* the process that opened the device */
    int processors, processor_threads;      /* multiprocessors; resident threads of each */
    int capability;                         /* compute capability: 90 is 9.0 */
    int shared_optin;                       /* bytes of shared memory that a block can opt in to */
    bool pages, pools, posix_handles;       /* supports virtual memory, memory pools, POSIX handles */
    size_t page_bytes;                      /* granularity of virtual memory */
    size_t total_bytes;
    struct cuda_queue *standard;            /* the default queue, for queue handle NULL */
    pthread_mutex_t lock;                   /* protects the lists below */
    struct cuda_queue *queues;
    struct cuda_mapping *mappings;
    struct cuda_block *blocks;              /* ipc.c */
    struct cuda_graph *graphs;              /* capture.c */
    _Atomic uint64_t peers_checked, peers_direct;   /* bit i: device i: copy was tested; copies are direct (peers.c) */
    struct cuda_async_alloc *async_alloc;   /* async_alloc.c; NULL: no stream-ordered allocation */
    atomic_int captures;                    /* number of captures in progress */
    void *libraries[CUDA_LIBRARY_SLOTS];    /* state of cublaslt.c and cudnn.c */
    atomic_int lost;                        /* the cu_result that made the context unusable; 0: none */
};

extern const ctrt_device_table cuda_device_table;
extern pid_t cuda_process;

static inline bool cuda_forked(const struct cuda_device *device)
{
    return device->process != cuda_process;
}

/* Makes the device's context current in the calling thread. Call before any driver call for the device. Errors:
 * CTRT_ERR_FORKED in a child of the process that opened the device, CTRT_ERR_DEVICE_LOST after a fatal error. */
ctrt_status cuda_enter(struct cuda_device *device);
/* Converts a result of the driver to a status. On failure sets the error message: the device, the formatted text, the
 * driver's name and description of the error. Marks the device as lost if the error is fatal. */
ctrt_status cuda_check(struct cuda_device *device, cu_result result, const char *format, ...) CTRT_PRINTF(3, 4);

/* ---- memory.c, async_alloc.c, pages.c, peers.c, ipc.c ---- */

extern const ctrt_memory_table cuda_memory_table;
ctrt_status cuda_reserve(void *device, void **address, size_t bytes);
void cuda_unreserve(void *device, void *address, size_t bytes);
ctrt_status cuda_map(void *device, void *address, size_t bytes);
void cuda_unmap(void *device, void *address, size_t bytes);
void cuda_pages_close(struct cuda_device *device);
bool cuda_can_access_peer(void *device, void *peer);
ctrt_status cuda_copy_peer(void *to_device, void *to, void *from_device, const void *from, size_t bytes, void *queue);
ctrt_status cuda_export(void *device, void *address, size_t bytes, int *fd);
ctrt_status cuda_import(void *device, void **address, size_t bytes, int fd);
/* Frees memory of cuda_ipc_alloc() or cuda_import(). Returns false, and frees nothing, if `address` is other
 * memory. */
bool cuda_ipc_free(struct cuda_device *device, void *address);
/* Allocates memory that cuda_export() can export (CTRT_CUDA_SHARE=yes). */
ctrt_status cuda_ipc_alloc(struct cuda_device *device, void **address, size_t bytes);
/* Called when a device is opened: creates its memory pool if CTRT_CUDA_POOL=yes. */
ctrt_status cuda_async_alloc_open(struct cuda_device *device);
void cuda_async_alloc_close(struct cuda_device *device);
/* Performs the frees that were deferred because their queue was being captured and no longer is. `leaving`: a queue
 * that is about to be destroyed, whose frees are performed in any case; or NULL. */
void cuda_async_alloc_flush(struct cuda_device *device, const struct cuda_queue *leaving);
bool cuda_async_alloc_supported(void *device);
ctrt_status cuda_alloc_on(void *device, void **address, size_t bytes, void *queue);
void cuda_free_on(void *device, void *address, size_t bytes, void *queue);
void cuda_async_alloc_trim(void *device);

/* ---- queue.c, events.c ---- */

#define CUDA_NAMES 64                       /* number of recent calls of a queue whose op names are kept for messages */

struct cuda_queue {
    struct cuda_device *device;
    cu_stream stream;
    struct cuda_queue *next;
    int number, priority;
    struct kernel_error *error;             /* written by kernels; the host's address */
    cu_address error_address;               /* the device's address of the same memory */
    pthread_mutex_t lock;                   /* protects the members below */
    ctrt_status failed;                     /* set atomically, because cuda_queue_failed reads it without the lock */
    uint64_t failed_at;                     /* sequence number of the call; 0: unknown */
    char text[384];
    const char *names[CUDA_NAMES];          /* op of each call, by sequence number % CUDA_NAMES */
    uint64_t last;                          /* sequence number of the last call */
};

extern const ctrt_queue_table cuda_queue_table;
/* Allocates a zeroed struct kernel_error in pinned host memory, in which kernels report failures. *address: the
 * device's address of it. Freed by cuda_driver.host_free. */
ctrt_status cuda_error_new(struct cuda_device *device, struct kernel_error **error, cu_address *address);
/* Writes "WHERE: NAME, call 7: index 9 (element 1) is out of range [0, 5)". `name`: the op, or NULL if it is
 * unknown. */
void cuda_error_text(char *text, size_t bytes, const struct kernel_error *error, const char *where, const char *name);
/* Marks the queue as failed, unless it has failed before. `sequence`: number of the failed call, or 0. */
void cuda_queue_fail(struct cuda_queue *queue, ctrt_status status, uint64_t sequence, const char *text);
ctrt_status cuda_queue_new(struct cuda_queue **out, struct cuda_device *device, int32_t priority);
void cuda_queues_close(struct cuda_device *device);
/* Returns the device's queue with the smallest number that is at least `number`, or NULL. For iteration
 * without holding device->lock. */
struct cuda_queue *cuda_queue_from(struct cuda_device *device, int number);

static inline struct cuda_queue *cuda_queue_of(struct cuda_device *device, void *queue)
{
    return queue != NULL ? queue : device->standard;
}

/* Returns true if a kernel reported a failure of this queue or the host found one. Then no more work may be enqueued on
 * it. Takes no lock. */
static inline bool cuda_queue_failed(const struct cuda_queue *queue)
{
    return __atomic_load_n(&queue->error->state, __ATOMIC_RELAXED) != 0
           || __atomic_load_n(&queue->failed, __ATOMIC_RELAXED) != CTRT_OK;
}

/* Returns true if the queue's stream is being captured. It must not be waited for or queried then: the driver would
 * invalidate the capture. */
bool cuda_queue_captured(const struct cuda_queue *queue);

ctrt_status cuda_event_create(void *device, void **event, bool timing);
void cuda_event_destroy(void *device, void *event);
ctrt_status cuda_event_record(void *device, void *event, void *queue);
ctrt_status cuda_wait_event(void *device, void *queue, void *event);
ctrt_status cuda_event_query(void *device, void *event, bool *done);
ctrt_status cuda_event_synchronize(void *device, void *event);
ctrt_status cuda_event_elapsed(void *device, void *from, void *to, double *milliseconds);

extern const ctrt_capture_table cuda_capture_table;
/* Returns the device's address of the struct kernel_error in which a kernel of this call reports a failure, and in
 * *sequence the number by which it identifies the call. It is the queue's or, during a capture, the captured
 * graph's. */
cu_address cuda_error_place(const ctrt_call *call, uint64_t *sequence);
/* Marks the queue as failed if a graph replay on it has reported a failure so far. */
void cuda_graphs_check(struct cuda_queue *queue);
/* Like cuda_graphs_check, for the time when all replays on the queue have finished or the queue is destroyed; also
 * removes the queue from the graphs' lists. */
void cuda_graphs_finished(struct cuda_queue *queue);

/* ---- launch.c ---- */

/* A fat binary embedded in this plugin (fatbin.c). */
struct cuda_fatbin {
    const char *name;
    const unsigned char *begin, *end;
    _Atomic(cu_library) library;
};

#define CUDA_DTYPES (CTRT_BOOL + 1)                 /* length of tables by dtype; the backend has no later dtypes */

/* A kernel of a fat binary; it is looked up at its first launch. */
struct cuda_entry {
    _Atomic(cu_kernel) kernel;
    _Atomic uint64_t shared_allowed;                 /* bit i: may use more than 48 KiB of shared memory on device i */
};

/* An entry of the kernel table, with the device kernels "op_dtype_variant" that it launches. All entries of a family
 * have the same run(). */
#define CUDA_VARIANTS 8
struct cuda_kernel {
    ctrt_kernel base;                       /* first member: cuda_kernel_of() casts */
    struct cuda_fatbin *fatbin;
    int code;                               /* meaning defined by the family */
    const char *kernel_name;                /* used in place of the op's name; NULL: the op's name */
    struct cuda_entry entries[CUDA_DTYPES][CUDA_VARIANTS];
};

static inline struct cuda_kernel *cuda_kernel_of(const ctrt_call *call)
{
    return (struct cuda_kernel *)call->kernel;
}

/* Bytes of a block's shared memory reserved for static variables of kernels that also use dynamic shared memory. */
#define CUDA_SHARED_STATIC 1024

struct cuda_shape {
    unsigned grid[3], block, shared;        /* blocks (y, z: 0 counts as 1); threads; bytes of dynamic shared memory */
};

/* Launches kernel NAME_dtype[_variant] of the call's kernel on the call's queue, with `arguments` of at most 4000
 * bytes. `variant`: NULL or a suffix; `index` (less than CUDA_VARIANTS) identifies the variant of this entry and dtype.
 * Returns CTRT_OK and launches nothing if the queue has failed. */
ctrt_status cuda_launch(const ctrt_call *call, ctrt_dtype dtype, int index, const char *variant,
                        struct cuda_shape shape, const void *arguments);
/* Like cuda_launch, for the kernel with full name `name` of `fatbin`; `entry` caches the kernel. */
ctrt_status cuda_launch_named(const ctrt_call *call, struct cuda_fatbin *fatbin, struct cuda_entry *entry,
                              const char *name, struct cuda_shape shape, const void *arguments);
/* Returns the number of blocks of `block` threads for `items` work items, one per thread, limited to 4 times the blocks
 * that are resident on the device at the same time (kernels use grid-stride loops). */
unsigned cuda_blocks(const struct cuda_device *device, int64_t items, unsigned block);
/* For libraries that enqueue work themselves: makes the device's context current and returns the call's stream.
 * *dropped: set to true if the queue has failed; then the caller must not enqueue anything. */
ctrt_status cuda_stream_of(const ctrt_call *call, cu_stream *stream, bool *dropped);
/* Call after a library has enqueued the work: records the call's op for error messages. */
void cuda_record_work(const ctrt_call *call);

/* ---- kernels.c ---- */

extern ctrt_kernel_table cuda_kernel_table;
ctrt_status cuda_kernels_init(void);

struct cuda_kernels {
    struct cuda_kernel *kernels;
    size_t count;
};
/* Defines the exported table of a family; used at the end of the family's file. */
#define CUDA_KERNELS(family, array) const struct cuda_kernels cuda_##family##_kernels = { array, COUNT_OF(array) }

#define CUDA_FLOATING (CTRT_DTYPE_BIT(CTRT_F32) | CTRT_DTYPE_BIT(CTRT_F64) | CTRT_DTYPE_BIT(CTRT_F16)               \
                       | CTRT_DTYPE_BIT(CTRT_BF16))
#define CUDA_INTEGRAL (CTRT_DTYPE_BIT(CTRT_I8) | CTRT_DTYPE_BIT(CTRT_U8) | CTRT_DTYPE_BIT(CTRT_I16)                 \
                       | CTRT_DTYPE_BIT(CTRT_I32) | CTRT_DTYPE_BIT(CTRT_I64))
#define CUDA_BOOL     CTRT_DTYPE_BIT(CTRT_BOOL)
#define CUDA_NUMBERS  (CUDA_FLOATING | CUDA_INTEGRAL)
#define CUDA_ALL      (CUDA_NUMBERS | CUDA_BOOL)

extern const char *const cuda_dtype_names[];        /* "f32" */
extern const uint8_t cuda_dtype_bytes[];

#endif
