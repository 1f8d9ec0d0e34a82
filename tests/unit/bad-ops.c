/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input to ops.h, for test-bad-input.c. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "bad-input.h"

/* ---- ops of the forms UNARY and BINARY in ctrt/ops.def ---- */

enum { DTYPES_ALL, DTYPES_NUMBERS, DTYPES_FLOATS };
enum {
    PROMOTION_NONE, PROMOTION_KEEP, PROMOTION_PROMOTE, PROMOTION_TO_FLOAT, PROMOTION_COMPARE, PROMOTION_TO_BOOL,
    PROMOTION_TO_I64, PROMOTION_SUM
};

#define UNARY_no(name, promotion, dtypes)       \
    NULLS1(ctrt_##name, p.x);                   \
    if (dtypes == DTYPES_NUMBERS)               \
        BAD(DTYPE, ctrt_##name(&out, p.truth));
#define UNARY_yes(name, promotion, dtypes)      \
    UNARY_no(name, promotion, dtypes)           \
    IN_PLACE(ctrt_##name##_);                   \
    if (promotion == PROMOTION_TO_FLOAT)        \
        BAD(DTYPE, ctrt_##name##_(p.whole));

#define BINARY_no(name, promotion, dtypes)                                                                      \
    NULLS2(ctrt_##name, p.x, p.x);                                                                              \
    NULLS1(ctrt_##name##_scalar, p.x, ctrt_int(1));                                                             \
    BAD(SHAPE, ctrt_##name(&out, p.x, p.wide));                                                                 \
    BAD(DEVICE, ctrt_##name(&out, p.x, p.away));                                                                \
    if (dtypes == DTYPES_NUMBERS)                                                                               \
        BAD(DTYPE, ctrt_##name(&out, p.truth, p.truth));
#define BINARY_yes(name, promotion, dtypes)                                                                     \
    BINARY_no(name, promotion, dtypes)                                                                          \
    IN_PLACE(ctrt_##name##_, p.x);                                                                              \
    BAD(INVALID_ARGUMENT, ctrt_##name##_(p.x, NULL));                                                           \
    BAD(SHAPE, ctrt_##name##_(p.x, p.wide));                                                                    \
    BAD(SHAPE, ctrt_##name##_(p.number, p.x));                                                                  \
    BAD(DTYPE, ctrt_##name##_(p.whole, p.number));                                                              \
    BAD(DTYPE, ctrt_##name##_scalar_(p.whole, ctrt_float(1.5)));                                                \
    BAD(DEVICE, ctrt_##name##_(p.x, p.away));                                                                   \
    IN_PLACE(ctrt_##name##_scalar_, ctrt_int(1));

#define OWN_no(name, promotion, dtypes)
#define GRAPH_no(name, promotion, dtypes)

static void listed(void)
{
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) \
    form##_##in_place(name, PROMOTION_##promotion, DTYPES_##dtypes)
#include "ctrt/ops.def"
#undef CTRT_OP
}

static void autocast(void)
{
    BAD(STATE, ctrt_autocast_pop());
    BAD(NOT_FOUND, ctrt_autocast_push("gpu", NULL));
    BAD(NOT_FOUND, ctrt_autocast_push("", NULL));
    FINE(strstr(ctrt_error_message(), "known types: ") != NULL);
    BAD(DTYPE, ctrt_autocast_push("cpu", &CTRT_WITH(ctrt_autocast_options, .dtype = CTRT_F32)));
    FINE(!ctrt_autocast_enabled("gpu"));
    FINE(ctrt_autocast_dtype("gpu") == CTRT_F16);
    FINE(ctrt_autocast_state() == NULL);
    FINE((ctrt_autocast_clear_cache(), true));
    FINE(ctrt_autocast_push_state(NULL) == CTRT_OK);
    FINE(ctrt_autocast_pop() == CTRT_OK);
}

static void elementwise(void)
{
    NULLS1(ctrt_gelu, p.x, false);
    ctrt_scalar one = ctrt_int(1);
    NULLS1(ctrt_rsub_scalar, p.x, one);
    NULLS1(ctrt_rdiv_scalar, p.x, one);
    NULLS1(ctrt_rpow_scalar, p.x, one);
    IN_PLACE(ctrt_clamp_, one, one);
    IN_PLACE(ctrt_masked_fill_, p.truth, one);
    NULLS2(ctrt_masked_fill, p.x, p.truth, one);
    NULLS3(ctrt_where, p.truth, p.x, p.x);
    BAD(INVALID_ARGUMENT, ctrt_clamp_min(NULL, p.x, one));
    BAD(INVALID_ARGUMENT, ctrt_clamp_max(&out, NULL, one));
    BAD(INVALID_ARGUMENT, ctrt_clamp(&out, NULL, one, one));
    BAD(INVALID_ARGUMENT, ctrt_clamp_max_(NULL, one));
    BAD(INVALID_ARGUMENT, ctrt_masked_fill_(p.x, NULL, one));
    BAD(DTYPE, ctrt_clamp_min(&out, p.truth, ctrt_bool(true)));
    BAD(DTYPE, ctrt_clamp_min_(p.whole, ctrt_float(0.5)));
    BAD(DTYPE, ctrt_masked_fill_(p.x, p.x, one));
    BAD(DTYPE, ctrt_masked_fill(&out, p.x, p.x, one));
    BAD(DTYPE, ctrt_where(&out, p.x, p.x, p.x));
    BAD(ANY, ctrt_pow_scalar(&out, p.whole, ctrt_int(-1)));
    BAD(ANY, ctrt_floor_divide_scalar(&out, p.whole, ctrt_int(0)));
    BAD(ANY, ctrt_remainder_scalar(&out, p.whole, ctrt_int(0)));
    BAD(ANY, ctrt_fmod_scalar(&out, p.whole, ctrt_int(0)));
    BAD(SHAPE, ctrt_masked_fill_(p.wide, p.truth, one));
    BAD(SHAPE, ctrt_masked_fill(&out, p.wide, p.truth, one));
    BAD(SHAPE, ctrt_where(&out, p.truth, p.x, p.wide));
}

static void views(void)
{
    ctrt_tensor *parts[4] = { NULL };
    int count = 0;
    NULLS1(ctrt_reshape, p.x, CTRT_SHAPE(6));
    NULLS1(ctrt_view_as, p.x, CTRT_SHAPE(6));
    NULLS1(ctrt_flatten, p.x, 0, -1);
    NULLS1(ctrt_permute, p.x, CTRT_DIMS(1, 0));
    NULLS1(ctrt_transpose, p.x, 0, 1);
    NULLS1(ctrt_t, p.x);
    NULLS1(ctrt_squeeze, p.x, CTRT_ALL_DIMS);
    NULLS1(ctrt_unsqueeze, p.x, 0);
    NULLS1(ctrt_expand, p.x, CTRT_SHAPE(2, 3));
    NULLS1(ctrt_select, p.x, 0, 0);
    NULLS1(ctrt_slice, p.x, 0, 0, 1, 1);
    BAD(SHAPE, ctrt_reshape(&out, p.x, CTRT_SHAPE(7)));
    BAD(SHAPE, ctrt_reshape(&out, p.x, CTRT_SHAPE(-1, -1)));
    BAD(SHAPE, ctrt_reshape(&out, p.x, CTRT_SHAPE(-1, 4)));
    BAD(SHAPE, ctrt_reshape(&out, p.x, CTRT_SHAPE(-2, 3)));
    BAD(SHAPE, ctrt_flatten(&out, p.x, 2, -1));
    BAD(SHAPE, ctrt_flatten(&out, p.x, 0, -3));
    BAD(SHAPE, ctrt_flatten(&out, p.x, 1, 0));
    BAD(SHAPE, ctrt_permute(&out, p.x, CTRT_DIMS(0)));
    BAD(SHAPE, ctrt_permute(&out, p.x, CTRT_DIMS(0, 0)));
    BAD(SHAPE, ctrt_permute(&out, p.x, CTRT_DIMS(0, 2)));
    BAD(SHAPE, ctrt_permute(&out, p.x, CTRT_DIMS(0, -2)));
    BAD(SHAPE, ctrt_transpose(&out, p.x, 0, 2));
    BAD(SHAPE, ctrt_transpose(&out, p.x, -3, 0));
    BAD(SHAPE, ctrt_transpose(&out, p.x, INT32_MIN, 0));
    BAD(SHAPE, ctrt_squeeze(&out, p.x, CTRT_DIMS(2)));
    BAD(SHAPE, ctrt_squeeze(&out, p.x, CTRT_DIMS(0, 0)));
    BAD(SHAPE, ctrt_unsqueeze(&out, p.x, 3));
    BAD(SHAPE, ctrt_unsqueeze(&out, p.x, -4));
    BAD(SHAPE, ctrt_expand(&out, p.x, CTRT_SHAPE(3)));
    BAD(SHAPE, ctrt_expand(&out, p.x, CTRT_SHAPE(4, 3)));
    BAD(SHAPE, ctrt_expand(&out, p.x, CTRT_SHAPE(-1, 2, 3)));
    BAD(SHAPE, ctrt_expand(&out, p.x, CTRT_SHAPE(-2, 3)));
    BAD(SHAPE, ctrt_expand(&out, p.x, CTRT_SHAPE(0, 3)));
    BAD(SHAPE, ctrt_expand(&out, p.x, CTRT_SHAPE(1, 1, 1, 1, 1, 1, 1, 2, 3)));
    BAD(SHAPE, ctrt_reshape(&out, p.none, CTRT_SHAPE(-1, 0)));
    BAD(SHAPE, ctrt_view_as(&out, p.x, CTRT_SHAPE(7)));
    BAD(SHAPE, ctrt_t(&out, p.image));
    BAD(SHAPE, ctrt_select(&out, p.x, 2, 0));
    BAD(SHAPE, ctrt_slice(&out, p.x, 2, 0, 1, 1));
    BAD(SHAPE, ctrt_slice(&out, p.number, 0, 0, 1, 1));
    BAD(SHAPE, ctrt_narrow(&out, p.number, 0, 0, 1));
    BAD(ANY, ctrt_reshape(&out, p.x, CTRT_SHAPE(INT64_MAX, INT64_MAX)));
    BAD(ANY, ctrt_reshape(&out, p.x, CTRT_SHAPE(1, 1, 1, 1, 1, 1, 1, 2, 3)));
    BAD(ANY, ctrt_reshape(&out, p.x, ctrt_ints_of(NULL, 2)));
    BAD(ANY, ctrt_reshape(&out, p.x, CTRT_ALL_DIMS));
    BAD(ANY, ctrt_permute(&out, p.x, CTRT_DIMS(INT64_MAX, INT64_MIN)));
    BAD(ANY, ctrt_permute(&out, p.x, CTRT_ALL_DIMS));
    BAD(ANY, ctrt_permute(&out, p.x, ctrt_ints_of(NULL, 2)));
    BAD(ANY, ctrt_select(&out, p.x, 0, 2));
    BAD(ANY, ctrt_select(&out, p.x, 0, -3));
    BAD(ANY, ctrt_select(&out, p.x, 0, INT64_MIN));
    BAD(ANY, ctrt_view_as(&out, p.x, ctrt_ints_of(NULL, 2)));
    BAD(ANY, ctrt_expand(&out, p.number, CTRT_SHAPE(INT64_MAX, INT64_MAX)));
    BAD(ANY, ctrt_expand(&out, p.x, CTRT_ALL_DIMS));
    BAD(ANY, ctrt_expand(&out, p.x, ctrt_ints_of(NULL, 2)));
    BAD(ANY, ctrt_select(&out, p.number, 0, 0));
    BAD(ANY, ctrt_slice(&out, p.x, 0, 0, 1, 0));
    BAD(ANY, ctrt_slice(&out, p.x, 0, 0, 1, -1));
    FINE(ctrt_slice(&out, p.x, 0, INT64_MIN, INT64_MAX, INT64_MAX) == CTRT_OK && ctrt_tensor_size(out, 0) == 1);
    ctrt_tensor_release(&out);
    NULLS1(ctrt_narrow, p.x, 0, 0, 1);
    NULLS1(ctrt_as_strided, p.x, CTRT_SHAPE(2), CTRT_SHAPE(1), 0);
    BAD(SHAPE, ctrt_narrow(&out, p.x, 2, 0, 1));
    BAD(SHAPE, ctrt_chunk(parts, &count, p.x, 2, 2));
    BAD(INVALID_ARGUMENT, ctrt_chunk(NULL, &count, p.x, 2, 0));
    BAD(INVALID_ARGUMENT, ctrt_chunk(parts, &count, NULL, 2, 0));
    BAD(SHAPE, ctrt_narrow(&out, p.x, 0, 1, 2));
    BAD(SHAPE, ctrt_narrow(&out, p.x, 0, 0, -1));
    BAD(SHAPE, ctrt_narrow(&out, p.x, 0, 1, INT64_MAX));
    BAD(SHAPE, ctrt_narrow(&out, p.x, 0, INT64_MIN, 1));
    BAD(SHAPE, ctrt_narrow(&out, p.x, 0, 3, 0));
    BAD(SHAPE, ctrt_narrow(&out, p.x, 0, -3, 1));
    BAD(SHAPE, ctrt_narrow(&out, p.x, 0, 0, 3));
    BAD(SHAPE, ctrt_narrow(&out, p.x, 0, INT64_MAX, INT64_MAX));
    BAD(SHAPE, ctrt_narrow(&out, p.x, 0, -1, 2));
    BAD(SHAPE, ctrt_as_strided(&out, p.x, CTRT_SHAPE(7), CTRT_SHAPE(1), 0));
    BAD(SHAPE, ctrt_as_strided(&out, p.x, CTRT_SHAPE(2), CTRT_SHAPE(6), 0));
    BAD(SHAPE, ctrt_as_strided(&out, p.x, CTRT_SHAPE(2), CTRT_SHAPE(1), 5));
    BAD(SHAPE, ctrt_as_strided(&out, p.x, CTRT_SHAPE(0), CTRT_SHAPE(1), 7));
    BAD(SHAPE, ctrt_as_strided(&out, p.x, CTRT_SHAPE(2, 3), CTRT_SHAPE(2, 2), 0));
    BAD(SHAPE, ctrt_as_strided(&out, p.x, CTRT_SHAPE(3, 3), CTRT_SHAPE(INT64_MAX, INT64_MAX), 0));
    BAD(SHAPE, ctrt_as_strided(&out, p.x, CTRT_SHAPE(2), CTRT_SHAPE(1), INT64_MAX));
    BAD(SHAPE, ctrt_as_strided(&out, p.x, CTRT_SHAPE(-2), CTRT_SHAPE(1), 0));
    BAD(ANY, ctrt_as_strided(&out, p.x, CTRT_SHAPE(2), CTRT_SHAPE(1), -1));
    BAD(ANY, ctrt_as_strided(&out, p.x, CTRT_SHAPE(2), CTRT_SHAPE(-1), 1));
    BAD(ANY, ctrt_as_strided(&out, p.x, CTRT_SHAPE(2), CTRT_SHAPE(1, 1), 0));
    BAD(ANY, ctrt_as_strided(&out, p.x, CTRT_SHAPE(INT64_MAX), CTRT_SHAPE(INT64_MAX), INT64_MAX));
    BAD(ANY, ctrt_as_strided(&out, p.x, CTRT_SHAPE(2), ctrt_ints_of(NULL, 1), 0));
    BAD(ANY, ctrt_chunk(parts, NULL, p.x, 2, 0));
    BAD(ANY, ctrt_chunk(parts, &count, p.x, 0, 0));
    BAD(ANY, ctrt_chunk(parts, &count, p.x, -1, 0));
    BAD(ANY, ctrt_chunk(parts, &count, p.number, 2, 0));
    for (int k = 0; k < 4; k++)
        ctrt_tensor_release(&parts[k]);
    NULLS1(ctrt_detach, p.x);
}

static void joining(void)
{
    ctrt_tensor *pair[2] = { p.x, p.x }, *unlike[2] = { p.x, p.wide }, *hole[2] = { p.x, NULL },
                *numbers[2] = { p.number, p.number };
    NULLS1(ctrt_cat, pair, 2, 0);
    NULLS1(ctrt_stack, pair, 2, 0);
    NULLS2(ctrt_embedding, p.x, p.whole, -1);
    NULLS1(ctrt_index_select, p.x, 0, p.whole);
    NULLS1(ctrt_gather, p.x, 0, p.whole);
    NULLS1(ctrt_tril, p.x, 0);
    BAD(INVALID_ARGUMENT, ctrt_cat(&out, pair, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_cat(&out, pair, -2, 0));
    BAD(INVALID_ARGUMENT, ctrt_cat(&out, hole, 2, 0));
    BAD(INVALID_ARGUMENT, ctrt_stack(&out, pair, 0, 0));
    BAD(INVALID_ARGUMENT, ctrt_stack(&out, hole, 2, 0));
    BAD(INVALID_ARGUMENT, ctrt_cat(&out, hole + 1, 1, 0));
    BAD(INVALID_ARGUMENT, ctrt_stack(&out, hole + 1, 1, 0));
    BAD(INVALID_ARGUMENT, ctrt_index_select(&out, p.x, 0, NULL));
    BAD(INVALID_ARGUMENT, ctrt_gather(&out, p.x, 0, NULL));
    BAD(DTYPE, ctrt_embedding(&out, p.x, p.x, -1));
    BAD(DTYPE, ctrt_index_select(&out, p.x, 0, p.x));
    BAD(DTYPE, ctrt_gather(&out, p.x, 0, p.x));
    BAD(ANY, ctrt_embedding(&out, p.x, p.whole, 9));
    BAD(SHAPE, ctrt_gather(&out, p.x, 0, p.whole));
    BAD(SHAPE, ctrt_gather(&out, p.x, 5, p.whole));
    BAD(SHAPE, ctrt_cat(&out, unlike, 2, 0));
    BAD(SHAPE, ctrt_cat(&out, numbers, 2, 0));
    BAD(SHAPE, ctrt_cat(&out, pair, 2, 2));
    BAD(SHAPE, ctrt_stack(&out, unlike, 2, 0));
    BAD(SHAPE, ctrt_stack(&out, pair, 2, 3));
    BAD(SHAPE, ctrt_embedding(&out, p.image, p.whole, -1));
    BAD(SHAPE, ctrt_index_select(&out, p.x, 2, p.whole));
    BAD(SHAPE, ctrt_tril(&out, p.whole, 0));
    FINE(ctrt_tril(&out, p.x, INT64_MIN) == CTRT_OK && ctrt_tril(&out, p.x, INT64_MAX) == CTRT_OK);
    ctrt_tensor_release(&out);
    NULLS1(ctrt_triu, p.x, 0);
    BAD(SHAPE, ctrt_triu(&out, p.number, 0));
    FINE(ctrt_triu(&out, p.x, INT64_MIN) == CTRT_OK && ctrt_triu(&out, p.x, INT64_MAX) == CTRT_OK);
    ctrt_tensor_release(&out);
}

static void reductions(void)
{
#define REDUCE(name)                                                                                        \
    NULLS1(ctrt_##name, p.x, CTRT_ALL_DIMS, false),                                                         \
    BAD(SHAPE, ctrt_##name(&out, p.x, CTRT_DIMS(2), false)),                                                \
    BAD(SHAPE, ctrt_##name(&out, p.x, CTRT_DIMS(INT64_MIN), false)),                                        \
    BAD(ANY, ctrt_##name(&out, p.x, CTRT_DIMS(0, -2), false)),                                              \
    BAD(ANY, ctrt_##name(&out, p.x, ctrt_ints_of(NULL, 1), false))
    REDUCE(sum_dims);
    REDUCE(mean_dims);
    REDUCE(prod_dims);
    REDUCE(amax);
    REDUCE(amin);
    REDUCE(any);
    REDUCE(all);
    REDUCE(argmax);
    REDUCE(argmin);
    NULLS1(ctrt_var, p.x, CTRT_ALL_DIMS, 1, false);
    BAD(DTYPE, ctrt_mean_dims(&out, p.whole, CTRT_ALL_DIMS, false));
    BAD(DTYPE, ctrt_var(&out, p.whole, CTRT_ALL_DIMS, 1, false));
    BAD(ANY, ctrt_argmax(&out, p.x, CTRT_DIMS(0, 1), false));
    BAD(SHAPE, ctrt_amax(&out, p.none, CTRT_ALL_DIMS, false));
    BAD(SHAPE, ctrt_amin(&out, p.none, CTRT_DIMS(0), false));
    BAD(SHAPE, ctrt_argmax(&out, p.none, CTRT_ALL_DIMS, false));
    BAD(SHAPE, ctrt_argmin(&out, p.none, CTRT_DIMS(0), false));
    BAD(SHAPE, ctrt_var(&out, p.x, CTRT_DIMS(2), 1, false));
    ctrt_tensor *index = NULL;
    BAD(ANY, ctrt_max(NULL, NULL, p.x, 0, false));
    BAD(ANY, ctrt_min(NULL, NULL, p.x, 0, false));
    BAD(INVALID_ARGUMENT, ctrt_max(&out, &index, NULL, 0, false));
    BAD(INVALID_ARGUMENT, ctrt_min(&out, &index, NULL, 0, false));
    BAD(SHAPE, ctrt_max(&out, &index, p.x, 2, false));
    BAD(SHAPE, ctrt_max(&out, &index, p.none, 0, false));
    BAD(SHAPE, ctrt_min(&out, &index, p.x, -3, false));
    FINE(index == NULL);
    NULLS1(ctrt_sum, p.x, CTRT_ALL_DIMS);
    NULLS1(ctrt_mean, p.x, CTRT_ALL_DIMS);
    BAD(SHAPE, ctrt_sum(&out, p.x, CTRT_DIMS(2)));
    BAD(DTYPE, ctrt_mean(&out, p.whole, CTRT_ALL_DIMS));
}

#define ENTROPY(member) \
    ((ctrt_cross_entropy_options){ sizeof(ctrt_cross_entropy_options), .ignore_index = -100, member })

static void networks(void)
{
    ctrt_tensor *index = NULL;
    NULLS2(ctrt_matmul, p.x, p.x);
    NULLS2(ctrt_linear, p.x, p.x, NULL);
    BAD(SHAPE, ctrt_linear(&out, p.x, p.wide, NULL));
    BAD(SHAPE, ctrt_linear(&out, p.x, p.x, p.wide));
    BAD(SHAPE, ctrt_matmul(&out, p.x, p.x));
    BAD(SHAPE, ctrt_matmul(&out, p.number, p.x));
    BAD(DTYPE, ctrt_matmul(&out, p.x, p.whole));
    BAD(DTYPE, ctrt_linear(&out, p.x, p.x, p.whole));
    ctrt_conv2d_options conv = { sizeof conv, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1 };
    NULLS2(ctrt_conv2d, p.image, p.filter, NULL, NULL);
    BAD(SHAPE, ctrt_conv2d(&out, p.x, p.filter, NULL, NULL));
    BAD(SHAPE, ctrt_conv2d(&out, p.image, p.x, NULL, NULL));
    BAD(SHAPE, ctrt_conv2d(&out, p.image, p.filter, p.x, NULL));
    BAD(SHAPE, ctrt_conv2d(&out, p.filter, p.image, NULL, NULL));       /* the kernel is larger than the image */
    BAD(DTYPE, ctrt_conv2d(&out, p.image, p.filter, p.whole, NULL));
    BAD(ANY, ctrt_conv2d(&out, p.image, p.filter, NULL, (conv.stride[0] = -1, &conv)));
    BAD(ANY, ctrt_conv2d(&out, p.image, p.filter, NULL, (conv.stride[0] = 1, conv.padding[1] = -1, &conv)));
    BAD(ANY, ctrt_conv2d(&out, p.image, p.filter, NULL, (conv.padding[1] = 0, conv.dilation[0] = -2, &conv)));
    BAD(ANY, ctrt_conv2d(&out, p.image, p.filter, NULL, (conv.dilation[0] = 1, conv.groups = 2, &conv)));
    BAD(ANY, ctrt_conv2d(&out, p.image, p.filter, NULL, (conv.groups = -1, &conv)));
    const int64_t above = (int64_t)1 << 31;
    BAD(INVALID_ARGUMENT, ctrt_conv2d(&out, p.image, p.filter, NULL,
                                      (conv.groups = 1, conv.padding[0] = above, &conv)));
    BAD(INVALID_ARGUMENT, ctrt_conv2d(&out, p.image, p.filter, NULL,
                                      (conv.padding[0] = 0, conv.dilation[0] = above, &conv)));
    BAD(INVALID_ARGUMENT, ctrt_conv2d(&out, p.image, p.filter, NULL,
                                      (conv.dilation[0] = 1, conv.stride[0] = INT64_MAX, &conv)));
    ctrt_pool2d_options pool = CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 });
    BAD(INVALID_ARGUMENT, ctrt_max_pool2d(NULL, NULL, p.image, &pool));
    BAD(INVALID_ARGUMENT, ctrt_max_pool2d(&out, &index, NULL, &pool));
    BAD(INVALID_ARGUMENT, ctrt_max_pool2d(&out, &index, p.image, NULL));
    BAD(SHAPE, ctrt_max_pool2d(&out, &index, p.x, &pool));
    BAD(ANY, ctrt_max_pool2d(&out, &index, p.image, (pool.kernel[0] = 0, &pool)));
    BAD(ANY, ctrt_max_pool2d(&out, &index, p.image, (pool.kernel[0] = 9, &pool)));
    BAD(ANY, ctrt_max_pool2d(&out, &index, p.image, (pool.kernel[0] = 2, pool.padding[0] = 2, &pool)));
    BAD(ANY, ctrt_max_pool2d(&out, &index, p.image, (pool.padding[0] = -1, &pool)));
    BAD(ANY, ctrt_max_pool2d(&out, &index, p.image, (pool.padding[0] = 0, pool.stride[1] = -1, &pool)));
    BAD(INVALID_ARGUMENT, ctrt_max_pool2d(&out, &index, p.image,
                                          (pool.stride[1] = 0, pool.dilation[1] = above, &pool)));
    BAD(INVALID_ARGUMENT, ctrt_max_pool2d(&out, &index, p.image,
                                          (pool.dilation[1] = 1, pool.stride[1] = INT64_MAX, &pool)));
    BAD(INVALID_ARGUMENT, ctrt_max_pool2d(&out, &index, p.image, (pool.stride[1] = 1, pool.kernel[1] = above, &pool)));
    FINE(index == NULL);
    NULLS1(ctrt_softmax, p.x, 0);
    NULLS1(ctrt_log_softmax, p.x, 0);
    NULLS2(ctrt_cross_entropy, p.x, p.whole, NULL);
    NULLS1(ctrt_loss_fraction, p.number, NULL);
    NULLS2(ctrt_mse_loss, p.x, p.x, CTRT_REDUCE_MEAN);
    NULLS1(ctrt_layer_norm, p.x, CTRT_SHAPE(3), NULL, NULL, 1e-5);
    NULLS1(ctrt_batch_norm, p.x, NULL, NULL, NULL, NULL, true, 0.1, 1e-5);
    NULLS3(ctrt_scaled_dot_product_attention, p.x, p.x, p.x, NULL, NULL);
    NULLS1(ctrt_dropout, p.x, 0.5, true);
    BAD(SHAPE, ctrt_layer_norm(&out, p.x, CTRT_SHAPE(2), NULL, NULL, 1e-5));
    BAD(SHAPE, ctrt_layer_norm(&out, p.x, CTRT_SHAPE(1, 2, 3), NULL, NULL, 1e-5));
    BAD(SHAPE, ctrt_layer_norm(&out, p.x, CTRT_SHAPE(3), p.x, NULL, 1e-5));
    BAD(SHAPE, ctrt_layer_norm(&out, p.x, CTRT_SHAPE(3), NULL, p.wide, 1e-5));
    BAD(SHAPE, ctrt_scaled_dot_product_attention(&out, p.x, p.wide, p.wide, NULL, NULL));
    BAD(SHAPE, ctrt_scaled_dot_product_attention(&out, p.x, p.x, p.wide, NULL, NULL));
    BAD(SHAPE, ctrt_scaled_dot_product_attention(&out, p.x, p.x, p.x, p.wide, NULL));
    BAD(SHAPE, ctrt_softmax(&out, p.x, 2));
    BAD(SHAPE, ctrt_log_softmax(&out, p.x, -3));
    BAD(SHAPE, ctrt_cross_entropy(&out, p.wide, p.whole, NULL));
    BAD(SHAPE, ctrt_cross_entropy(&out, p.x, p.whole, &ENTROPY(.weight = p.x)));
    BAD(SHAPE, ctrt_mse_loss(&out, p.x, p.wide, CTRT_REDUCE_MEAN));
    BAD(SHAPE, ctrt_loss_fraction(&out, p.x, NULL));
    BAD(SHAPE, ctrt_loss_fraction(&out, p.number, p.x));
    BAD(SHAPE, ctrt_batch_norm(&out, p.number, NULL, NULL, NULL, NULL, true, 0.1, 1e-5));
    BAD(SHAPE, ctrt_batch_norm(&out, p.x, p.x, NULL, NULL, NULL, true, 0.1, 1e-5));
    BAD(SHAPE, ctrt_scaled_dot_product_attention(&out, p.number, p.x, p.x, NULL, NULL));
    BAD(ANY, ctrt_cross_entropy(&out, p.x, p.whole, &ENTROPY(.label_smoothing = 1.5)));
    BAD(ANY, ctrt_cross_entropy(&out, p.x, p.whole, &ENTROPY(.label_smoothing = NAN)));
    BAD(ANY, ctrt_cross_entropy(&out, p.x, p.whole, &ENTROPY(.reduction = (ctrt_reduction)9)));
    BAD(ANY, ctrt_layer_norm(&out, p.x, ctrt_ints_of(NULL, 0), NULL, NULL, 1e-5));
    BAD(ANY, ctrt_layer_norm(&out, p.x, CTRT_ALL_DIMS, NULL, NULL, 1e-5));
    BAD(ANY, ctrt_mse_loss(&out, p.x, p.x, (ctrt_reduction)9));
    BAD(ANY, ctrt_batch_norm(&out, p.x, NULL, NULL, NULL, NULL, false, 0.1, 1e-5));
    BAD(ANY, ctrt_scaled_dot_product_attention(&out, p.x, p.x, p.x, NULL,
                                               &CTRT_WITH(ctrt_attention_options, .dropout_p = 1.5)));
    BAD(INVALID_ARGUMENT, ctrt_dropout(&out, p.x, -0.1, true));
    BAD(INVALID_ARGUMENT, ctrt_dropout(&out, p.x, 1.1, true));
    BAD(INVALID_ARGUMENT, ctrt_dropout(&out, p.x, NAN, true));
    BAD(DTYPE, ctrt_softmax(&out, p.whole, 0));
    BAD(DTYPE, ctrt_log_softmax(&out, p.whole, 0));
    BAD(DTYPE, ctrt_cross_entropy(&out, p.x, p.x, NULL));
    BAD(DTYPE, ctrt_cross_entropy(&out, p.whole, p.whole, NULL));
    BAD(DTYPE, ctrt_layer_norm(&out, p.whole, CTRT_SHAPE(2), NULL, NULL, 1e-5));
    BAD(DTYPE, ctrt_batch_norm(&out, p.truth, NULL, NULL, NULL, NULL, true, 0.1, 1e-5));
    BAD(DTYPE, ctrt_scaled_dot_product_attention(&out, p.x, p.x, p.x, p.whole, NULL));
    BAD(DTYPE, ctrt_dropout(&out, p.whole, 0.5, true));
}

static void others(void)
{
    uint64_t seed = 0, offset = 0;
    const char *name = NULL;
    FINE((ctrt_manual_seed(UINT64_MAX), true));
    FINE(ctrt_generator_get(p.cpu, NULL, NULL) <= 0);
    FINE(ctrt_generator_get(NULL, &seed, &offset) <= 0);
    FINE(ctrt_generator_set(NULL, 1, 0) <= 0);
    IN_PLACE(ctrt_uniform_, 0, 1);
    IN_PLACE(ctrt_normal_, 0, 1);
    BAD(OVERFLOW, ctrt_randint(&out, -5, 5, CTRT_SHAPE(3), CTRT_U8, p.cpu));
    BAD(OVERFLOW, ctrt_uniform_(p.x, -3e38, 3e38));
    BAD(OVERFLOW, ctrt_uniform_(p.x, -INFINITY, 0));
    BAD(INVALID_ARGUMENT, ctrt_uniform_(p.x, 2, 1));
    BAD(INVALID_ARGUMENT, ctrt_uniform_(p.x, NAN, 1));
    BAD(INVALID_ARGUMENT, ctrt_normal_(p.x, 0, -1));
    BAD(INVALID_ARGUMENT, ctrt_normal_(p.x, 0, NAN));
    BAD(DTYPE, ctrt_uniform_(p.whole, 0, 1));
    BAD(DTYPE, ctrt_normal_(p.whole, 0, 1));
    FINE(ctrt_fallback_count("no such op") == 0);
    BAD(INVALID_ARGUMENT, ctrt_op_name(NULL, 0));
    BAD(NOT_FOUND, ctrt_op_name(&name, SIZE_MAX));
    FINE(!ctrt_op_supported(p.cpu, NULL, CTRT_F32) && !ctrt_op_supported(p.cpu, "no such op", CTRT_F32));
    FINE(!ctrt_op_supported(p.cpu, "add", (ctrt_dtype)77) && ctrt_op_supported(p.cpu, "add", CTRT_F32));
}

void bad_ops(void)
{
    RUN_ALL(listed, autocast, elementwise, views, joining, reductions, networks, others);
}
