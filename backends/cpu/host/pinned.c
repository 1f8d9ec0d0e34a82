/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/pinned.c: page-locked host memory. No device of this backend uses DMA, so memory is pinned with
 * mlock, up to RLIMIT_MEMLOCK; blocks that exceed the limit are ordinary memory. Allocates whole pages, because locks
 * do not nest: unlocking a page that two blocks share would unlock it for both. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static _Atomic uint64_t locked_blocks, plain_blocks, locked_bytes, plain_bytes; /* totals since the process started */

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) & ~(page - 1);
}

static void log_unlocked(size_t bytes, int why)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    struct rlimit limit = { 0, 0 };
    if (atomic_flag_test_and_set(&said))
        return;
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    cpu_host->log(CTRT_LOG_INFO, "backend-cpu",
                  "pinned memory: %zu bytes were not locked (%s; RLIMIT_MEMLOCK is %llu bytes) and are plain memory; "
                  "so far %llu blocks, %llu bytes were locked. This is logged once",
                  bytes, strerror(why), (unsigned long long)limit.rlim_cur,
                  (unsigned long long)atomic_load_explicit(&locked_blocks, memory_order_relaxed),
                  (unsigned long long)atomic_load_explicit(&locked_bytes, memory_order_relaxed));
}

static void count(_Atomic uint64_t *blocks, _Atomic uint64_t *sum, size_t bytes)
{
    atomic_fetch_add_explicit(blocks, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(sum, bytes, memory_order_relaxed);
}

ctrt_status cpu_pinned_alloc(void *device, void **address, size_t bytes)
{
    (void)device;
    if (bytes > SIZE_MAX / 4)
        return cpu_memory_refuse(bytes, "more than an address space holds");
    size_t length = whole_pages(bytes);
    void *block = NULL;
    ctrt_status status = CTRT_OK;
    if (bytes >= CPU_MAPPED_FROM) {
        status = cpu_pages_map(&block, bytes);
    } else {
        block = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED)
            status = cpu_memory_refuse(bytes, strerror(errno));
    }
    if (status)
        return status;
    if (mlock(block, length) == 0) {
        count(&locked_blocks, &locked_bytes, length);
    } else {
        int why = errno;
        count(&plain_blocks, &plain_bytes, length);
        log_unlocked(length, why);
    }
    *address = block;
    return CTRT_OK;
}

void cpu_pinned_free(void *device, void *address, size_t bytes)
{
    (void)device;
    if (bytes >= CPU_MAPPED_FROM)
        cpu_pages_unmap(address, bytes);
    else
        /* unmaps a whole mapping or one end of it, so munmap needs no memory */
        (void)munmap(address, whole_pages(bytes));
}
