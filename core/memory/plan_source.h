/* SPDX-License-Identifier: Apache-2.0 */
/* memory/plan_source.h: where the policies of a plan draw from: numbers, as many as the device has bytes. */
#ifndef CORE_MEMORY_PLAN_SOURCE_H
#define CORE_MEMORY_PLAN_SOURCE_H

#include "memory/pool.h"

/* Makes memory->source such a source, with as much in use as `real` has drawn and as much free as the device says. */
void plan_source_begin(struct device_memory *memory, struct device_memory *real);
void plan_source_limit(struct device_memory *memory, uint64_t bytes);
/* From now on there is no limit. False when there was none before. */
bool plan_source_lift(struct device_memory *memory);
/* So much goes back without a policy's word. */
void plan_source_return(struct device_memory *memory, size_t bytes);

#endif
