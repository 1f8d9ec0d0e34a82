/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/shape.c: arithmetic of shapes and strides. */
#include "tensor/shape.h"

#include <limits.h>

const char *shape_text(char *buffer, const int64_t *shape, int ndim)
{
    size_t used = 0;
    buffer[used++] = '[';
    for (int d = 0; d < ndim; d++) {
        int n = snprintf(buffer + used, SHAPE_TEXT_BYTES - used, d ? ", %lld" : "%lld", (long long)shape[d]);
        /* a program's list may be longer than any tensor's shape */
        if (n < 0 || used + (size_t)n > SHAPE_TEXT_BYTES - 8) {
            memcpy(buffer + used, ", ...", 5);
            used += 5;
            break;
        }
        used += (size_t)n;
    }
    buffer[used++] = ']';
    buffer[used] = '\0';
    return buffer;
}

ctrt_status shape_check(const char *who, ctrt_ints shape, ctrt_dtype dtype)
{
    char text[SHAPE_TEXT_BYTES];
    if (unlikely(shape.count < 0 || shape.count > CTRT_MAX_DIMS))
        return fail_from(shape.count < 0 ? CTRT_ERR_INVALID_ARGUMENT : CTRT_ERR_SHAPE,
                         who, "a shape of %d dimensions; a tensor has 0 to %d", shape.count, CTRT_MAX_DIMS);
    if (unlikely(shape.values == NULL && shape.count > 0))
        return fail_null(who, "shape.values");
    /* Count sizes of 0 as 1, so that row-major strides also cannot overflow. */
    int64_t bytes = (int64_t)dtype_bytes(dtype);
    for (int d = 0; d < shape.count; d++) {
        int64_t size = shape.values[d];
        if (unlikely(size < 0))
            return fail_from(CTRT_ERR_SHAPE, who, "negative size %lld at dimension %d of shape %s", (long long)size,
                             d, shape_text(text, shape.values, shape.count));
        if (unlikely(__builtin_mul_overflow(bytes, MAX(size, 1), &bytes)))
            return fail_from(CTRT_ERR_OVERFLOW, who, "a tensor of shape %s and dtype %s has more than 2^63 bytes",
                             shape_text(text, shape.values, shape.count), ctrt_dtype_name(dtype));
    }
    return CTRT_OK;
}

int64_t shape_numel(const int64_t *shape, int ndim)
{
    int64_t numel = 1;
    for (int d = 0; d < ndim; d++)
        numel *= shape[d];
    return numel;
}

void shape_strides(int64_t *strides, const int64_t *shape, int ndim)
{
    int64_t stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= MAX(shape[d], 1);
    }
}

void shape_strides_channels_last(int64_t *strides, const int64_t *shape)
{
    strides[1] = 1;
    strides[3] = MAX(shape[1], 1);
    strides[2] = strides[3] * MAX(shape[3], 1);
    strides[0] = strides[2] * MAX(shape[2], 1);
}

void shape_strides_in_order(int64_t *strides, const ctrt_view *view)
{
    /* Sort the dimensions, fastest first. A repeated dimension (stride 0) has no order and keeps its row-major
     * position. */
    int order[CTRT_MAX_DIMS];
    const int ndim = view->ndim;
    for (int i = 0; i < ndim; i++) {
        order[i] = ndim - 1 - i;
        for (int at = i, j = i - 1; j >= 0; j--) {
            const int inner = order[j], outer = order[at];
            const int64_t a = view->strides[inner], b = view->strides[outer];
            if (a == 0 || b == 0)
                continue;
            if (a < b)
                break;
            if (a > b || view->shape[inner] > view->shape[outer]) {
                order[j] = outer;
                order[at] = inner;
                at = j;
            }
        }
    }
    int64_t stride = 1;
    for (int i = 0; i < ndim; i++) {
        strides[order[i]] = stride;
        stride *= MAX(view->shape[order[i]], 1);
    }
}

/* Reports whether the dimensions, fastest first, are dense. Strides of dimensions of size 1 are ignored. */
static bool dense_in_order(const ctrt_view *view, const uint8_t *order)
{
    int64_t expected = 1;
    for (int i = 0; i < view->ndim; i++) {
        int d = order[i];
        if (view->shape[d] == 1)
            continue;
        if (view->strides[d] != expected)
            return false;
        expected *= view->shape[d];
    }
    return true;
}

void view_refresh(ctrt_view *view)
{
    static const uint8_t nhwc[4] = { 1, 3, 2, 0 };
    int64_t numel = 1, expected = 1;
    bool contiguous = true;
    for (int d = view->ndim - 1; d >= 0; d--) {
        int64_t size = view->shape[d];
        numel *= size;
        if (size != 1) {
            contiguous &= view->strides[d] == expected;
            expected *= size;
        }
    }
    view->numel = numel;
    uint16_t flags = view->flags & (uint16_t)~(CTRT_VIEW_CONTIGUOUS | CTRT_VIEW_CHANNELS_LAST);
    if (contiguous || numel == 0)
        flags |= CTRT_VIEW_CONTIGUOUS;
    if (view->ndim == 4 && (numel == 0 || dense_in_order(view, nhwc)))
        flags |= CTRT_VIEW_CHANNELS_LAST;
    view->flags = flags;
}

