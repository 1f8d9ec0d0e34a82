/* SPDX-License-Identifier: Apache-2.0 */
/* tests/unit/caching_reference.h: a simple model of PyTorch's caching allocator, with which tests compare the policy
 * `caching`.
 *
 * The behaviour follows the documentation and the source of c10/cuda/CUDACachingAllocator.cpp. Every lookup is a linear
 * search of one list. There are no fences, so a freed block is free at once. The model allocates from its own source.
 * Include this file after plugin.h. */
#ifndef CTRT_TESTS_CACHING_REFERENCE_H
#define CTRT_TESTS_CACHING_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ctrt/plugin.h"

#define REF __attribute__((unused)) static

#define REF_MIB ((size_t)1 << 20)

struct ref_block {
    struct ref_block *before, *after;           /* neighbours in the segment */
    struct ref_block *next_free, *last_free;    /* list of the pool's free blocks, unordered */
    uintptr_t address;
    size_t bytes;
    void *queue;
    bool small, used;
    uint64_t inserted;
};

struct ref {
    const ctrt_memory_source *source;
    size_t max_split, max_rounding, divisions;
    double gc;                                  /* garbage collection threshold; 0: disabled */
    struct ref_block *free[2];                  /* large, small */
    uint64_t searches[2][8];                    /* by queue, because the policy counts searches per queue */
    uint64_t reserved, peak, allocated, peak_allocated, segments, retries;
};

REF void ref_init(struct ref *ref, const ctrt_memory_source *source)
{
    memset(ref, 0, sizeof *ref);
    ref->source = source;
    ref->max_split = SIZE_MAX;
    ref->max_rounding = 20 * REF_MIB;
    ref->divisions = 1;
}

REF size_t ref_round(const struct ref *ref, size_t bytes)
{
    if (bytes < 512)
        return 512;
    if (ref->divisions > 1 && bytes > 512 * ref->divisions) {
        size_t power = 512;
        while (2 * power <= bytes)
            power *= 2;
        size_t step = power / ref->divisions, rounded = power;
        while (rounded < bytes)
            rounded += step;
        return rounded;
    }
    return (bytes + 511) / 512 * 512;
}

REF size_t ref_segment(size_t rounded)
{
    if (rounded <= REF_MIB)
        return 2 * REF_MIB;
    return rounded < 10 * REF_MIB ? 20 * REF_MIB : (rounded + 2 * REF_MIB - 1) / (2 * REF_MIB) * (2 * REF_MIB);
}

REF void ref_insert(struct ref *ref, struct ref_block *block)
{
    block->used = false;
    block->inserted = ref->searches[block->small][(uintptr_t)block->queue & 7];
    block->last_free = NULL;
    block->next_free = ref->free[block->small];
    if (block->next_free)
        block->next_free->last_free = block;
    ref->free[block->small] = block;
}

REF void ref_remove(struct ref *ref, struct ref_block *block)
{
    if (block->last_free)
        block->last_free->next_free = block->next_free;
    else
        ref->free[block->small] = block->next_free;
    if (block->next_free)
        block->next_free->last_free = block->last_free;
}

REF void ref_release(struct ref *ref, struct ref_block *block)
{
    ref_remove(ref, block);
    ref->reserved -= block->bytes;
    ref->segments--;
    ref->source->free(ref->source->state, (void *)block->address, block->bytes, block->queue);
    free(block);
}

REF struct ref_block *ref_best(const struct ref *ref, bool small, size_t bytes, void *queue)
{
    struct ref_block *best = NULL;
    for (struct ref_block *block = ref->free[small]; block; block = block->next_free)
        if (block->queue == queue && block->bytes >= bytes
            && (!best || block->bytes < best->bytes || (block->bytes == best->bytes && block->address < best->address)))
            best = block;
    return best;
}

REF struct ref_block *ref_find(struct ref *ref, bool small, size_t bytes, void *queue)
{
    ref->searches[small][(uintptr_t)queue & 7]++;
    struct ref_block *best = ref_best(ref, small, bytes, queue);
    if (best && ((bytes < ref->max_split && best->bytes >= ref->max_split)
                 || (bytes >= ref->max_split && best->bytes >= bytes + ref->max_rounding)))
        return NULL;
    if (best)
        ref_remove(ref, best);
    return best;
}

REF struct ref_block *ref_draw(struct ref *ref, bool small, size_t bytes, void *queue)
{
    void *address;
    if (ref->source->alloc(ref->source->state, &address, bytes, queue) != CTRT_OK)
        return NULL;
    struct ref_block *block = calloc(1, sizeof *block);
    *block = (struct ref_block){ .address = (uintptr_t)address, .bytes = bytes, .queue = queue, .small = small };
    ref->segments++;
    ref->reserved += bytes;
    if (ref->reserved > ref->peak)
        ref->peak = ref->reserved;
    return block;
}

REF bool ref_whole(const struct ref_block *block)
{
    return !block->before && !block->after;
}

