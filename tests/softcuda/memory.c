/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/memory.c: allocations of device memory.
 *
 * There are gaps between blocks, so that an access beyond the end of a block is not inside another block. Addresses are
 * allocated cyclically. */
#include "order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN ((size_t)512)                 /* alignment of blocks; sizes are rounded up to it for the accounting */
#define GAP   ((size_t)512)

struct block {
    address begin;
    size_t bytes;                           /* as requested */
};

/* Sorted by address. */
struct blocks {
    struct block *list;
    size_t n, capacity;
    address next;                           /* where the next search begins */
    struct block freed[64];                 /* the last freed blocks, for messages */
    size_t n_freed;
};

size_t memory_rounded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Returns the index of the first block that begins after `where`. */
static size_t behind(const struct blocks *b, address where)
{
    size_t low = 0, high = b->n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (b->list[middle].begin > where)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool memory_reserve(struct device *device, size_t bytes)
{
    unsigned long long now = device->live;
    do
        if (bytes > options.memory || now > options.memory - bytes)
            return false;
    while (!atomic_compare_exchange_weak(&device->live, &now, now + bytes));
    return true;
}

void memory_release(struct device *device, size_t bytes)
{
    device->live -= bytes;
}

/* Returns the address of a free range of `bytes` in [from, end), or 0 if there is none. *at: the index for its block in
 * the list. */
static address search(const struct blocks *b, address from, address end, size_t bytes, size_t *at)
{
    size_t i = behind(b, from);
    if (i > 0 && b->list[i - 1].begin + memory_rounded(b->list[i - 1].bytes) + GAP > from)
        from = b->list[i - 1].begin + memory_rounded(b->list[i - 1].bytes) + GAP;
    for (; from + bytes + GAP <= end; i++) {
        if (i == b->n || from + bytes + GAP <= b->list[i].begin) {
            *at = i;
            return from;
        }
        from = b->list[i].begin + memory_rounded(b->list[i].bytes) + GAP;
    }
    return 0;
}

static address place_block(struct device *device, size_t bytes)
{
    struct blocks *b = device->blocks;
    const address begin = (uintptr_t)softcuda_space.base + softcuda_space.device_bytes * (size_t)device->index,
                  end = begin + softcuda_space.device_bytes;
    size_t at = 0;
    if (b->n == b->capacity) {
        struct block *more = realloc(b->list, (b->capacity + 256) * sizeof *more);
        if (more == NULL)
            return 0;
        b->list = more;
        b->capacity += 256;
    }
    address found = search(b, b->next != 0 ? b->next : begin + GAP, end, memory_rounded(bytes), &at);
    if (found == 0)
        found = search(b, begin + GAP, end, memory_rounded(bytes), &at);
    if (found == 0)
        return 0;
    memmove(&b->list[at + 1], &b->list[at], (b->n - at) * sizeof b->list[0]);
    b->list[at] = (struct block){ .begin = found, .bytes = bytes };
    b->n++;
    b->next = found + memory_rounded(bytes) + GAP;
    return found;
}

result memory_alloc(struct device *device, address *out, size_t bytes)
{
    if (out == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *out = 0;
    if (bytes > options.memory || !memory_reserve(device, memory_rounded(bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&device->lock);
    if (device->blocks == NULL)
        device->blocks = calloc(1, sizeof *device->blocks);
    const address found = device->blocks != NULL ? place_block(device, bytes) : 0;
    if (found != 0)
        space_mark(found, bytes, true);
    pthread_mutex_unlock(&device->lock);
    if (found == 0) {
        memory_release(device, memory_rounded(bytes));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    device->live_blocks++;
    order_forget(found, bytes);
    space_fill(found, 0xff, bytes);
    space_poison(found, memory_rounded(bytes));
    *out = found;
    return CUDA_SUCCESS;
}

result memory_free(struct device *device, address begin, size_t *bytes)
{
    pthread_mutex_lock(&device->lock);
    struct blocks *b = device->blocks;
    const size_t i = b == NULL ? 0 : behind(b, begin);
    if (i == 0 || b->list[i - 1].begin != begin) {
        pthread_mutex_unlock(&device->lock);
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct block block = b->list[i - 1];
    memmove(&b->list[i - 1], &b->list[i], (b->n - i) * sizeof b->list[0]);
    b->n--;
    b->freed[b->n_freed++ % COUNT_OF(b->freed)] = block;
    space_mark(block.begin, block.bytes, false);
    space_renew(block.begin, memory_rounded(block.bytes));
    pthread_mutex_unlock(&device->lock);
    memory_release(device, memory_rounded(block.bytes));
    device->live_blocks--;
    if (bytes != NULL)
        *bytes = block.bytes;
    return CUDA_SUCCESS;
}

void memory_drop_all(struct device *device)
{
    for (;;) {
        pthread_mutex_lock(&device->lock);
        const address begin = device->blocks != NULL && device->blocks->n > 0
                                  ? device->blocks->list[device->blocks->n - 1].begin : 0;
        pthread_mutex_unlock(&device->lock);
        if (begin == 0)
            return;
        memory_free(device, begin, NULL);
    }
}

size_t memory_block_bytes(address begin)
{
    struct device *device = space_device(begin);
    if (device == NULL)
        return 0;
    pthread_mutex_lock(&device->lock);
    const struct blocks *b = device->blocks;
    const size_t i = b == NULL ? 0 : behind(b, begin);
    const size_t bytes = i > 0 && b->list[i - 1].begin == begin ? b->list[i - 1].bytes : 0;
    pthread_mutex_unlock(&device->lock);
    return bytes;
}

/* Describes the block at or near an address, for messages. */
void memory_describe(address where, char *text, size_t bytes)
{
    struct device *device = space_device(where);
    if (device == NULL) {
        snprintf(text, bytes, "%s", space_is(where) ? "in virtual memory that is not mapped, or not for this device"
                                                    : "which is neither device memory nor pinned");
        return;
    }
    pthread_mutex_lock(&device->lock);
    const struct blocks *b = device->blocks;
    const size_t i = b == NULL ? 0 : behind(b, where);
    const struct block *freed = NULL;
    for (size_t k = 0; b != NULL && k < b->n_freed && k < COUNT_OF(b->freed); k++)
        if (where - b->freed[k].begin < b->freed[k].bytes)
            freed = &b->freed[k];
    if (i > 0 && where - b->list[i - 1].begin < b->list[i - 1].bytes + GAP)
        snprintf(text, bytes, "byte %lld of a block of %zu bytes of device %d",
                 (long long)(where - b->list[i - 1].begin), b->list[i - 1].bytes, device->index);
    else if (freed != NULL)
        snprintf(text, bytes, "byte %lld of a block of %zu bytes of device %d that was freed",
                 (long long)(where - freed->begin), freed->bytes, device->index);
    else if (b != NULL && i < b->n && b->list[i].begin - where <= GAP)
        snprintf(text, bytes, "%lld bytes before a block of %zu bytes of device %d",
                 (long long)(b->list[i].begin - where), b->list[i].bytes, device->index);
    else
        snprintf(text, bytes, "in no block of device %d", device->index);
    pthread_mutex_unlock(&device->lock);
}

/* Checks an access of a kernel on device `on` that is not in a block of that device. */
bool runner_allowed(const void *where, size_t bytes, bool write, unsigned on, char *text, size_t text_bytes)
{
    const address begin = (uintptr_t)where;
    struct device *device = &devices[on], *owner = space_device(begin);
    if (!space_is(begin)) {
        const char *first, *end;
        if (host_pinned(where, bytes, &first, &end)) {
            softcuda_here.host = first;
            softcuda_here.host_end = end;
            return true;
        }
    } else if (space_usable(begin, bytes)) {
        if (owner == NULL) {
            if (virtual_allowed(begin, bytes, device, write))
                return true;
            if (write && virtual_allowed(begin, bytes, device, false)) {
                snprintf(text, text_bytes, "in virtual memory that is read-only for device %u", on);
                return false;
            }
        } else if (owner == device || (device->peers >> owner->index & 1) != 0) {
            if (owner != device) {
                softcuda_here.host = softcuda_space.base + softcuda_space.device_bytes * (size_t)owner->index;
                softcuda_here.host_end = softcuda_here.host + softcuda_space.device_bytes;
            }
            return true;
        } else {
            snprintf(text, text_bytes, "of device %d, whose memory device %u has no access to", owner->index, on);
            return false;
        }
    }
    memory_describe(begin, text, text_bytes);
    return false;
}

/* ---- entry points ---- */

EXPORT result cuMemGetInfo_v2(size_t *unused, size_t *total)
{
    CALL(cuMemGetInfo_v2, ENTER_READY);
    if (unused == NULL || total == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const uint64_t live = device_current()->live;
    *total = options.memory;
    *unused = options.memory - live;
    return CUDA_SUCCESS;
}

EXPORT result cuMemAlloc_v2(address *out, size_t bytes)
{
    CALL(cuMemAlloc_v2, ENTER_READY);
    const result unsafe = capture_unsafe_call();
    return unsafe != CUDA_SUCCESS ? unsafe : memory_alloc(device_current(), out, bytes);
}

EXPORT result cuMemFree_v2(address begin)
{
    CALL(cuMemFree_v2, ENTER_READY);
    const result unsafe = capture_unsafe_call();
    if (unsafe != CUDA_SUCCESS || begin == 0)
        return unsafe;
    struct device *device = space_device(begin);
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!options.strict_free)
        device_wait_idle(device);               /* as the CUDA driver does */
    return memory_free(device, begin, NULL);
}
