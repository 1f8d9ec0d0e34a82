/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/reduce.c: reductions: divides them into blocks and pieces for the kernels of reduce.cuh. */
#include <string.h>

#include "elementwise.h"
#include "kernels/reduce_args.h"

/* Constants for any device, so that all devices give the same results. A device runs up to about 1000 blocks at a time.
 * With few more blocks than that, part of the device would have no work at the end, so large reductions have several
 * times as many. */
#define ENOUGH_BLOCKS 1024
#define MANY_BLOCKS   8192
#define LEAST_PIECE   4096                  /* minimum number of elements per block */
#define LARGE_PIECE   32768                 /* the same, for more than ENOUGH_BLOCKS blocks */
#define MANY_PIECES   128                   /* most pieces then, because one warp joins the pieces of an accumulator */

enum reduction { SUM, MEAN, EXTREME, PLACE, TRUTH }; /* cuda_kernel.code */

struct plan {
    struct reduce_args args;
    bool columns;
    struct cuda_shape shape;
};

/* The sort key of a dimension. Stride 0 counts as the largest, so that a broadcast dimension is the outermost: reading
 * a whole range again is faster than reading each element several times in a row. */
static uint64_t distance(const struct reduce_dim *d)
{
    const uint64_t a = d->in < 0 ? 0 - (uint64_t)d->in : (uint64_t)d->in;
    return a == 0 ? UINT64_MAX : a;
}

static void sort_by_stride(struct reduce_dim *dims, int n)
{
    for (int i = 1; i < n; i++) {
        const struct reduce_dim d = dims[i];
        int k = i;
        for (; k > 0 && distance(&dims[k - 1]) < distance(&d); k--)
            dims[k] = dims[k - 1];
        dims[k] = d;
    }
}

/* Merges adjacent dimensions that form one dimension in memory. Returns the new number of dimensions. */
static int merge_dimensions(struct reduce_dim *dims, int n)
{
    int last = 0;
    for (int i = 1; i < n; i++) {
        struct reduce_dim *outer = &dims[last], *inner = &dims[i];
        if (outer->in == inner->in * inner->n.size && outer->out == inner->out * inner->n.size)
            *outer = (struct reduce_dim){ .n = { .size = outer->n.size * inner->n.size }, .in = inner->in,
                                          .out = inner->out };
        else
            dims[++last] = *inner;
    }
    return n > 0 ? last + 1 : 0;
}

static void find_dimensions(struct reduce_args *a, const ctrt_view *in, const ctrt_view *out, uint32_t dims,
                            bool ordered)
{
    a->outputs = a->count = 1;
    for (int d = 0; d < in->ndim; d++) {
        struct reduce_dim dim = { .n = { .size = in->shape[d] }, .in = in->strides[d], .out = out->strides[d] };
        if (dims >> d & 1) {
            dim.out = 0;
            a->count *= dim.n.size;
            if (dim.n.size != 1)
                a->reduced[a->n_reduced++] = dim;
        } else {
            a->outputs *= dim.n.size;
            if (dim.n.size != 1)
                a->kept[a->n_kept++] = dim;
        }
    }
    if (!ordered)
        sort_by_stride(a->reduced, a->n_reduced);
    sort_by_stride(a->kept, a->n_kept);
    a->n_reduced = merge_dimensions(a->reduced, a->n_reduced);
    a->n_kept = merge_dimensions(a->kept, a->n_kept);
    if (a->n_reduced == 0)
        a->reduced[a->n_reduced++] = (struct reduce_dim){ .n = { .size = 1 } };
    for (int d = 0; d < a->n_kept; d++)
        a->kept[d].n = fast_div_of(a->kept[d].n.size);
    for (int d = 0; d < a->n_reduced; d++)
        a->reduced[d].n = fast_div_of(a->reduced[d].n.size);
}

static int64_t up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int power_of_two(int64_t least, int most)
{
    int n = 1;
    while (n < most && n < least)
        n *= 2;
    return n;
}

static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Divides each accumulator's elements into pieces, so that there are about ENOUGH_BLOCKS blocks, or MANY_BLOCKS of
 * pieces of LARGE_PIECE elements. `blocks`: their number with one piece, each of `columns` accumulators. A piece has a
 * multiple of `grain` elements. */
