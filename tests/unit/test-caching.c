/* SPDX-License-Identifier: Apache-2.0 */
/* The memory policies on a fake memory source: PyTorch's sizes, segments and choice of blocks, options and fences. */
#include "tap.h"

#include "caching_reference.h"
#include "memory_bed.h"

/* ---- sizes ---- */

static void test_sizes(void)
{
    static const struct { size_t asked, bytes, segment; bool large; } cases[] = {
        { 1, 512, 2 * MIB, false },
        { 8, 512, 2 * MIB, false },
        { 512, 512, 2 * MIB, false },
        { 513, 1024, 2 * MIB, false },
        { 1048576, 1048576, 2 * MIB, false },
        { 1048577, 1049088, 20 * MIB, true },
        { 10485248, 10485248, 20 * MIB, true },
        { 10485249, 10485760, 10 * MIB, true },
        { 10485761, 10486272, 12 * MIB, true },
        { 11534336, 12582912, 12 * MIB, true },         /* exactly 1 MiB would remain, so no split */
        { 400000000, 400556032, 400556032, true },
        { 19922944, 20971520, 20971520, true },
    };
    group("caching rounds sizes and selects pools and segments as PyTorch does");
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bed bed;
        if (!bed_make(&bed, caching, "", 1024 * MIB, 0))
            return;
        ctrt_block block = take(&bed, cases[i].asked, 1);
        ctrt_memory_policy_stats stats = stats_of(&bed);
        int pool = cases[i].large ? CTRT_POOL_LARGE : CTRT_POOL_SMALL;
        CHECK(block.bytes == cases[i].bytes, "%zu bytes take %zu, expected %zu", cases[i].asked, block.bytes,
              cases[i].bytes);
        CHECK(stats.reserved_bytes == cases[i].segment && bed.paper.used == cases[i].segment,
              "%zu bytes reserve %llu, expected %zu", cases[i].asked, (unsigned long long)stats.reserved_bytes,
              cases[i].segment);
        CHECK(stats.segment[pool].current == 1 && stats.segment[CTRT_POOL_ALL].current == 1,
              "%zu bytes are not in the %s pool", cases[i].asked, cases[i].large ? "large" : "small");
        CHECK(stats.cached_bytes == cases[i].segment - cases[i].bytes && stats.largest_free == stats.cached_bytes,
              "%zu bytes leave %llu cached bytes", cases[i].asked, (unsigned long long)stats.cached_bytes);
        CHECK(stats.inactive_split_bytes[pool].current == (int64_t)(cases[i].segment - cases[i].bytes),
              "%zu bytes leave %lld inactive split bytes", cases[i].asked,
              (long long)stats.inactive_split_bytes[pool].current);
        give(&bed, &block);
        CHECK(stats_of(&bed).inactive_split[CTRT_POOL_ALL].current == 0, "a free segment is counted as split");
        bed_end(&bed);
    }
}

static void test_rounding(void)
{
    static const struct { const char *options; size_t asked, bytes; } cases[] = {
        { "roundup=4", 1200, 1536 },                            /* up to 512 * 4: multiples of 512 */
        { "roundup=4", 1200 * KIB, 1280 * KIB },
        { "roundup=4", 1024 * KIB, 1024 * KIB },
        { "roundup=4", 1025 * KIB, 1280 * KIB },
        { "roundup=4", 1793 * KIB, 2048 * KIB },
        { "roundup=8", 84 * MIB, 88 * MIB },
        { "roundup=8", 2049, 2560 },
        { "roundup=1", 1025, 1536 },
        { "roundup=[64:8,128:2,256:2,512:2,1024:1,>:1]", 84 * MIB, 88 * MIB },
        { "roundup=[64:8,128:2,256:2,512:2,1024:1,>:1]", 400 * MIB, 512 * MIB },
        { "roundup=[64:8,128:2,256:2,512:2,1024:1,>:1]", 33 * MIB, 36 * MIB },    /* below the first size */
        { "roundup=[256:1,512:2,1024:4,>:8]", 300 * MIB, 300 * MIB },
        { "roundup=[256:1,512:2,1024:4,>:8]", 513 * MIB, 768 * MIB },
        { "roundup=[256:1,512:2,1024:4,>:8]", 1025 * MIB, 1280 * MIB },
        { "roundup=[256:1,512:2,1024:4,>:8]", 2049 * MIB, 2304 * MIB },
        { "large_segment=40m", 11 * MIB, 11 * MIB },
        { "large_segment=4m", 3 * MIB, 4 * MIB },
    };
    group("roundup rounds to divisions of powers of two; large_segment changes the segment size");
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bed bed;
        if (!bed_make(&bed, caching, cases[i].options, 8192 * MIB, 0))
            continue;
        ctrt_block block = take(&bed, cases[i].asked, 1);
        CHECK(block.bytes == cases[i].bytes, "%s: %zu bytes take %zu, expected %zu", cases[i].options, cases[i].asked,
              block.bytes, cases[i].bytes);
        give(&bed, &block);
        bed_end(&bed);
    }
}

