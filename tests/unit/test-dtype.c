/* SPDX-License-Identifier: Apache-2.0 */
/* Tests data types: names, sizes, parsing and the exact bits of f16 and bf16; against PyTorch
 * (tests/reference): type promotion of all pairs of operands, and the result dtype of each op for each dtype. */
#include <fnmatch.h>
#include <math.h>

#include "../reference/ref.h"
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
        CHECK_STR(name, c->name);
        CHECK_STR(ctrt_dtype_name(dtype), c->name);
        CHECK_EQ(ctrt_dtype_size(dtype), c->bytes);
        CHECK_EQ(ctrt_dtype_is_floating(dtype), c->floating);
    }
    CHECK_FAILS(ctrt_dtype_get(NULL, NULL, COUNT_OF(cases)), CTRT_ERR_NOT_FOUND, "there are 10 data types");
    CHECK_STR(ctrt_dtype_name(CTRT_DTYPE_DEFAULT), "?");
    CHECK_STR(ctrt_dtype_name((ctrt_dtype)11), "?");
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
    char *bytes = ref_read_bytes("promotion.txt"), *rest = bytes, word[5][32];
    const char *a_kind = word[0], *a_name = word[1], *b_kind = word[2], *b_name = word[3], *wanted = word[4];
    int count = 0;
    for (; ref_words(word, &rest) == 5; count++) {
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
    free(bytes);
    CHECK(count >= 460, "only %d pairs in the file", count);
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
    CHECK_OK(ctrt_set_default_dtype(CTRT_F64));
    CHECK_OK(ctrt_result_type(&got, &integers, 1, &value));
    CHECK_DTYPE(got, CTRT_F64);                         /* a floating number takes the default dtype */
    CHECK_OK(ctrt_set_default_dtype(CTRT_F32));
    ctrt_tensor *none[2] = { NULL, NULL };
    value.kind = (ctrt_scalar_kind)9;
    CHECK_FAILS(ctrt_result_type(&got, none, 2, NULL), CTRT_ERR_INVALID_ARGUMENT, "neither");
    CHECK_FAILS(ctrt_result_type(&got, NULL, 0, &value), CTRT_ERR_INVALID_ARGUMENT, "kind 9");
    CHECK_EQ(ctrt_promote_types((ctrt_dtype)99, CTRT_F32), CTRT_DTYPE_DEFAULT);
    CHECK_EQ(ctrt_promote_types(CTRT_F32, (ctrt_dtype)-1), CTRT_DTYPE_DEFAULT);
}

/* ---- how each op of the table is called, on tensors of three ones ---- */

typedef ctrt_status (*unary)(ctrt_tensor **out, ctrt_tensor *x);
typedef ctrt_status (*binary)(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);

#define WRAP(name, call) static ctrt_status name##_of(ctrt_tensor **out, ctrt_tensor *t) { return call; }
WRAP(gelu, ctrt_gelu(out, t, false))
WRAP(sum, ctrt_sum(out, t, CTRT_ALL_DIMS))
WRAP(prod, ctrt_prod_dims(out, t, CTRT_ALL_DIMS, false))
WRAP(mean, ctrt_mean(out, t, CTRT_ALL_DIMS))
WRAP(var, ctrt_var(out, t, CTRT_ALL_DIMS, 1, false))
WRAP(amax, ctrt_amax(out, t, CTRT_ALL_DIMS, false))
WRAP(amin, ctrt_amin(out, t, CTRT_ALL_DIMS, false))
WRAP(argmax, ctrt_argmax(out, t, CTRT_ALL_DIMS, false))
WRAP(argmin, ctrt_argmin(out, t, CTRT_ALL_DIMS, false))
WRAP(any, ctrt_any(out, t, CTRT_ALL_DIMS, false))
WRAP(all, ctrt_all(out, t, CTRT_ALL_DIMS, false))
WRAP(softmax, ctrt_softmax(out, t, 0))
WRAP(log_softmax, ctrt_log_softmax(out, t, 0))
WRAP(pow_int, ctrt_pow_scalar(out, t, ctrt_int(2)))
WRAP(pow_float, ctrt_pow_scalar(out, t, ctrt_float(0.5)))
WRAP(div_int, ctrt_div_scalar(out, t, ctrt_int(2)))
WRAP(item_mul_float, ctrt_mul_scalar(out, t, ctrt_float(0.5)))
WRAP(clamp_int, ctrt_clamp(out, t, ctrt_int(1), ctrt_int(2)))
WRAP(clamp_float, ctrt_clamp(out, t, ctrt_float(0.5), ctrt_float(1.5)))

static ctrt_status where_of(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)
{
    CTRT_AUTO(tensor) condition = NULL;
    CTRT_TRY(ctrt_eq(&condition, a, a));
    return ctrt_where(out, condition, a, b);
}

static ctrt_status cat_of(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)
{
    return ctrt_cat(out, (ctrt_tensor *[]){ a, b }, 2, 0);
}

/* A scalar operand of where is passed as a 0-dim tensor. */
static ctrt_status where_scalar(ctrt_tensor **out, ctrt_tensor *t, ctrt_scalar number)
{
    CTRT_AUTO(tensor) other = NULL;
    CTRT_TRY(ctrt_scalar_tensor(&other, number, CTRT_DTYPE_DEFAULT, NULL));
    return where_of(out, t, other);
}
WRAP(where_int, where_scalar(out, t, ctrt_int(1)))
WRAP(where_float, where_scalar(out, t, ctrt_float(1)))

#define ROW_UNARY(name)  { #name, ctrt_##name, NULL },
#define ROW_BINARY(name) { #name, NULL, ctrt_##name },
#define ROW_OWN(name)
#define ROW_GRAPH(name)
#define OF(name)         { #name, name##_of, NULL }

