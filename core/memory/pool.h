/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pool.h: the memory of a device: its layers and its statistics.
 *
 * A policy is a component of kind `memory` ("caching", "direct"), found like every plugin; policies can be stacked
 * (policy.h). The policies are the bottom layer of a device's memory (device_memory.c). Other layers are pushed on it:
 * captures (capture.c), and dry runs (dryrun/memory.c). The core keeps the statistics, in the same way for all policies
 * (counters.h). */
#ifndef CORE_MEMORY_POOL_H
#define CORE_MEMORY_POOL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ctrt/memory.h"
#include "ctrt/plugin.h"
#include "device/device.h"
#include "memory/counters.h"
#include "memory/policy.h"
#include "upcalls.h"

struct block_table;                         /* block_table.h */
struct history;                             /* history.h */
struct memory_layer;

/* The operations of a layer. NULL: the layer does not change this operation; the one of the layer below applies. */
struct memory_ops {
    /* As in ctrt_memory_policy, with the layer's `state`. */
    ctrt_status (*alloc)(void *state, ctrt_block *block, size_t bytes, void *queue);
    void (*free)(void *state, const ctrt_block *block, void *queue);
    /* pool_use and pool_unuse. With `report`, running out of memory is counted and reported. */
    ctrt_status (*use)(struct memory_layer *layer, const ctrt_block *block, void *queue, void **address, bool report);
    void (*unuse)(struct memory_layer *layer, const ctrt_block *block, void *queue);
    /* Returns cached memory to the device. `again`: because an allocation was refused and will be tried again. */
    void (*trim)(struct memory_layer *layer, bool again);
    /* pool_alloc_fixed and pool_free_fixed. alloc_fixed: *status is the result. Both return false if the layer does not
     * serve the queue or did not allocate the block; in that case the layers below serve it. */
    bool (*alloc_fixed)(ctrt_status *status, struct memory_layer *layer, ctrt_block *block, size_t bytes, void *queue,
                        bool report);
    bool (*free_fixed)(struct memory_layer *layer, const ctrt_block *block);
    /* Returns whether the layer allocated the block and the block has no device memory. */
    bool (*is_predicted)(const struct memory_layer *layer, const ctrt_block *block);
    /* Returns why the device cannot be closed, NULL if it can. */
    const char *(*busy)(const struct memory_layer *layer);
    /* Frees the layer when the memory is closed or destroyed. NULL: the layer owns nothing. */
    void (*destroy)(struct memory_layer *layer);
};

struct memory_layer {
    struct memory_ops ops;
    void *state;                            /* for alloc and free */
    struct device_memory *memory;
    struct memory_layer *below;             /* NULL: the bottom layer */
};

struct device_memory {
    /* Read in the hot path. */
    ctrt_status (*alloc)(void *state, ctrt_block *block, size_t bytes, void *queue);   /* these three: of the highest */
    void (*free)(void *state, const ctrt_block *block, void *queue);                   /* layer that has them */
    void *state;
    bool moves;                             /* the top policy moves blocks: pool_use returns their current address */
    bool fences;                            /* the top policy accepts fences in free and returns them from alloc */
    bool ordered;                           /* the backend's alloc and free are stream-ordered */
    bool dry_run;                           /* replaces the device's own memory during a dry run (dryrun/memory.h) */
    atomic_bool watched, history_on;        /* each block is recorded: block_table.h */
    struct counters counters;
    /* Read elsewhere. */
    _Atomic(struct memory_layer *) top;     /* the highest layer */
    struct memory_layer bottom;             /* the policies */
    struct policy_layer *policies[MEMORY_MAX_POLICIES];     /* top first */
    int policy_count;
    char policy_name[64];
    ctrt_memory_source source;              /* allocates from the backend */
    ctrt_device *device;
    uint64_t total_bytes;                   /* of the device; 0: unknown */
    _Atomic uint64_t limit, reserved;       /* bytes: quota.h */
    _Atomic(struct block_table *) blocks;     /* NULL before blocks are recorded for the first time */
    struct history *history;                /* likewise */
    struct peak_window scraped;             /* peaks since the metrics were last read */
    _Atomic uint64_t ooms, rejections, retries;
    char *last_oom;                         /* the last report, host_alloc; NULL: none yet. Guarded in oom_report.c */
};

/* Creates the memory of a device that is being opened, with the policies of CTRT_MEMORY, else the backend's default,
 * else direct. */
ctrt_status pool_create(struct device_memory **out, ctrt_device *device);
void pool_destroy(struct device_memory *memory);
/* Makes every allocation fail with the reason that device_fail_forked reports, for a device that is closed. */
void pool_close(struct device_memory *memory);
/* Destroys the policies. */
void pool_drop_policies(struct device_memory *memory);

/* Puts a layer on top. `layer` must exist until the memory is closed or destroyed; its `ops` and `state` are set. A
 * layer that has `alloc` or `free` may be pushed only while no other thread uses the device. */
void memory_push(struct device_memory *memory, struct memory_layer *layer);
/* Call after the `ops` of a layer have changed. No other thread may use the device meanwhile. */
void memory_layers_changed(struct device_memory *memory);
/* Returns why a layer does not allow the device to be closed. NULL: all do. */
const char *memory_busy(const struct device_memory *memory);

/* The operation `use`, beginning with `layer`. */
ctrt_status layer_use(struct memory_layer *layer, const ctrt_block *block, void *queue, void **address, bool report);
void layer_unuse(struct memory_layer *layer, const ctrt_block *block, void *queue);

/* Allocates `bytes` from the top layer for use on `queue` and updates the statistics. bytes 0 sets the address to NULL
 * and counts nothing. If memory runs out, the message contains the request, the device's allocated and reserved bytes
 * and a remedy. */
ctrt_status pool_alloc(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue);
/* Like pool_alloc, for a caller that can continue with less memory. Does not report that memory ran out. */
ctrt_status pool_try_alloc(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue);
/* `bytes`: as passed to pool_alloc. `queue`: the queue whose work may use the memory next. */
void pool_free(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue);

/* Replaces pool_free in the child of a fork, for a device of the parent. The policy may have been forked in the middle
 * of an operation, so only the statistics are updated. Blocks without device memory are freed. */
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
/* Like pool_trim, but only for the policies, without the layers above them. */
void pool_trim_policies(struct device_memory *memory);

static inline bool pool_watched(const struct device_memory *memory)
{
#ifdef CTRT_WITHOUT_OWNERS                  /* bench/bookkeeping.sh */
    return false;
#endif
    return atomic_load_explicit(&memory->watched, memory_order_acquire);    /* acquire: `blocks` is set before */
}

/* Returns whether work for `device` is part of a dry run. */
static inline bool dry_run_on(const ctrt_device *device)
{
    return unlikely(device->memory->dry_run);
}

/* quota.c: set when a limit refuses memory to the calling thread; reset by callers. */
extern __thread bool limit_refused;

/* Sets *out to the memory of `device`. NULL: of the default device. */
ctrt_status memory_get(struct device_memory **out, ctrt_device *device);

/* Create and destroy the device's memory policy and statistics. */
ctrt_status device_memory_create(ctrt_device *device);
void device_memory_destroy(ctrt_device *device);
/* device_memory_close ends the policy of a device that is being closed and keeps the statistics; device_memory_reopen
 * creates a policy when the device is opened again. */
void device_memory_close(ctrt_device *device);
ctrt_status device_memory_reopen(ctrt_device *device);
/* Called once after each opening of the device, without the device lock. */
void device_memory_opened(ctrt_device *device);

#endif
