/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_NN_H
#define CTRT_NN_H
#include "ctrt/autograd.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_module ctrt_module;
CTRT_API ctrt_module *ctrt_module_retain(ctrt_module *module);
CTRT_API void ctrt_module_release(ctrt_module **module);
CTRT_ARRAY_RELEASE_(module)
CTRT_API ctrt_status ctrt_forward(ctrt_tensor **y, ctrt_module *module, ctrt_tensor *x);
CTRT_API ctrt_status ctrt_forward_n(ctrt_tensor **y, ctrt_module *module, ctrt_tensor *const *inputs, int count);
CTRT_API ctrt_status ctrt_linear_new(ctrt_module **out, int64_t in_features, int64_t out_features, bool bias,
                                     ctrt_device *device);
CTRT_API ctrt_status ctrt_conv2d_new(ctrt_module **out, int64_t in_channels, int64_t out_channels, int64_t kernel_h,
                                     int64_t kernel_w, const ctrt_conv2d_options *options, bool bias,
                                     ctrt_device *device);
typedef struct ctrt_batch_norm_options {
    size_t initialized;
    double epsilon;
    double momentum;
    bool affine;
} ctrt_batch_norm_options;
#define CTRT_BATCH_NORM_OPTIONS { sizeof(ctrt_batch_norm_options), 1e-5, 0.1, true }
CTRT_API ctrt_status ctrt_batch_norm1d_new(ctrt_module **out, int64_t features, const ctrt_batch_norm_options *options,
                                           ctrt_device *device);
CTRT_API ctrt_status ctrt_batch_norm2d_new(ctrt_module **out, int64_t features, const ctrt_batch_norm_options *options,
                                           ctrt_device *device);
typedef struct ctrt_layer_norm_options {
    size_t initialized;
    double epsilon;
    bool affine;
} ctrt_layer_norm_options;
#define CTRT_LAYER_NORM_OPTIONS { sizeof(ctrt_layer_norm_options), 1e-5, true }
CTRT_API ctrt_status ctrt_layer_norm_new(ctrt_module **out, ctrt_ints normalized_shape,
                                         const ctrt_layer_norm_options *options, ctrt_device *device);
typedef struct ctrt_embedding_options {
    size_t initialized;
    int64_t padding_idx;
} ctrt_embedding_options;
#define CTRT_EMBEDDING_OPTIONS { sizeof(ctrt_embedding_options), -1 }
CTRT_API ctrt_status ctrt_embedding_new(ctrt_module **out, int64_t count, int64_t dim,
                                        const ctrt_embedding_options *options, ctrt_device *device);
