/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the standard modules: that each calls its op with its tensors and options, initial values, options. The ops
 * themselves are tested by the conformance suite. */
#include <math.h>

#include "../options.h"
#include "calls.h"
#include "tensors.h"

/* ---- helpers ---- */

/* Returns an f32 tensor of random numbers in [-1, 1). The caller releases the tensor. */
static ctrt_tensor *numbers(ctrt_ints shape)
{
    ctrt_tensor *tensor = NULL;
    CHECK_OK(ctrt_empty(&tensor, shape, CTRT_F32, cpu));
    CHECK_OK(ctrt_uniform_(tensor, -1, 1));
    return tensor;
}

/* Gives every parameter other values than its initial ones. */
static void randomize(ctrt_module *module)
{
    ctrt_tensor *parameter;
    for (size_t i = 0; ctrt_module_parameter(NULL, &parameter, module, i) == CTRT_OK; i++)
        CHECK_OK(ctrt_init_uniform_(parameter, -1, 1));
}

/* Returns element k as a double. */
static double at(ctrt_tensor *tensor, int64_t k)
{
    double values[64] = { 0 };
    CHECK_OK(ctrt_to_host(values, sizeof values, tensor, CTRT_F64));
    return values[k];
}

/* Checks that `got` equals the result that the call writes to `want`. */
#define GIVEN_BY(got, call)                                                                             \
    do {                                                                                                \
        CTRT_AUTO(tensor) want = NULL;                                                                  \
        if (CHECK_OK(call))                                                                             \
            check_same(#got, __LINE__, got, want, 1e-5);                                                \
    } while (0)
/* The same for the module's result for x, which is assigned to y. */
#define RUNS_AS(module, x, call) do { CHECK_OK(ctrt_forward(&y, module, x)); GIVEN_BY(y, call); } while (0)

/* ---- linear, convolution, embedding ---- */

TEST(linear, "Linear")
{
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(2, 4, 3)), y = NULL, none = NULL;
    CHECK_OK(ctrt_linear_new(&module, 3, 5, true, cpu));
    SHAPE_IS(module_tensor(module, "weight"), 5, 3);
    SHAPE_IS(module_tensor(module, "bias"), 5);
    RUNS_AS(module, x, ctrt_linear(&want, x, module_tensor(module, "weight"), module_tensor(module, "bias")));
    CHECK_OK(ctrt_linear_new(&module, 3, 5, false, cpu));
    CHECK_EQ(ctrt_module_parameter_count(module), 1);
    CHECK_FAILS(ctrt_forward(&y, module, y), CTRT_ERR_SHAPE, "Linear: ");
    ctrt_tensor *two[] = { x, x };
    CHECK_FAILS(ctrt_forward_n(&y, module, two, 2), CTRT_ERR_INVALID_ARGUMENT, "one input, got 2");
    two[0] = NULL;
    CHECK_FAILS(ctrt_forward_n(&y, module, two, 1), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_OK(ctrt_linear_new(&module, 0, 2, true, cpu));            /* y equals the bias, which is 0 without inputs */
    CHECK_OK(ctrt_zeros(&none, CTRT_SHAPE(1, 0), CTRT_F32, cpu));
    CHECK_OK(ctrt_forward(&y, module, none));
    VALUES_ARE(y, 0, 0);
}

TEST(conv2d, "Conv2d")
{
    const ctrt_conv2d_options options = { .size = sizeof(ctrt_conv2d_options), .stride = { 2, 1 }, .padding = { 1, 2 },
                                          .dilation = { 1, 2 }, .groups = 2 };
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(2, 4, 5, 6)), y = NULL, image = numbers(CTRT_SHAPE(1, 1, 9, 9));
    CHECK_OK(ctrt_conv2d_new(&module, 4, 6, 3, 2, &options, true, cpu));
    SHAPE_IS(module_tensor(module, "weight"), 6, 2, 3, 2);
    RUNS_AS(module, x, ctrt_conv2d(&want, x, module_tensor(module, "weight"), module_tensor(module, "bias"), &options));
    CHECK_OK(ctrt_conv2d_new(&module, 1, 7, 5, 5, NULL, true, cpu));
    CHECK_OK(ctrt_forward(&y, module, image));
    SHAPE_IS(y, 1, 7, 5, 5);
}

