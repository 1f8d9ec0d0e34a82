/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/shelf.h: free blocks ordered by size, then address.
 *
 * A shelf (size class) holds one size (below 32 KiB) or a 32nd of the range between two powers of two. A bitmap marks
 * the shelves that are not empty, so that finding the next larger block takes a few instructions. The blocks of a shelf
 * form a treap (Seidel and Aragon 1996) whose priorities are hashes of the addresses: usually it holds one block, and
 * it stays fast with thousands. */
#ifndef CTRT_MEMORY_SHELF_H
#define CTRT_MEMORY_SHELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define GRANULE      ((size_t)512)              /* all sizes are multiples of this */
#define SHELF_EXACT  64
#define SHELF_STEPS  32
#define SHELF_WORDS  18
#define SHELF_COUNT  (64 * SHELF_WORDS)         /* the last shelf holds all sizes from 256 GiB on */

enum block_state { BLOCK_USED, BLOCK_FREE, BLOCK_UNMAPPED, BLOCK_LEAVING };     /* leaving: about to be unmapped */

/* A part of a segment; the cookie of its ctrt_block. */
struct block {
    char *address;
    size_t bytes;
    struct heap *heap;
    struct block *before, *after;               /* neighbours in the segment */
    /* children in the shelf's treap; left: also the next block in a thread's list or among unused descriptors */
    struct block *left, *right;
    enum block_state state;
    struct segment *segment;
    void *fence;                                /* of a free block: must be done before the block is used */
    uint64_t shelved;                           /* value of heap->searches when the block became free */
    uint64_t reusable_at;                       /* heap_reuse holds while heap->version has this value */
};

struct shelves {
    uint64_t filled;                            /* bit w: words[w] is not 0 */
    uint64_t words[SHELF_WORDS];
    struct block *root[SHELF_COUNT];
};

/* Slow paths of shelf_put and shelf_remove, for a shelf with several blocks. */
void shelf_put_among(struct block **root, struct block *block);
void shelf_remove_among(struct block **root, struct block *block);
/* Returns the smallest block of at least `bytes` on that shelf, the lowest address among equals, or else the first
 * block of the next shelf that is not empty; NULL if there is none. */
struct block *shelf_least_from(const struct shelves *shelves, unsigned shelf, size_t bytes);
/* Return the block after `block` in the order of all shelves, and the largest block; NULL if there is none. */
struct block *shelf_next(const struct shelves *shelves, const struct block *block);
struct block *shelf_largest(const struct shelves *shelves);

static inline unsigned shelf_of(size_t bytes)
{
    size_t units = bytes / GRANULE;
    if (units < SHELF_EXACT)
        return (unsigned)units;
    unsigned power = 63 - (unsigned)__builtin_clzll(units);             /* at least 6 */
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

/* Returns the smallest block of at least `bytes`, the lowest address among equals; NULL if there is none. */
static inline struct block *shelf_least(const struct shelves *shelves, size_t bytes)
{
    return shelf_least_from(shelves, shelf_of(bytes), bytes);
}

#endif
