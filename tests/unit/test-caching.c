/* SPDX-License-Identifier: Apache-2.0 */
/* The memory policies by figures: PyTorch's sizes, segments and choices, options, fences, pages, copies. On paper memory. */
#include "tap.h"

#include "caching_reference.h"
#include "memory_host.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static const ctrt_memory_policy *caching, *direct, *arena;

struct bed {                            /* a policy over paper */
    struct paper paper;
    const ctrt_memory_policy *table;
    void *policy;
};

static bool bed_make(struct bed *bed, const ctrt_memory_policy *table, const char *options, uint64_t bytes, size_t page_bytes)
{
    paper_init(&bed->paper, bytes, page_bytes);
    bed->table = table;
    return CHECK(table->create(&bed->policy, &bed->paper.source, options) == CTRT_OK, "\"%s\": %s", options, host_error);
}

static void bed_end(struct bed *bed)
{
    bed->table->destroy(bed->policy);
    paper_end(&bed->paper);
}

static ctrt_block take(struct bed *bed, size_t bytes, int queue)
{
    ctrt_block block = { 0 };
    ctrt_status status = bed->table->alloc(bed->policy, &block, bytes, QUEUE(queue));
    CHECK(status == CTRT_OK, "%zu bytes: %s", bytes, host_error);
    return block;
}

static void give(struct bed *bed, ctrt_block *block)
{
    block->fence = NULL;
    bed->table->free(bed->policy, block, NULL);
}

static void give_later(struct bed *bed, ctrt_block *block, struct paper_fence *fence)
{
    block->fence = fence;
    bed->table->free(bed->policy, block, NULL);
    block->fence = NULL;
}

static ctrt_memory_stats stats_of(struct bed *bed)
{
    ctrt_memory_stats stats = { .size = sizeof stats };
    bed->table->stats(bed->policy, &stats);
    return stats;
}

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
        { 11534336, 12582912, 12 * MIB, true },         /* exactly 1 MiB would remain: not enough */
        { 400000000, 400556032, 400556032, true },
        { 19922944, 20971520, 20971520, true },
    };
    group("sizes: rounding, pool, segment, what is handed out");
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bed bed;
        if (!bed_make(&bed, caching, "", 1024 * MIB, 0))
            return;
        ctrt_block block = take(&bed, cases[i].asked, 1);
        ctrt_memory_stats stats = stats_of(&bed);
        int pool = cases[i].large ? CTRT_POOL_LARGE : CTRT_POOL_SMALL;
        CHECK(block.bytes == cases[i].bytes, "%zu bytes cost %zu, expected %zu", cases[i].asked, block.bytes, cases[i].bytes);
        CHECK(stats.reserved_bytes == cases[i].segment && bed.paper.used == cases[i].segment,
              "%zu bytes reserve %llu, expected %zu", cases[i].asked, (unsigned long long)stats.reserved_bytes,
              cases[i].segment);
        CHECK(stats.segment[pool].current == 1 && stats.segment[CTRT_POOL_ALL].current == 1,
              "%zu bytes are not in the %s pool", cases[i].asked, cases[i].large ? "large" : "small");
        CHECK(stats.cached_bytes == cases[i].segment - cases[i].bytes && stats.largest_free == stats.cached_bytes,
              "%zu bytes leave %llu", cases[i].asked, (unsigned long long)stats.cached_bytes);
        CHECK(stats.inactive_split_bytes[pool].current == (int64_t)(cases[i].segment - cases[i].bytes),
              "%zu bytes leave %lld beside them", cases[i].asked, (long long)stats.inactive_split_bytes[pool].current);
        give(&bed, &block);
        CHECK(stats_of(&bed).inactive_split[CTRT_POOL_ALL].current == 0, "a whole segment counts as split");
        bed_end(&bed);
    }
}

