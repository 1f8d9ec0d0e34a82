/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/sim.h: what the rooms of the simulated devices share.
 *
 * A device is a range of addresses that the host cannot touch (guard), the same memory once more where the worker
 * threads reach it (guard + delta), and queues, each with a worker. Work is a copy of all that a call points to. Locks, in the
 * order in which they may be taken: devices (device.c), device, queue, mark. None is held while work runs. */
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

#define SIM_DEVICES 64                          /* most devices that CTRT_SIM may ask for */
#define SIM_ALIGN   ((uint64_t)512)             /* blocks begin at multiples and have multiples, as on CUDA devices */
#define SIM_PAGE    ((uint64_t)2 << 20)         /* unit of map, as on CUDA devices */

/* The host table, from init to the end of the process. */
extern const ctrt_host *sim_host;

/* ---- options (options.c, faults.c) ---- */

enum sim_fault_kind { SIM_FAULT_ALLOC, SIM_FAULT_HOST, SIM_FAULT_OP, SIM_FAULT_COPY, SIM_FAULT_LOST, SIM_FAULT_LINK, SIM_FAULT_LATE, SIM_FAULT_EVENT };

struct sim_fault {
    enum sim_fault_kind kind;
    int device;                     /* -1: each */
    bool onward;                    /* "3+": from the third on */
    uint64_t nth;                   /* counted from 1 */
    uint64_t seen;                  /* so many have come by */
    char op[32];                    /* "" for any */
    int from, to;                   /* link */
    int64_t late;                   /* ns */
    char text[64];                  /* as it was written */
};

#define SIM_FAULTS 32

struct sim_faults {
    int count;
    struct sim_fault at[SIM_FAULTS];
};

struct sim_options {
    int devices;
    uint64_t memory[SIM_DEVICES];               /* bytes */
    int64_t latency[SIM_DEVICES];               /* ns that each piece of work takes at least */
    uint64_t bandwidth[SIM_DEVICES];            /* bytes a second between device and host or peer; 0: no limit */
    uint64_t pinned;                            /* bytes of pinned host memory for one device; 0: no limit */
    uint64_t seed;
    uint64_t peers[SIM_DEVICES];                /* bit b of entry a: a can reach b's memory */
    bool poison;                                /* fresh memory is filled with bytes that stand out */
    bool holes;                                 /* memory is one range of places; else a block takes any place */
    struct sim_faults faults;
};

/* Reads CTRT_SIM and CTRT_SIM_FAULT. */
ctrt_status sim_options_read(struct sim_options *out);
/* "CTRT_SIM" text to options; `name` says where it comes from. */
ctrt_status sim_options_parse(struct sim_options *out, const char *name, const char *text);
/* Appends "alloc:3;op:add@57" to `faults`. */
ctrt_status sim_faults_parse(struct sim_faults *faults, const char *name, const char *text);
/* A number with a unit: 1048576, 64m; 20us, 3ms; the rest of the text is *end. False: malformed or too large. */
bool sim_parse_bytes(uint64_t *out, const char *text);
bool sim_parse_time(int64_t *nanoseconds, const char *text);
bool sim_parse_count(uint64_t *out, const char *text);
/* Which of the words was meant? NULL: none comes near. `words` ends with NULL. */
const char *sim_nearest(const char *word, const char *const *words);
/* "a, b, c; did you mean b?" for messages. */
const char *sim_known(char *buffer, size_t bytes, const char *word, const char *const *words);

/* ---- blocks of a space, by address (blocks.c) ---- */

struct sim_block {
    uint64_t start, bytes;
};

/* Used blocks, sorted by start. The array never moves, so that the fault handler can read it without a lock; `version` is
 * odd while it is written. */
struct sim_blocks {
    struct sim_block *at;
    size_t count, capacity;
    uint64_t begin, end;                        /* of the space */
    uint64_t used, most;                        /* bytes; how many may be used at one time */
    _Atomic uint32_t version;
};

bool sim_blocks_init(struct sim_blocks *blocks, uint64_t begin, uint64_t end, uint64_t most, uint64_t least);
void sim_blocks_free(struct sim_blocks *blocks);
/* First fit; false when there is no piece of that size. */
bool sim_blocks_take(struct sim_blocks *blocks, uint64_t *start, uint64_t bytes, uint64_t alignment);
/* Removes the block that begins there; 0 when none does. */
uint64_t sim_blocks_give(struct sim_blocks *blocks, uint64_t start);
/* The block in which `place` lies, or NULL. */
const struct sim_block *sim_blocks_find(const struct sim_blocks *blocks, uint64_t place);
/* The free piece around `place` (which is free). */
void sim_blocks_gap(const struct sim_blocks *blocks, uint64_t place, uint64_t *begin, uint64_t *end);
uint64_t sim_blocks_largest_gap(const struct sim_blocks *blocks);
/* For the fault handler: as find, without a lock; false also when the array is being written. */
bool sim_blocks_peek(const struct sim_blocks *blocks, uint64_t place, struct sim_block *out);

