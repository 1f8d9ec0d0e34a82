/* SPDX-License-Identifier: Apache-2.0 */
/* Views, and cat and stack: what the conformance suite (values, shared storage) and test-bad-input (bad arguments) do
 * not show, such as strides, limits and the text of errors. */
#include "calls.h"
#include "tensors.h"

static ctrt_tensor *x, *y;          /* y receives every result, by the assignment rule */

static void view_of(ctrt_tensor *tensor)
{
    ctrt_tensor_release(&x);
    x = tensor;
}

static void view_is(int line, const char *call, ctrt_status status, ctrt_ints shape, ctrt_ints strides)
{
    if (!tap_ok(status, __FILE__, line, call))
        return;
    check_shape(call, line, y, shape);
    check_strides(call, line, y, strides);
    tap_check(ctrt_tensor_shares_storage(x, y), __FILE__, line, "%s: the view has another storage", call);
}
#define SIZES(...)                      CTRT_SHAPE(__VA_ARGS__)
#define VIEW_IS(call, shape, strides)   view_is(__LINE__, #call, (call), (shape), (strides))
#define NO_DIMS                         CTRT_SCALAR_SHAPE

/* Which strides allow a view, and its strides, where `want` is not empty. The stride of a size of 1 is ignored. */
TEST(reshaping_strides, "views of strided and expanded tensors with another shape")
{
    static const struct { int in_ndim, ndim, want_ndim; int64_t shape[2], strides[2], to[4], want[4]; } cases[] = {
        { 2, 3, 3, { 2, 6 }, { 12, 2 }, { 2, 2, 3 }, { 12, 6, 2 } }, { 2, 1, 0, { 2, 3 }, { 1, 2 }, { 6 }, { 0 } },
        /* every second element; without a gap between the rows they can be merged */
        { 2, 2, 2, { 2, 6 }, { 12, 2 }, { 3, 4 }, { 8, 2 } }, { 2, 2, 0, { 2, 6 }, { 13, 2 }, { 3, 4 }, { 0 } },
        { 2, 4, 4, { 2, 3 }, { 7, 1 }, { 2, 1, 1, 3 }, { 7, 3, 3, 1 } }, { 2, 1, 1, { 3, 1 }, { 2, 5 }, { 3 }, { 2 } },
        { 2, 1, 0, { 3, 4 }, { 0, 1 }, { 12 }, { 0 } }, { 2, 3, 3, { 3, 4 }, { 0, 1 }, { 3, 2, 2 }, { 0, 2, 1 } },
        { 1, 2, 2, { 4 }, { 0 }, { 2, 2 }, { 0, 0 } },
    };
    CTRT_AUTO(tensor) storage = COUNTING(64), zero = NULL;
    EACH(c, cases) {
        CHECK_OK(ctrt_as_strided(&x, storage, ctrt_ints_of(c->shape, c->in_ndim), ctrt_ints_of(c->strides, c->in_ndim),
                                 0));
        const ctrt_ints to = ctrt_ints_of(c->to, c->ndim);
        const ctrt_tensor *const before = y;
        if (c->want_ndim > 0)
            VIEW_IS(ctrt_view_as(&y, x, to), to, ctrt_ints_of(c->want, c->want_ndim));
        else if (CHECK_FAILS(ctrt_view_as(&y, x, to), CTRT_ERR_SHAPE, "use ctrt_reshape"))
            CHECK_TRUE(y == before);            /* unchanged */
    }
    CHECK_OK(ctrt_flatten(&y, x, 0, 0));
    CHECK_TRUE(y == x);                         /* one dimension: the tensor itself */
    CHECK_OK(ctrt_empty(&zero, SIZES(0, 3), CTRT_F32, cpu));
    CHECK_FAILS(ctrt_reshape(&y, zero, SIZES(0, INT64_MAX, INT64_MAX)), CTRT_ERR_OVERFLOW, NULL);
}

TEST(dimensions, "expand to sizes of 1; errors of unsqueeze and squeeze")
{
    CTRT_AUTO(tensor) eight = COUNTING(1, 1, 1, 1, 1, 1, 1, 2);
    view_of(COUNTING(3, 1));
    VIEW_IS(ctrt_expand(&y, x, SIZES(1, 3, 1)), SIZES(1, 3, 1), SIZES(3, 1, 1));        /* repeats no element */
    CHECK_FAILS(ctrt_unsqueeze(&y, x, 3), CTRT_ERR_SHAPE, "out of range [-3, 2]");
    CHECK(strstr(ctrt_error_message(), "3 dimensions") == NULL, "x has 2 dimensions: %s", ctrt_error_message());
    CHECK_FAILS(ctrt_unsqueeze(&y, eight, 0), CTRT_ERR_SHAPE, "9 dimensions");
    CHECK_FAILS(ctrt_squeeze(&y, x, ctrt_ints_of(NULL, -2)), CTRT_ERR_INVALID_ARGUMENT, "a list of -2 dimensions");
}

