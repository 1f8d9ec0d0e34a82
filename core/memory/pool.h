/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pool.h: the memory of a device: its policy stack and its statistics.
 *
 * A policy is a component of kind `memory` ("caching", "direct"), found like every plugin; policies can be stacked
 * (policy.h). The core keeps the statistics, in the same way for all policies (account.h). */
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
    /* Read in the hot path. */
    ctrt_status (*alloc)(void *policy, ctrt_block *block, size_t bytes, void *queue); /* the top policy's */
    void (*free)(void *policy, const ctrt_block *block, void *queue);
    void *state;                            /* the top policy's instance */
    bool moves;                             /* the top policy moves blocks: pool_use returns their current address */
    bool fences;                            /* the top policy accepts fences in free and returns them from alloc */
    bool ordered;                           /* the backend's alloc and free are stream-ordered */
    atomic_bool watched, history_on;        /* each block is recorded: live.h */
    struct account account;
    /* Read elsewhere. */
    struct memory_layer *layers[MEMORY_MAX_LAYERS];         /* top first */
    int layer_count;
    char policy_name[64];
    ctrt_memory_source source;              /* allocates from the backend */
    ctrt_device *device;
    uint64_t total_bytes;                   /* of the device; 0: unknown */
    _Atomic uint64_t limit, drawn;          /* bytes: quota.h */
    _Atomic(struct live *) live;            /* NULL before blocks are recorded for the first time */
    struct history *history;                /* likewise */
    struct account_window scraped;          /* peaks since the metrics were last read */
    _Atomic uint64_t ooms, rejections, retries;
    struct oom_report *last_oom;            /* NULL: none yet */
    atomic_int captures, graphs;            /* running captures, existing graphs: capture.h */
    struct plan *plans;                     /* state of the device's dry runs; NULL before the first */
    /* Only in the device_memory that replaces the device's own during a dry run (plan.h): */
    struct plan *plan;                      /* NULL: this is not a device_memory of a dry run */
    uint64_t plan_limit;                    /* most bytes that may be allocated from the source: plan_source.c */
    uintptr_t plan_next;
};

/* Creates the memory of a device that is being opened, with the policies of CTRT_MEMORY, else the backend's default,
 * else direct. */
ctrt_status pool_create(struct device_memory **out, ctrt_device *device);
void pool_destroy(struct device_memory *memory);

/* Allocates `bytes` from the policy for use on `queue` and updates the statistics. bytes 0 sets the address to NULL and
 * counts nothing. If memory runs out, the message contains the request, the device's allocated and reserved bytes and a
 * remedy. */
ctrt_status pool_alloc(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue);
/* As pool_alloc, for a caller that may continue with less memory: running out of memory is not reported. */
ctrt_status pool_draw(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue);
/* `bytes`: as passed to pool_alloc. `queue`: the queue whose work may use the memory next. */
void pool_free(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue);

/* Replaces pool_free in the child of a fork, for a device of the parent. The policy may have been forked in the middle
 * of an operation, so only the statistics are updated. Blocks of dry runs are freed, because they have no device
 * memory. */
void pool_forget(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue);

/* For policies that move memory: sets *address to the block's current address, which stays valid until pool_unuse. */
ctrt_status pool_use(struct device_memory *memory, const ctrt_block *block, void *queue, void **address);
void pool_unuse(struct device_memory *memory, const ctrt_block *block, void *queue);

/* Determines the policies that a device gets, uppermost first. */
ctrt_status pool_policies(struct policy_spec *specs, int *count, const ctrt_device *device);

/* Allocates memory for one piece of work on `queue`, which is used and freed in that queue's order. *address: its
 * current address, valid until pool_free_fixed. Without `report`, for a caller that can continue with less memory,
 * running out of memory is neither counted nor reported, and does not make a capture fail. */
ctrt_status pool_alloc_fixed(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue, void **address,
                             bool report);
void pool_free_fixed(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue);

/* Returns the memory that the policies have cached to the device. */
void pool_trim(struct device_memory *memory);

static inline bool pool_watched(const struct device_memory *memory)
{
#ifdef CTRT_WITHOUT_OWNERS                  /* bench/bookkeeping.sh */
    return false;
#endif
    return atomic_load_explicit(&memory->watched, memory_order_acquire);    /* acquire: `live` is set before */
}

/* Sets *out to the memory of `device`. NULL: of the default device. */
ctrt_status memory_get(struct device_memory **out, ctrt_device *device);

#endif
