/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/survive.c: continues training after ranks are lost, and admits ranks between steps
 * (CTRT_ON_FAILURE=shrink).
 *
 * A step that fails because of another rank changes nothing: gradients, buffers and counters are as before. The
 * remaining ranks form a new group (ctrt_comm_shrink) and copy the state of the rank that has completed the most
 * steps, the lowest one of several (share.c). Each rank then repeats the step with its own rows.
 *
 * When a step fails, each remaining rank is in a call of ctrt_parallel_step or makes one later, and has done all
 * optimizer steps before this call. Some ranks may have completed the step in which others have failed, so they are
 * one step ahead. Ranks that are behind get the state after this step, and their call returns without gradients, so
 * that the optimizer step after the call changes nothing. In the next call all ranks are in the same step again. */
#include <stdio.h>

#include "distributed.h"

/* The most new groups in one call that have the same size as before. After that the failure has another cause than a
 * lost rank, and is returned. */
enum { MOST_VAIN = 3 };

ctrt_status survive_begin(struct distributed *d, const ctrt_strategy_config *config)
{
    struct survive *s = &d->survive;
    ctrt_param_value value;
    ctrt_sync_layers sync;
    CTRT_TRY(strategy_host->param(&value, &ranks_failure_param));
    if (value.integer == 0 || !CTRT_SLOT(config, net))
        return CTRT_OK;
    if (d->r.canonical > 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "CTRT_ON_FAILURE=shrink: canonical mode needs whole shards on each "
                         "rank, which a step with fewer ranks does not have; unset one of the two");
    CTRT_TRY(ctrt_sync_layers_find(&sync, d->r.module));
    if (sync.own > 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "CTRT_ON_FAILURE=shrink: %d SyncBatchNorm layers have a communicator "
                         "of the program, which the strategy cannot replace; create them with NULL", (int)sync.own);
    CTRT_TRY(ALLOCATE(s->used, d->r.parameters + 1));
    CTRT_TRY(ALLOCATE(s->buffers, d->r.count + 1));
    s->set_comm = config->set_comm;
    s->net = config->net;
    s->loss_dtype = CTRT_F32;
    s->on = true;
    /* -1: this rank has joined, so it needs the state of the other ranks. In a new group all ranks begin at 0. */
    if (ctrt_comm_epoch(d->r.comm) > 0 && ctrt_comm_previous_rank(d->r.comm, d->r.rank) < 0)
        d->steps = -1;
    return CTRT_OK;
}

static void buffers_release(struct distributed *d)
{
    struct survive *s = &d->survive;
    for (size_t i = 0; s->buffers != NULL && d->r.parameters + i < d->r.count; i++)
        ctrt_tensor_release(&s->buffers[i]);
}

void survive_end(struct distributed *d)
{
    struct survive *s = &d->survive;
    buffers_release(d);
    for (int i = 0; i < MOST_OPTIMIZERS; i++)
        image_free(&s->pending[i]);
    ctrt_tensor_release(&s->weights.sum);
    free(s->buffers);
    free(s->used);
    s->buffers = NULL;
    s->used = NULL;
}

/* ---- optimizers ---- */

static ctrt_status optimizer_begin(struct distributed *d, ctrt_optimizer *optimizer)
{
    struct survive *s = &d->survive;
    int i = 0;
    while (i < MOST_OPTIMIZERS && s->optimizers[i] != NULL && s->optimizers[i] != optimizer)
        i++;
    if (i == MOST_OPTIMIZERS)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "CTRT_ON_FAILURE=shrink: more than %d optimizers", MOST_OPTIMIZERS);
    s->optimizers[i] = optimizer;
    if (s->pending[i] == NULL)
        return CTRT_OK;
    const ctrt_status status = image_apply(s->pending[i], optimizer);
    image_free(&s->pending[i]);
    return status;
}

static void optimizer_forget(struct survive *s, const ctrt_optimizer *optimizer)
{
    int i = 0;
    while (i < MOST_OPTIMIZERS && s->optimizers[i] != optimizer)
        i++;
    if (i == MOST_OPTIMIZERS || optimizer == NULL)
        return;
    image_free(&s->pending[i]);
    for (; i + 1 < MOST_OPTIMIZERS; i++) {
        s->optimizers[i] = s->optimizers[i + 1];
        s->pending[i] = s->pending[i + 1];
    }
    s->optimizers[i] = NULL;
    s->pending[i] = NULL;
}

ctrt_status survive_event(struct distributed *d, ctrt_module_event event, ctrt_optimizer *optimizer)
{
    if (!d->survive.on)
        return CTRT_OK;
    if (event == CTRT_MODULE_STEP_BEGIN)
        return optimizer_begin(d, optimizer);
    if (event == CTRT_MODULE_STEP_END)
        d->survive.optimizer_steps++;
    if (event == CTRT_MODULE_OPTIMIZER_END)
        optimizer_forget(&d->survive, optimizer);
    return CTRT_OK;
}

/* ---- the state from before a step ---- */

