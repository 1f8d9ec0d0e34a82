/* SPDX-License-Identifier: Apache-2.0 */
/* index.c: index_select, index_add, gather, scatter_add, tril, triu. */
#include "opencl.h"

enum { GRAIN = 16384 };                         /* elements that are worth a work-group */

/* x or dy, index -> out. `whole`: the tensor with all rows. items: of how many elements each. */
static ctrt_status index_launch(const ctrt_call *call, const ctrt_view *whole, struct index_args *a, int64_t items,
                                int64_t elements)
{
    const ctrt_view *out = call->outputs[0];
    struct launch what = { .dtype = out->dtype, .out_dtype = out->dtype, .args = a, .args_bytes = sizeof *a };
    a->inner = whole->shape[2];
    a->sequence = (i64)call->sequence;
    for (uint32_t i = 0; i < call->n_inputs; i++)
        what.pointers[what.n_pointers++] = call->inputs[i]->data;
    what.pointers[what.n_pointers++] = out->data;
    what.groups = groups_for(call->device, items, GRAIN / (elements + 1) + 1, &a->chunk);
    return launch(call, &what);
}

static struct index_args args_of(const ctrt_view *whole, int64_t m)
{
    return (struct index_args){ .outer = whole->shape[0], .rows = whole->shape[1], .m = m };
}

static ctrt_status index_select_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0];
    struct index_args a = args_of(x, call->inputs[1]->shape[0]);
    return x->shape[2] == 0 ? CTRT_OK : index_launch(call, x, &a, a.outer * a.m, x->shape[2]);
}

static ctrt_status gather_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0];
    struct index_args a = args_of(x, call->inputs[1]->shape[1]);
    return index_launch(call, x, &a, a.outer * a.m * x->shape[2], 1);
}

static ctrt_status index_add_run(const ctrt_call *call)
{
    const ctrt_view *dx = call->outputs[0];
    struct index_args a = args_of(dx, call->inputs[1]->shape[0]);
    a.value = ((const ctrt_index_attributes *)call->attributes)->value;
    return index_launch(call, dx, &a, a.outer * dx->shape[2], a.m + a.rows);
}

static ctrt_status scatter_add_run(const ctrt_call *call)
{
    const ctrt_view *dx = call->outputs[0];
    struct index_args a = args_of(dx, call->inputs[1]->shape[1]);
    return index_launch(call, dx, &a, a.outer * dx->shape[2], a.m + a.rows);
}

static ctrt_status triangle_launch(const ctrt_call *call, bool upper)
{
    const ctrt_view *x = call->inputs[0];
    struct index_args a = args_of(x, 0);
    a.value = ((const ctrt_index_attributes *)call->attributes)->value;
    a.upper = upper;
    return index_launch(call, x, &a, a.outer * a.rows, x->shape[2]);
}

static ctrt_status tril_run(const ctrt_call *call) { return triangle_launch(call, false); }
static ctrt_status triu_run(const ctrt_call *call) { return triangle_launch(call, true); }

#define INDEX(name, function_, fails)                                                                                 \
    { .base = { .op = #name, .dtypes = ALL, .run = name##_run }, .file = "index", .function = function_,              \
      .can_fail = fails }
static const struct kernel rows[] = {
    INDEX(index_select, "index_select", true), INDEX(gather, "gather", true),
    INDEX(index_add, "index_add", true),       INDEX(scatter_add, "scatter_add", true),
    INDEX(tril, "triangle", false),            INDEX(triu, "triangle", false),
};
KERNELS(index, rows);