TEST(parts, "slice and narrow return views of a part; a view of a view")
{
    static const struct { int64_t start, end, step; int count; double values[2]; } slices[] = {
        { -3, INT64_MAX, 1, 3, { 7, 8 } }, { 0, 100, 4, 3, { 0, 4 } }, { 1, 9, 4, 2, { 1, 5 } },
        { 10, 12, 1, 0, { 0 } }, { 50, 60, 1, 0, { 0 } }, { 3, -3, 2, 2, { 3, 5 } }, { 4, 8, INT64_MAX, 1, { 4 } },
        { INT64_MIN, INT64_MAX, 9, 2, { 0, 9 } }, { 0, -100, 1, 0, { 0 } },
    };
    view_of(COUNTING(10));
    EACH(c, slices) {
        double got[10] = { 0 };
        CHECK_OK(ctrt_slice(&y, x, 0, c->start, c->end, c->step));
        CHECK_OK(ctrt_to_host(got, sizeof got, y, CTRT_F64));
        CHECK_EQ(ctrt_tensor_numel(y), c->count);
        for (int k = 0; k < c->count && k < 2; k++)
            CHECK_EQ(got[k], c->values[k]);
    }
    VIEW_IS(ctrt_narrow(&y, x, 0, -2, 2), SIZES(2), SIZES(1));
    VALUES_ARE(y, 8, 9);
    VIEW_IS(ctrt_select(&y, y, 0, 1), NO_DIMS, NO_DIMS);
    CHECK_EQ(ctrt_tensor_offset(y), 9);
    GIVES_SHAPE(ctrt_narrow(&y, x, 0, 10, 0), 0);
}

TEST(chunks, "chunk divides a dimension into views")
{
    static const struct { int64_t n; int chunks, count; int64_t rows[8]; } cases[] = {
        { 30, 4, 4, { 8, 8, 8, 6 } }, { 5, 4, 3, { 2, 2, 1 } }, { 1, 4, 1, { 1 } }, { 6, 3, 3, { 2, 2, 2 } },
        { 0, 3, 3, { 0, 0, 0 } }, { 4, 1, 1, { 4 } }, { INT64_MAX, 2, 2, { INT64_MAX / 2 + 1, INT64_MAX / 2 } },
    };
    ctrt_tensor *pieces[40] = { NULL };
    int count = 77;
    EACH(c, cases) {
        CHECK_OK(ctrt_zeros(&x, SIZES(1), CTRT_U8, cpu));
        CHECK_OK(ctrt_expand(&x, x, SIZES(c->n)));
        CHECK_OK(ctrt_chunk(pieces, &count, x, c->chunks, -1));
        CHECK_EQ(count, c->count);
        for (int p = 0; p < count; p++)
            CHECK_TRUE(ctrt_tensor_size(pieces[p], 0) == c->rows[p] && ctrt_tensor_shares_storage(pieces[p], x));
        tensors_release(pieces, count);
    }
    view_of(COUNTING(40));
    CHECK_OK(ctrt_chunk(pieces, &count, x, 40, 0));             /* more than the internal array on the stack holds */
    CHECK_EQ(count, 40);
    VALUES_ARE(pieces[39], 39);
    tensors_release(pieces, 40);
}

TEST(strided, "as_strided views any part of the storage")
{
    view_of(COUNTING(6));
    GIVES(ctrt_as_strided(&y, x, NO_DIMS, NO_DIMS, 5), 5);
    CHECK_OK(ctrt_slice(&y, x, 0, 4, 6, 1));
    CHECK_OK(ctrt_as_strided(&y, y, SIZES(6), SIZES(1), 0));        /* sizes and offset refer to the whole storage */
    VALUES_ARE(y, 0, 1, 2, 3, 4, 5);
    GIVES_SHAPE(ctrt_as_strided(&y, x, SIZES(0, 5), SIZES(100, 100), 6), 0, 5);
    CHECK_OK(ctrt_as_strided(&y, x, SIZES(1), SIZES(INT64_MAX), 5));
}

#define CAT(dim, ...)   ctrt_cat(&y, (ctrt_tensor *[]){ __VA_ARGS__ }, COUNT(((ctrt_tensor *[]){ __VA_ARGS__ })), dim)

TEST(joining, "cat joins tensors of different layouts and dtypes")
{
    CTRT_AUTO(tensor) a = COUNTING(2, 2), b = COUNTING(1, 2), ints = counting_of(SIZES(2, 1), CTRT_I64), t = NULL;
    CTRT_AUTO(tensor) image = COUNTING(1, 2, 2, 2), last = NULL, old = NULL, none = NULL;
    CHECK_OK(ctrt_t(&t, b));
    CHECK_OK(CAT(-1, a, t, ints));
    VALUES_ARE(y, 0, 1, 0, 0, 2, 3, 1, 1);
    CHECK_EQ(ctrt_tensor_dtype(y), CTRT_F32);
    CHECK_OK(CAT(1, a));
    CHECK_TRUE(y != a && !ctrt_tensor_shares_storage(y, a));
    /* As in PyTorch, tensors of shape [0] are skipped, but count for the dtype. */
    CHECK_OK(ctrt_empty(&old, SIZES(0), CTRT_F64, cpu));
    CHECK_OK(CAT(0, old, a, old, b));
    VALUES_ARE(y, 0, 1, 2, 3, 0, 1);
    CHECK_EQ(ctrt_tensor_dtype(y), CTRT_F64);
    CHECK_OK(CAT(0, old, old));
    SHAPE_IS(y, 0);
    CHECK_OK(ctrt_contiguous(&last, image, CTRT_CHANNELS_LAST));
    CHECK_OK(CAT(1, last, last));
    CHECK_TRUE(ctrt_tensor_is_contiguous(y, CTRT_CHANNELS_LAST));
    VALUES_ARE(y, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
    CHECK_OK(CAT(0, last, image));
    CHECK_TRUE(ctrt_tensor_is_contiguous(y, CTRT_CONTIGUOUS_FORMAT));
    CHECK_OK(ctrt_empty(&none, SIZES(0, 2), CTRT_F32, cpu));
    CHECK_FAILS(CAT(1, a, none), CTRT_ERR_SHAPE, "cat: tensor 2 has shape [0, 2]");

    group("stack adds a dimension");
    ctrt_tensor *many[20];
    for (int i = 0; i < 20; i++)
        many[i] = a;
    GIVES_SHAPE(ctrt_stack(&y, many, 20, 0), 20, 2, 2);
}

CPU_TESTS_MAIN
