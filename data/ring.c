/* SPDX-License-Identifier: Apache-2.0 */
/* data/ring.c: allocates and maps the memory of a loader's batches; waits between processes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE                     /* memfd_create */
#endif
#include "data/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/descriptor.h"
#include "base/host_alloc.h"
#include "base/strbuf.h"
#include "memory/shared.h"
#include "tensor/pinned.h"

#define PAGE 4096
#define HUGE_FROM (4 << 20)            /* smaller memory does not use huge pages */

/* Adds a * b, rounded up to `align`, to *sum. Returns whether there is no overflow. */
static bool add(size_t *sum, size_t a, size_t b, size_t align)
{
    size_t product;
    return !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(*sum, product, sum)
           && !__builtin_add_overflow(*sum, align - 1, sum) && ((*sum -= *sum % align), true);
}

/* Computes the positions in the memory; false if they exceed the address space. */
static bool layout(struct ring_header *header, const ctrt_dataset *dataset)
{
    const size_t workers = (size_t)MAX(1, header->workers), slots = (size_t)header->slots;
    const size_t batch = (size_t)header->largest_batch;
    size_t at = sizeof *header, stride = sizeof(struct ring_slot), data = 0;
    bool fits = add(&at, workers, sizeof(struct ring_worker), 64);
    header->queue_base = at;
    fits = fits && add(&at, workers * ((size_t)header->depth + 1), sizeof(struct ring_task), 64);
    header->slot_base = at;
    fits = fits && add(&stride, batch, sizeof(int64_t), 64);
    header->slot_stride = stride;
    fits = fits && add(&at, slots, stride, PAGE);
    header->data_base = at;
    for (int f = 0; fits && f < dataset->functions.field_count; f++) {
        header->field_base[f] = data;
        header->capacity[f] = batch * dataset->bytes[f];
        fits = add(&data, batch, dataset->bytes[f], 64);
    }
    fits = fits && add(&data, 0, 0, PAGE);
    header->data_stride = data;
    fits = fits && add(&at, slots, data, PAGE) && at <= INT64_MAX;
    header->bytes = at;
    return fits;
}

static ctrt_status fail_memory(const struct ring_header *header, const char *why)
{
    char all[32], each[32];
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "loader: %d batches of %s need %s of memory: %s; use fewer workers, a "
                     "smaller prefetch_factor or smaller batches", header->slots,
                     format_bytes(each, header->data_stride), format_bytes(all, header->bytes), why);
}

static ctrt_status allocate(int fd, const struct ring_header *header)
{
    char why[160], limit[32];
    struct rlimit file = { 0 };
    const int error = shared_file_allocate(fd, header->bytes);
    if (error == 0)
        return CTRT_OK;
    getrlimit(RLIMIT_FSIZE, &file);
    if (error == EFBIG)
        snprintf(why, sizeof why, "the limit of the size of files (ulimit -f) is %s",
                 format_bytes(limit, file.rlim_cur));
    else
        snprintf(why, sizeof why, "the memory that processes share is exhausted: %s", strerror(error));
    return fail_memory(header, why);
}

/* The kernel uses huge pages if /sys/kernel/mm/transparent_hugepage allows it: `enabled` for threads, `shmem_enabled`
 * for processes. */
static void advise(const struct ring *ring)
{
    if (ring->header->bytes >= HUGE_FROM)
        madvise(ring->header, ring->header->bytes, MADV_HUGEPAGE);
}

static ctrt_status ring_map_memory(struct ring *ring, const struct ring_header *layout, bool shared)
{
    if (shared) {
        ring->fd = fd_above_stdio(memfd_create("ctrt-loader", MFD_CLOEXEC));
        if (ring->fd < 0)
            return ctrt_fail(CTRT_ERR_IO, "loader: cannot create memory that processes share: %s", strerror(errno));
        CTRT_TRY(allocate(ring->fd, layout));
    }
    /* Pinned memory must not be copied by a fork of the program, so it is shared then. */
    const int kind = layout->pin ? MAP_SHARED : MAP_PRIVATE;
    void *memory = mmap(NULL, layout->bytes, PROT_READ | PROT_WRITE,
                        shared ? MAP_SHARED : kind | MAP_ANONYMOUS | MAP_NORESERVE, ring->fd, 0);
    if (memory == MAP_FAILED)
        return fail_memory(layout, strerror(errno));
    ring->header = memory;
    memcpy(ring->header, layout, sizeof *layout);
    advise(ring);
    return CTRT_OK;
}

