/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: sum, mean, prod, amax, amin, any, all, argmax, argmin. */
#include <string.h>

#include "opencl.h"

enum { GRAIN = 32768, PART = 16384 };            /* elements that are worth a work-group, and a part of a result */
enum { RUNS, COLUMNS, JOIN };                   /* VARIANT in cl/reduce.cl */
enum { COLUMN_TILE = 64 };                      /* COLUMNS there */

/* Splits the dimensions of x into kept and reduced ones; the last reduced one is apart, as `inner`. */
static void split(struct reduce_args *a, const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0];
    const uint32_t dims = ((const ctrt_reduce_attributes *)call->attributes)->dims;
    memset(a, 0, sizeof *a);
    a->count = a->outputs = a->inner = 1;
    a->kept_inner = 1;
    for (int d = 0; d < x->ndim; d++)
        if (dims >> d & 1) {
            a->reduced_shape[a->reduced] = x->shape[d];
            a->reduced_strides[a->reduced++] = x->strides[d];
            a->count *= x->shape[d];
        } else {
            a->kept_shape[a->kept] = x->shape[d];
            a->kept_strides[a->kept++] = x->strides[d];
            a->outputs *= x->shape[d];
        }
    if (a->reduced > 0) {
        a->reduced--;
        a->inner = a->reduced_shape[a->reduced];
        a->inner_stride = a->reduced_strides[a->reduced];
    }
    a->inner += a->inner == 0;                  /* nothing is reduced then; avoids divisions by 0 */
    a->parts = 1;
    a->part = a->count;
    if (a->kept > 0 && a->kept_strides[a->kept - 1] == 1 && a->inner_stride != 1)
        a->kept_inner = a->kept_shape[a->kept - 1];
}

/* Few long results are reduced in parts, by all processors. */
static void split_parts(struct reduce_args *a, const struct device *device)
{
    if (a->kept_inner >= 8 || a->outputs >= device->facts->units || a->count < 2 * PART)
        return;
    a->parts = (a->count + PART - 1) / PART;
    if (a->parts > 4 * device->facts->units)
        a->parts = 4 * device->facts->units;
    a->part = (a->count + a->parts - 1) / a->parts;
}

static ctrt_status workspace(const ctrt_call *call, size_t *bytes)
{
    struct reduce_args a;
    split(&a, call);
    split_parts(&a, call->device);
    *bytes = a.parts > 1 ? (size_t)(a.outputs * a.parts) * 8 : 0;
    return CTRT_OK;
}

static ctrt_status reduce_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0], *out = call->outputs[0];
    struct reduce_args a;
    struct launch what = { .dtype = x->dtype, .out_dtype = out->dtype, .n_pointers = 3, .args = &a,
                           .args_bytes = sizeof a, .pointers = { x->data, out->data, call->workspace } };
    split(&a, call);
    split_parts(&a, call->device);
    if (a.outputs == 0)
        return CTRT_OK;
    int64_t items = a.outputs * a.parts, elements = a.part;
    if (a.kept_inner >= 8) {
        what.variant = COLUMNS;
        items = a.outputs / a.kept_inner * ((a.kept_inner + COLUMN_TILE - 1) / COLUMN_TILE);
        elements = a.count * COLUMN_TILE;
    }
    what.groups = groups_for(call->device, items, GRAIN / (elements + 1) + 1, &a.chunk);
    CTRT_TRY(launch(call, &what));
    if (a.parts == 1)
        return CTRT_OK;
    what.variant = JOIN;
    what.groups = groups_for(call->device, a.outputs, GRAIN, &a.chunk);
    return launch(call, &what);
}

static ctrt_status extreme_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0], *out = call->outputs[0];
    struct reduce_args a;
    struct launch what = { .dtype = x->dtype, .out_dtype = out->dtype, .n_pointers = 2, .args = &a,
                           .args_bytes = sizeof a, .pointers = { x->data, out->data } };
    split(&a, call);
    what.groups = groups_for(call->device, a.outputs, GRAIN / (a.count + 1) + 1, &a.chunk);
    return launch(call, &what);
}

#define REDUCE(name, types, b, s_, start, step, join, result)                                                         \
    { .base = { .op = #name, .dtypes = (types), .run = reduce_run, .workspace = workspace }, .file = "reduce",        \
      .function = "reduce",                                                                                           \
      .defines = "#define B " b "\n#define S " s_ "\n#define START " start "\n#define STEP(s, v) " step               \
                 "\n#define JOIN(s, t) " join "\n#define RESULT(s) " result "\n" }
#define SUM(name, result, types, b, s_) REDUCE(name, types, b, s_, "0", "(s) + (v)", "(s) + (t)", result)
#define PRODUCT(types, b, s_) REDUCE(prod, types, b, s_, "1", "(s) * (v)", "(s) * (t)", "(s)")
#define BEST(name, order, types, start)                                                                               \
    REDUCE(name, types, "W", "W", start, "((v) " order " (s) || (v) != (v) ? (v) : (s))",                             \
           "((t) " order " (s) || (t) != (t) ? (t) : (s))", "(s)")
#define EXTREME(name, order)                                                                                          \
    { .base = { .op = #name, .dtypes = NUMBERS, .run = extreme_run }, .file = "extreme", .function = "extreme",       \
      .defines = "#define BETTER(v, best) ((v) " order " (best) || ((v) != (v) && (best) == (best)))\n" }

/* Sums and products of integers are i64. Products of floating numbers are f64, because they may overflow on the way. */
static const struct kernel rows[] = {
    SUM(sum, "(s)", FLOATS, "double", "W"),
    SUM(sum, "(s)", INTEGERS | BIT(BOOL), "long", "long"),
    SUM(mean, "((s) / a.count)", FLOATS, "double", "W"),
    PRODUCT(FLOATS, "double", "double"),
    PRODUCT(INTEGERS | BIT(BOOL), "long", "long"),
    BEST(amax, ">", FLOATS, "(W)-INFINITY"),
    BEST(amin, "<", FLOATS, "(W)INFINITY"),
    BEST(amax, ">", BIT(U8) | BIT(BOOL), "0"),
    BEST(amin, "<", BIT(U8) | BIT(BOOL), "255"),
    BEST(amax, ">", BIT(I8), "-128"),
    BEST(amin, "<", BIT(I8), "127"),
    BEST(amax, ">", BIT(I16), "-32768"),
    BEST(amin, "<", BIT(I16), "32767"),
    BEST(amax, ">", BIT(I32), "INT_MIN"),
    BEST(amin, "<", BIT(I32), "INT_MAX"),
    BEST(amax, ">", BIT(I64), "LONG_MIN"),
    BEST(amin, "<", BIT(I64), "LONG_MAX"),
    REDUCE(any, ALL, "W", "W", "0", "(W)((s) != 0 || (v) != 0)", "(W)((s) != 0 || (t) != 0)", "(s)"),
    REDUCE(all, ALL, "W", "W", "1", "(W)((s) != 0 && (v) != 0)", "(W)((s) != 0 && (t) != 0)", "(s)"),
    EXTREME(argmax, ">"),
    EXTREME(argmin, "<"),
};
KERNELS(reduce, rows);
