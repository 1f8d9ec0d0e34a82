/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/sum_tree.c: sums of lists of tensors whose bits do not depend on where the terms were computed. */
#include "base/array.h"
#include "base/base.h"
#include "ctrt/strategy_plugin.h"
#include "ops/op_common.h"
#include "parallel/replicas/devices.h"
#include "parallel/strategy/loss.h"

/* Node `index` of `level`: the sum of the leaves index << level to ((index + 1) << level) - 1. */
struct sum_tree_node {
    int level;
    int64_t index;
    ctrt_tensor **tensors;                  /* owned; elements may be NULL */
};

struct ctrt_sum_tree {
    ctrt_device *device;
    int64_t leaves;
    size_t count;                           /* tensors of a node */
    struct sum_tree_node *nodes;            /* the largest sums so far: no two of them are siblings */
    size_t node_count, node_capacity;
};

static void node_free(struct sum_tree_node *node, size_t count)
{
    ctrt_tensors_release(node->tensors, count);
    host_free(node->tensors);
    node->tensors = NULL;
}

/* Moves the tensors from[count], which become NULL, to to[count]. */
static void tensors_move(ctrt_tensor **to, ctrt_tensor **from, size_t count)
{
    memcpy(to, from, count * sizeof *to);
    memset(from, 0, count * sizeof *from);
}

ctrt_status ctrt_sum_tree_new(ctrt_sum_tree **out, int64_t leaves, size_t count, ctrt_device *device)
{
    NULL_CHECKS("sum_tree_new", out, device);
    if (leaves < 1)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sum_tree_new: %lld leaves, expected at least 1",
                         (long long)leaves);
    ctrt_sum_tree *tree = host_calloc(sizeof *tree);
    ALLOC_CHECK(tree, sizeof *tree, "a sum of gradients");
    tree->device = device;
    tree->leaves = leaves;
    tree->count = count;
    ctrt_sum_tree_release(out);
    *out = tree;
    return CTRT_OK;
}

size_t sum_tree_tensors(const ctrt_sum_tree *tree)
{
    return tree->count;
}

void ctrt_sum_tree_release(ctrt_sum_tree **tree)
{
    if (tree == NULL || *tree == NULL)
        return;
    for (size_t i = 0; i < (*tree)->node_count; i++)
        node_free(&(*tree)->nodes[i], (*tree)->count);
    host_free((*tree)->nodes);
    host_free(*tree);
    *tree = NULL;
}

/* ---- adding nodes ---- */

/* Returns whether one of the nodes is an ancestor of the other, or both are the same. */
static bool overlap(const struct sum_tree_node *a, const struct sum_tree_node *b)
{
    const struct sum_tree_node *low = a->level <= b->level ? a : b, *high = low == a ? b : a;
    return low->index >> (high->level - low->level) == high->index;
}

/* Adds the tensors of `right` to those of `left`. */
static ctrt_status node_add(struct sum_tree_node *left, struct sum_tree_node *right, size_t count)
{
    for (size_t t = 0; t < count; t++) {
        if (right->tensors[t] == NULL)
            continue;
        if (left->tensors[t] == NULL) {
            left->tensors[t] = right->tensors[t];
            right->tensors[t] = NULL;
        } else {
            CTRT_TRY(ctrt_add_(left->tensors[t], right->tensors[t]));
        }
    }
    return CTRT_OK;
}

/* Combines the node with its sibling, if the tree has it, then their parent with its sibling, and so on. */
static ctrt_status sum_tree_combine(ctrt_sum_tree *tree, struct sum_tree_node *node)
{
    while ((INT64_C(1) << node->level) < tree->leaves) {
        const int64_t other = node->index ^ 1;
        if (other << node->level < tree->leaves) {
            size_t at = 0;
            while (at < tree->node_count
                   && (tree->nodes[at].level != node->level || tree->nodes[at].index != other))
                at++;
            if (at == tree->node_count)
                return CTRT_OK;
            struct sum_tree_node sibling = tree->nodes[at];
            tree->nodes[at] = tree->nodes[--tree->node_count];
            if (sibling.index < node->index) {
                const struct sum_tree_node swapped = *node;
                *node = sibling;
                sibling = swapped;
            }
            ctrt_status status = node_add(node, &sibling, tree->count);
            node_free(&sibling, tree->count);
            CTRT_TRY(status);
        }
        node->level++;
        node->index >>= 1;
    }
    return CTRT_OK;
}

