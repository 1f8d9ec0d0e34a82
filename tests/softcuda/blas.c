/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/blas.c: a fake libcublas.so.13: products of column-major matrices on the stream of a handle. */
#include <stdlib.h>

#include "gemm.h"

struct handle {
    void *stream;
    bool scale_on_device;
    int math_mode;
};

EXPORT const char *cublasGetStatusName(int status) { return blas_status_name(status); }
EXPORT const char *cublasGetStatusString(int status) { return blas_status_name(status); }

EXPORT int cublasCreate_v2(struct handle **out)
{
    BLAS_CALL(cublasCreate_v2);
    if (out == NULL)
        return BLAS_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    return *out == NULL ? BLAS_ALLOC_FAILED : BLAS_OK;
}

EXPORT int cublasDestroy_v2(struct handle *handle)
{
    BLAS_CALL(cublasDestroy_v2);
    free(handle);
    return handle == NULL ? BLAS_NOT_INITIALIZED : BLAS_OK;
}

EXPORT int cublasGetVersion_v2(struct handle *handle, int *version)
{
    BLAS_CALL(cublasGetVersion_v2);
    (void)handle;
    if (version == NULL)
        return BLAS_INVALID_VALUE;
    *version = 130002;
    return BLAS_OK;
}

EXPORT int cublasSetStream_v2(struct handle *handle, void *stream)
{
    BLAS_CALL(cublasSetStream_v2);
    if (handle == NULL)
        return BLAS_NOT_INITIALIZED;
    handle->stream = stream;
    return BLAS_OK;
}

EXPORT int cublasGetStream_v2(struct handle *handle, void **stream)
{
    BLAS_CALL(cublasGetStream_v2);
    if (handle == NULL || stream == NULL)
        return BLAS_INVALID_VALUE;
    *stream = handle->stream;
    return BLAS_OK;
}

EXPORT int cublasSetWorkspace_v2(struct handle *handle, void *workspace, size_t bytes)
{
    BLAS_CALL(cublasSetWorkspace_v2);
    (void)bytes;
    return handle == NULL ? BLAS_NOT_INITIALIZED : (uintptr_t)workspace % 256 != 0 ? BLAS_INVALID_VALUE : BLAS_OK;
}

EXPORT int cublasSetPointerMode_v2(struct handle *handle, int mode)
{
    BLAS_CALL(cublasSetPointerMode_v2);
    if (handle == NULL || mode < 0 || mode > 1)
        return BLAS_INVALID_VALUE;
    handle->scale_on_device = mode == 1;
    return BLAS_OK;
}

EXPORT int cublasSetMathMode(struct handle *handle, int mode)
{
    BLAS_CALL(cublasSetMathMode);
    if (handle == NULL)
        return BLAS_NOT_INITIALIZED;
    handle->math_mode = mode;
    return BLAS_OK;
}

struct operand { const void *at; int type, step; long long batch_step; };

static int scale_type_of(int compute)
{
    return compute == COMPUTE_16F                                        ? TYPE_F16
           : compute == COMPUTE_64F || compute == COMPUTE_64F_PEDANTIC ? TYPE_F64
           : compute == COMPUTE_32I                                    ? TYPE_I32
                                                                       : TYPE_F32;
}

static int multiply(struct handle *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                    struct operand a, struct operand b, const void *beta, struct operand c, int batches, int compute)
{
    enum { TF32_MATH = 3 };
    if (handle == NULL)
        return BLAS_NOT_INITIALIZED;
    if (alpha == NULL || beta == NULL || m < 0 || n < 0 || k < 0 || transpose_a < 0 || transpose_a > 2
        || transpose_b < 0 || transpose_b > 2)
        return BLAS_INVALID_VALUE;
    if (m == 0 || n == 0 || batches == 0)
        return BLAS_OK;
    struct product p = {
        .a = { a.type, false, transpose_a ? k : m, transpose_a ? m : k, a.step, a.batch_step },
        .b = { b.type, false, transpose_b ? n : k, transpose_b ? k : n, b.step, b.batch_step },
        .c = { c.type, false, m, n, c.step, c.batch_step }, .transpose_a = transpose_a != 0,
        .transpose_b = transpose_b != 0,
        .compute = compute == COMPUTE_32F && handle->math_mode == TF32_MATH && a.type == TYPE_F32
                       ? COMPUTE_32F_FAST_TF32 : compute,
        .scale_type = scale_type_of(compute), .batches = batches, .scale_on_device = handle->scale_on_device,
        .alpha_at = (uintptr_t)alpha,
        .beta_at = (uintptr_t)beta, .a_at = (uintptr_t)a.at, .b_at = (uintptr_t)b.at, .c_at = (uintptr_t)c.at,
        .d_at = (uintptr_t)c.at,
    };
    p.d = p.c;
    if (!p.scale_on_device) {
        p.alpha = number_of(p.scale_type, alpha);
        p.beta = number_of(p.scale_type, beta);
    }
    const int status = product_check(&p);
    return status != BLAS_OK ? status : product_put(&p, handle->stream);
}

