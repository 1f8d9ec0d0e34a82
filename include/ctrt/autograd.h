/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/autograd.h: reverse-mode automatic differentiation.
 *
 * Ops on tensors that require grad record a graph as they run. ctrt_backward traverses it and adds to the `grad` of
 * the leaves. Grad mode is per thread. The semantics are PyTorch's. NULL arguments are CTRT_ERR_INVALID_ARGUMENT
 * unless a comment allows them. Different threads may run backward passes at the same time, also over graphs that
 * share nodes. */
#ifndef CTRT_AUTOGRAD_H
#define CTRT_AUTOGRAD_H

#include "ctrt/ops.h"

CTRT_BEGIN_DECLS

/* Sets whether a leaf requires grad. CTRT_ERR_DTYPE for integer and bool tensors; CTRT_ERR_AUTOGRAD for `require`
 * false on the result of an op. */
CTRT_API ctrt_status ctrt_tensor_require_grad(ctrt_tensor *tensor, bool require);
CTRT_API bool ctrt_tensor_requires_grad(const ctrt_tensor *tensor);
CTRT_API bool ctrt_tensor_is_leaf(const ctrt_tensor *tensor);
/* Keeps the gradient of a tensor that is not a leaf: each backward pass adds to its grad, as to a leaf's.
 * CTRT_ERR_AUTOGRAD if the tensor does not require grad. */
CTRT_API ctrt_status ctrt_tensor_retain_grad(ctrt_tensor *tensor);
/* Returns the accumulated gradient, borrowed; NULL if there is none. */
CTRT_API ctrt_tensor *ctrt_tensor_grad(const ctrt_tensor *tensor);
/* Replaces the gradient; NULL clears it. It must have the tensor's shape, dtype and device: CTRT_ERR_SHAPE,
 * CTRT_ERR_DTYPE, CTRT_ERR_DEVICE. */
CTRT_API ctrt_status ctrt_tensor_set_grad(ctrt_tensor *tensor, ctrt_tensor *grad);
/* Returns the name of the op whose result the tensor is ("add"); NULL for leaves and tensors without history. The
 * string is static. */
CTRT_API const char *ctrt_tensor_grad_fn(const ctrt_tensor *tensor);

/* Adds d(tensor)/d(leaf) to the grad of every leaf, then frees the graph. `tensor` has one element.
 *
 * Errors: CTRT_ERR_AUTOGRAD for a tensor without history, for more than one element, and for a graph that was freed. It
 * is also returned for a saved tensor that was changed in place after it was saved, and for a leaf that a recorded
 * in-place op has turned into a result after its use. */
CTRT_API ctrt_status ctrt_backward(ctrt_tensor *tensor);
/* Like ctrt_backward, with an upstream gradient (NULL: ones, for a tensor of one element). `retain_graph` keeps the
 * graph for another call. `create_graph` records the backward pass itself, for higher derivatives. A leaf's grad then
 * owns the graph, which owns the leaf, until ctrt_tensor_set_grad(leaf, NULL); ctrt_grad creates no such reference
 * cycle. */
CTRT_API ctrt_status ctrt_backward_with(ctrt_tensor *tensor, ctrt_tensor *gradient, bool retain_graph,
                                        bool create_graph);
/* Writes the gradients of `output` with respect to inputs[count] to out[count]; the grad of leaves is not changed.
 * If `output` does not depend on an input, its gradient is NULL with `allow_unused`, else the call fails with
 * CTRT_ERR_AUTOGRAD. `gradient`, `retain_graph` and `create_graph` are as in ctrt_backward_with. */
CTRT_API ctrt_status ctrt_grad(ctrt_tensor **out, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                               ctrt_tensor *gradient,
                               bool retain_graph, bool create_graph, bool allow_unused);

/* Sets the calling thread's grad mode and returns the previous one. Calls nest: bool was =
 * ctrt_set_grad_enabled(false); ... ctrt_set_grad_enabled(was); */
CTRT_API bool ctrt_set_grad_enabled(bool enabled);
CTRT_API bool ctrt_grad_enabled(void);
/* Runs the following statement or block without recording: ctrt_no_grad { ... }. The previous grad mode is restored
 * wherever the block is left, also by CTRT_TRY (ctrt/base.h).
 *
 * A view that is created without recording has no history, so no gradient passes through it. It requires grad if its
 * base does, and keeps its base alive. Outside of such a block it can neither be changed in place nor be used after
 * its elements were changed. ctrt_detach creates a tensor over the same elements that has neither history nor base. */
