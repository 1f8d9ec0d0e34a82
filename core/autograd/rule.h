/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/rule.h: the derivative of an op.
 *
 * Each differentiable op of ctrt/ops.def has `const struct grad_rule rule_NAME` in the file of its family. A rule calls
 * public ops, so it runs on every backend. With create_graph a rule runs in grad mode and must be differentiable
 * itself, so it may use the fused kernels of ops/backward.h that are not recorded only if ctx->create_graph is false.
 * The engine reduces broadcast dimensions and casts, so a rule may return a gradient in the shape and dtype of the
 * result. */
#ifndef CORE_AUTOGRAD_RULE_H
#define CORE_AUTOGRAD_RULE_H

#include "autograd/node.h"
#include "ctrt/autograd.h"
#include "ops/backward.h"

#define RULE_INPUTS  3                  /* greatest numbers of inputs and of results that can be saved */
#define RULE_RESULTS 3

struct grad_context {
    const struct op_node *node;
    ctrt_tensor *inputs[RULE_INPUTS];   /* NULL if not saved */
    ctrt_tensor *outputs[RULE_RESULTS];
    const union op_attributes *attributes;
    const int64_t *extra;
    uint64_t needs;
    int n_in;
    bool create_graph;
};

struct grad_rule {
    /* The sets of inputs and results to save for the gradient of input i; bit 0 is the first. */
    struct { uint8_t inputs, outputs; } saves[RULE_INPUTS];
    /* For an op that also takes a number instead of one operand: whether to save input 0 if the number is the right
     * operand, and if it is the left one. */
    bool has_number_form, number_right, number_left;
    /* Vector-Jacobian product: computes dx[i] for each input that needs a gradient (needs_grad). dx[n_in] is NULL on
     * entry, dy[0] is never NULL. On failure dx may hold gradients; the caller releases them. */
    ctrt_status (*vjp)(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy);
    /* Optional: stores integers about the inputs for the rule (ctx->extra), and returns their count. With `to` NULL it
     * only returns the count. */
    size_t (*remember)(int64_t *to, ctrt_tensor *const *inputs, int n_inputs, const union op_attributes *attributes);
};

/* Declares the rules that rules.c collects, so that a misspelt rule does not compile. */
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) \
    extern const struct grad_rule rule_##name;
#include "ctrt/ops.def"
#undef CTRT_OP

extern const struct grad_rule *const grad_rules[OP_COUNT];      /* rules.c; NULL if the op has no derivative */

static inline bool needs_grad(const struct grad_context *ctx, int input)
{
    return ctx->node->node.edges[input].to && (input >= 64 || ctx->needs >> input & 1);
}

/* Returns the shape of an input. Valid only for an input that needs a gradient. */
static inline ctrt_ints input_shape(const struct grad_context *ctx, int input)
{
    struct grad_want want = edge_want(&ctx->node->node.edges[input]);
    return ctrt_ints_of(want.shape, want.ndim);
}

/* Sets *out to another reference to `tensor`, for a gradient that is passed on unchanged. */
static inline ctrt_status pass_on(ctrt_tensor **out, ctrt_tensor *tensor)
{
    tensor_retain(tensor);
    tensor_move(out, tensor);
    return CTRT_OK;
}

/* grad_reduce_to.c: sums *grad over the dimensions that were broadcast, and converts it to the dtype and device of
 * `want`. Differentiable in grad mode. */
ctrt_status grad_reduce_to(ctrt_tensor **grad, const struct grad_want *want);
static inline bool grad_matches(const ctrt_tensor *grad, const struct grad_want *want)
{
    if (grad->view.ndim != want->ndim || tensor_dtype(grad) != want->dtype || grad->device != want->device)
        return false;
    for (int d = 0; d < want->ndim; d++)
        if (grad->view.shape[d] != want->shape[d])
            return false;
    return true;
}

#endif
