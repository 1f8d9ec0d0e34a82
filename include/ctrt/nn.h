/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/nn.h: modules: parts of networks that own parameters, buffers and other modules.
 *
 * A module is a reference counted handle. Parameters have dotted names ("blocks.0.attn.in_proj_weight"), PyTorch's
 * where PyTorch has the module. Constructors take a device (NULL: default) for their parameters and initialise as
 * PyTorch does. One module is used by one thread at a time. */
#ifndef CTRT_NN_H
#define CTRT_NN_H

#include "ctrt/autograd.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_module ctrt_module;

CTRT_API ctrt_module *ctrt_module_retain(ctrt_module *module);
CTRT_API void ctrt_module_release(ctrt_module **module);

/* y = module(x), by the assignment rule: ctrt_forward(&h, layer, h) is fine. Errors say in which module they
 * arose. CTRT_ERR_STATE for modules nested so deep that the thread's stack is used up; so do the other functions
 * that go through what is below a module. */
CTRT_API ctrt_status ctrt_forward(ctrt_tensor **y, ctrt_module *module, ctrt_tensor *x);
/* For modules of several inputs; which of them may be NULL is the module's business. */
CTRT_API ctrt_status ctrt_forward_n(ctrt_tensor **y, ctrt_module *module, ctrt_tensor *const *inputs, int count);

/* ---- the standard modules ---- */

/* Parameters weight [out, in] and, with bias, bias [out]. */
CTRT_API ctrt_status ctrt_linear_new(ctrt_module **out, int64_t in_features, int64_t out_features, bool bias,
                                     ctrt_device *device);
/* options NULL: stride 1, padding 0, dilation 1, groups 1. */
CTRT_API ctrt_status ctrt_conv2d_new(ctrt_module **out, int64_t in_channels, int64_t out_channels, int64_t kernel_h,
                                     int64_t kernel_w, const ctrt_conv2d_options *options, bool bias,
                                     ctrt_device *device);
/* Of [N, C] or [N, C, L], and of [N, C, H, W]. epsilon 0: 1e-5; momentum 0: 0.1 (CTRT_ZERO: 0); negative momentum:
 * running statistics are the plain average over all batches seen. Buffers running_mean, running_var (unbiased),
 * num_batches_tracked (i64). */
CTRT_API ctrt_status ctrt_batch_norm1d_new(ctrt_module **out, int64_t features, double epsilon, double momentum,
                                           bool affine, ctrt_device *device);
CTRT_API ctrt_status ctrt_batch_norm2d_new(ctrt_module **out, int64_t features, double epsilon, double momentum,
                                           bool affine, ctrt_device *device);
/* epsilon 0: 1e-5; CTRT_ZERO: 0. */
CTRT_API ctrt_status ctrt_layer_norm_new(ctrt_module **out, ctrt_ints normalized_shape, double epsilon, bool affine,
                                         ctrt_device *device);
/* Rows of weight [count, dim] at integer indices. padding_idx: a row that starts as zeros and gets no gradient;
 * -1: none. */
CTRT_API ctrt_status ctrt_embedding_new(ctrt_module **out, int64_t count, int64_t dim, int64_t padding_idx,
                                        ctrt_device *device);
CTRT_API ctrt_status ctrt_dropout_new(ctrt_module **out, double p);
CTRT_API ctrt_status ctrt_relu_new(ctrt_module **out);
CTRT_API ctrt_status ctrt_gelu_new(ctrt_module **out, bool tanh_approximation);
CTRT_API ctrt_status ctrt_tanh_new(ctrt_module **out);
CTRT_API ctrt_status ctrt_sigmoid_new(ctrt_module **out);
CTRT_API ctrt_status ctrt_softmax_new(ctrt_module **out, int dim);
/* PyTorch's defaults are 1 and -1: all dimensions but the first become one. */
CTRT_API ctrt_status ctrt_flatten_new(ctrt_module **out, int first_dim, int last_dim);
CTRT_API ctrt_status ctrt_max_pool2d_new(ctrt_module **out, const ctrt_pool2d_options *options);
/* Self attention of x [..., T, embed] (batch first); parameters in_proj_weight, in_proj_bias, out_proj.weight,
 * out_proj.bias, as PyTorch's. With inputs {q, k, v} or {q, k, v, mask} by ctrt_forward_n: general attention,
 * mask as in ctrt_scaled_dot_product_attention. causal: position t sees up to t. */
CTRT_API ctrt_status ctrt_multihead_attention_new(ctrt_module **out, int64_t embed, int64_t heads, double dropout,
                                                  bool bias, bool causal, ctrt_device *device);

