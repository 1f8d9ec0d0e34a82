/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/source.h: helpers of all policies for calls of the memory source and the library, and for statistics.
 * An older source or library may lack optional functions. */
#ifndef CTRT_MEMORY_SOURCE_H
#define CTRT_MEMORY_SOURCE_H

#include <pthread.h>

#include "ctrt/plugin.h"

extern const ctrt_host *host;               /* set by the plugin's init */
/* Guards the data of all instances of a policy that has one lock; never held during a call of the source, which may be
 * another instance. In a forked child it is free. */
extern pthread_mutex_t policy_lock;

/* The `init` of a plugin whose policy uses policy_lock. */
ctrt_status policy_init(const ctrt_host *given);
/* Returns zeros for the policy's own structures, which host->free frees, or NULL after host->fail. */
void *policy_alloc(const char *policy, size_t bytes);
/* Frees a list of structures whose first member is the pointer to the next one. */
void policy_list_free(void *first);

static inline size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Registers handlers that run around a fork, inside the library's own locks if the library supports that. */
static inline ctrt_status register_fork_handlers(void (*before)(void), void (*in_parent)(void), void (*in_child)(void))
{
    if (CTRT_SLOT(host, at_fork))
        return host->at_fork(before, in_parent, in_child);
    return pthread_atfork(before, in_parent, in_child) == 0 ? CTRT_OK : CTRT_ERR_OUT_OF_MEMORY;
}

/* ---- fences; NULL is a fence that is done ---- */

/* Blocks the caller until the fence is done, and frees it. A failure of the queue is ignored here; others report it. */
static inline void fence_finish(const ctrt_memory_source *source, void *fence)
{
    if (fence == NULL)
        return;
    (void)source->fence_wait(source->state, fence, NULL);
    source->fence_free(source->state, fence);
}

/* Blocks the caller until all work that is on `queue` now is done. */
static inline void queue_finish(const ctrt_memory_source *source, void *queue)
{
    void *fence = NULL;
    if (CTRT_SLOT(source, fence_new) && source->fence_new(source->state, &fence, queue) == CTRT_OK)
        fence_finish(source, fence);
}

static inline void *fences_join(const ctrt_memory_source *source, void *a, void *b)
{
    if (a == NULL || b == NULL)
        return a != NULL ? a : b;
    return source->fence_join(source->state, a, b);
}

/* Makes `queue` wait for the fence, which the caller keeps. If that fails, blocks the caller until the fence is
 * done. */
static inline void fence_order(const ctrt_memory_source *source, void *fence, void *queue)
{
    if (fence != NULL && source->fence_wait(source->state, fence, queue) != CTRT_OK)
        (void)source->fence_wait(source->state, fence, NULL);
}

/* Makes `queue` wait for the fence, and frees it. */
static inline void fence_pass(const ctrt_memory_source *source, void *fence, void *queue)
{
    fence_order(source, fence, queue);
    if (fence != NULL)
        source->fence_free(source->state, fence);
}

/* Makes `queue` wait for all work that is on `other` now. */
static inline ctrt_status queue_follow(const ctrt_memory_source *source, void *queue, void *other)
{
    void *fence = NULL;
    CTRT_TRY(source->fence_new(source->state, &fence, other));
    fence_pass(source, fence, queue);
    return CTRT_OK;
}

static inline bool fence_is_done(const ctrt_memory_source *source, void *fence)
{
    return fence == NULL || source->fence_done(source->state, fence);
}

/* Returns the result of the fence's work. *known: false if the work is not done. For a source without fence_status,
 * work that is done has succeeded. */
static inline ctrt_status fence_outcome(const ctrt_memory_source *source, void *fence, bool *known)
{
    *known = true;
    if (fence == NULL)
        return CTRT_OK;
    if (CTRT_SLOT(source, fence_status))
        return source->fence_status(source->state, fence, known);
    *known = source->fence_done(source->state, fence);
    return CTRT_OK;
}

/* ---- statistics ---- */

/* Adds `amount` to a statistic: an allocation if positive, a free if negative. */
static inline void stat_add(ctrt_stat *stat, int64_t amount)
{
    stat->current += amount;
    if (amount < 0)
        stat->freed -= amount;
    else
        stat->allocated += amount;
    if (stat->current > stat->peak)
        stat->peak = stat->current;
}

static inline void stat_reset_peak(ctrt_stat *stat)
{
    stat->peak = stat->current;
}

#endif
