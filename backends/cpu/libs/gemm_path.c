/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/libs/gemm_path.c: the parameter CTRT_CPU_GEMM: which library computes matrix products and
 * convolutions. */
#include "host/internal.h"
#include "kernels/product.h"

static enum cpu_gemm_path path;

enum cpu_gemm_path cpu_gemm_path(void)
{
    return path;
}

ctrt_status cpu_gemm_init(void)
{
    static const ctrt_param param = {
        .size = sizeof(ctrt_param), .name = "CTRT_CPU_GEMM", .type = CTRT_PARAM_ENUM, .fallback = "auto",
        .words = "auto|onednn|blas|builtin",
        .help = "library for matrix products and convolutions on the CPU; built-in kernels compute what it does not "
                "support",
    };
    ctrt_param_value value;
    ctrt_status status = cpu_host->param(&value, &param);
    if (!status)
        path = (enum cpu_gemm_path)value.integer;
    return status;
}