/* A list of modules whose references are handed over; CTRT_MODULES, below, makes one in place. */
typedef struct ctrt_module_list {
    ctrt_module *const *modules;
    int count;
} ctrt_module_list;

static inline ctrt_module_list ctrt_modules_of(ctrt_module *const *modules, int count)
{
    ctrt_module_list list;
    list.modules = modules, list.count = count;
    return list;
}
#define CTRT_NO_MODULES ctrt_modules_of(NULL, 0)

/* Runs its children one after another; their names are "0", "1", ... Takes over the reference of each of
 * `modules`, also on failure. A NULL among them is the failure of the constructor that should have made it (see
 * CTRT_NEW), and is returned as such. */
CTRT_API ctrt_status ctrt_sequential_new(ctrt_module **out, ctrt_module_list modules);
/* Adds a child at the end; takes over its reference, also on failure. */
CTRT_API ctrt_status ctrt_sequential_add(ctrt_module *sequential, ctrt_module *module);

/* ---- networks as expressions ----
 *
 * CTRT_NEW(linear, 64, 10, true, device) is a module made by ctrt_linear_new, for functions that take over a
 * module's reference; CTRT_MAKE(block_new, device) is the same for a constructor of your own. When the
 * constructor fails they are NULL, and the function that gets the NULL returns the constructor's status and
 * message. In C, with GCC or Clang:
 *
 *     ctrt_sequential_new(&net, CTRT_MODULES(CTRT_NEW(linear, 64, 32, true, device), CTRT_NEW(relu),
 *                                            CTRT_NEW(linear, 32, 10, true, device)));
 */
#if defined(__GNUC__) && !defined(__cplusplus)
#define CTRT_NEW(...)  CTRT_PICK_(CTRT_NEW_, __VA_ARGS__, CTRT_MANY_, 0)(__VA_ARGS__)
#define CTRT_MAKE(...) CTRT_PICK_(CTRT_MAKE_, __VA_ARGS__, CTRT_MANY_, 0)(__VA_ARGS__)
#define CTRT_MODULES(...)                                                                           \
    ctrt_modules_of((ctrt_module *const[]){__VA_ARGS__},                                            \
                    (int)(sizeof((ctrt_module *const[]){__VA_ARGS__}) / sizeof(ctrt_module *)))
/* PREFIX0_ for one argument, PREFIXN_ for two to 32. */
#define CTRT_MANY_                                                                                  \
    N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, N_,                                 \
    N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, N_, 0_
#define CTRT_PICK_(prefix, ...) CTRT_PICKED_(prefix, __VA_ARGS__)
#define CTRT_PICKED_(prefix, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, \
                     a17, a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31,     \
                     a32, picked, ...)                                                              \
    prefix##picked
