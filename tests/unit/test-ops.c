/* SPDX-License-Identifier: Apache-2.0 */
/* Tests edge cases of ops: results that are too large, unusual strides, windows without elements, results that must
 * not share memory with an input, and operands that share memory. */
#include <math.h>

#include "calls.h"
#include "tensors.h"

static ctrt_tensor *y;          /* receives every result; each assignment releases the previous one */

/* Returns one element expanded to `shape`. */
static ctrt_tensor *repeated(ctrt_ints shape, ctrt_dtype dtype)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_ones(&x, CTRT_SCALAR_SHAPE, dtype, cpu));
    CHECK_OK(ctrt_expand(&x, x, shape));
    return x;
}

TEST(too_large, "results of more than 2^63 bytes")
{
    const int64_t half = (int64_t)1 << 31;
    CTRT_AUTO(tensor) column = repeated(CTRT_SHAPE(half, 1), CTRT_F32), row = repeated(CTRT_SHAPE(1, half), CTRT_F32);
    CTRT_AUTO(tensor) bytes = repeated(CTRT_SHAPE((int64_t)1 << 62), CTRT_U8), old = COUNTING(2);
    CTRT_AUTO(tensor) tall = NULL, wide = NULL;
    ctrt_tensor_assign(&y, old);
    CHECK_FAILS(ctrt_add(&y, column, row), CTRT_ERR_OVERFLOW, "add: a tensor of shape [2147483648, 2147483648]");
    CHECK_FAILS(ctrt_matmul(&y, column, row), CTRT_ERR_OVERFLOW, "matmul");
    CHECK_FAILS(ctrt_linear(&y, column, column, NULL), CTRT_ERR_OVERFLOW, "linear");
    CHECK_FAILS(ctrt_to_dtype(&y, bytes, CTRT_F32), CTRT_ERR_OVERFLOW, "to: a tensor of shape");
    CHECK_FAILS(ctrt_exp(&y, bytes), CTRT_ERR_OVERFLOW, "exp");
    CHECK_FAILS(ctrt_zeros_like(&y, bytes, CTRT_F64, NULL), CTRT_ERR_OVERFLOW, NULL);
    CHECK_OK(ctrt_zeros(&tall, CTRT_SHAPE(half, 0), CTRT_F32, cpu));
    CHECK_OK(ctrt_zeros(&wide, CTRT_SHAPE(0, half), CTRT_F32, cpu));
    CHECK_FAILS(ctrt_matmul(&y, tall, wide), CTRT_ERR_OVERFLOW, "matmul: a tensor of shape [2147483648, 2147483648]");
    CHECK_OK(ctrt_unsqueeze(&bytes, bytes, 0));
    CHECK_OK(ctrt_t(&tall, bytes));
    CHECK_FAILS(ctrt_add(&y, bytes, tall), CTRT_ERR_OVERFLOW, "more than 2^63 elements");
    CHECK_TRUE(y == old);
}

/* Compares x times w with the product of a contiguous copy of x. */
static void product_is_right(int line, ctrt_tensor *x, ctrt_tensor *w)
{
    CTRT_AUTO(tensor) dense = NULL, expected = NULL;
    CHECK_OK(ctrt_contiguous(&dense, x, CTRT_CONTIGUOUS_FORMAT));
    CHECK_OK(ctrt_matmul(&expected, dense, w));
    CHECK_OK(ctrt_matmul(&y, x, w));
    check_same("matmul", line, y, expected, 0);
}
#define PRODUCT_OF(call)  (CHECK_OK(call), product_is_right(__LINE__, part, w))

