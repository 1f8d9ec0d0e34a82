/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input to tensor.h, for test-bad-input.c. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bad-input.h"

#define NINE     CTRT_SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1)
#define NEGATIVE CTRT_SHAPE(2, -3)
#define HUGE_    CTRT_SHAPE(INT64_MAX / 2, 4)
#define BYTES    CTRT_SHAPE(INT64_MAX / 4)                  /* the number of bytes overflows */
#define NOTHING  ctrt_ints_of(NULL, 2)
static const ctrt_dtype no_dtype = (ctrt_dtype)77;

/* Calls a factory with bad shapes and dtypes. */
#define FACTORY(call_with)                                           \
    BAD(INVALID_ARGUMENT, call_with(NULL, CTRT_SHAPE(2), CTRT_F32)), \
    BAD(SHAPE, call_with(&out, NEGATIVE, CTRT_F32)),                 \
    BAD(SHAPE, call_with(&out, NINE, CTRT_F32)),                     \
    BAD(OVERFLOW, call_with(&out, HUGE_, CTRT_F32)),                 \
    BAD(OVERFLOW, call_with(&out, BYTES, CTRT_F64)),                 \
    BAD(ANY, call_with(&out, NOTHING, CTRT_F32)),                    \
    BAD(ANY, call_with(&out, CTRT_ALL_DIMS, CTRT_F32)),              \
    BAD(ANY, call_with(&out, CTRT_SHAPE(2), no_dtype))

static void accessors(void)
{
    ctrt_tensor *nothing = NULL;
    FINE(ctrt_tensor_retain(NULL) == NULL);
    FINE((ctrt_tensor_release(NULL), ctrt_tensor_release(&nothing), true));
    FINE((ctrt_tensor_assign(NULL, p.x), ctrt_tensor_assign(&nothing, NULL), nothing == NULL));
    FINE(ctrt_tensor_dtype(NULL) == CTRT_DTYPE_DEFAULT);
    FINE(ctrt_tensor_ndim(NULL) == 0 && ctrt_tensor_numel(NULL) == 0 && ctrt_tensor_offset(NULL) == 0);
    FINE(ctrt_tensor_shape(NULL) == NULL && ctrt_tensor_strides(NULL) == NULL && ctrt_tensor_data(NULL) == NULL);
    FINE(ctrt_tensor_device(NULL) == NULL && ctrt_tensor_version(NULL) == 0 &&
         ctrt_tensor_storage_use_count(NULL) == 0);
    FINE(ctrt_tensor_size(NULL, 0) == 0 && ctrt_tensor_size(p.x, 2) == 0 && ctrt_tensor_size(p.x, -3) == 0 &&
         ctrt_tensor_size(p.x, INT32_MIN) == 0);
    FINE(!ctrt_tensor_is_contiguous(NULL, CTRT_CONTIGUOUS_FORMAT) && !ctrt_tensor_is_contiguous(p.x,
        CTRT_CHANNELS_LAST));
    FINE(ctrt_tensor_is_contiguous(p.x, (ctrt_memory_format)99) || true);
    FINE(!ctrt_tensor_shares_storage(NULL, NULL) && !ctrt_tensor_shares_storage(p.x, NULL));
    FINE(!strcmp(ctrt_dtype_name(no_dtype), "?") && !strcmp(ctrt_dtype_name((ctrt_dtype)-1), "?"));
    FINE(ctrt_dtype_size(no_dtype) == 0 && ctrt_dtype_size((ctrt_dtype)-1) == 0);
    FINE(!ctrt_dtype_is_floating(no_dtype) && !ctrt_dtype_is_floating((ctrt_dtype)-1));
    ctrt_dtype dtype = CTRT_DTYPE_DEFAULT;
    BAD(NOT_FOUND, ctrt_dtype_get(NULL, NULL, SIZE_MAX));
    NULL_IN2(ctrt_dtype_parse, &dtype, "f32");
    BAD(ANY, ctrt_dtype_parse(&dtype, "f33"));
    BAD(ANY, ctrt_dtype_parse(&dtype, ""));
    FINE(ctrt_promote_types(no_dtype, CTRT_F32) == CTRT_DTYPE_DEFAULT || true);
    BAD(INVALID_ARGUMENT, ctrt_result_type(NULL, &p.x, 1, NULL));
    BAD(INVALID_ARGUMENT, ctrt_result_type(&dtype, NULL, 2, NULL));
    BAD(INVALID_ARGUMENT, ctrt_result_type(&dtype, &p.x, -1, NULL));
    BAD(ANY, ctrt_result_type(&dtype, NULL, 0, NULL));
    FINE(ctrt_default_dtype() == CTRT_F32);
    BAD(DTYPE, ctrt_set_default_dtype(CTRT_I32));
    BAD(DTYPE, ctrt_set_default_dtype(CTRT_BOOL));
    BAD(DTYPE, ctrt_set_default_dtype(no_dtype));
    BAD(DTYPE, ctrt_set_default_dtype(CTRT_DTYPE_DEFAULT));
    BAD(DTYPE, ctrt_set_default_dtype((ctrt_dtype)-1));
    FINE(ctrt_default_dtype() == CTRT_F32);
}

