/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/host.c: pinned host memory. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)4096)

struct range {
    struct range *next;
    const char *begin, *end;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;

bool host_pinned(const void *inside, size_t bytes, const char **begin, const char **end)
{
    const char *p = inside;
    pthread_mutex_lock(&lock);
    const struct range *r = ranges;
    while (r != NULL && !(p >= r->begin && p < r->end && bytes <= (size_t)(r->end - p)))
        r = r->next;
    if (r != NULL && begin != NULL)
        *begin = r->begin, *end = r->end;
    pthread_mutex_unlock(&lock);
    return r != NULL;
}

EXPORT result cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    CALL(cuMemHostAlloc, ENTER_READY);
    const result unsafe = capture_unsafe_call();
    if (unsafe != CUDA_SUCCESS)
        return unsafe;
    if (out == NULL || bytes == 0 || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    void *begin = NULL;
    struct range *r = malloc(sizeof *r);
    if (r == NULL || bytes > (size_t)1 << 46 || posix_memalign(&begin, PAGE, bytes) != 0) {
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memset(begin, 0xff, bytes);
    *r = (struct range){ .begin = begin, .end = (char *)begin + bytes };
    pthread_mutex_lock(&lock);
    r->next = ranges;
    ranges = r;
    pthread_mutex_unlock(&lock);
    *out = begin;
    return CUDA_SUCCESS;
}

EXPORT result cuMemFreeHost(void *begin)
{
    CALL(cuMemFreeHost, ENTER_READY);
    if (!options.strict_free)
        for (int i = 0; i < n_devices; i++)
            device_wait_idle(&devices[i]);
    pthread_mutex_lock(&lock);
    struct range **place = &ranges;
    while (*place != NULL && (*place)->begin != begin)
        place = &(*place)->next;
    struct range *r = *place;
    if (r != NULL)
        *place = r->next;
    pthread_mutex_unlock(&lock);
    if (r == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    free(r);
    free(begin);
    return CUDA_SUCCESS;
}

EXPORT result cuMemHostGetDevicePointer_v2(address *out, void *host, unsigned flags)
{
    CALL(cuMemHostGetDevicePointer_v2, ENTER_READY);
    if (out == NULL || flags != 0 || !host_pinned(host, 1, NULL, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (uintptr_t)host;                     /* the same address on all devices, as with unified addressing */
    return CUDA_SUCCESS;
}
