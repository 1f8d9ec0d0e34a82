/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/vmm.c: virtual memory management: address reservations, allocations and mappings. An allocation is a
 * memfd. */
#define _GNU_SOURCE
#include "order.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

struct mapping {
    struct mapping *next;
    address begin;
    size_t bytes;
    struct allocation *allocation;
    uint32_t readers, writers;              /* bit masks of devices */
};

struct reservation {
    struct reservation *next;
    address begin;
    size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings;
static struct reservation *reservations;    /* sorted by address */
static address next_reservation;

static void drop(struct allocation *allocation)
{
    if (--allocation->references > 0)
        return;
    if (!allocation->imported)
        memory_release(allocation->device, allocation->bytes);
    close(allocation->fd);
    free(allocation);
}

static struct mapping *mapping_at(address where)
{
    struct mapping *m = mappings;
    while (m != NULL && where - m->begin >= m->bytes)
        m = m->next;
    return m;
}

bool virtual_allowed(address begin, size_t bytes, const struct device *device, bool write)
{
    pthread_mutex_lock(&lock);
    const struct mapping *m = mapping_at(begin);
    const uint32_t mask = m == NULL ? 0 : write ? m->writers : m->readers;
    const bool allowed = (mask >> device->index & 1) != 0 && bytes <= m->begin + m->bytes - begin;
    if (allowed && m->writers == m->readers) {
        softcuda_here.host = (const char *)(uintptr_t)m->begin;
        softcuda_here.host_end = softcuda_here.host + m->bytes;
    }
    pthread_mutex_unlock(&lock);
    return allowed;
}

bool virtual_writable(address begin, size_t bytes)
{
    bool writable = true;
    pthread_mutex_lock(&lock);
    for (const struct mapping *m = mappings; m != NULL; m = m->next)
        if (begin < m->begin + m->bytes && m->begin < begin + bytes)
            writable = writable && m->writers != 0;
    pthread_mutex_unlock(&lock);
    return writable;
}

struct device *virtual_owner(address at)
{
    pthread_mutex_lock(&lock);
    const struct mapping *m = mapping_at(at);
    struct device *device = m != NULL ? m->allocation->device : NULL;
    pthread_mutex_unlock(&lock);
    return device;
}

static bool whole(size_t bytes)
{
    return bytes > 0 && bytes % GRANULE == 0;
}

/* ---- address reservations ---- */

static address free_place(address from, address end, size_t bytes, struct reservation ***place)
{
    struct reservation **at = &reservations;
    for (; *at != NULL && (*at)->begin + (*at)->bytes <= from; at = &(*at)->next)
        ;
    for (; from + bytes <= end; at = &(*at)->next) {
        if (*at == NULL || from + bytes <= (*at)->begin) {
            *place = at;
            return from;
        }
        from = (*at)->begin + (*at)->bytes + GRANULE;
    }
    return 0;
}

EXPORT result cuMemAddressReserve(address *out, size_t bytes, size_t alignment, address hint, unsigned long long flags)
{
    CALL(cuMemAddressReserve, ENTER_INIT);
    if (out == NULL || !whole(bytes) || flags != 0 || (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct reservation *r = malloc(sizeof *r);
    if (r == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const address first = space_virtual(),
                  end = (uintptr_t)softcuda_space.base + softcuda_space.bytes / GRANULE * GRANULE;
    const address begin = (first + GRANULE - 1) / GRANULE * GRANULE;
    struct reservation **place = NULL;
    pthread_mutex_lock(&lock);
    address found = 0;
    if (hint >= begin && hint % GRANULE == 0 && hint < end)
        found = free_place(hint, end, bytes, &place);
    if (found == 0)
        found = free_place(next_reservation != 0 ? next_reservation : begin, end, bytes, &place);
    if (found == 0)
        found = free_place(begin, end, bytes, &place);
    if (found != 0) {
        *r = (struct reservation){ .next = *place, .begin = found, .bytes = bytes };
        *place = r;
        next_reservation = found + bytes + GRANULE;
    }
    pthread_mutex_unlock(&lock);
    if (found == 0) {
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = found;
    return CUDA_SUCCESS;
}

EXPORT result cuMemAddressFree(address begin, size_t bytes)
{
    CALL(cuMemAddressFree, ENTER_INIT);
    result made = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct reservation **place = &reservations;
    while (*place != NULL && (*place)->begin != begin)
        place = &(*place)->next;
    struct reservation *r = *place;
    if (r != NULL && r->bytes == bytes) {
        made = CUDA_SUCCESS;
        for (const struct mapping *m = mappings; m != NULL; m = m->next)
            if (m->begin - begin < bytes)
                made = CUDA_ERROR_INVALID_VALUE;        /* still mapped */
        if (made == CUDA_SUCCESS) {
            *place = r->next;
            free(r);
        }
    }
    pthread_mutex_unlock(&lock);
    return made;
}

/* ---- allocations ---- */

EXPORT result cuMemGetAllocationGranularity(size_t *bytes, const allocation_properties *p, int option)
{
    CALL(cuMemGetAllocationGranularity, ENTER_INIT);
    if (bytes == NULL || p == NULL || (option != 0 && option != 1))
        return CUDA_ERROR_INVALID_VALUE;
    if (p->where.type != LOCATION_DEVICE || device_of(p->where.id) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = GRANULE;
    return CUDA_SUCCESS;
}

EXPORT result cuMemCreate(struct allocation **out, size_t bytes, const allocation_properties *p,
                          unsigned long long flags)
{
    CALL(cuMemCreate, ENTER_INIT);
    if (out == NULL || p == NULL || !whole(bytes) || flags != 0 || p->type != ALLOCATION_PINNED
        || p->handle_types & ~HANDLE_POSIX)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = p->where.type == LOCATION_DEVICE ? device_of(p->where.id) : NULL;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!memory_reserve(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    char name[32];
    /* the name passes the device number to an importing process */
    snprintf(name, sizeof name, "softcuda-%d", device->hardware);
    struct allocation *a = calloc(1, sizeof *a);
    const int fd = memfd_create(name, MFD_CLOEXEC);
    if (a == NULL || fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        free(a);
        if (fd >= 0)
            close(fd);
        memory_release(device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *a = (struct allocation){ .device = device, .bytes = bytes, .fd = fd, .references = 1, .fresh = true,
                              .handle_types = p->handle_types };
    handle_add(HANDLE_ALLOCATION, a);
    *out = a;
    return CUDA_SUCCESS;
}

EXPORT result cuMemRelease(struct allocation *a)
{
    CALL(cuMemRelease, ENTER_INIT);
    if (!handle_remove(HANDLE_ALLOCATION, a))
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    drop(a);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* ---- sharing between processes ---- */

EXPORT result cuMemExportToShareableHandle(void *out, struct allocation *a, int type, unsigned long long flags)
{
    CALL(cuMemExportToShareableHandle, ENTER_INIT);
    if (out == NULL || flags != 0 || type != HANDLE_POSIX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_is(HANDLE_ALLOCATION, a))
        return CUDA_ERROR_INVALID_HANDLE;
    if ((a->handle_types & HANDLE_POSIX) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    const int fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

EXPORT result cuMemImportFromShareableHandle(struct allocation **out, void *handle, int type)
{
    CALL(cuMemImportFromShareableHandle, ENTER_INIT);
    const int given = (int)(intptr_t)handle;
    char link[64], name[64] = "";
    struct stat about;
    int hardware;
    if (out == NULL || type != HANDLE_POSIX)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(link, sizeof link, "/proc/self/fd/%d", given);
    if (readlink(link, name, sizeof name - 1) < 0 || sscanf(name, "/memfd:softcuda-%d", &hardware) != 1
        || fstat(given, &about) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = NULL;
    for (int i = 0; i < n_devices; i++)
        if (devices[i].hardware == hardware)
            device = &devices[i];
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    struct allocation *a = calloc(1, sizeof *a);
    const int fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
    if (a == NULL || fd < 0) {
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *a = (struct allocation){ .device = device, .bytes = (size_t)about.st_size, .fd = fd, .references = 1,
                              .imported = true, .handle_types = HANDLE_POSIX };
    handle_add(HANDLE_ALLOCATION, a);
    *out = a;
    return CUDA_SUCCESS;
}

/* ---- mappings ---- */

static bool reserved(address begin, size_t bytes)
{
    for (const struct reservation *r = reservations; r != NULL; r = r->next)
        if (begin >= r->begin && begin - r->begin < r->bytes && bytes <= r->bytes - (begin - r->begin))
            return true;
    return false;
}

EXPORT result cuMemMap(address begin, size_t bytes, size_t offset, struct allocation *a, unsigned long long flags)
{
    CALL(cuMemMap, ENTER_INIT);
    if (!handle_is(HANDLE_ALLOCATION, a))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!whole(bytes) || begin % GRANULE != 0 || offset != 0 || flags != 0 || bytes > a->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct mapping *m = calloc(1, sizeof *m);
    if (m == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *m = (struct mapping){ .begin = begin, .bytes = bytes, .allocation = a };
    result made = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!reserved(begin, bytes))
        made = CUDA_ERROR_INVALID_VALUE;
    for (const struct mapping *other = mappings; other != NULL; other = other->next)
        if (begin < other->begin + other->bytes && other->begin < begin + bytes)
            made = CUDA_ERROR_INVALID_VALUE;
    if (made == CUDA_SUCCESS
        && mmap((void *)(uintptr_t)begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a->fd,
                0) == MAP_FAILED)
        made = CUDA_ERROR_OUT_OF_MEMORY;
    if (made == CUDA_SUCCESS) {
        if (a->fresh)
            space_fill(begin, 0xff, bytes);
        a->fresh = false;
        a->references++;
        m->next = mappings;
        mappings = m;
        space_poison(begin, bytes);
        order_forget(begin, bytes);
    } else {
        free(m);
    }
    pthread_mutex_unlock(&lock);
    return made;
}

/* Returns true if mappings lie in the range and fill it. They cannot be split. */
static bool covers(address begin, size_t bytes)
{
    size_t covered = 0;
    for (const struct mapping *m = mappings; m != NULL; m = m->next)
        if (m->begin - begin < bytes && m->begin - begin + m->bytes <= bytes)
            covered += m->bytes;
    return covered == bytes;
}

EXPORT result cuMemUnmap(address begin, size_t bytes)
{
    CALL(cuMemUnmap, ENTER_INIT);
    if (!whole(bytes))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const bool covered = covers(begin, bytes);
    if (covered) {
        space_mark(begin, bytes, false);
        mmap((void *)(uintptr_t)begin, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0);
        for (struct mapping **place = &mappings; *place != NULL;) {
            struct mapping *m = *place;
            if (m->begin - begin < bytes) {
                *place = m->next;
                drop(m->allocation);
                free(m);
            } else {
                place = &m->next;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return covered ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT result cuMemSetAccess(address begin, size_t bytes, const access_description *list, size_t n)
{
    CALL(cuMemSetAccess, ENTER_INIT);
    if (!whole(bytes) || list == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++)
        if (list[i].where.type != LOCATION_DEVICE || device_of(list[i].where.id) == NULL)
            return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    const bool covered = covers(begin, bytes);
    for (struct mapping *m = mappings; m != NULL && covered; m = m->next) {
        if (m->begin - begin >= bytes)
            continue;
        for (size_t i = 0; i < n; i++) {
            const uint32_t bit = 1u << list[i].where.id;
            m->readers = list[i].flags & ACCESS_READ ? m->readers | bit : m->readers & ~bit;
            m->writers = list[i].flags == ACCESS_READWRITE ? m->writers | bit : m->writers & ~bit;
        }
        space_mark(m->begin, m->bytes, m->readers != 0);
    }
    pthread_mutex_unlock(&lock);
    return covered ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
