/* SPDX-License-Identifier: Apache-2.0 */
/* Tests data types: names, sizes, parsing, the default dtype, the exact bits of f16 and
 * bf16, and type promotion against PyTorch's results for all pairs of operands (tests/reference/promotion.txt). */
#include <math.h>

#include "calls.h"
#include "tensor/shape.h"
#include "tensors.h"

/* Checks dtypes by their names. */
#define CHECK_DTYPE(got, want) CHECK_STR(ctrt_dtype_name(got), ctrt_dtype_name(want))

TEST(names, "names, sizes and categories, in the order of the list")
{
    static const struct { ctrt_dtype dtype; const char *name; size_t bytes; bool floating; } cases[] = {
        { CTRT_F32, "f32", 4, true }, { CTRT_F64, "f64", 8, true }, { CTRT_F16, "f16", 2, true },
        { CTRT_BF16, "bf16", 2, true }, { CTRT_I8, "i8", 1, false }, { CTRT_U8, "u8", 1, false },
        { CTRT_I16, "i16", 2, false }, { CTRT_I32, "i32", 4, false }, { CTRT_I64, "i64", 8, false },
        { CTRT_BOOL, "bool", 1, false },
    };
    EACH(c, cases) {
        const char *name = NULL;
        ctrt_dtype dtype = CTRT_DTYPE_DEFAULT;
        CHECK_OK(ctrt_dtype_get(&name, &dtype, (size_t)(c - cases)));
        CHECK_EQ(dtype, c->dtype);
        STRINGS((name, c->name), (ctrt_dtype_name(dtype), c->name));
        EQUALS((ctrt_dtype_size(dtype), c->bytes), (ctrt_dtype_is_floating(dtype), c->floating));
    }
    CHECK_FAILS(ctrt_dtype_get(NULL, NULL, COUNT_OF(cases)), CTRT_ERR_NOT_FOUND, "there are 10 data types");
    STRINGS((ctrt_dtype_name(CTRT_DTYPE_DEFAULT), "?"), (ctrt_dtype_name((ctrt_dtype)11), "?"));
    CHECK_EQ(ctrt_dtype_size((ctrt_dtype)11), 0);
}

TEST(parsing, "names and aliases are parsed")
{
    static const struct { const char *name; ctrt_dtype dtype; } good[] = {
        { "f32", CTRT_F32 }, { "float32", CTRT_F32 }, { "torch.float32", CTRT_F32 }, { "float", CTRT_F32 },
        { "double", CTRT_F64 }, { "half", CTRT_F16 }, { "bfloat16", CTRT_BF16 }, { "long", CTRT_I64 },
        { "int", CTRT_I32 }, { "short", CTRT_I16 }, { "uint8", CTRT_U8 }, { "bool", CTRT_BOOL },
        { "torch.int8", CTRT_I8 },
    };
    static const char *const bad[] = {
        "", "f", "F32", "torch.", "complex64", "f32 ", " f32", "i6", "torch.torch.f32",
    };
    ctrt_dtype got = CTRT_DTYPE_DEFAULT;
    EACH(c, good) {
        CHECK_OK(ctrt_dtype_parse(&got, c->name));
        CHECK_DTYPE(got, c->dtype);
    }
    EACH(c, bad)
        CHECK_FAILS(ctrt_dtype_parse(&got, *c), CTRT_ERR_INVALID_ARGUMENT, "unknown dtype");
    CHECK_FAILS(ctrt_dtype_parse(&got, "float33"), CTRT_ERR_INVALID_ARGUMENT, "float32");
    CHECK_EQ(got, CTRT_I8);                     /* as before the failed calls */
}

TEST(the_default, "the default dtype")
{
    static const ctrt_dtype refused[] = { CTRT_I64, CTRT_BOOL, CTRT_DTYPE_DEFAULT, (ctrt_dtype)99, (ctrt_dtype)-1 };
    ctrt_dtype got;
    CHECK_DTYPE(ctrt_default_dtype(), CTRT_F32);
    CHECK_OK(ctrt_set_default_dtype(CTRT_BF16));
    EACH(c, refused)
        CHECK_FAILS(ctrt_set_default_dtype(*c), CTRT_ERR_DTYPE, "not a floating type");
    CHECK_DTYPE(ctrt_default_dtype(), CTRT_BF16);
    OK(ctrt_set_default_dtype(CTRT_F32), dtype_resolve(&got, "test", CTRT_DTYPE_DEFAULT));
    CHECK_DTYPE(got, CTRT_F32);
    CHECK_FAILS(dtype_resolve(&got, "test", (ctrt_dtype)77), CTRT_ERR_DTYPE, "77");
}

