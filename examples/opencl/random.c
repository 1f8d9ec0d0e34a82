/* SPDX-License-Identifier: Apache-2.0 */
/* random.c: uniform, normal, randint, bernoulli, dropout, arange. */
#include "opencl.h"

enum { GRAIN = 4096 };                          /* elements that are worth a work-group */

static ctrt_status random_run(const ctrt_call *call)
{
    const ctrt_random_attributes *r = call->attributes;
    const ctrt_view *out = call->outputs[0];
    struct random_args a = { .n = out->numel, .seed = r->seed, .offset = r->offset, .a = r->a, .b = r->b, .lo = r->lo,
                             .range = (i64)((u64)r->hi - (u64)r->lo) };
    struct launch what = { .dtype = out->dtype, .out_dtype = out->dtype, .args = &a, .args_bytes = sizeof a };
    for (uint32_t i = 0; i < call->n_inputs; i++)
        what.pointers[what.n_pointers++] = call->inputs[i]->data;
    for (uint32_t i = 0; i < call->n_outputs; i++)
        what.pointers[what.n_pointers++] = call->outputs[i]->data;
    /* Blocks of four elements stay together. */
    what.groups = groups_for(call->device, (a.n + 3) / 4, GRAIN / 4, &a.chunk);
    a.chunk *= 4;
    return launch(call, &what);
}

static double number(const ctrt_scalar *scalar)
{
    return scalar->kind == CTRT_SCALAR_FLOAT ? scalar->f : (double)scalar->i;
}

static ctrt_status arange_run(const ctrt_call *call)
{
    const ctrt_range_attributes *range = call->attributes;
    const ctrt_view *out = call->outputs[0];
    struct range_args a = { .n = out->numel, .start = number(&range->lo), .stride = number(&range->hi),
                            .first = scalar_bits(&range->lo, CTRT_I64), .step = scalar_bits(&range->hi, CTRT_I64) };
    struct launch what = { .dtype = out->dtype, .out_dtype = out->dtype, .n_pointers = 1, .pointers = { out->data },
                           .args = &a, .args_bytes = sizeof a };
    what.groups = groups_for(call->device, a.n, GRAIN, &a.chunk);
    return launch(call, &what);
}

#define RANDOM(name, function_, types)                                                                                \
    { .base = { .op = name, .dtypes = (types), .run = random_run }, .file = "random", .function = function_ }
static const struct kernel rows[] = {
    RANDOM("uniform", "uniform_", FLOATS),      /* `uniform` is a keyword of some compilers */
    RANDOM("normal", "normal", FLOATS),
    RANDOM("randint", "randint", ALL),
    RANDOM("bernoulli", "bernoulli", ALL),
    RANDOM("dropout", "dropout", FLOATS),
    { .base = { .op = "arange", .dtypes = NUMBERS, .run = arange_run }, .file = "random", .function = "arange" },
};
KERNELS(random, rows);
