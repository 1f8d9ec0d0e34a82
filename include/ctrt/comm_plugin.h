/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/comm_plugin.h: the interface of communication engines, plugins of kind `comm`.
 *
 * An engine moves data between the ranks of a group. The library does the rest: it finds the ranks, validates and
 * numbers collectives, runs them in the background, copies through host memory what the engine cannot reach, watches
 * time limits and ended ranks, and reports failures. The table of a component of kind CTRT_COMPONENT_COMM is a
 * ctrt_comm_engine. An engine may call the public functions of ctrt.h; then it links libctrt. */
#ifndef CTRT_COMM_PLUGIN_H
#define CTRT_COMM_PLUGIN_H

#include "ctrt/comm.h"
#include "ctrt/plugin.h"

CTRT_BEGIN_DECLS

typedef enum ctrt_collective {
    CTRT_COLLECTIVE_BARRIER, CTRT_COLLECTIVE_BROADCAST, CTRT_COLLECTIVE_ALL_REDUCE, CTRT_COLLECTIVE_REDUCE,
    CTRT_COLLECTIVE_ALL_GATHER, CTRT_COLLECTIVE_GATHER, CTRT_COLLECTIVE_SCATTER, CTRT_COLLECTIVE_REDUCE_SCATTER,
    CTRT_COLLECTIVE_ALL_TO_ALL, CTRT_COLLECTIVE_SEND, CTRT_COLLECTIVE_RECV,
    CTRT_COLLECTIVE_EMPTY,              /* ctrt_comm_empty: a barrier, with `bytes` 0, before `alloc` */
    CTRT_COLLECTIVE_COUNT
} ctrt_collective;

/* The values that must be equal on all ranks of a collective. Without padding, so that they can be compared and sent as
 * bytes. */
typedef struct ctrt_comm_signature {
    uint64_t sequence;                  /* number of the collective in its group, from 1. Of send and recv: number among
                                         * the messages between the two ranks in this direction, from 1 */
    uint64_t count;                     /* elements of one part, see ctrt_comm_call */
    uint32_t collective;                /* ctrt_collective; of a message SEND on both sides */
    uint32_t op;                        /* ctrt_comm_op; 0 without reduction */
    uint32_t dtype;                     /* ctrt_dtype; 0 of barrier */
    int32_t root;                       /* -1 without one; of a message the sender */
} ctrt_comm_signature;

/* One collective. Data is contiguous and consists of parts of `count` elements. `send` and `receive` have one part,
 * except where every rank has a part: receive of all_gather and gather, send of scatter and reduce_scatter, both of
 * all_to_all. send and receive may be the same memory for all_reduce and reduce; broadcast uses `receive` on all ranks.
 * A rank that has no data for a side has NULL there (gather's receive elsewhere than at the root, for example), and so
 * may a tensor without elements. In a message, `root` of the signature is the rank that sends.
 *
 * `count` may be 0. The engine writes `receive` only, and of it only the elements of the result: it does not change
 * `send` if that is other memory. When run() returns on a synchronous device, `receive` is complete and the caller may
 * overwrite `send`, whether or not other ranks have completed the collective. Addresses are aligned to the dtype. */
typedef struct ctrt_comm_call {
    size_t size;
    ctrt_comm_signature signature;
    int32_t peer;                       /* of send and recv: the other rank; else -1 */
    uint32_t reserved;
    size_t bytes;                       /* bytes of one part */
    const void *send;                   /* addresses on the device, or on the host if the library has copied the data */
    void *receive;
    ctrt_tensor *send_tensor;           /* the tensors that have the data; the copies if the library has copied it */
    ctrt_tensor *receive_tensor;
    void *queue;                        /* with CTRT_COMM_ENQUEUES, if the addresses are those of the device: the queue
                                         * of the current stream; else NULL */
    void *state;                        /* first argument of the config's functions during this call */
} ctrt_comm_call;

/* A group and this rank's part in it. The pointers are valid until destroy. The child of a fork does not use the group,
 * and may end at any time without effect on it. */
typedef struct ctrt_comm_config {
    size_t size;
    int32_t rank, world;                /* number of this rank and of ranks */
    const char *name;                   /* different for each group, the same on all ranks; for keys and messages */
    ctrt_device *device;                /* of this rank */
    ctrt_store *store;                  /* common to the ranks, also if these are threads; keys of the engine begin with
                                         * `name` and '/' */
    double timeout;                     /* seconds that a collective may take; also for create */
    void *state;                        /* first argument of the functions below, in create, derive and alloc; in run
                                         * it is call->state */
    /* While run() or create() waits for other ranks it calls poll about every 10 ms, and returns its result if that
     * is not CTRT_OK: the time limit has passed, a rank has ended, or the group was aborted. Cheap. Data that has
     * arrived comes first: a rank that has completed the collective may leave or abort the group at once. */
    ctrt_status (*poll)(void *state);
    /* Reports that the signatures of a collective differ. `signatures`[world], in order of ranks; those with sequence 0
     * are unknown. Returns the error, which run() returns. */
    ctrt_status (*mismatch)(void *state, const ctrt_comm_signature *signatures);
    int32_t epoch;                      /* above 0: the group replaces one that has lost ranks (ctrt_comm_shrink), and
                                         * its ranks, all of which are in `create`, are those that are left */
    int32_t elastic;                    /* 1: ranks that are left will probably go on after a failure
                                         * (CTRT_ON_FAILURE=shrink), so `abort` should keep what `derive` can use */
} ctrt_comm_config;

