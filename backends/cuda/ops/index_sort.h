/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/index_sort.h: index_add and scatter_add by sorting the indices, for large results. */
#ifndef CUDA_INDEX_SORT_H
#define CUDA_INDEX_SORT_H

#include "host/cuda.h"

/* Returns the bytes of workspace for adding to dx [outer, size, inner] with `count` indices per column, or 0 if `count`
 * is 0 or the sizes are not supported. `rows`: index_add, else scatter_add. */
size_t cuda_index_sort_workspace(const ctrt_view *dx, int64_t count, bool rows);

/* Runs the call, whose workspace must have that size. `dtype` selects the kernels of the sums. Elements with index
 * `skip` are ignored; -1: none. */
ctrt_status cuda_index_sort(const ctrt_call *call, ctrt_dtype dtype, int64_t count, bool rows, int64_t skip);

#endif