TEST(embedding, "Embedding")
{
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) index = NULL, y = NULL, loss = NULL, ones = NULL;
    const int64_t rows[] = { 4, 0, 2, 2 }, outside = 5;
    CHECK_OK(ctrt_embedding_new(&module, 5, 3, EMBEDDING(.padding_idx = 2), cpu));
    ctrt_tensor *weight = module_tensor(module, "weight");
    for (int i = 0; i < 3; i++)
        CHECK(at(weight, 2 * 3 + i) == 0 && at(weight, 4 * 3 + i) != 0, "padding row 2 is not 0, or row 4 has a 0");
    CHECK_OK(ctrt_from_data(&index, rows, 4, CTRT_SHAPE(2, 2), CTRT_I64, cpu));
    RUNS_AS(module, index, ctrt_embedding(&want, weight, index, -1));
    CHECK_OK(ctrt_sum(&loss, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(loss));
    CHECK_OK(ctrt_sum_dims(&ones, ctrt_tensor_grad(weight), CTRT_DIMS(1), false));
    VALUES_ARE(ones, 3, 0, 0, 0, 3);                    /* none for row 2 */
    CHECK_OK(ctrt_from_data(&index, &outside, 1, CTRT_SHAPE(1), CTRT_I64, cpu));
    CHECK_FAILS(ctrt_forward(&y, module, index), CTRT_ERR_INVALID_ARGUMENT, "Embedding: ");
}

/* ---- norms ---- */

TEST(layer_norm, "LayerNorm")
{
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(4, 2, 3)), y = NULL;
    CHECK_OK(ctrt_layer_norm_new(&module, CTRT_SHAPE(2, 3), LAYER_NORM(.epsilon = 0.01), cpu));
    CHECK_EQ(at(module_tensor(module, "weight"), 5), 1.0);
    CHECK_EQ(at(module_tensor(module, "bias"), 5), 0.0);
    randomize(module);
    RUNS_AS(module, x, ctrt_layer_norm(&want, x, CTRT_SHAPE(2, 3), module_tensor(module, "weight"),
                                       module_tensor(module, "bias"), 0.01));
    CHECK_OK(ctrt_layer_norm_new(&module, CTRT_SHAPE(3), LAYER_NORM(.affine = false), cpu));
    CHECK_EQ(ctrt_module_parameter_count(module), 0);
}

/* `factor`: the op's momentum; 0: the cumulative average. */
static void batch_norm(const char *what, double momentum, double factor)
{
    group("BatchNorm2d, %s", what);
    enum { BATCHES = 3 };
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) mean = NULL, var = NULL;
    CHECK_OK(ctrt_batch_norm2d_new(&module, 2, NORM(.momentum = momentum), cpu));
    CHECK_EQ(ctrt_module_buffer_count(module), 3);
    ctrt_tensor *batches = module_tensor(module, "num_batches_tracked");
    CHECK_EQ(ctrt_tensor_dtype(batches), CTRT_I64);
    CHECK_EQ(ctrt_tensor_ndim(batches), 0);
    CHECK_OK(ctrt_zeros(&mean, CTRT_SHAPE(2), CTRT_F32, cpu));
    CHECK_OK(ctrt_ones(&var, CTRT_SHAPE(2), CTRT_F32, cpu));
    randomize(module);
    for (int batch = 1; batch <= BATCHES + 1; batch++) {
        const bool training = batch <= BATCHES;
        CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(3, 2, 2, 2)), y = NULL;
        ctrt_module_train(module, training);
        RUNS_AS(module, x, ctrt_batch_norm(&want, x, module_tensor(module, "weight"), module_tensor(module, "bias"),
                                           mean, var, training, momentum < 0 ? 1.0 / batch : factor, 1e-5));
        check_same("running_mean", __LINE__, module_tensor(module, "running_mean"), mean, 1e-5);
        check_same("running_var", __LINE__, module_tensor(module, "running_var"), var, 1e-5);
        CHECK_EQ(at(batches, 0), (double)(training ? batch : BATCHES));
    }
}

