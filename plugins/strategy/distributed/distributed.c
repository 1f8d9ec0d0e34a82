/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/distributed.c: the table of the strategy: creation, forward passes, steps. */
#include "config.h"
#include "distributed.h"

#include <stdio.h>

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

/* ---- the module ---- */

/* All ranks have agreed on the buckets of the creation. */
static ctrt_status module_check(struct distributed *d)
{
    CTRT_TRY(ranks_check(&d->r));
    for (size_t i = 0, s = 0; i < d->r.parameters; i++) {
        const ctrt_tensor *tensor = d->r.tensors[i];
        const bool trains = s < d->r.leaf_count && d->r.leaves[s]->parameter == i;
        const bool same = !trains || d->buckets[d->slots[s].bucket].dtype == ctrt_tensor_dtype(tensor);
        if (!same || (!trains && ctrt_tensor_requires_grad(tensor)))
            return ctrt_fail(CTRT_ERR_STATE, "\"%s\" %s after ctrt_parallel_new; call it again",
                             ranks_name(&d->r, i), same ? "requires grad only" : "was replaced");
        s += trains;
    }
    return CTRT_OK;
}

/* ---- passes ---- */

/* Begins a pass whose gradients are reduced. All ranks call it. */
static ctrt_status pass_begin(struct distributed *d)
{
    CTRT_TRY(capture_check(d));
    CTRT_TRY(distributed_reduce_rebuild(d));
    CTRT_TRY(ranks_buffers(&d->r));
    if (d->captured)
        return capture_step(d);
    if (d->audit > 0 && d->steps > 0 && d->steps % d->audit == 0)
        CTRT_TRY(verify_values(&d->r, d->steps));
    d->steps++;
    return CTRT_OK;
}

static void distributed_give_up(struct ranks *r, ctrt_status status, const char *message)
{
    struct distributed *d = (struct distributed *)r;
    if (!d->captured) {                     /* in a capture, nothing has been sent yet */
        const bool sync_failed = r->sync != NULL && ctrt_comm_error(r->sync) != CTRT_OK;
        d->survive.own = status != CTRT_ERR_COMM || !(sync_failed || ctrt_comm_error(r->comm) != CTRT_OK);
        ranks_abort(r, NULL, 0, message);
    }
    distributed_reduce_cancel(d);
}

static ctrt_status unfinished_check(struct distributed *d)
{
    return ranks_fail_all(&d->r, gradients_check(&d->r));
}

/* The weights of the ranks in the backward pass of the program: their rows. */
static ctrt_status forward_weights(struct distributed *d, int64_t rows)
{
    ctrt_no_grad {
        CTRT_TRY(weights_mean(&d->r.weights, rows));
        if (d->captured)
            CTRT_TRY(capture_weights(d));
        CTRT_TRY(weights_forward(&d->r.weights, d->r.comm, !d->r.no_sync));
    }
    return CTRT_OK;
}

static ctrt_status distributed_forward(void *self, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    struct distributed *d = self;
    CTRT_TRY(module_check(d));
    CTRT_TRY(unfinished_check(d));
    capture_begin(d);
    if (d->survive.on && ctrt_grad_enabled() && !d->r.no_sync)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "CTRT_ON_FAILURE=shrink: the backward pass of the program cannot be "
                         "repeated by the ranks that are left; use ctrt_parallel_step, or ctrt_no_grad");
    if (ctrt_grad_enabled() && d->r.no_sync && d->captured && d->r.size > 1)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "a capture is running on %s, and gradients of a loss of the program "
                         "cannot be added up there without communication; use ctrt_parallel_step",
                         ctrt_device_name(d->r.device));
    if (ctrt_grad_enabled() && !d->captured)
        CTRT_TRY(capture_mixed(d));
    if (ctrt_grad_enabled() && !d->r.no_sync) {
        CTRT_TRY(pass_begin(d));
        CTRT_TRY(distributed_reduce_begin(d, PROGRAM));
    }
    if (ctrt_grad_enabled() && d->r.canonical == 0 && d->r.size > 1)
        CTRT_TRY(forward_weights(d, ranks_rows(inputs)));
    const ctrt_status status = ranks_forward(&d->r, y, inputs, count);
    if (status == CTRT_OK && d->r.pass == PASS_FORWARD)
        STATE_SET(MACHINE_PASS, d->r.pass, PASS_TURN);
    return d->r.sync_active && d->r.canonical == 0 ? ranks_fail_all(&d->r, status) : status;
}

