/* SPDX-License-Identifier: Apache-2.0 */
/* tests/unit/memory_host.h: runs a memory policy without the library, on a fake memory source ("paper").
 *
 * The fake source returns addresses without memory behind them and enforces a capacity. A fence is a set of numbered
 * work items. The source records, for each work item, the queues that wait for the item and whether the host waits for
 * it. With a page size, addresses can be reserved and mapped. `wrong` counts the calls that a policy must not make. */
#ifndef CTRT_TESTS_MEMORY_HOST_H
#define CTRT_TESTS_MEMORY_HOST_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plugin_host.h"

#define HELP __attribute__((unused)) static

/* Loads the policy in memory-NAME.so of CTRT_PLUGIN_PATH. */
HELP const ctrt_memory_policy *policy_load(const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "memory-%s", name);
    const ctrt_plugin *plugin = host_open(file);
    REQUIRE(plugin->init(&host_table) == CTRT_OK, "init: %s", host_error);
    return plugin->components[0].table;
}

/* ---- fences ---- */

#define PAPER_QUEUES 8
#define PAPER_HOST   PAPER_QUEUES       /* waiter index of the host, after the queues */

struct paper_fence {
    struct paper_fence *next;           /* next fence joined to this one */
    uint32_t work;                      /* number of the work item; 0: the first `until` waits of `queue` */
    int queue;
    size_t until;                       /* number of waits that `queue` had when the fence was created */
};

struct paper_queue {                    /* work items waited for, in order; the host waited for `settled` */
    uint32_t *work;
    size_t count, room, settled;
};

/* ---- the source ---- */

struct paper {
    ctrt_memory_source source;
    pthread_mutex_t lock;
    uint64_t bytes, used;               /* capacity; allocated or mapped */
    uintptr_t next;                     /* next address to return */
    uint64_t allocs, frees;             /* including maps and unmaps */
    uint64_t maps, unmaps, reserved_ranges;
    long fail_in;                       /* above 0: the alloc or map that decrements it to 0 fails */
    unsigned char *awaited;             /* 2 bytes per work item: bits of waiting queues; 1: host waits */
    uint32_t work, work_room;
    struct paper_queue queues[PAPER_QUEUES];
    long fences;                        /* existing fences */
    long wrong;
    char what[256];                     /* description of the last wrong call */
    void (*on_free)(struct paper *paper, void *address, size_t bytes);  /* called on free */
};

/* A queue is a small integer cast to a pointer; NULL is queue 0. */
#define QUEUE(n) ((void *)(uintptr_t)(n))

HELP void paper_wrong(struct paper *paper, const char *what)
{
    paper->wrong++;
    snprintf(paper->what, sizeof paper->what, "%s", what);
}

HELP ctrt_status paper_draw(struct paper *paper, size_t bytes)
{
    if ((paper->fail_in > 0 && --paper->fail_in == 0) || bytes > paper->bytes - paper->used)
        return host_fail(CTRT_ERR_OUT_OF_MEMORY, "the paper has no %zu bytes left", bytes);
    paper->used += bytes;
    return CTRT_OK;
}

HELP ctrt_status paper_alloc(void *state, void **address, size_t bytes, void *queue)
{
    struct paper *paper = state;
    (void)queue;
    pthread_mutex_lock(&paper->lock);
    ctrt_status status = paper_draw(paper, bytes);
    if (status == CTRT_OK) {
        *address = (void *)paper->next;
        paper->next += (bytes + 0x1fffff) / 0x200000 * 0x200000 + 0x200000;
        paper->allocs++;
    }
    pthread_mutex_unlock(&paper->lock);
    return status;
}

HELP void paper_free(void *state, void *address, size_t bytes, void *queue)
{
    struct paper *paper = state;
    (void)queue;
    pthread_mutex_lock(&paper->lock);
    if (bytes > paper->used)
        paper_wrong(paper, "more comes back than was given");
    paper->used -= bytes;
    paper->frees++;
    if (paper->on_free)
        paper->on_free(paper, address, bytes);
    pthread_mutex_unlock(&paper->lock);
}

