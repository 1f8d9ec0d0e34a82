/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/options.c: the parameters of products, convolutions, attention and memory. */
#include "options.h"

struct cuda_options cuda_options = { .workspace = 64u << 20 };

enum { GEMM, CONV, ATTENTION, TF32, WORKSPACE, BENCHMARK, DETERMINISTIC, TUNING, SHARE, POOL };

static const ctrt_param params[] = {
    [GEMM] = { sizeof(ctrt_param), "CTRT_CUDA_GEMM", CTRT_PARAM_ENUM, "auto", "auto|cublaslt|builtin",
               "who computes cuda's matrix products; what that one cannot do is built in" },
    [CONV] = { sizeof(ctrt_param), "CTRT_CUDA_CONV", CTRT_PARAM_ENUM, "auto", "auto|cudnn|builtin|cublaslt",
               "who computes cuda's convolutions; what that one cannot do is built in" },
    [ATTENTION] = { sizeof(ctrt_param), "CTRT_CUDA_ATTENTION", CTRT_PARAM_ENUM, "auto", "auto|builtin|composite",
                    "cuda's attention: by kernels that write no scores, or composed of products and softmax" },
    [TF32] = { sizeof(ctrt_param), "CTRT_CUDA_TF32", CTRT_PARAM_ENUM, "no", "no|yes|matmul|conv",
               "let tensor cores round f32 operands to tf32, which has 10 bits of fraction" },
    [WORKSPACE] = { sizeof(ctrt_param), "CTRT_CUDA_WORKSPACE", CTRT_PARAM_BYTES, "64m", NULL,
                    "most memory that an algorithm of a product or convolution may ask for" },
    [BENCHMARK] = { sizeof(ctrt_param), "CTRT_CUDA_BENCHMARK", CTRT_PARAM_BOOL, "no", NULL,
                    "time the algorithms of each new shape of products and convolutions, and keep the quickest" },
    [DETERMINISTIC] = { sizeof(ctrt_param), "CTRT_CUDA_DETERMINISTIC", CTRT_PARAM_ENUM, "auto", "auto|yes|no",
                        "auto: algorithms that always give the same; yes: and none chosen by timing; no: any" },
    [TUNING] = { sizeof(ctrt_param), "CTRT_CUDA_TUNING", CTRT_PARAM_STRING, NULL, NULL, "file that keeps what CTRT_CUDA_BENCHMARK found" },
    [SHARE] = { sizeof(ctrt_param), "CTRT_CUDA_SHARE", CTRT_PARAM_BOOL, "no", NULL,
                "yes: memory of CUDA devices is allocated so that it can be shared with other processes" },
    [POOL] = { sizeof(ctrt_param), "CTRT_CUDA_POOL", CTRT_PARAM_BOOL, "no", NULL,
               "yes: memory of CUDA devices comes from a pool of the driver's, in the order of streams; meant with CTRT_MEMORY=direct" },
};

ctrt_status cuda_options_init(void)
{
    ctrt_param_value value[COUNT_OF(params)];
    for (size_t i = 0; i < COUNT_OF(params); i++) {
        ctrt_status status = cuda_host->param(&value[i], &params[i]);
        if (status != CTRT_OK)
            return status;
    }
    cuda_options = (struct cuda_options){
        .products = (enum cuda_path)value[GEMM].integer,
        .convolutions = (enum cuda_path)value[CONV].integer,
        .attention = (enum cuda_attention)value[ATTENTION].integer,
        .tf32_products = value[TF32].integer == 1 || value[TF32].integer == 2,
        .tf32_convolutions = value[TF32].integer == 1 || value[TF32].integer == 3,
        .workspace = value[WORKSPACE].integer > 0 ? (size_t)value[WORKSPACE].integer : 0,
        .benchmark = value[BENCHMARK].integer != 0,
        .determinism = (enum cuda_determinism)value[DETERMINISTIC].integer,
        .tuning = value[TUNING].text != NULL && value[TUNING].text[0] != '\0' ? value[TUNING].text : NULL,
        .share = value[SHARE].integer != 0,
        .pool = value[POOL].integer != 0,
    };
    return CTRT_OK;
}