/* Moves the node to the tree's device and adds it. Takes ownership of the node. */
static ctrt_status node_move(ctrt_sum_tree *tree, struct sum_tree_node *node)
{
    const bool was = op_pause_recording(true);
    ctrt_status status = coalesced_move(node->tensors, tree->count, tree->device);
    for (size_t i = 0; i < tree->node_count && status == CTRT_OK; i++)
        if (overlap(&tree->nodes[i], node))
            status = ctrt_fail(CTRT_ERR_STATE, "sum tree: leaf %lld was added before",
                               (long long)(node->index << node->level));
    if (status == CTRT_OK)
        status = ARRAY_RESERVE(tree->nodes, tree->node_capacity, tree->node_count, "a sum of gradients");
    if (status == CTRT_OK)
        status = sum_tree_combine(tree, node);
    op_pause_recording(was);
    if (status == CTRT_OK)
        tree->nodes[tree->node_count++] = *node;
    else
        node_free(node, tree->count);
    return status;
}

static ctrt_status sum_tree_put_node(ctrt_sum_tree *tree, const char *who, int level, int64_t index,
                                     ctrt_tensor **tensors)
{
    NULL_CHECKS(who, tree, tensors);
    const size_t bytes = (tree->count + 1) * sizeof *tensors;
    struct sum_tree_node node = { .level = level, .index = index, .tensors = host_alloc(bytes) };
    const bool inside = level >= 0 && level < 63 && index >= 0 && index <= (tree->leaves - 1) >> level;
    if (node.tensors == NULL || !inside) {
        ctrt_tensors_release(tensors, tree->count);
        host_free(node.tensors);
        return node.tensors == NULL
                   ? out_of_memory(bytes, "a sum of gradients")
                   : ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: a tree of %lld leaves has no node %lld at level %d", who,
                               (long long)tree->leaves, (long long)index, level);
    }
    tensors_move(node.tensors, tensors, tree->count);
    return node_move(tree, &node);
}

ctrt_status ctrt_sum_tree_add(ctrt_sum_tree *tree, int64_t leaf, ctrt_tensor **tensors)
{
    return sum_tree_put_node(tree, "sum_tree_add", 0, leaf, tensors);
}

ctrt_status ctrt_sum_tree_put(ctrt_sum_tree *tree, int level, int64_t index, ctrt_tensor **tensors)
{
    return sum_tree_put_node(tree, "sum_tree_put", level, index, tensors);
}

ctrt_status ctrt_sum_tree_take(ctrt_sum_tree *tree, int *level, int64_t *index, ctrt_tensor **tensors)
{
    NULL_CHECKS("sum_tree_take", tree, level, index, tensors);
    *level = -1;
    if (tree->node_count == 0)
        return CTRT_OK;
    struct sum_tree_node *node = &tree->nodes[--tree->node_count];
    *level = node->level;
    *index = node->index;
    tensors_move(tensors, node->tensors, tree->count);
    node_free(node, tree->count);
    return CTRT_OK;
}

ctrt_status ctrt_sum_tree_merge(ctrt_sum_tree *tree, ctrt_sum_tree *from)
{
    NULL_CHECKS("sum_tree_merge", tree, from);
    if (tree == from || tree->leaves != from->leaves || tree->count != from->count)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "sum_tree_merge: expected two trees of one shape, not %s%lld "
                         "leaves of %zu tensors and %lld of %zu", tree == from ? "one tree twice: " : "",
                         (long long)tree->leaves, tree->count, (long long)from->leaves, from->count);
    while (from->node_count > 0) {
        struct sum_tree_node node = from->nodes[--from->node_count];
        CTRT_TRY(node_move(tree, &node));
    }
    return CTRT_OK;
}

ctrt_status ctrt_sum_tree_result(ctrt_tensor **out, ctrt_sum_tree *tree)
{
    NULL_CHECKS("sum_tree_result", out, tree);
    if (tree->node_count != 1 || INT64_C(1) << tree->nodes[0].level < tree->leaves)
        return ctrt_fail(CTRT_ERR_STATE, "sum_tree_result: not all of the %lld leaves were added",
                         (long long)tree->leaves);
    ctrt_tensor **tensors = tree->nodes[0].tensors;
    /* Tensors that were copied together are views of one memory block. Clone them, so that each owns its memory. */
    for (size_t t = 0; t < tree->count; t++) {
        const ctrt_tensor *sum = tensors[t];
        if (sum == NULL || sum->storage->bytes <= (size_t)sum->view.numel * dtype_bytes(tensor_dtype(sum)))
            continue;
        const bool was = op_pause_recording(true);
        ctrt_status status = ctrt_clone(&tensors[t], tensors[t]);
        op_pause_recording(was);
        CTRT_TRY(status);
    }
    tensors_move(out, tensors, tree->count);
    node_free(&tree->nodes[0], tree->count);
    tree->node_count = 0;
    return CTRT_OK;
}
