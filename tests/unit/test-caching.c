/* SPDX-License-Identifier: Apache-2.0 */
/* The memory policies caching, direct and arena on a fake memory source: sizes, options, fences, expandable segments,
 * fork, host memory, failing allocations. test-caching-model.c tests the choice of blocks, statistics and the walk of
 * caching, test-dryrun.c its clone. */
#include "base/host_alloc.h"
#include "child.h"
#include "memory_host.h"

TEST(sizes, NULL)
{
    static const char by_size[] = "roundup=[256:1,512:2,1024:4,>:8]";
    static const char from_64[] = "roundup=[64:8,128:2,256:2,512:2,1024:1,>:1]";
    static const struct { const char *options; size_t asked, bytes, segment; } cases[] = {
        { "", 512, 512, 2 * MIB },
        { "", 513, 1024, 2 * MIB },
        { "", 1048576, 1048576, 2 * MIB },
        { "", 1048577, 1049088, 20 * MIB },
        { "", 10485248, 10485248, 20 * MIB },
        { "", 10485249, 10485760, 10 * MIB },
        { "", 10485761, 10486272, 12 * MIB },
        { "", 11534336, 12582912, 12 * MIB },                   /* exactly 1 MiB would remain, so no split */
        { "", 19922944, 20971520, 20971520 },
        { "roundup=4", 1200, 1536, 2 * MIB },                   /* up to 512 * 4: multiples of 512 */
        { "roundup=4", 1025 * KIB, 1280 * KIB, 20 * MIB },
        { "roundup=4", 1793 * KIB, 2048 * KIB, 20 * MIB },
        { "roundup=8", 84 * MIB, 88 * MIB, 88 * MIB },
        { "roundup=1", 1025, 1536, 2 * MIB },
        { from_64, 33 * MIB, 36 * MIB, 36 * MIB },              /* below the first size */
        { from_64, 400 * MIB, 512 * MIB, 512 * MIB },
        { by_size, 300 * MIB, 300 * MIB, 300 * MIB },
        { by_size, 513 * MIB, 768 * MIB, 768 * MIB },
        { by_size, 2049 * MIB, 2304 * MIB, 2304 * MIB },
        { "large_segment=40m", 11 * MIB, 11 * MIB, 40 * MIB },
        { "large_segment=4m", 3 * MIB, 4 * MIB, 4 * MIB },
    };
    EACH(c, cases) {
        struct fixture f;
        group("sizes as PyTorch's: %zu bytes, options \"%s\"", c->asked, c->options);
        fixture_begin(&f, caching, c->options, 8192 * MIB, 0);
        ctrt_block block = alloc_block(&f, c->asked, 1);
        ctrt_memory_policy_stats stats = stats_of(&f);
        const int pool = c->bytes > MIB ? CTRT_POOL_LARGE : CTRT_POOL_SMALL;
        const size_t rest = c->segment - c->bytes;
        CHECK_EQ(block.bytes, c->bytes);
        CHECK_EQ(stats.reserved_bytes, c->segment);
        CHECK_EQ(f.source.used, c->segment);
        CHECK_EQ(stats.segment[pool].current, 1);
        CHECK_EQ(stats.cached_bytes, rest);
        CHECK_EQ(stats.largest_free, rest);
        CHECK_EQ(stats.inactive_split_bytes[pool].current, rest);
        free_after(&f, &block, NULL);
        CHECK_EQ(stats_of(&f).inactive_split[CTRT_POOL_ALL].current, 0);
        caching->trim(f.policy);
        stats = stats_of(&f);
        CHECK_EQ(stats.reserved[pool].freed, c->segment);
        CHECK_EQ(f.source.used, 0);
        fixture_end(&f);
    }
}

