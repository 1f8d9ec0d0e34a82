/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/nccl/engine.h: the engine `nccl`: ranks are threads or processes with one CUDA device each, which NCCL
 * connects.
 *
 *   engine.c      the engine's table: joining, leaving and aborting groups
 *   library.c     finds libnccl.so.2; messages about its errors
 *   link.c        communicators of NCCL: creating them, waiting for them, ending them
 *   collective.c  the collectives and messages
 *
 * Calls are enqueued on the calling thread's current stream. The communicators of NCCL are non-blocking
 * (ncclConfig_t.blocking 0): a call of NCCL returns at once, and the engine asks for its state until it is complete, so
 * that every wait has a time limit and ends with ncclCommAbort.
 *
 * A group has one communicator of NCCL for its collectives. NCCL runs the calls of a communicator in order, but sends,
 * receives and collectives of a group of ctrt do not wait for each other. So messages from one rank to another have a
 * communicator of their own, with these two ranks, which both create at the first message. */
#ifndef COMM_NCCL_ENGINE_H
#define COMM_NCCL_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "api.h"
#include "ctrt/comm_plugin.h"
#include "ctrt/ctrt.h"

extern const ctrt_host *nccl_host;

/* ---- library.c ---- */

/* The functions of the library; valid after nccl_open() has succeeded. */
extern struct nccl_library nccl;
extern int nccl_version;                    /* 22809 is 2.28.9 */

/* Opens libnccl.so.2, once per process. Later calls return the same result, except after a failure, after which the
 * next call tries again. CTRT_ERR_NOT_FOUND: there is none; CTRT_ERR_NOT_SUPPORTED: it is older than 2.18.
 * Thread-safe. */
ctrt_status nccl_open(void);
int32_t nccl_probe(char *reason, size_t bytes);
/* Returns a status for a failed call of the function ncclWHAT, with a message. */
ctrt_status nccl_failed(const char *what, nccl_result result);
/* CTRT_NCCL_CHECK: compare the signatures of the ranks before each collective. */
ctrt_status nccl_reads_check(bool *check);

/* ---- link.c ---- */

/* A communicator of NCCL. */
struct nccl_link {
    nccl_handle handle;                     /* NULL: it does not exist, or was aborted */
    int rank, world;                        /* this rank's number in it */
    bool finalizing;
};

struct nccl_group {
    const ctrt_comm_config *config;
    int rank, world;
    pthread_mutex_t lock;                   /* held during each call of NCCL, none of which waits; guards the links */
    bool aborted;                           /* no more calls */
    struct nccl_aborts *aborts;             /* link.c; NULL before */
    bool joining;                           /* create has not returned: waits look for ranks that could not join */
    bool check;
    struct nccl_link all;                   /* of the collectives */
    struct nccl_link *sends, *receives;     /* [world]: of messages to and from each rank */
    ctrt_tensor *ones;                      /* on the device, for barriers */
};

/* Creates the link's communicator. All its ranks call it. `key`: of the store, below the group's name; rank 0 of the
 * link publishes NCCL's unique id there. `state`: argument of config->poll. */
ctrt_status nccl_link_open(struct nccl_group *group, struct nccl_link *link, const char *key, int rank, int world,
                           void *state);
/* Publishes that this rank could not join, with the thread's message, so that the others do not wait for it. */
void nccl_publish_failure(const struct nccl_group *group);
/* Returns the outcome of a call `what` of NCCL on the link that returned `result`: waits while it is in progress. */
ctrt_status nccl_settle(struct nccl_group *group, struct nccl_link *link, const char *what, nccl_result result,
                        void *state);
/* Returns the asynchronous error of one of the links. */
ctrt_status nccl_links_error(struct nccl_group *group);
/* Aborts the communicators in the background, and allows no more calls. */
void nccl_links_abort(struct nccl_group *group);
/* Frees the communicators. Waits for a short time for the other ranks to do the same, and for the end of aborts. */
void nccl_links_close(struct nccl_group *group);

/* ---- collective.c ---- */

ctrt_status nccl_run(void *state, const ctrt_comm_call *call);

#endif