static ctrt_status distributed_loss_known(struct ranks *r)
{
    struct distributed *d = (struct distributed *)r;
    if (r->kind != STEP)
        return CTRT_OK;
    STATE_SET(MACHINE_PASS, d->r.pass, PASS_TURN);
    return distributed_reduce_weights(d);
}

static ctrt_status step_synced(struct distributed *d, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    CTRT_AUTO(tensor) own = NULL;
    CTRT_TRY(distributed_reduce_begin(d, STEP));
    CTRT_TRY(ranks_backward(&d->r, &own, batch));
    ctrt_no_grad CTRT_TRY(distributed_reduce_finish(d, loss, own));
    return CTRT_OK;
}

/* The gradients of the group, which are those of the module, are divided. Only one rank is left. */
static ctrt_status group_divide(struct distributed *d)
{
    if (d->captured)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "with one rank, the last step of a group (ctrt_parallel_no_sync) "
                         "whose losses are no means cannot be captured");
    CTRT_TRY(weights_reduce(&d->r.weights, d->r.comm, 0));
    CTRT_TRY(weights_find(&d->r.weights));
    CTRT_TRY(ctrt_gradients_take(d->r.grads, d->r.module));
    for (size_t i = 0; i < d->r.parameters; i++)
        if (d->r.grads[i] != NULL)
            CTRT_TRY(ctrt_mul_(d->r.grads[i], d->r.weights.weight));
    base_move(d, true);
    CTRT_TRY(ctrt_gradients_add(d->r.module, d->r.before, d->r.grads));
    return weights_clear(&d->r.weights);
}

/* Keeps the step for the next reduction. */
static ctrt_status group_add(struct distributed *d)
{
    const struct weights_step step = weights_step(&d->r.weights);
    CTRT_TRY(weights_add(&d->r.weights));
    if (d->captured) {
        CTRT_TRY(capture_local(d));
        d->group_steps++;
        d->group_open = d->group_open || (step.known && step.kind != CTRT_LOSS_MEAN);
        return CTRT_OK;
    }
    weights_count(&d->r.weights, &step);
    return CTRT_OK;
}

/* A replay would not set gradients aside. */
static ctrt_status refuse_before(const struct distributed *d)
{
    for (size_t i = 0; i < d->r.parameters; i++)
        if (d->r.before[i] != NULL)
            return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "there are gradients from before the captured step, and the loss "
                             "is no mean; release them first (ctrt_optimizer_zero_grad(optimizer, true))");
    return CTRT_OK;
}

static ctrt_status local_end(struct distributed *d, ctrt_tensor **loss)
{
    const bool divided = d->r.weights.part.parts > 0 && d->r.weights.part.kind != CTRT_LOSS_MEAN;
    CTRT_TRY(ctrt_gradients_take(d->r.grads, d->r.module));
    const bool first = divided && !d->r.weights.begun && !d->group_open;
    if (first && d->captured)
        CTRT_TRY(refuse_before(d));
    if (first)
        base_move(d, false);
    CTRT_TRY(weights_local_loss(loss, &d->r.weights));
    CTRT_TRY(ctrt_gradients_add(d->r.module, d->r.before, d->r.grads));
    if (d->captured && !d->r.no_sync)
        CTRT_TRY(capture_alone(d));
    if (d->r.no_sync)
        return group_add(d);
    if (weights_known(&d->r.weights) && weights_kind(&d->r.weights) != CTRT_LOSS_MEAN)
        CTRT_TRY(group_divide(d));
    weights_reset(&d->r.weights);
    return CTRT_OK;
}

static ctrt_status step_local(struct distributed *d, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    CTRT_TRY(ranks_backward(&d->r, loss, batch));
    ctrt_no_grad CTRT_TRY(local_end(d, loss));
    weights_end(&d->r.weights);
    return CTRT_OK;
}

