/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/distributed.c: the table of the strategy: creation, forward passes, steps. */
#include "distributed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const ctrt_param bucket_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_DISTRIBUTED_BUCKET", .type = CTRT_PARAM_BYTES, .fallback = "25m",
    .help = "distributed: bytes of gradients that are reduced together",
};
static const ctrt_param buffers_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_DISTRIBUTED_BUFFERS", .type = CTRT_PARAM_BOOL, .fallback = "yes",
    .help = "distributed: each step in training begins with rank 0's buffers",
};
static const ctrt_param audit_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_AUDIT", .type = CTRT_PARAM_INT, .fallback = "0",
    .help = "distributed: compare the parameters of all ranks every so many steps (0: never)",
};
static const ctrt_host *host;

ctrt_status no_memory(void)
{
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "out of host memory");
}

/* ---- the module ---- */

static ctrt_status tensor_find(const char **name, ctrt_tensor **tensor, const struct distributed *d, size_t i)
{
    return i < d->parameters ? ctrt_module_parameter(name, tensor, d->module, i)
                             : ctrt_module_buffer(name, tensor, d->module, i - d->parameters);
}

static ctrt_status device_check(const struct distributed *d, const char *name, const ctrt_tensor *tensor)
{
    if (ctrt_tensor_device(tensor) == d->device)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_DEVICE, "\"%s\" is on %s, but rank %d uses %s; move the module there with "
                     "ctrt_module_to", name, ctrt_device_name(ctrt_tensor_device(tensor)), d->rank,
                     ctrt_device_name(d->device));
}

static ctrt_status tensors_find(struct distributed *d)
{
    d->parameters = ctrt_module_parameter_count(d->module);
    const size_t count = d->parameters + ctrt_module_buffer_count(d->module);
    d->tensors = calloc(count + 1, sizeof *d->tensors);
    d->grads = calloc(d->parameters + 1, sizeof *d->grads);
    d->before = calloc(d->parameters + 1, sizeof *d->before);
    if (d->tensors == NULL || d->grads == NULL || d->before == NULL)
        return no_memory();
    for (size_t i = 0; i < count; i++) {
        const char *name;
        ctrt_tensor *tensor;
        CTRT_TRY(tensor_find(&name, &tensor, d, i));
        CTRT_TRY(device_check(d, name, tensor));
        d->tensors[i] = ctrt_tensor_retain(tensor);
        d->count = i + 1;
    }
    return CTRT_OK;
}

/* The tensors must be those of the creation, because all ranks have agreed on their buckets. */
static ctrt_status module_check(struct distributed *d)
{
    ctrt_sync_layers sync;
    size_t slot = 0;
    CTRT_TRY(ctrt_sync_layers_find(&sync, d->module));
    if (sync.layers != d->sync_layers)
        return ctrt_fail(CTRT_ERR_STATE, "the module has %d SyncBatchNorm layers, %d at ctrt_parallel_new; call it "
                         "again", (int)sync.layers, (int)d->sync_layers);
    d->sync_active = sync.training > 0;
    if (ctrt_module_parameter_count(d->module) != d->parameters
        || ctrt_module_buffer_count(d->module) != d->count - d->parameters)
        return ctrt_fail(CTRT_ERR_STATE, "the module's tensors are not those of ctrt_parallel_new; call it again");
    for (size_t i = 0; i < d->count; i++) {
        const char *name;
        ctrt_tensor *tensor;
        CTRT_TRY(tensor_find(&name, &tensor, d, i));
        CTRT_TRY(device_check(d, name, tensor));
        const struct slot *here = slot < d->slot_count && d->slots[slot].parameter == i ? &d->slots[slot++] : NULL;
        const bool same = tensor == d->tensors[i]
                          && (here == NULL || d->buckets[here->bucket].dtype == ctrt_tensor_dtype(tensor));
        if (!same || (i < d->parameters && here == NULL && ctrt_tensor_requires_grad(tensor)))
            return ctrt_fail(CTRT_ERR_STATE, "\"%s\" %s after ctrt_parallel_new; call it again", name,
                             same ? "requires grad only" : "was replaced");
    }
    return CTRT_OK;
}

