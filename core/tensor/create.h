/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/create.h: what all factories do first. */
#ifndef CORE_TENSOR_CREATE_H
#define CORE_TENSOR_CREATE_H

#include "tensor/shape.h"

/* A new tensor from arguments of the user's: checks the shape, resolves CTRT_DTYPE_DEFAULT and a NULL device. `who` begins every message.
 * *out is overwritten: for fresh local variables. */
ctrt_status create_empty(ctrt_tensor **out, const char *who, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);

/* Checks strides from outside (NULL: row major) for a checked shape: refuses negative ones and overflow. `out` gets the
 * strides of the tensor; those of dimensions of at most one element, and all of a tensor without elements, are row
 * major, because any number may be given there. *elements: of storage that they reach over, 0 without elements. */
ctrt_status strides_import(int64_t *out, int64_t *elements, const char *who, const int64_t *shape,
                           const int64_t *strides, int ndim, ctrt_dtype dtype);

#endif
