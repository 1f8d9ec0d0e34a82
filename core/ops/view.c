/* SPDX-License-Identifier: Apache-2.0 */
/* ops/view.c: ops that return a view, a tensor that shares the storage of its input.
 *
 * Each function computes shape, strides and offset and calls view_make. The graph stores the shapes of inputs, so
 * attributes hold only what cannot be derived from these. */
#include "ops/op_common.h"

#include "base/host_alloc.h"

static ctrt_status view_make(ctrt_tensor **out, enum op op, ctrt_tensor *x, const int64_t *shape,
                             const int64_t *strides, int ndim, int64_t offset, const union op_attributes *attributes)
{
    ctrt_tensor *result = NULL;
    CTRT_TRY(tensor_new_view(&result, x, shape, strides, ndim, offset));
    ctrt_status status = autograd_view(op, result, x, attributes);
    if (unlikely(status != CTRT_OK)) {
        tensor_release(result);
        return status;
    }
    tensor_move(out, result);
    return CTRT_OK;
}

/* Creates a view of the same elements with another shape, recorded as OP_view. */
static ctrt_status reshaped(ctrt_tensor **out, ctrt_tensor *x, const int64_t *shape, const int64_t *strides, int ndim)
{
    return view_make(out, OP_view, x, shape, strides, ndim, tensor_offset(x), NULL);
}

static ctrt_status too_many_dims(const char *who, int ndim)
{
    return fail_from(CTRT_ERR_SHAPE, who, "the result would have %d dimensions; a tensor has at most %d", ndim,
                     CTRT_MAX_DIMS);
}

/* ---- changes of shape ---- */

static ctrt_status infer(int64_t *to, const char *who, const ctrt_tensor *x, ctrt_ints shape)
{
    CTRT_TRY(shape_infer(to, who, shape, x->view.numel));
    if (unlikely(x->view.numel == 0))           /* the other sizes of an empty tensor are not limited by its elements */
        return shape_check(who, ctrt_ints_of(to, shape.count), tensor_dtype(x));
    return CTRT_OK;
}

ctrt_status ctrt_view_as(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape)
{
    int64_t to[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS];
    NULL_CHECK("view_as", out);
    NULL_CHECK("view_as", x);
    CTRT_TRY(infer(to, "view_as", x, shape));
    if (unlikely(!shape_view_strides(strides, &x->view, to, shape.count))) {
        char from_text[SHAPE_TEXT_BYTES], strides_text[SHAPE_TEXT_BYTES], to_text[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_SHAPE, "view_as",
                         "a tensor of shape %s and strides %s cannot be viewed as %s without a copy; use "
                         "ctrt_reshape", shape_text(from_text, x->view.shape, x->view.ndim),
                         shape_text(strides_text, x->view.strides, x->view.ndim), shape_text(to_text, to, shape.count));
    }
    return reshaped(out, x, to, strides, shape.count);
}

static ctrt_status reshape_to(ctrt_tensor **out, ctrt_tensor *x, const int64_t *to, int ndim)
{
    int64_t strides[CTRT_MAX_DIMS];
    if (likely(shape_view_strides(strides, &x->view, to, ndim)))
        return reshaped(out, x, to, strides, ndim);
    ctrt_tensor *dense = NULL;
    CTRT_TRY(ctrt_contiguous(&dense, x, CTRT_CONTIGUOUS_FORMAT));
    shape_strides(strides, to, ndim);
    ctrt_status status = reshaped(out, dense, to, strides, ndim);
    tensor_release(dense);
    return status;
}

ctrt_status ctrt_reshape(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape)
{
    int64_t to[CTRT_MAX_DIMS];
    NULL_CHECK("reshape", out);
    NULL_CHECK("reshape", x);
    CTRT_TRY(infer(to, "reshape", x, shape));
    return reshape_to(out, x, to, shape.count);
}

