/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/broken_strategy.c: a correct strategy, which CTRT_BROKEN=DEFECT breaks, to test that `ctrt check
 * --contract` finds the defect. tests/integration/contract.sh lists the defects with the check that has to find each.
 *
 * It computes the batch in as many parts as there are devices, all on the first device. With CTRT_BROKEN=ranks and the
 * defects ranks_*, it runs on ranks, each of which computes its rows, and adds up gradients by all_reduce; then it
 * knows losses that are means only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctrt/ctrt.h"
#include "ctrt/strategy_plugin.h"

static bool broken(const char *defect)
{
    const char *text = getenv("CTRT_BROKEN");
    return text != NULL && strcmp(text, defect) == 0;
}

struct strategy {
    ctrt_module *module;
    ctrt_device *device;
    int parts;
    ctrt_comm *comm;
    size_t parameters;
    ctrt_tensor **before, **grads;
    int64_t steps;
    bool failed, local;                         /* local: no_sync is on */
    ctrt_module *first;                         /* the module as it was at first */
    ctrt_comm_hook hook;                        /* of set_comm_hook, or NULL */
    void *user;
};

static ctrt_tensor *parameter(ctrt_module *module, size_t i)
{
    ctrt_tensor *tensor = NULL;
    (void)ctrt_module_parameter(NULL, &tensor, module, i);
    return tensor;
}

static void destroy(void *state)
{
    struct strategy *s = state;
    if (broken("destroy_changes"))
        ctrt_no_grad (void)ctrt_mul_scalar_(parameter(s->module, 0), ctrt_float(2));
    ctrt_module_release(&s->first);
    free(s->before);
    free(s->grads);
    free(s);
}

static ctrt_status create(void **out, const ctrt_strategy_config *config)
{
    if (config->canonical > 0 && !broken("canonical_ignored"))
        return broken("canonical_status") ? ctrt_fail(CTRT_ERR_BACKEND, "no canonical mode")
                                          : ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "it has no canonical mode");
    struct strategy *s = calloc(1, sizeof *s);
    *s = (struct strategy){ .module = config->module, .device = config->devices[0], .parts = config->count,
                            .comm = config->comm, .parameters = ctrt_module_parameter_count(config->module) };
    s->before = calloc(s->parameters + 1, sizeof *s->before);
    s->grads = calloc(s->parameters + 1, sizeof *s->grads);
    if (broken("create_leaks"))
        memset(malloc(4 << 20), 1, 4 << 20);
    if (broken("create_descriptor"))
        (void)!dup(1);
    if (broken("load_ignored"))
        CTRT_TRY(ctrt_module_copy(&s->first, s->module, NULL));
    *out = s;
    return CTRT_OK;
}

/* ---- forward ---- */

static ctrt_status forward(void *state, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    struct strategy *s = state;
    if (broken("forward_one"))
        count = 1;
    if (broken("forward_trains"))
        ctrt_module_train(s->module, true);
    if (broken("forward_detached")) {
        ctrt_status status;
        ctrt_no_grad status = ctrt_forward_n(y, s->module, inputs, count);
        CTRT_TRY(status);
        return ctrt_tensor_require_grad(*y, true);
    }
    CTRT_TRY(ctrt_forward_n(y, s->module, inputs, count));
    if (broken("forward_first"))
        return ctrt_narrow(y, *y, 0, 0, (ctrt_tensor_size(*y, 0) + 1) / 2);
    return broken("forward_scaled") ? ctrt_mul_scalar(y, *y, ctrt_float(1.01)) : CTRT_OK;
}

/* ---- steps ---- */

static ctrt_status add_loss(ctrt_tensor **sum, ctrt_tensor *loss)
{
    if (*sum != NULL)
        return ctrt_add(sum, *sum, loss);
    ctrt_tensor_assign(sum, loss);
    return CTRT_OK;
}