static void reduce_cut(struct reduce_args *a, int64_t blocks, int64_t columns, int64_t grain)
{
    blocks = blocks > 0 ? blocks : 1;
    const int64_t enough = least_of(ENOUGH_BLOCKS / blocks, a->count / (LEAST_PIECE / columns)),
                  many = least_of(least_of(MANY_BLOCKS / blocks, MANY_PIECES), a->count / (LARGE_PIECE / columns)),
                  pieces = enough > many ? enough : many;
    if (pieces < 2) {
        a->pieces = fast_div_of(1);
        a->piece = a->count;
        return;
    }
    a->piece = up(up(a->count, pieces), grain) * grain;
    a->pieces = fast_div_of(up(a->count, a->piece));
}

static bool can_vectorise(const struct reduce_args *a, int per_word)
{
    bool wide = per_word > 1 && a->kept[a->n_kept - 1].n.size % per_word == 0;
    for (int d = 0; d < a->n_kept - 1; d++)
        wide = wide && a->kept[d].in % per_word == 0;
    for (int d = 0; d < a->n_reduced; d++)
        wide = wide && a->reduced[d].in % per_word == 0;
    return wide;
}

static void plan_columns(struct plan *p, int bytes, bool whole)
{
    struct reduce_args *a = &p->args;
    const struct reduce_dim *inner = &a->kept[a->n_kept - 1];
    const int per_word = bytes < 4 ? 4 / bytes : 1;
    a->wide = whole && can_vectorise(a, per_word);
    const int width = a->wide ? per_word : 1;
    a->team = power_of_two(up(inner->n.size, width), 32);
    a->tiles = fast_div_of(up(inner->n.size, (int64_t)a->team * width));
    const int64_t blocks = a->outputs / inner->n.size * a->tiles.size;
    reduce_cut(a, blocks, a->team, 8 * REDUCE_THREADS / a->team);
    p->shape.grid[0] = (unsigned)(blocks * a->pieces.size < INT32_MAX ? blocks * a->pieces.size : INT32_MAX);
}

static void plan_rows(struct plan *p, int bytes)
{
    struct reduce_args *a = &p->args;
    a->runs = a->reduced[a->n_reduced - 1].in == 1 && (a->n_reduced == 1 || a->reduced[a->n_reduced - 1].n.size >= 64);
    const int64_t share = a->runs ? 64 / bytes : 4;             /* elements per thread, to hide memory latency */
    if (a->count > 1024 || (a->count > 128 && a->outputs < ENOUGH_BLOCKS)) {
        a->team = REDUCE_THREADS;
        reduce_cut(a, a->outputs, 1, 1024);
    } else {
        a->team = power_of_two(up(a->count, share), 32);
        a->pieces = fast_div_of(1);
        a->piece = a->count;
    }
    const int64_t blocks = up(a->outputs * a->pieces.size, REDUCE_THREADS / a->team);
    p->shape.grid[0] = (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX);
}

/* `ordered`: keep the order of reduced dimensions, because the result is a position. `whole`: the input is aligned to 4
 * bytes. */
static void reduce_plan(struct plan *p, const ctrt_call *call, bool ordered, bool whole)
{
    const ctrt_view *in = call->inputs[0];
    const ctrt_reduce_attributes *attributes = call->attributes;
    struct reduce_args *a = &p->args;
    memset(p, 0, sizeof *p);
    a->in = in->data;
    a->out = call->outputs[0]->data;
    find_dimensions(a, in, call->outputs[0], attributes->dims, ordered);
    const struct reduce_dim *inner = a->n_kept > 0 ? &a->kept[a->n_kept - 1] : NULL;
    p->columns = inner != NULL && inner->in == 1 && a->reduced[a->n_reduced - 1].in != 1;
    p->shape.block = REDUCE_THREADS;
    if (p->columns)
        plan_columns(p, cuda_dtype_bytes[in->dtype], whole);
    else
        plan_rows(p, cuda_dtype_bytes[in->dtype]);
}

static ctrt_status workspace_for(const ctrt_call *call, size_t *bytes, bool ordered)
{
    struct plan p;
    *bytes = 0;
    for (int whole = 0; whole < 2; whole++) {               /* the alignment can be different when it runs */
        reduce_plan(&p, call, ordered, whole);
        const size_t wanted = p.args.pieces.size > 1
                                  ? (size_t)(p.args.pieces.size * p.args.outputs) * REDUCE_ACCUMULATOR
                                  : 0;
        *bytes = wanted > *bytes ? wanted : *bytes;
    }
    return CTRT_OK;
}

