/* SPDX-License-Identifier: Apache-2.0 */
/* strategy-old.c: a strategy for ABI 1.0: all ranks have equal numbers of rows, and average their gradients. */
#include <ctrt/ctrt.h>
#include <ctrt/strategy_plugin.h>
#include <stdio.h>
#include <stdlib.h>

static const ctrt_host *host;

struct old {
    ctrt_module *module;
    ctrt_device *device;
    ctrt_comm *comm;
    size_t count;
    ctrt_tensor **before, **grads;
    int64_t steps;
};

static void old_destroy(void *self)
{
    struct old *old = self;
    free(old->before);
    free(old->grads);
    free(old);
}

static ctrt_status begin_equal(const struct old *old)
{
    ctrt_tensor *tensor = NULL;
    for (size_t i = 0; i < old->count; i++) {
        CTRT_TRY(ctrt_module_parameter(NULL, &tensor, old->module, i));
        CTRT_TRY(ctrt_comm_broadcast(NULL, old->comm, tensor, 0));
    }
    return CTRT_OK;
}

static ctrt_status old_create(void **out, const ctrt_strategy_config *config)
{
    struct old *old = calloc(1, sizeof *old);
    if (old == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "old: no memory");
    old->module = config->module;
    old->device = config->devices[0];
    old->comm = config->comm;
    old->count = ctrt_module_parameter_count(config->module);
    old->before = calloc(old->count + 1, sizeof *old->before);
    old->grads = calloc(old->count + 1, sizeof *old->grads);
    ctrt_status status = old->before != NULL && old->grads != NULL ? CTRT_OK : CTRT_ERR_OUT_OF_MEMORY;
    if (status == CTRT_OK)
        ctrt_no_grad status = begin_equal(old);
    if (status == CTRT_OK)
        *out = old;
    else
        old_destroy(old);
    return status;
}

static ctrt_status old_forward(void *self, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    return ctrt_forward_n(y, ((struct old *)self)->module, inputs, count);
}

static ctrt_status old_step(void *self, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct old *old = self;
    ctrt_strategy_batch own = *batch;
    ctrt_loss_part part = { .parts = 0 };
    own.partial = (int16_t)(own.partial & ~CTRT_PARTIAL_RANKS);
    CTRT_TRY(ctrt_gradients_take(old->before, old->module));
    ctrt_status status = ctrt_part_backward(loss, &part, old->module, old->device, &own, 0, own.rows, 1, NULL, NULL);
    if (status == CTRT_OK)
        status = ctrt_gradients_take(old->grads, old->module);
    for (size_t i = 0; i < old->count && status == CTRT_OK; i++)
        if (old->grads[i] != NULL)
            ctrt_no_grad status = ctrt_comm_all_reduce(NULL, old->comm, old->grads[i], CTRT_COMM_AVERAGE);
    if (status == CTRT_OK)
        return ctrt_step_finish(loss, old->module, old->before, old->grads, &part, &own);
    ctrt_loss_part_release(&part);
    return status;
}

static ctrt_status old_event(void *self, ctrt_module_event event, void *argument)
{
    (void)argument;
    ((struct old *)self)->steps += event == CTRT_MODULE_STEP_END;
    return CTRT_OK;
}

static void old_describe(void *self, char *text, size_t bytes)
{
    const struct old *old = self;
    snprintf(text, bytes, "rank %d of %d, %lld steps", ctrt_comm_rank(old->comm), ctrt_comm_size(old->comm),
             (long long)old->steps);
}

static const ctrt_strategy strategy = {
    .size = sizeof(ctrt_strategy), .flags = CTRT_STRATEGY_RANKS, .create = old_create, .destroy = old_destroy,
    .forward = old_forward, .step = old_step, .describe = old_describe, .event = old_event,
};

static ctrt_status init(const ctrt_host *the_host)
{
    host = the_host;
    return CTRT_OK;
}

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_STRATEGY, .name = "old", .table = &strategy },
};
CTRT_PLUGIN_DEFINE("strategy-old", "1.0", "a strategy for ABI 1.0", components, init)
