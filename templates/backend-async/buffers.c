/* SPDX-License-Identifier: Apache-2.0 */
/* Memory. The library computes with addresses (an element of a tensor, a part of a block), and the simulated vendor has
 * handles of buffers. So each device has a range of addresses in which nothing is mapped; each buffer has a part of it,
 * and an address is converted to a buffer and an offset when work is enqueued. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend.h"

/* More addresses than memory, so that gaps between blocks do not matter. Blocks are aligned to UNIT, and have a gap of
 * at least UNIT between them, so that an address behind a block is found. */
#define ADDRESSES (16 * TOTAL_MEMORY)
enum { UNIT = 256 };

ctrt_status addresses_reserve(struct device *device)
{
    void *range = mmap(NULL, ADDRESSES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template:%d: no addresses for its memory (ulimit -v?)",
                          device->index);
    device->addresses = range;
    return CTRT_OK;
}

void buffers_close(struct device *device)
{
    for (size_t i = 0; i < device->buffer_count; i++)
        free(device->buffers[i].contents);
    host->free(device->buffers);
    munmap(device->addresses, ADDRESSES);
}

/* Returns the number of buffers that begin at or before `start`. The caller holds the lock. */
static size_t buffers_until(const struct device *d, size_t start)
{
    size_t low = 0, high = d->buffer_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (d->buffers[middle].start <= start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Makes room for one more buffer in the list. */
static bool buffers_reserve(struct device *d)
{
    if (d->buffer_count < d->buffer_room)
        return true;
    const size_t room = 2 * d->buffer_room + 64;
    struct buffer *larger = host->alloc(room * sizeof *larger);
    if (larger == NULL)
        return false;
    if (d->buffer_count > 0)
        memcpy(larger, d->buffers, d->buffer_count * sizeof *larger);
    host->free(d->buffers);
    d->buffers = larger;
    d->buffer_room = room;
    return true;
}

/* Finds addresses for `bytes`: the first gap that is large enough. Returns its place in the list. */
static size_t gap_find(const struct device *d, size_t bytes, size_t *start)
{
    *start = UNIT;
    for (size_t i = 0; i < d->buffer_count; i++) {
        if (d->buffers[i].start >= *start + bytes + UNIT)
            return i;
        *start = (d->buffers[i].start + d->buffers[i].bytes + 2 * UNIT - 1) / UNIT * UNIT;
    }
    return d->buffer_count;
}

/* Adds a buffer to the list. The caller holds the lock. */
static ctrt_status buffer_add(struct device *d, void **address, size_t bytes, char *contents)
{
    size_t start;
    const size_t at = gap_find(d, bytes, &start);
    if (bytes > TOTAL_MEMORY - d->used || start + bytes > ADDRESSES - UNIT)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template:%d has %zu bytes left, %zu were requested", d->index,
                          TOTAL_MEMORY - d->used, bytes);
    if (contents == NULL || !buffers_reserve(d))
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template:%d: the host has no memory for %zu bytes", d->index, bytes);
    memmove(&d->buffers[at + 1], &d->buffers[at], (d->buffer_count - at) * sizeof *d->buffers);
    d->buffers[at] = (struct buffer){ .start = start, .bytes = bytes, .contents = contents };
    d->buffer_count++;
    d->used += bytes;
    *address = d->addresses + start;
    return CTRT_OK;
}

static ctrt_status memory_alloc(void *device, void **address, size_t bytes)
{
    struct device *d = device;
    CTRT_TRY(device_usable(d));
    char *contents = bytes <= TOTAL_MEMORY ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    pthread_mutex_lock(&d->lock);
    ctrt_status status = buffer_add(d, address, bytes, contents);
    pthread_mutex_unlock(&d->lock);
    if (status != CTRT_OK)
        free(contents);
    return status;
}

static void memory_free(void *device, void *address, size_t bytes)
{
    struct device *d = device;
    if (device_usable(d) != CTRT_OK)
        return;
    pthread_mutex_lock(&d->lock);
    const size_t at = buffers_until(d, (size_t)((char *)address - d->addresses)) - 1;
    char *contents = d->buffers[at].contents;
    d->buffer_count--;
    memmove(&d->buffers[at], &d->buffers[at + 1], (d->buffer_count - at) * sizeof *d->buffers);
    d->used -= bytes;
    pthread_mutex_unlock(&d->lock);
    free(contents);
}

ctrt_status contents_of(char **contents, struct device *d, const void *address, size_t bytes, const char *what)
{
    const size_t start = (size_t)((const char *)address - d->addresses);
    *contents = NULL;
    if (bytes == 0)
        return CTRT_OK;
    pthread_mutex_lock(&d->lock);
    const size_t at = (const char *)address < d->addresses ? 0 : buffers_until(d, start);
    const struct buffer *buffer = at > 0 ? &d->buffers[at - 1] : NULL;
    if (buffer != NULL && start - buffer->start <= buffer->bytes && bytes <= buffer->bytes - (start - buffer->start))
        *contents = buffer->contents + (start - buffer->start);
    pthread_mutex_unlock(&d->lock);
    if (*contents == NULL)
        return host->fail(CTRT_ERR_INVALID_ARGUMENT, "template:%d, %s: %zu bytes at %p are in no buffer", d->index,
                          what, bytes, address);
    return CTRT_OK;
}

/* ---- copies and fills ---- */

struct copy {
    char *to;
    const char *from;
    size_t bytes;
    int byte;
};

static ctrt_status copy_run(void *arguments, char *why, size_t why_bytes)
{
    const struct copy *copy = arguments;
    (void)why, (void)why_bytes;
    memcpy(copy->to, copy->from, copy->bytes);
    return CTRT_OK;
}

static ctrt_status fill_run(void *arguments, char *why, size_t why_bytes)
{
    const struct copy *fill = arguments;
    (void)why, (void)why_bytes;
    memset(fill->to, fill->byte, fill->bytes);
    return CTRT_OK;
}

static ctrt_status copy_put(struct device *d, void *queue, const struct copy *copy,
                            ctrt_status (*run)(void *arguments, char *why, size_t why_bytes))
{
    struct command *command = command_new(run, sizeof *copy);
    if (command == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    memcpy(command->arguments, copy, sizeof *copy);
    return command_put(d, queue, command);
}

/* The caller keeps host memory until the work is done, also pageable memory, so the copy need not wait. */
static ctrt_status memory_copy(void *device, void *queue, void *to, const void *from, size_t bytes, int kind)
{
    struct device *d = device;
    struct copy copy = { .to = to, .from = from, .bytes = bytes };
    char *contents;
    CTRT_TRY(device_usable(d));
    if (bytes == 0)
        return CTRT_OK;
    if (kind != CTRT_COPY_TO_HOST)
        CTRT_TRY(contents_of(&copy.to, d, to, bytes, "copy to"));
    if (kind != CTRT_COPY_TO_DEVICE) {
        CTRT_TRY(contents_of(&contents, d, from, bytes, "copy from"));
        copy.from = contents;
    }
    return copy_put(d, queue, &copy, copy_run);
}

static ctrt_status memory_fill(void *device, void *queue, void *address, int byte, size_t bytes)
{
    struct device *d = device;
    struct copy fill = { .byte = byte, .bytes = bytes };
    CTRT_TRY(device_usable(d));
    if (bytes == 0)
        return CTRT_OK;
    CTRT_TRY(contents_of(&fill.to, d, address, bytes, "fill"));
    return copy_put(d, queue, &fill, fill_run);
}

const ctrt_memory_table memory_table = {
    .size = sizeof(ctrt_memory_table),
    .alloc = memory_alloc,
    .free = memory_free,
    .copy = memory_copy,
    .fill = memory_fill,
};
