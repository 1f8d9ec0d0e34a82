/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/blas.c: a fake libcublas.so.13: the functions that bench/gpu_direct.c uses. */
#include "gemm.h"

struct handle { void *stream; };

EXPORT int cublasCreate_v2(struct handle **out)
{
    ENTER(cublasCreate_v2);
    *out = calloc(1, sizeof **out);
    return *out == NULL ? BLAS_ALLOC_FAILED : BLAS_OK;
}

EXPORT int cublasSetStream_v2(struct handle *handle, void *stream)
{
    ENTER(cublasSetStream_v2);
    handle->stream = stream;
    return BLAS_OK;
}

EXPORT int cublasSetMathMode(struct handle *handle, int mode)
{
    ENTER(cublasSetMathMode);
    (void)mode;
    return handle == NULL ? BLAS_NOT_INITIALIZED : BLAS_OK;
}

EXPORT int cublasGemmEx(struct handle *handle, int ta, int tb, int m, int n, int k, const float *alpha, const void *a,
                        int type_a, int lda, const void *b, int type_b, int ldb, const float *beta, void *c,
                        int type_c, int ldc, int compute, int algorithm)
{
    ENTER(cublasGemmEx);
    (void)algorithm;
    const struct matrix result = { type_c, m, n, ldc, 0 };
    const struct product p = {
        .a = { type_a, ta ? k : m, ta ? m : k, lda, 0 }, .b = { type_b, tb ? n : k, tb ? k : n, ldb, 0 },
        .c = result, .d = result, .transpose_a = ta != 0, .transpose_b = tb != 0, .compute = compute,
        .scale_type = TYPE_F32, .batches = 1, .alpha = (double)*alpha, .beta = (double)*beta,
        .a_at = (uintptr_t)a, .b_at = (uintptr_t)b, .c_at = (uintptr_t)c, .d_at = (uintptr_t)c,
        .epilogue = EPILOGUE_NONE,
    };
    const int status = product_check(&p);
    return status != BLAS_OK ? status : product_put(&p, handle->stream);
}
