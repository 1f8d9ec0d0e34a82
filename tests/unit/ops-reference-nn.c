/* SPDX-License-Identifier: Apache-2.0 */
/* Calls the ops of the reference cases in ops_conv, ops_norm, ops_loss, ops_activation, ops_attention and
 * ops_optimizer. */
#include "ops-reference.h"

static void two(int64_t out[2], const struct ref_case *c, const char *name)
{
    const struct ref_record *record = attr(c, name);
    if (record == NULL)
        return;
    out[0] = record->i[0];
    out[1] = record->i[record->numel > 1];
}

/* ---- convolution, pooling, normalisation ---- */

static ctrt_status conv2d(struct ref_case *c)
{
    ctrt_conv2d_options options = { .groups = (int64_t)number(c, "groups", 1) };
    two(options.stride, c, "stride");
    two(options.padding, c, "padding");
    two(options.dilation, c, "dilation");
    return ctrt_conv2d(&c->out[0], input(c, "x"), input(c, "weight"), input(c, "bias"), &options);
}

static ctrt_status max_pool2d(struct ref_case *c)
{
    ctrt_pool2d_options options = { { 0, 0 }, { 0, 0 }, { 0, 0 }, { 0, 0 } };
    two(options.kernel, c, "kernel");
    two(options.stride, c, "stride");
    two(options.padding, c, "padding");
    two(options.dilation, c, "dilation");
    c->out_names[1] = "indices";
    return ctrt_max_pool2d(&c->out[0], &c->out[1], input(c, "x"), &options);
}

static ctrt_status layer_norm(struct ref_case *c)
{
    return ctrt_layer_norm(&c->out[0], input(c, "x"), integers(c, "shape"), input(c, "weight"),
                           input(c, "bias"), number(c, "eps", 1e-5));
}

static ctrt_status batch_norm(struct ref_case *c)
{
    bool training = number(c, "training", 0) != 0;
    for (int k = 0; k < 2 && input(c, "mean"); k++)
        CTRT_TRY(ctrt_clone(&c->out[1 + k], input(c, k ? "var" : "mean")));
    c->out_names[1] = "mean";
    c->out_names[2] = "var";
    return ctrt_batch_norm(&c->out[0], input(c, "x"), input(c, "weight"), input(c, "bias"), c->out[1],
                           c->out[2], training, number(c, "momentum", 0.1), number(c, "eps", 1e-5));
}

/* ---- losses, activations ---- */

static ctrt_reduction reduction(const struct ref_case *c)
{
    return is_word(c, "reduction", "none")  ? CTRT_REDUCE_NONE
           : is_word(c, "reduction", "sum") ? CTRT_REDUCE_SUM
                                            : CTRT_REDUCE_MEAN;
}

static ctrt_status cross_entropy(struct ref_case *c)
{
    ctrt_cross_entropy_options options = {
        .weight = input(c, "weight"),
        .has_ignore_index = attr(c, "ignore_index") != NULL,
        .ignore_index = (int64_t)number(c, "ignore_index", 0),
        .label_smoothing = number(c, "label_smoothing", 0),
        .reduction = reduction(c),
    };
    return ctrt_cross_entropy(&c->out[0], input(c, "x"), input(c, "target"), &options);
}

static ctrt_status mse_loss(struct ref_case *c)
{
    return ctrt_mse_loss(&c->out[0], input(c, "x"), input(c, "target"), reduction(c));
}
static ctrt_status gelu(struct ref_case *c)
{
    return ctrt_gelu(&c->out[0], input(c, "x"), is_word(c, "approximate", "tanh"));
}
static ctrt_status silu(struct ref_case *c) { return ctrt_silu(&c->out[0], input(c, "x")); }

/* ---- attention, embedding ---- */

static ctrt_status attention(struct ref_case *c)
{
    return ctrt_scaled_dot_product_attention(&c->out[0], input(c, "q"), input(c, "k"), input(c, "v"),
                                             input(c, "mask"), 0, number(c, "causal", 0) != 0,
                                             number(c, "scale", 0));
}