ctrt_status ring_new(struct ring **out, const struct ring_header *config, const ctrt_dataset *dataset, bool shared,
                     uint64_t budget, bool budget_set)
{
    struct ring_header header = *config;
    if (!layout(&header, dataset))
        return ctrt_fail(CTRT_ERR_OVERFLOW, "loader: %d batches of %" PRId64 " samples of \"%s\" exceed the address "
                         "space", header.slots, header.largest_batch, dataset->functions.name);
    if (header.bytes > budget) {
        char why[80], limit[32];
        snprintf(why, sizeof why, budget_set ? "the budget (memory_budget) is %s" : "%s are free",
                 format_bytes(limit, budget));
        return fail_memory(&header, why);
    }
    struct ring *ring = host_calloc(sizeof *ring);
    ALLOC_CHECK(ring, sizeof *ring, "a loader");
    atomic_init(&ring->refs, 1);
    ring->fd = -1;
    pthread_mutex_init(&ring->lock, NULL);
    ring->slot_refs = host_calloc((size_t)header.slots * sizeof *ring->slot_refs);
    ctrt_status status = CTRT_OK;
    if (ring->slot_refs == NULL)
        status = out_of_memory((size_t)header.slots * sizeof *ring->slot_refs, "a loader");
    if (status == CTRT_OK)
        status = ring_map_memory(ring, &header, shared);
    if (status != CTRT_OK) {
        ring_release(ring);
        return status;
    }
    for (int w = 0; w < MAX(1, header.workers); w++)
        atomic_store(&ring_worker(ring->header, w)->sample, -1);
    *out = ring;
    return CTRT_OK;
}

ctrt_status ring_map(struct ring **out, int fd)
{
    struct stat file;
    struct ring *ring = host_calloc(sizeof *ring);
    ALLOC_CHECK(ring, sizeof *ring, "a loader");
    void *memory = fstat(fd, &file) != 0 ? MAP_FAILED
                                         : mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        host_free(ring);
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "loader: cannot map the memory of its batches: %s", strerror(errno));
    }
    atomic_init(&ring->refs, 1);
    ring->fd = -1;
    ring->header = memory;
    *out = ring;
    return CTRT_OK;
}

void ring_close(struct ring *ring)
{
    if (ring != NULL && ring->fd >= 0) {
        close(ring->fd);
        ring->fd = -1;
    }
}

ctrt_status ring_pin(struct ring *ring, ctrt_device *device)
{
    const size_t bytes = (size_t)ring->header->slots * sizeof *ring->fences;
    struct fence **fences = host_calloc(bytes);
    ALLOC_CHECK(fences, bytes, "a loader");
    ctrt_status status = pinned_register(device, ring->header, ring->header->bytes);
    if (status != CTRT_OK) {
        host_free(fences);
        return status;
    }
    ring->fences = fences;
    ring->pinned_for = device;
    return CTRT_OK;
}

bool ring_slot_free(struct ring *ring, int slot)
{
    if (atomic_load_explicit(&ring->slot_refs[slot], memory_order_acquire) != 0)
        return false;
    if (ring->fences == NULL || ring->fences[slot] == NULL)
        return true;
    if (!fence_done(ring->fences[slot]))
        return false;
    fence_free(ring->fences[slot]);
    ring->fences[slot] = NULL;
    return true;
}

static void ring_unpin(struct ring *ring)
{
    /* In the child of a fork the events belong to the parent. */
    const int slots = device_usable(ring->pinned_for) ? ring->header->slots : 0;
    for (int slot = 0; slot < slots; slot++)
        if (ring->fences[slot] != NULL) {
            fence_wait(ring->fences[slot], ring->pinned_for, NULL);
            fence_free(ring->fences[slot]);
        }
    pinned_unregister(ring->pinned_for, ring->header, ring->header->bytes);
    host_free(ring->fences);
}

void ring_release(struct ring *ring)
{
    if (ring == NULL || atomic_fetch_sub(&ring->refs, 1) != 1)
        return;
    if (ring->pinned_for != NULL)
        ring_unpin(ring);
    if (ring->header != NULL)
        munmap(ring->header, ring->header->bytes);
    ring_close(ring);
    host_free(ring->slot_refs);
    host_free(ring);
}

void ring_wait(_Atomic uint32_t *word, uint32_t value, long nanoseconds)
{
    const struct timespec slice = { .tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000 };
    syscall(SYS_futex, word, FUTEX_WAIT, value, &slice, NULL, 0);
}

void ring_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