REF void ref_collect(struct ref *ref)
{
    uint64_t allowed = (uint64_t)(ref->gc * (double)ref->source->total_bytes), age = 0, count = 0, reclaimed = 0;
    if (ref->gc <= 0 || ref->reserved <= allowed)
        return;
    uint64_t target = ref->reserved - allowed;
    for (struct ref_block *block = ref->free[0]; block; block = block->next_free)
        if (ref_whole(block)) {
            age += ref->searches[0][(uintptr_t)block->queue & 7] - block->inserted;
            count++;
        }
    for (bool some = true; some && reclaimed < target && count > 0;) {
        double mean = (double)age / (double)count;
        some = false;
        for (struct ref_block *block = ref->free[0], *next; block; block = next) {
            next = block->next_free;
            uint64_t its = ref->searches[0][(uintptr_t)block->queue & 7] - block->inserted;
            if (!ref_whole(block) || (double)its < mean)
                continue;
            some = true;
            reclaimed += block->bytes;
            age -= its;
            count--;
            ref_release(ref, block);
        }
    }
}

REF bool ref_release_oversize(struct ref *ref, bool small, size_t bytes, void *queue)
{
    size_t wanted = bytes > ref->max_split ? bytes : ref->max_split, released = 0;
    if (ref->max_split == SIZE_MAX)
        return false;
    struct ref_block *block = ref_best(ref, small, wanted, queue);
    if (block) {
        ref_release(ref, block);
        return true;
    }
    while (released < wanted) {
        struct ref_block *largest = NULL;
        for (block = ref->free[small]; block; block = block->next_free)
            if (block->queue == queue && (!largest || block->bytes > largest->bytes
                                          || (block->bytes == largest->bytes && block->address > largest->address)))
                largest = block;
        if (!largest || largest->bytes < ref->max_split)
            return false;
        released += largest->bytes;
        ref_release(ref, largest);
    }
    return true;
}

REF uint64_t ref_trim(struct ref *ref)
{
    uint64_t before = ref->reserved;
    for (int small = 0; small < 2; small++)
        for (struct ref_block *block = ref->free[small], *next; block; block = next) {
            next = block->next_free;
            if (ref_whole(block))
                ref_release(ref, block);
        }
    return before - ref->reserved;
}

/* Returns NULL when out of memory. */
REF struct ref_block *ref_alloc(struct ref *ref, size_t asked, void *queue)
{
    size_t bytes = ref_round(ref, asked), segment = ref_segment(bytes);
    bool small = bytes <= REF_MIB;
    struct ref_block *block = ref_find(ref, small, bytes, queue);
    if (!block) {
        ref_collect(ref);
        block = ref_draw(ref, small, segment, queue);
        if (!block && ref_release_oversize(ref, small, bytes, queue))
            block = ref_draw(ref, small, segment, queue);
        if (!block && ref_trim(ref) > 0) {
            ref->retries++;
            block = ref_draw(ref, small, segment, queue);
        }
        /* Unlike PyTorch, try last a segment of exactly the rounded size. */
        if (!block && segment > bytes)
            block = ref_draw(ref, small, bytes, queue);
        if (!block)
            return NULL;
    }
    size_t rest = block->bytes - bytes;
    if (small ? rest >= 512 : bytes < ref->max_split && rest > REF_MIB) {
        struct ref_block *tail = calloc(1, sizeof *tail);
        *tail = (struct ref_block){ .before = block, .after = block->after, .address = block->address + bytes,
                                    .bytes = rest,
                                    .queue = queue, .small = small };
        if (tail->after)
            tail->after->before = tail;
        block->after = tail;
        block->bytes = bytes;
        ref_insert(ref, tail);
    }
    block->used = true;
    ref->allocated += block->bytes;
    if (ref->allocated > ref->peak_allocated)
        ref->peak_allocated = ref->allocated;
    return block;
}

REF void ref_absorb(struct ref_block *block)
{
    struct ref_block *gone = block->after;
    block->bytes += gone->bytes;
    block->after = gone->after;
    if (block->after)
        block->after->before = block;
    free(gone);
}

REF void ref_free(struct ref *ref, struct ref_block *block)
{
    ref->allocated -= block->bytes;
    if (block->after && !block->after->used) {
        ref_remove(ref, block->after);
        ref_absorb(block);
    }
    if (block->before && !block->before->used) {
        block = block->before;
        ref_remove(ref, block);
        ref_absorb(block);
    }
    ref_insert(ref, block);
}

/* Counts the free blocks that share a segment with used blocks, and their bytes. */
REF void ref_split(const struct ref *ref, uint64_t *count, uint64_t *bytes)
{
    *count = *bytes = 0;
    for (int small = 0; small < 2; small++)
        for (const struct ref_block *block = ref->free[small]; block; block = block->next_free)
            if (!ref_whole(block)) {
                ++*count;
                *bytes += block->bytes;
            }
}

#endif