/* ---- passes ---- */

/* Begins a pass whose gradients are reduced. All ranks call it. */
static ctrt_status pass_begin(struct distributed *d)
{
    CTRT_TRY(capture_check(d));
    CTRT_TRY(reduce_rebuild(d));
    if (d->broadcast_buffers && ctrt_module_is_training(d->module))
        CTRT_TRY(ctrt_context(exchange(d, EXCHANGE_BROADCAST, d->tensors + d->parameters, d->count - d->parameters, 0),
                              "buffers of rank 0"));
    if (d->captured)
        return capture_step(d);
    if (d->audit > 0 && d->steps > 0 && d->steps % d->audit == 0)
        CTRT_TRY(verify_values(d));
    d->steps++;
    return CTRT_OK;
}

/* Reports a failure to the other ranks, which would wait for this one. In a capture, nothing has been sent yet. */
static ctrt_status fail_all(struct distributed *d, ctrt_status status)
{
    char message[1024];
    if (status == CTRT_OK)
        return status;
    snprintf(message, sizeof message, "%s", ctrt_error_message());
    if (d->captured) {
        reduce_cancel(d);
        return ctrt_fail(status, "%s", message);
    }
    const bool sync_failed = d->sync != NULL && ctrt_comm_error(d->sync) != CTRT_OK;
    const bool failed = ctrt_comm_error(d->comm) != CTRT_OK;
    d->survive.own = status != CTRT_ERR_COMM || !(failed || sync_failed);
    if (!failed)
        ctrt_comm_abort(d->comm, message);
    if (d->sync != NULL && !sync_failed)
        ctrt_comm_abort(d->sync, message);
    ctrt_sync_layers_abort(d->module, message);
    reduce_cancel(d);
    return ctrt_fail(status, "%s", message);
}

static ctrt_status unfinished_check(struct distributed *d)
{
    return fail_all(d, reduce_check(d));
}

static ctrt_status dist_forward(void *self, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    struct distributed *d = self;
    CTRT_TRY(module_check(d));
    CTRT_TRY(unfinished_check(d));
    if (ctrt_grad_enabled())
        capture_begin(d);
    if (d->survive.on && ctrt_grad_enabled() && !d->no_sync)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "CTRT_ON_FAILURE=shrink: the backward pass of the program cannot be "
                         "repeated by the ranks that are left; use ctrt_parallel_step, or ctrt_no_grad");
    if (ctrt_grad_enabled() && d->no_sync && d->captured && d->size > 1)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "a capture is running on %s, and gradients of a loss of the program "
                         "cannot be added up there without communication; use ctrt_parallel_step",
                         ctrt_device_name(d->device));
    if (ctrt_grad_enabled() && !d->no_sync) {
        CTRT_TRY(pass_begin(d));
        CTRT_TRY(reduce_begin(d, FORWARD));
    }
    if (d->canonical > 0)
        return canonical_forward(d, y, inputs, count);
    ctrt_batch_ranks ranks = { d->sync, 1 };
    ctrt_swap_batch_ranks(&ranks);
    const ctrt_status status = ctrt_shard_forward(y, d->module, d->device, inputs, count, 0, -1);
    ctrt_swap_batch_ranks(&ranks);
    return d->sync_active ? fail_all(d, status) : status;
}

/* The sum of no elements, which depends on the output. */
static ctrt_status empty_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                              void *user)
{
    (void)inputs, (void)count, (void)user;
    return ctrt_sum(loss, output, CTRT_ALL_DIMS);
}

/* Forward and backward of this rank's rows. Without rows, only to take part in the collectives of the layers. */
static ctrt_status rows_run(struct distributed *d, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    ctrt_strategy_batch own = *batch;
    if (batch->rows == 0 && !d->sync_active)
        return CTRT_OK;
    if (batch->rows == 0)
        own.loss = empty_loss;
    ctrt_batch_ranks ranks = { d->sync, batch->rows > 0 ? (double)batch->rows : 1 };
    ctrt_swap_batch_ranks(&ranks);
    const ctrt_status status = ctrt_shard_backward(loss, d->module, d->device, &own, 0, batch->rows, 1);
    ctrt_swap_batch_ranks(&ranks);
    if (batch->rows == 0)
        ctrt_tensor_release(loss);
    return status;
}

