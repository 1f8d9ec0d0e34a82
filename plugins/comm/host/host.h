/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/host.h: the engine `host`: ranks that are threads and processes of one machine.
 *
 *   host.c       the engine's table: joining and leaving groups, choice of the file that runs a call
 *   arena.c      memory that all ranks of a group map
 *   segments.c   memory of tensors that all ranks of a group map
 *   wait.c       waiting for other ranks
 *   direct.c     collectives on memory that all ranks can address: threads on cpus, or shared segments
 *   pieces.c     collectives through the arena, in pieces: processes, and all small tensors
 *   pull.c       large collectives between processes that can read each other's memory
 *   devices.c    collectives and messages of threads with asynchronous devices, by ops on the devices
 *   message.c    send and recv
 *   plugin.c     the plugin's registration. The other files are also part of the engine `mpi`
 *
 * Every rank calls the functions with the same collectives. A collective begins with a barrier (host_arrive): each rank
 * has written a struct host_entry with its signature and its addresses before it, and after it compares the signatures
 * of all ranks. Entries and slots exist twice, for even and odd collectives (pieces): a rank can be one collective
 * ahead of another one, but not two, because every collective has a barrier. */
#ifndef COMM_HOST_H
#define COMM_HOST_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "ctrt/comm_plugin.h"
#include "ctrt/ctrt.h"
#include "../reduce.h"

/* Bytes of a rank's slot in the arena: a piece of a collective, or of a message. */
#define HOST_PIECE   ((size_t)512 << 10)
#define HOST_MESSAGE ((size_t)128 << 10)
/* Bytes in the arena, per rank, that this engine does not use: for the engine mpi. */
#define HOST_WINDOW  ((size_t)256 << 10)
/* Collectives with at most this many bytes per rank go through the arena also between threads, because then one barrier
 * is enough. */
#define HOST_SMALL   ((size_t)8 << 10)
/* Two ranks divide a reduction of more than this many bytes between them. */
#define HOST_WHOLE   ((size_t)256 << 10)
#define HOST_RANKS   4096
#define HOST_PAGE    ((size_t)64 << 10)      /* the largest size of a page */
#define HOST_HUGE    ((size_t)2 << 20)       /* of a huge page, on most processors */

/* A number that threads of any process wait for (futex). Changed by host_word_set only. */
struct host_word {
    _Atomic uint32_t value, sleepers;
} __attribute__((aligned(64)));

/* An address for other ranks: of this process, or in a segment (from 1; 0: in none). */
struct host_place {
    const void *address;
    uint64_t segment, offset;
};

/* Published by each rank when it arrives at a collective. */
struct host_entry {
    ctrt_comm_signature signature;
    struct host_place give, receive;        /* the data that the rank contributes and where its result goes, or NULL */
    bool put;                               /* its slot has the first piece of the data */
    bool pulls;                             /* other processes can read the data and the result */
    pid_t thread;                           /* that runs the collective, if `pulls`. The kernel finds the memory of a
                                             * process by any of its threads that has not ended, and the main thread may
                                             * have */
};

/* The message that a rank sends. The receiver writes only the second part. */
struct host_outbox {
    struct host_word posted;                /* number of the message and its receiver, see message.c */
    struct host_word filled;                /* pieces that the sender has written since the group was created */
    ctrt_comm_signature signature;
    const void *address;                    /* in this process; NULL: the message comes in pieces */
    ctrt_tensor *tensor;                    /* HOST_DEVICES */
    ctrt_event *event;                      /* HOST_DEVICES: the sender's work before the message */

    struct host_word finished;              /* value of `posted` of the last message that was received or refused */
    struct host_word drained;               /* pieces that were read */
    ctrt_comm_signature answer;             /* the receiver's signature, if it refused the message */
    _Atomic bool refused;
    ctrt_event *_Atomic received;           /* HOST_DEVICES: the work that reads the message; the sender releases
                                             * it */
};

