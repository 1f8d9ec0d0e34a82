/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pinned.c: host memory that a device copies by itself, kept for reuse. */
#include "memory/pinned.h"

#include "base/base.h"
#include "base/memory.h"
#include "memory/fence.h"
#include "memory/order.h"
#include "memory/quota.h"

#define CLASSES 400                         /* 8, and 8 to each doubling up to 2^57 */

struct pinned_block {
    struct pinned_block *next;
    void *address;
    struct fence *fence;                    /* copies that may not be done yet */
};

struct pinned {
    pthread_mutex_t lock;
    struct pinned_block *free[CLASSES];
    struct pinned_figures figures;
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
    struct pinned *own = atomic_load_explicit(&device->pinned, memory_order_acquire), *none = NULL;
    if (likely(own != NULL))
        return own;
    own = memory_zeroed(sizeof *own);
    if (own == NULL)
        return NULL;
    pthread_mutex_init(&own->lock, NULL);
    if (!atomic_compare_exchange_strong(&device->pinned, &none, own)) {
        memory_free(own);
        own = none;
    }
    return own;
}

/* A free block of that class whose copies are done, or NULL. */
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

/* From the backend, within the device's limit. */
static ctrt_status obtain(struct pinned *own, ctrt_device *device, void **address, size_t bytes)
{
    atomic_fetch_add_explicit(&own->held, bytes, memory_order_relaxed);
    ctrt_status status = quota_check(device->memory, bytes);
    if (status == CTRT_OK)
        status = device->backend->memory->host_alloc(device->handle, address, bytes);
    if (status != CTRT_OK)
        atomic_fetch_sub_explicit(&own->held, bytes, memory_order_relaxed);
    return status;
}

ctrt_status pinned_alloc(void **address, size_t *granted, ctrt_device *device, size_t bytes)
{
    struct pinned *own = pinned_of(device);
    if (own == NULL)
        return out_of_memory(sizeof *own, "pinned memory");
    if (bytes > (size_t)1 << 56)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "pinned memory: %zu bytes are too many", bytes);
    const unsigned class = class_of(bytes);
    *granted = class_bytes(class);
    pthread_mutex_lock(&own->lock);
    struct pinned_block *block = take_free(own, class);
    if (block != NULL) {
        own->figures.active_requests++;
        own->figures.active_bytes += *granted;
    }
    pthread_mutex_unlock(&own->lock);
    if (block != NULL) {
        *address = block->address;
        fence_free(block->fence);
        memory_free(block);
        return CTRT_OK;
    }
    ctrt_status status = obtain(own, device, address, *granted);
    if (status == CTRT_ERR_OUT_OF_MEMORY) {
        pinned_trim(device);
        status = obtain(own, device, address, *granted);
    }
    CTRT_TRY(ctrt_context(status, "pinned memory for %s: %zu bytes", device->name, *granted));
    pthread_mutex_lock(&own->lock);
    own->figures.host_allocs++;
    own->figures.allocations++;
    own->figures.active_requests++;
    own->figures.allocated_bytes += *granted;
    own->figures.active_bytes += *granted;
    pthread_mutex_unlock(&own->lock);
    return CTRT_OK;
}

static void give_back(struct pinned *own, ctrt_device *device, void *address, size_t granted)
{
    device->backend->memory->host_free(device->handle, address, granted);
    atomic_fetch_sub_explicit(&own->held, granted, memory_order_relaxed);
    pthread_mutex_lock(&own->lock);
    own->figures.host_frees++;
    own->figures.allocations--;
    own->figures.allocated_bytes -= granted;
    pthread_mutex_unlock(&own->lock);
}

void pinned_free(ctrt_device *device, void *address, size_t granted, struct storage *storage)
{
    struct pinned *own = pinned_of(device);
    stream_mark marks[ORDER_READERS + 1];
    if (!device_usable(device))
        return;                             /* the child of a fork: the memory is the parent's */
    const int count = order_marks(storage, marks);
    struct pinned_block *block = memory_alloc(sizeof *block);
    pthread_mutex_lock(&own->lock);
    own->figures.active_requests--;
    own->figures.active_bytes -= granted;
    pthread_mutex_unlock(&own->lock);
    if (block == NULL) {
        for (int i = 0; i < count; i++)
            stream_finish(marks[i]);
        give_back(own, device, address, granted);
        return;
    }
    block->address = address;
    block->fence = NULL;
    fence_add(&block->fence, marks, count);
    const unsigned class = class_of(granted);
    pthread_mutex_lock(&own->lock);
    block->next = own->free[class];
    own->free[class] = block;
    pthread_mutex_unlock(&own->lock);
}

void pinned_trim(ctrt_device *device)
{
    struct pinned *own = atomic_load_explicit(&device->pinned, memory_order_acquire);
    for (unsigned class = 0; own != NULL && class < CLASSES; class++) {
        pthread_mutex_lock(&own->lock);
        struct pinned_block *block = own->free[class];
        own->free[class] = NULL;
        pthread_mutex_unlock(&own->lock);
        for (struct pinned_block *next; block != NULL; block = next) {
            next = block->next;
            fence_wait(block->fence, device, NULL);
            fence_free(block->fence);
            give_back(own, device, block->address, class_bytes(class));
            memory_free(block);
        }
    }
}

uint64_t pinned_held(const ctrt_device *device)
{
    struct pinned *own = atomic_load_explicit(&device->pinned, memory_order_acquire);
    return own != NULL ? atomic_load_explicit(&own->held, memory_order_relaxed) : 0;
}

void pinned_figures(struct pinned_figures *out, ctrt_device *device)
{
    struct pinned *own = atomic_load_explicit(&device->pinned, memory_order_acquire);
    memset(out, 0, sizeof *out);
    if (own == NULL)
        return;
    pthread_mutex_lock(&own->lock);
    *out = own->figures;
    pthread_mutex_unlock(&own->lock);
}
