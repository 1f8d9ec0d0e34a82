/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/clone.c: copies the state of a policy, for predictions of its behaviour.
 *
 * Segments and blocks of the copy have the same addresses as those of the original. The memory at these addresses must
 * not be accessed through the copy. Fences are not copied, because no decision depends on them. A table maps each used
 * block of the original to a block of the copy. When a block is freed in the copy, its cookie is the original's block,
 * and the table gives the copy's. */
#include "caching.h"

struct clone_entry {
    const struct block *original;               /* NULL: never used; &removed: the entry was removed */
    struct block *copy;
};

static const struct block removed;

static size_t slot_of(const struct policy *copy, const struct block *block)
{
    return (size_t)((uintptr_t)block * 0x9e3779b97f4a7c15u >> 20) & (copy->clone_map_size - 1);
}

struct block *clone_map_remove(struct policy *copy, struct block *block)
{
    for (size_t i = slot_of(copy, block); copy->clone_map[i].original != NULL; i = (i + 1) & (copy->clone_map_size - 1))
        if (copy->clone_map[i].original == block) {
            copy->clone_map[i].original = &removed;
            return copy->clone_map[i].copy;
        }
    return block;
}

static void clone_map_add(struct policy *copy, const struct block *original, struct block *clone)
{
    size_t i = slot_of(copy, original);
    while (copy->clone_map[i].original != NULL)
        i = (i + 1) & (copy->clone_map_size - 1);
    copy->clone_map[i] = (struct clone_entry){ original, clone };
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
            block_split(at, block->bytes, rest);
        }
        at->state = block->state;
        if (block->state == BLOCK_USED)
            clone_map_add(copy, block, at);
        if (block->state == BLOCK_FREE) {
            heap_add_free(to, at);
            at->free_since = block->free_since;
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
    copy->clone_map_size = 64;
    while (copy->clone_map_size < 2 * used)
        copy->clone_map_size *= 2;
    copy->clone_map = policy_alloc("caching", copy->clone_map_size * sizeof *copy->clone_map);
    if (copy->clone_map == NULL)
        return false;
    for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next) {
        struct pool *clone = pool_get(copy, pool->queue);
        if (clone == NULL || !copy_heap(&clone->small, &pool->small) || !copy_heap(&clone->large, &pool->large))
            return false;
    }
    return true;
}

ctrt_status caching_clone(void *state, void **out, const ctrt_memory_source *source)
{
    struct policy *policy = state, *copy = policy_new(source);
    if (copy == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    copy->is_clone = true;
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
