/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/matmul.c: the matmul and linear kernels: select the implementation of a matrix product. */
#include "body.h"
#include "libs/onednn.h"
#include "product.h"

/* Up to this many multiplications, the built-in f32 product is at least as fast as oneDNN, which first looks up its
 * primitive (0.3 us). For bf16, oneDNN uses special instructions. */
#define SMALL_F32 1000000
#define SMALL_HALF 2000
/* With at most this many rows, reading B dominates the run time, and the built-in loops are fast at that. */
#define FEW_ROWS 8
#define FEW_ROWS_DOWN 4                 /* if B's columns are contiguous */

static bool prefers_builtin(const struct cpu_product *p)
{
    const int64_t work = p->m * p->n * p->k;
    if (p->dtype == CTRT_F32)
        return work <= SMALL_F32 || p->m <= (p->b_col == 1 ? FEW_ROWS : FEW_ROWS_DOWN);
    return work * p->batch <= SMALL_HALF;
}

static ctrt_status compute(const struct cpu_product *p)
{
    if (p->batch == 0 || p->m == 0 || p->n == 0)
        return CTRT_OK;
    const enum cpu_gemm_path path = cpu_gemm_path();
    if (path == CPU_GEMM_AUTO) {
        if (!prefers_builtin(p) && (cpu_onednn_product(p) || cpu_blas_product(p, false)))
            return CTRT_OK;
    } else if ((path == CPU_GEMM_ONEDNN && cpu_onednn_product(p))
               || (path == CPU_GEMM_BLAS && cpu_blas_product(p, true))) {
        return CTRT_OK;
    }
    return cpu_product_builtin(p);
}

static ctrt_status matmul(const ctrt_call *call)
{
    const ctrt_view *a = call->inputs[0], *b = call->inputs[1], *c = call->outputs[0];
    const struct cpu_product p = {
        .op = "matmul", .dtype = a->dtype,
        .batch = c->shape[0], .m = c->shape[1], .n = c->shape[2], .k = a->shape[2],
        .a = a->data, .a_batch = a->strides[0], .a_row = a->strides[1], .a_col = a->strides[2],
        .b = b->data, .b_batch = b->strides[0], .b_row = b->strides[1], .b_col = b->strides[2], .c = c->data,
    };
    return compute(&p);
}

static ctrt_status linear(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0], *w = call->inputs[1], *bias = call->n_inputs > 2 ? call->inputs[2] : NULL;
    const ctrt_view *c = call->outputs[0];
    const struct cpu_product p = {
        .op = "linear", .dtype = x->dtype, .batch = 1, .m = c->shape[0], .n = c->shape[1], .k = x->shape[1],
        .a = x->data, .a_row = x->strides[0], .a_col = x->strides[1],
        .b = w->data, .b_row = w->strides[1], .b_col = w->strides[0],
        .c = c->data, .bias = bias ? bias->data : NULL,
    };
    return compute(&p);
}

static const struct cpu_kernel kernels[] = {
    CPU_ROW(matmul, CPU_NUMBERS, .flags = CTRT_KERNEL_STRIDED),
    CPU_ROW(linear, CPU_NUMBERS, .flags = CTRT_KERNEL_STRIDED),
};

const struct cpu_kernels cpu_matmul_kernels = { kernels, sizeof kernels / sizeof kernels[0] };
