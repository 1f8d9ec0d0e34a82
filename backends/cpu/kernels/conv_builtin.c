/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/conv_builtin.c: convolution without a library: copies patches of the input to a matrix (im2col),
 * a block of output rows at a time, and multiplies it by the weights (Chellapilla et al. 2006). f16 and bf16 are
 * converted to f32. */
#include "conv.h"

#include <stdlib.h>
#include <string.h>

#include "gemm.h"
#include "half.h"
#include "host/scratch.h"

/* Elements of the patch matrix that are processed at a time; they stay in the L2 cache. */
#define BLOCK 65536

/* Stores in [*first, *last) the output columns whose input column at kernel column kx lies inside the input. */
static void inside(const struct cpu_conv *v, int64_t kx, int64_t *first, int64_t *last)
{
    const int64_t shift = kx * v->dilation[1] - v->padding[1], s = v->stride[1];
    *first = shift >= 0 ? 0 : cpu_divide_up(-shift, s);
    *last = v->w - shift <= 0 ? 0 : cpu_divide_up(v->w - shift, s);
    *last = *last > v->ow ? v->ow : *last;
    *first = *first > *last ? *last : *first;
}

/* Returns the number of output rows per block. */
static int64_t block_rows(const struct cpu_conv *v, int64_t per_pixel)
{
    const int64_t rows = BLOCK / (per_pixel * v->ow);
    return rows < 1 ? 1 : rows > v->oh ? v->oh : rows;
}

#define BODY "conv_body.h"
#include "each_float.h"

/* Converts the operands to f32, computes, and converts the result back. */
static ctrt_status conv_half(const struct cpu_conv *v)
{
    const struct half_loops *half = cpu_half(v->dtype);
    const int64_t counts[4] = { v->n * v->c * v->h * v->w, v->o * (v->c / v->groups) * v->kh * v->kw,
                                v->n * v->o * v->oh * v->ow, v->bias ? v->o : 0 };
    const void *from[4] = { v->x, v->weight, v->y, v->bias };
    const int out = v->pass == CPU_CONV_FORWARD ? 2 : v->pass == CPU_CONV_INPUT_GRAD ? 0 : 1;
    float *wide[4] = { NULL };
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < 4 && !status; i++) {
        wide[i] = malloc((size_t)(counts[i] + 1) * sizeof(float));
        if (!wide[i])
            status = cpu_no_scratch(v->op, (size_t)counts[i] * sizeof(float));
        else if (i != out)
            half->widen(wide[i], from[i], counts[i]);
    }
    if (!status) {
        struct cpu_conv w = *v;
        w.dtype = CTRT_F32, w.x = wide[0], w.weight = wide[1], w.y = wide[2], w.bias = v->bias ? wide[3] : NULL;
        status = cpu_conv_builtin(&w);
    }
    if (!status)
        half->narrow((void *)(uintptr_t)from[out], wide[out], counts[out]);
    for (int i = 0; i < 4; i++)
        free(wide[i]);
    return status;
}

ctrt_status cpu_conv_builtin(const struct cpu_conv *v)
{
    if (v->dtype == CTRT_F32)
        return conv_f32(v);
    if (v->dtype == CTRT_F64)
        return conv_f64(v);
    return conv_half(v);
}
