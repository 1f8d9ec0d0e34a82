/* SPDX-License-Identifier: Apache-2.0 */
/* view.c: views. A reference maps each element of the result to an element of the input. */
#include "suite.h"

/* Makes a result of `shape` whose element k is element from[k] of the input; from NULL: element k. */
static void take(struct array *out, const struct array *in, int ndim, const int64_t *shape, const int64_t *from)
{
    array_make(out, in->dtype, ndim, shape);
    for (int64_t k = 0; k < out->numel; k++)
        element_copy(out, k, in, from ? from[k] : k);
}

/* reshape: n[0] number of dims, n[1...] the requested shape, n[6] the size of an inferred dim. */
static const struct variant reshapes[] = {
    { "2x6", NORMAL, .in = { S(3, 4) }, .n = { 2, 2, 6 } },
    { "one dim", NORMAL, .in = { S(2, 3, 4) }, .n = { 1, 24 } },
    { "inferred", NORMAL, .in = { S(2, 3, 4) }, .n = { 3, 4, -1, 2, 0, 1, 3 } },
    { "with ones", NORMAL, .in = { S(3, 4) }, .n = { 4, 1, 3, 1, 4 } },
    { "nothing", ZERO_SIZE, .in = { S(0, 4) }, .n = { 2, 2, 0 } },
    { "to 1", ZERO_DIM, .in = { S0 }, .n = { 2, 1, 1 } },
};

REFERENCE(reshape)
{
    int64_t shape[CTRT_MAX_DIMS];
    for (int d = 0; d < v->n[0]; d++)
        shape[d] = v->n[1 + d] < 0 ? v->n[6] : v->n[1 + d];
    take(out, in, (int)v->n[0], shape, NULL);
}

CALLS(reshape, ctrt_reshape(out, in[0], ctrt_ints_of(&v->n[1], (int)v->n[0])))

