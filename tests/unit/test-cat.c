/* SPDX-License-Identifier: Apache-2.0 */
/* Tests ctrt_cat and ctrt_stack. */
#include "tensors.h"

static ctrt_tensor *y;

static void joining(void)
{
    group("cat joins tensors of different layouts and dtypes");
    ctrt_tensor *a = COUNTING(2, 2), *b = COUNTING(1, 2), *t = NULL, *old = NULL, *ints = counting_of(CTRT_SHAPE(2, 1), CTRT_I64);
    CHECK_OK(ctrt_cat(&y, (ctrt_tensor *[]){ a, b }, 2, 0));
    SHAPE_IS(y, 3, 2);
    VALUES_ARE(y, 0, 1, 2, 3, 0, 1);
    CHECK_OK(ctrt_t(&t, b));
    CHECK_OK(ctrt_cat(&y, (ctrt_tensor *[]){ a, t, ints }, 3, -1));
    SHAPE_IS(y, 2, 4);
    VALUES_ARE(y, 0, 1, 0, 0, 2, 3, 1, 1);
    CHECK(ctrt_tensor_dtype(y) == CTRT_F32, "f32 with i64 is %s", ctrt_dtype_name(ctrt_tensor_dtype(y)));
    CHECK_OK(ctrt_cat(&y, (ctrt_tensor *[]){ y, y }, 2, 0));        /* the output is also an input */
    SHAPE_IS(y, 4, 4);
    CHECK_OK(ctrt_cat(&y, &a, 1, 1));
    CHECK(y != a && !ctrt_tensor_shares_storage(y, a), "cat of one tensor did not copy it");
    CHECK_OK(ctrt_empty(&old, CTRT_SHAPE(0), CTRT_F64, cpu));
    CHECK_OK(ctrt_cat(&y, (ctrt_tensor *[]){ old, a, old, b }, 4, 0));
    VALUES_ARE(y, 0, 1, 2, 3, 0, 1);
    CHECK(ctrt_tensor_dtype(y) == CTRT_F64, "a skipped tensor did not count for the dtype: %s",
          ctrt_dtype_name(ctrt_tensor_dtype(y)));
    CHECK_OK(ctrt_cat(&y, (ctrt_tensor *[]){ old, old }, 2, 0));
    SHAPE_IS(y, 0);
    ctrt_tensor *zero = NULL;
    CHECK_OK(ctrt_empty(&zero, CTRT_SHAPE(0, 2), CTRT_F32, cpu));
    CHECK_OK(ctrt_cat(&y, (ctrt_tensor *[]){ zero, a }, 2, 0));
    VALUES_ARE(y, 0, 1, 2, 3);
    ctrt_tensor *image = COUNTING(1, 2, 2, 2), *cl = NULL;
    CHECK_OK(ctrt_contiguous(&cl, image, CTRT_CHANNELS_LAST));
    CHECK_OK(ctrt_cat(&y, (ctrt_tensor *[]){ cl, cl }, 2, 1));
    CHECK(ctrt_tensor_is_contiguous(y, CTRT_CHANNELS_LAST), "the result of channels-last inputs is not channels-last");
    VALUES_ARE(y, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
    CHECK_OK(ctrt_cat(&y, (ctrt_tensor *[]){ cl, image }, 2, 0));
    CHECK(ctrt_tensor_is_contiguous(y, CTRT_CONTIGUOUS_FORMAT), "the result of mixed inputs is not row-major");

    group("cat rejects invalid arguments");
    ctrt_tensor *scalar = counting_of(CTRT_SCALAR_SHAPE, CTRT_F32), *three = COUNTING(2, 2, 1);
    CHECK_FAILS(ctrt_cat(&y, (ctrt_tensor *[]){ a, three }, 2, 0), CTRT_ERR_SHAPE, "tensor 2 has shape [2, 2, 1]");
    CHECK_FAILS(ctrt_cat(&y, (ctrt_tensor *[]){ a, b }, 2, 1), CTRT_ERR_SHAPE, "[1, 2]");
    CHECK_FAILS(ctrt_cat(&y, (ctrt_tensor *[]){ a, zero }, 2, 1), CTRT_ERR_SHAPE, "[0, 2]");
    CHECK_FAILS(ctrt_cat(&y, (ctrt_tensor *[]){ a, scalar }, 2, 0), CTRT_ERR_SHAPE, "no dimension");
    CHECK_FAILS(ctrt_cat(&y, (ctrt_tensor *[]){ a, b }, 2, 2), CTRT_ERR_SHAPE, "out of range");
    CHECK_FAILS(ctrt_cat(&y, (ctrt_tensor *[]){ a, b }, 2, -3), CTRT_ERR_SHAPE, "out of range");
    CHECK_FAILS(ctrt_cat(&y, (ctrt_tensor *[]){ a, NULL }, 2, 0), CTRT_ERR_INVALID_ARGUMENT, "tensor 2 of 2 is NULL");
    CHECK_FAILS(ctrt_cat(&y, (ctrt_tensor *[]){ a }, 0, 0), CTRT_ERR_INVALID_ARGUMENT, "0 tensors");
    CHECK_FAILS(ctrt_cat(&y, (ctrt_tensor *[]){ a }, -1, 0), CTRT_ERR_INVALID_ARGUMENT, "-1 tensors");
    CHECK_FAILS(ctrt_cat(&y, NULL, 2, 0), CTRT_ERR_INVALID_ARGUMENT, "tensors is NULL");
    CHECK_FAILS(ctrt_cat(NULL, &a, 1, 0), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    SHAPE_IS(y, 2, 2, 2, 2);

    group("stack adds a dimension, and rejects invalid arguments");
    ctrt_tensor *c = NULL;
    CHECK_OK(ctrt_full_like(&c, a, ctrt_int(9), CTRT_DTYPE_DEFAULT, NULL));
    CHECK_OK(ctrt_stack(&y, (ctrt_tensor *[]){ a, c }, 2, 0));
    SHAPE_IS(y, 2, 2, 2);
    VALUES_ARE(y, 0, 1, 2, 3, 9, 9, 9, 9);
    CHECK_OK(ctrt_stack(&y, (ctrt_tensor *[]){ a, c }, 2, -1));
    VALUES_ARE(y, 0, 9, 1, 9, 2, 9, 3, 9);
    CHECK_OK(ctrt_stack(&y, (ctrt_tensor *[]){ scalar, scalar, scalar }, 3, 0));
    SHAPE_IS(y, 3);
    ctrt_tensor *many[20];
    for (int i = 0; i < 20; i++)
        many[i] = scalar;
    CHECK_OK(ctrt_stack(&y, many, 20, 0));
    SHAPE_IS(y, 20);
    CHECK_OK(ctrt_stack(&y, (ctrt_tensor *[]){ old, old }, 2, 0));
    SHAPE_IS(y, 2, 0);
    CHECK_FAILS(ctrt_stack(&y, (ctrt_tensor *[]){ a, b }, 2, 0), CTRT_ERR_SHAPE, "tensor 2 has [1, 2]");
    CHECK_FAILS(ctrt_stack(&y, (ctrt_tensor *[]){ a, c }, 2, 3), CTRT_ERR_SHAPE, "out of range");
    CHECK_FAILS(ctrt_stack(&y, (ctrt_tensor *[]){ NULL, c }, 2, 0), CTRT_ERR_INVALID_ARGUMENT, "tensor 1 of 2 is NULL");
    CHECK_FAILS(ctrt_stack(&y, NULL, 0, 0), CTRT_ERR_INVALID_ARGUMENT, NULL);
    CHECK_FAILS(ctrt_stack(NULL, &a, 1, 0), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    ctrt_tensor *all[] = { a, b, c, t, old, ints, zero, image, cl, scalar, three };
    for (size_t i = 0; i < COUNT(all); i++)
        ctrt_tensor_release(&all[i]);
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    joining();
    ctrt_tensor_release(&y);
    return done();
}
