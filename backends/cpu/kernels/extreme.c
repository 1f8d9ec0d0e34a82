/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/extreme.c: amax, amin, argmax, argmin. If an element is NaN, the result is NaN. Of equal
 * elements, the position of the first is returned. */
#include <math.h>

#include "convert.h"
#include "reduce.h"

/* For extreme_body.h: whether elements of two vectors are NaN, and whether any was. */
#define vf_least vf_min
#if VEC_AVX512
#define vf_unordered(a, b) _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q)
#define vd_unordered(a, b) _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q)
typedef uint32_t vf_nans, vd_nans;
#define vf_any(nans) ((nans) != 0)
#define vd_any(nans) ((nans) != 0)
VEC_INLINE vd vd_least(vd a, vd b) { return _mm512_min_pd(a, b); }
#else
#define vf_unordered(a, b) (((a) != (a)) | ((b) != (b)))
#define vd_unordered(a, b) (((a) != (a)) | ((b) != (b)))
typedef vi vf_nans;
typedef vl vd_nans;
static bool any_bit(const void *m)
{
    uint64_t words[VEC_BYTES / 8], all = 0;
    memcpy(words, m, sizeof words);
    for (size_t i = 0; i < VEC_BYTES / 8; i++)
        all |= words[i];
    return all != 0;
}
#define vf_any(nans) any_bit(&(nans))
#define vd_any(nans) any_bit(&(nans))
VEC_INLINE vd vd_least(vd a, vd b) { return vd_select(a < b, a, b); }
#endif

/* Elements of which argmax first computes the extreme value. */
#define PLACE_BLOCK 1024
#define BODY "extreme_types_body.h"
#include "each_float.h"
#define BODY "extreme_types_body.h"
#include "each_integer.h"

/* Half precision is reduced as f32; the result is one of the elements, so its conversion is exact. */
static void finish_f16(void *out, int64_t stride, const void *acc, int64_t n, int64_t count)
{
    (void)count;
    for (int64_t j = 0; j < n; j++)
        ((uint16_t *)out)[j * stride] = cpu_f16_from_f32(((const float *)acc)[j]);
}

static void finish_bf16(void *out, int64_t stride, const void *acc, int64_t n, int64_t count)
{
    (void)count;
    for (int64_t j = 0; j < n; j++)
        ((uint16_t *)out)[j * stride] = cpu_bf16_from_f32(((const float *)acc)[j]);
}

#define VALUE_ROW(op, set, type, bytes)                                                                           \
    CPU_REDUCE_ROW(op, set, bytes, bytes, bytes, false, true, op##_start_##type, op##_fold_##type,                \
                   op##_columns_##type, op##_merge_##type, extreme_finish_##type)
#define HALF_ROW(op, set, type, kind)                                                                             \
    CPU_REDUCE_ROW(op, set, kind, 2, sizeof(float), false, true, op##_start_f32, op##_fold_f32, op##_columns_f32, \
                   op##_merge_f32, finish_##type)
#define PLACE_ROW(op, set, type, kind)                                                                            \
    CPU_REDUCE_ROW(op, set, kind, 8, sizeof(struct place_##type), true, true, place_start_##type, op##_fold_##type, \
                   op##_columns_##type, op##_merge_##type, place_finish_##type)
#define VALUE_ROWS(op)                                                                                            \
    CPU_EACH_FLOAT(VALUE_ROW, op), CPU_EACH_INTEGER(VALUE_ROW, op), VALUE_ROW(op, CPU_BOOL, u8, 1),              \
    HALF_ROW(op, CPU_F16, f16, CPU_KIND_F16), HALF_ROW(op, CPU_BF16, bf16, CPU_KIND_BF16)
#define PLACE_ROWS(op)                                                                                            \
    CPU_EACH_FLOAT(PLACE_ROW, op), CPU_EACH_INTEGER(PLACE_ROW, op), PLACE_ROW(op, CPU_BOOL, u8, 1),              \
    PLACE_ROW(op, CPU_F16, f32, CPU_KIND_F16), PLACE_ROW(op, CPU_BF16, f32, CPU_KIND_BF16)

static const struct cpu_kernel kernels[] = {
    VALUE_ROWS(amax), VALUE_ROWS(amin), PLACE_ROWS(argmax), PLACE_ROWS(argmin),
};

CPU_KERNELS(extreme, kernels);
