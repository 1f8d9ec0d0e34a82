/* SPDX-License-Identifier: Apache-2.0 */
/* contract_memory.c: checks of memory policies, on the source of contract_source.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract_source.h"

#include <pthread.h>
#include <stdatomic.h>

#define MIB ((size_t)1 << 20)
enum { LIVE = 48 };

static const ctrt_memory_policy *table;
static void *policy;
static bool moves, fences;
static struct source first, second;

static void policy_begin(size_t capacity, uint32_t flags)
{
    source_init(&first, capacity, flags, moves);
    CALL(table->create(&policy, &first.source, ""), "create");
}

/* Everything has been freed: destroy has to return all memory and all fences. */
static void policy_finish(void)
{
    contract_step("destroy");
    table->destroy(policy);
    EXPECT(first.used == 0, "%zu bytes of the source were not returned", first.used);
    EXPECT(first.fences == 0, "%ld fences were not freed", first.fences);
}

/* ---- blocks ---- */

struct live {
    ctrt_block block;
    size_t bytes;
    int queue;
    uint64_t others;                            /* work of other queues that uses the block, in this epoch */
    unsigned epoch, seed;
};
static struct live live[LIVE];

static size_t live_size(uint32_t *state)
{
    static const size_t most[] = { 100, 3000, 70000, MIB, 6 * MIB, 14 * MIB };
    *state = *state * 1664525u + 1013904223u;
    const size_t limit = most[*state >> 8 & 0xff ? (*state >> 8) % 5 : 5];
    return 1 + (*state >> 10) % limit;
}

static bool host_memory(void)
{
    return (first.source.device_flags & CTRT_DEVICE_HOST_MEMORY) != 0;
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
    EXPECT(fences || l->block.fence == NULL, "returned a fence, without CTRT_MEMORY_FENCES");
    if (!moves || host_memory())
        EXPECT(source_region(s, address, l->bytes) != NULL, "returned %p, which the source did not lend",
               (void *)l->block.address);
    if (l->block.fence != NULL) {
        source_finish(s, l->block.fence, QUEUE(l->queue));
        l->block.fence = NULL;
    }
}

static void *live_address(struct live *l, int queue)
{
    void *address = l->block.address;
    if (moves && !host_memory())
        CALL(table->use(policy, &l->block, QUEUE(queue), &address), "use of a block of %zu bytes", l->bytes);
    EXPECT(source_region(&first, address, l->bytes) != NULL, "wrote %p, which the source did not lend", address);
    return address;
}

/* Work on `queue` uses the block. */
static void live_use(struct live *l, int queue)
{
    void *address = live_address(l, queue);
    source_use(&first, address, l->bytes, queue);
    if (moves && !host_memory())
        table->unuse(policy, &l->block, QUEUE(queue));
}

static ctrt_status live_try(struct live *l, size_t bytes, int queue, bool spare)
{
    *l = (struct live){ .queue = queue };
    memset(&l->block, 0x5a, sizeof l->block);
    l->block.address = l->block.fence = NULL;
    contract_step("%s of %zu bytes", spare ? "alloc_spare" : "alloc", bytes);
    ctrt_status status = (spare ? table->alloc_spare : table->alloc)(policy, &l->block, bytes,
                                                                     host_memory() ? NULL : QUEUE(queue));
    if (status == CTRT_OK) {
        l->bytes = bytes;
        live_check(&first, l);
    }
    return status;
}

static void live_new(struct live *l, size_t bytes, int queue)
{
    contract_ok(live_try(l, bytes, queue, false));
}

static void live_free(struct live *l)
{
    ctrt_block block = l->block;
    if (l->bytes == 0)
        return;
    if (l->others != 0 && l->epoch == first.epoch) {
        block.fence = source_fence(&first, l->others);
        if (!fences) {
            source_finish(&first, block.fence, NULL);
            block.fence = NULL;
        }
    }
    l->bytes = 0;
    contract_step("free");
    table->free(policy, &block, host_memory() ? NULL : QUEUE(l->queue));
}

static void live_free_all(void)
{
    for (int i = 0; i < LIVE; i++)
        live_free(&live[i]);
}

static void policy_trim(void)
{
    contract_step("trim");
    if (CTRT_SLOT(table, trim))
        table->trim(policy);
}

/* ---- what the policy reports ---- */

