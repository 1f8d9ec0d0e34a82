/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/space.c: the address ranges of all devices, the map of accessible bytes, and sets of ranges.
 *
 * The ranges of the devices are contiguous and followed by a range for virtual memory. The ranges are much larger than
 * the memory, so that addresses of freed blocks are not reused soon, and accesses to freed blocks are detected. Kernels
 * and copies check the map of accessible bytes (block.h). The host must not access device memory, which is poisoned if
 * AddressSanitizer is linked. */
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TIMES 16                            /* bytes of address space per byte of memory */
#define UNIT  ((size_t)2 << 20)

extern void __asan_poison_memory_region(const volatile void *begin, size_t bytes) __attribute__((weak));

static int spaces;
static int pattern = -1;                    /* file of UNIT bytes 0xff */

static char *range(size_t bytes, int protection)
{
    char *begin = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return begin == MAP_FAILED ? NULL : begin;
}

/* Without the file, space_new fills all memory. */
static void pattern_open(void)
{
    const int fd = memfd_create("softcuda-new-memory", MFD_CLOEXEC);
    pattern = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;     /* a plugin has no standard descriptors */
    if (fd >= 0)
        close(fd);
    char *bytes = pattern >= 0 && ftruncate(pattern, UNIT) == 0
        ? mmap(NULL, UNIT, PROT_READ | PROT_WRITE, MAP_SHARED, pattern, 0) : MAP_FAILED;
    if (bytes != MAP_FAILED) {
        memset(bytes, 0xff, UNIT);
        munmap(bytes, UNIT);
    } else if (pattern >= 0) {
        close(pattern);
        pattern = -1;
    }
}

bool space_open(int n, uint64_t memory)
{
    const size_t least = (memory + UNIT - 1) / UNIT * UNIT;
    for (size_t times = TIMES; times > 0; times /= 2) {         /* fewer if the address space is limited */
        const size_t one = least * times + UNIT, all = one * 2 * (size_t)n;
        char *begin = range(all + UNIT, PROT_READ | PROT_WRITE);
        unsigned char *shadow = begin != NULL ? (unsigned char *)range(all / 8, PROT_READ | PROT_WRITE) : NULL;
        if (shadow != NULL) {
            begin += UNIT - ((uintptr_t)begin & (UNIT - 1));
            madvise(begin, all, MADV_DONTDUMP);
            madvise(shadow, all / 8, MADV_DONTDUMP);
            /* Virtual memory is not accessible before it is mapped. */
            mprotect(begin + one * (size_t)n, one * (size_t)n, PROT_NONE);
            softcuda_space = (struct softcuda_space){ .base = begin, .bytes = all, .device_bytes = one,
                                                      .shadow = shadow };
            spaces = n;
            pattern_open();
            return true;
        }
        if (begin != NULL)
            munmap(begin, all + UNIT);
    }
    return false;
}

bool space_is(address where)
{
    return (size_t)(where - (uintptr_t)softcuda_space.base) < softcuda_space.bytes;
}

struct device *space_device(address where)
{
    RETURN_IF(!space_is(where), NULL);
    const size_t index = (size_t)(where - (uintptr_t)softcuda_space.base) / softcuda_space.device_bytes;
    return index < (size_t)spaces ? &devices[index] : NULL;
}

address space_virtual(void)
{
    return (uintptr_t)softcuda_space.base + softcuda_space.device_bytes * (size_t)spaces;
}

/* `begin` is a multiple of 8, as are the addresses of blocks. */
void space_mark(address begin, size_t bytes, bool usable)
{
    unsigned char *shadow = &softcuda_space.shadow[(begin - (uintptr_t)softcuda_space.base) / 8];
    memset(shadow, usable ? 8 : 0, bytes / 8);
    if (bytes % 8 != 0)
        shadow[bytes / 8] = usable ? (unsigned char)(bytes % 8) : 0;
}