static ctrt_status reduce_workspace(const ctrt_call *call, size_t *bytes)
{
    return workspace_for(call, bytes, false);
}

static ctrt_status places_workspace(const ctrt_call *call, size_t *bytes)
{
    return workspace_for(call, bytes, true);
}

/* Returns the dtype in the kernel's name; some dtypes share the kernel of another dtype. */
static ctrt_dtype kernel_dtype(enum reduction reduction, ctrt_dtype dtype)
{
    if (reduction == TRUTH)
        return cuda_dtype_bytes[dtype] == 1 ? CTRT_U8 : cuda_dtype_bytes[dtype] == 2 ? CTRT_I16
            : cuda_dtype_bytes[dtype] == 4 ? CTRT_I32 : CTRT_I64;
    return dtype == CTRT_BOOL ? CTRT_U8 : dtype;
}

/* Returns the dtype in the name of the kernel that joins pieces. All integer sums have the same accumulators, and so do
 * any and all. */
static ctrt_dtype join_dtype(enum reduction reduction, ctrt_dtype dtype)
{
    if (reduction == TRUTH)
        return CTRT_U8;
    return reduction == SUM && !(CUDA_FLOATING & CTRT_DTYPE_BIT(dtype)) ? CTRT_I64 : kernel_dtype(reduction, dtype);
}

static ctrt_status reduce_run(const ctrt_call *call)
{
    const ctrt_dtype dtype = (ctrt_dtype)call->inputs[0]->dtype;
    const enum reduction reduction = (enum reduction)cuda_kernel_of(call)->code;
    struct plan p;
    if (call->outputs[0]->numel == 0)
        return CTRT_OK;
    reduce_plan(&p, call, reduction == PLACE, (uintptr_t)call->inputs[0]->data % 4 == 0);
    struct reduce_args *a = &p.args;
    if (a->count == 0 && (reduction == EXTREME || reduction == PLACE))
        return cuda_host->fail(CTRT_ERR_SHAPE, "%s over no elements: the size of a reduced dimension is 0",
                               call->kernel->op);
    a->mean = reduction == MEAN;
    a->mask = CUDA_FLOATING & CTRT_DTYPE_BIT(dtype) ? ((uint64_t)1 << (8 * cuda_dtype_bytes[dtype] - 1)) - 1
                                                    : UINT64_MAX;
    a->partial = a->pieces.size > 1 ? call->workspace : NULL;
    ctrt_status status = cuda_launch(call, kernel_dtype(reduction, dtype), p.columns ? 1 : 0, p.columns ? "c" : NULL,
                                     p.shape, a);
    if (status != CTRT_OK || a->pieces.size == 1)
        return status;
    a->team = a->pieces.size > 8 ? 32 : 1;
    p.shape.grid[0] = cuda_blocks(call->device, a->outputs * a->team, REDUCE_THREADS);
    return cuda_launch(call, join_dtype(reduction, dtype), 2, "j", p.shape, a);
}

#define KERNEL(name, types, reduction, file, kernels)                                                             \
    { .base = { .op = #name, .dtypes = (types), .flags = CTRT_KERNEL_STRIDED, .run = reduce_run,                  \
                  .workspace = reduction == PLACE ? places_workspace : reduce_workspace },                        \
      .fatbin = &cuda_fatbin_##file, .code = reduction, .kernel_name = kernels }

static struct cuda_kernel kernels[] = {
    KERNEL(sum, CUDA_ALL, SUM, reduce, NULL),
    KERNEL(prod, CUDA_ALL, SUM, reduce, NULL),
    KERNEL(mean, CUDA_FLOATING, MEAN, reduce, "sum"),
    KERNEL(amax, CUDA_ALL, EXTREME, extreme, NULL),
    KERNEL(amin, CUDA_ALL, EXTREME, extreme, NULL),
    KERNEL(argmax, CUDA_ALL, PLACE, extreme, NULL),
    KERNEL(argmin, CUDA_ALL, PLACE, extreme, NULL),
    KERNEL(any, CUDA_ALL, TRUTH, extreme, NULL),
    KERNEL(all, CUDA_ALL, TRUTH, extreme, NULL),
};

CUDA_KERNELS(reduce, kernels);
