/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/nn.h: modules: parts of networks that own parameters, buffers and other modules.
 *
 * A module is a reference-counted handle. Parameters have dotted names ("blocks.0.attn.in_proj_weight"), the same as
 * PyTorch's where PyTorch has the module. Constructors create parameters on `device` (NULL: the default device) and
 * initialise them as PyTorch does; on success *out owns one reference (assignment rule of ctrt/base.h). Invalid
 * sizes and options are CTRT_ERR_INVALID_ARGUMENT. A module must not be used by two threads at the same time. */
#ifndef CTRT_NN_H
#define CTRT_NN_H

#include "ctrt/autograd.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_module ctrt_module;

/* Adds a reference and returns `module`; NULL is returned unchanged. */
CTRT_API ctrt_module *ctrt_module_retain(ctrt_module *module);
/* Releases the reference in *module and sets *module to NULL. */
CTRT_API void ctrt_module_release(ctrt_module **module);
CTRT_ARRAY_RELEASE_(module)

/* Computes y = module(x), by the assignment rule, so ctrt_forward(&h, layer, h) is allowed. Error messages name the
 * module in which the error occurred. CTRT_ERR_STATE for modules nested so deep that the thread's stack is
 * exhausted; the other functions that visit all modules below a module also return it. */
CTRT_API ctrt_status ctrt_forward(ctrt_tensor **y, ctrt_module *module, ctrt_tensor *x);
/* Like ctrt_forward, for modules with several inputs. The module defines which of them may be NULL. */
CTRT_API ctrt_status ctrt_forward_n(ctrt_tensor **y, ctrt_module *module, ctrt_tensor *const *inputs, int count);

/* ---- the standard modules ---- */

/* Fully connected layer: y = x weight^T + bias. Parameters weight [out, in] and, with `bias`, bias [out]. */
CTRT_API ctrt_status ctrt_linear_new(ctrt_module **out, int64_t in_features, int64_t out_features, bool bias,
                                     ctrt_device *device);
/* 2-d convolution. Parameters weight [out, in/groups, kernel_h, kernel_w] and, with `bias`, bias [out]. `options`
 * NULL: stride 1, padding 0, dilation 1, groups 1. */
CTRT_API ctrt_status ctrt_conv2d_new(ctrt_module **out, int64_t in_channels, int64_t out_channels, int64_t kernel_h,
                                     int64_t kernel_w, const ctrt_conv2d_options *options, bool bias,
                                     ctrt_device *device);
typedef struct ctrt_batch_norm_options {
    size_t initialized;                 /* the size; CTRT_BATCH_NORM_OPTIONS sets it */
    double epsilon;                     /* 1e-5 */
    double momentum;                    /* 0.1; negative: the running statistics are the plain average of all batches */
    bool affine;                        /* true: with the parameters weight and bias [C] */
} ctrt_batch_norm_options;
#define CTRT_BATCH_NORM_OPTIONS { sizeof(ctrt_batch_norm_options), 1e-5, 0.1, true }
/* Batch normalization of [N, C] or [N, C, L] (1d) and of [N, C, H, W] (2d). `options` NULL: the defaults. Buffers
 * running_mean, running_var (unbiased), num_batches_tracked (i64). For a batch on several devices see
 * ctrt_sync_batch_norm_new in ctrt/parallel.h. CTRT_ERR_INVALID_ARGUMENT for a negative epsilon and a momentum above
 * 1. */
CTRT_API ctrt_status ctrt_batch_norm1d_new(ctrt_module **out, int64_t features, const ctrt_batch_norm_options *options,
                                           ctrt_device *device);
CTRT_API ctrt_status ctrt_batch_norm2d_new(ctrt_module **out, int64_t features, const ctrt_batch_norm_options *options,
                                           ctrt_device *device);
typedef struct ctrt_layer_norm_options {
    size_t initialized;                 /* the size; CTRT_LAYER_NORM_OPTIONS sets it */
    double epsilon;                     /* 1e-5 */
    bool affine;                        /* true: with the parameters weight and bias */
} ctrt_layer_norm_options;
#define CTRT_LAYER_NORM_OPTIONS { sizeof(ctrt_layer_norm_options), 1e-5, true }
/* Layer normalization over the last dimensions, which have the sizes `normalized_shape`. `options` NULL: the
 * defaults. */
