/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/blocks.c: allocates blocks of an address range: first fit, without rounding. */
#include "sim.h"

#include <string.h>
#include <sys/mman.h>

/* Limit of the array's capacity: more blocks than any realistic address range holds. 16 bytes of addresses per block;
 * memory is used only for blocks that exist. */
#define MOST_BLOCKS ((uint64_t)1 << 24)

bool sim_blocks_init(struct sim_blocks *blocks, uint64_t begin, uint64_t end, uint64_t most, uint64_t least)
{
    uint64_t capacity = most / least + 1;
    *blocks = (struct sim_blocks){ .begin = begin, .end = end, .most = most,
                                   .capacity = capacity < MOST_BLOCKS ? capacity : MOST_BLOCKS };
    void *array = mmap(NULL, blocks->capacity * sizeof *blocks->at, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (array == MAP_FAILED)
        return false;
    blocks->at = array;
    return true;
}

void sim_blocks_free(struct sim_blocks *blocks)
{
    if (blocks->at != NULL)
        munmap(blocks->at, blocks->capacity * sizeof *blocks->at);
    blocks->at = NULL;
    blocks->count = 0;
}

/* Returns the number of blocks that begin at or before `place`. */
static size_t blocks_until(const struct sim_blocks *blocks, uint64_t place)
{
    size_t low = 0, high = blocks->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (blocks->at[middle].start <= place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The fence, and the one in sim_blocks_peek, are for weakly ordered processors: a reader that sees a change of the
 * array also sees that the version has changed. */
static void write_begin(struct sim_blocks *blocks)
{
    atomic_fetch_add(&blocks->version, 1);
    atomic_thread_fence(memory_order_release);
}

static void write_end(struct sim_blocks *blocks)
{
    atomic_fetch_add(&blocks->version, 1);
}

bool sim_blocks_take(struct sim_blocks *blocks, uint64_t *start, uint64_t bytes, uint64_t alignment)
{
    uint64_t place = (blocks->begin + alignment - 1) / alignment * alignment;
    size_t i = 0;
    if (blocks->count == blocks->capacity || bytes > blocks->most - blocks->used)
        return false;
    for (; i < blocks->count; i++) {
        const struct sim_block *next = &blocks->at[i];
        if (place <= next->start && next->start - place >= bytes)
            break;
        uint64_t behind = (next->start + next->bytes + alignment - 1) / alignment * alignment;
        place = behind > place ? behind : place;
    }
    if (place > blocks->end || blocks->end - place < bytes)
        return false;
    write_begin(blocks);
    memmove(&blocks->at[i + 1], &blocks->at[i], (blocks->count - i) * sizeof *blocks->at);
    blocks->at[i] = (struct sim_block){ place, bytes };
    blocks->count++;
    blocks->used += bytes;
    write_end(blocks);
    *start = place;
    return true;
}

uint64_t sim_blocks_give(struct sim_blocks *blocks, uint64_t start)
{
    size_t i = blocks_until(blocks, start);
    if (i == 0 || blocks->at[i - 1].start != start)
        return 0;
    uint64_t bytes = blocks->at[i - 1].bytes;
    write_begin(blocks);
    memmove(&blocks->at[i - 1], &blocks->at[i], (blocks->count - i) * sizeof *blocks->at);
    blocks->count--;
    blocks->used -= bytes;
    write_end(blocks);
    return bytes;
}

const struct sim_block *sim_blocks_find(const struct sim_blocks *blocks, uint64_t place)
{
    size_t i = blocks_until(blocks, place);
    const struct sim_block *block = i > 0 ? &blocks->at[i - 1] : NULL;
    return block != NULL && place - block->start < block->bytes ? block : NULL;
}

void sim_blocks_gap(const struct sim_blocks *blocks, uint64_t place, uint64_t *begin, uint64_t *end)
{
    size_t i = blocks_until(blocks, place);
    *begin = i > 0 ? blocks->at[i - 1].start + blocks->at[i - 1].bytes : blocks->begin;
    *end = i < blocks->count ? blocks->at[i].start : blocks->end;
}

uint64_t sim_blocks_largest_gap(const struct sim_blocks *blocks)
{
    uint64_t largest = 0, begin = blocks->begin;
    for (size_t i = 0; i <= blocks->count; i++) {
        uint64_t end = i < blocks->count ? blocks->at[i].start : blocks->end;
        largest = end > begin && end - begin > largest ? end - begin : largest;
        begin = i < blocks->count ? end + blocks->at[i].bytes : begin;
    }
    return largest;
}

/* Another thread may be modifying the array, or the signal may have interrupted the thread that modifies it. In both
 * cases, this function returns false instead of waiting. */
__attribute__((no_sanitize("thread")))
bool sim_blocks_peek(const struct sim_blocks *blocks, uint64_t place, struct sim_block *out)
{
    uint32_t version = atomic_load(&blocks->version);
    if (version & 1 || blocks->at == NULL)
        return false;
    size_t low = 0, high = blocks->count < blocks->capacity ? blocks->count : blocks->capacity;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (blocks->at[middle].start <= place)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return false;
    *out = blocks->at[low - 1];
    atomic_thread_fence(memory_order_acquire);
    return place - out->start < out->bytes && atomic_load(&blocks->version) == version;
}