TEST(batch_norm_shapes, "BatchNorm rejects bad shapes")
{
    CTRT_AUTO(module) one = NULL, two = NULL;
    CTRT_AUTO(tensor) y = NULL, flat = numbers(CTRT_SHAPE(4, 2)), image = numbers(CTRT_SHAPE(4, 2, 3, 3)),
        single = numbers(CTRT_SHAPE(1, 2));
    CHECK_OK(ctrt_batch_norm1d_new(&one, 2, NULL, cpu));
    CHECK_OK(ctrt_batch_norm2d_new(&two, 2, NORM(.affine = false), cpu));
    CHECK_EQ(ctrt_module_parameter_count(two), 0);
    CHECK_OK(ctrt_forward(&y, one, flat));
    CHECK_FAILS(ctrt_forward(&y, one, image), CTRT_ERR_SHAPE, "BatchNorm1d: ");
    CHECK_FAILS(ctrt_forward(&y, two, flat), CTRT_ERR_SHAPE, "BatchNorm2d: ");
    /* The variance of one value per channel is undefined, so training mode rejects it. */
    CHECK_FAILS(ctrt_forward(&y, one, single), CTRT_ERR_SHAPE, "BatchNorm1d: ");
    ctrt_module_train(one, false);
    CHECK_OK(ctrt_forward(&y, one, single));
}

static double mean_square(ctrt_tensor *tensor)
{
    CTRT_AUTO(tensor) mean = OP(square, tensor);
    double value = NAN;
    CHECK_OK(ctrt_mean(&mean, mean, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&value, mean));
    return value;
}

TEST(zero_options, "epsilon and scale: 0 means 0")
{
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(5, 3)), y = NULL, q = numbers(CTRT_SHAPE(2, 4)), mean = NULL;
    CHECK_OK(ctrt_mul_scalar(&x, x, ctrt_float(1e-5)));         /* a variance far below the default epsilon, 1e-5 */
    for (int zero = 0; zero < 2; zero++) {
        CTRT_AUTO(module) layer = NULL, batch = NULL;
        CHECK_OK(ctrt_layer_norm_new(&layer, CTRT_SHAPE(3), LAYER_NORM(.epsilon = zero ? 0 : 1e-5, .affine = false),
                                     cpu));
        CHECK_OK(ctrt_batch_norm1d_new(&batch, 3, NORM(.epsilon = zero ? 0 : 1e-5, .affine = false), cpu));
        CHECK_OK(ctrt_forward(&y, layer, x));
        CHECK_NEAR(mean_square(y), zero, 1e-3);
        CHECK_OK(ctrt_forward(&y, batch, x));
        CHECK_NEAR(mean_square(y), zero, 1e-3);
    }
    CHECK_OK(ctrt_mean_dims(&mean, q, CTRT_DIMS(0), true));
    CHECK_OK(ctrt_scaled_dot_product_attention(&y, q, q, q, NULL, &CTRT_WITH(ctrt_attention_options,
                                                                             .has_scale = true)));
    GIVEN_BY(y, ctrt_expand(&want, mean, CTRT_SHAPE(2, 4)));
    CHECK_OK(ctrt_scaled_dot_product_attention(&y, q, q, q, NULL, NULL));
    CHECK(fabs(at(y, 0) - at(mean, 0)) > 1e-5, "attention with the default scale weighs all keys equally");
}

/* ---- functions as modules ---- */

TEST(activations, "activations")
{
    static const struct { const char *kind; double want[3]; } cases[] = {       /* want: results for -1, 0, 2 */
        { "ReLU", { 0, 0, 2 } }, { "GELU", { -0.15865525393, 0, 1.95449973610 } },
        { "Tanh", { -0.76159415596, 0, 0.96402758008 } }, { "Sigmoid", { 0.26894142137, 0.5, 0.88079707798 } },
        { "Softmax", { 0.04201006613, 0.11419519938, 0.84379473448 } },
        { "GELU", { -0.15880800939, 0, 1.95459769409 } },                       /* the tanh form */
    };
    ctrt_module *modules[] = { CTRT_NEW(relu), CTRT_NEW(gelu, false), CTRT_NEW(tanh), CTRT_NEW(sigmoid),
                               CTRT_NEW(softmax, -1), CTRT_NEW(gelu, true) };
    CTRT_AUTO(tensor) x = tensor_with(DOUBLES(-1, 0, 2), CTRT_SHAPE(3), CTRT_F32, cpu), y = NULL;
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECK_STR(ctrt_module_kind(modules[i]), cases[i].kind);
        CHECK_OK(ctrt_forward(&y, modules[i], x));
        check_values_within(cases[i].kind, __LINE__, y, cases[i].want, 3, 1e-5);
        ctrt_module_release(&modules[i]);
    }
}

