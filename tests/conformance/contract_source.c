/* SPDX-License-Identifier: Apache-2.0 */
/* contract_source.c: a memory source that models order. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract_source.h"

#include <pthread.h>
#include <sys/mman.h>

#define MIB  ((size_t)1 << 20)
#define PAGE (2 * MIB)

struct fence { uint64_t mask; unsigned epoch; };

/* Guards all sources. Policies call a source with their locks held, and a fork takes the locks of handlers that were
 * registered last first, so these are registered before any policy is loaded. */
static pthread_mutex_t source_lock = PTHREAD_MUTEX_INITIALIZER;

static void source_enter(void)
{
    pthread_mutex_lock(&source_lock);
}

static void source_leave(void)
{
    pthread_mutex_unlock(&source_lock);
}

__attribute__((constructor)) static void source_start(void)
{
    pthread_atfork(source_enter, source_leave, source_leave);
}

static int queue_index(const void *queue)
{
    const intptr_t index = (intptr_t)queue - 1;
    EXPECT(index >= 0 && index < QUEUES, "the policy passed the queue %p, which does not exist", queue);
    return (int)index;
}

/* Mapped pages are blocks of their own, so a range can consist of several. */
struct region *source_region(struct source *s, const char *address, size_t bytes)
{
    struct region *first = NULL;
    for (const char *at = address; first == NULL || at < address + bytes;) {
        struct region *found = NULL;
        for (int i = 0; i < REGIONS && found == NULL; i++)
            if (s->regions[i].address != NULL && at >= s->regions[i].address
                && at < s->regions[i].address + s->regions[i].bytes)
                found = &s->regions[i];
        if (found == NULL)
            return NULL;
        first = first != NULL ? first : found;
        at = found->address + found->bytes;
    }
    return first;
}

static void region_add(struct source *s, char *address, size_t bytes)
{
    struct region *region = s->regions;
    while (region->address != NULL)
        EXPECT(++region < s->regions + REGIONS, "more than %d blocks of the source are in use", REGIONS);
    *region = (struct region){ address, bytes };
}

/* Takes `bytes` of the capacity. Requires the lock. */
static ctrt_status take_bytes(struct source *s, size_t bytes)
{
    EXPECT(bytes > 0, "the policy requested 0 bytes of its source");
    if (s->fails != CTRT_OK)
        return contract_host.fail(s->fails, "the source fails");
    if (bytes > s->capacity - s->used)
        return contract_host.fail(CTRT_ERR_OUT_OF_MEMORY, "the source has no %zu bytes", bytes);
    s->used += bytes;
    s->allocs++;
    return CTRT_OK;
}

