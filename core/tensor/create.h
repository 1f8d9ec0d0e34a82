/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/create.h: argument checks shared by all factories. */
#ifndef CORE_TENSOR_CREATE_H
#define CORE_TENSOR_CREATE_H

#include "tensor/shape.h"

/* Creates a tensor from a program's arguments: checks the shape, resolves CTRT_DTYPE_DEFAULT and a NULL device. `who`
 * begins every message. *out is overwritten, not released: for uninitialised local variables. */
ctrt_status create_empty(ctrt_tensor **out, const char *who, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);

/* Checks a program's strides (NULL: row major) for a checked shape; refuses negative strides and overflow. `out`
 * receives the tensor's strides. Strides of dimensions of at most one element, and all strides of a tensor without
 * elements, are replaced by row-major ones, because the program may pass any number there. Sets *elements to the number
 * of storage elements that the tensor spans; 0 for a tensor without elements. */
ctrt_status strides_import(int64_t *out, int64_t *elements, const char *who, const int64_t *shape,
                           const int64_t *strides, int ndim, ctrt_dtype dtype);

#endif
