/* SPDX-License-Identifier: Apache-2.0 */
/* copy.c: copies, conversions of dtype and layout, creation. */
#include <inttypes.h>

#include "suite.h"

#define ANY { REAL, -4, 4 }

REFERENCE(same)
{
    array_to(out, in, in->dtype);
}

CALL(contiguous)
{
    CTRT_TRY(ctrt_contiguous(out, in[0], CTRT_CONTIGUOUS_FORMAT));
    return ctrt_tensor_is_contiguous(*out, CTRT_CONTIGUOUS_FORMAT)
               ? CTRT_OK
               : ctrt_fail(CTRT_ERR_INTERNAL, "the result is not contiguous");
}

static const struct variant images[] = {
    { "", NORMAL, .in = { S(2, 3, 4, 5) } },
    { "one channel", NORMAL, .in = { S(2, 1, 4, 5) } },
    { "", ZERO_SIZE, .in = { S(0, 3, 4, 5) } },
    { "", LARGE, .in = { S(3, 17, 11, 9) } },
};

CALL(channels_last)
{
    CTRT_TRY(ctrt_contiguous(out, in[0], CTRT_CHANNELS_LAST));
    return ctrt_tensor_is_contiguous(*out, CTRT_CHANNELS_LAST)
               ? CTRT_OK
               : ctrt_fail(CTRT_ERR_INTERNAL, "the result is not channels-last");
}

/* Converts to f64 and back, so that the gradient passes through two conversions. */
CALL(wide)
{
    ctrt_dtype was = ctrt_tensor_dtype(in[0]);
    CTRT_TRY(ctrt_to_dtype(out, in[0], CTRT_F64));
    return ctrt_to_dtype(out, *out, was);
}

CALL(to)
{
    CTRT_TRY(ctrt_to(out, in[0], NULL, CTRT_DTYPE_DEFAULT, true, CTRT_PRESERVE_FORMAT));
    return ctrt_tensor_shares_storage(*out, in[0])
               ? ctrt_fail(CTRT_ERR_INTERNAL, "ctrt_to with copy made no copy")
               : CTRT_OK;
}

/* copy_: self, source. */
static const struct variant copies[] = {
    { "alike", NORMAL, .in = { S(2, 3, 5), S(2, 3, 5) } },
    { "broadcast", NORMAL, .in = { S(2, 3, 5), S(3, 1) } },
    { "", ZERO_SIZE, .in = { S(0, 2), S(2) } },
    { "", ZERO_DIM, .in = { S0, S0 } },
};

REFERENCE(second)
{
    int64_t index[CTRT_MAX_DIMS];
    array_make(out, in[0].dtype, in[0].ndim, in[0].shape);
    for (int64_t k = 0; k < out->numel; k++) {
        index_of(index, k, out->ndim, out->shape);
        element_copy(out, k, &in[1], offset_in(&in[1], index, out->ndim));
    }
}

CALL(copy)
{
    CTRT_TRY(ctrt_clone(out, in[0]));
    return ctrt_copy_(*out, in[1]);
}

/* fill_ with x[0]. */
static const struct variant fills[] = {
    { "3", NORMAL, .in = { S(2, 3, 5) }, .x = { 3 } },
    { "2.5", NORMAL, .in = { S(3, 4, 37) }, .x = { 2.5 } },
    { "", ZERO_SIZE, .in = { S(0, 2) }, .x = { 3 } },
    { "", ZERO_DIM, .in = { S0 }, .x = { 3 } },
};
static const struct variant zeros[] = {
    { "", NORMAL, .in = { S(2, 3, 5) } },
    { "", ZERO_SIZE, .in = { S(0, 2) } },
};

REFERENCE(fill)
{
    array_make(out, in->dtype, in->ndim, in->shape);
    for (int64_t k = 0; k < out->numel; k++)
        value_set(out, k, v->x[0]);
}

CALLS(fill, ctrt_full_like(out, in[0], ctrt_float(v->x[0]), CTRT_DTYPE_DEFAULT, NULL))

static ctrt_status fill_call_(ctrt_tensor *self, ctrt_tensor *const *in, const struct variant *v)
{
    (void)in;
    return ctrt_fill_(self, v->x[0] == 3 ? ctrt_int(3) : ctrt_float(v->x[0]));
}

