/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-facts.c: compares the constants and layouts that the backend declares with NVIDIA's
 * headers, where they are installed. Those of softcuda need no comparison, because the backend runs on it. */
#include <stddef.h>
#include <stdio.h>

#include "run.h"

struct fact {
    const char *name;
    long long ours, theirs;
};

#define SAME(a, b)                 { #a " and " #b, (long long)(a), (long long)(b) }
#define SAME_SIZE(a, b)            { "the sizes of " #a " and " #b, sizeof(a), sizeof(b) }
#define SAME_PLACE(a, m, b, theirs) \
    { "the places of " #a "." #m " and " #b "." #theirs, offsetof(a, m), offsetof(b, theirs) }

/* Prints line `number` of TAP and returns the number of differences. */
static int compare(int number, const char *header, long long version, const struct fact *facts, size_t count)
{
    int bad = 0;
    for (size_t i = 0; i < count; i++)
        if (facts[i].ours != facts[i].theirs) {
            printf("# %s differ: %lld and %lld\n", facts[i].name, facts[i].ours, facts[i].theirs);
            bad++;
        }
    if (count == 0)
        printf("ok %d - numbers and layouts of %s # SKIP it is not installed\n", number, header);
    else
        printf("%s %d - %zu numbers and layouts are those of %s %lld\n", bad ? "not ok" : "ok", number, count, header,
               version);
    return bad;
}

#if __has_include(<cuda.h>)
#include <cuda.h>

/* cuda.h and the backend's declarations cannot be included in one file, so the same list of pairs is compiled in two
 * files. */
extern const long long softcuda_facts[];
static const struct fact cuda_facts[] = {
#define FACT(backends, headers) { #backends " and " #headers, 0, (long long)(headers) },
#include "facts.def"
#undef FACT
};

static int compare_cuda(int number)
{
    enum { COUNT = sizeof cuda_facts / sizeof cuda_facts[0] };
    struct fact facts[COUNT];
    for (int i = 0; i < COUNT; i++) {
        facts[i] = cuda_facts[i];
        facts[i].ours = softcuda_facts[i];
    }
    return compare(number, "cuda.h", CUDA_VERSION, facts, COUNT);
}
#else
static int compare_cuda(int number)
{
    return compare(number, "cuda.h", 0, NULL, 0);
}
#endif

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include "../../backends/cuda/libs/cublaslt_api.h"

static int compare_cublaslt(int number)
{
#define STATUS(name) SAME(LT_##name, CUBLAS_STATUS_##name)
    static const struct fact facts[] = {
        STATUS(NOT_INITIALIZED), STATUS(ALLOC_FAILED), STATUS(INVALID_VALUE), STATUS(ARCH_MISMATCH),
        STATUS(EXECUTION_FAILED), STATUS(INTERNAL_ERROR), STATUS(NOT_SUPPORTED),
        SAME_SIZE(lt_algorithm, cublasLtMatmulAlgo_t),
        SAME_SIZE(lt_choice, cublasLtMatmulHeuristicResult_t),
        SAME_PLACE(lt_choice, algorithm, cublasLtMatmulHeuristicResult_t, algo),
        SAME_PLACE(lt_choice, workspace, cublasLtMatmulHeuristicResult_t, workspaceSize),
        SAME_PLACE(lt_choice, state, cublasLtMatmulHeuristicResult_t, state),
        SAME_PLACE(lt_choice, waves, cublasLtMatmulHeuristicResult_t, wavesCount),
        SAME_SIZE(lt_status, cublasStatus_t),
        SAME(LT_OK, CUBLAS_STATUS_SUCCESS),
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
    return compare(number, "cublasLt.h", CUBLAS_VERSION, facts, sizeof facts / sizeof facts[0]);
#undef STATUS
}
#else
static int compare_cublaslt(int number)
{
    return compare(number, "cublasLt.h", 0, NULL, 0);
}
#endif

#if __has_include(<cudnn.h>)
#include <cudnn.h>

#include "../../backends/cuda/libs/cudnn_api.h"

#define CHOICE(theirs)                                                                             \
    SAME_SIZE(dnn_choice, theirs), SAME_PLACE(dnn_choice, algorithm, theirs, algo),                \
    SAME_PLACE(dnn_choice, status, theirs, status),                                                \
    SAME_PLACE(dnn_choice, time, theirs, time), SAME_PLACE(dnn_choice, workspace, theirs, memory), \
    SAME_PLACE(dnn_choice, deterministic, theirs, determinism), SAME_PLACE(dnn_choice, math, theirs, mathType)

static int compare_cudnn(int number)
{
#define STATUS(name) SAME(DNN_##name, CUDNN_STATUS_##name)
    static const struct fact facts[] = {
        STATUS(BAD_PARAM), STATUS(NOT_SUPPORTED), STATUS(INTERNAL_ERROR), STATUS(EXECUTION_FAILED),
        CHOICE(cudnnConvolutionFwdAlgoPerf_t),
        CHOICE(cudnnConvolutionBwdDataAlgoPerf_t),
        CHOICE(cudnnConvolutionBwdFilterAlgoPerf_t),
        SAME_SIZE(dnn_status, cudnnStatus_t),
        SAME(DNN_OK, CUDNN_STATUS_SUCCESS),
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
    return compare(number, "cudnn.h", CUDNN_VERSION, facts, sizeof facts / sizeof facts[0]);
#undef STATUS
}
#else
static int compare_cudnn(int number)
{
    return compare(number, "cudnn.h", 0, NULL, 0);
}
#endif

TEST_MAIN
{
    printf("1..3\n");
    return compare_cuda(1) + compare_cublaslt(2) + compare_cudnn(3) != 0;
}
