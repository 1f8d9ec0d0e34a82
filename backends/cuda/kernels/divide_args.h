/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/divide_args.h: exponents with a kernel of their own, for elementwise_args.flag. C and CUDA
 * C++. */
#ifndef CUDA_DIVIDE_ARGS_H
#define CUDA_DIVIDE_ARGS_H

enum {
    POWER_SQUARE, POWER_CUBE, POWER_ROOT, POWER_SAME, POWER_INVERSE, POWER_INVERSE_SQUARE, POWER_INVERSE_ROOT, POWERS
};

#endif