static ctrt_status buffers_copy(struct distributed *d, bool save)
{
    struct survive *s = &d->survive;
    for (size_t i = 0; d->r.parameters + i < d->r.count; i++) {
        ctrt_tensor *buffer = d->r.tensors[d->r.parameters + i];
        if (save)
            CTRT_TRY(ctrt_clone(&s->buffers[i], buffer));
        else if (s->buffers[i] != NULL)
            CTRT_TRY(ctrt_copy_(buffer, s->buffers[i]));
    }
    return CTRT_OK;
}

static ctrt_status save(struct distributed *d)
{
    struct survive *s = &d->survive;
    s->own = s->skipped = s->joining_now = false;
    s->completed = d->steps;
    ctrt_tensor *sum = s->weights.sum;
    s->weights = d->r.weights;
    s->weights.sum = sum;
    for (size_t i = 0; i < d->r.leaf_count; i++)
        s->used[i] = d->slots[i].leaf.used;
    ctrt_no_grad {
        CTRT_TRY(buffers_copy(d, true));
        CTRT_TRY(ctrt_clone(&s->weights.sum, d->r.weights.sum));
    }
    return CTRT_OK;
}

/* Clears the errors that collectives have left on the streams on which they were enqueued. */
static ctrt_status streams_reset(const struct distributed *d)
{
    CTRT_AUTO(stream) current = NULL;
    if (d->r.stream == NULL)
        return CTRT_OK;
    CTRT_TRY(ctrt_stream_current(&current, d->r.device));
    CTRT_TRY(ctrt_stream_reset(d->r.stream));
    return ctrt_stream_reset(current);      /* it gets the error of d->r.stream if it has waited for d->r.stream */
}

static void restore_counters(struct distributed *d)
{
    struct survive *s = &d->survive;
    ranks_pass_end(&d->r);
    d->steps = s->completed;
    ctrt_tensor *sum = d->r.weights.sum;
    d->r.weights = s->weights;                /* of the step there is nothing, neither now nor then */
    d->r.weights.sum = sum;
    for (size_t i = 0; i < d->r.leaf_count; i++)
        d->slots[i].leaf.used = s->used[i];
}

static ctrt_status restore_buffers(struct distributed *d)
{
    ctrt_no_grad {
        CTRT_TRY(buffers_copy(d, false));
        if (d->survive.weights.sum != NULL)
            CTRT_TRY(ctrt_copy_(d->r.weights.sum, d->survive.weights.sum));
    }
    return CTRT_OK;
}

/* ---- new groups ---- */

/* Returns whether `status` is a failure of another rank, after which this rank can form a new group. */
static bool others_failed(struct distributed *d, ctrt_status status)
{
    return status == CTRT_ERR_COMM && !d->survive.own
           && (ctrt_comm_error(d->r.comm) == CTRT_ERR_COMM
               || (d->r.sync != NULL && ctrt_comm_error(d->r.sync) == CTRT_ERR_COMM));
}

/* Replaces the group by that of the remaining ranks. The buckets are still in memory of the old group; distributed_meet
 * allocates them again. */
static void next_group(struct distributed *d, ctrt_comm *next)
{
    ctrt_comm_release(&d->r.sync);
    d->survive.set_comm(d->survive.net, next);
    d->r.comm = next;
    d->r.rank = ctrt_comm_rank(next);
    d->r.size = ctrt_comm_size(next);
    d->survive.own = false;
}

/* Makes this rank ready for the new group. */
static ctrt_status group_prepare(struct distributed *d)
{
    CTRT_TRY(streams_reset(d));             /* after ctrt_comm_shrink has reset the streams of the collectives */
    CTRT_TRY(restore_buffers(d));
    if (d->powersgd == NULL)
        return CTRT_OK;
    hook_free(d);                           /* its errors belong to the ranks and buckets of the old group */
    return hook_choose(d);
}

/* Prepares the strategy for the new group. If a rank fails in doing so, aborts the communicator, because other ranks
 * may wait; the ranks that have not failed form another group then. */
static ctrt_status meet(struct distributed *d)
{
    char message[1024];
    d->r.refused = -1;
    ctrt_status status = distributed_meet(d, group_prepare(d));
    if (status == CTRT_OK || others_failed(d, status))
        return status;
    snprintf(message, sizeof message, "%s", ctrt_error_message());
    if (ctrt_comm_error(d->r.comm) == CTRT_OK)
        ctrt_comm_abort(d->r.comm, message);
    d->survive.own = d->r.refused < 0 || d->r.refused == d->r.rank;
    return ctrt_fail(d->survive.own ? status : CTRT_ERR_COMM, "%s", message);
}

