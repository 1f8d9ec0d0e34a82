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
struct live;                                /* live.h */
struct history;                             /* history.h */
struct oom_report;                          /* oom.h */
struct plan;                                /* plan.h */
struct policy_spec;                         /* policy.h */

struct device_memory {
    /* What the hot path reads. */
    ctrt_status (*alloc)(void *policy, ctrt_block *block, size_t bytes, void *queue); /* of the top policy */
    void (*free)(void *policy, const ctrt_block *block, void *queue);
    void *state;                            /* the top policy's instance */
    bool moves;                             /* of the top policy: blocks have to be asked where they are (pool_use) */
    bool fences;                            /* the top policy takes fences and gives them */
    bool ordered;                           /* the backend's memory comes and goes in the order of queues */
    atomic_bool watched, history_on;        /* each block is noted: live.h */
    struct account account;
    /* The rest. */
    struct memory_layer *layers[MEMORY_MAX_LAYERS];         /* top first */
    int layer_count;
    char policy_name[64];
    ctrt_memory_source source;              /* the backend's alloc and free */
    ctrt_device *device;
    uint64_t total_bytes;                   /* of the device; 0: unknown */
    _Atomic uint64_t limit, drawn;          /* quota.h */
    _Atomic(struct live *) live;            /* NULL while nothing was ever watched */
    struct history *history;                /* likewise */
    struct account_window scraped;          /* since the last reading of the metrics */
    _Atomic uint64_t ooms, rejections, retries;
    struct oom_report *last_oom;            /* NULL: none yet */
    atomic_int captures, graphs;            /* captures that run, graphs that live: capture.h */
    struct plan *plans;                     /* what plans for the device need; NULL: there were none */
    /* Of the memory that a device has while a step is planned: */
    struct plan *plan;                      /* NULL: this is no such memory */
    uint64_t plan_limit;                    /* bytes that may be drawn; plan_source.c */
    uintptr_t plan_next;
};

/* Creates the policy for a device that is being opened: CTRT_MEMORY, else the backend's default, else direct.
 */
ctrt_status pool_create(struct device_memory **out, ctrt_device *device);
void pool_destroy(struct device_memory *memory);

/* Allocates from the policy and counts. bytes 0 gives address NULL and counts nothing. An error says how much
 * was asked, what is allocated and reserved on which device, and what to do. */
ctrt_status pool_alloc(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue);
/* The same for a layer above, that may make do with less: that memory ran out is not reported. */
ctrt_status pool_draw(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue);
/* `bytes`: as was asked for. */
void pool_free(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue);

/* The same in the child of a fork, for a device of the parent's: what its policy knows may be half done for ever, so that only the figures hear
 * of it. Blocks of plans are memory of nobody's. */
void pool_forget(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue);

/* Where the block is now; it stays there until pool_unuse. For policies that move memory. */
ctrt_status pool_use(struct device_memory *memory, const ctrt_block *block, void *queue, void **address);
void pool_unuse(struct device_memory *memory, const ctrt_block *block, void *queue);

/* The policies that a device is to have, upper first. */
ctrt_status pool_policies(struct policy_spec *specs, int *count, const ctrt_device *device);

/* Memory for one piece of work on `queue`, in whose order it is used and given back; *address: where it is. Without `report`, for a caller
 * that can do with less, running out of memory is neither counted nor reported, and does not end a capture. */
ctrt_status pool_alloc_fixed(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue, void **address, bool report);
void pool_free_fixed(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue);

/* Gives back what policies have cached. */
void pool_trim(struct device_memory *memory);

static inline bool pool_watched(const struct device_memory *memory)
{
#ifdef CTRT_WITHOUT_OWNERS                  /* bench/bookkeeping.sh */
    return false;
#endif
    return atomic_load_explicit(&memory->watched, memory_order_acquire);    /* with it `live` is there */
}

/* The memory of `device`; NULL: of the default device. */
ctrt_status memory_get(struct device_memory **out, ctrt_device *device);

#endif
