/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the caching policy against models, with many random steps.
 *
 * One thread: the policy and PyTorch's algorithm (caching_reference.h) get the same requests. Each has its own fake
 * memory source, and both sources return the same addresses. After every step both must have returned the same
 * address and size, or both have failed, and both must have reserved the same number of bytes. No byte may be reused
 * before the block's queue waits for the work that the byte was freed with. Every 1009 steps the test walks the
 * policy's memory: blocks do not overlap, no two neighbours are free, and the sums are equal.
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
#define LIVE  160

#define MIB ((size_t)1 << 20)

static const ctrt_memory_policy *caching;

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

#define TAG_GRANULE 512
struct tags {                           /* per granule: number of the work that it was freed with; 0: none */
    uint32_t *of;
    uintptr_t base;
    size_t count;
};

static struct tags tags;

static uint32_t *tag_at(uintptr_t address)
{
    size_t index = (address - tags.base) / TAG_GRANULE;
    if (index >= tags.count) {
        size_t more = 2 * index + 1024;
        tags.of = realloc(tags.of, more * sizeof *tags.of);
        memset(tags.of + tags.count, 0, (more - tags.count) * sizeof *tags.of);
        tags.count = more;
    }
    return &tags.of[index];
}

static void tags_clear(uintptr_t base)
{
    tags.base = base;
    if (tags.count > 0)
        memset(tags.of, 0, tags.count * sizeof *tags.of);
}

static void tag(uintptr_t address, size_t bytes, uint32_t work)
{
    for (uintptr_t at = address; at < address + bytes; at += TAG_GRANULE)
        *tag_at(at) = work;
}

/* Returns the number of granules that would be used too early. */
static long untag(const struct paper *paper, uintptr_t address, size_t bytes, int who, const struct paper_fence *fence)
{
    long early = 0;
    uint32_t last = 0;
    for (uintptr_t at = address; at < address + bytes; at += TAG_GRANULE) {
        uint32_t *work = tag_at(at);
        bool known = *work == 0 || *work == last || paper_waits(paper, *work, who);
        for (const struct paper_fence *part = fence; part != NULL && !known; part = part->next)
            known = part->work == *work;
        if (known)
            last = *work;
        early += !known;
        *work = 0;
    }
    return early;
}

static void gone_back(struct paper *paper, void *address, size_t bytes)
{
    if (untag(paper, (uintptr_t)address, bytes, PAPER_HOST, NULL) > 0)
        paper_wrong(paper, "memory was returned to the source before its work was done");
}

/* ---- walking ---- */

struct walk {
    uintptr_t next, end;
    bool last_free;
    uint64_t reserved, active, active_blocks, free_bytes, segments, split, split_bytes;
    uint64_t segment_free, segment_blocks;
    long wrong;
};

static void walk_piece(const ctrt_memory_piece *piece, void *argument)
{
    struct walk *walk = argument;
    uintptr_t address = (uintptr_t)piece->address;
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
    if (is_free)
        walk->free_bytes += piece->bytes;
    else
        walk->active += piece->bytes, walk->active_blocks++;
}

static bool check_state(void *policy, const struct paper *paper, uint64_t active, uint64_t blocks, const struct ref *ref)
{
    struct walk walk = { 0 };
    ctrt_memory_policy_stats stats = { .size = sizeof stats };
    uint64_t split, split_bytes;
    caching->walk(policy, walk_piece, &walk);
    caching->stats(policy, &stats);
    ref_split(ref, &split, &split_bytes);
    bool fine = walk.wrong == 0 && walk.next == walk.end && walk.active == active && walk.active_blocks == blocks
                && walk.reserved == stats.reserved_bytes && walk.reserved == paper->used
                && walk.free_bytes == stats.cached_bytes
                && (int64_t)walk.segments == stats.segment[CTRT_POOL_ALL].current
                && stats.source_allocs - stats.source_frees == paper->allocs - paper->frees
                && stats.inactive_split[CTRT_POOL_ALL].current == (int64_t)split
                && stats.inactive_split_bytes[CTRT_POOL_ALL].current == (int64_t)split_bytes
                && stats.reserved[CTRT_POOL_ALL].peak == (int64_t)ref->peak && stats.retries == ref->retries;
    return CHECK(fine,
                 "walk: %ld wrong; active %llu of %llu in %llu blocks of %llu; reserved %llu, stats %llu, paper %llu; free %llu, "
                 "stats %llu; split %lld of %llu, %lld of %llu bytes; peak %lld of %llu; retries %llu of %llu",
                 walk.wrong, (unsigned long long)walk.active, (unsigned long long)active,
                 (unsigned long long)walk.active_blocks, (unsigned long long)blocks, (unsigned long long)walk.reserved,
                 (unsigned long long)stats.reserved_bytes, (unsigned long long)paper->used,
                 (unsigned long long)walk.free_bytes, (unsigned long long)stats.cached_bytes,
                 (long long)stats.inactive_split[CTRT_POOL_ALL].current, (unsigned long long)split,
                 (long long)stats.inactive_split_bytes[CTRT_POOL_ALL].current, (unsigned long long)split_bytes,
                 (long long)stats.reserved[CTRT_POOL_ALL].peak, (unsigned long long)ref->peak,
                 (unsigned long long)stats.retries, (unsigned long long)ref->retries);
}

