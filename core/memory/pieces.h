/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pieces.h: a policy's segments and blocks, as a list. */
#ifndef CORE_MEMORY_PIECES_H
#define CORE_MEMORY_PIECES_H

#include "memory/pool.h"

/* Copies of what the lowest policy's `walk` reports, each segment before its blocks, segments in order of addresses. Of a
 * policy without `walk`: NULL and 0. The caller frees. False without memory. */
bool pieces_list(ctrt_memory_piece **out, size_t *count, struct device_memory *memory);
/* The largest free block; false when the policy does not say. */
bool pieces_largest_free(uint64_t *bytes, struct device_memory *memory);

#endif
