/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/compare.c: comparisons, logical operations, isnan, isinf, isfinite, and where. */
#include "elementwise.h"


/* isnan, isinf and isfinite of integers: fills the output with the constant result, which is the kernel's code. */
static ctrt_status same_answer_run(const ctrt_call *call)
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

/* The result has elements of one byte, so it can only alias an operand whose elements have one byte, too. */
#define ASK(name, types, code, kernel) ELEMENTWISE_KERNEL_OF(name, types, compare, cuda_elementwise_run, code, kernel)
#define ASK_ALIKE(name)                                                                                             \
    ASK(name, CUDA_FLOATING, ELEMENTWISE_EXACT, NULL), ASK(name, CUDA_INTEGRAL | CUDA_BOOL, ELEMENTWISE_BITS, NULL)
#define ASK_ORDER(name, kernel, swapped) ASK(name, CUDA_ALL, ELEMENTWISE_BYTE | (swapped), kernel)
#define ANSWER(name, answer)                                                                                        \
    ELEMENTWISE_KERNEL_OF(name, CUDA_INTEGRAL | CUDA_BOOL, copy, same_answer_run, answer, "fill")

static struct cuda_kernel kernels[] = {
    ASK_ALIKE(eq),
    ASK_ALIKE(ne),
    ASK_ORDER(lt, "lt", 0),
    ASK_ORDER(le, "le", 0),
    ASK_ORDER(gt, "lt", ELEMENTWISE_SWAPPED),
    ASK_ORDER(ge, "le", ELEMENTWISE_SWAPPED),
    ASK_ALIKE(logical_and),
    ASK_ALIKE(logical_or),
    ASK_ALIKE(logical_xor),
    ASK_ALIKE(logical_not),
    ASK(isnan, CUDA_FLOATING, ELEMENTWISE_EXACT, NULL),
    ANSWER(isnan, 0),
    ASK(isinf, CUDA_FLOATING, ELEMENTWISE_EXACT, NULL),
    ANSWER(isinf, 0),
    ASK(isfinite, CUDA_FLOATING, ELEMENTWISE_EXACT, NULL),
    ANSWER(isfinite, 1),
    ELEMENTWISE_KERNEL_OF(where, CUDA_ALL, compare, where_run, ELEMENTWISE_EXACT, NULL),
};

CUDA_KERNELS(compare, kernels);
