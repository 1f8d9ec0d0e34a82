/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/ranks/ranks.c: checks of this rank's module, and passes over this rank's rows of the batch. */
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const ctrt_param ranks_failure_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_ON_FAILURE", .type = CTRT_PARAM_ENUM, .fallback = "stop",
    .words = "stop|shrink",
    .help = "what the strategy distributed does when a rank is lost: stop, or go on with the ranks that are left",
};

const ctrt_host *ranks_host;

ctrt_status ranks_register(const ctrt_host *host, const ctrt_param *const *params)
{
    ctrt_param_value value;
    for (ranks_host = host; *params != NULL; params++)
        CTRT_TRY(host->param(&value, *params));
    return CTRT_OK;
}

ctrt_status ranks_no_sync(void *self, bool on)
{
    ((struct ranks *)self)->no_sync = on;
    return CTRT_OK;
}

void ranks_init(struct ranks *r, const ctrt_strategy_config *config)
{
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
}

/* ---- the module ---- */

ctrt_status ranks_tensor(const char **name, ctrt_tensor **tensor, const struct ranks *r, size_t index)
{
    return index < r->parameters ? ctrt_module_parameter(name, tensor, r->module, index)
                                 : ctrt_module_buffer(name, tensor, r->module, index - r->parameters);
}

const char *ranks_name(const struct ranks *r, size_t parameter)
{
    const char *name = "";
    (void)ctrt_module_parameter(&name, NULL, r->module, parameter);
    return name;
}

ctrt_status ranks_stream(ctrt_stream **stream, const struct ranks *r)
{
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    CTRT_TRY(ctrt_device_get_properties(&properties, ctrt_device_name(r->device)));
    return properties.asynchronous ? ctrt_stream_new(stream, r->device, 0) : CTRT_OK;
}

static ctrt_status device_check(const struct ranks *r, const char *name, const ctrt_tensor *tensor)
{
    if (ctrt_tensor_device(tensor) == r->device)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_DEVICE, "\"%s\" is on %s, but rank %d uses %s; move the module there with "
                     "ctrt_module_to", name, ctrt_device_name(ctrt_tensor_device(tensor)), r->rank,
                     ctrt_device_name(r->device));
}

/* Builds the module's lists of tensors. The functions that count tensors return 0 if that fails; this one returns the
 * error. */
static ctrt_status tensors_list(ctrt_module *module)
{
    ctrt_status status = ctrt_module_parameter(NULL, NULL, module, 0);
    if (status == CTRT_OK || status == CTRT_ERR_NOT_FOUND)
        status = ctrt_module_buffer(NULL, NULL, module, 0);
    return status == CTRT_ERR_NOT_FOUND ? CTRT_OK : status;
}

ctrt_status ranks_find(struct ranks *r)
{
    ctrt_sync_layers sync;
    CTRT_TRY(tensors_list(r->module));
    r->parameters = ctrt_module_parameter_count(r->module);
    const size_t count = r->parameters + ctrt_module_buffer_count(r->module);
    CTRT_TRY(ALLOCATE(r->tensors, count + 1));
    CTRT_TRY(ALLOCATE(r->grads, r->parameters + 2));
    CTRT_TRY(ALLOCATE(r->before, r->parameters + 1));
    for (size_t i = 0; i < count; i++) {
        const char *name;
        ctrt_tensor *tensor;
        CTRT_TRY(ranks_tensor(&name, &tensor, r, i));
        if (!r->from_cpu || strcmp(ctrt_device_type(ctrt_tensor_device(tensor)), "cpu") != 0)
            CTRT_TRY(device_check(r, name, tensor));
        r->tensors[i] = ctrt_tensor_retain(tensor);
        r->count = i + 1;
    }
    CTRT_TRY(ctrt_sync_layers_find(&sync, r->module));
    r->sync_layers = sync.layers;
    return CTRT_OK;
}

static bool same_counts(const struct ranks *r)
{
    return ctrt_module_parameter_count(r->module) == r->parameters
           && ctrt_module_buffer_count(r->module) == r->count - r->parameters;
}