HELP ctrt_status paper_reserve(void *state, void **address, size_t bytes)
{
    struct paper *paper = state;
    *address = (void *)paper->next;
    paper->next += bytes + 0x200000;
    paper->reserved_ranges++;
    return CTRT_OK;
}

HELP void paper_unreserve(void *state, void *address, size_t bytes)
{
    struct paper *paper = state;
    (void)address, (void)bytes;
    paper->reserved_ranges--;
}

HELP ctrt_status paper_map(void *state, void *address, size_t bytes)
{
    struct paper *paper = state;
    (void)address;
    if (bytes % paper->source.page_bytes != 0)
        paper_wrong(paper, "a part of a page is mapped");
    pthread_mutex_lock(&paper->lock);
    ctrt_status status = paper_draw(paper, bytes);
    paper->maps += status == CTRT_OK;
    paper->allocs += status == CTRT_OK;
    pthread_mutex_unlock(&paper->lock);
    return status;
}

HELP void paper_unmap(void *state, void *address, size_t bytes)
{
    struct paper *paper = state;
    if (bytes % paper->source.page_bytes != 0)
        paper_wrong(paper, "a part of a page is unmapped");
    paper->unmaps++;
    paper_free(state, address, bytes, NULL);
}

/* Creates a fence for a new work item with number paper->work + 1. */
HELP struct paper_fence *paper_work(struct paper *paper)
{
    struct paper_fence *fence = calloc(1, sizeof *fence);
    pthread_mutex_lock(&paper->lock);
    fence->work = ++paper->work;
    if (paper->work >= paper->work_room) {
        uint32_t room = paper->work_room > 0 ? 2 * paper->work_room : 1024;
        paper->awaited = realloc(paper->awaited, 2 * (size_t)room);
        memset(paper->awaited + 2 * (size_t)paper->work_room, 0, 2 * (size_t)(room - paper->work_room));
        paper->work_room = room;
    }
    paper->fences++;
    pthread_mutex_unlock(&paper->lock);
    return fence;
}

/* Returns whether `who` (a queue or PAPER_HOST) waits for the work item. A host wait counts for all queues. */
HELP bool paper_waits(const struct paper *paper, uint32_t work, int who)
{
    return paper->awaited[2 * (size_t)work + 1] || (who < PAPER_QUEUES && paper->awaited[2 * (size_t)work] >> who & 1);
}

HELP ctrt_status paper_fence_new(void *state, void **fence, void *queue)
{
    struct paper *paper = state;
    struct paper_fence *made = calloc(1, sizeof *made);
    pthread_mutex_lock(&paper->lock);
    paper->fences++;
    made->queue = (int)(uintptr_t)queue;
    made->until = paper->queues[made->queue].count;
    pthread_mutex_unlock(&paper->lock);
    *fence = made;
    return CTRT_OK;
}

HELP void paper_queue_waits(struct paper *paper, struct paper_queue *queue, uint32_t work)
{
    if (queue->count == queue->room) {
        queue->room = queue->room > 0 ? 2 * queue->room : 256;
        queue->work = realloc(queue->work, queue->room * sizeof *queue->work);
    }
    queue->work[queue->count++] = work;
    paper->awaited[2 * (size_t)work] |= (unsigned char)(1u << (queue - paper->queues));
}

/* A host wait for a queue is also a host wait for all work items that the queue waits for. */
HELP void paper_host_waits(struct paper *paper, const struct paper_fence *part)
{
    struct paper_queue *queue = &paper->queues[part->queue];
    if (part->work != 0)
        paper->awaited[2 * (size_t)part->work + 1] = 1;
    for (; part->work == 0 && queue->settled < part->until; queue->settled++)
        paper->awaited[2 * (size_t)queue->work[queue->settled] + 1] = 1;
}

HELP ctrt_status paper_fence_wait(void *state, void *fence, void *queue)
{
    struct paper *paper = state;
    pthread_mutex_lock(&paper->lock);
    for (struct paper_fence *part = fence; part != NULL; part = part->next)
        if (queue == NULL)
            paper_host_waits(paper, part);
        else if (part->work != 0)
            paper_queue_waits(paper, &paper->queues[(uintptr_t)queue], part->work);
    pthread_mutex_unlock(&paper->lock);
    return CTRT_OK;
}