static void test_options(void)
{
    static const struct { const char *options, *words; } bad[] = {
        { "max_splt=64m",
          "caching has no option \"max_splt\"; known: max_split, gc, roundup, expandable, large_segment, "
                          "max_rounding; did you mean max_split?" },
        { "max_split=20m", "max_split must be a size above 20m" },
        { "max_split=64q", "max_split must" },
        { "max_split=", "max_split must" },
        { "max_split=30m,large_segment=40m", "max_split must be a size above 40m" },
        { "gc=1", "gc must be a share of the device's memory between 0 and 1, not \"1\"" },
        { "gc=0", "gc must be" },
        { "gc=x", "gc must be" },
        { "gc=-0.5", "gc must be" },
        { "roundup=3", "roundup must be a power of two" },
        { "roundup=[256:1,512:3]", "roundup must be" },
        { "roundup=[512:1,256:2]", "roundup must be" },
        { "roundup=[300:1]", "roundup must be" },
        { "roundup=[256:1", "roundup must be" },
        { "roundup=[]", "roundup must be" },
        { "roundup=[>:4,256:2]", "roundup must be" },
        { "expandable=maybe", "expandable must be true or false" },
        { "large_segment=3m", "large_segment must be a multiple of 2m" },
        { "max_rounding=0", "max_rounding must be a size" },
        { "x", "has no option \"x\"" },
    };
    static const char *const good[] = {
        "max_split=64m", "max_split=21m,gc=0.8", "gc=0.999", "roundup=1024", "roundup=[1:2,>:4],max_split=1g",
        "expandable=true",
        "expandable=off", "large_segment=4m", "max_rounding=1m,max_split=22m",
    };
    struct bed bed;
    group("caching rejects invalid options");
    for (size_t i = 0; i < COUNT(bad); i++) {
        void *policy = NULL;
        paper_init(&bed.paper, MIB, 0);
        ctrt_status status = caching->create(&policy, &bed.paper.source, bad[i].options);
        CHECK(status == CTRT_ERR_INVALID_ARGUMENT && strstr(host_error, bad[i].words), "%s: status %d, message: %s",
              bad[i].options, (int)status, host_error);
    }
    for (size_t i = 0; i < COUNT(good); i++)
        if (bed_make(&bed, caching, good[i], 64 * MIB, 0))
            bed_end(&bed);
    paper_init(&bed.paper, MIB, 0);
    bed.paper.source.total_bytes = 0;
    CHECK(caching->create(&bed.policy, &bed.paper.source, "gc=0.5") == CTRT_ERR_NOT_SUPPORTED,
          "gc on a source without a known size was accepted");
    host_logged[0] = '\0';
    if (bed_make(&bed, caching, "expandable=true", 64 * MIB, 0)) {
        CHECK(strstr(host_logged, "cannot map pages"), "the log does not report that pages are missing: \"%s\"",
              host_logged);
        bed_end(&bed);
    }
    group("direct and arena reject invalid options");
    paper_init(&bed.paper, MIB, 0);
    CHECK(direct->create(&bed.policy, &bed.paper.source, "x=1") == CTRT_ERR_INVALID_ARGUMENT
              && strstr(host_error, "direct has no options"), "direct with x=1: %s", host_error);
    CHECK(arena->create(&bed.policy, &bed.paper.source, "chnk=1m") == CTRT_ERR_INVALID_ARGUMENT
              && strstr(host_error, "arena has no option \"chnk\"; known: chunk; did you mean chunk?"),
          "arena with chnk=1m: %s", host_error);
    CHECK(arena->create(&bed.policy, &bed.paper.source, "chunk=1k") == CTRT_ERR_INVALID_ARGUMENT
              && strstr(host_error, "chunk must be a size of at least 1m"), "arena with chunk=1k: %s", host_error);
}

