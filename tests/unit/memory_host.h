/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a memory policy on a fake memory source, for internal tests. Include after tap.h.
 *
 * The fake source returns addresses without memory and enforces a capacity. A fence is a set of numbered
 * work items. The source records, for each work item, the queues that wait for the item and whether the host waits for
 * it. With a page size, addresses can be reserved and mapped. `wrong` counts the calls that a policy must not make. */
#ifndef CTRT_TESTS_MEMORY_HOST_H
#define CTRT_TESTS_MEMORY_HOST_H

#include <pthread.h>
#include <stdint.h>

#include "calls.h"
#include "log_kept.h"
#include "registry/registry.h"

#define HELP __attribute__((unused)) static

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define ADDRESS(pointer) ((uintptr_t)(pointer))

/* A queue is a small integer cast to a pointer; NULL is queue 0. */
#define QUEUE(n) ((void *)(uintptr_t)(n))
enum { QUEUES = 8, HOST_WAITS = QUEUES };

struct fake_fence {
    struct fake_fence *next;            /* next fence joined to this one */
    uint32_t work;                      /* number of the work item; 0: the first `until` waits of `queue` */
    int queue;
    uint32_t until;                     /* number of waits that `queue` had when the fence was created */
};

enum { MOST_WORK = 1 << 18 };

struct fake_work {
    uint32_t waited[QUEUES];            /* by queue: n if the queue's n-th wait was for this work item; 0: none */
    bool by_host;
};

struct fake_source {
    ctrt_memory_source source;
    pthread_mutex_t lock;
    uint64_t bytes, used;               /* capacity; allocated or mapped */
    uintptr_t next;                     /* next address to return */
    uint64_t allocs, frees;             /* including maps and unmaps */
    uint64_t maps, unmaps, reserved_ranges;
    long copies_left;                   /* above 0: the copy that decrements it to 0 fails */
    struct fake_work *works;
    uint32_t work;                      /* number of the last work item */
    uint32_t waits[QUEUES];             /* number of waits of each queue */
    uint32_t settled[QUEUES];           /* the host waited for the first `settled` waits of each queue */
    long fences;                        /* existing fences */
    long wrong;
    const char *what;                   /* description of the last wrong call */
    void (*on_free)(struct fake_source *source, void *address, size_t bytes);   /* called on free */
};

HELP void source_wrong(struct fake_source *source, const char *what)
{
    source->wrong++;
    source->what = what;
}

/* ---- memory ---- */

HELP ctrt_status source_use(struct fake_source *source, size_t bytes)
{
    if (bytes > source->bytes - source->used)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "the source has no %zu bytes left", bytes);
    source->used += bytes;
    source->allocs++;
    return CTRT_OK;
}

HELP ctrt_status source_alloc(void *state, void **address, size_t bytes, void *queue)
{
    struct fake_source *source = state;
    (void)queue;
    pthread_mutex_lock(&source->lock);
    ctrt_status status = source_use(source, bytes);
    if (status == CTRT_OK) {
        *address = (void *)source->next;
        source->next += (bytes + 0x1fffff) / 0x200000 * 0x200000 + 0x200000;
    }
    pthread_mutex_unlock(&source->lock);
    return status;
}

HELP void source_free(void *state, void *address, size_t bytes, void *queue)
{
    struct fake_source *source = state;
    (void)queue;
    pthread_mutex_lock(&source->lock);
    if (bytes > source->used)
        source_wrong(source, "more bytes are freed than were allocated");
    source->used -= bytes;
    source->frees++;
    if (source->on_free)
        source->on_free(source, address, bytes);
    pthread_mutex_unlock(&source->lock);
}

HELP ctrt_status source_reserve(void *state, void **address, size_t bytes)
{
    struct fake_source *source = state;
    *address = (void *)source->next;
    source->next += bytes + 0x200000;
    source->reserved_ranges++;
    return CTRT_OK;
}

HELP void source_unreserve(void *state, void *address, size_t bytes)
{
    (void)address, (void)bytes;
    ((struct fake_source *)state)->reserved_ranges--;
}

HELP ctrt_status source_map(void *state, void *address, size_t bytes)
{
    struct fake_source *source = state;
    (void)address;
    if (bytes % source->source.page_bytes != 0)
        source_wrong(source, "a part of a page is mapped");
    pthread_mutex_lock(&source->lock);
    ctrt_status status = source_use(source, bytes);
    source->maps += status == CTRT_OK;
    pthread_mutex_unlock(&source->lock);
    return status;
}

HELP void source_unmap(void *state, void *address, size_t bytes)
{
    struct fake_source *source = state;
    if (bytes % source->source.page_bytes != 0)
        source_wrong(source, "a part of a page is unmapped");
    source->unmaps++;
    source_free(state, address, bytes, NULL);
}