struct host_rank {
    struct host_entry entries[2];
    int64_t pid;
    uint64_t token[2];                      /* random numbers, at this address in the process: see pull.c */
    const void *probe;
    cpu_set_t processors;                   /* on which the rank may run */
    bool cpu;                               /* its device's memory is host memory and synchronous */
    /* HOST_DEVICES: for even and odd phases, the tensor that the others read and the work that computes it. The events
     * live as long as the arena, because another rank may use them when this one has left. */
    ctrt_tensor *tensors[2];
    ctrt_event *events[2];
    struct host_outbox outbox;
    struct host_word arrivals;              /* of few ranks: barriers so far */
    _Atomic pid_t writer __attribute__((aligned(64)));          /* thread that may write to other processes; 0: none */
} __attribute__((aligned(64)));

/* The arena begins with this struct. After it: slots[world][2][HOST_PIECE], results[2][HOST_PIECE],
 * messages[world][2][HOST_MESSAGE], windows[world][HOST_WINDOW]. */
struct host_header {
    struct host_word generation;            /* barriers so far */
    _Atomic uint32_t arrived __attribute__((aligned(64)));      /* ranks at the current barrier */
    _Atomic bool dead __attribute__((aligned(64)));             /* a call has failed */
    _Atomic bool devices;                   /* HOST_DEVICES: the events of the ranks exist */
    _Atomic bool unreadable;                /* a rank cannot access the memory of another one */
    int64_t segment_pid, segment_fd;        /* segment that rank 0 creates, during alloc */
    atomic_int segment_failed[2];           /* of even and odd segments: rank + 1 of one that could not map it */
    struct host_rank ranks[];
};

/* The arena in this process. Ranks of the same process and group share it. */
struct host_arena {
    struct host_arena *next;
    int refs;
    uint64_t token[2];                      /* identifies the group */
    struct host_header *header;
    size_t bytes;
    int world;
    atomic_int users;                       /* threads of this process that use the memory of other ranks */
};

/* Memory that alloc returned, of all ranks, in this process. A rank that frees its part returns the pages to the
 * system. The addresses remain mapped until all ranks have done so. */
struct host_segment {
    struct host_segment *next;
    uint64_t number;                        /* the same on all ranks */
    struct host_segment_header {
        atomic_int freed;                   /* ranks that have freed their part */
    } *header;                              /* followed, at `first`, by the parts of all ranks */
    size_t first, bytes, mapped;            /* first: of the header; bytes: of one part; mapped: of all */
};

struct host_comm {
    const ctrt_comm_config *config;
    int rank, world;
    int64_t spin;                           /* nanoseconds to poll a word before the thread sleeps */
    struct host_arena *arena;
    struct host_header *header;
    int fd;                                 /* rank 0, while the others join */
    int64_t next_look;                      /* while the group is created: time of the next read of key `failed` */
    bool joining;
    enum { HOST_DIRECT, HOST_DEVICES, HOST_PROCESSES } mode;
    uint32_t collectives, pieces, messages; /* so far */
    uint32_t phases;                        /* HOST_DEVICES: barriers so far */
    const char **from, **to;                /* [world], for the current collective */
    bool pulls;                             /* HOST_PROCESSES: the processes can access each other's memory */
    char *scratch;                          /* for pull.c; NULL until the first reduction */
    struct { const void *address; size_t bytes; } tested[2];    /* data and result that the kernel can copy: see pull.c,
                                             * host_pull_ready */
    atomic_bool written;                    /* a rank may still write to the tensors of a failed call */
    pthread_mutex_t segments_lock;
    struct host_segment *segments;
    uint64_t segment_count;                 /* so far */
};

/* ---- arena.c ---- */

/* Creates (rank 0) or opens the arena. */
ctrt_status host_arena_open(struct host_comm *comm);
void host_arena_close(struct host_comm *comm);
/* Maps `bytes` bytes of the file `fd` of process `pid`; the file's size must be `bytes`. */
ctrt_status host_map(void **out, size_t bytes, int64_t pid, int64_t fd);
/* Creates a file of `bytes` zeros without a name and maps it. The caller closes *fd. */
ctrt_status host_map_new(void **out, int *fd, size_t bytes);
void host_arena_init(const ctrt_host *host);

char *host_slot(const struct host_comm *comm, int rank, uint32_t piece);
char *host_result(const struct host_comm *comm, uint32_t piece);
char *host_message(const struct host_comm *comm, int rank, uint32_t piece);
char *host_window(const struct host_comm *comm, int rank);

