/* SPDX-License-Identifier: Apache-2.0 */
/* memory/source.h: the functions of a device's lowest memory source besides alloc and free. */
#ifndef CORE_MEMORY_SOURCE_H
#define CORE_MEMORY_SOURCE_H

#include "memory/pool.h"

/* Fills memory->source with the functions for fences, copies, host memory and pages; alloc and free are set already. */
void source_complete(struct device_memory *memory);
/* The policy's CTRT_MEMORY_* flags; 0 if its table is too short to have any. */
static inline uint32_t policy_flags(const ctrt_memory_policy *policy)
{
    const size_t end = offsetof(ctrt_memory_policy, flags) + sizeof policy->flags;
    return policy->size >= end ? policy->flags : 0;
}

#endif
