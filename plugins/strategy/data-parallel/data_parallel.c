/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/data-parallel/data_parallel.c: the table of the strategy: creation, forward passes, steps. */
#include "config.h"
#include "data_parallel.h"

#include <math.h>
#include <stdio.h>

static const ctrt_param weights_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_DATA_PARALLEL_WEIGHTS", .type = CTRT_PARAM_STRING,
    .help = "data-parallel: relative sizes of the devices' parts of a batch: 2,1,1 (default: equal)",
};
static const ctrt_param bucket_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_DATA_PARALLEL_BUCKET", .type = CTRT_PARAM_BYTES, .fallback = "10m",
    .help = "data-parallel: bytes of gradients that are added up together",
};

/* ---- how a batch is cut ---- */

struct plan {
    int count;                              /* replicas that have rows */
    int64_t rows, shards;                   /* of the batch; shards: 0 except in canonical mode */
    int64_t *first_shard, *shard_count;     /* of each replica */
    int64_t *first, *sizes;                 /* rows of each replica */
    int64_t *shard_sizes;                   /* rows of each shard; one allocation with the lists above */
    uint64_t seed, offset;                  /* the state of the generator of devices[0] */
    atomic_bool random;                     /* a shard has used random numbers */
};

/* Gives each replica a range of shards. */
static ctrt_status plan_shards(struct plan *plan, const struct data_parallel *dp)
{
    int shards = 0;
    CTRT_TRY(ctrt_generator_get(dp->devices[0], &plan->seed, &plan->offset));
    CTRT_TRY(strategy_cut(plan->shard_sizes, &shards, plan->rows, dp->canonical, NULL));
    plan->shards = shards;
    CTRT_TRY(strategy_cut(plan->shard_count, &plan->count, shards, dp->n, dp->weights));
    int64_t shard = 0;
    for (int r = 0; r < plan->count; r++) {
        plan->first_shard[r] = shard;
        for (int64_t i = 0; i < plan->shard_count[r]; i++)
            plan->sizes[r] += plan->shard_sizes[shard++];
    }
    return CTRT_OK;
}

static ctrt_status plan_make(struct plan *plan, const struct data_parallel *dp, int64_t rows)
{
    plan->rows = rows;
    CTRT_TRY(ALLOCATE(plan->first_shard, 4 * (size_t)dp->n + (size_t)dp->canonical));
    plan->shard_count = plan->first_shard + dp->n;
    plan->first = plan->shard_count + dp->n;
    plan->sizes = plan->first + dp->n;
    plan->shard_sizes = plan->sizes + dp->n;
    if (dp->canonical > 0 && rows > 0)
        CTRT_TRY(plan_shards(plan, dp));
    else
        CTRT_TRY(strategy_cut(plan->sizes, &plan->count, rows, dp->n, dp->weights));
    for (int r = 1; r < plan->count; r++)
        plan->first[r] = plan->first[r - 1] + plan->sizes[r - 1];
    return CTRT_OK;
}

static ctrt_shard_range range_of(const struct plan *plan, const struct data_parallel *dp, int index)
{
    return (ctrt_shard_range){
        .first = plan->first_shard[index], .count = plan->shard_count[index], .sizes = plan->shard_sizes,
        .total = plan->shards, .seed = plan->seed, .offset = plan->offset, .seeded = dp->distinct,
    };
}

/* If the shards have used random numbers, the first device's generator continues after those of all shards. */
static ctrt_status generator_end(ctrt_status status, struct plan *plan, const struct data_parallel *dp)
{
    if (status != CTRT_OK || !atomic_load(&plan->random))
        return status;
    return ctrt_generator_set(dp->devices[0], plan->seed, plan->offset + (((uint64_t)plan->shards + 1) << 32));
}

/* ---- forward ---- */