static inline size_t host_round_up(size_t bytes)
{
    return (bytes + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
}

/* ---- segments.c ---- */

/* The slots of the engine. */
ctrt_status host_alloc(void *state, void **address, size_t bytes);
void host_free(void *state, void *address);
/* Unmaps all segments. */
void host_segments_end(struct host_comm *comm);
/* The place of bytes[bytes] of this rank's data. */
struct host_place host_place_of(struct host_comm *comm, const void *address, size_t bytes);
/* Writes the addresses of the data of all ranks to comm->from and, if `results`, of where their results go to comm->to,
 * after host_arrive. false: the ranks cannot address them; the same on all ranks. */
bool host_resolve(struct host_comm *comm, bool results);

/* ---- wait.c ---- */

/* Sets the word and wakes the threads that wait for it. */
void host_word_set(struct host_word *word, uint32_t value);
/* Waits until the word's value is not `old`. Fails when the config's poll fails; the group is dead then. */
ctrt_status host_wait(struct host_comm *comm, void *state, struct host_word *word, uint32_t old);
/* While the group is created, fails if another rank could not join. */
ctrt_status host_poll_joining(struct host_comm *comm);
/* Waits until all ranks have called it. */
ctrt_status host_barrier(struct host_comm *comm, void *state);
/* Begins the next collective: writes this rank's entry. */
void host_enter(struct host_comm *comm, const struct host_entry *entry);
/* Waits for all ranks and compares their signatures. */
ctrt_status host_arrive(struct host_comm *comm, const ctrt_comm_call *call);
/* The entry of a rank in the collective that this rank has arrived at. */
const struct host_entry *host_entry(const struct host_comm *comm, int rank);

/* Fails if a rank has marked the group as dead. */
ctrt_status host_check_alive(struct host_comm *comm, void *state);
/* Between the two calls the thread may use memory and handles of other ranks of this process. Fails if the group is
 * dead. */
ctrt_status host_use_begin(struct host_comm *comm, void *state);
void host_use_end(struct host_comm *comm);
/* Marks the group as dead and waits until no thread of this process uses the memory of other ranks, and until no other
 * process writes to this rank's memory, because the caller's memory may be freed when run() returns. If a process
 * may still be writing after the time limit, sets comm->written. Returns `status`. */
ctrt_status host_dead(struct host_comm *comm, ctrt_status status);

/* ---- direct.c, pieces.c, pull.c, devices.c, message.c ---- */

struct host_range {
    size_t begin, end;
};
/* The bytes, whole cache lines, that a rank reduces when the ranks share the reduction of `bytes` bytes. */
struct host_range host_share(const struct host_comm *comm, int rank, size_t bytes);
/* Reduces that range of the data at comm->from[world] and writes it to the same range of each address in to[count] that
 * is not NULL (at least one), which may be among the inputs. */
void host_reduce_range(const struct host_comm *comm, const ctrt_comm_call *call, struct host_range range,
                       const char *const *to, int count);
/* After host_arrive; from[world] and to[world] of `comm` are the addresses of all ranks. */
ctrt_status host_run_direct(struct host_comm *comm, const ctrt_comm_call *call);
/* Before host_arrive: copies piece 0 of this rank's data to its slot. Omitted if the other ranks may be able to read
 * the data directly. */
void host_put_first(struct host_comm *comm, const ctrt_comm_call *call);
/* After host_arrive: runs the collective in pieces. `late`, the same on all ranks: a rank has not called
 * host_put_first, because its data is in a segment or host_run_pull was planned, so this function calls host_put_first
 * on all ranks. */
ctrt_status host_run_pieces(struct host_comm *comm, const ctrt_comm_call *call, bool late);
/* While the group is created: sets token and probe of this rank's struct, for host_pull_allowed in other processes. */
ctrt_status host_pull_publish(struct host_rank *own);
/* Returns whether this process can read and write the memory of the rank's process. */
bool host_pull_allowed(const struct host_rank *rank);
/* Returns whether host_run_pull is faster than host_run_pieces. The result is the same on all ranks. */
bool host_pull_wanted(const struct host_comm *comm, const ctrt_comm_call *call);
/* Returns whether host_run_pull can run this rank's part. Allocates memory for a reduction, and tests whether the
 * kernel can read this rank's data (`give_bytes`) and result (`receive_bytes`) from another process. */
bool host_pull_ready(struct host_comm *comm, const ctrt_comm_call *call, size_t give_bytes, size_t receive_bytes);
/* After host_arrive, if host_pull_ready is true on all ranks: runs the collective. */
ctrt_status host_run_pull(struct host_comm *comm, const ctrt_comm_call *call);
/* After the group was marked as dead: waits until no other process writes to this rank's tensors. Returns false if a
 * process may still write after the time limit, because it is stopped. */
bool host_await_writers(const struct host_comm *comm);
/* Runs the whole collective. */
ctrt_status host_run_devices(struct host_comm *comm, const ctrt_comm_call *call);
ctrt_status host_send(struct host_comm *comm, const ctrt_comm_call *call);
ctrt_status host_recv(struct host_comm *comm, const ctrt_comm_call *call);

/* Creates the events of this rank. */
ctrt_status host_devices_init(struct host_comm *comm);
void host_devices_end(struct host_header *header, int world);
/* Copies all elements; the shapes may differ. */
ctrt_status host_copy_tensor(ctrt_tensor *to, ctrt_tensor *from);
/* Makes the current stream of `device` wait for the event. */
ctrt_status host_stream_wait(ctrt_device *device, ctrt_event *event);

/* How many parts a rank of `world` contributes: 1, or one per rank. */
static inline int host_parts(int world, const ctrt_comm_call *call)
{
    const uint32_t collective = call->signature.collective;
    return collective == CTRT_COLLECTIVE_SCATTER || collective == CTRT_COLLECTIVE_REDUCE_SCATTER
                   || collective == CTRT_COLLECTIVE_ALL_TO_ALL ? world : 1;
}

/* Whether the data of a rank is small enough to be in the arena before the first barrier. The same on all ranks. */
static inline bool host_small(const struct host_comm *comm, const ctrt_comm_call *call)
{
    return (size_t)host_parts(comm->world, call) * call->bytes <= HOST_SMALL;
}

/* The data that a rank contributes; NULL: none. */
static inline const void *host_given(int rank, const ctrt_comm_call *call)
{
    const bool root = call->signature.collective == CTRT_COLLECTIVE_BROADCAST && rank == call->signature.root;
    return root ? call->receive : call->send;
}

/* Reductions of which each rank computes a part for all ranks. */
static inline bool host_shares(const ctrt_comm_call *call)
{
    return call_reduces(call) && call->signature.collective != CTRT_COLLECTIVE_REDUCE_SCATTER;
}

/* Writes bytes [offset, offset + bytes) of each part of the result of rank `own` of `world`. from[rank]: that range of
 * the data that the rank contributes; its parts are `stride` bytes apart. */
void host_take(int own, int world, const ctrt_comm_call *call, const char *const *from, size_t stride, size_t offset,
               size_t bytes);

/* ---- host.c ---- */

extern const ctrt_comm_engine host_engine;
/* Keeps the tensors of a failed call permanently, because another process may still write to their memory. */
void host_keep_tensors(const ctrt_comm_call *call);
/* For the engine mpi: the two halves of a collective that is not HOST_DEVICES. Between them the caller makes all ranks
 * meet and compare their signatures. */
void host_begin(struct host_comm *comm, const ctrt_comm_call *call);
ctrt_status host_finish(struct host_comm *comm, const ctrt_comm_call *call);
/* Before the first call of the table. */
void host_init(const ctrt_host *host);
/* Reports that the ranks called different collectives (config->mismatch). entries[world]: of each rank, what begins
 * with its signature. */
ctrt_status host_mismatch(const ctrt_comm_config *config, void *state, const void *const *entries);
/* The same for a message: the signatures of the sender and of the receiver. */
ctrt_status host_message_mismatch(const ctrt_comm_config *config, const ctrt_comm_call *call,
                                  const ctrt_comm_signature *sent, const ctrt_comm_signature *received);

/* A hint for the processor: a loop waits for another processor. */
static inline void host_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");            /* takes about as long as x86's pause; `yield` is a no-op on most processors */
#endif
}

#endif
