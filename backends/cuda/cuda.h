/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/cuda.h: what the files of this backend's host side share. */
#ifndef CUDA_CUDA_H
#define CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "ctrt/plugin.h"
#include "driver_api.h"
#include "kernel_error.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define CUDA_DEVICES 64                     /* in a process */

extern const ctrt_host *cuda_host;

/* ---- driver.c: the library ---- */

extern struct cuda_driver cuda_driver;      /* filled by cuda_driver_open */
extern int cuda_driver_version;             /* 12040: 12.4 */

extern pid_t cuda_driver_process;           /* that called cuInit; 0: none did */

/* Loads the driver, once, without initialising it; and calls cuInit, once. Both keep and repeat what went wrong. A child whose parent did the
 * latter gets CTRT_ERR_FORKED from it. */
ctrt_status cuda_driver_load(void);
ctrt_status cuda_driver_open(void);
bool cuda_driver_tried(void);               /* was cuInit called, here or in a parent? */

/* ---- reason.c ---- */

/* Why there is no device, from /proc, /sys and /dev, after cuInit gave `result` (or -1: there is no library; `told`: dlopen's words). */
void cuda_reason(char *text, size_t bytes, cu_result result, const char *told);
/* Of the component: can there be a device? Opens nothing but files. */
int32_t cuda_probe(char *reason, size_t bytes);

/* ---- device.c ---- */

struct cuda_device {
    char name[24];                          /* "cuda:1" */
    int index;
    cu_device ordinal;
    cu_context context;
    pid_t process;                          /* that opened it */
    int processors, processor_threads;      /* multiprocessors; threads that one holds */
    int capability;                         /* 90: 9.0 */
    int shared_optin;                       /* bytes of shared memory that a block can ask for */
    bool pages, pools, posix_handles;       /* what the device can */
    size_t page_bytes;
    size_t total_bytes;
    struct cuda_queue *standard;            /* what queue NULL means */
    pthread_mutex_t lock;                   /* for the lists below */
    struct cuda_queue *queues;
    struct cuda_mapping *mappings;
    struct cuda_block *blocks;              /* export.c */
    struct cuda_graph *graphs;              /* capture.c */
    _Atomic uint64_t peers_checked, peers_direct;   /* bits by index: how copies from there go (peers.c) */
    struct cuda_ordered *ordered;           /* ordered.c; NULL: memory is not in the order of queues */
    atomic_int captures;                    /* that run */
    void *libraries[16];                    /* cuBLAS and others, by enum cuda_library_slot; each file's own */
    atomic_int lost;                        /* a cu_result after which the context is of no use; 0 */
};

extern const ctrt_device_table cuda_device_table;
extern pid_t cuda_process;

static inline bool cuda_forked(const struct cuda_device *device)
{
    return device->process != cuda_process;
}

/* May the device be called? Else the status with a message: forked, lost. Makes its context the thread's. */
ctrt_status cuda_enter(struct cuda_device *device);
/* The open device of that index; NULL: it is not open. */
struct cuda_device *cuda_device_at(int index);
/* The status of a driver's result, with a message: what was done, on which device, the driver's words. Notes that a device is lost. */
ctrt_status cuda_check(struct cuda_device *device, cu_result result, const char *format, ...) CTRT_PRINTF(3, 4);

/* ---- memory.c, ordered.c, pages.c, peers.c, share.c ---- */

