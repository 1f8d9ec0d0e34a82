/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/driver.h: declarations shared by the files of libcuda.so.1.
 *
 * A device is a range of addresses (space.c) and a sticky error. A stream is a thread that runs operations from a queue
 * (stream.c). Kernels come from libraries compiled by g++ (kernel.c) and run on the stream's thread (block.c). */
#ifndef SOFTCUDA_DRIVER_H
#define SOFTCUDA_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "api.h"
#include "control.h"
#include "runner.h"

#define DEVICES 16

/* Holds the mutex until the enclosing block ends. */
#define LOCKED(mutex) pthread_mutex_t *const held __attribute__((cleanup(lock_release), unused)) = lock_take(mutex)

static inline pthread_mutex_t *lock_take(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
}

static inline void lock_release(pthread_mutex_t *const *mutex)
{
    pthread_mutex_unlock(*mutex);
}

/* ---- driver.c: entry of all functions ---- */

/* cuInit was called; a context is current; the context has no error; all of them */
enum { ENTER_INIT = 1, ENTER_CONTEXT = 2, ENTER_WELL = 4, ENTER_READY = 7 };
/* Counts the call and checks `needs`. The caller must return the result at once if it is not CUDA_SUCCESS. */
result driver_enter(const char *symbol, int needs);
#define CALL(symbol, needs) TRY(driver_enter(#symbol, needs))
/* In addition, returns CUDA_ERROR_INVALID_VALUE if `wrong` is true. */
#define CHECKED_CALL(symbol, needs, wrong)          \
    do {                                            \
        CALL(symbol, needs);                        \
        RETURN_IF(wrong, CUDA_ERROR_INVALID_VALUE); \
    } while (0)
/* True while the thread runs a host function in stream order; such a function must not call the driver. */
extern __thread bool driver_in_callback __attribute__((tls_model("initial-exec")));
void fault_report(const char *text);                /* counts an error and prints it */

/* The set of valid handles of each kind. */
enum handle { HANDLE_STREAM, HANDLE_EVENT, HANDLE_LIBRARY, HANDLE_KERNEL, HANDLE_GRAPH, HANDLE_GRAPH_EXEC,
              HANDLE_ALLOCATION, HANDLE_POOL, HANDLE_KINDS };
void handle_add(enum handle kind, const void *handle);
bool handle_is(enum handle kind, const void *handle);
bool handle_remove(enum handle kind, const void *handle);

#define REQUIRE_HANDLE(kind, handle) RETURN_IF(!handle_is(kind, handle), CUDA_ERROR_INVALID_HANDLE)

/* ---- options.c: SOFTCUDA=... ---- */

struct options {
    int devices, major, minor, version;
    uint64_t memory;
    unsigned late_us;
    int strict_free, quiet, pools;                                  /* 0 or 1 */
    int streams;                                                    /* STREAMS_*: checks of the order (order.c) */
    int order;                                                      /* enum runner_order */
};
enum { STREAMS_OFF, STREAMS_ERROR, STREAMS_REPORT };
extern struct options options;
bool options_read(void);                            /* false: prints what is wrong */
/* Determines the devices that CUDA_VISIBLE_DEVICES selects, as hardware numbers. Returns their number. */
int options_visible(int visible[DEVICES]);

/* ---- device.c ---- */

struct stream;

struct device {                         /* a pointer to it is a CUcontext */
    int index, hardware;                /* number as programs see it; number of the hardware */
    pthread_mutex_t lock;               /* guards all fields below */
    atomic_int retained;
    atomic_int error;                   /* sticky error, or CUDA_SUCCESS */
    uint32_t peers;                     /* bit mask of the devices whose memory its kernels may access */
    struct stream *streams;
    struct blocks *blocks;              /* memory.c */
    atomic_ullong live;
};

extern struct device devices[DEVICES];
extern int n_devices;
void devices_start(void);
struct device *device_of(int ordinal);              /* NULL: no such device */
struct device *device_current(void);                /* of the thread's context; NULL: none */
bool device_is(const struct device *context);       /* whether it is an address of a device */
void device_fail(struct device *device, result error);
uuid uuid_of(int hardware);
void uuid_text(char text[48], int hardware);

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
/* Fills new memory with 0xff. Its whole pages are mapped from a file, so those that are not used cost no time. */
void space_new(address begin, size_t bytes);
void space_renew(address begin, size_t bytes);      /* frees the pages, so the contents are lost */
void space_poison(address begin, size_t bytes);     /* makes AddressSanitizer report accesses by the host */

/* Sorted sets of disjoint address ranges; the caller locks them: blocks, reservations, mappings, pinned memory. */
struct range {
    address begin;
    size_t bytes, extent;               /* extent: `bytes`, and the bytes that stay free after them */
    void *owner;                        /* the pool of a block, the allocation of a mapping */
    uint32_t readers, writers;          /* of a mapping: bit masks of devices */
};

struct ranges {
    struct range *list;
    size_t n, capacity;
    address next;                       /* where the next search begins: addresses are reused cyclically */
};

size_t range_behind(const struct ranges *ranges, address where);    /* index of the first range that begins after it */
struct range *range_at(const struct ranges *ranges, address where); /* the one that contains it; NULL: none */
bool range_overlaps(const struct ranges *ranges, address begin, size_t bytes);
/* Returns an address in [first, end) at which `extent` bytes are free, at `hint` or behind it if that is in there. 0:
 * none. Between a range that it passes and the address stay `gap` bytes. */