ctrt_status ctrt_flatten(ctrt_tensor **out, ctrt_tensor *x, int first_dim, int last_dim)
{
    int first, last, ndim = 0;
    int64_t to[CTRT_MAX_DIMS];
    NULL_CHECK("flatten", out);
    NULL_CHECK("flatten", x);
    CTRT_TRY(shape_dim(&first, "flatten", first_dim, x->view.ndim));
    CTRT_TRY(shape_dim(&last, "flatten", last_dim, x->view.ndim));
    if (unlikely(first > last))
        return fail_from(CTRT_ERR_SHAPE, "flatten", "the first dimension %d is after the last, %d", first, last);
    if (first == last && x->view.ndim > 0) {
        ctrt_tensor_assign(out, x);
        return CTRT_OK;
    }
    for (int d = 0; d < first; d++)
        to[ndim++] = x->view.shape[d];
    to[ndim] = 1;
    for (int d = first; d <= last && d < x->view.ndim; d++)
        to[ndim] *= x->view.shape[d];           /* the result is at most numel, or 0 */
    ndim++;
    for (int d = last + 1; d < x->view.ndim; d++)
        to[ndim++] = x->view.shape[d];
    return reshape_to(out, x, to, ndim);
}

ctrt_status ctrt_squeeze(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims)
{
    NULL_CHECK("squeeze", out);
    NULL_CHECK("squeeze", x);
    uint32_t set = 0;                           /* an empty list means no dimension, unlike in reductions */
    if (dims.count != 0)
        CTRT_TRY(shape_dims(&set, "squeeze", dims, x->view.ndim));
    int64_t shape[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS];
    int ndim = 0;
    for (int d = 0; d < x->view.ndim; d++) {
        if ((set & (1u << d)) && x->view.shape[d] == 1)
            continue;
        shape[ndim] = x->view.shape[d];
        strides[ndim++] = x->view.strides[d];
    }
    return reshaped(out, x, shape, strides, ndim);
}

ctrt_status ctrt_unsqueeze(ctrt_tensor **out, ctrt_tensor *x, int dim)
{
    NULL_CHECK("unsqueeze", out);
    NULL_CHECK("unsqueeze", x);
    const int from = x->view.ndim;
    if (unlikely(from == CTRT_MAX_DIMS))
        return too_many_dims("unsqueeze", from + 1);
    int at;
    CTRT_TRY(shape_dim(&at, "unsqueeze", dim, from + 1));
    int64_t shape[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS];
    for (int d = 0; d <= from; d++) {
        int source = d < at ? d : d - 1;
        shape[d] = d == at ? 1 : x->view.shape[source];
        strides[d] = d != at ? x->view.strides[source] : d < from ? x->view.shape[d] * x->view.strides[d] : 1;
    }
    return reshaped(out, x, shape, strides, from + 1);
}

/* ---- permutations ---- */

static ctrt_status permuted(ctrt_tensor **out, ctrt_tensor *x, const int *order)
{
    union op_attributes attributes;
    int64_t shape[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS];
    for (int d = 0; d < x->view.ndim; d++) {
        attributes.permute.dims[d] = (int8_t)order[d];
        shape[d] = x->view.shape[order[d]];
        strides[d] = x->view.strides[order[d]];
    }
    return view_make(out, OP_permute, x, shape, strides, x->view.ndim, tensor_offset(x), &attributes);
}

ctrt_status ctrt_permute(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims)
{
    NULL_CHECK("permute", out);
    NULL_CHECK("permute", x);
    if (unlikely(dims.values == NULL && dims.count > 0))
        return fail_null("permute", "dims.values");
    if (unlikely(dims.count != x->view.ndim)) {
        char text[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_SHAPE, "permute", "%d dimensions given, but the tensor of shape %s has %d",
                         dims.count, shape_text(text, x->view.shape, x->view.ndim), x->view.ndim);
    }
    int order[CTRT_MAX_DIMS];
    uint32_t seen = 0;
    for (int i = 0; i < dims.count; i++) {
        CTRT_TRY(shape_dim(&order[i], "permute", dims.values[i], dims.count));
        if (unlikely(seen & (1u << order[i])))
            return fail_from(CTRT_ERR_SHAPE, "permute", "dimension %d is given twice", order[i]);
        seen |= 1u << order[i];
    }
    return permuted(out, x, order);
}

