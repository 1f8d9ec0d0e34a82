/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/range.c: arange, tril, triu. */
#include "kernels/range_args.h"
#include "elementwise.h"

/* ---- arange ---- */

static ctrt_status arange_run(const ctrt_call *call)
{
    const ctrt_range_attributes *range = call->attributes;
    const ctrt_view *out = call->outputs[0];
    const ctrt_dtype dtype = (ctrt_dtype)out->dtype,
                     key = CTRT_DTYPE_BIT(dtype) & CUDA_FLOATING ? dtype : cuda_bits_of(dtype);
    union elementwise_number first, step, start, stride;
    if (out->numel == 0)
        return CTRT_OK;
    cuda_number(&first, range->lo, CTRT_I64);
    cuda_number(&step, range->hi, CTRT_I64);
    cuda_number(&start, range->lo, CTRT_F64);
    cuda_number(&stride, range->hi, CTRT_F64);
    const struct arange_args args = { .out = out->data, .n = out->numel, .start = start.f64, .step = stride.f64,
                                      .first = (uint64_t)first.i64, .stride = (uint64_t)step.i64 };
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, (out->numel + 3) / 4, RANGE_THREADS) },
                                      .block = RANGE_THREADS };
    return cuda_launch(call, key, 0, NULL, shape, &args);
}

/* ---- tril, triu ---- */

static ctrt_status triangle_run(const ctrt_call *call)
{
    const ctrt_index_attributes *attributes = call->attributes;
    const ctrt_view *in = call->inputs[0], *out = call->outputs[0];
    if (out->numel == 0)
        return CTRT_OK;
    const int64_t rows = in->shape[1], columns = in->shape[2], diagonal = attributes != NULL ? attributes->value : 0;
    /* Clamp the diagonal, because all diagonals outside the matrix give the same result. */
    const struct triangle_args args = {
        .out = out->data, .in = in->data, .n = out->numel, .rows = rows, .columns = columns,
        .diagonal = diagonal < -rows ? -rows : diagonal > columns ? columns : diagonal,
        .upper = cuda_kernel_of(call)->code,
        .vectors = ((uintptr_t)out->data | (uintptr_t)in->data) % 16 == 0,
    };
    const ctrt_dtype bits = cuda_bits_of((ctrt_dtype)in->dtype);
    const int64_t threads = (out->numel * cuda_dtype_bytes[bits] + 15) / 16;
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, threads, RANGE_THREADS) },
                                      .block = RANGE_THREADS };
    return cuda_launch(call, bits, 0, NULL, shape, &args);
}

#define TRIANGLE(name, upper)                                                                                         \
    { .base = { .op = #name, .dtypes = CUDA_ALL, .run = triangle_run }, .fatbin = &cuda_fatbin_range,                 \
      .code = (upper), .kernel_name = "triangle" }

static struct cuda_kernel kernels[] = {
    { .base = { .op = "arange", .dtypes = CUDA_NUMBERS, .run = arange_run }, .fatbin = &cuda_fatbin_range },
    TRIANGLE(tril, 0),
    TRIANGLE(triu, 1),
};

CUDA_KERNELS(range, kernels);