CTRT_API ctrt_status ctrt_dropout_new(ctrt_module **out, double p);
CTRT_API ctrt_status ctrt_relu_new(ctrt_module **out);
CTRT_API ctrt_status ctrt_gelu_new(ctrt_module **out, bool tanh_approximation);
CTRT_API ctrt_status ctrt_tanh_new(ctrt_module **out);
CTRT_API ctrt_status ctrt_sigmoid_new(ctrt_module **out);
CTRT_API ctrt_status ctrt_softmax_new(ctrt_module **out, int dim);
CTRT_API ctrt_status ctrt_flatten_new(ctrt_module **out, int first_dim, int last_dim);
CTRT_API ctrt_status ctrt_max_pool2d_new(ctrt_module **out, const ctrt_pool2d_options *options);
typedef struct ctrt_multihead_attention_options {
    size_t initialized;
    double dropout;
    bool bias;
    bool causal;
} ctrt_multihead_attention_options;
#define CTRT_MULTIHEAD_ATTENTION_OPTIONS { sizeof(ctrt_multihead_attention_options), 0, true, false }
CTRT_API ctrt_status ctrt_multihead_attention_new(ctrt_module **out, int64_t embed, int64_t heads,
                                                  const ctrt_multihead_attention_options *options,
                                                  ctrt_device *device);
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
CTRT_API ctrt_status ctrt_sequential_new(ctrt_module **out, ctrt_module_list modules);
CTRT_API ctrt_status ctrt_sequential_add(ctrt_module *sequential, ctrt_module *module);
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
#define CTRT_MADE_AS_(n, constructor, ...)                                                          \
    __extension__({                                                                                 \
        ctrt_module *ctrt_made_##n = NULL;                                                          \
        ctrt_status ctrt_made_status_##n = constructor(&ctrt_made_##n __VA_ARGS__);                 \
        ctrt_module_made(ctrt_made_status_##n, ctrt_made_##n);                                      \
    })
#endif
CTRT_API ctrt_module *ctrt_module_made(ctrt_status status, ctrt_module *module);
CTRT_API const char *ctrt_module_kind(const ctrt_module *module);
CTRT_API ctrt_status ctrt_module_parameter(const char **name, ctrt_tensor **borrowed, ctrt_module *module,
                                           size_t index);
CTRT_API ctrt_status ctrt_module_buffer(const char **name, ctrt_tensor **borrowed, ctrt_module *module, size_t index);
CTRT_API size_t ctrt_module_parameter_count(ctrt_module *module);
CTRT_API size_t ctrt_module_buffer_count(ctrt_module *module);
CTRT_API ctrt_status ctrt_module_tensor(ctrt_tensor **borrowed, ctrt_module *module, const char *name);
CTRT_API ctrt_status ctrt_module_child(const char **name, ctrt_module **borrowed, ctrt_module *module, size_t index);
CTRT_API int64_t ctrt_module_numel(ctrt_module *module);
CTRT_API ctrt_status ctrt_module_to(ctrt_module *module, ctrt_device *device, ctrt_dtype dtype);
CTRT_API ctrt_status ctrt_module_device(ctrt_device **out, ctrt_module *module);
CTRT_API void ctrt_module_train(ctrt_module *module, bool training);
CTRT_API bool ctrt_module_is_training(const ctrt_module *module);
CTRT_API ctrt_status ctrt_module_zero_grad(ctrt_module *module, bool set_to_none);
CTRT_API ctrt_status ctrt_module_copy(ctrt_module **out, ctrt_module *module, ctrt_device *device);
typedef enum ctrt_module_event {
    CTRT_MODULE_SAVE_BEGIN,
    CTRT_MODULE_SAVE_END,
    CTRT_MODULE_LOAD_BEGIN, CTRT_MODULE_LOAD_END,
    CTRT_MODULE_STEP_BEGIN,
    CTRT_MODULE_STEP_END,
    CTRT_MODULE_OPTIMIZER_SAVE_BEGIN, CTRT_MODULE_OPTIMIZER_SAVE_END,
    CTRT_MODULE_OPTIMIZER_LOAD_BEGIN, CTRT_MODULE_OPTIMIZER_LOAD_END,
    CTRT_MODULE_GRAD_NORM,
    CTRT_MODULE_OPTIMIZER_END,
    CTRT_MODULE_ROWS,
    CTRT_MODULE_SAVE_PARTS,
    CTRT_MODULE_AGREE,
    CTRT_MODULE_FOUND_INF,
    CTRT_MODULE_GRAD_WHOLE
} ctrt_module_event;
typedef struct ctrt_module_gradient {
    ctrt_tensor *parameter;
    ctrt_tensor *whole;
} ctrt_module_gradient;
typedef struct ctrt_module_place {
    ctrt_tensor *tensor;
    bool divided;
    int32_t ndim;
    int64_t shape[CTRT_MAX_DIMS];
    int64_t first;
} ctrt_module_place;
typedef struct ctrt_module_rows {
    ctrt_module_place *places;
    size_t count;
} ctrt_module_rows;
struct ctrt_optimizer;
typedef struct ctrt_module_parts {
    struct ctrt_optimizer *optimizer;
    int32_t part, count;
    bool write;
    uint64_t reserved[2];
} ctrt_module_parts;
typedef struct ctrt_module_agreement {
    ctrt_status status;
    uint64_t numbers[2];
} ctrt_module_agreement;
#define CTRT_STATE_END ((size_t)-1)
#ifndef __cplusplus
#define CTRT_STATE_POINTERS(...) ((const size_t[]){ __VA_ARGS__, CTRT_STATE_END })
#define CTRT_STATE_PLAIN         ((const size_t[]){ CTRT_STATE_END })
#endif
typedef struct ctrt_module_class {
    size_t size;
    const char *kind;
    size_t state_bytes;
    ctrt_status (*forward)(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count);
    void (*destroy)(ctrt_module *self);
    void (*train)(ctrt_module *self, bool training);
    ctrt_status (*replicate)(ctrt_module *copy, ctrt_module *original);
    ctrt_status (*event)(ctrt_module *self, ctrt_module_event event, void *argument);
    const size_t *state_pointers;
} ctrt_module_class;
typedef struct ctrt_forward_hooks {
    size_t size;
    ctrt_status (*before)(void *user, ctrt_module *module);
    ctrt_status (*after)(void *user, ctrt_module *module, ctrt_tensor *output);
} ctrt_forward_hooks;
CTRT_API ctrt_status ctrt_module_add_forward_hooks(ctrt_module *module, const ctrt_forward_hooks *hooks, void *user,
                                                   uint64_t *id);
CTRT_API ctrt_status ctrt_module_remove_forward_hooks(ctrt_module *module, uint64_t id);
CTRT_API ctrt_status ctrt_module_new(ctrt_module **out, const ctrt_module_class *class_of);
CTRT_API void *ctrt_module_state(ctrt_module *module);
CTRT_API ctrt_status ctrt_module_add_parameter(ctrt_module *module, const char *name, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_module_add_buffer(ctrt_module *module, const char *name, ctrt_tensor *tensor,
                                            bool persistent);
CTRT_API ctrt_status ctrt_module_add_module(ctrt_module *module, const char *name, ctrt_module *child);
CTRT_API ctrt_status ctrt_init_uniform_(ctrt_tensor *tensor, double low, double high);
CTRT_API ctrt_status ctrt_init_normal_(ctrt_tensor *tensor, double mean, double std);
CTRT_API ctrt_status ctrt_init_constant_(ctrt_tensor *tensor, double value);
CTRT_API ctrt_status ctrt_init_xavier_uniform_(ctrt_tensor *tensor, double gain);
CTRT_API ctrt_status ctrt_init_xavier_normal_(ctrt_tensor *tensor, double gain);
CTRT_API ctrt_status ctrt_init_kaiming_uniform_(ctrt_tensor *tensor, double a);
CTRT_API ctrt_status ctrt_init_kaiming_normal_(ctrt_tensor *tensor, double a);
CTRT_END_DECLS
#endif