struct forward {
    struct data_parallel *dp;
    struct plan *plan;
    ctrt_module **modules;
    ctrt_tensor **inputs;                   /* input i of replica r is inputs[r * count + i]; owned */
    int count;
    ctrt_tensor **outputs;                  /* owned */
};

static ctrt_status forward_one(void *user, int index)
{
    struct forward *f = user;
    ctrt_tensor *const *inputs = &f->inputs[(size_t)index * (size_t)f->count];
    if (f->plan->shards == 0)
        return ctrt_forward_n(&f->outputs[index], f->modules[index], inputs, f->count);
    ctrt_shard_range range = range_of(f->plan, f->dp, index);
    CTRT_TRY(ctrt_shards_forward(&f->outputs[index], f->modules[index], f->dp->devices[index], inputs, f->count,
                                 &range));
    if (range.random)
        atomic_store(&f->plan->random, true);
    return CTRT_OK;
}

/* Copies each replica's rows to its device. */
static ctrt_status inputs_scatter(struct forward *f, ctrt_tensor *const *inputs)
{
    for (int i = 0; i < f->count; i++) {
        if (inputs[i] == NULL)
            continue;
        if (ctrt_tensor_ndim(inputs[i]) == 0 || ctrt_tensor_size(inputs[i], 0) != f->plan->rows)
            return ctrt_fail(CTRT_ERR_SHAPE, "inputs[%d] has %lld rows in dimension 0, but inputs[0] has %lld", i,
                             (long long)ctrt_tensor_size(inputs[i], 0), (long long)f->plan->rows);
        for (int r = 0; r < f->plan->count; r++) {
            CTRT_AUTO(tensor) part = ctrt_tensor_retain(inputs[i]);
            if (f->plan->count > 1)
                CTRT_TRY(ctrt_narrow(&part, part, 0, f->plan->first[r], f->plan->sizes[r]));
            ctrt_tensor **to = &f->inputs[(size_t)r * (size_t)f->count + (size_t)i];
            CTRT_TRY(ctrt_context(ctrt_to_device(to, part, f->dp->devices[r]), "inputs[%d] to replica %d", i, r));
        }
    }
    return CTRT_OK;
}

static bool recorded(const struct data_parallel *dp)
{
    bool any = false;
    for (size_t i = 0; i < dp->parameters && !any; i++)
        any = ctrt_tensor_requires_grad(dp->tensors[i]);
    return ctrt_grad_enabled() && any;
}

/* The replicas of this pass. Those that live as long as the strategy have parameters of their own, so a recorded pass
 * needs others, whose gradients flow to the module. */
static ctrt_status modules_choose(struct forward *f)
{
    struct data_parallel *dp = f->dp;
    CTRT_TRY(replicas_update(dp, 1));
    if (recorded(dp) && f->plan->count > 1) {
        CTRT_TRY(sync_refuse_recorded(dp));
        return ctrt_replicate(f->modules, dp->module, dp->devices, f->plan->count);
    }
    CTRT_TRY(replicas_update(dp, f->plan->count));
    for (int r = 0; r < f->plan->count; r++)
        f->modules[r] = ctrt_module_retain(dp->replicas[r].module);
    return CTRT_OK;
}

static ctrt_status forward_run(struct forward *f, ctrt_tensor **y, ctrt_tensor *const *inputs)
{
    const size_t count = (size_t)f->plan->count;
    CTRT_TRY(ALLOCATE(f->modules, count));
    CTRT_TRY(ALLOCATE(f->inputs, count * (size_t)f->count));
    CTRT_TRY(ALLOCATE(f->outputs, count));
    CTRT_TRY(modules_choose(f));
    CTRT_TRY(inputs_scatter(f, inputs));
    CTRT_TRY(streams_find(f->dp, f->plan->count));
    CTRT_TRY(replicas_run(f->dp, forward_one, f, f->plan->count));
    if (count == 1) {
        ctrt_tensor_assign(y, f->outputs[0]);
        return CTRT_OK;
    }
    CTRT_TRY(ctrt_gather_tensor(y, f->outputs, f->plan->count, f->dp->devices[0], 0));
    return streams_join(f->dp, f->plan->count);
}

