/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/op_node.c: nodes of the ops of ctrt/ops.def: recording, saved values, running the rule. */
#include "autograd/graph_growth.h"
#include "autograd/autograd_meta.h"
#include "autograd/rule.h"
#include "ops/op_common.h"
#include "tensor/scope.h"

/* ---- recording ---- */

static void op_node_free_values(struct op_node *node)
{
    if (node->n_saved == 0)
        return;
    int n = node->n_saved;
    node->n_saved = 0;
    for (int i = 0; i < n; i++) {
        scope_release_tensor(node->saved[i].tensor);
        tensor_release(node->saved[i].tensor);
    }
    autograd_count(autograd_here(), 0, -node->saved_bytes);
    node->saved_bytes = 0;
}

static void op_node_destroy(struct grad_node *base)
{
    struct op_node *node = (struct op_node *)base;
    op_node_free_values(node);
    if (unlikely(node->extra != NULL))
        host_free(node->extra);
    if (unlikely(node->node.edges != node->inline_edges))
        host_free(node->node.edges);
    free_list_put(FREE_NODE, node);
}

static const char *op_node_name(const struct grad_node *base)
{
    return op_table[((const struct op_node *)base)->op].name;
}

static ctrt_status remember(struct op_node *node, ctrt_tensor *const *inputs, int n_inputs,
                            const union op_attributes *attributes)
{
    size_t count = node->rule->remember(NULL, inputs, n_inputs, attributes);
    node->extra = host_alloc(MAX(count, 1) * sizeof *node->extra);
    ALLOC_CHECK(node->extra, count * sizeof *node->extra, "a graph node");
    node->rule->remember(node->extra, inputs, n_inputs, attributes);
    return CTRT_OK;
}

ctrt_status op_node_new(struct op_node **out, enum op op, const struct grad_rule *rule, const ctrt_tensor *result,
                        ctrt_tensor *const *inputs, int n_inputs, const union op_attributes *attributes)
{
    *out = NULL;
    for (int i = 0; i < n_inputs; i++)
        if (inputs[i])
            CTRT_TRY(grad_refresh(inputs[i]));

    struct op_node *node = free_list_take(FREE_NODE, sizeof *node);
    ALLOC_CHECK(node, sizeof *node, "a graph node");
    struct grad_edge *edges = node->inline_edges;
    if (unlikely(n_inputs > NODE_INLINE_EDGES)) {
        edges = host_alloc((size_t)n_inputs * sizeof *edges);
        if (edges == NULL) {
            free_list_put(FREE_NODE, node);
            return out_of_memory((size_t)n_inputs * sizeof *edges, "the edges of a graph node");
        }
    }
    bool any = false;
    for (int i = 0; i < n_inputs; i++) {
        edges[i] = grad_edge_to(inputs[i]);
        any |= edges[i].to != NULL;
    }
    if (unlikely(!any)) {
        if (edges != node->inline_edges)
            host_free(edges);
        free_list_put(FREE_NODE, node);
        return CTRT_OK;
    }
    node_init(&node->node, &op_node_class, (uint32_t)n_inputs, 1);
    node_take_stream(&node->node, result->device);
    node->node.edges = edges;
    node->node.shapes = &node->shape;
    node->rule = rule;
    node->op = (uint16_t)op;
    graph_growth_note(&node->node);
    node->n_saved = 0;
    node->had_saved = false;
    node->saved_bytes = 0;
    node->extra = NULL;
    node->has_attributes = attributes != NULL;
    atomic_init(&node->state, SAVED_THERE);
    grad_shape_of(&node->shape, result);
    if (attributes)
        node->attributes = *attributes;
    if (unlikely(rule->remember != NULL)) {
        ctrt_status status = remember(node, inputs, n_inputs, attributes);
        if (status != CTRT_OK) {
            node_release(&node->node);
            return status;
        }
    }
    *out = node;
    return CTRT_OK;
}

ctrt_status op_node_save(struct op_node *node, ctrt_tensor *tensor, int position, bool output)
{
    if (unlikely(node->n_saved == NODE_SAVED)) {
        tensor_release(tensor);
        return fail_from(CTRT_ERR_INTERNAL, op_table[node->op].name, "more than %d saved values", NODE_SAVED);
    }
    struct saved *saved = &node->saved[node->n_saved++];
    scope_hold(tensor);
    saved->tensor = tensor;
    saved->version = tensor_version(tensor);
    saved->position = (uint8_t)position;
    saved->output = output;
    node->had_saved = true;
    int64_t bytes = tensor->view.numel * (int64_t)dtype_bytes(tensor_dtype(tensor));
    node->saved_bytes += bytes;
    autograd_count(&autograd_thread, 0, bytes);
    return CTRT_OK;
}