TEST(shapes, "Flatten, MaxPool2d, Dropout")
{
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(2, 3, 4, 4)), y = NULL, ones = NULL, sum = NULL;
    CHECK_OK(ctrt_flatten_new(&module, 1, -1));
    CHECK_OK(ctrt_forward(&y, module, x));
    SHAPE_IS(y, 2, 48);

    const ctrt_pool2d_options options = { .size = sizeof(ctrt_pool2d_options), .kernel = { 3, 2 }, .stride = { 1, 2 },
                                          .padding = { 1, 0 } };
    CHECK_OK(ctrt_max_pool2d_new(&module, &options));
    RUNS_AS(module, x, ctrt_max_pool2d(&want, NULL, x, &options));
    CHECK_OK(ctrt_max_pool2d_new(&module, &CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 })));
    CHECK_OK(ctrt_forward(&y, module, x));
    SHAPE_IS(y, 2, 3, 2, 2);                            /* the default stride is the kernel's size */

    CHECK_OK(ctrt_dropout_new(&module, 0.25));
    CHECK_OK(ctrt_ones(&ones, CTRT_SHAPE(4000), CTRT_F32, cpu));
    CHECK_OK(ctrt_forward(&y, module, ones));
    CHECK_OK(ctrt_sum(&sum, y, CTRT_ALL_DIMS));
    CHECK_NEAR(at(sum, 0), 4000, 200);                  /* about 3000 are 4/3 */
    CHECK_NEAR(mean_square(y) * 4000, at(sum, 0) * 4 / 3, 1e-2);
    ctrt_module_train(module, false);
    CHECK_OK(ctrt_forward(&y, module, ones));
    CHECK(y == ones, "Dropout in evaluation mode does not return the input tensor itself");
}

/* ---- attention ---- */

/* test-ops-reference compares modules with one input, causal ones, and keys that are the values with PyTorch. */
TEST(attention, "MultiheadAttention: a mask, biases, keys and values, shapes")
{
    enum { EMBED = 6, HEADS = 2, T = 4 };
    static const char *const weights[] = { "in_proj_weight", "out_proj.weight" };
    const ctrt_ints shape = CTRT_SHAPE(1, T, EMBED);
    CTRT_AUTO(module) module = NULL, causal = NULL, plain = NULL;
    CTRT_AUTO(tensor) q = numbers(shape), k = numbers(shape), v = numbers(shape), y = NULL, twice = NULL,
        mask = OP(ones, CTRT_SHAPE(T, T), CTRT_BOOL, cpu), other = numbers(CTRT_SHAPE(T, EMBED + 1));
    ctrt_tensor *inputs[] = { q, k, v, NULL };
    CHECK_OK(ctrt_tril(&mask, mask, 0));
    CHECK_OK(ctrt_multihead_attention_new(&module, EMBED, HEADS, NULL, cpu));
    CHECK_OK(ctrt_multihead_attention_new(&causal, EMBED, HEADS, ATTENTION(.causal = true), cpu));
    CHECK_OK(ctrt_multihead_attention_new(&plain, EMBED, HEADS, ATTENTION(.bias = false), cpu));
    CHECK_EQ(ctrt_module_parameter_count(module), 4);
    CHECK_EQ(ctrt_module_parameter_count(plain), 2);
    CHECK_EQ(at(module_tensor(module, "in_proj_bias"), 0), 0.0);
    CHECK_EQ(at(module_tensor(module, "out_proj.bias"), 0), 0.0);
    EACH(name, weights)
        ctrt_no_grad {
            CHECK_OK(ctrt_copy_(module_tensor(causal, *name), module_tensor(module, *name)));
            CHECK_OK(ctrt_copy_(module_tensor(plain, *name), module_tensor(module, *name)));
        }
    CHECK_OK(ctrt_forward_n(&y, module, inputs, 3));
    GIVEN_BY(y, ctrt_forward_n(&want, module, inputs, 4));          /* NULL as mask */
    GIVEN_BY(y, ctrt_forward_n(&want, plain, inputs, 3));           /* the biases are 0 */
    CHECK_OK(ctrt_mul_scalar(&twice, v, ctrt_float(2)));
    CHECK_OK(ctrt_mul_scalar(&y, y, ctrt_float(2)));
    inputs[2] = twice;                                              /* the result is linear in v alone */
    GIVEN_BY(y, ctrt_forward_n(&want, module, inputs, 3));
    inputs[3] = mask;
    CHECK_OK(ctrt_forward_n(&y, module, inputs, 4));
    GIVEN_BY(y, ctrt_forward_n(&want, causal, inputs, 3));
    GIVEN_BY(y, ctrt_forward_n(&want, plain, inputs, 4));

    CHECK_OK(ctrt_squeeze(&q, q, CTRT_DIMS(0)));
    CHECK_OK(ctrt_forward(&y, module, q));
    SHAPE_IS(y, T, EMBED);
    CHECK_FAILS(ctrt_forward(&y, module, other), CTRT_ERR_SHAPE, "[..., T, 6]");
    CHECK_FAILS(ctrt_forward_n(&y, module, inputs, 2), CTRT_ERR_INVALID_ARGUMENT, "got 2");
    inputs[1] = NULL;
    CHECK_FAILS(ctrt_forward_n(&y, module, inputs, 3), CTRT_ERR_INVALID_ARGUMENT, "k is NULL");
}

