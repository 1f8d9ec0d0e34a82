/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the caching policy against models, with many random steps.
 *
 * One thread: the policy and PyTorch's algorithm (caching_reference.h) get the same requests. Each has its own fake
 * memory source, and both sources return the same addresses. After every step both must have returned the same
 * address and size, or both have failed, and both must have reserved the same number of bytes. No byte may be reused
 * before the block's queue waits for the work that the byte was freed with. Every 1009 steps the test walks the
 * policy's memory: blocks do not overlap, no two neighbours are free, and the sums are equal. Expandable segments have
 * no reference, only the other checks.
 *
 * Several threads: each block has one owner, blocks do not overlap, and each block is freed as a whole, also by
 * another thread. The sums are exact at the end. */
#include "tap.h"

#include "caching_reference.h"
#include "memory_host.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STEPS 40000
#define PAGE_STEPS 30000
#define THREAD_STEPS 6000
#else
#define STEPS 100000                    /* for each of the settings below */
#define PAGE_STEPS 50000
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

static struct {                         /* per granule: number of the work that it was freed with; 0: none */
    uint32_t *work;
    uintptr_t base;
    size_t count;
} granules;

static uint32_t *granule_at(uintptr_t address)
{
    size_t index = (address - granules.base) / GRANULE;
    if (index >= granules.count) {
        size_t more = 2 * index + 1024;
        granules.work = realloc(granules.work, more * sizeof *granules.work);
        memset(granules.work + granules.count, 0, (more - granules.count) * sizeof *granules.work);
        granules.count = more;
    }
    return &granules.work[index];
}

