/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/gemm.h: matrix products, for the fake cuBLAS and cuBLASLt. */
#ifndef SOFTCUDA_GEMM_H
#define SOFTCUDA_GEMM_H

#include "library.h"

enum {                                      /* cublasStatus_t */
    BLAS_OK = 0, BLAS_NOT_INITIALIZED = 1, BLAS_ALLOC_FAILED = 3, BLAS_INVALID_VALUE = 7, BLAS_EXECUTION_FAILED = 13,
    BLAS_INTERNAL_ERROR = 14, BLAS_NOT_SUPPORTED = 15
};
enum { TYPE_BF16 = 14 };                    /* cudaDataType */
enum { COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_FAST_TF32 = 77 };        /* cublasComputeType_t */
enum { EPILOGUE_NONE = 1, EPILOGUE_BIAS = 4 };

struct matrix {                             /* column major */
    int type;
    int64_t rows, columns, step, batch_step;        /* of the matrix as stored; in elements */
};

/* D = alpha A B + beta C, plus `bias` in each column with EPILOGUE_BIAS */
struct product {
    struct matrix a, b, c, d;
    bool transpose_a, transpose_b;
    int compute, scale_type, batches;
    double alpha, beta;
    address a_at, b_at, c_at, d_at;
    int epilogue;
    address bias_at;
    address workspace_at;
    size_t workspace_bytes;                 /* number of bytes that the algorithm uses */
    bool late;                              /* takes some milliseconds longer */
};

/* Checks that shapes, types and strides are consistent. Returns a cublasStatus_t. */
int product_check(const struct product *product);
/* Enqueues a copy of the product on the stream. Returns a cublasStatus_t. */
int product_put(const struct product *product, void *stream);

#endif