HELP bool paper_fence_done(void *state, void *fence)
{
    struct paper *paper = state;
    bool done = true;
    pthread_mutex_lock(&paper->lock);
    for (const struct paper_fence *part = fence; part != NULL; part = part->next)
        done &= part->work == 0 || paper_waits(paper, part->work, PAPER_HOST);
    pthread_mutex_unlock(&paper->lock);
    return done;
}

HELP void *paper_fence_join(void *state, void *a, void *b)
{
    struct paper_fence *last = a;
    (void)state;
    while (last->next != NULL)
        last = last->next;
    last->next = b;
    return a;
}

HELP void paper_fence_free(void *state, void *fence)
{
    struct paper *paper = state;
    long count = 0;
    for (struct paper_fence *part = fence, *next; part != NULL; part = next, count++) {
        next = part->next;
        free(part);
    }
    pthread_mutex_lock(&paper->lock);
    paper->fences -= count;
    pthread_mutex_unlock(&paper->lock);
}

/* ---- functions of the source for policies that move memory ---- */

static long paper_copies, paper_copies_left;    /* left: above 0: the copy that decrements it to 0 fails */

HELP ctrt_status paper_copy(void *state, void *to, const void *from, size_t bytes, int kind, void *queue)
{
    (void)state, (void)to, (void)from, (void)bytes, (void)kind, (void)queue;
    paper_copies++;
    if (paper_copies_left > 0 && --paper_copies_left == 0)
        return host_fail(CTRT_ERR_BACKEND, "the paper copies nothing");
    return CTRT_OK;
}

HELP ctrt_status paper_host_alloc(void *state, void **address, size_t bytes)
{
    (void)state;
    return (*address = malloc(bytes)) != NULL ? CTRT_OK : CTRT_ERR_OUT_OF_MEMORY;
}

HELP void paper_host_free(void *state, void *address, size_t bytes)
{
    (void)state, (void)bytes;
    free(address);
}

HELP void paper_moves(struct paper *paper)
{
    paper->source.copy = paper_copy;
    paper->source.host_alloc = paper_host_alloc;
    paper->source.host_free = paper_host_free;
}

/* Initialises a source with a capacity of `bytes` and pages of `page_bytes` (0: no pages). */
HELP void paper_init(struct paper *paper, uint64_t bytes, size_t page_bytes)
{
    memset(paper, 0, sizeof *paper);
    pthread_mutex_init(&paper->lock, NULL);
    paper->bytes = bytes;
    paper->next = (uintptr_t)1 << 40;
    paper->source = (ctrt_memory_source){
        .size = sizeof paper->source, .state = paper, .alloc = paper_alloc, .free = paper_free, .device_name = "paper:0",
        .device_flags = CTRT_DEVICE_ASYNCHRONOUS, .total_bytes = bytes, .fence_new = paper_fence_new,
        .fence_wait = paper_fence_wait, .fence_done = paper_fence_done, .fence_join = paper_fence_join,
        .fence_free = paper_fence_free,
    };
    if (page_bytes > 0) {
        paper->source.page_bytes = page_bytes;
        paper->source.reserve = paper_reserve;
        paper->source.unreserve = paper_unreserve;
        paper->source.map = paper_map;
        paper->source.unmap = paper_unmap;
    }
}

HELP void paper_end(struct paper *paper)
{
    CHECK(paper->wrong == 0, "%ld wrong calls, the last: %s", paper->wrong, paper->what);
    CHECK(paper->used == 0, "%llu bytes were not freed", (unsigned long long)paper->used);
    CHECK(paper->fences == 0, "%ld fences were not freed", paper->fences);
    CHECK(paper->reserved_ranges == 0, "%ld reserved address ranges were not released", (long)paper->reserved_ranges);
    free(paper->awaited);
    for (int i = 0; i < PAPER_QUEUES; i++)
        free(paper->queues[i].work);
    pthread_mutex_destroy(&paper->lock);
}

#endif
