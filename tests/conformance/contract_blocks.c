/* SPDX-License-Identifier: Apache-2.0 */
/* contract_blocks.c: blocks of the policy under test, and comparison of its statistics and of walk with the source. */
#include "contract_blocks.h"

struct policy_under_test pol;

void policy_begin(size_t capacity, uint32_t flags)
{
    source_init(&pol.source, capacity, flags, pol.moves);
    CALL(pol.table->create(&pol.state, &pol.source.source, contract_target.options), "create");
}

/* Everything has been freed: destroy has to return all memory and all fences. */
void policy_finish(void)
{
    contract_step("destroy");
    pol.table->destroy(pol.state);
    EXPECT(pol.source.used == 0, "%zu bytes of the source were not returned", pol.source.used);
    EXPECT(pol.source.fences == 0, "%ld fences were not freed", pol.source.fences);
    EXPECT(pol.source.ranges == 0, "%ld reserved ranges of addresses were not returned", pol.source.ranges);
}

/* ---- blocks ---- */

struct live live[LIVE];

size_t live_size(uint32_t *state)
{
    static const size_t most[] = { 100, 3000, 70000, MIB, 6 * MIB, 14 * MIB };
    *state = *state * 1664525u + 1013904223u;
    const size_t limit = most[*state >> 8 & 0xff ? (*state >> 8) % 5 : 5];
    return 1 + (*state >> 10) % limit;
}

bool policy_on_host(void)
{
    return (pol.source.source.device_flags & CTRT_DEVICE_HOST_MEMORY) != 0;
}

/* The first user of the block: orders it after the block's fence, and uses the memory. */
static void live_check(struct source *s, struct live *l)
{
    const char *address = l->block.address;
    EXPECT(address != NULL, "returned CTRT_OK and no address");
    EXPECT((uintptr_t)address % 64 == 0, "returned %p, which is not aligned to 64 bytes", (void *)l->block.address);
    EXPECT(l->block.bytes >= l->bytes, "wrote %zu bytes, fewer than the requested %zu", l->block.bytes, l->bytes);
    for (int i = 0; i < LIVE; i++)
        EXPECT(&live[i] == l || live[i].bytes == 0 || address + l->bytes <= (char *)live[i].block.address
                   || (char *)live[i].block.address + live[i].bytes <= address,
               "returned %p, which overlaps the allocated block at %p", (void *)l->block.address,
               live[i].block.address);
    EXPECT(pol.fences || l->block.fence == NULL, "returned a fence, without CTRT_MEMORY_FENCES");
    if (!pol.moves || policy_on_host())
        EXPECT(source_region(s, address, l->bytes) != NULL, "returned %p, which is not memory of the source",
               (void *)l->block.address);
    if (l->block.fence != NULL) {
        source_finish(s, l->block.fence, QUEUE(l->queue));
        l->block.fence = NULL;
    }
}

void *live_address(struct live *l, int queue)
{
    void *address = l->block.address;
    if (pol.moves && !policy_on_host())
        CALL(pol.table->use(pol.state, &l->block, QUEUE(queue), &address), "use of a block of %zu bytes", l->bytes);
    EXPECT(source_region(&pol.source, address, l->bytes) != NULL, "wrote %p, which is not memory of the source",
           address);
    return address;
}

/* Work on `queue` uses the block. */
void live_use(struct live *l, int queue)
{
    void *address = live_address(l, queue);
    source_use(&pol.source, address, l->bytes, queue);
    if (pol.moves && !policy_on_host())
        pol.table->unuse(pol.state, &l->block, QUEUE(queue));
}

ctrt_status live_try(struct live *l, size_t bytes, int queue, bool spare)
{
    *l = (struct live){ .queue = queue };
    memset(&l->block, 0x5a, sizeof l->block);
    l->block.address = l->block.fence = NULL;
    contract_step("%s of %zu bytes", spare ? "alloc_spare" : "alloc", bytes);
    ctrt_status status = (spare ? pol.table->alloc_spare : pol.table->alloc)(pol.state, &l->block, bytes,
                                                                     policy_on_host() ? NULL : QUEUE(queue));
    if (status == CTRT_OK) {
        l->bytes = bytes;
        live_check(&pol.source, l);
    }
    return status;
}

void live_new(struct live *l, size_t bytes, int queue)
{
    contract_ok(live_try(l, bytes, queue, false));
}

void live_free(struct live *l)
{
    ctrt_block block = l->block;
    if (l->bytes == 0)
        return;
    if (l->others != 0 && l->epoch == pol.source.epoch) {
        block.fence = source_fence(&pol.source, l->others);
        if (!pol.fences) {
            source_finish(&pol.source, block.fence, NULL);
            block.fence = NULL;
        }
    }
    l->bytes = 0;
    contract_step("free");
    pol.table->free(pol.state, &block, policy_on_host() ? NULL : QUEUE(l->queue));
}

