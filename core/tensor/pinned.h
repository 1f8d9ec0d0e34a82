/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/pinned.h: tensors in pinned host memory. */
#ifndef CORE_TENSOR_PINNED_H
#define CORE_TENSOR_PINNED_H

#include "tensor/tensor.h"

/* Creates a row-major CPU tensor in pinned host memory for copies to and from `device`, or in ordinary memory if the
 * backend has no pinned memory. *out is overwritten, not released. */
ctrt_status tensor_new_pinned(ctrt_tensor **out, const int64_t *shape, int ndim, ctrt_dtype dtype, ctrt_device *device);

#endif