ctrt_status ctrt_transpose(ctrt_tensor **out, ctrt_tensor *x, int dim0, int dim1)
{
    int a, b, order[CTRT_MAX_DIMS];
    NULL_CHECK("transpose", out);
    NULL_CHECK("transpose", x);
    CTRT_TRY(shape_dim(&a, "transpose", dim0, x->view.ndim));
    CTRT_TRY(shape_dim(&b, "transpose", dim1, x->view.ndim));
    for (int d = 0; d < x->view.ndim; d++)
        order[d] = d == a ? b : d == b ? a : d;
    return permuted(out, x, order);
}

ctrt_status ctrt_t(ctrt_tensor **out, ctrt_tensor *x)
{
    static const int reversed[3][2] = { { 0 }, { 0 }, { 1, 0 } };
    NULL_CHECK("t", out);
    NULL_CHECK("t", x);
    if (unlikely(x->view.ndim > 2)) {
        char text[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_SHAPE, "t", "expected a tensor of at most 2 dimensions, not %s; use ctrt_transpose",
                         shape_text(text, x->view.shape, x->view.ndim));
    }
    return permuted(out, x, reversed[x->view.ndim]);
}

/* ---- expansion ---- */

ctrt_status ctrt_expand(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape)
{
    char from_text[SHAPE_TEXT_BYTES], to_text[SHAPE_TEXT_BYTES];
    NULL_CHECK("expand", out);
    NULL_CHECK("expand", x);
    if (unlikely(shape.values == NULL && shape.count > 0))
        return fail_null("expand", "shape.values");
    const int added = shape.count - x->view.ndim;
    if (unlikely(shape.count < 0))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "expand", "a shape of %d dimensions", shape.count);
    if (unlikely(shape.count > CTRT_MAX_DIMS))
        return too_many_dims("expand", shape.count);
    if (unlikely(added < 0))
        return fail_from(CTRT_ERR_SHAPE, "expand", "shape %s has fewer dimensions than the tensor's %s",
                         shape_text(to_text, shape.values, shape.count),
                         shape_text(from_text, x->view.shape, x->view.ndim));
    int64_t to[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS];
    for (int d = shape.count - 1; d >= 0; d--) {
        int64_t wanted = shape.values[d], given = d < added ? 1 : x->view.shape[d - added];
        bool keep = wanted == -1 && d >= added;
        if (unlikely(!keep && (wanted < 0 || (wanted != given && given != 1))))
            return fail_from(CTRT_ERR_SHAPE, "expand",
                             "size %lld at dimension %d cannot come from %lld; shape %s expanded to %s: only "
                             "sizes of 1 can be repeated, and -1 keeps an existing size", (long long)wanted, d,
                             (long long)given,
                             shape_text(from_text, x->view.shape, x->view.ndim),
                             shape_text(to_text, shape.values, shape.count));
        to[d] = keep ? given : wanted;
    }
    CTRT_TRY(shape_check("expand", ctrt_ints_of(to, shape.count), tensor_dtype(x)));
    for (int d = shape.count - 1; d >= 0; d--) {
        int64_t given = d < added ? 1 : x->view.shape[d - added];
        strides[d] = to[d] != given ? 0
                     : d >= added ? x->view.strides[d - added]
                     : d + 1 < shape.count ? to[d + 1] * strides[d + 1] : 1;
    }
    return view_make(out, OP_expand, x, to, strides, shape.count, tensor_offset(x), NULL);
}

/* ---- slices ---- */

static ctrt_status dim_of_part(int *out, const char *who, const ctrt_tensor *x, int64_t dim)
{
    if (unlikely(x->view.ndim == 0))
        return fail_from(CTRT_ERR_SHAPE, who, "a 0-dim tensor has no dimension to select from");
    return shape_dim(out, who, dim, x->view.ndim);
}

