/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/autograd.h: derivatives by reverse mode.
 *
 * Ops on tensors that require grad record a graph as they run; ctrt_backward walks it and adds into the `grad` of the
 * leaves. Grad mode is per thread. Semantics: PyTorch's. */
#ifndef CTRT_AUTOGRAD_H
#define CTRT_AUTOGRAD_H

#include "ctrt/ops.h"

CTRT_BEGIN_DECLS

/* Makes a leaf ask for gradients, or not. CTRT_ERR_DTYPE for integers and bool, CTRT_ERR_AUTOGRAD when told false on a tensor
 * that an op made. */
CTRT_API ctrt_status ctrt_tensor_require_grad(ctrt_tensor *tensor, bool require);
CTRT_API bool ctrt_tensor_requires_grad(const ctrt_tensor *tensor);
CTRT_API bool ctrt_tensor_is_leaf(const ctrt_tensor *tensor);
/* Keeps the gradient of a tensor that is not a leaf: each backward pass adds to it, as to a leaf's. */
CTRT_API ctrt_status ctrt_tensor_retain_grad(ctrt_tensor *tensor);
/* The accumulated gradient: borrowed, NULL when there is none. */
CTRT_API ctrt_tensor *ctrt_tensor_grad(const ctrt_tensor *tensor);
/* Replaces the gradient; NULL clears it. Shape, dtype and device must be the tensor's. */
CTRT_API ctrt_status ctrt_tensor_set_grad(ctrt_tensor *tensor, ctrt_tensor *grad);
/* The name of the op that made the tensor ("add"), NULL for leaves and without history. */
CTRT_API const char *ctrt_tensor_grad_fn(const ctrt_tensor *tensor);

/* Adds d(tensor)/d(leaf) to the grad of every leaf, then frees the graph. `tensor` has one element.
 * Errors: CTRT_ERR_AUTOGRAD for a tensor without history, a graph that was freed, a saved tensor that was changed in place since, or
 * a leaf whose change in place after its use was recorded, so that it is a result now. */
CTRT_API ctrt_status ctrt_backward(ctrt_tensor *tensor);
/* The same with an upstream gradient (NULL: ones, for one element). retain_graph keeps the graph for another call; create_graph
 * records the backward pass itself, so that gradients can be derived again; a leaf's grad then holds the graph, which holds the leaf,
 * until ctrt_tensor_set_grad(leaf, NULL): ctrt_grad has no such circle. */
CTRT_API ctrt_status ctrt_backward_with(ctrt_tensor *tensor, ctrt_tensor *gradient, bool retain_graph,
                                        bool create_graph);
/* The gradients of `output` with respect to inputs[count], into out[count]; leaves' grad fields stay untouched.
 * An input that output does not depend on gives NULL when allow_unused, else CTRT_ERR_AUTOGRAD. */
CTRT_API ctrt_status ctrt_grad(ctrt_tensor **out, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                               ctrt_tensor *gradient,
                               bool retain_graph, bool create_graph, bool allow_unused);

/* Grad mode of this thread. Pairs nest: bool was = ctrt_set_grad_enabled(false); ... ctrt_set_grad_enabled(was); */
CTRT_API bool ctrt_set_grad_enabled(bool enabled);
CTRT_API bool ctrt_grad_enabled(void);
/* The statement or block that follows runs without recording: ctrt_no_grad { ... }. Do not leave it by return, break or goto.
 * A view that is made without recording has no history, so no gradient passes it. It requires grad as its base does, which it keeps
 * alive, and outside of such a block it can neither be changed in place nor be used after its elements were changed. ctrt_detach makes
 * a tensor of the same elements that has neither history nor base. */
#ifndef __cplusplus
#define CTRT_NO_GRAD_BY_(was, once)                                                                        \
    for (int was = ctrt_set_grad_enabled(false), once = 1; once; ctrt_set_grad_enabled(was != 0), once = 0)
#define CTRT_NO_GRAD_AT_(line) CTRT_NO_GRAD_BY_(ctrt_was_##line, ctrt_once_##line)  /* names of their own when nested */
#define CTRT_NO_GRAD_(line)    CTRT_NO_GRAD_AT_(line)
#define ctrt_no_grad           CTRT_NO_GRAD_(__LINE__)
#endif

/* ---- hooks ---- */

/* Called with the gradient of a tensor before it flows on; may replace it by the assignment rule on *grad. */
typedef ctrt_status (*ctrt_grad_hook)(void *user, ctrt_tensor **grad);
/* *id (may be NULL) names the hook for removal. */
CTRT_API ctrt_status ctrt_tensor_add_hook(ctrt_tensor *tensor, ctrt_grad_hook hook, void *user, uint64_t *id);
/* Called after a leaf's grad was accumulated. */
typedef ctrt_status (*ctrt_accumulate_hook)(void *user, ctrt_tensor *leaf);
CTRT_API ctrt_status ctrt_tensor_add_accumulate_hook(ctrt_tensor *leaf, ctrt_accumulate_hook hook, void *user,
                                                     uint64_t *id);
CTRT_API ctrt_status ctrt_tensor_remove_hook(ctrt_tensor *tensor, uint64_t id);

/* ---- functions of your own ---- */

typedef struct ctrt_function_context ctrt_function_context;

/* An op defined by a program. forward computes outputs (out[i] NULL on entry) from inputs without recording; backward gets the
 * gradients of the outputs (NULL: zero) and writes those of the inputs (NULL stays "none"). */
typedef struct ctrt_function {
    size_t size;                        /* sizeof(ctrt_function) */
    const char *name;
    ctrt_status (*forward)(ctrt_function_context *context, ctrt_tensor **out, int n_out, ctrt_tensor *const *in, int n_in);
    ctrt_status (*backward)(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in, ctrt_tensor *const *grad_out, int n_out);
    void (*destroy)(ctrt_function_context *context);        /* optional: frees the context's user data */
} ctrt_function;

/* Applies `function` (static lifetime) to in[n_in]; out[n_out] by the assignment rule. */
CTRT_API ctrt_status ctrt_function_apply(const ctrt_function *function, void *user, ctrt_tensor **out, int n_out,
                                         ctrt_tensor *const *in, int n_in);
CTRT_API void *ctrt_function_user(ctrt_function_context *context);
/* In forward: keeps a tensor for backward. In backward: borrowed, checked against changes in place (CTRT_ERR_AUTOGRAD). */
CTRT_API ctrt_status ctrt_function_save(ctrt_function_context *context, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_function_saved(ctrt_tensor **borrowed, ctrt_function_context *context, int index);

/* Graph nodes and bytes of saved tensors alive in this process, for tests and leak hunts. */
CTRT_API uint64_t ctrt_autograd_live_nodes(void);
CTRT_API uint64_t ctrt_autograd_saved_bytes(void);

/* From now on a graph that reaches back over `passes` backward passes is found and the first one is warned of in the log, with the op
 * and the tag (ctrt_memory_tag) that made it so long: adding up losses with their history (total_loss += loss) keeps the graphs of all
 * steps alive. 0: off, which is the default; CTRT_GRAPH_GROWTH says otherwise. ctrt_backward and ctrt_backward_with count as passes,
 * ctrt_grad does not. What was recorded before is not looked at. CTRT_ERR_INVALID_ARGUMENT for negative numbers and 1. */
CTRT_API ctrt_status ctrt_autograd_set_growth_limit(int passes);
/* How many results had such a graph. */
CTRT_API uint64_t ctrt_autograd_growth_found(void);

CTRT_END_DECLS

#endif
