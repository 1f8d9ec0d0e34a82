/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the arithmetic of shapes and strides: text, strides, dimensions, broadcasting, inferred sizes, views. */
#include "calls.h"
#include "tensor/create.h"
#include "tap.h"

#define LIST(...) CTRT_SHAPE(__VA_ARGS__)

/* Checks that the two lists of sizes are equal. */
#define CHECK_SIZES(got, got_count, want, want_count) CHECK_STR(text(got, got_count), text(want, want_count))

static const char *text(const int64_t *shape, int ndim)
{
    static char buffers[4][SHAPE_TEXT_BYTES];
    static int next;
    return shape_text(buffers[next++ % 4], shape, ndim);
}

/* Returns a view of f32 with shape[4] and strides[4]. */
static ctrt_view view_with(int ndim, const int64_t *shape, const int64_t *strides)
{
    ctrt_view view = { .ndim = (uint8_t)ndim, .dtype = CTRT_F32, .flags = 0xffff };
    memcpy(view.shape, shape, 4 * sizeof *shape);
    memcpy(view.strides, strides, 4 * sizeof *strides);
    view_refresh(&view);
    return view;
}

TEST(texts, "shape_text formats shapes and truncates long ones")
{
    char buffer[SHAPE_TEXT_BYTES];
    int64_t many[100];
    CHECK_STR(shape_text(buffer, NULL, 0), "[]");
    CHECK_STR(shape_text(buffer, LIST(2, 3).values, 2), "[2, 3]");
    for (int i = 0; i < 100; i++)
        many[i] = INT64_MIN;
    CHECK_HAS(shape_text(buffer, many, 100), ", ...]");
    CHECK_TRUE(strlen(buffer) < SHAPE_TEXT_BYTES);
    CHECK(strstr(shape_text(buffer, many, 8), "...") == NULL, "the longest shape of a tensor is truncated: %s", buffer);
}

/* Shapes that are too large, or have negative sizes, are in test-bad-input. */
TEST(checks, "shape_check accepts the largest shapes, and names what is wrong")
{
    const int64_t nine[9] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    OK(shape_check("test", ctrt_ints_of(nine, 8), CTRT_F32), shape_check("test", LIST(INT64_MAX), CTRT_I8));
    CHECK_FAILS(shape_check("test", ctrt_ints_of(nine, -1), CTRT_F32), CTRT_ERR_INVALID_ARGUMENT, "-1 dimensions");
    CHECK_FAILS(shape_check("test", LIST(2, -3), CTRT_F32), CTRT_ERR_SHAPE,
                "negative size -3 at dimension 1 of shape [2, -3]");
    CHECK_FAILS(shape_check("test", LIST(INT64_C(1) << 32, INT64_C(1) << 31), CTRT_I8), CTRT_ERR_OVERFLOW, NULL);
    CHECK_FAILS(shape_check("test", LIST(0, INT64_C(1) << 40, INT64_C(1) << 40), CTRT_I8), CTRT_ERR_OVERFLOW, NULL);
}