ctrt_status step_once(struct distributed *d, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    const bool local = (d->r.no_sync || d->r.size == 1) && d->r.canonical == 0;
    capture_begin(d);
    ctrt_status status = module_check(d);
    if (status == CTRT_OK)
        status = unfinished_check(d);
    if (status == CTRT_OK && !d->captured)
        status = capture_mixed(d);
    if (status == CTRT_OK && !local)
        status = pass_begin(d);
    if (status == CTRT_OK)
        status = ctrt_gradients_take(d->r.before, d->r.module);
    if (status != CTRT_OK)
        return local && !d->r.sync_active ? status : ranks_fail_all(&d->r, status);
    ranks_pass_begin(&d->r, UNHOOKED);
    status = d->r.canonical > 0 ? canonical_step(&d->r, loss, batch)
             : local          ? step_local(d, loss, batch)
                              : step_synced(d, loss, batch);
    if (d->captured && local)
        capture_end(d);
    d->done += status == CTRT_OK && !d->captured && !d->r.no_sync;
    if (status != CTRT_OK && (!local || d->r.sync_active))
        status = ranks_fail_all(&d->r, status);
    ranks_pass_end(&d->r);
    if (status != CTRT_OK) {
        weights_end(&d->r.weights);
        ctrt_tensors_release(d->r.grads, d->r.parameters + 2);
        if (!d->r.weights.begun)
            base_move(d, true);             /* of this step */
        (void)ctrt_gradients_restore(d->r.module, d->r.before);
    }
    return status;
}

static ctrt_status distributed_step(void *self, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct distributed *d = self;
    return d->survive.on ? survive_step(d, loss, batch) : step_once(d, loss, batch);
}

static int64_t distributed_steps(void *self)
{
    const struct distributed *d = self;
    return d->survive.on ? d->steps : d->done;
}

static ctrt_status distributed_barrier(void *self)
{
    struct distributed *d = self;
    return d->survive.on ? survive_barrier(d) : ctrt_comm_barrier(d->r.comm);
}

static ctrt_status distributed_set_comm_hook(void *self, ctrt_comm_hook hook, void *user)
{
    struct distributed *d = self;
    if (d->r.canonical > 0 && hook != NULL)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "canonical mode adds gradients in a fixed order, without hooks");
    if (d->r.pass == PASS_BACKWARD)
        return ctrt_fail(CTRT_ERR_STATE, "a backward pass has begun; set the hook between steps");
    hook_free(d);
    d->hook = hook;
    d->hook_user = user;
    return CTRT_OK;
}

/* An optimizer must not use gradients that are not reduced. */
static ctrt_status distributed_event(void *self, ctrt_module_event event, void *argument)
{
    if (event == CTRT_MODULE_STEP_BEGIN)
        CTRT_TRY(unfinished_check(self));
    return survive_event(self, event, argument);
}

/* ---- creation ---- */

static void distributed_destroy(void *self)
{
    struct distributed *d = self;
    survive_end(d);
    distributed_reduce_free(d);
    hook_free(d);
    ranks_free(&d->r);
    free(d);
}

static ctrt_status params_read(struct distributed *d)
{
    ctrt_param_value bucket, buffers;
    CTRT_TRY(strategy_host->param(&bucket, &bucket_param));
    CTRT_TRY(strategy_host->param(&buffers, &buffers_param));
    CTRT_TRY(strategy_integer(&d->audit, &audit_param, 0, INT64_MAX, "a number of steps, 0 for never"));
    d->bucket_bytes = (uint64_t)bucket.integer;
    d->r.broadcast_buffers = buffers.integer != 0;
    return hook_choose(d);
}

