/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/elementwise_loop.h: runs the loops of elementwise kernels over views of any layout.
 *
 * A loop processes contiguous elements only. cpu_elementwise_loop handles everything else: strides and scalars
 * (gathered into small blocks that stay in the L1 cache), f16 and bf16 (computed by the f32 loop), strided outputs,
 * threads, and outputs so large that they are written with non-temporal stores. A kernel's run() calls the loop
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

struct cpu_plan {
    cpu_loop loop;
    int32_t inputs;             /* number of inputs, 0 to 3 */
    int32_t cost;               /* cost of one element, in additions */
    uint8_t in[3], out;         /* storage formats (enum cpu_storage_kind) */
};

/* Below CPU_GRAIN / cost elements, a second thread costs more time than it saves. */
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
static inline __attribute__((always_inline)) bool cpu_is_short(const ctrt_call *call, int inputs, int cost)
{
    const ctrt_view *out = call->outputs[0];
    int64_t n = out->numel;
    unsigned flags = out->flags;
    if (n > CPU_GRAIN / cost)
        return false;
    bool alike = true;
    for (int i = 0; i < inputs; i++) {
        flags &= call->inputs[i]->flags;
        alike &= call->inputs[i]->numel == n;
    }
    return n == 1 || (alike && flags & CTRT_VIEW_CONTIGUOUS);
}

/* Defines name_run for a loop that needs no conversion of its operands (no half precision). */
#define CPU_RUN(name, count, price, kind_a, kind_b, kind_c, kind_out)                                             \
    static ctrt_status name##_run(const ctrt_call *call)                                                          \
    {                                                                                                             \
        static const struct cpu_plan plan = { name, count, price, { kind_a, kind_b, kind_c }, kind_out };         \
        if (cpu_is_short(call, count, price)) {                                                                   \
            name(call->outputs[0]->data, call->inputs[0]->data, (count) > 1 ? call->inputs[1]->data : NULL,       \
                 (count) > 2 ? call->inputs[2]->data : NULL, call->outputs[0]->numel);                            \
            return CTRT_OK;                                                                                       \
        }                                                                                                         \
        return cpu_elementwise_loop(call, &plan, NULL);                                                           \
    }
#define CPU_RUN_1(name, price, kind, kind_out) CPU_RUN(name, 1, price, kind, 0, 0, kind_out)
#define CPU_RUN_2(name, price, kind, kind_out) CPU_RUN(name, 2, price, kind, kind, 0, kind_out)

/* Defines name_f16_run and name_bf16_run, which convert to f32 and call the f32 loop. */
#define CPU_RUN_HALVES(name, loop, count, price, f16_out, bf16_out)                                                    \
    static ctrt_status name##_f16_run(const ctrt_call *call)                                                           \
    {                                                                                                                  \
        static const struct cpu_plan plan = {                                                                          \
            loop, count, price, { CPU_KIND_F16, CPU_KIND_F16, CPU_KIND_F16 }, f16_out };                               \
        return cpu_elementwise_loop(call, &plan, NULL);                                                                \
    }                                                                                                                  \
    static ctrt_status name##_bf16_run(const ctrt_call *call)                                                          \
    {                                                                                                                  \
        static const struct cpu_plan plan = {                                                                          \
            loop, count, price, { CPU_KIND_BF16, CPU_KIND_BF16, CPU_KIND_BF16 }, bf16_out };                           \
        return cpu_elementwise_loop(call, &plan, NULL);                                                                \
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

/* A kernel that calls cpu_elementwise_loop, and the kernels of the four floating types. */
#define CPU_KERNEL(name, types, function)                                                                         \
    { .size = sizeof(ctrt_kernel), .op = name, .dtypes = (types), .run = function,                                \
      .flags = CTRT_KERNEL_STRIDED | CTRT_KERNEL_INPLACE }
#define CPU_FLOATING_ROWS(op, name)                                                                               \
    CPU_KERNEL(#op, CPU_F32, name##_f32_run), CPU_KERNEL(#op, CPU_F64, name##_f64_run),                           \
    CPU_KERNEL(#op, CPU_F16, name##_f16_run), CPU_KERNEL(#op, CPU_BF16, name##_bf16_run)

#endif
