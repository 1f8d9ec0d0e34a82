/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/pinned.h: tensors in pinned host memory. */
#ifndef CORE_TENSOR_PINNED_H
#define CORE_TENSOR_PINNED_H

#include "tensor/tensor.h"

/* Creates a row-major CPU tensor in pinned host memory for copies to and from `device`, or in ordinary memory if the
 * backend has no pinned memory. *out is overwritten, not released. */
ctrt_status tensor_new_pinned(ctrt_tensor **out, const int64_t *shape, int ndim, ctrt_dtype dtype, ctrt_device *device);

/* Pins memory that exists already, for the devices of the backend of `device`. Both are multiples of the page size.
 * CTRT_ERR_NOT_SUPPORTED if the backend cannot. */
ctrt_status pinned_register(ctrt_device *device, void *address, size_t bytes);
/* No work may use the memory any more. */
void pinned_unregister(ctrt_device *device, void *address, size_t bytes);
/* Creates a row-major CPU tensor over registered memory. `release` is called with its storage, whose uses may not be
 * done (hazard_timepoints); user0 and user1 are in storage->user. *out is overwritten. */
ctrt_status tensor_new_registered(ctrt_tensor **out, void *data, const int64_t *shape, int ndim, ctrt_dtype dtype,
                                  void (*release)(struct storage *), void *user0, void *user1);

#endif
