/* SPDX-License-Identifier: Apache-2.0 */
/* product.c: matmul and linear. */
#include <string.h>

#include "product.h"

enum { TILE_M = 48, TILE_N = 64 };              /* MC and NC in cl/product.cl */

struct axis axis_of(int64_t size1, int64_t size2, int64_t stride0, int64_t stride1, int64_t stride2)
{
    return (struct axis){ .size1 = size1, .size2 = size2, .stride0 = stride0, .stride1 = stride1, .stride2 = stride2 };
}

struct axis axis_plain(int64_t stride)
{
    return axis_of(1, 1, stride, 0, 0);
}

ctrt_status product_launch(const ctrt_call *call, struct product_args *args, const void *a, const void *b,
                           const void *bias, void *c, int64_t batches)
{
    const ctrt_dtype dtype = (ctrt_dtype)call->outputs[0]->dtype;
    struct launch what = { .dtype = dtype, .out_dtype = dtype, .n_pointers = 4, .args = args,
                           .args_bytes = sizeof *args, .pointers = { a, b, bias != NULL ? bias : a, c } };
    args->tiles_m = (args->m + TILE_M - 1) / TILE_M;
    args->tiles_n = (args->n + TILE_N - 1) / TILE_N;
    what.groups = args->tiles_m * args->tiles_n * batches;
    return launch(call, &what);
}

/* a[B,M,K], b[B,K,N] -> out[B,M,N] */
static ctrt_status matmul_run(const ctrt_call *call)
{
    const ctrt_view *a = call->inputs[0], *b = call->inputs[1], *out = call->outputs[0];
    struct product_args args = {
        .m = out->shape[1], .n = out->shape[2], .k = a->shape[2],
        .a_m = axis_plain(a->strides[1]), .a_k = axis_plain(a->strides[2]),
        .b_k = axis_plain(b->strides[1]), .b_n = axis_plain(b->strides[2]),
        .c_m = axis_plain(out->shape[2]), .c_n = axis_plain(1),
        .a_batch = axis_plain(a->strides[0]), .b_batch = axis_plain(b->strides[0]),
        .c_batch = axis_plain(out->shape[1] * out->shape[2]),
    };
    return product_launch(call, &args, a->data, b->data, NULL, out->data, out->shape[0]);
}

/* x[M,K], w[N,K], bias[N]? -> out[M,N] */
static ctrt_status linear_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0], *w = call->inputs[1], *bias = call->inputs[2], *out = call->outputs[0];
    struct product_args args = {
        .m = out->shape[0], .n = out->shape[1], .k = x->shape[1],
        .a_m = axis_plain(x->strides[0]), .a_k = axis_plain(x->strides[1]),
        .b_k = axis_plain(w->strides[1]), .b_n = axis_plain(w->strides[0]),
        .c_m = axis_plain(out->shape[1]), .c_n = axis_plain(1),
        .a_batch = axis_plain(0), .b_batch = axis_plain(0), .c_batch = axis_plain(0),
        .bias_n = bias != NULL ? bias->strides[0] : 0,
    };
    return product_launch(call, &args, x->data, w->data, bias != NULL ? bias->data : NULL, out->data, 1);
}

#define PRODUCT(name, types, defines_)                                                                                \
    { .base = { .op = #name, .dtypes = (types), .flags = CTRT_KERNEL_STRIDED, .run = name##_run },                    \
      .file = "product", .function = "product", .defines = defines_ }

static const struct kernel rows[] = {
    PRODUCT(matmul, BIT(F32) | BIT(F64), "#define PLAIN\n"),
    PRODUCT(matmul, BIT(F16) | BIT(BF16) | INTEGERS, NULL),
    PRODUCT(linear, BIT(F32) | BIT(F64), "#define PLAIN\n"),
    PRODUCT(linear, BIT(F16) | BIT(BF16), NULL),
};
KERNELS(product, rows);
