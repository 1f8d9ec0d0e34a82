/* SPDX-License-Identifier: Apache-2.0 */
/* bad-nn.c: invalid arguments of the functions in autograd.h, nn.h, optim.h and checkpoint.h. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../options.h"
#include "bad-input.h"

/* ---- autograd ---- */

static ctrt_status no_hook(void *user, ctrt_tensor **grad)
{
    (void)user, (void)grad;
    return CTRT_OK;
}

static ctrt_status no_accumulate(void *user, ctrt_tensor *leaf)
{
    (void)user, (void)leaf;
    return CTRT_OK;
}

static ctrt_status nothing_forward(ctrt_function_context *context, ctrt_tensor **result, int n_out,
                                   ctrt_tensor *const *in, int n_in)
{
    (void)context, (void)result, (void)n_out, (void)in, (void)n_in;
    return CTRT_OK;                     /* leaves the result NULL */
}

static ctrt_status nothing_backward(ctrt_function_context *context, ctrt_tensor **grad_in, int n_in,
                                    ctrt_tensor *const *grad_out, int n_out)
{
    (void)context, (void)grad_in, (void)n_in, (void)grad_out, (void)n_out;
    return CTRT_OK;
}

void bad_autograd(void)
{
    static const ctrt_function lazy = { sizeof lazy, "lazy", nothing_forward, nothing_backward, NULL, 0 };
    static const ctrt_function small = { 8, "small", nothing_forward, nothing_backward, NULL, 0 };
    static const ctrt_function empty = { sizeof empty, "empty", NULL, NULL, NULL, 0 };
    ctrt_tensor *grads[2] = { NULL, NULL }, *results[1] = { NULL }, *made = NULL;
    CTRT_AUTO(tensor) doubles = NULL;
    uint64_t id = 0;
    BAD(INVALID_ARGUMENT, ctrt_tensor_require_grad(NULL, true));
    BAD(DTYPE, ctrt_tensor_require_grad(p.whole, true));
    BAD(DTYPE, ctrt_tensor_require_grad(p.truth, true));
    FINE(ctrt_mul(&made, p.leaf, p.leaf) == CTRT_OK);
    FINE(ctrt_to_dtype(&doubles, p.x, CTRT_F64) == CTRT_OK);
    BAD(AUTOGRAD, ctrt_tensor_require_grad(made, false));
    FINE(!ctrt_tensor_requires_grad(NULL) && ctrt_tensor_grad(NULL) == NULL && ctrt_tensor_grad_fn(NULL) == NULL);
    FINE(ctrt_tensor_is_leaf(NULL) || true);
    BAD(INVALID_ARGUMENT, ctrt_tensor_retain_grad(NULL));
    BAD(INVALID_ARGUMENT, ctrt_tensor_set_grad(NULL, p.x));
    BAD(AUTOGRAD, ctrt_tensor_retain_grad(p.x));
    BAD(SHAPE, ctrt_tensor_set_grad(p.leaf, p.wide));
    BAD(DTYPE, ctrt_tensor_set_grad(p.leaf, doubles));
    BAD(DTYPE, ctrt_backward_with(made, doubles, false, false));
    if (p.away)
        BAD(DEVICE, ctrt_tensor_set_grad(p.leaf, p.away));
    BAD(INVALID_ARGUMENT, ctrt_backward(NULL));
    BAD(AUTOGRAD, ctrt_backward(p.number));
    BAD(ANY, ctrt_backward(made));                      /* more than one element */
    NULL_IN3(ctrt_grad, grads, made, &p.leaf, 1, p.x, true, false, false);
    BAD(INVALID_ARGUMENT, ctrt_backward_with(NULL, NULL, false, false));
    BAD(INVALID_ARGUMENT, ctrt_grad(grads, made, &p.leaf, -1, p.x, true, false, false));
    BAD(INVALID_ARGUMENT, ctrt_grad(grads, made, &p.leaf, 0, p.x, true, false, false));
    BAD(AUTOGRAD, ctrt_backward_with(p.x, p.x, false, false));
    BAD(AUTOGRAD, ctrt_grad(grads, made, (ctrt_tensor *const[]){ p.leaf, p.x }, 2, p.x, true, false, true));
    BAD(ANY, ctrt_grad(grads, made, (ctrt_tensor *const[]){ p.leaf, NULL }, 2, p.x, true, false, false));
    BAD(SHAPE, ctrt_backward_with(made, p.wide, false, false));
    BAD(SHAPE, ctrt_grad(grads, made, &p.leaf, 1, p.wide, true, false, false));
    FINE(grads[0] == NULL && grads[1] == NULL);
    FINE(ctrt_grad(grads, made, &p.leaf, 1, p.x, false, false, false) == CTRT_OK);
    BAD(AUTOGRAD, ctrt_grad(&grads[1], made, &p.leaf, 1, p.x, false, false, false)); /* the graph was freed */
    ctrt_tensor_release(&grads[0]);
    FINE(ctrt_set_grad_enabled(true) && ctrt_grad_enabled());
    NULL_IN2(ctrt_tensor_add_hook, p.leaf, no_hook, NULL, &id);
    NULL_IN2(ctrt_tensor_add_accumulate_hook, p.leaf, no_accumulate, NULL, &id);
    BAD(INVALID_ARGUMENT, ctrt_tensor_remove_hook(NULL, 1));
    BAD(INVALID_ARGUMENT, ctrt_function_apply(NULL, NULL, results, 1, &p.leaf, 1));
    BAD(INVALID_ARGUMENT, ctrt_function_apply(&lazy, NULL, NULL, 1, &p.leaf, 1));
    BAD(INVALID_ARGUMENT, ctrt_function_apply(&lazy, NULL, results, 1, NULL, 1));
    BAD(INVALID_ARGUMENT, ctrt_function_apply(&lazy, NULL, results, 0, &p.leaf, 1));
    BAD(INVALID_ARGUMENT, ctrt_function_apply(&lazy, NULL, results, 1, &p.leaf, -1));
    BAD(AUTOGRAD, ctrt_tensor_add_hook(p.x, no_hook, NULL, &id));
    BAD(AUTOGRAD, ctrt_tensor_add_accumulate_hook(p.x, no_accumulate, NULL, &id));
    BAD(NOT_FOUND, ctrt_tensor_remove_hook(p.leaf, 999));
    BAD(ANY, ctrt_function_apply(&small, NULL, results, 1, &p.leaf, 1));
    BAD(ANY, ctrt_function_apply(&empty, NULL, results, 1, &p.leaf, 1));
    BAD(ANY, ctrt_function_apply(&lazy, NULL, results, 1, &p.leaf, 1));
    FINE(results[0] == NULL);
    FINE(ctrt_function_user(NULL) == NULL);
    BAD(INVALID_ARGUMENT, ctrt_function_save(NULL, p.x));
    BAD(INVALID_ARGUMENT, ctrt_function_saved(&made, NULL, 0));
    ctrt_tensor_release(&made);
    BAD(INVALID_ARGUMENT, ctrt_autograd_set_growth_limit(-1));
    BAD(INVALID_ARGUMENT, ctrt_autograd_set_growth_limit(1));
    FINE(ctrt_autograd_set_growth_limit(0) == CTRT_OK && ctrt_autograd_growth_found() == 0);
    FINE(ctrt_autograd_live_nodes() == 0 && ctrt_autograd_saved_bytes() == 0);
}

