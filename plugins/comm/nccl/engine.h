/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/nccl/engine.h: the engine `nccl`, which connects ranks through NCCL. The ranks are threads or processes
 * with one CUDA device each.
 *
 *   engine.c      the engine's table: joining, leaving and aborting groups
 *   library.c     opens libnccl.so.2; error messages
 *   link.c        creates NCCL communicators and waits for them
 *   derive.c      creates them from those of another group
 *   end.c         ends them
 *   collective.c  the collectives and messages
 *   memory.c      memory that is registered with NCCL
 *
 * Calls are enqueued on the calling thread's current stream. The NCCL communicators are non-blocking
 * (ncclConfig_t.blocking 0): an NCCL call returns at once, and the engine calls ncclCommGetAsyncError until the call is
 * complete. So every wait has a time limit, after which the library aborts the group (ncclCommAbort).
 *
 * A group has one NCCL communicator for its collectives. NCCL runs the calls of one communicator in order, but sends,
 * receives and collectives of a group must not wait for each other. So the messages from one rank to another have an
 * NCCL communicator of their own. The two ranks create it at their first message. */
#ifndef COMM_NCCL_ENGINE_H
#define COMM_NCCL_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "api.h"
#include "../reduce.h"
#include "ctrt/ctrt.h"

extern const ctrt_host *nccl_host;

/* ---- library.c ---- */

/* The functions of the library; valid after nccl_open() has succeeded. */
extern struct nccl_library nccl;
extern int nccl_version;                    /* 22809 is 2.28.9 */

/* Opens libnccl.so.2 once per process; after a failure, the next call tries again. CTRT_ERR_NOT_FOUND: no library was
 * found; CTRT_ERR_NOT_SUPPORTED: the library is older than 2.18 or lacks a function. Thread-safe. */
ctrt_status nccl_open(void);
/* The `probe` of the component (ctrt/plugin.h). */
int32_t nccl_probe(char *reason, size_t bytes);
/* Returns the status of a failed call of the NCCL function "nccl" + `what`, and sets the message. */
ctrt_status nccl_failed(const char *what, nccl_result result);
/* Reads CTRT_NCCL_CHECK, whether to compare the signatures of the ranks before each collective, and CTRT_NCCL_REGISTER,
 * whether to register the memory of ctrt_comm_empty. */
ctrt_status nccl_read_params(bool *check, bool *registers);

/* ---- link.c ---- */

/* An NCCL communicator. */
struct nccl_link {
    nccl_handle handle;                     /* NULL: not created yet, or aborted */
    int rank, world;                        /* of this rank in the NCCL communicator */
    bool finalizing;                        /* ncclCommFinalize was called */
};

/* The communicators of a failed group, and the thread that ends them. The group and the thread have a reference each.
 * Members belong to the thread from nccl_links_abort until `done`. */
struct nccl_ending {
    atomic_int refs;
    atomic_bool done;                       /* the thread has ended */
    nccl_handle revoking, revoked;          /* the communicator for the collectives, before and after ncclCommRevoke */
    nccl_handle child;                      /* ncclCommSplit and ncclCommShrink write the new communicator here, even
                                             * after this rank has ceased to wait for it */
    int count;
    nccl_handle handles[];                  /* to be aborted */
};

struct nccl_group {
    const ctrt_comm_config *config;
    int rank, world;
    pthread_mutex_t lock;                   /* guards the links; held during each NCCL call, because no call waits */
    bool aborted;                           /* no more NCCL calls */
    bool captured;                          /* a call was captured; known only if config->elastic */
    struct nccl_ending *ending;
    bool joining;                           /* create has not returned, so waits check whether all ranks could join */
    bool check, registers;                  /* CTRT_NCCL_CHECK, CTRT_NCCL_REGISTER */
    struct nccl_memory *memory;             /* memory.c: list of blocks, guarded by `lock` */
    struct nccl_link all;                   /* for the collectives */
    struct nccl_link *sends, *receives;     /* [world]: for messages to and from each rank */
    ctrt_tensor *ones;                      /* on the device, for barriers */
};

