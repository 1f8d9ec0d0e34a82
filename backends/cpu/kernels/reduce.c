/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/reduce.c: iterates over the reduced elements in memory order (see reduce.h). */
#include <stdlib.h>

#include "reduce.h"

#define BUFFER  1024        /* elements gathered at a time */
#define TILE    1024        /* columns accumulated at a time: 8 or 16 KiB of accumulators */
#define PIECE   65536       /* approximate number of elements in a piece of work */

struct dimension {
    int64_t size, in, out;      /* strides in elements; out is 0 for reduced dimensions */
};

struct reduce_walk {
    const struct cpu_reducer *reducer;
    struct dimension kept[CTRT_MAX_DIMS], reduced[CTRT_MAX_DIMS];
    int n_kept, n_reduced;
    ctrt_view space;            /* the reduced dimensions as a view; its data pointer is set per accumulator */
    const char *in;
    char *out;
    size_t in_bytes, out_bytes;
    int64_t outputs, count;     /* number of accumulators; elements reduced into each */
    bool columns;               /* the innermost kept dimension is contiguous, and the innermost reduced one is not */
    int64_t tile, tiles;        /* columns: length of a tile of the innermost kept dimension; number of tiles */
    int64_t groups;             /* columns: number of index combinations of the other kept dimensions */
    int64_t piece, pieces;      /* reduced elements per piece; pieces per accumulator */
    char *partial;              /* accumulators of all pieces, [pieces][outputs]; NULL if there is one piece */
};

/* ---- dimensions ---- */

/* Sort key of a dimension: its absolute stride. Stride 0 sorts as the largest, because repeating whole inner blocks is
 * faster than repeating each element. */
static uint64_t distance(const struct dimension *d)
{
    uint64_t a = d->in < 0 ? 0 - (uint64_t)d->in : (uint64_t)d->in;
    return a == 0 ? UINT64_MAX : a;
}

static void sort_by_stride(struct dimension *dims, int n)
{
    for (int i = 1; i < n; i++) {
        struct dimension d = dims[i];
        int k = i;
        for (; k > 0 && distance(&dims[k - 1]) < distance(&d); k--)
            dims[k] = dims[k - 1];
        dims[k] = d;
    }
}

/* Merges adjacent dimensions that are contiguous with each other; returns the number that remains. */
static int merge_dimensions(struct dimension *dims, int n)
{
    int last = 0;
    for (int i = 1; i < n; i++) {
        struct dimension *outer = &dims[last], *inner = &dims[i];
        if (outer->in == inner->in * inner->size && outer->out == inner->out * inner->size)
            *outer = (struct dimension){ outer->size * inner->size, inner->in, inner->out };
        else
            dims[++last] = *inner;
    }
    return n ? last + 1 : 0;
}

static void find_dimensions(struct reduce_walk *w, const ctrt_view *in, const ctrt_view *out, uint32_t dims)
{
    for (int d = 0; d < in->ndim; d++) {
        struct dimension dim = { in->shape[d], in->strides[d], out->strides[d] };
        if (dims >> d & 1) {
            dim.out = 0;
            w->count *= dim.size;
            if (dim.size != 1)
                w->reduced[w->n_reduced++] = dim;
        } else {
            w->outputs *= dim.size;
            if (dim.size != 1)
                w->kept[w->n_kept++] = dim;
        }
    }
    if (!w->reducer->ordered)
        sort_by_stride(w->reduced, w->n_reduced);
    sort_by_stride(w->kept, w->n_kept);
    w->n_reduced = merge_dimensions(w->reduced, w->n_reduced);
    w->n_kept = merge_dimensions(w->kept, w->n_kept);
    if (w->n_reduced == 0)
        w->reduced[w->n_reduced++] = (struct dimension){ 1, 0, 0 };

    w->space.ndim = (uint8_t)w->n_reduced;
    w->space.numel = w->count;
    for (int d = 0; d < w->n_reduced; d++) {
        w->space.shape[d] = w->reduced[d].size;
        w->space.strides[d] = w->reduced[d].in;
    }
}

/* Stores the input and output offsets of accumulator `index`. `n` is the number of kept dimensions, or one less for the
 * offsets of a group of columns. */
static void reduce_locate(const struct reduce_walk *w, int n, int64_t index, int64_t *in, int64_t *out)
{
    *in = *out = 0;
    for (int d = n - 1; d >= 0; d--) {
        int64_t at = index % w->kept[d].size;
        index /= w->kept[d].size;
        *in += at * w->kept[d].in;
        *out += at * w->kept[d].out;
    }
}

/* ---- along a contiguous reduced dimension ---- */