static const struct half {
    const char *name;
    uint16_t (*of)(float);
    float (*value)(uint16_t);
    uint16_t infinity;
} halves[] = {
    { "f16", f16_of_float, float_of_f16, 0x7c00 }, { "bf16", bf16_of_float, float_of_bf16, 0x7f80 },
};

TEST(half_types, NULL)
{
    static const struct { float value; uint16_t bits[2]; } cases[] = {          /* f16, bf16 */
        { -0.0f, { 0x8000, 0x8000 } }, { 1.0f, { 0x3c00, 0x3f80 } }, { -2.0f, { 0xc000, 0xc000 } },
        { 65519.0f, { 0x7bff, 0x4780 } }, { 65520.0f, { 0x7c00, 0x4780 } }, { 65536.0f, { 0x7c00, 0x4780 } },
        { INFINITY, { 0x7c00, 0x7f80 } }, { -INFINITY, { 0xfc00, 0xff80 } }, { 0x1p-14f, { 0x0400, 0x3880 } },
        { 0x1p-24f, { 0x0001, 0x3380 } }, { 0x1.fffffep127f, { 0x7c00, 0x7f80 } }, { 0x1p-149f, { 0, 0 } },
    };
    uint32_t low_payload = 0x7f800001;          /* a NaN whose payload is in bits that are cut off */
    float nan_value;
    memcpy(&nan_value, &low_payload, sizeof nan_value);
    for (int h = 0; h < 2; h++) {
        const struct half *half = &halves[h];
        group("%s: rounding of selected values", half->name);
        EACH(c, cases)
            CHECK_EQ(half->of(c->value), c->bits[h]);
        CHECK_TRUE(isnan(half->value(half->of(NAN))));
        CHECK_TRUE(isnan(half->value(half->of(nan_value))));

        group("%s: every value is converted back exactly, and ties round to even", half->name);
        for (uint32_t bits = 0; bits < 0x10000; bits++) {
            const float value = half->value((uint16_t)bits);
            if (!isnan(value))
                CHECK(half->of(value) == bits, "%04x is converted back to %04x", bits, half->of(value));
            if ((bits & 0x7fff) >= half->infinity - 1u)
                continue;
            const float next = half->value((uint16_t)(bits + 1)), middle = value / 2 + next / 2;
            const uint32_t even = bits & 1 ? bits + 1 : bits;
            CHECK(half->of(middle) == even, "the tie above %04x rounds to %04x, expected the even %04x", bits,
                  half->of(middle), even);
            CHECK(half->of(nextafterf(middle, next)) == bits + 1, "just above the tie of %04x is rounded down", bits);
            CHECK(half->of(nextafterf(middle, value)) == bits, "just below the tie of %04x is rounded up", bits);
        }
    }
}

/* Returns a tensor with one dimension, or with none. */
static ctrt_tensor *operand(bool with_dimension, ctrt_dtype dtype)
{
    static const int64_t size = 3;
    ctrt_tensor *tensor = NULL;
    CHECK_OK(ctrt_ones(&tensor, (ctrt_ints){ &size, with_dimension }, dtype, cpu));
    return tensor;
}

static ctrt_scalar number(ctrt_dtype dtype)
{
    return dtype == CTRT_BOOL ? ctrt_bool(true) : dtype == CTRT_I64 ? ctrt_int(2) : ctrt_float(2.5);
}