/* Computes the gradient of a pooling with both tensors in the format. */
static void pool_gradient(ctrt_tensor **gradient, ctrt_tensor *x, ctrt_tensor *dy, ctrt_memory_format format)
{
    const ctrt_pool2d_options options = { .size = sizeof(ctrt_pool2d_options), .kernel = { 3, 2 }, .stride = { 2, 1 } };
    CTRT_AUTO(tensor) leaf = NULL, pooled = NULL, seed = NULL;
    CHECK_OK(ctrt_detach(&leaf, x));
    CHECK_OK(ctrt_contiguous(&leaf, leaf, format));
    CHECK_OK(ctrt_contiguous(&seed, dy, format));
    CHECK_OK(ctrt_tensor_require_grad(leaf, true));
    CHECK_OK(ctrt_max_pool2d(&pooled, NULL, leaf, &options));
    CHECK_OK(ctrt_backward_with(pooled, seed, false, false));
    ctrt_tensor_assign(gradient, ctrt_tensor_grad(leaf));
}

TEST(layouts, "channels-last pooling, rows of f16 with gaps, and transposed operands with a constant, as contiguous")
{
    CTRT_AUTO(tensor) x = NULL, dy = NULL, expected = NULL, a = NULL, b = NULL, t = NULL, mask = NULL, one = NULL;
    CHECK_OK(ctrt_randn(&x, CTRT_SHAPE(2, 70, 7, 6), CTRT_F32, cpu));
    CHECK_OK(ctrt_randn(&dy, CTRT_SHAPE(2, 70, 3, 5), CTRT_F32, cpu));
    pool_gradient(&expected, x, dy, CTRT_CONTIGUOUS_FORMAT);
    pool_gradient(&y, x, dy, CTRT_CHANNELS_LAST);
    SAME(y, expected);

    CHECK_OK(ctrt_randn(&a, CTRT_SHAPE(50, 90), CTRT_F16, cpu));
    CHECK_OK(ctrt_narrow(&b, a, 1, 3, 70));
    CHECK_OK(ctrt_randn(&t, CTRT_SHAPE(70, 50), CTRT_F16, cpu));
    CHECK_OK(ctrt_t(&t, t));
    CHECK_OK(ctrt_mul(&y, b, t));
    CHECK_OK(ctrt_contiguous(&b, b, CTRT_CONTIGUOUS_FORMAT));
    CHECK_OK(ctrt_contiguous(&a, t, CTRT_CONTIGUOUS_FORMAT));
    CHECK_OK(ctrt_mul(&expected, b, a));
    SAME(y, expected);

    CHECK_OK(ctrt_randn(&a, CTRT_SHAPE(90, 60), CTRT_F32, cpu));
    CHECK_OK(ctrt_randn(&t, CTRT_SHAPE(60, 90), CTRT_F32, cpu));
    CHECK_OK(ctrt_t(&t, t));
    CHECK_OK(ctrt_gt(&mask, a, t));
    CHECK_OK(ctrt_full(&one, CTRT_SHAPE(1, 1), ctrt_float(7), CTRT_F32, cpu));
    CHECK_OK(ctrt_where(&y, mask, t, one));
    CHECK_OK(ctrt_contiguous(&t, t, CTRT_CONTIGUOUS_FORMAT));
    CHECK_OK(ctrt_where(&expected, mask, t, one));
    SAME(y, expected);
}

TEST(products, "matmul of rows with gaps and permuted rows")
{
    CTRT_AUTO(tensor) x = COUNTING(3, 1, 5, 4), w = COUNTING(4, 2), part = NULL;
    /* Strides 20, 20, 4, 1. The stride of the dimension of size 1 has no meaning. */
    PRODUCT_OF(ctrt_narrow(&part, x, 2, 0, 2));
    PRODUCT_OF(ctrt_narrow(&part, x, 2, 1, 1));
    CHECK_OK(ctrt_reshape(&x, x, CTRT_SHAPE(3, 5, 1, 4)));
    PRODUCT_OF(ctrt_slice(&part, x, 1, 0, 5, 2));
    PRODUCT_OF(ctrt_slice(&part, x, 0, 0, 3, 2));
    PRODUCT_OF(ctrt_transpose(&part, x, 0, 1));
    CHECK_OK(ctrt_select(&part, x, 1, 2));
    PRODUCT_OF(ctrt_expand(&part, part, CTRT_SHAPE(2, 3, 1, 4)));
}

