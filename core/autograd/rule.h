/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/rule.h: how the derivative of an op is written.
 *
 * Each differentiable op of ops.def has `const struct grad_rule rule_NAME` in the file of its family. A rule is written with public
 * ops, so it runs on every backend; with create_graph it runs in grad mode and must be differentiable itself, so the fused
 * kernels of ops/backward.h serve only where ctx->create_graph is false. The engine sums what was broadcast and casts: a
 * rule may hand back a gradient in the result's shape. */
#ifndef CORE_AUTOGRAD_RULE_H
#define CORE_AUTOGRAD_RULE_H

#include "autograd/node.h"
#include "ctrt/autograd.h"
#include "ops/backward.h"

#define RULE_INPUTS  3                  /* inputs and results that a rule can have saved */
#define RULE_RESULTS 3

struct grad_context {
    const struct op_node *node;
    ctrt_tensor *inputs[RULE_INPUTS];   /* NULL when not saved */
    ctrt_tensor *outputs[RULE_RESULTS];
    const union op_attributes *attributes;
    const int64_t *extra;
    uint64_t needs;
    int n_in;
    bool create_graph;
};

struct grad_rule {
    /* What has to be kept for the gradient of input i: sets of inputs and results, bit 0 the first. */
    struct { uint8_t inputs, outputs; } saves[RULE_INPUTS];
    /* The same for the form with a number in place of an operand: is input 0 kept, with the number on the right, on the left? */
    bool has_number_form, number_right, number_left;
    /* dx[n_in], NULL on entry, for the inputs that need it; dy[0] is never NULL. On failure dx may hold what was made. */
    ctrt_status (*vjp)(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy);
    /* Optional: numbers about the inputs that the rule wants. `to` NULL: returns how many. */
    size_t (*remember)(int64_t *to, ctrt_tensor *const *inputs, int n_inputs, const union op_attributes *attributes);
};

/* Declares what rules.c collects, so that a misspelt rule does not compile. */
#define OP(name, inputs, family, promotion, differentiable, text) extern const struct grad_rule rule_##name;
#include "ops/ops.def"
#undef OP

extern const struct grad_rule *const grad_rules[OP_COUNT];      /* rules.c; NULL where there is no derivative */

static inline bool needs_grad(const struct grad_context *ctx, int input)
{
    return ctx->node->node.edges[input].to && (input >= 64 || ctx->needs >> input & 1);
}

/* The shape of an input that needs a gradient. */
static inline ctrt_ints input_shape(const struct grad_context *ctx, int input)
{
    struct grad_want want = edge_want(&ctx->node->node.edges[input]);
    return ctrt_ints_of(want.shape, want.ndim);
}

/* One step of a rule with temporaries: goes to `done` on failure. */
#define STEP(expr)                              \
    do {                                        \
        status = (expr);                        \
        if (unlikely(status != CTRT_OK))        \
            goto done;                          \
    } while (0)

/* *out = `tensor` by another reference, as a gradient that is passed on unchanged. */
static inline ctrt_status pass_on(ctrt_tensor **out, ctrt_tensor *tensor)
{
    tensor_retain(tensor);
    tensor_move(out, tensor);
    return CTRT_OK;
}

/* fit.c: sums `*grad` over what was broadcast, casts and moves it so that it looks as wanted. Differentiable in grad mode. */
ctrt_status grad_fit(ctrt_tensor **grad, const struct grad_want *want);
static inline bool grad_fits(const ctrt_tensor *grad, const struct grad_want *want)
{
    if (grad->view.ndim != want->ndim || tensor_dtype(grad) != want->dtype || grad->device != want->device)
        return false;
    for (int d = 0; d < want->ndim; d++)
        if (grad->view.shape[d] != want->shape[d])
            return false;
    return true;
}

#endif
