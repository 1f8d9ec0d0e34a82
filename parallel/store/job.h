/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/job.h: the job that a store belongs to, so that two jobs with one address do not train together.
 *
 * Keys in the store:
 *   ctrt-job/id        the identity of the job, set by the process that serves. ANY: any job can use the store, because
 *                      a program that is no rank serves it
 *   ctrt-job/rank/R    the process that is rank R: a random number of the process, its host and its number. Empty
 *                      after its end. Stores that do not detect the end reserve the number (store_kind.reserve) */
#ifndef PARALLEL_STORE_JOB_H
#define PARALLEL_STORE_JOB_H

#include "ctrt/comm.h"
#include "device/launcher.h"

struct job {
    char id[LAUNCHER_JOB_BYTES];
    bool unique;                        /* no other job has this identity */
    int rank;                           /* the number of this process; -1: unknown */
};

/* Reads the job that this process belongs to from CTRT_JOB, else from the variables of the launcher. */
ctrt_status job_read(struct job *out);

/* Called by the process that serves the store. `job` NULL: it is for the job of CTRT_JOB, without it for any job. */
ctrt_status store_job_serve(ctrt_store *store, const struct job *job);
/* Checks that the store belongs to the job, and claims the rank of this process. Waits up to `seconds`.
 * CTRT_ERR_STATE if it belongs to another job or another process has the rank. `replaces_server`: this process tried to
 * serve at the store's address, so the job must be one that no other job can be mistaken for. */
ctrt_status store_job_join(ctrt_store *store, const struct job *job, bool replaces_server, double seconds);
/* Gives up the rank that the store has claimed. */
void store_job_leave(ctrt_store *store);

#endif
