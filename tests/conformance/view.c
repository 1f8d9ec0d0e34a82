/* SPDX-License-Identifier: Apache-2.0 */
/* view.c: views. in[0] is the shape of the input, in[1] that of the result, in[2] the strides with which the result
 * reads the contiguous input (absent: those of a contiguous result), and x[0] the first element that it reads. */
#include "suite.h"

REFERENCE(view)
{
    const struct shape *shape = &v->in[1], *strides = &v->in[2];
    int64_t index[CTRT_MAX_DIMS];
    array_make(out, in->dtype, shape->n, shape->d);
    for (int64_t k = 0; k < out->numel; k++) {
        int64_t from = strides->n > 0 ? (int64_t)v->x[0] : k;
        index_of(index, k, shape->n, shape->d);
        for (int d = 0; d < strides->n; d++)
            from += index[d] * strides->d[d];
        element_copy(out, k, in, from);
    }
}

/* Fails if a view of x is a copy. Only reshape and flatten may copy, a tensor that is not contiguous. */
static ctrt_status shared(ctrt_tensor *const *view, ctrt_tensor *x, bool may_copy, ctrt_status status)
{
    if (status != CTRT_OK || ctrt_tensor_shares_storage(x, *view)
        || (may_copy && !ctrt_tensor_is_contiguous(x, CTRT_CONTIGUOUS_FORMAT)))
        return status;
    return ctrt_fail(CTRT_ERR_INTERNAL, "the view is a copy");
}
#define VIEWS(name, ...)       CALLS(name, shared(out, in[0], false, __VA_ARGS__))
#define RESHAPES(name, ...)    CALLS(name, shared(out, in[0], true, __VA_ARGS__))

/* reshape: n[0] number of dims, n[1...] the requested shape. */
static const struct variant reshapes[] = {
    { "2x6", NORMAL, .in = { S(3, 4), S(2, 6) }, .n = { 2, 2, 6 } },
    { "one dim", NORMAL, .in = { S(2, 3, 4), S(24) }, .n = { 1, 24 } },
    { "inferred", NORMAL, .in = { S(2, 3, 4), S(4, 3, 2) }, .n = { 3, 4, -1, 2 } },
    { "with ones", NORMAL, .in = { S(3, 4), S(1, 3, 1, 4) }, .n = { 4, 1, 3, 1, 4 } },
    { "nothing", ZERO_SIZE, .in = { S(0, 4), S(2, 0) }, .n = { 2, 2, 0 } },
    { "to 1", ZERO_DIM, .in = { S0, S(1, 1) }, .n = { 2, 1, 1 } },
    { "to no dims", NORMAL, .in = { S(1, 1), S0 } },
};
RESHAPES(reshape, ctrt_reshape(out, in[0], ctrt_ints_of(&v->n[1], (int)v->n[0])))

/* flatten: n[0], n[1] first and last dim. */
static const struct variant flattens[] = {
    { "all", NORMAL, .in = { S(2, 3, 4), S(24) }, .n = { 0, -1 } },
    { "the last two", NORMAL, .in = { S(2, 3, 4), S(2, 12) }, .n = { 1, 2 } },
    { "one", NORMAL, .in = { S(2, 3, 4), S(2, 3, 4) }, .n = { 1, 1 } },
    { "nothing", ZERO_SIZE, .in = { S(2, 0, 4), S(2, 0) }, .n = { 1, 2 } },
    { "", ZERO_DIM, .in = { S0, S(1) }, .n = { 0, -1 } },
};
RESHAPES(flatten, ctrt_flatten(out, in[0], (int)v->n[0], (int)v->n[1]))

/* squeeze: n[0] number of dims (-1: all), n[1...] the dims; unsqueeze: n[0] the new dim. */
static const struct variant squeezes[] = {
    { "all", NORMAL, .in = { S(1, 3, 1, 2), S(3, 2) }, .n = { -1 } },
    { "one", NORMAL, .in = { S(1, 3, 1, 2), S(1, 3, 2) }, .n = { 1, 2 } },
    { "two", NORMAL, .in = { S(1, 3, 1, 2), S(3, 2) }, .n = { 2, 0, -2 } },
    { "a size that is not 1", NORMAL, .in = { S(2, 3), S(2, 3) }, .n = { 1, 1 } },
    { "nothing", ZERO_SIZE, .in = { S(1, 0), S(0) }, .n = { -1 } },
    { "no dim", NORMAL, .in = { S(1, 3), S(1, 3) } },
    { "", ZERO_DIM, .in = { S0, S0 }, .n = { -1 } },
    { "a dim", ZERO_DIM, .in = { S0, S0 }, .n = { 1, -1 } },
};
VIEWS(squeeze, ctrt_squeeze(out, in[0], v->n[0] < 0 ? CTRT_ALL_DIMS : ctrt_ints_of(&v->n[1], (int)v->n[0])))

