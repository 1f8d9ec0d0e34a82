/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the caching policy against models, with many random steps.
 *
 * One thread: the policy and PyTorch's algorithm (caching_reference.h) get the same requests. Each has its own fake
 * memory source, and both sources return the same addresses. After every step both must have returned the same
 * address and size, or both have failed, and both must have reserved the same number of bytes. No byte may be reused
 * before the block's queue waits for the work that the byte was freed with. Every 1009 steps the test walks the
 * policy's memory: blocks do not overlap, no two neighbours are free, and the statistics are equal. Expandable segments
 * have no reference, only the other checks.
 *
 * Several threads: blocks do not overlap, and another thread may free them. The sums are exact at the end. */
#include "child.h"
#include "caching_reference.h"
#include "memory_host.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STEPS 15000
#define THREAD_STEPS 6000
#else
#define STEPS 50000                     /* for each of the settings below */
#define THREAD_STEPS 40000
#endif
#define LIVE 160

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Returns a size as tensors have it: usually one of a few common sizes, sometimes any size. */
static size_t some_size(uint64_t *seed)
{
    static const size_t common[] = { 4, 1000, 4096, 40960, 262144, 1 << 20, 1200000, 3 << 20, 10 << 20, 17 << 20 };
    uint64_t kind = next_random(seed) % 16, r = next_random(seed);
    if (kind < 8)
        return common[r % (kind < 6 ? 6 : 10)];
    return 1 + r % (kind < 12 ? 20000 : kind < 14 ? MIB : kind < 15 ? 4 * MIB : 30 * MIB);
}

/* ---- the work that each granule of memory waits for ---- */

#define GRANULE 512

enum { MOST_GIB = 24 };                 /* of addresses, before they are used again */

static struct {                         /* per granule: number of the work that it was freed with; 0: none */
    uint32_t *work;
    uintptr_t base;
} granules;

static uint32_t *granule_at(uintptr_t address)
{
    return &granules.work[(address - granules.base) / GRANULE];
}

static void granules_clear(uintptr_t base)
{
    free(granules.work);
    granules.work = calloc(((uintptr_t)(MOST_GIB + 8) << 30) / GRANULE, sizeof *granules.work);
    granules.base = base;
}

/* Clears the work of a range that `who` is about to use. Returns the number of granules that are used too early. */
static long granules_used(const struct fake_source *source, uintptr_t address, size_t bytes, int who,
                          const struct fake_fence *fence)
{
    long early = 0;
    uint32_t last = 0;
    for (uintptr_t at = address; at < address + bytes; at += GRANULE) {
        uint32_t *work = granule_at(at);
        bool known = *work == 0 || *work == last || source_waits(source, *work, who);
        for (const struct fake_fence *part = fence; part != NULL && !known; part = part->next)
            known = part->work == *work;
        if (known)
            last = *work;
        early += !known;
        *work = 0;
    }
    return early;
}

static void check_freed(struct fake_source *source, void *address, size_t bytes)
{
    if (granules_used(source, ADDRESS(address), bytes, HOST_WAITS, NULL) > 0)
        source_wrong(source, "memory was returned to the source before its work was done");
}

/* ---- one thread ---- */

struct setting {
    const char *options;
    uint64_t bytes;
    size_t max_split, divisions;
    double gc;
    int queues;
    size_t page_bytes;                  /* above 0: expandable segments, which have no reference */
};

struct live {
    ctrt_block block;                   /* address NULL: none */
    struct ref_block *twin;             /* the reference's block */
};

static struct {
    struct fixture f;
    struct fake_source theirs;
    struct ref ref;
    struct live live[LIVE];
    uint64_t active, blocks, peak;
} test;

static void check_stat(const char *what, const ctrt_stat *got, const ctrt_stat *want)
{
    CHECK(memcmp(got, want, sizeof *got) == 0, "%s: %lld, peak %lld, +%lld -%lld; expected %lld, %lld, +%lld -%lld",
          what, (long long)got->current, (long long)got->peak, (long long)got->allocated, (long long)got->freed,
          (long long)want->current, (long long)want->peak, (long long)want->allocated, (long long)want->freed);
}

static void check_state(bool referenced)
{
    const struct walk walk = walk_of(&test.f);
    const ctrt_memory_policy_stats stats = stats_of(&test.f);
    CHECK_EQ(walk.wrong, 0);
    CHECK_EQ(walk.unmerged, 0);
    CHECK_EQ(walk.active, test.active);
    CHECK_EQ(walk.active_blocks, test.blocks);
    CHECK_EQ(walk.reserved, stats.reserved_bytes);
    CHECK_EQ(walk.reserved, test.f.source.used);
    CHECK_EQ(walk.free_bytes, stats.cached_bytes);
    CHECK_EQ(walk.awaiting > 0, true);
    CHECK_EQ(walk.segments, stats.segment[CTRT_POOL_ALL].current);
    CHECK_EQ(stats.source_allocs, test.f.source.allocs);
    CHECK_EQ(stats.source_frees, test.f.source.frees);
    check_stat("inactive_split", &stats.inactive_split[CTRT_POOL_ALL], &test.ref.split);
    check_stat("inactive_split_bytes", &stats.inactive_split_bytes[CTRT_POOL_ALL], &test.ref.split_bytes);
    CHECK_EQ(stats.reserved[CTRT_POOL_ALL].peak, test.peak);
    caching->reset_peaks(test.f.policy);
    test.peak = test.ref.peak = walk.reserved;
    test.ref.split.peak = test.ref.split.current;
    test.ref.split_bytes.peak = test.ref.split_bytes.current;
    if (referenced)
        CHECK_EQ(stats.retries, test.ref.retries);
}