ctrt_status shape_dim(int *out, const char *who, int64_t dim, int ndim)
{
    int range = MAX(ndim, 1);
    if (unlikely(dim < -range || dim >= range))
        return fail_from(CTRT_ERR_SHAPE, who, "dimension %lld is out of range [%d, %d]", (long long)dim, -range,
                         range - 1);
    *out = (int)(dim < 0 ? dim + range : dim);
    return CTRT_OK;
}

ctrt_status shape_dims(uint32_t *out, const char *who, ctrt_ints dims, int ndim)
{
    if (dims.count == -1 || dims.count == 0) {
        *out = (1u << ndim) - 1;
        return CTRT_OK;
    }
    if (unlikely(dims.count < 0))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, who, "a list of %d dimensions; use CTRT_DIMS(...) or CTRT_ALL_DIMS",
                         dims.count);
    if (unlikely(dims.values == NULL))
        return fail_null(who, "dims.values");
    uint32_t set = 0;
    for (int i = 0; i < dims.count; i++) {
        int d = 0;
        CTRT_TRY(shape_dim(&d, who, dims.values[i], ndim));
        if (unlikely(set & (1u << d)))
            return fail_from(CTRT_ERR_SHAPE, who, "dimension %d is given twice in the list of dimensions", d);
        set |= 1u << d;
    }
    *out = ndim == 0 ? 0 : set;         /* a 0-dim tensor accepts dim 0 and -1, but has no dimension to reduce */
    return CTRT_OK;
}

bool shape_equal(const int64_t *a, int a_ndim, const int64_t *b, int b_ndim)
{
    if (a_ndim != b_ndim)
        return false;
    for (int d = 0; d < a_ndim; d++)
        if (a[d] != b[d])
            return false;
    return true;
}

ctrt_status shape_broadcast(int64_t *out, int *out_ndim, const char *who, const int64_t *a, int a_ndim,
                            const int64_t *b, int b_ndim)
{
    int ndim = MAX(a_ndim, b_ndim);
    int64_t result[CTRT_MAX_DIMS], numel = 1;
    bool overflow = false;
    for (int d = ndim - 1, i = a_ndim - 1, j = b_ndim - 1; d >= 0; d--, i--, j--) {
        int64_t p = i < 0 ? 1 : a[i], q = j < 0 ? 1 : b[j];
        if (unlikely(p != q && p != 1 && q != 1)) {
            char first[SHAPE_TEXT_BYTES], second[SHAPE_TEXT_BYTES];
            return fail_from(CTRT_ERR_SHAPE, who,
                             "shapes %s and %s do not broadcast: %lld and %lld at dimension %d from the end "
                             "differ and neither is 1", shape_text(first, a, a_ndim),
                             shape_text(second, b, b_ndim), (long long)p, (long long)q, ndim - 1 - d);
        }
        result[d] = p == 1 ? q : p;
        overflow |= __builtin_mul_overflow(numel, MAX(result[d], 1), &numel);
    }
    if (unlikely(overflow)) {
        char first[SHAPE_TEXT_BYTES], second[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_OVERFLOW, who, "shapes %s and %s broadcast to more than 2^63 elements",
                         shape_text(first, a, a_ndim), shape_text(second, b, b_ndim));
    }
    memcpy(out, result, sizeof out[0] * (size_t)ndim);
    *out_ndim = ndim;
    return CTRT_OK;
}

void view_expand(ctrt_view *out, const ctrt_view *in, const int64_t *shape, int ndim)
{
    /* Start at the last dimension, because out may alias in. */
    int in_ndim = in->ndim;
    for (int d = ndim - 1, i = in_ndim - 1; d >= 0; d--, i--) {
        bool given = i >= 0 && in->shape[i] == shape[d];
        out->strides[d] = given ? in->strides[i] : 0;
    }
    if (out != in) {
        out->data = in->data;
        out->dtype = in->dtype;
        out->flags = in->flags;
        out->reserved = 0;
        out->owner = in->owner;
    }
    out->ndim = (uint8_t)ndim;
    memmove(out->shape, shape, sizeof shape[0] * (size_t)ndim);
    view_refresh(out);
}

bool view_fold(ctrt_view *view, int kept)
{
    const int leading = view->ndim - kept;
    int64_t size = 1, stride = 0;
    for (int d = leading - 1; d >= 0; d--) {
        if (view->shape[d] == 1)
            continue;
        if (size == 1)
            stride = view->strides[d];
        else if (view->strides[d] != stride * size)
            return false;
        size *= view->shape[d];
    }
    memmove(view->shape + 1, view->shape + leading, (size_t)kept * sizeof view->shape[0]);
    memmove(view->strides + 1, view->strides + leading, (size_t)kept * sizeof view->strides[0]);
    view->shape[0] = size;
    view->strides[0] = stride;
    view->ndim = (uint8_t)(kept + 1);
    view_refresh(view);
    return true;
}

