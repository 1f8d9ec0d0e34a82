/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/ranks/ranks.c: checks of this rank's module, and passes over this rank's rows of the batch. */
#include "ranks.h"

#include <stdio.h>

const ctrt_param ranks_failure_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_ON_FAILURE", .type = CTRT_PARAM_ENUM, .fallback = "stop",
    .words = "stop|shrink",
    .help = "what the strategy distributed does when a rank is lost: stop, or go on with the ranks that are left",
};

ctrt_status ranks_no_sync(void *self, bool on)
{
    ((struct ranks *)self)->no_sync = on;
    return CTRT_OK;
}

void ranks_init(struct ranks *r, const struct ranks_calls *calls, const ctrt_strategy_config *config)
{
    r->calls = calls;
    r->module = config->module;
    r->comm = config->comm;
    r->device = config->devices[0];
    r->rank = ctrt_comm_rank(r->comm);
    r->size = ctrt_comm_size(r->comm);
    r->canonical = config->canonical;
}

void ranks_free(struct ranks *r)
{
    ctrt_comm_release(&r->sync);
    ctrt_tensors_release(r->tensors, r->count);
    free(r->tensors);
    free(r->grads);
    free(r->before);
    free(r->leaves);
}

/* ---- the module ---- */

const char *ranks_name(const struct ranks *r, size_t index)
{
    const char *name = "";
    (void)strategy_tensor_at(&name, NULL, r->module, r->parameters, index);
    return name;
}

static ctrt_status device_check(const struct ranks *r, size_t index, const ctrt_tensor *tensor)
{
    if (ctrt_tensor_device(tensor) == r->device)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_DEVICE, "\"%s\" is on %s, but rank %d uses %s; move the module there with "
                     "ctrt_module_to", ranks_name(r, index), ctrt_device_name(ctrt_tensor_device(tensor)), r->rank,
                     ctrt_device_name(r->device));
}

ctrt_status ranks_find(struct ranks *r)
{
    ctrt_sync_layers sync;
    CTRT_TRY(strategy_tensors_list(&r->tensors, &r->parameters, &r->count, r->module));
    CTRT_TRY(ALLOCATE(r->grads, r->parameters + 2));
    CTRT_TRY(ALLOCATE(r->before, r->parameters + 1));
    CTRT_TRY(ALLOCATE(r->leaves, r->parameters));
    for (size_t i = 0; i < r->count; i++)
        if (!r->from_cpu || strcmp(ctrt_device_type(ctrt_tensor_device(r->tensors[i])), "cpu") != 0)
            CTRT_TRY(device_check(r, i, r->tensors[i]));
    CTRT_TRY(ctrt_sync_layers_find(&sync, r->module));
    r->sync_layers = sync.layers;
    return CTRT_OK;
}

ctrt_status ranks_check(struct ranks *r)
{
    ctrt_sync_layers sync;
    CTRT_TRY(ctrt_sync_layers_find(&sync, r->module));
    if (sync.layers != r->sync_layers)
        return ctrt_fail(CTRT_ERR_STATE, "the module has %d SyncBatchNorm layers, %d at ctrt_parallel_new; call it "
                         "again", (int)sync.layers, (int)r->sync_layers);
    r->sync_active = sync.training > 0;
    if (ctrt_module_parameter_count(r->module) != r->parameters
        || ctrt_module_buffer_count(r->module) != r->count - r->parameters) {
        size_t parameters, count;
        CTRT_TRY(strategy_tensors_count(&parameters, &count, r->module));
        if (parameters != r->parameters || count != r->count)
            return ctrt_fail(CTRT_ERR_STATE, "the module's tensors are not those of ctrt_parallel_new; call it again");
    }
    for (size_t i = 0; i < r->count; i++) {
        ctrt_tensor *tensor;
        CTRT_TRY(strategy_tensor_at(NULL, &tensor, r->module, r->parameters, i));
        CTRT_TRY(device_check(r, i, tensor));
        if (tensor != r->tensors[i])
            return ctrt_fail(CTRT_ERR_STATE, "\"%s\" was replaced after ctrt_parallel_new; call it again",
                             ranks_name(r, i));
    }
    return CTRT_OK;
}

ctrt_status ranks_join(struct ranks *r, ctrt_status status, const char *options)
{
    CTRT_TRY(verify_ready(r, status));
    CTRT_TRY(verify_structure(r, options));
    CTRT_TRY(verify_devices(r));
    return r->sync_layers > 0 && r->size > 1 ? ctrt_comm_split(&r->sync, r->comm, 0, r->rank) : CTRT_OK;
}