/* ---- one thread ---- */

struct live {
    ctrt_block block;
    struct ref_block *twin;
    int queue;
};

struct setting {
    const char *options;
    uint64_t bytes;
    size_t max_split, divisions;
    double gc;
    int queues;
};

static bool one_step(struct paper *ours, struct ref *ref, void *policy, struct live *at, const struct setting *setting,
                     uint64_t *seed)
{
    if (at->twin != NULL) {
        if (next_random(seed) % 4 == 0) {                       /* other queues still use the block */
            struct paper_fence *fence = paper_work(ours);
            tag((uintptr_t)at->block.address, at->block.bytes, fence->work);
            at->block.fence = fence;
        }
        caching->free(policy, &at->block, QUEUE(at->queue));
        ref_free(ref, at->twin);
        at->twin = NULL;
        return true;
    }
    size_t bytes = some_size(seed);
    at->queue = 1 + (int)(next_random(seed) % (uint64_t)setting->queues);
    ctrt_status status = caching->alloc(policy, &at->block, bytes, QUEUE(at->queue));
    at->twin = ref_alloc(ref, bytes, QUEUE(at->queue));
    if (status != CTRT_OK || at->twin == NULL)
        return CHECK(status == CTRT_ERR_OUT_OF_MEMORY && at->twin == NULL, "%zu bytes: status %d, PyTorch's algorithm %s: %s",
                     bytes, (int)status, at->twin ? "has them" : "has none", host_error);
    bool fine = CHECK((uintptr_t)at->block.address == at->twin->address && at->block.bytes == at->twin->bytes,
                      "%zu bytes are %zu at %p, by PyTorch's algorithm %zu at %#llx", bytes, at->block.bytes,
                      at->block.address, at->twin->bytes, (unsigned long long)at->twin->address);
    long early = untag(ours, (uintptr_t)at->block.address, at->block.bytes, at->queue, at->block.fence);
    fine &= CHECK(early == 0, "%ld granules are used before their work is done", early);
    if (at->block.fence != NULL)
        paper_fence_free(ours, at->block.fence);
    at->block.fence = NULL;
    return fine;
}

static void test_one_thread(const struct setting *setting, uint64_t seed)
{
    static struct live live[LIVE];
    struct paper ours, theirs;
    struct ref ref;
    void *policy = NULL;
    uint64_t blocks = 0;
    group("the same addresses as PyTorch's algorithm, %d steps: %s, %d queues, %llu MiB", STEPS, setting->options,
          setting->queues, (unsigned long long)setting->bytes / MIB);
    paper_init(&ours, setting->bytes, 0);
    paper_init(&theirs, setting->bytes, 0);
    ours.on_free = gone_back;
    tags_clear(ours.next);
    ref_init(&ref, &theirs.source);
    if (setting->max_split > 0)
        ref.max_split = setting->max_split;
    if (setting->divisions > 0)
        ref.divisions = setting->divisions;
    ref.gc = setting->gc;
    if (!CHECK(caching->create(&policy, &ours.source, setting->options) == CTRT_OK, "%s", host_error))
        return;
    memset(live, 0, sizeof live);
    bool fine = true;
    for (long step = 0; step < STEPS && fine; step++) {
        uint64_t r = next_random(&seed);
        /* The window of slots moves slowly, so most freed blocks were allocated recently. */
        struct live *at = &live[(r % 8 ? r >> 8 : (r >> 8) + (uint64_t)step / 1000) % (r % 8 ? LIVE / 4 : LIVE)];
        blocks -= at->twin != NULL;
        fine = one_step(&ours, &ref, policy, at, setting, &seed);
        blocks += at->twin != NULL;
        fine = fine && CHECK(ours.used == ref.reserved && ours.wrong == 0, "step %ld: %llu reserved, by PyTorch's algorithm %llu; %s",
                             step, (unsigned long long)ours.used, (unsigned long long)ref.reserved, ours.what);
        if (step % 10007 == 10006) {
            caching->trim(policy);
            ref_trim(&ref);
        }
        if (step % 1009 == 1008)
            fine = fine && check_state(policy, &ours, ref.allocated, blocks, &ref);
        /* The fake source never returns an address twice. Start again before the tags grow without bound. */
        if (ours.next - tags.base > (uintptr_t)24 << 30) {
            for (int i = 0; i < LIVE; i++)
                if (live[i].twin != NULL) {
                    caching->free(policy, &live[i].block, NULL);
                    ref_free(&ref, live[i].twin);
                    live[i].twin = NULL;
                }
            blocks = 0;
            caching->trim(policy);
            ref_trim(&ref);
            ours.next = theirs.next = tags.base;
            tags_clear(tags.base);
        }
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i].twin != NULL) {
            caching->free(policy, &live[i].block, NULL);
            ref_free(&ref, live[i].twin);
        }
    ref_trim(&ref);
    caching->destroy(policy);
    paper_end(&ours);
    paper_end(&theirs);
}

