/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/sim.h: internal declarations of the sim backend (simulated devices).
 *
 * A device has an address range that the host cannot access (guard), a second mapping of the same memory for the worker
 * threads (guard + delta), and queues with one worker thread each. Enqueued work is a copy of everything that a call
 * points to. Locks are taken in this order: devices (device.c), device, queue, timepoint. No lock is held while work
 * runs. */
#ifndef CTRT_SIM_H
#define CTRT_SIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "control.h"
#include "ctrt/plugin.h"

#define SIM_DEVICES 64                          /* most devices that CTRT_SIM may request */
#define SIM_ALIGN   ((uint64_t)512)             /* alignment and size granularity of blocks, as on CUDA devices */
#define SIM_PAGE    ((uint64_t)2 << 20)         /* page size of map, as on CUDA devices */

/* The host table; set by init, valid until the process ends. */
extern const ctrt_host *sim_host;

/* ---- options (options.c, faults.c) ---- */

enum sim_fault_kind { SIM_FAULT_ALLOC, SIM_FAULT_HOST, SIM_FAULT_OP, SIM_FAULT_COPY, SIM_FAULT_LOST, SIM_FAULT_LINK,
                      SIM_FAULT_LATE, SIM_FAULT_EVENT };

struct sim_fault {
    enum sim_fault_kind kind;
    int device;                     /* -1: all devices */
    bool onward;                    /* "3+": the third and all later ones */
    uint64_t nth;                   /* counted from 1 */
    uint64_t seen;                  /* matching operations so far */
    char op[32];                    /* "": any op */
    int from, to;                   /* SIM_FAULT_LINK */
    int64_t late;                   /* SIM_FAULT_LATE; in ns */
    char text[64];                  /* the fault as the user wrote it */
};

#define SIM_FAULTS 32

struct sim_faults {
    int count;
    struct sim_fault at[SIM_FAULTS];
};

struct sim_options {
    int devices;
    uint64_t memory[SIM_DEVICES];               /* in bytes */
    int64_t latency[SIM_DEVICES];               /* minimum duration of each work item in ns */
    uint64_t bandwidth[SIM_DEVICES];            /* bytes per second between device and host or peer; 0: no limit */
    uint64_t pinned;                            /* limit of pinned host memory per device in bytes; 0: no limit */
    uint64_t seed;
    uint64_t peers[SIM_DEVICES];                /* bit b of entry a: device a can access the memory of device b */
    bool poison;                                /* new memory is filled with 0xff bytes */
    bool holes;                                 /* one address range of the memory's size, which can fragment */
    struct sim_faults faults;
};

/* Reads CTRT_SIM and CTRT_SIM_FAULT. */
ctrt_status sim_options_read(struct sim_options *out);
/* Parses `text`, in the format of CTRT_SIM. `name`: the variable, for messages. */
ctrt_status sim_options_parse(struct sim_options *out, const char *name, const char *text);
/* Parses `text`, for example "alloc:3;op:add@57", and appends the faults to `faults`. `name`: the source, for
 * messages. */
ctrt_status sim_faults_parse(struct sim_faults *faults, const char *name, const char *text);
/* Parse a number with a unit (1048576, 64m; 20us, 3ms) or a plain count. Return false if `text` is malformed or the
 * value is too large. */
bool sim_parse_bytes(uint64_t *out, const char *text);
bool sim_parse_time(int64_t *nanoseconds, const char *text);
bool sim_parse_count(uint64_t *out, const char *text);
/* Returns the word closest to `word` by edit distance, or NULL if none is close. `words` ends with NULL. */
const char *sim_nearest_word(const char *word, const char *const *words);
/* Writes "a, b, c; did you mean b?" to `buffer`, for messages, and returns it. */
const char *sim_known_words(char *buffer, size_t bytes, const char *word, const char *const *words);

/* ---- used blocks of an address range (blocks.c) ---- */

struct sim_block {
    uint64_t start, bytes;
};

/* Used blocks, sorted by start. The array never moves, so that the fault handler can read it without a lock. `version`
 * is odd while the array is being modified. */
