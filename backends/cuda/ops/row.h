/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/row.h: the host side of kernels that cache the rows of a matrix (row.cuh). */
#ifndef CUDA_ROW_H
#define CUDA_ROW_H

#include "host/cuda.h"
#include "kernels/row_args.h"

enum cuda_row_cache { ROW_WARP_VECTORS, ROW_WARP_NUMBERS, ROW_BLOCK, ROW_LONG };
extern const char *const cuda_row_variants[];   /* kernel suffix by cache: "w", "v", "b", "l" */

/* Chooses *cache and returns the launch shape for `rows` rows of `n` elements of `bytes` bytes, when the kernel caches
 * `kept` operands per row. `vectors`: all rows begin at multiples of 16 bytes. *row_pitch: elements of shared memory
 * per cached row; not set by the warp variants, which use registers. */
struct cuda_shape cuda_row_shape(const struct cuda_device *device, int64_t rows, int64_t n, size_t bytes, bool vectors,
                                 int kept, enum cuda_row_cache *cache, int64_t *row_pitch);

/* Returns true if all addresses and sizes in bytes whose bitwise OR is `together` are multiples of 16. */
static inline bool cuda_whole_vectors(uintptr_t together)
{
    return together % 16 == 0;
}

static inline unsigned cuda_grid(int64_t blocks)
{
    return (unsigned)(blocks < 1 ? 1 : blocks < INT32_MAX ? blocks : INT32_MAX);
}

#endif