TEST(options, "options are read, and invalid ones rejected by name")
{
    const struct { const ctrt_memory_policy *policy; const char *options, *words; } bad[] = {
        { caching, "max_splt=64m", "caching has no option \"max_splt\"; known: max_split, gc, roundup, expandable, "
                                   "large_segment, max_rounding; did you mean max_split?" },
        { caching, "max_split=20m", "max_split must be a size above 20m" },
        { caching, "max_split=64q", "max_split must" },
        { caching, "max_split=30m,large_segment=40m", "max_split must be a size above 40m" },
        { caching, "gc=1", "gc must be a share of the device's memory between 0 and 1, not \"1\"" },
        { caching, "gc=0", "gc must be" },
        { caching, "gc=-0.5", "gc must be" },
        { caching, "roundup=3", "roundup must be a power of two" },
        { caching, "roundup=[256:1,512:3]", "roundup must be" },
        { caching, "roundup=[512:1,256:2]", "roundup must be" },
        { caching, "roundup=[300:1]", "roundup must be" },
        { caching, "roundup=[256:1", "roundup must be" },
        { caching, "roundup=[]", "roundup must be" },
        { caching, "roundup=[>:4,256:2]", "roundup must be" },
        { caching, "expandable=maybe", "expandable must be true or false" },
        { caching, "large_segment=3m", "large_segment must be a multiple of 2m" },
        { caching, "max_rounding=0", "max_rounding must be a size" },
        { direct, "x=1", "direct has no options" },
        { arena, "chnk=1m", "arena has no option \"chnk\"; known: chunk; did you mean chunk?" },
        { arena, "chunk=1k", "chunk must be a size of at least 1m" },
    };
    static const char *const good[] = {
        "max_split=64m", "max_split=21m,gc=0.8", "gc=0.999", "roundup=1024", "roundup=[1:2,>:4],max_split=1g",
        "expandable=off", "large_segment=4m", "max_rounding=1m,max_split=22m", "expandable=true",
    };
    struct fixture f;
    source_init(&f.source, MIB, 0);
    EACH(c, bad)
        CHECK_FAILS(c->policy->create(&f.policy, &f.source.source, c->options), CTRT_ERR_INVALID_ARGUMENT, c->words);
    f.source.source.total_bytes = 0;            /* gc is a share of the device's memory */
    CHECK_EQ(caching->create(&f.policy, &f.source.source, "gc=0.5"), CTRT_ERR_NOT_SUPPORTED);
    source_end(&f.source);
    log_keep(CTRT_LOG_INFO);
    EACH(text, good) {
        CHECK_STR(logged, "");
        fixture_begin(&f, caching, *text, 64 * MIB, 0);
        fixture_end(&f);
    }
    CHECK_HAS(logged, "cannot map pages");
}

static bool has_work(const struct fake_fence *fence, uint32_t work)
{
    for (; fence != NULL; fence = fence->next)
        if (fence->work == work)
            return true;
    return false;
}

#define OTHERS "direct and arena: walk visits every segment and its blocks in address order; fences are not lost"
FIXTURE_TEST(others, direct, OTHERS, "", 1024 * MIB, 0)
{
    const bool caches = f->table == arena;                      /* direct frees */
    ctrt_block blocks[30];
    for (int k = 0; k < 30; k++)
        blocks[k] = alloc_block(f, (size_t)(k % 7 + 1) * 300000, 3);
    for (int k = 0; k < 30; k += 4)
        free_after(f, &blocks[k], source_work(&f->source));
    const struct walk walk = walk_of(f);
    CHECK_EQ(walk.wrong, 0);
    CHECK_EQ(walk.reserved, stats_of(f).reserved_bytes);
    CHECK_EQ(walk.segments, stats_of(f).segment[CTRT_POOL_ALL].current);
    CHECK_EQ(walk.active_blocks, 22);
    CHECK_EQ(walk.awaiting > 0, caches);
    CHECK_EQ(source_waits(&f->source, 1, HOST_WAITS), !caches);
    free_blocks(f, blocks, 30);
    CHECK_EQ(f->source.used > 0, caches);
    ctrt_block a = alloc_block(f, 4096, 3);
    CHECK(source_waits(&f->source, 1, 3) || has_work(a.fence, 1), "the fence was lost");
    if (a.fence != NULL)
        source_fence_free(&f->source, a.fence);
    free_after(f, &a, source_work(&f->source));
}
FIXTURE_AGAIN(others, arena, OTHERS, "", 1024 * MIB, 0)

