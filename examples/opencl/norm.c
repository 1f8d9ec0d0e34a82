/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c: layer_norm, batch_norm, and their gradients. */
#include <string.h>

#include "opencl.h"

enum { GRAIN = 8192 };                          /* elements that are worth a work-group */
enum { WEIGHT = 1, BIAS = 2, MEAN = 4, VAR = 8, DWEIGHT = 16, DBIAS = 32 };       /* as in cl/norm.cl */

/* Appends an operand, which may be NULL; sets `bit` of args.wide if it is wider than x. */
static void add(struct launch *what, struct row_args *a, const ctrt_view *view, i64 bit)
{
    what->pointers[what->n_pointers++] = view != NULL ? view->data : NULL;
    if (view != NULL && view->dtype != what->dtype)
        a->wide |= bit;
}

static ctrt_status layer_norm_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0];
    struct row_args a = { .rows = x->shape[0], .n = x->shape[1],
                          .epsilon = ((const ctrt_norm_attributes *)call->attributes)->epsilon };
    struct launch what = { .dtype = x->dtype, .out_dtype = x->dtype, .args = &a, .args_bytes = sizeof a };
    add(&what, &a, x, 0);
    add(&what, &a, call->inputs[1], WEIGHT);
    add(&what, &a, call->inputs[2], BIAS);
    for (int i = 0; i < 3; i++)
        add(&what, &a, call->outputs[i], 0);
    what.groups = groups_for(call->device, a.rows, GRAIN / (a.n + 1) + 1, &a.chunk);
    return launch(call, &what);
}

/* Both gradients: dy, x, weight?, mean, rstd -> dx, dweight?, dbias? */
static void add_gradient(struct launch *what, struct row_args *a, const ctrt_call *call)
{
    static const i64 inputs[] = { 0, 0, WEIGHT, 0, 0 }, outputs[] = { 0, DWEIGHT, DBIAS };
    for (int i = 0; i < 5; i++)
        add(what, a, call->inputs[i], inputs[i]);
    for (int i = 0; i < 3; i++)
        add(what, a, call->outputs[i], outputs[i]);
}

static ctrt_status layer_norm_backward_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[1];
    struct row_args a = { .rows = x->shape[0], .n = x->shape[1] };
    struct launch what = { .dtype = x->dtype, .out_dtype = x->dtype, .args = &a, .args_bytes = sizeof a };
    add_gradient(&what, &a, call);
    what.groups = groups_for(call->device, a.rows, GRAIN / (a.n + 1) + 1, &a.chunk);
    CTRT_TRY(launch(call, &what));
    if (call->outputs[1] == NULL && call->outputs[2] == NULL)
        return CTRT_OK;
    what.variant = 1;
    what.groups = groups_for(call->device, a.n, GRAIN / (a.rows + 1) + 1, &a.chunk);
    return launch(call, &what);
}

static struct row_args batch_args(const ctrt_call *call, const ctrt_view *x)
{
    const ctrt_norm_attributes *norm = call->attributes;
    return (struct row_args){ .rows = x->shape[0], .inner = x->shape[1], .n = x->shape[2], .epsilon = norm->epsilon,
                              .momentum = norm->momentum, .training = norm->training };
}

static ctrt_status batch_norm_run(const ctrt_call *call)
{
    static const i64 inputs[] = { 0, WEIGHT, BIAS, MEAN, VAR };
    const ctrt_view *x = call->inputs[0];
    struct row_args a = batch_args(call, x);
    struct launch what = { .dtype = x->dtype, .out_dtype = x->dtype, .args = &a, .args_bytes = sizeof a };
    for (int i = 0; i < 5; i++)                 /* running_* are updated only if they are outputs too */
        add(&what, &a, i >= 3 && a.training && call->n_outputs <= 3 ? NULL : call->inputs[i], inputs[i]);
    for (int i = 0; i < 3; i++)
        add(&what, &a, call->outputs[i], 0);
    what.groups = groups_for(call->device, a.inner, GRAIN / (a.rows * a.n + 1) + 1, &a.chunk);
    return launch(call, &what);
}

static ctrt_status batch_norm_backward_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[1];
    struct row_args a = batch_args(call, x);
    struct launch what = { .dtype = x->dtype, .out_dtype = x->dtype, .args = &a, .args_bytes = sizeof a };
    add_gradient(&what, &a, call);
    what.groups = groups_for(call->device, a.inner, GRAIN / (a.rows * a.n + 1) + 1, &a.chunk);
    return launch(call, &what);
}

#define NORM(name) { .base = { .op = #name, .dtypes = FLOATS, .run = name##_run }, .file = "norm", .function = #name }
static const struct kernel rows[] = {
    NORM(layer_norm), NORM(layer_norm_backward), NORM(batch_norm), NORM(batch_norm_backward),
};
KERNELS(norm, rows);