/* Accumulates the reduced elements [begin, end) of the accumulator whose first input element is at `data`. */
static void fold_run(const struct reduce_walk *w, void *acc, const char *data, int64_t begin, int64_t end)
{
    const struct cpu_reducer *reducer = w->reducer;
    int last = w->n_reduced - 1;
    int64_t row = w->reduced[last].size;
    bool adjacent = w->reduced[last].in == 1;
    char buffer[BUFFER * 8] __attribute__((aligned(64)));
    ctrt_view space = w->space;
    space.data = (void *)(uintptr_t)data;

    for (int64_t i = begin, n; i < end; i += n) {
        n = end - i;
        if (adjacent && (row >= 64 || last == 0)) {     /* contiguous rows that are long enough */
            int64_t at = i % row, offset = 0, rest = i / row;
            if (n > row - at)
                n = row - at;
            for (int d = last - 1; d >= 0; d--) {
                offset += rest % w->reduced[d].size * w->reduced[d].in;
                rest /= w->reduced[d].size;
            }
            const char *x = data + (offset + at) * (int64_t)w->in_bytes;
            if (reducer->in < CPU_KIND_F16) {
                reducer->run(acc, x, n, i);
                continue;
            }
            n = n < BUFFER ? n : BUFFER;
            cpu_widen((float *)buffer, x, reducer->in, n);
        } else {
            n = n < BUFFER ? n : BUFFER;
            if (reducer->in < CPU_KIND_F16) {
                cpu_gather(buffer, &space, w->in_bytes, i, n);
            } else {
                uint16_t halves[BUFFER];
                cpu_gather(halves, &space, 2, i, n);
                cpu_widen((float *)buffer, halves, reducer->in, n);
            }
        }
        reducer->run(acc, buffer, n, i);
    }
}

/* Processes work items [begin, end); an item is one piece of one accumulator. */
static void runs_part(void *argument, int64_t begin, int64_t end)
{
    const struct reduce_walk *w = argument;
    for (int64_t item = begin; item < end; item++) {
        int64_t output = item / w->pieces, piece = item % w->pieces, in, out;
        char own[CPU_ACC_BYTES] __attribute__((aligned(16))), *acc = own;
        reduce_locate(w, w->n_kept, output, &in, &out);
        if (w->partial)
            acc = w->partial + (piece * w->outputs + output) * w->reducer->acc_bytes;
        int64_t from = piece * w->piece, to = from + w->piece < w->count ? from + w->piece : w->count;
        w->reducer->start(acc, 1);
        fold_run(w, acc, w->in + in * (int64_t)w->in_bytes, from, to);
        if (!w->partial)
            w->reducer->finish(w->out + out * (int64_t)w->out_bytes, 0, acc, 1, w->count);
    }
}

/* ---- across the reduced dimensions, for adjacent columns ---- */

/* Accumulates rows [begin, end) of n adjacent columns; `data` is the first element of the first column. */
static void fold_columns(const struct reduce_walk *w, void *acc, const char *data, int64_t n, int64_t begin,
                         int64_t end)
{
    const struct cpu_reducer *reducer = w->reducer;
    int last = w->n_reduced - 1;
    int64_t size = w->reduced[last].size, stride = w->reduced[last].in;
    float floats[4][TILE];
    for (int64_t i = begin, rows; i < end; i += rows) {
        int64_t at = i % size, offset = at * stride, rest = i / size;
        rows = end - i < size - at ? end - i : size - at;
        for (int d = last - 1; d >= 0; d--) {
            offset += rest % w->reduced[d].size * w->reduced[d].in;
            rest /= w->reduced[d].size;
        }
        const char *x = data + offset * (int64_t)w->in_bytes;
        if (reducer->in < CPU_KIND_F16) {
            reducer->columns(acc, x, n, rows, stride, i);
            continue;
        }
        rows = rows < 4 ? rows : 4;
        for (int64_t k = 0; k < rows; k++)
            cpu_widen(floats[k], x + k * stride * 2, reducer->in, n);
        reducer->columns(acc, floats, n, rows, TILE, i);
    }
}