static ctrt_status step_synced(struct distributed *d, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    CTRT_AUTO(tensor) own = NULL;
    CTRT_TRY(reduce_begin(d, STEP));
    CTRT_TRY(reduce_weights(d, batch->rows));
    CTRT_TRY(rows_run(d, &own, batch));
    return reduce_finish(d, loss, own, batch->rows);
}

static ctrt_status step_local(struct distributed *d, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    CTRT_TRY(rows_run(d, loss, batch));
    if (*loss == NULL)
        CTRT_TRY(ctrt_full(loss, CTRT_SCALAR_SHAPE, ctrt_float(NAN), CTRT_F32, d->device));
    CTRT_TRY(ctrt_gradients_take(d->grads, d->module));
    CTRT_TRY(ctrt_gradients_add(d->module, d->before, d->grads));
    if (d->captured)
        return capture_local(d, batch->rows);
    d->rows += batch->rows;
    return CTRT_OK;
}

ctrt_status step_once(struct distributed *d, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    const bool local = (d->no_sync || d->size == 1) && d->canonical == 0;
    capture_begin(d);
    ctrt_status status = module_check(d);
    if (status == CTRT_OK)
        status = unfinished_check(d);
    if (status == CTRT_OK && !local)
        status = pass_begin(d);
    if (status == CTRT_OK)
        status = ctrt_gradients_take(d->before, d->module);
    if (status != CTRT_OK)
        return local && !d->sync_active ? status : fail_all(d, status);
    d->mode = LOCAL;
    status = d->canonical > 0 ? canonical_step(d, loss, batch)
             : local          ? step_local(d, loss, batch)
                              : step_synced(d, loss, batch);
    if (d->captured && local)
        capture_end(d);
    d->mode = status == CTRT_OK ? IDLE : d->mode;
    if (status != CTRT_OK && (!local || d->sync_active))
        status = fail_all(d, status);
    if (status != CTRT_OK) {
        d->mode = IDLE;
        ctrt_gradients_release(d->grads, d->parameters + 1);
        (void)ctrt_gradients_restore(d->module, d->before);
    }
    return status;
}

static ctrt_status dist_step(void *self, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct distributed *d = self;
    return d->survive.on ? survive_step(d, loss, batch) : step_once(d, loss, batch);
}

static int64_t dist_steps(void *self)
{
    return ((struct distributed *)self)->steps;
}

static ctrt_status dist_barrier(void *self)
{
    struct distributed *d = self;
    return d->survive.on ? survive_barrier(d) : ctrt_comm_barrier(d->comm);
}

static ctrt_status dist_no_sync(void *self, bool on)
{
    struct distributed *d = self;
    d->no_sync = on;
    return CTRT_OK;
}

static ctrt_status dist_set_comm_hook(void *self, ctrt_comm_hook hook, void *user)
{
    struct distributed *d = self;
    if (d->canonical > 0 && hook != NULL)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "canonical mode adds gradients in a fixed order, without hooks");
    if (d->started)
        return ctrt_fail(CTRT_ERR_STATE, "a backward pass has begun; set the hook between steps");
    hook_free(d);
    d->hook = hook;
    d->hook_user = user;
    return CTRT_OK;
}

/* An optimizer must not use gradients that are not reduced. */
static ctrt_status dist_event(void *self, ctrt_module_event event, void *argument)
{
    if (event == CTRT_MODULE_STEP_BEGIN)
        CTRT_TRY(unfinished_check(self));
    return survive_event(self, event, argument);
}

/* ---- creation ---- */

static void dist_destroy(void *self)
{
    struct distributed *d = self;
    survive_end(d);
    reduce_free(d);
    hook_free(d);
    ctrt_comm_release(&d->sync);
    for (size_t i = 0; d->tensors != NULL && i < d->count; i++)
        ctrt_tensor_release(&d->tensors[i]);
    free(d->tensors);
    free(d->grads);
    free(d->before);
    free(d);
}