/* Runs a MultiheadAttention module with parameters from the file. The module's parameters become the case's leaves, so
 * that their gradients are compared. */
static ctrt_status multi_head(struct ref_case *c)
{
    static const char *const names[4][2] = {
        { "in_weight", "in_proj_weight" },
        { "in_bias", "in_proj_bias" },
        { "out_weight", "out_proj.weight" },
        { "out_bias", "out_proj.bias" },
    };
    CTRT_AUTO(module) net = NULL;
    ctrt_tensor *x = input(c, "x"), *memory = input(c, "memory");
    CTRT_TRY(ctrt_multihead_attention_new(&net, ctrt_tensor_size(x, 2), (int64_t)number(c, "heads", 1), 0, true,
                                          number(c, "causal", 0) != 0, NULL));
    CTRT_TRY(ctrt_module_to(net, NULL, ctrt_tensor_dtype(x)));
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < c->inputs; i++)
            if (!strcmp(c->input_names[i], names[k][0])) {
                ctrt_tensor *parameter;
                CTRT_TRY(ctrt_module_tensor(&parameter, net, names[k][1]));
                bool was = ctrt_set_grad_enabled(false);
                ctrt_status status = ctrt_copy_(parameter, c->in[i]);
                ctrt_set_grad_enabled(was);
                CTRT_TRY(status);
                ctrt_tensor_assign(&c->leaf[i], parameter);
            }
    ctrt_tensor *inputs[3] = { x, memory ? memory : x, memory ? memory : x };
    return ctrt_forward_n(&c->out[0], net, inputs, 3);
}

/* In PyTorch a negative padding index counts from the end. In ctrt -1 means no padding, so a negative index of the file
 * is converted. */
static ctrt_status embedding(struct ref_case *c)
{
    int64_t padding = -1;
    if (attr(c, "padding_idx")) {
        padding = (int64_t)number(c, "padding_idx", -1);
        if (padding < 0)
            padding += ctrt_tensor_size(input(c, "weight"), 0);
    }
    return ctrt_embedding(&c->out[0], input(c, "weight"), input(c, "index"), padding);
}

/* ---- optimizers ---- */

/* Runs five steps of one parameter. The result is the parameter after each step. */
static ctrt_status five_steps(struct ref_case *c, ctrt_optimizer *optimizer)
{
    CTRT_AUTO(tensor) p = NULL, g = NULL;
    ctrt_tensor *rows[5] = { NULL };
    CTRT_TRY(ctrt_clone(&p, input(c, "p")));
    CTRT_TRY(ctrt_tensor_require_grad(p, true));
    CTRT_TRY(ctrt_optimizer_add(optimizer, &p, 1));
    ctrt_status status = CTRT_OK;
    for (int k = 0; k < 5 && status == CTRT_OK; k++) {
        status = ctrt_select(&g, input(c, "grads"), 0, k);
        if (!status) status = ctrt_tensor_set_grad(p, g);
        if (!status) status = ctrt_optimizer_step(optimizer);
        if (!status) status = ctrt_detach(&rows[k], p);
        if (!status) status = ctrt_clone(&rows[k], rows[k]);
    }
    if (!status) status = ctrt_stack(&c->out[0], rows, 5, 0);
    for (int k = 0; k < 5; k++)
        ctrt_tensor_release(&rows[k]);
    return status;
}

static ctrt_status sgd(struct ref_case *c)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_sgd_options options = {
        .lr = number(c, "lr", 0),
        .momentum = number(c, "momentum", 0),
        .dampening = number(c, "dampening", 0),
        .weight_decay = number(c, "weight_decay", 0),
        .nesterov = number(c, "nesterov", 0) != 0,
        .maximize = number(c, "maximize", 0) != 0,
    };
    CTRT_TRY(ctrt_sgd_new(&optimizer, NULL, &options));
    return five_steps(c, optimizer);
}

