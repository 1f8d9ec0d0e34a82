/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/allocate.c: device memory, which is memory of the host, pinned host memory, virtual memory, pools, copies.
 * Every allocation is a range that kernels may access. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE (2u << 20)                     /* granularity of virtual memory */

struct allocation {
    void *memory;
    size_t bytes;
    bool device;
    struct allocation *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
static size_t used;

static void list_add(void *memory, size_t bytes, bool device)
{
    struct allocation *a = malloc(sizeof *a);
    if (a == NULL)
        abort();
    pthread_mutex_lock(&lock);
    *a = (struct allocation){ memory, bytes, device, allocations };
    allocations = a;
    pthread_mutex_unlock(&lock);
    ptx_range_add(memory, bytes);
}

/* Returns false if no such allocation exists. */
static bool list_remove(void *memory, bool device, size_t *bytes)
{
    pthread_mutex_lock(&lock);
    struct allocation **at = &allocations;
    while (*at != NULL && ((*at)->memory != memory || (*at)->device != device))
        at = &(*at)->next;
    struct allocation *a = *at;
    if (a != NULL) {
        *at = a->next;
        *bytes = a->bytes;
    }
    pthread_mutex_unlock(&lock);
    if (a == NULL)
        return false;
    ptx_range_remove(memory);
    free(a);
    return true;
}

bool host_memory_is_pinned(const void *memory, size_t bytes)
{
    struct range_cache range;
    return ptx_range_find((uintptr_t)memory, bytes, &range);
}

static bool take(size_t bytes)
{
    pthread_mutex_lock(&lock);
    const bool fits = bytes <= ptx_options.memory - used;
    used += fits ? bytes : 0;
    pthread_mutex_unlock(&lock);
    return fits;
}

static void give(size_t bytes)
{
    pthread_mutex_lock(&lock);
    used -= bytes;
    pthread_mutex_unlock(&lock);
}

result memory_info(size_t *free_bytes, size_t *total)
{
    pthread_mutex_lock(&lock);
    *free_bytes = ptx_options.memory - used;
    pthread_mutex_unlock(&lock);
    *total = ptx_options.memory;
    return driver_error();
}

static result allocate(address *out, size_t bytes)
{
    *out = 0;
    if (bytes == 0)
        return INVALID_VALUE;
    if (!take(bytes))
        return OUT_OF_MEMORY;
    /* Between allocations lie at least 256 bytes that belong to none. */
    void *memory = aligned_alloc(512, (bytes + 256 + 511) / 512 * 512);
    if (memory == NULL) {
        give(bytes);
        return OUT_OF_MEMORY;
    }
    memset(memory, 0xff, bytes);            /* NaN, for kernels that read memory before it is written */
    list_add(memory, bytes, true);
    *out = (uintptr_t)memory;
    return OK;
}

void driver_release(void *memory)
{
    size_t bytes;
    if (list_remove(memory, true, &bytes)) {
        give(bytes);
        free(memory);
    }
}

result memory_alloc(address *out, size_t bytes)
{
    const result r = driver_unsafe();
    return r != OK ? r : allocate(out, bytes);
}

result memory_free(address memory)
{
    const result r = driver_unsafe();
    if (r == CAPTURE_UNSUPPORTED)
        return r;
    (void)driver_wait_all();
    size_t bytes;
    if (!list_remove((void *)(uintptr_t)memory, true, &bytes))
        return INVALID_VALUE;
    give(bytes);
    free((void *)(uintptr_t)memory);
    return driver_error();
}

result host_alloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    const result r = driver_unsafe();
    if (r != OK)
        return r;
    *out = bytes == 0 ? NULL : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*out == NULL)
        return bytes == 0 ? INVALID_VALUE : OUT_OF_MEMORY;
    list_add(*out, bytes, false);
    return OK;
}

result host_free(void *memory)
{
    (void)driver_wait_all();
    size_t bytes;
    if (!list_remove(memory, false, &bytes))
        return INVALID_VALUE;
    free(memory);
    return driver_error();
}

result host_register(void *memory, size_t bytes, unsigned flags)
{
    (void)flags;
    list_add(memory, bytes, false);
    return driver_error();
}

result host_unregister(void *memory)
{
    (void)driver_wait_all();
    size_t bytes;
    return list_remove(memory, false, &bytes) ? driver_error() : INVALID_VALUE;
}