ctrt_status ctrt_select(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t index)
{
    int at;
    NULL_CHECK("select", out);
    NULL_CHECK("select", x);
    CTRT_TRY(dim_of_part(&at, "select", x, dim));
    const int64_t size = x->view.shape[at];
    if (unlikely(index < -size || index >= size)) {
        char text[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_SHAPE, "select", "index %lld is out of range for dimension %d of shape %s",
                         (long long)index, at, shape_text(text, x->view.shape, x->view.ndim));
    }
    if (index < 0)
        index += size;
    int64_t shape[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS];
    int ndim = 0;
    for (int d = 0; d < x->view.ndim; d++) {
        if (d == at)
            continue;
        shape[ndim] = x->view.shape[d];
        strides[ndim++] = x->view.strides[d];
    }
    union op_attributes attributes;
    attributes.slice.dim = at;
    attributes.slice.start = index;
    attributes.slice.end = index + 1;
    attributes.slice.step = 1;
    return view_make(out, OP_select, x, shape, strides, ndim, tensor_offset(x) + index * x->view.strides[at],
                     &attributes);
}

/* Creates the view x[start:end:step] in `dim`. start and end must be within the dimension. */
static ctrt_status sliced(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t start, int64_t end, int64_t step)
{
    const int ndim = x->view.ndim;
    int64_t shape[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS], stride;
    for (int d = 0; d < ndim; d++) {
        shape[d] = x->view.shape[d];
        strides[d] = x->view.strides[d];
    }
    shape[dim] = (end - start) / step + ((end - start) % step != 0);
    if (__builtin_mul_overflow(strides[dim], step, &stride))
        stride = strides[dim];                  /* the step is past the end: one element, any stride is valid */
    strides[dim] = stride;
    union op_attributes attributes;
    attributes.slice.dim = dim;
    attributes.slice.start = start;
    attributes.slice.end = end;
    attributes.slice.step = step;
    return view_make(out, OP_slice, x, shape, strides, ndim, tensor_offset(x) + start * x->view.strides[dim],
                     &attributes);
}

ctrt_status ctrt_slice(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t start, int64_t end, int64_t step)
{
    int at;
    NULL_CHECK("slice", out);
    NULL_CHECK("slice", x);
    CTRT_TRY(dim_of_part(&at, "slice", x, dim));
    if (unlikely(step <= 0))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "slice", "the step is %lld, expected at least 1", (long long)step);
    const int64_t size = x->view.shape[at];
    if (start < 0)
        start = start < -size ? 0 : start + size;
    if (end < 0)
        end = end < -size ? 0 : end + size;
    start = MIN(start, size);
    end = MAX(MIN(end, size), start);
    return sliced(out, x, at, start, end, step);
}

ctrt_status ctrt_narrow(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t start, int64_t length)
{
    int at;
    NULL_CHECK("narrow", out);
    NULL_CHECK("narrow", x);
    CTRT_TRY(dim_of_part(&at, "narrow", x, dim));
    const int64_t size = x->view.shape[at];
    int64_t from = start < 0 ? start + size : start;
    if (unlikely(length < 0 || start < -size || start > size || from > size - length)) {
        char text[SHAPE_TEXT_BYTES];
        return fail_from(CTRT_ERR_SHAPE, "narrow",
                         "%lld elements from %lld on are not inside dimension %d of shape %s",
                         (long long)length, (long long)start, at, shape_text(text, x->view.shape, x->view.ndim));
    }
    return sliced(out, x, at, from, from + length, 1);
}