extern const ctrt_memory_table cuda_memory_table;
size_t cuda_page_bytes(void);
ctrt_status cuda_reserve(void *device, void **address, size_t bytes);
void cuda_unreserve(void *device, void *address, size_t bytes);
ctrt_status cuda_map(void *device, void *address, size_t bytes);
void cuda_unmap(void *device, void *address, size_t bytes);
void cuda_pages_close(struct cuda_device *device);
bool cuda_can_access_peer(void *device, void *peer);
ctrt_status cuda_copy_peer(void *to_device, void *to, void *from_device, const void *from, size_t bytes, void *queue);
ctrt_status cuda_export(void *device, void *address, size_t bytes, int *fd);
ctrt_status cuda_import(void *device, void **address, size_t bytes, int fd);
/* Memory that cuda_export or cuda_import knows; false: it is somebody else's to free. */
bool cuda_share_free(struct cuda_device *device, void *address);
/* Allocates so that the memory can be exported (CTRT_CUDA_SHARE). */
ctrt_status cuda_share_alloc(struct cuda_device *device, void **address, size_t bytes);
/* CTRT_CUDA_POOL, when a device is opened: makes its pool, if that is wanted. */
ctrt_status cuda_ordered_open(struct cuda_device *device);
void cuda_ordered_close(struct cuda_device *device);
/* Gives back what was freed while its queue was captured and is so no more; `leaving`: a queue that is about to end, or NULL. */
void cuda_ordered_flush(struct cuda_device *device, const struct cuda_queue *leaving);
bool cuda_ordered(void *device);
ctrt_status cuda_alloc_on(void *device, void **address, size_t bytes, void *queue);
void cuda_free_on(void *device, void *address, size_t bytes, void *queue);
void cuda_ordered_trim(void *device);

/* ---- queue.c, events.c ---- */

#define CUDA_NAMES 64                       /* of the last kernels of a queue that a message can tell */

struct cuda_queue {
    struct cuda_device *device;
    cu_stream stream;
    struct cuda_queue *next;
    int number, priority;
    struct kernel_error *error;             /* kernels write it; the host reads it here */
    cu_address error_address;               /* the same for the device */
    pthread_mutex_t lock;                   /* for all below */
    ctrt_status failed;
    uint64_t failed_at;                     /* number of the call; 0: not known */
    char text[384];
    const char *names[CUDA_NAMES];          /* by number of the call */
    uint64_t last;                          /* number of the last call */
};

extern const ctrt_queue_table cuda_queue_table;
/* A place in pinned memory where kernels tell of a failure, and its address for the device. */
ctrt_status cuda_error_new(struct cuda_device *device, struct kernel_error **error, cu_address *address);
/* "WHERE: NAME, call 7: index 9 (element 1) is out of range [0, 5)"; name: of the op, NULL: not known. */
void cuda_error_text(char *text, size_t bytes, const struct kernel_error *error, const char *where, const char *name);
/* The queue has failed, unless it had before. */
void cuda_queue_fail(struct cuda_queue *queue, ctrt_status status, uint64_t sequence, const char *text);
ctrt_status cuda_queue_new(struct cuda_queue **out, struct cuda_device *device, int32_t priority);
void cuda_queues_close(struct cuda_device *device);
/* The device's queue of the least number from `number` on; NULL: there is none. */
struct cuda_queue *cuda_queue_from(struct cuda_device *device, int number);

static inline struct cuda_queue *cuda_queue_of(struct cuda_device *device, void *queue)
{
    return queue != NULL ? queue : device->standard;
}

/* Has a kernel of this queue told of a failure, or the host found one? Then nothing more is put there. Costs a read. */
static inline bool cuda_queue_failed(const struct cuda_queue *queue)
{
    return __atomic_load_n(&queue->error->state, __ATOMIC_RELAXED) != 0 || queue->failed != CTRT_OK;
}

ctrt_status cuda_event_create(void *device, void **event, bool timing);
void cuda_event_destroy(void *device, void *event);
ctrt_status cuda_event_record(void *device, void *event, void *queue);
ctrt_status cuda_wait_event(void *device, void *queue, void *event);
ctrt_status cuda_event_query(void *device, void *event, bool *done);
ctrt_status cuda_event_synchronize(void *device, void *event);
ctrt_status cuda_event_elapsed(void *device, void *from, void *to, double *milliseconds);

extern const ctrt_capture_table cuda_capture_table;
/* Where a kernel of this call that may fail tells so, and under which number: the queue's place, or that of the graph which is being recorded. */
cu_address cuda_error_place(const ctrt_call *call, uint64_t *sequence);
/* Failures of replays on the queue that are known by now become the queue's. */
void cuda_graphs_judge(struct cuda_queue *queue);
/* The same when all its replays are over, or it goes: graphs forget it. */
void cuda_graphs_over(struct cuda_queue *queue);

