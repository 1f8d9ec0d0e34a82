/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/drive.h: from views to loops, for all elementwise kernels.
 *
 * A loop sees rows of contiguous elements and nothing else. The driver deals with the rest: strides and scalars
 * (gathered into small blocks that stay in the first cache), f16 and bf16 (the loop is that of f32), strided
 * outputs, threads, and outputs so large that they should pass by the caches. A row's run() takes the short way to
 * the loop by itself when it can. */
#ifndef CTRT_CPU_DRIVE_H
#define CTRT_CPU_DRIVE_H

#include "variant.h"

/* out[i] = f(a[i], b[i], c[i]) for i < n. Inputs that the op does not have are NULL, but for the first of them: it
 * is what the caller handed to cpu_drive as `extra`. out may be one of the inputs. */
typedef void (*cpu_loop)(void *out, const void *a, const void *b, const void *c, int64_t n);

/* How an operand lies in memory: its size, or a half precision type that the loop sees as f32. */
enum cpu_lie { CPU_1 = 1, CPU_2 = 2, CPU_4 = 4, CPU_8 = 8, CPU_HALF = 16, CPU_BRAIN = 32 };

struct cpu_plan {
    cpu_loop loop;
    int32_t inputs;             /* 0 to 3 */
    int32_t cost;               /* of one element, in additions */
    uint8_t in[3], out;         /* enum cpu_lie */
};

/* Below this many elements over the cost a second thread does not pay. */
#define CPU_GRAIN 32768

#define cpu_drive CPU_NAME(cpu_drive_run)
ctrt_status cpu_drive(const ctrt_call *call, const struct cpu_plan *how, const void *extra);

/* to[0..count) = elements begin .. begin+count of v, counted row major; `bytes` is an element's size. And halves
 * (lie says which) to floats and back. For other families. */
#define cpu_gather CPU_NAME(cpu_gather_run)
#define cpu_widen  CPU_NAME(cpu_widen_run)
#define cpu_narrow CPU_NAME(cpu_narrow_run)
void cpu_gather(void *to, const ctrt_view *v, size_t bytes, int64_t begin, int64_t count);
void cpu_widen(float *to, const void *from, int lie, int64_t count);
void cpu_narrow(void *to, const float *from, int lie, int64_t count);

/* Can the loop run over all of it at once, in this thread? `inputs` is a constant wherever this is called. */
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

/* Functions run() for a loop whose operands are as it wants them (no half precision). */
#define CPU_RUN(name, count, price, lie_a, lie_b, lie_c, lie_out)                                                 \
    static ctrt_status name##_run(const ctrt_call *call)                                                          \
    {                                                                                                             \
        static const struct cpu_plan how = { name, count, price, { lie_a, lie_b, lie_c }, lie_out };             \
        if (cpu_is_short(call, count, price)) {                                                                   \
            name(call->outputs[0]->data, call->inputs[0]->data, (count) > 1 ? call->inputs[1]->data : NULL,       \
                 (count) > 2 ? call->inputs[2]->data : NULL, call->outputs[0]->numel);                            \
            return CTRT_OK;                                                                                       \
        }                                                                                                         \
        return cpu_drive(call, &how, NULL);                                                                       \
    }
#define CPU_RUN_1(name, price, lie, lie_out) CPU_RUN(name, 1, price, lie, 0, 0, lie_out)
#define CPU_RUN_2(name, price, lie, lie_out) CPU_RUN(name, 2, price, lie, lie, 0, lie_out)

/* The same for f16 and bf16 through the loop of f32: name_f16_run, name_bf16_run. */
#define CPU_RUN_HALVES(name, loop, count, price, half_out, brain_out)                                             \
    static ctrt_status name##_f16_run(const ctrt_call *call)                                                      \
    {                                                                                                             \
        static const struct cpu_plan how = { loop, count, price, { CPU_HALF, CPU_HALF, CPU_HALF }, half_out };   \
        return cpu_drive(call, &how, NULL);                                                                       \
    }                                                                                                             \
    static ctrt_status name##_bf16_run(const ctrt_call *call)                                                     \
    {                                                                                                             \
        static const struct cpu_plan how = { loop, count, price, { CPU_BRAIN, CPU_BRAIN, CPU_BRAIN }, brain_out }; \
        return cpu_drive(call, &how, NULL);                                                                       \
    }

/* A loop over one, two inputs: `expression` of x, or of x and y, of type T; the result is of type R. */
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

#define CPU_KERNEL(name, types, function)                                                                         \
    { .size = sizeof(ctrt_kernel), .op = name, .dtypes = (types), .flags = CTRT_KERNEL_STRIDED | CTRT_KERNEL_INPLACE, \
      .run = function }

#endif
