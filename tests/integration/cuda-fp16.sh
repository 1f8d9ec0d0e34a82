#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The overlay backend cuda-fp16 with the software driver: conformance in f32, the dtype of its own kernels, and captured
# steps. It multiplies matrices in f16, so the suite's tolerances are larger.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/cuda_lib.sh"
conforms cuda-fp16:0 --tags f32
passes "captured steps on cuda-fp16:1" "$builddir/test-capture" cuda-fp16:1
CTRT_CUDA_FP16=bf16
export CTRT_CUDA_FP16
passes "captured steps on cuda-fp16:0, in bf16" "$builddir/test-capture" cuda-fp16:0
# The suite's tolerances are those of bf16, as the device's properties say.
for op in matmul linear attention conv2d; do
    conforms cuda-fp16:0 --tags f32 --op $op
done
finish
