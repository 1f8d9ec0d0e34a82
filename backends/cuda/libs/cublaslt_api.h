/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/libs/cublaslt_api.h: the part of cuBLASLt that this backend uses, declared here so that it builds
 * without the CUDA toolkit.
 *
 * Values and layouts are those of NVIDIA's cuBLAS reference; they are the same in versions 12 and 13. Matrices are
 * column major. */
#ifndef CUDA_CUBLASLT_API_H
#define CUDA_CUBLASLT_API_H

#include <stddef.h>
#include <stdint.h>

typedef int lt_status;
typedef struct lt_handle *lt_handle;
typedef struct lt_product *lt_product;          /* cublasLtMatmulDesc_t */
typedef struct lt_layout *lt_layout;
typedef struct lt_preference *lt_preference;
typedef struct { uint64_t data[8]; } lt_algorithm;

typedef struct {                                /* cublasLtMatmulHeuristicResult_t */
    lt_algorithm algorithm;
    size_t workspace;
    lt_status state;
    float waves;
    int reserved[4];
} lt_choice;

enum {                                          /* cublasStatus_t */
    LT_OK = 0, LT_NOT_INITIALIZED = 1, LT_ALLOC_FAILED = 3, LT_INVALID_VALUE = 7, LT_ARCH_MISMATCH = 8,
    LT_EXECUTION_FAILED = 13, LT_INTERNAL_ERROR = 14, LT_NOT_SUPPORTED = 15,
};
enum { LT_F32 = 0, LT_F64 = 1, LT_F16 = 2, LT_BF16 = 14 };                          /* cudaDataType */
enum { LT_COMPUTE_F32 = 68, LT_COMPUTE_F64 = 70, LT_COMPUTE_TF32 = 77 };            /* cublasComputeType_t */
enum { LT_AS_IT_IS = 0, LT_TRANSPOSED = 1 };                                        /* cublasOperation_t */
enum { LT_EPILOGUE_NONE = 1, LT_EPILOGUE_BIAS = 4 };                            /* bias: adds a vector to each column */
enum { LT_PRODUCT_TRANSPOSE_A = 3, LT_PRODUCT_TRANSPOSE_B = 4, LT_PRODUCT_EPILOGUE = 7, LT_PRODUCT_BIAS = 8 };
enum { LT_LAYOUT_BATCH = 5, LT_LAYOUT_BATCH_STRIDE = 6 };                           /* int32_t; int64_t, elements */
enum {                                          /* size_t; uint32_t */
    LT_PREFER_WORKSPACE = 1, LT_PREFER_REDUCTIONS = 3, LT_PREFER_ALIGN_A = 5, LT_PREFER_ALIGN_B = 6,
    LT_PREFER_ALIGN_C = 7, LT_PREFER_ALIGN_D = 8
};
enum { LT_REDUCTION_COMPUTE_TYPE = 2 };         /* split-K partial sums are added in the compute type */

/* LT(name, symbol, result, arguments): the entry points. */
#define LT_ENTRIES(LT)                                                                                              \
    LT(version, "cublasLtGetVersion", size_t, (void))                                                               \
    LT(status_name, "cublasLtGetStatusName", const char *, (lt_status status))                                      \
    LT(create, "cublasLtCreate", lt_status, (lt_handle *handle))                                                    \
    LT(destroy, "cublasLtDestroy", lt_status, (lt_handle handle))                                                   \
    LT(product_create, "cublasLtMatmulDescCreate", lt_status, (lt_product *product, int compute, int scale))        \
    LT(product_destroy, "cublasLtMatmulDescDestroy", lt_status, (lt_product product))                               \
    LT(product_set, "cublasLtMatmulDescSetAttribute", lt_status,                                                    \
       (lt_product product, int attribute, const void *value, size_t bytes))                                        \
    LT(layout_create, "cublasLtMatrixLayoutCreate", lt_status,                                                      \
       (lt_layout *layout, int type, uint64_t rows, uint64_t columns, int64_t step))                                \
    LT(layout_destroy, "cublasLtMatrixLayoutDestroy", lt_status, (lt_layout layout))                                \
    LT(layout_set, "cublasLtMatrixLayoutSetAttribute", lt_status,                                                   \
       (lt_layout layout, int attribute, const void *value, size_t bytes))                                          \
    LT(preference_create, "cublasLtMatmulPreferenceCreate", lt_status, (lt_preference *preference))                 \
    LT(preference_destroy, "cublasLtMatmulPreferenceDestroy", lt_status, (lt_preference preference))                \
    LT(preference_set, "cublasLtMatmulPreferenceSetAttribute", lt_status,                                           \
       (lt_preference preference, int attribute, const void *value, size_t bytes))                                  \
    LT(choose, "cublasLtMatmulAlgoGetHeuristic", lt_status,                                                         \
       (lt_handle handle, lt_product product, lt_layout a, lt_layout b, lt_layout c, lt_layout d,                   \
        lt_preference preference, int wanted, lt_choice *choices, int *found))                                      \
    LT(check, "cublasLtMatmulAlgoCheck", lt_status,                                                                 \
       (lt_handle handle, lt_product product, lt_layout a, lt_layout b, lt_layout c, lt_layout d,                   \
        const lt_algorithm *algorithm, lt_choice *choice))                                                          \
    LT(multiply, "cublasLtMatmul", lt_status,                                                                       \
       (lt_handle handle, lt_product product, const void *alpha, const void *a, lt_layout a_layout, const void *b,  \
        lt_layout b_layout, const void *beta, const void *c, lt_layout c_layout, void *d, lt_layout d_layout,       \
        const lt_algorithm *algorithm, void *workspace, size_t workspace_bytes, void *stream))

#endif
