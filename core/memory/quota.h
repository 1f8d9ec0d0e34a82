/* SPDX-License-Identifier: Apache-2.0 */
/* memory/quota.h: how much a program may draw from a device: by ctrt_memory_set_limit, _set_fraction, or
 * CTRT_MEMORY_LIMIT. All that is drawn counts, cached or in use, pinned host memory too. */
#ifndef CORE_MEMORY_QUOTA_H
#define CORE_MEMORY_QUOTA_H

#include "memory/pool.h"

#define QUOTA_NONE UINT64_MAX

/* Asks the device for its size and reads CTRT_MEMORY_LIMIT. */
ctrt_status quota_init(struct device_memory *memory);

/* Before memory is drawn: CTRT_ERR_OUT_OF_MEMORY, with "X allowed" in the message, when the limit would be
 * passed. */
ctrt_status quota_take(struct device_memory *memory, size_t bytes);
/* Is all that is drawn within the limit, with the `bytes` that were pinned just now? */
ctrt_status quota_check(struct device_memory *memory, size_t bytes);
/* After it was given back, or could not be had. */
void quota_give(struct device_memory *memory, size_t bytes);

static inline bool quota_limited(const struct device_memory *memory)
{
    return atomic_load_explicit(&memory->limit, memory_order_relaxed) != QUOTA_NONE;
}
/* A limit refused memory to the calling thread since somebody set this to false. */
extern __thread bool quota_refused;

/* The limit for a device of that name, type and size in the text of CTRT_MEMORY_LIMIT; pure. */
ctrt_status quota_parse(uint64_t *limit, const char *text, const char *name, const char *type, uint64_t total);

#endif
