/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pinned_cache.c: cache of pinned host memory. */
#include "memory/pinned_cache.h"

#include "base/base.h"
#include "base/clock.h"
#include "base/host_alloc.h"
#include "base/slot.h"
#include "stream/fence.h"
#include "memory/block_table.h"
#include "memory/hazard.h"
#include "memory/quota.h"

#define CLASSES 400                         /* 8, and 8 per power of two up to 2^57 */

struct pinned_block {
    struct pinned_block *next;
    void *address;
    struct fence *fence;                    /* copies that may not be done yet */
};

struct pinned {
    pthread_mutex_t lock;
    struct pinned_block *free[CLASSES];
    ctrt_host_memory_stats stats;
    _Atomic uint64_t held;
};

static size_t class_bytes(unsigned class)
{
    if (class < 8)
        return (class + 1) * (size_t)64;
    const unsigned power = 9 + (class - 8) / 8, eighth = (class - 8) % 8 + 1;
    return ((size_t)1 << power) + eighth * ((size_t)1 << (power - 3));
}

static unsigned class_of(size_t bytes)
{
    if (bytes <= 512)
        return (unsigned)((MAX(bytes, 1) + 63) / 64) - 1;
    const unsigned power = 63 - (unsigned)__builtin_clzll(bytes - 1);
    const size_t over = bytes - ((size_t)1 << power), step = (size_t)1 << (power - 3);
    return 8 + (power - 9) * 8 + (unsigned)((over + step - 1) / step) - 1;
}

size_t pinned_round(size_t bytes)
{
    return class_bytes(class_of(bytes));
}

bool pinned_available(const ctrt_device *device)
{
    const ctrt_memory_table *table = device->backend->memory;
    return CTRT_SLOT(table, host_alloc) && CTRT_SLOT(table, host_free) && device_asynchronous(device);
}

static struct pinned *pinned_of(ctrt_device *device)
{
    device = device_home(device);
    struct pinned *own = atomic_load_explicit(&device->pinned, memory_order_acquire), *none = NULL;
    if (likely(own != NULL))
        return own;
    own = host_calloc(sizeof *own);
    if (own == NULL)
        return NULL;
    pthread_mutex_init(&own->lock, NULL);
    if (!atomic_compare_exchange_strong(&device->pinned, &none, own)) {
        host_free(own);
        own = none;
    }
    return own;
}

/* ---- statistics; the caller holds the lock ---- */

static void pinned_stat_add(ctrt_stat *stat, int64_t amount)
{
    stat->current += amount;
    if (amount < 0)
        stat->freed -= amount;
    else
        stat->allocated += amount;
    stat->peak = MAX(stat->peak, stat->current);
}

static void count_active(struct pinned *own, size_t granted, int sign)
{
    pinned_stat_add(&own->stats.active_requests, sign);
    pinned_stat_add(&own->stats.active_bytes, sign * (int64_t)granted);
}

static void count_call(struct pinned *own, size_t granted, int sign, int64_t microseconds)
{
    ctrt_memory_times *times = sign > 0 ? &own->stats.host_alloc_time : &own->stats.host_free_time;
    pinned_stat_add(&own->stats.allocations, sign);
    pinned_stat_add(&own->stats.allocated_bytes, sign * (int64_t)granted);
    times->min = times->count == 0 ? microseconds : MIN(times->min, microseconds);
    times->max = MAX(times->max, microseconds);
    times->total += microseconds;
    times->count++;
    times->avg = times->total / times->count;
}

/* ---- allocation and free ---- */

/* Removes and returns a free block of that class whose copies are done. NULL: none. */
static struct pinned_block *take_free(struct pinned *own, unsigned class)
{
    for (struct pinned_block **at = &own->free[class]; *at != NULL; at = &(*at)->next)
        if (fence_done((*at)->fence)) {
            struct pinned_block *found = *at;
            *at = found->next;
            return found;
        }
    return NULL;
}

/* Allocates from the backend, within the device's limit. Adding to `held` before the check keeps concurrent allocations
 * within the limit together. */
static ctrt_status obtain(struct pinned *own, ctrt_device *device, void **address, size_t bytes)
{
    int64_t begin = clock_now(CLOCK_MONOTONIC);
    atomic_fetch_add_explicit(&own->held, bytes, memory_order_relaxed);
    ctrt_status status = quota_check(device->memory, bytes);
    *address = NULL;
    if (status == CTRT_OK)
        status = SLOT_CALL(device->type, "host_alloc",
                           device->backend->memory->host_alloc(device->handle, address, bytes));
    if (status == CTRT_OK && *address == NULL)
        status = ctrt_fail(CTRT_ERR_PLUGIN, "backend %s: host_alloc returned success without an address for %zu bytes",
                           device->type, bytes);
    if (status != CTRT_OK) {
        atomic_fetch_sub_explicit(&own->held, bytes, memory_order_relaxed);
        return status;
    }
    int64_t took = (clock_now(CLOCK_MONOTONIC) - begin) / 1000;
    pthread_mutex_lock(&own->lock);
    count_call(own, bytes, 1, took);
    count_active(own, bytes, 1);
    pthread_mutex_unlock(&own->lock);
    return CTRT_OK;
}

