/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-softcuda-facts.c: compares the constants and layouts that the backend declares with NVIDIA's
 * headers, where they are installed. Those of softcuda need no comparison, because the backend runs on it. */
#include "../../plugins/comm/nccl/api.h"
#include "tap.h"

struct fact {
    const char *name;
    long long ours, theirs;
};

#define SAME(a, b)                 { #a " and " #b, (long long)(a), (long long)(b) }
#define SAME_SIZE(a, b)            { "the sizes of " #a " and " #b, sizeof(a), sizeof(b) }
#define SAME_PLACE(a, m, b, theirs) \
    { "the places of " #a "." #m " and " #b "." #theirs, offsetof(a, m), offsetof(b, theirs) }

/* A header of NVIDIA. Without it, its version is 0. */
struct header { const char *name; long long version; const struct fact *facts; size_t count; };

static void compare(const struct header *header)
{
    group("numbers and layouts of %s, version %lld", header->name, header->version);
    if (header->version == 0)
        skip_group("it is not installed");
    for (const struct fact *f = header->facts; f < header->facts + header->count; f++)
        CHECK(f->ours == f->theirs, "%s differ: %lld and %lld", f->name, f->ours, f->theirs);
}

#define INSTALLED(name, version, facts) { name, version, facts, sizeof(facts) / sizeof(facts)[0] }

#if __has_include(<cuda.h>)
#include <cuda.h>

/* cuda.h and the backend's declarations cannot be included in one file, so the same list of pairs is compiled in two
 * files. */
extern const long long softcuda_facts[];
static struct fact cuda_facts[] = {
#define FACT(backends, headers) { #backends " and " #headers, 0, (long long)(headers) },
#include "facts.def"
#undef FACT
};
#define CUDA INSTALLED("cuda.h", CUDA_VERSION, cuda_facts)
#else
static struct fact cuda_facts[1];
static const long long softcuda_facts[1];
#define CUDA { "cuda.h", 0, cuda_facts, 0 }
#endif

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include "../../backends/cuda/libs/cublaslt_api.h"

#define STATUS(name)      SAME(LT_##name, CUBLAS_STATUS_##name)
#define LT(ours, theirs)  SAME(LT_##ours, CUBLASLT_##theirs)
#define CHOICE(ours, theirs) SAME_PLACE(lt_choice, ours, cublasLtMatmulHeuristicResult_t, theirs)
static const struct fact cublaslt_facts[] = {
    STATUS(NOT_INITIALIZED), STATUS(ALLOC_FAILED), STATUS(INVALID_VALUE), STATUS(ARCH_MISMATCH),
    STATUS(EXECUTION_FAILED), STATUS(INTERNAL_ERROR), STATUS(NOT_SUPPORTED),
    SAME_SIZE(lt_algorithm, cublasLtMatmulAlgo_t), SAME_SIZE(lt_choice, cublasLtMatmulHeuristicResult_t),
    CHOICE(algorithm, algo), CHOICE(workspace, workspaceSize), CHOICE(state, state), CHOICE(waves, wavesCount),
    SAME_SIZE(lt_status, cublasStatus_t), SAME(LT_OK, CUBLAS_STATUS_SUCCESS), SAME(LT_F32, CUDA_R_32F),
    SAME(LT_F64, CUDA_R_64F), SAME(LT_F16, CUDA_R_16F), SAME(LT_BF16, CUDA_R_16BF),
    SAME(LT_COMPUTE_F32, CUBLAS_COMPUTE_32F), SAME(LT_COMPUTE_F64, CUBLAS_COMPUTE_64F),
    SAME(LT_COMPUTE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32), SAME(LT_AS_IT_IS, CUBLAS_OP_N),
    SAME(LT_TRANSPOSED, CUBLAS_OP_T), SAME_SIZE(int, cublasOperation_t), LT(EPILOGUE_NONE, EPILOGUE_DEFAULT),
    LT(EPILOGUE_BIAS, EPILOGUE_BIAS), SAME_SIZE(int, cublasLtEpilogue_t), LT(PRODUCT_TRANSPOSE_A, MATMUL_DESC_TRANSA),
    LT(PRODUCT_TRANSPOSE_B, MATMUL_DESC_TRANSB), LT(PRODUCT_EPILOGUE, MATMUL_DESC_EPILOGUE),
    LT(PRODUCT_BIAS, MATMUL_DESC_BIAS_POINTER), LT(LAYOUT_BATCH, MATRIX_LAYOUT_BATCH_COUNT),
    LT(LAYOUT_BATCH_STRIDE, MATRIX_LAYOUT_STRIDED_BATCH_OFFSET), LT(PREFER_WORKSPACE, MATMUL_PREF_MAX_WORKSPACE_BYTES),
    LT(PREFER_REDUCTIONS, MATMUL_PREF_REDUCTION_SCHEME_MASK), LT(PREFER_ALIGN_A, MATMUL_PREF_MIN_ALIGNMENT_A_BYTES),
    LT(PREFER_ALIGN_B, MATMUL_PREF_MIN_ALIGNMENT_B_BYTES), LT(PREFER_ALIGN_C, MATMUL_PREF_MIN_ALIGNMENT_C_BYTES),
    LT(PREFER_ALIGN_D, MATMUL_PREF_MIN_ALIGNMENT_D_BYTES), LT(REDUCTION_COMPUTE_TYPE, REDUCTION_SCHEME_COMPUTE_TYPE),
};
#undef STATUS
#undef CHOICE
#define CUBLASLT INSTALLED("cublasLt.h", CUBLAS_VERSION, cublaslt_facts)
#else
#define CUBLASLT { "cublasLt.h", 0, NULL, 0 }
#endif

#if __has_include(<cudnn.h>)
#include <cudnn.h>

#include "../../backends/cuda/libs/cudnn_api.h"

#define CHOICE(theirs)                                                                             \
    SAME_SIZE(dnn_choice, theirs), SAME_PLACE(dnn_choice, algorithm, theirs, algo),                \
    SAME_PLACE(dnn_choice, status, theirs, status),                                                \
    SAME_PLACE(dnn_choice, time, theirs, time), SAME_PLACE(dnn_choice, workspace, theirs, memory), \
    SAME_PLACE(dnn_choice, deterministic, theirs, determinism), SAME_PLACE(dnn_choice, math, theirs, mathType)

#define STATUS(name)      SAME(DNN_##name, CUDNN_STATUS_##name)
#define DNN(ours, theirs) SAME(DNN_##ours, CUDNN_##theirs)
static const struct fact cudnn_facts[] = {
    STATUS(BAD_PARAM), STATUS(NOT_SUPPORTED), STATUS(INTERNAL_ERROR), STATUS(EXECUTION_FAILED),
    CHOICE(cudnnConvolutionFwdAlgoPerf_t), CHOICE(cudnnConvolutionBwdDataAlgoPerf_t),
    CHOICE(cudnnConvolutionBwdFilterAlgoPerf_t), SAME_SIZE(dnn_status, cudnnStatus_t), DNN(OK, STATUS_SUCCESS),
    DNN(NO_HOST_MEMORY, STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED),
    DNN(NO_DEVICE_MEMORY, STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED), DNN(F32, DATA_FLOAT), DNN(F64, DATA_DOUBLE),
    DNN(F16, DATA_HALF), DNN(BF16, DATA_BFLOAT16), DNN(NCHW, TENSOR_NCHW), DNN(NHWC, TENSOR_NHWC),
    DNN(CROSS_CORRELATION, CROSS_CORRELATION), DNN(MATH_DEFAULT, DEFAULT_MATH), DNN(MATH_TENSOR, TENSOR_OP_MATH),
    DNN(MATH_PLAIN, FMA_MATH), DNN(FORWARD_PRECOMPUTED, CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM),
    DNN(IDENTITY, ACTIVATION_IDENTITY),
};
#define CUDNN INSTALLED("cudnn.h", CUDNN_VERSION, cudnn_facts)
#else
#define CUDNN { "cudnn.h", 0, NULL, 0 }
#endif

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>

#define NC(ours, theirs) SAME(NCCL_##ours, nccl##theirs)
#define CONFIG(ours, theirs) SAME_PLACE(nccl_config, ours, ncclConfig_t, theirs)
static const struct fact nccl_facts[] = {
    NC(OK, Success), NC(CUDA_ERROR, UnhandledCudaError), NC(SYSTEM_ERROR, SystemError),
    NC(INTERNAL_ERROR, InternalError), NC(INVALID_ARGUMENT, InvalidArgument), NC(INVALID_USAGE, InvalidUsage),
    NC(REMOTE_ERROR, RemoteError), NC(IN_PROGRESS, InProgress), NC(I8, Int8), NC(U8, Uint8), NC(I32, Int32),
    NC(I64, Int64), NC(F16, Float16), NC(F32, Float32), NC(F64, Float64), NC(BF16, Bfloat16), NC(SUM, Sum),
    NC(PRODUCT, Prod), NC(MAX, Max), NC(MIN, Min), NC(AVERAGE, Avg), SAME_SIZE(nccl_result, ncclResult_t),
    SAME_SIZE(int, ncclDataType_t), SAME_SIZE(int, ncclRedOp_t), SAME_SIZE(nccl_id, ncclUniqueId),
    SAME(NCCL_UNSET, NCCL_CONFIG_UNDEF_INT), CONFIG(size, size), CONFIG(magic, magic), CONFIG(version, version),
    CONFIG(blocking, blocking), CONFIG(cga_cluster_size, cgaClusterSize), CONFIG(min_ctas, minCTAs),
    CONFIG(max_ctas, maxCTAs), CONFIG(net_name, netName), CONFIG(split_share, splitShare),
    SAME(NCCL_NO_COLOR, NCCL_SPLIT_NOCOLOR),
#if NCCL_VERSION_CODE >= 22703
    SAME(NCCL_SHRINK_PLAIN, NCCL_SHRINK_DEFAULT),
#endif
#if NCCL_VERSION_CODE >= 22807
    SAME(NCCL_REVOKE_PLAIN, NCCL_REVOKE_DEFAULT),
#endif
};

/* Both declarations of a function accept the same arguments; not evaluated. */
#define ACCEPTS(theirs, ours, ...) \
    (void)sizeof(nccl##theirs(__VA_ARGS__)), (void)sizeof(((struct nccl_library *)0)->ours(__VA_ARGS__))
__attribute__((unused))
static void nccl_prototypes(void *data, size_t count, int number, nccl_handle comm, void *stream, nccl_result *result,
                            int *numbers)
{
    ACCEPTS(GetVersion, version, numbers);
    ACCEPTS(GetErrorString, error_string, number);
    ACCEPTS(GetLastError, last_error, comm);
    ACCEPTS(CommFinalize, finalize, comm);
    ACCEPTS(CommDestroy, destroy, comm);
    ACCEPTS(CommAbort, abort, comm);
    ACCEPTS(GroupStart, group_start, );
    ACCEPTS(GroupEnd, group_end, );
    ACCEPTS(Broadcast, broadcast, data, data, count, number, number, comm, stream);
    ACCEPTS(AllReduce, all_reduce, data, data, count, number, number, comm, stream);
    ACCEPTS(Reduce, reduce, data, data, count, number, number, number, comm, stream);
    ACCEPTS(AllGather, all_gather, data, data, count, number, comm, stream);
    ACCEPTS(ReduceScatter, reduce_scatter, data, data, count, number, number, comm, stream);
    ACCEPTS(Send, send, data, count, number, number, comm, stream);
    ACCEPTS(Recv, receive, data, count, number, number, comm, stream);
#if NCCL_VERSION_CODE >= 21901
    ACCEPTS(MemAlloc, mem_alloc, (void **)data, count);
    ACCEPTS(MemFree, mem_free, data);
    ACCEPTS(CommRegister, register_buffer, comm, data, count, (void **)data);
    ACCEPTS(CommDeregister, deregister_buffer, comm, data);
#endif
#if NCCL_VERSION_CODE >= 22803
    ACCEPTS(AlltoAll, all_to_all, data, data, count, number, comm, stream);
#endif
#if NCCL_VERSION_CODE >= 22807
    ACCEPTS(CommRevoke, revoke, comm, number);
#endif
    /* The types of these differ by name. */
#if NCCL_VERSION_CODE >= 22703
    (void)sizeof(ncclCommShrink(comm, numbers, number, &comm, (ncclConfig_t *)data, number));
#endif
    (void)sizeof(ncclCommSplit(comm, number, number, &comm, (ncclConfig_t *)data));
    (void)sizeof(ncclCommGetAsyncError(comm, (ncclResult_t *)result));
    (void)sizeof(ncclGetUniqueId((ncclUniqueId *)data));
    (void)sizeof(ncclCommInitRankConfig(&comm, number, *(ncclUniqueId *)data, number, (ncclConfig_t *)data));
}
#define NCCL_HEADER INSTALLED("nccl.h", NCCL_VERSION_CODE, nccl_facts)
#else
#define NCCL_HEADER { "nccl.h", 0, NULL, 0 }
#endif

TEST_MAIN
{
    static const struct header headers[] = { CUDA, CUBLASLT, CUDNN, NCCL_HEADER };
    for (size_t i = 0; i < headers[0].count; i++)
        cuda_facts[i].ours = softcuda_facts[i];
    EACH(h, headers)
        compare(h);
    return done();
}