/* ---- pages ---- */

/* Has no reference. Checks that addresses are mapped, that blocks do not overlap, and the sums and fences. */
static void test_pages(uint64_t bytes, uint64_t seed)
{
    static struct live live[LIVE];
    struct paper paper;
    struct ref none = { 0 };
    void *policy = NULL;
    uint64_t blocks = 0, active = 0, peak = 0;
    long failures = 0;
    bool fine = true;
    group("expandable segments, %d steps, %llu MiB", PAGE_STEPS, (unsigned long long)bytes / MIB);
    paper_init(&paper, bytes, 2 * MIB);
    paper.on_free = gone_back;
    tags_clear(paper.next);
    memset(live, 0, sizeof live);
    CHECK(caching->create(&policy, &paper.source, "expandable=true") == CTRT_OK, "%s", host_error);
    for (long step = 0; step < PAGE_STEPS && fine; step++) {
        struct live *at = &live[next_random(&seed) % (step / 5000 % 2 ? LIVE / 8 : LIVE)];
        if (at->block.address != NULL) {
            blocks--;
            active -= at->block.bytes;
            if (next_random(&seed) % 4 == 0) {
                struct paper_fence *fence = paper_work(&paper);
                tag((uintptr_t)at->block.address, at->block.bytes, fence->work);
                at->block.fence = fence;
            }
            caching->free(policy, &at->block, NULL);
            at->block.address = NULL;
        } else {
            at->queue = 1 + (int)(next_random(&seed) % 2);
            if (caching->alloc(policy, &at->block, some_size(&seed), QUEUE(at->queue)) != CTRT_OK) {
                at->block.address = NULL;
                failures++;
                continue;
            }
            blocks++;
            active += at->block.bytes;
            long early = untag(&paper, (uintptr_t)at->block.address, at->block.bytes, at->queue, at->block.fence);
            fine &= CHECK(early == 0, "%ld granules are used before their work is done", early);
            if (at->block.fence != NULL)
                paper_fence_free(&paper, at->block.fence);
            at->block.fence = NULL;
        }
        if (paper.used > peak)
            peak = paper.used;
        if (step % 5003 == 5002)
            caching->trim(policy);
        if (step % 1009 == 1008) {
            ctrt_memory_policy_stats stats = { .size = sizeof stats };
            caching->stats(policy, &stats);
            none.peak = (uint64_t)stats.reserved[CTRT_POOL_ALL].peak;
            none.retries = stats.retries;
            fine = fine && CHECK(none.peak == peak, "peak %llu, by the paper %llu", (unsigned long long)none.peak,
                                 (unsigned long long)peak)
                   && check_state(policy, &paper, active, blocks, &none);
        }
    }
    CHECK(paper.maps > 0 && paper.unmaps > 0 && paper.allocs == paper.maps, "%d maps, %d unmaps", (int)paper.maps,
          (int)paper.unmaps);
    CHECK((failures > 0) == (bytes < 512 * MIB), "%ld allocations failed", failures);
    for (int i = 0; i < LIVE; i++)
        if (live[i].block.address != NULL)
            caching->free(policy, &live[i].block, NULL);
    caching->destroy(policy);
    paper_end(&paper);
}

/* ---- several threads ---- */

#define THREADS 6
#define SHARED  64

struct team {
    struct paper paper;
    void *policy;
    struct tags owners;                 /* per granule: number of the owning thread, from 1 */
    _Atomic(ctrt_block *) handed[SHARED];       /* blocks that another thread frees */
    atomic_long wrong;
};

struct member {
    struct team *team;
    int number;
};

static void own(struct team *team, const ctrt_block *block, unsigned char from, unsigned char to)
{
    _Atomic unsigned char *owners = (_Atomic unsigned char *)(void *)team->owners.of;
    size_t first = ((uintptr_t)block->address - team->owners.base) / TAG_GRANULE;
    for (size_t i = 0; i < block->bytes / TAG_GRANULE; i++)
        if (first + i >= team->owners.count
            || atomic_exchange_explicit(&owners[first + i], to, memory_order_relaxed) != from)
            atomic_fetch_add(&team->wrong, 1);
}