static void test_rounding(void)
{
    static const struct { const char *options; size_t asked, bytes; } cases[] = {
        { "roundup=4", 1200, 1536 },                            /* up to 512 * 4 multiples of 512 */
        { "roundup=4", 1200 * KIB, 1280 * KIB },
        { "roundup=4", 1024 * KIB, 1024 * KIB },
        { "roundup=4", 1025 * KIB, 1280 * KIB },
        { "roundup=4", 1793 * KIB, 2048 * KIB },
        { "roundup=8", 84 * MIB, 88 * MIB },
        { "roundup=8", 2049, 2560 },
        { "roundup=1", 1025, 1536 },
        { "roundup=[64:8,128:2,256:2,512:2,1024:1,>:1]", 84 * MIB, 88 * MIB },
        { "roundup=[64:8,128:2,256:2,512:2,1024:1,>:1]", 400 * MIB, 512 * MIB },
        { "roundup=[64:8,128:2,256:2,512:2,1024:1,>:1]", 33 * MIB, 36 * MIB },    /* below the first: as the first */
        { "roundup=[256:1,512:2,1024:4,>:8]", 300 * MIB, 300 * MIB },
        { "roundup=[256:1,512:2,1024:4,>:8]", 513 * MIB, 768 * MIB },
        { "roundup=[256:1,512:2,1024:4,>:8]", 1025 * MIB, 1280 * MIB },
        { "roundup=[256:1,512:2,1024:4,>:8]", 2049 * MIB, 2304 * MIB },
        { "large_segment=40m", 11 * MIB, 11 * MIB },
        { "large_segment=4m", 3 * MIB, 4 * MIB },
    };
    group("sizes rounded to divisions of powers of two; other segments");
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bed bed;
        if (!bed_make(&bed, caching, cases[i].options, 8192 * MIB, 0))
            continue;
        ctrt_block block = take(&bed, cases[i].asked, 1);
        CHECK(block.bytes == cases[i].bytes, "%s: %zu bytes cost %zu, expected %zu", cases[i].options, cases[i].asked,
              block.bytes, cases[i].bytes);
        give(&bed, &block);
        bed_end(&bed);
    }
}

static void test_options(void)
{
    static const struct { const char *options, *words; } bad[] = {
        { "max_splt=64m", "caching has no option \"max_splt\"; known: max_split, gc, roundup, expandable, large_segment, "
                          "max_rounding; did you mean max_split?" },
        { "max_split=20m", "max_split wants a size above 20m" },
        { "max_split=64q", "max_split wants" },
        { "max_split=", "max_split wants" },
        { "max_split=30m,large_segment=40m", "max_split wants a size above 40m" },
        { "gc=1", "gc wants a share of the device's memory between 0 and 1, not \"1\"" },
        { "gc=0", "gc wants" },
        { "gc=x", "gc wants" },
        { "gc=-0.5", "gc wants" },
        { "roundup=3", "roundup wants a power of two" },
        { "roundup=[256:1,512:3]", "roundup wants" },
        { "roundup=[512:1,256:2]", "roundup wants" },
        { "roundup=[300:1]", "roundup wants" },
        { "roundup=[256:1", "roundup wants" },
        { "roundup=[]", "roundup wants" },
        { "roundup=[>:4,256:2]", "roundup wants" },
        { "expandable=maybe", "expandable wants true or false" },
        { "large_segment=3m", "large_segment wants a multiple of 2m" },
        { "max_rounding=0", "max_rounding wants a size" },
        { "x", "has no option \"x\"" },
    };
    static const char *const good[] = {
        "max_split=64m", "max_split=21m,gc=0.8", "gc=0.999", "roundup=1024", "roundup=[1:2,>:4],max_split=1g", "expandable=true",
        "expandable=off", "large_segment=4m", "max_rounding=1m,max_split=22m",
    };
    struct bed bed;
    group("options of caching");
    for (size_t i = 0; i < COUNT(bad); i++) {
        void *policy = NULL;
        paper_init(&bed.paper, MIB, 0);
        ctrt_status status = caching->create(&policy, &bed.paper.source, bad[i].options);
        CHECK(status == CTRT_ERR_INVALID_ARGUMENT && strstr(host_error, bad[i].words), "%s: %d: %s", bad[i].options,
              (int)status, host_error);
    }
    for (size_t i = 0; i < COUNT(good); i++)
        if (bed_make(&bed, caching, good[i], 64 * MIB, 0))
            bed_end(&bed);
    paper_init(&bed.paper, MIB, 0);
    bed.paper.source.total_bytes = 0;
    CHECK(caching->create(&bed.policy, &bed.paper.source, "gc=0.5") == CTRT_ERR_NOT_SUPPORTED, "gc without a size");
    host_warning[0] = '\0';
    if (bed_make(&bed, caching, "expandable=true", 64 * MIB, 0)) {
        CHECK(strstr(host_warning, "cannot map pages"), "nothing is said where pages are missing: \"%s\"", host_warning);
        bed_end(&bed);
    }
    group("options of direct and arena");
    paper_init(&bed.paper, MIB, 0);
    CHECK(direct->create(&bed.policy, &bed.paper.source, "x=1") == CTRT_ERR_INVALID_ARGUMENT
              && strstr(host_error, "direct takes no options"), "%s", host_error);
    CHECK(arena->create(&bed.policy, &bed.paper.source, "chnk=1m") == CTRT_ERR_INVALID_ARGUMENT
              && strstr(host_error, "arena has no option \"chnk\"; known: chunk; did you mean chunk?"), "%s", host_error);
    CHECK(arena->create(&bed.policy, &bed.paper.source, "chunk=1k") == CTRT_ERR_INVALID_ARGUMENT
              && strstr(host_error, "chunk wants a size of at least 1m"), "%s", host_error);
}