TEST(windows, "pooling and convolution windows in the padding, and very large strides")
{
    const ctrt_pool2d_options apart = { .size = sizeof(ctrt_pool2d_options), .kernel = { 2, 2 }, .stride = { 1, 1 },
                                        .padding = { 1, 1 },
                                        .dilation = { 3, 3 } };
    for (int layout = CTRT_CONTIGUOUS_FORMAT; layout <= CTRT_CHANNELS_LAST; layout++) {
        CTRT_AUTO(tensor) x = COUNTING(1, 2, 2, 2), places = NULL;
        CHECK_OK(ctrt_contiguous(&x, x, (ctrt_memory_format)layout));
        CHECK_OK(ctrt_tensor_require_grad(x, true));
        GIVES(ctrt_max_pool2d(&y, &places, x, &apart), -INFINITY, -INFINITY);
        VALUES_ARE(places, -1, -1);
        CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(y));
        VALUES_ARE(ctrt_tensor_grad(x), 0, 0, 0, 0, 0, 0, 0, 0);
    }
    const ctrt_pool2d_options padded = { .size = sizeof(ctrt_pool2d_options), .kernel = { 2, 2 }, .padding = { 1, 1 } };
    CTRT_AUTO(tensor) empty = NULL;
    CHECK_OK(ctrt_zeros(&empty, CTRT_SHAPE(1, 1, 0, 3), CTRT_F32, cpu));
    CHECK_FAILS(ctrt_max_pool2d(&y, NULL, empty, &padded), CTRT_ERR_SHAPE, "no elements to pool");
    /* Results as in PyTorch. A kernel, dilation or stride of nearly 2^31 must cost no more than the elements inside. */
#define POOL .size = sizeof(ctrt_pool2d_options)
#define CONV .size = sizeof(ctrt_conv2d_options)
    static const struct wide { ctrt_pool2d_options options; double want; } wide[] = {
        { { POOL, .kernel = { INT32_MAX, INT32_MAX }, .padding = { INT32_MAX / 2, INT32_MAX / 2 } }, 15 },
        { { POOL, .kernel = { 2, 2 }, .stride = { INT32_MAX, INT32_MAX } }, 5 },
        { { POOL, .kernel = { 2, 2 }, .stride = { INT32_MAX, 1 }, .dilation = { 1, 3 } }, 7 },
    };
    EACH(c, wide)
        for (int layout = CTRT_CONTIGUOUS_FORMAT; layout <= CTRT_CHANNELS_LAST; layout++) {
            CTRT_AUTO(tensor) x = COUNTING(1, 1, 4, 4);
            CHECK_OK(ctrt_expand(&x, x, CTRT_SHAPE(1, 2, 4, 4)));
            CHECK_OK(ctrt_contiguous(&x, x, (ctrt_memory_format)layout));
            GIVES(ctrt_max_pool2d(&y, NULL, x, &c->options), c->want, c->want);
        }
    static const struct conv { ctrt_conv2d_options options; int64_t side; double sum; } convs[] = {
        { { CONV, .stride = { INT32_MAX, INT32_MAX } }, 1, 10 },
        { { CONV, .stride = { INT32_MAX, INT32_MAX }, .padding = { 1, 1 } }, 1, 0 },
        { { CONV, .stride = { INT32_MAX, INT32_MAX }, .padding = { INT32_MAX, INT32_MAX } }, 3, 10 },
        { { CONV, .stride = { 1 << 30, 1 << 30 }, .padding = { 1 << 30, 1 << 30 }, .dilation = { 1 << 30, 1 << 30 } },
          2, 0 },
    };
    CTRT_AUTO(tensor) image = COUNTING(1, 1, 4, 4), weight = NULL;
    CHECK_OK(ctrt_ones(&weight, CTRT_SHAPE(1, 1, 2, 2), CTRT_F32, cpu));
    EACH(c, convs) {
        GIVES_SHAPE(ctrt_conv2d(&y, image, weight, NULL, &c->options), 1, 1, c->side, c->side);
        GIVES(ctrt_sum(&y, y, CTRT_ALL_DIMS), c->sum);
    }
    CHECK_OK(ctrt_zeros(&empty, CTRT_SHAPE(0, 1, 4, 4), CTRT_F32, cpu));
    GIVES_SHAPE(ctrt_max_pool2d(&y, NULL, empty, &padded), 0, 1, 3, 3);
}

