/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/conv.h: a convolution, or one of its gradients, as conv.c hands it to whoever computes it. */
#ifndef CUDA_CONV_H
#define CUDA_CONV_H

#include "cuda.h"

enum cuda_conv_pass { CUDA_CONV_FORWARD, CUDA_CONV_INPUT_GRAD, CUDA_CONV_WEIGHT_GRAD };

/* x[n,c,h,w], weight[o,c/groups,kh,kw], y[n,o,oh,ow]; the pass says which of them is written. All contiguous, or all channels-last. */
struct cuda_conv {
    enum cuda_conv_pass pass;
    ctrt_dtype dtype;
    bool channels_last;
    void *x, *weight, *y;
    const void *bias;                       /* forward; NULL: none */
    int64_t n, c, h, w, o, kh, kw, oh, ow, groups;
    int64_t stride[2], padding[2], dilation[2];
};

/* conv_builtin.c: by kernels of our own. */
ctrt_status cuda_conv_builtin(const ctrt_call *call, const struct cuda_conv *conv);
size_t cuda_conv_builtin_workspace(const struct cuda_device *device, const struct cuda_conv *conv);

/* What kernels are told of it. */
struct conv_args;
void cuda_conv_args(struct conv_args *args, const struct cuda_conv *conv);

/* conv_product.c: as a matrix product by cuBLASLt, over patches that are written out. False: not this one; nothing has been put on the queue. */
bool cuda_conv_product(const ctrt_call *call, const struct cuda_conv *conv, ctrt_status *status);
/* What it asks for, of at most `room` bytes and what the product's algorithm takes. False: it will not do this one. */
bool cuda_conv_product_workspace(struct cuda_device *device, const struct cuda_conv *conv, size_t room, size_t *bytes);

/* Most bytes of workspace that an algorithm of a convolution may use: CTRT_CUDA_WORKSPACE; where that is not set, 1 GiB or an eighth of the device's
 * memory. Does not depend on how much memory is free, so that the same algorithm is chosen in every run. */
size_t cuda_conv_room(const struct cuda_device *device);

/* cudnn.c: by the library. False: it cannot, or there is none; nothing has been put on the queue then. */
bool cuda_dnn_conv(const ctrt_call *call, const struct cuda_conv *conv, ctrt_status *status);
/* The workspace of its first algorithm that makes do with `room` bytes. False: it will not do this one. */
bool cuda_dnn_workspace(struct cuda_device *device, const struct cuda_conv *conv, size_t room, size_t *bytes);
void cuda_dnn_close(struct cuda_device *device);

#endif
