/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the standard modules: results against their formulas in double precision, initial values, bad arguments. */
#include <math.h>

#include <ctrt/ctrt.h>

#include "tap.h"

static ctrt_device *cpu;

/* ---- helpers ---- */

/* Returns an f32 tensor with element i = sin(seed + 1.7 i). The caller releases the tensor. */
static ctrt_tensor *numbers(ctrt_ints shape, double seed)
{
    ctrt_tensor *tensor = NULL;
    int64_t numel = 1;
    for (int i = 0; i < shape.count; i++)
        numel *= shape.values[i];
    double *values = malloc((size_t)numel * sizeof *values + 1);
    for (int64_t i = 0; i < numel; i++)
        values[i] = sin(seed + 1.7 * (double)i);
    CHECK_OK(ctrt_from_data(&tensor, values, numel, shape, CTRT_F64, cpu));
    CHECK_OK(ctrt_to_dtype(&tensor, tensor, CTRT_F32));
    free(values);
    return tensor;
}

/* values() returns all elements as doubles, valid until values_free(). */
struct kept { struct kept *next; double values[]; };
static struct kept *all_kept;

static const double *values(ctrt_tensor *tensor)
{
    size_t bytes = (size_t)ctrt_tensor_numel(tensor) * sizeof(double);
    struct kept *kept = calloc(1, sizeof *kept + bytes + sizeof(double));
    kept->next = all_kept;
    all_kept = kept;
    CHECK_OK(ctrt_to_host(kept->values, bytes, tensor, CTRT_F64));
    return kept->values;
}

static void values_free(void)
{
    while (all_kept) {
        struct kept *next = all_kept->next;
        free(all_kept);
        all_kept = next;
    }
}

static ctrt_tensor *tensor_of(ctrt_module *module, const char *name)
{
    ctrt_tensor *tensor = NULL;
    CHECK_OK(ctrt_module_tensor(&tensor, module, name));
    return tensor;
}

static void set(ctrt_module *module, const char *name, double seed)
{
    ctrt_tensor *tensor = tensor_of(module, name), *from = NULL;
    ctrt_status status = CTRT_OK;
    if (tensor == NULL)
        return;
    from = numbers(ctrt_ints_of(ctrt_tensor_shape(tensor), ctrt_tensor_ndim(tensor)), seed);
    ctrt_no_grad status = ctrt_copy_(tensor, from);
    CHECK_OK(status);
    ctrt_tensor_release(&from);
}

static bool shape_is(const ctrt_tensor *tensor, ctrt_ints shape)
{
    if (ctrt_tensor_ndim(tensor) != shape.count)
        return false;
    for (int i = 0; i < shape.count; i++)
        if (ctrt_tensor_size(tensor, i) != shape.values[i])
            return false;
    return true;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-5 * fmax(1, fabs(b));
}

/* ---- linear, convolution, embedding ---- */