/* ---- choices ---- */

static void test_choices(void)
{
    struct bed bed;
    group("the best fit, of equals the lowest; neighbours merge; other queues' blocks are not touched");
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
    CHECK(bed.paper.allocs == 2, "another queue's block served: %d allocations", (int)bed.paper.allocs);
    ctrt_block fit = take(&bed, 4000, 1);
    CHECK(fit.address == blocks[4].address, "4000 bytes are not in the hole of 4 KiB");
    ctrt_block low = take(&bed, 5000, 1);
    CHECK((char *)low.address == base + 12 * KIB && low.bytes == 5120, "5000 bytes are not in the hole of 6 KiB");
    give(&bed, &low);
    give(&bed, &blocks[1]);                     /* 8 + 4 + 6 KiB are one now */
    ctrt_block merged = take(&bed, 18 * KIB, 1);
    CHECK(merged.address == base, "18 KiB are not in the merged hole at the start");
    ctrt_memory_stats stats = stats_of(&bed);
    CHECK(stats.segment[CTRT_POOL_SMALL].current == 2 && stats.retries == 0, "%d segments",
          (int)stats.segment[CTRT_POOL_SMALL].current);
    give(&bed, &merged);
    give(&bed, &fit);
    give(&bed, &other);
    give(&bed, &blocks[3]);
    for (int i = 5; i < 8; i++)
        give(&bed, &blocks[i]);
    stats = stats_of(&bed);
    CHECK(stats.cached_bytes == 4 * MIB && stats.largest_free == 2 * MIB, "%llu cached, at most %llu in a row",
          (unsigned long long)stats.cached_bytes, (unsigned long long)stats.largest_free);
    bed_end(&bed);

    group("max_split: blocks from there on stay whole and serve their like");
    if (!bed_make(&bed, caching, "max_split=40m", 1024 * MIB, 0))
        return;
    ctrt_block huge = take(&bed, 100 * MIB, 1);
    CHECK(stats_of(&bed).oversize_segment.current == 1 && stats_of(&bed).max_split == 40 * MIB, "oversize is not counted");
    give(&bed, &huge);
    ctrt_block little = take(&bed, 39 * MIB, 1);
    CHECK(little.bytes == 40 * MIB && bed.paper.used == 140 * MIB, "39 MiB: %zu of %llu", little.bytes,
          (unsigned long long)bed.paper.used);
    ctrt_block like = take(&bed, 81 * MIB, 1);
    CHECK(like.bytes == 100 * MIB, "81 MiB are not in the block of 100: less than 20 MiB would be unused; %zu", like.bytes);
    give(&bed, &like);
    like = take(&bed, 80 * MIB, 1);
    CHECK(like.bytes == 80 * MIB, "80 MiB are in the block of 100: 20 MiB are unused; %zu", like.bytes);
    give(&bed, &like);
    give(&bed, &little);
    bed_end(&bed);

    group("out of memory: oversize blocks first, then all that is whole; counted");
    if (!bed_make(&bed, caching, "max_split=40m", 200 * MIB, 0))
        return;
    ctrt_block a = take(&bed, 60 * MIB, 1), b = take(&bed, 80 * MIB, 1), c = take(&bed, 20 * MIB, 1);
    give(&bed, &a);
    give(&bed, &b);
    give(&bed, &c);
    a = take(&bed, 120 * MIB, 1);                                       /* 80 and 60 go, 20 stays */
    CHECK(bed.paper.used == 140 * MIB && stats_of(&bed).retries == 0, "%llu MiB used, %d retries",
          (unsigned long long)bed.paper.used / MIB, (int)stats_of(&bed).retries);
    ctrt_block block = { 0 };
    CHECK(caching->alloc(bed.policy, &block, 81 * MIB, QUEUE(1)) == CTRT_ERR_OUT_OF_MEMORY
              && strstr(host_error, "no 84934656 bytes left"), "%s", host_error);
    CHECK(stats_of(&bed).retries == 1 && bed.paper.used == 120 * MIB, "%d retries, %llu MiB used",
          (int)stats_of(&bed).retries, (unsigned long long)bed.paper.used / MIB);
    b = take(&bed, 79 * MIB, 1);
    CHECK(b.bytes == 80 * MIB, "79 MiB: %zu", b.bytes);
    give(&bed, &a);
    give(&bed, &b);
    bed_end(&bed);
}

