/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/random.c: uniform, normal, randint, bernoulli, dropout. */
#include "kernels/random_args.h"

#include <math.h>

#include "elementwise.h"

/* Converts p to a bound of a word's upper 24 bits: (word >> 8) 2^-24 < p if and only if (word >> 8) < bound. */
static uint32_t threshold_of(double p)
{
    return p <= 0 ? 0 : p >= 1 ? 1u << 24 : (uint32_t)ceil(p * 0x1p24);
}

static struct random_args arguments_of(const ctrt_call *call)
{
    const ctrt_random_attributes *attributes = call->attributes;
    const ctrt_view *out = call->outputs[0];
    return (struct random_args){
        .out = out->data, .n = out->numel, .seed = attributes->seed, .offset = attributes->offset,
        .place = attributes->place, .a = attributes->a, .b = attributes->b,
        .vectors = (uintptr_t)out->data % 16 == 0,
    };
}

/* About one thread per 16 bytes of output. */
static ctrt_status random_launch(const ctrt_call *call, ctrt_dtype key, const struct random_args *args)
{
    const int64_t threads = (args->n * cuda_dtype_bytes[key] + 15) / 16;
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, threads, RANDOM_THREADS) },
                                      .block = RANDOM_THREADS };
    return args->n == 0 ? CTRT_OK : cuda_launch(call, key, 0, NULL, shape, args);
}

static ctrt_status uniform_run(const ctrt_call *call)
{
    struct random_args args = arguments_of(call);
    const bool wide = call->outputs[0]->dtype == CTRT_F64;
    args.standard = wide ? args.a == 0 && args.b == 1 : (float)args.a == 0 && (float)args.b == 1;
    return random_launch(call, (ctrt_dtype)call->outputs[0]->dtype, &args);
}

static ctrt_status normal_run(const ctrt_call *call)
{
    struct random_args args = arguments_of(call);
    args.standard = args.a == 0 && args.b == 1;
    return random_launch(call, (ctrt_dtype)call->outputs[0]->dtype, &args);
}

static ctrt_status randint_run(const ctrt_call *call)
{
    const ctrt_random_attributes *attributes = call->attributes;
    const ctrt_dtype dtype = (ctrt_dtype)call->outputs[0]->dtype;
    struct random_args args = arguments_of(call);
    if (attributes->lo >= attributes->hi)
        return cuda_host->fail(CTRT_ERR_INVALID_ARGUMENT, "randint: the range [%lld, %lld) is empty",
                               (long long)attributes->lo, (long long)attributes->hi);
    args.lo = (uint64_t)attributes->lo;
    args.range = (uint64_t)attributes->hi - (uint64_t)attributes->lo;
    args.inverse = UINT64_MAX / args.range;
    return random_launch(call, CTRT_DTYPE_BIT(dtype) & CUDA_INTEGRAL ? cuda_bits_of(dtype) : dtype, &args);
}

static ctrt_status bernoulli_run(const ctrt_call *call)
{
    const ctrt_dtype dtype = (ctrt_dtype)call->outputs[0]->dtype;
    struct random_args args = arguments_of(call);
    union elementwise_number one;
    cuda_number(&one, (ctrt_scalar){ .kind = CTRT_SCALAR_INT, .i = 1 }, dtype);
    args.lo = (uint64_t)one.i64;
    args.threshold = threshold_of(args.a);
    return random_launch(call, cuda_bits_of(dtype), &args);
}

static ctrt_status dropout_run(const ctrt_call *call)
{
    struct random_args args = arguments_of(call);
    args.in = call->inputs[0]->data;
    args.mask = call->outputs[1]->data;
    args.threshold = threshold_of(args.a);
    args.scale = args.a < 1 ? 1 / (1 - args.a) : 0;
    args.vectors = args.vectors && ((uintptr_t)args.in | (uintptr_t)args.mask) % 16 == 0;
    return random_launch(call, (ctrt_dtype)call->outputs[0]->dtype, &args);
}

#define KERNEL(name, types) { .base = { .op = #name, .dtypes = (types), .run = name##_run },                         \
                           .fatbin = &cuda_fatbin_random }

static struct cuda_kernel kernels[] = {
    KERNEL(uniform, CUDA_FLOATING), KERNEL(normal, CUDA_FLOATING), KERNEL(randint, CUDA_ALL),
    KERNEL(bernoulli, CUDA_ALL), KERNEL(dropout, CUDA_FLOATING),
};

CUDA_KERNELS(random, kernels);
