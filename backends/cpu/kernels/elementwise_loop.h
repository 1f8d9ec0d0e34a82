/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/elementwise_loop.h: runs the loops of elementwise kernels over views of any layout.
 *
 * A loop processes contiguous elements only. cpu_elementwise_loop handles everything else: strides and scalars
 * (gathered into small blocks that stay in the L1 cache), f16 and bf16 (computed by the f32 loop), strided outputs,
 * threads, and outputs so large that they are written with non-temporal stores. cpu_run_plan calls the loop
 * directly when cpu_is_short returns true. */
#ifndef CTRT_CPU_ELEMENTWISE_LOOP_H
#define CTRT_CPU_ELEMENTWISE_LOOP_H

#include "variant.h"

/* Computes out[i] = f(a[i], b[i], c[i]) for i < n. The first input that the op does not have receives the `extra`
 * argument of cpu_elementwise_loop; further ones are NULL. out may alias an input. */
typedef void (*cpu_loop)(void *out, const void *a, const void *b, const void *c, int64_t n);

/* Storage format of an operand: its element size in bytes, or, above all sizes, a half-precision type, which is
 * converted to f32. */
enum cpu_storage_kind {
    CPU_KIND_1 = 1, CPU_KIND_2 = 2, CPU_KIND_4 = 4, CPU_KIND_8 = 8, CPU_KIND_F16 = 64, CPU_KIND_BF16
};
static inline size_t cpu_kind_bytes(int kind)
{
    return kind >= CPU_KIND_F16 ? 2 : (size_t)kind;
}

struct cpu_plan {
    cpu_loop loop;
    int32_t inputs;             /* number of inputs, 0 to 3 */
    int32_t grain;              /* minimum number of elements per thread */
    uint8_t in[3], out;         /* storage formats (enum cpu_storage_kind) */
};

/* Minimum number of elements per thread if an element costs as much as an addition. */
#define CPU_GRAIN 32768

#define cpu_elementwise_loop CPU_NAME(cpu_elementwise_loop_run)
ctrt_status cpu_elementwise_loop(const ctrt_call *call, const struct cpu_plan *plan, const void *extra);

/* For other families. cpu_gather copies elements [begin, begin + count) of v, in row-major order, to `to`;
 * `bytes` is the element size. cpu_widen converts `count` elements of CPU_KIND_F16 or CPU_KIND_BF16 (`kind`) to float,
 * cpu_narrow the reverse. */
#define cpu_gather CPU_NAME(cpu_gather_run)
#define cpu_widen  CPU_NAME(cpu_widen_run)
#define cpu_narrow CPU_NAME(cpu_narrow_run)
void cpu_gather(void *to, const ctrt_view *v, size_t bytes, int64_t begin, int64_t count);
void cpu_widen(float *to, const void *from, int kind, int64_t count);
void cpu_narrow(void *to, const float *from, int kind, int64_t count);

/* Returns true if one call of the loop in the calling thread can process all elements. `inputs` must be a constant. */
static inline __attribute__((always_inline)) bool cpu_is_short(const ctrt_call *call, int inputs, int grain)
{
    const ctrt_view *out = call->outputs[0];
    int64_t n = out->numel;
    if (n == 1)
        return true;
    if (n > grain)
        return false;
    unsigned flags = out->flags;
    bool alike = true;
    for (int i = 0; i < inputs; i++) {
        flags &= call->inputs[i]->flags;
        alike &= call->inputs[i]->numel == n;
    }
    return alike && flags & CTRT_VIEW_CONTIGUOUS;
}

/* Runs a plan without conversions (no half precision). Calls its loop directly when cpu_is_short returns true. `inputs`
 * and `loop`: those of the plan, as constants. */
static inline __attribute__((always_inline)) ctrt_status cpu_run_plan(const ctrt_call *call, int inputs, cpu_loop loop,
                                                                      const struct cpu_plan *plan, const void *extra)
{
    if (!cpu_is_short(call, inputs, plan->grain))
        return cpu_elementwise_loop(call, plan, extra);
    const void *p[4] = { NULL, NULL, NULL, NULL };
    for (int i = 0; i < inputs; i++)
        p[i] = call->inputs[i]->data;
    p[inputs] = extra;
    loop(call->outputs[0]->data, p[0], p[1], p[2], call->outputs[0]->numel);
    return CTRT_OK;
}

/* The same for a plan that is not known at compile time and can have conversions. */
static inline __attribute__((always_inline)) ctrt_status cpu_run_any(const ctrt_call *call, int inputs,
                                                                     const struct cpu_plan *plan, const void *extra)
{
    if (plan->in[0] >= CPU_KIND_F16)
        return cpu_elementwise_loop(call, plan, extra);
    return cpu_run_plan(call, inputs, plan->loop, plan, extra);
}

/* The function of kernels whose data is a plan with conversions. */
static inline ctrt_status cpu_run_converted(const ctrt_call *call)
{
    return cpu_elementwise_loop(call, cpu_kernel_data(call), NULL);
}

