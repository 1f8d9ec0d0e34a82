/* SPDX-License-Identifier: Apache-2.0 */
/* tests/unit/caching_reference.h: a simple model of PyTorch's caching allocator, with which tests compare the policy
 * `caching`.
 *
 * The behaviour follows the documentation and the source of c10/cuda/CUDACachingAllocator.cpp. Every lookup is a linear
 * search of all blocks. There are no fences, so a freed block is free at once. The model allocates from its own source.
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
    struct ref_block *last, *next;              /* all blocks of the pool; those of a segment in address order */
    uintptr_t address, segment;                 /* its own address and that of its segment */
    size_t bytes;
    void *queue;
    bool small, used;
    uint64_t inserted;                          /* number of searches before it became free */
};

struct ref {
    const ctrt_memory_source *source;
    size_t max_split, divisions;
    double gc;                                  /* garbage collection threshold; 0: disabled */
    struct ref_block *blocks[2];                /* large, small */
    uint64_t searches[2][8];                    /* by queue, because the policy counts searches per queue */
    uint64_t reserved, peak, retries;
    ctrt_stat split, split_bytes;               /* free blocks that share a segment with others, and their bytes */
};

REF void ref_init(struct ref *ref, const ctrt_memory_source *source)
{
    *ref = (struct ref){ .source = source, .max_split = SIZE_MAX, .divisions = 1 };
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

/* Adds a block after `last`, or as the first of its pool if `last` is NULL. */
REF struct ref_block *ref_link(struct ref *ref, struct ref_block *last, struct ref_block values)
{
    struct ref_block *block = malloc(sizeof *block);
    *block = values;
    block->last = last;
    block->next = last ? last->next : ref->blocks[block->small];
    *(last ? &last->next : &ref->blocks[block->small]) = block;
    if (block->next)
        block->next->last = block;
    return block;
}

REF void ref_unlink(struct ref *ref, struct ref_block *block)
{
    *(block->last ? &block->last->next : &ref->blocks[block->small]) = block->next;
    if (block->next)
        block->next->last = block->last;
    free(block);
}

REF void ref_release(struct ref *ref, struct ref_block *block)
{
    ref->reserved -= block->bytes;
    ref->source->free(ref->source->state, (void *)block->address, block->bytes, block->queue);
    ref_unlink(ref, block);
}

REF uint64_t ref_age(const struct ref *ref, const struct ref_block *block)
{
    return ref->searches[block->small][(uintptr_t)block->queue & 7] - block->inserted;
}

REF bool ref_same_segment(const struct ref_block *a, const struct ref_block *b)
{
    return a && b && a->segment == b->segment;
}

/* Returns whether the block is free and its whole segment. */
REF bool ref_idle(const struct ref_block *block)
{
    return !block->used && !ref_same_segment(block, block->last) && !ref_same_segment(block, block->next);
}

REF struct ref_block *ref_best(const struct ref *ref, bool small, size_t bytes, void *queue)
{
    struct ref_block *best = NULL;
    for (struct ref_block *block = ref->blocks[small]; block; block = block->next)
        if (!block->used && block->queue == queue && block->bytes >= bytes
            && (!best || block->bytes < best->bytes || (block->bytes == best->bytes && block->address < best->address)))
            best = block;
    return best;
}

REF struct ref_block *ref_find(struct ref *ref, bool small, size_t bytes, void *queue)
{
    ref->searches[small][(uintptr_t)queue & 7]++;
    struct ref_block *best = ref_best(ref, small, bytes, queue);
    return best && (bytes < ref->max_split ? best->bytes < ref->max_split : best->bytes < bytes + 20 * REF_MIB)
               ? best : NULL;
}

REF struct ref_block *ref_draw(struct ref *ref, bool small, size_t bytes, void *queue)
{
    void *address;
    if (ref->source->alloc(ref->source->state, &address, bytes, queue) != CTRT_OK)
        return NULL;
    ref->reserved += bytes;
    if (ref->reserved > ref->peak)
        ref->peak = ref->reserved;
    return ref_link(ref, NULL, (struct ref_block){ .address = (uintptr_t)address, .segment = (uintptr_t)address,
                                                   .bytes = bytes, .queue = queue, .small = small });
}

REF void ref_collect(struct ref *ref)
{
    const uint64_t allowed = (uint64_t)(ref->gc * (double)ref->source->total_bytes);
    bool some = ref->gc > 0;
    while (some && ref->reserved > allowed) {
        uint64_t age = 0, count = 0;
        for (struct ref_block *block = ref->blocks[0]; block; block = block->next)
            if (ref_idle(block)) {
                age += ref_age(ref, block);
                count++;
            }
        some = false;
        for (struct ref_block *block = ref->blocks[0], *next; block; block = next) {
            next = block->next;
            if (ref_idle(block) && (double)ref_age(ref, block) >= (double)age / (double)count) {
                ref_release(ref, block);
                some = true;
            }
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
        for (block = ref->blocks[small]; block; block = block->next)
            if (!block->used && block->queue == queue
                && (!largest || block->bytes > largest->bytes
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
        for (struct ref_block *block = ref->blocks[small], *next; block; block = next) {
            next = block->next;
            if (ref_idle(block))
                ref_release(ref, block);
        }
    return before - ref->reserved;
}

REF void ref_change(ctrt_stat *stat, int64_t change)
{
    stat->current += change;
    *(change > 0 ? &stat->allocated : &stat->freed) += llabs(change);
    if (stat->current > stat->peak)
        stat->peak = stat->current;
}

REF void ref_count_split(struct ref *ref, int64_t blocks, int64_t bytes)
{
    ref_change(&ref->split, blocks);
    ref_change(&ref->split_bytes, bytes);
}

REF void ref_set_free(struct ref *ref, struct ref_block *block)
{
    block->used = false;
    block->inserted = ref->searches[block->small][(uintptr_t)block->queue & 7];
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
    const bool was_split = !ref_idle(block);
    size_t rest = block->bytes - bytes;
    if (small ? rest >= 512 : bytes < ref->max_split && rest > REF_MIB) {
        struct ref_block tail = { .address = block->address + bytes, .segment = block->segment, .bytes = rest,
                                  .queue = queue, .small = small };
        block->bytes = bytes;
        ref_set_free(ref, ref_link(ref, block, tail));
        ref_count_split(ref, !was_split, was_split ? -(int64_t)bytes : (int64_t)rest);
    } else if (was_split) {
        ref_count_split(ref, -1, -(int64_t)block->bytes);
    }
    block->used = true;
    return block;
}

REF void ref_free(struct ref *ref, struct ref_block *block)
{
    int64_t blocks = 1, bytes = (int64_t)block->bytes;
    block->used = false;
    if (ref_same_segment(block, block->last) && !block->last->used)
        block = block->last;
    while (ref_same_segment(block, block->next) && !block->next->used) {
        block->bytes += block->next->bytes;
        ref_unlink(ref, block->next);
        blocks--;
    }
    ref_set_free(ref, block);
    ref_count_split(ref, blocks - ref_idle(block), bytes - (ref_idle(block) ? (int64_t)block->bytes : 0));
}

#endif
