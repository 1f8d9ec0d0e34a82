/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda-fp16/fp16.h: what the files of this overlay share. */
#ifndef CUDA_FP16_H
#define CUDA_FP16_H

#include "ctrt/plugin.h"

extern const ctrt_host *fp16_host;
extern const ctrt_kernel_table fp16_kernel_table;

#endif
