/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/options.c: the CTRT_CUDA_* parameters of products, convolutions, attention and memory. */
#include "options.h"

#define PRODUCT_WORKSPACE ((size_t)64 << 20)

struct cuda_options cuda_options = { .workspace = PRODUCT_WORKSPACE };

enum { GEMM, CONV, ATTENTION, SCATTER, TF32, WORKSPACE, BENCHMARK, DETERMINISTIC, TUNING, LIBRARIES, SHARE, POOL };

static const ctrt_param params[] = {
    [GEMM] = { sizeof(ctrt_param), "CTRT_CUDA_GEMM", CTRT_PARAM_ENUM, "auto", "auto|cublaslt|builtin",
               "library for matrix products on CUDA devices; built-in kernels compute what it does not support" },
    [CONV] = { sizeof(ctrt_param), "CTRT_CUDA_CONV", CTRT_PARAM_ENUM, "auto", "auto|cudnn|builtin|cublaslt",
               "library for convolutions on CUDA devices; built-in kernels compute what it does not support" },
    [ATTENTION] = { sizeof(ctrt_param), "CTRT_CUDA_ATTENTION", CTRT_PARAM_ENUM, "auto", "auto|builtin|composite",
                    "attention on CUDA devices: fused kernels that store no scores, or matrix products and softmax" },
    [SCATTER] = { sizeof(ctrt_param), "CTRT_CUDA_SCATTER", CTRT_PARAM_ENUM, "auto", "auto|tiles|sort",
                  "algorithm of index_add and scatter_add on CUDA devices: each tile of the result reads all indices, "
                  "or indices are sorted" },
    [TF32] = { sizeof(ctrt_param), "CTRT_CUDA_TF32", CTRT_PARAM_ENUM, "no", "no|yes|matmul|conv",
               "let tensor cores round f32 operands to tf32, which has 10 bits of fraction" },
    [WORKSPACE] = { sizeof(ctrt_param), "CTRT_CUDA_WORKSPACE", CTRT_PARAM_BYTES, NULL, NULL,
                    "maximum workspace of an algorithm; unset: 64m for a product, 1g or an eighth of the device for a "
                    "convolution" },
    [BENCHMARK] = { sizeof(ctrt_param), "CTRT_CUDA_BENCHMARK", CTRT_PARAM_BOOL, "no", NULL,
                    "time the algorithms for each new shape of products and convolutions, and use the fastest" },
    [DETERMINISTIC] = { sizeof(ctrt_param), "CTRT_CUDA_DETERMINISTIC", CTRT_PARAM_ENUM, "auto", "auto|yes|no",
                        "auto: algorithms with reproducible results; yes: also none chosen by timing; no: any" },
    [TUNING] = { sizeof(ctrt_param), "CTRT_CUDA_TUNING", CTRT_PARAM_STRING, NULL, NULL,
                 "file for the results of CTRT_CUDA_BENCHMARK" },
    [LIBRARIES] = { sizeof(ctrt_param), "CTRT_CUDA_LIBRARIES", CTRT_PARAM_STRING, NULL, NULL,
                    "folders, separated by ':', where cuBLASLt, cuDNN and NCCL are searched first, unless the process "
                    "has loaded them already: their own folders, or site-packages/nvidia of a pip installation" },
    [SHARE] = { sizeof(ctrt_param), "CTRT_CUDA_SHARE", CTRT_PARAM_BOOL, "no", NULL,
                "yes: memory of CUDA devices is allocated so that it can be shared with other processes" },
    [POOL] = { sizeof(ctrt_param), "CTRT_CUDA_POOL", CTRT_PARAM_BOOL, "no", NULL,
               "yes: memory of CUDA devices comes from the driver's stream-ordered pool; intended for "
               "CTRT_MEMORY=direct" },
};

ctrt_status cuda_options_init(void)
{
    ctrt_param_value value[COUNT_OF(params)];
    for (size_t i = 0; i < COUNT_OF(params); i++)
        CTRT_TRY(cuda_host->param(&value[i], &params[i]));
    cuda_options = (struct cuda_options){
        .products = (enum cuda_path)value[GEMM].integer,
        .convolutions = (enum cuda_path)value[CONV].integer,
        .attention = (enum cuda_attention)value[ATTENTION].integer,
        .scatter = (enum cuda_scatter)value[SCATTER].integer,
        .tf32_products = value[TF32].integer == 1 || value[TF32].integer == 2,
        .tf32_convolutions = value[TF32].integer == 1 || value[TF32].integer == 3,
        .workspace = !value[WORKSPACE].is_set       ? PRODUCT_WORKSPACE
                     : value[WORKSPACE].integer > 0 ? (size_t)value[WORKSPACE].integer
                                                    : 0,
        .workspace_set = value[WORKSPACE].is_set,
        .benchmark = value[BENCHMARK].integer != 0,
        .determinism = (enum cuda_determinism)value[DETERMINISTIC].integer,
        .tuning = value[TUNING].text != NULL && value[TUNING].text[0] != '\0' ? value[TUNING].text : NULL,
        .libraries = value[LIBRARIES].text != NULL && value[LIBRARIES].text[0] != '\0' ? value[LIBRARIES].text : NULL,
        .share = value[SHARE].integer != 0,
        .pool = value[POOL].integer != 0,
    };
    return CTRT_OK;
}
