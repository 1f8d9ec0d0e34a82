/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/memory.c: the backend's memory table: host memory as device memory. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Minimum number of bytes per thread, for copies and fills. */
#define THREAD_BYTES  ((int64_t)1 << 20)

static ctrt_status alloc(void *device, void **address, size_t bytes)
{
    (void)device;
    if (bytes >= CPU_MAPPED_FROM)
        return cpu_pages_map(address, bytes);
    void *block = NULL;
    if (posix_memalign(&block, 64, (bytes + 63) & ~(size_t)63) != 0)
        return cpu_memory_refuse(bytes, strerror(ENOMEM));
    *address = block;
    return CTRT_OK;
}

/* `bytes` is the size that was requested from alloc. */
static void release(void *device, void *address, size_t bytes)
{
    (void)device;
    if (bytes >= CPU_MAPPED_FROM)
        cpu_pages_unmap(address, bytes);
    else
        free(address);
}

struct copy {
    char *to;
    const char *from;
    int byte;
};

static void copy_part(void *argument, int64_t begin, int64_t end)
{
    const struct copy *work = argument;
    memcpy(work->to + begin, work->from + begin, (size_t)(end - begin));
}

static void fill_part(void *argument, int64_t begin, int64_t end)
{
    const struct copy *work = argument;
    memset(work->to + begin, work->byte, (size_t)(end - begin));
}

static ctrt_status memory_copy(void *device, void *queue, void *to, const void *from, size_t bytes, int kind)
{
    (void)device, (void)queue, (void)kind;
    struct copy work = { .to = to, .from = from };
    if (bytes == 0 || to == from)
        return CTRT_OK;
    if (bytes < 2 * (size_t)THREAD_BYTES)
        memcpy(to, from, bytes);
    else
        cpu_parallel_for((int64_t)bytes, THREAD_BYTES, copy_part, &work);
    return CTRT_OK;
}

static ctrt_status memory_fill(void *device, void *queue, void *address, int byte, size_t bytes)
{
    (void)device, (void)queue;
    struct copy work = { .to = address, .byte = byte };
    if (bytes == 0)
        return CTRT_OK;
    if (bytes < 2 * (size_t)THREAD_BYTES)
        memset(address, byte, bytes);
    else
        cpu_parallel_for((int64_t)bytes, THREAD_BYTES, fill_part, &work);
    return CTRT_OK;
}

const ctrt_memory_table cpu_memory_table = {
    .size = sizeof(ctrt_memory_table),
    .alloc = alloc,
    .free = release,
    .copy = memory_copy,
    .fill = memory_fill,
    .host_alloc = cpu_pinned_alloc,
    .host_free = cpu_pinned_free,
};
