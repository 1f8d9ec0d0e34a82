/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/memory.c: host memory as device memory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Blocks of this size and above start on a huge page and ask for huge pages: a fault per 4 KiB costs more than the
 * work on the page. */
#define HUGE_PAGE     ((size_t)2 << 20)
#define HUGE_FROM     ((size_t)4 << 20)
/* Requests of this size and above are held against the machine's memory, because Linux grants more than there is. */
#define JUDGED_FROM   ((size_t)256 << 20)
/* Copies and fills: bytes that are worth a thread. */
#define THREAD_BYTES  ((int64_t)1 << 20)

static ctrt_status out_of_memory(size_t bytes)
{
    return cpu_host->fail(CTRT_ERR_OUT_OF_MEMORY, "cpu: no %zu bytes (%.2f GiB) of memory: %.2f GiB of %.2f GiB are free",
                          bytes, (double)bytes / (1 << 30), (double)cpu_memory_free() / (1 << 30),
                          (double)cpu_memory_total() / (1 << 30));
}

static ctrt_status alloc(void *device, void **address, size_t bytes)
{
    (void)device;
    size_t alignment = bytes >= HUGE_FROM ? HUGE_PAGE : 64;
    if (bytes > SIZE_MAX / 2)
        return out_of_memory(bytes);
    if (bytes >= JUDGED_FROM) {
        uint64_t total = cpu_memory_total();
        if (total && bytes > total)
            return out_of_memory(bytes);
    }
    void *block = NULL;
    if (posix_memalign(&block, alignment, (bytes + 63) & ~(size_t)63) != 0)
        return out_of_memory(bytes);
    if (bytes >= HUGE_FROM)
        (void)madvise(block, bytes & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);      /* a wish; small pages work too */
    *address = block;
    return CTRT_OK;
}

static void release(void *device, void *address, size_t bytes)
{
    (void)device, (void)bytes;
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

static ctrt_status copy(void *device, void *queue, void *to, const void *from, size_t bytes, int kind)
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

static ctrt_status fill(void *device, void *queue, void *address, int byte, size_t bytes)
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
    .copy = copy,
    .fill = fill,
    .host_alloc = alloc,
    .host_free = release,
};