static ctrt_status parts_backward(struct strategy *s, ctrt_tensor **loss, ctrt_loss_part *total,
                                  const ctrt_strategy_batch *outer)
{
    ctrt_strategy_batch batch = *outer;
    if (broken("inputs_first"))
        batch.module_inputs = 1;
    if (broken("inputs_null") && batch.count > 1 && batch.inputs[1] == NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "input 1 is NULL");
    if (broken("inputs_lost"))
        batch.count = batch.module_inputs;
    int64_t sizes[64];
    int count = 0;
    const ctrt_scatter_options balanced = { .size = sizeof balanced, .rule = CTRT_CHUNK_BALANCED };
    CTRT_TRY(ctrt_chunk_sizes(sizes, &count, batch.rows, s->parts, &balanced));
    if (broken("few_fails") && count < s->parts)
        return ctrt_fail(CTRT_ERR_SHAPE, "%lld rows for %d devices", (long long)batch.rows, s->parts);
    for (int64_t i = 0, from = 0; i < count; from += sizes[i++]) {
        CTRT_AUTO(tensor) mine = NULL;
        ctrt_loss_part part = { .parts = 0 };
        double weight = broken("weights_equal")  ? 1.0 / count
                        : broken("weights_none") ? 1
                                                 : (double)sizes[i] / (double)batch.rows;
        const int64_t rows = broken("rest_dropped") ? sizes[count - 1] : sizes[i];
        CTRT_TRY(ctrt_part_backward(&mine, &part, s->module, s->device, &batch, from, rows, weight, NULL, NULL));
        if (broken("sum_as_mean"))
            part.kind = CTRT_LOSS_MEAN;
        if (broken("divisor_lost") && i > 0 && part.weight != NULL)
            CTRT_TRY(ctrt_mul_scalar(&part.weight, part.weight, ctrt_float(0)));
        if (!broken("loss_first") || i == 0)
            CTRT_TRY(add_loss(loss, mine));
        if (broken("part_only") && i > 0)
            ctrt_loss_part_release(&part);
        else
            CTRT_TRY(ctrt_loss_part_add(total, &part));
        if (broken("last_part") && i < count - 1)
            CTRT_TRY(ctrt_module_zero_grad(s->module, true));
    }
    return CTRT_OK;
}

static void spoil_gradients(struct strategy *s)
{
    const size_t last = s->parameters - 1;
    for (size_t i = 0; i < s->parameters; i++)
        if ((broken("unused_zero") || broken("frozen_zero")) && s->grads[i] == NULL
            && ctrt_tensor_requires_grad(parameter(s->module, i)) == broken("unused_zero"))
            (void)ctrt_zeros_like(&s->grads[i], parameter(s->module, i), 0, NULL);
    if (broken("parameter_skipped"))
        ctrt_tensor_release(&s->grads[last]);
    if (broken("tied_twice") && s->parameters == 3)         /* the last one occurs twice */
        (void)ctrt_mul_scalar_(s->grads[last], ctrt_float(2));
    if (broken("no_sync_lost") && s->local)
        ctrt_tensors_release(s->grads, s->parameters);
    if (broken("before_lost"))
        ctrt_tensors_release(s->before, s->parameters);
}

static ctrt_status step_parts(struct strategy *s, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    ctrt_loss_part total = { .parts = 0 };
    if (broken("fails_forever") && s->failed)
        return ctrt_fail(CTRT_ERR_STATE, "an earlier step has failed");
    CTRT_TRY(ctrt_gradients_take(s->before, s->module));
    ctrt_status status = parts_backward(s, loss, &total, batch);
    if (status == CTRT_OK)
        status = ctrt_gradients_take(s->grads, s->module);
    if (status == CTRT_OK) {
        spoil_gradients(s);
        s->steps++;
        return ctrt_step_finish(loss, s->module, s->before, s->grads, &total, batch);
    }
    s->failed = true;
    ctrt_loss_part_release(&total);
    if (broken("failure_adds"))
        ctrt_tensors_release(s->before, s->parameters);
    else if (broken("failure_loses"))
        ctrt_tensors_release(s->before, s->parameters), (void)ctrt_module_zero_grad(s->module, true);
    else
        (void)ctrt_gradients_restore(s->module, s->before);
    if (broken("failure_ok"))
        return ctrt_full(loss, CTRT_SCALAR_SHAPE, ctrt_float(0), CTRT_F32, s->device);
    return broken("failure_message") ? ctrt_fail(status, "a part of the step has failed") : status;
}

