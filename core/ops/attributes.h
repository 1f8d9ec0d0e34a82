/* SPDX-License-Identifier: Apache-2.0 */
/* ops/attributes.h: the arguments of an op besides its tensors, as the graph stores them for the derivative rules.
 *
 * They have the form of the public functions (dims and keepdim). The attribute structs of plugin.h are the form that
 * kernels get, after the op function has brought the operands into canonical form. */
#ifndef CORE_OPS_ATTRIBUTES_H
#define CORE_OPS_ATTRIBUTES_H

#include "ctrt/plugin.h"

/* A node stores a copy of the whole union. */
union op_attributes {
    /* elementwise: a number instead of operand 1 or, with `left`, instead of operand 0 */
    struct { ctrt_scalar value; bool present, left; } scalar;
    ctrt_range_attributes clamp;
    struct { bool tanh; } gelu;
    struct {
        /* set of the input's dimensions; bit 0 is dimension 0 */
        uint32_t dims;
        bool keepdim, no_dims;                                  /* no_dims: var over all, because none were given */
        int correction;                                         /* var */
    } reduce;
    struct { int dim; } dim;                                    /* softmax, log_softmax, cat */
    /* index_select, index_add, gather, scatter_add. size: of the indexed tensor along `dim`; padding_idx: -1 for
     * none */
    struct { int64_t size, padding_idx; int dim; } index;
    struct { int64_t diagonal; } triangle;
    ctrt_conv_attributes conv;
    struct { ctrt_conv_attributes conv; int64_t shape[4]; } conv_grad;  /* of the result */
    ctrt_pool_attributes pool;
    /* normalized: layer_norm's number of trailing dimensions */
    struct { double epsilon, momentum; bool training; int normalized; } norm;
    ctrt_cross_entropy_attributes cross_entropy;
    struct { double scale; bool causal; } attention;
    struct { double p; } dropout;
    struct { int8_t dims[CTRT_MAX_DIMS]; } permute;             /* dimension i of the result is the input's dims[i] */
    struct { int dim; int64_t start, end, step; } slice;        /* normalised; select uses `start` as the index */
    struct { int64_t shape[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS], offset; int ndim; } strided;
};

#endif