uint32_t op_node_wants(const struct op_node *node, bool outputs)
{
    uint32_t set = 0;
    uint32_t n = MIN(node->node.n_in, RULE_INPUTS);
    if (node->rule->has_number_form && n == 1 && node->has_attributes)
        return outputs ? 0 : node->attributes.scalar.left ? node->rule->number_left : node->rule->number_right;
    for (uint32_t i = 0; i < n; i++)
        if (node->node.edges[i].to)
            set |= outputs ? node->rule->saves[i].outputs : node->rule->saves[i].inputs;
    return set;
}

ctrt_status op_node_save_results(struct op_node *node, ctrt_tensor *const *results, int n_results)
{
    uint32_t wants = op_node_wants(node, true);
    for (int i = 0; wants && i < n_results; i++, wants >>= 1) {
        if (!(wants & 1))
            continue;
        ctrt_tensor *tensor = NULL;
        if (i == 0) {
            CTRT_TRY(tensor_alias(&tensor, results[0]));
        } else {
            tensor = results[i];
            tensor_retain(tensor);
        }
        CTRT_TRY(op_node_save(node, tensor, i, true));
    }
    return CTRT_OK;
}

ctrt_status autograd_record(enum op op, ctrt_tensor **results, int n_results, ctrt_tensor *const *inputs, int n_inputs,
                            const union op_attributes *attributes)
{
    const struct grad_rule *rule = grad_rules[op];
    if (rule == NULL || thread_state.grad_disabled || !dtype_floating(tensor_dtype(results[0])))
        return CTRT_OK;
    struct op_node *node = NULL;
    CTRT_TRY(op_node_new(&node, op, rule, results[0], inputs, n_inputs, attributes));
    if (node == NULL)
        return CTRT_OK;
    ctrt_status status = CTRT_OK;
    uint32_t wants = op_node_wants(node, false);
    for (int i = 0; wants && i < n_inputs && status == CTRT_OK; i++, wants >>= 1)
        if ((wants & 1) && inputs[i]) {
            tensor_retain(inputs[i]);
            status = op_node_save(node, inputs[i], i, false);
        }
    if (likely(status == CTRT_OK))
        status = op_node_save_results(node, results, n_results);
    if (likely(status == CTRT_OK))
        return grad_set_history(results[0], &node->node, 0);
    node_release(&node->node);
    return status;
}

void *autograd_history(ctrt_tensor *tensor)
{
    if (tensor->grad == NULL || grad_refresh(tensor) != CTRT_OK || tensor->grad->node == NULL)
        return NULL;
    node_retain(tensor->grad->node);
    return tensor->grad->node;
}

void autograd_history_release(void *history)
{
    if (history != NULL)
        node_release(history);
}

int64_t autograd_sum_terms(ctrt_tensor *tensor)
{
    const struct grad_node *node = tensor->grad != NULL ? tensor->grad->node : NULL;
    while (node != NULL && node->class == &op_node_class && node->n_in == 1 && node->edges[0].to != NULL) {
        const enum op op = ((const struct op_node *)node)->op;
        const struct grad_want input = edge_want(&node->edges[0]);
        if (op == OP_sum)
            return shape_numel(input.shape, input.ndim);
        if ((op != OP_to && op != OP_view) || edge_is_leaf(&node->edges[0]))
            return 0;
        node = edge_node(&node->edges[0]);
    }
    return 0;
}

/* ---- running ---- */

ctrt_status saved_changed(const char *what, int position, const ctrt_tensor *tensor, uint32_t saved_version)
{
    char text[SHAPE_TEXT_BYTES];
    return ctrt_fail(CTRT_ERR_AUTOGRAD,
                     "its %s %d, a tensor %s of %s, was changed in place after it was saved: it was saved at version "
                     "%u and is at version %u now; change a clone instead, or use the op that returns a new tensor",
                     what, position,
                     shape_text(text, tensor->view.shape, tensor->view.ndim), ctrt_dtype_name(tensor_dtype(tensor)),
                     saved_version, tensor_version(tensor));
}

/* Returns the saved values for one run in `to`, with a reference to each. If the graph is retained (`stays`), the node
 * keeps them too; otherwise they are moved out of the node, which only one run can do, and *bytes is their size. */
static ctrt_status claim(struct op_node *node, struct saved *to, int *count, int64_t *bytes, bool stays)
{
    *count = 0;
    *bytes = 0;
    if (!node->had_saved)
        return CTRT_OK;
    for (;;) {
        unsigned char state = SAVED_THERE;
        if (atomic_compare_exchange_weak_explicit(&node->state, &state, stays ? SAVED_LOCKED : SAVED_TAKEN,
                                                  memory_order_acq_rel, memory_order_acquire))
            break;
        if (state == SAVED_TAKEN)
            return ctrt_fail(CTRT_ERR_AUTOGRAD,
                             "the graph was freed by an earlier backward; to run backward twice, call the first with "
                             "retain_graph (ctrt_backward_with)");
        if (state == SAVED_STALE)
            return ctrt_fail(CTRT_ERR_AUTOGRAD,
                             "a saved tensor was changed in place, as an earlier backward reported");
    }
    *count = node->n_saved;
    for (int i = 0; i < node->n_saved; i++) {
        to[i] = node->saved[i];
        if (stays)
            tensor_retain(to[i].tensor);
        else
            scope_release_tensor(to[i].tensor);
    }
    if (stays) {
        atomic_store_explicit(&node->state, SAVED_THERE, memory_order_release);
    } else {
        *bytes = node->saved_bytes;
        node->n_saved = 0;
        node->saved_bytes = 0;
    }
    return CTRT_OK;
}