/* Writes a line for each option, which all ranks must have, to *text, which the caller frees. */
static ctrt_status options_text(const struct distributed *d, char **text)
{
    size_t bytes;
    FILE *file = open_memstream(text, &bytes);
    CTRT_TRY(strategy_allocated(file, sizeof *file));
    fprintf(file, "CTRT_DISTRIBUTED_BUCKET=%llu\nCTRT_DISTRIBUTED_BUFFERS=%s\nCTRT_AUDIT=%lld\nCTRT_ON_FAILURE=%s\n",
            (unsigned long long)d->bucket_bytes, d->r.broadcast_buffers ? "yes" : "no", (long long)d->audit,
            d->survive.on ? "shrink" : "stop");
    hook_text(d, file);
    return strategy_allocated(fclose(file) == 0 ? *text : NULL, bytes);
}

ctrt_status distributed_meet(struct distributed *d, ctrt_status status)
{
    SCRATCH char *options = NULL;
    if (status == CTRT_OK)
        status = options_text(d, &options);
    CTRT_TRY(ranks_join(&d->r, status, options));
    CTRT_TRY(verify_ready(&d->r, distributed_reduce_new(d)));
    CTRT_TRY(verify_ready(&d->r, distributed_reduce_memory(d)));
    if (d->survive.on)
        return share_state(d);
    return exchange(&d->r, EXCHANGE_BROADCAST, d->r.tensors, d->r.count, 0);
}

static ctrt_status setup(struct distributed *d, const ctrt_strategy_config *config)
{
    ctrt_status status = params_read(d);
    if (status == CTRT_OK)
        status = ranks_find(&d->r);
    if (status == CTRT_OK)
        status = survive_begin(d, config);
    status = distributed_meet(d, status);
    return d->survive.on && status != CTRT_OK ? survive_rebuild(d, status) : status;
}

static const struct ranks_calls calls = {
    .name = "distributed", .gradient = distributed_gradient, .loss_known = distributed_loss_known,
    .give_up = distributed_give_up,
};

static ctrt_status distributed_create(void **out, const ctrt_strategy_config *config)
{
    struct distributed *d;
    CTRT_TRY(ALLOCATE(d, 1));
    ranks_init(&d->r, &calls, config);
    d->hook_name = "";
    ctrt_status status = setup(d, config);
    if (status == CTRT_ERR_COMM)            /* other ranks may have succeeded */
        status = ranks_fail_all(&d->r, status);
    return strategy_created(out, d, status, distributed_destroy);
}

static void distributed_describe(void *self, char *text, size_t bytes)
{
    const struct distributed *d = self;
    snprintf(text, bytes, "on %s, rank %d of %d by %s; %zu buckets%s%s", ctrt_device_name(d->r.device), d->r.rank,
             d->r.size, ctrt_comm_engine_name(d->r.comm), d->bucket_count, d->hook == NULL ? "" : "; hook ",
             d->hook == NULL ? "" : *d->hook_name != '\0' ? d->hook_name : "of the program");
}

static ctrt_status distributed_estimate(ctrt_strategy_estimate *estimate, const ctrt_strategy_config *config,
                                 const ctrt_strategy_facts *facts)
{
    (void)config;
    estimate->applies = true;
    estimate->preference = 100;
    estimate->bytes = facts->model_bytes;
    estimate->rows = facts->rows;
    return CTRT_OK;
}

static const ctrt_strategy strategy = {
    .size = sizeof(ctrt_strategy), .flags = CTRT_STRATEGY_RANKS | CTRT_STRATEGY_CAPTURE,
    .create = distributed_create, .destroy = distributed_destroy,
    .forward = distributed_forward, .step = distributed_step, .no_sync = ranks_no_sync,
    .describe = distributed_describe, .event = distributed_event, .set_comm_hook = distributed_set_comm_hook,
    .steps = distributed_steps, .barrier = distributed_barrier, .estimate = distributed_estimate,
};
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_STRATEGY, .name = "distributed", .table = &strategy },
};

static ctrt_status init(const ctrt_host *host)
{
    static const ctrt_param *const params[] = {
        &bucket_param, &buffers_param, &audit_param, &ranks_failure_param, &hook_params[HOOK_NAME],
        &hook_params[HOOK_RANK], &hook_params[HOOK_START], NULL,
    };
    return strategy_register(host, params);
}

CTRT_PLUGIN_DEFINE("strategy-distributed", PACKAGE_VERSION, "a part of each batch on each rank of a communicator",
                   components, init)
