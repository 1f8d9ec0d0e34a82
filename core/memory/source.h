/* SPDX-License-Identifier: Apache-2.0 */
/* memory/source.h: what a device's lowest policy can ask for besides memory itself. */
#ifndef CORE_MEMORY_SOURCE_H
#define CORE_MEMORY_SOURCE_H

#include "memory/pool.h"

/* Fills the slots of memory->source for fences, copies, host memory and pages; alloc and free are there already. */
void source_complete(struct device_memory *memory);
/* CTRT_MEMORY_* of a policy's table, of whatever size that is. */
static inline uint32_t policy_flags(const ctrt_memory_policy *policy)
{
    const size_t end = offsetof(ctrt_memory_policy, flags) + sizeof policy->flags;
    return policy->size >= end ? policy->flags : 0;
}

#endif