static void test_gc(void)
{
    struct bed bed;
    group("garbage collection: what is older than the mean goes, from the share on");
    if (!bed_make(&bed, caching, "gc=0.5", 200 * MIB, 0))
        return;
    ctrt_block a = take(&bed, 30 * MIB, 1), b = take(&bed, 40 * MIB, 1), c = take(&bed, 50 * MIB, 1);
    give(&bed, &a);                                     /* age 0 */
    for (int i = 0; i < 10; i++) {
        ctrt_block again = take(&bed, 30 * MIB, 1);
        give(&bed, &again);
        if (i == 2)
            give(&bed, &b);                             /* stays, and ages */
    }
    /* 120 of 200 MiB are reserved, 20 more than the share: of {30 (young), 40 (old)} the old one goes. */
    ctrt_block more = take(&bed, 45 * MIB, 1);
    CHECK(bed.paper.frees == 1 && bed.paper.used == (30 + 50 + 46) * MIB, "%d segments went, %llu MiB are used",
          (int)bed.paper.frees, (unsigned long long)bed.paper.used / MIB);
    CHECK(stats_of(&bed).retries == 0, "that is no retry");
    a = take(&bed, 30 * MIB, 1);
    CHECK(bed.paper.allocs == 4, "the young block is gone too");
    give(&bed, &a);
    give(&bed, &c);
    give(&bed, &more);
    bed_end(&bed);
}

static void test_trim(void)
{
    struct bed bed;
    group("trim gives back what is whole, and leaves what is shared with living blocks");
    if (!bed_make(&bed, caching, "", 1024 * MIB, 0))
        return;
    ctrt_block keep = take(&bed, 100, 1), gone = take(&bed, 3 * MIB, 1), far = take(&bed, 30 * MIB, 2);
    give(&bed, &gone);
    give(&bed, &far);
    caching->trim(bed.policy);
    ctrt_memory_stats stats = stats_of(&bed);
    CHECK(stats.reserved_bytes == 2 * MIB && bed.paper.used == 2 * MIB, "%llu reserved",
          (unsigned long long)stats.reserved_bytes);
    CHECK(stats.source_allocs == 3 && stats.source_frees == 2, "%d, %d", (int)stats.source_allocs, (int)stats.source_frees);
    CHECK(stats.reserved[CTRT_POOL_ALL].peak == (int64_t)(52 * MIB) && stats.reserved[CTRT_POOL_LARGE].freed == (int64_t)(50 * MIB),
          "peak %lld", (long long)stats.reserved[CTRT_POOL_ALL].peak);
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
    group("fences: handed out with the block, merged with it, waited for before memory goes back");
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
    a = take(&bed, 1024, 1);                                            /* split: the rest is safe on the queue */
    CHECK(a.address == where && holds(a.fence, 4) && paper_waits(paper, 4, 1), "a part of a block lacks the fence");
    paper_fence_free(paper, a.fence);
    b = take(&bed, 7168, 1);
    CHECK((char *)b.address == (char *)where + 1024 && b.fence == NULL, "the rest of the block is not next");
    give_later(&bed, &a, paper_work(paper));                            /* 5 */
    give(&bed, &b);
    give(&bed, &c);
    caching->trim(bed.policy);
    CHECK(paper->used == 0 && paper_waits(paper, 5, PAPER_HOST), "memory went back before its fence was done");
    bed_end(&bed);

    group("fences: arena and direct");
    for (int i = 0; i < 2; i++) {
        if (!bed_make(&bed, i ? arena : direct, "", 1024 * MIB, 0))
            return;
        a = take(&bed, 4096, 3);
        give_later(&bed, &a, paper_work(&bed.paper));
        CHECK(i ? !paper_waits(&bed.paper, 1, PAPER_HOST) : paper_waits(&bed.paper, 1, PAPER_HOST) && bed.paper.used == 0,
              "%s does not know when to wait", i ? "arena" : "direct");
        a = take(&bed, 4096, 3);
        CHECK(paper_waits(&bed.paper, 1, 3) || holds(a.fence, 1), "%s forgets the fence", i ? "arena" : "direct");
        if (a.fence != NULL)
            paper_fence_free(&bed.paper, a.fence);
        give_later(&bed, &a, paper_work(&bed.paper));
        bed_end(&bed);
    }
}

