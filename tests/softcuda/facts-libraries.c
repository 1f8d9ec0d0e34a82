/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/facts-libraries.c: compares backends/cuda/libs/cublaslt_api.h and cudnn_api.h with NVIDIA's headers,
 * for test-softcuda-facts.c. */
#include <stdio.h>

#include "facts-libraries.h"

struct fact {
    const char *name;
    long long ours, theirs;
};

#define SAME(a, b)                 { #a " and " #b, (long long)(a), (long long)(b) }
#define SAME_SIZE(a, b)            { "the sizes of " #a " and " #b, sizeof(a), sizeof(b) }
#define SAME_PLACE(a, m, b, theirs) \
    { "the places of " #a "." #m " and " #b "." #theirs, offsetof(a, m), offsetof(b, theirs) }

#if defined(__has_include)
#if __has_include(<cublasLt.h>)
#define HAVE_CUBLASLT_H 1
#endif
#if __has_include(<cudnn.h>)
#define HAVE_CUDNN_H 1
#endif
#endif

#if defined(HAVE_CUBLASLT_H) || defined(HAVE_CUDNN_H)
static int compare(int number, const struct fact *facts, size_t count, const char *header, long long version)
{
    int bad = 0;
    for (size_t i = 0; i < count; i++)
        if (facts[i].ours != facts[i].theirs) {
            printf("# %s differ: %lld and %lld\n", facts[i].name, facts[i].ours, facts[i].theirs);
            bad++;
        }
    printf("%s %d - %zu numbers and layouts are those of %s %lld\n", bad ? "not ok" : "ok", number, count, header,
           version);
    return bad;
}
#endif

#ifdef HAVE_CUBLASLT_H
#include <cublasLt.h>

#include "../../backends/cuda/libs/cublaslt_api.h"

int facts_cublaslt(int number)
{
    static const struct fact facts[] = {
        SAME_SIZE(lt_algorithm, cublasLtMatmulAlgo_t),
        SAME_SIZE(lt_choice, cublasLtMatmulHeuristicResult_t),
        SAME_PLACE(lt_choice, algorithm, cublasLtMatmulHeuristicResult_t, algo),
        SAME_PLACE(lt_choice, workspace, cublasLtMatmulHeuristicResult_t, workspaceSize),
        SAME_PLACE(lt_choice, state, cublasLtMatmulHeuristicResult_t, state),
        SAME_PLACE(lt_choice, waves, cublasLtMatmulHeuristicResult_t, wavesCount),
        SAME_SIZE(lt_status, cublasStatus_t),
        SAME(LT_OK, CUBLAS_STATUS_SUCCESS),
        SAME(LT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED),
        SAME(LT_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED),
        SAME(LT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE),
        SAME(LT_ARCH_MISMATCH, CUBLAS_STATUS_ARCH_MISMATCH),
        SAME(LT_EXECUTION_FAILED, CUBLAS_STATUS_EXECUTION_FAILED),
        SAME(LT_INTERNAL_ERROR, CUBLAS_STATUS_INTERNAL_ERROR),
        SAME(LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED),
        SAME(LT_F32, CUDA_R_32F),
        SAME(LT_F64, CUDA_R_64F),
        SAME(LT_F16, CUDA_R_16F),
        SAME(LT_BF16, CUDA_R_16BF),
        SAME(LT_COMPUTE_F32, CUBLAS_COMPUTE_32F),
        SAME(LT_COMPUTE_F64, CUBLAS_COMPUTE_64F),
        SAME(LT_COMPUTE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32),
        SAME(LT_AS_IT_IS, CUBLAS_OP_N),
        SAME(LT_TRANSPOSED, CUBLAS_OP_T),
        SAME_SIZE(int, cublasOperation_t),
        SAME(LT_EPILOGUE_NONE, CUBLASLT_EPILOGUE_DEFAULT),
        SAME(LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS),
        SAME_SIZE(int, cublasLtEpilogue_t),
        SAME(LT_PRODUCT_TRANSPOSE_A, CUBLASLT_MATMUL_DESC_TRANSA),
        SAME(LT_PRODUCT_TRANSPOSE_B, CUBLASLT_MATMUL_DESC_TRANSB),
        SAME(LT_PRODUCT_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE),
        SAME(LT_PRODUCT_BIAS, CUBLASLT_MATMUL_DESC_BIAS_POINTER),
        SAME(LT_LAYOUT_BATCH, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT),
        SAME(LT_LAYOUT_BATCH_STRIDE, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET),
        SAME(LT_PREFER_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES),
        SAME(LT_PREFER_REDUCTIONS, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK),
        SAME(LT_PREFER_ALIGN_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES),
        SAME(LT_PREFER_ALIGN_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES),
        SAME(LT_PREFER_ALIGN_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES),
        SAME(LT_PREFER_ALIGN_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES),
        SAME(LT_REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE),
    };
    return compare(number, facts, sizeof facts / sizeof facts[0], "cublasLt.h", CUBLAS_VERSION);
}
#else
int facts_cublaslt(int number)
{
    printf("ok %d - numbers and layouts of cuBLASLt # SKIP there is no cublasLt.h to compare with\n", number);
    return 0;
}
#endif

#ifdef HAVE_CUDNN_H
#include <cudnn.h>

#include "../../backends/cuda/libs/cudnn_api.h"

#define CHOICE(theirs)                                                                             \
    SAME_SIZE(dnn_choice, theirs), SAME_PLACE(dnn_choice, algorithm, theirs, algo),                \
    SAME_PLACE(dnn_choice, status, theirs, status),                                                \
    SAME_PLACE(dnn_choice, time, theirs, time), SAME_PLACE(dnn_choice, workspace, theirs, memory), \
    SAME_PLACE(dnn_choice, deterministic, theirs, determinism), SAME_PLACE(dnn_choice, math, theirs, mathType)

int facts_cudnn(int number)
{
    static const struct fact facts[] = {
        CHOICE(cudnnConvolutionFwdAlgoPerf_t),
        CHOICE(cudnnConvolutionBwdDataAlgoPerf_t),
        CHOICE(cudnnConvolutionBwdFilterAlgoPerf_t),
        SAME_SIZE(dnn_status, cudnnStatus_t),
        SAME(DNN_OK, CUDNN_STATUS_SUCCESS),
        SAME(DNN_BAD_PARAM, CUDNN_STATUS_BAD_PARAM),
        SAME(DNN_NOT_SUPPORTED, CUDNN_STATUS_NOT_SUPPORTED),
        SAME(DNN_INTERNAL_ERROR, CUDNN_STATUS_INTERNAL_ERROR),
        SAME(DNN_EXECUTION_FAILED, CUDNN_STATUS_EXECUTION_FAILED),
        SAME(DNN_NO_HOST_MEMORY, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED),
        SAME(DNN_NO_DEVICE_MEMORY, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED),
        SAME(DNN_F32, CUDNN_DATA_FLOAT),
        SAME(DNN_F64, CUDNN_DATA_DOUBLE),
        SAME(DNN_F16, CUDNN_DATA_HALF),
        SAME(DNN_BF16, CUDNN_DATA_BFLOAT16),
        SAME(DNN_NCHW, CUDNN_TENSOR_NCHW),
        SAME(DNN_NHWC, CUDNN_TENSOR_NHWC),
        SAME(DNN_CROSS_CORRELATION, CUDNN_CROSS_CORRELATION),
        SAME(DNN_MATH_DEFAULT, CUDNN_DEFAULT_MATH),
        SAME(DNN_MATH_TENSOR, CUDNN_TENSOR_OP_MATH),
        SAME(DNN_MATH_PLAIN, CUDNN_FMA_MATH),
        SAME(DNN_FORWARD_PRECOMPUTED, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM),
        SAME(DNN_IDENTITY, CUDNN_ACTIVATION_IDENTITY),
    };
    return compare(number, facts, sizeof facts / sizeof facts[0], "cudnn.h", CUDNN_VERSION);
}
#else
int facts_cudnn(int number)
{
    printf("ok %d - numbers and layouts of cuDNN # SKIP there is no cudnn.h to compare with\n", number);
    return 0;
}
#endif