/* ---- nn ---- */

static ctrt_status forward_nothing(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)y, (void)self, (void)inputs, (void)count;
    return CTRT_OK;                     /* leaves y NULL */
}

static ctrt_module *module;             /* NULL before and after each bad call */

/* An invalid call of a constructor: the module stays NULL. Bad values of options: test-nn-layers, test-optim-kinds. */
#define BAD_NEW(want, call) \
    (BAD_RUN(want, call), FINE((ctrt_module_kind(module), module == NULL)), ctrt_module_release(&module))

static void constructors(void)
{
    ctrt_pool2d_options no_kernel = CTRT_POOL2D_OPTIONS;
    FINE(ctrt_module_retain(NULL) == NULL);
    FINE((ctrt_module_release(NULL), ctrt_module_release(&module), true));
    BAD(INVALID_ARGUMENT, ctrt_linear_new(NULL, 2, 3, true, NULL));
    BAD(INVALID_ARGUMENT, ctrt_conv2d_new(NULL, 2, 3, 3, 3, NULL, true, NULL));
    BAD(INVALID_ARGUMENT, ctrt_batch_norm1d_new(NULL, 3, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_batch_norm2d_new(NULL, 3, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_layer_norm_new(NULL, CTRT_SHAPE(3), NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_embedding_new(NULL, 3, 4, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_dropout_new(NULL, 0.5));
    BAD(INVALID_ARGUMENT, ctrt_relu_new(NULL));
    BAD(INVALID_ARGUMENT, ctrt_gelu_new(NULL, true));
    BAD(INVALID_ARGUMENT, ctrt_tanh_new(NULL));
    BAD(INVALID_ARGUMENT, ctrt_sigmoid_new(NULL));
    BAD(INVALID_ARGUMENT, ctrt_softmax_new(NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_flatten_new(NULL, 1, -1));
    BAD(INVALID_ARGUMENT, ctrt_max_pool2d_new(NULL, &no_kernel));
    BAD(INVALID_ARGUMENT, ctrt_multihead_attention_new(NULL, 4, 2, NULL, NULL));
    BAD_NEW(ANY, ctrt_layer_norm_new(&module, ctrt_ints_of(NULL, 2), NULL, NULL));
    BAD_NEW(ANY, ctrt_layer_norm_new(&module, CTRT_ALL_DIMS, NULL, NULL));
    BAD_NEW(ANY, ctrt_max_pool2d_new(&module, NULL));
    BAD_NEW(ANY, ctrt_sequential_new(&module, ctrt_modules_of(NULL, 2)));
    BAD(ANY, ctrt_sequential_new(NULL, CTRT_NO_MODULES));
    BAD(ANY, ctrt_sequential_add(NULL, CTRT_NEW(relu)));
    FINE(ctrt_module_made(CTRT_ERR_IO, NULL) == NULL);
    static const ctrt_module_class nameless = { .size = sizeof nameless, .forward = forward_nothing };
    static const ctrt_module_class lazy = { .size = sizeof lazy, .kind = "Lazy", .forward = forward_nothing };
    BAD(INVALID_ARGUMENT, ctrt_module_new(NULL, &lazy));
    BAD_NEW(INVALID_ARGUMENT, ctrt_module_new(&module, NULL));
    BAD_NEW(ANY, ctrt_module_new(&module, &nameless));
    FINE(ctrt_module_new(&module, &lazy) == CTRT_OK);
    BAD(ANY, ctrt_forward(&out, module, p.x));              /* the module's forward returns no result */
    BAD(ANY, ctrt_sequential_add(module, CTRT_NEW(relu)));  /* not a Sequential */
    ctrt_module_release(&module);
}

static void modules(void)
{
    const char *name = NULL;
    ctrt_tensor *borrowed = NULL;
    ctrt_module *child = NULL;
    ctrt_device *device = NULL;
    NULL_IN3(ctrt_forward, &out, p.linear, p.x);
    NULL_IN3(ctrt_forward_n, &out, p.linear, &p.x, 1);
    BAD(ANY, ctrt_forward_n(&out, p.linear, &p.x, 0));
    BAD(ANY, ctrt_forward_n(&out, p.linear, &p.x, -1));
    FINE(!strcmp(ctrt_module_kind(NULL), "(null)"));
    BAD(INVALID_ARGUMENT, ctrt_module_parameter(&name, &borrowed, NULL, 0));
    BAD(NOT_FOUND, ctrt_module_parameter(&name, &borrowed, p.linear, 2));
    FINE(ctrt_module_parameter(NULL, NULL, p.linear, 1) == CTRT_OK);
    BAD(INVALID_ARGUMENT, ctrt_module_buffer(&name, &borrowed, NULL, 0));
    BAD(NOT_FOUND, ctrt_module_buffer(&name, &borrowed, p.linear, SIZE_MAX));
    FINE(ctrt_module_parameter_count(NULL) == 0 && ctrt_module_buffer_count(NULL) == 0 && ctrt_module_numel(NULL) == 0);
    BAD(ANY, ctrt_module_to(p.linear, NULL, (ctrt_dtype)77));
    NULL_IN3(ctrt_module_tensor, &borrowed, p.linear, "weight");
    NULL_IN2(ctrt_module_device, &device, p.linear);
    BAD(INVALID_ARGUMENT, ctrt_module_child(&name, &child, NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_module_to(NULL, p.cpu, CTRT_F32));
    FINE((ctrt_module_train(NULL, true), ctrt_module_is_training(NULL) || true));
    BAD(INVALID_ARGUMENT, ctrt_module_zero_grad(NULL, true));
    FINE(ctrt_module_state(NULL) == NULL);
    NULL_IN3(ctrt_module_add_parameter, p.linear, "a", p.x);
    NULL_IN3(ctrt_module_add_buffer, p.linear, "a", p.x, true);
    static const ctrt_forward_hooks no_hooks = { .size = sizeof no_hooks };
    NULL_IN2(ctrt_module_add_forward_hooks, p.linear, &no_hooks, NULL, NULL);
    BAD(INVALID_ARGUMENT, ctrt_module_add_forward_hooks(p.linear, &no_hooks, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_module_remove_forward_hooks(NULL, 1));
    BAD(NOT_FOUND, ctrt_module_remove_forward_hooks(p.linear, UINT64_MAX));
    BAD(ANY, ctrt_module_add_module(NULL, "a", CTRT_NEW(relu)));
    BAD(ANY, ctrt_module_add_module(p.linear, NULL, CTRT_NEW(relu)));
#define INIT(name, no_floats, ...)                                   \
    BAD(INVALID_ARGUMENT, ctrt_init_##name##_(NULL, __VA_ARGS__)),   \
    BAD(DTYPE, ctrt_init_##name##_(no_floats, __VA_ARGS__))
#define INIT_SHAPED(name, value) INIT(name, p.truth, value), BAD(SHAPE, ctrt_init_##name##_(p.number, value))
    INIT(uniform, p.whole, 0, 1);
    INIT(normal, p.whole, 0, 1);
    INIT_SHAPED(xavier_uniform, 1);
    INIT_SHAPED(xavier_normal, 1);
    INIT_SHAPED(kaiming_uniform, 0);
    INIT_SHAPED(kaiming_normal, 0);
    BAD(INVALID_ARGUMENT, ctrt_init_constant_(NULL, 1));
    BAD(INVALID_ARGUMENT, ctrt_init_uniform_(p.x, 1, 0));
    BAD(INVALID_ARGUMENT, ctrt_init_normal_(p.x, 0, -1));
}

static void optimizers(void)
{
    ctrt_optimizer *optimizer = NULL;
    ctrt_tensor *pair[2] = { p.leaf, NULL }, *borrowed = NULL;
    double norm = 0;
    NULL_IN2(ctrt_sgd_add_group, p.sgd, pair, 1, NULL);
    BAD(INVALID_ARGUMENT, ctrt_sgd_new(NULL, p.linear, SGD(.lr = 0.1)));
    BAD(INVALID_ARGUMENT, ctrt_sgd_new(&optimizer, p.linear, SGD(.lr = 0.1, .nesterov = true)));
    BAD(INVALID_ARGUMENT, ctrt_sgd_new(&optimizer, NULL, SGD(.nesterov = true, .momentum = 0.9, .dampening = 0.1)));
    BAD(INVALID_ARGUMENT, ctrt_sgd_new(&optimizer, NULL, SGD(.nesterov = true, .momentum = 0)));
    BAD(INVALID_ARGUMENT, ctrt_adamw_new(NULL, p.linear, NULL));
    BAD(INVALID_ARGUMENT, ctrt_adam_new(NULL, p.linear, NULL));
    BAD(INVALID_ARGUMENT, ctrt_rmsprop_new(NULL, p.linear, NULL));
    BAD(INVALID_ARGUMENT, ctrt_adagrad_new(NULL, p.linear, NULL));
    BAD(INVALID_ARGUMENT, ctrt_nadam_new(NULL, p.linear, NULL));
    BAD(INVALID_ARGUMENT, ctrt_sgd_add_group(p.sgd, pair, 1, SGD(.nesterov = true)));
    BAD(STATE, ctrt_adam_add_group(p.sgd, pair, 1, NULL));
    BAD(STATE, ctrt_adamw_add_group(p.sgd, pair, 1, NULL));
    BAD(STATE, ctrt_rmsprop_add_group(p.sgd, pair, 1, NULL));
    BAD(STATE, ctrt_adagrad_add_group(p.sgd, pair, 1, NULL));
    BAD(STATE, ctrt_nadam_add_group(p.sgd, pair, 1, NULL));
    FINE(ctrt_optimizer_group_count(NULL) == 0 && ctrt_optimizer_group_count(p.sgd) == 1);
    NULL_IN2(ctrt_optimizer_option, &norm, p.sgd, 0, "lr");
    BAD(INVALID_ARGUMENT, ctrt_optimizer_option(&norm, p.sgd, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_optimizer_set_group_lr(NULL, 0, 1));
    BAD(NOT_FOUND, ctrt_optimizer_set_group_lr(p.sgd, 1, 1));
    FINE(optimizer == NULL);
    FINE((ctrt_optimizer_release(NULL), true));
    NULL_IN2(ctrt_optimizer_add, p.sgd, pair, 1);
    CTRT_AUTO(tensor) made = NULL;
    FINE(ctrt_mul(&made, p.leaf, p.leaf) == CTRT_OK);
    BAD(AUTOGRAD, ctrt_optimizer_add(p.sgd, &made, 1));
    BAD(DTYPE, ctrt_optimizer_add(p.sgd, &p.whole, 1));
    FINE(ctrt_module_tensor(&borrowed, p.linear, "bias") == CTRT_OK);
    BAD(STATE, ctrt_optimizer_add(p.sgd, &borrowed, 1));
    BAD(INVALID_ARGUMENT, ctrt_optimizer_add(p.sgd, pair, 2));
    BAD(INVALID_ARGUMENT, ctrt_optimizer_add(p.sgd, pair, -1));
    BAD(INVALID_ARGUMENT, ctrt_optimizer_step(NULL));
    BAD(INVALID_ARGUMENT, ctrt_optimizer_zero_grad(NULL, true));
    FINE(ctrt_optimizer_lr(NULL) == 0 || isnan(ctrt_optimizer_lr(NULL)));
    BAD(INVALID_ARGUMENT, ctrt_optimizer_set_lr(NULL, 1));
    BAD(INVALID_ARGUMENT, ctrt_optimizer_set_lr(p.sgd, NAN));
    BAD(INVALID_ARGUMENT, ctrt_optimizer_set_lr(p.sgd, -1));
    BAD(INVALID_ARGUMENT, ctrt_clip_grad_norm_(&norm, NULL, 1));
    BAD(INVALID_ARGUMENT, ctrt_clip_grad_norm_(&norm, p.linear, NAN));
    BAD(INVALID_ARGUMENT, ctrt_clip_grad_norm_(&norm, p.linear, -1));
    ctrt_tensor *states[CTRT_OPTIMIZER_STATES] = { NULL };
    int64_t steps = 0;
    FINE(ctrt_optimizer_parameter_count(NULL) == 0);
    FINE(ctrt_optimizer_parameter_count(p.sgd) == 2);
    BAD(ANY, ctrt_optimizer_get_state(NULL, states, p.sgd, 0));
    BAD(ANY, ctrt_optimizer_get_state(&steps, NULL, p.sgd, 0));
    BAD(ANY, ctrt_optimizer_get_state(&steps, states, NULL, 0));
    BAD(ANY, ctrt_optimizer_get_state(&steps, states, p.sgd, 99));
    BAD(ANY, ctrt_optimizer_set_state(NULL, 0, 1, states));
    BAD(ANY, ctrt_optimizer_set_state(p.sgd, 99, 1, states));
    BAD(ANY, ctrt_optimizer_set_state(p.sgd, 0, -1, states));
    BAD(ANY, ctrt_optimizer_set_state(p.sgd, 0, 1, NULL));
    BAD(ANY, ctrt_optimizer_state(&borrowed, NULL, 0, "momentum_buffer"));
    BAD(ANY, ctrt_optimizer_state(&borrowed, p.sgd, 0, NULL));
    BAD(ANY, ctrt_optimizer_state(&borrowed, p.sgd, 99, "momentum_buffer"));
    BAD(ANY, ctrt_optimizer_state(NULL, p.sgd, 0, "momentum_buffer"));
    NULL_IN3(ctrt_optimizer_tensors, &borrowed, states, p.sgd, 0);
    BAD(NOT_FOUND, ctrt_optimizer_tensors(&borrowed, states, p.sgd, 99));
}

static void scalers(void)
{
    ctrt_grad_scaler *scaler = NULL;
    ctrt_grad_scaler_state state = CTRT_GRAD_SCALER_STATE;
    int64_t all = 0, row = 0;
    char text[8];
    BAD(INVALID_ARGUMENT, ctrt_grad_scaler_new(NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_grad_scaler_new(&scaler, SCALER(.growth_factor = 0.5)));
    FINE(ctrt_grad_scaler_new(&scaler, NULL) == CTRT_OK);
    FINE(!ctrt_grad_scaler_enabled(NULL));
    NULLS2(ctrt_grad_scaler_scale, scaler, p.x);
    NULL_IN2(ctrt_grad_scaler_unscale_, scaler, p.sgd);
    NULL_IN2(ctrt_grad_scaler_step, scaler, p.sgd);
    BAD(STATE, ctrt_grad_scaler_unscale_(scaler, p.sgd));
    BAD(STATE, ctrt_grad_scaler_step(scaler, p.sgd));
    BAD(STATE, ctrt_grad_scaler_update(scaler, 0));
    BAD(INVALID_ARGUMENT, ctrt_grad_scaler_update(NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_grad_scaler_update(scaler, -1));
    BAD(INVALID_ARGUMENT, ctrt_grad_scaler_check(NULL));
    BAD(INVALID_ARGUMENT, ctrt_grad_scaler_report(NULL, 8, p.sgd));
    BAD(INVALID_ARGUMENT, ctrt_grad_scaler_report(text, 0, p.sgd));
    BAD(INVALID_ARGUMENT, ctrt_grad_scaler_report(text, 8, NULL));
    BAD(INVALID_ARGUMENT, ctrt_grad_scaler_set_state(scaler, &state));
    NULL_IN2(ctrt_grad_scaler_get_state, &state, scaler);
    NULL_IN2(ctrt_grad_scaler_set_state, scaler, &state);
    NULL_IN3(ctrt_grad_scaler_skips, &all, &row, scaler);
    NULL_IN2(ctrt_grad_scaler_save, scaler, "x");
    NULL_IN2(ctrt_grad_scaler_load, scaler, "x");
    BAD(IO, ctrt_grad_scaler_save(scaler, "/nonexistent/folder/file"));
    BAD(IO, ctrt_grad_scaler_load(scaler, "/nonexistent/folder/file"));
    ctrt_inf_watch *watch = NULL;
    NULL_IN2(ctrt_inf_watch_new, &watch, p.linear);
    BAD(INVALID_ARGUMENT, ctrt_inf_watch_report(text, 8, NULL));
    BAD(INVALID_ARGUMENT, ctrt_inf_watch_report(NULL, 8, watch));
    FINE((ctrt_inf_watch_release(&watch), ctrt_inf_watch_release(NULL), watch == NULL));
    FINE((ctrt_grad_scaler_release(&scaler), ctrt_grad_scaler_release(NULL), scaler == NULL));
}

static void checkpoints(void)
{
    ctrt_tensor_file *file = NULL;
    ctrt_tensor *pair[2] = { p.x, p.wide }, *hole[2] = { p.x, NULL };
    const char *names[2] = { "a", "b" };
    static const char *const nowhere = "/nonexistent/folder/file.safetensors";
    BAD(IO, ctrt_save(p.linear, nowhere));
    BAD(IO, ctrt_save(p.linear, ""));
    BAD(IO, ctrt_load(p.linear, nowhere));
    BAD(IO, ctrt_optimizer_save(p.sgd, nowhere));
    BAD(IO, ctrt_optimizer_load(p.sgd, nowhere));
    BAD(IO, ctrt_save_tensors(nowhere, names, pair, 2));
    BAD(ANY, ctrt_load(p.linear, "/"));
    BAD(ANY, ctrt_load(p.linear, "/dev/null"));
    NULL_IN2(ctrt_save, p.linear, nowhere);
    NULL_IN2(ctrt_load, p.linear, nowhere);
    NULL_IN2(ctrt_optimizer_save, p.sgd, nowhere);
    NULL_IN2(ctrt_optimizer_load, p.sgd, nowhere);
    NULL_IN3(ctrt_save_tensors, nowhere, names, pair, 2);
    BAD(INVALID_ARGUMENT, ctrt_save_tensors_with_metadata(nowhere, names, pair, 2, NULL, 1));
    BAD(INVALID_ARGUMENT, ctrt_save_tensors(nowhere, names, hole, 2));
    NULL_IN2(ctrt_tensor_file_open, &file, nowhere);
    FINE((ctrt_tensor_file_release(&file), ctrt_tensor_file_release(NULL), file == NULL));
    FINE(ctrt_tensor_file_count(NULL) == 0 && ctrt_tensor_file_name(NULL, 0) == NULL && ctrt_tensor_file_metadata(NULL,
        "a") == NULL);
    FINE(ctrt_tensor_file_dtype(NULL, 0) == NULL && ctrt_tensor_file_metadata_key(NULL, 0) == NULL);
    BAD(INVALID_ARGUMENT, ctrt_tensor_file_read(&out, NULL, "a", NULL));
}

void bad_nn(void)
{
    RUN_ALL(constructors, modules, optimizers, scalers, checkpoints);
}
