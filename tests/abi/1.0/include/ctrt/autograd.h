/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_AUTOGRAD_H
#define CTRT_AUTOGRAD_H
#include "ctrt/ops.h"
CTRT_BEGIN_DECLS
CTRT_API ctrt_status ctrt_tensor_require_grad(ctrt_tensor *tensor, bool require);
CTRT_API bool ctrt_tensor_requires_grad(const ctrt_tensor *tensor);
CTRT_API bool ctrt_tensor_is_leaf(const ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_tensor_retain_grad(ctrt_tensor *tensor);
CTRT_API ctrt_tensor *ctrt_tensor_grad(const ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_tensor_set_grad(ctrt_tensor *tensor, ctrt_tensor *grad);
CTRT_API const char *ctrt_tensor_grad_fn(const ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_backward(ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_backward_with(ctrt_tensor *tensor, ctrt_tensor *gradient, bool retain_graph,
                                        bool create_graph);
CTRT_API ctrt_status ctrt_grad(ctrt_tensor **out, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                               ctrt_tensor *gradient,
                               bool retain_graph, bool create_graph, bool allow_unused);
CTRT_API bool ctrt_set_grad_enabled(bool enabled);
CTRT_API bool ctrt_grad_enabled(void);
CTRT_BLOCK_LEAVE_(ctrt_no_grad_leave_, ctrt_set_grad_enabled(block->was))
#define ctrt_no_grad CTRT_BLOCK_(ctrt_no_grad_leave_, ctrt_set_grad_enabled(false))
typedef ctrt_status (*ctrt_grad_hook)(void *user, ctrt_tensor **grad);
CTRT_API ctrt_status ctrt_tensor_add_hook(ctrt_tensor *tensor, ctrt_grad_hook hook, void *user, uint64_t *id);
typedef ctrt_status (*ctrt_accumulate_hook)(void *user, ctrt_tensor *leaf);
CTRT_API ctrt_status ctrt_tensor_add_accumulate_hook(ctrt_tensor *leaf, ctrt_accumulate_hook hook, void *user,
                                                     uint64_t *id);
CTRT_API ctrt_status ctrt_tensor_remove_hook(ctrt_tensor *tensor, uint64_t id);
typedef struct ctrt_function_context ctrt_function_context;
typedef struct ctrt_function {
    size_t size;
    const char *name;
    ctrt_status (*forward)(ctrt_function_context *context, ctrt_tensor **out, int n_out,
                           ctrt_tensor *const *in, int n_in);
    ctrt_status (*backward)(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in,
                            ctrt_tensor *const *grad_out, int n_out);
    void (*destroy)(ctrt_function_context *context);
    ctrt_dtype autocast_dtype;
} ctrt_function;
CTRT_API ctrt_status ctrt_function_apply(const ctrt_function *function, void *user, ctrt_tensor **out, int n_out,
                                         ctrt_tensor *const *in, int n_in);
CTRT_API void *ctrt_function_user(ctrt_function_context *context);
CTRT_API ctrt_status ctrt_function_save(ctrt_function_context *context, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_function_saved(ctrt_tensor **borrowed, ctrt_function_context *context, int index);
CTRT_API uint64_t ctrt_autograd_live_nodes(void);
CTRT_API uint64_t ctrt_autograd_saved_bytes(void);
CTRT_API ctrt_status ctrt_autograd_set_growth_limit(int passes);
CTRT_API uint64_t ctrt_autograd_growth_found(void);
CTRT_END_DECLS
#endif