TEST(scalars, "ops on 0-dim tensors")
{
    CTRT_AUTO(tensor) x = counting_of(CTRT_SCALAR_SHAPE, CTRT_F32), places = NULL, old = COUNTING(2), index = NULL;
    CHECK_OK(ctrt_max(&y, &places, x, -1, false));
    CHECK_TRUE(!ctrt_tensor_shares_storage(x, y));
    VALUES_ARE(places, 0);
    CHECK_FAILS(ctrt_max(&y, NULL, x, 1, false), CTRT_ERR_SHAPE, "max: dimension 1");
    CHECK_OK(ctrt_zeros(&index, CTRT_SHAPE(1), CTRT_I64, cpu));
    CHECK_OK(ctrt_index_select(&y, x, 0, index));
    CHECK_EQ(ctrt_tensor_ndim(y), 0);
    CHECK_OK(ctrt_zeros(&index, CTRT_SHAPE(2), CTRT_I64, cpu));
    ctrt_tensor_assign(&y, old);
    CHECK_FAILS(ctrt_index_select(&y, x, 0, index), CTRT_ERR_SHAPE, "one index");
    CHECK_TRUE(y == old);
    CHECK_OK(ctrt_full(&x, CTRT_SCALAR_SHAPE, ctrt_float(5), CTRT_F32, cpu));
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    GIVES(ctrt_gather(&y, x, 0, index), 5, 5);
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(y));
    VALUES_ARE(ctrt_tensor_grad(x), 2);
    CHECK_OK(ctrt_zeros(&index, CTRT_SCALAR_SHAPE, CTRT_I64, cpu));
    CHECK_OK(ctrt_gather(&y, old, 0, index));
    CHECK_EQ(ctrt_tensor_ndim(y), 0);
}

TEST(numbers, "numbers that a dtype cannot represent")
{
    CTRT_AUTO(tensor) x = NULL, logits = NULL, target = NULL;
    double loss = 0;
    CHECK_OK(ctrt_full(&x, CTRT_SHAPE(2), ctrt_int(100), CTRT_U8, cpu));
    CHECK_FAILS(ctrt_lt_scalar(&y, x, ctrt_int(300)), CTRT_ERR_OVERFLOW, "lt: 300 cannot be represented in u8");
    CHECK_FAILS(ctrt_gt_scalar(&y, x, ctrt_int(-1)), CTRT_ERR_OVERFLOW, "-1");
    CHECK_FAILS(ctrt_randint(&y, 0, 300, CTRT_SHAPE(2), CTRT_U8, cpu), CTRT_ERR_OVERFLOW, "randint: 299");
    GIVES(ctrt_lt_scalar(&y, x, ctrt_int(255)), 1, 1);
    static const struct { ctrt_dtype dtype; int64_t low, high; } ranges[] = {
        { CTRT_F16, 0, 4096 }, { CTRT_F16, 2049, 2052 }, { CTRT_BF16, -261, -256 },
        { CTRT_F32, (1 << 25) - 2, 1 << 25 },
    };
    EACH(c, ranges) {
        static double values[20000];
        CHECK_OK(ctrt_randint(&logits, c->low, c->high, CTRT_SHAPE(COUNT(values)), c->dtype, cpu));
        CHECK_OK(ctrt_to_host(values, sizeof values, logits, CTRT_F64));
        for (size_t k = 0; k < COUNT(values); k++)
            if (!CHECK(values[k] >= (double)c->low && values[k] < (double)c->high, "%g", values[k]))
                break;
    }
    CHECK_FAILS(ctrt_randint(&y, 4095, 4096, CTRT_SHAPE(2), CTRT_F16, cpu), CTRT_ERR_INVALID_ARGUMENT,
                "randint: f16 has no value");
    CHECK_OK(ctrt_zeros(&logits, CTRT_SHAPE(2), CTRT_F16, cpu));
    CHECK_FAILS(ctrt_uniform_(logits, 0, 70000), CTRT_ERR_OVERFLOW, "uniform_: 70000");
    GIVES(ctrt_lt_scalar(&y, x, ctrt_float(300)), 1, 1);

    /* -100, the default ignore_index, is 156 in u8. */
    CHECK_OK(ctrt_zeros(&logits, CTRT_SHAPE(1, 200), CTRT_F64, cpu));
    CHECK_OK(ctrt_full(&target, CTRT_SHAPE(1), ctrt_int(156), CTRT_U8, cpu));
    CHECK_OK(ctrt_cross_entropy(&y, logits, target, NULL));
    CHECK_OK(ctrt_item(&loss, y));
    CHECK_NEAR(loss, log(200), 1e-9);
    ctrt_cross_entropy_options wrong = CTRT_CROSS_ENTROPY_OPTIONS;
    wrong.reduction = (ctrt_reduction)7;
    CHECK_FAILS(ctrt_cross_entropy(&y, logits, target, &wrong), CTRT_ERR_INVALID_ARGUMENT,
                "7 is not a ctrt_reduction");
}

