/* SPDX-License-Identifier: Apache-2.0 */
/* ops-reference-calls.c: calls the ops of the reference cases. Ops of the forms UNARY and BINARY come from ctrt/ops.def. */
#include "ops-reference.h"

/* Returns the integers of an attribute, or CTRT_ALL_DIMS when the attribute is absent. */
static ctrt_ints integers(const struct ref_case *c, const char *name)
{
    const struct ref_record *record = attr(c, name);
    return record && record->i ? ctrt_ints_of(record->i, (int)record->numel) : CTRT_ALL_DIMS;
}

static bool is_word(const struct ref_case *c, const char *name, const char *word)
{
    const struct ref_record *record = attr(c, name);
    return record && record->text && !strcmp(record->text, word);
}

static int dim_of(const struct ref_case *c)
{
    return (int)number(c, "dim", 0);
}

#define OUT              (&c->out[0])
#define IN(name)         input(c, name)
#define CASE(name, ...)  static ctrt_status name(struct ref_case *c) { return __VA_ARGS__; }

/* ---- elementwise ---- */

static ctrt_status clamp(struct ref_case *c)
{
    ctrt_scalar lo = ctrt_float(number(c, "min", 0)), hi = ctrt_float(number(c, "max", 0));
    if (!attr(c, "max"))
        return ctrt_clamp_min(&c->out[0], input(c, "x"), lo);
    if (!attr(c, "min"))
        return ctrt_clamp_max(&c->out[0], input(c, "x"), hi);
    return ctrt_clamp(&c->out[0], input(c, "x"), lo, hi);
}

CASE(where, ctrt_where(OUT, IN("c"), IN("a"), IN("b")))

static ctrt_scalar scalar_of(const struct ref_record *record)
{
    return record->i ? ctrt_int(record->i[0]) : ctrt_float(record->f[0]);
}

static ctrt_status power(struct ref_case *c)
{
    if (attr(c, "exponent"))
        return ctrt_pow_scalar(&c->out[0], input(c, "x"), scalar_of(attr(c, "exponent")));
    if (attr(c, "base"))
        return ctrt_rpow_scalar(&c->out[0], input(c, "x"), scalar_of(attr(c, "base")));
    return ctrt_pow(&c->out[0], input(c, "a"), input(c, "b"));
}

/* Casts to the dtype that follows the '_' in the case's name, as in "cast.f32_i64_large". */
static ctrt_status cast(struct ref_case *c)
{
    char word[16];
    ctrt_dtype dtype;
    const char *at = strchr(c->name, '_') + 1;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "_"), at);
    CTRT_TRY(ctrt_dtype_parse(&dtype, word));
    return ctrt_to_dtype(&c->out[0], input(c, "x"), dtype);
}

/* ---- reductions ---- */

CASE(variance, ctrt_var(OUT, IN("x"), integers(c, "dim"), (int)number(c, "correction", 1),
              number(c, "keepdim", 0) != 0))

/* Over all dimensions PyTorch's max is ctrt_amax, whose ties share the gradient equally. */
static ctrt_status max(struct ref_case *c)
{
    if (!attr(c, "dim"))
        return ctrt_amax(&c->out[0], input(c, "x"), CTRT_ALL_DIMS, false);
    c->out_names[1] = "indices";
    return ctrt_max(&c->out[0], &c->out[1], input(c, "x"), dim_of(c), false);
}

static ctrt_status min(struct ref_case *c)
{
    c->out_names[1] = "indices";
    return ctrt_min(&c->out[0], &c->out[1], input(c, "x"), dim_of(c), false);
}

CASE(softmax, ctrt_softmax(OUT, IN("x"), dim_of(c)))
CASE(log_softmax, ctrt_log_softmax(OUT, IN("x"), dim_of(c)))

/* ---- matrices, joins, creation, indexing ---- */

CASE(linear, ctrt_linear(OUT, IN("x"), IN("weight"), IN("bias")))
CASE(cat, ctrt_cat(OUT, c->in, c->inputs, dim_of(c)))

static ctrt_status arange(struct ref_case *c)
{
    const struct ref_record *args = attr(c, "args");
    ctrt_scalar value[3] = { ctrt_int(0), ctrt_int(0), ctrt_int(1) };
    for (int k = 0; k < args->numel; k++) {
        int to = args->numel == 1 ? 1 : k;
        value[to] = args->i ? ctrt_int(args->i[k]) : ctrt_float(args->f[k]);
    }
    return ctrt_arange(&c->out[0], value[0], value[1], value[2], CTRT_DTYPE_DEFAULT, NULL);
}

/* As in PyTorch, the value determines the dtype. */
static ctrt_status full(struct ref_case *c)
{
    const struct ref_record *value = attr(c, "value");
    ctrt_scalar scalar = !strcmp(value->dtype, "bool") ? ctrt_bool(value->i[0] != 0) : scalar_of(value);
    CTRT_TRY(ctrt_scalar_tensor(&c->out[0], scalar, CTRT_DTYPE_DEFAULT, NULL));
    return ctrt_full(&c->out[0], CTRT_SHAPE(2), scalar, ctrt_tensor_dtype(c->out[0]), NULL);
}