static ctrt_status params_read(struct distributed *d)
{
    ctrt_param_value bucket, buffers, audit;
    CTRT_TRY(host->param(&bucket, &bucket_param));
    CTRT_TRY(host->param(&buffers, &buffers_param));
    CTRT_TRY(host->param(&audit, &audit_param));
    if (audit.integer < 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_AUDIT=%s: expected a number of steps, 0 for never",
                         audit.text);
    d->bucket_bytes = (uint64_t)bucket.integer;
    d->broadcast_buffers = buffers.integer != 0;
    d->audit = audit.integer;
    return hook_choose(d);
}

ctrt_status dist_meet(struct distributed *d, ctrt_status status)
{
    CTRT_TRY(verify_ready(d, status));
    CTRT_TRY(verify_structure(d));
    CTRT_TRY(verify_devices(d));
    if (d->sync_layers > 0 && d->size > 1)
        CTRT_TRY(ctrt_comm_split(&d->sync, d->comm, 0, d->rank));
    CTRT_TRY(verify_ready(d, reduce_new(d)));
    CTRT_TRY(verify_ready(d, reduce_memory(d)));
    if (d->survive.on)
        return share_state(d);
    return exchange(d, EXCHANGE_BROADCAST, d->tensors, d->count, 0);
}

static ctrt_status setup(struct distributed *d, const ctrt_strategy_config *config)
{
    ctrt_sync_layers sync = { .layers = 0 };
    ctrt_status status = params_read(d);
    if (status == CTRT_OK)
        status = tensors_find(d);
    if (status == CTRT_OK)
        status = ctrt_sync_layers_find(&sync, d->module);
    d->sync_layers = sync.layers;
    if (status == CTRT_OK)
        status = survive_begin(d, config);
    status = dist_meet(d, status);
    return d->survive.on && status != CTRT_OK ? survive_rebuild(d, status) : status;
}

static ctrt_status dist_create(void **out, const ctrt_strategy_config *config)
{
    struct distributed *d = calloc(1, sizeof *d);
    if (d == NULL)
        return no_memory();
    d->module = config->module;
    d->comm = config->comm;
    d->device = config->devices[0];
    d->rank = ctrt_comm_rank(d->comm);
    d->size = ctrt_comm_size(d->comm);
    d->canonical = config->canonical;
    d->hook_name = "";
    ctrt_status status = setup(d, config);
    if (status == CTRT_OK)
        *out = d;
    else
        dist_destroy(d);
    return status;
}

static void dist_describe(void *self, char *text, size_t bytes)
{
    const struct distributed *d = self;
    snprintf(text, bytes, "on %s, rank %d of %d by %s; %zu buckets%s%s", ctrt_device_name(d->device), d->rank, d->size,
             ctrt_comm_engine_name(d->comm), d->bucket_count, d->hook == NULL ? "" : "; hook ",
             d->hook == NULL ? "" : *d->hook_name != '\0' ? d->hook_name : "of the program");
}

static const ctrt_strategy strategy = {
    .size = sizeof(ctrt_strategy), .flags = CTRT_STRATEGY_RANKS | CTRT_STRATEGY_CAPTURE,
    .create = dist_create, .destroy = dist_destroy,
    .forward = dist_forward, .step = dist_step, .no_sync = dist_no_sync, .describe = dist_describe,
    .event = dist_event, .set_comm_hook = dist_set_comm_hook, .steps = dist_steps, .barrier = dist_barrier,
};
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_STRATEGY, .name = "distributed", .table = &strategy },
};

static ctrt_status init(const ctrt_host *the_host)
{
    ctrt_param_value value;
    host = the_host;
    CTRT_TRY(host->param(&value, &bucket_param));
    CTRT_TRY(host->param(&value, &buffers_param));
    CTRT_TRY(host->param(&value, &audit_param));
    CTRT_TRY(survive_params(host));
    return hook_params(host);
}

CTRT_PLUGIN_DEFINE("strategy-distributed", "1.0", "a part of each batch on each rank of a communicator", components,
                   init)