FIXTURE_TEST(expandable, caching,
             "expandable segments: one range for each pool, grown by pages, trimmed to the pages in use",
             "expandable=true", 256 * MIB, 2 * MIB)
{
    ctrt_block a = alloc_block(f, 100, 1);
    CHECK_EQ(f->source.used, 2 * MIB);
    CHECK_EQ(f->source.reserved_ranges, 1);
    ctrt_block b = alloc_block(f, 15 * MIB, 1), c = alloc_block(f, 10 * MIB, 1), d = alloc_block(f, 30 * MIB, 1);
    char *start = b.address;
    CHECK_EQ(ADDRESS(c.address), ADDRESS(start + 15 * MIB));
    CHECK_EQ(ADDRESS(d.address), ADDRESS(start + 25 * MIB));
    CHECK_EQ(f->source.used, 62 * MIB);
    CHECK_EQ(f->source.maps, 4);
    CHECK_EQ(stats_of(f).segment[CTRT_POOL_LARGE].current, 1);
    CHECK_EQ(stats_of(f).reserved_bytes, 62 * MIB);
    CHECK_EQ(stats_of(f).inactive_split[CTRT_POOL_ALL].current, 0);
    free_after(f, &b, NULL);
    ctrt_block e = alloc_block(f, 16 * MIB, 1);                /* fits no hole: the tail grows */
    CHECK_EQ(ADDRESS(e.address), ADDRESS(start + 55 * MIB));
    CHECK_EQ(f->source.used, 82 * MIB);
    free_after(f, &e, NULL);
    b = alloc_block(f, 4 * MIB, 1);
    CHECK_EQ(ADDRESS(b.address), ADDRESS(start));
    /* trim unmaps whole pages of 2 MiB: of the free range from 4 to 15 MiB those from 4 to 14, of the tail from 55 to
     * 80 MiB those from 56 to 80. */
    caching->trim(f->policy);
    CHECK_EQ(f->source.used, 2 * MIB + (80 - 10 - 24) * MIB);
    CHECK_EQ(stats_of(f).segment[CTRT_POOL_LARGE].current, 2);
    e = alloc_block(f, 9 * MIB, 1);
    CHECK_EQ(ADDRESS(e.address), ADDRESS(start + 4 * MIB));
    free_blocks(f, (ctrt_block[]){ e, a, b, c, d }, 5);
}

FIXTURE_TEST(expandable_full, caching,
             "expandable segments: when the device is full, free pages are unmapped, then single pages are mapped",
             "expandable=true", 50 * MIB, 2 * MIB)
{
    ctrt_block a = alloc_block(f, 19 * MIB, 1), b = alloc_block(f, 19 * MIB, 1), c, d;
    CHECK_EQ(f->source.used, 40 * MIB);
    c = alloc_block(f, 11 * MIB, 1);           /* the tail has 2 MiB, the device 10: less than one step of 20 MiB */
    CHECK_EQ(f->source.used, 50 * MIB);
    CHECK_EQ(stats_of(f).retries, 1);
    free_after(f, &a, NULL);
    d = alloc_block(f, 12 * MIB, 2);           /* free pages of queue 1 are unmapped for queue 2 */
    CHECK_EQ(f->source.used, 44 * MIB);
    CHECK_EQ(stats_of(f).retries, 2);
    free_blocks(f, (ctrt_block[]){ b, c, d }, 3);
}

static struct fixture *forking;
static int unmapped_runs;

/* Checks in the child: it reuses the run that is still mapped and maps the other two again. */
static void check_child(struct fixture *f)
{
    const uint64_t maps = f->source.maps;
    CHECK_EQ(stats_of(f).reserved_bytes, 3 * 20 * MIB);
    CHECK_EQ(walk_of(f).reserved, 3 * 20 * MIB);
    CHECK_EQ(stats_of(f).segment[CTRT_POOL_LARGE].current, 2);
    for (uint64_t i = 0; i < 3; i++) {
        alloc_block(f, 20 * MIB, 1);
        CHECK_EQ(f->source.maps, maps + i);
    }
    CHECK_EQ(stats_of(f).reserved_bytes, 5 * 20 * MIB);
    CHECK_EQ(stats_of(f).segment[CTRT_POOL_LARGE].current, 1);
}

/* Forks at the second of three unmaps: the first run of pages is unmapped, the third has not been begun. */
static void fork_now(struct fake_source *source, void *address, size_t bytes)
{
    (void)address, (void)bytes;
    if (++unmapped_runs != 2)
        return;
    IN_FORK {
        alarm(10);
        pthread_mutex_init(&source->lock, NULL);
        source->on_free = NULL;
        check_child(forking);
    }
}

FIXTURE_TEST(forked, caching,
             "expandable segments: a child forked during trim keeps the pages still mapped and maps the others again",
             "expandable=true", 256 * MIB, 2 * MIB)
{
    ctrt_block blocks[5];
    forking = f;
    for (int i = 0; i < 5; i++)
        blocks[i] = alloc_block(f, 20 * MIB, 1);
    for (int i = 0; i < 5; i += 2)
        free_after(f, &blocks[i], NULL);
    f->source.on_free = fork_now;
    caching->trim(f->policy);
    f->source.on_free = NULL;
    CHECK_EQ(unmapped_runs, 3);
    free_blocks(f, blocks, 5);
}