HELP ctrt_status source_copy(void *state, void *to, const void *from, size_t bytes, int kind, void *queue)
{
    struct fake_source *source = state;
    (void)to, (void)from, (void)bytes, (void)kind, (void)queue;
    if (source->copies_left > 0 && --source->copies_left == 0)
        return ctrt_fail(CTRT_ERR_BACKEND, "the source copies nothing");
    return CTRT_OK;
}

HELP ctrt_status source_host_alloc(void *state, void **address, size_t bytes)
{
    (void)state;
    return (*address = malloc(bytes)) != NULL ? CTRT_OK : CTRT_ERR_OUT_OF_MEMORY;
}

HELP void source_host_free(void *state, void *address, size_t bytes)
{
    (void)state, (void)bytes;
    free(address);
}

/* ---- fences ---- */

HELP struct fake_fence *source_fence(struct fake_source *source, struct fake_fence values)
{
    struct fake_fence *fence = malloc(sizeof *fence);
    *fence = values;
    source->fences++;
    return fence;
}

/* Creates a fence for a new work item with number source->work + 1. */
HELP struct fake_fence *source_work(struct fake_source *source)
{
    pthread_mutex_lock(&source->lock);
    struct fake_fence *fence = source_fence(source, (struct fake_fence){ .work = ++source->work });
    REQUIRE_TRUE(source->work < MOST_WORK);
    pthread_mutex_unlock(&source->lock);
    return fence;
}

/* Returns whether `who` (a queue or HOST_WAITS) waits for the work item. A host wait counts for all queues, and a host
 * wait for a queue is also one for all work items that the queue waits for. */
HELP bool source_waits(const struct fake_source *source, uint32_t number, int who)
{
    const struct fake_work *work = &source->works[number];
    bool waits = work->by_host || (who < QUEUES && work->waited[who] > 0);
    for (int i = 0; i < QUEUES && !waits; i++)
        waits = work->waited[i] > 0 && work->waited[i] <= source->settled[i];
    return waits;
}

HELP ctrt_status source_fence_new(void *state, void **fence, void *queue)
{
    struct fake_source *source = state;
    const int number = (int)(uintptr_t)queue;
    pthread_mutex_lock(&source->lock);
    *fence = source_fence(source, (struct fake_fence){ .queue = number, .until = source->waits[number] });
    pthread_mutex_unlock(&source->lock);
    return CTRT_OK;
}

HELP ctrt_status source_fence_wait(void *state, void *fence, void *queue)
{
    struct fake_source *source = state;
    const uintptr_t number = ADDRESS(queue);
    pthread_mutex_lock(&source->lock);
    for (struct fake_fence *part = fence; part != NULL; part = part->next) {
        struct fake_work *work = &source->works[part->work];
        if (number != 0 && part->work != 0 && work->waited[number] == 0)
            work->waited[number] = ++source->waits[number];
        else if (number == 0 && part->work != 0)
            work->by_host = true;
        else if (number == 0 && part->until > source->settled[part->queue])
            source->settled[part->queue] = part->until;
    }
    pthread_mutex_unlock(&source->lock);
    return CTRT_OK;
}

HELP bool source_fence_done(void *state, void *fence)
{
    struct fake_source *source = state;
    bool done = true;
    pthread_mutex_lock(&source->lock);
    for (const struct fake_fence *part = fence; part != NULL; part = part->next)
        done &= part->work == 0 || source_waits(source, part->work, HOST_WAITS);
    pthread_mutex_unlock(&source->lock);
    return done;
}

HELP void *source_fence_join(void *state, void *a, void *b)
{
    struct fake_fence *last = a;
    (void)state;
    while (last->next != NULL)
        last = last->next;
    last->next = b;
    return a;
}

HELP void source_fence_free(void *state, void *fence)
{
    struct fake_source *source = state;
    pthread_mutex_lock(&source->lock);
    for (struct fake_fence *part = fence, *next; part != NULL; part = next) {
        next = part->next;
        free(part);
        source->fences--;
    }
    pthread_mutex_unlock(&source->lock);
}

/* ---- set-up ---- */

/* Initialises a source with a capacity of `bytes` and pages of `page_bytes` (0: no pages). */
HELP void source_init(struct fake_source *source, uint64_t bytes, size_t page_bytes)
{
    memset(source, 0, sizeof *source);
    pthread_mutex_init(&source->lock, NULL);
    source->bytes = bytes;
    source->next = (uintptr_t)1 << 40;
    source->works = calloc(MOST_WORK, sizeof *source->works);
    source->source = (ctrt_memory_source){
        .size = sizeof source->source, .state = source, .alloc = source_alloc, .free = source_free,
        .device_name = "fake:0", .device_flags = CTRT_DEVICE_ASYNCHRONOUS, .total_bytes = bytes,
        .fence_new = source_fence_new, .fence_wait = source_fence_wait, .fence_done = source_fence_done,
        .fence_join = source_fence_join, .fence_free = source_fence_free, .copy = source_copy,
        .host_alloc = source_host_alloc, .host_free = source_host_free,
    };
    if (page_bytes > 0) {
        source->source.page_bytes = page_bytes;
        source->source.reserve = source_reserve;
        source->source.unreserve = source_unreserve;
        source->source.map = source_map;
        source->source.unmap = source_unmap;
    }
}

