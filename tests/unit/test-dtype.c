/* SPDX-License-Identifier: Apache-2.0 */
/* Tests data types: names, sizes, parsing, the default dtype, conversion of single elements, and the exact bits of
 * f16 and bf16. */
#include <math.h>

#include "tensor/shape.h"
#include "tap.h"

static void names(void)
{
    static const struct { ctrt_dtype dtype; const char *name; size_t bytes; bool floating; } cases[] = {
        { CTRT_F32, "f32", 4, true }, { CTRT_F64, "f64", 8, true }, { CTRT_F16, "f16", 2, true }, { CTRT_BF16, "bf16", 2, true },
        { CTRT_I8, "i8", 1, false }, { CTRT_U8, "u8", 1, false }, { CTRT_I16, "i16", 2, false }, { CTRT_I32, "i32", 4, false },
        { CTRT_I64, "i64", 8, false }, { CTRT_BOOL, "bool", 1, false }, { CTRT_DTYPE_DEFAULT, "?", 0, false },
        { (ctrt_dtype)11, "?", 0, false }, { (ctrt_dtype)-1, "?", 0, false }, { CTRT_DTYPE_MAX_, "?", 0, false },
    };
    group("names, sizes and categories");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHECK(strcmp(ctrt_dtype_name(cases[i].dtype), cases[i].name) == 0, "name of %d is %s, expected %s", cases[i].dtype,
              ctrt_dtype_name(cases[i].dtype), cases[i].name);
        CHECK(ctrt_dtype_size(cases[i].dtype) == cases[i].bytes, "size of %s is %zu", cases[i].name, ctrt_dtype_size(cases[i].dtype));
        CHECK(ctrt_dtype_is_floating(cases[i].dtype) == cases[i].floating, "%s: is_floating is wrong", cases[i].name);
    }
}

static void listing(void)
{
    size_t count = 0;
    const char *name = NULL;
    ctrt_dtype dtype;
    group("dtypes are listed in order");
    while (ctrt_dtype_get(&name, &dtype, count) == CTRT_OK) {
        CHECK(dtype == (ctrt_dtype)(count + 1) && strcmp(name, ctrt_dtype_name(dtype)) == 0, "%zu is %s, %d", count, name, dtype);
        count++;
    }
    CHECK(count == CTRT_DTYPE_COUNT - 1, "%zu data types", count);
    CHECK_FAILS(ctrt_dtype_get(NULL, NULL, count), CTRT_ERR_NOT_FOUND, "there are 10 data types");
}

static void parsing(void)
{
    static const struct { const char *name; ctrt_dtype dtype; } good[] = {
        { "f32", CTRT_F32 }, { "float32", CTRT_F32 }, { "torch.float32", CTRT_F32 }, { "float", CTRT_F32 }, { "double", CTRT_F64 },
        { "half", CTRT_F16 }, { "bfloat16", CTRT_BF16 }, { "long", CTRT_I64 }, { "int", CTRT_I32 }, { "short", CTRT_I16 },
        { "uint8", CTRT_U8 }, { "bool", CTRT_BOOL }, { "torch.int8", CTRT_I8 },
    };
    static const char *const bad[] = { "", "f", "F32", "float33", "torch.", "complex64", "f32 ", " f32", "i6", "torch.torch.f32" };
    group("names and aliases are parsed");
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        ctrt_dtype got = CTRT_DTYPE_DEFAULT;
        CHECK_OK(ctrt_dtype_parse(&got, good[i].name));
        CHECK(got == good[i].dtype, "\"%s\" is %s, expected %s", good[i].name, ctrt_dtype_name(got), ctrt_dtype_name(good[i].dtype));
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        ctrt_dtype got = CTRT_I16;
        CHECK_FAILS(ctrt_dtype_parse(&got, bad[i]), CTRT_ERR_INVALID_ARGUMENT, "unknown dtype");
        CHECK(got == CTRT_I16, "an invalid name set %s", ctrt_dtype_name(got));
    }
    ctrt_dtype got;
    CHECK_FAILS(ctrt_dtype_parse(&got, "float33"), CTRT_ERR_INVALID_ARGUMENT, "float32");
    CHECK_FAILS(ctrt_dtype_parse(&got, NULL), CTRT_ERR_INVALID_ARGUMENT, "name is NULL");
    CHECK_FAILS(ctrt_dtype_parse(NULL, "f32"), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
}