/* The second of two sequences is all padding, and dropout is on. */
TEST(padding, "MultiheadAttention: a sequence that the mask hides entirely, with zero gradients")
{
    static const double visible[2 * 3] = { 1, 1 }, bias[2 * 3] = { 0, -1, -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(2, 3, 4)), y = NULL, loss = NULL;
    ctrt_tensor *masks[2] = { tensor_with(visible, CTRT_SHAPE(2, 1, 1, 3), CTRT_BOOL, cpu),
                              tensor_with(bias, CTRT_SHAPE(2, 1, 1, 3), CTRT_F32, cpu) };
    CHECK_OK(ctrt_multihead_attention_new(&module, 4, 2, ATTENTION(.dropout = 0.5), cpu));
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    randomize(module);
    for (int kind = 0; kind < 2; kind++) {
        CHECK_OK(ctrt_forward_n(&y, module, (ctrt_tensor *[]){ x, x, x, masks[kind] }, 4));
        CHECK_OK(ctrt_sum(&loss, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(loss));
        for (int k = 0; k < 12; k++) {
            CHECK_NEAR(at(y, 12 + k), at(module_tensor(module, "out_proj.bias"), k % 4), 1e-6);
            CHECK_EQ(at(ctrt_tensor_grad(x), 12 + k), 0);
        }
        ctrt_tensor *weight = NULL;
        for (size_t i = 0; ctrt_module_parameter(NULL, &weight, module, i) == CTRT_OK; i++)
            CHECK(isfinite(mean_square(ctrt_tensor_grad(weight))), "parameter %zu has no finite gradient", i);
    }
    tensors_release(masks, 2);
}

/* ---- options ---- */

/* bad-nn.c tests NULL and the status of more bad options. */
TEST(bad_options, "messages for bad options name them")
{
    const ctrt_conv2d_options two_groups = CTRT_WITH(ctrt_conv2d_options, .groups = 2);
    const ctrt_conv2d_options backward = CTRT_WITH(ctrt_conv2d_options, .stride = { 1, -1 });
    const ctrt_pool2d_options no_kernel = { .size = sizeof(ctrt_pool2d_options), .kernel = { 2, 0 } };
    CTRT_AUTO(module) m = NULL;
#define BAD(call, words) CHECK_FAILS(call, CTRT_ERR_INVALID_ARGUMENT, words)
    BAD(ctrt_linear_new(&m, -3, 5, true, cpu), "in_features is -3");
    BAD(ctrt_linear_new(&m, 3, -5, true, cpu), "out_features is -5");
    BAD(ctrt_conv2d_new(&m, 0, 1, 3, 3, NULL, true, cpu), "in_channels is 0");
    BAD(ctrt_conv2d_new(&m, 1, 1, 0, 3, NULL, true, cpu), "kernel_h is 0");
    BAD(ctrt_conv2d_new(&m, 3, 4, 3, 3, &two_groups, true, cpu), "groups is 2");
    BAD(ctrt_conv2d_new(&m, 4, 4, 3, 3, &backward, true, cpu), "stride is -1");
    BAD(ctrt_embedding_new(&m, 0, 3, NULL, cpu), "count is 0");
    BAD(ctrt_embedding_new(&m, 5, 3, EMBEDDING(.padding_idx = 5), cpu), "padding_idx 5");
    BAD(ctrt_embedding_new(&m, 5, 3, EMBEDDING(.padding_idx = -2), cpu), "padding_idx is -2");
    BAD(ctrt_layer_norm_new(&m, CTRT_SCALAR_SHAPE, NULL, cpu), "0 sizes");
    BAD(ctrt_layer_norm_new(&m, CTRT_SHAPE(3, 0), NULL, cpu), "normalized_shape is 0");
    BAD(ctrt_layer_norm_new(&m, CTRT_SHAPE(3), LAYER_NORM(.epsilon = NAN), cpu), "epsilon");
    BAD(ctrt_batch_norm1d_new(&m, 0, NULL, cpu), "features is 0");
    BAD(ctrt_batch_norm1d_new(&m, 2, NORM(.epsilon = -1), cpu), "epsilon");
    BAD(ctrt_batch_norm2d_new(&m, 2, NORM(.momentum = 2), cpu), "momentum");
    BAD(ctrt_max_pool2d_new(&m, &no_kernel), "kernel is 0");
    BAD(ctrt_dropout_new(&m, 1.5), "1.5");
    BAD(ctrt_dropout_new(&m, NAN), "probability");
    BAD(ctrt_multihead_attention_new(&m, 6, 4, ATTENTION(.causal = true), cpu), "multiple of 4 heads");
    BAD(ctrt_multihead_attention_new(&m, 0, 1, ATTENTION(.causal = true), cpu), "embed is 0");
    BAD(ctrt_multihead_attention_new(&m, 6, 0, ATTENTION(.causal = true), cpu), "heads is 0");
    BAD(ctrt_multihead_attention_new(&m, 6, 2, ATTENTION(.dropout = 2, .causal = true), cpu), "dropout is 2");
    CHECK_FAILS(ctrt_linear_new(&m, INT64_MAX, INT64_MAX, true, cpu), CTRT_ERR_OVERFLOW, NULL);
    CHECK_FAILS(ctrt_multihead_attention_new(&m, INT64_MAX, 1, ATTENTION(.causal = true), cpu), CTRT_ERR_OVERFLOW,
                "too large");
    CHECK(m == NULL, "a failed constructor set its output");
#undef BAD
}

/* ---- initial values ---- */

/* Computes the largest magnitude, the mean and the variance of the tensor's elements. */
static void moments(double *largest, double *mean, double *variance, ctrt_tensor *tensor)
{
    int64_t n = ctrt_tensor_numel(tensor);
    double *v = malloc((size_t)n * sizeof *v);
    CHECK_OK(ctrt_to_host(v, (size_t)n * sizeof *v, tensor, CTRT_F64));
    *largest = *mean = *variance = 0;
    for (int64_t i = 0; i < n; i++) {
        *largest = fmax(*largest, fabs(v[i]));
        *mean += v[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++)
        *variance += (v[i] - *mean) * (v[i] - *mean) / (double)n;
    free(v);
}

static ctrt_status uniform(ctrt_tensor *tensor, double half) { return ctrt_init_uniform_(tensor, 3 - half, 3 + half); }
static ctrt_status normal(ctrt_tensor *tensor, double std) { return ctrt_init_normal_(tensor, 5, std); }

TEST(initial, "initial values")
{
    CTRT_AUTO(tensor) w = NULL;
    /* w is [200, 50, 2, 2], so fan in is 200 and fan out is 800. A bound of 0 means a normal distribution. */
    const struct { const char *name; ctrt_status (*init)(ctrt_tensor *, double); double argument, mean, variance,
                   bound; } cases[] = {
        { "xavier_uniform", ctrt_init_xavier_uniform_, 2, 0, 4 * 2 / 1000.0, 2 * sqrt(6 / 1000.0) },
        { "xavier_normal", ctrt_init_xavier_normal_, 2, 0, 4 * 2 / 1000.0, 0 },
        { "kaiming_uniform", ctrt_init_kaiming_uniform_, 1, 0, 1 / 200.0, sqrt(3 / 200.0) },
        { "kaiming_normal", ctrt_init_kaiming_normal_, 0, 0, 2 / 200.0, 0 },
        { "uniform(2, 4)", uniform, 1, 3, 1 / 3.0, 4 }, { "normal(5, 0.1)", normal, 0.1, 5, 0.01, 0 },
    };
    double largest, mean, variance;
    CHECK_OK(ctrt_zeros(&w, CTRT_SHAPE(200, 50, 2, 2), CTRT_F32, cpu));
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    EACH(c, cases) {
        CHECK_OK(c->init(w, c->argument));
        moments(&largest, &mean, &variance, w);
        /* 40,000 values: the mean must be within 5 standard errors, the variance within 5 %. */
        CHECK_NEAR(mean, c->mean, 5 * sqrt(c->variance / 40000));
        CHECK(fabs(variance / c->variance - 1) < 0.05, "%s: variance %g, expected %g", c->name, variance, c->variance);
        const double spread = (largest - c->mean) / sqrt(variance);
        if (c->bound > 0)
            CHECK(largest <= c->bound * (1 + 1e-6) && largest > 0.99 * c->bound, "largest %g, bound %g", largest,
                  c->bound);
        else
            CHECK(spread > 3 && spread < 6, "%s: largest %g", c->name, largest);
    }
    CHECK_TRUE(ctrt_tensor_is_leaf(w) && ctrt_tensor_requires_grad(w));
    CHECK_OK(ctrt_init_constant_(w, 7));
    moments(&largest, &mean, &variance, w);
    CHECK(variance < 1e-20 && largest == 7, "constant 7: largest %g", largest);

    CTRT_AUTO(module) module = NULL;
    CHECK_OK(ctrt_linear_new(&module, 100, 300, true, cpu));
    for (int i = 0; i < 2; i++) {                   /* as in PyTorch, both are in +-1/sqrt(in_features) */
        moments(&largest, &mean, &variance, module_tensor(module, i ? "bias" : "weight"));
        CHECK(largest <= 0.1 && largest > 0.09, "Linear's %s: largest %g, bound 0.1", i ? "bias" : "weight", largest);
    }
    CHECK_OK(ctrt_conv2d_new(&module, 4, 64, 5, 5, &CTRT_WITH(ctrt_conv2d_options, .groups = 4), true, cpu));
    moments(&largest, &mean, &variance, module_tensor(module, "weight"));
    CHECK(largest <= 0.2 && largest > 0.19, "Conv2d's weight: largest %g, bound 1/sqrt(25)", largest);

    CTRT_AUTO(tensor) vector = numbers(CTRT_SHAPE(3)), none = NULL, integers = NULL;
    CHECK_FAILS(ctrt_init_xavier_uniform_(vector, 1), CTRT_ERR_SHAPE, "2 dimensions");
    CHECK_FAILS(ctrt_init_kaiming_normal_(vector, 1), CTRT_ERR_SHAPE, "2 dimensions");
    CHECK_OK(ctrt_zeros(&none, CTRT_SHAPE(0, 3), CTRT_F32, cpu));
    CHECK_OK(ctrt_init_kaiming_uniform_(none, 0));
    CHECK_OK(ctrt_init_xavier_uniform_(none, 1));
    CHECK_OK(ctrt_zeros(&integers, CTRT_SHAPE(2, 3), CTRT_I64, cpu));
    CHECK_FAILS(ctrt_init_kaiming_uniform_(integers, 0), CTRT_ERR_DTYPE, NULL);
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    ctrt_manual_seed(7);
    batch_norm("momentum 0.1", 0.1, 0.1);
    batch_norm("cumulative average", -1, 0);
    batch_norm("momentum 0", 0, 0);
    return run_tests();
}
