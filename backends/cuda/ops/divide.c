/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/divide.c: fmod, remainder, floor_divide, pow. */
#include <string.h>

#include "kernels/divide_args.h"
#include "elementwise.h"

/* For integers: the kernel reports a divisor of 0 as an error of the queue. */
static ctrt_status integer_run(const ctrt_call *call)
{
    struct elementwise_args args;
    cuda_elementwise_clear(&args);
    args.error = (struct kernel_error *)(uintptr_t)cuda_error_place(call, &args.sequence);
    return cuda_elementwise(call, &args, (ctrt_dtype)call->inputs[0]->dtype, 0, NULL);
}

/* Returns the special case of a host scalar as exponent for which the kernel has a faster formula; -1: none. */
static int short_power(const ctrt_view *exponent)
{
    static const double exponents[POWERS] = {
        [POWER_SQUARE] = 2,   [POWER_CUBE] = 3,            [POWER_ROOT] = 0.5,          [POWER_SAME] = 1,
        [POWER_INVERSE] = -1, [POWER_INVERSE_SQUARE] = -2, [POWER_INVERSE_ROOT] = -0.5,
    };
    union elementwise_number same, value = { 0 };
    if (!(exponent->flags & CTRT_VIEW_HOST_SCALAR))
        return -1;
    memcpy(&value, exponent->data, cuda_dtype_bytes[exponent->dtype]);
    for (int which = 0; which < POWERS; which++) {
        cuda_number(&same, (ctrt_scalar){ .kind = CTRT_SCALAR_FLOAT, .f = exponents[which] },
                    (ctrt_dtype)exponent->dtype);
        if (memcmp(&same, &value, sizeof same) == 0)
            return which;
    }
    return -1;
}

static ctrt_status pow_run(const ctrt_call *call)
{
    const int which = short_power(call->inputs[1]);
    struct elementwise_args args;
    ctrt_call one = *call;
    cuda_elementwise_clear(&args);
    if (which < 0)
        return cuda_elementwise(call, &args, (ctrt_dtype)call->inputs[0]->dtype, 0, NULL);
    one.n_inputs = 1;
    args.flag = which;
    return cuda_elementwise(&one, &args, (ctrt_dtype)call->inputs[0]->dtype, 2, "short");
}

static struct cuda_kernel kernels[] = {
#define OP(name, types, function, ...) ELEMENTWISE_KERNEL_OF(name, types, divide, function, ELEMENTWISE_EXACT, NULL),
#include "kernels/divide.def"
};

CUDA_KERNELS(divide, kernels);