static ctrt_status dp_forward(void *self, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    struct data_parallel *dp = self;
    struct plan plan = { .count = 0 };
    if (ctrt_tensor_ndim(inputs[0]) == 0)
        return ctrt_fail(CTRT_ERR_SHAPE, "inputs[0] has no dimensions, expected rows in dimension 0");
    ctrt_status status = plan_make(&plan, dp, ctrt_tensor_size(inputs[0], 0));
    struct forward f = { .dp = dp, .plan = &plan, .count = count };
    if (status == CTRT_OK)
        status = generator_end(forward_run(&f, y, inputs), &plan, dp);
    dp_reduce_end(dp, status != CTRT_OK);
    for (int r = 0; f.modules != NULL && r < plan.count; r++)
        ctrt_module_release(&f.modules[r]);
    ctrt_tensors_release(f.inputs, (size_t)plan.count * (size_t)count);
    ctrt_tensors_release(f.outputs, (size_t)plan.count);
    free(f.modules);
    free(f.inputs);
    free(f.outputs);
    free(plan.first_shard);
    replicas_drop_predicted(dp);
    return status;
}

/* ---- steps ---- */

struct step {
    struct data_parallel *dp;
    struct plan *plan;
    const ctrt_strategy_batch *batch;
    ctrt_sum_tree **sums;                   /* canonical: of gradients and loss; else of the loss; one per replica */
    ctrt_loss_part *parts;                  /* of the losses; one per replica, then the sum */
};

static ctrt_status rows_run(struct step *s, int index)
{
    struct data_parallel *dp = s->dp;
    const struct plan *plan = s->plan;
    ctrt_tensor *loss = NULL;
    const double weight = (double)plan->sizes[index] / (double)plan->rows;
    CTRT_TRY(ctrt_sum_tree_new(&s->sums[index], plan->count, 1, dp->devices[index]));
    CTRT_TRY(ctrt_part_backward(&loss, &s->parts[index], dp->replicas[index].module, dp->devices[index], s->batch,
                                plan->first[index], plan->sizes[index], weight, NULL, NULL));
    return ctrt_sum_tree_add(s->sums[index], index, &loss);
}

/* Copies the replica's rows to its device and runs its shards. */
static ctrt_status shards_run(struct step *s, int index, ctrt_tensor **inputs)
{
    struct data_parallel *dp = s->dp;
    struct plan *plan = s->plan;
    ctrt_strategy_batch batch = *s->batch;
    ctrt_shard_range range = range_of(plan, dp, index);
    for (int i = 0; i < batch.count; i++) {
        if (batch.inputs[i] == NULL)
            continue;
        ctrt_no_grad {
            CTRT_TRY(ctrt_narrow(&inputs[i], batch.inputs[i], 0, plan->first[index], plan->sizes[index]));
            CTRT_TRY(ctrt_to_device(&inputs[i], inputs[i], dp->devices[index]));
        }
    }
    batch.inputs = inputs;
    CTRT_TRY(ctrt_sum_tree_new(&s->sums[index], plan->shards, dp->parameters + 2, dp->devices[index]));
    const ctrt_status status = ctrt_shards_backward(s->sums[index], dp->replicas[index].module, dp->devices[index],
                                                    &batch, &range);
    if (range.random)
        atomic_store(&plan->random, true);
    s->parts[index] = (ctrt_loss_part){ .kind = range.kind, .parts = range.parts, .per_row = range.per_row };
    return status;
}

static ctrt_status part_run(struct step *s, int index)
{
    if (s->plan->shards == 0)
        return rows_run(s, index);
    SCRATCH ctrt_tensor **inputs = NULL;
    CTRT_TRY(ALLOCATE(inputs, (size_t)s->batch->count));
    const ctrt_status status = shards_run(s, index, inputs);
    ctrt_tensors_release(inputs, (size_t)s->batch->count);
    return status;
}