/* Releases the saved values after one of them was found to be changed in place, because the node can never run again.
 * This also breaks the reference cycle that exists if a saved tensor was changed in place by a result of the same op.
 * `taken`: claim has moved the values out of the node. */
static void make_stale(struct op_node *node, bool taken)
{
    unsigned char state = SAVED_THERE;
    if (taken) {
        atomic_store_explicit(&node->state, SAVED_STALE, memory_order_release);
        return;
    }
    while (!atomic_compare_exchange_weak_explicit(&node->state, &state, SAVED_STALE, memory_order_acq_rel,
                                                  memory_order_acquire)) {
        if (state == SAVED_TAKEN || state == SAVED_STALE)
            return;
        state = SAVED_THERE;
    }
    op_node_free_values(node);
}

/* Replaces a saved result by an alias with the result's history, so that the rule's own computation is
 * differentiable. */
static ctrt_status restore(struct op_node *node, const struct node_run *run, struct saved *saved)
{
    ctrt_tensor *alias = NULL;
    ctrt_status status;
    CTRT_TRY(tensor_alias(&alias, saved->tensor));
    if (run->owner) {
        status = run->restore(run->owner, alias);
    } else {
        node_retain(&node->node);
        status = grad_set_history(alias, &node->node, 0);
    }
    if (status != CTRT_OK)
        tensor_release(alias);
    else
        tensor_move(&saved->tensor, alias);
    return status;
}

static ctrt_status op_node_unpack(struct grad_context *ctx, struct op_node *node, const struct node_run *run,
                                  struct saved *saved, int count)
{
    for (int i = 0; i < count; i++) {
        ctrt_tensor *tensor = saved[i].tensor;
        if (unlikely(tensor_version(tensor) != saved[i].version))
            return saved_changed(saved[i].output ? "result" : "operand", saved[i].position + 1, tensor,
                                 saved[i].version);
        if (!saved[i].output) {
            ctx->inputs[saved[i].position] = tensor;
            continue;
        }
        if (saved[i].position == 0 && run->create_graph) {
            CTRT_TRY(restore(node, run, &saved[i]));
            tensor = saved[i].tensor;
        }
        ctx->outputs[saved[i].position] = tensor;
    }
    return CTRT_OK;
}

static ctrt_status op_node_run(struct grad_node *base, const struct node_run *run, ctrt_tensor **dx,
                               ctrt_tensor *const *dy)
{
    struct op_node *node = (struct op_node *)base;
    struct saved saved[NODE_SAVED];
    int count;
    int64_t bytes;
    if (dy[0] == NULL)
        return CTRT_OK;
    CTRT_TRY(claim(node, saved, &count, &bytes, run->retain_graph));
    struct grad_context ctx = {
        .node = node,
        .attributes = node->has_attributes ? &node->attributes : NULL,
        .extra = node->extra,
        .needs = run->needs,
        .n_in = (int)base->n_in,
        .create_graph = run->create_graph,
    };
    ctrt_status status = CTRT_OK;
    if (count) {
        status = op_node_unpack(&ctx, node, run, saved, count);
        if (unlikely(status != CTRT_OK))
            make_stale(node, !run->retain_graph);
    }
    if (likely(status == CTRT_OK))
        status = node->rule->vjp(&ctx, dx, dy);
    for (int i = 0; i < count; i++)
        tensor_release(saved[i].tensor);
    if (bytes)
        autograd_count(autograd_here(), 0, -bytes);
    return status;
}

/* Locks the saved values, because another thread may be claiming them. */
static void op_node_visit(struct grad_node *base, void (*report)(void *user, void *object, bool is_tensor), void *user)
{
    struct op_node *node = (struct op_node *)base;
    unsigned char state = SAVED_THERE;
    while (!atomic_compare_exchange_weak_explicit(&node->state, &state, SAVED_LOCKED, memory_order_acq_rel,
                                                  memory_order_acquire)) {
        if (state == SAVED_TAKEN || state == SAVED_STALE)
            return;
        state = SAVED_THERE;
    }
    for (int i = 0; i < node->n_saved; i++)
        report(user, node->saved[i].tensor, true);
    atomic_store_explicit(&node->state, SAVED_THERE, memory_order_release);
}

const struct node_class op_node_class = { op_node_run, op_node_name, op_node_destroy, op_node_visit };