static const struct variant unsqueezes[] = {
    { "first", NORMAL, .in = { S(2, 3), S(1, 2, 3) }, .n = { 0 } },
    { "last", NORMAL, .in = { S(2, 3), S(2, 3, 1) }, .n = { -1 } },
    { "middle", NORMAL, .in = { S(2, 3), S(2, 1, 3) }, .n = { 1 } },
    { "nothing", ZERO_SIZE, .in = { S(0), S(0, 1) }, .n = { 1 } },
    { "", ZERO_DIM, .in = { S0, S(1) }, .n = { 0 } },
};
VIEWS(unsqueeze, ctrt_unsqueeze(out, in[0], (int)v->n[0]))

/* permute: n[0...] the order; transpose: n[0], n[1] the two dims. */
static const struct variant permutes[] = {
    { "2 dims", NORMAL, .in = { S(2, 3), S(3, 2), S(1, 3) }, .n = { 1, 0 } },
    { "3 dims", NORMAL, .in = { S(2, 3, 4), S(4, 2, 3), S(1, 12, 4) }, .n = { 2, 0, 1 } },
    { "negative", NORMAL, .in = { S(2, 3, 4), S(4, 3, 2), S(1, 4, 12) }, .n = { -1, 1, 0 } },
    { "nothing", ZERO_SIZE, .in = { S(2, 0), S(0, 2) }, .n = { 1, 0 } },
    { "", ZERO_DIM, .in = { S0, S0 } },
};
static const struct variant transposes[] = {
    { "2 dims", NORMAL, .in = { S(2, 3), S(3, 2), S(1, 3) }, .n = { 0, -1 } },
    { "3 dims", NORMAL, .in = { S(2, 3, 4), S(4, 3, 2), S(1, 4, 12) }, .n = { 2, 0 } },
    { "itself", NORMAL, .in = { S(2, 3), S(2, 3) }, .n = { 1, 1 } },
    { "", ZERO_DIM, .in = { S0, S0 }, .n = { 0, -1 } },
};
static const struct variant ts[] = {
    { "2 dims", NORMAL, .in = { S(2, 3), S(3, 2), S(1, 3) } },
    { "1 dim", NORMAL, .in = { S(3), S(3) } },
    { "", ZERO_DIM, .in = { S0, S0 } },
};
VIEWS(permute, ctrt_permute(out, in[0], ctrt_ints_of(v->n, ctrt_tensor_ndim(in[0]))))
VIEWS(transpose, ctrt_transpose(out, in[0], (int)v->n[0], (int)v->n[1]))
VIEWS(t, ctrt_t(out, in[0]))

/* expand: n[0] number of dims, n[1...] the shape, where -1 keeps the size. */
static const struct variant expands[] = {
    { "a dim", NORMAL, .in = { S(3, 1), S(3, 4), S(1, 0) }, .n = { 2, 3, 4 } },
    { "new dims", NORMAL, .in = { S(3, 1), S(2, 1, 3, 4), S(0, 0, 1, 0) }, .n = { 4, 2, 1, -1, 4 } },
    { "kept", NORMAL, .in = { S(2, 3), S(2, 3) }, .n = { 2, -1, -1 } },
    { "to nothing", ZERO_SIZE, .in = { S(1, 3), S(0, 3) }, .n = { 2, 0, 3 } },
    { "of nothing", ZERO_SIZE, .in = { S(0, 1), S(2, 0, 5) }, .n = { 3, 2, 0, 5 } },
    { "", ZERO_DIM, .in = { S0, S(2, 3), S(0, 0) }, .n = { 2, 2, 3 } },
};
VIEWS(expand, ctrt_expand(out, in[0], ctrt_ints_of(&v->n[1], (int)v->n[0])))

