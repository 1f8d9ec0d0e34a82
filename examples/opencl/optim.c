/* SPDX-License-Identifier: Apache-2.0 */
/* optim.c: sgd_step and adam_step, for many tensors in a launch. */
#include <math.h>
#include <string.h>

#include "opencl.h"

enum { CHUNK = 16384 };                         /* elements of a work-group */

/* Inputs: `count` parameters, then as many gradients, then as many of each state. The states are also outputs, but the
 * same memory. Tensors of one dtype that follow each other share a launch. */
static ctrt_status step(const ctrt_call *call, struct optim_args *a, uint32_t states)
{
    const uint32_t count = call->n_outputs / (1 + states);
    a->chunk = CHUNK;
    for (uint32_t t = 0; t < count;) {
        const ctrt_dtype dtype = (ctrt_dtype)call->inputs[t]->dtype;
        struct launch what = { .dtype = dtype, .out_dtype = dtype, .args = a, .args_bytes = sizeof *a };
        for (a->tensors = 0; t < count && a->tensors < OPTIM_TENSORS && call->inputs[t]->dtype == dtype; t++) {
            if (call->inputs[t]->numel == 0)
                continue;
            for (uint32_t i = 0; i < 4; i++)
                what.pointers[what.n_pointers++] = call->inputs[(i < 2 + states ? i : 0) * count + t]->data;
            a->n[a->tensors] = call->inputs[t]->numel;
            what.groups += (a->n[a->tensors] + CHUNK - 1) / CHUNK;
            a->end[a->tensors++] = what.groups;
        }
        while (what.n_pointers > 0 && what.n_pointers < 4 * OPTIM_TENSORS) {       /* the kernel has that many */
            what.pointers[what.n_pointers] = what.pointers[0];
            what.n_pointers++;
        }
        CTRT_TRY(launch(call, &what));
    }
    return CTRT_OK;
}

static ctrt_status sgd_step_run(const ctrt_call *call)
{
    const ctrt_sgd_attributes *s = call->attributes;
    struct optim_args a = { .lr = s->lr, .momentum = s->momentum, .gain = 1 - s->dampening,
                            .weight_decay = s->weight_decay, .sign = s->maximize ? -1 : 1, .nesterov = s->nesterov,
                            .first = s->first };
    return step(call, &a, s->momentum != 0);
}

static ctrt_status adam_step_run(const ctrt_call *call)
{
    const ctrt_adam_attributes *s = call->attributes;
    struct optim_args a = { .beta1 = s->beta1, .beta2 = s->beta2, .epsilon = s->epsilon, .sign = s->maximize ? -1 : 1,
                            .decay = s->decoupled ? 1 - s->lr * s->weight_decay : 1,
                            .weight_decay = s->decoupled ? 0 : s->weight_decay,
                            .step_size = s->lr / (1 - pow(s->beta1, (double)s->step)),
                            .correction = 1 / sqrt(1 - pow(s->beta2, (double)s->step)) };
    return step(call, &a, 2);
}

#define STEP(name, defines_)                                                                                          \
    { .base = { .op = #name, .dtypes = FLOATS, .flags = CTRT_KERNEL_INPLACE, .run = name##_run }, .file = "optim",    \
      .function = "optimizer_step", .defines = defines_ }
static const struct kernel rows[] = { STEP(sgd_step, NULL), STEP(adam_step, "#define ADAM\n") };
KERNELS(optim, rows);
