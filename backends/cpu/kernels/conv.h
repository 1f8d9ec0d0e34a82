/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/conv.h: description of a convolution, passed by conv.c to the library that computes it. */
#ifndef CTRT_CPU_CONV_H
#define CTRT_CPU_CONV_H

#include "host/cpu.h"

/* Which tensor is computed: y, the gradient of x, or the gradient of the weight. */
enum cpu_conv_pass { CPU_CONV_FORWARD, CPU_CONV_INPUT_GRAD, CPU_CONV_WEIGHT_GRAD };

/* x[n,c,h,w], weight[o,c/groups,kh,kw], y[n,o,oh,ow]: all contiguous or all channels-last. `pass` determines which of
 * the three is the output. */
struct cpu_conv {
    const char *op;                     /* name for error messages */
    enum cpu_conv_pass pass;
    ctrt_dtype dtype;
    bool channels_last;
    void *x, *weight, *y;
    const void *bias;                   /* [o], or NULL; forward pass only */
    int64_t n, c, h, w, o, kh, kw, oh, ow;
    int64_t groups, stride[2], padding[2], dilation[2];
};

/* The built-in implementation: all dtypes and shapes. */
ctrt_status cpu_conv_builtin(const struct cpu_conv *conv);

#endif