static void drop(struct team *team, ctrt_block *block, unsigned char owner, uint64_t *seed)
{
    own(team, block, owner, 0);
    block->fence = next_random(seed) % 16 == 0 ? paper_work(&team->paper) : NULL;
    caching->free(team->policy, block, NULL);
}

static void *churn(void *argument)
{
    struct member *member = argument;
    struct team *team = member->team;
    uint64_t seed = 77 * (uint64_t)member->number + 1;
    unsigned char me = (unsigned char)member->number;
    ctrt_block live[40] = { { 0 } };
    for (int step = 0; step < THREAD_STEPS; step++) {
        ctrt_block *at = &live[next_random(&seed) % 40];
        if (at->address != NULL) {
            drop(team, at, me, &seed);
            at->address = NULL;
            continue;
        }
        size_t bytes = next_random(&seed) % 64 ? 512 + next_random(&seed) % 8 * 4096 : some_size(&seed);
        if (caching->alloc(team->policy, at, bytes, QUEUE(1 + next_random(&seed) % 2)) != CTRT_OK) {
            at->address = NULL;                 /* expected: memory is small */
            continue;
        }
        own(team, at, 0, me);
        if (at->fence != NULL)
            paper_fence_free(&team->paper, at->fence);
        if (step % 8 == 0) {                    /* another thread frees the block */
            ctrt_block *copy = malloc(sizeof *copy);
            *copy = *at;
            own(team, at, me, 255);
            copy = atomic_exchange(&team->handed[next_random(&seed) % SHARED], copy);
            if (copy != NULL)
                drop(team, copy, 255, &seed);
            free(copy);
            at->address = NULL;
        }
        if (step % 5000 == 4999 && member->number == 1)
            caching->trim(team->policy);
        if (step % 3000 == 2999 && member->number == 2) {
            struct walk walk = { 0 };
            caching->walk(team->policy, walk_piece, &walk);
            if (walk.wrong != 0)
                atomic_fetch_add(&team->wrong, 1);
        }
    }
    for (int i = 0; i < 40; i++)
        if (live[i].address != NULL)
            drop(team, &live[i], me, &seed);
    return NULL;
}

static void test_threads(uint64_t bytes)
{
    static struct team team;
    pthread_t threads[THREADS];
    struct member members[THREADS];
    uint64_t seed = 5;
    group("%d threads free each other's blocks, %llu MiB", THREADS, (unsigned long long)bytes / MIB);
    memset(&team, 0, sizeof team);
    paper_init(&team.paper, bytes, 0);
    team.owners.base = team.paper.next;
    team.owners.count = ((size_t)64 << 30) / TAG_GRANULE;
    team.owners.of = calloc(team.owners.count, 1);
    CHECK(caching->create(&team.policy, &team.paper.source, "") == CTRT_OK, "%s", host_error);
    ctrt_block first = { 0 };
    CHECK(caching->alloc(team.policy, &first, 4096, QUEUE(1)) == CTRT_OK, "%s", host_error); /* still single-threaded */
    for (int i = 0; i < THREADS; i++) {
        members[i] = (struct member){ &team, i + 1 };
        pthread_create(&threads[i], NULL, churn, &members[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SHARED; i++) {
        ctrt_block *left = atomic_exchange(&team.handed[i], NULL);
        if (left != NULL)
            drop(&team, left, 255, &seed);
        free(left);
    }
    CHECK(atomic_load(&team.wrong) == 0, "%ld errors in ownership or in walks", atomic_load(&team.wrong));
    ctrt_memory_policy_stats stats = { .size = sizeof stats };
    caching->stats(team.policy, &stats);
    CHECK(stats.cached_bytes + first.bytes == stats.reserved_bytes && stats.reserved_bytes == team.paper.used,
          "%llu cached of %llu", (unsigned long long)stats.cached_bytes, (unsigned long long)stats.reserved_bytes);
    caching->free(team.policy, &first, NULL);
    caching->trim(team.policy);
    CHECK(team.paper.used == 0, "%llu bytes stay after a trim", (unsigned long long)team.paper.used);
    caching->destroy(team.policy);
    paper_end(&team.paper);
    free(team.owners.of);
}

TEST_MAIN
{
    static const struct setting settings[] = {
        { "", 4096 * MIB, 0, 0, 0, 1 },
        { "", 400 * MIB, 0, 0, 0, 3 },                          /* often out of memory */
        { "max_split=24m,gc=0.6", 800 * MIB, 24 * MIB, 0, 0.6, 2 },
        { "roundup=4", 1500 * MIB, 0, 4, 0, 2 },
    };
    caching = policy_load("caching");
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        test_one_thread(&settings[i], 12345 + i);
    test_pages(2048 * MIB, 3);
    test_pages(200 * MIB, 4);
    test_threads(4096 * MIB);
    test_threads(120 * MIB);
    free(tags.of);
    return done();
}
