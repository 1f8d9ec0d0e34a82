/* SPDX-License-Identifier: Apache-2.0 */
/* copy.c: copies, conversions of dtype and layout, creation. */
#include <inttypes.h>

#include "suite.h"

#define ANY { REAL, -4, 4 }

REFERENCE(same)
{
    array_to(out, in, in->dtype);
}

static ctrt_status in_format(ctrt_tensor **out, ctrt_tensor *x, ctrt_memory_format format)
{
    CTRT_TRY(ctrt_contiguous(out, x, format));
    return ctrt_tensor_is_contiguous(*out, format) ? CTRT_OK
                                                   : ctrt_fail(CTRT_ERR_INTERNAL, "the result has another format");
}

CALLS(contiguous, in_format(out, in[0], CTRT_CONTIGUOUS_FORMAT))
CALLS(channels_last, in_format(out, in[0], CTRT_CHANNELS_LAST))

static const struct variant images[] = {
    { "", NORMAL, .in = { S(2, 3, 4, 5) } },
    { "one channel", NORMAL, .in = { S(2, 1, 4, 5) } },
    { "", ZERO_SIZE, .in = { S(0, 3, 4, 5) } },
    { "", LARGE, .in = { S(3, 17, 11, 9) } },
};

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

#define COPY(row, ...) \
    { row, .kernel = "copy", .dtypes = ALL, .flags = GRAD, .in = { ANY }, .reference = same_reference, __VA_ARGS__ }

static const struct check_op ops[] = {
    COPY("clone", .unary = ctrt_clone),
    COPY("contiguous", .call = contiguous_call),
    COPY("channels-last", .call = channels_last_call, VARIANTS(images)),
    COPY("to", .call = to_call),
    { "to and back", .kernel = "copy", .dtypes = ALL & ~BIT(I64), .flags = GRAD, .call = wide_call, .in = { ANY },
      .reference = same_reference },
    { "copy_", .kernel = "copy", .dtypes = ALL, .flags = GRAD, .binary_ = ctrt_copy_, .in = { ANY, ANY },
      USES(copy, second, copies) },
    { "fill_", .kernel = "fill", .dtypes = ALL, .call_ = fill_call_, .in = { ANY }, USES(fill, fill, fills) },
    { "zeros_like", .kernel = "fill", .dtypes = ALL, .unary = zeros_like, .unary_ = ctrt_zero_, .in = { ANY },
      .reference = fill_reference, VARIANTS(zeros) },
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
static void check_copy_into(struct run *run, ctrt_tensor *x, const struct array *want, enum layout layout)
{
    struct array zeros;
    struct placed out = { .leaf = NULL };
    char into[32];
    snprintf(into, sizeof into, "into %s", layout_names[layout]);
    array_make(&zeros, want->dtype, want->ndim, want->shape);
    if (check_ok(run, place(&out, &zeros, layout, 0, run->device, false), "placing")
        && check_call(run, ctrt_copy_(out.tensor, x), ctrt_tensor_dtype(x), into)) {
        for (int64_t k = 0; k < want->numel; k++)
            element_copy(&out.base, out.map[k], want, k);
        check_tensor(run, into, out.leaf, &out.base, EXACT, CTRT_F64);
    }
    unplace(&out);
}

static void check_conversion(struct run *run, ctrt_dtype from, ctrt_dtype to, enum layout layout)
{
    struct array full, want;
    struct placed in = { .leaf = NULL };
    CTRT_AUTO(tensor) out = NULL;
    struct dice dice = { run->options->seed + (uint64_t)from * 16 + (uint64_t)to };
    char what[64];
    snprintf(what, sizeof what, "%s, to %s", layout_names[layout], ctrt_dtype_name(to));
    run->variant = what;
    array_make(&full, from, 2, (int64_t[]){ 13, 37 });
    fill_convertible(&full, to, &dice);
    array_to(&want, &full, to);
    if (check_ok(run, place(&in, &full, layout, 0, run->device, false), "placing")
        && check_call(run, ctrt_to_dtype(&out, in.tensor, to), from, "the call")
        && check_tensor(run, "result", out, &want, EXACT, CTRT_F64))
        for (int l = 0; l < COUNT_OF(layouts); l++)
            check_copy_into(run, in.tensor, &want, layouts[l]);
    unplace(&in);
    run->variant = "";
}

static void check_conversions(struct run *run)
{
    for (int to = 1; ALL >> to && !run->skipped; to++)
        for (int l = 0; l < COUNT_OF(layouts); l++)
            check_conversion(run, run->dtype, (ctrt_dtype)to, layouts[l]);
}

/* All values of a half precision type to f32, or, without data, f32 values of all magnitudes, at and next to the
 * midpoints, to it. */
static void check_halves(struct run *run)
{
    enum { VALUES = 65536 };
    static uint16_t bits[VALUES];
    static uint32_t wide[VALUES];
    const bool widen = run->data != NULL;
    const ctrt_dtype from = widen ? run->dtype : CTRT_F32;
    CTRT_AUTO(tensor) x = NULL;
    struct array got, want;
    for (uint32_t k = 0; k < VALUES; k++) {
        bits[k] = (uint16_t)k;
        wide[k] = k << 16 | (k % 2 ? 0x8000u : 0) | (k % 7 == 0) | (k % 5 ? 0 : 0x1000u);
    }
    if (!check_ok(run, ctrt_from_data(&x, widen ? (void *)bits : wide, VALUES, CTRT_SHAPE(VALUES), from, run->device),
                  "placing")
        || !download(run, &want, x)
        || !check_call(run, ctrt_to_dtype(&x, x, widen ? CTRT_F32 : run->dtype), from, "the call")
        || !download(run, &got, x))
        return;
    want.dtype = widen ? CTRT_F32 : run->dtype;         /* check_array rounds to it */
    check_array(run, "result", &got, &want, EXACT, CTRT_F64);
    for (int64_t k = 0; k < VALUES && !run->failed; k++)
        if (!isnan(want.f[k]) && signbit(got.f[k]) != signbit(want.f[k]))
            check_fail(run, "%a became %a", want.f[k], got.f[k]);
}

/* Values out of the range of the new dtype: integers wrap, floating values become infinite. */
static void check_limits(struct run *run)
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
    for (int c = 0; c < COUNT_OF(cases); c++) {
        CTRT_AUTO(tensor) x = NULL;
        struct array value;
        double got;
        array_make(&value, cases[c].from, 0, NULL);
        value_set(&value, 0, cases[c].x);
        if (upload(run, &x, &value, false)
            && check_call(run, ctrt_to_dtype(&x, x, cases[c].to), cases[c].from, "the call")
            && check_ok(run, ctrt_item(&got, x), "reading") && got != cases[c].want)
            check_fail(run, "%s %g to %s is %g, expected %g", ctrt_dtype_name(cases[c].from), cases[c].x,
                       ctrt_dtype_name(cases[c].to), got, cases[c].want);
    }
}