result host_device_address(address *out, void *memory, unsigned flags)
{
    (void)flags;
    *out = (uintptr_t)memory;
    return host_memory_is_pinned(memory, 1) ? OK : INVALID_VALUE;
}

/* ---- copies ---- */

static bool is_memory(const void *memory, size_t bytes)
{
    return bytes == 0 || host_memory_is_pinned(memory, 1);
}

static result copy(void *to, const void *from, size_t bytes, struct stream *s, void *staging)
{
    const result r = driver_enqueue(s, &(struct work){ .kind = COPY, .to = to, .from = from, .bytes = bytes,
                                                       .staging = staging });
    if (r != OK)
        free(staging);
    return r;
}

result copy_to_device(address to, const void *from, size_t bytes, struct stream *s)
{
    void *staging = NULL;
    if (!is_memory((void *)(uintptr_t)to, bytes) || s == NULL)
        return INVALID_VALUE;
    /* Pageable memory has been read when the call returns. */
    if (!host_memory_is_pinned(from, bytes) && s->capture == NULL) {
        staging = malloc(bytes + 1);
        if (staging == NULL)
            return OUT_OF_MEMORY;
        memcpy(staging, from, bytes);
    }
    return copy((void *)(uintptr_t)to, staging != NULL ? staging : from, bytes, s, staging);
}

result copy_to_host(void *to, address from, size_t bytes, struct stream *s)
{
    if (!is_memory((void *)(uintptr_t)from, bytes) || s == NULL)
        return INVALID_VALUE;
    const bool pinned = host_memory_is_pinned(to, bytes) || s->capture != NULL;
    const result r = copy(to, (void *)(uintptr_t)from, bytes, s, NULL);
    return r != OK || pinned ? r : driver_wait(s->ticket);
}

result copy_on_device(address to, address from, size_t bytes, struct stream *s)
{
    if (!is_memory((void *)(uintptr_t)to, bytes) || !is_memory((void *)(uintptr_t)from, bytes))
        return INVALID_VALUE;
    return copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, s, NULL);
}

result copy_peer(address to, void *to_context, address from, void *from_context, size_t bytes, struct stream *s)
{
    (void)to_context, (void)from_context;
    return copy_on_device(to, from, bytes, s);
}

result fill_bytes(address to, unsigned char value, size_t bytes, struct stream *s)
{
    if (!is_memory((void *)(uintptr_t)to, bytes))
        return INVALID_VALUE;
    return driver_enqueue(s, &(struct work){ .kind = FILL, .to = (void *)(uintptr_t)to, .value = value,
                                             .bytes = bytes });
}

/* ---- virtual memory: an allocation is a file in memory ---- */

