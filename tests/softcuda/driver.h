/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/driver.h: declarations shared by the files of libcuda.so.1.
 *
 * A device is a range of addresses (space.c) and a sticky error. A stream is a thread that runs operations from a queue
 * (stream.c). Kernels come from libraries compiled by g++ (module.c) and run on the stream's thread (block.c). */
#ifndef SOFTCUDA_DRIVER_H
#define SOFTCUDA_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "api.h"
#include "control.h"
#include "runner.h"

#define DEVICES 16
#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* ---- driver.c: entry of all functions ---- */

/* cuInit was called; a context is current; the context has no error; all of them */
enum { ENTER_INIT = 1, ENTER_CONTEXT = 2, ENTER_WELL = 4, ENTER_READY = 7 };
/* Counts the call and checks `needs`. The caller must return the result at once if it is not CUDA_SUCCESS. */
result driver_enter(const char *symbol, atomic_llong *calls, int needs);
#define CALL(symbol, needs)                                                        \
    do {                                                                           \
        static atomic_llong *counter;                                              \
        if (__atomic_load_n(&counter, __ATOMIC_ACQUIRE) == NULL)                   \
            __atomic_store_n(&counter, driver_counter(#symbol), __ATOMIC_RELEASE); \
        const result entered = driver_enter(#symbol, counter, needs);              \
        if (entered != CUDA_SUCCESS)                                               \
            return entered;                                                        \
    } while (0)
atomic_llong *driver_counter(const char *symbol);
/* True while the thread runs a host function in stream order; such a function must not call the driver. */
extern __thread bool driver_in_callback __attribute__((tls_model("initial-exec")));

/* ---- options.c: SOFTCUDA=... ---- */

struct options {
    int devices, multiprocessors, major, minor, version;
    uint64_t memory;
    unsigned late_us;
    int strict_free, quiet, pools;                                  /* 0 or 1 */
    int streams;                                                    /* STREAMS_*: checks of the order (order.h) */
    int order;                                                      /* enum runner_order */
};
enum { STREAMS_OFF, STREAMS_ERROR, STREAMS_REPORT };
extern struct options options;
bool options_read(const char *text, char *error, size_t error_bytes);
/* Determines the devices that CUDA_VISIBLE_DEVICES selects, as hardware numbers. Returns their number. */
int options_visible(const char *text, int devices, int *visible);

/* ---- faults.c ---- */

/* Returns the injected result of call number `call` of `symbol`. CUDA_SUCCESS: none. */
result fault_of(const char *symbol, long long call);
bool fault_add(const char *name, int64_t at, int error, bool on, bool by_test);
void fault_clear(bool by_test);                     /* by_test: all; else only those from SOFTCUDA */
void fault_inject_kernel(const char *kernel, int skip, int error);
result fault_of_kernel(const char *kernel);
void fault_report(const char *text);                /* counts an error and prints it */

/* ---- device.c, context.c ---- */

struct stream;

struct device {                         /* a pointer to it is a CUcontext */
    int index, hardware;                /* number as programs see it; number of the hardware */
    uuid id;
    pthread_mutex_t lock;               /* guards all fields below */
    atomic_int retained;
    atomic_int error;                   /* sticky error, or CUDA_SUCCESS */
    uint32_t peers;                     /* bit mask of the devices whose memory its kernels may access */
    struct stream *streams;
    struct blocks *blocks;              /* memory.c */
    atomic_ullong live, live_blocks;
};

extern struct device devices[DEVICES];
extern int n_devices;
void devices_start(void);
struct device *device_of(int ordinal);              /* NULL: no such device */
struct device *device_current(void);                /* of the thread's context; NULL: none */
bool device_is(const struct device *context);       /* whether it is an address of a device */
void device_fail(struct device *device, result error);
void uuid_of(uuid *id, int hardware);

/* ---- space.c ---- */

bool space_open(int devices, uint64_t memory);
/* Sets which bytes kernels and copies may access. */
void space_mark(address begin, size_t bytes, bool usable);
bool space_usable(address begin, size_t bytes);
struct device *space_device(address where);         /* the device that an address belongs to; NULL: none, or virtual
                                                     * memory */
bool space_is(address where);
address space_virtual(void);                        /* start of the range for virtual memory */
/* Copies that may access device memory, which memcpy cannot, because AddressSanitizer checks it. */
void space_copy(void *to, const void *from, size_t bytes);
void space_fill(address to, unsigned char value, size_t bytes);
void space_renew(address begin, size_t bytes);      /* frees the pages, so the contents are lost */
void space_poison(address begin, size_t bytes);     /* makes AddressSanitizer report accesses by the host */

/* ---- memory.c ---- */

result memory_alloc(struct device *device, address *out, size_t bytes);
result memory_free(struct device *device, address begin, size_t *bytes);
size_t memory_rounded(size_t bytes);                                  /* size that is accounted for a block */
bool memory_reserve(struct device *device, size_t bytes);           /* counts the bytes; false if too few are left */
void memory_release(struct device *device, size_t bytes);
size_t memory_block_bytes(address begin);           /* of the block that begins there; 0: none */
void memory_drop_all(struct device *device);
void pools_synchronized(const struct device *device);               /* after the host waited for a stream */
void pools_drop(const struct device *device);                       /* the device's context is destroyed */
void memory_describe(address where, char *text, size_t bytes);

/* ---- host.c ---- */

bool host_pinned(const void *inside, size_t bytes, const char **begin, const char **end);

/* ---- vmm.c: virtual memory ---- */

bool virtual_allowed(address begin, size_t bytes, const struct device *device, bool write);
/* true if a device may write to all mapped pages of the range */
bool virtual_writable(address begin, size_t bytes);
struct device *virtual_owner(address at);           /* NULL: not mapped */

/* ---- handles.c: the set of valid handles of each kind ---- */

enum handle { HANDLE_STREAM, HANDLE_EVENT, HANDLE_LIBRARY, HANDLE_KERNEL, HANDLE_GRAPH, HANDLE_GRAPH_EXEC,
              HANDLE_ALLOCATION, HANDLE_POOL, HANDLE_KINDS };
bool handle_add(enum handle kind, const void *handle);
bool handle_is(enum handle kind, const void *handle);
bool handle_remove(enum handle kind, const void *handle);
uint64_t handle_count(enum handle kind);

/* ---- stream.c ---- */

struct graph;
struct capture;
struct mark;

/* An operation of a stream. It may run several times, in graphs. `release` frees it. */
struct op {
    void (*run)(struct op *op, struct stream *stream);
    void (*release)(struct op *op);     /* NULL: free */
    struct op *next;
    int node;                           /* NODE_*: its type as a graph node */
    bool always;                        /* runs even if the context has an error */
    struct clock *before;               /* order.h: the host's clock when the operation was enqueued */
};

struct stream {
    struct device *device;
    struct stream *next;                /* in the device's list */
    uint64_t id;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct op *first, *last;
    uint64_t put, finished;
    bool closing, detached;
    struct capture *capture;            /* records the operations instead; NULL: none */
    struct node_set *tail;              /* of the capture: the nodes that the next one depends on */
    unsigned seed;
    int slot;                           /* order.h; -1: none */
    struct clock *clock;                /* order.h: at present, and after the last operation */
};

/* Closes all streams of the device and waits for their work. */
void streams_close(struct device *device);
/* The stream of a handle; NULL: invalid, as is the default stream. */
struct stream *stream_of(void *handle);
/* Enqueues or captures the operation and owns it, also on an error. */
result stream_put(struct stream *stream, struct op *op);
void stream_wait_idle(struct stream *stream);
void device_wait_idle(struct device *device);
void streams_wait_all(void);
void op_free(struct op *op);
struct op *mark_op(struct mark *mark, bool reach);

/* ---- event.c ---- */

/* A point in a stream. The stream reaches it once. */
struct mark {
    atomic_int references;
    atomic_bool done;
    double ms;
    struct clock *clock;                /* order.h */
};
struct mark *mark_new(void);
void mark_release(struct mark *mark);
void mark_reach(struct mark *mark);
void mark_wait(struct mark *mark);

/* ---- capture.c ---- */

bool capture_active(const struct stream *stream);
result capture_add(struct stream *stream, struct op *op);
struct event;
result capture_record(struct stream *stream, struct event *event);
result capture_wait(struct stream *stream, struct event *event, bool *taken);
void capture_forget(struct event *event);
void capture_invalidate(struct stream *stream);
void capture_abandon(struct stream *stream);
/* Called before a call that is unsafe during a capture. If a capture forbids such calls to the calling thread,
 * invalidates the capture and returns an error. */
result capture_unsafe_call(void);

struct event {
    struct device *device;
    unsigned flags;
    pthread_mutex_t lock;
    struct mark *mark;                  /* of its last record; NULL: none */
    struct capture *capture;            /* capture that recorded it; NULL: none */
    struct node_set *nodes;             /* the stream's tail at that moment */
};

/* ---- module.c, launch.c ---- */

struct function {                       /* CUkernel */
    const struct softcuda_kernel *kernel;
    const struct softcuda_library *library;
    int max_dynamic;
    struct function *next;
};

uint64_t function_launches(const char *name);

#endif
