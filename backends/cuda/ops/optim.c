/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/optim.c: optimizer steps, with as many tensors per launch as the kernel arguments can hold. */
#include <math.h>
#include <string.h>

#include "host/fatbin.h"
#include "kernels/optim_args.h"

/* Launches a step for all tensors. The call's inputs are `count` parameters, then as many gradients, then as many of
 * each state; its outputs are parameters, then states. */
static ctrt_status step(const ctrt_call *call, struct optim_args *a, uint32_t states, int index, const char *variant)
{
    const uint32_t count = call->n_outputs / (1 + states);
    if (call->n_inputs > count * (2 + states)) {
        a->found_inf = call->inputs[count * (2 + states)]->data;
        a->skipped = call->inputs[count * (2 + states) + 1]->data;
    }
    for (uint32_t t = 0; t < count;) {
        const ctrt_dtype dtype = (ctrt_dtype)call->inputs[t]->dtype;
        uint64_t blocks = 0;
        for (a->tensors = 0; t < count && a->tensors < OPTIM_TENSORS && (ctrt_dtype)call->inputs[t]->dtype == dtype;
             t++) {
            const int64_t n = call->inputs[t]->numel;
            const uint64_t more = (uint64_t)(n + OPTIM_CHUNK - 1) / OPTIM_CHUNK;
            if (n == 0)
                continue;
            if (a->tensors > 0 && blocks + more > INT32_MAX)
                break;
            for (uint32_t i = 0; i < 2 + states; i++)
                a->in[i][a->tensors] = call->inputs[i * count + t]->data;
            for (uint32_t i = 0; i < 1 + states; i++)
                a->out[i][a->tensors] = call->outputs[i * count + t]->data;
            blocks += more;
            a->n[a->tensors] = n;
            a->end[a->tensors++] = (uint32_t)blocks;
        }
        if (a->tensors == 0)
            continue;
        const struct cuda_shape shape = { .grid = { (unsigned)blocks }, .block = OPTIM_THREADS };
        CTRT_TRY(cuda_launch(call, dtype, index, variant, shape, a));
    }
    return CTRT_OK;
}

static ctrt_status sgd_step(const ctrt_call *call)
{
    const ctrt_sgd_attributes *s = call->attributes;
    struct optim_args a;
    memset(&a, 0, sizeof a);
    a.sign = s->maximize ? -1 : 1;
    a.nesterov = s->nesterov;
    a.first = s->first;
    a.replayed = s->replayed;
    a.sgd.lr = s->lr;
    a.sgd.momentum = s->momentum;
    a.sgd.gain = 1 - s->dampening;
    a.sgd.decay = s->weight_decay;
    return s->momentum != 0 ? step(call, &a, 1, 1, "m") : step(call, &a, 0, 0, NULL);
}

static ctrt_status adam_step(const ctrt_call *call)
{
    const ctrt_adam_attributes *s = call->attributes;
    const double t = (double)s->step;
    struct optim_args a;
    memset(&a, 0, sizeof a);
    a.sign = s->maximize ? -1 : 1;
    a.replayed = s->replayed;
    a.adam.beta1 = s->beta1;
    a.adam.beta2 = s->beta2;
    a.adam.gain1 = 1 - s->beta1;
    a.adam.gain2 = 1 - s->beta2;
    a.adam.decay = s->decoupled ? 1 - s->lr * s->weight_decay : 1;
    a.adam.coupled = s->decoupled ? 0 : s->weight_decay;
    a.adam.step_size = s->lr / (1 - pow(s->beta1, t));
    a.adam.correction = 1 / sqrt(1 - pow(s->beta2, t));
    a.adam.epsilon = s->epsilon;
    a.adam.lr = s->lr;
    a.adam.step = t;
    return step(call, &a, 2, 0, NULL);
}

/* Launches amp_unscale for all gradients: inputs[1] to inputs[n_inputs - 2]. */
static ctrt_status amp_unscale(const ctrt_call *call)
{
    const uint32_t last = call->n_inputs - 1;
    struct unscale_args a;
    memset(&a, 0, sizeof a);
    a.scale = call->inputs[last]->data;
    a.found_inf = call->outputs[0]->data;
    for (uint32_t t = 1; t < last;) {
        uint64_t blocks = 0;
        for (a.tensors = 0; t < last && a.tensors < UNSCALE_TENSORS; t++) {
            const int64_t n = call->inputs[t]->numel;
            const uint64_t more = (uint64_t)(n + OPTIM_CHUNK - 1) / OPTIM_CHUNK;
            if (n == 0)
                continue;
            if (a.tensors > 0 && blocks + more > INT32_MAX)
                break;
            blocks += more;
            a.grad[a.tensors] = call->inputs[t]->data;
            a.n[a.tensors] = n;
            a.end[a.tensors++] = (uint32_t)blocks;
        }
        if (a.tensors == 0)
            continue;
        const struct cuda_shape shape = { .grid = { (unsigned)blocks }, .block = OPTIM_THREADS };
        CTRT_TRY(cuda_launch(call, (ctrt_dtype)call->inputs[1]->dtype, 0, NULL, shape, &a));
    }
    return CTRT_OK;
}

static ctrt_status amp_update(const ctrt_call *call)
{
    const ctrt_amp_attributes *s = call->attributes;
    struct amp_update_args a = {
        .scale = call->outputs[0]->data, .tracker = call->outputs[1]->data, .skips = call->outputs[2]->data,
        .found_inf = call->inputs[3]->data, .growth_factor = s->growth_factor, .backoff_factor = s->backoff_factor,
        .min_scale = s->min_scale, .growth_interval = s->growth_interval,
    };
    const struct cuda_shape shape = { .grid = { 1 }, .block = 1 };
    return cuda_launch(call, CTRT_F32, 0, NULL, shape, &a);
}

#define KERNEL(name, dtypes_, flags_) { .base = { .op = #name, .dtypes = dtypes_,                                    \
                                                  .flags = CTRT_KERNEL_INPLACE | (flags_), .run = name },           \
                                        .fatbin = &cuda_fatbin_optim }

static struct cuda_kernel kernels[] = {
    KERNEL(sgd_step, CUDA_FLOATING, CTRT_KERNEL_FOUND_INF),
    KERNEL(adam_step, CUDA_FLOATING, CTRT_KERNEL_FOUND_INF),
    KERNEL(amp_unscale, CUDA_FLOATING, 0),
    KERNEL(amp_update, CTRT_DTYPE_BIT(CTRT_F32), 0),
};

CUDA_KERNELS(optim, kernels);