#define CTRT_NEW_0_(kind)               CTRT_MADE_(__COUNTER__, ctrt_##kind##_new, )
#define CTRT_NEW_N_(kind, ...)          CTRT_MADE_(__COUNTER__, ctrt_##kind##_new, , __VA_ARGS__)
#define CTRT_MAKE_0_(constructor)       CTRT_MADE_(__COUNTER__, constructor, )
#define CTRT_MAKE_N_(constructor, ...)  CTRT_MADE_(__COUNTER__, constructor, , __VA_ARGS__)
#define CTRT_MADE_(n, ...)              CTRT_MADE_AS_(n, __VA_ARGS__)
/* `n` gives every use names of its own, so that nested ones do not shadow one another. */
#define CTRT_MADE_AS_(n, constructor, ...)                                                          \
    __extension__({                                                                                 \
        ctrt_module *ctrt_made_##n = NULL;                                                          \
        ctrt_status ctrt_made_status_##n = constructor(&ctrt_made_##n __VA_ARGS__);                 \
        ctrt_module_made(ctrt_made_status_##n, ctrt_made_##n);                                      \
    })
#endif
/* `module` when `status` is CTRT_OK. Else releases it and gives NULL, and the thread keeps `status` for the
 * function that the NULL is handed to. */
CTRT_API ctrt_module *ctrt_module_made(ctrt_status status, ctrt_module *module);

/* ---- walking ---- */

/* The class's name, "Linear". "(null)" for NULL. */
CTRT_API const char *ctrt_module_kind(const ctrt_module *module);
/* The `index`-th of all parameters (buffers): registration order, a module's own before its children's, each
 * tensor once, under its first name. Borrowed tensors; names live as long as the module. CTRT_ERR_NOT_FOUND past
 * the last. `name` and `borrowed` may be NULL. */
CTRT_API ctrt_status ctrt_module_parameter(const char **name, ctrt_tensor **borrowed, ctrt_module *module,
                                           size_t index);
CTRT_API ctrt_status ctrt_module_buffer(const char **name, ctrt_tensor **borrowed, ctrt_module *module, size_t index);
CTRT_API size_t ctrt_module_parameter_count(ctrt_module *module);
CTRT_API size_t ctrt_module_buffer_count(ctrt_module *module);
/* By dotted name: parameter, buffer. CTRT_ERR_NOT_FOUND with the nearest match. */
CTRT_API ctrt_status ctrt_module_tensor(ctrt_tensor **borrowed, ctrt_module *module, const char *name);
/* Direct children in order. CTRT_ERR_NOT_FOUND past the last. */
CTRT_API ctrt_status ctrt_module_child(const char **name, ctrt_module **borrowed, ctrt_module *module, size_t index);
/* Elements in all parameters. */
CTRT_API int64_t ctrt_module_numel(ctrt_module *module);

/* Moves and casts parameters, their grads and buffers in place: the same handles, so optimizers stay valid.
 * dtype applies to floating tensors only; CTRT_DTYPE_DEFAULT and NULL keep. All or nothing: on failure the
 * module is as it was. */
CTRT_API ctrt_status ctrt_module_to(ctrt_module *module, ctrt_device *device, ctrt_dtype dtype);
/* The device of all parameters; CTRT_ERR_DEVICE lists them when they differ, CTRT_ERR_NOT_FOUND when there is
 * none. */
CTRT_API ctrt_status ctrt_module_device(ctrt_device **out, ctrt_module *module);
/* Training (as modules are made) or evaluation, for the module and all below; affects dropout and batch norm. */
CTRT_API void ctrt_module_train(ctrt_module *module, bool training);
CTRT_API bool ctrt_module_is_training(const ctrt_module *module);
/* Drops the gradients (set_to_none) or fills them with zeros. */
CTRT_API ctrt_status ctrt_module_zero_grad(ctrt_module *module, bool set_to_none);

/* ---- modules of your own ---- */

/* What a kind of module does. `y` is NULL on entry to forward and owns the result afterwards; inputs are
 * borrowed. Static lifetime. */
typedef struct ctrt_module_class {
    size_t size;                        /* sizeof(ctrt_module_class) */
    const char *kind;
    size_t state_bytes;                 /* zeroed memory behind ctrt_module_state */
    ctrt_status (*forward)(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count);
    void (*destroy)(ctrt_module *self); /* optional: what state holds besides registered tensors and modules */
    void (*train)(ctrt_module *self, bool training);        /* optional: told about mode changes */
} ctrt_module_class;

CTRT_API ctrt_status ctrt_module_new(ctrt_module **out, const ctrt_module_class *class_of);
CTRT_API void *ctrt_module_state(ctrt_module *module);
/* Registers a tensor under a name without dots, as parameter (a leaf; it will require grad if floating) or
 * buffer; takes a reference of its own. Buffers that are not persistent stay out of checkpoints. A name stands
 * for one thing in a module: CTRT_ERR_STATE when taken. */
CTRT_API ctrt_status ctrt_module_add_parameter(ctrt_module *module, const char *name, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_module_add_buffer(ctrt_module *module, const char *name, ctrt_tensor *tensor,
                                            bool persistent);
/* Registers a child; takes over its reference, also on failure. CTRT_ERR_STATE for a module that contains
 * `module`. NULL: see CTRT_NEW. */
CTRT_API ctrt_status ctrt_module_add_module(ctrt_module *module, const char *name, ctrt_module *child);

/* ---- initialisation, in place, without recording ---- */

CTRT_API ctrt_status ctrt_init_uniform_(ctrt_tensor *tensor, double low, double high);
CTRT_API ctrt_status ctrt_init_normal_(ctrt_tensor *tensor, double mean, double std);
CTRT_API ctrt_status ctrt_init_constant_(ctrt_tensor *tensor, double value);
/* gain 1 for linear, sqrt(2) for ReLU... (Glorot and Bengio 2010). Fans: sizes of dimensions 1 (in) and 0 (out),
 * times those after. */
CTRT_API ctrt_status ctrt_init_xavier_uniform_(ctrt_tensor *tensor, double gain);
CTRT_API ctrt_status ctrt_init_xavier_normal_(ctrt_tensor *tensor, double gain);
/* He et al. 2015; `a`: negative slope; fan-in mode. */
CTRT_API ctrt_status ctrt_init_kaiming_uniform_(ctrt_tensor *tensor, double a);
CTRT_API ctrt_status ctrt_init_kaiming_normal_(ctrt_tensor *tensor, double a);

CTRT_END_DECLS

#endif
