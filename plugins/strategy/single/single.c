/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/single/single.c: the strategy `single`: the module runs on its device. With one device it is the
 * reference for all other strategies, also in canonical mode. */
#include "config.h"

#include <stdio.h>

#include "../common.h"

struct single {
    ctrt_module *module;                    /* borrowed */
    ctrt_device *device;
    int32_t canonical;                      /* number of shards; 0: off */
    size_t parameters;                      /* length of the lists below */
    ctrt_tensor **before, **grads;          /* gradients from before a step, and of the step with its loss and the
                                             * loss's weight; scratch */
};

static ctrt_status check_place(ctrt_module *module, ctrt_device *device)
{
    size_t parameters, count;
    CTRT_TRY(strategy_tensors_count(&parameters, &count, module));
    for (size_t i = 0; i < count; i++) {
        const char *name;
        ctrt_tensor *tensor;
        CTRT_TRY(strategy_tensor_at(&name, &tensor, module, parameters, i));
        if (ctrt_tensor_device(tensor) != device)
            return ctrt_fail(CTRT_ERR_DEVICE, "\"%s\" is on %s, expected %s (devices[0]); move the module with "
                             "ctrt_module_to", name, ctrt_device_name(ctrt_tensor_device(tensor)),
                             ctrt_device_name(device));
    }
    return CTRT_OK;
}

static void single_destroy(void *self)
{
    struct single *single = self;
    free(single->before);
    free(single->grads);
    free(single);
}

static ctrt_status single_create(void **out, const ctrt_strategy_config *config)
{
    CTRT_TRY(check_place(config->module, config->devices[0]));
    struct single *single;
    CTRT_TRY(ALLOCATE(single, 1));
    single->module = config->module;
    single->device = config->devices[0];
    single->canonical = config->canonical;
    *out = single;
    return CTRT_OK;
}

/* The module may have got parameters, and may have been moved. */
static ctrt_status refresh(struct single *single)
{
    ctrt_device *device = NULL;
    const size_t count = ctrt_module_parameter_count(single->module);
    if (count > 0 && ctrt_module_device(&device, single->module) == CTRT_OK)
        single->device = device;
    if (single->before != NULL && single->grads != NULL && count == single->parameters)
        return CTRT_OK;
    free(single->before);
    free(single->grads);
    single->before = single->grads = NULL;
    single->parameters = count;
    CTRT_TRY(ALLOCATE(single->before, count + 1));
    return ALLOCATE(single->grads, count + 2);
}

static ctrt_status single_forward(void *self, ctrt_tensor **y, ctrt_tensor *const *inputs, int count)
{
    struct single *single = self;
    CTRT_TRY(refresh(single));
    return strategy_forward(y, single->module, single->device, inputs, count, single->canonical, true);
}

static ctrt_status backward_whole(struct single *single, ctrt_tensor **loss, ctrt_loss_part *total,
                                  const ctrt_strategy_batch *batch)
{
    CTRT_TRY(ctrt_part_backward(loss, total, single->module, single->device, batch, 0, batch->rows, 1, NULL, NULL));
    return ctrt_gradients_take(single->grads, single->module);
}

static ctrt_status backward_shards(struct single *single, ctrt_tensor **loss, ctrt_loss_part *total,
                                   const ctrt_strategy_batch *batch)
{
    ctrt_sum_tree *sum = NULL;
    ctrt_shard_range range;
    SCRATCH int64_t *sizes = NULL;
    CTRT_TRY(ALLOCATE(sizes, (size_t)single->canonical));
    CTRT_TRY(strategy_shards(&range, sizes, batch->rows, single->canonical, true, single->device));
    ctrt_status status = ctrt_sum_tree_new(&sum, range.total, single->parameters + 2, single->device);
    if (status == CTRT_OK)
        status = ctrt_shards_backward(sum, single->module, single->device, batch, &range);
    if (status == CTRT_OK)
        status = ctrt_sum_tree_result(single->grads, sum);
    ctrt_sum_tree_release(&sum);
    if (status == CTRT_OK) {
        *loss = single->grads[single->parameters];
        *total = (ctrt_loss_part){ .kind = range.kind, .parts = range.parts, .per_row = range.per_row,
                                   .weight = single->grads[single->parameters + 1] };
        single->grads[single->parameters] = single->grads[single->parameters + 1] = NULL;
    }
    return strategy_shards_end(status, single->device, &range);
}

static ctrt_status single_step(void *self, ctrt_tensor **loss, const ctrt_strategy_batch *batch)
{
    struct single *single = self;
    ctrt_loss_part total = { .parts = 0 };
    CTRT_TRY(refresh(single));
    CTRT_TRY(ctrt_gradients_take(single->before, single->module));
    ctrt_status status = single->canonical > 0 ? backward_shards(single, loss, &total, batch)
                                               : backward_whole(single, loss, &total, batch);
    if (status == CTRT_OK)
        return ctrt_step_finish(loss, single->module, single->before, single->grads, &total, batch);
    ctrt_loss_part_release(&total);
    (void)ctrt_gradients_restore(single->module, single->before);
    ctrt_tensors_release(single->grads, single->parameters + 2);
    return status;
}

static void single_describe(void *self, char *text, size_t bytes)
{
    const struct single *single = self;
    snprintf(text, bytes, "on %s", ctrt_device_name(single->device));
}

static ctrt_status single_estimate(ctrt_strategy_estimate *estimate, const ctrt_strategy_config *config,
                                   const ctrt_strategy_facts *facts)
{
    const int64_t shards = config->canonical > 0 ? config->canonical : 1;
    estimate->applies = true;
    estimate->preference = 100;
    estimate->bytes = facts->model_bytes;
    estimate->rows = (facts->rows + shards - 1) / shards;
    return CTRT_OK;
}

static const ctrt_strategy strategy = {
    .size = sizeof(ctrt_strategy), .flags = CTRT_STRATEGY_ONE_DEVICE, .create = single_create,
    .destroy = single_destroy, .forward = single_forward, .step = single_step, .describe = single_describe,
    .estimate = single_estimate,
};
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_STRATEGY, .name = "single", .table = &strategy },
};
CTRT_PLUGIN_DEFINE("strategy-single", PACKAGE_VERSION, "runs a module on one device", components, NULL)