static ctrt_status zeros_like(ctrt_tensor **out, ctrt_tensor *x)
{
    return ctrt_zeros_like(out, x, CTRT_DTYPE_DEFAULT, NULL);
}

static const struct check_op ops[] = {
    { "clone", .kernel = "copy", .dtypes = ALL, .flags = GRAD, .inputs = 1, .unary = ctrt_clone, .in = { ANY },
      .reference = same_reference },
    { "contiguous", .kernel = "copy", .dtypes = ALL, .flags = GRAD, .inputs = 1, .call = contiguous_call,
      .in = { ANY }, .reference = same_reference },
    { "channels-last", .kernel = "copy", .dtypes = ALL, .flags = GRAD, .inputs = 1, .call = channels_last_call,
      .in = { ANY }, .reference = same_reference, VARIANTS(images) },
    { "to", .kernel = "copy", .dtypes = ALL, .flags = GRAD, .inputs = 1, .call = to_call, .in = { ANY },
      .reference = same_reference },
    { "to and back", .kernel = "copy", .dtypes = ALL & ~BIT(I64), .flags = GRAD, .inputs = 1, .call = wide_call,
      .in = { ANY }, .reference = same_reference },
    { "copy_", .kernel = "copy", .dtypes = ALL, .flags = GRAD, .inputs = 2, .call = copy_call,
      .binary_ = ctrt_copy_, .in = { ANY, ANY }, .reference = second_reference, VARIANTS(copies) },
    { "fill_", .kernel = "fill", .dtypes = ALL, .inputs = 1, .call = fill_call, .call_ = fill_call_,
      .in = { ANY }, .reference = fill_reference, VARIANTS(fills) },
    { "zeros_like", .kernel = "fill", .dtypes = ALL, .inputs = 1, .unary = zeros_like, .unary_ = ctrt_zero_,
      .in = { ANY }, .reference = fill_reference, VARIANTS(zeros) },
};

/* ---- conversions between all dtypes ---- */

/* Fills `a` with values in the range of both dtypes. Conversions of values out of range are not checked, because C
 * leaves them undefined. */
static void fill_convertible(struct array *a, ctrt_dtype to, struct dice *dice)
{
    bool negative = a->dtype != CTRT_U8 && to != CTRT_U8;
    double span = to == CTRT_I8 || a->dtype == CTRT_I8 ? 120 : 250;
    for (int64_t k = 0; k < a->numel; k++) {
        double value = dice_unit(dice) * span * (negative && dice_next(dice) % 2 ? -1 : 1);
        value_set(a, k, k % 7 == 3 ? 0 : value);
    }
}

static const enum layout layouts[] = { CONTIGUOUS, OFFSET, TRANSPOSED, SLICED };

/* Copies x, whose converted values are `want`, into a tensor of this layout. Memory between its elements must not
 * change. */
static void check_copy_into(struct run *run, const char *what, ctrt_tensor *x, const struct array *want,
                            enum layout layout)
{
    struct array zeros, got;
    struct placed out;
    char into[96];
    snprintf(into, sizeof into, "%s, into %s", what, layout_names[layout]);
    memset(&out, 0, sizeof out);
    array_make(&zeros, want->dtype, want->ndim, want->shape);
    if (check_ok(run, place(&out, &zeros, layout, 0, run->device, false), NULL, 0, "placing")
        && check_ok(run, ctrt_copy_(out.tensor, x), "copy", ctrt_tensor_dtype(x), into)
        && check_ok(run, array_download(&got, out.leaf), NULL, 0, "reading")) {
        for (int64_t k = 0; k < want->numel; k++)
            value_set(&out.base, out.map[k], value_of(want, k));
        check_array(run, into, &got, &out.base, EXACT, CTRT_F64);
    }
    unplace(&out, 1);
}