/* Frees the block. With `late` other queues still use it. */
static void free_live(struct live *at, bool late)
{
    struct fake_fence *fence = NULL;
    if (late) {
        fence = source_work(&test.f.source);
        for (uintptr_t granule = 0; granule < at->block.bytes; granule += GRANULE)
            *granule_at(ADDRESS(at->block.address) + granule) = fence->work;
    }
    test.active -= at->block.bytes;
    test.blocks--;
    free_after(&test.f, &at->block, fence);
    if (at->twin != NULL)
        ref_free(&test.ref, at->twin);
    at->twin = NULL;
}

/* Allocates from both, compares, and checks that no granule is used before its work is done. */
static void alloc_live(struct live *at, size_t bytes, int queue, bool referenced)
{
    const ctrt_status status = caching->alloc(test.f.policy, &at->block, bytes, QUEUE(queue));
    if (referenced) {
        at->twin = ref_alloc(&test.ref, bytes, QUEUE(queue));
        CHECK((status == CTRT_OK) == (at->twin != NULL), "%zu bytes: status %d, by PyTorch's algorithm %s: %s", bytes,
              (int)status, at->twin ? "memory" : "none", ctrt_error_message());
    }
    if (status != CTRT_OK) {
        CHECK_EQ(status, CTRT_ERR_OUT_OF_MEMORY);
        at->block.address = NULL;
        return;
    }
    if (at->twin != NULL)
        CHECK(ADDRESS(at->block.address) == at->twin->address && at->block.bytes == at->twin->bytes,
              "%zu bytes are %zu at %p, by PyTorch's algorithm %zu at %#llx", bytes, at->block.bytes, at->block.address,
              at->twin->bytes, (unsigned long long)at->twin->address);
    CHECK_EQ(granules_used(&test.f.source, ADDRESS(at->block.address), at->block.bytes, queue, at->block.fence), 0);
    if (at->block.fence != NULL)
        source_fence_free(&test.f.source, at->block.fence);
    test.active += at->block.bytes;
    test.blocks++;
}

static void free_all(void)
{
    for (int i = 0; i < LIVE; i++)
        if (test.live[i].block.address != NULL)
            free_live(&test.live[i], false);
    caching->trim(test.f.policy);
    ref_trim(&test.ref);
}

static void test_one_thread(const struct setting *setting, uint64_t seed)
{
    const bool referenced = setting->page_bytes == 0;
    struct fake_source *ours = &test.f.source;
    group("%s, %d steps: %s, %d queues, %llu MiB",
          referenced ? "the same addresses as PyTorch's algorithm" : "expandable segments", STEPS, setting->options,
          setting->queues, (unsigned long long)(setting->bytes / MIB));
    memset(&test, 0, sizeof test);
    fixture_begin(&test.f, caching, setting->options, setting->bytes, setting->page_bytes);
    source_init(&test.theirs, setting->bytes, 0);
    ours->on_free = check_freed;
    granules_clear(ours->next);
    ref_init(&test.ref, &test.theirs.source);
    if (setting->max_split > 0)
        test.ref.max_split = setting->max_split;
    if (setting->divisions > 0)
        test.ref.divisions = setting->divisions;
    test.ref.gc = setting->gc;
    for (long step = 0; step < STEPS && tap_state.failed == 0; step++) {
        uint64_t r = next_random(&seed);
        /* The window of slots moves slowly, so most freed blocks were allocated recently. */
        struct live *at = &test.live[(r % 8 ? r >> 8 : (r >> 8) + (uint64_t)step / 1000) % (r % 8 ? LIVE / 4 : LIVE)];
        const int queue = 1 + (int)(next_random(&seed) % (uint64_t)setting->queues);
        const size_t freed = at->block.address != NULL ? at->block.bytes : 0;
        if (freed > 0)
            free_live(at, next_random(&seed) % 4 == 0);
        if (freed == 0 || r % 3 == 0)           /* a request of the freed size often gets the same block at once */
            alloc_live(at, freed > 0 ? freed : some_size(&seed), queue, referenced);
        if (referenced)
            CHECK_EQ(ours->used, test.ref.reserved);
        CHECK_EQ(ours->wrong, 0);
        test.peak = referenced ? test.ref.peak : ours->used > test.peak ? ours->used : test.peak;
        if (step % 10007 == 10006) {
            caching->trim(test.f.policy);
            ref_trim(&test.ref);
        }
        if (step % 1009 == 1008)
            check_state(referenced);
        /* The fake source never returns an address twice. Start again before the granules grow without bound. */
        if (ours->next - granules.base > (uintptr_t)MOST_GIB << 30) {
            free_all();
            ours->next = test.theirs.next = granules.base;
            granules_clear(granules.base);
        }
    }
    CHECK_EQ(ours->maps > 0 && ours->unmaps > 0, !referenced);
    free_all();
    fixture_end(&test.f);
    source_end(&test.theirs);
}