static void granules_clear(uintptr_t base)
{
    granules.base = base;
    if (granules.count > 0)
        memset(granules.work, 0, granules.count * sizeof *granules.work);
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

/* ---- walking ---- */

struct walk {
    uintptr_t next, end;
    bool last_free;
    uint64_t reserved, active, active_blocks, free_bytes, segments;
    long wrong;
};

static void walk_piece(const ctrt_memory_piece *piece, void *argument)
{
    struct walk *walk = argument;
    uintptr_t address = ADDRESS(piece->address);
    if (piece->segment) {
        walk->wrong += walk->next != walk->end;                 /* the previous segment has a gap at its end */
        walk->next = address;
        walk->end = address + piece->bytes;
        walk->reserved += piece->bytes;
        walk->segments++;
        walk->last_free = false;
        return;
    }
    bool is_free = piece->block_state != CTRT_BLOCK_ACTIVE;
    walk->wrong += address != walk->next || address + piece->bytes > walk->end || piece->bytes == 0;
    walk->wrong += is_free && walk->last_free;                  /* two free neighbours were not merged */
    walk->last_free = is_free;
    walk->next += piece->bytes;
    walk->free_bytes += is_free ? piece->bytes : 0;
    walk->active += is_free ? 0 : piece->bytes;
    walk->active_blocks += !is_free;
}

static bool check_state(struct fixture *f, uint64_t active, uint64_t blocks, const struct ref *ref)
{
    struct walk walk = { 0 };
    uint64_t split, split_bytes;
    bool fine = true;
    caching->walk(f->policy, walk_piece, &walk);
    const ctrt_memory_policy_stats stats = stats_of(f);
    ref_split(ref, &split, &split_bytes);
    fine &= CHECK_EQ(walk.wrong, 0);
    fine &= CHECK_EQ(walk.next, walk.end);
    fine &= CHECK_EQ(walk.active, active);
    fine &= CHECK_EQ(walk.active_blocks, blocks);
    fine &= CHECK_EQ(walk.reserved, stats.reserved_bytes);
    fine &= CHECK_EQ(walk.reserved, f->source.used);
    fine &= CHECK_EQ(walk.free_bytes, stats.cached_bytes);
    fine &= CHECK_EQ(walk.segments, stats.segment[CTRT_POOL_ALL].current);
    fine &= CHECK_EQ(stats.source_allocs, f->source.allocs);
    fine &= CHECK_EQ(stats.source_frees, f->source.frees);
    fine &= CHECK_EQ(stats.inactive_split[CTRT_POOL_ALL].current, split);
    fine &= CHECK_EQ(stats.inactive_split_bytes[CTRT_POOL_ALL].current, split_bytes);
    fine &= CHECK_EQ(stats.reserved[CTRT_POOL_ALL].peak, ref->peak);
    fine &= CHECK_EQ(stats.retries, ref->retries);
    return fine;
}

/* ---- one thread ---- */

struct live {
    ctrt_block block;                   /* address NULL: none */
    struct ref_block *twin;
    int queue;
};

static void free_live(struct fixture *f, struct live *at)
{
    if (at->block.address != NULL)
        free_after(f, &at->block, NULL);
    at->block.address = NULL;
}

/* Frees the block; with a probability of 1/4 other queues still use it. */
static void free_randomly(struct fixture *f, struct live *at, uint64_t *seed)
{
    struct fake_fence *fence = NULL;
    if (next_random(seed) % 4 == 0) {
        fence = source_work(&f->source);
        for (uintptr_t granule = 0; granule < at->block.bytes; granule += GRANULE)
            *granule_at(ADDRESS(at->block.address) + granule) = fence->work;
    }
    free_after(f, &at->block, fence);
    at->block.address = NULL;
}

/* Allocates and checks that no granule is used before its work is done. Returns false if an allocation failed. */
static bool alloc_randomly(struct fixture *f, struct live *at, size_t bytes, int queue)
{
    at->queue = queue;
    const ctrt_status status = caching->alloc(f->policy, &at->block, bytes, QUEUE(queue));
    if (status != CTRT_OK) {
        CHECK_EQ(status, CTRT_ERR_OUT_OF_MEMORY);
        at->block.address = NULL;
        return false;
    }
    CHECK_EQ(granules_used(&f->source, ADDRESS(at->block.address), at->block.bytes, queue, at->block.fence), 0);
    if (at->block.fence != NULL)
        source_fence_free(&f->source, at->block.fence);
    at->block.fence = NULL;
    return true;
}

struct setting {
    const char *options;
    uint64_t bytes;
    size_t max_split, divisions;
    double gc;
    int queues;
};

static void one_step(struct fixture *f, struct ref *ref, struct live *at, int queues, uint64_t *seed)
{
    if (at->twin != NULL) {
        free_randomly(f, at, seed);
        ref_free(ref, at->twin);
        at->twin = NULL;
        return;
    }
    const size_t bytes = some_size(seed);
    const bool fine = alloc_randomly(f, at, bytes, 1 + (int)(next_random(seed) % (uint64_t)queues));
    at->twin = ref_alloc(ref, bytes, QUEUE(at->queue));
    CHECK(fine == (at->twin != NULL), "%zu bytes: by PyTorch's algorithm %s: %s", bytes, at->twin ? "memory" : "none",
          host_error);
    if (fine && at->twin != NULL)
        CHECK(ADDRESS(at->block.address) == at->twin->address && at->block.bytes == at->twin->bytes,
              "%zu bytes are %zu at %p, by PyTorch's algorithm %zu at %#llx", bytes, at->block.bytes, at->block.address,
              at->twin->bytes, (unsigned long long)at->twin->address);
}

static void free_all(struct fixture *f, struct ref *ref, struct live *live)
{
    for (int i = 0; i < LIVE; i++) {
        free_live(f, &live[i]);
        if (live[i].twin != NULL)
            ref_free(ref, live[i].twin);
        live[i].twin = NULL;
    }
    caching->trim(f->policy);
    ref_trim(ref);
}

static void test_one_thread(const struct setting *setting, uint64_t seed)
{
    struct live live[LIVE] = { { .twin = NULL } };
    struct fixture f;
    struct fake_source theirs;
    struct ref ref;
    uint64_t blocks = 0;
    group("the same addresses as PyTorch's algorithm, %d steps: %s, %d queues, %llu MiB", STEPS, setting->options,
          setting->queues, (unsigned long long)setting->bytes / MIB);
    fixture_begin(&f, caching, setting->options, setting->bytes, 0);
    source_init(&theirs, setting->bytes, 0);
    f.source.on_free = check_freed;
    granules_clear(f.source.next);
    ref_init(&ref, &theirs.source);
    if (setting->max_split > 0)
        ref.max_split = setting->max_split;
    if (setting->divisions > 0)
        ref.divisions = setting->divisions;
    ref.gc = setting->gc;
    for (long step = 0; step < STEPS && tap_state.failed == 0; step++) {
        uint64_t r = next_random(&seed);
        /* The window of slots moves slowly, so most freed blocks were allocated recently. */
        struct live *at = &live[(r % 8 ? r >> 8 : (r >> 8) + (uint64_t)step / 1000) % (r % 8 ? LIVE / 4 : LIVE)];
        blocks -= at->twin != NULL;
        one_step(&f, &ref, at, setting->queues, &seed);
        blocks += at->twin != NULL;
        CHECK_EQ(f.source.used, ref.reserved);
        CHECK_EQ(f.source.wrong, 0);
        if (step % 10007 == 10006) {
            caching->trim(f.policy);
            ref_trim(&ref);
        }
        if (step % 1009 == 1008)
            check_state(&f, ref.allocated, blocks, &ref);
        /* The fake source never returns an address twice. Start again before the granules grow without bound. */
        if (f.source.next - granules.base > (uintptr_t)24 << 30) {
            free_all(&f, &ref, live);
            blocks = 0;
            f.source.next = theirs.next = granules.base;
            granules_clear(granules.base);
        }
    }
    free_all(&f, &ref, live);
    fixture_end(&f);
    source_end(&theirs);
}

/* ---- expandable segments ---- */

static void test_pages(uint64_t bytes, uint64_t seed)
{
    struct live live[LIVE] = { { .twin = NULL } };
    struct fixture f;
    struct ref none = { 0 };
    uint64_t blocks = 0, active = 0;
    long failures = 0;
    group("expandable segments, %d steps, %llu MiB", PAGE_STEPS, (unsigned long long)bytes / MIB);
    fixture_begin(&f, caching, "expandable=true", bytes, 2 * MIB);
    f.source.on_free = check_freed;
    granules_clear(f.source.next);
    for (long step = 0; step < PAGE_STEPS && tap_state.failed == 0; step++) {
        struct live *at = &live[next_random(&seed) % (step / 5000 % 2 ? LIVE / 8 : LIVE)];
        if (at->block.address != NULL) {
            blocks--;
            active -= at->block.bytes;
            free_randomly(&f, at, &seed);
        } else if (alloc_randomly(&f, at, some_size(&seed), 1 + (int)(next_random(&seed) % 2))) {
            blocks++;
            active += at->block.bytes;
        } else {
            failures++;
        }
        if (f.source.used > none.peak)
            none.peak = f.source.used;
        if (step % 5003 == 5002)
            caching->trim(f.policy);
        if (step % 1009 == 1008) {
            none.retries = stats_of(&f).retries;
            check_state(&f, active, blocks, &none);
        }
    }
    CHECK_TRUE(f.source.maps > 0 && f.source.unmaps > 0);
    CHECK_EQ(f.source.allocs, f.source.maps);
    CHECK_EQ(failures > 0, bytes < 512 * MIB);
    for (int i = 0; i < LIVE; i++)
        free_live(&f, &live[i]);
    fixture_end(&f);
}

/* ---- several threads ---- */

#define THREADS 6
#define SHARED  64
#define NOBODY  255                     /* owner of a block that any thread may free */

static struct fixture team;
static _Atomic unsigned char *owners;   /* per granule: number of the owning thread, from 1 */
static uintptr_t owners_base;
static const size_t owners_count = ((size_t)64 << 30) / GRANULE;
static _Atomic(ctrt_block *) handed[SHARED];    /* blocks that another thread frees */
static atomic_long ownership_errors;

static void change_owner(const ctrt_block *block, unsigned char from, unsigned char to)
{
    size_t first = (ADDRESS(block->address) - owners_base) / GRANULE;
    for (size_t i = first; i < first + block->bytes / GRANULE; i++)
        if (i >= owners_count || atomic_exchange_explicit(&owners[i], to, memory_order_relaxed) != from)
            atomic_fetch_add(&ownership_errors, 1);
}

static void free_owned(ctrt_block *block, unsigned char owner, uint64_t *seed)
{
    if (block == NULL || block->address == NULL)
        return;
    change_owner(block, owner, 0);
    free_after(&team, block, next_random(seed) % 16 == 0 ? source_work(&team.source) : NULL);
    block->address = NULL;
}

/* Leaves the block (or NULL) in a slot for another thread, and frees the block that was there. */
static void hand_over(ctrt_block *block, size_t slot, uint64_t *seed)
{
    block = atomic_exchange(&handed[slot], block);
    free_owned(block, NOBODY, seed);
    free(block);
}

static void *churn(void *argument)
{
    const unsigned char me = *(unsigned char *)argument;
    uint64_t seed = 77 * (uint64_t)me + 1;
    ctrt_block live[40] = { { 0 } };
    for (int step = 0; step < THREAD_STEPS; step++) {
        ctrt_block *at = &live[next_random(&seed) % 40];
        if (at->address != NULL) {
            free_owned(at, me, &seed);
            continue;
        }
        size_t bytes = next_random(&seed) % 64 ? 512 + next_random(&seed) % 8 * 4096 : some_size(&seed);
        if (caching->alloc(team.policy, at, bytes, QUEUE(1 + next_random(&seed) % 2)) != CTRT_OK) {
            at->address = NULL;                 /* expected: memory is small */
            continue;
        }
        change_owner(at, 0, me);
        if (at->fence != NULL)
            source_fence_free(&team.source, at->fence);
        if (step % 8 == 0) {
            ctrt_block *copy = malloc(sizeof *copy);
            *copy = *at;
            change_owner(at, me, NOBODY);
            at->address = NULL;
            hand_over(copy, next_random(&seed) % SHARED, &seed);
        }
        if (step % 5000 == 4999 && me == 1)
            caching->trim(team.policy);
        if (step % 3000 == 2999 && me == 2) {
            struct walk walk = { 0 };
            caching->walk(team.policy, walk_piece, &walk);
            CHECK_EQ(walk.wrong, 0);
        }
    }
    for (int i = 0; i < 40; i++)
        free_owned(&live[i], me, &seed);
    return NULL;
}

static void test_threads(uint64_t bytes)
{
    pthread_t threads[THREADS];
    unsigned char numbers[THREADS];
    uint64_t seed = 5;
    group("%d threads free each other's blocks, %llu MiB", THREADS, (unsigned long long)bytes / MIB);
    fixture_begin(&team, caching, "", bytes, 0);
    owners_base = team.source.next;
    owners = calloc(owners_count, 1);
    ctrt_block first = alloc_block(&team, 4096, 1);     /* still single-threaded */
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = (unsigned char)(i + 1);
        pthread_create(&threads[i], NULL, churn, &numbers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < SHARED; i++)
        hand_over(NULL, i, &seed);
    CHECK_EQ(atomic_load(&ownership_errors), 0);
    CHECK_EQ(stats_of(&team).cached_bytes + first.bytes, team.source.used);
    CHECK_EQ(stats_of(&team).reserved_bytes, team.source.used);
    free_after(&team, &first, NULL);
    caching->trim(team.policy);
    CHECK_EQ(team.source.used, 0);
    fixture_end(&team);
    free((void *)owners);
}

TEST_MAIN
{
    static const struct setting settings[] = {
        { "", 4096 * MIB, 0, 0, 0, 1 },
        { "", 400 * MIB, 0, 0, 0, 3 },                          /* often out of memory */
        { "max_split=21m", 200 * MIB, 21 * MIB, 0, 0, 1 },      /* out of memory with oversize blocks to release */
        { "max_split=24m,gc=0.6", 800 * MIB, 24 * MIB, 0, 0.6, 2 },
        { "roundup=4", 1500 * MIB, 0, 4, 0, 2 },
    };
    caching = policy_load("caching");
    for (size_t i = 0; i < COUNT(settings); i++)
        test_one_thread(&settings[i], 12345 + i);
    test_pages(2048 * MIB, 3);
    test_pages(200 * MIB, 4);
    test_threads(4096 * MIB);
    test_threads(120 * MIB);
    free(granules.work);
    return done();
}