/* ---- to and from the host, with conversion ---- */

static void check_host(struct run *run)
{
    CTRT_AUTO(tensor) x = NULL;
    double out[12], in[12];
    int64_t whole = 0;
    for (int k = 0; k < 12; k++)
        in[k] = run->dtype == CTRT_BOOL ? k % 2 : k;
    if (!check_ok(run, ctrt_zeros(&x, CTRT_SHAPE(3, 4), run->dtype, run->device), "zeros")
        || !check_ok(run, ctrt_from_host_(x, in, 12, CTRT_F64), "from_host_")
        || !check_ok(run, ctrt_transpose(&x, x, 0, 1), "transpose")
        || !check_ok(run, ctrt_to_host(out, sizeof out, x, CTRT_F64), "to_host"))
        return;
    for (int k = 0; k < 12; k++)
        if (out[k] != in[k % 3 * 4 + k / 3])
            check_fail(run, "element %d: got %g, expected %g", k, out[k], in[k % 3 * 4 + k / 3]);
    if (ctrt_to_host(out, sizeof out - 1, x, CTRT_F64) != CTRT_ERR_INVALID_ARGUMENT)
        check_fail(run, "a buffer that is too small was accepted");
    if (check_ok(run, ctrt_select(&x, x, 0, 3), "select") && check_ok(run, ctrt_select(&x, x, 0, 2), "select")
        && check_ok(run, ctrt_item(out, x), "item") && check_ok(run, ctrt_item_int(&whole, x), "item_int")
        && (out[0] != in[11] || whole != (int64_t)in[11]))
        check_fail(run, "item: got %g and %" PRId64 ", expected %g", out[0], whole, in[11]);
}