/* Each step one queue makes a block that another reads; the reader is `late` steps behind. Where freed blocks wait until an
 * event is seen to be done, as with record_stream, so many of them wait. */
static void test_reader(void)
{
    enum { STEPS = 50, LATE = 3 };
    struct bed bed, baseline;
    struct ref ref;
    struct ref_block *waiting[STEPS + LATE] = { 0 };
    group("a block that another queue still reads is reused at once");
    if (!bed_make(&bed, caching, "", 1024 * MIB, 0))
        return;
    paper_init(&baseline.paper, 1024 * MIB, 0);
    ref_init(&ref, &baseline.paper.source);
    void *first = NULL;
    for (int i = 0; i < STEPS; i++) {
        ctrt_block block = take(&bed, 24 * MIB, 1);
        first = i == 0 ? block.address : first;
        CHECK(block.address == first && (i == 0 || holds(block.fence, (uint32_t)i)), "step %d has another block, or no fence", i);
        if (block.fence != NULL)
            paper_fence_free(&bed.paper, block.fence);
        give_later(&bed, &block, paper_work(&bed.paper));
        if (i >= LATE)
            ref_free(&ref, waiting[i - LATE]);          /* its event is done now */
        waiting[i] = ref_alloc(&ref, 24 * MIB, QUEUE(1));
    }
    ctrt_memory_stats stats = stats_of(&bed);
    CHECK(stats.reserved[CTRT_POOL_ALL].peak == (int64_t)(24 * MIB) && ref.peak == LATE * 24 * MIB,
          "peak %lld bytes, with record_stream %llu", (long long)stats.reserved[CTRT_POOL_ALL].peak,
          (unsigned long long)ref.peak);
    for (int i = STEPS - LATE; i < STEPS; i++)
        ref_free(&ref, waiting[i]);
    ref_trim(&ref);
    paper_end(&baseline.paper);
    bed_end(&bed);
}

/* ---- pages ---- */

