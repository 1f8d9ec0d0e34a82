/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/host.c: pinned host memory: allocated here, or registered by the program. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)4096)

struct range {
    struct range *next;
    const char *begin, *end;
    bool ours;                              /* allocated by this library, not registered */
    unsigned flags;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static atomic_ullong pinned;

static struct range *find(const void *inside, size_t bytes)
{
    const char *p = inside;
    for (struct range *r = ranges; r != NULL; r = r->next)
        if (p >= r->begin && p < r->end && bytes <= (size_t)(r->end - p))
            return r;
    return NULL;
}

bool host_pinned(const void *inside, size_t bytes, const char **begin, const char **end)
{
    pthread_mutex_lock(&lock);
    const struct range *r = find(inside, bytes);
    if (r != NULL && begin != NULL)
        *begin = r->begin, *end = r->end;
    pthread_mutex_unlock(&lock);
    return r != NULL;
}

uint64_t host_pinned_bytes(void)
{
    return pinned;
}

static bool add(void *begin, size_t bytes, bool ours, unsigned flags)
{
    struct range *r = malloc(sizeof *r);
    if (r == NULL)
        return false;
    *r = (struct range){ .begin = begin, .end = (char *)begin + bytes, .ours = ours, .flags = flags };
    pthread_mutex_lock(&lock);
    r->next = ranges;
    ranges = r;
    pthread_mutex_unlock(&lock);
    if (ours)
        pinned += bytes;
    return true;
}

/* Removes and returns the range of that kind that begins at `begin`. Returns NULL if there is none. */
static struct range *take(const void *begin, bool ours)
{
    pthread_mutex_lock(&lock);
    struct range **place = &ranges, *r;
    while (*place != NULL && ((*place)->begin != begin || (*place)->ours != ours))
        place = &(*place)->next;
    r = *place;
    if (r != NULL)
        *place = r->next;
    pthread_mutex_unlock(&lock);
    return r;
}

static result host_alloc(void **out, size_t bytes, unsigned flags)
{
    if (out == NULL || bytes == 0 || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    void *begin = NULL;
    if (bytes > (size_t)1 << 46 || posix_memalign(&begin, PAGE, bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (options.poison)
        memset(begin, 0xff, bytes);
    if (!add(begin, bytes, true, flags)) {
        free(begin);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = begin;
    return CUDA_SUCCESS;
}

EXPORT result cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    CALL(cuMemHostAlloc, ENTER_INIT | ENTER_CONTEXT | ENTER_WELL);
    const result unsafe = capture_unsafe_call();
    return unsafe != CUDA_SUCCESS ? unsafe : host_alloc(out, bytes, flags);
}

EXPORT result cuMemAllocHost_v2(void **out, size_t bytes)
{
    CALL(cuMemAllocHost_v2, ENTER_INIT | ENTER_CONTEXT | ENTER_WELL);
    const result unsafe = capture_unsafe_call();
    return unsafe != CUDA_SUCCESS ? unsafe : host_alloc(out, bytes, 0);
}

EXPORT result cuMemFreeHost(void *begin)
{
    CALL(cuMemFreeHost, ENTER_INIT | ENTER_CONTEXT | ENTER_WELL);
    if (!options.strict_free)
        for (int i = 0; i < n_devices; i++)
            device_wait_idle(&devices[i]);
    struct range *r = take(begin, true);
    if (r == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pinned -= (size_t)(r->end - r->begin);
    free(r);
    free(begin);
    return CUDA_SUCCESS;
}

EXPORT result cuMemHostRegister_v2(void *begin, size_t bytes, unsigned flags)
{
    CALL(cuMemHostRegister_v2, ENTER_INIT | ENTER_CONTEXT | ENTER_WELL);
    if (begin == NULL || bytes == 0 || flags > 15)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const bool known = find(begin, 1) != NULL || find((char *)begin + bytes - 1, 1) != NULL;
    pthread_mutex_unlock(&lock);
    if (known)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    return add(begin, bytes, false, flags) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT result cuMemHostUnregister(void *begin)
{
    CALL(cuMemHostUnregister, ENTER_INIT | ENTER_CONTEXT | ENTER_WELL);
    struct range *r = take(begin, false);
    if (r == NULL)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    free(r);
    return CUDA_SUCCESS;
}

EXPORT result cuMemHostGetDevicePointer_v2(address *out, void *host, unsigned flags)
{
    CALL(cuMemHostGetDevicePointer_v2, ENTER_INIT | ENTER_CONTEXT | ENTER_WELL);
    if (out == NULL || flags != 0 || !host_pinned(host, 1, NULL, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (uintptr_t)host;                     /* the same address on all devices, as with unified addressing */
    return CUDA_SUCCESS;
}

/* ---- pointer attributes ---- */

struct pointer {
    int type, ordinal;
    address begin;
    size_t bytes;
    struct device *device;
};

static bool look_at(address where, struct pointer *out)
{
    const char *begin, *end;
    if (space_device(where) != NULL && memory_block(where, &out->begin, &out->bytes)) {
        out->type = MEMORY_DEVICE;
        out->device = space_device(where);
    } else if (space_is(where) && virtual_owner(where, &out->device, &out->begin, &out->bytes)) {
        out->type = MEMORY_DEVICE;
    } else if (host_pinned((const void *)(uintptr_t)where, 1, &begin, &end)) {
        out->type = MEMORY_HOST;
        out->device = device_current() != NULL ? device_current() : &devices[0];
        out->begin = (uintptr_t)begin;
        out->bytes = (size_t)(end - begin);
    } else {
        return false;
    }
    out->ordinal = out->device->index;
    return true;
}

static result pointer_attribute(void *data, int which, address where, const struct pointer *p)
{
    const bool device = p->type == MEMORY_DEVICE;
    switch (which) {
    case POINTER_CONTEXT:
        *(void **)data = p->device;
        return CUDA_SUCCESS;
    case POINTER_MEMORY_TYPE:
        *(unsigned *)data = (unsigned)p->type;
        return CUDA_SUCCESS;
    case POINTER_DEVICE:
        *(address *)data = where;
        return CUDA_SUCCESS;
    case POINTER_HOST:
        *(void **)data = device ? NULL : (void *)(uintptr_t)where;
        return device ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case POINTER_BUFFER_ID:
        *(unsigned long long *)data = p->begin;
        return CUDA_SUCCESS;
    case POINTER_MANAGED:
        *(unsigned *)data = 0;
        return CUDA_SUCCESS;
    case POINTER_ORDINAL:
        *(int *)data = p->ordinal;
        return CUDA_SUCCESS;
    case POINTER_START:
        *(address *)data = p->begin;
        return CUDA_SUCCESS;
    case POINTER_SIZE:
        *(size_t *)data = p->bytes;
        return CUDA_SUCCESS;
    case POINTER_MAPPED:
        *(int *)data = 1;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

EXPORT result cuPointerGetAttribute(void *data, int which, address where)
{
    CALL(cuPointerGetAttribute, ENTER_INIT | ENTER_CONTEXT);
    struct pointer p;
    if (data == NULL || !look_at(where, &p))
        return CUDA_ERROR_INVALID_VALUE;
    return pointer_attribute(data, which, where, &p);
}

EXPORT result cuPointerGetAttributes(unsigned n, const int *which, void **data, address where)
{
    CALL(cuPointerGetAttributes, ENTER_INIT | ENTER_CONTEXT);
    struct pointer p;
    if (which == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const bool known = look_at(where, &p);
    for (unsigned i = 0; i < n; i++) {
        if (known)
            pointer_attribute(data[i], which[i], where, &p);
        else if (which[i] == POINTER_MEMORY_TYPE || which[i] == POINTER_MANAGED || which[i] == POINTER_MAPPED)
            *(unsigned *)data[i] = 0;
        else if (which[i] == POINTER_ORDINAL)
            *(int *)data[i] = -2;
        else
            *(void **)data[i] = NULL;
    }
    return CUDA_SUCCESS;
}
