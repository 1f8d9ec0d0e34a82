/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/copy.c: copy between layouts and dtypes, and fill. */
#include "elementwise_loop.h"
#include "convert.h"

/* ---- copy with conversion ----
 *
 * One loop per pair of types. f16 and bf16 are converted to and from f32. */

/* A conversion from floating point to an integer truncates toward zero. Narrow integers are converted through i64, so
 * that values outside their range, but inside that of i64, wrap. C does not define the conversion of other values to
 * i64; the processor's instruction decides (x86-64: INT64_MIN, as in PyTorch), because a check would cost time. */
#define TO_SAME(T, x)  (x)
#define TO_WRAP(T, x)  ((T)(int64_t)(x))
#define TO_BOOL(T, x)  ((x) != 0)

#define CAST(from, F, to, T, how) CPU_LOOP_1(from##_to_##to, F, T, how(T, x))
#define CASTS_FROM_FLOATING(from, F)                                                                              \
    CAST(from, F, f32, float, TO_SAME)                                                                            \
    CAST(from, F, f64, double, TO_SAME)                                                                           \
    CAST(from, F, i8, int8_t, TO_WRAP)                                                                            \
    CAST(from, F, u8, uint8_t, TO_WRAP)                                                                           \
    CAST(from, F, i16, int16_t, TO_WRAP)                                                                          \
    CAST(from, F, i32, int32_t, TO_WRAP)                                                                          \
    CAST(from, F, i64, int64_t, TO_SAME)                                                                          \
    CAST(from, F, bool, uint8_t, TO_BOOL)
#define CASTS_FROM_INTEGER(from, F)                                                                               \
    CAST(from, F, f32, float, TO_SAME)                                                                            \
    CAST(from, F, f64, double, TO_SAME)                                                                           \
    CAST(from, F, i8, int8_t, TO_SAME)                                                                            \
    CAST(from, F, u8, uint8_t, TO_SAME)                                                                           \
    CAST(from, F, i16, int16_t, TO_SAME)                                                                          \
    CAST(from, F, i32, int32_t, TO_SAME)                                                                          \
    CAST(from, F, i64, int64_t, TO_SAME)                                                                          \
    CAST(from, F, bool, uint8_t, TO_BOOL)
CASTS_FROM_FLOATING(f32, float)
CASTS_FROM_FLOATING(f64, double)
CASTS_FROM_INTEGER(i8, int8_t)
CASTS_FROM_INTEGER(u8, uint8_t)
CASTS_FROM_INTEGER(i16, int16_t)
CASTS_FROM_INTEGER(i32, int32_t)
CASTS_FROM_INTEGER(i64, int64_t)

