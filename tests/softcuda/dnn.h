/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/dnn.h: description of a convolution, passed from dnn.c to dnn_compute.c. */
#ifndef SOFTCUDA_DNN_H
#define SOFTCUDA_DNN_H

#include "library.h"

enum dnn_pass { DNN_FORWARD, DNN_INPUT, DNN_WEIGHT };

/* x[n,c,h,w], w[o,c/groups,kh,kw], y[n,o,oh,ow]; `pass` determines which one is written. */
struct dnn_job {
    enum dnn_pass pass;
    int type;                               /* cudnnDataType_t */
    bool last;                              /* channels-last */
    bool tf32, varies, late;                /* varies: the order of summation changes with each run */
    int x[4], w[4], y[4];
    int groups, stride[2], padding[2], dilation[2];
    address x_at, w_at, y_at, bias_at, workspace_at;
    size_t workspace_bytes;
    double alpha, beta;
};

/* Enqueues a copy of the job on the stream. */
result dnn_put(const struct dnn_job *job, void *stream);

#endif
