/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/gemm.h: matrix products in stream order, for the fake cuBLAS and cuBLASLt. */
#ifndef SOFTCUDA_GEMM_H
#define SOFTCUDA_GEMM_H

#include <stdbool.h>

#include "api.h"

enum {                                      /* cublasStatus_t */
    BLAS_OK = 0, BLAS_NOT_INITIALIZED = 1, BLAS_ALLOC_FAILED = 3, BLAS_INVALID_VALUE = 7, BLAS_ARCH_MISMATCH = 8,
    BLAS_MAPPING_ERROR = 11,
    BLAS_EXECUTION_FAILED = 13, BLAS_INTERNAL_ERROR = 14, BLAS_NOT_SUPPORTED = 15, BLAS_LICENSE_ERROR = 16
};
enum { TYPE_F32 = 0, TYPE_F64 = 1, TYPE_F16 = 2, TYPE_I8 = 3, TYPE_I32 = 10, TYPE_BF16 = 14 };    /* cudaDataType */
enum {                                      /* cublasComputeType_t */
    COMPUTE_16F = 64, COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_64F = 70, COMPUTE_64F_PEDANTIC = 71,
    COMPUTE_32I = 72, COMPUTE_32F_FAST_16F = 74, COMPUTE_32F_FAST_16BF = 75, COMPUTE_32F_FAST_TF32 = 77
};
enum { EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_DRELU = 8, EPILOGUE_BGRAD = 16, EPILOGUE_GELU = 32,
       EPILOGUE_DGELU = 64, EPILOGUE_AUX = 128 };

struct matrix {
    int type;
    bool by_rows;                           /* row major */
    int64_t rows, columns, step, batch_step;        /* of the matrix as stored; in elements */
};

struct product {
    struct matrix a, b, c, d;
    bool transpose_a, transpose_b;
    int compute, scale_type, batches;
    bool scale_on_device;                   /* alpha and beta are read when the stream reaches the product */
    double alpha, beta;
    address alpha_at, beta_at;
    address a_at, b_at, c_at, d_at;
    int epilogue;                           /* combination of EPILOGUE_*; 1 or 0: none */
    int bias_type, aux_type;
    address bias_at, aux_at;
    int64_t bias_step, aux_step, aux_batch_step;    /* bias between batches; aux between columns, between batches */
    address workspace_at;
    size_t workspace_bytes;                 /* number of bytes that the algorithm uses */
    bool late;                              /* takes some milliseconds longer */
};

/* Checks that shapes, types and strides are consistent. Returns a cublasStatus_t. */
int product_check(const struct product *product);
/* Enqueues a copy of the product on the stream. */
int product_put(const struct product *product, void *stream);
size_t type_bytes(int type);
/* Reads an element of the type from host memory. */
double number_of(int type, const void *at);
/* Counts the call. Returns an injected status, else BLAS_OK. */
int blas_enter(const char *symbol);
#define BLAS_CALL(symbol)                        \
    do {                                         \
        const int entered = blas_enter(#symbol); \
        if (entered != BLAS_OK)                  \
            return entered;                      \
    } while (0)
const char *blas_status_name(int status);

#endif