/* flatten: n[0], n[1] first and last dim. */
static const struct variant flattens[] = {
    { "all", NORMAL, .in = { S(2, 3, 4) }, .n = { 0, -1 } },
    { "the last two", NORMAL, .in = { S(2, 3, 4) }, .n = { 1, 2 } },
    { "one", NORMAL, .in = { S(2, 3, 4) }, .n = { 1, 1 } },
    { "nothing", ZERO_SIZE, .in = { S(2, 0, 4) }, .n = { 1, 2 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { 0, -1 } },
};

REFERENCE(flatten)
{
    int64_t shape[CTRT_MAX_DIMS] = { 1 };
    int first = dim_of(v->n[0], in->ndim), last = dim_of(v->n[1], in->ndim), ndim = 0;
    for (int d = 0; d < in->ndim; d++) {
        if (d > first && d <= last)
            shape[ndim - 1] *= in->shape[d];
        else
            shape[ndim++] = in->shape[d];
    }
    take(out, in, in->ndim ? ndim : 1, shape, NULL);
}

CALLS(flatten, ctrt_flatten(out, in[0], (int)v->n[0], (int)v->n[1]))

/* squeeze: n[0] number of dims (-1: all), n[1...] the dims; unsqueeze: n[0] the new dim. */
static const struct variant squeezes[] = {
    { "all", NORMAL, .in = { S(1, 3, 1, 2) }, .n = { -1 } },
    { "one", NORMAL, .in = { S(1, 3, 1, 2) }, .n = { 1, 2 } },
    { "two", NORMAL, .in = { S(1, 3, 1, 2) }, .n = { 2, 0, -2 } },
    { "a size that is not 1", NORMAL, .in = { S(2, 3) }, .n = { 1, 1 } },
    { "nothing", ZERO_SIZE, .in = { S(1, 0) }, .n = { -1 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { -1 } },
};

REFERENCE(squeeze)
{
    int64_t shape[CTRT_MAX_DIMS];
    int ndim = 0;
    for (int d = 0; d < in->ndim; d++) {
        bool named = v->n[0] < 0;
        for (int k = 0; k < v->n[0]; k++)
            named |= dim_of(v->n[1 + k], in->ndim) == d;
        if (!named || in->shape[d] != 1)
            shape[ndim++] = in->shape[d];
    }
    take(out, in, ndim, shape, NULL);
}

CALLS(squeeze, ctrt_squeeze(out, in[0], v->n[0] < 0 ? CTRT_ALL_DIMS : ctrt_ints_of(&v->n[1], (int)v->n[0])))

static const struct variant unsqueezes[] = {
    { "first", NORMAL, .in = { S(2, 3) }, .n = { 0 } },
    { "last", NORMAL, .in = { S(2, 3) }, .n = { -1 } },
    { "middle", NORMAL, .in = { S(2, 3) }, .n = { 1 } },
    { "nothing", ZERO_SIZE, .in = { S(0) }, .n = { 1 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { 0 } },
};

REFERENCE(unsqueeze)
{
    int64_t shape[CTRT_MAX_DIMS];
    int dim = dim_of(v->n[0], in->ndim + 1);
    for (int d = 0; d <= in->ndim; d++)
        shape[d] = d == dim ? 1 : in->shape[d - (d > dim)];
    take(out, in, in->ndim + 1, shape, NULL);
}

CALLS(unsqueeze, ctrt_unsqueeze(out, in[0], (int)v->n[0]))

/* permute and transpose: n[0...] the order. */
static const struct variant permutes[] = {
    { "2 dims", NORMAL, .in = { S(2, 3) }, .n = { 1, 0 } },
    { "3 dims", NORMAL, .in = { S(2, 3, 4) }, .n = { 2, 0, 1 } },
    { "negative", NORMAL, .in = { S(2, 3, 4) }, .n = { -1, 1, 0 } },
    { "nothing", ZERO_SIZE, .in = { S(2, 0) }, .n = { 1, 0 } },
};

REFERENCE(permute)
{
    int64_t shape[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS], at[CTRT_MAX_DIMS],
        *from = scratch((size_t)in->numel * sizeof *from);
    for (int d = 0; d < in->ndim; d++)
        shape[d] = in->shape[dim_of(v->n[d], in->ndim)];
    for (int64_t k = 0; k < in->numel; k++) {
        index_of(index, k, in->ndim, shape);
        for (int d = 0; d < in->ndim; d++)
            at[dim_of(v->n[d], in->ndim)] = index[d];
        from[k] = offset_in(in, at, in->ndim);
    }
    take(out, in, in->ndim, shape, from);
}

CALLS(permute, ctrt_permute(out, in[0], ctrt_ints_of(v->n, ctrt_tensor_ndim(in[0]))))

/* transpose: n[0...] the resulting order; n[6], n[7] the two dims. */
static const struct variant transposes[] = {
    { "2 dims", NORMAL, .in = { S(2, 3) }, .n = { 1, 0, [6] = 0, -1 } },
    { "3 dims", NORMAL, .in = { S(2, 3, 4) }, .n = { 2, 1, 0, [6] = 2, 0 } },
    { "itself", NORMAL, .in = { S(2, 3) }, .n = { 0, 1, [6] = 1, 1 } },
};
static const struct variant ts[] = {
    { "2 dims", NORMAL, .in = { S(2, 3) }, .n = { 1, 0 } },
    { "1 dim", NORMAL, .in = { S(3) }, .n = { 0 } },
    { "", ZERO_DIM, .in = { S0 } },
};

CALLS(transpose, ctrt_transpose(out, in[0], (int)v->n[6], (int)v->n[7]))
CALLS(t, ctrt_t(out, in[0]))

/* expand: n[0] number of dims, n[1...] the shape, where -1 keeps the size. */
static const struct variant expands[] = {
    { "a dim", NORMAL, .in = { S(3, 1) }, .n = { 2, 3, 4 } },
    { "new dims", NORMAL, .in = { S(3, 1) }, .n = { 4, 2, 1, -1, 4 } },
    { "kept", NORMAL, .in = { S(2, 3) }, .n = { 2, -1, -1 } },
    { "to nothing", ZERO_SIZE, .in = { S(1, 3) }, .n = { 2, 0, 3 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { 2, 2, 3 } },
};

REFERENCE(expand)
{
    int64_t shape[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS], numel = 1;
    int ndim = (int)v->n[0];
    for (int d = 0; d < ndim; d++) {
        shape[d] = v->n[1 + d] < 0 ? in->shape[d - (ndim - in->ndim)] : v->n[1 + d];
        numel *= shape[d];
    }
    int64_t *from = scratch((size_t)numel * sizeof *from + 1);
    for (int64_t k = 0; k < numel; k++) {
        index_of(index, k, ndim, shape);
        from[k] = offset_in(in, index, ndim);
    }
    take(out, in, ndim, shape, from);
}

CALLS(expand, ctrt_expand(out, in[0], ctrt_ints_of(&v->n[1], (int)v->n[0])))

/* select: n[0] dim, n[1] index; slice: dim, start, end, step; narrow: dim, start, length. For the reference
 * n[4] start, n[5] count, n[6] step, n[7] whether the dim is removed. */
static const struct variant selects[] = {
    { "first dim", NORMAL, .in = { S(3, 4) }, .n = { 0, 1, [4] = 1, 1, 1, 1 } },
    { "last dim, from the end", NORMAL, .in = { S(3, 4) }, .n = { -1, -1, [4] = 3, 1, 1, 1 } },
    { "middle", NORMAL, .in = { S(2, 3, 4) }, .n = { 1, 0, [4] = 0, 1, 1, 1 } },
    { "of nothing", ZERO_SIZE, .in = { S(0, 4) }, .n = { 1, 2, [4] = 2, 1, 1, 1 } },
};
static const struct variant slices[] = {
    { "part", NORMAL, .in = { S(5, 4) }, .n = { 0, 1, 4, 1, 1, 3, 1 } },
    { "step", NORMAL, .in = { S(3, 7) }, .n = { 1, 1, 7, 2, 1, 3, 2 } },
    { "from the end", NORMAL, .in = { S(3, 7) }, .n = { -1, -3, -1, 1, 4, 2, 1 } },
    { "clamped", NORMAL, .in = { S(3, 7) }, .n = { 1, -100, 100, 3, 0, 3, 3 } },
    { "empty", ZERO_SIZE, .in = { S(3, 7) }, .n = { 1, 5, 2, 1, 5, 0, 1 } },
};
static const struct variant narrows[] = {
    { "part", NORMAL, .in = { S(5, 4) }, .n = { 0, 1, 3, 0, 1, 3, 1 } },
    { "last dim", NORMAL, .in = { S(3, 7) }, .n = { -1, 2, 5, 0, 2, 5, 1 } },
    { "empty", ZERO_SIZE, .in = { S(3, 7) }, .n = { 1, 2, 0, 0, 2, 0, 1 } },
};

REFERENCE(slice)
{
    int64_t shape[CTRT_MAX_DIMS], kept[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS];
    int dim = dim_of(v->n[0], in->ndim), ndim = 0;
    memcpy(shape, in->shape, sizeof shape);
    shape[dim] = v->n[5];
    int64_t numel = 1;
    for (int d = 0; d < in->ndim; d++) {
        numel *= shape[d];
        if (d != dim || !v->n[7])
            kept[ndim++] = shape[d];
    }
    int64_t *from = scratch((size_t)numel * sizeof *from + 1);
    for (int64_t k = 0; k < numel; k++) {
        index_of(index, k, in->ndim, shape);
        index[dim] = v->n[4] + v->n[6] * index[dim];
        from[k] = offset_in(in, index, in->ndim);
    }
    take(out, in, ndim, kept, from);
}

CALLS(select, ctrt_select(out, in[0], (int)v->n[0], v->n[1]))
CALLS(slice, ctrt_slice(out, in[0], (int)v->n[0], v->n[1], v->n[2], v->n[3]))
CALLS(narrow, ctrt_narrow(out, in[0], (int)v->n[0], v->n[1], v->n[2]))

/* as_strided of a contiguous copy: n[0..1] shape, n[2..3] strides, n[4] offset. */
static const struct variant strideds[] = {
    { "overlapping windows", NORMAL, .in = { S(2, 5) }, .n = { 4, 3, 2, 1, 1 } },
    { "every third", NORMAL, .in = { S(12) }, .n = { 2, 2, 6, 3, 2 } },
    { "repeated", NORMAL, .in = { S(3, 2) }, .n = { 3, 2, 0, 2, 1 } },
};

REFERENCE(strided)
{
    int64_t *from = scratch((size_t)(v->n[0] * v->n[1]) * sizeof *from);
    for (int64_t k = 0; k < v->n[0] * v->n[1]; k++)
        from[k] = v->n[4] + k / v->n[1] * v->n[2] + k % v->n[1] * v->n[3];
    take(out, in, 2, v->n, from);
}

CALL(strided)
{
    CTRT_AUTO(tensor) copy = NULL;
    CTRT_TRY(ctrt_contiguous(&copy, in[0], CTRT_CONTIGUOUS_FORMAT));
    CTRT_TRY(ctrt_mul_scalar(&copy, copy, ctrt_int(1))); /* new storage, even if the input was contiguous */
    return ctrt_as_strided(out, copy, ctrt_ints_of(v->n, 2), ctrt_ints_of(&v->n[2], 2), v->n[4]);
}

/* ---- the rows ---- */

#define ANY { REAL, -4, 4 }
#define VIEW(row, op_kernel, table, what)                                                               \
    { #row, .kernel = op_kernel, .dtypes = BIT(F32) | BIT(F64) | BIT(BF16) | BIT(I64) | BIT(BOOL),      \
      .flags = GRAD, .inputs = 1,                                                                       \
      .call = row##_call, .in = { ANY }, .reference = what##_reference, VARIANTS(table) }

static const struct check_op ops[] = {
    VIEW(reshape, "view", reshapes, reshape),
    VIEW(flatten, "view", flattens, flatten),
    VIEW(squeeze, "view", squeezes, squeeze),
    VIEW(unsqueeze, "view", unsqueezes, unsqueeze),
    VIEW(permute, "permute", permutes, permute),
    VIEW(transpose, "permute", transposes, permute),
    VIEW(t, "permute", ts, permute),
    VIEW(expand, "expand", expands, expand),
    VIEW(select, "select", selects, slice),
    VIEW(slice, "slice", slices, slice),
    VIEW(narrow, "slice", narrows, slice),
    { "as_strided", .dtypes = BIT(F32) | BIT(F64) | BIT(I64), .inputs = 1, .call = strided_call,
      .in = { ANY }, .reference = strided_reference, VARIANTS(strideds) },
};

/* ---- views share their storage ---- */

static void expect_shared(struct run *run, const char *what, ctrt_status status, ctrt_tensor *x,
                          ctrt_tensor *const *view)
{
    if (check_ok(run, status, NULL, 0, what) && !ctrt_tensor_shares_storage(x, *view))
        check_fail(run, "%s made a copy", what);
}

static void check_sharing(struct run *run, const char *name)
{
    struct array a, got, want;
    CTRT_AUTO(tensor) x = NULL, view = NULL;
    ctrt_tensor *parts[4] = { NULL };
    int count = 0;
    if (!check_begin(run, name, 0, "forward", "share their storage"))
        return;
    array_make(&a, CTRT_F32, 3, (int64_t[]){ 2, 3, 7 });
    array_make(&want, CTRT_F32, 3, (int64_t[]){ 2, 3, 7 });
    if (!check_ok(run, array_upload(&x, &a, run->device), NULL, 0, "placing"))
        goto done;
    expect_shared(run, "view_as", ctrt_view_as(&view, x, CTRT_SHAPE(6, 7)), x, &view);
    expect_shared(run, "reshape", ctrt_reshape(&view, x, CTRT_SHAPE(-1)), x, &view);
    expect_shared(run, "flatten", ctrt_flatten(&view, x, 0, -1), x, &view);
    expect_shared(run, "permute", ctrt_permute(&view, x, CTRT_DIMS(2, 0, 1)), x, &view);
    expect_shared(run, "transpose", ctrt_transpose(&view, x, 0, 1), x, &view);
    expect_shared(run, "unsqueeze", ctrt_unsqueeze(&view, x, 0), x, &view);
    expect_shared(run, "squeeze", ctrt_squeeze(&view, view, CTRT_ALL_DIMS), x, &view);
    expect_shared(run, "expand", ctrt_expand(&view, x, CTRT_SHAPE(4, 2, 3, 7)), x, &view);
    expect_shared(run, "detach", ctrt_detach(&view, x), x, &view);
    expect_shared(run, "select", ctrt_select(&view, x, 1, 2), x, &view);
    expect_shared(run, "slice", ctrt_slice(&view, view, 1, 1, 7, 3), x, &view);
    if (run->failed
        || !check_ok(run, ctrt_fill_(view, ctrt_int(5)), NULL, 0, "fill_")) /* x[:, 2, 1::3] */
        goto done;
    for (int64_t n = 0; n < 2; n++)
        for (int64_t k = 1; k < 7; k += 3)
            want.f[(n * 3 + 2) * 7 + k] = 5;
    if (check_ok(run, array_download(&got, x), NULL, 0, "reading"))
        check_array(run, "the base", &got, &want, EXACT, CTRT_F32);
    if (check_ok(run, ctrt_chunk(parts, &count, x, 4, 2), NULL, 0, "chunk")) {
        static const int64_t sizes[4] = { 2, 2, 2, 1 };
        if (count != 4)
            check_fail(run, "chunk of 7 into 4: got %d chunks, expected 4", count);
        for (int k = 0; k < count && k < 4; k++)
            if (ctrt_tensor_size(parts[k], 2) != sizes[k] || !ctrt_tensor_shares_storage(x, parts[k]))
                check_fail(run, "chunk of 7 into 4: chunk %d has %d columns, expected %d", k,
                           (int)ctrt_tensor_size(parts[k], 2), (int)sizes[k]);
    }
    if (ctrt_transpose(&view, x, 0, 2) == CTRT_OK && ctrt_view_as(&view, view, CTRT_SHAPE(42)) != CTRT_ERR_SHAPE)
        check_fail(run, "view_as of a transposed tensor did not return CTRT_ERR_SHAPE");
done:
    for (int k = 0; k < 4; k++)
        ctrt_tensor_release(&parts[k]);
    check_end(run);
}

static const struct check_special specials[] = {
    { "views", "view", check_sharing },
};

const struct family view_family = { "view", FAMILY_OPS(ops), FAMILY_SPECIALS(specials) };