CTRT_API ctrt_status ctrt_layer_norm_new(ctrt_module **out, ctrt_ints normalized_shape,
                                         const ctrt_layer_norm_options *options, ctrt_device *device);
typedef struct ctrt_embedding_options {
    size_t initialized;                 /* the size; CTRT_EMBEDDING_OPTIONS sets it */
    int64_t padding_idx;                /* -1: none; else a row that is initialised to zeros and receives no gradient */
} ctrt_embedding_options;
#define CTRT_EMBEDDING_OPTIONS { sizeof(ctrt_embedding_options), -1 }
/* Rows of weight [count, dim] at integer indices. `options` NULL: the defaults. */
CTRT_API ctrt_status ctrt_embedding_new(ctrt_module **out, int64_t count, int64_t dim,
                                        const ctrt_embedding_options *options, ctrt_device *device);
/* Modules of the functions of the same names in ctrt/ops.h. Dropout has an effect in training mode only; `p` is the
 * probability of setting an element to zero. */
CTRT_API ctrt_status ctrt_dropout_new(ctrt_module **out, double p);
CTRT_API ctrt_status ctrt_relu_new(ctrt_module **out);
CTRT_API ctrt_status ctrt_gelu_new(ctrt_module **out, bool tanh_approximation);
CTRT_API ctrt_status ctrt_tanh_new(ctrt_module **out);
CTRT_API ctrt_status ctrt_sigmoid_new(ctrt_module **out);
CTRT_API ctrt_status ctrt_softmax_new(ctrt_module **out, int dim);
/* Merges the dimensions first_dim..last_dim. PyTorch's defaults are 1 and -1: all dimensions except the first become
 * one. */
CTRT_API ctrt_status ctrt_flatten_new(ctrt_module **out, int first_dim, int last_dim);
/* 2-d max pooling, as ctrt_max_pool2d. */
CTRT_API ctrt_status ctrt_max_pool2d_new(ctrt_module **out, const ctrt_pool2d_options *options);
typedef struct ctrt_multihead_attention_options {
    size_t initialized;                 /* the size; CTRT_MULTIHEAD_ATTENTION_OPTIONS sets it */
    double dropout;                     /* 0; probability with which training mode drops a weight */
    bool bias;                          /* true: with in_proj_bias and out_proj.bias */
    bool causal;                        /* false; true: position t attends to positions up to t */
} ctrt_multihead_attention_options;
#define CTRT_MULTIHEAD_ATTENTION_OPTIONS { sizeof(ctrt_multihead_attention_options), 0, true, false }
/* Multi-head self attention of x [..., T, embed] (batch first). Parameters in_proj_weight, in_proj_bias,
 * out_proj.weight, out_proj.bias, as in PyTorch. With inputs {q, k, v} or {q, k, v, mask} of ctrt_forward_n it is
 * general attention, with the mask as in ctrt_scaled_dot_product_attention. `options` NULL: the defaults. */
CTRT_API ctrt_status ctrt_multihead_attention_new(ctrt_module **out, int64_t embed, int64_t heads,
                                                  const ctrt_multihead_attention_options *options,
                                                  ctrt_device *device);

/* A list of modules whose references are passed to the callee; CTRT_MODULES, below, creates one in place. */
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

/* Runs its children one after another; their names are "0", "1", ... Takes ownership of the references to `modules`,
 * also on failure. If one of them is NULL, the status and message of the constructor that should have created it are
 * returned (see CTRT_NEW). */
CTRT_API ctrt_status ctrt_sequential_new(ctrt_module **out, ctrt_module_list modules);
/* Appends a child; takes ownership of the reference, also on failure. */
CTRT_API ctrt_status ctrt_sequential_add(ctrt_module *sequential, ctrt_module *module);

/* ---- networks as expressions ----
 *
 * CTRT_NEW(linear, 64, 10, true, device) is a module created by ctrt_linear_new, for functions that take ownership
 * of a module's reference. CTRT_MAKE(block_new, device) is the same for a constructor of the program. If the
 * constructor fails, the value is NULL, and the function that receives the NULL returns the constructor's status and
 * message. With GCC or Clang:
 *
 *     ctrt_sequential_new(&net, CTRT_MODULES(CTRT_NEW(linear, 64, 32, true, device), CTRT_NEW(relu),
 *                                            CTRT_NEW(linear, 32, 10, true, device))); */