ctrt_status ranks_check(struct ranks *r)
{
    ctrt_sync_layers sync;
    CTRT_TRY(ctrt_sync_layers_find(&sync, r->module));
    if (sync.layers != r->sync_layers)
        return ctrt_fail(CTRT_ERR_STATE, "the module has %d SyncBatchNorm layers, %d at ctrt_parallel_new; call it "
                         "again", (int)sync.layers, (int)r->sync_layers);
    r->sync_active = sync.training > 0;
    if (!same_counts(r)) {
        CTRT_TRY(tensors_list(r->module));
        if (!same_counts(r))
            return ctrt_fail(CTRT_ERR_STATE, "the module's tensors are not those of ctrt_parallel_new; call it again");
    }
    for (size_t i = 0; i < r->count; i++) {
        const char *name;
        ctrt_tensor *tensor;
        CTRT_TRY(ranks_tensor(&name, &tensor, r, i));
        CTRT_TRY(device_check(r, name, tensor));
        if (tensor != r->tensors[i])
            return ctrt_fail(CTRT_ERR_STATE, "\"%s\" was replaced after ctrt_parallel_new; call it again", name);
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

ctrt_status ranks_gradient_arrives(struct ranks *r, size_t parameter, bool arrived, const char *advice)
{
    const char *why = arrived ? "twice after one forward pass"
                      : r->pass == PASS_IDLE || r->kind == EVALUATION
                          ? "without a forward pass of the strategy before, so it would not be reduced"
                      : r->pass == PASS_FORWARD ? "before the forward pass has ended" : NULL;
    if (why != NULL)
        return ctrt_fail(CTRT_ERR_STATE, "the gradient of \"%s\" was computed %s; %s", ranks_name(r, parameter), why,
                         advice);
    if (r->pass == PASS_TURN)
        STATE_SET(MACHINE_PASS, r->pass, PASS_BACKWARD);
    return CTRT_OK;
}

/* ---- missing gradients ---- */

#define MOST_NAMES 8

bool missing_possible(const struct ranks *r)
{
    return r->kind == PROGRAM && r->pass == PASS_BACKWARD;
}

void missing_add(struct missing *missing, const struct ranks *r, size_t parameter)
{
    const size_t room = sizeof missing->names - missing->length;
    if (missing->count++ >= MOST_NAMES || room <= 1)
        return;
    const int written = snprintf(missing->names + missing->length, room, "%s\"%s\"", missing->count > 1 ? ", " : "",
                                 ranks_name(r, parameter));
    missing->length += (size_t)written < room ? (size_t)written : room - 1;
}

ctrt_status missing_check(const struct missing *missing)
{
    if (missing->count == 0)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the backward pass computed no gradient of %zu parameters: %s%s, so the gradients "
                     "are not reduced; use ctrt_parallel_step, or freeze parameters that the loss does not depend on",
                     missing->count, missing->names, missing->count > MOST_NAMES ? ", ..." : "");
}

/* ---- passes ---- */

int64_t ranks_rows(ctrt_tensor *const *inputs)
{
    return ctrt_tensor_ndim(inputs[0]) > 0 ? ctrt_tensor_size(inputs[0], 0) : 1;
}

ctrt_status ranks_forward(struct ranks *r, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    if (r->canonical > 0)
        return canonical_forward(r, y, inputs, count);
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
    struct weights *weights;
    int64_t rows;
    ctrt_status (*ready)(void *user);
    void *user;
};

static ctrt_status part_ready(void *user, const ctrt_loss_part *part, double *factor)
{
    const struct own_part *own = user;
    ctrt_status status;
    ctrt_no_grad {
        status = weights_part(own->weights, part, own->rows, own->r->sync_active, factor);
        if (status == CTRT_OK)
            status = own->ready(own->user);
    }
    return status;
}

ctrt_status ranks_backward(struct ranks *r, ctrt_tensor **loss, const ctrt_strategy_batch *batch,
                           struct weights *weights, ctrt_status (*ready)(void *user), void *user)
{
    struct own_part ours = { r, weights, batch->rows, ready, user };
    ctrt_strategy_batch own = *batch;
    ctrt_loss_part part = { .parts = 0 };
    double none = 1;
    own.partial = batch->partial != 0 || weights->steps > 0;
    if (batch->rows == 0 && !r->sync_active)
        return part_ready(&ours, NULL, &none);
    if (batch->rows == 0)
        own.loss = empty_loss;
    ctrt_batch_ranks ranks = { r->sync, weights_rows(weights, batch->rows) };
    ctrt_swap_batch_ranks(&ranks);
    const ctrt_status status = ctrt_part_backward(loss, &part, r->module, r->device, &own, 0, batch->rows, 1,
                                                  part_ready, &ours);
    ctrt_swap_batch_ranks(&ranks);
    ctrt_loss_part_release(&part);
    if (batch->rows == 0)
        ctrt_tensor_release(loss);
    return status;
}