static void check_conversion(struct run *run, ctrt_dtype from, ctrt_dtype to, enum layout layout)
{
    struct array full, got, want;
    struct placed in;
    CTRT_AUTO(tensor) out = NULL;
    struct dice dice = { run->options->seed + (uint64_t)from * 16 + (uint64_t)to };
    char what[64];
    snprintf(what, sizeof what, "%s, %s to %s", layout_names[layout], ctrt_dtype_name(from), ctrt_dtype_name(to));
    memset(&in, 0, sizeof in);
    array_make(&full, from, 2, (int64_t[]){ 13, 37 });
    fill_convertible(&full, to, &dice);
    array_to(&want, &full, to);
    if (check_ok(run, place(&in, &full, layout, 0, run->device, false), NULL, 0, "placing")
        && check_ok(run, ctrt_to_dtype(&out, in.tensor, to), "copy", from, what)
        && check_ok(run, array_download(&got, out), NULL, 0, "reading")
        && check_array(run, what, &got, &want, EXACT, CTRT_F64))
        for (size_t l = 0; l < sizeof layouts / sizeof layouts[0]; l++)
            check_copy_into(run, what, in.tensor, &want, layouts[l]);
    unplace(&in, 1);
}

static void check_conversions(struct run *run, const char *name)
{
    for (int from = 1; from < CTRT_DTYPE_COUNT; from++) {
        if (!check_begin(run, name, (ctrt_dtype)from, "forward", "to every dtype"))
            continue;
        for (int to = 1; to < CTRT_DTYPE_COUNT && !run->skipped; to++)
            for (size_t l = 0; l < sizeof layouts / sizeof layouts[0]; l++)
                check_conversion(run, (ctrt_dtype)from, (ctrt_dtype)to, layouts[l]);
        check_end(run);
    }
}

/* All values of a half precision type to f32, and f32 values of all magnitudes, at and next to the midpoints, to it. */
static void check_halves(struct run *run, const char *name)
{
    enum { VALUES = 65536 };
    static uint16_t bits[VALUES];
    static uint32_t wide[VALUES];
    static const ctrt_dtype dtypes[] = { CTRT_F16, CTRT_BF16 };
    for (uint32_t k = 0; k < VALUES; k++) {
        bits[k] = (uint16_t)k;
        wide[k] = k << 16 | (k % 2 ? 0x8000u : 0) | (k % 7 == 0) | (k % 5 ? 0 : 0x1000u);
    }
    for (int t = 0; t < 2; t++)
        for (int widen = 0; widen < 2; widen++) {
            CTRT_AUTO(tensor) x = NULL;
            struct array got, want;
            const ctrt_dtype from = widen ? dtypes[t] : CTRT_F32, to = widen ? CTRT_F32 : dtypes[t];
            if (!check_begin(run, name, dtypes[t], "forward",
                             widen ? "every value to f32" : "from f32 of all magnitudes"))
                continue;
            if (check_ok(run, ctrt_from_data(&x, widen ? (void *)bits : wide, VALUES, CTRT_SHAPE(VALUES), from,
                                             run->device),
                         NULL, 0, "placing")
                && check_ok(run, array_download(&want, x), NULL, 0, "reading")
                && check_ok(run, ctrt_to_dtype(&x, x, to), "copy", from, "the call")
                && check_ok(run, array_download(&got, x), NULL, 0, "reading")) {
                want.dtype = to;                /* check_array rounds to it */
                check_array(run, "result", &got, &want, EXACT, CTRT_F64);
                for (int64_t k = 0; k < VALUES && !run->failed; k++)
                    if (!isnan(want.f[k]) && signbit(got.f[k]) != signbit(want.f[k]))
                        check_fail(run, "%a became %a", want.f[k], got.f[k]);
            }
            check_end(run);
        }
}