static void the_default(void)
{
    group("the default dtype");
    CHECK(ctrt_default_dtype() == CTRT_F32, "the initial default is %s", ctrt_dtype_name(ctrt_default_dtype()));
    CHECK_OK(ctrt_set_default_dtype(CTRT_BF16));
    CHECK(ctrt_default_dtype() == CTRT_BF16, "set to bf16, is %s", ctrt_dtype_name(ctrt_default_dtype()));
    static const ctrt_dtype refused[] = { CTRT_I64, CTRT_BOOL, CTRT_U8, CTRT_DTYPE_DEFAULT, (ctrt_dtype)99, (ctrt_dtype)-1 };
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        CHECK_FAILS(ctrt_set_default_dtype(refused[i]), CTRT_ERR_DTYPE, "not a floating type");
    CHECK(ctrt_default_dtype() == CTRT_BF16, "an invalid type changed the default");
    CHECK_OK(ctrt_set_default_dtype(CTRT_F32));
    ctrt_dtype got;
    CHECK_OK(dtype_resolve(&got, "test", CTRT_DTYPE_DEFAULT));
    CHECK(got == CTRT_F32, "DEFAULT resolves to %s", ctrt_dtype_name(got));
    CHECK_FAILS(dtype_resolve(&got, "test", (ctrt_dtype)77), CTRT_ERR_DTYPE, "77");
}

static void half_types(void)
{
    static const struct { float value; uint16_t f16, bf16; } cases[] = {
        { 0.0f, 0, 0 }, { -0.0f, 0x8000, 0x8000 }, { 1.0f, 0x3c00, 0x3f80 }, { -2.0f, 0xc000, 0xc000 },
        { 65504.0f, 0x7bff, 0x4780 }, { 65519.0f, 0x7bff, 0x4780 },
        { 65520.0f, 0x7c00, 0x4780 }, { 65536.0f, 0x7c00, 0x4780 }, { INFINITY, 0x7c00, 0x7f80 }, { -INFINITY, 0xfc00, 0xff80 },
        { 0x1p-14f, 0x0400, 0x3880 }, { 0x1p-24f, 0x0001, 0x3380 }, { 0x1p-25f, 0x0000, 0x3300 },
        { 0x1.000002p-25f, 0x0001, 0x3300 }, { 0x1.8p-24f, 0x0002, 0x33c0 },            /* ties to even */
        { 0x1.ffcp-15f, 0x0400, 0x3880 }, /* halfway between the largest subnormal and the next value */
        { 2049.0f, 0x6800, 0x4500 }, { 2051.0f, 0x6802, 0x4500 },                       /* ties: to 2048 and 2052 */
        { 0x1.01p0f, 0x3c04, 0x3f80 }, { 0x1.03p0f, 0x3c0c, 0x3f82 }, { 0x1.010002p0f, 0x3c04, 0x3f81 },
        { 0x1.fffffep127f, 0x7c00, 0x7f80 }, { 0x1p-149f, 0, 0 },
    };
    group("f16 and bf16: rounding of selected values");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHECK(f16_of_float(cases[i].value) == cases[i].f16, "%a as f16 is %04x, expected %04x", (double)cases[i].value,
              f16_of_float(cases[i].value), cases[i].f16);
        CHECK(bf16_of_float(cases[i].value) == cases[i].bf16, "%a as bf16 is %04x, expected %04x", (double)cases[i].value,
              bf16_of_float(cases[i].value), cases[i].bf16);
    }
    CHECK(isnan(float_of_f16(f16_of_float(NAN))) && isnan(float_of_bf16(bf16_of_float(NAN))),
          "NaN is not converted to NaN");
    uint32_t low_nan = 0x7f800001;                      /* the payload is in bits that are cut off */
    float nan_value;
    memcpy(&nan_value, &low_nan, sizeof nan_value);
    CHECK(isnan(float_of_f16(f16_of_float(nan_value))) && isnan(float_of_bf16(bf16_of_float(nan_value))),
          "a NaN with a low payload is not converted to NaN");

    group("f16 and bf16: every value is converted back exactly, and ties round to even");
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        const float half = float_of_f16((uint16_t)bits), brain = float_of_bf16((uint16_t)bits);
        if (!isnan(half))
            CHECK(f16_of_float(half) == bits, "f16 %04x is converted back to %04x", bits, f16_of_float(half));
        if (!isnan(brain))
            CHECK(bf16_of_float(brain) == bits, "bf16 %04x is converted back to %04x", bits, bf16_of_float(brain));
        if ((bits & 0x7fff) >= 0x7bff)
            continue;
        const float next = float_of_f16((uint16_t)(bits + 1)), middle = half / 2 + next / 2;
        const uint16_t even = (uint16_t)(bits & 1 ? bits + 1 : bits);
        CHECK(f16_of_float(middle) == even, "the tie above f16 %04x rounds to %04x, expected the even %04x", bits,
              f16_of_float(middle), even);
        CHECK(f16_of_float(nextafterf(middle, next)) == bits + 1, "a value just above the tie of %04x is rounded down",
              bits);
        CHECK(f16_of_float(nextafterf(middle, half)) == bits, "a value just below the tie of %04x is rounded up", bits);
    }
}

