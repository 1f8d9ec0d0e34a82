/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/job.h: the job to which a store belongs, so that two jobs with the same address do not train together.
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

/* Called by the process that serves the store. `job` NULL: the store is for the job of CTRT_JOB or, if that is not set,
 * for any job. */
ctrt_status store_job_serve(ctrt_store *store, const struct job *job);
/* Checks that the store belongs to the job, and claims the rank of this process. Waits up to `seconds`.
 * CTRT_ERR_STATE if the store belongs to another job, or if another process has the rank. `replaces_server`: this
 * process could not serve at the store's address itself. Then an equal identity is accepted only if job->unique is
 * set. */
ctrt_status store_job_join(ctrt_store *store, const struct job *job, bool replaces_server, double seconds);
/* Releases the rank that store_job_join or store_job_serve has claimed. */
void store_job_leave(ctrt_store *store);

#endif