ctrt_status pinned_alloc(void **address, size_t *granted, ctrt_device *device, size_t bytes)
{
    struct pinned *own = pinned_of(device);
    ALLOC_CHECK(own, sizeof *own, "pinned memory");
    limit_refused = false;
    if (bytes > (size_t)1 << 56)
        return oom_fail_pinned(device->memory, bytes, "more than the address space holds");
    const unsigned class = class_of(bytes);
    *granted = class_bytes(class);
    pthread_mutex_lock(&own->lock);
    struct pinned_block *block = take_free(own, class);
    if (block != NULL)
        count_active(own, *granted, 1);
    pthread_mutex_unlock(&own->lock);
    if (block != NULL) {
        *address = block->address;
        fence_free(block->fence);
        host_free(block);
        return CTRT_OK;
    }
    ctrt_status status = obtain(own, device, address, *granted);
    if (status == CTRT_ERR_OUT_OF_MEMORY) {
        pinned_trim(device);
        if (quota_limited(device->memory))
            pool_trim(device->memory);      /* the limit counts device and pinned memory together */
        limit_refused = false;
        status = obtain(own, device, address, *granted);
    }
    if (status == CTRT_ERR_OUT_OF_MEMORY)
        return oom_fail_pinned(device->memory, *granted, ctrt_error_message());
    CTRT_TRY(ctrt_context(status, "pinned memory for %s: %zu bytes", device->name, *granted));
    return CTRT_OK;
}

static void free_cached(struct pinned *own, ctrt_device *device, void *address, size_t granted)
{
    int64_t begin = clock_now(CLOCK_MONOTONIC);
    device->backend->memory->host_free(device->handle, address, granted);
    int64_t took = (clock_now(CLOCK_MONOTONIC) - begin) / 1000;
    atomic_fetch_sub_explicit(&own->held, granted, memory_order_relaxed);
    pthread_mutex_lock(&own->lock);
    count_call(own, granted, -1, took);
    pthread_mutex_unlock(&own->lock);
}

void pinned_free(ctrt_device *device, void *address, size_t granted, struct storage *storage)
{
    struct pinned *own = pinned_of(device);
    timepoint points[HAZARD_READERS + 1];
    if (!device_usable(device))
        return;                             /* the child of a fork: the memory belongs to the parent */
    const int count = hazard_timepoints(storage, points);
    struct pinned_block *block = host_alloc(sizeof *block);
    pthread_mutex_lock(&own->lock);
    count_active(own, granted, -1);
    pthread_mutex_unlock(&own->lock);
    if (block == NULL) {
        for (int i = 0; i < count; i++)
            stream_finish(points[i]);
        free_cached(own, device, address, granted);
        return;
    }
    block->address = address;
    block->fence = NULL;
    fence_add(&block->fence, points, count);
    const unsigned class = class_of(granted);
    pthread_mutex_lock(&own->lock);
    block->next = own->free[class];
    own->free[class] = block;
    pthread_mutex_unlock(&own->lock);
}

/* Removes and returns the free blocks of a class; without `all`, only blocks whose copies are done. */
static struct pinned_block *take_class(struct pinned *own, unsigned class, bool all)
{
    struct pinned_block *taken = NULL;
    pthread_mutex_lock(&own->lock);
    for (struct pinned_block **at = &own->free[class]; *at != NULL;) {
        struct pinned_block *block = *at;
        if (!all && !fence_done(block->fence)) {
            at = &block->next;
            continue;
        }
        *at = block->next;
        block->next = taken;
        taken = block;
    }
    pthread_mutex_unlock(&own->lock);
    return taken;
}

static void pinned_cache_trim(ctrt_device *device, bool wait)
{
    struct pinned *own = atomic_load_explicit(&device->home->pinned, memory_order_acquire);
    for (unsigned class = 0; own != NULL && class < CLASSES; class++)
        for (struct pinned_block *block = take_class(own, class, wait), *next; block != NULL; block = next) {
            next = block->next;
            fence_wait(block->fence, device, NULL);
            fence_free(block->fence);
            free_cached(own, device, block->address, class_bytes(class));
            host_free(block);
        }
}

void pinned_trim(ctrt_device *device)
{
    pinned_cache_trim(device, true);
}

void pinned_trim_idle(ctrt_device *device)
{
    pinned_cache_trim(device, false);
}

uint64_t pinned_held(const ctrt_device *device)
{
    struct pinned *own = atomic_load_explicit(&device->home->pinned, memory_order_acquire);
    return own != NULL ? atomic_load_explicit(&own->held, memory_order_relaxed) : 0;
}

void pinned_reset_peaks(ctrt_device *device)
{
    struct pinned *own = atomic_load_explicit(&device->home->pinned, memory_order_acquire);
    if (own == NULL)
        return;
    pthread_mutex_lock(&own->lock);
    ctrt_stat *const all[] = { &own->stats.allocations, &own->stats.allocated_bytes, &own->stats.active_requests,
                               &own->stats.active_bytes };
    for (size_t i = 0; i < COUNT_OF(all); i++)
        all[i]->peak = all[i]->current;
    pthread_mutex_unlock(&own->lock);
}

void pinned_stats(ctrt_host_memory_stats *out, const ctrt_device *device)
{
    struct pinned *own = atomic_load_explicit(&device->home->pinned, memory_order_acquire);
    memset(out, 0, sizeof *out);
    if (own == NULL)
        return;
    pthread_mutex_lock(&own->lock);
    *out = own->stats;
    pthread_mutex_unlock(&own->lock);
}
