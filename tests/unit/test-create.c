/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the functions that create tensors: values, dtypes, strides, and rejected arguments. */
#include "calls.h"
#include "tensors.h"

static ctrt_tensor *y;          /* receives every result, by the assignment rule */

#define DTYPE_IS(x, dtype) CHECK_STR(ctrt_dtype_name(ctrt_tensor_dtype(x)), ctrt_dtype_name(dtype))
#define GIVES_DTYPE(call, dtype) (tap_ok((call), __FILE__, __LINE__, #call), DTYPE_IS(y, dtype))

TEST(constants, "CTRT_DTYPE_DEFAULT selects the default dtype, or that of the number")
{
    GIVES_DTYPE(ctrt_zeros(&y, CTRT_SHAPE(2), CTRT_DTYPE_DEFAULT, NULL), CTRT_F32);
    CHECK_OK(ctrt_set_default_dtype(CTRT_F64));
    GIVES_DTYPE(ctrt_ones(&y, CTRT_SHAPE(2), CTRT_DTYPE_DEFAULT, cpu), CTRT_F64);
    GIVES_DTYPE(ctrt_scalar_tensor(&y, ctrt_float(0.5), CTRT_DTYPE_DEFAULT, cpu), CTRT_F64);
    CHECK_OK(ctrt_set_default_dtype(CTRT_F32));
    GIVES_DTYPE(ctrt_full(&y, CTRT_SHAPE(2), ctrt_int(3), CTRT_DTYPE_DEFAULT, cpu), CTRT_I64);
    GIVES_DTYPE(ctrt_full(&y, CTRT_SHAPE(2), ctrt_bool(true), CTRT_DTYPE_DEFAULT, cpu), CTRT_BOOL);
    GIVES(ctrt_full(&y, CTRT_SHAPE(2), ctrt_float(NAN), CTRT_DTYPE_DEFAULT, cpu), NAN, NAN);
    GIVES_STRIDES(ctrt_empty(&y, CTRT_SHAPE(2, 0, 3), CTRT_I8, cpu), 3, 3, 1);
    GIVES_DTYPE(ctrt_scalar_tensor(&y, ctrt_int(-4), CTRT_DTYPE_DEFAULT, cpu), CTRT_I64);

    group("errors of zeros, empty, full and scalar_tensor");
    const ctrt_scalar strange = { .kind = (ctrt_scalar_kind)8 };
    CHECK_FAILS(ctrt_zeros(&y, CTRT_SHAPE(INT64_C(1) << 58), CTRT_F32, cpu), CTRT_ERR_OUT_OF_MEMORY, NULL);
    CHECK_FAILS(ctrt_full(&y, CTRT_SHAPE(2), ctrt_int(300), CTRT_I8, cpu), CTRT_ERR_OVERFLOW,
                "300 cannot be converted to i8");
    CHECK_FAILS(ctrt_full(&y, CTRT_SHAPE(2), ctrt_float(NAN), CTRT_I32, cpu), CTRT_ERR_OVERFLOW, "i32");
    CHECK_FAILS(ctrt_scalar_tensor(&y, ctrt_float(1e6), CTRT_F16, cpu), CTRT_ERR_OVERFLOW, "f16");
    CHECK_FAILS(ctrt_full(&y, CTRT_SHAPE(2), strange, CTRT_F32, cpu), CTRT_ERR_INVALID_ARGUMENT, "kind 8");
    CHECK_FAILS(ctrt_full(&y, CTRT_SHAPE(2), strange, CTRT_DTYPE_DEFAULT, cpu), CTRT_ERR_INVALID_ARGUMENT, "kind 8");
    VALUES_ARE(y, -4);                          /* unchanged by the failed calls */
}