result address_reserve(address *out, size_t bytes, size_t alignment, address wish, unsigned long long flags)
{
    (void)wish, (void)flags, (void)alignment;
    if (bytes == 0 || bytes % PAGE != 0)
        return INVALID_VALUE;
    /* Reserve more, and give back what is not aligned. */
    unsigned char *memory = mmap(NULL, bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return OUT_OF_MEMORY;
    const size_t skip = (PAGE - (uintptr_t)memory % PAGE) % PAGE;
    if (skip > 0)
        munmap(memory, skip);
    if (skip < PAGE)
        munmap(memory + skip + bytes, PAGE - skip);
    *out = (uintptr_t)(memory + skip);
    return driver_error();
}

result address_free(address memory, size_t bytes)
{
    return munmap((void *)(uintptr_t)memory, bytes) == 0 ? OK : INVALID_VALUE;
}

struct file {
    int fd, references;
    size_t bytes;
};

result allocation_create(unsigned long long *out, size_t bytes, const struct allocation_properties *properties,
                         unsigned long long flags)
{
    (void)properties, (void)flags;
    if (bytes == 0 || bytes % PAGE != 0)
        return INVALID_VALUE;
    if (!take(bytes))
        return OUT_OF_MEMORY;
    struct file *f = malloc(sizeof *f);
    if (f != NULL)
        *f = (struct file){ memfd_create("ptx", MFD_CLOEXEC), 1, bytes };
    if (f == NULL || f->fd < 0 || ftruncate(f->fd, (off_t)bytes) != 0) {
        if (f != NULL && f->fd >= 0)
            close(f->fd);
        free(f);
        give(bytes);
        return OUT_OF_MEMORY;
    }
    *out = (uintptr_t)f;
    return driver_error();
}

static void file_release(struct file *f)
{
    pthread_mutex_lock(&lock);
    const bool last = --f->references == 0;
    pthread_mutex_unlock(&lock);
    if (!last)
        return;
    close(f->fd);
    give(f->bytes);
    free(f);
}

result allocation_release(unsigned long long allocation)
{
    file_release((struct file *)(uintptr_t)allocation);
    return OK;
}

result allocation_granularity(size_t *bytes, const struct allocation_properties *properties, int option)
{
    (void)properties, (void)option;
    *bytes = PAGE;
    return OK;
}

/* Memory is not shared with other processes. */
result allocation_export(void *handle, unsigned long long allocation, int type, unsigned long long flags)
{
    (void)handle, (void)allocation, (void)type, (void)flags;
    return NOT_SUPPORTED;
}

result allocation_import(unsigned long long *out, void *handle, int type)
{
    (void)out, (void)handle, (void)type;
    return NOT_SUPPORTED;
}

static struct mapping {
    void *at;
    struct file *file;
    bool accessible;
    size_t bytes;
    struct mapping *next;
} *mappings;

result map(address at, size_t bytes, size_t offset, unsigned long long allocation, unsigned long long flags)
{
    (void)flags;
    struct file *f = (struct file *)(uintptr_t)allocation;
    struct mapping *m = malloc(sizeof *m);
    if (m == NULL)
        return OUT_OF_MEMORY;
    if (offset != 0 || bytes != f->bytes
        || mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, f->fd, 0) == MAP_FAILED) {
        free(m);
        return INVALID_VALUE;
    }
    pthread_mutex_lock(&lock);
    f->references++;
    *m = (struct mapping){ (void *)(uintptr_t)at, f, false, bytes, mappings };
    mappings = m;
    pthread_mutex_unlock(&lock);
    return OK;
}

result unmap(address at, size_t bytes)
{
    const unsigned char *begin = (void *)(uintptr_t)at;
    (void)driver_wait_all();
    for (;;) {
        pthread_mutex_lock(&lock);
        struct mapping **p = &mappings;
        while (*p != NULL && ((unsigned char *)(*p)->at < begin || (unsigned char *)(*p)->at >= begin + bytes))
            p = &(*p)->next;
        struct mapping *m = *p;
        if (m != NULL)
            *p = m->next;
        pthread_mutex_unlock(&lock);
        if (m == NULL)
            break;
        if (m->accessible)
            ptx_range_remove(m->at);
        file_release(m->file);
        free(m);
    }
    return mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0)
                   == MAP_FAILED
               ? INVALID_VALUE
               : OK;
}

result set_access(address at, size_t bytes, const struct access *access, size_t count)
{
    const unsigned char *begin = (void *)(uintptr_t)at;
    (void)access, (void)count;
    if (mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE) != 0)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (struct mapping *m = mappings; m != NULL; m = m->next)
        if ((unsigned char *)m->at >= begin && (unsigned char *)m->at < begin + bytes && !m->accessible) {
            m->accessible = true;
            memset(m->at, 0xff, m->bytes);
            ptx_range_add(m->at, m->bytes);
        }
    pthread_mutex_unlock(&lock);
    return driver_error();
}

/* ---- pools: memory is allocated at once, and freed in the order of the stream ---- */

result pool_create(void **pool, const struct pool_properties *properties)
{
    (void)properties;
    *pool = malloc(1);
    return *pool == NULL ? OUT_OF_MEMORY : driver_error();
}

result pool_destroy(void *pool)
{
    free(pool);
    return OK;
}

result pool_set(void *pool, int attribute, void *value)
{
    (void)pool, (void)attribute, (void)value;
    return OK;
}

result pool_trim(void *pool, size_t kept)
{
    (void)pool, (void)kept;
    return OK;
}

result alloc_from_pool(address *out, size_t bytes, void *pool, struct stream *s)
{
    (void)pool;
    if (s == NULL)
        return INVALID_HANDLE;
    if (s->capture != NULL)
        return NOT_SUPPORTED;               /* nodes that allocate memory */
    return allocate(out, bytes);
}

result free_async(address memory, struct stream *s)
{
    if (s != NULL && s->capture != NULL)
        return NOT_SUPPORTED;
    return driver_enqueue(s, &(struct work){ .kind = FREE_MEMORY, .to = (void *)(uintptr_t)memory });
}