/* The expected values are PyTorch's. PyTorch keeps such a number in f32 for add, sub, mul, div and floor_divide, and
 * rounds it for other ops. */
TEST(half_numbers, "f16 and bf16 ops with a number that they cannot represent")
{
    static const struct half_case {
        const char *name;
        ctrt_status (*scalar)(ctrt_tensor **, ctrt_tensor *, ctrt_scalar);
        ctrt_status (*tensor)(ctrt_tensor **, ctrt_tensor *, ctrt_tensor *);
        double x, number, f16, bf16;
    } cases[] = {
        { "mul", ctrt_mul_scalar, ctrt_mul, 3, 0.3, 0.89990234375, 0.8984375 },
        { "div", ctrt_div_scalar, ctrt_div, 4.5, 0.1, 45, 45 },
        { "floor_divide", ctrt_floor_divide_scalar, ctrt_floor_divide, 4.5, 0.1, 44, 44 },
        { "floor_divide", ctrt_floor_divide_scalar, ctrt_floor_divide, 2048, 2049, 0, 0 },
        { "remainder", ctrt_remainder_scalar, ctrt_remainder, 4.5, 0.1, 0.0010986328125, 0.095703125 },
        { "eq", ctrt_eq_scalar, ctrt_eq, 0.1, 0.1, 1, 1 },
    };
    CTRT_AUTO(tensor) x = NULL, number = NULL;
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        const struct half_case *c = &cases[i / 2];
        const double want[2] = { i % 2 ? c->bf16 : c->f16, i % 2 ? c->bf16 : c->f16 };
        CHECK_OK(ctrt_full(&x, CTRT_SHAPE(2), ctrt_float(c->x), i % 2 ? CTRT_BF16 : CTRT_F16, cpu));
        CHECK_OK(ctrt_scalar_tensor(&number, ctrt_float(c->number), CTRT_F64, cpu));
        if (CHECK_OK(c->scalar(&y, x, ctrt_float(c->number))))
            check_values(c->name, __LINE__, y, want, 2);
        if (CHECK_OK(c->tensor(&y, x, number)))
            check_values(c->name, __LINE__, y, want, 2);
    }
    CTRT_AUTO(tensor) grid = counting_of(CTRT_SHAPE(2, 3), CTRT_F16);
    CHECK_OK(ctrt_t(&x, grid));
    GIVES_STRIDES(ctrt_mul_scalar(&y, x, ctrt_float(0.1)), 1, 3);
    GIVES_STRIDES(ctrt_mul(&y, number, x), 1, 3);
    CHECK_OK(ctrt_mul_(x, number));
    VALUES_ARE(x, 0, 0.300048828125, 0.0999755859375, 0.39990234375, 0.199951171875, 0.5);
}