/* select: n[0] dim, n[1] index; slice: dim, start, end, step; narrow: dim, start, length. */
static const struct variant selects[] = {
    { "first dim", NORMAL, .in = { S(3, 4), S(4), S(1) }, .n = { 0, 1 }, .x = { 4 } },
    { "last dim, from the end", NORMAL, .in = { S(3, 4), S(3), S(4) }, .n = { -1, -1 }, .x = { 3 } },
    { "middle", NORMAL, .in = { S(2, 3, 4), S(2, 4), S(12, 1) }, .n = { 1, 0 } },
    { "of nothing", ZERO_SIZE, .in = { S(0, 4), S(0) }, .n = { 1, 2 } },
};
static const struct variant slices[] = {
    { "part", NORMAL, .in = { S(5, 4), S(3, 4), S(4, 1) }, .n = { 0, 1, 4, 1 }, .x = { 4 } },
    { "step", NORMAL, .in = { S(3, 7), S(3, 3), S(7, 2) }, .n = { 1, 1, 7, 2 }, .x = { 1 } },
    { "from the end", NORMAL, .in = { S(3, 7), S(3, 2), S(7, 1) }, .n = { -1, -3, -1, 1 }, .x = { 4 } },
    { "clamped", NORMAL, .in = { S(3, 7), S(3, 3), S(7, 3) }, .n = { 1, -100, 100, 3 } },
    { "empty", ZERO_SIZE, .in = { S(3, 7), S(3, 0) }, .n = { 1, 5, 2, 1 } },
};
static const struct variant narrows[] = {
    { "part", NORMAL, .in = { S(5, 4), S(3, 4), S(4, 1) }, .n = { 0, 1, 3 }, .x = { 4 } },
    { "last dim", NORMAL, .in = { S(3, 7), S(3, 5), S(7, 1) }, .n = { -1, 2, 5 }, .x = { 2 } },
    { "empty", ZERO_SIZE, .in = { S(3, 7), S(3, 0) }, .n = { 1, 2, 0 } },
};
VIEWS(select, ctrt_select(out, in[0], (int)v->n[0], v->n[1]))
VIEWS(slice, ctrt_slice(out, in[0], (int)v->n[0], v->n[1], v->n[2], v->n[3]))
VIEWS(narrow, ctrt_narrow(out, in[0], (int)v->n[0], v->n[1], v->n[2]))

/* as_strided of a contiguous copy. */
static const struct variant strideds[] = {
    { "overlapping windows", NORMAL, .in = { S(2, 5), S(4, 3), S(2, 1) }, .x = { 1 } },
    { "every third", NORMAL, .in = { S(12), S(2, 2), S(6, 3) }, .x = { 2 } },
    { "repeated", NORMAL, .in = { S(3, 2), S(3, 2), S(0, 2) }, .x = { 1 } },
};

CALL(strided)
{
    CTRT_AUTO(tensor) copy = NULL;
    CTRT_TRY(ctrt_contiguous(&copy, in[0], CTRT_CONTIGUOUS_FORMAT));
    CTRT_TRY(ctrt_mul_scalar(&copy, copy, ctrt_int(1))); /* new storage, even if the input was contiguous */
    return ctrt_as_strided(out, copy, ctrt_ints_of(v->in[1].d, 2), ctrt_ints_of(v->in[2].d, 2), (int64_t)v->x[0]);
}

/* ---- the rows ---- */

#define ANY { REAL, -4, 4 }
#define VIEW(row, op_kernel, table)                                                                     \
    { #row, .kernel = op_kernel, .dtypes = BIT(F32) | BIT(F64) | BIT(BF16) | BIT(I64) | BIT(BOOL),      \
      .flags = GRAD, .in = { ANY }, USES(row, view, table) }

static const struct check_op ops[] = {
    VIEW(reshape, "view", reshapes),     VIEW(flatten, "view", flattens),
    VIEW(squeeze, "view", squeezes),     VIEW(unsqueeze, "view", unsqueezes),
    VIEW(permute, "permute", permutes),  VIEW(transpose, "permute", transposes),
    VIEW(t, "permute", ts),              VIEW(expand, "expand", expands),
    VIEW(select, "select", selects),     VIEW(slice, "slice", slices),
    VIEW(narrow, "slice", narrows),
    { "as_strided", .dtypes = BIT(F32) | BIT(F64) | BIT(I64), .in = { ANY }, USES(strided, view, strideds) },
};

const struct family view_family = { "view", FAMILY_OPS(ops) };