/* Processes work items [begin, end); an item is one piece of one tile of one group. */
static void columns_part(void *argument, int64_t begin, int64_t end)
{
    const struct reduce_walk *w = argument;
    const struct dimension *inner = &w->kept[w->n_kept - 1];
    char own[TILE * CPU_ACC_BYTES] __attribute__((aligned(64)));
    for (int64_t item = begin; item < end; item++) {
        int64_t piece = item % w->pieces, tile = item / w->pieces % w->tiles, group = item / w->pieces / w->tiles;
        int64_t first = tile * w->tile, n = inner->size - first < w->tile ? inner->size - first : w->tile, in, out;
        reduce_locate(w, w->n_kept - 1, group, &in, &out);
        char *acc = own;
        if (w->partial)
            acc = w->partial + (piece * w->outputs + group * inner->size + first) * w->reducer->acc_bytes;
        int64_t from = piece * w->piece, to = from + w->piece < w->count ? from + w->piece : w->count;
        w->reducer->start(acc, n);
        fold_columns(w, acc, w->in + (in + first) * (int64_t)w->in_bytes, n, from, to);
        if (!w->partial)
            w->reducer->finish(w->out + (out + first * inner->out) * (int64_t)w->out_bytes, inner->out, acc, n,
                                w->count);
    }
}

/* ---- merging the pieces ---- */

/* Merges the pieces pairwise, in a tree of fixed shape. */
static void join_part(void *argument, int64_t begin, int64_t end)
{
    const struct reduce_walk *w = argument;
    size_t bytes = w->reducer->acc_bytes, row = (size_t)w->outputs * bytes;
    for (int64_t step = 1; step < w->pieces; step *= 2)
        for (int64_t piece = 0; piece + step < w->pieces; piece += 2 * step)
            w->reducer->merge(w->partial + (size_t)piece * row + (size_t)begin * bytes,
                              w->partial + (size_t)(piece + step) * row + (size_t)begin * bytes, end - begin);
    for (int64_t output = begin; output < end; output++) {
        int64_t in, out;
        reduce_locate(w, w->n_kept, output, &in, &out);
        w->reducer->finish(w->out + out * (int64_t)w->out_bytes, 0, w->partial + (size_t)output * bytes, 1, w->count);
    }
}

ctrt_status cpu_reduce(const ctrt_call *call)
{
    const struct cpu_reducer *reducer = cpu_kernel_data(call);
    const ctrt_view *in = call->inputs[0], *out = call->outputs[0];
    const char *op = call->kernel->op;
    /* One result of few adjacent elements is computed directly. */
    if (reducer->in < CPU_KIND_F16 && out->numel == 1 && in->flags & CTRT_VIEW_CONTIGUOUS && in->numel > 0
        && in->numel <= 4096) {
        char acc[CPU_ACC_BYTES] __attribute__((aligned(16)));
        reducer->start(acc, 1);
        reducer->run(acc, in->data, in->numel, 0);
        reducer->finish(out->data, 0, acc, 1, in->numel);
        return CTRT_OK;
    }
    const ctrt_reduce_attributes *attributes = call->attributes;
    struct reduce_walk w = { .reducer = reducer, .in = in->data, .out = out->data, .outputs = 1, .count = 1,
                             .in_bytes = cpu_kind_bytes(reducer->in), .out_bytes = cpu_kind_bytes(reducer->out) };
    if (out->numel == 0)
        return CTRT_OK;
    find_dimensions(&w, in, out, attributes->dims);
    if (w.count == 0 && reducer->needs_one)
        return cpu_host->fail(CTRT_ERR_SHAPE, "%s over no elements: the size of a reduced dimension is 0", op);

    const struct dimension *inner = w.n_kept ? &w.kept[w.n_kept - 1] : NULL;
    w.columns = inner && inner->in == 1 && w.reduced[w.n_reduced - 1].in != 1;
    w.tile = w.columns && inner->size > TILE ? TILE : w.columns ? inner->size : 1;
    w.tiles = w.columns ? cpu_divide_up(inner->size, w.tile) : 1;
    w.groups = w.columns ? w.outputs / inner->size : w.outputs;
    w.piece = w.columns ? cpu_divide_up(4 * PIECE, w.tile) : PIECE;
    w.pieces = w.count > w.piece ? cpu_divide_up(w.count, w.piece) : 1;

    if (w.pieces > 1) {
        w.partial = malloc((size_t)(w.pieces * w.outputs) * reducer->acc_bytes);
        if (!w.partial)
            return cpu_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no memory for %lld partial results", op,
                                  (long long)(w.pieces * w.outputs));
    }
    int64_t items = w.groups * w.tiles * w.pieces;
    int64_t work = w.tile * (w.count < w.piece ? w.count : w.piece) + 16;
    cpu_parallel_for(items, work > CPU_GRAIN ? 1 : CPU_GRAIN / work, w.columns ? columns_part : runs_part, &w);
    if (w.partial) {
        cpu_parallel_for(w.outputs, 1 + CPU_GRAIN / w.pieces, join_part, &w);
        free(w.partial);
    }
    return CTRT_OK;
}
