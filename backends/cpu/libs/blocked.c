/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/libs/blocked.c: copies between images and blocked layouts, 8 channels of 8 adjacent elements at a time.
 * oneDNN 2's reorders of 2-byte elements take up to four times as long as those of f32. */
#include "blocked.h"

#include <string.h>

#include "host/cpu.h"

enum { TILE = 8, GRAIN = 32768 };       /* GRAIN: minimum number of elements per thread */

typedef uint16_t half8 __attribute__((vector_size(16)));

#if defined __clang__
#define SHUFFLE_2(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE_2(a, b, ...) __builtin_shuffle(a, b, (half8){ __VA_ARGS__ })
#endif
#define LOW(a, b)  SHUFFLE_2(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) SHUFFLE_2(a, b, 4, 12, 5, 13, 6, 14, 7, 15)

#define INLINE static inline __attribute__((always_inline))

struct blocked_job {
    const struct cpu_blocked *b;
    uint16_t *images;
    uint16_t *blocked;
    int64_t groups;                     /* groups of `block` channels per image */
};

/* A third of a transposition of 8 rows of 8 elements: rotates the 6 bits of an element's index, 3 of the row and 3 of
 * the column, by one. */
#define ROUND(to, r)                                                                                              \
    const half8 to##0 = LOW(r##0, r##4), to##1 = HIGH(r##0, r##4), to##2 = LOW(r##1, r##5),                       \
                to##3 = HIGH(r##1, r##5), to##4 = LOW(r##2, r##6), to##5 = HIGH(r##2, r##6),                      \
                to##6 = LOW(r##3, r##7), to##7 = HIGH(r##3, r##7)

INLINE half8 load(const uint16_t *from)
{
    half8 r;
    memcpy(&r, from, sizeof r);
    return r;
}

/* With `wide`, writes f32 numbers, of which the bf16 numbers are the upper halves. */
INLINE void store(uint16_t *to, half8 r, bool wide)
{
    const half8 zero = { 0 }, low = LOW(zero, r), high = HIGH(zero, r);
    if (wide) {
        memcpy(to, &low, sizeof low);
        memcpy(to + TILE, &high, sizeof high);
    } else {
        memcpy(to, &r, sizeof r);
    }
}

/* Transposes 8 rows of 8 elements. Steps in units of 2 bytes. */
INLINE void transpose(uint16_t *to, int64_t to_step, const uint16_t *from, int64_t from_step, bool wide)
{
    const half8 a0 = load(from), a1 = load(from + from_step), a2 = load(from + 2 * from_step),
                a3 = load(from + 3 * from_step), a4 = load(from + 4 * from_step), a5 = load(from + 5 * from_step),
                a6 = load(from + 6 * from_step), a7 = load(from + 7 * from_step);
    ROUND(b, a);
    ROUND(c, b);
    ROUND(d, c);
    store(to, d0, wide), store(to + to_step, d1, wide), store(to + 2 * to_step, d2, wide);
    store(to + 3 * to_step, d3, wide), store(to + 4 * to_step, d4, wide), store(to + 5 * to_step, d5, wide);
    store(to + 6 * to_step, d6, wide), store(to + 7 * to_step, d7, wide);
}

/* A tile at an edge: `rows` by `columns` elements of `from` exist, and `to_rows` by `to_columns` of the result are
 * written, of which those that do not exist are 0. Not inlined, because it clears memory. */
static __attribute__((noinline)) void edge(uint16_t *to, int64_t to_step, int64_t to_rows, int64_t to_columns,
                                           const uint16_t *from, int64_t from_step, int64_t rows, int64_t columns,
                                           bool wide)
{
    uint16_t part[TILE * TILE] = { 0 }, tile[2 * TILE * TILE];
    const int64_t unit = wide ? 2 : 1;
    for (int64_t i = 0; i < rows; i++)
        memcpy(part + i * TILE, from + i * from_step, (size_t)columns * sizeof *part);
    transpose(tile, unit * TILE, part, TILE, wide);
    for (int64_t i = 0; i < to_rows; i++)
        memcpy(to + i * to_step, tile + i * unit * TILE, (size_t)(to_columns * unit) * sizeof *tile);
}

static int64_t at_most_tile(int64_t n)
{
    return n < TILE ? n < 0 ? 0 : n : TILE;
}

/* Writes 8 channels of the blocks of a group, of which the first `channels` exist in the image. */
INLINE void write_channels(const struct cpu_blocked *b, uint16_t *to, const uint16_t *from, int64_t channels, bool wide)
{
    const int64_t step = b->block * (wide ? 2 : 1), whole = channels == TILE ? b->size / TILE * TILE : 0;
    int64_t s = 0;
    for (; s < whole; s += TILE)
        transpose(to + s * step, step, from + s, b->size, wide);
    if (channels == 0)
        for (; s < b->size; s++)
            store(to + s * step, (half8){ 0 }, wide);
    for (; s < b->size; s += TILE)
        edge(to + s * step, step, at_most_tile(b->size - s), TILE, from + s, b->size, channels,
             at_most_tile(b->size - s), wide);
}

static void write_groups(void *argument, int64_t begin, int64_t end)
{
    const struct blocked_job *job = argument;
    const struct cpu_blocked *b = job->b;
    const int64_t unit = b->wide ? 2 : 1;
    for (int64_t g = begin; g < end; g++)
        for (int64_t c = 0; c < b->block; c += TILE) {
            const int64_t n = g / job->groups, first = g % job->groups * b->block + c;
            const uint16_t *from = job->images + (n * b->channels + first) * b->size;
            uint16_t *to = job->blocked + (g * b->size * b->block + c) * unit;
            if (b->wide)
                write_channels(b, to, from, at_most_tile(b->channels - first), true);
            else
                write_channels(b, to, from, at_most_tile(b->channels - first), false);
        }
}

static void read_groups(void *argument, int64_t begin, int64_t end)
{
    const struct blocked_job *job = argument;
    const struct cpu_blocked *b = job->b;
    for (int64_t g = begin; g < end; g++)
        for (int64_t c = 0; c < b->block; c += TILE) {
            const int64_t n = g / job->groups, first = g % job->groups * b->block + c;
            const int64_t channels = at_most_tile(b->channels - first),
                          whole = channels == TILE ? b->size / TILE * TILE : 0;
            uint16_t *to = job->images + (n * b->channels + first) * b->size;
            const uint16_t *from = job->blocked + g * b->size * b->block + c;
            int64_t s = 0;
            for (; s < whole; s += TILE)
                transpose(to + s, b->size, from + s * b->block, b->block, false);
            for (; s < b->size && channels > 0; s += TILE)
                edge(to + s, b->size, channels, at_most_tile(b->size - s), from + s * b->block, b->block,
                     at_most_tile(b->size - s), TILE, false);
        }
}

static void blocked_run(const struct cpu_blocked *b, const void *images, const void *blocked,
                        void (*body)(void *, int64_t, int64_t))
{
    struct blocked_job job = {
        .b = b, .images = (uint16_t *)(uintptr_t)images, .blocked = (uint16_t *)(uintptr_t)blocked,
        .groups = cpu_divide_up(b->channels, b->block),
    };
    cpu_parallel_for(b->n * job.groups, cpu_divide_up(GRAIN, b->size * b->block), body, &job);
}

void cpu_blocked_from_images(const struct cpu_blocked *b, void *blocked, const void *images)
{
    blocked_run(b, images, blocked, write_groups);
}

void cpu_blocked_to_images(const struct cpu_blocked *b, void *images, const void *blocked)
{
    blocked_run(b, images, blocked, read_groups);
}
