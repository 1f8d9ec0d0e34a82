/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/matmul.c: matmul and linear. Floating-point products use cuBLASLt if it is available; all others
 * use this backend's own kernels. */
#include "host/fatbin.h"
#include "kernels/matmul_args.h"
#include "host/options.h"
#include "product.h"
#include "row.h"

#include <string.h>

static struct cuda_product product_of_matmul(const ctrt_call *call)
{
    const ctrt_view *a = call->inputs[0], *b = call->inputs[1], *c = call->outputs[0];
    return (struct cuda_product){
        .dtype = (ctrt_dtype)a->dtype, .out = (ctrt_dtype)c->dtype, .batch = c->shape[0], .m = c->shape[1],
        .n = c->shape[2], .k = a->shape[2],
        .a = a->data, .a_batch = a->strides[0], .a_row = a->strides[1], .a_column = a->strides[2],
        .b = b->data, .b_batch = b->strides[0], .b_row = b->strides[1], .b_column = b->strides[2], .c = c->data,
    };
}

static struct cuda_product product_of_linear(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0], *w = call->inputs[1], *bias = call->n_inputs > 2 ? call->inputs[2] : NULL;
    const ctrt_view *c = call->outputs[0];
    return (struct cuda_product){
        .dtype = (ctrt_dtype)x->dtype, .out = (ctrt_dtype)c->dtype, .batch = 1, .m = c->shape[0], .n = c->shape[1],
        .k = x->shape[1],
        .a = x->data, .a_row = x->strides[0], .a_column = x->strides[1],
        .b = w->data, .b_row = w->strides[1], .b_column = w->strides[0],
        .c = c->data, .bias = bias != NULL ? bias->data : NULL,
    };
}

/* Maximum of grid.z; blocks loop over larger batches. */
#define MOST_BATCHES 65535

static ctrt_status run_builtin(const ctrt_call *call, const struct cuda_product *p)
{
    static const char *const variants[] = { "small", "large", "small_f32", "large_f32" };
    const struct cuda_device *device = call->device;
    const int64_t large_tiles = (p->m + MATMUL_LARGE - 1) / MATMUL_LARGE * ((p->n + MATMUL_LARGE - 1) / MATMUL_LARGE);
    /* In the large tile, sums of 8 bytes would not fit in registers. */
    const bool large = cuda_dtype_bytes[p->dtype] < 8 && large_tiles * p->batch >= device->processors;
    const int64_t side = large ? MATMUL_LARGE : MATMUL_SMALL;
    const struct matmul_args args = {
        .a = p->a, .b = p->b, .bias = p->bias, .c = p->c, .batch = p->batch, .m = p->m, .n = p->n, .k = p->k,
        .a_batch = p->a_batch, .a_row = p->a_row, .a_column = p->a_column,
        .b_batch = p->b_batch, .b_row = p->b_row, .b_column = p->b_column, .tiles_across = (p->n + side - 1) / side,
    };
    const int64_t tiles = (p->m + side - 1) / side * args.tiles_across;
    if (tiles > INT32_MAX)
        return cuda_host->fail(
            CTRT_ERR_NOT_SUPPORTED, "%s: %s of [%lld, %lld] by [%lld, %lld] is too large for the built-in kernel",
            device->name, call->kernel->op, (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n);
    const struct cuda_shape shape = {
        .grid = { (unsigned)tiles, 1, (unsigned)(p->batch < MOST_BATCHES ? p->batch : MOST_BATCHES) },
        .block = MATMUL_THREADS
    };
    const int variant = large + 2 * (p->out != p->dtype);
    return cuda_launch(call, p->dtype, variant, variants[variant], shape, &args);
}

static ctrt_status matmul_run(const ctrt_call *call, const struct cuda_product *p)
{
    ctrt_status status = CTRT_OK;
    if (p->batch == 0 || p->m == 0 || p->n == 0)
        return CTRT_OK;
    if (cuda_lt_product(call, p, &status))
        return status;
    return run_builtin(call, p);
}

static ctrt_status matmul(const ctrt_call *call)
{
    const struct cuda_product p = product_of_matmul(call);
    return matmul_run(call, &p);
}

static ctrt_status linear(const ctrt_call *call)
{
    const struct cuda_product p = product_of_linear(call);
    return matmul_run(call, &p);
}

static ctrt_status matmul_workspace(const ctrt_call *call, size_t *bytes)
{
    const struct cuda_product p = product_of_matmul(call);
    *bytes = cuda_lt_workspace(call->device, &p);
    return CTRT_OK;
}

static ctrt_status linear_workspace(const ctrt_call *call, size_t *bytes)
{
    const struct cuda_product p = product_of_linear(call);
    *bytes = cuda_lt_workspace(call->device, &p);
    return CTRT_OK;
}

static const char *const bias_names[2][CUDA_DTYPES] = {
    { [CTRT_F32] = "bias_f32", [CTRT_F64] = "bias_f64", [CTRT_F16] = "bias_f16", [CTRT_BF16] = "bias_bf16" },
    { [CTRT_F32] = "bias_f32_v", [CTRT_F64] = "bias_f64_v", [CTRT_F16] = "bias_f16_v", [CTRT_BF16] = "bias_bf16_v" }
};

ctrt_status cuda_fill_bias(const ctrt_call *call, ctrt_dtype dtype, void *c, const void *bias, int64_t count, int64_t n,
                           int64_t inner)
{
    static struct cuda_entry entries[2][CUDA_DTYPES];
    const bool along = inner == 1;
    const int64_t bytes = cuda_dtype_bytes[dtype];
    const bool vectors = cuda_whole_vectors((uintptr_t)c | (along ? (uintptr_t)bias : 0)
                                            | (uintptr_t)((along ? n : inner) * bytes));
    const int64_t each = vectors ? 16 / bytes : 1;
    const struct bias_args args = { .c = c, .bias = bias, .count = count / each, .n = fast_div_of(along ? n / each : n),
                                    .inner = fast_div_of(along ? 1 : inner / each), .along = along };
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, args.count, MATMUL_THREADS) },
                                      .block = MATMUL_THREADS };
    return cuda_launch_named(call, &cuda_fatbin_matmul, &entries[vectors][dtype], bias_names[vectors][dtype], shape,
                             &args);
}

/* linear uses the kernels of matmul. Integer products never use the library and need no workspace. */
#define KERNEL(name, types, space)                                                                                     \
    { .base = { .op = #name, .dtypes = (types), .flags = CTRT_KERNEL_STRIDED, .run = name, .workspace = space },       \
      .fatbin = &cuda_fatbin_matmul, .kernel_name = "matmul" }
static struct cuda_kernel kernels[] = {
    KERNEL(matmul, CUDA_FLOATING, matmul_workspace),
    KERNEL(matmul, CUDA_INTEGRAL, NULL),
    KERNEL(linear, CUDA_FLOATING, linear_workspace),
    KERNEL(linear, CUDA_INTEGRAL, NULL),
};

CUDA_KERNELS(matmul, kernels);