/* PyTorch's default weight decay is 1e-2, that of ctrt is 0. The default lr is 1e-3 in both. */
static ctrt_status adamw(struct ref_case *c)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_adamw_options options = {
        .lr = number(c, "lr", 0), .weight_decay = number(c, "weight_decay", 1e-2), .epsilon = number(c, "eps", 0),
        .maximize = number(c, "maximize", 0) != 0,
    };
    CTRT_TRY(ctrt_adamw_new(&optimizer, NULL, &options));
    return five_steps(c, optimizer);
}

static ctrt_status no_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)y, (void)self, (void)inputs, (void)count;
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "this module only holds parameters");
}

static ctrt_status clip_grad_norm(struct ref_case *c)
{
    static const ctrt_module_class bare = { .size = sizeof bare, .kind = "Two", .forward = no_forward };
    CTRT_AUTO(module) two_parameters = NULL;
    double norm;
    CTRT_TRY(ctrt_module_new(&two_parameters, &bare));
    for (int k = 0; k < 2; k++) {
        const char *name = k ? "b" : "a";
        CTRT_AUTO(tensor) zeros = NULL;
        CTRT_TRY(ctrt_zeros_like(&zeros, input(c, name), CTRT_DTYPE_DEFAULT, NULL));
        CTRT_TRY(ctrt_module_add_parameter(two_parameters, name, zeros));
        CTRT_TRY(ctrt_clone(&c->out[1 + k], input(c, name)));
        CTRT_TRY(ctrt_tensor_set_grad(zeros, c->out[1 + k]));
        c->out_names[1 + k] = name;
    }
    CTRT_TRY(ctrt_clip_grad_norm_(&norm, two_parameters, number(c, "max_norm", 0)));
    for (int k = 0; k < 2; k++) {                       /* clipping may have replaced the gradient tensors */
        ctrt_tensor *parameter;
        CTRT_TRY(ctrt_module_tensor(&parameter, two_parameters, k ? "b" : "a"));
        ctrt_tensor_assign(&c->out[1 + k], ctrt_tensor_grad(parameter));
    }
    return ctrt_scalar_tensor(&c->out[0], ctrt_float(norm), CTRT_F64, NULL);
}

#define ROW(name)   { #name, name, NULL, 0 }
#define LACKS(name) { name, NULL, "ctrt has no " name, 0 }

const struct ref_op ref_nn_ops[] = {
    ROW(conv2d),
    ROW(max_pool2d),
    { "layer_norm", layer_norm, NULL, 2e-4 }, /* one case has values around 1000 with a spread of 1 */
    ROW(batch_norm),
    ROW(cross_entropy),
    ROW(mse_loss),
    ROW(gelu),
    { "gelu_tanh", gelu, NULL, 0 },
    ROW(silu),
    ROW(attention),
    { "multi_head", multi_head, NULL, 1e-5 }, /* the exact gradient of the keys' bias is 0 */
    ROW(embedding),
    ROW(sgd),
    ROW(adamw),
    ROW(clip_grad_norm),
    LACKS("avg_pool2d"),
    LACKS("adaptive_avg_pool2d"),
    LACKS("group_norm"),
    LACKS("nll_loss"),
    LACKS("l1_loss"),
    LACKS("smooth_l1_loss"),
    LACKS("huber_loss"),
    LACKS("bce_with_logits"),
    LACKS("binary_cross_entropy"),
    LACKS("kl_div"),
    LACKS("leaky_relu"),
    LACKS("elu"),
    LACKS("softplus"),
    LACKS("hardtanh"),
    LACKS("relu6"),
    LACKS("logsigmoid"),
    LACKS("hardsigmoid"),
    LACKS("hardswish"),
    LACKS("mish"),
    LACKS("selu"),
    { "adam", NULL, "ctrt has AdamW alone, no Adam", 0 },
    { "schedule", NULL, "ctrt has no learning rate schedules", 0 },
    { NULL, NULL, NULL, 0 },
};
