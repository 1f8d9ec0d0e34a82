/* SPDX-License-Identifier: Apache-2.0 */
/* bad-strategy.c: invalid arguments of the functions for strategies, in parallel.h and strategy_plugin.h. */
#include <string.h>

#include "../options.h"
#include "bad-input.h"
#include "ctrt/strategy_plugin.h"

static ctrt_status no_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count, void *user)
{
    (void)loss, (void)output, (void)inputs, (void)count, (void)user;
    return ctrt_fail(CTRT_ERR_INTERNAL, "called");
}

static void bad_sum_trees(void)
{
    ctrt_sum_tree *tree = NULL, *other = NULL;
    ctrt_tensor *one = NULL;
    int64_t index = 0;
    int level = 0;
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_new(NULL, 2, 1, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_new(&tree, 2, 1, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_new(&tree, 0, 1, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_add(NULL, 0, &one));
    FINE(ctrt_sum_tree_new(&tree, 2, 1, p.cpu) == CTRT_OK && ctrt_sum_tree_new(&other, 3, 1, p.cpu) == CTRT_OK);
    NULL_IN2(ctrt_sum_tree_merge, tree, other);
    NULL_IN2(ctrt_sum_tree_result, &one, tree);
    NULL_IN3(ctrt_sum_tree_take, tree, &level, &index, &one);
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_add(tree, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_add(tree, -1, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_add(tree, 2, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_merge(tree, tree));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_merge(tree, other));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_put(NULL, 0, 0, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_put(tree, 0, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_put(tree, -1, 0, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_put(tree, 1, 1, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_put(tree, 64, 0, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_take(tree, &level, &index, NULL));
    BAD(STATE, ctrt_sum_tree_result(&one, tree));
    FINE(ctrt_sum_tree_take(tree, &level, &index, &one) == CTRT_OK && level == -1);
    FINE((ctrt_sum_tree_release(&tree), ctrt_sum_tree_release(&other), ctrt_sum_tree_release(NULL), tree == NULL));
}

static ctrt_status no_elements(void *user)
{
    (void)user;
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "there are no elements");
}

static void bad_data(void)
{
    CTRT_AUTO(tensor) result = NULL;
    ctrt_tensor *parameter = NULL, *grad = NULL;
    NULL_IN2(ctrt_tensor_set_data, p.x, p.wide);
    BAD(DTYPE, ctrt_tensor_set_data(p.x, p.whole));
    FINE(ctrt_add(&result, p.leaf, p.leaf) == CTRT_OK);
    BAD(AUTOGRAD, ctrt_tensor_set_data(result, p.wide));
    FINE(ctrt_module_parameter(NULL, &parameter, p.linear, 0) == CTRT_OK && ctrt_clone(&grad, parameter) == CTRT_OK);
    ctrt_no_grad FINE(ctrt_tensor_set_grad(parameter, grad) == CTRT_OK);
    BAD(STATE, ctrt_tensor_set_data(parameter, p.wide));
    FINE(ctrt_tensor_set_grad(parameter, NULL) == CTRT_OK);
    ctrt_tensor_release(&grad);
    FINE((ctrt_tensor_set_version(NULL, 1), true));
    CTRT_AUTO(tensor) absent = NULL;
    BAD(INVALID_ARGUMENT, ctrt_tensor_new_absent(NULL, CTRT_SHAPE(2), CTRT_F32, p.cpu, no_elements, NULL));
    BAD(INVALID_ARGUMENT, ctrt_tensor_new_absent(&absent, CTRT_SHAPE(2), CTRT_F32, NULL, no_elements, NULL));
    BAD(INVALID_ARGUMENT, ctrt_tensor_new_absent(&absent, CTRT_SHAPE(2), CTRT_F32, p.cpu, NULL, NULL));
    BAD(SHAPE, ctrt_tensor_new_absent(&absent, CTRT_SHAPE(-1), CTRT_F32, p.cpu, no_elements, NULL));
    FINE(ctrt_tensor_new_absent(&absent, CTRT_SHAPE(2), CTRT_F32, p.cpu, no_elements, NULL) == CTRT_OK);
    BAD(NOT_FOUND, ctrt_exp(&result, absent));
    BAD(NOT_FOUND, ctrt_zero_(absent));
    BAD(NOT_FOUND, ctrt_tensor_share_(absent));
}

static void bad_losses(const ctrt_strategy_batch *batch, const ctrt_strategy_batch *hollow)
{
    ctrt_loss_part part = { .parts = 0 }, mean = { .parts = 1 }, sum = { .kind = CTRT_LOSS_SUM, .parts = 1 };
    ctrt_tensor *none[2] = { NULL }, *loss = NULL;
    BAD(INVALID_ARGUMENT, ctrt_part_loss(NULL, &part, p.x, batch->inputs, batch, 2));
    BAD(INVALID_ARGUMENT, ctrt_part_loss(&out, NULL, p.x, batch->inputs, batch, 2));
    BAD(INVALID_ARGUMENT, ctrt_part_loss(&out, &part, NULL, batch->inputs, batch, 2));
    BAD(INVALID_ARGUMENT, ctrt_part_loss(&out, &part, p.x, NULL, batch, 2));
    BAD(INVALID_ARGUMENT, ctrt_part_loss(&out, &part, p.x, batch->inputs, NULL, 2));
    NULL_IN3(ctrt_part_backward, &out, &part, p.linear, p.cpu, batch, 0, 2, 1, NULL, NULL);
    BAD(INVALID_ARGUMENT, ctrt_part_backward(&out, &part, p.linear, NULL, batch, 0, 2, 1, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_part_backward(&out, &part, p.linear, p.cpu, NULL, 0, 2, 1, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_part_backward(&out, &part, p.linear, p.cpu, hollow, 0, 2, 1, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_loss_part_add(NULL, &mean));
    BAD(INVALID_ARGUMENT, ctrt_loss_part_add(&mean, NULL));
    BAD(INVALID_ARGUMENT, ctrt_loss_parameter(NULL, p.x));
    BAD(INVALID_ARGUMENT, ctrt_loss_parameter(&out, NULL));
    const ctrt_part_module *before = ctrt_set_part_module(&(ctrt_part_module){ .module = NULL });
    BAD(ANY, ctrt_part_loss(&out, &part, p.x, batch->inputs, batch, 2));
    FINE((ctrt_set_part_module(before), ctrt_set_part_module(NULL) == before));
    BAD(STATE, ctrt_loss_part_add(&mean, &sum));
    FINE((ctrt_loss_part_release(NULL), ctrt_loss_part_release(&part), part.weight == NULL));
    BAD(INVALID_ARGUMENT, ctrt_step_finish(NULL, p.linear, none, none, &part, batch));
    BAD(INVALID_ARGUMENT, ctrt_step_finish(&loss, p.linear, none, none, &part, batch));
    FINE(ctrt_ones(&loss, CTRT_SCALAR_SHAPE, CTRT_F32, p.cpu) == CTRT_OK);
    BAD(INVALID_ARGUMENT, ctrt_step_finish(&loss, NULL, none, none, &part, batch));
    BAD(INVALID_ARGUMENT, ctrt_step_finish(&loss, p.linear, NULL, none, &part, batch));
    BAD(INVALID_ARGUMENT, ctrt_step_finish(&loss, p.linear, none, NULL, &part, batch));
    BAD(INVALID_ARGUMENT, ctrt_step_finish(&loss, p.linear, none, none, NULL, batch));
    BAD(INVALID_ARGUMENT, ctrt_step_finish(&loss, p.linear, none, none, &part, NULL));
    ctrt_tensor_release(&loss);
}

void bad_strategy(void)
{
    ctrt_tensor *none[4] = { NULL };
    ctrt_tensor *inputs[1] = { p.x };
    ctrt_device *hole[2] = { p.cpu, NULL };
    ctrt_module *net = NULL;
    ctrt_sum_tree *tree = NULL;
    uint64_t bytes = 0;
    ctrt_sync_layers layers = { .layers = 0 };
    char text[65];
    const ctrt_strategy_batch batch = { .size = sizeof batch, .inputs = inputs, .count = 1, .rows = 2,
                                        .loss = no_loss },
                              hollow = { .size = sizeof hollow };
    const int64_t sizes[2] = { 1, 1 };
    ctrt_shard_range range = { .count = 2, .sizes = sizes, .total = 2 }, far = { .first = 1, .count = 2,
                                     .sizes = sizes, .total = 2 }, unsized = { .count = 1, .total = 1 };
    bad_sum_trees();
    bad_data();
    bad_losses(&batch, &hollow);
    NULL_IN2(ctrt_parallel_new, &net, p.linear, "single", &p.cpu, 1);
    BAD(INVALID_ARGUMENT, ctrt_parallel_new(&net, p.linear, "single", hole, 2));
    BAD(INVALID_ARGUMENT, ctrt_parallel_new(&net, p.linear, "single", NULL, 2));
    BAD(INVALID_ARGUMENT, ctrt_parallel_new(&net, p.linear, "single", &p.cpu, 0));
    BAD(INVALID_ARGUMENT, ctrt_parallel_new(&net, p.linear, "no/name", &p.cpu, 1));
    BAD(INVALID_ARGUMENT, ctrt_parallel_new_comm(&net, p.linear, "single", NULL));
    BAD(NOT_FOUND, ctrt_parallel_new(&net, p.linear, "nosuch", &p.cpu, 1));
    FINE(ctrt_parallel_comm(NULL) == NULL && ctrt_parallel_comm(p.linear) == NULL);
    FINE(ctrt_parallel_steps(NULL) == 0 && ctrt_parallel_steps(p.linear) == 0);
    BAD(INVALID_ARGUMENT, ctrt_parallel_barrier(NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_barrier(p.linear));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, NULL, inputs, 1, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, p.linear, inputs, 1, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_no_sync(NULL, true));
    BAD(INVALID_ARGUMENT, ctrt_parallel_no_sync(p.linear, true));
    BAD(INVALID_ARGUMENT, ctrt_parallel_set_comm_hook(NULL, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_set_comm_hook(p.linear, NULL, NULL));
    FINE(strcmp(ctrt_parallel_describe(NULL), "") == 0 && strcmp(ctrt_parallel_describe(p.linear), "") == 0);
    FINE(ctrt_parallel_new(&net, p.linear, "single", &p.cpu, 1) == CTRT_OK);
    NULL_IN3(ctrt_parallel_step, &out, net, inputs, 1, no_loss, NULL);
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, net, inputs, 0, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, net, inputs, 65, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, net, none, 1, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, net, inputs, 1, NULL, NULL));
    NULL_IN3(ctrt_parallel_step_n, &out, net, inputs, 1, 1, no_loss, NULL);
    BAD(INVALID_ARGUMENT, ctrt_parallel_step_n(&out, net, inputs, 1, 0, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step_n(&out, net, inputs, 1, 2, no_loss, NULL));
    BAD(SHAPE, ctrt_parallel_step(&out, net, &p.number, 1, no_loss, NULL));
    BAD(SHAPE, ctrt_parallel_step(&out, net, &p.none, 1, no_loss, NULL));
    FINE((ctrt_module_release(&net), net == NULL));

    NULL_IN3(ctrt_module_memory_budget, &bytes, p.linear, p.cpu);
    NULL_IN2(ctrt_sync_layers_find, &layers, p.linear);
    FINE(!ctrt_dry_run_active(p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_sync_batch_norm_new(NULL, 3, NULL, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sync_batch_norm_new(&net, -3, NULL, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sync_batch_norm_new(&net, 3, NORM(.momentum = 2), NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_convert_sync_batch_norm(NULL, NULL));
    FINE((ctrt_sync_layers_abort(NULL, "x"), ctrt_sync_layers_abort(p.linear, NULL), layers.layers == 0));
    FINE((ctrt_swap_batch_ranks(NULL), true));

    NULL_IN2(ctrt_module_sha256, text, p.linear);
    NULL_IN2(ctrt_gradients_take, none, p.linear);
    NULL_IN2(ctrt_gradients_restore, p.linear, none);
    NULL_IN3(ctrt_gradients_add, p.linear, none, none);
    FINE((ctrt_tensors_release(NULL, 3), ctrt_tensors_release(none, 4), true));
    FINE(!ctrt_set_streams_ordered(true) && ctrt_set_streams_ordered(false));

    NULL_IN3(ctrt_shard_backward, &out, p.linear, p.cpu, &batch, 0, 2, 1);
    BAD(INVALID_ARGUMENT, ctrt_shard_backward(&out, p.linear, p.cpu, NULL, 0, 2, 1));
    BAD(INVALID_ARGUMENT, ctrt_shard_backward(&out, p.linear, p.cpu, &hollow, 0, 2, 1));
    BAD(ANY, ctrt_shard_backward(&out, p.linear, p.cpu, &batch, 1, 2, 1));
    FINE(ctrt_sum_tree_new(&tree, 2, 3, p.cpu) == CTRT_OK);
    NULL_IN3(ctrt_shard_forward, &out, p.linear, p.cpu, inputs, 1, 0, -1);
    BAD(ANY, ctrt_shard_forward(&out, p.linear, p.cpu, NULL, 1, 0, -1));
    BAD(ANY, ctrt_shard_forward(&out, p.linear, p.cpu, inputs, 65, 0, -1));
    BAD(ANY, ctrt_shard_forward(&out, p.linear, p.cpu, inputs, 1, 1, 2));

    NULL_IN3(ctrt_shards_backward, tree, p.linear, p.cpu, &batch, &range);
    NULL_IN3(ctrt_shards_forward, &out, p.linear, p.cpu, inputs, 1, &range);
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, p.linear, p.cpu, NULL, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, p.linear, p.cpu, &hollow, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, p.linear, p.cpu, &batch, NULL));
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, p.linear, p.cpu, &batch, &far));
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, p.linear, p.cpu, &batch, &unsized));
    BAD(INVALID_ARGUMENT, ctrt_shards_forward(&out, p.linear, p.cpu, NULL, 1, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_forward(&out, p.linear, p.cpu, inputs, 65, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_forward(&out, p.linear, p.cpu, inputs, 1, &far));
    FINE((ctrt_sum_tree_release(&tree), tree == NULL));
}
