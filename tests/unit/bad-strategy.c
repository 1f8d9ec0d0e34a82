/* SPDX-License-Identifier: Apache-2.0 */
/* bad-strategy.c: invalid arguments of the functions for strategies, in parallel.h and strategy_plugin.h. */
#include <string.h>

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
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_result(&one, NULL));
    FINE(ctrt_sum_tree_new(&tree, 2, 1, p.cpu) == CTRT_OK && ctrt_sum_tree_new(&other, 3, 1, p.cpu) == CTRT_OK);
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_add(tree, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_add(tree, -1, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_add(tree, 2, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_merge(tree, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_merge(NULL, tree));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_merge(tree, tree));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_merge(tree, other));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_result(NULL, tree));
    BAD(STATE, ctrt_sum_tree_result(&one, tree));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_put(NULL, 0, 0, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_put(tree, 0, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_put(tree, -1, 0, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_put(tree, 1, 1, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_put(tree, 64, 0, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_take(NULL, &level, &index, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_take(tree, NULL, &index, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_take(tree, &level, NULL, &one));
    BAD(INVALID_ARGUMENT, ctrt_sum_tree_take(tree, &level, &index, NULL));
    FINE(ctrt_sum_tree_take(tree, &level, &index, &one) == CTRT_OK && level == -1);
    FINE((ctrt_sum_tree_release(&tree), ctrt_sum_tree_release(&other), ctrt_sum_tree_release(NULL), tree == NULL));
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
    const ctrt_strategy_batch batch = { sizeof batch, inputs, 1, 0, 2, no_loss, NULL },
                              hollow = { .size = sizeof hollow };
    const int64_t sizes[2] = { 1, 1 };
    ctrt_shard_range range = { .count = 2, .sizes = sizes, .total = 2 }, far = { .first = 1, .count = 2,
                                     .sizes = sizes, .total = 2 }, unsized = { .count = 1, .total = 1 };
    bad_sum_trees();
    BAD(INVALID_ARGUMENT, ctrt_parallel_new(NULL, p.linear, "single", &p.cpu, 1));
    BAD(INVALID_ARGUMENT, ctrt_parallel_new(&net, NULL, "single", &p.cpu, 1));
    BAD(INVALID_ARGUMENT, ctrt_parallel_new(&net, p.linear, "single", hole, 2));
    BAD(INVALID_ARGUMENT, ctrt_parallel_new(&net, p.linear, "single", NULL, 2));
    BAD(INVALID_ARGUMENT, ctrt_parallel_new(&net, p.linear, "single", &p.cpu, 0));
    BAD(INVALID_ARGUMENT, ctrt_parallel_new(&net, p.linear, "no/name", &p.cpu, 1));
    BAD(NOT_FOUND, ctrt_parallel_new(&net, p.linear, "nosuch", &p.cpu, 1));
    BAD(INVALID_ARGUMENT, ctrt_parallel_new_comm(&net, p.linear, "single", NULL));
    FINE(ctrt_parallel_comm(NULL) == NULL && ctrt_parallel_comm(p.linear) == NULL);
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, NULL, inputs, 1, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, p.linear, inputs, 1, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_no_sync(NULL, true));
    BAD(INVALID_ARGUMENT, ctrt_parallel_no_sync(p.linear, true));
    BAD(INVALID_ARGUMENT, ctrt_parallel_set_comm_hook(NULL, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_set_comm_hook(p.linear, NULL, NULL));
    FINE(strcmp(ctrt_parallel_describe(NULL), "") == 0 && strcmp(ctrt_parallel_describe(p.linear), "") == 0);
    FINE(ctrt_parallel_new(&net, p.linear, "single", &p.cpu, 1) == CTRT_OK);
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(NULL, net, inputs, 1, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, net, NULL, 1, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, net, inputs, 0, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, net, inputs, 65, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, net, none, 1, no_loss, NULL));
    BAD(INVALID_ARGUMENT, ctrt_parallel_step(&out, net, inputs, 1, NULL, NULL));
    BAD(SHAPE, ctrt_parallel_step(&out, net, &p.number, 1, no_loss, NULL));
    BAD(SHAPE, ctrt_parallel_step(&out, net, &p.none, 1, no_loss, NULL));
    FINE((ctrt_module_release(&net), net == NULL));

    BAD(INVALID_ARGUMENT, ctrt_module_memory_budget(NULL, p.linear, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_module_memory_budget(&bytes, NULL, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_module_memory_budget(&bytes, p.linear, NULL));
    FINE(!ctrt_dry_run_active(p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_sync_batch_norm_new(NULL, 3, 0, 0, true, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sync_batch_norm_new(&net, -3, 0, 0, true, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sync_batch_norm_new(&net, 3, 0, 2, true, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_convert_sync_batch_norm(NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sync_layers_find(NULL, p.linear));
    BAD(INVALID_ARGUMENT, ctrt_sync_layers_find(&layers, NULL));
    FINE((ctrt_sync_layers_abort(NULL, "x"), ctrt_sync_layers_abort(p.linear, NULL), layers.layers == 0));
    FINE((ctrt_swap_batch_ranks(NULL), true));

    BAD(INVALID_ARGUMENT, ctrt_module_sha256(NULL, p.linear));
    BAD(INVALID_ARGUMENT, ctrt_module_sha256(text, NULL));
    BAD(INVALID_ARGUMENT, ctrt_gradients_take(NULL, p.linear));
    BAD(INVALID_ARGUMENT, ctrt_gradients_take(none, NULL));
    BAD(INVALID_ARGUMENT, ctrt_gradients_restore(NULL, none));
    BAD(INVALID_ARGUMENT, ctrt_gradients_restore(p.linear, NULL));
    BAD(INVALID_ARGUMENT, ctrt_gradients_add(NULL, none, none));
    BAD(INVALID_ARGUMENT, ctrt_gradients_add(p.linear, NULL, none));
    BAD(INVALID_ARGUMENT, ctrt_gradients_add(p.linear, none, NULL));
    FINE((ctrt_gradients_release(NULL, 3), ctrt_gradients_release(none, 4), true));
    FINE(!ctrt_set_streams_ordered(true) && ctrt_set_streams_ordered(false));

    BAD(INVALID_ARGUMENT, ctrt_shard_backward(NULL, p.linear, p.cpu, &batch, 0, 2, 1));
    BAD(INVALID_ARGUMENT, ctrt_shard_backward(&out, NULL, p.cpu, &batch, 0, 2, 1));
    BAD(INVALID_ARGUMENT, ctrt_shard_backward(&out, p.linear, NULL, &batch, 0, 2, 1));
    BAD(INVALID_ARGUMENT, ctrt_shard_backward(&out, p.linear, p.cpu, NULL, 0, 2, 1));
    BAD(INVALID_ARGUMENT, ctrt_shard_backward(&out, p.linear, p.cpu, &hollow, 0, 2, 1));
    BAD(ANY, ctrt_shard_backward(&out, p.linear, p.cpu, &batch, 1, 2, 1));
    FINE(ctrt_sum_tree_new(&tree, 2, 3, p.cpu) == CTRT_OK);
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(NULL, p.linear, p.cpu, &batch, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, NULL, p.cpu, &batch, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, p.linear, NULL, &batch, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, p.linear, p.cpu, NULL, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, p.linear, p.cpu, &hollow, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, p.linear, p.cpu, &batch, NULL));
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, p.linear, p.cpu, &batch, &far));
    BAD(INVALID_ARGUMENT, ctrt_shards_backward(tree, p.linear, p.cpu, &batch, &unsized));
    BAD(INVALID_ARGUMENT, ctrt_shards_forward(NULL, p.linear, p.cpu, inputs, 1, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_forward(&out, NULL, p.cpu, inputs, 1, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_forward(&out, p.linear, NULL, inputs, 1, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_forward(&out, p.linear, p.cpu, NULL, 1, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_forward(&out, p.linear, p.cpu, inputs, 65, &range));
    BAD(INVALID_ARGUMENT, ctrt_shards_forward(&out, p.linear, p.cpu, inputs, 1, &far));
    FINE((ctrt_sum_tree_release(&tree), tree == NULL));
}
