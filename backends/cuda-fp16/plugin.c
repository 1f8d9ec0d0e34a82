/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda-fp16/plugin.c: the GPUs of the cuda backend under the name cuda-fp16:0. f32 matrix products and
 * convolutions run on tensor cores in f16 (or bf16: CTRT_CUDA_FP16) with f32 sums, and new tensors are f16 unless the
 * program specifies a dtype.
 *
 * A program written for cuda runs there if it only changes the device name. All other ops are cuda's own. As in all
 * cuda kernels, f16 operands are computed in f32 where this is needed for precision (exponentials, logarithms, sums,
 * norms, softmax, losses). */
#include "fp16.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

const ctrt_host *fp16_host;

static const ctrt_backend backend = {
    .size = sizeof(ctrt_backend),
    .kernels = &fp16_kernel_table,
    .base = "cuda",
    .float_default = CTRT_F16,
    .matrix_dtype = CTRT_F16,
};

static int32_t probe(char *reason, size_t reason_bytes)
{
    if (reason_bytes > 0)
        reason[0] = '\0';
    return 1;
}

/* Because the score is negative, "auto" never selects a device with reduced precision. */
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .score = -1, .name = "cuda-fp16",
      .table = &backend, .probe = probe },
};

static ctrt_status init(const ctrt_host *host)
{
    fp16_host = host;
    return CTRT_OK;
}

static const ctrt_plugin plugin = {
    .size = sizeof(ctrt_plugin),
    .abi_major = CTRT_PLUGIN_ABI_MAJOR,
    .abi_minor = CTRT_PLUGIN_ABI_MINOR,
    .name = "backend-cuda-fp16",
    .version = PACKAGE_VERSION,
    .description = "NVIDIA GPUs, f32 matrices in f16",
    .components = components,
    .component_count = sizeof components / sizeof components[0],
    .component_stride = sizeof components[0],
    .init = init,
};

const ctrt_plugin *ctrt_plugin_v1(uint32_t host_abi_major, uint32_t host_abi_minor)
{
    (void)host_abi_major, (void)host_abi_minor;
    return &plugin;
}
