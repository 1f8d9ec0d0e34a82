/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/pinned.h: tensors in pinned host memory. */
#ifndef CORE_TENSOR_PINNED_H
#define CORE_TENSOR_PINNED_H

#include "tensor/tensor.h"

/* A row-major CPU tensor in memory that `device` copies by itself; in ordinary memory where its backend has no such. *out is
 * overwritten. */
ctrt_status tensor_new_pinned(ctrt_tensor **out, const int64_t *shape, int ndim, ctrt_dtype dtype, ctrt_device *device);

#endif