/* ---- choice of blocks ---- */

static void test_choices(void)
{
    struct bed bed;
    group("best fit, lowest address first; free neighbours merge; another queue's blocks are not used");
    if (!bed_make(&bed, caching, "", 1024 * MIB, 0))
        return;
    ctrt_block blocks[8];
    for (int i = 0; i < 8; i++)
        blocks[i] = take(&bed, i % 2 ? 4096 : (size_t)(8 - i) * 1024, 1);     /* 8, 4, 6, 4, 4, 4, 2, 4 KiB */
    char *base = blocks[0].address;
    give(&bed, &blocks[0]);
    give(&bed, &blocks[2]);
    give(&bed, &blocks[4]);
    ctrt_block other = take(&bed, 4096, 2);
    CHECK(bed.paper.allocs == 2, "a block of another queue was used: %d source allocations", (int)bed.paper.allocs);
    ctrt_block fit = take(&bed, 4000, 1);
    CHECK(fit.address == blocks[4].address, "4000 bytes are not in the free block of 4 KiB");
    ctrt_block low = take(&bed, 5000, 1);
    CHECK((char *)low.address == base + 12 * KIB && low.bytes == 5120, "5000 bytes are not in the free block of 6 KiB");
    give(&bed, &low);
    give(&bed, &blocks[1]);                     /* merges 8 + 4 + 6 KiB */
    ctrt_block merged = take(&bed, 18 * KIB, 1);
    CHECK(merged.address == base, "18 KiB are not in the merged block at the start of the segment");
    ctrt_memory_policy_stats stats = stats_of(&bed);
    CHECK(stats.segment[CTRT_POOL_SMALL].current == 2 && stats.retries == 0, "%d small segments, expected 2",
          (int)stats.segment[CTRT_POOL_SMALL].current);
    give(&bed, &merged);
    give(&bed, &fit);
    give(&bed, &other);
    give(&bed, &blocks[3]);
    for (int i = 5; i < 8; i++)
        give(&bed, &blocks[i]);
    stats = stats_of(&bed);
    CHECK(stats.cached_bytes == 4 * MIB && stats.largest_free == 2 * MIB,
          "%llu bytes cached, the largest free block is %llu", (unsigned long long)stats.cached_bytes,
          (unsigned long long)stats.largest_free);
    bed_end(&bed);

    group("max_split: blocks of at least that size are not split and serve only requests of similar size");
    if (!bed_make(&bed, caching, "max_split=40m", 1024 * MIB, 0))
        return;
    ctrt_block huge = take(&bed, 100 * MIB, 1);
    CHECK(stats_of(&bed).oversize_segment.current == 1 && stats_of(&bed).max_split == 40 * MIB,
          "oversize blocks are not counted");
    give(&bed, &huge);
    ctrt_block little = take(&bed, 39 * MIB, 1);
    CHECK(little.bytes == 40 * MIB && bed.paper.used == 140 * MIB, "39 MiB: a block of %zu bytes, %llu bytes used",
          little.bytes, (unsigned long long)bed.paper.used);
    ctrt_block like = take(&bed, 81 * MIB, 1);
    CHECK(like.bytes == 100 * MIB,
          "81 MiB must use the block of 100, because less than 20 MiB are unused; got %zu bytes", like.bytes);
    give(&bed, &like);
    like = take(&bed, 80 * MIB, 1);
    CHECK(like.bytes == 80 * MIB, "80 MiB must not use the block of 100, because 20 MiB are unused; got %zu bytes",
          like.bytes);
    give(&bed, &like);
    give(&bed, &little);
    bed_end(&bed);

    group("out of memory frees oversize blocks first, then all unsplit segments, which counts as a retry");
    if (!bed_make(&bed, caching, "max_split=40m", 200 * MIB, 0))
        return;
    ctrt_block a = take(&bed, 60 * MIB, 1), b = take(&bed, 80 * MIB, 1), c = take(&bed, 20 * MIB, 1);
    give(&bed, &a);
    give(&bed, &b);
    give(&bed, &c);
    a = take(&bed, 120 * MIB, 1);                                       /* frees 80 and 60, keeps 20 */
    CHECK(bed.paper.used == 140 * MIB && stats_of(&bed).retries == 0, "%llu MiB used, %d retries",
          (unsigned long long)bed.paper.used / MIB, (int)stats_of(&bed).retries);
    ctrt_block block = { 0 };
    CHECK(caching->alloc(bed.policy, &block, 81 * MIB, QUEUE(1)) == CTRT_ERR_OUT_OF_MEMORY
              && strstr(host_error, "no 84934656 bytes left"), "81 MiB: %s", host_error);
    CHECK(stats_of(&bed).retries == 1 && bed.paper.used == 120 * MIB, "%d retries, %llu MiB used",
          (int)stats_of(&bed).retries, (unsigned long long)bed.paper.used / MIB);
    b = take(&bed, 79 * MIB, 1);
    CHECK(b.bytes == 80 * MIB, "79 MiB: a block of %zu bytes", b.bytes);
    give(&bed, &a);
    give(&bed, &b);
    bed_end(&bed);
}

