/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/libs/cudnn_api.h: the part of cuDNN 9 that this backend uses, declared here so that it builds without
 * cuDNN.
 *
 * Values and layouts are those of NVIDIA's cuDNN API reference. */
#ifndef CUDA_CUDNN_API_H
#define CUDA_CUDNN_API_H

#include <stddef.h>

typedef int dnn_status;
typedef struct dnn_handle *dnn_handle;
typedef struct dnn_tensor *dnn_tensor;
typedef struct dnn_filter *dnn_filter;
typedef struct dnn_conv *dnn_conv;
typedef struct dnn_activation *dnn_activation;

typedef struct {                                /* cudnnConvolutionFwdAlgoPerf_t, and those of the gradients */
    int algorithm;
    dnn_status status;
    float time;
    size_t workspace;
    int deterministic, math;
    int reserved[3];
} dnn_choice;

/* cudnnStatus_t: one category per thousand. */
enum { DNN_OK = 0, DNN_BAD_PARAM = 2000, DNN_NOT_SUPPORTED = 3000, DNN_INTERNAL_ERROR = 4000,
       DNN_EXECUTION_FAILED = 5000 };
/* CUDNN_STATUS_INTERNAL_ERROR_*_ALLOCATION_FAILED */
enum { DNN_NO_HOST_MEMORY = 4003, DNN_NO_DEVICE_MEMORY = 4004 };
enum { DNN_F32 = 0, DNN_F64 = 1, DNN_F16 = 2, DNN_BF16 = 9 };                       /* cudnnDataType_t */
enum { DNN_NCHW = 0, DNN_NHWC = 1 };
enum { DNN_CROSS_CORRELATION = 1 };
enum { DNN_MATH_DEFAULT = 0, DNN_MATH_TENSOR = 1, DNN_MATH_PLAIN = 3 };     /* default: tf32 for f32; plain: never */
/* IMPLICIT_PRECOMP_GEMM: the only algorithm that adds a bias */
enum { DNN_FORWARD_PRECOMPUTED = 1 };
enum { DNN_IDENTITY = 5 };                                                          /* cudnnActivationMode_t */

/* DNN(name, symbol, result, arguments): the entry points. */
#define DNN_ENTRIES(DNN)                                                                                            \
    DNN(version, "cudnnGetVersion", size_t, (void))                                                                 \
    DNN(error_string, "cudnnGetErrorString", const char *, (dnn_status status))                                     \
    DNN(create, "cudnnCreate", dnn_status, (dnn_handle *handle))                                                    \
    DNN(destroy, "cudnnDestroy", dnn_status, (dnn_handle handle))                                                   \
    DNN(set_stream, "cudnnSetStream", dnn_status, (dnn_handle handle, void *stream))                                \
    DNN(tensor_create, "cudnnCreateTensorDescriptor", dnn_status, (dnn_tensor *tensor))                             \
    DNN(tensor_destroy, "cudnnDestroyTensorDescriptor", dnn_status, (dnn_tensor tensor))                            \
    DNN(tensor_set, "cudnnSetTensor4dDescriptor", dnn_status,                                                       \
        (dnn_tensor tensor, int format, int type, int n, int c, int h, int w))                                      \
    DNN(filter_create, "cudnnCreateFilterDescriptor", dnn_status, (dnn_filter *filter))                             \
    DNN(filter_destroy, "cudnnDestroyFilterDescriptor", dnn_status, (dnn_filter filter))                            \
    DNN(filter_set, "cudnnSetFilter4dDescriptor", dnn_status,                                                       \
        (dnn_filter filter, int type, int format, int o, int c, int h, int w))                                      \
    DNN(conv_create, "cudnnCreateConvolutionDescriptor", dnn_status, (dnn_conv *conv))                              \
    DNN(conv_destroy, "cudnnDestroyConvolutionDescriptor", dnn_status, (dnn_conv conv))                             \
    DNN(conv_set, "cudnnSetConvolution2dDescriptor", dnn_status,                                                    \
        (dnn_conv conv, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h, int dilation_w, int mode, \
         int compute_type))                                                                                         \
    DNN(conv_groups, "cudnnSetConvolutionGroupCount", dnn_status, (dnn_conv conv, int groups))                      \
    DNN(conv_math, "cudnnSetConvolutionMathType", dnn_status, (dnn_conv conv, int math))                            \
    DNN(activation_create, "cudnnCreateActivationDescriptor", dnn_status, (dnn_activation *activation))             \
    DNN(activation_destroy, "cudnnDestroyActivationDescriptor", dnn_status, (dnn_activation activation))            \
    DNN(activation_set, "cudnnSetActivationDescriptor", dnn_status,                                                 \
        (dnn_activation activation, int mode, int nan_propagation, double limit))                                   \
    DNN(forward_choose, "cudnnGetConvolutionForwardAlgorithm_v7", dnn_status,                                       \
        (dnn_handle handle, dnn_tensor x, dnn_filter w, dnn_conv conv, dnn_tensor y, int wanted, int *found,        \
         dnn_choice *choices))                                                                                      \
    DNN(input_choose, "cudnnGetConvolutionBackwardDataAlgorithm_v7", dnn_status,                                    \
        (dnn_handle handle, dnn_filter w, dnn_tensor dy, dnn_conv conv, dnn_tensor dx, int wanted, int *found,      \
         dnn_choice *choices))                                                                                      \
    DNN(weight_choose, "cudnnGetConvolutionBackwardFilterAlgorithm_v7", dnn_status,                                 \
        (dnn_handle handle, dnn_tensor x, dnn_tensor dy, dnn_conv conv, dnn_filter dw, int wanted, int *found,      \
         dnn_choice *choices))                                                                                      \
    DNN(forward, "cudnnConvolutionForward", dnn_status,                                                             \
        (dnn_handle handle, const void *alpha, dnn_tensor x_is, const void *x, dnn_filter w_is, const void *w,      \
         dnn_conv conv, int algorithm, void *workspace, size_t bytes, const void *beta, dnn_tensor y_is, void *y))  \
    DNN(forward_bias, "cudnnConvolutionBiasActivationForward", dnn_status,                                          \
        (dnn_handle handle, const void *alpha, dnn_tensor x_is, const void *x, dnn_filter w_is, const void *w,      \
         dnn_conv conv, int algorithm, void *workspace, size_t bytes, const void *beta, dnn_tensor z_is,            \
         const void *z, dnn_tensor bias_is, const void *bias, dnn_activation activation, dnn_tensor y_is, void *y)) \
    DNN(input, "cudnnConvolutionBackwardData", dnn_status,                                                          \
        (dnn_handle handle, const void *alpha, dnn_filter w_is, const void *w, dnn_tensor dy_is, const void *dy,    \
         dnn_conv conv, int algorithm, void *workspace, size_t bytes, const void *beta, dnn_tensor dx_is,           \
         void *dx))                                                                                                 \
    DNN(weight, "cudnnConvolutionBackwardFilter", dnn_status,                                                       \
        (dnn_handle handle, const void *alpha, dnn_tensor x_is, const void *x, dnn_tensor dy_is, const void *dy,    \
         dnn_conv conv, int algorithm, void *workspace, size_t bytes, const void *beta, dnn_filter dw_is,           \
         void *dw))

#endif