/* Values out of the range of the new dtype: integers wrap, floating values become infinite. */
static void check_limits(struct run *run, const char *name)
{
    static const struct { ctrt_dtype from; double x; ctrt_dtype to; double want; } cases[] = {
        { CTRT_F32, -1.9, CTRT_I32, -1 },             { CTRT_F64, -0.5, CTRT_I8, 0 },
        { CTRT_F32, -3, CTRT_U8, 253 },               { CTRT_F32, 300, CTRT_U8, 44 },
        { CTRT_I32, -1, CTRT_U8, 255 },               { CTRT_I32, 1 << 20, CTRT_I16, 0 },
        { CTRT_F32, NAN, CTRT_BOOL, 1 },              { CTRT_F32, -0.0, CTRT_BOOL, 0 },
        { CTRT_F64, 1e300, CTRT_F32, INFINITY },      { CTRT_F32, 65520, CTRT_F16, INFINITY },
        { CTRT_F32, 65519, CTRT_F16, 65504 },         { CTRT_I8, -128, CTRT_I64, -128 },
        { CTRT_BOOL, 1, CTRT_F16, 1 },                { CTRT_U8, 200, CTRT_I8, -56 },
        { CTRT_F64, 4294967297.0, CTRT_I32, 1 },
    };
    if (!check_begin(run, name, 0, "forward", "beyond the new dtype's range"))
        return;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        CTRT_AUTO(tensor) x = NULL;
        struct array value;
        double got;
        array_make(&value, cases[c].from, 0, NULL);
        value_set(&value, 0, cases[c].x);
        if (check_ok(run, array_upload(&x, &value, run->device), NULL, 0, "placing")
            && check_ok(run, ctrt_to_dtype(&x, x, cases[c].to), "copy", cases[c].from, "the call")
            && check_ok(run, ctrt_item(&got, x), NULL, 0, "reading") && got != cases[c].want)
            check_fail(run, "%s %g to %s is %g, expected %g", ctrt_dtype_name(cases[c].from), cases[c].x,
                       ctrt_dtype_name(cases[c].to), got, cases[c].want);
    }
    check_end(run);
}

/* ---- to and from the host, with conversion ---- */

static void check_host(struct run *run, const char *name)
{
    for (int dtype = 1; dtype < CTRT_DTYPE_COUNT; dtype++) {
        CTRT_AUTO(tensor) x = NULL;
        double out[12], in[12];
        int64_t whole = 0;
        if (!check_begin(run, name, (ctrt_dtype)dtype, "forward", "buffers"))
            continue;
        for (int k = 0; k < 12; k++)
            in[k] = dtype == CTRT_BOOL ? k % 2 : k;
        if (check_ok(run, ctrt_zeros(&x, CTRT_SHAPE(3, 4), (ctrt_dtype)dtype, run->device), NULL, 0, "zeros")
            && check_ok(run, ctrt_from_host_(x, in, 12, CTRT_F64), NULL, 0, "from_host_")
            && check_ok(run, ctrt_transpose(&x, x, 0, 1), NULL, 0, "transpose")
            && check_ok(run, ctrt_to_host(out, sizeof out, x, CTRT_F64), NULL, 0, "to_host"))
            for (int k = 0; k < 12; k++)
                if (out[k] != in[k % 3 * 4 + k / 3])
                    check_fail(run, "element %d: got %g, expected %g", k, out[k], in[k % 3 * 4 + k / 3]);
        if (!run->failed && ctrt_to_host(out, sizeof out - 1, x, CTRT_F64) != CTRT_ERR_INVALID_ARGUMENT)
            check_fail(run, "a buffer that is too small was accepted");
        if (!run->failed && check_ok(run, ctrt_select(&x, x, 0, 3), NULL, 0, "select")
            && check_ok(run, ctrt_select(&x, x, 0, 2), NULL, 0, "select")
            && check_ok(run, ctrt_item(out, x), NULL, 0, "item")
            && check_ok(run, ctrt_item_int(&whole, x), NULL, 0, "item_int"))
            if (out[0] != in[11] || whole != (int64_t)in[11])
                check_fail(run, "item: got %g and %" PRId64 ", expected %g", out[0], whole, in[11]);
        check_end(run);
    }
}

/* ---- factories ---- */

static void expect_values(struct run *run, const char *what, ctrt_status status, ctrt_tensor **x,
                          ctrt_dtype dtype, int ndim, const int64_t *shape, const double *values)
{
    struct array got, want;
    if (!check_ok(run, status, NULL, 0, what) || !check_ok(run, array_download(&got, *x), NULL, 0, what))
        return;
    array_make(&want, dtype, ndim, shape);
    for (int64_t k = 0; k < want.numel; k++)
        value_set(&want, k, values[k]);
    check_array(run, what, &got, &want, EXACT, dtype);
}

