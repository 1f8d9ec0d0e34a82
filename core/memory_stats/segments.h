/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/segments.h: lists the segments and blocks of a policy. */
#ifndef CORE_MEMORY_STATS_SEGMENTS_H
#define CORE_MEMORY_STATS_SEGMENTS_H

#include "memory/pool.h"

/* Copies what the lowest policy's `walk` reports to a new array that the caller frees: each segment before its blocks,
 * segments sorted by address. Policy without `walk`: NULL and 0. Returns false if memory runs out. */
bool segments_list(ctrt_memory_piece **out, size_t *count, struct device_memory *memory);
/* Stores the size of the largest free block. Returns false if the policy does not report it. */
bool segments_largest_free(uint64_t *bytes, struct device_memory *memory);

#endif