static ctrt_status step_one(void *user, int index)
{
    struct step *s = user;
    const ctrt_part_module part = { s->dp->replicas[index].module, s->dp->tensors };
    const ctrt_part_module *before = ctrt_set_part_module(&part);
    const ctrt_status status = part_run(s, index);
    (void)ctrt_set_part_module(before);
    return status;
}

/* Adds up what the replicas have computed: the loss and, in canonical mode, the gradients. */
static ctrt_status sums_finish(struct step *s, ctrt_tensor **loss)
{
    struct data_parallel *dp = s->dp;
    ctrt_loss_part *total = &s->parts[s->plan->count];
    CTRT_TRY(trees_merge(s->sums, s->plan->count));
    for (int r = 0; r < s->plan->count; r++)
        CTRT_TRY(ctrt_loss_part_add(total, &s->parts[r]));
    if (s->plan->shards == 0)
        return ctrt_sum_tree_result(loss, s->sums[0]);
    CTRT_TRY(ctrt_sum_tree_result(dp->grads, s->sums[0]));
    *loss = dp->grads[dp->parameters];
    total->weight = dp->grads[dp->parameters + 1];
    dp->grads[dp->parameters] = dp->grads[dp->parameters + 1] = NULL;
    return CTRT_OK;
}

/* The gradients of replica `r` become those from before plus those of the step. */
static ctrt_status grads_keep(struct data_parallel *dp, int r)
{
    SCRATCH ctrt_tensor **grads = NULL;
    CTRT_TRY(ALLOCATE(grads, dp->parameters));
    ctrt_status status = ctrt_gradients_take(grads, dp->replicas[r].module);
    if (status == CTRT_OK) {
        dp->replicas[r].taken = false;
        status = ctrt_gradients_add(dp->replicas[r].module, dp->replicas[r].before, grads);
    }
    ctrt_tensors_release(grads, dp->parameters);
    return status;
}

/* Adds the gradients of all replicas to those of the module. */
static ctrt_status grads_finish(struct step *s, ctrt_tensor **loss)
{
    struct data_parallel *dp = s->dp;
    ctrt_loss_part *total = &s->parts[s->plan->count];
    const int count = dp->pending ? dp->n : s->plan->count;
    if (dp->pending && total->kind != CTRT_LOSS_MEAN)
        return ctrt_fail(CTRT_ERR_STATE, "the losses of the steps since ctrt_parallel_no_sync(net, true) were means, "
                         "which cannot be divided together with this one");
    for (int r = 1; dp->pending && r < dp->n; r++)
        if (dp->replicas[r].module != NULL)
            CTRT_TRY(grads_keep(dp, r));
    if (s->plan->shards == 0 && count == 1)
        CTRT_TRY(ctrt_gradients_take(dp->grads, dp->module));
    else if (s->plan->shards == 0)
        CTRT_TRY(dp_reduce_rest(dp, count));
    CTRT_TRY(streams_join(dp, s->plan->count));
    dp->replicas[0].taken = false;
    CTRT_TRY(ctrt_step_finish(loss, dp->module, dp->replicas[0].before, dp->grads, total, s->batch));
    dp->pending = false;
    return CTRT_OK;
}

static ctrt_status step_run(struct step *s, ctrt_tensor **loss)
{
    struct data_parallel *dp = s->dp;
    const bool keep = dp->no_sync && s->plan->shards == 0 && dp->n > 1;
    const bool overlap = !keep && !dp->pending && s->plan->shards == 0 && s->plan->count > 1;
    CTRT_TRY(dp_reduce_begin(dp, s->plan->count, overlap));
    CTRT_TRY(replicas_run(dp, step_one, s, s->plan->count));
    ctrt_no_grad CTRT_TRY(sums_finish(s, loss));
    if (!keep || s->parts[s->plan->count].kind != CTRT_LOSS_MEAN)   /* others are added up in each step of a group */
        return grads_finish(s, loss);
    CTRT_TRY(streams_join(dp, s->plan->count));
    for (int r = 0; r < dp->n; r++)
        if (dp->replicas[r].module != NULL)
            CTRT_TRY(grads_keep(dp, r));
    dp->pending = true;
    return CTRT_OK;
}