ctrt_status ranks_buffers(struct ranks *r)
{
    if (!r->broadcast_buffers || !ctrt_module_is_training(r->module))
        return CTRT_OK;
    return ctrt_context(exchange(r, EXCHANGE_BROADCAST, r->tensors + r->parameters, r->count - r->parameters, 0),
                        "buffers of rank 0");
}

void ranks_abort(struct ranks *r, ctrt_comm *const *comms, int count, const char *message)
{
    if (ctrt_comm_error(r->comm) == CTRT_OK)
        ctrt_comm_abort(r->comm, message);
    if (r->sync != NULL && ctrt_comm_error(r->sync) == CTRT_OK)
        ctrt_comm_abort(r->sync, message);
    for (int i = 0; i < count; i++)
        if (comms[i] != NULL && ctrt_comm_error(comms[i]) == CTRT_OK)
            ctrt_comm_abort(comms[i], message);
    ctrt_sync_layers_abort(r->module, message);
}

ctrt_status ranks_fail_all(struct ranks *r, ctrt_status status)
{
    char message[1024];
    if (status == CTRT_OK)
        return CTRT_OK;
    snprintf(message, sizeof message, "%s", ctrt_error_message());
    r->calls->give_up(r, status, message);
    return ctrt_fail(status, "%s", message);
}

/* ---- the state of a pass ---- */

void ranks_pass_end(struct ranks *r)
{
    STATE_SET(MACHINE_PASS, r->pass, PASS_IDLE);
}

void ranks_pass_begin(struct ranks *r, enum pass_kind kind)
{
    ranks_pass_end(r);
    STATE_SET(MACHINE_PASS, r->pass, PASS_FORWARD);
    r->kind = kind;
}

/* ---- passes ---- */

int64_t ranks_rows(ctrt_tensor *const *inputs)
{
    return ctrt_tensor_ndim(inputs[0]) > 0 ? ctrt_tensor_size(inputs[0], 0) : 1;
}

ctrt_status ranks_forward(struct ranks *r, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    if (r->canonical > 0)
        return strategy_forward(y, r->module, r->device, inputs, count, r->canonical, r->distinct);
    const int64_t rows = ranks_rows(inputs);
    ctrt_batch_ranks ranks = { r->sync, rows > 0 ? (double)rows : 1 };
    ctrt_swap_batch_ranks(&ranks);
    const ctrt_status status = ctrt_shard_forward(y, r->module, r->device, inputs, count, 0, -1);
    ctrt_swap_batch_ranks(&ranks);
    return status;
}

/* The loss of a rank without rows: a sum over no elements that depends on the output, so that the backward pass
 * runs. */
static ctrt_status empty_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                              void *user)
{
    (void)inputs, (void)count, (void)user;
    return ctrt_sum(loss, output, CTRT_ALL_DIMS);
}

struct own_part {
    struct ranks *r;
    int64_t rows;
};

static ctrt_status part_ready(void *user, const ctrt_loss_part *part, double *factor)
{
    struct own_part *own = user;
    ctrt_no_grad {
        CTRT_TRY(weights_part(&own->r->weights, part, own->rows, own->r->sync_active, factor));
        CTRT_TRY(own->r->calls->loss_known(own->r));
    }
    return CTRT_OK;
}

ctrt_status ranks_backward(struct ranks *r, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct own_part ours = { r, batch->rows };
    ctrt_strategy_batch own = *batch;
    ctrt_loss_part part = { .parts = 0 };
    double none = 1;
    own.partial = batch->partial != 0 || r->weights.steps > 0;
    if (batch->rows == 0 && !r->sync_active)
        return part_ready(&ours, NULL, &none);
    if (batch->rows == 0)
        own.loss = empty_loss;
    ctrt_batch_ranks ranks = { r->sync, weights_rows(&r->weights, batch->rows) };
    ctrt_swap_batch_ranks(&ranks);
    const ctrt_status status = ctrt_part_backward(loss, &part, r->module, r->device, &own, 0, batch->rows, 1,
                                                  part_ready, &ours);
    ctrt_swap_batch_ranks(&ranks);
    ctrt_loss_part_release(&part);
    if (batch->rows == 0)
        ctrt_tensor_release(loss);
    return status;
}