EXPORT int cublasSgemm_v2(struct handle *handle, int ta, int tb, int m, int n, int k, const float *alpha,
                          const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc)
{
    BLAS_CALL(cublasSgemm_v2);
    return multiply(handle, ta, tb, m, n, k, alpha, (struct operand){ a, TYPE_F32, lda, 0 },
                    (struct operand){ b, TYPE_F32, ldb, 0 }, beta,
                    (struct operand){ c, TYPE_F32, ldc, 0 }, 1, COMPUTE_32F);
}

EXPORT int cublasDgemm_v2(struct handle *handle, int ta, int tb, int m, int n, int k, const double *alpha,
                          const double *a, int lda, const double *b, int ldb, const double *beta, double *c, int ldc)
{
    BLAS_CALL(cublasDgemm_v2);
    return multiply(handle, ta, tb, m, n, k, alpha, (struct operand){ a, TYPE_F64, lda, 0 },
                    (struct operand){ b, TYPE_F64, ldb, 0 }, beta,
                    (struct operand){ c, TYPE_F64, ldc, 0 }, 1, COMPUTE_64F);
}

EXPORT int cublasSgemmStridedBatched(struct handle *handle, int ta, int tb, int m, int n, int k, const float *alpha,
                                     const float *a, int lda, long long sa,
                                     const float *b, int ldb, long long sb, const float *beta, float *c, int ldc,
                                     long long sc, int batches)
{
    BLAS_CALL(cublasSgemmStridedBatched);
    return multiply(handle, ta, tb, m, n, k, alpha, (struct operand){ a, TYPE_F32, lda, sa },
                    (struct operand){ b, TYPE_F32, ldb, sb }, beta,
                    (struct operand){ c, TYPE_F32, ldc, sc }, batches, COMPUTE_32F);
}

EXPORT int cublasDgemmStridedBatched(struct handle *handle, int ta, int tb, int m, int n, int k, const double *alpha,
                                     const double *a, int lda, long long sa,
                                     const double *b, int ldb, long long sb, const double *beta, double *c, int ldc,
                                     long long sc, int batches)
{
    BLAS_CALL(cublasDgemmStridedBatched);
    return multiply(handle, ta, tb, m, n, k, alpha, (struct operand){ a, TYPE_F64, lda, sa },
                    (struct operand){ b, TYPE_F64, ldb, sb }, beta,
                    (struct operand){ c, TYPE_F64, ldc, sc }, batches, COMPUTE_64F);
}

EXPORT int cublasGemmEx(struct handle *handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                        int type_a, int lda, const void *b, int type_b,
                        int ldb, const void *beta, void *c, int type_c, int ldc, int compute, int algorithm)
{
    BLAS_CALL(cublasGemmEx);
    (void)algorithm;
    return multiply(handle, ta, tb, m, n, k, alpha, (struct operand){ a, type_a, lda, 0 },
                    (struct operand){ b, type_b, ldb, 0 }, beta, (struct operand){ c, type_c, ldc, 0 }, 1, compute);
}

EXPORT int cublasGemmStridedBatchedEx(struct handle *handle, int ta, int tb, int m, int n, int k, const void *alpha,
                                      const void *a, int type_a, int lda, long long sa,
                                      const void *b, int type_b, int ldb, long long sb, const void *beta, void *c,
                                      int type_c, int ldc, long long sc, int batches, int compute, int algorithm)
{
    BLAS_CALL(cublasGemmStridedBatchedEx);
    (void)algorithm;
    return multiply(handle, ta, tb, m, n, k, alpha, (struct operand){ a, type_a, lda, sa },
                    (struct operand){ b, type_b, ldb, sb }, beta,
                    (struct operand){ c, type_c, ldc, sc }, batches, compute);
}