/* Restores the gradients from before the step in the replicas from which they were taken. */
static void step_undo(struct data_parallel *dp)
{
    for (int r = 0; r < dp->n; r++)
        if (dp->replicas[r].taken) {
            (void)ctrt_gradients_restore(dp->replicas[r].module, dp->replicas[r].before);
            dp->replicas[r].taken = false;
        }
    ctrt_tensors_release(dp->grads, dp->parameters + 2);
}

static ctrt_status step_planned(struct data_parallel *dp, ctrt_tensor **loss, const ctrt_strategy_batch *batch,
                                struct plan *plan)
{
    struct step s = { .dp = dp, .plan = plan, .batch = batch };
    CTRT_TRY(replicas_update(dp, plan->count));
    ctrt_status status = ALLOCATE(s.sums, (size_t)plan->count);
    if (status == CTRT_OK)
        status = ALLOCATE(s.parts, (size_t)plan->count + 1);
    for (int r = 0; r < dp->n && status == CTRT_OK; r++)
        if (dp->replicas[r].module != NULL) {
            status = ctrt_gradients_take(dp->replicas[r].before, dp->replicas[r].module);
            dp->replicas[r].taken = status == CTRT_OK;
        }
    if (status == CTRT_OK)
        status = generator_end(step_run(&s, loss), plan, dp);
    if (status != CTRT_OK)
        step_undo(dp);
    dp_reduce_end(dp, status != CTRT_OK);
    for (int r = 0; s.sums != NULL && r < plan->count; r++)
        ctrt_sum_tree_release(&s.sums[r]);
    for (int r = 0; s.parts != NULL && r <= plan->count; r++)
        ctrt_loss_part_release(&s.parts[r]);
    free(s.sums);
    free(s.parts);
    return status;
}

static ctrt_status dp_step(void *self, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct data_parallel *dp = self;
    struct plan plan = { .count = 0 };
    if (dp->n > 1 && (dp->no_sync || dp->pending) && ctrt_dry_run_active(dp->devices[0]))
        return ctrt_fail(CTRT_ERR_STATE, "gradients that stay on the replicas (no_sync) would be lost at the end of "
                         "the dry run; predict a step that adds them up");
    ctrt_status status = plan_make(&plan, dp, batch->rows);
    if (status == CTRT_OK)
        status = step_planned(dp, loss, batch, &plan);
    replicas_drop_predicted(dp);
    free(plan.first_shard);
    return status;
}

static ctrt_status dp_no_sync(void *self, bool on)
{
    struct data_parallel *dp = self;
    dp->no_sync = on;
    return CTRT_OK;
}

/* ---- creation ---- */

/* Reads "2,1,1", one number per device. */
static ctrt_status weights_read(struct data_parallel *dp)
{
    ctrt_param_value value;
    CTRT_TRY(strategy_host->param(&value, &weights_param));
    if (value.text == NULL || value.text[0] == '\0')
        return CTRT_OK;
    const char *at = value.text;
    int count = 0;
    CTRT_TRY(ALLOCATE(dp->weights, (size_t)dp->n));
    for (bool more = true; more;) {
        char *end;
        const double weight = strtod(at, &end);
        if (end == at || (*end != ',' && *end != '\0') || !(weight > 0) || !isfinite(weight))
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_DATA_PARALLEL_WEIGHTS=%s: expected positive numbers, "
                             "2,1,1", value.text);
        if (count < dp->n)
            dp->weights[count] = weight;
        count++;
        more = *end == ',';
        at = end + 1;
    }
    if (count != dp->n)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_DATA_PARALLEL_WEIGHTS=%s: %d numbers for %d devices",
                         value.text, count, dp->n);
    return CTRT_OK;
}