static void linear(void)
{
    group("Linear");
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(2, 4, 3), 0), y = NULL;
    CHECK_OK(ctrt_linear_new(&module, 3, 5, true, cpu));
    CHECK(shape_is(tensor_of(module, "weight"), CTRT_SHAPE(5, 3)) && shape_is(tensor_of(module, "bias"), CTRT_SHAPE(5)),
          "weight is not [5, 3] or bias is not [5]");
    set(module, "weight", 1), set(module, "bias", 2);
    CHECK_OK(ctrt_forward(&y, module, x));
    CHECK(shape_is(y, CTRT_SHAPE(2, 4, 5)), "Linear(3, 5) of [2, 4, 3] is not [2, 4, 5]");
    const double *w = values(tensor_of(module, "weight")), *b = values(tensor_of(module, "bias")), *in = values(x),
        *out = values(y);
    for (int row = 0; row < 8; row++)
        for (int o = 0; o < 5; o++) {
            double want = b[o];
            for (int i = 0; i < 3; i++)
                want += in[row * 3 + i] * w[o * 3 + i];
            CHECK(near(out[row * 5 + o], want), "row %d, output %d: %g, expected %g", row, o, out[row * 5 + o], want);
        }
    CHECK_OK(ctrt_linear_new(&module, 3, 5, false, cpu));
    CHECK(ctrt_module_parameter_count(module) == 1, "Linear without bias does not have 1 parameter");
    CHECK_FAILS(ctrt_forward(&y, module, y), CTRT_ERR_SHAPE, "Linear: ");
    CHECK_FAILS(ctrt_linear_new(NULL, 3, 5, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "out");
    CHECK_FAILS(ctrt_linear_new(&module, -3, 5, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "in_features is -3");
    CHECK_FAILS(ctrt_linear_new(&module, 3, -5, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "out_features is -5");
    CHECK_FAILS(ctrt_linear_new(&module, INT64_MAX, INT64_MAX, true, cpu), CTRT_ERR_OVERFLOW, NULL);
    ctrt_tensor *two[] = { x, x };
    CHECK_FAILS(ctrt_forward_n(&y, module, two, 2), CTRT_ERR_INVALID_ARGUMENT, "one input, got 2");
    two[0] = NULL;
    CHECK_FAILS(ctrt_forward_n(&y, module, two, 1), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_OK(ctrt_linear_new(&module, 0, 2, true, cpu));            /* y equals the bias, which is 0 without inputs */
    CTRT_AUTO(tensor) none = NULL;
    CHECK_OK(ctrt_zeros(&none, CTRT_SHAPE(1, 0), CTRT_F32, cpu));
    CHECK_OK(ctrt_forward(&y, module, none));
    CHECK(values(y)[0] == 0 && values(y)[1] == 0,
          "Linear with 0 input features: %g %g, expected 0 0", values(y)[0], values(y)[1]);
}

static void conv2d(void)
{
    group("Conv2d");
    enum { N = 2, C = 4, H = 5, W = 6, O = 6, K = 3, G = 2, OH = 3, OW = 3 };      /* stride 2, padding 1 */
    const ctrt_conv2d_options options = { .stride = { 2, 2 }, .padding = { 1, 1 }, .groups = G };
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(N, C, H, W), 0), y = NULL;
    CHECK_OK(ctrt_conv2d_new(&module, C, O, K, K, &options, true, cpu));
    CHECK(shape_is(tensor_of(module, "weight"), CTRT_SHAPE(O, C / G, K, K)), "weight is not [6, 2, 3, 3]");
    set(module, "weight", 1), set(module, "bias", 2);
    CHECK_OK(ctrt_forward(&y, module, x));
    if (!CHECK(shape_is(y, CTRT_SHAPE(N, O, OH, OW)), "the result is not [2, 6, 3, 3]"))
        return;
    const double *w = values(tensor_of(module, "weight")), *b = values(tensor_of(module, "bias")), *in = values(x),
        *out = values(y);
    for (int at = 0; at < N * O * OH * OW; at++) {
        int n = at / (O * OH * OW), o = at / (OH * OW) % O, oh = at / OW % OH, ow = at % OW;
        double want = b[o];
        for (int c = 0; c < C / G; c++)
            for (int kh = 0; kh < K; kh++)
                for (int kw = 0; kw < K; kw++) {
                    int h = oh * 2 - 1 + kh, v = ow * 2 - 1 + kw, channel = o / (O / G) * (C / G) + c;
                    if (h >= 0 && h < H && v >= 0 && v < W)
                        want += in[((n * C + channel) * H + h) * W + v] * w[((o * (C / G) + c) * K + kh) * K + kw];
                }
        CHECK(near(out[at], want), "element %d: %g, expected %g", at, out[at], want);
    }
    CHECK_OK(ctrt_conv2d_new(&module, 1, 20, 5, 5, NULL, true, cpu));
    CTRT_AUTO(tensor) image = numbers(CTRT_SHAPE(1, 1, 28, 28), 0);
    CHECK_OK(ctrt_forward(&y, module, image));
    CHECK(shape_is(y, CTRT_SHAPE(1, 20, 24, 24)), "a 5x5 kernel on 28x28: the result is not [1, 20, 24, 24]");
    CHECK_FAILS(ctrt_conv2d_new(NULL, 1, 1, 3, 3, NULL, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "out");
    CHECK_FAILS(ctrt_conv2d_new(&module, 0, 1, 3, 3, NULL, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "in_channels is 0");
    CHECK_FAILS(ctrt_conv2d_new(&module, 1, 1, 0, 3, NULL, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "kernel_h is 0");
    CHECK_FAILS(ctrt_conv2d_new(&module, 3, 4, 3, 3, &options, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "groups is 2");
    CHECK_FAILS(ctrt_conv2d_new(&module, 4, 4, 3, 3, &(ctrt_conv2d_options){ .stride = { 1, -1 } }, true, cpu),
                CTRT_ERR_INVALID_ARGUMENT,
                "stride is -1");
}

static void embedding(void)
{
    group("Embedding");
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) index = NULL, y = NULL, loss = NULL;
    const int64_t rows[] = { 4, 0, 2, 2 };
    CHECK_OK(ctrt_embedding_new(&module, 5, 3, 2, cpu));
    const double *w = values(tensor_of(module, "weight"));
    for (int i = 0; i < 3; i++)
        CHECK(w[2 * 3 + i] == 0 && w[4 * 3 + i] != 0, "padding row 2 is not 0, or row 4 has a 0");
    CHECK_OK(ctrt_from_data(&index, rows, 4, CTRT_SHAPE(2, 2), CTRT_I64, cpu));
    CHECK_OK(ctrt_forward(&y, module, index));
    CHECK(shape_is(y, CTRT_SHAPE(2, 2, 3)), "the result is not [2, 2, 3]");
    for (int i = 0; i < 4; i++)
        CHECK(values(y)[i * 3 + 1] == w[rows[i] * 3 + 1],
              "index %lld does not give that row of the weight", (long long)rows[i]);
    CHECK_OK(ctrt_sum(&loss, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(loss));
    if (CHECK(ctrt_tensor_grad(tensor_of(module, "weight")) != NULL, "the weight has no gradient")) {
        const double *g = values(ctrt_tensor_grad(tensor_of(module, "weight")));
        CHECK(g[0] == 1 && g[3] == 0 && g[6] == 0 && g[12] == 1,
              "gradient of rows 0, 1, 2 (padding), 4: %g %g %g %g, expected 1 0 0 1", g[0], g[3],
              g[6], g[12]);
    }
    const int64_t outside = 5;
    CHECK_OK(ctrt_from_data(&index, &outside, 1, CTRT_SHAPE(1), CTRT_I64, cpu));
    CHECK_FAILS(ctrt_forward(&y, module, index), CTRT_ERR_INVALID_ARGUMENT, "Embedding: ");
    CHECK_FAILS(ctrt_embedding_new(&module, 0, 3, -1, cpu), CTRT_ERR_INVALID_ARGUMENT, "count is 0");
    CHECK_FAILS(ctrt_embedding_new(&module, 5, 3, 5, cpu), CTRT_ERR_INVALID_ARGUMENT, "padding_idx 5");
    CHECK_FAILS(ctrt_embedding_new(&module, 5, 3, -2, cpu), CTRT_ERR_INVALID_ARGUMENT, "padding_idx is -2");
    CHECK_FAILS(ctrt_embedding_new(NULL, 5, 3, -1, cpu), CTRT_ERR_INVALID_ARGUMENT, "out");
}

/* ---- norms ---- */

static void layer_norm(void)
{
    group("LayerNorm");
    enum { ROWS = 4, N = 6 };
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(4, 2, 3), 0), y = NULL;
    CHECK_OK(ctrt_layer_norm_new(&module, CTRT_SHAPE(2, 3), 0.01, true, cpu));
    CHECK(values(tensor_of(module, "weight"))[5] == 1 && values(tensor_of(module, "bias"))[5] == 0,
          "the initial weight is not 1 or the initial bias is not 0");
    set(module, "weight", 1), set(module, "bias", 2);
    CHECK_OK(ctrt_forward(&y, module, x));
    const double *w = values(tensor_of(module, "weight")), *b = values(tensor_of(module, "bias")), *in = values(x),
        *out = values(y);
    for (int row = 0; row < ROWS; row++) {
        double mean = 0, variance = 0;
        for (int i = 0; i < N; i++)
            mean += in[row * N + i] / N;
        for (int i = 0; i < N; i++)
            variance += (in[row * N + i] - mean) * (in[row * N + i] - mean) / N;
        for (int i = 0; i < N; i++) {
            double want = (in[row * N + i] - mean) / sqrt(variance + 0.01) * w[i] + b[i];
            CHECK(near(out[row * N + i], want), "row %d, element %d: %g, expected %g", row, i, out[row * N + i], want);
        }
    }
    CHECK_OK(ctrt_layer_norm_new(&module, CTRT_SHAPE(3), 0, false, cpu));
    CHECK(ctrt_module_parameter_count(module) == 0, "LayerNorm without affine has parameters");
    CHECK_FAILS(ctrt_layer_norm_new(&module, CTRT_SCALAR_SHAPE, 0, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "0 sizes");
    CHECK_FAILS(ctrt_layer_norm_new(&module, CTRT_SHAPE(3, 0), 0, true, cpu), CTRT_ERR_INVALID_ARGUMENT,
                "normalized_shape is 0");
    CHECK_FAILS(ctrt_layer_norm_new(&module, CTRT_SHAPE(3), NAN, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "epsilon");
    CHECK_FAILS(ctrt_layer_norm_new(NULL, CTRT_SHAPE(3), 0, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "out");
}

/* Computes the mean and the biased variance of channel c of x[n, channels, s]. */
static void channel(double *mean, double *variance, const double *x, int n, int channels, int s, int c)
{
    *mean = *variance = 0;
    for (int i = 0; i < n * s; i++)
        *mean += x[(i / s * channels + c) * s + i % s] / (n * s);
    for (int i = 0; i < n * s; i++)
        *variance += pow(x[(i / s * channels + c) * s + i % s] - *mean, 2) / (n * s);
}

static void batch_norm(double momentum)
{
    group("BatchNorm2d, %s", momentum < 0            ? "cumulative average"
                             : momentum == CTRT_ZERO ? "momentum 0"
                                                     : "momentum 0.1");
    enum { N = 3, C = 2, S = 4, BATCHES = 3 };
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    double running_mean[C] = { 0, 0 }, running_var[C] = { 1, 1 };
    CHECK_OK(ctrt_batch_norm2d_new(&module, C, 0, momentum, true, cpu));
    CHECK(ctrt_module_buffer_count(module) == 3 && ctrt_tensor_dtype(tensor_of(module,
                                                                               "num_batches_tracked")) == CTRT_I64
          && ctrt_tensor_ndim(tensor_of(module, "num_batches_tracked")) == 0,
          "the buffers are not 3, or num_batches_tracked is no i64 scalar");
    set(module, "weight", 1), set(module, "bias", 2);
    const double *w = values(tensor_of(module, "weight")), *b = values(tensor_of(module, "bias"));
    for (int batch = 1; batch <= BATCHES + 1; batch++) {
        bool training = batch <= BATCHES;
        double factor = momentum < 0 ? 1.0 / batch : momentum == CTRT_ZERO ? 0 : 0.1;
        ctrt_module_train(module, training);
        ctrt_tensor_release(&x);
        x = numbers(CTRT_SHAPE(N, C, 2, 2), 3 * batch);
        CHECK_OK(ctrt_forward(&y, module, x));
        const double *in = values(x), *out = values(y);
        for (int c = 0; c < C; c++) {
            double mean, variance;
            channel(&mean, &variance, in, N, C, S, c);
            if (training) {
                running_mean[c] += factor * (mean - running_mean[c]);
                /* the running variance is unbiased */
                running_var[c] += factor * (variance * N * S / (N * S - 1) - running_var[c]);
            } else {
                mean = running_mean[c], variance = running_var[c];
            }
            for (int i = 0; i < N * S; i++) {
                int at = (i / S * C + c) * S + i % S;
                double want = (in[at] - mean) / sqrt(variance + 1e-5) * w[c] + b[c];
                CHECK(near(out[at], want), "batch %d, element %d: %g, expected %g", batch, at, out[at], want);
            }
            double got_mean = values(tensor_of(module, "running_mean"))[c],
                got_var = values(tensor_of(module, "running_var"))[c];
            CHECK(near(got_mean, running_mean[c]) && near(got_var, running_var[c]),
                  "batch %d: running mean %g (expected %g), variance %g (%g)",
                  batch, got_mean, running_mean[c], got_var, running_var[c]);
        }
        double batches = values(tensor_of(module, "num_batches_tracked"))[0];
        CHECK(batches == (training ? batch : BATCHES), "batch %d: num_batches_tracked is %g", batch, batches);
    }
}

static void batch_norm_bad(void)
{
    group("BatchNorm rejects bad shapes and options");
    CTRT_AUTO(module) one = NULL, two = NULL;
    CTRT_AUTO(tensor) y = NULL, flat = numbers(CTRT_SHAPE(4, 2), 0), image = numbers(CTRT_SHAPE(4, 2, 3, 3), 0),
    single = numbers(CTRT_SHAPE(1, 2), 0);
    CHECK_OK(ctrt_batch_norm1d_new(&one, 2, 0, 0, true, cpu));
    CHECK_OK(ctrt_batch_norm2d_new(&two, 2, 0, 0, false, cpu));
    CHECK(ctrt_module_parameter_count(two) == 0, "BatchNorm2d without affine has parameters");
    CHECK_OK(ctrt_forward(&y, one, flat));
    CHECK_FAILS(ctrt_forward(&y, one, image), CTRT_ERR_SHAPE, "BatchNorm1d: ");
    CHECK_FAILS(ctrt_forward(&y, two, flat), CTRT_ERR_SHAPE, "BatchNorm2d: ");
    /* The variance of one value per channel is undefined, so training mode rejects it. */
    CHECK_FAILS(ctrt_forward(&y, one, single), CTRT_ERR_SHAPE, "BatchNorm1d: ");
    ctrt_module_train(one, false);
    CHECK_OK(ctrt_forward(&y, one, single));
    CHECK_FAILS(ctrt_batch_norm1d_new(&one, 0, 0, 0, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "features is 0");
    CHECK_FAILS(ctrt_batch_norm1d_new(&one, 2, -1, 0, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "epsilon");
    CHECK_FAILS(ctrt_batch_norm2d_new(&one, 2, 0, 2, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "momentum");
    CHECK_FAILS(ctrt_batch_norm2d_new(NULL, 2, 0, 0, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "out");
}

static double mean_square(ctrt_tensor *tensor)
{
    const double *v = values(tensor);
    const int64_t n = ctrt_tensor_numel(tensor);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += v[i] * v[i];
    return sum / (double)n;
}

static void zero_options(void)
{
    group("epsilon and scale: 0 selects the default, CTRT_ZERO selects 0");
    static const double epsilons[] = { 0, CTRT_ZERO };
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(5, 3), 0), y = NULL, q = numbers(CTRT_SHAPE(2, 4), 3), mean = NULL;
    CHECK_OK(ctrt_mul_scalar(&x, x, ctrt_float(1e-5)));         /* a variance far below the default epsilon, 1e-5 */
    for (int i = 0; i < 2; i++) {
        CTRT_AUTO(module) layer = NULL, batch = NULL;
        CHECK_OK(ctrt_layer_norm_new(&layer, CTRT_SHAPE(3), epsilons[i], false, cpu));
        CHECK_OK(ctrt_batch_norm1d_new(&batch, 3, epsilons[i], 0, false, cpu));
        CHECK_OK(ctrt_forward(&y, layer, x));
        CHECK(i == 0 ? mean_square(y) < 1e-3 : near(mean_square(y), 1), "LayerNorm with epsilon %g: mean square %g",
              epsilons[i], mean_square(y));
        CHECK_OK(ctrt_forward(&y, batch, x));
        CHECK(i == 0 ? mean_square(y) < 1e-3 : near(mean_square(y), 1), "BatchNorm with epsilon %g: mean square %g",
              epsilons[i], mean_square(y));
    }
    CHECK_OK(ctrt_scaled_dot_product_attention(&y, q, q, q, NULL, 0, false, CTRT_ZERO));
    CHECK_OK(ctrt_mean(&mean, q, CTRT_DIMS(0)));
    for (int i = 0; i < 8; i++)
        CHECK(near(values(y)[i], values(mean)[i % 4]), "attention with scale 0: %g, expected the mean %g", values(y)[i],
              values(mean)[i % 4]);
    CHECK_OK(ctrt_scaled_dot_product_attention(&y, q, q, q, NULL, 0, false, 0));
    CHECK(!near(values(y)[0], values(mean)[0]),
          "attention with the default scale weighs all keys equally, as scale 0 does");
}

/* ---- functions as modules ---- */

static void activations(void)
{
    group("activations");
    static const struct { const char *kind; double want[3]; } cases[] = {       /* want: results for -1, 0, 2 */
        { "ReLU", { 0, 0, 2 } },
        { "GELU", { -0.15865525393, 0, 1.95449973610 } },
        { "Tanh", { -0.76159415596, 0, 0.96402758008 } },
        { "Sigmoid", { 0.26894142137, 0.5, 0.88079707798 } },
        { "Softmax", { 0.04201006613, 0.11419519938, 0.84379473448 } },
    };
    ctrt_module *modules[5] = { NULL };
    const float in[] = { -1, 0, 2 };
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CHECK_OK(ctrt_from_data(&x, in, 3, CTRT_SHAPE(3), CTRT_F32, cpu));
    CHECK_OK(ctrt_relu_new(&modules[0]));
    CHECK_OK(ctrt_gelu_new(&modules[1], false));
    CHECK_OK(ctrt_tanh_new(&modules[2]));
    CHECK_OK(ctrt_sigmoid_new(&modules[3]));
    CHECK_OK(ctrt_softmax_new(&modules[4], -1));
    for (int i = 0; i < 5; i++) {
        CHECK(strcmp(ctrt_module_kind(modules[i]), cases[i].kind) == 0, "kind %s", ctrt_module_kind(modules[i]));
        CHECK_OK(ctrt_forward(&y, modules[i], x));
        for (int j = 0; j < 3; j++)
            CHECK(near(values(y)[j], cases[i].want[j]), "%s(%g) is %g, expected %g", cases[i].kind, in[j], values(y)[j],
                  cases[i].want[j]);
        ctrt_module_release(&modules[i]);
    }
    CHECK_OK(ctrt_gelu_new(&modules[0], true));
    CHECK_OK(ctrt_forward(&y, modules[0], x));
    CHECK(near(values(y)[0], -0.15880800939), "GELU(-1), tanh form, is %g, expected -0.158808", values(y)[0]);
    ctrt_module_release(&modules[0]);
    CHECK_FAILS(ctrt_relu_new(NULL), CTRT_ERR_INVALID_ARGUMENT, "out");
    CHECK_FAILS(ctrt_gelu_new(NULL, true), CTRT_ERR_INVALID_ARGUMENT, "out");
    CHECK_FAILS(ctrt_flatten_new(NULL, 1, -1), CTRT_ERR_INVALID_ARGUMENT, "out");
}

static void shapes(void)
{
    group("Flatten, MaxPool2d, Dropout");
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) x = numbers(CTRT_SHAPE(2, 3, 4, 4), 0), y = NULL, big = NULL;
    CHECK_OK(ctrt_flatten_new(&module, 1, -1));
    CHECK_OK(ctrt_forward(&y, module, x));
    CHECK(shape_is(y, CTRT_SHAPE(2, 48)), "Flatten(1, -1) of [2, 3, 4, 4] is not [2, 48]");

    CHECK_OK(ctrt_max_pool2d_new(&module, &(ctrt_pool2d_options){ .kernel = { 2, 2 } }));
    CHECK_OK(ctrt_forward(&y, module, x));
    CHECK(shape_is(y, CTRT_SHAPE(2, 3, 2, 2)), "the default stride of MaxPool2d is not the kernel size");
    const double *in = values(x);
    double want = fmax(fmax(in[0], in[1]), fmax(in[4], in[5]));
    CHECK(values(y)[0] == want, "the maximum of the first window is %g, expected %g", values(y)[0], want);
    CHECK_FAILS(ctrt_max_pool2d_new(&module, NULL), CTRT_ERR_INVALID_ARGUMENT, "options");
    CHECK_FAILS(ctrt_max_pool2d_new(&module, &(ctrt_pool2d_options){ .kernel = { 2, 0 } }), CTRT_ERR_INVALID_ARGUMENT,
                "kernel is 0");

    CHECK_OK(ctrt_dropout_new(&module, 0.25));
    CHECK_OK(ctrt_ones(&big, CTRT_SHAPE(4000), CTRT_F32, cpu));
    CHECK_OK(ctrt_forward(&y, module, big));
    int zeros = 0, scaled = 0;
    const double *dropped = values(y);
    for (int i = 0; i < 4000; i++) {
        zeros += dropped[i] == 0;
        scaled += near(dropped[i], 1 / 0.75);
    }
    CHECK(zeros + scaled == 4000 && zeros > 850 && zeros < 1150,
          "Dropout(0.25) of 4000 ones: %d zeros, %d scaled by 4/3", zeros, scaled);
    ctrt_module_train(module, false);
    CHECK_OK(ctrt_forward(&y, module, big));
    CHECK(y == big, "Dropout in evaluation mode does not return the input tensor itself");
    CHECK_FAILS(ctrt_dropout_new(&module, 1.5), CTRT_ERR_INVALID_ARGUMENT, "1.5");
    CHECK_FAILS(ctrt_dropout_new(&module, NAN), CTRT_ERR_INVALID_ARGUMENT, "probability");
}

/* ---- attention, against loops in double precision ---- */

enum { EMBED = 6, HEADS = 2, DEPTH = EMBED / HEADS, T = 4 };

/* Returns one feature of the input projection of x[t]; `part` is 0 for q, 1 for k, 2 for v. */
static double projected(const double *w, const double *b, const double *x, int part, int t, int feature)
{
    double sum = b ? b[part * EMBED + feature] : 0;
    for (int i = 0; i < EMBED; i++)
        sum += w[(part * EMBED + feature) * EMBED + i] * x[t * EMBED + i];
    return sum;
}

static void attend(double *y, const double *w, const double *b, const double *ow, const double *ob, const double *q,
                   const double *k,
                   const double *v, bool causal)
{
    double joined[T][EMBED];
    for (int t = 0; t < T; t++)
        for (int head = 0; head < HEADS; head++) {
            double score[T], total = 0;
            for (int s = 0; s < T; s++) {
                score[s] = 0;
                for (int d = 0; d < DEPTH; d++)
                    score[s] += projected(w, b, q, 0, t, head * DEPTH + d) * projected(w, b, k, 1, s,
                                                                                       head * DEPTH + d) / sqrt(DEPTH);
                total += score[s] = causal && s > t ? 0 : exp(score[s]);
            }
            for (int d = 0; d < DEPTH; d++) {
                joined[t][head * DEPTH + d] = 0;
                for (int s = 0; s < T; s++)
                    joined[t][head * DEPTH + d] += score[s] / total * projected(w, b, v, 2, s, head * DEPTH + d);
            }
        }
    for (int t = 0; t < T; t++)
        for (int o = 0; o < EMBED; o++) {
            y[t * EMBED + o] = ob ? ob[o] : 0;
            for (int i = 0; i < EMBED; i++)
                y[t * EMBED + o] += ow[o * EMBED + i] * joined[t][i];
        }
}

static void attention(bool bias, bool causal)
{
    group("MultiheadAttention%s%s", bias ? "" : " without bias", causal ? ", causal" : "");
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) q = numbers(CTRT_SHAPE(1, T, EMBED), 0), k = numbers(CTRT_SHAPE(1, T, EMBED), 5),
    v = numbers(CTRT_SHAPE(1, T, EMBED), 9);
    CTRT_AUTO(tensor) y = NULL;
    double want[T * EMBED];
    CHECK_OK(ctrt_multihead_attention_new(&module, EMBED, HEADS, 0, bias, causal, cpu));
    CHECK(ctrt_module_parameter_count(module) == (bias ? 4 : 2), "%zu parameters", ctrt_module_parameter_count(module));
    const double *b = NULL, *ob = NULL;
    if (bias) {
        CHECK(values(tensor_of(module, "in_proj_bias"))[0] == 0 && values(tensor_of(module, "out_proj.bias"))[0] == 0,
              "the initial biases are not 0");
        set(module, "in_proj_bias", 2), set(module, "out_proj.bias", 4);
        b = values(tensor_of(module, "in_proj_bias")), ob = values(tensor_of(module, "out_proj.bias"));
    }
    set(module, "in_proj_weight", 1), set(module, "out_proj.weight", 3);
    const double *w = values(tensor_of(module, "in_proj_weight")), *ow = values(tensor_of(module, "out_proj.weight"));
    CHECK_OK(ctrt_forward(&y, module, q));
    attend(want, w, b, ow, ob, values(q), values(q), values(q), causal);
    for (int i = 0; i < T * EMBED; i++)
        CHECK(near(values(y)[i], want[i]), "self-attention, element %d: %g, expected %g", i, values(y)[i], want[i]);

    ctrt_tensor *inputs[] = { q, k, v, NULL };
    CHECK_OK(ctrt_forward_n(&y, module, inputs, 3));
    attend(want, w, b, ow, ob, values(q), values(k), values(v), causal);
    for (int i = 0; i < T * EMBED; i++)
        CHECK(near(values(y)[i], want[i]), "q, k, v given, element %d: %g, expected %g", i, values(y)[i], want[i]);
    CHECK_OK(ctrt_forward_n(&y, module, inputs, 4));               /* inputs[3], the mask, is NULL: no mask */
    CHECK(near(values(y)[7], want[7]), "mask NULL: %g, expected %g", values(y)[7], want[7]);
    if (!causal) {
        CTRT_AUTO(tensor) mask = NULL;
        CHECK_OK(ctrt_ones(&mask, CTRT_SHAPE(T, T), CTRT_BOOL, cpu));
        CHECK_OK(ctrt_tril(&mask, mask, 0));
        inputs[3] = mask;
        CHECK_OK(ctrt_forward_n(&y, module, inputs, 4));
        attend(want, w, b, ow, ob, values(q), values(k), values(v), true);
        for (int i = 0; i < T * EMBED; i++)
            CHECK(near(values(y)[i], want[i]), "masked, element %d: %g, expected %g", i, values(y)[i], want[i]);
    }
    CTRT_AUTO(tensor) plain = NULL, other = numbers(CTRT_SHAPE(T, EMBED + 1), 0);
    CHECK_OK(ctrt_squeeze(&plain, q, CTRT_DIMS(0)));
    CHECK_OK(ctrt_forward(&y, module, plain));
    CHECK(shape_is(y, CTRT_SHAPE(T, EMBED)), "attention of [4, 6], without a batch dimension, is not [4, 6]");
    CHECK_FAILS(ctrt_forward(&y, module, other), CTRT_ERR_SHAPE, "[..., T, 6]");
    CHECK_FAILS(ctrt_forward_n(&y, module, inputs, 2), CTRT_ERR_INVALID_ARGUMENT, "got 2");
    inputs[1] = NULL;
    CHECK_FAILS(ctrt_forward_n(&y, module, inputs, 3), CTRT_ERR_INVALID_ARGUMENT, "k is NULL");
}

static void attention_bad(void)
{
    group("MultiheadAttention rejects bad options");
    CTRT_AUTO(module) module = NULL;
    CHECK_FAILS(ctrt_multihead_attention_new(&module, 6, 4, 0, true, true, cpu), CTRT_ERR_INVALID_ARGUMENT,
                "multiple of 4 heads");
    CHECK_FAILS(ctrt_multihead_attention_new(&module, 0, 1, 0, true, true, cpu), CTRT_ERR_INVALID_ARGUMENT,
                "embed is 0");
    CHECK_FAILS(ctrt_multihead_attention_new(&module, 6, 0, 0, true, true, cpu), CTRT_ERR_INVALID_ARGUMENT,
                "heads is 0");
    CHECK_FAILS(ctrt_multihead_attention_new(&module, 6, 2, 2, true, true, cpu), CTRT_ERR_INVALID_ARGUMENT,
                "dropout is 2");
    CHECK_FAILS(ctrt_multihead_attention_new(&module, INT64_MAX, 1, 0, true, true, cpu), CTRT_ERR_OVERFLOW,
                "too large");
    CHECK_FAILS(ctrt_multihead_attention_new(NULL, 6, 2, 0, true, true, cpu), CTRT_ERR_INVALID_ARGUMENT, "out");
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

static void initial(void)
{
    group("initial values");
    CTRT_AUTO(tensor) w = NULL;
    /* w is [200, 50, 2, 2], so fan in is 200 and fan out is 800. A bound of 0 means a normal distribution. */
    const struct { const char *name; ctrt_status (*init)(ctrt_tensor *, double); double argument, variance,
                   bound; } cases[] = {
        { "xavier_uniform", ctrt_init_xavier_uniform_, 2, 4 * 2 / 1000.0, 2 * sqrt(6 / 1000.0) },
        { "xavier_normal", ctrt_init_xavier_normal_, 2, 4 * 2 / 1000.0, 0 },
        { "kaiming_uniform", ctrt_init_kaiming_uniform_, 1, 1 / 200.0, sqrt(3 / 200.0) },
        { "kaiming_normal", ctrt_init_kaiming_normal_, 0, 2 / 200.0, 0 },
    };
    double largest, mean, variance;
    CHECK_OK(ctrt_zeros(&w, CTRT_SHAPE(200, 50, 2, 2), CTRT_F32, cpu));
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_OK(cases[i].init(w, cases[i].argument));
        moments(&largest, &mean, &variance, w);
        /* 40,000 values: the mean must be within 5 standard errors, the variance within 5 %. */
        CHECK(fabs(mean) < 5 * sqrt(cases[i].variance / 40000), "%s: mean %g", cases[i].name, mean);
        CHECK(fabs(variance / cases[i].variance - 1) < 0.05, "%s: variance %g, expected %g", cases[i].name, variance,
              cases[i].variance);
        if (cases[i].bound > 0)
            CHECK(largest <= cases[i].bound * (1 + 1e-6) && largest > 0.99 * cases[i].bound, "%s: largest %g, bound %g",
                  cases[i].name, largest,
                  cases[i].bound);
        else
            CHECK(largest > 3 * sqrt(variance) && largest < 6 * sqrt(variance), "%s: largest %g", cases[i].name,
                  largest);
    }
    CHECK(ctrt_tensor_is_leaf(w) && ctrt_tensor_requires_grad(w),
          "after init_* the tensor is no leaf that requires grad");
    CHECK_OK(ctrt_init_uniform_(w, 2, 4));
    moments(&largest, &mean, &variance, w);
    CHECK(fabs(mean - 3) < 0.02 && largest <= 4 && fabs(variance - 1 / 3.0) < 0.02,
          "uniform(2, 4): mean %g, largest %g",
          mean, largest);
    CHECK_OK(ctrt_init_normal_(w, 5, 0.1));
    moments(&largest, &mean, &variance, w);
    CHECK(fabs(mean - 5) < 0.01 && fabs(sqrt(variance) - 0.1) < 0.005,
          "normal(5, 0.1): mean %g, standard deviation %g", mean,
          sqrt(variance));
    CHECK_OK(ctrt_init_constant_(w, 7));
    moments(&largest, &mean, &variance, w);
    CHECK(variance < 1e-20 && largest == 7, "constant 7: largest %g", largest);

    CTRT_AUTO(module) module = NULL;
    CHECK_OK(ctrt_linear_new(&module, 100, 300, true, cpu));
    for (int i = 0; i < 2; i++) {                   /* as in PyTorch, both are in +-1/sqrt(in_features) */
        moments(&largest, &mean, &variance, tensor_of(module, i ? "bias" : "weight"));
        CHECK(largest <= 0.1 && largest > 0.09, "Linear's %s: largest %g, bound 0.1", i ? "bias" : "weight", largest);
    }
    CHECK_OK(ctrt_conv2d_new(&module, 4, 64, 5, 5, &(ctrt_conv2d_options){ .groups = 4 }, true, cpu));
    moments(&largest, &mean, &variance, tensor_of(module, "weight"));
    CHECK(largest <= 0.2 && largest > 0.19, "Conv2d's weight: largest %g, bound 1/sqrt(25)", largest);

    CTRT_AUTO(tensor) vector = numbers(CTRT_SHAPE(3), 0), none = NULL, integers = NULL;
    CHECK_FAILS(ctrt_init_xavier_uniform_(vector, 1), CTRT_ERR_SHAPE, "2 dimensions");
    CHECK_FAILS(ctrt_init_kaiming_normal_(vector, 1), CTRT_ERR_SHAPE, "2 dimensions");
    CHECK_FAILS(ctrt_init_xavier_normal_(NULL, 1), CTRT_ERR_INVALID_ARGUMENT, "tensor");
    CHECK_FAILS(ctrt_init_uniform_(NULL, 0, 1), CTRT_ERR_INVALID_ARGUMENT, NULL);
    CHECK_FAILS(ctrt_init_normal_(NULL, 0, 1), CTRT_ERR_INVALID_ARGUMENT, NULL);
    CHECK_FAILS(ctrt_init_constant_(NULL, 0), CTRT_ERR_INVALID_ARGUMENT, NULL);
    CHECK_OK(ctrt_zeros(&none, CTRT_SHAPE(0, 3), CTRT_F32, cpu));
    CHECK_OK(ctrt_init_kaiming_uniform_(none, 0));
    CHECK_OK(ctrt_zeros(&integers, CTRT_SHAPE(2, 3), CTRT_I64, cpu));
    CHECK_FAILS(ctrt_init_kaiming_uniform_(integers, 0), CTRT_ERR_DTYPE, NULL);
}

TEST_MAIN
{
    group("the cpu device opens");
    if (!CHECK_OK(ctrt_device_get(&cpu, "cpu")))
        return done();
    ctrt_manual_seed(7);
    linear();
    conv2d();
    embedding();
    layer_norm();
    batch_norm(0);
    batch_norm(-1);
    batch_norm(CTRT_ZERO);
    zero_options();
    batch_norm_bad();
    activations();
    shapes();
    attention(true, false);
    attention(true, true);
    attention(false, false);
    attention_bad();
    initial();
    values_free();
    return done();
}