/* ---- ranks ---- */

static ctrt_status reduce(struct strategy *s, ctrt_tensor *tensor)
{
    ctrt_status status;
    ctrt_no_grad status = ctrt_comm_all_reduce(NULL, s->comm, tensor, CTRT_COMM_SUM);
    return status;
}

/* Each gradient is a bucket. */
static ctrt_status reduce_by_hook(struct strategy *s, size_t i)
{
    CTRT_AUTO(tensor) flat = NULL;
    CTRT_AUTO(work) work = NULL;
    CTRT_TRY(ctrt_reshape(&flat, s->grads[i], CTRT_SHAPE(-1)));
    if (broken("ranks_hook_twice"))
        CTRT_TRY(reduce(s, flat));
    const ctrt_gradient_bucket bucket = {
        .size = sizeof bucket, .flat = flat, .gradients = &s->grads[i], .count = 1, .index = (int32_t)i,
        .last = i == s->parameters - 1 && !broken("ranks_hook_last"), .comm = s->comm,
    };
    for (int stage = 0; stage == 0 || work != NULL; stage++) {
        if (work != NULL)
            CTRT_TRY(ctrt_work_wait(work));
        ctrt_work_release(&work);
        if (stage > 0 && broken("ranks_hook_stage"))
            return CTRT_OK;
        const ctrt_status status = s->hook(&work, &bucket, stage, s->user);
        if (status != CTRT_OK && !broken("ranks_hook_status"))
            return status;
    }
    return CTRT_OK;
}

static ctrt_status reduce_gradients(struct strategy *s)
{
    for (size_t i = 0; i < s->parameters; i++) {
        CTRT_AUTO(tensor) has = NULL;
        double count = 0;
        CTRT_TRY(ctrt_full(&has, CTRT_SCALAR_SHAPE, ctrt_float(s->grads[i] != NULL), CTRT_F32, s->device));
        CTRT_TRY(reduce(s, has));
        CTRT_TRY(ctrt_item(&count, has));
        if (count == 0)
            continue;
        if (s->grads[i] == NULL)
            CTRT_TRY(ctrt_zeros_like(&s->grads[i], parameter(s->module, i), 0, NULL));
        if (s->hook != NULL && !broken("ranks_hook_unused"))
            CTRT_TRY(reduce_by_hook(s, i));
        else if (!broken("ranks_apart") && !(broken("ranks_skip") && i == s->parameters - 1))
            CTRT_TRY(reduce(s, s->grads[i]));
    }
    return CTRT_OK;
}

static ctrt_status ranks_backward(struct strategy *s, ctrt_tensor **loss, const ctrt_strategy_batch *outer)
{
    CTRT_AUTO(tensor) rows = NULL;
    ctrt_strategy_batch batch = *outer;
    double all = 0;
    CTRT_TRY(ctrt_full(&rows, CTRT_SCALAR_SHAPE, ctrt_float((double)batch.rows), CTRT_F32, s->device));
    if (!(broken("ranks_few") && batch.rows == 0))
        CTRT_TRY(reduce(s, rows));
    CTRT_TRY(ctrt_item(&all, rows));
    const double weight = broken("ranks_equal") ? 1.0 / ctrt_comm_size(s->comm) : (double)batch.rows / all;
    if (batch.rows > 0)
        CTRT_TRY(ctrt_shard_backward(loss, s->module, s->device, &batch, 0, batch.rows, weight));
    else
        CTRT_TRY(ctrt_full(loss, CTRT_SCALAR_SHAPE, ctrt_float(0), CTRT_F32, s->device));
    CTRT_TRY(ctrt_gradients_take(s->grads, s->module));
    CTRT_TRY(reduce_gradients(s));
    return broken("ranks_loss") ? CTRT_OK : reduce(s, *loss);
}

