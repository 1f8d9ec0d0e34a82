/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/pages.c: reserves addresses and maps device memory to parts of them.
 *
 * A page is 2 MiB of the device's memory, at any offset in that memory. Workers access it at the address of the
 * page. */
#include "sim.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

struct sim_reservation *sim_reservation_at(const struct sim_device *device, uint64_t place)
{
    struct sim_reservation *r = device->reservations;
    while (r != NULL && (place < r->start || place - r->start >= r->bytes))
        r = r->next;
    return r;
}

static ctrt_status not_pages(const struct sim_device *device, size_t bytes)
{
    return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %zu bytes are not a multiple of the page size %llu",
                          device->name, bytes, (unsigned long long)SIM_PAGE);
}

ctrt_status sim_reserve(void *handle, void **address, size_t bytes)
{
    struct sim_device *device = handle;
    CTRT_TRY(sim_usable(device));
    if (bytes == 0 || bytes % SIM_PAGE != 0)
        return not_pages(device, bytes);
    if (bytes > device->span)
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no addresses for %zu bytes; it has %llu in total",
                              device->name, bytes, (unsigned long long)(device->span - device->reserved.begin));
    size_t pages = bytes / SIM_PAGE;
    struct sim_reservation *r = sim_host->alloc(sizeof *r + pages * sizeof r->pages[0]);
    if (r == NULL)
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a table of %zu pages", device->name,
                              pages);
    memset(r->pages, -1, pages * sizeof r->pages[0]);
    r->bytes = bytes;
    pthread_mutex_lock(&device->lock);
    bool taken = sim_blocks_take(&device->reserved, &r->start, bytes, SIM_PAGE);
    if (taken) {
        r->next = device->reservations;
        device->reservations = r;
    }
    pthread_mutex_unlock(&device->lock);
    if (!taken) {
        sim_host->free(r);
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no addresses left for %zu bytes", device->name, bytes);
    }
    sim_count(&device->count.reserves, 1);
    *address = device->guard + r->start;
    return CTRT_OK;
}

/* Returns the reservation that contains [address, address+bytes), which must consist of whole pages, and its first
 * page; else NULL. The caller holds the device's lock. */
static struct sim_reservation *pages_of(const struct sim_device *device, const void *address, size_t bytes,
                                        size_t *first)
{
    uint64_t place = (uint64_t)((const char *)address - device->guard);
    struct sim_reservation *r = sim_reservation_at(device, place);
    if (r == NULL || (place - r->start) % SIM_PAGE != 0 || bytes % SIM_PAGE != 0
        || bytes > r->bytes - (place - r->start))
        return NULL;
    *first = (place - r->start) / SIM_PAGE;
    return r;
}

/* Unmaps the page and frees its memory. The caller holds the device's lock. */
static bool page_unmap(struct sim_device *device, struct sim_reservation *r, size_t page)
{
    if (r->pages[page] < 0)
        return false;
    (void)mmap(device->guard + device->delta + r->start + page * SIM_PAGE, SIM_PAGE, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    uint64_t start = (uint64_t)r->pages[page], bytes = sim_blocks_give(&device->physical, start);
    sim_space_give_back(device, start, bytes);
    r->pages[page] = -1;
    return true;
}

/* Allocates memory for the page and maps it. The caller holds the device's lock. */
static ctrt_status page_map(struct sim_device *device, struct sim_reservation *r, size_t page)
{
    uint64_t start;
    char free_bytes[160];
    if (!sim_blocks_take(&device->physical, &start, SIM_PAGE, SIM_PAGE))
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no page of %llu bytes: %s", device->name,
                              (unsigned long long)SIM_PAGE, sim_space_free(device, free_bytes));
    char *place = device->guard + device->delta + r->start + page * SIM_PAGE;
    if (mmap(place, SIM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, device->fd, (off_t)start) == MAP_FAILED) {
        int why = errno;
        sim_blocks_give(&device->physical, start);
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: the system maps no more pages: %s", device->name,
                              strerror(why));
    }
    r->pages[page] = (int64_t)start;
    if (device->poison)
        memset(place, 0xff, SIM_PAGE);
    return CTRT_OK;
}

