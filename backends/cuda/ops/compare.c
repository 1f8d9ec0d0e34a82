/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/compare.c: comparisons, logical operations, isnan, isinf, isfinite, and where. */
#include "elementwise.h"

/* isnan, isinf and isfinite of integers: fills the output with the constant result, which is the kernel's code. */
static ctrt_status constant_run(const ctrt_call *call)
{
    struct elementwise_args args;
    ctrt_call fill = *call;
    fill.n_inputs = 0;
    cuda_elementwise_clear(&args);
    args.lo.bytes[0] = (uint8_t)cuda_kernel_of(call)->code;
    return cuda_elementwise(&fill, &args, CTRT_U8, 0, NULL);
}

static ctrt_status where_run(const ctrt_call *call)
{
    struct elementwise_args args;
    cuda_elementwise_clear(&args);
    return cuda_elementwise(call, &args, cuda_bits_of((ctrt_dtype)call->outputs[0]->dtype), 0, NULL);
}

/* The result has elements of one byte, so it can only alias an operand whose elements also have one byte. */
#define SWAPPED(name, kernel)                                                                                          \
    ELEMENTWISE_KERNEL_OF(name, CUDA_ALL, compare, cuda_elementwise_run, ELEMENTWISE_BYTE | ELEMENTWISE_SWAPPED, kernel)
#define CONSTANT(name, result)                                                                                         \
    ELEMENTWISE_KERNEL_OF(name, CUDA_INTEGRAL | CUDA_BOOL, copy, constant_run, result, "fill")

static struct cuda_kernel kernels[] = {
#define OP(...) ELEMENTWISE_ROW(compare, __VA_ARGS__)
#include "kernels/compare.def"
    SWAPPED(gt, "lt"),
    SWAPPED(ge, "le"),
    CONSTANT(isnan, 0),
    CONSTANT(isinf, 0),
    CONSTANT(isfinite, 1),
    ELEMENTWISE_KERNEL_OF(where, CUDA_ALL, compare, where_run, ELEMENTWISE_EXACT, NULL),
};

CUDA_KERNELS(compare, kernels);