TEST(strides, "row-major and channels-last strides, and the flags of a view")
{
    static const struct { int ndim; int64_t shape[4], row_major[4], channels_last[4]; } cases[] = {
        { 4, { 2, 3, 4, 5 }, { 60, 20, 5, 1 }, { 60, 1, 15, 3 } },
        { 4, { 2, 1, 1, 1 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 } },
        { 3, { 2, 0, 3 }, { 3, 3, 1 }, { 0 } },              /* a size of 0 counts as 1, as in PyTorch */
        { 0, { 0 }, { 0 }, { 0 } },
    };
    EACH(c, cases) {
        int64_t got[4] = { 0 };
        shape_strides(got, c->shape, c->ndim);
        CHECK_SIZES(got, c->ndim, c->row_major, c->ndim);
        if (c->ndim != 4)
            continue;
        shape_strides_channels_last(got, c->shape);
        CHECK_SIZES(got, 4, c->channels_last, 4);
    }

    static const struct { int ndim; int64_t shape[4], strides[4], numel; bool contiguous, channels_last; } views[] = {
        { 2, { 2, 3 }, { 3, 1 }, 6, true, false }, { 2, { 3, 2 }, { 1, 3 }, 6, false, false },
        { 2, { 1, 3 }, { 77, 1 }, 3, true, false },          /* a size of 1 has any stride */
        { 2, { 2, 3 }, { 0, 1 }, 6, false, false }, { 2, { 0, 3 }, { 9, 9 }, 0, true, false },
        { 4, { 2, 3, 4, 5 }, { 60, 1, 15, 3 }, 120, false, true },
        { 4, { 2, 1, 4, 5 }, { 20, 20, 5, 1 }, 40, true, true }, { 4, { 2, 3, 1, 1 }, { 3, 1, 1, 1 }, 6, true, true },
        { 4, { 2, 3, 4, 5 }, { 60, 20, 5, 1 }, 120, true, false }, { 0, { 0 }, { 0 }, 1, true, false },
    };
    EACH(c, views) {
        const ctrt_view view = view_with(c->ndim, c->shape, c->strides);
        EQUALS((view.numel, c->numel), (!!(view.flags & CTRT_VIEW_CONTIGUOUS), c->contiguous),
               (!!(view.flags & CTRT_VIEW_CHANNELS_LAST), c->channels_last));
        CHECK_TRUE(view.flags & CTRT_VIEW_HOST_SCALAR);
    }
}

TEST(dims, "dimensions out of range and sets of dimensions")
{
    static const struct { int64_t dim; int ndim; const char *words; } bad[] = {
        { 3, 3, "dimension 3 is out of range [-3, 2]" }, { -4, 3, "-4" }, { 1, 0, "[-1, 0]" },
        { INT64_MIN, 3, "[-3, 2]" }, { INT64_MAX, 8, "[-8, 7]" },
    };
    EACH(c, bad) {
        int got = -9;
        CHECK_FAILS(shape_dim(&got, "test", c->dim, c->ndim), CTRT_ERR_SHAPE, c->words);
        CHECK(got == -9, "a failed call wrote %d", got);
    }
    static const struct { int count; int64_t dims[2]; int ndim; uint32_t want; } sets[] = {
        { 0, { 0 }, 2, 3 }, { 2, { 0, -1 }, 4, 9 }, { 1, { -1 }, 0, 0 },
    };
    uint32_t set = 99;
    EACH(c, sets) {
        CHECK_OK(shape_dims(&set, "test", ctrt_ints_of(c->dims, c->count), c->ndim));
        CHECK_EQ(set, c->want);
    }
    CHECK_OK(shape_dims(&set, "test", CTRT_ALL_DIMS, 3));
    CHECK_EQ(set, 7);
    CHECK_OK(shape_dims(&set, "test", CTRT_ALL_DIMS, 0));
    CHECK_EQ(set, 0);
    CHECK_FAILS(shape_dims(&set, "test", LIST(1, -2), 3), CTRT_ERR_SHAPE, "dimension 1 is given twice");
    CHECK_FAILS(shape_dims(&set, "test", LIST(0, 0), 0), CTRT_ERR_SHAPE, "twice");
    CHECK_FAILS(shape_dims(&set, "test", ctrt_ints_of(NULL, -2), 3), CTRT_ERR_INVALID_ARGUMENT, "-2");
}

