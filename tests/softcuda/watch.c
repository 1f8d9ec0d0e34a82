/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/watch.c: linked into every library of kernels: checks each memory access of a kernel before it is
 * made.
 *
 * The compiler calls these functions at each access, because kernels are compiled with -fsanitize=kernel-address and
 * all checks as calls, and at each index that is outside an array of known size (-fsanitize=bounds). */
#define _GNU_SOURCE
#include "block.h"

#include <link.h>
#include <stdbool.h>

#define HIDDEN __attribute__((visibility("hidden")))
#pragma GCC diagnostic ignored "-Wmissing-prototypes"   /* only the compiler calls these functions */

static void note_read(struct softcuda_race *word, const char *p, unsigned thread, uint32_t warp_epoch)
{
    const uint32_t epoch = softcuda_here.epoch;
    if (word->read == epoch && word->reader == thread && word->read_warp == warp_epoch)
        return;                                 /* checked then; a write since then was checked against that read */
    if (word->written == epoch && word->writer != thread
        && (word->writer / 32 != thread / 32 || word->written_warp == warp_epoch))
        softcuda_race(p, word->writer, false, true);
    if (word->read != epoch) {
        word->read = epoch;
        word->many_lanes = word->many_warps = 0;
    } else if (word->reader / 32 != thread / 32) {
        word->many_warps = 1;
    } else if (word->read_warp == warp_epoch) {
        word->many_lanes |= word->reader != thread;
    } else {
        word->many_lanes = 0;
    }
    word->reader = (uint16_t)thread;
    word->read_warp = warp_epoch;
}

static void note_write(struct softcuda_race *word, const char *p, unsigned thread, uint32_t warp_epoch)
{
    const uint32_t epoch = softcuda_here.epoch;
    const bool same_warp = word->writer / 32 == thread / 32, readers_warp = word->reader / 32 == thread / 32;
    if (word->written == epoch && word->writer != thread && (!same_warp || word->written_warp == warp_epoch))
        softcuda_race(p, word->writer, true, true);
    else if (word->read == epoch
             && (word->many_warps || !readers_warp
                 || (word->read_warp == warp_epoch && (word->many_lanes || word->reader != thread))))
        softcuda_race(p, word->reader, true, false);
    word->written = epoch;
    word->written_warp = warp_epoch;
    word->writer = (uint16_t)thread;
}

/* An access of 4 bytes or more is recorded per word, at the word's first byte; a smaller one at its own first byte. The
 * records of the first bytes of all words are contiguous, then those of the second bytes, and so on. */
static inline void note(const char *p, size_t place, size_t bytes, bool write)
{
    const unsigned thread = softcuda_here.linear;
    const uint32_t warp_epoch = softcuda_here.warp_epoch[thread / 32];
    for (size_t i = 0; i < bytes; i += bytes < 4 ? bytes : 4) {
        struct softcuda_race *word = &softcuda_here.races[(place + i) / 4 + (place + i) % 4 * softcuda_here.words];
        if (write)
            note_write(word, p + i, thread, warp_epoch);
        else
            note_read(word, p + i, thread, warp_epoch);
    }
}

static inline bool within(const char *p, size_t bytes, const char *begin, const char *end)
{
    return p >= begin && p < end && bytes <= (size_t)(end - p);
}

static bool in_block(const char *p, size_t bytes)
{
    const size_t place = (size_t)(p - softcuda_space.base);
    const unsigned char *shadow = &softcuda_space.shadow[place / 8];
    size_t begin = place & 7, end = begin + bytes;
    for (; end > 8; shadow++, end -= 8)
        if (*shadow != 8)
            return false;
    return *shadow >= end;
}

static inline bool shared_place(const char *p, size_t bytes, size_t *place)
{
    if (within(p, bytes, softcuda_here.shared, softcuda_here.shared_end)) {
        *place = (size_t)(p - softcuda_here.shared);
        return true;
    }
    if (within(p, bytes, softcuda_here.dynamic, softcuda_here.dynamic_end)) {
        *place = (size_t)(softcuda_here.shared_end - softcuda_here.shared) + (size_t)(p - softcuda_here.dynamic);
        return true;
    }
    return false;
}

/* Checks an access outside device memory, the stack and shared memory. */
static __attribute__((noinline)) void look_elsewhere(const char *p, size_t bytes, bool write)
{
    if (within(p, bytes, (const char *)&softcuda_here, (const char *)(&softcuda_here + 1)))
        return;
    if (!write && within(p, bytes, softcuda_here.arguments, softcuda_here.arguments_end))
        return;
    if (within(p, bytes, softcuda_here.image, softcuda_here.image_end)
        || within(p, bytes, softcuda_here.host, softcuda_here.host_end))
        return;
    softcuda_touch(p, bytes, write);
}

/* Checks an access to device memory that is not within a block of the kernel's own device. */
static __attribute__((noinline)) void look_abroad(const char *p, size_t bytes, bool write)
{
    if (!in_block(p, bytes) || !within(p, bytes, softcuda_here.host, softcuda_here.host_end))
        softcuda_touch(p, bytes, write);
}

/* Checks an access. A kernel makes many millions of them, so this is short, and the rest is in other functions. If
 * `aligned`, `bytes` is a power of two up to 16 and divides the address. */