static void test_expandable(void)
{
    struct bed bed;
    group("expandable segments: one range a pool, grown by pages, shrunk to the pages in use");
    if (!bed_make(&bed, caching, "expandable=true", 256 * MIB, 2 * MIB))
        return;
    ctrt_block a = take(&bed, 100, 1);
    CHECK(bed.paper.used == 2 * MIB && bed.paper.reserved_ranges == 1, "%llu mapped", (unsigned long long)bed.paper.used);
    ctrt_block b = take(&bed, 15 * MIB, 1), c = take(&bed, 10 * MIB, 1), d = take(&bed, 30 * MIB, 1);
    CHECK(b.bytes == 15 * MIB && (char *)c.address == (char *)b.address + 15 * MIB && (char *)d.address == (char *)c.address + 10 * MIB,
          "blocks are not beside one another");
    CHECK(bed.paper.used == 62 * MIB && bed.paper.allocs == 4 && bed.paper.maps == 4, "%llu MiB mapped in %d",
          (unsigned long long)bed.paper.used / MIB, (int)bed.paper.maps);
    ctrt_memory_stats stats = stats_of(&bed);
    CHECK(stats.segment[CTRT_POOL_LARGE].current == 1 && stats.reserved_bytes == 62 * MIB
              && stats.inactive_split[CTRT_POOL_ALL].current == 0,
          "%lld segments", (long long)stats.segment[CTRT_POOL_LARGE].current);
    /* The tail can grow: a request that no hole fits goes there. */
    give(&bed, &b);
    ctrt_block e = take(&bed, 16 * MIB, 1);
    CHECK((char *)e.address == (char *)d.address + 30 * MIB && bed.paper.used == 82 * MIB, "not at the tail: %llu MiB",
          (unsigned long long)bed.paper.used / MIB);
    give(&bed, &e);
    b = take(&bed, 4 * MIB, 1);
    CHECK((char *)b.address == (char *)c.address - 15 * MIB, "4 MiB are at the tail, which may grow, not in the hole");
    /* Whole free pages go: 4 to 15 MiB is 4 to 14; and the tail of 55 to 80 is 56 to 80. */
    caching->trim(bed.policy);
    CHECK(bed.paper.used == 2 * MIB + (80 - 10 - 24) * MIB, "%llu MiB stay", (unsigned long long)bed.paper.used / MIB);
    CHECK(stats_of(&bed).segment[CTRT_POOL_LARGE].current == 2, "%lld runs of pages",
          (long long)stats_of(&bed).segment[CTRT_POOL_LARGE].current);
    e = take(&bed, 9 * MIB, 1);
    CHECK((char *)e.address == (char *)b.address + 4 * MIB, "the gap is not mapped again");
    give(&bed, &e);
    give(&bed, &a);
    give(&bed, &b);
    give(&bed, &c);
    give(&bed, &d);
    bed_end(&bed);

    group("expandable segments: nothing left: pages are given back, then single pages are tried");
    if (!bed_make(&bed, caching, "expandable=true", 50 * MIB, 2 * MIB))
        return;
    a = take(&bed, 19 * MIB, 1);
    b = take(&bed, 19 * MIB, 1);
    CHECK(bed.paper.used == 40 * MIB, "%llu MiB", (unsigned long long)bed.paper.used / MIB);
    c = take(&bed, 11 * MIB, 1);                /* 2 are left there, 10 more are to be had, not 20 */
    CHECK(bed.paper.used == 50 * MIB && stats_of(&bed).retries == 1, "%llu MiB, %d retries",
          (unsigned long long)bed.paper.used / MIB, (int)stats_of(&bed).retries);
    give(&bed, &a);
    d = take(&bed, 12 * MIB, 2);                /* another queue: the first one's pages move */
    CHECK(bed.paper.used == 44 * MIB && stats_of(&bed).retries == 2, "%llu MiB, %d retries",
          (unsigned long long)bed.paper.used / MIB, (int)stats_of(&bed).retries);
    give(&bed, &b);
    give(&bed, &c);
    give(&bed, &d);
    bed_end(&bed);
}

/* ---- walk and clone ---- */

struct seen {
    size_t segments, blocks, bytes, active, awaiting, block_bytes;
    const char *next;
    bool ordered;
};

static void see(const ctrt_memory_piece *piece, void *argument)
{
    struct seen *seen = argument;
    if (piece->segment) {
        seen->ordered &= seen->block_bytes == seen->bytes;
        seen->segments++;
        seen->bytes += piece->bytes;
        seen->next = piece->address;
        return;
    }
    seen->ordered &= piece->address == seen->next;
    seen->next += piece->bytes;
    seen->blocks++;
    seen->block_bytes += piece->bytes;
    seen->active += piece->block_state == CTRT_BLOCK_ACTIVE;
    seen->awaiting += piece->block_state == CTRT_BLOCK_AWAITING;
}

static void test_walk(void)
{
    static const char *const names[] = { "caching", "caching, expandable", "direct", "arena" };
    for (int i = 0; i < 4; i++) {
        struct bed bed;
        group("walk: %s", names[i]);
        if (!bed_make(&bed, i < 2 ? caching : i == 2 ? direct : arena, i == 1 ? "expandable=on" : "", 1024 * MIB, 2 * MIB))
            return;
        ctrt_block blocks[30];
        for (int k = 0; k < 30; k++)
            blocks[k] = take(&bed, (size_t)(k % 7 + 1) * 300000, k % 3);
        for (int k = 0; k < 30; k += 4)
            give_later(&bed, &blocks[k], paper_work(&bed.paper));
        struct seen seen = { .ordered = true };
        bed.table->walk(bed.policy, see, &seen);
        ctrt_memory_stats stats = stats_of(&bed);
        CHECK(seen.ordered && seen.block_bytes == seen.bytes, "blocks do not fill their segments in order");
        CHECK(seen.bytes == stats.reserved_bytes && (int64_t)seen.segments == stats.segment[CTRT_POOL_ALL].current,
              "%zu bytes in %zu segments, by figures %llu in %lld", seen.bytes, seen.segments,
              (unsigned long long)stats.reserved_bytes, (long long)stats.segment[CTRT_POOL_ALL].current);
        CHECK(seen.active == 22 && (seen.awaiting > 0) == (i != 2), "%zu active, %zu awaiting", seen.active, seen.awaiting);
        for (int k = 0; k < 30; k++)
            if (k % 4 != 0)
                give(&bed, &blocks[k]);
        bed_end(&bed);
    }
}