struct sim_blocks {
    struct sim_block *at;
    size_t count, capacity;
    uint64_t begin, end;                        /* the address range */
    uint64_t used, most;                        /* bytes in use; the limit for it */
    _Atomic uint32_t version;
};

/* Initializes the blocks of the address range [begin, end): at most `most` bytes in use, in blocks of at least `least`
 * bytes. Returns false if there is no memory for the array. */
bool sim_blocks_init(struct sim_blocks *blocks, uint64_t begin, uint64_t end, uint64_t most, uint64_t least);
void sim_blocks_free(struct sim_blocks *blocks);
/* Allocates a block, first fit. Returns false if there is no free range of that size or `most` would be exceeded. */
bool sim_blocks_take(struct sim_blocks *blocks, uint64_t *start, uint64_t bytes, uint64_t alignment);
/* Frees the block that begins at `start` and returns its size; 0 if no block begins there. */
uint64_t sim_blocks_give(struct sim_blocks *blocks, uint64_t start);
/* Returns the block that contains `place`, or NULL. */
const struct sim_block *sim_blocks_find(const struct sim_blocks *blocks, uint64_t place);
/* Returns the free range around `place`, which must be free. */
void sim_blocks_gap(const struct sim_blocks *blocks, uint64_t place, uint64_t *begin, uint64_t *end);
uint64_t sim_blocks_largest_gap(const struct sim_blocks *blocks);
/* As sim_blocks_find, without a lock, for the fault handler. Also returns false while the array is being modified. */
bool sim_blocks_peek(const struct sim_blocks *blocks, uint64_t place, struct sim_block *out);

/* ---- devices ---- */

struct sim_queue;

/* A reserved address range and the memory that is mapped at each of its pages. */
struct sim_reservation {
    struct sim_reservation *next;
    uint64_t start, bytes;                      /* offset in the guard range */
    int64_t pages[];                            /* offset of the page in the memory; -1: not mapped */
};

struct sim_device {
    int index;
    char name[16];                              /* "sim:0" */
    pid_t process;                              /* process that opened the device */
    uint64_t memory;                            /* bytes of device memory */
    uint64_t peers;
    int64_t _Atomic latency;
    uint64_t _Atomic bandwidth;
    uint64_t pinned_limit, seed;
    bool poison, holes;
    atomic_bool lost;

    char *guard;                                /* the addresses that the host sees; access faults */
    ptrdiff_t delta;                            /* workers access a byte at its address + delta */
    uint64_t span;                              /* bytes of the guard range: memory, then reservations */
    int fd;

    pthread_mutex_t lock;                       /* guards the fields below and the faults */
    struct sim_blocks physical;                 /* blocks of alloc and pages of map */
    struct sim_blocks reserved;                 /* reservations; from the end of the memory's range to span */
    struct sim_reservation *reservations;
    struct sim_queue *queues;                   /* including queues that are being destroyed */
    struct sim_queue *standard;                 /* the default queue, for queue handle NULL */
    int next_queue;
    uint64_t pinned;
    struct sim_faults faults;
    int64_t _Atomic late;                       /* maximum of the random delay before work items and events, in ns */
    int64_t last_query;                              /* usage.c: time of the last usage query, in ns */

    uint64_t _Atomic *launches;                 /* per kernel */
    struct { uint64_t _Atomic
        allocs, frees, maps, unmaps, reserves, unreserves, host_allocs, host_frees, bad_frees, copies[3], copy_bytes[3],
        peer_copies, peer_bytes, fills, fill_bytes, launches, waits, records, host_calls, failures, peak;
    } count;
    struct { uint64_t _Atomic copies, bytes; } links[SIM_DEVICES];      /* by the number of the source */
};

/* The current process id; updated after fork. */
extern pid_t sim_process;