/* Seconds that the engine waits for a key of the store before it calls poll; then it waits again. */
extern const double NCCL_STORE_SECONDS;
/* Seconds of CLOCK_MONOTONIC. */
double nccl_now(void);
/* Sleeps a little longer each time, up to 1 ms. *nanoseconds: the next time; at first some microseconds. */
void nccl_pause(long *nanoseconds);
ctrt_status nccl_fail_aborted(void);
/* Creates the link's NCCL communicator. All ranks of the link call the function. Rank 0 of the link publishes NCCL's
 * unique id in the store, under the group's name and `key`. `state`: argument of config->poll. */
ctrt_status nccl_link_open(struct nccl_group *group, struct nccl_link *link, const char *key, int rank, int world,
                           void *state);
/* Publishes in the store that this rank could not join, with the thread's error message, so that the other ranks do not
 * wait for this rank. */
void nccl_publish_failure(const struct nccl_group *group);
/* Waits while an NCCL call on the link is in progress, and returns its status. `result`: what the call has returned;
 * `what`: the name of the NCCL function without "nccl", for messages. */
ctrt_status nccl_settle(struct nccl_group *group, struct nccl_link *link, const char *what, nccl_result result,
                        void *state);
/* The slot `poll_error`: returns the first asynchronous error of the links, or CTRT_OK. */
ctrt_status nccl_links_error(void *state);
/* Writes and returns the key `name` of the group. */
const char *nccl_key(char path[320], const struct nccl_group *group, const char *name);

/* ---- derive.c ---- */

/* Creates the communicator for the collectives of `child` from that of `parent`. All ranks of `parent` call the
 * function. A rank that joins no group passes NULL for `child` and NCCL_NO_COLOR for `color`. */
ctrt_status nccl_link_split(struct nccl_group *child, struct nccl_group *parent, int color);
/* Creates the communicator for the collectives of `group` from that of the failed group `parent`. ranks[group->world]:
 * the ranks that remain, as numbered in `parent`. `parent` NULL: this rank was not connected to it. *done: whether the
 * communicator was created; the same on all ranks. */
ctrt_status nccl_link_shrink(bool *done, struct nccl_group *group, struct nccl_group *parent, const int32_t *ranks);
/* Returns whether groups are shrunk by ncclCommShrink. */
bool nccl_can_shrink(const ctrt_comm_config *config);

/* ---- end.c ---- */

ctrt_status nccl_ending_new(struct nccl_ending **out, int world);
/* Drops a reference, which may be NULL. */
void nccl_ending_drop(struct nccl_ending *ending);
/* The slot `abort`: refuses further calls, and aborts or revokes the communicators. Waits up to 0.5 s for the end of
 * this; a thread does the remaining work. */
void nccl_links_abort(void *state);
/* Aborts a communicator that was revoked, and the one that is created from it. Waits up to 0.5 s, as
 * nccl_links_abort. */
void nccl_abort_revoked(struct nccl_group *group);
/* Frees the NCCL communicators. Waits up to 2 s for the other ranks to do the same, and for the end of aborts. */
void nccl_links_close(struct nccl_group *group);

/* ---- collective.c ---- */

ctrt_status nccl_run(void *state, const ctrt_comm_call *call);
/* *all: whether `own` is true on all ranks. Collective; waits. */
ctrt_status nccl_all_true(bool *all, struct nccl_group *group, bool own);

/* ---- memory.c ---- */

/* The slots `alloc` and `free`. */
ctrt_status nccl_alloc(void *state, void **address, size_t bytes);
void nccl_free(void *state, void *address);
/* Frees what nccl_free has left, after the communicators have ended. */
void nccl_memory_end(struct nccl_group *group);

#endif