static void test_clone(void)
{
    struct bed bed, plan;
    ctrt_block blocks[40], other;
    group("clone: goes the same way from the same state, and frees the original's blocks");
    if (!bed_make(&bed, caching, "", 4096 * MIB, 0))
        return;
    for (int k = 0; k < 40; k++)
        blocks[k] = take(&bed, (size_t)(k % 9 + 1) * 250000, 1 + k % 2);
    for (int k = 0; k < 40; k += 3)
        give(&bed, &blocks[k]);
    paper_init(&plan.paper, 4096 * MIB, 0);
    plan.paper.next = bed.paper.next;
    plan.table = caching;
    CHECK(caching->clone(bed.policy, &plan.policy, &plan.paper.source) == CTRT_OK, "%s", host_error);
    plan.paper.used = bed.paper.used;
    ctrt_memory_stats before = stats_of(&bed), after = stats_of(&plan);
    CHECK(memcmp(&before, &after, sizeof before) == 0, "figures of the copy differ");
    /* The same requests to both: first the copy, whose blocks are the original's. */
    ctrt_block made[40];
    for (int k = 1; k < 40; k += 3)
        give(&plan, &blocks[k]);
    for (int k = 0; k < 20; k++)
        made[k] = take(&plan, (size_t)(k % 5 + 1) * 777777, 1 + k % 2);
    CHECK(stats_of(&bed).cached_bytes == before.cached_bytes, "the copy changes the original");
    for (int k = 1; k < 40; k += 3)
        give(&bed, &blocks[k]);
    for (int k = 0; k < 20; k++) {
        other = take(&bed, (size_t)(k % 5 + 1) * 777777, 1 + k % 2);
        CHECK(other.address == made[k].address && other.bytes == made[k].bytes, "request %d went another way", k);
        give(&plan, &made[k]);
        made[k] = other;
    }
    for (int k = 2; k < 40; k += 3)
        give(&plan, &blocks[k]);
    CHECK(stats_of(&plan).cached_bytes == stats_of(&plan).reserved_bytes, "the copy has blocks in use");
    caching->trim(plan.policy);
    CHECK(stats_of(&plan).reserved_bytes == 0, "%llu reserved in the copy",
          (unsigned long long)stats_of(&plan).reserved_bytes);
    bed_end(&plan);
    for (int k = 0; k < 20; k++)
        give(&bed, &made[k]);
    for (int k = 2; k < 40; k += 3)
        give(&bed, &blocks[k]);
    bed_end(&bed);
}

/* ---- arena ---- */

static void test_arena(void)
{
    struct bed bed;
    group("arena: a step that frees everything starts over at the same place, without the source");
    if (!bed_make(&bed, arena, "chunk=8m", 64 * MIB, 0))
        return;
    void *first[20];
    for (int step = 0; step < 5; step++) {
        ctrt_block blocks[20];
        for (int k = 0; k < 20; k++) {
            blocks[k] = take(&bed, MIB - 1000 * (size_t)k, 1);
            if (step == 0)
                first[k] = blocks[k].address;
            CHECK(blocks[k].address == first[k], "step %d, block %d is elsewhere", step, k);
        }
        for (int k = 0; k < 20; k++)
            give(&bed, &blocks[(k * 7) % 20]);
    }
    CHECK(bed.paper.allocs == 3 && bed.paper.used == 24 * MIB, "%d chunks", (int)bed.paper.allocs);
    /* A block that stays keeps its chunk, and only what lies before it. */
    ctrt_block keep = take(&bed, MIB, 1), after = take(&bed, MIB, 1);
    give(&bed, &after);
    after = take(&bed, MIB, 1);
    CHECK((char *)after.address == (char *)keep.address + MIB, "the place after a living block is lost");
    give(&bed, &after);
    ctrt_block big = take(&bed, 30 * MIB, 1);
    CHECK(big.bytes == 30 * MIB && bed.paper.used == 54 * MIB, "%zu", big.bytes);
    give(&bed, &big);
    big = take(&bed, 40 * MIB, 2);              /* does not fit: empty chunks go */
    CHECK(bed.paper.used == 48 * MIB && stats_of(&bed).retries == 1, "%llu MiB", (unsigned long long)bed.paper.used / MIB);
    ctrt_block block = { 0 };
    CHECK(arena->alloc(bed.policy, &block, 60 * MIB, QUEUE(1)) == CTRT_ERR_OUT_OF_MEMORY, "60 MiB of 64");
    give(&bed, &keep);
    give(&bed, &big);
    bed_end(&bed);
}

