/* SPDX-License-Identifier: Apache-2.0 */
/* ops/attributes.h: what an op was told besides its tensors, as the graph keeps it for the derivative rules.
 *
 * These are the user's words (dims and keepdim), where the structs of plugin.h are what kernels get after the front has brought
 * operands into canonical form. */
#ifndef CORE_OPS_ATTRIBUTES_H
#define CORE_OPS_ATTRIBUTES_H

#include "ctrt/plugin.h"

/* One slot fits all; the node copies it whole. */
union op_attributes {
    struct { ctrt_scalar value; bool present, left; } scalar;   /* elementwise: a number in place of operand 1 (or, left, of operand 0) */
    struct { ctrt_scalar lo, hi; bool has_lo, has_hi; } clamp;
    struct { bool tanh; } gelu;
    struct {
        uint32_t dims;                                          /* bit set over the input's dimensions */
        bool keepdim, no_dims;                                  /* no_dims: var over all, because none were given */
        int correction;                                         /* var */
    } reduce;
    struct { int dim; } dim;                                    /* softmax log_softmax cat index_select gather (index_*: dim of the input) */
    struct { int64_t size, padding_idx; int dim; } index;       /* index_select: padding_idx or -1; index_add, scatter_add: size along dim */
    struct { int64_t diagonal; } triangle;
    ctrt_conv_attributes conv;
    struct { ctrt_conv_attributes conv; int64_t shape[4]; } conv_grad;  /* of the result */
    ctrt_pool_attributes pool;
    struct { double epsilon, momentum; bool training; int normalized; } norm;   /* layer_norm: how many last dimensions */
    ctrt_cross_entropy_attributes cross_entropy;
    struct { double scale; bool causal; } attention;
    struct { double p; } dropout;
    struct { int8_t dims[CTRT_MAX_DIMS]; } permute;             /* out dim i was in dim dims[i] */
    struct { int dim; int64_t start, end, step; } slice;        /* normalised; select: start */
    struct { int64_t shape[CTRT_MAX_DIMS], strides[CTRT_MAX_DIMS], offset; int ndim; } strided;
};

#endif