static bool same(ctrt_scalar a, ctrt_scalar b)
{
    if (a.kind != b.kind)
        return false;
    return a.kind == CTRT_SCALAR_FLOAT ? a.f == b.f || (isnan(a.f) && isnan(b.f)) : a.i == b.i;
}

static void elements(void)
{
    const struct { ctrt_dtype dtype; ctrt_scalar stored, loaded; } cases[] = {
        { CTRT_F32, ctrt_float(0.1), ctrt_float((double)0.1f) }, { CTRT_F64, ctrt_float(0.1), ctrt_float(0.1) },
        { CTRT_F16, ctrt_float(65520), ctrt_float(INFINITY) }, { CTRT_BF16, ctrt_float(1.00390625), ctrt_float(1) },
        { CTRT_F32, ctrt_int(16777217), ctrt_float(16777216) }, { CTRT_F64, ctrt_bool(true), ctrt_float(1) },
        { CTRT_I32, ctrt_float(2.9), ctrt_int(2) }, { CTRT_I32, ctrt_float(-2.9), ctrt_int(-2) },
        { CTRT_I8, ctrt_int(300), ctrt_int(44) }, { CTRT_U8, ctrt_int(-1), ctrt_int(255) }, { CTRT_I16, ctrt_float(-32768), ctrt_int(-32768) },
        { CTRT_I64, ctrt_float(0x1p62), ctrt_int(INT64_C(1) << 62) }, { CTRT_I64, ctrt_float(1e300), ctrt_int(INT64_MIN) },
        { CTRT_I64, ctrt_float(NAN), ctrt_int(INT64_MIN) }, { CTRT_I64, ctrt_int(INT64_MAX), ctrt_int(INT64_MAX) },
        { CTRT_BOOL, ctrt_float(0.25), ctrt_bool(true) }, { CTRT_BOOL, ctrt_float(-0.0), ctrt_bool(false) },
        { CTRT_BOOL, ctrt_int(256), ctrt_bool(true) }, { CTRT_BOOL, ctrt_float(NAN), ctrt_bool(true) }, { CTRT_F32, ctrt_float(NAN), ctrt_float(NAN) },
    };
    group("one element is stored and loaded");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        unsigned char bytes[16];
        memset(bytes, 0xa5, sizeof bytes);
        dtype_store(bytes + 1, cases[i].dtype, cases[i].stored);            /* intentionally unaligned */
        ctrt_scalar got = dtype_load(bytes + 1, cases[i].dtype);
        CHECK(same(got, cases[i].loaded), "case %zu, %s: loaded kind %d, %lld or %g", i, ctrt_dtype_name(cases[i].dtype), got.kind,
              (long long)got.i, got.f);
        CHECK(bytes[0] == 0xa5 && bytes[1 + ctrt_dtype_size(cases[i].dtype)] == 0xa5,
              "case %zu wrote outside its element", i);
    }
    const struct { ctrt_dtype dtype; ctrt_scalar value; bool fits; } ranges[] = {
        { CTRT_I8, ctrt_int(127), true }, { CTRT_I8, ctrt_int(128), false }, { CTRT_I8, ctrt_float(-128), true }, { CTRT_I8, ctrt_float(-129), false },
        { CTRT_U8, ctrt_int(255), true }, { CTRT_U8, ctrt_int(256), false }, { CTRT_U8, ctrt_int(-1), true }, { CTRT_U8, ctrt_float(-1), false },
        { CTRT_I64, ctrt_float(0x1p63), false }, { CTRT_I64, ctrt_float(-0x1p63), true }, { CTRT_I32, ctrt_float(NAN), false },
        { CTRT_F16, ctrt_float(65504), true }, { CTRT_F16, ctrt_float(65505), false }, { CTRT_F16, ctrt_float(INFINITY), true },
        { CTRT_F32, ctrt_float(1e39), false }, { CTRT_F32, ctrt_float(NAN), true }, { CTRT_BOOL, ctrt_int(7), true }, { CTRT_F64, ctrt_float(1e308), true },
        { CTRT_BF16, ctrt_float(3.4e38), false },
    };
    group("numbers out of a dtype's range are rejected");
    for (size_t i = 0; i < COUNT_OF(ranges); i++) {
        ctrt_status status = dtype_check_scalar("test", ranges[i].dtype, ranges[i].value);
        CHECK(status == (ranges[i].fits ? CTRT_OK : CTRT_ERR_OVERFLOW), "case %zu into %s: %s", i, ctrt_dtype_name(ranges[i].dtype),
              ctrt_status_string(status));
    }
    ctrt_scalar strange = { .kind = (ctrt_scalar_kind)7 };
    CHECK_FAILS(dtype_check_scalar("test", CTRT_F32, strange), CTRT_ERR_INVALID_ARGUMENT, "kind 7");
}

TEST_MAIN
{
    names();
    listing();
    parsing();
    the_default();
    half_types();
    elements();
    return done();
}
