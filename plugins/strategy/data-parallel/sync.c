/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/data-parallel/sync.c: SyncBatchNorm layers, whose replicas exchange statistics while they run.
 *
 * The replicas' threads are the ranks of a communicator. A replica that fails aborts it, because the others wait for
 * that replica in their layers; the next step creates another one. */
#include <pthread.h>
#include <stdio.h>

#include "data_parallel.h"

void sync_free(struct data_parallel *dp)
{
    for (int r = 0; r < dp->comm_count; r++)
        ctrt_comm_release(&dp->comms[r]);
    free(dp->comms);
    dp->comms = NULL;
    dp->comm_count = 0;
}

/* Creates the communicator for `count` replicas, if it is not there already. */
static ctrt_status comms_make(struct data_parallel *dp, int count)
{
    const ctrt_comm_options options = { .size = sizeof options, .name = "replicas" };
    if (dp->comm_count == count)
        return CTRT_OK;
    sync_free(dp);
    CTRT_TRY(ALLOCATE(dp->comms, (size_t)count));
    ctrt_status status = ctrt_comm_new_local(dp->comms, dp->devices, count, &options);
    if (status == CTRT_OK)
        dp->comm_count = count;
    else
        sync_free(dp);
    return status;
}

/* *needed: whether replicas have to meet. */
static ctrt_status prepare(bool *needed, struct data_parallel *dp, int count)
{
    ctrt_sync_layers sync = { .training = 0 };
    CTRT_TRY(ctrt_sync_layers_find(&sync, dp->module));
    *needed = count > 1 && sync.training > 0;
    if (!*needed)
        return CTRT_OK;
    if (sync.own > 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "a SyncBatchNorm has a communicator of the program, which the "
                         "replicas cannot share; create it with NULL");
    CTRT_TRY(ctrt_context(workers_require(dp->workers, count), "SyncBatchNorm"));
    return ctrt_context(comms_make(dp, count), "SyncBatchNorm");
}

ctrt_status sync_refuse_recorded(const struct data_parallel *dp)
{
    ctrt_sync_layers sync = { .training = 0 };
    CTRT_TRY(ctrt_sync_layers_find(&sync, dp->module));
    if (sync.training == 0)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the replicas' SyncBatchNorm layers have to run at the same time, but "
                     "ctrt_backward runs them in one thread; use ctrt_parallel_step, or ctrt_no_grad");
}

struct task {
    struct data_parallel *dp;
    ctrt_status (*function)(void *user, int index);
    void *user;
};

/* The function has ended its thread. */
static void thread_ended(void *comm)
{
    ctrt_comm_abort(comm, "the function of a replica ended its thread");
}

static ctrt_status task_run(void *user, int index)
{
    const struct task *task = user;
    ctrt_comm *comm = task->dp->comms[index];
    char message[512];
    ctrt_status status;
    ctrt_batch_ranks ranks = { comm, 1 };
    ctrt_swap_batch_ranks(&ranks);
    pthread_cleanup_push(thread_ended, comm);
    status = task->function(task->user, index);
    pthread_cleanup_pop(0);
    ctrt_swap_batch_ranks(&ranks);
    if (status == CTRT_OK)
        return CTRT_OK;
    snprintf(message, sizeof message, "%s", ctrt_error_message());
    if (ctrt_comm_error(comm) == CTRT_OK)
        ctrt_comm_abort(comm, message);
    return ctrt_fail(status, "%s", message);
}

ctrt_status replicas_run(struct data_parallel *dp, ctrt_status (*function)(void *user, int index), void *user,
                         int count)
{
    bool needed = false;
    struct task task = { dp, function, user };
    CTRT_TRY(prepare(&needed, dp, count));
    if (!needed)
        return workers_run(dp->workers, function, user, count);
    ctrt_status status = workers_run(dp->workers, task_run, &task, count);
    if (status != CTRT_OK)
        sync_free(dp);
    return status;
}
