/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda-fp16/fp16.h: internal declarations of the cuda-fp16 backend. */
#ifndef CUDA_FP16_H
#define CUDA_FP16_H

#include "ctrt/plugin.h"

extern const ctrt_host *fp16_host;
extern ctrt_dtype fp16_matrix_dtype;        /* the dtype to which operands are rounded; set by init */
extern const ctrt_kernel_table fp16_kernel_table;

#endif
