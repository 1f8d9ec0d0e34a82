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
#define WRAPPED(x) ((int64_t)(x))

#define CASTS(from, F, NARROW)                                                                                    \
    CPU_LOOP_1(from##_to_f32, F, float, x)                                                                        \
    CPU_LOOP_1(from##_to_f64, F, double, x)                                                                       \
    CPU_LOOP_1(from##_to_i8, F, int8_t, NARROW(x))                                                                \
    CPU_LOOP_1(from##_to_u8, F, uint8_t, NARROW(x))                                                               \
    CPU_LOOP_1(from##_to_i16, F, int16_t, NARROW(x))                                                              \
    CPU_LOOP_1(from##_to_i32, F, int32_t, NARROW(x))                                                              \
    CPU_LOOP_1(from##_to_i64, F, int64_t, x)                                                                      \
    CPU_LOOP_1(from##_to_bool, F, uint8_t, x != 0)
CASTS(f32, float, WRAPPED)
CASTS(f64, double, WRAPPED)
CASTS(i8, int8_t, )
CASTS(u8, uint8_t, )
CASTS(i16, int16_t, )
CASTS(i32, int32_t, )
CASTS(i64, int64_t, )

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
    struct cpu_plan plan = { casts[in->dtype][out->dtype], 1, CPU_GRAIN, { kinds[in->dtype] }, kinds[out->dtype] };
    return cpu_elementwise_loop(call, &plan, NULL);
}

/* ---- copy within a dtype: copies bytes ---- */

#define BODY "copy_body.h"
#include "each_width.h"

static ctrt_status copy(const ctrt_call *call)
{
    static const struct cpu_plan moves[] = {
        [1] = CPU_PLAN(move_1, 1, 1, 1, 1), [2] = CPU_PLAN(move_2, 1, 1, 2, 2),
        [4] = CPU_PLAN(move_4, 1, 1, 4, 4), [8] = CPU_PLAN(move_8, 1, 1, 8, 8),
    };
    static const uint8_t bytes[] = {
#define DTYPE(name, value, size, category, text, dlpack, safetensors, torch) [CTRT_##name] = size,
#include "ctrt/dtype.def"
#undef DTYPE
    };
    const ctrt_view *out = call->outputs[0], *in = call->inputs[0];
    if (out->dtype != in->dtype)
        return copy_cast(call);
    if (!cpu_is_short(call, 1, CPU_GRAIN))
        return cpu_elementwise_loop(call, &moves[bytes[in->dtype]], NULL);
    if (out->numel)
        memcpy(out->data, in->data, (size_t)out->numel * bytes[in->dtype]);
    return CTRT_OK;
}

/* ---- fill: `extra` is the value ---- */

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

/* The data of a kernel. */
struct fill {
    struct cpu_plan plan;
    void (*put)(void *to, ctrt_scalar s);
};

static ctrt_status fill(const ctrt_call *call)
{
    const struct fill *kernel = cpu_kernel_data(call);
    const ctrt_range_attributes *range = call->attributes;
    if (call->outputs[0]->numel == 1) {
        kernel->put(call->outputs[0]->data, range->lo);
        return CTRT_OK;
    }
    uint64_t value = 0;
    kernel->put(&value, range->lo);
    return cpu_run_any(call, 0, &kernel->plan, &value);
}

#define FILL_ROW(op, set, type, bytes) \
    CPU_STRIDED_ROW(op, set, op, (&(const struct fill){ { fill_##bytes, 0, CPU_GRAIN, { 0 }, bytes }, put_##type }))
static const struct cpu_kernel kernels[] = {
    CPU_STRIDED_ROW(copy, CPU_ALL, copy, NULL),
    CPU_EACH_FLOAT(FILL_ROW, fill), FILL_ROW(fill, CPU_F16, f16, 2), FILL_ROW(fill, CPU_BF16, bf16, 2),
    CPU_EACH_INTEGER(FILL_ROW, fill), FILL_ROW(fill, CPU_BOOL, bool, 1),
};

CPU_KERNELS(copy, kernels);
