/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/conv.h: a convolution or one of its gradients, as conv.c passes it to an implementation. */
#ifndef CUDA_CONV_H
#define CUDA_CONV_H

#include "host/cuda.h"

enum cuda_conv_pass { CUDA_CONV_FORWARD, CUDA_CONV_INPUT_GRAD, CUDA_CONV_WEIGHT_GRAD };

/* x[n,c,h,w], weight[o,c/groups,kh,kw], y[n,o,oh,ow]; the pass determines which of them is written. Either all are
 * contiguous or all are channels-last. */
struct cuda_conv {
    enum cuda_conv_pass pass;
    ctrt_dtype dtype;
    bool channels_last;
    void *x, *weight, *y;
    const void *bias;                       /* forward only; NULL: none */
    int64_t n, c, h, w, o, kh, kw, oh, ow, groups;
    int64_t stride[2], padding[2], dilation[2];
};

/* conv_builtin.c: computes the convolution by this backend's own kernels. The second function returns the bytes of
 * workspace that the first requires. */
ctrt_status cuda_conv_builtin(const ctrt_call *call, const struct cuda_conv *conv);
size_t cuda_conv_builtin_workspace(const struct cuda_device *device, const struct cuda_conv *conv);

/* Fills the arguments of the kernels of conv.cu from `conv`. */
struct conv_args;
void cuda_conv_args(struct conv_args *args, const struct cuda_conv *conv);

/* conv_product.c: computes the convolution as matrix products by cuBLASLt over patches written to the workspace
 * (im2col). Returns false if it does not support this convolution; the caller then uses another implementation. */
bool cuda_conv_product(const ctrt_call *call, const struct cuda_conv *conv, ctrt_status *status);
/* *bytes: the workspace that cuda_conv_product() uses, at most `limit` bytes for patches, plus the workspace of
 * cuBLASLt. Returns false if it does not support this convolution. */
bool cuda_conv_product_workspace(struct cuda_device *device, const struct cuda_conv *conv, size_t limit, size_t *bytes);

/* Returns the maximum workspace of a convolution algorithm in bytes: CTRT_CUDA_WORKSPACE or, if that is not set, the
 * smaller of 1 GiB and an eighth of the device's memory. The result does not depend on free memory, so that every run
 * chooses the same algorithm. */
size_t cuda_conv_workspace_limit(const struct cuda_device *device);

/* cudnn.c: computes the convolution by cuDNN. Returns false if cuDNN is missing or does not support this convolution;
 * the caller then uses another implementation. */
bool cuda_dnn_conv(const ctrt_call *call, const struct cuda_conv *conv, ctrt_status *status);
/* *bytes: the workspace of the first algorithm that needs at most `limit` bytes (while algorithms are still to be
 * timed, the largest of all such algorithms). Returns false if cuDNN has no such algorithm. */
bool cuda_dnn_workspace(struct cuda_device *device, const struct cuda_conv *conv, size_t limit, size_t *bytes);
void cuda_dnn_close(struct cuda_device *device);

#endif
