/* SPDX-License-Identifier: Apache-2.0 */
/* product.h: products of matrices, which conv.c also launches. */
#ifndef PRODUCT_H
#define PRODUCT_H

#include "opencl.h"

/* Fills in the tiles, and launches the product `batches` times. bias: NULL, or as args->bias_* say. */
ctrt_status product_launch(const ctrt_call *call, struct product_args *args, const void *a, const void *b,
                           const void *bias, void *c, int64_t batches);

/* An axis whose index times `stride` is the offset. */
struct axis axis_plain(int64_t stride);
/* An axis whose index is (i, j, k), of which j and k have these sizes. */
struct axis axis_of(int64_t size1, int64_t size2, int64_t stride0, int64_t stride1, int64_t stride2);

#endif