void live_free_all(void)
{
    for (int i = 0; i < LIVE; i++)
        live_free(&live[i]);
}

void policy_trim(void)
{
    contract_step("trim");
    if (CTRT_SLOT(pol.table, trim))
        pol.table->trim(pol.state);
}

/* ---- what the policy reports ---- */

const ctrt_stat *policy_stat(const ctrt_memory_policy_stats *stats, int i)
{
    const ctrt_stat *const all[] = { stats->segment, stats->reserved, stats->inactive_split,
                                     stats->inactive_split_bytes };
    const ctrt_stat *const last[] = { &stats->oversize_segment, &stats->spilled, &stats->spilled_bytes };
    return i < 12 ? &all[i / 3][i % 3] : last[i - 12];
}

ctrt_memory_policy_stats policy_stats(void)
{
    ctrt_memory_policy_stats stats = { .size = sizeof stats };
    contract_step("stats");
    pol.table->stats(pol.state, &stats);
    for (int i = 0; i < 15; i++) {
        const ctrt_stat *stat = policy_stat(&stats, i);
        EXPECT(stat->current == stat->allocated - stat->freed && stat->peak >= stat->current && stat->current >= 0,
               "statistic %d: current %lld, peak %lld, allocated %lld, freed %lld", i, (long long)stat->current,
               (long long)stat->peak, (long long)stat->allocated, (long long)stat->freed);
    }
    return stats;
}

void policy_check_stats(void)
{
    size_t used = 0;
    const ctrt_memory_policy_stats stats = policy_stats();
    for (int i = 0; i < LIVE; i++)
        used += live[i].bytes;
    EXPECT(stats.reserved_bytes == pol.source.used, "reserved_bytes is %llu, but %zu bytes of the source are allocated",
           (unsigned long long)stats.reserved_bytes, pol.source.used);
    EXPECT((uint64_t)stats.reserved[CTRT_POOL_ALL].current == pol.source.used,
           "reserved is %lld, but %zu bytes of the source are allocated",
           (long long)stats.reserved[CTRT_POOL_ALL].current, pol.source.used);
    EXPECT(pol.source.ranges > 0
               || (stats.source_allocs == pol.source.allocs && stats.source_frees == pol.source.frees),
           "source_allocs and source_frees are %llu and %llu, but the source was called %llu and %llu times",
           (unsigned long long)stats.source_allocs, (unsigned long long)stats.source_frees,
           (unsigned long long)pol.source.allocs, (unsigned long long)pol.source.frees);
    EXPECT(pol.moves || stats.cached_bytes + used <= pol.source.used,
           "cached_bytes is %llu, with %zu bytes in use of %zu of the source", (unsigned long long)stats.cached_bytes,
           used, pol.source.used);
    EXPECT(stats.largest_free <= stats.cached_bytes, "largest_free is more than cached_bytes");
}

static struct { char *end, *next; size_t segments; int active; } walked;

static void walk_visit(const ctrt_memory_piece *piece, void *argument)
{
    char *const address = piece->address;
    EXPECT(argument == &walked, "visit did not get the argument");
    EXPECT(piece->size >= offsetof(ctrt_memory_piece, name), "a piece has the size %zu", piece->size);
    if (piece->segment) {
        EXPECT(walked.next == walked.end, "the blocks of a segment do not fill it");
        EXPECT(source_region(&pol.source, address, piece->bytes) != NULL, "a segment at %p is not memory of the source",
               (void *)address);
        walked.next = address;
        walked.end = address + piece->bytes;
        walked.segments += piece->bytes;
        return;
    }
    EXPECT(address == walked.next && piece->bytes > 0 && address + piece->bytes <= walked.end,
           "a block of %zu bytes at %p does not follow the block before it", piece->bytes, (void *)address);
    walked.next += piece->bytes;
    int inside = 0;
    for (int i = 0; i < LIVE && !pol.moves; i++)
        inside += live[i].bytes > 0 && (char *)live[i].block.address >= address
                  && (char *)live[i].block.address + live[i].bytes <= walked.next;
    EXPECT(pol.moves || inside == (piece->block_state == CTRT_BLOCK_ACTIVE),
           "a block at %p has the state %d and contains %d allocated blocks", (void *)address, piece->block_state,
           inside);
    walked.active += piece->block_state == CTRT_BLOCK_ACTIVE;
}

void policy_check_walk(void)
{
    int count = 0;
    for (int i = 0; i < LIVE; i++)
        count += live[i].bytes > 0;
    memset(&walked, 0, sizeof walked);
    contract_step("walk");
    pol.table->walk(pol.state, walk_visit, &walked);
    EXPECT(walked.next == walked.end, "the blocks of the last segment do not fill it");
    EXPECT(walked.segments == pol.source.used, "the segments have %zu bytes, but %zu bytes of the source are allocated",
           walked.segments,
           pol.source.used);
    EXPECT(walked.active == count || pol.moves, "%d blocks are active, but %d are allocated", walked.active, count);
}