/* ---- memory of the host ---- */

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define FORBIDDEN(address) __asan_address_is_poisoned(address)
#define KNOWN_FORBIDDEN    true
#else
#define FORBIDDEN(address) ((void)(address), false)
#define KNOWN_FORBIDDEN    false
#endif

static ctrt_status real_alloc(void *state, void **address, size_t bytes, void *queue)
{
    (void)state, (void)queue;
    return posix_memalign(address, 4096, bytes) == 0 ? CTRT_OK : CTRT_ERR_OUT_OF_MEMORY;
}

static void real_free(void *state, void *address, size_t bytes, void *queue)
{
    (void)state, (void)queue;
    memset(address, 1, bytes);          /* nothing of it is forbidden any more */
    free(address);
}

static void test_real_memory(void)
{
    ctrt_memory_source source = { .size = sizeof source, .alloc = real_alloc, .free = real_free, .device_name = "real:0",
                                  .device_flags = CTRT_DEVICE_HOST_MEMORY, .total_bytes = 1024 * MIB };
    void *policy = NULL;
    ctrt_block blocks[64];
    unsigned places = 0;
    group("memory of the host: tiny blocks spread over the cache, free ones forbidden under the address sanitizer");
    CHECK(caching->create(&policy, &source, "") == CTRT_OK, "%s", host_error);
    for (int i = 0; i < 64; i++) {
        CHECK(caching->alloc(policy, &blocks[i], i < 32 ? 4 : 5000 * (size_t)i, NULL) == CTRT_OK, "%s", host_error);
        memset(blocks[i].address, i, i < 32 ? 4 : 5000 * (size_t)i);
        if (i < 32)
            places |= 1u << (uintptr_t)blocks[i].address / 64 % 8;
        CHECK(i >= 32 || (blocks[i].bytes == 512 && (uintptr_t)blocks[i].address % 64 == 0), "block %d", i);
    }
    CHECK(places == 0xff, "tiny blocks begin at %#x", places);
    CHECK(FORBIDDEN((char *)blocks[0].address + 4) == KNOWN_FORBIDDEN && !FORBIDDEN(blocks[0].address),
          "more than was asked for may be used");
    for (int i = 0; i < 64; i++) {
        const unsigned char *at = blocks[i].address;
        CHECK(at[0] == i && at[(i < 32 ? 4 : 5000 * (size_t)i) - 1] == i, "block %d was overwritten", i);
        caching->free(policy, &blocks[i], NULL);
        CHECK(FORBIDDEN(at) == KNOWN_FORBIDDEN, "block %d may be used after it was freed", i);
    }
    caching->destroy(policy);
}

/* ---- no memory for the policy itself ---- */

static void test_host_memory(void)
{
    group("the n-th allocation of the policy's own fails: a status or a larger block, and nothing is lost");
    static const size_t sizes[] = { 8, 5000, 700000, 2 * MIB, 12 * MIB, 600, 700 };
    for (long n = 1; n < 20; n++) {
        struct bed bed;
        ctrt_block blocks[COUNT(sizes)] = { { 0 } };
        if (!bed_make(&bed, caching, "", 256 * MIB, 0))
            return;
        host_allocs_left = n;
        for (size_t i = 0; i < COUNT(sizes); i++)
            if (caching->alloc(bed.policy, &blocks[i], sizes[i], QUEUE(1 + i % 2)) != CTRT_OK)
                blocks[i].address = NULL;
        for (size_t i = 0; i < COUNT(sizes); i++)
            if (blocks[i].address != NULL)
                give(&bed, &blocks[i]);
        host_allocs_left = 0;
        CHECK(stats_of(&bed).cached_bytes == bed.paper.used, "n %ld: bytes are lost", n);
        bed_end(&bed);
    }
}

int main(void)
{
    caching = policy_load("caching");
    direct = policy_load("direct");
    arena = policy_load("arena");
    test_sizes();
    test_rounding();
    test_options();
    test_choices();
    test_gc();
    test_trim();
    test_fences();
    test_reader();
    test_expandable();
    test_walk();
    test_clone();
    test_arena();
    test_real_memory();
    test_host_memory();
    return done();
}