#ifdef __GNUC__
#define CTRT_NEW(...)  CTRT_PICK_(CTRT_NEW_, __VA_ARGS__, CTRT_MANY_, 0)(__VA_ARGS__)
#define CTRT_MAKE(...) CTRT_PICK_(CTRT_MAKE_, __VA_ARGS__, CTRT_MANY_, 0)(__VA_ARGS__)
#ifndef __cplusplus
#define CTRT_MODULES(...)                                                                           \
    ctrt_modules_of((ctrt_module *const[]){ __VA_ARGS__ },                                            \
                    (int)(sizeof((ctrt_module *const[]){ __VA_ARGS__ }) / sizeof(ctrt_module *)))
#else
extern "C++" {
template <int n> struct ctrt_modules_array_ {
    ctrt_module *modules[n];
    operator ctrt_module_list() const { return ctrt_modules_of(modules, n); }
};
template <typename... module> ctrt_modules_array_<int(sizeof...(module))> ctrt_modules_array_of_(module... modules)
{
    return { { modules... } };
}
}
#define CTRT_MODULES(...) ctrt_modules_array_of_(__VA_ARGS__)
#endif
/* Expands to PREFIX0_ for one argument, and to PREFIXN_ for two to 32. */
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
/* `n` gives the variables of every use unique names, so that nested uses do not shadow one another. */
#define CTRT_MADE_AS_(n, constructor, ...)                                                          \
    __extension__({                                                                                 \
        ctrt_module *ctrt_made_##n = NULL;                                                          \
        ctrt_status ctrt_made_status_##n = constructor(&ctrt_made_##n __VA_ARGS__);                 \
        ctrt_module_made(ctrt_made_status_##n, ctrt_made_##n);                                      \
    })
#endif
/* Returns `module` if `status` is CTRT_OK. Otherwise releases it, stores `status` in the thread for the function
 * that receives the result, and returns NULL. */
CTRT_API ctrt_module *ctrt_module_made(ctrt_status status, ctrt_module *module);

/* ---- traversal ---- */

/* Returns the name of the module's class, "Linear"; "(null)" for NULL. */
CTRT_API const char *ctrt_module_kind(const ctrt_module *module);
/* Writes the `index`-th of all parameters (buffers), in registration order, a module's own before its children's.
 * Each tensor occurs once, under its first name. The tensor is borrowed; the name is valid as long as the module.
 * `name` and `borrowed` may be NULL. CTRT_ERR_NOT_FOUND past the last one. */
CTRT_API ctrt_status ctrt_module_parameter(const char **name, ctrt_tensor **borrowed, ctrt_module *module,
                                           size_t index);
CTRT_API ctrt_status ctrt_module_buffer(const char **name, ctrt_tensor **borrowed, ctrt_module *module, size_t index);
/* Return the number of all parameters (buffers), each tensor counted once; 0 if there is no memory for the list. */
CTRT_API size_t ctrt_module_parameter_count(ctrt_module *module);
CTRT_API size_t ctrt_module_buffer_count(ctrt_module *module);
/* Writes the parameter or buffer with a dotted name, borrowed. CTRT_ERR_NOT_FOUND, with the nearest name in the
 * message, if there is none. */
CTRT_API ctrt_status ctrt_module_tensor(ctrt_tensor **borrowed, ctrt_module *module, const char *name);
/* Writes the `index`-th direct child, borrowed, and its name; "" for the module for which one of ctrt_parallel_new
 * stands in. CTRT_ERR_NOT_FOUND past the last one. */
CTRT_API ctrt_status ctrt_module_child(const char **name, ctrt_module **borrowed, ctrt_module *module, size_t index);
/* Returns the number of elements in all parameters. */
CTRT_API int64_t ctrt_module_numel(ctrt_module *module);

/* Moves parameters, their gradients and buffers to `device` and converts those of a floating dtype to `dtype`, which
 * must be floating (CTRT_ERR_DTYPE). NULL and CTRT_DTYPE_DEFAULT keep what they have. The tensor handles stay the
 * same, so optimizers stay valid. On failure the module is unchanged. */
CTRT_API ctrt_status ctrt_module_to(ctrt_module *module, ctrt_device *device, ctrt_dtype dtype);
/* Writes the device of all parameters. CTRT_ERR_DEVICE, with a list in the message, if they are on different
 * devices; CTRT_ERR_NOT_FOUND if there are no parameters. */
CTRT_API ctrt_status ctrt_module_device(ctrt_device **out, ctrt_module *module);
/* Sets training mode (the initial one) or evaluation mode for the module and all modules below; it affects dropout
 * and batch norm. */
CTRT_API void ctrt_module_train(ctrt_module *module, bool training);
CTRT_API bool ctrt_module_is_training(const ctrt_module *module);
/* Releases the gradients (`set_to_none`) or fills them with zeros. */
CTRT_API ctrt_status ctrt_module_zero_grad(ctrt_module *module, bool set_to_none);

/* ---- copies ---- */

/* Creates a copy of a module and of all modules below it, as PyTorch's copy.deepcopy: with new parameters and buffers
 * of the same values on `device` (NULL: each on the device of the original), the same training modes, and without
 * gradients. A tensor or module that occurs several times (tied parameters) occurs several times in the copy. The
 * copied parameters are leaves and require grad if the original's do. On success *out owns one reference.
 *
 * The state of a module (ctrt_module_state) is copied as follows. If its class has `replicate`, that function fills
 * the zeroed state of the copy. Otherwise the bytes are copied, and the pointers that `state_pointers` of the class
 * lists become pointers to the copies of their tensors and modules; NULL remains NULL.
 *
 * CTRT_ERR_NOT_SUPPORTED, naming the module or its class, if a class without `replicate` has `destroy`, because the
 * bytes could then own something, or has a state but no `state_pointers`. The same if a listed pointer is to something
 * that is not a parameter, buffer or module of what is copied. If copying fails, `destroy` may be called for a copy
 * whose state is still zero. */
CTRT_API ctrt_status ctrt_module_copy(ctrt_module **out, ctrt_module *module, ctrt_device *device);

/* ---- user-defined modules ---- */

/* Events of a module and all modules below it; see ctrt_module_class. */
typedef enum ctrt_module_event {
    CTRT_MODULE_SAVE_BEGIN,             /* `argument` is a bool that is true; if the class sets it to false, ctrt_save
                                         * writes no file (because another process writes it) and succeeds */
    CTRT_MODULE_SAVE_END,
    CTRT_MODULE_LOAD_BEGIN, CTRT_MODULE_LOAD_END,
    CTRT_MODULE_STEP_BEGIN,             /* a step of an optimizer that was created from the module or one above it;
                                         * `argument`: the ctrt_optimizer */
    CTRT_MODULE_STEP_END,
    /* ctrt_optimizer_save and ctrt_optimizer_load of such an optimizer; `argument`: the ctrt_optimizer. The file has
     * the parameters and states as they are between BEGIN and END. ctrt_training_save and ctrt_training_load send
     * SAVE_BEGIN and SAVE_END, or LOAD_BEGIN and LOAD_END, between these. */
    CTRT_MODULE_OPTIMIZER_SAVE_BEGIN, CTRT_MODULE_OPTIMIZER_SAVE_END,
    CTRT_MODULE_OPTIMIZER_LOAD_BEGIN, CTRT_MODULE_OPTIMIZER_LOAD_END,
    CTRT_MODULE_GRAD_NORM,              /* ctrt_clip_grad_norm_; `argument`: a 0-dim ctrt_tensor, the sum of the squares
                                         * of the gradients of the module, to which the class adds in place what other
                                         * processes have. There is no END */
    CTRT_MODULE_OPTIMIZER_END,          /* `argument`: an optimizer that is freed now and must not be used any more. The
                                         * result is ignored */
    /* For classes whose parameters are rows of whole ones. There are no ENDs. */
    CTRT_MODULE_ROWS,                   /* `argument`: ctrt_module_rows; the class describes the tensors that are its
                                         * parameters. Sent after LOAD_BEGIN, OPTIMIZER_LOAD_BEGIN and SAVE_PARTS, and
                                         * after FOUND_INF if no parameter has a gradient */
    CTRT_MODULE_SAVE_PARTS,             /* `argument`: ctrt_module_parts; before SAVE_BEGIN or OPTIMIZER_SAVE_BEGIN. If
                                         * the class sets `count`, these are not sent, and each process saves what it
                                         * has. A class with an error sets `count` as well, so that AGREE reports it */
    CTRT_MODULE_AGREE,                  /* `argument`: ctrt_module_agreement; three times during a save in parts */
    CTRT_MODULE_FOUND_INF,              /* ctrt_grad_scaler_unscale_; `argument`: a 0-dim f32 ctrt_tensor, not 0 if a
                                         * gradient of an optimizer of the module is inf or NaN. A class whose
                                         * parameters are parts of whole ones sets it, in place, to the greatest value
                                         * of all processes. There is no END */
    CTRT_MODULE_GRAD_WHOLE              /* ctrt_clip_grad_norm_, before GRAD_NORM, for each parameter with a gradient;
                                         * `argument`: ctrt_module_gradient. A class whose gradients are parts of whole
                                         * ones and whose results must not depend on the parts sets `whole` for each of
                                         * them. Then GRAD_NORM gets the sum for all processes. There is no END */
} ctrt_module_event;

typedef struct ctrt_module_gradient {
    ctrt_tensor *parameter;             /* borrowed; has a gradient */
    ctrt_tensor *whole;                 /* NULL on entry; the whole gradient, on the same device, which the caller
                                         * releases */
} ctrt_module_gradient;

/* The place of a tensor in a whole one. */
typedef struct ctrt_module_place {
    ctrt_tensor *tensor;                /* borrowed; the other members describe a whole tensor on entry */
    bool divided;                       /* `tensor` has only some rows of the whole one */
    int32_t ndim;                       /* of the whole tensor */
    int64_t shape[CTRT_MAX_DIMS];
    int64_t first;                      /* number of elements of the whole tensor in front of those of `tensor` */
} ctrt_module_place;
typedef struct ctrt_module_rows {
    ctrt_module_place *places;
    size_t count;
} ctrt_module_rows;

struct ctrt_optimizer;
/* How processes save a module or an optimizer together, each to a file of its own. */
typedef struct ctrt_module_parts {
    struct ctrt_optimizer *optimizer;   /* NULL: the module is saved */
    int32_t part, count;                /* number of this process's file, and of files; 0 on entry. The whole tensors
                                         * are the tensors of all files, one after the other */
    bool write;                         /* true on entry; false: another process writes the same part */
    uint64_t reserved[2];               /* 0 */
} ctrt_module_parts;
/* If `status` of a process is an error, AGREE fails on all of them. Otherwise `numbers` become those of the process
 * that writes part 0. */
typedef struct ctrt_module_agreement {
    ctrt_status status;
    uint64_t numbers[2];
} ctrt_module_agreement;

/* For `state_pointers` of ctrt_module_class, at file scope in C: the list of the offsets in the state of all pointers
 * to tensors and modules, and the list of a state without such pointers.
 *
 *     .state_pointers = CTRT_STATE_POINTERS(offsetof(struct block, attn), offsetof(struct block, mlp)),
 *
 * Elsewhere and in C++: the name of a static array of size_t whose last item is CTRT_STATE_END. */
#define CTRT_STATE_END ((size_t)-1)
#ifndef __cplusplus
#define CTRT_STATE_POINTERS(...) ((const size_t[]){ __VA_ARGS__, CTRT_STATE_END })
#define CTRT_STATE_PLAIN         ((const size_t[]){ CTRT_STATE_END })
#endif

/* Implementation of a class of modules; must have static lifetime. `y` is NULL on entry to forward and owns the
 * result afterwards; `inputs` are borrowed. */
typedef struct ctrt_module_class {
    size_t size;                        /* sizeof(ctrt_module_class) */
    const char *kind;
    size_t state_bytes;                 /* size of the zeroed memory that ctrt_module_state returns */
    /* Optional: without it the module only contains others, and its forward pass is CTRT_ERR_NOT_SUPPORTED. */
    ctrt_status (*forward)(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count);
    void (*destroy)(ctrt_module *self); /* optional: frees what state holds besides registered tensors and modules */
    void (*train)(ctrt_module *self, bool training);        /* optional: called when the mode changes */
    /* Optional: fills the state of `copy`, a copy of `original` that has its tensors and modules already; see
     * ctrt_module_copy. */
    ctrt_status (*replicate)(ctrt_module *copy, ctrt_module *original);
    /* Optional: called before and after tensors of the module are saved, loaded or changed by an optimizer, and for the
     * norm of their gradients. If a BEGIN fails, the save, load or step fails with its error and has not begun. After a
     * BEGIN that succeeded the END follows, also if the save, load or step fails. */
    ctrt_status (*event)(ctrt_module *self, ctrt_module_event event, void *argument);
    /* Where pointers to tensors and modules are in the state, at any alignment; ends with CTRT_STATE_END. Required for
     * ctrt_module_copy and ctrt_replicate of a class that has a state but no `replicate`. */
    const size_t *state_pointers;
} ctrt_module_class;

/* Functions that are called before and after each forward pass of a module (forward hooks of PyTorch). A failure of one
 * fails the forward pass. `after` is not called if the forward pass or another hook has failed. */
typedef struct ctrt_forward_hooks {
    size_t size;                        /* sizeof(ctrt_forward_hooks) */
    ctrt_status (*before)(void *user, ctrt_module *module);                         /* optional */
    ctrt_status (*after)(void *user, ctrt_module *module, ctrt_tensor *output);     /* optional */
} ctrt_forward_hooks;
/* Adds hooks, which must have static lifetime; hooks run in the order in which they were added. *id (may be NULL)
 * identifies them for ctrt_module_remove_forward_hooks. Copies of the module have no hooks. */
CTRT_API ctrt_status ctrt_module_add_forward_hooks(ctrt_module *module, const ctrt_forward_hooks *hooks, void *user,
                                                   uint64_t *id);
/* CTRT_ERR_NOT_FOUND if the module has no such hooks. Not from within a hook of this module. */
CTRT_API ctrt_status ctrt_module_remove_forward_hooks(ctrt_module *module, uint64_t id);

/* Creates a module of the class `class_of`. On success *out owns one reference. CTRT_ERR_INVALID_ARGUMENT if its size
 * is too small, `kind` is NULL, or an offset of `state_pointers` is outside of the state. */
CTRT_API ctrt_status ctrt_module_new(ctrt_module **out, const ctrt_module_class *class_of);
/* Returns the module's state memory (state_bytes of its class). */
CTRT_API void *ctrt_module_state(ctrt_module *module);
/* Registers a tensor as parameter (a leaf; it will require grad if its dtype is floating) or buffer, under a name
 * without dots, and retains a reference to it. Buffers that are not persistent are not saved in checkpoints.
 * CTRT_ERR_STATE if the module has a tensor or child of that name. */
CTRT_API ctrt_status ctrt_module_add_parameter(ctrt_module *module, const char *name, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_module_add_buffer(ctrt_module *module, const char *name, ctrt_tensor *tensor,
                                            bool persistent);
/* Registers a child; takes ownership of its reference, also on failure. CTRT_ERR_STATE for a child that contains
 * `module`. NULL: see CTRT_NEW. */
CTRT_API ctrt_status ctrt_module_add_module(ctrt_module *module, const char *name, ctrt_module *child);

/* ---- initialisation, in place, not recorded by autograd ---- */

/* Fill with uniform random numbers in [low, high), normally distributed ones, and a constant. */
CTRT_API ctrt_status ctrt_init_uniform_(ctrt_tensor *tensor, double low, double high);
CTRT_API ctrt_status ctrt_init_normal_(ctrt_tensor *tensor, double mean, double std);
CTRT_API ctrt_status ctrt_init_constant_(ctrt_tensor *tensor, double value);
/* Xavier initialisation (Glorot and Bengio 2010). `gain`: 1 for linear layers, sqrt(2) for ReLU... Fan-in and
 * fan-out are the sizes of dimensions 1 and 0, times those of the dimensions after. */
CTRT_API ctrt_status ctrt_init_xavier_uniform_(ctrt_tensor *tensor, double gain);
CTRT_API ctrt_status ctrt_init_xavier_normal_(ctrt_tensor *tensor, double gain);
/* Kaiming initialisation (He et al. 2015), fan-in mode. `a`: negative slope of the leaky ReLU. */
CTRT_API ctrt_status ctrt_init_kaiming_uniform_(ctrt_tensor *tensor, double a);
CTRT_API ctrt_status ctrt_init_kaiming_normal_(ctrt_tensor *tensor, double a);

CTRT_END_DECLS

#endif