/* ---- devices ---- */

struct sim_queue;

/* A reserved range of addresses and the memory behind each of its pages. */
struct sim_reservation {
    struct sim_reservation *next;
    uint64_t start, bytes;                      /* from the beginning of the guard range */
    int64_t pages[];                            /* place in the memory; -1: nothing mapped */
};

struct sim_device {
    int index;
    char name[16];                              /* "sim:0" */
    pid_t process;                              /* that opened it */
    uint64_t memory;                            /* bytes of device memory */
    uint64_t peers;
    int64_t _Atomic latency;
    uint64_t _Atomic bandwidth;
    uint64_t pinned_limit, seed;
    bool poison, holes;
    atomic_bool lost;

    char *guard;                                /* what the host sees: no access */
    ptrdiff_t delta;                            /* the same byte for workers: address + delta */
    uint64_t span;                              /* bytes of the guard range: places for memory, then room for reservations */
    int fd;

    pthread_mutex_t lock;                       /* what follows, and faults */
    struct sim_blocks physical;                 /* blocks of alloc and pages of map */
    struct sim_blocks reserved;                 /* behind them, up to span */
    struct sim_reservation *reservations;
    struct sim_queue *queues;                   /* live and dying */
    struct sim_queue *standard;                 /* for queue NULL */
    int next_queue;
    uint64_t pinned;
    struct sim_faults faults;
    int64_t _Atomic late;                       /* ns; work and events begin up to so much later */
    int64_t asked;                              /* usage.c: when usage was asked for last, ns */

    uint64_t _Atomic *launches;                 /* by row */
    struct { uint64_t _Atomic
        allocs, frees, maps, unmaps, reserves, unreserves, host_allocs, host_frees, bad_frees, copies[3], copy_bytes[3], peer_copies,
        peer_bytes, fills, fill_bytes, launches, waits, records, host_calls, failures, peak;
    } count;
};

/* The process as this plugin knows it, kept up to date through fork. */
extern pid_t sim_process;

/* CTRT_ERR_FORKED or CTRT_ERR_DEVICE_LOST with a message, or CTRT_OK. */
ctrt_status sim_usable(const struct sim_device *device);
static inline bool sim_forked(const struct sim_device *device)
{
    return device->process != sim_process;
}
/* The open device of that index, or NULL. */
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

/* space.c: the mappings of a device. */
ctrt_status sim_space_open(struct sim_device *device);
void sim_space_close(struct sim_device *device);
/* Gives whole pages of free memory around [start, start+bytes) back to the system. With the lock held. */
void sim_space_give_back(struct sim_device *device, uint64_t start, uint64_t bytes);
/* "512 of 1048576 bytes are free", for messages; in `text`. With the lock held. */
const char *sim_space_free(const struct sim_device *device, char text[160]);
/* Memory of the device at [address, address+bytes) as workers reach it, or NULL with the reason why that is no live memory
 * of this device. */
void *sim_reach(struct sim_device *device, const void *address, uint64_t bytes, char *why, size_t why_bytes);
/* The open device in whose range the address lies, or NULL. */
const struct sim_device *sim_owner(const void *address);

/* pages.c */
ctrt_status sim_reserve(void *device, void **address, size_t bytes);
void sim_unreserve(void *device, void *address, size_t bytes);
ctrt_status sim_map(void *device, void *address, size_t bytes);
void sim_unmap(void *device, void *address, size_t bytes);
void sim_pages_close(struct sim_device *device);
struct sim_reservation *sim_reservation_at(const struct sim_device *device, uint64_t place);

/* guard.c: says what happened when the host touches device memory. */
void sim_guard_add(struct sim_device *device);
void sim_guard_remove(struct sim_device *device);
void sim_guard_namer(sim_namer namer);

/* faults.c: does this one fail? Counts it. `text` receives the fault as it was written. With the device's lock held. */
bool sim_fault_hits(struct sim_device *device, enum sim_fault_kind kind, const char *op, char text[64]);
bool sim_fault_link(struct sim_device *device, int from, int to);
/* Makes `late` what the faults say. */
void sim_fault_late(struct sim_device *device);

