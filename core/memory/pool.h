/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pool.h: a device's memory: its policy, and what is counted of it.
 *
 * The policy is a component of kind `memory` ("caching", "direct"), found like every plugin; policies can
 * stand on one another (policy.h). Counting is the core's, the same for all policies (account.h). */
#ifndef CORE_MEMORY_POOL_H
#define CORE_MEMORY_POOL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ctrt/memory.h"
#include "ctrt/plugin.h"
#include "device/device.h"
#include "memory/account.h"

#define MEMORY_MAX_LAYERS 4

struct memory_layer;                        /* policy.h */

struct device_memory {
    /* What the hot path reads. */
    ctrt_status (*alloc)(void *policy, ctrt_block *block, size_t bytes, void *queue); /* of the top policy */
    void (*free)(void *policy, const ctrt_block *block, void *queue);
    void *state;                            /* the top policy's instance */
    struct account account;
    /* The rest. */
    struct memory_layer *layers[MEMORY_MAX_LAYERS];         /* top first */
    int layer_count;
    char policy_name[64];
    _Atomic uint64_t device_allocations, device_frees;      /* raw calls, counted in the source */
    ctrt_memory_source source;              /* the backend's alloc and free */
    ctrt_device *device;
};

/* Creates the policy for a device that is being opened: CTRT_MEMORY, else the backend's default, else direct.
 */
ctrt_status pool_create(struct device_memory **out, ctrt_device *device);
void pool_destroy(struct device_memory *memory);

/* Allocates from the policy and counts. bytes 0 gives address NULL and counts nothing. An error says how much
 * was asked, what is allocated and reserved on which device, and what to do. */
ctrt_status pool_alloc(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue);
void pool_free(struct device_memory *memory, const ctrt_block *block, void *queue);

#endif