ctrt_status shape_infer(int64_t *out, const char *who, ctrt_ints wanted, int64_t numel)
{
    char text[SHAPE_TEXT_BYTES];
    if (unlikely(wanted.count < 0 || wanted.count > CTRT_MAX_DIMS))
        return fail_from(wanted.count < 0 ? CTRT_ERR_INVALID_ARGUMENT : CTRT_ERR_SHAPE,
                         who, "a shape of %d dimensions; a tensor has 0 to %d", wanted.count, CTRT_MAX_DIMS);
    if (unlikely(wanted.values == NULL && wanted.count > 0))
        return fail_null(who, "shape.values");

    int inferred = -1;
    int64_t known = 1;
    bool overflow = false, has_zero = false;
    for (int d = 0; d < wanted.count; d++) {
        int64_t size = wanted.values[d];
        out[d] = size;
        if (size == -1) {
            if (unlikely(inferred >= 0))
                return fail_from(CTRT_ERR_SHAPE, who, "only one size can be -1 (inferred) in shape %s",
                                 shape_text(text, wanted.values, wanted.count));
            inferred = d;
        } else if (unlikely(size < 0)) {
            return fail_from(CTRT_ERR_SHAPE, who, "negative size %lld at dimension %d of shape %s", (long long)size,
                             d, shape_text(text, wanted.values, wanted.count));
        } else {
            has_zero |= size == 0;
            overflow |= __builtin_mul_overflow(known, size, &known);
        }
    }
    if (has_zero)
        known = 0, overflow = false;
    if (inferred >= 0) {
        if (unlikely(known == 0 && numel == 0))
            return fail_from(CTRT_ERR_SHAPE, who,
                             "the size -1 in shape %s is ambiguous for a tensor without elements; give the size",
                             shape_text(text, wanted.values, wanted.count));
        if (likely(!overflow && known > 0 && numel % known == 0)) {
            out[inferred] = numel / known;
            return CTRT_OK;
        }
    } else if (likely(!overflow && known == numel)) {
        return CTRT_OK;
    }
    return fail_from(CTRT_ERR_SHAPE, who, "shape %s does not match a tensor of %lld elements",
                     shape_text(text, wanted.values, wanted.count), (long long)numel);
}

bool shape_view_strides(int64_t *strides, const ctrt_view *in, const int64_t *shape, int ndim)
{
    if (in->flags & CTRT_VIEW_CONTIGUOUS) {             /* includes tensors without elements */
        if (unlikely(in->numel == 0) && shape_equal(shape, ndim, in->shape, in->ndim))
            memcpy(strides, in->strides, sizeof strides[0] * (size_t)ndim);
        else
            shape_strides(strides, shape, ndim);
        return true;
    }
    /* Group the old dimensions into runs that are contiguous like one long dimension, and split each run into new
     * dimensions. A new dimension cannot span two runs. */
    int d = ndim - 1;
    for (int old = in->ndim - 1; old >= 0;) {
        int64_t step = in->strides[old], run = in->shape[old--];
        if (run == 1)
            continue;
        while (old >= 0 && (in->shape[old] == 1 || in->strides[old] == run * step))
            run *= in->shape[old--];
        int64_t cut = 1;
        for (; d >= 0 && (cut < run || shape[d] == 1); d--) {
            strides[d] = cut * step;
            cut *= shape[d];
        }
        if (cut != run)
            return false;
    }
    for (; d >= 0; d--) {                               /* the remaining dimensions must have size 1 */
        if (shape[d] != 1)
            return false;
        strides[d] = d + 1 < ndim ? strides[d + 1] * shape[d + 1] : 1;
    }
    return true;
}

void view_contiguous(ctrt_view *out, const ctrt_view *like, void *data)
{
    *out = *like;
    shape_strides(out->strides, like->shape, like->ndim);
    out->flags &= (uint16_t)~(CTRT_VIEW_HOST_SCALAR | CTRT_VIEW_PINNED);
    view_refresh(out);
    out->data = data;
    out->owner = NULL;
}

void view_reshape(ctrt_view *view, const int64_t *shape, int ndim)
{
    view->ndim = (uint8_t)ndim;
    memcpy(view->shape, shape, (size_t)ndim * sizeof *shape);
    shape_strides(view->strides, shape, ndim);
    view_refresh(view);
}

ctrt_view view_split(const ctrt_view *x, int dim)
{
    ctrt_view split = *x;
    const int after = x->ndim > 0 ? dim + 1 : 0;
    view_reshape(&split, (const int64_t[]){ shape_numel(x->shape, dim), x->ndim > 0 ? x->shape[dim] : 1,
                                            shape_numel(x->shape + after, x->ndim - after) }, 3);
    return split;
}

size_t view_span(const ctrt_view *view, size_t *before)
{
    int64_t low = 0, high = 1;
    for (int d = 0; d < view->ndim; d++) {
        int64_t reach = (view->shape[d] - 1) * view->strides[d];
        low += MIN(reach, 0);
        high += MAX(reach, 0);
    }
    *before = (size_t)-low * dtype_bytes(view->dtype);
    return (size_t)(high - low) * dtype_bytes(view->dtype);
}