/* ---- factories ---- */

/* Checks a new tensor: element k must be first + k * step. */
static void expect_values(struct run *run, const char *what, ctrt_status status, ctrt_tensor **x,
                          ctrt_dtype dtype, ctrt_ints shape, double first, double step)
{
    struct array want;
    if (!check_ok(run, status, what))
        return;
    array_make(&want, dtype, shape.count, shape.values);
    for (int64_t k = 0; k < want.numel; k++)
        value_set(&want, k, first + step * (double)k);
    check_tensor(run, what, *x, &want, EXACT, dtype);
}

static void check_creation(struct run *run)
{
    const ctrt_dtype dtype = run->dtype;
    const ctrt_ints size = CTRT_SHAPE(2, 3);
    const double three = dtype == CTRT_BOOL ? 1 : 3;
    CTRT_AUTO(tensor) x = NULL;
    struct array eye;
    expect_values(run, "zeros", ctrt_zeros(&x, size, dtype, run->device), &x, dtype, size, 0, 0);
    expect_values(run, "ones", ctrt_ones(&x, size, dtype, run->device), &x, dtype, size, 1, 0);
    expect_values(run, "full", ctrt_full(&x, size, ctrt_int(3), dtype, run->device), &x, dtype, size, three, 0);
    expect_values(run, "scalar_tensor", ctrt_scalar_tensor(&x, ctrt_int(3), dtype, run->device), &x, dtype,
                  CTRT_SCALAR_SHAPE, three, 0);
    if (dtype != CTRT_BOOL)
        expect_values(run, "arange", ctrt_arange(&x, ctrt_int(2), ctrt_int(12), ctrt_int(3), dtype, run->device), &x,
                      dtype, CTRT_SHAPE(4), 2, 3);
    array_make(&eye, dtype, 2, size.values);
    value_set(&eye, 0, 1);
    value_set(&eye, 4, 1);
    if (check_ok(run, ctrt_eye(&x, 2, 3, dtype, run->device), "eye"))
        check_tensor(run, "eye", x, &eye, EXACT, dtype);
}

static void check_arange(struct run *run)
{
    static const ctrt_dtype floating[] = { CTRT_F32, CTRT_F64, CTRT_F16, CTRT_BF16 };
    const ctrt_ints thousand = CTRT_SHAPE(1000), three = CTRT_SHAPE(3), many = CTRT_SHAPE(70001);
    CTRT_AUTO(tensor) x = NULL;
#define ARANGE(start, end, step, dtype) ctrt_arange(&x, start, end, step, dtype, run->device), &x
    expect_values(run, "5 to 0 by -2", ARANGE(ctrt_int(5), ctrt_int(0), ctrt_int(-2), CTRT_DTYPE_DEFAULT), CTRT_I64,
                  three, 5, -2);
    expect_values(run, "5.0 to 0.0 by -2.0", ARANGE(ctrt_float(5), ctrt_float(0), ctrt_float(-2), CTRT_I64), CTRT_I64,
                  three, 5, -2);
    for (int t = 0; t < 4; t++)
        expect_values(run, ctrt_dtype_name(floating[t]),
                      ARANGE(ctrt_float(3), ctrt_float(102.95), ctrt_float(0.1), floating[t]), floating[t], thousand,
                      3, 0.1);
    expect_values(run, "many", ARANGE(ctrt_int(0), ctrt_int(70001), ctrt_int(1), CTRT_I32), CTRT_I32, many, 0, 1);
}

static const struct check_special specials[] = {
    { "convert", "forward", "to every dtype", ALL, .run = check_conversions, .kernel = "copy" },
    { "convert", "forward", "every value to f32", HALVES, .run = check_halves, .data = "widen", .kernel = "copy" },
    { "convert", "forward", "from f32 of all magnitudes", HALVES, .run = check_halves, .kernel = "copy" },
    { "convert", "forward", "beyond the new dtype's range", 0, .run = check_limits, .kernel = "copy" },
    { "host", "forward", "buffers", ALL, .run = check_host },
    { "create", "forward", "zeros ones full eye arange", ALL, .run = check_creation },
    { "arange", "forward", "steps", 0, .run = check_arange },
};

const struct family copy_family = { "copy", FAMILY_OPS(ops), FAMILY_SPECIALS(specials) };