HELP void source_end(struct fake_source *source)
{
    CHECK(source->wrong == 0, "%ld wrong calls, the last: %s", source->wrong, source->what);
    CHECK_EQ(source->used, 0);
    CHECK_EQ(source->fences, 0);
    CHECK_EQ(source->reserved_ranges, 0);
    free(source->works);
    pthread_mutex_destroy(&source->lock);
}

/* ---- a policy on a fake source ---- */

struct fixture {
    struct fake_source source;
    const ctrt_memory_policy *table;
    void *policy;
};

static const ctrt_memory_policy *caching, *direct, *arena;

HELP const ctrt_memory_policy *policy_load(const char *name)
{
    const struct component *found;
    REQUIRE(registry_use(&found, CTRT_COMPONENT_MEMORY, name) == CTRT_OK, "%s", ctrt_error_message());
    return found->table;
}

HELP void policies_load(void)
{
    caching = policy_load("caching");
    direct = policy_load("direct");
    arena = policy_load("arena");
}

HELP void fixture_begin(struct fixture *f, const ctrt_memory_policy *table, const char *options, uint64_t bytes,
                        size_t page_bytes)
{
    source_init(&f->source, bytes, page_bytes);
    f->table = table;
    REQUIRE(table->create(&f->policy, &f->source.source, options) == CTRT_OK, "%s", ctrt_error_message());
}

HELP void fixture_end(struct fixture *f)
{
    f->table->destroy(f->policy);
    source_end(&f->source);
}

/* A TEST (tap.h) of a policy on a new fake source. FIXTURE_AGAIN repeats it with another policy. */
#define FIXTURE_TEST(function, ...)                                             \
    static void function(struct fixture *f);                                    \
    FIXTURE_AGAIN(function, __VA_ARGS__)                                        \
    static void function(struct fixture *f)
#define FIXTURE_AGAIN(function, policy, what, options, bytes, page_bytes)       \
    TEST(function##_##policy, what)                                             \
    {                                                                           \
        struct fixture f;                                                       \
        fixture_begin(&f, policy, options, bytes, page_bytes);                  \
        function(&f);                                                           \
        fixture_end(&f);                                                        \
    }

HELP ctrt_block alloc_block(struct fixture *f, size_t bytes, int queue)
{
    ctrt_block block = { 0 };
    CHECK_OK(f->table->alloc(f->policy, &block, bytes, QUEUE(queue)));
    return block;
}

/* Frees the block; work that the fence (or NULL) stands for may still use it. */
HELP void free_after(struct fixture *f, ctrt_block *block, struct fake_fence *fence)
{
    block->fence = fence;
    f->table->free(f->policy, block, NULL);
    *block = (ctrt_block){ 0 };
}

/* Frees those of the blocks that are not yet freed. */
HELP void free_blocks(struct fixture *f, ctrt_block *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (blocks[i].address != NULL)
            free_after(f, &blocks[i], NULL);
}

/* Sums over the segments and blocks that the policy's walk visits. */
struct walk {
    uintptr_t next, end;
    bool last_free;
    uint64_t reserved, active, active_blocks, awaiting, free_bytes, segments;
    long wrong;                         /* blocks that overlap, or do not fill their segment */
    long unmerged;                      /* pairs of free neighbours */
};

HELP void walk_piece(const ctrt_memory_piece *piece, void *argument)
{
    struct walk *walk = argument;
    uintptr_t address = ADDRESS(piece->address);
    if (piece->segment) {
        walk->wrong += walk->next != walk->end;
        walk->next = address;
        walk->end = address + piece->bytes;
        walk->reserved += piece->bytes;
        walk->segments++;
        walk->last_free = false;
        return;
    }
    bool is_free = piece->block_state != CTRT_BLOCK_ACTIVE;
    walk->wrong += address != walk->next || address + piece->bytes > walk->end || piece->bytes == 0;
    walk->unmerged += is_free && walk->last_free;
    walk->last_free = is_free;
    walk->next += piece->bytes;
    walk->awaiting += piece->block_state == CTRT_BLOCK_AWAITING;
    walk->free_bytes += is_free ? piece->bytes : 0;
    walk->active += is_free ? 0 : piece->bytes;
    walk->active_blocks += !is_free;
}

HELP struct walk walk_of(struct fixture *f)
{
    struct walk walk = { 0 };
    f->table->walk(f->policy, walk_piece, &walk);
    walk.wrong += walk.next != walk.end;
    return walk;
}

HELP ctrt_memory_policy_stats stats_of(struct fixture *f)
{
    ctrt_memory_policy_stats stats = { .size = sizeof stats };
    f->table->stats(f->policy, &stats);
    return stats;
}

#endif