static const ctrt_stat *stat_at(const ctrt_memory_policy_stats *stats, int i)
{
    const ctrt_stat *const all[] = { stats->segment, stats->reserved, stats->inactive_split,
                                     stats->inactive_split_bytes };
    const ctrt_stat *const last[] = { &stats->oversize_segment, &stats->spilled, &stats->spilled_bytes };
    return i < 12 ? &all[i / 3][i % 3] : last[i - 12];
}

static ctrt_memory_policy_stats stats_of(void)
{
    ctrt_memory_policy_stats stats = { .size = sizeof stats };
    contract_step("stats");
    table->stats(policy, &stats);
    for (int i = 0; i < 15; i++) {
        const ctrt_stat *stat = stat_at(&stats, i);
        EXPECT(stat->current == stat->allocated - stat->freed && stat->peak >= stat->current && stat->current >= 0,
               "statistic %d: current %lld, peak %lld, allocated %lld, freed %lld", i, (long long)stat->current,
               (long long)stat->peak, (long long)stat->allocated, (long long)stat->freed);
    }
    return stats;
}

static void stats_check(void)
{
    size_t used = 0;
    const ctrt_memory_policy_stats stats = stats_of();
    for (int i = 0; i < LIVE; i++)
        used += live[i].bytes;
    EXPECT(stats.reserved_bytes == first.used, "reserved_bytes is %llu, but the source has lent %zu",
           (unsigned long long)stats.reserved_bytes, first.used);
    EXPECT((uint64_t)stats.reserved[CTRT_POOL_ALL].current == first.used,
           "reserved is %lld, but the source has lent %zu",
           (long long)stats.reserved[CTRT_POOL_ALL].current, first.used);
    EXPECT(stats.source_allocs == first.allocs && stats.source_frees == first.frees,
           "source_allocs and source_frees are %llu and %llu, but the source was called %llu and %llu times",
           (unsigned long long)stats.source_allocs, (unsigned long long)stats.source_frees,
           (unsigned long long)first.allocs, (unsigned long long)first.frees);
    EXPECT(moves || stats.cached_bytes + used <= first.used,
           "cached_bytes is %llu, with %zu bytes in use of %zu of the source", (unsigned long long)stats.cached_bytes,
           used, first.used);
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
        EXPECT(source_region(&first, address, piece->bytes) != NULL, "a segment at %p is not memory of the source",
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
    for (int i = 0; i < LIVE && !moves; i++)
        inside += live[i].bytes > 0 && (char *)live[i].block.address >= address
                  && (char *)live[i].block.address + live[i].bytes <= walked.next;
    EXPECT(moves || inside == (piece->block_state == CTRT_BLOCK_ACTIVE),
           "a block at %p has the state %d and contains %d allocated blocks", (void *)address, piece->block_state,
           inside);
    walked.active += piece->block_state == CTRT_BLOCK_ACTIVE;
}

static void walk_check(void)
{
    int count = 0;
    for (int i = 0; i < LIVE; i++)
        count += live[i].bytes > 0;
    memset(&walked, 0, sizeof walked);
    contract_step("walk");
    table->walk(policy, walk_visit, &walked);
    EXPECT(walked.next == walked.end, "the blocks of the last segment do not fill it");
    EXPECT(walked.segments == first.used, "the segments have %zu bytes, but the source has lent %zu", walked.segments,
           first.used);
    EXPECT(walked.active == count || moves, "%d blocks are active, but %d are allocated", walked.active, count);
}

/* ---- checks ---- */

/* Allocates, uses and frees blocks at random on all queues. `check` runs now and then. */
static void run_at_random(int rounds, uint32_t seed, void (*check)(void))
{
    uint32_t state = seed;
    for (int i = 0; i < rounds; i++) {
        state = state * 1664525u + 1013904223u;
        struct live *l = &live[(state >> 8) % LIVE];
        const int queue = (int)(state >> 16) % QUEUES;
        if (l->bytes == 0) {
            live_new(l, live_size(&state), queue);
            if (!host_memory())
                live_use(l, queue);
        } else if ((state >> 24) % 3 == 0 && !host_memory() && l->others == 0) {
            first.known[queue] |= first.known[l->queue];        /* as the library orders uses of one tensor */
            live_use(l, queue);
            l->others = queue != l->queue ? first.known[queue] : 0;
            l->epoch = first.epoch;
        } else {
            live_free(l);
        }
        if (check != NULL && i % 10 == 0)
            check();
    }
}

static void check_policy_names(void)
{
    char file[80];
    const char *name = contract_target.component->name, *slash = strrchr(contract_target.file, '/');
    EXPECT(name != NULL && name[0] >= 'a' && name[0] <= 'z' && strlen(name) < 32
               && name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0',
           "the component's name \"%s\" is not lower case, or has more than 31 characters", name);
    snprintf(file, sizeof file, "/memory-%s.so", name);
    EXPECT(strcmp(slash, file) == 0, "the file of component %s has to be called %s", name, file + 1);
    EXPECT(!moves || (CTRT_SLOT(table, use) && CTRT_SLOT(table, unuse)), "CTRT_MEMORY_MOVES requires use and unuse");
}

static void check_policy_options(void)
{
    const long before = contract_host_blocks();
    source_init(&first, 64 * MIB, CTRT_DEVICE_HOST_MEMORY, moves);
    for (int i = 0; i < 3; i++) {
        REFUSES(table->create(&policy, &first.source, "no_such_option=1"), CTRT_ERR_INVALID_ARGUMENT,
                "create with the options \"no_such_option=1\"");
        EXPECT(strstr(contract_failure.text, "no_such_option") != NULL, "the message does not contain the option: %s",
               contract_failure.text);
    }
    EXPECT(contract_host_blocks() <= before, "%ld blocks of host->alloc were not freed",
           contract_host_blocks() - before);
}

static void check_policy_create(void)
{
    long before = 0;
    for (int i = 0; i < 4; i++) {
        policy_begin(256 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
        run_at_random(30, 1, NULL);
        live_free_all();
        policy_finish();
        EXPECT(i < 2 || contract_host_blocks() <= before, "%ld blocks of host->alloc more than after the last destroy",
               contract_host_blocks() - before);
        before = contract_host_blocks();
    }
}

static void check_policy_sizes(void)
{
    policy_begin(4096 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    for (size_t bytes = 1; bytes < 256 * MIB; bytes = bytes * 3 / 2 + 1) {
        live_new(&live[0], bytes, 0);
        live_new(&live[1], bytes + 63, 1);
        live_free_all();
    }
    struct live l;
    for (int i = 0; i < 3; i++) {
        const size_t bytes = i == 0 ? SIZE_MAX : i == 1 ? SIZE_MAX / 2 : (size_t)PTRDIFF_MAX - 5;
        ctrt_status status = live_try(&l, bytes, 0, false);
        contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
    }
    policy_finish();
}

static void check_policy_content(void)
{
    uint32_t state = 7;
    policy_begin(512 * MIB, CTRT_DEVICE_HOST_MEMORY);
    for (unsigned i = 0; i < 300; i++) {
        state = state * 1664525u + 1013904223u;
        struct live *l = &live[(state >> 8) % LIVE];
        if (l->bytes == 0) {
            live_new(l, live_size(&state) / 4 + 1, 0);
            l->seed = i;
            contract_pattern(l->block.address, l->bytes, l->seed);
        } else {
            contract_expect_pattern(l->block.address, l->bytes, l->seed, "an allocated block");
            live_free(l);
        }
        if (i % 50 == 49)
            policy_trim();
    }
    live_free_all();
    policy_finish();
}

static void check_policy_order(void)
{
    for (unsigned seed = 1; seed < 9; seed++) {
        policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
        run_at_random(300, seed, NULL);
        live_free_all();
        policy_finish();
    }
}

static void check_policy_trim(void)
{
    if (!CTRT_SLOT(table, trim))
        contract_skip("it has no trim");
    policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    run_at_random(200, 3, NULL);
    for (int i = 1; i < LIVE; i++)
        live_free(&live[i]);
    if (live[0].bytes == 0)
        live_new(&live[0], 5000, 0);
    policy_trim();
    live_use(&live[0], live[0].queue);
    live_free_all();
    policy_trim();
    EXPECT(first.used == 0, "all blocks are free, but %zu bytes of the source were not returned", first.used);
    policy_finish();
}

static void check_policy_full(void)
{
    ctrt_status status = CTRT_OK;
    int n = 0;
    policy_begin(64 * MIB, CTRT_DEVICE_HOST_MEMORY);
    for (; n < LIVE && (status = live_try(&live[n], 3 * MIB, 0, false)) == CTRT_OK; n++)
        continue;
    EXPECT(n < LIVE && n >= 16, "%d blocks of 3 MiB fit into 64 MiB", n);
    contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
    for (int i = 0; i < n; i++)
        memset(live[i].block.address, i, live[i].bytes);
    live_free_all();
    status = live_try(&live[0], 40 * MIB, 0, false);
    if (status == CTRT_ERR_OUT_OF_MEMORY) {             /* as the library does */
        policy_trim();
        status = live_try(&live[0], 40 * MIB, 0, false);
    }
    contract_ok(status);
    live_free_all();
    policy_finish();
}

static void check_policy_failure(void)
{
    long before = 0;
    for (int cycle = 0; cycle < 4; cycle++) {
        policy_begin(2048 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
        for (int i = 0; i < 3; i++) {
            first.fails = CTRT_ERR_BACKEND;
            ctrt_status status = live_try(&live[0], 300 * MIB, 0, false);
            contract_refused(status, CTRT_ERR_BACKEND);
            first.fails = CTRT_OK;
            live_new(&live[i + 1], 300 * MIB, 0);
        }
        live_free_all();
        policy_finish();
        EXPECT(cycle < 2 || contract_host_blocks() <= before, "%ld blocks of host->alloc were not freed",
               contract_host_blocks() - before);
        before = contract_host_blocks();
    }
}

static void check_policy_host_memory(void)
{
    long before = 0;
    for (long n = -2; n < 200; n++) {
        contract_step("while call %ld of host->alloc fails", n);
        source_init(&first, 256 * MIB, CTRT_DEVICE_ASYNCHRONOUS, moves);
        contract_host_fail(n > 0 ? n : 0);
        ctrt_status status = table->create(&policy, &first.source, "");
        const bool created = status == CTRT_OK;
        for (int i = 0; i < 6 && status == CTRT_OK; i++)
            status = live_try(&live[i], 100000 << i, i % QUEUES, false);
        const bool failed = contract_host_failed();
        if (status != CTRT_OK)
            contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
        EXPECT(status == CTRT_OK || failed, "failed, although the host has memory");
        contract_host_fail(0);
        live_free_all();
        if (created)
            policy_finish();
        EXPECT(n <= 0 || contract_host_blocks() <= before, "%ld blocks of host->alloc were not freed",
               contract_host_blocks() - before);
        before = n <= 0 ? contract_host_blocks() : before;
        if (n > 0 && !failed)
            return;
    }
}

static void check_policy_stats(void)
{
    unsigned char room[sizeof(ctrt_memory_policy_stats) + 64];
    if (!CTRT_SLOT(table, stats))
        contract_skip("it has no stats");
    policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    for (size_t size = 16; size <= sizeof room; size += 64) {
        memset(room, 0x5a, sizeof room);
        memcpy(room, &size, sizeof size);
        contract_step("stats, size %zu", size);
        table->stats(policy, (ctrt_memory_policy_stats *)(void *)room);
        contract_expect_bytes(room + size, sizeof room - size, 0x5a, "after the end of the caller's struct");
    }
    run_at_random(300, 5, stats_check);
    policy_trim();
    stats_check();
    live_free_all();
    stats_check();
    policy_finish();
}

static void check_policy_peaks(void)
{
    if (!CTRT_SLOT(table, stats) || !CTRT_SLOT(table, reset_peaks))
        contract_skip("it has no stats or reset_peaks");
    policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    run_at_random(100, 5, NULL);
    const int64_t used = (int64_t)first.used;
    live_free_all();
    policy_trim();
    ctrt_memory_policy_stats stats = stats_of();
    EXPECT(stats.reserved[CTRT_POOL_ALL].peak >= used, "the peak of reserved is %lld, but %lld bytes were reserved",
           (long long)stats.reserved[CTRT_POOL_ALL].peak, (long long)used);
    contract_step("reset_peaks");
    table->reset_peaks(policy);
    stats = stats_of();
    for (int i = 0; i < 15; i++)
        EXPECT(stat_at(&stats, i)->peak == stat_at(&stats, i)->current,
               "after reset_peaks, statistic %d has the peak %lld, "
               "current is %lld", i, (long long)stat_at(&stats, i)->peak, (long long)stat_at(&stats, i)->current);
    policy_finish();
}

static void check_policy_walk(void)
{
    if (!CTRT_SLOT(table, walk))
        contract_skip("it has no walk");
    policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    run_at_random(300, 9, walk_check);
    live_free_all();
    walk_check();
    policy_trim();
    walk_check();
    policy_finish();
}

static void check_policy_clone(void)
{
    void *copy = NULL;
    if (!CTRT_SLOT(table, clone))
        contract_skip("it has no clone");
    policy_begin(1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    run_at_random(200, 11, NULL);
    const uint64_t allocs = first.allocs, frees = first.frees;
    const long fences_before = first.fences;
    source_init(&second, 1024 * MIB, CTRT_DEVICE_ASYNCHRONOUS, moves);
    second.forgotten = true;
    CALL(table->clone(policy, &copy, &second.source), "clone");
    for (int i = 0; i < 2; i++) {                       /* free the blocks of the original, then allocate new ones */
        for (int k = 0; k < LIVE; k += 2) {
            ctrt_block block = { 0 };
            if (live[k].bytes == 0)
                continue;
            if (i == 0)
                table->free(copy, &live[k].block, QUEUE(live[k].queue));
            else
                CALL(table->alloc(copy, &block, 30 * MIB, QUEUE(k % QUEUES)), "alloc of a clone");
            if (i == 1) {
                EXPECT(block.fence == NULL, "a clone returned a fence");
                table->free(copy, &block, QUEUE(k % QUEUES));
            }
        }
    }
    EXPECT(first.allocs == allocs && first.frees == frees && first.fences == fences_before,
           "a clone has called the original's source");
    if (CTRT_SLOT(table, walk))
        walk_check();
    contract_step("destroy of a clone");
    table->destroy(copy);
    EXPECT(first.allocs == allocs && first.frees == frees, "destroy of a clone has called the original's source");
    run_at_random(100, 12, CTRT_SLOT(table, stats) ? stats_check : NULL);
    live_free_all();
    policy_finish();
}

static void check_policy_spare(void)
{
    const bool slot = CTRT_SLOT(table, alloc_spare);
    policy_begin(64 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    if (moves && !slot)
        contract_skip("it moves blocks and has no alloc_spare");
    for (int i = 0; i < 12; i++)
        live_new(&live[i], 5 * MIB, 0);
    live_free_all();
    first.no_frees = true;
    ctrt_status status = live_try(&live[0], 62 * MIB, 0, slot);
    if (status != CTRT_OK)
        contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
    status = live_try(&live[1], 1000, 0, slot);
    if (status != CTRT_OK)
        contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
    first.no_frees = false;
    live_free_all();
    policy_finish();
}

static void policy_threads(int number)
{
    ctrt_block blocks[16];
    size_t sizes[16] = { 0 };
    uint32_t state = (uint32_t)number * 991 + 5;
    for (int i = 0; i < 1500; i++) {
        state = state * 1664525u + 1013904223u;
        const unsigned k = (state >> 8) % 16;
        if (sizes[k] == 0) {
            const size_t bytes = 1 + (state >> 12) % 9000;
            blocks[k] = (ctrt_block){ 0 };
            contract_ok(table->alloc(policy, &blocks[k], bytes, NULL));
            sizes[k] = bytes;
            contract_pattern(blocks[k].address, bytes, k * 4 + (unsigned)number);
        } else {
            contract_expect_pattern(blocks[k].address, sizes[k], k * 4 + (unsigned)number,
                                    "a block of one of four threads");
            table->free(policy, &blocks[k], NULL);
            sizes[k] = 0;
        }
        if (i % 100 == 0 && CTRT_SLOT(table, trim))
            table->trim(policy);
    }
    for (int k = 0; k < 16; k++)
        if (sizes[k] > 0)
            table->free(policy, &blocks[k], NULL);
}

static void check_policy_threads(void)
{
    policy_begin(1024 * MIB, CTRT_DEVICE_HOST_MEMORY);
    contract_step("alloc, free and trim in four threads");
    contract_in_threads(policy_threads, 4);
    policy_finish();
}

static atomic_bool forking_ends;

static void policy_child(void)
{
    ctrt_block block = { 0 };
    CALL(table->alloc(policy, &block, 3000, NULL), "alloc in a forked child");
    memset(block.address, 1, 3000);
    table->free(policy, &block, NULL);
}

static void policy_forks(int number)
{
    if (number > 0) {
        while (!forking_ends)
            policy_threads(number);
        return;
    }
    for (int i = 0; i < 30; i++)
        contract_join(contract_fork(policy_child));
    forking_ends = true;
}

static void check_policy_fork(void)
{
    policy_begin(1024 * MIB, CTRT_DEVICE_HOST_MEMORY);
    contract_step("fork while other threads allocate");
    contract_in_threads(policy_forks, 3);
    policy_finish();
}

static void check_policy_moves(void)
{
    enum { COUNT = 12, BYTES = 2 << 20 };
    void *address[COUNT], *again;
    unsigned count = 0;
    if (!moves)
        contract_skip("it does not move blocks");
    policy_begin(13 * MIB, CTRT_DEVICE_ASYNCHRONOUS);
    for (int round = 0; round < 3; round++)
        for (unsigned i = 0; i < (round == 0 ? COUNT : count); i++) {
            struct live *l = &live[i];
            if (round == 0 && live_try(l, BYTES, (int)i % QUEUES, false) != CTRT_OK)
                break;
            count = i >= count ? i + 1 : count;
            const int queue = l->queue;
            address[i] = live_address(l, queue);
            again = live_address(l, queue);
            EXPECT(again == address[i], "a block moved while it was in use");
            if (round == 0)
                contract_pattern(address[i], BYTES, i);
            contract_expect_pattern(address[i], BYTES, i, "a block that may have been moved");
            source_use(&first, address[i], BYTES, queue);
            contract_step("unuse");
            table->unuse(policy, &l->block, QUEUE(queue));
            table->unuse(policy, &l->block, QUEUE(queue));
        }
    EXPECT(count > 4, "%u blocks of 2 MiB fit into 13 MiB", count);
    if (CTRT_SLOT(table, stats))
        (void)stats_of();
    live_free_all();
    policy_finish();
}

static void policy_prepare(const void *given, unsigned needs)
{
    (void)needs;
    table = given;
    EXPECT(CTRT_SLOT(table, create) && CTRT_SLOT(table, destroy) && CTRT_SLOT(table, alloc) && CTRT_SLOT(table, free),
           "required slots are create, destroy, alloc and free");
    moves = CTRT_HAS(table, flags) && (table->flags & CTRT_MEMORY_MOVES);
    fences = CTRT_HAS(table, flags) && (table->flags & CTRT_MEMORY_FENCES);
}

static const struct contract_check checks[] = {
    { "names", check_policy_names, 0,
      "names are lower case and have at most 31 characters; the file is memory-NAME.so" },
    { "options", check_policy_options, 0,
      "an unknown option is CTRT_ERR_INVALID_ARGUMENT, with the option in the message" },
    { "create", check_policy_create, 0, "destroy returns all memory to the source, and frees the policy's own" },
    { "sizes", check_policy_sizes, 0,
      "blocks are aligned to 64 bytes, not smaller than requested, and memory of the source" },
    { "content", check_policy_content, 0, "the policy does not write to allocated blocks, which do not overlap" },
    { "order", check_policy_order, 0, "memory is used again, or returned, only after the work that uses it" },
    { "trim", check_policy_trim, 0, "trim returns cached memory, and nothing else" },
    { "full", check_policy_full, 0, "without memory, alloc fails; after free and trim it is available again" },
    { "failure", check_policy_failure, 0, "a failure of the source is passed on, and nothing is lost" },
    { "host.memory", check_policy_host_memory, 0,
      "if host->alloc fails, the call fails with a message, and nothing is lost" },
    { "stats", check_policy_stats, 0, "statistics are those of the source, and at most stats->size bytes are written" },
    { "peaks", check_policy_peaks, 0, "reset_peaks sets all peaks to the current values" },
    { "walk", check_policy_walk, 0, "walk visits each segment and then its blocks in order, which fill it" },
    { "clone", check_policy_clone, 0, "a clone changes neither the original nor its source" },
    { "spare", check_policy_spare, 0, "alloc_spare, or alloc without that slot, returns no memory to the source" },
    { "threads", check_policy_threads, 0, "slots may be called from any thread" },
    { "fork", check_policy_fork, 0, "on a device with host memory, a forked child goes on using the policy" },
    { "moves", check_policy_moves, 0,
      "use writes the address of the block's bytes, which does not change until unuse" },
    { NULL, NULL, 0, NULL },
};

const struct contract_kind contract_memory = { CTRT_COMPONENT_MEMORY, "memory", { checks }, policy_prepare };
