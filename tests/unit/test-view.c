/* SPDX-License-Identifier: Apache-2.0 */
/* Views: shapes, strides, values, shared storage, and errors for invalid arguments. */
#include "tensors.h"

static ctrt_tensor *y;          /* receives every result, by the assignment rule */

static void shares(ctrt_tensor *x)
{
    CHECK(ctrt_tensor_shares_storage(x, y), "the view has another storage");
}

static void reshaping(void)
{
    group("reshape, view_as and flatten return views where the strides allow it");
    ctrt_tensor *x = COUNTING(2, 3, 4), *t = NULL, *zero = NULL, *scalar = counting_of(CTRT_SCALAR_SHAPE, CTRT_F32);
    CHECK_OK(ctrt_reshape(&y, x, CTRT_SHAPE(6, -1)));
    SHAPE_IS(y, 6, 4);
    STRIDES_ARE(y, 4, 1);
    shares(x);
    CHECK_OK(ctrt_view_as(&y, x, CTRT_SHAPE(4, 6)));
    SHAPE_IS(y, 4, 6);
    shares(x);
    CHECK_OK(ctrt_transpose(&t, x, 1, 2));
    CHECK_FAILS(ctrt_view_as(&y, t, CTRT_SHAPE(24)), CTRT_ERR_SHAPE, "use ctrt_reshape");
    SHAPE_IS(y, 4, 6);
    CHECK_OK(ctrt_reshape(&y, t, CTRT_SHAPE(24)));
    CHECK(!ctrt_tensor_shares_storage(t, y), "a reshape that needs a copy shares the storage");
    VALUES_ARE(y, 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11, 12, 16, 20, 13, 17, 21, 14, 18, 22, 15, 19, 23);
    CHECK_OK(ctrt_view_as(&y, t, CTRT_SHAPE(2, 2, 2, 3)));
    STRIDES_ARE(y, 12, 2, 1, 4);
    CHECK_OK(ctrt_reshape(&y, scalar, CTRT_SHAPE(1, 1)));
    SHAPE_IS(y, 1, 1);
    CHECK_OK(ctrt_reshape(&y, y, CTRT_SCALAR_SHAPE));
    CHECK(ctrt_tensor_ndim(y) == 0, "the result has %d dimensions, expected 0", ctrt_tensor_ndim(y));
    CHECK_OK(ctrt_flatten(&y, x, 0, -1));
    SHAPE_IS(y, 24);
    CHECK_OK(ctrt_flatten(&y, x, 1, 2));
    SHAPE_IS(y, 2, 12);
    CHECK_OK(ctrt_flatten(&y, x, 1, 1));
    CHECK(y == x, "flattening one dimension gives the tensor itself");
    CHECK_OK(ctrt_flatten(&y, t, 1, -1));
    VALUES_ARE(y, 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11, 12, 16, 20, 13, 17, 21, 14, 18, 22, 15, 19, 23);
    CHECK_OK(ctrt_flatten(&y, scalar, 0, -1));
    SHAPE_IS(y, 1);
    CHECK_OK(ctrt_empty(&zero, CTRT_SHAPE(0, 3), CTRT_F32, cpu));
    CHECK_OK(ctrt_reshape(&y, zero, CTRT_SHAPE(5, 0, 7)));
    SHAPE_IS(y, 5, 0, 7);
    CHECK_OK(ctrt_flatten(&y, zero, 0, 1));
    SHAPE_IS(y, 0);

    CHECK_FAILS(ctrt_reshape(&y, x, CTRT_SHAPE(5, -1)), CTRT_ERR_SHAPE, "reshape: shape [5, -1] does not match");
    CHECK_FAILS(ctrt_reshape(&y, x, CTRT_SHAPE(-1, -1)), CTRT_ERR_SHAPE, "only one size");
    CHECK_FAILS(ctrt_reshape(&y, x, CTRT_SHAPE(-2, 12)), CTRT_ERR_SHAPE, "negative size");
    CHECK_FAILS(ctrt_reshape(&y, zero, CTRT_SHAPE(-1, 0)), CTRT_ERR_SHAPE, "ambiguous");
    CHECK_FAILS(ctrt_reshape(&y, zero, CTRT_SHAPE(0, INT64_MAX, INT64_MAX)), CTRT_ERR_OVERFLOW, NULL);
    CHECK_FAILS(ctrt_reshape(&y, x, CTRT_SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 24)), CTRT_ERR_SHAPE, "9 dimensions");
    CHECK_FAILS(ctrt_reshape(&y, x, CTRT_ALL_DIMS), CTRT_ERR_INVALID_ARGUMENT, NULL);
    CHECK_FAILS(ctrt_reshape(&y, x, ctrt_ints_of(NULL, 2)), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_reshape(NULL, x, CTRT_SHAPE(24)), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    CHECK_FAILS(ctrt_reshape(&y, NULL, CTRT_SHAPE(24)), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_view_as(NULL, x, CTRT_SHAPE(24)), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    CHECK_FAILS(ctrt_view_as(&y, NULL, CTRT_SHAPE(24)), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_flatten(&y, x, 2, 1), CTRT_ERR_SHAPE, "is after");
    CHECK_FAILS(ctrt_flatten(&y, x, 0, 3), CTRT_ERR_SHAPE, "out of range");
    CHECK_FAILS(ctrt_flatten(&y, NULL, 0, 3), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_flatten(NULL, x, 0, 1), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    SHAPE_IS(y, 0);                             /* unchanged by the failed calls */
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&t);
    ctrt_tensor_release(&zero);
    ctrt_tensor_release(&scalar);
}

static void squeezing(void)
{
    group("squeeze and unsqueeze remove and add dimensions of size 1");
    ctrt_tensor *x = COUNTING(1, 3, 1, 2), *scalar = counting_of(CTRT_SCALAR_SHAPE, CTRT_F32),
        *eight = COUNTING(1, 1, 1, 1, 1, 1, 1, 2);
    CHECK_OK(ctrt_squeeze(&y, x, CTRT_ALL_DIMS));
    SHAPE_IS(y, 3, 2);
    STRIDES_ARE(y, 2, 1);
    shares(x);
    CHECK_OK(ctrt_squeeze(&y, x, CTRT_DIMS(0)));
    SHAPE_IS(y, 3, 1, 2);
    CHECK_OK(ctrt_squeeze(&y, x, CTRT_DIMS(1, -2)));
    SHAPE_IS(y, 1, 3, 2);                       /* a size that is not 1 stays */
    CHECK_OK(ctrt_squeeze(&y, x, ctrt_ints_of(NULL, 0)));
    SHAPE_IS(y, 1, 3, 1, 2);
    CHECK_OK(ctrt_squeeze(&y, scalar, CTRT_DIMS(-1)));
    CHECK(ctrt_tensor_ndim(y) == 0, "the result has %d dimensions, expected 0", ctrt_tensor_ndim(y));
    CHECK_FAILS(ctrt_squeeze(&y, x, CTRT_DIMS(4)), CTRT_ERR_SHAPE, "out of range");
    CHECK_FAILS(ctrt_squeeze(&y, x, CTRT_DIMS(0, 0)), CTRT_ERR_SHAPE, "twice");
    CHECK_FAILS(ctrt_squeeze(&y, NULL, CTRT_ALL_DIMS), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_squeeze(NULL, x, CTRT_ALL_DIMS), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");

    CHECK_OK(ctrt_unsqueeze(&y, scalar, 0));
    SHAPE_IS(y, 1);
    CHECK_OK(ctrt_unsqueeze(&y, y, -1));
    SHAPE_IS(y, 1, 1);
    CHECK_OK(ctrt_unsqueeze(&y, x, 2));
    SHAPE_IS(y, 1, 3, 1, 1, 2);
    STRIDES_ARE(y, 6, 2, 2, 2, 1);
    CHECK_OK(ctrt_unsqueeze(&y, x, -1));
    SHAPE_IS(y, 1, 3, 1, 2, 1);
    STRIDES_ARE(y, 6, 2, 2, 1, 1);
    CHECK_FAILS(ctrt_unsqueeze(&y, x, 5), CTRT_ERR_SHAPE, "out of range [-5, 4]");
    CHECK(strstr(ctrt_error_message(), "5 dimensions") == NULL, "x has 4 dimensions: %s", ctrt_error_message());
    CHECK_FAILS(ctrt_unsqueeze(&y, x, -6), CTRT_ERR_SHAPE, "out of range");
    CHECK_FAILS(ctrt_unsqueeze(&y, eight, 0), CTRT_ERR_SHAPE, "9 dimensions");
    CHECK_FAILS(ctrt_unsqueeze(&y, NULL, 0), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_unsqueeze(NULL, x, 0), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&scalar);
    ctrt_tensor_release(&eight);
}

static void ordering(void)
{
    group("permute, transpose and t reorder dimensions without a copy");
    ctrt_tensor *x = COUNTING(2, 3, 4), *m = COUNTING(2, 3), *v = COUNTING(3),
        *scalar = counting_of(CTRT_SCALAR_SHAPE, CTRT_F32);
    CHECK_OK(ctrt_permute(&y, x, CTRT_DIMS(2, 0, 1)));
    SHAPE_IS(y, 4, 2, 3);
    STRIDES_ARE(y, 1, 12, 4);
    shares(x);
    CHECK_OK(ctrt_permute(&y, x, CTRT_DIMS(-1, -2, -3)));
    SHAPE_IS(y, 4, 3, 2);
    CHECK_OK(ctrt_permute(&y, scalar, CTRT_SCALAR_SHAPE));
    CHECK(ctrt_tensor_ndim(y) == 0, "the result has %d dimensions, expected 0", ctrt_tensor_ndim(y));
    CHECK_OK(ctrt_transpose(&y, x, 0, -1));
    SHAPE_IS(y, 4, 3, 2);
    STRIDES_ARE(y, 1, 4, 12);
    CHECK_OK(ctrt_transpose(&y, y, 1, 1));
    SHAPE_IS(y, 4, 3, 2);
    CHECK_OK(ctrt_transpose(&y, scalar, 0, -1));
    CHECK(ctrt_tensor_ndim(y) == 0, "the result has %d dimensions, expected 0", ctrt_tensor_ndim(y));
    CHECK_OK(ctrt_t(&y, m));
    SHAPE_IS(y, 3, 2);
    VALUES_ARE(y, 0, 3, 1, 4, 2, 5);
    CHECK_OK(ctrt_t(&y, v));
    SHAPE_IS(y, 3);
    CHECK_OK(ctrt_t(&y, scalar));
    CHECK(ctrt_tensor_ndim(y) == 0, "the result has %d dimensions, expected 0", ctrt_tensor_ndim(y));
    CHECK_FAILS(ctrt_permute(&y, x, CTRT_DIMS(0, 1)), CTRT_ERR_SHAPE, "2 dimensions given");
    CHECK_FAILS(ctrt_permute(&y, x, CTRT_ALL_DIMS), CTRT_ERR_SHAPE, NULL);
    CHECK_FAILS(ctrt_permute(&y, x, CTRT_DIMS(0, 1, -3)), CTRT_ERR_SHAPE, "twice");
    CHECK_FAILS(ctrt_permute(&y, x, CTRT_DIMS(0, 1, 3)), CTRT_ERR_SHAPE, "out of range");
    CHECK_FAILS(ctrt_permute(&y, x, ctrt_ints_of(NULL, 3)), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_permute(&y, NULL, CTRT_DIMS(0)), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_permute(NULL, x, CTRT_DIMS(0)), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    CHECK_FAILS(ctrt_transpose(&y, x, 0, 3), CTRT_ERR_SHAPE, "out of range");
    CHECK_FAILS(ctrt_transpose(&y, NULL, 0, 1), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_transpose(NULL, x, 0, 1), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    CHECK_FAILS(ctrt_t(&y, x), CTRT_ERR_SHAPE, "[2, 3, 4]");
    CHECK_FAILS(ctrt_t(&y, NULL), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_t(NULL, m), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&m);
    ctrt_tensor_release(&v);
    ctrt_tensor_release(&scalar);
}

static void expanding(void)
{
    group("expand repeats dimensions of size 1 with stride 0");
    ctrt_tensor *x = COUNTING(3, 1), *scalar = counting_of(CTRT_SCALAR_SHAPE, CTRT_F32), *zero = NULL;
    CHECK_OK(ctrt_expand(&y, x, CTRT_SHAPE(2, 3, 2)));
    SHAPE_IS(y, 2, 3, 2);
    STRIDES_ARE(y, 0, 1, 0);
    VALUES_ARE(y, 0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2);
    shares(x);
    CHECK_OK(ctrt_expand(&y, x, CTRT_SHAPE(-1, 4)));
    SHAPE_IS(y, 3, 4);
    CHECK_OK(ctrt_expand(&y, scalar, CTRT_SHAPE(2, 2)));
    STRIDES_ARE(y, 0, 0);
    CHECK_OK(ctrt_expand(&y, x, CTRT_SHAPE(1, 3, 1)));
    STRIDES_ARE(y, 3, 1, 1);                    /* a new dimension of size 1 repeats no element */
    CHECK_OK(ctrt_expand(&y, x, CTRT_SHAPE(3, 0)));
    SHAPE_IS(y, 3, 0);
    CHECK_OK(ctrt_empty(&zero, CTRT_SHAPE(0, 1), CTRT_F32, cpu));
    CHECK_OK(ctrt_expand(&y, zero, CTRT_SHAPE(2, 0, 5)));
    SHAPE_IS(y, 2, 0, 5);
    CHECK_FAILS(ctrt_expand(&y, x, CTRT_SHAPE(4, 1)), CTRT_ERR_SHAPE, "[3, 1] expanded to [4, 1]");
    CHECK_FAILS(ctrt_expand(&y, x, CTRT_SHAPE(3)), CTRT_ERR_SHAPE, "fewer dimensions");
    CHECK_FAILS(ctrt_expand(&y, x, CTRT_SHAPE(-1, 3, 1)), CTRT_ERR_SHAPE, "-1 keeps");
    CHECK_FAILS(ctrt_expand(&y, x, CTRT_SHAPE(3, -2)), CTRT_ERR_SHAPE, "size -2");
    CHECK_FAILS(ctrt_expand(&y, x, CTRT_SHAPE(0, 1)), CTRT_ERR_SHAPE, "size 0");
    CHECK_FAILS(ctrt_expand(&y, scalar, CTRT_SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1)), CTRT_ERR_SHAPE, "9 dimensions");
    CHECK_FAILS(ctrt_expand(&y, scalar, CTRT_SHAPE(INT64_MAX, INT64_MAX)), CTRT_ERR_OVERFLOW, NULL);
    CHECK_FAILS(ctrt_expand(&y, x, CTRT_ALL_DIMS), CTRT_ERR_INVALID_ARGUMENT, NULL);
    CHECK_FAILS(ctrt_expand(&y, x, ctrt_ints_of(NULL, 2)), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_expand(&y, NULL, CTRT_SHAPE(2)), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_expand(NULL, x, CTRT_SHAPE(2)), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&zero);
    ctrt_tensor_release(&scalar);
}

static void parts(void)
{
    group("select, slice and narrow return views of a part");
    ctrt_tensor *x = COUNTING(2, 3), *v = COUNTING(10), *scalar = counting_of(CTRT_SCALAR_SHAPE, CTRT_F32);
    CHECK_OK(ctrt_select(&y, x, 0, 1));
    SHAPE_IS(y, 3);
    VALUES_ARE(y, 3, 4, 5);
    CHECK(ctrt_tensor_offset(y) == 3, "the offset is %lld, expected 3", (long long)ctrt_tensor_offset(y));
    CHECK_OK(ctrt_select(&y, x, -1, -3));
    VALUES_ARE(y, 0, 3);
    CHECK_OK(ctrt_select(&y, y, 0, 1));         /* a view of a view */
    VALUES_ARE(y, 3);
    CHECK(ctrt_tensor_ndim(y) == 0, "the result has %d dimensions, expected 0", ctrt_tensor_ndim(y));
    CHECK_FAILS(ctrt_select(&y, x, 0, 2), CTRT_ERR_SHAPE, "index 2 is out of range for dimension 0 of shape [2, 3]");
    CHECK_FAILS(ctrt_select(&y, x, 0, -3), CTRT_ERR_SHAPE, "index -3");
    CHECK_FAILS(ctrt_select(&y, x, 2, 0), CTRT_ERR_SHAPE, "dimension 2");
    CHECK_FAILS(ctrt_select(&y, scalar, 0, 0), CTRT_ERR_SHAPE, "0-dim");
    CHECK_FAILS(ctrt_select(&y, NULL, 0, 0), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_select(NULL, x, 0, 0), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");

    static const struct { int64_t start, end, step; int count; double values[10]; } slices[] = {
        { 0, 10, 1, 10, { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 } }, { 2, 5, 1, 3, { 2, 3, 4 } },
        { -3, INT64_MAX, 1, 3, { 7, 8, 9 } },
        { -100, 2, 1, 2, { 0, 1 } }, { 0, 100, 4, 3, { 0, 4, 8 } }, { 1, 9, 4, 2, { 1, 5 } },
        { 1, 10, 3, 3, { 1, 4, 7 } },
        { 5, 2, 1, 0, { 0 } }, { 10, 12, 1, 0, { 0 } }, { 50, 60, 1, 0, { 0 } }, { 3, -3, 2, 2, { 3, 5 } },
        { 4, 8, INT64_MAX, 1, { 4 } },
        { INT64_MIN, INT64_MAX, 9, 2, { 0, 9 } }, { 0, -100, 1, 0, { 0 } },
    };
    for (size_t i = 0; i < COUNT(slices); i++) {
        CHECK_OK(ctrt_slice(&y, v, 0, slices[i].start, slices[i].end, slices[i].step));
        char what[64];
        snprintf(what, sizeof what, "slice case %zu", i);
        check_values(what, __LINE__, y, slices[i].values, slices[i].count);
        CHECK(ctrt_tensor_shares_storage(v, y), "slice case %zu does not share the storage", i);
    }
    CHECK_OK(ctrt_slice(&y, x, -1, 0, 3, 2));
    VALUES_ARE(y, 0, 2, 3, 5);
    STRIDES_ARE(y, 3, 2);
    CHECK_FAILS(ctrt_slice(&y, x, 0, 0, 1, 0), CTRT_ERR_INVALID_ARGUMENT, "step is 0");
    CHECK_FAILS(ctrt_slice(&y, x, 0, 0, 1, -1), CTRT_ERR_INVALID_ARGUMENT, "step is -1");
    CHECK_FAILS(ctrt_slice(&y, x, 2, 0, 1, 1), CTRT_ERR_SHAPE, "out of range");
    CHECK_FAILS(ctrt_slice(&y, scalar, 0, 0, 1, 1), CTRT_ERR_SHAPE, "0-dim");
    CHECK_FAILS(ctrt_slice(&y, NULL, 0, 0, 1, 1), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_slice(NULL, x, 0, 0, 1, 1), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");

    CHECK_OK(ctrt_narrow(&y, v, 0, 3, 2));
    VALUES_ARE(y, 3, 4);
    CHECK_OK(ctrt_narrow(&y, v, 0, -2, 2));
    VALUES_ARE(y, 8, 9);
    CHECK_OK(ctrt_narrow(&y, v, 0, 10, 0));
    SHAPE_IS(y, 0);
    static const struct { int64_t start, length; } narrows[] = {
        { 9, 2 }, { 11, 0 }, { -11, 1 }, { 0, -1 }, { 0, 11 }, { 5, INT64_MAX }, { INT64_MIN, 1 },
        { INT64_MAX, INT64_MAX }, { -1, 2 },
    };
    for (size_t i = 0; i < COUNT(narrows); i++)
        CHECK_FAILS(ctrt_narrow(&y, v, 0, narrows[i].start, narrows[i].length), CTRT_ERR_SHAPE,
                    "are not inside dimension 0 of shape [10]");
    CHECK_FAILS(ctrt_narrow(&y, scalar, 0, 0, 1), CTRT_ERR_SHAPE, "0-dim");
    CHECK_FAILS(ctrt_narrow(&y, NULL, 0, 0, 1), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_narrow(NULL, v, 0, 0, 1), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&v);
    ctrt_tensor_release(&scalar);
}

static void chunks(void)
{
    static const struct { int64_t n; int chunks, count; int64_t rows[8]; } cases[] = {
        { 30, 4, 4, { 8, 8, 8, 6 } }, { 5, 4, 3, { 2, 2, 1 } }, { 1, 4, 1, { 1 } }, { 6, 3, 3, { 2, 2, 2 } },
        { 0, 3, 3, { 0, 0, 0 } },
        { 4, 1, 1, { 4 } },
    };
    group("chunk divides a dimension into views");
    for (size_t i = 0; i < COUNT(cases); i++) {
        ctrt_tensor *x = COUNTING(2, cases[i].n), *pieces[8] = { NULL };
        int count = -1;
        CHECK_OK(ctrt_chunk(pieces, &count, x, cases[i].chunks, -1));
        CHECK(count == cases[i].count, "%lld into %d: %d pieces, expected %d", (long long)cases[i].n, cases[i].chunks,
              count, cases[i].count);
        for (int p = 0; p < count && p < 8; p++) {
            CHECK(ctrt_tensor_size(pieces[p], 1) == cases[i].rows[p],
                  "%lld into %d: piece %d has %lld rows, expected %lld",
                  (long long)cases[i].n, cases[i].chunks, p + 1, (long long)ctrt_tensor_size(pieces[p], 1),
                  (long long)cases[i].rows[p]);
            CHECK(ctrt_tensor_shares_storage(pieces[p], x), "piece %d does not share the storage", p);
            ctrt_tensor_release(&pieces[p]);
        }
        ctrt_tensor_release(&x);
    }
    ctrt_tensor *x = COUNTING(40), *pieces[40] = { NULL }, *scalar = counting_of(CTRT_SCALAR_SHAPE, CTRT_F32);
    int count = 77;
    CHECK_OK(ctrt_chunk(pieces, &count, x, 40, 0));             /* more than the internal array on the stack holds */
    CHECK(count == 40, "%d pieces, expected 40", count);
    VALUES_ARE(pieces[39], 39);
    for (int p = 0; p < 40; p++)
        ctrt_tensor_release(&pieces[p]);
    CHECK_FAILS(ctrt_chunk(pieces, &count, x, 0, 0), CTRT_ERR_INVALID_ARGUMENT, "0 chunks");
    CHECK_FAILS(ctrt_chunk(pieces, &count, x, -1, 0), CTRT_ERR_INVALID_ARGUMENT, "-1 chunks");
    CHECK_FAILS(ctrt_chunk(pieces, &count, x, 2, 1), CTRT_ERR_SHAPE, "out of range");
    CHECK_FAILS(ctrt_chunk(pieces, &count, scalar, 2, 0), CTRT_ERR_SHAPE, "0-dim");
    CHECK_FAILS(ctrt_chunk(pieces, NULL, x, 2, 0), CTRT_ERR_INVALID_ARGUMENT, "count is NULL");
    CHECK_FAILS(ctrt_chunk(NULL, &count, x, 2, 0), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    CHECK_FAILS(ctrt_chunk(pieces, &count, NULL, 2, 0), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK(count == 40 && pieces[0] == NULL, "a failed call set an output");
    ctrt_tensor *huge = NULL;
    CHECK_OK(ctrt_zeros(&huge, CTRT_SCALAR_SHAPE, CTRT_U8, cpu));
    CHECK_OK(ctrt_expand(&huge, huge, CTRT_SHAPE(INT64_MAX)));
    CHECK_OK(ctrt_chunk(pieces, &count, huge, 2, 0));
    CHECK(count == 2 && ctrt_tensor_size(pieces[1], 0) == INT64_MAX / 2, "%d pieces, the second of %lld", count,
          (long long)ctrt_tensor_size(pieces[1], 0));
    ctrt_tensor *all[] = { huge, pieces[0], pieces[1] };
    for (size_t i = 0; i < COUNT(all); i++)
        ctrt_tensor_release(&all[i]);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&scalar);
}

static void strided(void)
{
    group("as_strided views any part of the storage");
    ctrt_tensor *x = COUNTING(6);
    CHECK_OK(ctrt_as_strided(&y, x, CTRT_SHAPE(2, 3), CTRT_SHAPE(1, 2), 0));
    VALUES_ARE(y, 0, 2, 4, 1, 3, 5);
    CHECK_OK(ctrt_as_strided(&y, x, CTRT_SHAPE(2, 2), CTRT_SHAPE(0, 3), 1));
    VALUES_ARE(y, 1, 4, 1, 4);
    CHECK_OK(ctrt_as_strided(&y, x, CTRT_SCALAR_SHAPE, CTRT_SCALAR_SHAPE, 5));
    VALUES_ARE(y, 5);
    CHECK_OK(ctrt_slice(&y, x, 0, 4, 6, 1));
    /* sizes and offset refer to the whole storage, not to the view */
    CHECK_OK(ctrt_as_strided(&y, y, CTRT_SHAPE(6), CTRT_SHAPE(1), 0));
    VALUES_ARE(y, 0, 1, 2, 3, 4, 5);
    CHECK_OK(ctrt_as_strided(&y, x, CTRT_SHAPE(0, 5), CTRT_SHAPE(100, 100), 6));
    SHAPE_IS(y, 0, 5);
    CHECK_OK(ctrt_as_strided(&y, x, CTRT_SHAPE(1), CTRT_SHAPE(INT64_MAX), 5));
    CHECK_FAILS(ctrt_as_strided(&y, x, CTRT_SHAPE(2, 3), CTRT_SHAPE(2, 2), 0), CTRT_ERR_SHAPE,
                "exceeds the storage of 6 elements");
    CHECK_FAILS(ctrt_as_strided(&y, x, CTRT_SHAPE(1), CTRT_SHAPE(1), 6), CTRT_ERR_SHAPE, "exceeds");
    CHECK_FAILS(ctrt_as_strided(&y, x, CTRT_SHAPE(0), CTRT_SHAPE(1), 7), CTRT_ERR_SHAPE, "exceeds");
    CHECK_FAILS(ctrt_as_strided(&y, x, CTRT_SHAPE(3, 3), CTRT_SHAPE(INT64_MAX, INT64_MAX), 0), CTRT_ERR_SHAPE,
                "exceeds");
    CHECK_FAILS(ctrt_as_strided(&y, x, CTRT_SHAPE(2), CTRT_SHAPE(1), INT64_MAX), CTRT_ERR_SHAPE, "exceeds");
    CHECK_FAILS(ctrt_as_strided(&y, x, CTRT_SHAPE(2), CTRT_SHAPE(1), -1), CTRT_ERR_INVALID_ARGUMENT, "negative offset");
    CHECK_FAILS(ctrt_as_strided(&y, x, CTRT_SHAPE(2), CTRT_SHAPE(-1), 1), CTRT_ERR_INVALID_ARGUMENT, "negative stride");
    CHECK_FAILS(ctrt_as_strided(&y, x, CTRT_SHAPE(2), CTRT_SHAPE(1, 1), 0), CTRT_ERR_SHAPE, "1 sizes and 2 strides");
    CHECK_FAILS(ctrt_as_strided(&y, x, CTRT_SHAPE(-2), CTRT_SHAPE(1), 0), CTRT_ERR_SHAPE, "negative size");
    CHECK_FAILS(ctrt_as_strided(&y, x, CTRT_SHAPE(2), ctrt_ints_of(NULL, 1), 0), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(ctrt_as_strided(&y, NULL, CTRT_SHAPE(2), CTRT_SHAPE(1), 0), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_as_strided(NULL, x, CTRT_SHAPE(2), CTRT_SHAPE(1), 0), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    ctrt_tensor_release(&x);
}

static void sharing(void)
{
    group("views share the storage and its version");
    ctrt_tensor *x = COUNTING(4), *part = NULL;
    CHECK_OK(ctrt_detach(&y, x));
    shares(x);
    CHECK_OK(ctrt_narrow(&part, x, 0, 1, 2));
    const uint32_t before = ctrt_tensor_version(x);
    CHECK_OK(ctrt_fill_(part, ctrt_float(9)));
    VALUES_ARE(x, 0, 9, 9, 3);
    VALUES_ARE(y, 0, 9, 9, 3);
    CHECK(ctrt_tensor_version(x) == before + 1 && ctrt_tensor_version(y) == before + 1,
          "versions %u and %u after one write to %u",
          ctrt_tensor_version(x), ctrt_tensor_version(y), before);
    ctrt_tensor_release(&x);                                    /* the storage outlives the tensor that created it */
    ctrt_tensor_release(&y);
    VALUES_ARE(part, 9, 9);
    CHECK_OK(ctrt_reshape(&part, part, CTRT_SHAPE(2, 1)));      /* the output is also the input */
    CHECK_OK(ctrt_t(&part, part));
    SHAPE_IS(part, 1, 2);
    ctrt_tensor_release(&part);
    CHECK_FAILS(ctrt_detach(&y, NULL), CTRT_ERR_INVALID_ARGUMENT, "x is NULL");
    CHECK_FAILS(ctrt_detach(NULL, NULL), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
}

static void facts(void)
{
    group("properties of tensors and of NULL");
    ctrt_tensor *x = counting_of(CTRT_SHAPE(2, 3), CTRT_I16), *t = NULL;
    CHECK_OK(ctrt_t(&t, x));
    CHECK(ctrt_tensor_dtype(x) == CTRT_I16 && ctrt_tensor_ndim(x) == 2 && ctrt_tensor_numel(x) == 6,
          "wrong dtype, ndim or numel");
    CHECK(ctrt_tensor_size(x, 1) == 3 && ctrt_tensor_size(x, -2) == 2, "wrong sizes");
    CHECK(ctrt_tensor_size(x, 2) == 0 && ctrt_tensor_size(x, -3) == 0, "a size out of range is not 0");
    CHECK(ctrt_tensor_device(x) == cpu, "wrong device");
    CHECK(ctrt_tensor_is_contiguous(x, CTRT_CONTIGUOUS_FORMAT) && !ctrt_tensor_is_contiguous(t, CTRT_CONTIGUOUS_FORMAT),
          "wrong contiguity");
    CHECK(!ctrt_tensor_is_contiguous(x, CTRT_CHANNELS_LAST),
          "a tensor of 2 dimensions is contiguous in channels-last format");
    CHECK(ctrt_tensor_data(x) == ctrt_tensor_data(t) && ctrt_tensor_data(x) != NULL,
          "the data pointers differ or are NULL");
    CHECK(ctrt_tensor_dtype(NULL) == CTRT_DTYPE_DEFAULT && ctrt_tensor_ndim(NULL) == 0 && ctrt_tensor_numel(NULL) == 0
              && ctrt_tensor_shape(NULL) == NULL && ctrt_tensor_strides(NULL) == NULL && ctrt_tensor_size(NULL, 0) == 0
              && ctrt_tensor_offset(NULL) == 0 && ctrt_tensor_device(NULL) == NULL && ctrt_tensor_data(NULL) == NULL
              && !ctrt_tensor_is_contiguous(NULL, CTRT_CONTIGUOUS_FORMAT) && !ctrt_tensor_shares_storage(NULL, x)
              && !ctrt_tensor_shares_storage(x, NULL) && !ctrt_tensor_shares_storage(NULL, NULL) &&
              ctrt_tensor_version(NULL) == 0,
          "wrong properties of NULL");
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&t);
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    reshaping();
    squeezing();
    ordering();
    expanding();
    parts();
    chunks();
    strided();
    sharing();
    facts();
    ctrt_tensor_release(&y);
    return done();
}
