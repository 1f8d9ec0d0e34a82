/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/shelf.h: free blocks in the order of size, then address.
 *
 * A shelf holds one size (below 32 KiB) or a 32nd of a doubling; a bitmap says which shelves are not empty, so that
 * the next larger block is a few instructions away. What is on a shelf is a treap (Seidel and Aragon 1996), its
 * priorities hashed from the addresses: mostly it is one block, and when it is thousands nothing becomes slow. */
#ifndef CTRT_MEMORY_SHELF_H
#define CTRT_MEMORY_SHELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define GRANULE      ((size_t)512)              /* all sizes are multiples */
#define SHELF_EXACT  64
#define SHELF_STEPS  32
#define SHELF_WORDS  18
#define SHELF_COUNT  (64 * SHELF_WORDS)         /* the last one has all from 256 GiB on */

enum block_state { BLOCK_USED, BLOCK_FREE, BLOCK_UNMAPPED, BLOCK_LEAVING };     /* leaving: about to be unmapped */

/* A piece of a segment; the cookie of the ctrt_block. */
struct block {
    char *address;
    size_t bytes;
    struct heap *heap;
    struct block *before, *after;               /* in the segment */
    struct block *left, *right;                 /* on its shelf; left: the next in a thread's list, or unused */
    enum block_state state;
    struct segment *segment;
    void *fence;                                /* of a free block: has to be done before it is used */
    uint64_t shelved;                           /* heap->searches when it became free */
    uint64_t returns;                           /* heap->changes when heap_returns said so */
    uint64_t wave_blocks, wave_bytes;           /* what split figures then go up and down by */
    uint64_t wave_splits;                       /* figures.splits when that was found out */
};

struct shelves {
    uint64_t filled;                            /* bit w: words[w] is not 0 */
    uint64_t words[SHELF_WORDS];
    struct block *root[SHELF_COUNT];
};

/* The slow halves: a shelf that has others. */
void shelf_put_among(struct block **root, struct block *block);
void shelf_remove_among(struct block **root, struct block *block);
/* The smallest of at least `bytes` on that shelf, of equals the lowest, else the first of a later one; NULL when there is none. */
struct block *shelf_least_from(const struct shelves *shelves, unsigned shelf, size_t bytes);
/* The one after `block`; and the largest. */
struct block *shelf_next(const struct shelves *shelves, const struct block *block);
struct block *shelf_largest(const struct shelves *shelves);

static inline unsigned shelf_of(size_t bytes)
{
    size_t units = bytes / GRANULE;
    if (units < SHELF_EXACT)
        return (unsigned)units;
    unsigned power = 63 - (unsigned)__builtin_clzll(units);             /* from 6 on */
    unsigned shelf = SHELF_EXACT + (power - 6) * SHELF_STEPS + (unsigned)(units >> (power - 5) & (SHELF_STEPS - 1));
    return shelf < SHELF_COUNT ? shelf : SHELF_COUNT - 1;
}

static inline void shelf_put(struct shelves *shelves, struct block *block)
{
    unsigned shelf = shelf_of(block->bytes);
    struct block **root = &shelves->root[shelf];
    if (*root != NULL) {
        shelf_put_among(root, block);
        return;
    }
    shelves->words[shelf / 64] |= (uint64_t)1 << shelf % 64;
    shelves->filled |= (uint64_t)1 << shelf / 64;
    block->left = block->right = NULL;
    *root = block;
}

static inline void shelf_remove(struct shelves *shelves, struct block *block)
{
    unsigned shelf = shelf_of(block->bytes);
    struct block **root = &shelves->root[shelf];
    if (*root != block || block->left != NULL || block->right != NULL) {
        shelf_remove_among(root, block);
        return;
    }
    *root = NULL;
    if ((shelves->words[shelf / 64] &= ~((uint64_t)1 << shelf % 64)) == 0)
        shelves->filled &= ~((uint64_t)1 << shelf / 64);
}

/* The smallest block of at least `bytes`, of equals the lowest; NULL when there is none. */
static inline struct block *shelf_least(const struct shelves *shelves, size_t bytes)
{
    return shelf_least_from(shelves, shelf_of(bytes), bytes);
}

#endif
