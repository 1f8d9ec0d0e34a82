/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/scratch.c: per-thread workspace. The workspace is kept between kernel calls, because a new one
 * would cause a page fault per page. A page fault takes more than a microsecond on many machines, longer than a small
 * matrix product. Buffers only grow, and are freed when the thread ends.
 *
 * The memory comes from malloc and not from the host table: a simulated device runs these kernels in its own threads,
 * after the call has returned, where a failed allocation is an error of the stream and not of the call. Failures that
 * are injected into the host table are to be errors of calls; tests/faults makes malloc itself fail, here too. */
#include "scratch.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cpu.h"

struct scratch_block {
    void *memory;               /* the address to free */
    void *aligned;
    size_t bytes;
};

static __thread struct scratch_block blocks[SCRATCH_COUNT];
static pthread_key_t at_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_key;

static void free_blocks(void *of_thread)
{
    struct scratch_block *b = of_thread;
    for (int i = 0; i < SCRATCH_COUNT; i++) {
        if (b[i].memory)
            free(b[i].memory);
        b[i] = (struct scratch_block){ 0 };
    }
}

static void make_key(void)
{
    have_key = pthread_key_create(&at_exit, free_blocks) == 0;
}

static void *grow(struct scratch_block *b, size_t bytes)
{
    /* Align buffers of at least the size of a huge page to that size, so that the operating system can use huge
     * pages. */
    const size_t huge = (size_t)2 << 20, align = bytes >= huge ? huge : 64;
    if (bytes > SIZE_MAX - 2 * huge)
        return NULL;
    bytes = (bytes + align - 1) / align * align;
    pthread_once(&once, make_key);
    if (b->memory)
        free(b->memory);
    *b = (struct scratch_block){ 0 };
    void *memory = malloc(bytes + align);
    if (!memory)
        return NULL;
    b->memory = memory;
    b->aligned = (void *)(((uintptr_t)memory + align - 1) / align * align);
    b->bytes = bytes;
    if (align == huge)
        madvise(b->aligned, bytes, MADV_HUGEPAGE);
    if (have_key)
        pthread_setspecific(at_exit, blocks);
    return b->aligned;
}

void *cpu_scratch(enum cpu_scratch use, size_t bytes)
{
    struct scratch_block *b = &blocks[use];
    if (bytes <= b->bytes && b->aligned)
        return b->aligned;
    return grow(b, bytes ? bytes : 1);
}

int cpu_no_scratch(const char *op, size_t bytes)
{
    return cpu_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no %zu bytes of working memory on the host", op, bytes);
}