static void test_gc(void)
{
    struct bed bed;
    group("above the gc fraction, segments older than the mean age are freed");
    if (!bed_make(&bed, caching, "gc=0.5", 200 * MIB, 0))
        return;
    ctrt_block a = take(&bed, 30 * MIB, 1), b = take(&bed, 40 * MIB, 1), c = take(&bed, 50 * MIB, 1);
    give(&bed, &a);                                     /* age 0 */
    for (int i = 0; i < 10; i++) {
        ctrt_block again = take(&bed, 30 * MIB, 1);
        give(&bed, &again);
        if (i == 2)
            give(&bed, &b);                             /* stays cached and ages */
    }
    /* 120 of 200 MiB are reserved, 20 more than the gc fraction, so the older cached block (40) is freed. */
    ctrt_block more = take(&bed, 45 * MIB, 1);
    CHECK(bed.paper.frees == 1 && bed.paper.used == (30 + 50 + 46) * MIB, "%d segments were freed, %llu MiB are used",
          (int)bed.paper.frees, (unsigned long long)bed.paper.used / MIB);
    CHECK(stats_of(&bed).retries == 0, "garbage collection was counted as a retry");
    a = take(&bed, 30 * MIB, 1);
    CHECK(bed.paper.allocs == 4, "the young block was also freed");
    give(&bed, &a);
    give(&bed, &c);
    give(&bed, &more);
    bed_end(&bed);
}

static void test_trim(void)
{
    struct bed bed;
    group("trim frees unused segments and keeps segments with used blocks");
    if (!bed_make(&bed, caching, "", 1024 * MIB, 0))
        return;
    ctrt_block keep = take(&bed, 100, 1), gone = take(&bed, 3 * MIB, 1), far = take(&bed, 30 * MIB, 2);
    give(&bed, &gone);
    give(&bed, &far);
    caching->trim(bed.policy);
    ctrt_memory_policy_stats stats = stats_of(&bed);
    CHECK(stats.reserved_bytes == 2 * MIB && bed.paper.used == 2 * MIB, "%llu bytes are reserved, expected 2 MiB",
          (unsigned long long)stats.reserved_bytes);
    CHECK(stats.source_allocs == 3 && stats.source_frees == 2, "%d source allocations and %d frees, expected 3 and 2",
          (int)stats.source_allocs, (int)stats.source_frees);
    CHECK(stats.reserved[CTRT_POOL_ALL].peak == (int64_t)(52 * MIB) &&
          stats.reserved[CTRT_POOL_LARGE].freed == (int64_t)(50 * MIB),
          "a peak of %lld reserved bytes, expected 52 MiB", (long long)stats.reserved[CTRT_POOL_ALL].peak);
    give(&bed, &keep);
    bed_end(&bed);
}

/* ---- fences ---- */

static bool holds(const struct paper_fence *fence, uint32_t work)
{
    for (; fence != NULL; fence = fence->next)
        if (fence->work == work)
            return true;
    return false;
}

