/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pool.h: a device's memory: its policy, and what is counted of it.
 *
 * The policy is a component of kind `memory` ("caching", "direct"), found like every plugin. Counting is the core's, the same for
 * all policies. */
#ifndef CORE_MEMORY_POOL_H
#define CORE_MEMORY_POOL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ctrt/memory.h"
#include "ctrt/plugin.h"
#include "device/device.h"

struct device_memory {
    const ctrt_memory_policy *policy;
    void *state;                            /* the policy's instance */
    char policy_name[64];
    /* Counters of one thread at a time are plain; once a second thread allocates on the device they become shared (atomic). See
     * account.h. */
    _Atomic(void *) owner;                  /* address of the owning thread's thread_state; SHARED_OWNER when shared */
    _Atomic uint64_t allocated, peak, allocations, frees;
    _Atomic uint64_t device_allocations, device_frees;      /* raw calls, counted in the source */
    ctrt_memory_source source;
    ctrt_device *device;
};

/* Creates the policy for a device that is being opened: CTRT_MEMORY, else the backend's default, else direct. */
ctrt_status pool_create(struct device_memory **out, ctrt_device *device);
void pool_destroy(struct device_memory *memory);

/* Allocates from the policy and counts. bytes 0 gives address NULL and counts nothing. An error says how much was asked, what is allocated and
 * reserved on which device, and what to do. */
ctrt_status pool_alloc(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue);
void pool_free(struct device_memory *memory, const ctrt_block *block, void *queue);

#endif
