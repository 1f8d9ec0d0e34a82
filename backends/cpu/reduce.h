/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/reduce.h: from views to reducers, as drive.h for loops.
 *
 * A reducer folds elements into accumulators. The walker (reduce.c) orders the dimensions by their strides, cuts
 * the work into pieces that depend on shape and strides alone, and joins the pieces in a fixed order: the result is
 * the same with any number of threads. */
#ifndef CTRT_CPU_REDUCE_H
#define CTRT_CPU_REDUCE_H

#include "drive.h"

struct cpu_reducer {
    uint8_t in, out;            /* enum cpu_lie; a half is f32 to the reducer */
    uint8_t acc_bytes;          /* of one accumulator, at most CPU_ACC_BYTES */
    bool ordered;               /* positions matter (argmax): dimensions keep their order */
    bool needs_one;             /* undefined over no elements (amax) */
    void (*start)(void *acc, int64_t n);
    /* Folds n adjacent elements into one accumulator. `base`: position of the first among all that are reduced. */
    void (*run)(void *acc, const void *x, int64_t n, int64_t base);
    /* Folds x[i*stride + j] into accumulator j < n, for i < rows; position of row i: base + i. */
    void (*columns)(void *acc, const void *x, int64_t n, int64_t rows, int64_t stride, int64_t base);
    /* Folds accumulator j of `other`, whose elements come later, into accumulator j < n. */
    void (*merge)(void *acc, const void *other, int64_t n);
    /* out[j*stride] from accumulator j < n; `count` elements went into each. */
    void (*finish)(void *out, int64_t stride, const void *acc, int64_t n, int64_t count);
};

#define CPU_ACC_BYTES 16

#define cpu_reduce CPU_NAME(cpu_reduce_run)
ctrt_status cpu_reduce(const ctrt_call *call, const struct cpu_reducer *how, const char *op);

/* run() of a row: the short way for one result out of few adjacent elements. */
#define CPU_REDUCE(op, type, reducer)                                                                             \
    static ctrt_status op##_##type##_run(const ctrt_call *call)                                                   \
    {                                                                                                             \
        const ctrt_view *in = call->inputs[0], *out = call->outputs[0];                                           \
        if ((reducer).in < CPU_HALF && out->numel == 1 && in->flags & CTRT_VIEW_CONTIGUOUS && in->numel > 0       \
            && in->numel <= 4096) {                                                                               \
            char acc[CPU_ACC_BYTES] __attribute__((aligned(16)));                                                 \
            (reducer).start(acc, 1);                                                                              \
            (reducer).run(acc, in->data, in->numel, 0);                                                           \
            (reducer).finish(out->data, 0, acc, 1, in->numel);                                                    \
            return CTRT_OK;                                                                                       \
        }                                                                                                         \
        return cpu_reduce(call, &(reducer), #op);                                                                 \
    }

#endif