static void test_fences(void)
{
    struct bed bed;
    group("fences are returned with reused blocks, joined on merge, and waited for before memory is freed");
    if (!bed_make(&bed, caching, "", 64 * MIB, 0))
        return;
    struct paper *paper = &bed.paper;
    ctrt_block a = take(&bed, 4096, 1), b = take(&bed, 4096, 1), c = take(&bed, 4096, 1);
    void *where = a.address;
    give_later(&bed, &a, paper_work(paper));                            /* work 1 */
    a = take(&bed, 4096, 1);
    CHECK(a.address == where && holds(a.fence, 1), "the block is not reused with its fence");
    CHECK(!paper_waits(paper, 1, PAPER_HOST), "the host waited");
    paper_fence_free(paper, a.fence);
    give_later(&bed, &a, paper_work(paper));                            /* 2 */
    give_later(&bed, &b, paper_work(paper));                            /* 3 */
    a = take(&bed, 8192, 1);
    CHECK(a.address == where && holds(a.fence, 2) && holds(a.fence, 3), "the merged block lacks a fence");
    paper_fence_free(paper, a.fence);
    give_later(&bed, &a, paper_work(paper));                            /* 4 */
    a = take(&bed, 1024, 1);                                            /* split: the queue waits for the fence */
    CHECK(a.address == where && holds(a.fence, 4) && paper_waits(paper, 4, 1),
          "the first part of a split block lacks the fence");
    paper_fence_free(paper, a.fence);
    b = take(&bed, 7168, 1);
    CHECK((char *)b.address == (char *)where + 1024 && b.fence == NULL,
          "the rest of the split block was not used, or it has a fence");
    give_later(&bed, &a, paper_work(paper));                            /* 5 */
    give(&bed, &b);
    give(&bed, &c);
    caching->trim(bed.policy);
    CHECK(paper->used == 0 && paper_waits(paper, 5, PAPER_HOST), "memory was freed before its fence was complete");
    bed_end(&bed);

    group("fences with arena and direct");
    for (int i = 0; i < 2; i++) {
        if (!bed_make(&bed, i ? arena : direct, "", 1024 * MIB, 0))
            return;
        a = take(&bed, 4096, 3);
        give_later(&bed, &a, paper_work(&bed.paper));
        CHECK(i ? !paper_waits(&bed.paper, 1, PAPER_HOST) : paper_waits(&bed.paper, 1, PAPER_HOST) &&
              bed.paper.used == 0,
              "%s: wrong host wait at free", i ? "arena" : "direct");
        a = take(&bed, 4096, 3);
        CHECK(paper_waits(&bed.paper, 1, 3) || holds(a.fence, 1), "%s lost the fence", i ? "arena" : "direct");
        if (a.fence != NULL)
            paper_fence_free(&bed.paper, a.fence);
        give_later(&bed, &a, paper_work(&bed.paper));
        bed_end(&bed);
    }
}

/* In each step queue 1 allocates a block that another queue reads; the reader is LATE steps behind. The reference frees
 * a block after the reader's event is complete, as record_stream does, so LATE blocks are in use there. */
static void test_reader(void)
{
    enum { STEPS = 50, LATE = 3 };
    struct bed bed, baseline;
    struct ref ref;
    struct ref_block *waiting[STEPS + LATE] = { 0 };
    group("a freed block that another queue still reads is reused at once");
    if (!bed_make(&bed, caching, "", 1024 * MIB, 0))
        return;
    paper_init(&baseline.paper, 1024 * MIB, 0);
    ref_init(&ref, &baseline.paper.source);
    void *first = NULL;
    for (int i = 0; i < STEPS; i++) {
        ctrt_block block = take(&bed, 24 * MIB, 1);
        first = i == 0 ? block.address : first;
        CHECK(block.address == first && (i == 0 || holds(block.fence, (uint32_t)i)),
              "step %d: another block, or no fence", i);
        if (block.fence != NULL)
            paper_fence_free(&bed.paper, block.fence);
        give_later(&bed, &block, paper_work(&bed.paper));
        if (i >= LATE)
            ref_free(&ref, waiting[i - LATE]);          /* the reader's event is complete */
        waiting[i] = ref_alloc(&ref, 24 * MIB, QUEUE(1));
    }
    ctrt_memory_policy_stats stats = stats_of(&bed);
    CHECK(stats.reserved[CTRT_POOL_ALL].peak == (int64_t)(24 * MIB) && ref.peak == LATE * 24 * MIB,
          "peak %lld bytes, with record_stream %llu", (long long)stats.reserved[CTRT_POOL_ALL].peak,
          (unsigned long long)ref.peak);
    for (int i = STEPS - LATE; i < STEPS; i++)
        ref_free(&ref, waiting[i]);
    ref_trim(&ref);
    paper_end(&baseline.paper);
    bed_end(&bed);
}

TEST_MAIN
{
    beds_load();
    test_sizes();
    test_rounding();
    test_options();
    test_choices();
    test_gc();
    test_trim();
    test_fences();
    test_reader();
    return done();
}