CTRT_BLOCK_LEAVE_(ctrt_no_grad_leave_, ctrt_set_grad_enabled(block->was))
#define ctrt_no_grad CTRT_BLOCK_(ctrt_no_grad_leave_, ctrt_set_grad_enabled(false))

/* ---- hooks ---- */

/* Called with the gradient of a tensor before it is propagated; may replace *grad, by the assignment rule, with a
 * tensor of the same shape, dtype and device. */
typedef ctrt_status (*ctrt_grad_hook)(void *user, ctrt_tensor **grad);
/* Adds a hook; hooks run in the order in which they were added. *id (may be NULL) identifies it for
 * ctrt_tensor_remove_hook. CTRT_ERR_AUTOGRAD if the tensor does not require grad. */
CTRT_API ctrt_status ctrt_tensor_add_hook(ctrt_tensor *tensor, ctrt_grad_hook hook, void *user, uint64_t *id);
/* Called after a gradient was accumulated in a leaf's grad. */
typedef ctrt_status (*ctrt_accumulate_hook)(void *user, ctrt_tensor *leaf);
CTRT_API ctrt_status ctrt_tensor_add_accumulate_hook(ctrt_tensor *leaf, ctrt_accumulate_hook hook, void *user,
                                                     uint64_t *id);
/* Removes the hook `id`. CTRT_ERR_NOT_FOUND if the tensor has no such hook. */
CTRT_API ctrt_status ctrt_tensor_remove_hook(ctrt_tensor *tensor, uint64_t id);

/* ---- user-defined functions ---- */

typedef struct ctrt_function_context ctrt_function_context;

/* An op that a program defines. `forward` computes the outputs (out[i] is NULL on entry) from the inputs, without
 * recording. `backward` receives the gradients of the outputs (NULL: zero) and writes those of the inputs (NULL:
 * none). */
typedef struct ctrt_function {
    size_t size;                        /* sizeof(ctrt_function) */
    const char *name;
    ctrt_status (*forward)(ctrt_function_context *context, ctrt_tensor **out, int n_out,
                           ctrt_tensor *const *in, int n_in);
    ctrt_status (*backward)(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in,
                            ctrt_tensor *const *grad_out, int n_out);
    void (*destroy)(ctrt_function_context *context);        /* optional: frees the context's user data */
    /* Optional, a floating dtype: under autocast (ctrt/amp.h) floating inputs except f64 are converted to it, `forward`
     * and `backward` run without autocast. With 0 both run under the autocast of the call of ctrt_function_apply. */
    ctrt_dtype autocast_dtype;
} ctrt_function;

/* Applies `function`, which must have static lifetime, to in[n_in] and writes out[n_out] by the assignment rule.
 * `user` is available as ctrt_function_user. `destroy` is called once, when the graph does not need `user` any more and
 * also if the call fails, unless the error is an invalid argument of this function. */
CTRT_API ctrt_status ctrt_function_apply(const ctrt_function *function, void *user, ctrt_tensor **out, int n_out,
                                         ctrt_tensor *const *in, int n_in);
/* Returns the `user` pointer of ctrt_function_apply. */
CTRT_API void *ctrt_function_user(ctrt_function_context *context);
/* ctrt_function_save saves a tensor for backward; it may be called in forward only (CTRT_ERR_STATE).
 * ctrt_function_saved writes the `index`-th saved tensor, borrowed, in backward; CTRT_ERR_AUTOGRAD if the tensor was
 * changed in place after it was saved. */
CTRT_API ctrt_status ctrt_function_save(ctrt_function_context *context, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_function_saved(ctrt_tensor **borrowed, ctrt_function_context *context, int index);

/* Return the number of graph nodes and the bytes of saved tensors that are alive in this process, for tests and to
 * find leaks. */
CTRT_API uint64_t ctrt_autograd_live_nodes(void);
CTRT_API uint64_t ctrt_autograd_saved_bytes(void);

/* Enables a check that reports graphs which reach back over `passes` backward passes. The first one is logged as a
 * warning, with the op and the label (ctrt_memory_label) that extended it: adding up losses with their history
 * (total_loss += loss) keeps the graphs of all steps alive. 0 disables the check, which is the default unless
 * CTRT_GRAPH_GROWTH is set. ctrt_backward and ctrt_backward_with count as passes, ctrt_grad does not. Work that was
 * recorded before is not checked. CTRT_ERR_INVALID_ARGUMENT for 1 and negative numbers. */
CTRT_API ctrt_status ctrt_autograd_set_growth_limit(int passes);
/* Returns how many results had such a graph. */
CTRT_API uint64_t ctrt_autograd_growth_found(void);

CTRT_END_DECLS

#endif
