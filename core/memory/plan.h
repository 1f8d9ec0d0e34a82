/* SPDX-License-Identifier: Apache-2.0 */
/* memory/plan.h: a device's memory while a step is only planned.
 *
 * For the time of a plan the device has another struct device_memory. Its policies are copies of the device's own, in the state that
 * these are in, over a source that hands out numbers instead of memory; its account begins at the device's figures. So the very code that
 * serves the real step decides, and nothing else has to know. Blocks of a plan have addresses of their own, where host memory is read as
 * zeros and device memory does not exist. */
#ifndef CORE_MEMORY_PLAN_H
#define CORE_MEMORY_PLAN_H

#include "memory/pool.h"

struct plan;

/* Is work for `device` only planned? */
static inline bool plan_running(const ctrt_device *device)
{
    return unlikely(device->memory->plan != NULL);
}

/* The lock under which plans begin and end; may be taken again by who has it. */
void plan_enter(void);
void plan_leave(void);
/* Gives the device the memory of a plan, and takes it away again; between the two no other thread uses the device. Begin: CTRT_ERR_STATE
 * when there is a plan already. All with the lock. */
ctrt_status plan_memory_begin(struct plan **out, ctrt_device *device);
void plan_memory_end(ctrt_memory_prediction *out, struct plan *plan);
/* In the child of a fork, for a plan of a thread that is not there: the device gets its own memory back, and the copied policies, in which
 * that thread may have left caches, stay as they are. */
void plan_memory_abandon(struct plan *plan);
/* At most so much may be drawn, all in all. */
void plan_memory_limit(struct plan *plan, uint64_t bytes);
bool plan_memory_fits(struct plan *plan);
/* `op` (static) works with the memory at `address`, which may be what the plan wants a name for. */
void plan_memory_name(struct plan *plan, const void *address, const char *op);
void plan_memory_destroy(struct plan *plan);

/* For pool.c. */
void plan_trim(struct plan *plan);
ctrt_status plan_use(struct plan *plan, const ctrt_block *block, void *queue, void **address);
void plan_unuse(struct plan *plan, const ctrt_block *block, void *queue);

/* Was the block made by a plan that is over? Its memory never was. */
bool plan_left(const struct device_memory *memory, const ctrt_block *block);
/* How many such blocks there are. */
size_t plan_left_blocks(const struct device_memory *memory);

#endif