/* Forms a new group of the remaining ranks and those that wait to join, again if a rank is lost meanwhile. */
static ctrt_status rebuild(struct distributed *d)
{
    const int before = ctrt_comm_epoch(d->r.comm);
    int size = d->r.size;
    ctrt_status status;
    for (int vain = 0;;) {
        CTRT_AUTO(comm) next = NULL;
        CTRT_TRY(ctrt_comm_shrink(&next, d->r.comm));
        next_group(d, next);
        vain = d->r.size == size ? vain + 1 : 0;
        size = d->r.size;
        status = meet(d);
        if (status == CTRT_OK || !others_failed(d, status) || vain == MOST_VAIN)
            break;
    }
    if (status == CTRT_OK && d->r.rank == 0)
        strategy_host->log(CTRT_LOG_INFO, "distributed", "epoch %d of the group, %d before: %d ranks go on after step "
                        "%lld", ctrt_comm_epoch(d->r.comm), before, d->r.size, (long long)d->steps);
    return status;
}

ctrt_status survive_rebuild(struct distributed *d, ctrt_status status)
{
    char message[1024];
    if (!others_failed(d, status))
        return status;
    snprintf(message, sizeof message, "%s", ctrt_error_message());
    status = rebuild(d);
    if (status == CTRT_OK)
        return CTRT_OK;
    char why[1024];
    snprintf(why, sizeof why, "%s", ctrt_error_message());
    return ctrt_fail(status, "%s; and this rank cannot go on (CTRT_ON_FAILURE=shrink): %s", message, why);
}

/* ---- steps ---- */

ctrt_status survive_settle(struct distributed *d, ctrt_tensor *mean)
{
    struct survive *s = &d->survive;
    double totals[WEIGHTS_TOTALS] = { 0 };
    if (d->r.stream != NULL)
        CTRT_TRY(ctrt_device_synchronize(d->r.device));
    CTRT_TRY(ctrt_comm_error(d->r.comm));
    CTRT_TRY(ctrt_to_host(totals, sizeof totals, d->r.weights.totals, CTRT_F64));
    s->joining_now = totals[WEIGHTS_JOINING] > 0;
    s->loss_dtype = ctrt_tensor_dtype(mean);
    return ctrt_item(&s->loss_now, mean);
}

/* Forms a new group if ranks wait to join. The reduction of the last step has told all ranks whether any wait. */
static ctrt_status admit(struct distributed *d)
{
    int joining = 0;
    if (d->r.size == 1 && ctrt_comm_joining(&joining, d->r.comm) != CTRT_OK)
        joining = 0;
    if (!d->survive.joining && joining == 0)
        return CTRT_OK;
    d->survive.joining = false;
    return rebuild(d);
}

/* Ends a step whose result this rank has got from another rank. */
static ctrt_status skipped(struct distributed *d, ctrt_tensor **loss)
{
    struct survive *s = &d->survive;
    weights_reset(&d->r.weights);
    leaves_unused(&d->r);
    return ctrt_full(loss, CTRT_SCALAR_SHAPE, ctrt_float(s->loss), s->loss_dtype, d->r.device);
}

static ctrt_status completed(struct distributed *d)
{
    struct survive *s = &d->survive;
    d->steps = s->completed + 1;
    s->joining = s->joining_now;
    s->loss = s->loss_now;
    buffers_release(d);
    return CTRT_OK;
}

ctrt_status survive_step(struct distributed *d, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct survive *s = &d->survive;
    if (ctrt_capture_running(d->r.device))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "CTRT_ON_FAILURE=shrink: a capture is running on %s, but replays "
                         "cannot be repeated by the ranks that are left", ctrt_device_name(d->r.device));
    if (d->r.no_sync)
        return step_once(d, loss, batch);
    char message[1024] = "";
    CTRT_TRY(save(d));
    ctrt_status status = admit(d);
    for (int vain = 0; status == CTRT_OK && vain <= MOST_VAIN; vain++) {
        if (s->skipped)
            return skipped(d, loss);
        CTRT_TRY(save(d));
        status = step_once(d, loss, batch);
        if (status == CTRT_OK && d->r.size == 1)
            status = ctrt_item(&s->loss_now, *loss);
        if (status == CTRT_OK)
            return completed(d);
        ctrt_tensor_release(loss);
        snprintf(message, sizeof message, "%s", ctrt_error_message());
        restore_counters(d);
        const bool others = others_failed(d, status);
        if (!others && restore_buffers(d) != CTRT_OK)
            snprintf(message, sizeof message, "the buffers of before the step are lost: %s", ctrt_error_message());
        (void)ctrt_fail(status, "%s", message);
        if (!others)
            return status;
        const int size = d->r.size;
        status = survive_rebuild(d, status);
        vain = d->r.size == size ? vain : -1;
    }
    return status != CTRT_OK ? status : ctrt_fail(CTRT_ERR_COMM, "CTRT_ON_FAILURE=shrink: the step failed %d times "
                                                  "although no rank was lost; the last time: %s", MOST_VAIN + 1,
                                                  message);
}

ctrt_status survive_barrier(struct distributed *d)
{
    ctrt_status status;
    d->survive.own = false;
    CTRT_TRY(save(d));
    while (others_failed(d, status = ctrt_comm_barrier(d->r.comm)))
        CTRT_TRY(survive_rebuild(d, status));
    return status;
}