enum {                                  /* ctrt_comm_engine.flags */
    /* run() enqueues the collective on the calling thread's current stream, whose queue is call->queue, and returns.
     * Only for a barrier and CTRT_COLLECTIVE_EMPTY, run() waits until the collective is complete. The library calls
     * run() for the collectives of all communicators in the order in which the program calls them, tracks when they are
     * complete, and applies the time limit. Without the flag, run() returns when the collective is complete, or, with
     * tensors of asynchronous devices, when it is enqueued. */
    CTRT_COMM_ENQUEUES = 1,
    CTRT_COMM_CAPTURES = 2,             /* with CTRT_COMM_ENQUEUES: run() can be called while the stream is captured;
                                         * the replays of the graph run the collective */
    CTRT_COMM_DEVICE_MEMORY = 4         /* `alloc` returns memory of the rank's device, whatever that is. Without the
                                         * flag, it returns memory of the host, and is called only if all ranks are on
                                         * the cpu */
};

typedef struct ctrt_comm_engine {
    size_t size;                        /* required slots: create, destroy, run */
    uint32_t flags;                     /* CTRT_COMM_* */
    uint32_t reserved;
    /* Joins the group; all ranks call it, at about the same time, and a process may be in several groups with other
     * names at once. *comm is NULL on entry. On failure nothing of the group is left in this process. The config
     * outlives the communicator. Errors: what `poll` returned, with its message, while the function waited; an error of
     * the engine. Every failure of the engine's functions has a message (host->fail, ctrt_fail). */
    ctrt_status (*create)(void **comm, const ctrt_comm_config *config);
    /* Leaves the group: returns memory, descriptors and mappings of it. May wait for other ranks only for a short time,
     * because they may have ended, or not leave. */
    void (*destroy)(void *comm);
    /* Runs a collective. Calls come from any thread: collectives one at a time and in order, and at the same time sends
     * and receives, each also one at a time and in order.
     *
     * Without CTRT_COMM_ENQUEUES the ranks exchange their signatures and compare all bytes before they write to
     * `receive`. If they differ, each rank returns the result of `mismatch`. For a message the two ranks do so; if the
     * sender does not wait for the receiver's signature, it gets an error only at a later call. Messages between two
     * ranks arrive in order. Sends, receives and collectives do not wait for each other.
     *
     * Reductions of f32, f64, i32 and i64 are required. If the engine has none for the dtype, run() returns
     * CTRT_ERR_NOT_SUPPORTED on all ranks before it sends anything.
     *
     * Errors: what `poll` or `mismatch` returned, or an error of the engine. The library adds the ranks that have ended
     * or did not arrive to a CTRT_ERR_COMM of the engine. If a connection breaks, call poll for up to 5 s before such
     * an error, because the library finds out whether the other rank has ended or left, and names the collective. */
    ctrt_status (*run)(void *comm, const ctrt_comm_call *call);
    /* Optional without CTRT_COMM_ENQUEUES: makes a run() that waits in another thread return soon. For engines whose
     * waits do not call poll. */
    void (*abort)(void *comm);
    /* Optional: whether run() can use the device memory of this call directly. `call` is as for run(), with addresses
     * of the device. If the memory policy moves tensors, call->send and call->receive are NULL, and an engine that
     * needs addresses returns false. If so, the library makes the current stream wait for work of other streams on the
     * tensors, as before an op, and run() waits for that stream or enqueues on it. If not, and without this slot, run()
     * gets copies in host memory. The ranks may decide differently. */
    bool (*reaches_device)(void *comm, const ctrt_comm_call *call);
    /* Optional: copies data[bytes] of the process that is rank 0 to all processes of the job, for finding the store
     * when the environment names none, and writes this process's rank and their number. Called before create. */
    ctrt_status (*bootstrap)(int32_t *rank, int32_t *size, void *data, size_t bytes);
    /* Optional: whether the engine can connect the ranks. `hosts`: number of machines; `processes`: of processes. */
    bool (*connects)(int32_t world, int32_t hosts, int32_t processes);
    /* Optional: memory of this rank that the other ranks can access directly, which makes collectives on it faster.
     * Filled with zeros, except with CTRT_COMM_DEVICE_MEMORY. All ranks call alloc with the same sizes, between the
     * same collectives; it waits like run(). *address is NULL if other memory is as good. If one rank has no memory,
     * alloc fails on all ranks with CTRT_ERR_OUT_OF_MEMORY, and the group can still be used; after any other failure
     * it is not used any more.
     * `free` is called at any time, in any thread, in a different order on each rank, and does not wait for other
     * ranks; always before destroy. */
    ctrt_status (*alloc)(void *comm, void **address, size_t bytes);
    void (*free)(void *comm, void *address);
    /* Optional, with CTRT_COMM_ENQUEUES: returns an asynchronous error of enqueued collectives, or CTRT_OK. Must not
     * wait. Another thread calls it every 0.1 to 10 ms while collectives are incomplete. After a failure the library
     * calls `abort`, which must make incomplete collectives end on their streams. */
    ctrt_status (*poll_error)(void *comm);
    /* Optional: like create, for a group whose ranks are all ranks of another group, `parent`, so that the engine can
     * use connections of the parent. ranks[config->world]: their ranks there.
     *
     * `color` >= 0: ctrt_comm_split. All ranks of the parent call the function after the same collective, which is
     * complete on the calling rank. Ranks that join no group have `comm`, `config` and `ranks` NULL and color -1. While
     * the function waits it calls poll of the parent's config. After an error the parent fails as well.
     *
     * `color` -1 and a config: ctrt_comm_shrink. The parent has failed, and the ranks that are left call the function,
     * while another thread may still be about to call `abort` for the parent. `parent` is NULL on ranks that were not
     * connected to it. If the parent's connections cannot be used, the function does what create does. */
    ctrt_status (*derive)(void **comm, const ctrt_comm_config *config, void *parent, const int32_t *ranks,
                          int32_t color);
} ctrt_comm_engine;

CTRT_END_DECLS

#endif
