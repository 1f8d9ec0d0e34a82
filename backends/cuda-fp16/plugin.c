/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda-fp16/plugin.c: the GPUs of the cuda backend under the name cuda-fp16:0. f32 matrix products and
 * convolutions run on tensor cores in f16 (or bf16: CTRT_CUDA_FP16) with f32 sums, and new tensors are f16 unless the
 * program specifies a dtype.
 *
 * A program written for cuda runs there if it only changes the device name. All other ops are cuda's own. As in all
 * cuda kernels, f16 operands are computed in f32 where this is needed for precision (exponentials, logarithms, sums,
 * norms, softmax, losses). */
#include "fp16.h"

#include "config.h"

const ctrt_host *fp16_host;
ctrt_dtype fp16_matrix_dtype;

static const ctrt_param type_param = {
    sizeof type_param, "CTRT_CUDA_FP16", CTRT_PARAM_ENUM, "f16", "f16|bf16",
    "the type in which cuda-fp16 devices multiply matrices of f32",
};

static ctrt_backend backend = {             /* init sets matrix_dtype */
    .size = sizeof(ctrt_backend),
    .kernels = &fp16_kernel_table,
    .base = "cuda",
    .float_default = CTRT_F16,
};

/* Because the score is negative, "auto" never selects a device with reduced precision. */
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .score = -1, .name = "cuda-fp16",
      .table = &backend },
};

static ctrt_status init(const ctrt_host *host)
{
    ctrt_param_value type;
    fp16_host = host;
    const ctrt_status status = host->param(&type, &type_param);
    if (status != CTRT_OK)
        return status;
    fp16_matrix_dtype = type.integer == 1 ? CTRT_BF16 : CTRT_F16;
    backend.matrix_dtype = fp16_matrix_dtype;
    return CTRT_OK;
}

CTRT_PLUGIN_DEFINE("backend-cuda-fp16", PACKAGE_VERSION, "NVIDIA GPUs, f32 matrices in f16", components, init)
