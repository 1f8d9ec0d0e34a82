/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/layout.c: arithmetic of layouts. Layouts are described in bytes, because a layout belongs to a block
 * and not to a view. */
#include "multi.h"

uint8_t multi_sizes[256];

/* An op needs many sizes, and a call of the library for each would cost more than the arithmetic of layouts. */
__attribute__((constructor)) static void sizes_init(void)
{
    for (int dtype = 1; dtype < 256; dtype++)
        multi_sizes[dtype] = (uint8_t)ctrt_dtype_size((ctrt_dtype)dtype);
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

struct multi_range multi_chunk(int64_t n, int members, int member)
{
    const int64_t size = ceil_div(n, members);
    const int64_t start = member * size < n ? member * size : n;
    const int64_t end = start + size < n ? start + size : n;
    return (struct multi_range){ start, end - start };
}

int64_t multi_part_bytes(const struct multi_data *data, int members, int member)
{
    const int64_t period = data->extent * data->inner;
    return data->bytes / period * multi_chunk(data->extent, members, member).count * data->inner;
}

/* Returns the bytes from the view's first element to the end of its last one, or -1 if a stride is negative. */
static int64_t span(const ctrt_view *view, int64_t size)
{
    int64_t end = size;
    for (int d = 0; d < view->ndim; d++) {
        if (view->strides[d] < 0 && view->shape[d] > 1)
            return -1;
        end += (view->shape[d] - 1) * view->strides[d] * size;
    }
    return end;
}

/* Returns the number of groups if dimension d of the view is the sharded one, else 0. */
static int64_t match_dim(const struct multi_data *data, const ctrt_view *view, int64_t offset, int members, int d)
{
    const int64_t size = multi_dtype_bytes(view->dtype), n = view->shape[d];
    const int64_t stride = view->strides[d] * size, period = data->extent * data->inner, base = offset % period;
    if (n < 2 || stride <= 0 || (n * stride) % period != 0 || base >= stride)
        return 0;
    const int64_t groups = n * stride / period;
    if (n % groups != 0 || ceil_div(n / groups, members) * stride != ceil_div(data->extent, members) * data->inner)
        return 0;
    int64_t inside = base + size;           /* bytes that the dimensions with smaller strides than d span */
    for (int e = 0; e < view->ndim; e++) {
        const int64_t other = view->strides[e] * size;
        if (e == d || view->shape[e] == 1 || other % period == 0)
            continue;
        inside += (view->shape[e] - 1) * other;
        if (inside > stride)
            return 0;
    }
    return inside <= stride ? groups : 0;
}

/* Returns whether the view has elements, all of which are in the data. */
static bool within(const struct multi_data *data, const ctrt_view *view, int64_t offset)
{
    const int64_t bytes = span(view, multi_dtype_bytes(view->dtype));
    return view->numel != 0 && bytes >= 0 && offset + bytes <= data->bytes;
}

int multi_match(struct multi_split *split, const struct multi_data *data, const ctrt_view *view, int64_t offset,
                int members)
{
    if (!within(data, view, offset))
        return -1;
    int found = -1;
    for (int d = 0; d < view->ndim; d++) {
        const int64_t groups = match_dim(data, view, offset, members, d);
        if (groups == 0 || (found >= 0 && groups >= split->groups))
            continue;
        found = d;
        *split = (struct multi_split){ view->shape[d], groups };
    }
    return found;
}

/* Returns whether the view contains each element between its first and its last one exactly once. */
static bool dense(const ctrt_view *view)
{
    int64_t expected = 1;
    bool done[CTRT_MAX_DIMS] = { false };
    for (int count = 0; count < view->ndim; count++) {
        int next = -1;
        for (int d = 0; d < view->ndim; d++)
            if (!done[d] && (view->shape[d] == 1 || view->strides[d] == expected))
                next = d;
        if (next < 0)
            return false;
        done[next] = true;
        if (view->shape[next] > 1)
            expected *= view->shape[next];
    }
    return true;
}

/* The memory policy rounds sizes of blocks up to multiples of 64, so a block may be up to 63 bytes larger than its
 * tensor. */
bool multi_covers(const struct multi_data *data, const ctrt_view *view, int64_t offset, size_t block_bytes)
{
    const int64_t bytes = view->numel * multi_dtype_bytes(view->dtype);
    const int64_t written = data->state == MULTI_EMPTY ? 0 : data->bytes;
    return offset == 0 && bytes > (int64_t)block_bytes - 64 && bytes >= written && dense(view);
}

void multi_note_write(struct multi_data *data, const ctrt_view *view, int64_t offset)
{
    const int64_t bytes = span(view, multi_dtype_bytes(view->dtype));
    if (data->state != MULTI_SHARDED && offset + bytes > data->bytes)
        data->bytes = offset + bytes;
}

/* Returns the view with size 1 in the dimensions that ctrt_expand has repeated, so that it has each element once. */
static ctrt_view without_repeats(const ctrt_view *view)
{
    ctrt_view once = *view;
    for (int d = 0; d < view->ndim; d++)
        if (view->strides[d] == 0 && view->shape[d] > 1) {
            once.numel /= view->shape[d];
            once.shape[d] = 1;
        }
    return once;
}

bool multi_describe(struct multi_data *data, const ctrt_view *expanded, int64_t offset, size_t block_bytes, int dim,
                    struct multi_split split, int members)
{
    const ctrt_view once = without_repeats(expanded), *view = &once;
    const int64_t size = multi_dtype_bytes(view->dtype);
    const bool whole = multi_covers(data, view, offset, block_bytes);
    struct multi_data described = { .bytes = data->bytes };
    if (split.n < 2 || view->strides[dim] <= 0 || (!whole && data->state != MULTI_CONSTANT))
        return false;
    if (whole)
        described.bytes = view->numel * size;
    described.extent = split.n / split.groups;
    described.inner = view->strides[dim] * size;
    if (described.bytes % (described.extent * described.inner) != 0)
        return false;
    if (!within(&described, view, offset) || match_dim(&described, view, offset, members, dim) != split.groups)
        return false;
    data->bytes = described.bytes;
    data->extent = described.extent;
    data->inner = described.inner;
    return true;
}

void multi_local(ctrt_operand *out, const struct multi_data *data, const ctrt_view *view, int64_t offset, int dim,
                 struct multi_split split, int members, int member)
{
    out->view = *view;
    out->number = NULL;
    out->tensor = data != NULL ? data->parts[member] : NULL;
    out->offset = offset;
    if (dim < 0)
        return;
    const int64_t size = multi_dtype_bytes(view->dtype);
    const struct multi_range range = multi_chunk(split.n / split.groups, members, member);
    out->view.shape[dim] = split.groups * range.count;
    if (data == NULL)
        return;
    if (data->state != MULTI_SHARDED) {
        out->offset += range.start * view->strides[dim] * size;
        return;
    }
    const int64_t period = data->extent * data->inner, local = range.count * view->strides[dim] * size;
    out->offset = offset / period * local + offset % period;
    for (int e = 0; e < view->ndim; e++) {
        const int64_t stride = view->strides[e] * size;
        if (e != dim && view->shape[e] > 1 && stride % period == 0)
            out->view.strides[e] = stride / period * local / size;
    }
}
