/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/pages.c: allocates each large block as a separate mapping, in huge pages.
 *
 * A page fault per 4 KiB costs several times as much as clearing the page; a fault per 2 MiB is negligible (for 64 MiB:
 * 37 ms with 4 KiB pages, 5.5 ms with 2 MiB pages). The allocator does not write to the new memory. Where huge pages
 * are available, writing in advance takes longer than the page faults (4.7 ms instead of 4.3 ms), because the cleared
 * page is no longer in the CPU caches at its first use. Memory that is never written costs nothing. Measurements:
 * bench/results/2026-11-hostmem.md. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE ((size_t)2 << 20)
/* Many programs need only the first segments for small blocks, and rarely use them completely. Therefore blocks below
 * two huge pages use small pages until this many bytes are allocated. A huge page at the start would cost 0.2 ms, and
 * milliseconds if physical memory is fragmented. */
#define LITTLE ((uint64_t)16 << 20)

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25                /* Linux 6.1 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23          /* Linux 5.14 */
#endif

/* AddressSanitizer: poison the bytes after a block; MARGIN ensures that every block has such bytes. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define MARGIN ((size_t)64)
#define POISON(address, bytes)   ASAN_POISON_MEMORY_REGION(address, bytes)
#define UNPOISON(address, bytes) ASAN_UNPOISON_MEMORY_REGION(address, bytes)
#else
#define MARGIN ((size_t)0)
#define POISON(address, bytes)   ((void)0)
#define UNPOISON(address, bytes) ((void)0)
#endif

enum { AUTO, ALWAYS, NEVER };
static int mode = AUTO;
static bool thp_enabled;                /* the kernel's setting allows transparent huge pages with madvise */

/* Returns true if the setting contains `word`. The file reads, for example, "always [madvise] never". */
static bool setting_has(const char *word)
{
    char text[128];
    if (!cpu_read_file("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text))
        return false;
    return strstr(text, word) != NULL;
}

ctrt_status cpu_pages_init(void)
{
    static const ctrt_param param = {
        .size = sizeof(ctrt_param), .name = "CTRT_HUGE_PAGES", .type = CTRT_PARAM_ENUM, .fallback = "auto",
        .words = "auto|always|never",
        .help = "huge pages for host blocks of 2 MiB and more: auto: if the kernel's setting allows "
                "them; always: immediately, whatever the setting; never",
    };
    ctrt_param_value value;
    CTRT_TRY(cpu_host->param(&value, &param));
    mode = (int)value.integer;
    thp_enabled = setting_has("[madvise]") || setting_has("[always]");
    return CTRT_OK;
}

static size_t mapped_bytes(size_t bytes)
{
    return (bytes + MARGIN + HUGE - 1) & ~(HUGE - 1);
}

/* munmap of a part of a mapping needs one more mapping, and fails at the limit vm.max_map_count. In that case, release
 * at least the memory with MADV_DONTNEED. */
static void unmap(void *address, size_t bytes)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (bytes == 0 || munmap(address, bytes) == 0)
        return;
    int why = errno;
    (void)madvise(address, bytes, MADV_DONTNEED);
    if (!atomic_flag_test_and_set(&said))
        cpu_host->log(CTRT_LOG_WARNING, "backend-cpu",
                      "munmap of %zu bytes: %s; the memory was freed, but the address range stays reserved", bytes,
                      strerror(why));
}

/* Maps memory at a multiple of 2 MiB. First tries without extra space, because recent kernels align such mappings. */
static void *map_aligned(size_t bytes)
{
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *block = mmap(NULL, bytes, protection, flags, -1, 0);
    if (block == MAP_FAILED || ((uintptr_t)block & (HUGE - 1)) == 0)
        return block;
    unmap(block, bytes);
    block = mmap(NULL, bytes + HUGE, protection, flags, -1, 0);
    if (block == MAP_FAILED)
        return block;
    size_t before = (size_t)(-(uintptr_t)block & (HUGE - 1));
    unmap(block, before);
    unmap(block + before + bytes, HUGE - before);
    return block + before;
}

/* Requests huge pages for the block, including the last one if at least half of it is used. */
static void advise(char *block, size_t bytes)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    size_t end = (bytes + HUGE / 2) & ~(HUGE - 1);
    if (mode == NEVER)
        (void)madvise(block, mapped_bytes(bytes), MADV_NOHUGEPAGE);
    else if (mode == ALWAYS || (thp_enabled && (bytes >= 2 * HUGE || cpu_memory_out() > LITTLE)))
        (void)madvise(block, end, MADV_HUGEPAGE);                       /* a hint; small pages also work */
    if (mode != ALWAYS)
        return;
    /* First populate the memory, because MADV_COLLAPSE requires that. MADV_COLLAPSE has nothing to do if the hint took
     * effect. */
    if ((madvise(block, end, MADV_POPULATE_WRITE) != 0 || madvise(block, end, MADV_COLLAPSE) != 0)
        && !atomic_flag_test_and_set(&said))
        cpu_host->log(CTRT_LOG_WARNING, "backend-cpu",
                      "CTRT_HUGE_PAGES=always: not all of a block of %zu bytes is in huge pages: %s", bytes,
                      strerror(errno));
}

ctrt_status cpu_pages_map(void **address, size_t bytes)
{
    if (bytes > SIZE_MAX / 4)
        return cpu_memory_refuse(bytes, "more than an address space holds");
    CTRT_TRY(cpu_memory_grant(bytes));
    char *block = map_aligned(mapped_bytes(bytes));
    if (block == MAP_FAILED) {
        int why = errno;
        cpu_memory_returned(bytes);
        return cpu_memory_refuse(bytes, strerror(why));
    }
    cpu_numa_place(block, mapped_bytes(bytes));
    advise(block, bytes);
    POISON(block + bytes, mapped_bytes(bytes) - bytes);
    *address = block;
    return CTRT_OK;
}

void cpu_pages_unmap(void *address, size_t bytes)
{
    UNPOISON(address, mapped_bytes(bytes));
    unmap(address, mapped_bytes(bytes));
    cpu_memory_returned(bytes);
}