static void factories(void)
{
    static const float data[6] = { 0 };
#define WITH_EMPTY(o, s, t) ctrt_empty(o, s, t, p.cpu)
#define WITH_ZEROS(o, s, t) ctrt_zeros(o, s, t, p.cpu)
#define WITH_ONES(o, s, t)  ctrt_ones(o, s, t, p.cpu)
#define WITH_FULL(o, s, t)  ctrt_full(o, s, ctrt_int(1), t, p.cpu)
#define WITH_RAND(o, s, t)  ctrt_rand(o, s, t, p.cpu)
#define WITH_RANDN(o, s, t) ctrt_randn(o, s, t, p.cpu)
#define WITH_RANDINT(o, s, t) ctrt_randint(o, 0, 5, s, t, p.cpu)
#define WITH_BERNOULLI(o, s, t) ctrt_bernoulli(o, s, 0.5, t, p.cpu)
    FACTORY(WITH_EMPTY);
    FACTORY(WITH_ZEROS);
    FACTORY(WITH_ONES);
    FACTORY(WITH_FULL);
    FACTORY(WITH_RAND);
    FACTORY(WITH_RANDN);
    FACTORY(WITH_RANDINT);
    FACTORY(WITH_BERNOULLI);
    NULLS1(ctrt_from_data, data, 6, CTRT_SHAPE(2, 3), CTRT_F32, p.cpu);
    BAD(DTYPE, ctrt_rand(&out, CTRT_SHAPE(2), CTRT_I32, p.cpu));
    BAD(DTYPE, ctrt_randn(&out, CTRT_SHAPE(2), CTRT_I32, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_randint(&out, 5, 5, CTRT_SHAPE(2), CTRT_I64, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_randint(&out, 5, -5, CTRT_SHAPE(2), CTRT_I64, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_bernoulli(&out, CTRT_SHAPE(2), 1.5, CTRT_F32, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_bernoulli(&out, CTRT_SHAPE(2), NAN, CTRT_F32, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_randperm(NULL, 3, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_arange(NULL, ctrt_int(0), ctrt_int(3), ctrt_int(1), CTRT_I64, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_arange(&out, ctrt_int(0), ctrt_int(3), ctrt_int(0), CTRT_I64, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_arange(&out, ctrt_int(0), ctrt_int(3), ctrt_int(-1), CTRT_I64, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_arange(&out, ctrt_float(0), ctrt_float(NAN), ctrt_float(1), CTRT_F32, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_eye(NULL, 2, 2, CTRT_F32, p.cpu));
    BAD(INVALID_ARGUMENT, ctrt_scalar_tensor(NULL, ctrt_int(1), CTRT_F32, p.cpu));
    BAD(SHAPE, ctrt_from_data(&out, data, 5, CTRT_SHAPE(2, 3), CTRT_F32, p.cpu));
    BAD(OVERFLOW, ctrt_from_data(&out, data, 6, HUGE_, CTRT_F32, p.cpu));
    BAD(ANY, ctrt_randint(&out, 0, 1000, CTRT_SHAPE(2), CTRT_I8, p.cpu));
    BAD(ANY, ctrt_randperm(&out, -1, p.cpu));
    BAD(ANY, ctrt_randperm(&out, INT64_MAX, p.cpu));
    BAD(ANY, ctrt_arange(&out, ctrt_float(0), ctrt_float(INFINITY), ctrt_float(1), CTRT_F32, p.cpu));
    BAD(ANY, ctrt_arange(&out, ctrt_int(INT64_MIN), ctrt_int(INT64_MAX), ctrt_int(1), CTRT_I64, p.cpu));
    BAD(ANY, ctrt_arange(&out, ctrt_int(0), ctrt_int(3), ctrt_int(1), no_dtype, p.cpu));
    BAD(ANY, ctrt_eye(&out, -2, 2, CTRT_F32, p.cpu));
    BAD(ANY, ctrt_eye(&out, INT64_MAX, 2, CTRT_F32, p.cpu));
    BAD(ANY, ctrt_scalar_tensor(&out, ctrt_int(1), no_dtype, p.cpu));
    BAD(ANY, ctrt_from_data(&out, data, -6, CTRT_SHAPE(2, -3), CTRT_F32, p.cpu));
    BAD(ANY, ctrt_from_data(&out, data, 6, CTRT_SHAPE(2, 3), no_dtype, p.cpu));
    float blob[6] = { 0 };
    NULLS1(ctrt_from_blob, blob, CTRT_SHAPE(2, 3), CTRT_SHAPE(3, 1), CTRT_F32, NULL, NULL);
    BAD(SHAPE, ctrt_from_blob(&out, blob, CTRT_SHAPE(2, 3), CTRT_SHAPE(1), CTRT_F32, NULL, NULL));
    BAD(ANY, ctrt_from_blob(&out, blob, CTRT_SHAPE(2, -3), CTRT_SHAPE(3, 1), CTRT_F32, NULL, NULL));
    BAD(ANY, ctrt_from_blob(&out, blob, CTRT_SHAPE(2, 3), CTRT_SHAPE(-3, 1), CTRT_F32, NULL, NULL));
    BAD(ANY, ctrt_from_blob(&out, blob, CTRT_SHAPE(2, 3), CTRT_SHAPE(INT64_MAX, 1), CTRT_F32, NULL, NULL));
    BAD(ANY, ctrt_from_blob(&out, blob, CTRT_SHAPE(2, 3), CTRT_SHAPE(3, 1), no_dtype, NULL, NULL));
}

static void alike(void)
{
    NULLS1(ctrt_empty_like, p.x, CTRT_F32, NULL);
    NULLS1(ctrt_zeros_like, p.x, CTRT_F32, NULL);
    NULLS1(ctrt_ones_like, p.x, CTRT_F32, NULL);
    NULLS1(ctrt_full_like, p.x, ctrt_int(1), CTRT_F32, NULL);
    BAD(ANY, ctrt_empty_like(&out, p.x, no_dtype, NULL));
    BAD(ANY, ctrt_zeros_like(&out, p.x, no_dtype, NULL));
    BAD(ANY, ctrt_ones_like(&out, p.x, no_dtype, NULL));
    BAD(ANY, ctrt_full_like(&out, p.x, ctrt_int(1), no_dtype, NULL));
#define WITH_NEW_EMPTY(o, s, t) ctrt_new_empty(o, p.x, s, t, NULL)
#define WITH_NEW_ZEROS(o, s, t) ctrt_new_zeros(o, p.x, s, t, NULL)
#define WITH_NEW_ONES(o, s, t)  ctrt_new_ones(o, p.x, s, t, NULL)
#define WITH_NEW_FULL(o, s, t)  ctrt_new_full(o, p.x, s, ctrt_int(1), t, NULL)
    FACTORY(WITH_NEW_EMPTY);
    FACTORY(WITH_NEW_ZEROS);
    FACTORY(WITH_NEW_ONES);
    FACTORY(WITH_NEW_FULL);
    BAD(INVALID_ARGUMENT, ctrt_new_empty(&out, NULL, CTRT_SHAPE(2), CTRT_F32, NULL));
    BAD(INVALID_ARGUMENT, ctrt_new_zeros(&out, NULL, CTRT_SHAPE(2), CTRT_F32, NULL));
    BAD(INVALID_ARGUMENT, ctrt_new_ones(&out, NULL, CTRT_SHAPE(2), CTRT_F32, NULL));
    BAD(INVALID_ARGUMENT, ctrt_new_full(&out, NULL, CTRT_SHAPE(2), ctrt_int(1), CTRT_F32, NULL));
    static const float data[2] = { 0, 0 };
    NULLS2(ctrt_new_tensor, p.x, data, 2, CTRT_SHAPE(2), CTRT_F32, NULL);
    BAD(SHAPE, ctrt_new_tensor(&out, p.x, data, 2, CTRT_SHAPE(3), CTRT_F32, NULL));
    BAD(ANY, ctrt_new_tensor(&out, p.x, data, 2, CTRT_SHAPE(2), no_dtype, NULL));
}

static void conversion(void)
{
    double value = 0;
    int64_t whole = 0;
    ctrt_scalar scalar = ctrt_int(0);
    float host[6] = { 0 };
    NULLS1(ctrt_to, p.x, NULL, CTRT_F64, false, CTRT_PRESERVE_FORMAT);
    NULLS1(ctrt_to_device, p.x, p.cpu);
    NULLS1(ctrt_to_dtype, p.x, CTRT_F64);
    NULLS1(ctrt_cpu, p.x);
    NULLS1(ctrt_contiguous, p.x, CTRT_CONTIGUOUS_FORMAT);
    NULLS1(ctrt_clone, p.x);
    IN_PLACE(ctrt_copy_, p.x);
    IN_PLACE(ctrt_fill_, ctrt_int(1));
    IN_PLACE(ctrt_zero_);
    IN_PLACE(ctrt_from_host_, host, 6, CTRT_F32);
    NULL_IN2(ctrt_item, &value, p.number);
    NULL_IN2(ctrt_item_int, &whole, p.number);
    NULL_IN2(ctrt_item_scalar, &scalar, p.number);
    BAD(INVALID_ARGUMENT, ctrt_to(&out, p.x, NULL, CTRT_F64, false, (ctrt_memory_format)99));
    BAD(INVALID_ARGUMENT, ctrt_contiguous(&out, p.x, (ctrt_memory_format)99));
    BAD(INVALID_ARGUMENT, ctrt_copy_(p.x, NULL));
    BAD(INVALID_ARGUMENT, ctrt_to_host(NULL, sizeof host, p.x, CTRT_F32));
    BAD(INVALID_ARGUMENT, ctrt_to_host(host, sizeof host, NULL, CTRT_F32));
    BAD(INVALID_ARGUMENT, ctrt_to_host(host, sizeof host - 1, p.x, CTRT_F32));
    BAD(INVALID_ARGUMENT, ctrt_to_host(host, 0, p.x, CTRT_F32));
    BAD(INVALID_ARGUMENT, ctrt_to_host(host, sizeof host, p.x, CTRT_F64));
    BAD(INVALID_ARGUMENT, ctrt_from_host_(p.x, NULL, 6, CTRT_F32));
    BAD(SHAPE, ctrt_copy_(p.x, p.wide));
    BAD(SHAPE, ctrt_copy_(p.number, p.x));
    BAD(SHAPE, ctrt_item(&value, p.x));
    BAD(SHAPE, ctrt_item(&value, p.none));
    BAD(SHAPE, ctrt_item_int(&whole, p.x));
    BAD(SHAPE, ctrt_item_scalar(&scalar, p.x));
    BAD(ANY, ctrt_to(&out, p.x, NULL, no_dtype, false, CTRT_PRESERVE_FORMAT));
    BAD(ANY, ctrt_to(&out, p.x, NULL, CTRT_DTYPE_DEFAULT, true, CTRT_CHANNELS_LAST));
    BAD(ANY, ctrt_to_dtype(&out, p.x, no_dtype));
    BAD(ANY, ctrt_contiguous(&out, p.x, CTRT_CHANNELS_LAST));
    BAD(ANY, ctrt_to_host(host, sizeof host, p.x, no_dtype));
    BAD(ANY, ctrt_from_host_(p.x, host, 5, CTRT_F32));
    BAD(ANY, ctrt_from_host_(p.x, host, -6, CTRT_F32));
    BAD(ANY, ctrt_from_host_(p.x, host, 6, no_dtype));
    char *text = NULL;
    NULL_IN2(ctrt_tensor_format, &text, p.x);
    FINE(text == NULL);
    struct DLManagedTensorVersioned *managed = NULL;
    NULL_IN2(ctrt_to_dlpack, &managed, p.x);
    BAD(AUTOGRAD, ctrt_to_dlpack(&managed, p.leaf));
    FINE(managed == NULL);
    BAD(INVALID_ARGUMENT, ctrt_from_dlpack(NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_from_dlpack(&out, NULL));
}

static void scopes(void)
{
    BAD(INVALID_ARGUMENT, ctrt_scope_export(NULL));
    BAD(STATE, ctrt_scope_end());
    BAD(STATE, ctrt_scope_export(p.x));
    FINE(ctrt_scope_begin() == CTRT_OK);
    FINE(ctrt_scope_export(p.x) == CTRT_OK);
    BAD(INVALID_ARGUMENT, ctrt_scope_export(NULL));
    FINE(ctrt_scope_end() == CTRT_OK);
}

void bad_tensor(void)
{
    RUN_ALL(accessors, factories, alike, conversion, scopes);
}