TEST(broadcasting, "two shapes broadcast as in PyTorch")
{
    static const struct { int a_ndim, b_ndim, ndim; int64_t a[4], b[4], want[4]; } cases[] = {
        { 1, 3, 3, { 3 }, { 5, 2, 1 }, { 5, 2, 3 } }, { 0, 2, 2, { 0 }, { 4, 0 }, { 4, 0 } },
        { 2, 2, 2, { 1, 0 }, { 7, 1 }, { 7, 0 } }, { 1, 1, 1, { 1 }, { 0 }, { 0 } },
        { 2, 2, -1, { 2, 3 }, { 2, 4 }, { 0 } }, { 1, 1, -1, { 2 }, { 0 }, { 0 } },
    };
    EACH(c, cases) {
        int64_t got[CTRT_MAX_DIMS] = { -7 }, onto[CTRT_MAX_DIMS];
        int ndim = -7, onto_ndim = c->a_ndim;
        const ctrt_status status = shape_broadcast(got, &ndim, "test", c->a, c->a_ndim, c->b, c->b_ndim);
        if (c->ndim < 0) {
            CHECK_FAILS(status, CTRT_ERR_SHAPE, text(c->a, c->a_ndim));
            CHECK(ndim == -7 && got[0] == -7, "a failed call wrote its output");
            continue;
        }
        CHECK_OK(status);
        CHECK_SIZES(got, ndim, c->want, c->ndim);
        memcpy(onto, c->a, sizeof c->a);         /* the output may be an operand */
        CHECK_OK(shape_broadcast(onto, &onto_ndim, "test", onto, onto_ndim, c->b, c->b_ndim));
        CHECK_SIZES(onto, onto_ndim, c->want, c->ndim);
    }
    ctrt_view view = view_with(2, (const int64_t[4]){ 3, 1 }, (const int64_t[4]){ 4, 4 }), wide;
    const int64_t target[3] = { 2, 3, 5 }, wanted[3] = { 0, 4, 0 };
    view_expand(&wide, &view, target, 3);
    CHECK(wide.numel == 30 && shape_equal(wide.strides, 3, wanted, 3), "expanded strides %s", text(wide.strides, 3));
    view_expand(&view, &view, target, 3);
    CHECK(view.numel == 30 && shape_equal(view.strides, 3, wanted, 3) && !(view.flags & CTRT_VIEW_CONTIGUOUS),
          "expanded onto itself: %s", text(view.strides, 3));
}

TEST(inferring, "sizes that cannot be inferred")
{
    static const struct { int64_t numel; int ndim; int64_t wanted[4]; const char *words; } bad[] = {
        { 6, 2, { 4, -1 }, "[4, -1] does not match a tensor of 6 elements" }, { 6, 2, { -1, -1 }, "only one size" },
        { 6, 1, { -2 }, "negative size -2" }, { 0, 2, { -1, 0 }, "ambiguous" }, { 6, 0, { 0 }, "[]" },
        { 6, 2, { -1, 0 }, "does not match" }, { 0, 2, { INT64_MAX, INT64_MAX }, "does not match" },
        { 4, 2, { INT64_C(1) << 62, INT64_C(1) << 62 }, "does not match" },
    };
    int64_t got[CTRT_MAX_DIMS];
    EACH(c, bad)
        CHECK_FAILS(shape_infer(got, "test", ctrt_ints_of(c->wanted, c->ndim), c->numel), CTRT_ERR_SHAPE, c->words);
    OK(shape_infer(got, "test", LIST(0, INT64_MAX, INT64_MAX), 0), shape_infer(got, "test", LIST(-1, 3), 0));
    CHECK_EQ(got[0], 0);
}