/* Define a loop over one input (x) or two inputs (x, y) of type T; `expression` computes the result, of type R. */
#define CPU_LOOP_1(name, T, R, expression)                                                                        \
    static void name(void *out, const void *pa, const void *pb, const void *pc, int64_t n)                        \
    {                                                                                                             \
        R *to = out;                                                                                              \
        const T *from = pa;                                                                                       \
        (void)pb, (void)pc;                                                                                       \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                      \
        {                                                                                                         \
            T x = from[i];                                                                                        \
            to[i] = (R)(expression);                                                                              \
        }                                                                                                         \
    }
#define CPU_LOOP_2(name, T, R, expression)                                                                        \
    static void name(void *out, const void *pa, const void *pb, const void *pc, int64_t n)                        \
    {                                                                                                             \
        R *to = out;                                                                                              \
        const T *left = pa, *right = pb;                                                                          \
        (void)pc;                                                                                                 \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                      \
        {                                                                                                         \
            T x = left[i], y = right[i];                                                                          \
            to[i] = (R)(expression);                                                                              \
        }                                                                                                         \
    }
/* Define a loop and name_run, the function of its kernel, whose data is the loop's plan. */
#define CPU_OP(LOOP, inputs, name, T, R, expression)                                                              \
    LOOP(name, T, R, expression)                                                                                  \
    CPU_RUN(inputs, name)
#define CPU_OP_1(name, T, R, expression) CPU_OP(CPU_LOOP_1, 1, name, T, R, expression)
#define CPU_OP_2(name, T, R, expression) CPU_OP(CPU_LOOP_2, 2, name, T, R, expression)
#define CPU_RUN(inputs, name) CPU_RUN_EXPANDED(inputs, name)
#define CPU_RUN_EXPANDED(inputs, name)                                                                            \
    static ctrt_status name##_run(const ctrt_call *call)                                                          \
    {                                                                                                             \
        return cpu_run_plan(call, inputs, name, cpu_kernel_data(call), NULL);                                     \
    }

/* The same for several types, from T to T: LOOP is CPU_LOOP_1, CPU_LOOP_2, CPU_OP_1 or CPU_OP_2. */
#define CPU_LOOPS_FLOAT(LOOP, op, f32, f64) LOOP(op##_f32, float, float, f32) LOOP(op##_f64, double, double, f64)
#define CPU_LOOPS_SIGNED(LOOP, op, expression)                                                                    \
    LOOP(op##_i8, int8_t, int8_t, expression) LOOP(op##_i16, int16_t, int16_t, expression)                        \
    LOOP(op##_i32, int32_t, int32_t, expression) LOOP(op##_i64, int64_t, int64_t, expression)

/* A plan whose operands have the same storage format; `as` is that of the result. `cost`: of an element, in
 * additions. */
#define CPU_PLAN(loop, inputs, cost, kind, as) { loop, inputs, CPU_GRAIN / (cost), { kind, kind, kind }, as }

/* A kernel that calls cpu_elementwise_loop, with its function and data for it. */
#define CPU_STRIDED_ROW(op, set, function, with)                                                                  \
    CPU_ROW_OF(op, set, function, with, .flags = CTRT_KERNEL_STRIDED | CTRT_KERNEL_INPLACE)
/* The same for a plan. `as`: storage format of the result; 0 is that of the operands. */
#define CPU_PLAN_ROW(op, set, function, loop, inputs, cost, kind, as)                                             \
    CPU_STRIDED_ROW(op, set, function,                                                                            \
                    (&(const struct cpu_plan)CPU_PLAN(loop, inputs, cost, kind, (as) ? (as) : (kind))))
/* The kernel of a loop that CPU_OP defined, and the kernels of an f32 loop for half precision. */
#define CPU_LOOP_ROW(op, set, loop, inputs, cost, kind, as)                                                       \
    CPU_PLAN_ROW(op, set, loop##_run, loop, inputs, cost, kind, as)
#define CPU_HALF_ROWS(op, loop, inputs, cost, as)                                                                 \
    CPU_PLAN_ROW(op, CPU_F16, cpu_run_converted, loop, inputs, cost, CPU_KIND_F16, as),                           \
    CPU_PLAN_ROW(op, CPU_BF16, cpu_run_converted, loop, inputs, cost, CPU_KIND_BF16, as)
/* For CPU_EACH_INTEGER and CPU_EACH_WIDTH: the kernel of loops_TYPE. */
#define CPU_LOOP_ROW_OF(op, set, type, bytes, loops, inputs, cost, as)                                            \
    CPU_PLAN_ROW(op, set, loops##_##type##_run, loops##_##type, inputs, cost, bytes, as)
/* The kernels of the four floating types. */
#define CPU_FLOAT_ROWS(op, loops, inputs, cost, cost_f64, as)                                                     \
    CPU_LOOP_ROW(op, CPU_F32, loops##_f32, inputs, cost, CPU_KIND_4, as),                                         \
    CPU_LOOP_ROW(op, CPU_F64, loops##_f64, inputs, cost_f64, CPU_KIND_8, as),                                     \
    CPU_HALF_ROWS(op, loops##_f32, inputs, cost, as)

#endif