ctrt_status sim_map(void *handle, void *address, size_t bytes)
{
    struct sim_device *device = handle;
    ctrt_status status = sim_usable(device);
    size_t first = 0, count = bytes / SIM_PAGE, done = 0;
    char fault[64];
    if (status != CTRT_OK)
        return status;
    if (bytes == 0 || bytes % SIM_PAGE != 0)
        return not_pages(device, bytes);
    pthread_mutex_lock(&device->lock);
    struct sim_reservation *r = pages_of(device, address, bytes, &first);
    if (r == NULL)
        status = sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %zu bytes at %p are not pages of one reservation",
                                device->name, bytes, address);
    else if (sim_fault_hits(device, SIM_FAULT_ALLOC, "", fault))
        status = sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no %zu bytes of pages (fault %s)", device->name, bytes,
                                fault);
    for (size_t page = first; status == CTRT_OK && page < first + count; page++)
        if (r->pages[page] >= 0)
            status = sim_host->fail(CTRT_ERR_STATE, "%s: page %zu of the reservation at %p is mapped already",
                                    device->name, page, (void *)(device->guard + r->start));
    for (; status == CTRT_OK && done < count; done++)
        if ((status = page_map(device, r, first + done)) != CTRT_OK)
            break;
    if (status != CTRT_OK) {
        while (done > 0)
            page_unmap(device, r, first + --done);
    } else {
        sim_count(&device->count.maps, 1);
        if (device->physical.used > atomic_load(&device->count.peak))
            atomic_store(&device->count.peak, device->physical.used);
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

void sim_unmap(void *handle, void *address, size_t bytes)
{
    struct sim_device *device = handle;
    size_t first = 0, unmapped = 0;
    if (sim_forked(device))
        return;
    pthread_mutex_lock(&device->lock);
    struct sim_reservation *r = pages_of(device, address, bytes, &first);
    for (size_t page = 0; r != NULL && page < bytes / SIM_PAGE; page++)
        unmapped += page_unmap(device, r, first + page);
    pthread_mutex_unlock(&device->lock);
    if (unmapped * SIM_PAGE == bytes && bytes > 0) {
        sim_count(&device->count.unmaps, 1);
        return;
    }
    sim_count(&device->count.bad_frees, 1);
    sim_host->log(CTRT_LOG_ERROR, "backend-sim", "%s: unmap of %zu bytes at %p, of which %zu pages were mapped",
                  device->name, bytes, address, unmapped);
}

/* The caller holds the device's lock, or there are no other threads. */
static void reservation_free(struct sim_device *device, struct sim_reservation **link)
{
    struct sim_reservation *r = *link;
    for (size_t page = 0; page < r->bytes / SIM_PAGE; page++)
        page_unmap(device, r, page);
    sim_blocks_give(&device->reserved, r->start);
    *link = r->next;
    sim_host->free(r);
}

void sim_unreserve(void *handle, void *address, size_t bytes)
{
    struct sim_device *device = handle;
    bool found = false;
    if (sim_forked(device))
        return;
    pthread_mutex_lock(&device->lock);
    struct sim_reservation **link = &device->reservations;
    while (*link != NULL && (device->guard + (*link)->start != (char *)address || (*link)->bytes != bytes))
        link = &(*link)->next;
    found = *link != NULL;
    if (found)
        reservation_free(device, link);
    pthread_mutex_unlock(&device->lock);
    if (found) {
        sim_count(&device->count.unreserves, 1);
        return;
    }
    sim_count(&device->count.bad_frees, 1);
    sim_host->log(CTRT_LOG_ERROR, "backend-sim",
                  "%s: unreserve of %zu bytes at %p, which is not the start of a reservation of that size",
                  device->name, bytes, address);
}

void sim_pages_close(struct sim_device *device)
{
    while (device->reservations != NULL)
        reservation_free(device, &device->reservations);
}