ctrt_status ctrt_chunk(ctrt_tensor **out, int *count, ctrt_tensor *x, int chunks, int dim)
{
    int at;
    NULL_CHECK("chunk", out);
    NULL_CHECK("chunk", count);
    NULL_CHECK("chunk", x);
    if (unlikely(chunks <= 0))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "chunk", "%d chunks; expected at least 1", chunks);
    CTRT_TRY(dim_of_part(&at, "chunk", x, dim));

    /* Chunks have size ceil(size/chunks). The last one may be smaller, and there may be fewer than `chunks`. */
    const int64_t size = x->view.shape[at], piece = size / chunks + (size % chunks != 0);
    const int n = size == 0 ? chunks : (int)(size / piece + (size % piece != 0));
    ctrt_tensor *few[16] = { NULL }, **pieces = few;
    if (n > (int)COUNT_OF(few)) {
        pieces = host_calloc((size_t)n * sizeof *pieces);
        ALLOC_CHECK(pieces, (size_t)n * sizeof *pieces, "chunk");
    }
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < n && status == CTRT_OK; i++) {
        status = sliced(&pieces[i], x, at, i * piece, i * piece + MIN(piece, size - i * piece), 1);
        if (status == CTRT_OK)
            autograd_view_of_several(pieces[i]);
    }
    for (int i = 0; i < n; i++) {
        if (status == CTRT_OK)
            tensor_move(&out[i], pieces[i]);
        else
            tensor_release(pieces[i]);
    }
    if (pieces != few)
        host_free(pieces);
    if (status == CTRT_OK)
        *count = n;
    return status;
}

ctrt_status ctrt_as_strided(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape, ctrt_ints strides, int64_t offset)
{
    char shape_words[SHAPE_TEXT_BYTES], strides_words[SHAPE_TEXT_BYTES];
    NULL_CHECK("as_strided", out);
    NULL_CHECK("as_strided", x);
    CTRT_TRY(shape_check("as_strided", shape, tensor_dtype(x)));
    if (unlikely(strides.count != shape.count))
        return fail_from(CTRT_ERR_SHAPE, "as_strided", "%d sizes and %d strides", shape.count, strides.count);
    if (unlikely(strides.values == NULL && strides.count > 0))
        return fail_null("as_strided", "strides.values");
    if (unlikely(offset < 0))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "as_strided", "negative offset %lld", (long long)offset);

    union op_attributes attributes;
    int64_t last = offset;                      /* largest storage index of an element */
    bool outside = false, empty = false;
    for (int d = 0; d < shape.count; d++) {
        int64_t size = shape.values[d], stride = strides.values[d], reach;
        if (unlikely(stride < 0))
            return fail_from(CTRT_ERR_INVALID_ARGUMENT, "as_strided",
                             "negative stride %lld at dimension %d; strides are 0 or more",
                             (long long)stride, d);
        attributes.strided.shape[d] = size;
        attributes.strided.strides[d] = stride;
        empty |= size == 0;
        if (size > 1)
            outside |= __builtin_mul_overflow(size - 1, stride, &reach) || __builtin_add_overflow(last, reach, &last);
    }
    const int64_t elements = (int64_t)(x->storage->bytes / dtype_bytes(tensor_dtype(x)));
    outside = empty ? offset > elements : outside || last >= elements;
    if (unlikely(outside))
        return fail_from(CTRT_ERR_SHAPE, "as_strided",
                         "shape %s with strides %s from element %lld on exceeds the storage of %lld "
                         "elements", shape_text(shape_words, shape.values, shape.count),
                         shape_text(strides_words, strides.values, strides.count), (long long)offset,
                         (long long)elements);
    attributes.strided.offset = offset;
    attributes.strided.ndim = shape.count;
    return view_make(out, OP_as_strided, x, attributes.strided.shape, attributes.strided.strides, shape.count, offset,
                     &attributes);
}

ctrt_status ctrt_detach(ctrt_tensor **out, ctrt_tensor *x)
{
    NULL_CHECK("detach", out);
    NULL_CHECK("detach", x);
    ctrt_tensor *result = NULL;
    CTRT_TRY(tensor_new_view(&result, x, x->view.shape, x->view.strides, x->view.ndim, tensor_offset(x)));
    tensor_move(out, result);
    return CTRT_OK;
}