TEST(halves, "the variance of f16 and bf16 tensors is rounded once")
{
    static const double values[] = { 1, 1.0078125, 1.015625, 1.0234375 };     /* exact in bf16 and in f16 */
    for (int i = 0; i < 2; i++) {
        CTRT_AUTO(tensor) x = NULL;
        double got = 0;
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(4), i ? CTRT_BF16 : CTRT_F16, cpu));
        CHECK_OK(ctrt_from_host_(x, values, 4, CTRT_F64));
        CHECK_OK(ctrt_var(&y, x, CTRT_ALL_DIMS, 1, false));
        CHECK_OK(ctrt_item(&got, y));
        const double want = 1.25 / 1.5 * 0x1p-13;
        CHECK_NEAR(got, want, want * (i ? 0x1p-8 : 0x1p-11));
        GIVES(ctrt_var(&y, x, CTRT_ALL_DIMS, 4, false), INFINITY);
        GIVES(ctrt_var(&y, x, CTRT_DIMS(0), 5, false), INFINITY);
        CHECK_EQ(ctrt_tensor_dtype(y), ctrt_tensor_dtype(x));
    }
}

TEST(names, "error messages name the called function")
{
    CTRT_AUTO(tensor) x = COUNTING(2, 3), mask = NULL;
    CHECK_FAILS(ctrt_masked_fill(&y, x, x, ctrt_float(1)), CTRT_ERR_DTYPE, "masked_fill: mask has dtype f32");
    CHECK_FAILS(ctrt_masked_fill_(x, x, ctrt_float(1)), CTRT_ERR_DTYPE, "masked_fill_: mask has dtype f32");
    CHECK_OK(ctrt_zeros(&mask, CTRT_SHAPE(4), CTRT_BOOL, cpu));
    CHECK_FAILS(ctrt_masked_fill(&y, x, mask, ctrt_float(1)), CTRT_ERR_SHAPE, "masked_fill: ");
    CHECK(strstr(ctrt_error_message(), "where") == NULL, "%s", ctrt_error_message());
    CTRT_AUTO(tensor) truth = NULL, whole = NULL, f64 = NULL, index = NULL, wide = NULL;
    CHECK_OK(ctrt_ones(&truth, CTRT_SHAPE(2, 3), CTRT_BOOL, cpu));
    CHECK_OK(ctrt_ones(&whole, CTRT_SHAPE(2, 3), CTRT_I32, cpu));
    CHECK_OK(ctrt_ones(&f64, CTRT_SHAPE(2, 3), CTRT_F64, cpu));
    CHECK_OK(ctrt_full(&index, CTRT_SHAPE(1), ctrt_int(7), CTRT_I64, cpu));
    CHECK_OK(ctrt_zeros(&wide, CTRT_SHAPE(1, 1, 1, 1, 1, 1, 1, 1), CTRT_I64, cpu));
#define ATTENTION(v, mask, p)                                                                                        \
    ctrt_scaled_dot_product_attention(                                                                               \
        &y, x, x, v, mask, &CTRT_WITH(ctrt_attention_options, .dropout_p = p, .has_scale = true, .scale = NAN))
#define MESSAGE(call, start)                                                                               \
    CHECK((call) != CTRT_OK && strncmp(ctrt_error_message(), start, strlen(start)) == 0, "\"%s\", expected \"%s\"",  \
          ctrt_error_message(), start)
    MESSAGE(ctrt_mse_loss(&y, truth, truth, CTRT_REDUCE_MEAN), "mse_loss: not defined for bool");
    MESSAGE(ctrt_mse_loss(&y, whole, whole, CTRT_REDUCE_MEAN), "mse_loss: x has dtype i32");
    MESSAGE(ctrt_embedding(&y, x, index, -1), "embedding: index 7 at position 0");
    MESSAGE(ctrt_embedding(&y, x, wide, -1), "embedding: the result would have 9 dimensions");
    MESSAGE(ctrt_rsub_scalar(&y, truth, ctrt_bool(true)), "rsub_scalar: not defined for bool");
    MESSAGE(ctrt_rsub_scalar(&y, NULL, ctrt_int(1)), "rsub_scalar: x is NULL");
    MESSAGE(ctrt_rdiv_scalar(&y, NULL, ctrt_int(1)), "rdiv_scalar: x is NULL");
    MESSAGE(ctrt_rpow_scalar(&y, truth, ctrt_bool(true)), "rpow_scalar: not defined for bool");
    MESSAGE(ctrt_rpow_scalar(&y, NULL, ctrt_int(1)), "rpow_scalar: x is NULL");
    MESSAGE(ctrt_clamp_min(&y, truth, ctrt_bool(false)), "clamp_min: not defined for bool");
    MESSAGE(ctrt_clamp_max(&y, truth, ctrt_bool(false)), "clamp_max: not defined for bool");
    MESSAGE(ctrt_clamp_(truth, ctrt_bool(false), ctrt_bool(true)), "clamp_: not defined for bool");
    MESSAGE(ctrt_clamp_min_(whole, ctrt_float(0.5)), "clamp_min_: the result has dtype f32");
    MESSAGE(ATTENTION(f64, NULL, 0), "scaled_dot_product_attention: operands have dtypes f32 and f64");
    MESSAGE(ATTENTION(x, x, 0), "scaled_dot_product_attention: shapes [2, 2] and [2, 3] do not broadcast");
    MESSAGE(ATTENTION(x, NULL, 1.5), "scaled_dot_product_attention: p is 1.5");
}