static void check_creation(struct run *run, const char *name)
{
    static const double none[6] = { 0 }, ones[6] = { 1, 1, 1, 1, 1, 1 }, threes[6] = { 3, 3, 3, 3, 3, 3 },
                        eye[6] = { 1, 0, 0, 0, 1, 0 };
    static const double counting[6] = { 2, 5, 8, 11 }, truths[6] = { 1, 1, 1, 1, 1, 1 };
    static const int64_t shape[2] = { 2, 3 }, four[1] = { 4 };
    for (int k = 1; k < CTRT_DTYPE_COUNT; k++) {
        ctrt_dtype dtype = (ctrt_dtype)k;
        CTRT_AUTO(tensor) x = NULL;
        if (!check_begin(run, name, dtype, "forward", "zeros ones full eye arange"))
            continue;
        ctrt_ints size = ctrt_ints_of(shape, 2);
        expect_values(run, "zeros", ctrt_zeros(&x, size, dtype, run->device), &x, dtype, 2, shape, none);
        expect_values(run, "ones", ctrt_ones(&x, size, dtype, run->device), &x, dtype, 2, shape, ones);
        expect_values(run, "full", ctrt_full(&x, size, ctrt_int(3), dtype, run->device), &x, dtype, 2, shape,
                      dtype == CTRT_BOOL ? truths : threes);
        expect_values(run, "eye", ctrt_eye(&x, 2, 3, dtype, run->device), &x, dtype, 2, shape, eye);
        expect_values(run, "scalar_tensor", ctrt_scalar_tensor(&x, ctrt_int(3), dtype, run->device), &x, dtype,
                      0, NULL, dtype == CTRT_BOOL ? truths : threes);
        if (dtype != CTRT_BOOL)
            expect_values(run, "arange",
                          ctrt_arange(&x, ctrt_int(2), ctrt_int(12), ctrt_int(3), dtype, run->device), &x,
                          dtype, 1, four, counting);
        check_end(run);
    }
}

static void check_arange(struct run *run, const char *name)
{
    static const ctrt_dtype floating[] = { CTRT_F32, CTRT_F64, CTRT_F16, CTRT_BF16 };
    static const int64_t thousand[1] = { 1000 }, three[1] = { 3 };
    double tenths[1000], down[3] = { 5, 3, 1 };
    CTRT_AUTO(tensor) x = NULL;
    struct array got;
    if (!check_begin(run, name, 0, "forward", "steps"))
        return;
    for (int k = 0; k < 1000; k++)
        tenths[k] = 3 + 0.1 * k;
    expect_values(run, "5 to 0 by -2",
                  ctrt_arange(&x, ctrt_int(5), ctrt_int(0), ctrt_int(-2), CTRT_DTYPE_DEFAULT, run->device), &x,
                  CTRT_I64, 1, three, down);
    expect_values(run, "5.0 to 0.0 by -2.0",
                  ctrt_arange(&x, ctrt_float(5), ctrt_float(0), ctrt_float(-2), CTRT_I64, run->device), &x, CTRT_I64, 1,
                  three, down);
    for (int t = 0; t < 4; t++)
        expect_values(run, ctrt_dtype_name(floating[t]),
                      ctrt_arange(&x, ctrt_float(3), ctrt_float(102.95), ctrt_float(0.1), floating[t], run->device), &x,
                      floating[t], 1, thousand, tenths);
    if (check_ok(run, ctrt_arange(&x, ctrt_int(0), ctrt_int(70001), ctrt_int(1), CTRT_I32, run->device), NULL,
                 0, "many")
        && check_ok(run, array_download(&got, x), NULL, 0, "many"))
        for (int64_t k = 0; k < got.numel; k++)
            if (got.i[k] != k) {
                check_fail(run, "many[%" PRId64 "]: got %" PRId64, k, got.i[k]);
                break;
            }
    check_end(run);
}

static const struct check_special specials[] = {
    { "convert", "copy", check_conversions },
    { "convert", "copy", check_halves },
    { "convert", "copy", check_limits },
    { "host", "copy", check_host },
    { "create", "copy", check_creation },
    { "arange", "copy", check_arange },
};

const struct family copy_family = { "copy", FAMILY_OPS(ops), FAMILY_SPECIALS(specials) };