TEST(pairs, "the result types of all pairs are PyTorch's")
{
    char path[4096], line[256];
    const char *srcdir = getenv("srcdir");
    int count = 0;
    snprintf(path, sizeof path, "%s/tests/reference/promotion.txt", srcdir ? srcdir : ".");
    FILE *in = fopen(path, "r");
    REQUIRE(in != NULL, "cannot open %s", path);
    while (fgets(line, sizeof line, in)) {
        char a_kind[16], a_name[16], b_kind[16], b_name[16], wanted[16];
        if (line[0] == '#' || line[0] == '\n')
            continue;
        REQUIRE(sscanf(line, "%15s %15s %15s %15s %15s", a_kind, a_name, b_kind, b_name, wanted) == 5, "bad line: %s",
                line);
        count++;
        const ctrt_dtype a = dtype_from_name(a_name), b = dtype_from_name(b_name);
        const bool scalar = strcmp(b_kind, "scalar") == 0;
        CTRT_AUTO(tensor) x = operand(strcmp(a_kind, "dim") == 0, a);
        CTRT_AUTO(tensor) y = scalar ? NULL : operand(strcmp(b_kind, "dim") == 0, b);
        ctrt_tensor *tensors[3] = { x, NULL, y };
        ctrt_scalar value = number(b);
        ctrt_dtype got = CTRT_DTYPE_DEFAULT;
        CHECK_OK(ctrt_result_type(&got, tensors, 3, scalar ? &value : NULL));
        CHECK(got == dtype_from_name(wanted), "%s %s with %s %s: %s, expected %s", a_kind, a_name, b_kind, b_name,
              ctrt_dtype_name(got), wanted);
        if (strcmp(a_kind, "dim") == 0 && strcmp(b_kind, "dim") == 0)
            CHECK(ctrt_promote_types(a, b) == dtype_from_name(wanted), "promote_types of %s and %s: %s", a_name, b_name,
                  ctrt_dtype_name(ctrt_promote_types(a, b)));
    }
    fclose(in);
    CHECK(count >= 400, "only %d pairs in the file", count);
}

TEST(three_buckets, "promotion of a tensor with dimensions, a 0-dim tensor and a number")
{
    static const struct { ctrt_dtype dim, zero, number, wanted; } cases[] = {
        /* same category: the tensor with dimensions decides */
        { CTRT_I32, CTRT_I64, CTRT_DTYPE_DEFAULT, CTRT_I32 }, { CTRT_I32, CTRT_F16, CTRT_DTYPE_DEFAULT, CTRT_F16 },
        { CTRT_I32, CTRT_F16, CTRT_F64, CTRT_F16 },                 /* the 0-dim tensor decides, not the number */
        { CTRT_I32, CTRT_I64, CTRT_F64, CTRT_F32 }, { CTRT_BOOL, CTRT_BOOL, CTRT_I64, CTRT_I64 },
        { CTRT_BOOL, CTRT_U8, CTRT_I64, CTRT_U8 }, { CTRT_BF16, CTRT_F64, CTRT_F64, CTRT_BF16 },
        { CTRT_U8, CTRT_BOOL, CTRT_BOOL, CTRT_U8 },
    };
    EACH(c, cases) {
        CTRT_AUTO(tensor) x = operand(false, c->zero);
        CTRT_AUTO(tensor) y = operand(true, c->dim);
        ctrt_tensor *tensors[2] = { x, y };
        ctrt_scalar value = number(c->number);
        ctrt_dtype got = CTRT_DTYPE_DEFAULT;
        CHECK_OK(ctrt_result_type(&got, tensors, 2, c->number ? &value : NULL));
        CHECK_DTYPE(got, c->wanted);
    }
    CTRT_AUTO(tensor) integers = operand(true, CTRT_I32);
    ctrt_scalar value = ctrt_float(1);
    ctrt_dtype got;
    OK(ctrt_set_default_dtype(CTRT_F64), ctrt_result_type(&got, &integers, 1, &value));
    CHECK_DTYPE(got, CTRT_F64);                         /* a floating number takes the default dtype */
    CHECK_OK(ctrt_set_default_dtype(CTRT_F32));
    ctrt_tensor *none[2] = { NULL, NULL };
    value.kind = (ctrt_scalar_kind)9;
    CHECK_FAILS(ctrt_result_type(&got, none, 2, NULL), CTRT_ERR_INVALID_ARGUMENT, "neither");
    CHECK_FAILS(ctrt_result_type(&got, NULL, 0, &value), CTRT_ERR_INVALID_ARGUMENT, "kind 9");
    CHECK_EQ(ctrt_promote_types((ctrt_dtype)99, CTRT_F32), CTRT_DTYPE_DEFAULT);
    CHECK_EQ(ctrt_promote_types(CTRT_F32, (ctrt_dtype)-1), CTRT_DTYPE_DEFAULT);
}

CPU_TESTS_MAIN