/* Expected shapes and errors are PyTorch's. */
TEST(shapes, "linear with a weight of one dimension; gather with an empty index")
{
    static const struct { int x, bias, ndim; int64_t x_shape[3], shape[3]; } linears[] = {
        /* bias: number of dimensions (of size 1), -1: none. ndim: of the result, -1: an error */
        { 3, -1, 2, { 2, 2, 4 }, { 2, 2 } }, { 2, 0, 1, { 3, 4 }, { 3 } }, { 1, 0, 0, { 4 }, { 0 } },
        { 2, -1, 1, { 0, 4 }, { 0 } }, { 2, 1, -1, { 3, 4 }, { 0 } }, { 2, -1, -1, { 3, 5 }, { 0 } },
        { 0, -1, -1, { 0 }, { 0 } },
    };
    static const int64_t one[] = { 1 };
    CTRT_AUTO(tensor) x = NULL, sum = NULL, index = NULL;
    EACH(c, linears) {
        CTRT_AUTO(tensor) weight = COUNTING(4), bias = NULL;
        CHECK_OK(ctrt_full(&x, ctrt_ints_of(c->x_shape, c->x), ctrt_float(2), CTRT_F32, cpu));
        CHECK_OK(ctrt_tensor_require_grad(weight, true));
        if (c->bias >= 0)
            CHECK_OK(ctrt_ones(&bias, ctrt_ints_of(one, c->bias), CTRT_F32, cpu));
        if (c->ndim < 0) {
            CHECK_FAILS(ctrt_linear(&y, x, weight, bias), CTRT_ERR_SHAPE, "linear: ");
            continue;
        }
        CHECK_OK(ctrt_linear(&y, x, weight, bias));
        check_shape("linear", __LINE__, y, ctrt_ints_of(c->shape, c->ndim));
        const double rows = (double)ctrt_tensor_numel(y), each = 2 * (0 + 1 + 2 + 3) + (bias != NULL);
        CHECK_OK(ctrt_sum(&sum, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(sum));
        VALUES_ARE(sum, rows * each);
        VALUES_ARE(ctrt_tensor_grad(weight), 2 * rows, 2 * rows, 2 * rows, 2 * rows);
    }
    static const struct { int x, dim, index; int64_t x_shape[2], index_shape[3]; } gathers[] = {
        { 2, 1, 1, { 3, 5 }, { 0 } },    { 2, 1, 3, { 3, 5 }, { 0, 1, 2 } }, { 2, 1, 2, { 3, 5 }, { 7, 0 } },
        { 0, 0, 1, { 0 }, { 0 } },       { 0, 0, 2, { 0 }, { 0, 2 } },       { 2, 1, 2, { 0, 5 }, { 0, 3 } },
    };
    EACH(c, gathers) {
        const ctrt_ints shape = ctrt_ints_of(c->index_shape, c->index);
        CHECK_OK(ctrt_ones(&x, ctrt_ints_of(c->x_shape, c->x), CTRT_F32, cpu));
        CHECK_OK(ctrt_tensor_require_grad(x, true));
        CHECK_OK(ctrt_zeros(&index, shape, CTRT_I64, cpu));
        CHECK_OK(ctrt_gather(&y, x, c->dim, index));
        check_shape("gather", __LINE__, y, shape);
        CHECK_OK(ctrt_sum(&sum, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(sum));
        CHECK_OK(ctrt_sum(&sum, ctrt_tensor_grad(x), CTRT_ALL_DIMS));
        VALUES_ARE(sum, 0);
        ctrt_tensor_release(&x);
    }
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(3, 5), CTRT_F32, cpu));
    CHECK_FAILS(ctrt_gather(&y, x, 2, index), CTRT_ERR_SHAPE, "gather: ");
}