address range_place(struct ranges *ranges, address hint, address first, address end, size_t extent, size_t gap);
void range_add(struct ranges *ranges, struct range range);
void range_remove(struct ranges *ranges, const struct range *range);

/* ---- memory.c ---- */

bool memory_reserve(struct device *device, size_t bytes);           /* counts the bytes; false if too few are left */
void memory_release(struct device *device, size_t bytes);
void memory_drop_all(struct device *device);                        /* its context is destroyed */
void memory_describe(address where, char *text, size_t bytes);
/* Returns whether the bytes are pinned host memory; *found: the whole range, unless NULL. */
bool memory_pinned(const void *inside, size_t bytes, struct range *found);
void pools_synchronized(const struct device *device);               /* after the host waited for a stream */

/* ---- vmm.c: virtual memory ---- */

bool virtual_allowed(address begin, size_t bytes, const struct device *device, bool write);
/* true if a device may write to all mapped pages of the range */
bool virtual_writable(address begin, size_t bytes);
struct device *virtual_owner(address at);           /* NULL: not mapped */

/* ---- stream.c ---- */

struct capture;
struct node_set { int n, capacity; int *list; };        /* of nodes of a graph */

/* An operation of a stream. It may run several times, in graphs. */
struct op {
    void (*run)(void *argument, struct stream *stream);
    void (*release)(void *argument);    /* frees what the argument owns; NULL: nothing */
    struct op *next;
    int node;                           /* NODE_*: its type as a graph node */
    struct clock *before;               /* order.c: the host's clock when the operation was enqueued */
    _Alignas(16) char argument[];
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
    bool closing;
    struct capture *capture;            /* records the operations instead; NULL: none */
    struct node_set tail;               /* of the capture: the nodes that the next one depends on */
    unsigned seed;
    int slot;                           /* order.c; -1: none */
    struct clock *clock;                /* order.c: at present, and after the last operation */
};

/* Returns an operation that owns a copy of the argument. */
struct op *op_new(void (*run)(void *, struct stream *), void (*release)(void *), int node, const void *argument,
                  size_t bytes);
void op_free(struct op *op);
/* Closes all streams of the device and waits for their work. */
void streams_close(struct device *device);
struct stream *stream_of(void *handle);             /* NULL: invalid, as is the default stream */
/* Declares the stream of a handle. */
#define STREAM(name, handle)                       \
    struct stream *const name = stream_of(handle); \
    RETURN_IF(name == NULL, CUDA_ERROR_INVALID_HANDLE)
/* The beginning of an entry point that needs all and a stream, which it declares. */
#define STREAM_CALL(symbol, name, handle) \
    CALL(symbol, ENTER_READY);            \
    STREAM(name, handle)
/* Enqueues or captures the operation and owns it, also on an error. */
result stream_put(struct stream *stream, struct op *op);
void stream_wait_idle(struct stream *stream);
void device_wait_idle(struct device *device);
void streams_wait_all(void);

/* A point in a stream. The stream reaches it once. */
struct timepoint {
    atomic_int references;
    atomic_bool done;
    double ms;
    struct clock *clock;                /* order.c */
};

struct event {
    struct device *device;
    unsigned flags;
    struct timepoint *timepoint;        /* of its last record; NULL: none */
    struct capture *capture;            /* capture that recorded it; NULL: none */
    struct node_set nodes;              /* the stream's tail at that moment */
};

/* ---- graph.c ---- */

bool capture_active(const struct stream *stream);
result capture_add(struct stream *stream, struct op *op);
result capture_record(struct stream *stream, struct event *event);
result capture_wait(struct stream *stream, struct event *event, bool *taken);
void capture_forget(struct event *event);
void capture_invalidate(struct stream *stream);
void capture_abandon(struct stream *stream);
/* Called before a call that is unsafe during a capture. If a capture forbids such calls to the calling thread,
 * invalidates the capture and returns an error. */
result capture_unsafe_call(void);
/* Called before a call that waits for all work of a device. If a stream of the device is being captured, in any mode,
 * invalidates the capture and returns an error. */
result capture_device_wait(const struct device *device);

/* ---- order.c: SOFTCUDA=streams=error|report: checks that the program orders uses of the same memory on different
 * streams. If the option is off, all functions do nothing. ---- */

bool order_open(void);
void order_stream(struct stream *stream);                           /* call for each new stream */
void order_stream_over(struct stream *stream);
void order_put(struct op *op);                                      /* the host enqueues the operation */
void order_begin(struct stream *stream, struct op *op);             /* the stream starts the operation */
void order_end(struct stream *stream);                              /* with the stream's lock held */
void order_reach(struct timepoint *timepoint, const struct stream *stream);     /* call before it is reached */
void order_stream_waited(struct stream *stream, const struct timepoint *timepoint);
void order_host_idle(const struct stream *stream);                  /* the stream is idle; its lock is held */
void order_host_waited(const struct timepoint *timepoint);
void order_host_called(const struct stream *stream);                /* a host function runs in stream order */
void order_name(const char *name);                                  /* the stream's operation, for messages */
/* Checks and records that the calling stream's thread reads or writes the memory. */
void order_touch(address begin, size_t bytes, bool write);
void order_forget(address begin, size_t bytes);                     /* call for new memory */

/* ---- kernel.c ---- */

uint64_t function_launches(const char *name);
void inject_kernel(int error);                      /* control.h */

#endif
