/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/optim.c: optimizer steps over many tensors in one call; compiled once per instruction set.
 *
 * sgd_step: p[n], g[n], buf[n] (absent without momentum); adam_step: p[n], g[n], m[n], v[n]. The input and the output
 * of a state may be the same memory or different memory. f16 and bf16 parameters are updated in f32 and then rounded;
 * their states are f32. */
#include <math.h>

#include "half.h"
#include "variant.h"
#include "vec.h"

/* GRAIN: smallest number of elements per thread. PIECE: number of half-precision elements converted at a time. */
#define GRAIN 16384
#define PIECE 1024

struct sgd {
    double lr, momentum, dampening, weight_decay, sign;
    bool nesterov, first, has_buffer;
};

/* Coefficients of the step, each computed once in f64. */
struct adam {
    double beta1, beta2, one_minus_beta1, one_minus_beta2;
    double decay;               /* decoupled weight decay: factor on the parameter, 1 - lr * weight_decay; else 1 */
    double coupled;             /* weight_decay that is added to the gradient; else 0 */
    double step_size;           /* lr / (1 - beta1^t) */
    double root_correction;     /* 1 / sqrt(1 - beta2^t) */
    double epsilon, sign;
};

struct optim_job {
    int64_t tensors;
    const struct half_loops *half;
    struct sgd sgd;
    struct adam adam;
    const ctrt_view *const *in, *const *out;    /* views of the current tensor; its k-th state is at [k * tensors] */
};

#define BODY "optim_body.h"
#include "each_float.h"

static void sgd_range_half(void *argument, int64_t begin, int64_t end)
{
    const struct optim_job *j = argument;
    const int64_t n = j->tensors;
    float p[PIECE], g[PIECE];
    for (int64_t i = begin; i < end; i += PIECE) {
        const int64_t count = end - i < PIECE ? end - i : PIECE;
        j->half->widen(p, (const uint16_t *)j->in[0]->data + i, count);
        j->half->widen(g, (const uint16_t *)j->in[n]->data + i, count);
        sgd_f32(&j->sgd, p, p, g, j->sgd.has_buffer ? output_f32(j, 1, i) : NULL,
                j->sgd.has_buffer ? input_f32(j, 2, i) : NULL, count);
        j->half->narrow((uint16_t *)j->out[0]->data + i, p, count);
    }
}

static void adam_range_half(void *argument, int64_t begin, int64_t end)
{
    const struct optim_job *j = argument;
    const int64_t n = j->tensors;
    float p[PIECE], g[PIECE];
    for (int64_t i = begin; i < end; i += PIECE) {
        const int64_t count = end - i < PIECE ? end - i : PIECE;
        j->half->widen(p, (const uint16_t *)j->in[0]->data + i, count);
        j->half->widen(g, (const uint16_t *)j->in[n]->data + i, count);
        adam_f32(&j->adam, p, output_f32(j, 1, i), output_f32(j, 2, i), p, g, input_f32(j, 2, i), input_f32(j, 3, i),
                 count);
        j->half->narrow((uint16_t *)j->out[0]->data + i, p, count);
    }
}

typedef void (*range_function)(void *argument, int64_t begin, int64_t end);

/* Returns the operands found_inf and skipped; NULL if the call does not have them. `states`: the number of inputs per
 * tensor; there is one output less. */
static const ctrt_view *const *amp_operands(const ctrt_call *call, uint32_t states)
{
    const uint32_t inputs = call->n_outputs / (states - 1) * states;
    return call->n_inputs > inputs ? call->inputs + inputs : NULL;
}

static ctrt_status step(const ctrt_call *call, struct optim_job *job, uint32_t states, range_function f32,
                        range_function f64, range_function half)
{
    const ctrt_view *const *amp = amp_operands(call, states);
    if (amp && *(const float *)amp[0]->data != 0)
        return CTRT_OK;
    job->tensors = call->n_outputs / (states - 1);
    for (int64_t i = 0; i < job->tensors; i++) {
        const ctrt_view *p = call->inputs[i];
        job->in = call->inputs + i;
        job->out = call->outputs + i;
        job->half = p->dtype == CTRT_F16 || p->dtype == CTRT_BF16 ? cpu_half(p->dtype) : NULL;
        cpu_parallel_for(p->numel, GRAIN, job->half ? half : p->dtype == CTRT_F64 ? f64 : f32, job);
    }
    return CTRT_OK;
}

static ctrt_status sgd_step(const ctrt_call *call)
{
    const ctrt_sgd_attributes *a = call->attributes;
    const bool buffered = a->momentum != 0;
    struct optim_job job = {
        .sgd = { .lr = a->lr, .momentum = a->momentum, .dampening = a->dampening, .weight_decay = a->weight_decay,
                 .sign = a->maximize ? -1 : 1, .nesterov = a->nesterov, .first = a->first, .has_buffer = buffered },
    };
    return step(call, &job, buffered ? 3 : 2, sgd_range_f32, sgd_range_f64, sgd_range_half);
}

static ctrt_status adam_step(const ctrt_call *call)
{
    const ctrt_adam_attributes *a = call->attributes;
    const ctrt_view *const *amp = amp_operands(call, 4);
    const double t = (double)a->step + (amp ? *(const double *)amp[1]->data : 0);
    struct optim_job job = {
        .adam = {
            .beta1 = a->beta1, .beta2 = a->beta2, .one_minus_beta1 = 1 - a->beta1, .one_minus_beta2 = 1 - a->beta2,
            .decay = a->decoupled ? 1 - a->lr * a->weight_decay : 1, .coupled = a->decoupled ? 0 : a->weight_decay,
            .step_size = a->lr / (1 - pow(a->beta1, t)), .root_correction = 1 / sqrt(1 - pow(a->beta2, t)),
            .epsilon = a->epsilon, .sign = a->maximize ? -1 : 1,
        },
    };
    return step(call, &job, 4, adam_range_f32, adam_range_f64, adam_range_half);
}

static const struct cpu_kernel kernels[] = {
    CPU_ROW(sgd_step, CPU_FLOATING, .flags = CTRT_KERNEL_INPLACE | CTRT_KERNEL_FOUND_INF),
    CPU_ROW(adam_step, CPU_FLOATING, .flags = CTRT_KERNEL_INPLACE | CTRT_KERNEL_FOUND_INF),
};

CPU_KERNELS(optim, kernels);
