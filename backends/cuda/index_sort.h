/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/index_sort.h: adding by index by way of sorting, for large results. */
#ifndef CUDA_INDEX_SORT_H
#define CUDA_INDEX_SORT_H

#include "cuda.h"

/* Bytes of workspace for adding to dx [outer, size, inner] by `count` indices a column; 0: it cannot be done, there are too many. rows: index_add, else
 * scatter_add. */
size_t cuda_index_sort_workspace(const ctrt_view *dx, int64_t count, bool rows);

/* Runs the call, with that much workspace. dtype: of the sums' kernels; skip: an index that adds nothing, -1: none. */
ctrt_status cuda_index_sort(const ctrt_call *call, ctrt_dtype dtype, int64_t count, bool rows, int64_t skip);

#endif