TEST(viewing, "strides of a view with another shape, where one is possible")
{
    static const struct { int in_ndim, ndim; int64_t shape[4], strides[4], to[5], want[5]; bool possible; } cases[] = {
        { 2, 1, { 2, 3 }, { 3, 1 }, { 6 }, { 1 }, true },
        { 2, 1, { 2, 3 }, { 1, 2 }, { 6 }, { 0 }, false },                             /* transposed */
        { 2, 3, { 2, 6 }, { 12, 2 }, { 2, 2, 3 }, { 12, 6, 2 }, true },
        /* every second element; without a gap between the rows they can be merged */
        { 2, 2, { 2, 6 }, { 12, 2 }, { 3, 4 }, { 8, 2 }, true }, { 2, 2, { 2, 6 }, { 13, 2 }, { 3, 4 }, { 0 }, false },
        { 2, 3, { 2, 6 }, { 13, 2 }, { 2, 3, 2 }, { 13, 4, 2 }, true },
        { 2, 4, { 2, 3 }, { 7, 1 }, { 1, 2, 1, 3 }, { 14, 7, 3, 1 }, true },
        /* the stride of a size of 1 is ignored */
        { 2, 2, { 3, 1 }, { 2, 5 }, { 1, 3 }, { 6, 2 }, true },
        { 2, 1, { 3, 4 }, { 0, 1 }, { 12 }, { 0 }, false },                            /* expanded */
        { 2, 3, { 3, 4 }, { 0, 1 }, { 3, 2, 2 }, { 0, 2, 1 }, true }, { 1, 2, { 4 }, { 0 }, { 2, 2 }, { 0, 0 }, true },
        { 2, 0, { 1, 1 }, { 5, 7 }, { 0 }, { 0 }, true }, { 0, 2, { 0 }, { 0 }, { 1, 1 }, { 1, 1 }, true },
        { 2, 3, { 0, 3 }, { 9, 2 }, { 3, 0, 2 }, { 2, 2, 1 }, true },
    };
    EACH(c, cases) {
        const ctrt_view view = view_with(c->in_ndim, c->shape, c->strides);
        int64_t got[CTRT_MAX_DIMS] = { 0 };
        if (!CHECK_EQ(shape_view_strides(got, &view, c->to, c->ndim), c->possible) || !c->possible)
            continue;
        for (int d = 0; d < c->ndim; d++)
            if (c->to[d] != 1)                  /* the stride of a size of 1 may be anything */
                CHECK_EQ(got[d], c->want[d]);
    }
}

TEST(spans, "imported strides are checked, and the number of elements they span is computed")
{
    static const struct {
        int ndim;
        int64_t shape[2], strides[2];
        ctrt_dtype dtype;
        int64_t elements, want[2];
        ctrt_status status;
        const char *words;
    } cases[] = {
        { 2, { 2, 3 }, { 10, 2 }, CTRT_F32, 15, { 10, 2 }, CTRT_OK, NULL },
        { 2, { 0, 3 }, { INT64_MAX, INT64_MAX }, CTRT_F32, 0, { 3, 1 }, CTRT_OK, NULL },
        { 2, { 1, 3 }, { INT64_MAX, 2 }, CTRT_F32, 5, { 3, 2 }, CTRT_OK, NULL },
        { 0, { 0 }, { 0 }, CTRT_F32, 1, { 0 }, CTRT_OK, NULL },
        { 1, { 3 }, { INT64_MAX }, CTRT_I8, 0, { 0 }, CTRT_ERR_OVERFLOW, "2^63" },
        { 1, { 2 }, { INT64_MAX / 2 }, CTRT_F64, 0, { 0 }, CTRT_ERR_OVERFLOW, "2^63" },
        { 1, { 2 }, { -1 }, CTRT_F64, 0, { 0 }, CTRT_ERR_INVALID_ARGUMENT, "negative stride" },
    };
    int64_t elements = 0, got[CTRT_MAX_DIMS];
    EACH(c, cases) {
        CHECK_FAILS(strides_import(got, &elements, "test", c->shape, c->strides, c->ndim, c->dtype), c->status,
                    c->words);
        if (c->status == CTRT_OK) {
            CHECK_EQ(elements, c->elements);
            CHECK_SIZES(got, c->ndim, c->want, c->ndim);
        }
    }
    CHECK_OK(strides_import(got, &elements, "test", cases[0].shape, NULL, 2, CTRT_F32));
    CHECK_TRUE(elements == 6 && got[0] == 3 && got[1] == 1);
}

TEST_MAIN
{
    return run_tests();
}