TEST(sequences, "arange counts as PyTorch's does and rejects ranges that do not end; eye of more rows than columns")
{
    static const struct { double start, end, step; ctrt_dtype dtype, got; int64_t count; double values[4]; } good[] = {
        { 1, 2.5, 0.5, CTRT_DTYPE_DEFAULT, CTRT_F32, 3, { 1, 1.5, 2 } },
        { 3, 3, 1, CTRT_DTYPE_DEFAULT, CTRT_F32, 0, { 0 } },
        { 0, 1, 0.25, CTRT_BF16, CTRT_BF16, 4, { 0, 0.25, 0.5, 0.75 } },
        { 0.5, 5, 1.5, CTRT_I64, CTRT_I64, 3, { 0, 1, 2 } },    /* counted before truncation, as in PyTorch */
        { 0, -8.000001, -4, CTRT_I64, CTRT_I64, 3, { 0, -4, -8 } },
        { 0, 1, 0.3, CTRT_I64, CTRT_I64, 4, { 0, 0, 0, 0 } },
    };
    EACH(c, good) {
        CHECK_OK(ctrt_arange(&y, ctrt_float(c->start), ctrt_float(c->end), ctrt_float(c->step), c->dtype, cpu));
        DTYPE_IS(y, c->got);
        check_values("arange", __LINE__, y, c->values, c->count);
    }
    /* Integers that are the same number as double. */
    int64_t exact[3] = { 0 };
    CHECK_OK(ctrt_arange(&y, ctrt_int(INT64_MAX - 3), ctrt_int(INT64_MAX), ctrt_int(1), CTRT_I64, cpu));
    CHECK_OK(ctrt_to_host(exact, sizeof exact, y, CTRT_I64));
    CHECK_TRUE(ctrt_tensor_numel(y) == 3 && exact[0] == INT64_MAX - 3 && exact[2] == INT64_MAX - 1);
    const struct { ctrt_scalar start, end; ctrt_dtype dtype; ctrt_status status; const char *words; } bad[] = {
        { ctrt_int(((int64_t)1 << 53) + 1), ctrt_int((int64_t)1 << 53), CTRT_I64, CTRT_ERR_INVALID_ARGUMENT,
          "does not lead" },                                           /* both are the same double */
        { ctrt_float(0), ctrt_float(1e300), CTRT_F64, CTRT_ERR_OVERFLOW, NULL },
        { ctrt_int(0), ctrt_int(5), CTRT_BOOL, CTRT_ERR_DTYPE, "bool" },
        { ctrt_int(300), ctrt_int(305), CTRT_I8, CTRT_ERR_OVERFLOW, "i8" },
    };
    EACH(c, bad)
        CHECK_FAILS(ctrt_arange(&y, c->start, c->end, ctrt_int(1), c->dtype, cpu), c->status, c->words);
    GIVES(ctrt_eye(&y, 3, 2, CTRT_BOOL, cpu), 1, 0, 0, 1, 0, 0);
}

TEST(from_data, "from_data copies data of any alignment")
{
    float values[6] = { 1, 2, 3, 4, 5, 6 };
    CHECK_OK(ctrt_from_data(&y, values, 6, CTRT_SHAPE(2, 3), CTRT_F32, cpu));
    values[0] = 77;                                             /* from_data copied the values */
    VALUES_ARE(y, 1, 2, 3, 4, 5, 6);
    unsigned char bytes[1 + sizeof(double)];                    /* data need not be aligned */
    double number = -2.5;
    memcpy(bytes + 1, &number, sizeof number);
    GIVES(ctrt_from_data(&y, bytes + 1, 1, CTRT_SCALAR_SHAPE, CTRT_F64, cpu), -2.5);
    GIVES_SHAPE(ctrt_from_data(&y, NULL, 0, CTRT_SHAPE(0), CTRT_F32, cpu), 0);
}

static int freed;
static void *freed_user, *freed_data;

static void count_free(void *user, void *data)
{
    freed++;
    freed_user = user;
    freed_data = data;
}