static inline __attribute__((always_inline)) void look(const void *address, size_t bytes, bool write, bool race,
                                                       bool aligned)
{
    const char *p = address;
    const size_t place = (size_t)(p - softcuda_space.base);
    if (place < softcuda_space.bytes) {
        const unsigned char *shadow = &softcuda_space.shadow[place / 8];
        const bool inside = !aligned      ? in_block(p, bytes)
                            : bytes == 16 ? shadow[0] == 8 && shadow[1] == 8
                                          : *shadow >= (place & 7) + bytes;
        if (!inside || (size_t)(p - softcuda_here.own) >= softcuda_space.device_bytes)
            look_abroad(p, bytes, write);
        if (softcuda_space.order != NULL && race) {
            const uint64_t *piece = softcuda_space.order[place / 512], stamp = softcuda_here.stamp;
            if (piece[0] != stamp && (write || piece[1] != stamp))
                softcuda_order(p, write);
        }
        return;
    }
    size_t shared;
    if (within(p, bytes, softcuda_here.stack, softcuda_here.stack_end))
        return;
    if (!shared_place(p, bytes, &shared)) {
        look_elsewhere(p, bytes, write);
        return;
    }
    if (write && p >= softcuda_here.shared && p < softcuda_here.shared_end)
        for (size_t i = shared / SOFTCUDA_PART; i <= (shared + bytes - 1) / SOFTCUDA_PART; i++)
            softcuda_here.written[i] = 1;
    if (race)
        note(p, shared, bytes, write);
}

static __attribute__((noinline, noreturn)) void misaligned(const void *p, size_t bytes, bool write)
{
    softcuda_fault(SOFTCUDA_MISALIGNED, "%s %zu bytes at %p, which is no multiple of %zu", write ? "writes" : "reads",
                   bytes, p, bytes);
}

static inline __attribute__((always_inline)) void touch(const void *p, size_t bytes, bool write)
{
    if (((uintptr_t)p & (bytes - 1)) != 0)
        misaligned(p, bytes, write);
    look(p, bytes, write, true, true);
}

#define TOUCHES(size)                                                          \
    void __asan_load##size##_noabort(const void *p) { touch(p, size, false); } \
    void __asan_store##size##_noabort(void *p) { touch(p, size, true); }
TOUCHES(1)
TOUCHES(2)
TOUCHES(4)
TOUCHES(8)
TOUCHES(16)
void __asan_loadN_noabort(const void *p, size_t bytes) { look(p, bytes, false, true, false); }
void __asan_storeN_noabort(void *p, size_t bytes) { look(p, bytes, true, true, false); }
void __asan_handle_no_return(void) {}

void softcuda_atomic(const void *p, size_t bytes)
{
    if (((uintptr_t)p & (bytes - 1)) != 0)
        softcuda_fault(SOFTCUDA_MISALIGNED, "an atomic operation on %zu bytes at %p", bytes, p);
    look(p, bytes, true, false, true);
}

/* Called by the compiler for copies of structs. AddressSanitizer's versions would report device memory as
 * inaccessible. */
#define PLAIN_LOOP __attribute__((optimize("no-tree-loop-distribute-patterns")))

PLAIN_LOOP void *memmove(void *to, const void *from, size_t bytes)
{
    const bool up = (uintptr_t)to - (uintptr_t)from >= bytes;
    for (size_t n = 0; n < bytes; n++) {
        const size_t i = up ? n : bytes - 1 - n;
        ((char *)to)[i] = ((const char *)from)[i];
    }
    return to;
}

void *memcpy(void *to, const void *from, size_t bytes) __attribute__((alias("memmove")));

PLAIN_LOOP void *memset(void *to, int value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((char *)to)[i] = (char)value;
    return to;
}

/* Data of the compiler's report on an index that is out of bounds. */
struct source_place { const char *file; uint32_t line, column; };
struct out_of_bounds { struct source_place where; const void *array, *index; };
void __ubsan_handle_out_of_bounds(struct out_of_bounds *data, uintptr_t index)
{
    softcuda_fault(SOFTCUDA_ILLEGAL, "%s:%u: index %td is not in the array", data->where.file, data->where.line,
                   (ptrdiff_t)index);
}

/* ---- description of this library for the driver ---- */

extern HIDDEN const char __ehdr_start[];
extern HIDDEN const char _end[];

struct search { char *begin, *end; };

static int find_shared(struct dl_phdr_info *info, size_t bytes, void *argument)
{
    (void)bytes;
    struct search *search = argument;
    const char *header = (const char *)info->dlpi_phdr;
    if (header < __ehdr_start || header >= _end)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS && info->dlpi_tls_data != NULL) {
            search->begin = info->dlpi_tls_data;
            search->end = search->begin + info->dlpi_phdr[i].p_memsz;
        }
    return 1;
}

/* Only __shared__ variables of kernels are thread-local in this library; `anchor` ensures that the segment exists. */
static __thread char anchor;

static void shared(char **begin, char **end)
{
    struct search search = { NULL, NULL };
    *(volatile char *)&anchor = 0;              /* makes the C library allocate this thread's copy */
    dl_iterate_phdr(find_shared, &search);
    *begin = search.begin;
    *end = search.end;
}

SOFTCUDA_EXPORT extern const struct softcuda_library softcuda_library;
const struct softcuda_library softcuda_library = {
    .begin = __ehdr_start,
    .end = _end,
    .shared = shared,
};