static void dp_destroy(void *self)
{
    struct data_parallel *dp = self;
    workers_free(dp->workers);
    sync_free(dp);
    replicas_free(dp);
    if (dp->first != NULL && dp->received != NULL)
        dp_reduce_end(dp, true);
    pthread_mutex_destroy(&dp->adding);
    free(dp->replicas);
    free(dp->weights);
    free(dp->received);
    free(dp->places);
    free(dp->first);
    free(dp);
}

static ctrt_status setup(struct data_parallel *dp)
{
    ctrt_param_value bucket;
    const size_t n = (size_t)dp->n;
    CTRT_TRY(ALLOCATE(dp->replicas, n));
    CTRT_TRY(ALLOCATE(dp->received, n));
    CTRT_TRY(ALLOCATE(dp->first, n + 1));
    CTRT_TRY(places_make(dp));
    dp->distinct = true;
    for (int i = 0; i < dp->n; i++)
        for (int k = 0; k < i; k++)
            dp->distinct = dp->distinct && dp->devices[i] != dp->devices[k];
    CTRT_TRY(strategy_host->param(&bucket, &bucket_param));
    dp->bucket_bytes = (uint64_t)bucket.integer;
    CTRT_TRY(weights_read(dp));
    CTRT_TRY(workers_new(&dp->workers, dp));
    CTRT_TRY(replicas_update(dp, 1));
    if (dp->weights == NULL)
        (void)ctrt_devices_imbalanced(NULL, dp->devices, dp->n);
    return CTRT_OK;
}

static ctrt_status dp_create(void **out, const ctrt_strategy_config *config)
{
    struct data_parallel *dp;
    CTRT_TRY(ALLOCATE(dp, 1));
    dp->module = config->module;
    dp->devices = config->devices;
    dp->n = config->count;
    dp->canonical = config->canonical;
    pthread_mutex_init(&dp->adding, NULL);
    return strategy_created(out, dp, setup(dp), dp_destroy);
}

static void dp_describe(void *self, char *text, size_t bytes)
{
    const struct data_parallel *dp = self;
    size_t used = (size_t)snprintf(text, bytes, "on");
    for (int r = 0; r < dp->n && used < bytes; r++)
        used += (size_t)snprintf(text + used, bytes - used, "%s %s", r > 0 ? "," : "",
                                 ctrt_device_name(dp->devices[r]));
    for (int r = 0; dp->weights != NULL && r < dp->n && used < bytes; r++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%g", r > 0 ? ":" : ", parts ", dp->weights[r]);
}

static ctrt_status dp_estimate(ctrt_strategy_estimate *estimate, const ctrt_strategy_config *config,
                               const ctrt_strategy_facts *facts)
{
    const int64_t parts = config->canonical > 0 ? config->canonical : config->count;
    estimate->applies = config->count > 1;
    estimate->measured = true;
    estimate->preference = 200;
    estimate->bytes = facts->model_bytes;
    estimate->rows = (facts->rows + parts - 1) / parts;
    return CTRT_OK;
}

static const ctrt_strategy strategy = {
    .size = sizeof(ctrt_strategy), .create = dp_create, .destroy = dp_destroy, .forward = dp_forward, .step = dp_step,
    .no_sync = dp_no_sync, .describe = dp_describe, .estimate = dp_estimate,
};
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_STRATEGY, .name = "data-parallel", .table = &strategy },
};

static ctrt_status init(const ctrt_host *host)
{
    static const ctrt_param *const params[] = { &weights_param, &bucket_param, NULL };
    return strategy_register(host, params);
}

CTRT_PLUGIN_DEFINE("strategy-data-parallel", PACKAGE_VERSION, "a part of each batch on each device, in one process",
                   components, init)
