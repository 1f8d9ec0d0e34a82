/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/conv.h: a convolution as conv.c hands it to whoever computes it. */
#ifndef CTRT_CPU_CONV_H
#define CTRT_CPU_CONV_H

#include "cpu.h"

/* Which of the three products is wanted. */
enum cpu_conv_pass { CPU_CONV_FORWARD, CPU_CONV_INPUT_GRAD, CPU_CONV_WEIGHT_GRAD };

/* x[n,c,h,w], weight[o,c/groups,kh,kw], y[n,o,oh,ow]; contiguous, or all channels-last. The pass says which of
 * the three is written. */
struct cpu_conv {
    const char *op;                     /* for messages */
    enum cpu_conv_pass pass;
    ctrt_dtype dtype;
    bool channels_last;
    void *x, *weight, *y;
    const void *bias;                   /* [o] or NULL; forward only */
    int64_t n, c, h, w, o, kh, kw, oh, ow;
    int64_t groups, stride[2], padding[2], dilation[2];
};

/* The built-in path: every dtype and shape. */
ctrt_status cpu_conv_builtin(const struct cpu_conv *conv);

#endif
