/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/clone.c: copies the state of a policy, for predictions of its behaviour.
 *
 * Segments and blocks have the addresses of the original's, whose memory must not be accessed through the copy. Fences
 * are not copied, because no decision depends on them. Each used block of the original is mapped to a block of the
 * copy, which is looked up by its cookie when the block is freed in the copy. */
#include <string.h>

#include "caching.h"

struct twin {
    const struct block *original;               /* NULL: never used; &gone: removed */
    struct block *copy;
};

static const struct block gone;

static size_t place_of(const struct policy *copy, const struct block *block)
{
    return (size_t)((uintptr_t)block * 0x9e3779b97f4a7c15u >> 20) & (copy->twin_room - 1);
}

struct block *twin_take(struct policy *copy, struct block *block)
{
    for (size_t i = place_of(copy, block); copy->twins[i].original != NULL; i = (i + 1) & (copy->twin_room - 1))
        if (copy->twins[i].original == block) {
            copy->twins[i].original = &gone;
            return copy->twins[i].copy;
        }
    return block;
}

static void remember(struct policy *copy, const struct block *original, struct block *twin)
{
    size_t i = place_of(copy, original);
    while (copy->twins[i].original != NULL)
        i = (i + 1) & (copy->twin_room - 1);
    copy->twins[i] = (struct twin){ original, twin };
}

void twins_free(struct policy *copy)
{
    host->free(copy->twins);
    copy->twins = NULL;
}

static size_t count_used(const struct heap *heap)
{
    size_t count = 0;
    for (const struct segment *segment = heap->segments; segment != NULL; segment = segment->next)
        for (const struct block *block = segment->first; block != NULL; block = block->after)
            count += block->state == BLOCK_USED;
    return count;
}

static bool copy_segment(struct heap *to, const struct segment *from)
{
    struct policy *copy = to->pool->policy;
    struct segment *segment = segment_new(to, from->address, from->bytes, from->expandable);
    if (segment == NULL)
        return false;
    struct block *at = segment->first;
    for (const struct block *block = from->first; block != NULL; block = block->after) {
        if (block->after != NULL) {
            struct block *rest = block_new(copy);
            if (rest == NULL)
                return false;
            heap_cut_off(at, block->bytes, rest);
        }
        at->state = block->state;
        if (block->state == BLOCK_USED)
            remember(copy, block, at);
        if (block->state == BLOCK_FREE) {
            heap_shelve(to, at);
            at->shelved = block->shelved;
        }
        at = at->after;
    }
    if (from == from->heap->range)
        to->range = segment;
    return true;
}

static bool copy_heap(struct heap *to, const struct heap *from)
{
    const struct segment *segment = from->segments;
    to->searches = from->searches;
    while (segment != NULL && segment->next != NULL)
        segment = segment->next;
    for (; segment != NULL; segment = segment->previous)
        if (!copy_segment(to, segment))
            return false;
    return true;
}

static bool copy_pools(struct policy *copy, struct policy *policy)
{
    size_t used = 0;
    for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next)
        used += count_used(&pool->small) + count_used(&pool->large);
    copy->twin_room = 64;
    while (copy->twin_room < 2 * used)
        copy->twin_room *= 2;
    copy->twins = host->alloc(copy->twin_room * sizeof *copy->twins);
    if (copy->twins == NULL)
        return false;
    memset(copy->twins, 0, copy->twin_room * sizeof *copy->twins);
    for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next) {
        struct pool *twin = pool_get(copy, pool->queue);
        if (twin == NULL || !copy_heap(&twin->small, &pool->small) || !copy_heap(&twin->large, &pool->large))
            return false;
    }
    return true;
}

ctrt_status caching_clone(void *state, void **out, const ctrt_memory_source *source)
{
    struct policy *policy = state, *copy = policy_new(source);
    if (copy == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    copy->copy = true;
    copy->poison = false;
    pthread_mutex_lock(&policy->growth);
    pthread_mutex_lock(&policy->lock);
    policy_pause(policy);
    copy->settings = policy->settings;
    copy->settings.expandable &= CTRT_SLOT(source, map);
    bool whole = copy_pools(copy, policy);
    copy->stats = policy->stats;
    policy_resume(policy);
    pthread_mutex_unlock(&policy->lock);
    pthread_mutex_unlock(&policy->growth);
    if (!whole) {
        policy_free(copy);
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "caching: out of host memory for a copy of the policy");
    }
    *out = copy;
    return CTRT_OK;
}
