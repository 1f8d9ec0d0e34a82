/* SPDX-License-Identifier: Apache-2.0 */
/* Tests type promotion against PyTorch's results for all pairs of operands (tests/reference/promotion.txt). */
#include "tensor/shape.h"
#include "tap.h"

/* Returns a tensor without memory, because promotion reads only dtype and dimensions. */
static ctrt_tensor *operand(const char *kind, ctrt_dtype dtype)
{
    static const int64_t size = 3, stride = 1;
    ctrt_tensor *tensor = NULL;
    if (tensor_new_foreign(&tensor, NULL, 0, &size, &stride, strcmp(kind, "dim") == 0, dtype, NULL, NULL, NULL, NULL) != CTRT_OK)
        return NULL;
    return tensor;
}

static void forget(struct storage *storage)
{
    (void)storage;
}

static void drop(ctrt_tensor *tensor)
{
    if (tensor == NULL)
        return;
    tensor->own.release = forget;
    tensor_release(tensor);
}

static ctrt_scalar number(ctrt_dtype dtype)
{
    return dtype == CTRT_BOOL ? ctrt_bool(true) : dtype == CTRT_I64 ? ctrt_int(2) : ctrt_float(2.5);
}

static ctrt_dtype parsed(const char *name)
{
    ctrt_dtype dtype = CTRT_DTYPE_DEFAULT;
    CHECK_OK(ctrt_dtype_parse(&dtype, name));
    return dtype;
}

static FILE *reference(const char *name)
{
    char path[4096];
    const char *srcdir = getenv("srcdir");
    snprintf(path, sizeof path, "%s/tests/reference/%s", srcdir ? srcdir : ".", name);
    FILE *in = fopen(path, "r");
    CHECK(in != NULL, "cannot open %s", path);
    return in;
}

static void pairs(void)
{
    group("the result types of all pairs are PyTorch's");
    char line[256];
    int count = 0;
    FILE *in = reference("promotion.txt");
    while (in && fgets(line, sizeof line, in)) {
        char a_kind[16], a_name[16], b_kind[16], b_name[16], wanted[16];
        if (line[0] == '#' || line[0] == '\n')
            continue;
        if (!CHECK(sscanf(line, "%15s %15s %15s %15s %15s", a_kind, a_name, b_kind, b_name, wanted) == 5, "bad line: %s", line))
            continue;
        count++;
        const ctrt_dtype a = parsed(a_name), b = parsed(b_name);
        const bool scalar = strcmp(b_kind, "scalar") == 0;
        ctrt_tensor *tensors[3] = { operand(a_kind, a), NULL, scalar ? NULL : operand(b_kind, b) };
        ctrt_scalar value = number(b);
        ctrt_dtype got = CTRT_DTYPE_DEFAULT;
        CHECK_OK(ctrt_result_type(&got, tensors, 3, scalar ? &value : NULL));
        CHECK(got == parsed(wanted), "%s %s with %s %s: %s, expected %s", a_kind, a_name, b_kind, b_name, ctrt_dtype_name(got), wanted);
        if (strcmp(a_kind, "dim") == 0 && strcmp(b_kind, "dim") == 0)
            CHECK(ctrt_promote_types(a, b) == parsed(wanted), "promote_types of %s and %s: %s", a_name, b_name,
                  ctrt_dtype_name(ctrt_promote_types(a, b)));
        drop(tensors[0]);
        drop(tensors[2]);
    }
    if (in)
        fclose(in);
    CHECK(count >= 400, "only %d pairs in the file", count);
}

static void three_buckets(void)
{
    group("promotion of a tensor with dimensions, a 0-dim tensor and a number");
    static const struct { ctrt_dtype dim, zero, number, wanted; } cases[] = {
        /* same category: the tensor with dimensions decides */
        { CTRT_I32, CTRT_I64, CTRT_DTYPE_DEFAULT, CTRT_I32 },
        { CTRT_I32, CTRT_F16, CTRT_DTYPE_DEFAULT, CTRT_F16 },
        { CTRT_I32, CTRT_F16, CTRT_F64, CTRT_F16 },                 /* the 0-dim tensor decides, not the number */
        { CTRT_I32, CTRT_I64, CTRT_F64, CTRT_F32 },
        { CTRT_BOOL, CTRT_BOOL, CTRT_I64, CTRT_I64 },
        { CTRT_BOOL, CTRT_U8, CTRT_I64, CTRT_U8 },
        { CTRT_BF16, CTRT_F64, CTRT_F64, CTRT_BF16 },
        { CTRT_U8, CTRT_BOOL, CTRT_BOOL, CTRT_U8 },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ctrt_tensor *tensors[2] = { operand("zero", cases[i].zero), operand("dim", cases[i].dim) };
        ctrt_scalar value = number(cases[i].number);
        ctrt_dtype got = CTRT_DTYPE_DEFAULT;
        CHECK_OK(ctrt_result_type(&got, tensors, 2, cases[i].number ? &value : NULL));
        CHECK(got == cases[i].wanted, "case %zu: %s, expected %s", i, ctrt_dtype_name(got), ctrt_dtype_name(cases[i].wanted));
        drop(tensors[0]);
        drop(tensors[1]);
    }
    ctrt_tensor *integers = operand("dim", CTRT_I32);
    ctrt_scalar value = ctrt_float(1);
    ctrt_dtype got;
    CHECK_OK(ctrt_set_default_dtype(CTRT_F64));
    CHECK_OK(ctrt_result_type(&got, &integers, 1, &value));
    CHECK(got == CTRT_F64, "a floating number takes the default dtype, not %s", ctrt_dtype_name(got));
    CHECK_OK(ctrt_set_default_dtype(CTRT_F32));
    drop(integers);
}

static void bad_input(void)
{
    group("bad input is rejected, and the output is unchanged");
    ctrt_dtype got = CTRT_I16;
    ctrt_tensor *none[2] = { NULL, NULL };
    ctrt_scalar strange = { .kind = (ctrt_scalar_kind)9 };
    CHECK_FAILS(ctrt_result_type(NULL, none, 2, NULL), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    CHECK_FAILS(ctrt_result_type(&got, none, 2, NULL), CTRT_ERR_INVALID_ARGUMENT, "neither");
    CHECK_FAILS(ctrt_result_type(&got, NULL, 0, NULL), CTRT_ERR_INVALID_ARGUMENT, "neither");
    CHECK_FAILS(ctrt_result_type(&got, NULL, 1, NULL), CTRT_ERR_INVALID_ARGUMENT, "tensors is NULL");
    CHECK_FAILS(ctrt_result_type(&got, none, -1, NULL), CTRT_ERR_INVALID_ARGUMENT, "-1");
    CHECK_FAILS(ctrt_result_type(&got, NULL, 0, &strange), CTRT_ERR_INVALID_ARGUMENT, "kind 9");
    CHECK(got == CTRT_I16, "a failed call wrote %s", ctrt_dtype_name(got));
    CHECK(ctrt_promote_types((ctrt_dtype)99, CTRT_F32) == CTRT_DTYPE_DEFAULT, "99 is no dtype");
    CHECK(ctrt_promote_types(CTRT_F32, (ctrt_dtype)-1) == CTRT_DTYPE_DEFAULT, "-1 is no dtype");
}

TEST_MAIN
{
    pairs();
    three_buckets();
    bad_input();
    return done();
}
