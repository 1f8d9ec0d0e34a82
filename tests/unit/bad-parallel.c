/* SPDX-License-Identifier: Apache-2.0 */
/* bad-parallel.c: invalid arguments of the functions in parallel.h. */
#include "bad-input.h"

static ctrt_status nothing(void *user, int index)
{
    (void)user, (void)index;
    return CTRT_OK;
}

static void bad_trees(void)
{
    ctrt_tree *tree = NULL, *items[2] = { NULL, NULL };
    const char *names[2] = { "a", NULL }, *same[2] = { "a", "a" };
    NULL_IN2(ctrt_tree_of_tensor, &tree, p.x);
    NULL_IN2(ctrt_tree_of_list, &tree, items, 2);
    NULL_IN3(ctrt_tree_of_map, &tree, same, items, 2);
    BAD(INVALID_ARGUMENT, ctrt_tree_of_pointer(NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_tree_of_map(&tree, names, items, 2));
    BAD(INVALID_ARGUMENT, ctrt_tree_of_map(&tree, same, items, 2));
    BAD(ANY, ctrt_tree_of_list(&tree, items, SIZE_MAX));
    FINE(ctrt_tree_retain(NULL) == NULL && ctrt_tree_kind_of(NULL) == CTRT_TREE_NOTHING &&
         ctrt_tree_tensor(NULL) == NULL && ctrt_tree_pointer(NULL) == NULL && ctrt_tree_count(NULL) == 0 &&
         ctrt_tree_item(NULL, 0) == NULL && ctrt_tree_name(NULL, 0) == NULL && ctrt_tree_find(NULL, "a") == NULL &&
         ctrt_tree_find(NULL, NULL) == NULL);
    FINE((ctrt_tree_release(&tree), ctrt_tree_release(NULL), tree == NULL));
}

void bad_parallel(void)
{
    int64_t sizes[2];
    int count = 0;
    ctrt_device *devices[2] = { p.cpu, p.cpu }, *hole[2] = { p.cpu, NULL };
    ctrt_tensor *pieces[2] = { NULL, NULL }, *pair[2] = { p.x, p.wide }, *missing[2] = { p.x, NULL };
    ctrt_tree *trees[2] = { NULL, NULL };
    ctrt_module *modules[2] = { NULL, NULL }, *copy = NULL;
    const ctrt_scatter_options unknown = { .size = sizeof(ctrt_scatter_options), .rule = (ctrt_chunk_rule)9 };
    bad_trees();
    NULL_IN2(ctrt_chunk_sizes, sizes, &count, 5, 2, NULL);
    NULL_IN2(ctrt_module_copy, &copy, p.linear, NULL);
    NULL_IN3(ctrt_scatter_tensor, pieces, &count, p.x, devices, 2, 0, NULL);
    NULL_IN2(ctrt_scatter_tree, trees, &count, NULL, devices, 2, 0, NULL);
    NULL_IN2(ctrt_gather_tensor, &out, pair, 2, p.cpu, 0);
    NULL_IN2(ctrt_gather_tree, trees, trees, 2, p.cpu, 0);
    NULL_IN3(ctrt_replicate, modules, p.linear, devices, 2);
    NULL_IN3(ctrt_parallel_forward, pieces, &p.linear, pair, devices, 1);
    BAD(INVALID_ARGUMENT, ctrt_chunk_sizes(sizes, &count, -1, 2, NULL));
    BAD(INVALID_ARGUMENT, ctrt_chunk_sizes(sizes, &count, 5, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_chunk_sizes(sizes, &count, 5, 2, &unknown));
    BAD(INVALID_ARGUMENT, ctrt_scatter_tensor(pieces, &count, p.x, NULL, 2, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_scatter_tensor(pieces, &count, p.x, hole, 2, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_scatter_tensor(pieces, &count, p.x, devices, -3, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_scatter_tensor(pieces, &count, p.x, devices, 2, 0, &unknown));
    BAD(INVALID_ARGUMENT, ctrt_scatter_tree(trees, &count, NULL, hole, 2, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_gather_tensor(&out, missing, 2, p.cpu, 0));
    BAD(INVALID_ARGUMENT, ctrt_gather_tensor(&out, pair, 0, p.cpu, 0));
    BAD(INVALID_ARGUMENT, ctrt_gather_tree(trees, trees, -1, p.cpu, 0));
    BAD(SHAPE, ctrt_scatter_tensor(pieces, &count, p.x, devices, 2, 99, NULL));
    BAD(SHAPE, ctrt_scatter_tensor(pieces, &count, p.number, devices, 2, 0, NULL));
    BAD(SHAPE, ctrt_gather_tensor(&out, pair, 2, p.cpu, 0));
    BAD(SHAPE, ctrt_gather_tensor(&out, pair, 2, p.cpu, 7));
    BAD(INVALID_ARGUMENT, ctrt_replicate(modules, p.linear, hole, 2));
    BAD(INVALID_ARGUMENT, ctrt_parallel_apply(NULL, NULL, devices, 2));
    BAD(INVALID_ARGUMENT, ctrt_parallel_apply(nothing, NULL, NULL, 2));
    BAD(INVALID_ARGUMENT, ctrt_parallel_apply(nothing, NULL, devices, 0));
    BAD(INVALID_ARGUMENT, ctrt_parallel_forward(pieces, &p.linear, pair, hole, 0));
    BAD(INVALID_ARGUMENT, ctrt_parallel_forward(pieces, modules, pair, devices, 2));
    FINE(!ctrt_devices_imbalanced(NULL, NULL, 2) && !ctrt_devices_imbalanced(NULL, hole, 2));
    FINE(pieces[0] == NULL && pieces[1] == NULL && trees[0] == NULL && modules[0] == NULL && copy == NULL);
}