/* Returns CTRT_OK, or CTRT_ERR_FORKED or CTRT_ERR_DEVICE_LOST with a message. */
ctrt_status sim_usable(const struct sim_device *device);
static inline bool sim_forked(const struct sim_device *device)
{
    return device->process != sim_process;
}
/* Returns the open device with that index, or NULL. */
struct sim_device *sim_device_at(int index);
static inline void sim_count(uint64_t _Atomic *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

extern const ctrt_device_table sim_device_table;
ctrt_status sim_usage(int32_t index, ctrt_device_usage *usage);
ctrt_status sim_link(int32_t index, int32_t peer, ctrt_device_link *link);
extern const ctrt_memory_table sim_memory_table;
extern const ctrt_queue_table sim_queue_table;
extern ctrt_kernel_table sim_kernel_table;

/* space.c: the memory mappings of a device. */
ctrt_status sim_space_open(struct sim_device *device);
void sim_space_close(struct sim_device *device);
/* Returns the pages that overlap [start, start+bytes) and are entirely free to the system. The caller holds the
 * device's lock. */
void sim_space_give_back(struct sim_device *device, uint64_t start, uint64_t bytes);
/* Writes "512 of 1048576 bytes are free" to `text`, for messages, and returns it. The caller holds the device's
 * lock. */
const char *sim_space_free(const struct sim_device *device, char text[160]);
/* Returns the worker's address of the device memory [address, address+bytes). Returns NULL and writes the reason to
 * `why` if the range is not within one allocation of this device. */
void *sim_reach(struct sim_device *device, const void *address, uint64_t bytes, char *why, size_t why_bytes);
/* Returns the open device whose guard range contains the address, or NULL. */
const struct sim_device *sim_owner(const void *address);

/* pages.c */
ctrt_status sim_reserve(void *device, void **address, size_t bytes);
void sim_unreserve(void *device, void *address, size_t bytes);
ctrt_status sim_map(void *device, void *address, size_t bytes);
void sim_unmap(void *device, void *address, size_t bytes);
void sim_pages_close(struct sim_device *device);
struct sim_reservation *sim_reservation_at(const struct sim_device *device, uint64_t place);

/* guard.c: reports host accesses to device memory. */
void sim_guard_add(struct sim_device *device);
void sim_guard_remove(struct sim_device *device);

/* faults.c: counts an operation and returns whether a fault makes it fail. `text` receives the fault as the user wrote
 * it. The caller holds the device's lock. */
bool sim_fault_hits(struct sim_device *device, enum sim_fault_kind kind, const char *op, char text[64]);
/* Returns whether a link fault affects copies from device `from` to device `to`. The caller holds the device's lock. */
bool sim_fault_link(struct sim_device *device, int from, int to);
/* Sets device->late from the device's faults. */
void sim_fault_late(struct sim_device *device);

/* ---- queues and work ---- */

/* The error of a queue. sequence: ctrt_call.sequence of the op that failed, 0 for other work. */
struct sim_failure {
    ctrt_status status;
    uint64_t sequence;
    char text[512];
};

/* A point in a queue's work. An event refers to its last timepoint. Reference-counted. */
struct sim_timepoint {
    atomic_int references;
    pthread_mutex_t lock;
    pthread_cond_t reached;
    bool done;
    int64_t time;                               /* ns; when the timepoint was reached */
};

struct sim_work {
    struct sim_work *next;
    /* Called by the worker. On failure, stores the message in the queue with sim_work_fails and returns the status. */
    ctrt_status (*run)(struct sim_queue *queue, struct sim_work *work);
    void (*drop)(struct sim_work *work);        /* frees what the work refers to; NULL: nothing */
    bool always;                                /* runs even after a failure */
    bool loses;                                 /* fault lost: the device is lost at this work */
    bool corrupts, zeroes;                      /* copies: fault copy changes one byte; fault link writes zeros */
    uint64_t sequence;                          /* ctrt_call.sequence; 0 if the work is not an op */
    int64_t put, cost;                          /* ns; when the work was enqueued; its minimum duration */
    char fault[64];                             /* the fault that makes it fail, as the user wrote it; "" for none */
};

struct sim_queue {
    struct sim_queue *next;                     /* in device->queues */
    struct sim_device *device;
    int number;
    int32_t priority;
    pthread_mutex_t lock;
    pthread_cond_t come, done;                  /* signaled when work is enqueued; when work is complete */
    struct sim_work *first, **last;
    uint64_t put, completed;                    /* number of work items enqueued; completed */
    struct sim_failure failure;
    bool started, ends, ended;
    int held;                                   /* references held by each_queue; under the device's lock */
    pthread_t thread;
    int64_t clock;                              /* used by the worker: when the last work ended, in simulated time */
    int64_t _Atomic began, worked;              /* ns: start of the running work, 0: none; time of earlier work */
    int64_t reported;                               /* usage.c: the part already reported; under the device's lock */
    uint64_t random;                            /* used by the worker: state of sim_random */
};

/* Returns the queue of a handle; NULL is the device's default queue. */
static inline struct sim_queue *sim_queue_of(struct sim_device *device, void *queue)
{
    return queue != NULL ? queue : device->standard;
}
ctrt_status sim_queue_new(struct sim_queue **out, struct sim_device *device, int32_t priority);
/* Completes all work, ends all worker threads and frees all queues of the device. */
void sim_queues_close(struct sim_device *device);
/* Enqueues work and takes ownership of it, also on failure. Blocks while the queue holds SIM_QUEUE_LIMIT pieces of
 * work, as a GPU does whose launch queue is full. */
#define SIM_QUEUE_LIMIT 1024
ctrt_status sim_enqueue(struct sim_queue *queue, struct sim_work *work);
/* Blocks until all work that is on the queue at this moment is complete. */
void sim_queue_finish(struct sim_queue *queue);
/* Allocates zeroed work of `bytes`, including its own data. Returns NULL and sets the error on failure; `what` names
 * the work in the message. */
void *sim_work_new(size_t bytes, const char *what);
/* Returns the minimum duration of a transfer in ns, from latency and bandwidth. */
int64_t sim_cost(const struct sim_device *device, uint64_t bytes);
/* Stores why the queue's work failed; returns `status`. Called by run functions. */
ctrt_status sim_work_fails(struct sim_queue *queue, const struct sim_work *work, ctrt_status status,
                           const char *format, ...) CTRT_PRINTF(4, 5);
/* Counts a work item for the fault lost:N and marks it if the fault hits. The caller holds the device's lock. */
void sim_work_check(struct sim_device *device, struct sim_work *work);

/* worker.c */
void *sim_worker(void *queue);
extern __thread bool sim_in_worker;             /* the calling thread is the worker of a queue */
int64_t sim_now(void);
void sim_sleep_until(int64_t time);
/* Returns a random number in [0, limit). */
int64_t sim_random(uint64_t *state, int64_t limit);

/* events.c */
struct sim_timepoint *sim_timepoint_hold(struct sim_timepoint *timepoint);
void sim_timepoint_drop(struct sim_timepoint *timepoint);
/* Blocks until the timepoint is reached and returns the simulated time of that. */
int64_t sim_timepoint_wait(struct sim_timepoint *timepoint);
ctrt_status sim_wait_event(void *device, void *queue, void *event);
ctrt_status sim_event_create(void *device, void **event, bool timing);
void sim_event_destroy(void *device, void *event);
ctrt_status sim_event_record(void *device, void *event, void *queue);
ctrt_status sim_event_query(void *device, void *event, bool *done);
ctrt_status sim_event_synchronize(void *device, void *event);
ctrt_status sim_event_elapsed(void *device, void *from, void *to, double *milliseconds);

/* copies.c */
ctrt_status sim_copy(void *device, void *queue, void *to, const void *from, size_t bytes, int kind);
ctrt_status sim_fill(void *device, void *queue, void *address, int byte, size_t bytes);
bool sim_can_access_peer(void *device, void *peer);
ctrt_status sim_copy_peer(void *to_device, void *to, void *from_device, const void *from, size_t bytes, void *queue);

/* kernels.c: wraps each of the cpu backend's kernels in a kernel whose run function enqueues the call. sim_kernel_count
 * returns their number. */
ctrt_status sim_kernels_init(void);
/* Returns CTRT_ERR_NOT_SUPPORTED if the cpu backend, whose kernels are used, is not available. */
ctrt_status sim_kernels_ready(void);
size_t sim_kernel_count(void);
const char *sim_kernel_op(size_t i);

extern const sim_control sim_control_table;

/* worker.c: an atexit handler. Waits for running work and prevents further work from starting. */
void sim_stop_at_exit(void);
/* Called in the child of a fork, in which the parent's workers do not exist: their work does not run. */
void sim_worker_forked(void);

#endif