static const struct binary { const char *name; unary one; binary two;
} ops[] = {
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) ROW_##form(name)
#include "ctrt/ops.def"
#undef CTRT_OP
    { "div_floor", NULL, ctrt_floor_divide },
    { "where", NULL, where_of },
    { "cat", NULL, cat_of },
    { "matmul", NULL, ctrt_matmul },
    OF(gelu), OF(sum), OF(prod), OF(mean), OF(var), OF(amax), OF(amin), OF(argmax), OF(argmin), OF(any), OF(all),
    OF(softmax), OF(log_softmax), OF(clamp_int), OF(clamp_float), OF(pow_int), OF(pow_float), OF(div_int),
    OF(item_mul_float), OF(where_int), OF(where_float),
};

/* Intended differences from PyTorch. `dtypes` is a pattern of the operands' dtypes. */
static const struct { const char *op, *dtypes, *torch, *gives, *reason;
} different[] = {
    { "any", "u8", "u8", "bool", "PyTorch keeps u8 for compatibility" },
    { "all", "u8", "u8", "bool", "PyTorch keeps u8 for compatibility" },
    { "sign", "bool", "bool", "error", "a bool has no sign; the message says to cast" },
    { "square", "bool", "i64", "error", "as all arithmetic of one bool operand; the message says to cast" },
    { "gelu", "[iub]*", "error", "f32", "as the other functions: integers become the default floating type" },
    { "silu", "[iub]*", "error", "f32", "as the other functions: integers become the default floating type" },
    { "sub", "* bool", "error", "the first", "only a difference of two bools is rejected" },
    { "sub", "bool *", "error", "the second", "only a difference of two bools is rejected" },
};

/* ---- rows of the reference files ---- */

static const struct binary *find(const char *name)
{
    for (size_t k = 0; k < COUNT(ops); k++)
        if (!strcmp(ops[k].name, name))
            return &ops[k];
    return NULL;
}

static void one_row(const struct binary *op, const char *a_name, const char *b_name, const char *want)
{
    CTRT_AUTO(tensor) a = operand(true, dtype_from_name(a_name)), out = NULL,
        b = b_name ? operand(true, dtype_from_name(b_name)) : NULL;
    char operands[32];
    snprintf(operands, sizeof operands, "%s%s%s", a_name, b_name ? " " : "", b_name ? b_name : "");
    for (size_t k = 0; k < COUNT(different); k++)
        if (!strcmp(different[k].op, op->name) && fnmatch(different[k].dtypes, operands, 0) == 0
            && !strcmp(different[k].torch, want) && strcmp(operands, "bool bool")) {
            const char *gives = different[k].gives;
            want = !strcmp(gives, "the first") ? a_name : !strcmp(gives, "the second") ? b_name : gives;
        }
    ctrt_status status = b_name ? op->two(&out, a, b) : op->one(&out, a);
    const char *got = status ? "error" : ctrt_dtype_name(ctrt_tensor_dtype(out));
    CHECK(!strcmp(got, want), "%s of %s: got %s, expected %s%s%s", op->name, operands, got, want, status ? ": " : "",
          status ? ctrt_error_message() : "");
    if (status)
        CHECK(ctrt_error_message()[0] != '\0' && status != CTRT_ERR_INTERNAL && status != CTRT_ERR_BACKEND,
              "%s of %s: no message, or a wrong status: %s", op->name, operands, ctrt_status_string(status));
}

TEST(result_types, NULL)
{
    char *bytes = ref_read_bytes("op_dtypes.txt"), *rest = bytes, last[32] = "", word[5][32];
    const struct binary *op = NULL;
    int rows = 0;
    for (int words; (words = ref_words(word, &rest)) > 0;) {
        if (strcmp(word[0], last)) {
            strcpy(last, word[0]);
            group("the result dtypes of %s are PyTorch's", last);
            op = find(last);
            if (op == NULL)
                skip_group("ctrt has no such op");
        }
        if (op == NULL || !CHECK((words == 4) == (op->two != NULL), "a row of %d words", words))
            continue;
        one_row(op, word[1], words == 4 ? word[2] : NULL, word[words - 1]);
        rows++;
    }
    free(bytes);
    CHECK(rows >= 1500, "only %d rows were checked, expected at least 1500", rows);
}

/* a.add_(b) is allowed if the promoted dtype of a and b can be cast to the dtype of a. */
TEST(casts_in_place, "casts in place are allowed as in PyTorch")
{
    char *bytes = ref_read_bytes("can_cast.txt"), *rest = bytes, word[5][32];
    bool may[DTYPE_END][DTYPE_END] = { { false } };
    int rows = 0;
    for (; ref_words(word, &rest) == 3; rows++)
        may[dtype_from_name(word[0])][dtype_from_name(word[1])] = !strcmp(word[2], "yes");
    free(bytes);
    CHECK_EQ(rows, 100);
    for (int t = 1; t < DTYPE_END; t++)
        for (int w = 1; w < DTYPE_END; w++) {
            const ctrt_dtype to = (ctrt_dtype)t, with = (ctrt_dtype)w;
            CTRT_AUTO(tensor) a = operand(true, to), b = operand(true, with);
            const bool allowed = may[ctrt_promote_types(to, with)][to];
            const ctrt_status status = ctrt_add_(a, b);
            CHECK(status == (allowed ? CTRT_OK : CTRT_ERR_DTYPE), "%s += %s: got '%s', allowed: %d",
                  ctrt_dtype_name(to), ctrt_dtype_name(with), ctrt_status_string(status), allowed);
            CHECK_EQ(ctrt_tensor_dtype(a), to);
        }
}

CPU_TESTS_MAIN