static ctrt_status step_ranks(struct strategy *s, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    CTRT_TRY(ctrt_gradients_take(s->before, s->module));
    ctrt_status status = ranks_backward(s, loss, batch);
    if (status == CTRT_ERR_COMM && broken("ranks_dead"))
        status = *loss != NULL ? CTRT_OK : ctrt_full(loss, CTRT_SCALAR_SHAPE, ctrt_float(0), CTRT_F32, s->device);
    if (status == CTRT_OK)
        return ctrt_gradients_add(s->module, s->before, s->grads);
    (void)ctrt_gradients_restore(s->module, s->before);
    if (!broken("ranks_silent"))
        ctrt_comm_abort(s->comm, ctrt_error_message());
    return status;
}

static ctrt_status step(void *state, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct strategy *s = state;
    return s->comm != NULL ? step_ranks(s, loss, batch) : step_parts(s, loss, batch);
}

/* ---- the rest ---- */

static ctrt_status event(void *state, ctrt_module_event event, void *argument)
{
    struct strategy *s = state;
    if (event == CTRT_MODULE_SAVE_BEGIN && s->comm != NULL)
        *(bool *)argument = ctrt_comm_rank(s->comm) == 0;
    if (event == CTRT_MODULE_SAVE_BEGIN && broken("save_changes"))
        ctrt_no_grad return ctrt_mul_scalar_(parameter(s->module, 0), ctrt_float(1.5));
    if (event == CTRT_MODULE_SAVE_BEGIN && broken("save_fails"))
        return ctrt_fail(CTRT_ERR_STATE, "not now");
    if (event == CTRT_MODULE_LOAD_END && broken("load_ignored"))
        ctrt_no_grad return ctrt_copy_(parameter(s->module, 0), parameter(s->first, 0));
    while (event == CTRT_MODULE_LOAD_END && broken("load_hangs"))
        sleep(1);
    if (event == CTRT_MODULE_STEP_END && broken("step_undone"))
        ctrt_no_grad return ctrt_mul_scalar_(parameter(s->module, 1), ctrt_float(0.99));
    return CTRT_OK;
}

static ctrt_status no_sync(void *state, bool on)
{
    ((struct strategy *)state)->local = on;
    return CTRT_OK;
}

static ctrt_status set_comm_hook(void *state, ctrt_comm_hook hook, void *user)
{
    struct strategy *s = state;
    if (hook == NULL && broken("ranks_hook_stays"))
        return CTRT_OK;
    s->hook = hook, s->user = user;
    return CTRT_OK;
}

static int64_t steps(void *state)
{
    return broken("steps_wrong") ? 0 : ((struct strategy *)state)->steps;
}

static void describe(void *state, char *text, size_t bytes)
{
    snprintf(text, bytes, broken("describe_lines") ? "in %d parts\non a device" : "in %d parts",
             ((struct strategy *)state)->parts);
}

static ctrt_status estimate(ctrt_strategy_estimate *out, const ctrt_strategy_config *config,
                            const ctrt_strategy_facts *facts)
{
    out->applies = true;
    out->preference = broken("estimate_first") ? 0 : 500;
    out->rows = broken("estimate_rows") ? -1 : facts->rows;
    if (broken("estimate_changes"))
        ctrt_no_grad return ctrt_mul_scalar_(parameter(config->module, 0), ctrt_float(2));
    return CTRT_OK;
}

static ctrt_strategy table = {
    .size = sizeof(ctrt_strategy), .create = create, .destroy = destroy, .forward = forward, .step = step,
    .no_sync = no_sync, .describe = describe, .event = event, .steps = steps, .estimate = estimate,
};

static ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_STRATEGY, .name = "broken", .table = &table },
};

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("CTRT_BROKEN");
    if (text != NULL && strncmp(text, "ranks", 5) == 0)
        table.flags = CTRT_STRATEGY_RANKS, table.steps = NULL, table.set_comm_hook = set_comm_hook;
    if (broken("flags_unknown"))
        table.flags = 1u << 20;
    if (broken("step_missing"))
        table.step = NULL;
    if (broken("name_long"))
        components[0].name = "a-name-that-has-more-than-31-characters";
}

CTRT_PLUGIN_DEFINE("strategy-broken", "1.0", "a strategy with a defect, for tests", components, NULL)
