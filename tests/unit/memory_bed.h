/* SPDX-License-Identifier: Apache-2.0 */
/* Test fixture: a memory policy on the fake device memory of memory_host.h, with functions that allocate and free its
 * blocks. Include after tap.h. */
#ifndef CTRT_TESTS_MEMORY_BED_H
#define CTRT_TESTS_MEMORY_BED_H

#include "memory_host.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static const ctrt_memory_policy *caching, *direct, *arena;

HELP void beds_load(void)
{
    caching = policy_load("caching");
    direct = policy_load("direct");
    arena = policy_load("arena");
}

struct bed {                            /* a policy and its fake device memory */
    struct paper paper;
    const ctrt_memory_policy *table;
    void *policy;
};

HELP bool bed_make(struct bed *bed, const ctrt_memory_policy *table, const char *options, uint64_t bytes, size_t page_bytes)
{
    paper_init(&bed->paper, bytes, page_bytes);
    bed->table = table;
    return CHECK(table->create(&bed->policy, &bed->paper.source, options) == CTRT_OK, "\"%s\": %s", options, host_error);
}

HELP void bed_end(struct bed *bed)
{
    bed->table->destroy(bed->policy);
    paper_end(&bed->paper);
}

HELP ctrt_block take(struct bed *bed, size_t bytes, int queue)
{
    ctrt_block block = { 0 };
    ctrt_status status = bed->table->alloc(bed->policy, &block, bytes, QUEUE(queue));
    CHECK(status == CTRT_OK, "%zu bytes: %s", bytes, host_error);
    return block;
}

HELP void give(struct bed *bed, ctrt_block *block)
{
    block->fence = NULL;
    bed->table->free(bed->policy, block, NULL);
}

HELP void give_later(struct bed *bed, ctrt_block *block, struct paper_fence *fence)
{
    block->fence = fence;
    bed->table->free(bed->policy, block, NULL);
    block->fence = NULL;
}

HELP ctrt_memory_policy_stats stats_of(struct bed *bed)
{
    ctrt_memory_policy_stats stats = { .size = sizeof stats };
    bed->table->stats(bed->policy, &stats);
    return stats;
}

#endif