#define CASTS_OF(from)                                                                                             \
    { [CTRT_F32] = from##_to_f32, [CTRT_F64] = from##_to_f64, [CTRT_F16] = from##_to_f32,                          \
      [CTRT_BF16] = from##_to_f32, [CTRT_I8] = from##_to_i8, [CTRT_U8] = from##_to_u8, [CTRT_I16] = from##_to_i16, \
      [CTRT_I32] = from##_to_i32, [CTRT_I64] = from##_to_i64, [CTRT_BOOL] = from##_to_bool }
static const cpu_loop casts[CPU_DTYPES][CPU_DTYPES] = {
    [CTRT_F32] = CASTS_OF(f32), [CTRT_F64] = CASTS_OF(f64), [CTRT_F16] = CASTS_OF(f32), [CTRT_BF16] = CASTS_OF(f32),
    [CTRT_I8] = CASTS_OF(i8), [CTRT_U8] = CASTS_OF(u8), [CTRT_I16] = CASTS_OF(i16), [CTRT_I32] = CASTS_OF(i32),
    [CTRT_I64] = CASTS_OF(i64), [CTRT_BOOL] = CASTS_OF(u8),
};

static const uint8_t kinds[CPU_DTYPES] = {
    [CTRT_F32] = CPU_KIND_4, [CTRT_F64] = CPU_KIND_8, [CTRT_F16] = CPU_KIND_F16, [CTRT_BF16] = CPU_KIND_BF16,
    [CTRT_I8] = CPU_KIND_1,  [CTRT_U8] = CPU_KIND_1,  [CTRT_I16] = CPU_KIND_2,   [CTRT_I32] = CPU_KIND_4,
    [CTRT_I64] = CPU_KIND_8, [CTRT_BOOL] = CPU_KIND_1,
};

static ctrt_status copy_cast(const ctrt_call *call)
{
    const ctrt_view *out = call->outputs[0], *in = call->inputs[0];
    if (out->dtype >= CPU_DTYPES || !casts[in->dtype][out->dtype])
        return cpu_host->fail(CTRT_ERR_NOT_SUPPORTED, "the backend cpu cannot convert to dtype %u", out->dtype);
    struct cpu_plan plan = { casts[in->dtype][out->dtype], 1, 1, { kinds[in->dtype] }, kinds[out->dtype] };
    return cpu_elementwise_loop(call, &plan, NULL);
}

/* ---- copy within a dtype: copies bytes ---- */

#define MOVE(bytes)                                                                                               \
    static void move_##bytes(void *out, const void *a, const void *b, const void *c, int64_t n)                   \
    {                                                                                                             \
        (void)b, (void)c;                                                                                         \
        if (n && out != a)                                                                                        \
            memcpy(out, a, (size_t)n * (bytes));                                                                  \
    }
MOVE(1)
MOVE(2)
MOVE(4)
MOVE(8)

static ctrt_status copy_run(const ctrt_call *call)
{
    static const struct cpu_plan moves[] = {
        [CPU_KIND_1] = { move_1, 1, 1, { CPU_KIND_1 }, CPU_KIND_1 },
        [CPU_KIND_2] = { move_2, 1, 1, { CPU_KIND_2 }, CPU_KIND_2 },
        [CPU_KIND_4] = { move_4, 1, 1, { CPU_KIND_4 }, CPU_KIND_4 },
        [CPU_KIND_8] = { move_8, 1, 1, { CPU_KIND_8 }, CPU_KIND_8 },
    };
    static const uint8_t bytes[] = {
#define DTYPE(name, value, size, category, text, dlpack, safetensors, torch) [CTRT_##name] = size,
#include "ctrt/dtype.def"
#undef DTYPE
    };
    const ctrt_view *out = call->outputs[0], *in = call->inputs[0];
    if (out->dtype != in->dtype)
        return copy_cast(call);
    if (cpu_is_short(call, 1, 1)) {
        if (out->numel)
            memcpy(out->data, in->data, (size_t)out->numel * bytes[in->dtype]);
        return CTRT_OK;
    }
    return cpu_elementwise_loop(call, &moves[bytes[in->dtype]], NULL);
}

/* ---- fill: `extra` is the value ---- */

#define FILL(bytes, T)                                                                                            \
    static void fill_##bytes(void *out, const void *a, const void *b, const void *c, int64_t n)                   \
    {                                                                                                             \
        T value, *to = out;                                                                                       \
        memcpy(&value, a, sizeof value);                                                                          \
        (void)b, (void)c;                                                                                         \
        for (int64_t i = 0; i < n; i++)                                                                           \
            to[i] = value;                                                                                        \
    }
FILL(1, uint8_t)
FILL(2, uint16_t)
FILL(4, uint32_t)
FILL(8, uint64_t)

/* Store a scalar as one element of the dtype. */
#define AS(scalar, T) ((scalar).kind == CTRT_SCALAR_FLOAT ? (T)(scalar).f : (T)(scalar).i)
#define AS_INTEGER(scalar) ((scalar).kind == CTRT_SCALAR_FLOAT ? cpu_truncated((scalar).f) : (scalar).i)
static void put_f32(void *to, ctrt_scalar s) { *(float *)to = AS(s, float); }
static void put_f64(void *to, ctrt_scalar s) { *(double *)to = AS(s, double); }
static void put_f16(void *to, ctrt_scalar s) { *(uint16_t *)to = cpu_f16_from_f32(AS(s, float)); }
static void put_bf16(void *to, ctrt_scalar s) { *(uint16_t *)to = cpu_bf16_from_f32(AS(s, float)); }
static void put_i8(void *to, ctrt_scalar s) { *(int8_t *)to = (int8_t)AS_INTEGER(s); }
static void put_u8(void *to, ctrt_scalar s) { *(uint8_t *)to = (uint8_t)AS_INTEGER(s); }
static void put_i16(void *to, ctrt_scalar s) { *(int16_t *)to = (int16_t)AS_INTEGER(s); }
static void put_i32(void *to, ctrt_scalar s) { *(int32_t *)to = (int32_t)AS_INTEGER(s); }
static void put_i64(void *to, ctrt_scalar s) { *(int64_t *)to = AS_INTEGER(s); }
static void put_bool(void *to, ctrt_scalar s) { *(uint8_t *)to = s.kind == CTRT_SCALAR_FLOAT ? s.f != 0 : s.i != 0; }

#define FILL_RUN(dtype, bytes)                                                                                    \
    static ctrt_status fill_##dtype##_run(const ctrt_call *call)                                                  \
    {                                                                                                             \
        static const struct cpu_plan plan = { fill_##bytes, 0, 1, { 0 }, bytes };                                 \
        const ctrt_range_attributes *range = call->attributes;                                                    \
        uint64_t value = 0;                                                                                       \
        put_##dtype(&value, range->lo);                                                                           \
        if (cpu_is_short(call, 0, 1)) {                                                                           \
            fill_##bytes(call->outputs[0]->data, &value, NULL, NULL, call->outputs[0]->numel);                    \
            return CTRT_OK;                                                                                       \
        }                                                                                                         \
        return cpu_elementwise_loop(call, &plan, &value);                                                         \
    }
FILL_RUN(f32, 4)
FILL_RUN(f64, 8)
FILL_RUN(f16, 2)
FILL_RUN(bf16, 2)
FILL_RUN(i8, 1)
FILL_RUN(u8, 1)
FILL_RUN(i16, 2)
FILL_RUN(i32, 4)
FILL_RUN(i64, 8)
FILL_RUN(bool, 1)

static const ctrt_kernel kernels[] = {
    CPU_KERNEL("copy", CPU_ALL, copy_run),
    CPU_KERNEL("fill", CPU_F32, fill_f32_run),
    CPU_KERNEL("fill", CPU_F64, fill_f64_run),
    CPU_KERNEL("fill", CPU_F16, fill_f16_run),
    CPU_KERNEL("fill", CPU_BF16, fill_bf16_run),
    CPU_KERNEL("fill", CPU_I8, fill_i8_run),
    CPU_KERNEL("fill", CPU_U8, fill_u8_run),
    CPU_KERNEL("fill", CPU_I16, fill_i16_run),
    CPU_KERNEL("fill", CPU_I32, fill_i32_run),
    CPU_KERNEL("fill", CPU_I64, fill_i64_run),
    CPU_KERNEL("fill", CPU_BOOL, fill_bool_run),
};

CPU_KERNELS(copy, kernels);