FIXTURE_TEST(arena_chunks, arena,
             "arena: after a step that frees everything, the next step gets the same addresses from the same chunks",
             "chunk=8m", 64 * MIB, 0)
{
    ctrt_block blocks[20], block = { 0 };
    void *first[20];
    for (int step = 0; step < 5; step++) {
        for (int k = 0; k < 20; k++) {
            blocks[k] = alloc_block(f, MIB - 1000 * (size_t)k, 1);
            if (step == 0)
                first[k] = blocks[k].address;
            CHECK(blocks[k].address == first[k], "step %d, block %d has another address than in step 0", step, k);
        }
        for (int k = 0; k < 20; k++)
            free_after(f, &blocks[(k * 7) % 20], NULL);
    }
    CHECK_EQ(f->source.allocs, 3);
    CHECK_EQ(f->source.used, 24 * MIB);
    /* A live block pins its chunk up to its own end; the space after it is reused. */
    ctrt_block keep = alloc_block(f, MIB, 1), after = alloc_block(f, MIB, 1);
    free_after(f, &after, NULL);
    after = alloc_block(f, MIB, 1);
    CHECK_EQ(ADDRESS(after.address), ADDRESS(keep.address) + MIB);
    free_after(f, &after, NULL);
    ctrt_block big = alloc_block(f, 30 * MIB, 1);
    CHECK_EQ(big.bytes, 30 * MIB);
    CHECK_EQ(f->source.used, 54 * MIB);
    free_after(f, &big, NULL);
    big = alloc_block(f, 40 * MIB, 2);         /* does not fit until empty chunks are freed */
    CHECK_EQ(f->source.used, 48 * MIB);
    CHECK_EQ(stats_of(f).retries, 1);
    CHECK_EQ(arena->alloc(f->policy, &block, 60 * MIB, QUEUE(1)), CTRT_ERR_OUT_OF_MEMORY);
    free_blocks(f, (ctrt_block[]){ keep, big }, 2);
}

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISONED(address) __asan_address_is_poisoned(address)
#define POISONS           true
#else
#define POISONED(address) ((void)(address), false)
#define POISONS           false
#endif

static ctrt_status real_alloc(void *state, void **address, size_t bytes, void *queue)
{
    (void)state, (void)queue;
    return posix_memalign(address, 4096, bytes) == 0 ? CTRT_OK : CTRT_ERR_OUT_OF_MEMORY;
}

static void real_free(void *state, void *address, size_t bytes, void *queue)
{
    (void)state, (void)queue;
    memset(address, 1, bytes);          /* under AddressSanitizer no byte may be poisoned any more */
    free(address);
}

TEST(real_memory, "host memory: tiny blocks start at different cache lines; AddressSanitizer poisons free blocks")
{
    ctrt_memory_source source = {
        .size = sizeof source, .alloc = real_alloc, .free = real_free, .device_name = "real:0",
        .device_flags = CTRT_DEVICE_HOST_MEMORY, .total_bytes = 1024 * MIB,
    };
    void *policy = NULL;
    ctrt_block blocks[32];
    unsigned lines = 0;
    CHECK_OK(caching->create(&policy, &source, ""));
    for (int i = 0; i < 32; i++) {
        CHECK_OK(caching->alloc(policy, &blocks[i], 4, NULL));
        memset(blocks[i].address, i, 4);
        lines |= 1u << ADDRESS(blocks[i].address) / 64 % 8;
        CHECK_EQ(blocks[i].bytes, 512);
        CHECK_EQ(ADDRESS(blocks[i].address) % 64, 0);
        CHECK_EQ(POISONED(blocks[i].address), false);
        CHECK_EQ(POISONED((char *)blocks[i].address + 4), POISONS);
    }
    CHECK(lines == 0xff, "the cache lines (modulo 8) of tiny blocks are %#x, expected 0xff", lines);
    for (int i = 0; i < 32; i++) {
        const unsigned char *at = blocks[i].address;
        CHECK_EQ(at[3], i);
        caching->free(policy, &blocks[i], NULL);
        CHECK_EQ(POISONED(at), POISONS);
    }
    caching->destroy(policy);
}

TEST(host_memory, "when the policy's own n-th allocation fails, alloc fails or returns a larger block, and no bytes "
                  "are lost")
{
    static const size_t sizes[] = { 8, 5000, 700000, 2 * MIB, 12 * MIB, 600, 700 };
    for (uint64_t n = 1; n < 20; n++) {
        struct fixture f;
        ctrt_block blocks[COUNT(sizes)] = { { 0 } };
        fixture_begin(&f, caching, "", 256 * MIB, 0);
        alloc_fail_at(n, false);
        for (size_t i = 0; i < COUNT(sizes); i++)
            if (caching->alloc(f.policy, &blocks[i], sizes[i], QUEUE(1 + i % 2)) != CTRT_OK)
                blocks[i].address = NULL;
        free_blocks(&f, blocks, COUNT(sizes));
        alloc_fail_at(0, false);
        CHECK_EQ(stats_of(&f).cached_bytes, f.source.used);
        fixture_end(&f);
    }
}

TEST_MAIN
{
    policies_load();
    return run_tests();
}