bool space_usable(address begin, size_t bytes)
{
    RETURN_IF(!space_is(begin) || bytes > softcuda_space.bytes, false);
    const size_t place = (size_t)(begin - (uintptr_t)softcuda_space.base);
    const unsigned char *shadow = &softcuda_space.shadow[place / 8];
    const size_t end = place % 8 + bytes, full = end > 0 ? (end - 1) / 8 : 0;
    RETURN_IF(end > softcuda_space.bytes - place / 8 * 8, false);
    /* Copies have megabytes, therefore memcmp: all entries before the last are 8 if the first is 8 and each is equal to
     * the next. */
    RETURN_IF(full > 0 && (shadow[0] != 8 || memcmp(shadow, shadow + 1, full - 1) != 0), false);
    return shadow[full] >= end - full * 8;
}

void space_copy(void *to, const void *from, size_t bytes)
{
#if defined(__x86_64__)
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
    volatile char *t = to;
    const volatile char *f = from;
    for (size_t i = 0; i < bytes; i++)
        t[i] = f[i];
#endif
}

void space_fill(address to, unsigned char value, size_t bytes)
{
#if defined(__x86_64__)
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
#else
    volatile unsigned char *t = (void *)(uintptr_t)to;
    for (size_t i = 0; i < bytes; i++)
        t[i] = value;
#endif
}

void space_new(address begin, size_t bytes)
{
    const size_t page = 4096, head = (page - begin % page) % page;
    if (pattern < 0 || bytes < head + page) {
        space_fill(begin, 0xff, bytes);
        return;
    }
    space_fill(begin, 0xff, head);
    size_t done = head;
    for (size_t part; bytes - done >= page; done += part) {
        part = (bytes - done) / page * page;
        part = part < UNIT ? part : UNIT;
        if (mmap((void *)(uintptr_t)(begin + done), part, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, pattern, 0) == MAP_FAILED)
            break;
    }
    space_fill(begin + done, 0xff, bytes - done);
}

void space_renew(address begin, size_t bytes)
{
    const uintptr_t page = 4096, first = ((uintptr_t)begin + page - 1) & ~(page - 1),
                    last = ((uintptr_t)begin + bytes) & ~(page - 1);
    if (last > first)
        madvise((void *)first, last - first, MADV_DONTNEED);
}

void space_poison(address begin, size_t bytes)
{
    if (__asan_poison_memory_region != NULL)
        __asan_poison_memory_region((void *)(uintptr_t)begin, bytes);
}

/* ---- ranges ---- */

size_t range_behind(const struct ranges *r, address where)
{
    size_t low = 0, high = r->n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (r->list[middle].begin > where)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct range *range_at(const struct ranges *r, address where)
{
    const size_t i = range_behind(r, where);
    return i > 0 && where - r->list[i - 1].begin < r->list[i - 1].bytes ? &r->list[i - 1] : NULL;
}

bool range_overlaps(const struct ranges *r, address begin, size_t bytes)
{
    const size_t i = range_behind(r, begin + bytes - 1);
    return i > 0 && begin < r->list[i - 1].begin + r->list[i - 1].bytes;
}

static address search(const struct ranges *r, address from, address end, size_t extent, size_t gap)
{
    size_t i = range_behind(r, from);
    if (i > 0 && r->list[i - 1].begin + r->list[i - 1].extent > from)
        from = r->list[i - 1].begin + r->list[i - 1].extent + gap;
    for (; from + extent <= end; i++) {
        if (i == r->n || from + extent <= r->list[i].begin)
            return from;
        from = r->list[i].begin + r->list[i].extent + gap;
    }
    return 0;
}

address range_place(struct ranges *r, address hint, address first, address end, size_t extent, size_t gap)
{
    const address starts[3] = { hint, r->next, first };
    address found = 0;
    for (int i = 0; i < 3 && found == 0; i++)
        if (starts[i] >= first && starts[i] < end)
            found = search(r, starts[i], end, extent, gap);
    if (found != 0)
        r->next = found + extent + gap;
    return found;
}

void range_add(struct ranges *r, struct range range)
{
    const size_t at = range_behind(r, range.begin);
    if (r->n == r->capacity) {
        r->capacity += 256;
        r->list = allocated(realloc(r->list, r->capacity * sizeof *r->list));
    }
    memmove(&r->list[at + 1], &r->list[at], (r->n - at) * sizeof r->list[0]);
    r->list[at] = range;
    r->n++;
}

void range_remove(struct ranges *r, const struct range *range)
{
    const size_t at = (size_t)(range - r->list);
    memmove(&r->list[at], &r->list[at + 1], (--r->n - at) * sizeof r->list[0]);
}