TEST(twice, "operands that share memory, and tensors that are operand and result")
{
    float memory[9] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };
    CTRT_AUTO(tensor) x = COUNTING(2, 2), t = NULL;
    ctrt_tensor *pieces[2] = { COUNTING(2), NULL };
    int count = 0;
    CHECK_OK(ctrt_t(&t, x));
    CHECK_OK(ctrt_add_(x, t));                 /* t is a view of x */
    VALUES_ARE(x, 0, 3, 3, 6);
    CHECK_OK(ctrt_matmul(&x, x, x));
    CHECK_OK(ctrt_max(&x, &t, x, 1, false));
    VALUES_ARE(x, 18, 45);
    CHECK_OK(ctrt_var(&x, x, CTRT_ALL_DIMS, 1, false));
    VALUES_ARE(x, 364.5);
    CHECK_OK(ctrt_chunk(pieces, &count, pieces[0], 2, 0));
    CHECK_OK(ctrt_cat(&pieces[1], (ctrt_tensor *[]){ pieces[1], pieces[0] }, 2, 0));
    VALUES_ARE(pieces[1], 1, 0);
    tensors_release(pieces, 2);
    CTRT_AUTO(tensor) low = NULL, high = NULL, same = NULL;
    CHECK_OK(ctrt_from_blob(&low, memory, CTRT_SHAPE(8), ctrt_ints_of(NULL, 0), CTRT_F32, NULL, NULL));
    CHECK_OK(ctrt_from_blob(&high, memory + 1, CTRT_SHAPE(8), ctrt_ints_of(NULL, 0), CTRT_F32, NULL, NULL));
    CHECK_OK(ctrt_from_blob(&same, memory, CTRT_SHAPE(8), ctrt_ints_of(NULL, 0), CTRT_F32, NULL, NULL));
    CHECK_OK(ctrt_add_(high, low));
    VALUES_ARE(high, 1, 3, 5, 7, 9, 11, 13, 15);
    CHECK_OK(ctrt_copy_(high, low));
    VALUES_ARE(high, 0, 1, 3, 5, 7, 9, 11, 13);
    CHECK_OK(ctrt_add_(low, same));
    VALUES_ARE(low, 0, 0, 2, 6, 10, 14, 18, 22);
}

CPU_TESTS_MAIN