TEST(from_blob, "from_blob uses the program's memory and frees it with the last view")
{
    float values[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    int user;
    ctrt_tensor *x = NULL, *part = NULL;
    CHECK_OK(ctrt_from_blob(&x, values, CTRT_SHAPE(2, 2), CTRT_SHAPE(4, 1), CTRT_F32, count_free, &user));
    VALUES_ARE(x, 0, 1, 4, 5);
    CHECK_TRUE(ctrt_tensor_data(x) == values);
    CHECK_OK(ctrt_select(&part, x, 0, 1));
    ctrt_tensor *same = ctrt_tensor_retain(x);
    ctrt_tensor_release(&x);
    CHECK_TRUE(x == NULL && ctrt_tensor_data(same) == values);
    ctrt_tensor_release(&same);
    CHECK_EQ(freed, 0);
    CHECK_OK(ctrt_fill_(part, ctrt_float(9)));
    CHECK_TRUE(values[4] == 9 && values[5] == 9 && values[6] == 6);
    ctrt_tensor_assign(&part, part);
    CHECK_EQ(freed, 0);
    ctrt_tensor_assign(&part, NULL);
    CHECK_TRUE(part == NULL && freed == 1 && freed_user == &user && freed_data == values);
    CHECK_OK(ctrt_from_blob(&x, values, CTRT_SHAPE(2, 4), CTRT_SCALAR_SHAPE, CTRT_F32, NULL, NULL));    /* row major */
    STRIDES_ARE(x, 4, 1);
    ctrt_tensor_release(&x);
    CHECK_OK(ctrt_from_blob(&x, NULL, CTRT_SHAPE(0, 2), CTRT_SCALAR_SHAPE, CTRT_F32, NULL, NULL));
    SHAPE_IS(x, 0, 2);
    ctrt_tensor_release(&x);
    CHECK_FAILS(ctrt_from_blob(&x, (char *)values + 1, CTRT_SHAPE(2), CTRT_SCALAR_SHAPE, CTRT_F32, count_free, NULL),
                CTRT_ERR_INVALID_ARGUMENT, "not aligned");
    CHECK_TRUE(freed == 1 && x == NULL);
}

TEST(like, "empty_like, zeros_like, ones_like and full_like keep dtype and dense strides")
{
    CTRT_AUTO(tensor) x = counting_of(CTRT_SHAPE(2, 3), CTRT_I32), t = NULL, e = NULL, s = NULL;
    CTRT_AUTO(tensor) image = COUNTING(2, 3, 2, 2), last = NULL;
    CHECK_OK(ctrt_t(&t, x));
    GIVES_DTYPE(ctrt_zeros_like(&y, t, CTRT_DTYPE_DEFAULT, NULL), CTRT_I32);
    STRIDES_ARE(y, 1, 3);                       /* dense input: its order of dimensions is kept */
    VALUES_ARE(y, 0, 0, 0, 0, 0, 0);
    CHECK_OK(ctrt_expand(&e, x, CTRT_SHAPE(2, 2, 3)));
    GIVES_DTYPE(ctrt_ones_like(&y, e, CTRT_F64, cpu), CTRT_F64);
    STRIDES_ARE(y, 6, 3, 1);                    /* input that is not dense: row major */
    CHECK_OK(ctrt_slice(&s, x, 1, 0, 3, 2));
    GIVES_STRIDES(ctrt_full_like(&y, s, ctrt_int(7), CTRT_DTYPE_DEFAULT, NULL), 2, 1);
    VALUES_ARE(y, 7, 7, 7, 7);
    CHECK_OK(ctrt_contiguous(&last, image, CTRT_CHANNELS_LAST));
    CHECK_OK(ctrt_empty_like(&y, last, CTRT_DTYPE_DEFAULT, NULL));
    CHECK_TRUE(ctrt_tensor_is_contiguous(y, CTRT_CHANNELS_LAST));
    CHECK_FAILS(ctrt_full_like(&y, x, ctrt_float(1e300), CTRT_DTYPE_DEFAULT, cpu), CTRT_ERR_OVERFLOW, "i32");

    group("new_empty, new_zeros, new_ones, new_full and new_tensor take dtype and device from a tensor");
    for (int i = 1; i < DTYPE_END; i++) {
        const ctrt_dtype dtype = (ctrt_dtype)i;
        const float data[2] = { 1, 0 };
        CTRT_AUTO(tensor) z = NULL;
        CHECK_OK(ctrt_zeros(&z, CTRT_SHAPE(1), dtype, cpu));
        GIVES_SHAPE(ctrt_new_empty(&y, z, CTRT_SHAPE(4, 1), CTRT_DTYPE_DEFAULT, NULL), 4, 1);
        DTYPE_IS(y, dtype);
        GIVES_DTYPE(ctrt_new_zeros(&y, z, CTRT_SHAPE(2), CTRT_DTYPE_DEFAULT, NULL), dtype);
        VALUES_ARE(y, 0, 0);
        GIVES_DTYPE(ctrt_new_ones(&y, z, CTRT_SHAPE(2), CTRT_DTYPE_DEFAULT, cpu), dtype);
        VALUES_ARE(y, 1, 1);
        GIVES_DTYPE(ctrt_new_full(&y, z, CTRT_SHAPE(1), ctrt_int(1), CTRT_I64, NULL), CTRT_I64);
        GIVES_DTYPE(ctrt_new_tensor(&y, z, data, 2, CTRT_SHAPE(2), CTRT_F32, NULL), dtype);
        VALUES_ARE(y, 1, 0);
        CHECK_TRUE(ctrt_tensor_device(y) == cpu);
    }
}

CPU_TESTS_MAIN
