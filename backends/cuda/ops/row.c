/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/row.c: selects where a kernel caches a row: registers, shared memory or not at all. */
#include "row.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define KEPT_BYTES (108u << 10)             /* shared memory per block that lets two blocks share a multiprocessor */

const char *const cuda_row_variants[] = { "w", "v", "b", "l" };

struct cuda_shape cuda_row_shape(const struct cuda_device *device, int64_t rows, int64_t n, size_t bytes, bool vectors,
                                 int kept, enum cuda_row_cache *cache, int64_t *row_pitch)
{
    const size_t work = bytes == 8 ? 8 : 4;
    if (n <= ROW_REGISTERS) {
        *cache = vectors ? ROW_WARP_VECTORS : ROW_WARP_NUMBERS;
        return (struct cuda_shape){ .grid = { cuda_grid((rows + ROW_THREADS / 32 - 1) / (ROW_THREADS / 32)) },
                                    .block = ROW_THREADS };
    }
    struct cuda_shape shape = { .grid = { cuda_grid(rows) },
                                .block = n >= 4096 ? ROW_BLOCK_THREADS : ROW_BLOCK_THREADS / 2 };
    const int64_t per_round = (int64_t)shape.block * (int64_t)(16 / bytes);
    *row_pitch = (n + per_round - 1) / per_round * per_round;
    const uint64_t wanted = (uint64_t)*row_pitch * work * (unsigned)kept;
    const uint64_t most = MIN((uint64_t)device->shared_optin - CUDA_SHARED_STATIC, KEPT_BYTES);
    *cache = vectors && wanted <= most ? ROW_BLOCK : ROW_LONG;
    if (*cache == ROW_BLOCK)
        shape.shared = (unsigned)wanted;
    return shape;
}
