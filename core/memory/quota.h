/* SPDX-License-Identifier: Apache-2.0 */
/* memory/quota.h: limits on the memory that the process may allocate from a device: ctrt_memory_set_limit,
 * _set_fraction and CTRT_MEMORY_LIMIT. The limit counts memory in use and cached, and pinned host memory. */
#ifndef CORE_MEMORY_QUOTA_H
#define CORE_MEMORY_QUOTA_H

#include "memory/pool.h"

#define QUOTA_NONE UINT64_MAX

/* Reads the device's size and CTRT_MEMORY_LIMIT. */
ctrt_status quota_init(struct device_memory *memory);

/* Counts `bytes` before they are allocated from the device. CTRT_ERR_OUT_OF_MEMORY, with "X allowed" in the message, if
 * the limit would be exceeded; in that case nothing is counted. */
ctrt_status quota_take(struct device_memory *memory, size_t bytes);
/* Checks whether all memory, including the `bytes` that were added to the pinned memory just now, is within the
 * limit. */
ctrt_status quota_check(struct device_memory *memory, size_t bytes);
/* Counts `bytes` that exist already, also beyond the limit. */
void quota_count(struct device_memory *memory, size_t bytes);
/* Reverts quota_take or quota_count, after the memory was freed or the allocation failed. */
void quota_give(struct device_memory *memory, size_t bytes);

static inline bool quota_limited(const struct device_memory *memory)
{
    return atomic_load_explicit(&memory->limit, memory_order_relaxed) != QUOTA_NONE;
}

/* Determines the limit for a device of that name, type and total bytes (0: unknown) from the text of CTRT_MEMORY_LIMIT.
 * QUOTA_NONE if no entry matches. Has no side effects. */
ctrt_status quota_parse(uint64_t *limit, const char *text, const char *name, const char *type, uint64_t total);

#endif