static ctrt_status counted_alloc(void *state, void **address, size_t bytes, void *queue)
{
    struct source *s = state;
    static char *next = (char *)((uintptr_t)1 << 44);
    if (s->source.device_flags & CTRT_DEVICE_ASYNCHRONOUS)
        (void)queue_index(queue);
    source_enter();
    ctrt_status status = take_bytes(s, bytes);
    if (status == CTRT_OK) {
        *address = s->forgotten ? next
                                : mmap(NULL, bytes, s->readable ? PROT_READ | PROT_WRITE : PROT_NONE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        next += bytes + 2 * MIB;
        region_add(s, *address, bytes);
    }
    source_leave();
    return status;
}

/* Fails the check if an earlier use of the memory may still run when work on `queue`, or the host (-1), uses it. */
static void ordered(struct source *s, const char *address, size_t bytes, int queue, const char *what)
{
    const uint64_t known = s->host | (queue >= 0 ? s->known[queue] : 0);
    for (int i = 0; i < s->use_count; i++)
        EXPECT(s->uses[i].address >= address + bytes || address >= s->uses[i].address + s->uses[i].bytes
                   || (s->uses[i].work & ~known) == 0,
               "%s before the work that still uses it was done or ordered", what);
}

/* The policy returns memory that work on `queue` (-1: the host) no longer uses. Requires the lock. */
static void returned(struct source *s, char *address, size_t bytes, int queue)
{
    EXPECT(!s->no_frees, "memory was returned to the source");
    ordered(s, address, bytes, queue, "memory was returned to the source");
    for (int i = 0; i < s->use_count; i++)
        if (s->uses[i].address >= address && s->uses[i].address < address + bytes)
            s->uses[i--] = s->uses[--s->use_count];
    s->used -= bytes;
    s->frees++;
}

static void counted_free(void *state, void *address, size_t bytes, void *queue)
{
    struct source *s = state;
    source_enter();
    struct region *region = source_region(s, address, bytes);
    EXPECT(region != NULL && region->address == address && region->bytes == bytes,
           "the policy returned %zu bytes at %p to its source, which is not a block of the source", bytes, address);
    returned(s, address, bytes, s->source.flags & CTRT_SOURCE_ORDERED ? queue_index(queue) : -1);
    if (!s->forgotten)
        munmap(address, bytes);
    *region = (struct region){ NULL, 0 };
    source_leave();
}

/* ---- pages ---- */

static ctrt_status counted_reserve(void *state, void **address, size_t bytes)
{
    struct source *s = state;
    EXPECT(bytes > 0 && bytes % PAGE == 0, "the policy reserved %zu bytes", bytes);
    *address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    s->ranges++;
    return CTRT_OK;
}

static void counted_unreserve(void *state, void *address, size_t bytes)
{
    struct source *s = state;
    for (size_t at = 0; at < bytes; at += PAGE)
        EXPECT(source_region(s, (char *)address + at, 1) == NULL, "the policy unreserved addresses with mapped pages");
    munmap(address, bytes);
    s->ranges--;
}

static ctrt_status counted_map(void *state, void *address, size_t bytes)
{
    struct source *s = state;
    EXPECT(bytes % PAGE == 0 && (uintptr_t)address % 4096 == 0, "the policy mapped %zu bytes at %p", bytes, address);
    source_enter();
    ctrt_status status = take_bytes(s, bytes);
    for (size_t at = 0; at < bytes && status == CTRT_OK; at += PAGE) {
        EXPECT(source_region(s, (char *)address + at, 1) == NULL, "the policy mapped a page twice");
        region_add(s, (char *)address + at, PAGE);
    }
    if (status == CTRT_OK && s->readable)
        mprotect(address, bytes, PROT_READ | PROT_WRITE);
    source_leave();
    return status;
}

static void counted_unmap(void *state, void *address, size_t bytes)
{
    struct source *s = state;
    source_enter();
    for (size_t at = 0; at < bytes; at += PAGE) {
        struct region *region = source_region(s, (char *)address + at, PAGE);
        EXPECT(region != NULL && region->address == (char *)address + at, "the policy unmapped what it had not mapped");
        *region = (struct region){ NULL, 0 };
    }
    returned(s, address, bytes, -1);
    mprotect(address, bytes, PROT_NONE);
    source_leave();
}

void source_use(struct source *s, const char *address, size_t bytes, int queue)
{
    source_enter();
    ordered(s, address, bytes, queue, "work uses memory");
    if (s->last == 64 || s->use_count == USES) {        /* the device becomes idle */
        memset(s->known, 0, sizeof s->known);
        s->host = s->last = 0;
        s->use_count = 0;
        s->epoch++;
    }
    const uint64_t work = (uint64_t)1 << s->last++;
    s->known[queue] |= work;
    s->uses[s->use_count++] = (struct use){ (char *)(uintptr_t)address, bytes, work };
    source_leave();
}

void *source_fence(struct source *s, uint64_t mask)
{
    struct fence *fence = malloc(sizeof *fence);
    *fence = (struct fence){ mask, s->epoch };
    s->fences++;
    return fence;
}

static ctrt_status counted_fence_new(void *state, void **fence, void *queue)
{
    struct source *s = state;
    *fence = NULL;
    if (!(s->source.device_flags & CTRT_DEVICE_ASYNCHRONOUS))
        return CTRT_OK;
    source_enter();
    *fence = source_fence(s, s->known[queue_index(queue)]);
    source_leave();
    return CTRT_OK;
}

static uint64_t mask_of(const struct source *s, const struct fence *fence)
{
    return fence != NULL && fence->epoch == s->epoch ? fence->mask : 0;
}

static ctrt_status counted_fence_wait(void *state, void *fence, void *queue)
{
    struct source *s = state;
    source_enter();
    *(queue != NULL ? &s->known[queue_index(queue)] : &s->host) |= mask_of(s, fence);
    source_leave();
    return CTRT_OK;
}

static ctrt_status counted_fence_status(void *state, void *fence, bool *done)
{
    struct source *s = state;
    source_enter();
    *done = (mask_of(s, fence) & ~s->host) == 0;
    source_leave();
    return CTRT_OK;
}

static bool counted_fence_done(void *state, void *fence)
{
    bool done;
    return counted_fence_status(state, fence, &done) == CTRT_OK && done;
}

static void counted_fence_free(void *state, void *fence)
{
    if (fence == NULL)
        return;
    source_enter();
    ((struct source *)state)->fences--;
    source_leave();
    free(fence);
}

static void *counted_fence_join(void *state, void *a, void *b)
{
    struct source *s = state;
    if (a == NULL || b == NULL)
        return a != NULL ? a : b;
    ((struct fence *)a)->mask = mask_of(s, a) | mask_of(s, b);
    ((struct fence *)a)->epoch = s->epoch;
    counted_fence_free(state, b);
    return a;
}

static ctrt_status counted_copy(void *state, void *to, const void *from, size_t bytes, int kind, void *queue)
{
    if (kind != CTRT_COPY_TO_HOST)
        source_use(state, to, bytes, queue_index(queue));
    if (kind != CTRT_COPY_TO_DEVICE)
        source_use(state, from, bytes, queue_index(queue));
    memcpy(to, from, bytes);
    return CTRT_OK;
}

static ctrt_status counted_host_alloc(void *state, void **address, size_t bytes)
{
    (void)state;
    *address = malloc(bytes);
    return *address != NULL ? CTRT_OK : contract_host.fail(CTRT_ERR_OUT_OF_MEMORY, "no host memory");
}

static void counted_host_free(void *state, void *address, size_t bytes)
{
    (void)state, (void)bytes;
    free(address);
}

void source_finish(struct source *s, void *fence, void *queue)
{
    (void)counted_fence_wait(s, fence, queue);
    counted_fence_free(s, fence);
}

void source_init(struct source *s, size_t capacity, uint32_t device_flags, bool moves)
{
    memset(s, 0, sizeof *s);
    s->capacity = capacity;
    s->readable = moves || (device_flags & CTRT_DEVICE_HOST_MEMORY);
    s->source = (ctrt_memory_source){
        .size = sizeof s->source, .state = s, .alloc = counted_alloc, .free = counted_free, .device_name = "checker:0",
        .device_flags = device_flags, .total_bytes = capacity,
        .flags = moves && (device_flags & CTRT_DEVICE_ASYNCHRONOUS) ? CTRT_SOURCE_ORDERED : 0,
        .fence_new = counted_fence_new, .fence_wait = counted_fence_wait, .fence_done = counted_fence_done,
        .fence_join = counted_fence_join, .fence_free = counted_fence_free, .copy = counted_copy,
        .host_alloc = counted_host_alloc, .host_free = counted_host_free, .fence_status = counted_fence_status,
        .alloc_spare = counted_alloc, .page_bytes = PAGE, .reserve = counted_reserve,
        .unreserve = counted_unreserve, .map = counted_map, .unmap = counted_unmap,
    };
}