CASE(index_select, ctrt_index_select(OUT, IN("x"), dim_of(c), IN("index")))
CASE(gather, ctrt_gather(OUT, IN("x"), dim_of(c), IN("index")))

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

CASE(layer_norm, ctrt_layer_norm(OUT, IN("x"), integers(c, "shape"), IN("weight"), IN("bias"),
                                 number(c, "eps", 1e-5)))

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

CASE(mse_loss, ctrt_mse_loss(OUT, IN("x"), IN("target"), reduction(c)))
CASE(gelu, ctrt_gelu(OUT, IN("x"), is_word(c, "approximate", "tanh")))

/* ---- attention, embedding ---- */

CASE(attention, ctrt_scaled_dot_product_attention(OUT, IN("q"), IN("k"), IN("v"), IN("mask"), 0,
                                                  number(c, "causal", 0) != 0, number(c, "scale", 0)))

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

/* PyTorch's default weight decay of AdamW is 1e-2, that of ctrt is 0. */
static ctrt_status adamw(struct ref_case *c)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_adamw_options options = {
        .lr = number(c, "lr", 0), .weight_decay = number(c, "weight_decay", 1e-2), .epsilon = number(c, "eps", 0),
        .maximize = number(c, "maximize", 0) != 0, .amsgrad = number(c, "amsgrad", 0) != 0,
    };
    CTRT_TRY(ctrt_adamw_new(&optimizer, NULL, &options));
    return five_steps(c, optimizer);
}

static ctrt_status adam(struct ref_case *c)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    const struct ref_record *betas = attr(c, "betas");
    ctrt_adam_options options = {
        .lr = number(c, "lr", 0), .weight_decay = number(c, "weight_decay", 0), .epsilon = number(c, "eps", 0),
        .beta1 = betas ? betas->f[0] : 0, .beta2 = betas ? betas->f[1] : 0, .amsgrad = number(c, "amsgrad", 0) != 0,
    };
    CTRT_TRY(ctrt_adam_new(&optimizer, NULL, &options));
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

/* ---- the table ---- */

#define CALL(name)              { .op = #name, .call = name }
#define REDUCE(name, function)  { .op = name, .reduce = function }
#define FORM_UNARY(name)        .unary = ctrt_##name
#define FORM_BINARY(name)       .binary = ctrt_##name, .scalar = ctrt_##name##_scalar
#define FORM_OWN(name)          .call = NULL
#define FORM_GRAPH(name)        .call = NULL

/* The first row of a name counts. */
static const struct ref_op ops[] = {
    CALL(clamp), CALL(where), CALL(cast), CALL(max), CALL(min), CALL(softmax), CALL(log_softmax),
    CALL(linear), CALL(cat), CALL(arange), CALL(full), CALL(index_select), CALL(gather),
    CALL(conv2d), CALL(max_pool2d), CALL(batch_norm), CALL(cross_entropy), CALL(mse_loss), CALL(gelu),
    CALL(attention), CALL(embedding), CALL(sgd), CALL(adam), CALL(adamw), CALL(clip_grad_norm),
    { .op = "pow", .call = power },
    { .op = "var", .call = variance },
    { .op = "gelu_tanh", .call = gelu },
    { .op = "layer_norm", .call = layer_norm, .tolerance = 2e-4 },  /* one case has values around 1000, spread 1 */
    { .op = "multi_head", .call = multi_head, .tolerance = 1e-5 },  /* the exact gradient of the keys' bias is 0 */
    { .op = "matmul", .binary = ctrt_matmul },
    { .op = "div_floor", .binary = ctrt_floor_divide },
    REDUCE("sum", ctrt_sum_dims),
    REDUCE("mean", ctrt_mean_dims),
    REDUCE("prod", ctrt_prod_dims),
    REDUCE("amax", ctrt_amax),
    REDUCE("amin", ctrt_amin),
    REDUCE("any", ctrt_any),
    REDUCE("all", ctrt_all),
    REDUCE("argmax", ctrt_argmax),
    REDUCE("argmin", ctrt_argmin),
#define CTRT_OP(name, form, promotion, dtypes, numbers, in_place, gradient, text) { .op = #name, FORM_##form(name) },
#include "ctrt/ops.def"
#undef CTRT_OP
};

const struct ref_op *ref_op_find(const char *case_name)
{
    const size_t length = strcspn(case_name, ".");
    for (size_t k = 0; k < COUNT(ops); k++)
        if (strlen(ops[k].op) == length && !strncmp(ops[k].op, case_name, length))
            return ops[k].call || ops[k].unary || ops[k].binary || ops[k].reduce ? &ops[k] : NULL;
    return NULL;
}

ctrt_status ref_op_call(const struct ref_op *op, struct ref_case *c)
{
    if (op->call)
        return op->call(c);
    if (op->reduce)
        return op->reduce(&c->out[0], input(c, "x"), integers(c, "dim"), number(c, "keepdim", 0) != 0);
    if (op->unary)
        return op->unary(&c->out[0], input(c, "x"));
    if (op->scalar && attr(c, "scalar"))
        return op->scalar(&c->out[0], input(c, "x"), ctrt_float(number(c, "scalar", 0)));
    return op->binary(&c->out[0], input(c, "a"), input(c, "b"));
}
