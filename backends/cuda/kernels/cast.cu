/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/cast.cu: copies from one dtype to another, cast_FROM_TO. Signed and unsigned integers of a size
 * share one TO, because the bits are the same.
 *
 * Each element is read once and written once; the kernels are memory-bound. The larger type determines the number of
 * elements per vector. */
#include "elementwise.cuh"

/* A floating-point value becomes an integer by truncation toward zero to 64 bits, so that values outside the target
 * type wrap. NaN and values beyond 64 bits give the same result as on the host's processors. */
template <typename T> DEVICE int64_t truncated(T x)
{
    return x >= T(-9223372036854775808.0) && x < T(9223372036854775808.0) ? (int64_t)x : (int64_t)1 << 63;
}

#define CAST(from, F, to, T, ...)  ELEMENTWISE(cast_##from##_##to, 1, 2, T, F, F, F, (work<F> x), __VA_ARGS__)
#define TO_F32(from, F)            CAST(from, F, f32, float, (float)x)
#define TO_F64(from, F)            CAST(from, F, f64, double, (double)x)
#define TO_F16(from, F)            CAST(from, F, f16, f16, (float)x)
#define TO_BF16(from, F)           CAST(from, F, bf16, bf16, (float)x)
#define TO_BOOL(from, F)           CAST(from, F, bool, uint8_t, x != 0)
#define FROM_FLOATING(from, F)                                                                                      \
    TO_BOOL(from, F)                                                                                                \
    CAST(from, F, u8, uint8_t, truncated(x))                                                                        \
    CAST(from, F, i16, uint16_t, truncated(x))                                                                      \
    CAST(from, F, i32, uint32_t, truncated(x))                                                                      \
    CAST(from, F, i64, int64_t, truncated(x))
#define FROM_INTEGER(from, F) TO_F32(from, F) TO_F64(from, F) TO_F16(from, F) TO_BF16(from, F) TO_BOOL(from, F)
#define TO_U8(from, F)  CAST(from, F, u8, uint8_t, x)
#define TO_I16(from, F) CAST(from, F, i16, int16_t, x)
#define TO_I32(from, F) CAST(from, F, i32, int32_t, x)
#define TO_I64(from, F) CAST(from, F, i64, int64_t, x)

FROM_FLOATING(f32, float)   TO_F64(f32, float)  TO_F16(f32, float)  TO_BF16(f32, float)
FROM_FLOATING(f64, double)  TO_F32(f64, double) TO_F16(f64, double) TO_BF16(f64, double)
FROM_FLOATING(f16, f16)     TO_F32(f16, f16)    TO_F64(f16, f16)    TO_BF16(f16, f16)
FROM_FLOATING(bf16, bf16)   TO_F32(bf16, bf16)  TO_F64(bf16, bf16)  TO_F16(bf16, bf16)
FROM_INTEGER(i8, int8_t)    TO_I16(i8, int8_t)  TO_I32(i8, int8_t)  TO_I64(i8, int8_t)
FROM_INTEGER(u8, uint8_t)   TO_I16(u8, uint8_t) TO_I32(u8, uint8_t) TO_I64(u8, uint8_t)
FROM_INTEGER(i16, int16_t)  TO_U8(i16, int16_t) TO_I32(i16, int16_t) TO_I64(i16, int16_t)
FROM_INTEGER(i32, int32_t)  TO_U8(i32, int32_t) TO_I16(i32, int32_t) TO_I64(i32, int32_t)
FROM_INTEGER(i64, int64_t)  TO_U8(i64, int64_t) TO_I16(i64, int64_t) TO_I32(i64, int64_t)