/* ---- queues and work ---- */

struct sim_failure {
    ctrt_status status;
    uint64_t sequence;
    char text[512];
};

/* A point in a queue's work; events are names for them. */
struct sim_mark {
    atomic_int references;
    pthread_mutex_t lock;
    pthread_cond_t reached;
    bool done;
    int64_t time;                               /* ns, when it was reached */
};

struct sim_work {
    struct sim_work *next;
    /* In the worker. On failure: status, and a text that sim_work_fails puts into the queue's failure. */
    ctrt_status (*run)(struct sim_queue *queue, struct sim_work *work);
    void (*drop)(struct sim_work *work);        /* frees what the work holds beside itself; NULL: nothing */
    bool always;                                /* runs after a failure too */
    bool loses;                                 /* the device is lost here */
    bool corrupts, lies;                        /* copies */
    uint64_t sequence;                          /* ctrt_call.sequence; 0 for what is no op */
    int64_t put, cost;                          /* ns: when it came; how long it takes at least */
    char fault[64];                             /* the fault that it dies of, as it was written; "" for none */
};

struct sim_queue {
    struct sim_queue *next;                     /* of the device */
    struct sim_device *device;
    int number;
    int32_t priority;
    pthread_mutex_t lock;
    pthread_cond_t come, done;                  /* work has come; work was done */
    struct sim_work *first, **last;
    uint64_t put, completed;                    /* pieces of work */
    struct sim_failure failure;
    bool started, ends, ended;
    int held;                                   /* by whoever looks at all queues; under the device's lock */
    pthread_t thread;
    int64_t clock;                              /* worker's: when the last work was done by simulated time */
    int64_t _Atomic began, worked;              /* ns: when the work that runs now began, 0: none does; what all before took */
    int64_t told;                               /* usage.c: of that; under the device's lock */
    uint64_t random;                            /* worker's */
};

/* The queue of a handle: NULL is the device's own. */
static inline struct sim_queue *sim_queue_of(struct sim_device *device, void *queue)
{
    return queue != NULL ? queue : device->standard;
}
ctrt_status sim_queue_new(struct sim_queue **out, struct sim_device *device, int32_t priority);
/* Finishes all work and ends all threads of the device. */
void sim_queues_close(struct sim_device *device);
/* Puts work on the queue, which takes it over, also on failure. */
ctrt_status sim_put(struct sim_queue *queue, struct sim_work *work);
/* Blocks until all that is on the queue now is done. */
void sim_queue_finish(struct sim_queue *queue);
/* New work with `bytes` for it and its data, zeroed; NULL after host->fail. */
void *sim_work_new(size_t bytes, const char *what);
/* How long a transfer takes: latency and bandwidth. */
int64_t sim_cost(const struct sim_device *device, uint64_t bytes);
/* Notes in the queue why its work fails; returns `status`. For run functions. */
ctrt_status sim_work_fails(struct sim_queue *queue, const struct sim_work *work, ctrt_status status, const char *format, ...)
    CTRT_PRINTF(4, 5);
/* Counts a piece of work against lost:N; with the device's lock held. */
void sim_work_judge(struct sim_device *device, struct sim_work *work);

/* worker.c */
void *sim_worker(void *queue);
int64_t sim_now(void);
void sim_sleep_until(int64_t time);
/* In [0, limit). */
int64_t sim_random(uint64_t *state, int64_t limit);

/* marks.c */
struct sim_mark *sim_mark_hold(struct sim_mark *mark);
void sim_mark_drop(struct sim_mark *mark);
/* Blocks until the mark is reached; its time. */
int64_t sim_mark_wait(struct sim_mark *mark);
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

/* kernels.c: the cpu's rows, laid out again with our run; sim_rows is how many. */
ctrt_status sim_kernels_init(void);
/* CTRT_ERR_NOT_SUPPORTED when there is no cpu backend to lend its kernels. */
ctrt_status sim_kernels_there(void);
size_t sim_rows(void);
const char *sim_row_op(size_t row);
/* How many threads a kernel may use in this thread from now on, whatever CTRT_NUM_THREADS says. */
void sim_in_one_thread(void (*function)(void *argument), void *argument);

extern const sim_control sim_control_table;

/* worker.c: for atexit: waits for what is running and lets nothing more begin. */
void sim_stop_at_exit(void);

#endif