/* ---- launch.c: kernels by name ---- */

/* A fat binary in this plugin: images.c. */
struct cuda_image {
    const char *name;
    const unsigned char *begin, *end;
    _Atomic(cu_library) library;
};

/* A kernel of the image, found at its first use. */
struct cuda_entry {
    _Atomic(cu_kernel) kernel;
    _Atomic uint64_t roomy;                 /* bits of devices by index, on which it may have more shared memory than 48 KiB */
};

/* A row and what it needs to find its kernels "op_dtype_variant". Rows of one family share a run(). */
#define CUDA_VARIANTS 8
struct cuda_row {
    ctrt_kernel kernel;                     /* first */
    struct cuda_image *image;
    int code;                               /* the family's own */
    const char *kernel_name;                /* NULL: the op's */
    struct cuda_entry entries[CTRT_DTYPE_COUNT][CUDA_VARIANTS];
};

static inline struct cuda_row *cuda_row_of(const ctrt_call *call)
{
    return (struct cuda_row *)call->row;
}

/* Of a block's shared memory, left for what kernels with dynamic shared memory have of their own. */
#define CUDA_SHARED_STATIC 1024

struct cuda_shape {
    unsigned grid[3], block, shared;        /* shared: dynamic, bytes */
};

/* Puts NAME_dtype[_variant] of the call's row on its queue, with `arguments` of at most 4000 bytes. variant: NULL or a word; `index` tells
 * apart the variants of one row and dtype. */
ctrt_status cuda_launch(const ctrt_call *call, ctrt_dtype dtype, int index, const char *variant, struct cuda_shape shape, const void *arguments);
/* The same for a kernel of full name `name`, found through `entry`. */
ctrt_status cuda_launch_named(const ctrt_call *call, struct cuda_image *image, struct cuda_entry *entry, const char *name, struct cuda_shape shape,
                              const void *arguments);
/* Blocks of `block` threads for `items` of work, one a thread, but no more than keep the device busy (kernels go on in strides of the grid). */
unsigned cuda_blocks(const struct cuda_device *device, int64_t items, unsigned block);
/* For libraries that put work on the stream themselves: is the queue in order (else *done: drop the work), and its stream. */
ctrt_status cuda_stream_of(const ctrt_call *call, cu_stream *stream, bool *dropped);
/* After the library has: notes the call's name. */
void cuda_noted(const ctrt_call *call);

/* ---- kernels.c ---- */

extern ctrt_kernel_table cuda_kernel_table;
ctrt_status cuda_kernels_init(void);

struct cuda_rows {
    struct cuda_row *rows;
    size_t count;
};
/* Ends a family's file: its rows. */
#define CUDA_ROWS(family, array) const struct cuda_rows cuda_##family##_rows = { array, COUNT_OF(array) }

#define CUDA_FLOATING (CTRT_DTYPE_BIT(CTRT_F32) | CTRT_DTYPE_BIT(CTRT_F64) | CTRT_DTYPE_BIT(CTRT_F16) | CTRT_DTYPE_BIT(CTRT_BF16))
#define CUDA_INTEGRAL (CTRT_DTYPE_BIT(CTRT_I8) | CTRT_DTYPE_BIT(CTRT_U8) | CTRT_DTYPE_BIT(CTRT_I16) | CTRT_DTYPE_BIT(CTRT_I32) | CTRT_DTYPE_BIT(CTRT_I64))
#define CUDA_BOOL     CTRT_DTYPE_BIT(CTRT_BOOL)
#define CUDA_NUMBERS  (CUDA_FLOATING | CUDA_INTEGRAL)
#define CUDA_ALL      (CUDA_NUMBERS | CUDA_BOOL)

extern const char *const cuda_dtype_names[CTRT_DTYPE_COUNT];        /* "f32" */
extern const uint8_t cuda_dtype_bytes[CTRT_DTYPE_COUNT];

#endif