/* ---- several threads ---- */

#define THREADS 6
#define OWN     16                      /* slots of each thread */

/* Each thread allocates into and frees from the slots, mostly its own ones. */
static _Atomic(ctrt_block *) slots[THREADS * OWN];
static struct fixture team;
static atomic_bool *taken;              /* per granule: whether a block uses it */
static uintptr_t taken_base;
static const size_t taken_count = ((size_t)64 << 30) / GRANULE;
static atomic_long overlaps;

static void take(const ctrt_block *block, bool value)
{
    size_t first = (ADDRESS(block->address) - taken_base) / GRANULE;
    for (size_t i = first; i < first + block->bytes / GRANULE; i++)
        if (i >= taken_count || atomic_exchange_explicit(&taken[i], value, memory_order_relaxed) == value)
            atomic_fetch_add(&overlaps, 1);
}

/* Puts a block or NULL into the slot and frees the block that was there. Returns false if there was none. */
static bool put(ctrt_block *block, uint64_t slot, uint64_t *seed)
{
    ctrt_block *old = atomic_exchange(&slots[slot], block);
    if (old == NULL)
        return false;
    take(old, false);
    free_after(&team, old, next_random(seed) % 16 == 0 ? source_work(&team.source) : NULL);
    free(old);
    return true;
}

static void *churn(void *argument)
{
    const uint64_t me = *(uint64_t *)argument;
    uint64_t seed = 77 * me + 1;
    for (int step = 0; step < THREAD_STEPS; step++) {
        const uint64_t slot = next_random(&seed) % 8 ? me * OWN + next_random(&seed) % OWN
                                                     : next_random(&seed) % (THREADS * OWN);
        if (put(NULL, slot, &seed))
            continue;
        size_t bytes = next_random(&seed) % 64 ? 512 + next_random(&seed) % 8 * 4096 : some_size(&seed);
        ctrt_block *block = calloc(1, sizeof *block);
        if (caching->alloc(team.policy, block, bytes, QUEUE(1 + next_random(&seed) % 2)) != CTRT_OK) {
            free(block);                        /* expected: memory is small */
            continue;
        }
        take(block, true);
        if (block->fence != NULL)
            source_fence_free(&team.source, block->fence);
        put(block, slot, &seed);
        if (step % 5000 < 2 && me == 0)
            caching->trim(team.policy);
        if (step % 3000 < 2 && me == 1) {
            const struct walk walk = walk_of(&team);
            CHECK_EQ(walk.wrong + walk.unmerged, 0);
        }
    }
    return NULL;
}

static void test_threads(uint64_t bytes)
{
    uint64_t numbers[THREADS] = { 0, 1, 2, 3, 4, 5 }, seed = 5;
    group("%d threads free each other's blocks, %llu MiB", THREADS, (unsigned long long)(bytes / MIB));
    fixture_begin(&team, caching, "", bytes, 0);
    taken_base = team.source.next;
    taken = calloc(taken_count, sizeof *taken);
    ctrt_block first = alloc_block(&team, 4096, 1);     /* still single-threaded */
    in_threads(THREADS, churn, numbers, sizeof numbers[0]);
    for (uint64_t i = 0; i < THREADS * OWN; i++)
        put(NULL, i, &seed);
    CHECK_EQ(atomic_load(&overlaps), 0);
    CHECK_EQ(stats_of(&team).cached_bytes + first.bytes, team.source.used);
    CHECK_EQ(stats_of(&team).reserved_bytes, team.source.used);
    free_after(&team, &first, NULL);
    caching->trim(team.policy);
    CHECK_EQ(team.source.used, 0);
    fixture_end(&team);
    free((void *)taken);
}

TEST_MAIN
{
    static const struct setting settings[] = {
        { "", 4096 * MIB, 0, 0, 0, 1, 0 },
        { "", 400 * MIB, 0, 0, 0, 3, 0 },                       /* often out of memory */
        { "max_split=21m", 200 * MIB, 21 * MIB, 0, 0, 1, 0 },   /* out of memory with oversize blocks to release */
        { "max_split=24m,gc=0.6", 800 * MIB, 24 * MIB, 0, 0.6, 2, 0 },
        { "roundup=4", 1500 * MIB, 0, 4, 0, 2, 0 },
        { "expandable=true", 2048 * MIB, 0, 0, 0, 2, 2 * MIB },
        { "expandable=true", 200 * MIB, 0, 0, 0, 2, 2 * MIB },
    };
    caching = policy_load("caching");
    for (size_t i = 0; i < COUNT(settings); i++)
        test_one_thread(&settings[i], 12345 + i);
    test_threads(4096 * MIB);
    test_threads(120 * MIB);
    free(granules.work);
    return done();
}
