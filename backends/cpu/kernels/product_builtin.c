/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/product_builtin.c: matrix products without a library: f32 and f64 by gemm_builtin.c, f16 and
 * bf16 through f32, integers by loops. */
#include "gemm.h"
#include "half.h"
#include "product.h"
#include "host/scratch.h"

/* Computes one matrix of the batch. */
typedef ctrt_status (*one_function)(const struct cpu_product *p, int64_t index);

static ctrt_status one_f32(const struct cpu_product *p, int64_t index)
{
    const struct gemm_f32 g = {
        .m = p->m, .n = p->n, .k = p->k,
        .a = (const float *)p->a + index * p->a_batch, .a_row = p->a_row, .a_col = p->a_col,
        .b = (const float *)p->b + index * p->b_batch, .b_row = p->b_row, .b_col = p->b_col,
        .c = (float *)p->c + index * p->m * p->n, .c_row = p->n, .start = p->bias,
    };
    return cpu_gemm_f32(&g) ? CTRT_OK : cpu_no_scratch(p->op, GEMM_PACK_A + GEMM_PACK_B);
}

static ctrt_status one_f64(const struct cpu_product *p, int64_t index)
{
    const struct gemm_f64 g = {
        .m = p->m, .n = p->n, .k = p->k,
        .a = (const double *)p->a + index * p->a_batch, .a_row = p->a_row, .a_col = p->a_col,
        .b = (const double *)p->b + index * p->b_batch, .b_row = p->b_row, .b_col = p->b_col,
        .c = (double *)p->c + index * p->m * p->n, .c_row = p->n, .start = p->bias,
    };
    return cpu_gemm_f64(&g) ? CTRT_OK : cpu_no_scratch(p->op, GEMM_PACK_A + GEMM_PACK_B);
}

/* Converts a strided half-precision matrix [rows, columns] to contiguous floats. */
static void widen_matrix(float *to, const uint16_t *from, int64_t rows, int64_t columns, int64_t row,
                         int64_t column, ctrt_dtype dtype)
{
    const struct half_loops *half = cpu_half(dtype);
    for (int64_t i = 0; i < rows; i++)
        if (column == 1)
            half->widen(to + i * columns, from + i * row, columns);
        else
            for (int64_t j = 0; j < columns; j++)
                half->widen(to + i * columns + j, from + i * row + j * column, 1);
}

/* Computes in f32, so that each element is rounded once. */
static ctrt_status one_half(const struct cpu_product *p, int64_t index)
{
    const size_t a_bytes = (size_t)(p->m * p->k) * sizeof(float), b_bytes = (size_t)(p->k * p->n) * sizeof(float),
                 c_bytes = (size_t)(p->m * p->n + p->n) * sizeof(float);
    float *a = cpu_scratch(SCRATCH_WIDE_A, a_bytes), *b = cpu_scratch(SCRATCH_WIDE_B, b_bytes);
    float *c = cpu_scratch(SCRATCH_WIDE_C, c_bytes), *bias = c ? c + p->m * p->n : NULL;
    if (!a || !b || !c)
        return cpu_no_scratch(p->op, a_bytes + b_bytes + c_bytes);
    /* A matrix whose columns are contiguous is converted column by column and then addressed with swapped strides. */
    const bool a_down = p->a_col != 1 && p->a_row == 1, b_down = p->b_col != 1 && p->b_row == 1;
    const uint16_t *from_a = (const uint16_t *)p->a + index * p->a_batch,
                   *from_b = (const uint16_t *)p->b + index * p->b_batch;
    if (a_down)
        widen_matrix(a, from_a, p->k, p->m, p->a_col, 1, p->dtype);
    else
        widen_matrix(a, from_a, p->m, p->k, p->a_row, p->a_col, p->dtype);
    if (b_down)
        widen_matrix(b, from_b, p->n, p->k, p->b_col, 1, p->dtype);
    else
        widen_matrix(b, from_b, p->k, p->n, p->b_row, p->b_col, p->dtype);
    if (p->bias)
        cpu_half(p->dtype)->widen(bias, p->bias, p->n);
    const struct gemm_f32 g = {
        .m = p->m, .n = p->n, .k = p->k, .a = a, .a_row = a_down ? 1 : p->k, .a_col = a_down ? p->m : 1,
        .b = b, .b_row = b_down ? 1 : p->n, .b_col = b_down ? p->k : 1, .c = c, .c_row = p->n,
        .start = p->bias ? bias : NULL,
    };
    if (!cpu_gemm_f32(&g))
        return cpu_no_scratch(p->op, GEMM_PACK_A + GEMM_PACK_B);
    cpu_half(p->dtype)->narrow((uint16_t *)p->c + index * p->m * p->n, c, p->m * p->n);
    return CTRT_OK;
}

#define BODY "product_body.h"
#include "each_integer.h"

static const one_function one_of[CPU_DTYPES] = {
    [CTRT_F32] = one_f32, [CTRT_F64] = one_f64, [CTRT_F16] = one_half, [CTRT_BF16] = one_half,
    [CTRT_I8] = one_i8, [CTRT_U8] = one_u8, [CTRT_I16] = one_i16, [CTRT_I32] = one_i32, [CTRT_I64] = one_i64,
};

struct batch {
    const struct cpu_product *product;
    ctrt_status status;
};

static void run_batch(void *argument, int64_t begin, int64_t end)
{
    struct batch *batch = argument;
    for (int64_t i = begin; i < end; i++) {
        ctrt_status status = one_of[batch->product->dtype](batch->product, i);
        if (status)
            __atomic_store_n(&batch->status, status, __ATOMIC_RELAXED);
    }
}

ctrt_status cpu_product_builtin(const struct cpu_product *p)
{
    if (p->batch == 1)
        return one_of[p->dtype](p, 0);
    struct batch batch = { .product = p };
    const int64_t work = p->m * p->n * p->k;
    if (p->batch < cpu_thread_count())
        run_batch(&batch, 0, p->batch);                 /* fewer matrices than threads, so split each matrix */
    else
        cpu_parallel_for(p->batch, work >= 65536 ? 1 : 65536 / (work + 1) + 1, run_batch, &batch);
    /* Set the error message again, because messages are per thread. */
    return batch.status ? cpu_no_scratch(p->op, GEMM_PACK_A + GEMM_PACK_B) : CTRT_OK;
}
