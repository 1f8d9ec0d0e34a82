/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/vmm.c: virtual memory management: address reservations, allocations and mappings. An allocation is a
 * memfd. */
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULE ((size_t)2 << 20)

struct allocation {
    struct device *device;
    size_t bytes;
    int fd, references;                     /* one for the handle, and one per mapping */
    bool fresh, imported;
    int handle_types;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ranges mappings, reservations;

static void drop(struct allocation *allocation)
{
    if (--allocation->references > 0)
        return;
    if (!allocation->imported)
        memory_release(allocation->device, allocation->bytes);
    close(allocation->fd);
    free(allocation);
}

bool virtual_allowed(address begin, size_t bytes, const struct device *device, bool write)
{
    LOCKED(&lock);
    const struct range *m = range_at(&mappings, begin);
    const uint32_t mask = m == NULL ? 0 : write ? m->writers : m->readers;
    RETURN_IF((mask >> device->index & 1) == 0 || bytes > m->begin + m->bytes - begin, false);
    if (m->writers == m->readers) {
        softcuda_here.host = (const char *)(uintptr_t)m->begin;
        softcuda_here.host_end = softcuda_here.host + m->bytes;
    }
    return true;
}

bool virtual_writable(address begin, size_t bytes)
{
    LOCKED(&lock);
    for (size_t i = range_behind(&mappings, begin + bytes - 1); i > 0; i--) {
        const struct range *m = &mappings.list[i - 1];
        RETURN_IF(m->begin + m->bytes <= begin, true);
        RETURN_IF(m->writers == 0, false);
    }
    return true;
}

struct device *virtual_owner(address at)
{
    LOCKED(&lock);
    const struct range *m = range_at(&mappings, at);
    return m != NULL ? ((struct allocation *)m->owner)->device : NULL;
}

static bool whole(size_t bytes)
{
    return bytes > 0 && bytes % GRANULE == 0;
}

/* ---- address reservations ---- */

EXPORT result cuMemAddressReserve(address *out, size_t bytes, size_t alignment, address hint, unsigned long long flags)
{
    CHECKED_CALL(cuMemAddressReserve, ENTER_INIT,
                 out == NULL || !whole(bytes) || flags != 0 || (alignment & (alignment - 1)) != 0);
    const address first = (space_virtual() + GRANULE - 1) / GRANULE * GRANULE,
                  end = (uintptr_t)softcuda_space.base + softcuda_space.bytes / GRANULE * GRANULE;
    LOCKED(&lock);
    const address found = range_place(&reservations, hint % GRANULE == 0 ? hint : 0, first, end, bytes, GRANULE);
    const struct range range = { .begin = found, .bytes = bytes, .extent = bytes };
    RETURN_IF(found == 0, CUDA_ERROR_OUT_OF_MEMORY);
    range_add(&reservations, range);
    *out = found;
    return CUDA_SUCCESS;
}

EXPORT result cuMemAddressFree(address begin, size_t bytes)
{
    CALL(cuMemAddressFree, ENTER_INIT);
    LOCKED(&lock);
    const struct range *r = range_at(&reservations, begin);
    RETURN_IF(r == NULL || r->begin != begin || r->bytes != bytes || range_overlaps(&mappings, begin, bytes),
              CUDA_ERROR_INVALID_VALUE);
    range_remove(&reservations, r);
    return CUDA_SUCCESS;
}

/* ---- allocations ---- */

static struct device *device_at(location where)
{
    return where.type == LOCATION_DEVICE ? device_of(where.id) : NULL;
}

EXPORT result cuMemGetAllocationGranularity(size_t *bytes, const allocation_properties *p, int option)
{
    CHECKED_CALL(cuMemGetAllocationGranularity, ENTER_INIT, bytes == NULL || p == NULL || (option != 0 && option != 1));
    RETURN_IF(device_at(p->where) == NULL, CUDA_ERROR_INVALID_DEVICE);
    *bytes = GRANULE;
    return CUDA_SUCCESS;
}

static void new_allocation(struct allocation **out, struct allocation like)
{
    *out = allocated(malloc(sizeof **out));
    **out = like;
    handle_add(HANDLE_ALLOCATION, *out);
}

EXPORT result cuMemCreate(struct allocation **out, size_t bytes, const allocation_properties *p,
                          unsigned long long flags)
{
    CALL(cuMemCreate, ENTER_INIT);
    RETURN_IF(out == NULL || p == NULL || !whole(bytes) || flags != 0 || p->type != ALLOCATION_PINNED
              || p->handle_types & ~HANDLE_POSIX, CUDA_ERROR_INVALID_VALUE);
    struct device *device = device_at(p->where);
    RETURN_IF(device == NULL, CUDA_ERROR_INVALID_DEVICE);
    RETURN_IF(!memory_reserve(device, bytes), CUDA_ERROR_OUT_OF_MEMORY);
    char name[32];
    /* the name passes the device number to an importing process */
    snprintf(name, sizeof name, "softcuda-%d", device->hardware);
    const int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        if (fd >= 0)
            close(fd);
        memory_release(device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    new_allocation(out, (struct allocation){ .device = device, .bytes = bytes, .fd = fd, .references = 1, .fresh = true,
                                             .handle_types = p->handle_types });
    return CUDA_SUCCESS;
}

EXPORT result cuMemRelease(struct allocation *a)
{
    CALL(cuMemRelease, ENTER_INIT);
    RETURN_IF(!handle_remove(HANDLE_ALLOCATION, a), CUDA_ERROR_INVALID_HANDLE);
    LOCKED(&lock);
    drop(a);
    return CUDA_SUCCESS;
}

/* ---- sharing between processes ---- */

EXPORT result cuMemExportToShareableHandle(void *out, struct allocation *a, int type, unsigned long long flags)
{
    CHECKED_CALL(cuMemExportToShareableHandle, ENTER_INIT, out == NULL || flags != 0 || type != HANDLE_POSIX);
    REQUIRE_HANDLE(HANDLE_ALLOCATION, a);
    RETURN_IF((a->handle_types & HANDLE_POSIX) == 0, CUDA_ERROR_INVALID_VALUE);
    const int fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
    RETURN_IF(fd < 0, CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

EXPORT result cuMemImportFromShareableHandle(struct allocation **out, void *handle, int type)
{
    CALL(cuMemImportFromShareableHandle, ENTER_INIT);
    const int given = (int)(intptr_t)handle;
    char link[64], name[64] = "";
    struct stat about;
    struct device *device = NULL;
    int hardware;
    RETURN_IF(out == NULL || type != HANDLE_POSIX, CUDA_ERROR_INVALID_VALUE);
    snprintf(link, sizeof link, "/proc/self/fd/%d", given);
    RETURN_IF(readlink(link, name, sizeof name - 1) < 0 || sscanf(name, "/memfd:softcuda-%d", &hardware) != 1
              || fstat(given, &about) != 0, CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < n_devices; i++)
        if (devices[i].hardware == hardware)
            device = &devices[i];
    RETURN_IF(device == NULL, CUDA_ERROR_INVALID_DEVICE);
    const int fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
    RETURN_IF(fd < 0, CUDA_ERROR_OPERATING_SYSTEM);
    new_allocation(out, (struct allocation){ .device = device, .bytes = (size_t)about.st_size, .fd = fd,
                                             .references = 1, .imported = true, .handle_types = HANDLE_POSIX });
    return CUDA_SUCCESS;
}

/* ---- mappings ---- */

EXPORT result cuMemMap(address begin, size_t bytes, size_t offset, struct allocation *a, unsigned long long flags)
{
    CALL(cuMemMap, ENTER_INIT);
    REQUIRE_HANDLE(HANDLE_ALLOCATION, a);
    RETURN_IF(!whole(bytes) || begin % GRANULE != 0 || offset != 0 || flags != 0 || bytes > a->bytes,
              CUDA_ERROR_INVALID_VALUE);
    LOCKED(&lock);
    const struct range *reserved = range_at(&reservations, begin);
    RETURN_IF(reserved == NULL || bytes > reserved->begin + reserved->bytes - begin
              || range_overlaps(&mappings, begin, bytes), CUDA_ERROR_INVALID_VALUE);
    void *const at = (void *)(uintptr_t)begin;
    RETURN_IF(mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a->fd, 0) == MAP_FAILED,
              CUDA_ERROR_OUT_OF_MEMORY);
    range_add(&mappings, (struct range){ .begin = begin, .bytes = bytes, .owner = a });
    if (a->fresh)
        space_fill(begin, 0xff, bytes);
    a->fresh = false;
    a->references++;
    space_poison(begin, bytes);
    order_forget(begin, bytes);
    return CUDA_SUCCESS;
}

/* Returns true if mappings lie in the range and fill it; they cannot be split. *first and *end: their indices. */
static bool covers(address begin, size_t bytes, size_t *first, size_t *end)
{
    size_t covered = 0;
    *first = range_behind(&mappings, begin - 1);
    *end = range_behind(&mappings, begin + bytes - 1);
    for (size_t i = *first; i < *end; i++)
        covered += mappings.list[i].bytes;
    return covered == bytes && mappings.list[*end - 1].begin + mappings.list[*end - 1].bytes == begin + bytes;
}

EXPORT result cuMemUnmap(address begin, size_t bytes)
{
    CALL(cuMemUnmap, ENTER_INIT);
    size_t first, end;
    LOCKED(&lock);
    RETURN_IF(!whole(bytes) || !covers(begin, bytes, &first, &end), CUDA_ERROR_INVALID_VALUE);
    space_mark(begin, bytes, false);
    mmap((void *)(uintptr_t)begin, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    while (end-- > first) {
        drop(mappings.list[end].owner);
        range_remove(&mappings, &mappings.list[end]);
    }
    return CUDA_SUCCESS;
}

EXPORT result cuMemSetAccess(address begin, size_t bytes, const access_description *list, size_t n)
{
    CHECKED_CALL(cuMemSetAccess, ENTER_INIT, !whole(bytes) || list == NULL);
    for (size_t i = 0; i < n; i++)
        RETURN_IF(device_at(list[i].where) == NULL, CUDA_ERROR_INVALID_DEVICE);
    size_t first, end;
    LOCKED(&lock);
    RETURN_IF(!covers(begin, bytes, &first, &end), CUDA_ERROR_INVALID_VALUE);
    for (struct range *m = &mappings.list[first]; m < &mappings.list[end]; m++) {
        for (size_t i = 0; i < n; i++) {
            const uint32_t bit = 1u << list[i].where.id;
            m->readers = list[i].flags & ACCESS_READ ? m->readers | bit : m->readers & ~bit;
            m->writers = list[i].flags == ACCESS_READWRITE ? m->writers | bit : m->writers & ~bit;
        }
        space_mark(m->begin, m->bytes, m->readers != 0);
    }
    return CUDA_SUCCESS;
}
