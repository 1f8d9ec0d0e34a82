/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/promote.c: the dtype of a result from the dtypes of its operands. */
#include "tensor/shape.h"

/* PyTorch's promotion table, for two operands with dimensions. If neither of two types can represent the values of the
 * other, they promote to the next type that can represent both: i8 and u8 to i16, f16 and bf16 to f32. An integer and a
 * floating type promote to that floating type. */
static const uint8_t promotion[DTYPE_COUNT][DTYPE_COUNT] = {
#define ROW(name, f32, f64, f16, bf16, i8, u8, i16, i32, i64, b)                                                       \
    [CTRT_##name] = { [CTRT_F32] = CTRT_##f32, [CTRT_F64] = CTRT_##f64, [CTRT_F16] = CTRT_##f16,                       \
                      [CTRT_BF16] = CTRT_##bf16, [CTRT_I8] = CTRT_##i8, [CTRT_U8] = CTRT_##u8,                         \
                      [CTRT_I16] = CTRT_##i16, [CTRT_I32] = CTRT_##i32, [CTRT_I64] = CTRT_##i64,                       \
                      [CTRT_BOOL] = CTRT_##b }
    /*        F32  F64  F16   BF16  I8    U8    I16   I32   I64   BOOL */
    ROW(F32,  F32, F64, F32,  F32,  F32,  F32,  F32,  F32,  F32,  F32),
    ROW(F64,  F64, F64, F64,  F64,  F64,  F64,  F64,  F64,  F64,  F64),
    ROW(F16,  F32, F64, F16,  F32,  F16,  F16,  F16,  F16,  F16,  F16),
    ROW(BF16, F32, F64, F32,  BF16, BF16, BF16, BF16, BF16, BF16, BF16),
    ROW(I8,   F32, F64, F16,  BF16, I8,   I16,  I16,  I32,  I64,  I8),
    ROW(U8,   F32, F64, F16,  BF16, I16,  U8,   I16,  I32,  I64,  U8),
    ROW(I16,  F32, F64, F16,  BF16, I16,  I16,  I16,  I32,  I64,  I16),
    ROW(I32,  F32, F64, F16,  BF16, I32,  I32,  I32,  I32,  I64,  I32),
    ROW(I64,  F32, F64, F16,  BF16, I64,  I64,  I64,  I64,  I64,  I64),
    ROW(BOOL, F32, F64, F16,  BF16, I8,   U8,   I16,  I32,  I64,  BOOL),
#undef ROW
};

ctrt_dtype ctrt_promote_types(ctrt_dtype a, ctrt_dtype b)
{
    if (unlikely((unsigned)a >= DTYPE_COUNT || (unsigned)b >= DTYPE_COUNT))
        return CTRT_DTYPE_DEFAULT;
    return (ctrt_dtype)promotion[a][b];
}

/* Promotes `bucket`, the result for one category of operands so far (CTRT_DTYPE_DEFAULT: none), with `dtype`. */
static ctrt_dtype join(ctrt_dtype bucket, ctrt_dtype dtype)
{
    return bucket == CTRT_DTYPE_DEFAULT ? dtype : (ctrt_dtype)promotion[bucket][dtype];
}

/* Operands of lower priority (0-dim tensors, scalars) change the result only if their category is higher. */
static ctrt_dtype fold(ctrt_dtype higher, ctrt_dtype lower)
{
    if (lower == CTRT_DTYPE_DEFAULT)
        return higher;
    if (higher == CTRT_DTYPE_DEFAULT)
        return lower;
    return dtype_table[lower].category > dtype_table[higher].category ? (ctrt_dtype)promotion[higher][lower] : higher;
}

ctrt_dtype dtype_of_scalar(ctrt_scalar value)
{
    switch (value.kind) {
    case CTRT_SCALAR_BOOL: return CTRT_BOOL;
    case CTRT_SCALAR_INT: return CTRT_I64;
    default: return ctrt_default_dtype();
    }
}

ctrt_status ctrt_result_type(ctrt_dtype *out, ctrt_tensor *const *tensors, int count, const ctrt_scalar *scalar)
{
    NULL_CHECK("result_type", out);
    if (unlikely(count < 0))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "result_type", "%d tensors", count);
    if (unlikely(tensors == NULL && count > 0))
        return fail_null("result_type", "tensors");
    if (unlikely(scalar != NULL && (unsigned)scalar->kind > CTRT_SCALAR_FLOAT))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "result_type",
                         "a scalar of unknown kind %d; use ctrt_float, ctrt_int or ctrt_bool",
                         (int)scalar->kind);

    ctrt_dtype dimensioned = CTRT_DTYPE_DEFAULT, zero_dim = CTRT_DTYPE_DEFAULT, number = CTRT_DTYPE_DEFAULT;
    for (int i = 0; i < count; i++) {
        if (tensors[i] == NULL)
            continue;
        if (tensors[i]->view.ndim > 0)
            dimensioned = join(dimensioned, tensor_dtype(tensors[i]));
        else
            zero_dim = join(zero_dim, tensor_dtype(tensors[i]));
    }
    if (scalar != NULL)
        number = dtype_of_scalar(*scalar);
    ctrt_dtype result = fold(dimensioned, fold(zero_dim, number));
    if (unlikely(result == CTRT_DTYPE_DEFAULT))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "result_type", "neither a tensor nor a scalar was given");
    *out = result;
    return CTRT_OK;
}
