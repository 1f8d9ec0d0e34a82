/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/size_class.h: free blocks ordered by size, then address.
 *
 * A size class holds one size (below 32 KiB) or a 32nd of the range between two powers of two. A bitmap marks the
 * classes that are not empty, so that finding the next larger block takes a few instructions. The blocks of a class
 * form a treap (Seidel and Aragon 1996) whose priorities are hashes of the addresses: usually a treap holds one block,
 * and operations stay fast with thousands of blocks. */
#ifndef CTRT_MEMORY_SIZE_CLASS_H
#define CTRT_MEMORY_SIZE_CLASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define GRANULE      ((size_t)512)              /* all sizes are multiples of this */
#define SIZE_CLASSES_EXACT  64
#define SIZE_CLASS_STEPS  32
#define SIZE_CLASS_WORDS  18
#define SIZE_CLASS_COUNT  (64 * SIZE_CLASS_WORDS) /* the last class holds all sizes from 256 GiB on */

enum block_state { BLOCK_USED, BLOCK_FREE, BLOCK_UNMAPPED, BLOCK_UNMAPPING };   /* UNMAPPING: about to be unmapped */

/* A change of the split statistics, which are the number and the bytes of the free blocks that are only a part of their
 * segment. */
struct split_change {
    int64_t blocks, bytes;
};

/* A part of a segment; the cookie of its ctrt_block. */
struct block {
    char *address;
    size_t bytes;
    struct heap *heap;
    struct block *before, *after;               /* neighbours in the segment */
    /* children in the class's treap; left: also the next block in a thread's list or among unused descriptors */
    struct block *left, *right;
    enum block_state state;
    struct segment *segment;
    void *fence;                                /* of a free block: the fence must be done before the block is used */
    uint64_t free_since;                        /* value of heap->searches when the block became free */
    uint64_t reusable_at;                       /* heap_reuse is valid while heap->version has this value */
    struct split_change change;                 /* the change of freeing the block; valid while reusable_at is */
};

struct size_classes {
    uint64_t filled;                            /* bit w: words[w] is not 0 */
    uint64_t words[SIZE_CLASS_WORDS];
    struct block *root[SIZE_CLASS_COUNT];
};

/* Slow paths of size_class_insert and size_class_remove, for a class with several blocks. */
void size_class_insert_slow(struct block **root, struct block *block);
void size_class_remove_slow(struct block **root, struct block *block);
/* Returns the smallest block of at least `bytes` in that class, the lowest address among equals, or else the first
 * block of the next class that is not empty; NULL if there is none. */
struct block *size_class_best_fit_from(const struct size_classes *size_classes, unsigned class, size_t bytes);
/* Return the block after `block` in the order of all size classes, and the largest block; NULL if there is none. */
struct block *size_class_next(const struct size_classes *size_classes, const struct block *block);
struct block *size_class_largest(const struct size_classes *size_classes);

static inline unsigned size_class_of(size_t bytes)
{
    size_t units = bytes / GRANULE;
    if (units < SIZE_CLASSES_EXACT)
        return (unsigned)units;
    unsigned power = 63 - (unsigned)__builtin_clzll(units);             /* at least 6 */
    unsigned step = (unsigned)(units >> (power - 5) & (SIZE_CLASS_STEPS - 1));
    unsigned class = SIZE_CLASSES_EXACT + (power - 6) * SIZE_CLASS_STEPS + step;
    return class < SIZE_CLASS_COUNT ? class : SIZE_CLASS_COUNT - 1;
}

static inline void size_class_insert(struct size_classes *size_classes, struct block *block)
{
    unsigned class = size_class_of(block->bytes);
    struct block **root = &size_classes->root[class];
    if (*root != NULL) {
        size_class_insert_slow(root, block);
        return;
    }
    size_classes->words[class / 64] |= (uint64_t)1 << class % 64;
    size_classes->filled |= (uint64_t)1 << class / 64;
    block->left = block->right = NULL;
    *root = block;
}

static inline void size_class_remove(struct size_classes *size_classes, struct block *block)
{
    unsigned class = size_class_of(block->bytes);
    struct block **root = &size_classes->root[class];
    if (*root != block || block->left != NULL || block->right != NULL) {
        size_class_remove_slow(root, block);
        return;
    }
    *root = NULL;
    if ((size_classes->words[class / 64] &= ~((uint64_t)1 << class % 64)) == 0)
        size_classes->filled &= ~((uint64_t)1 << class / 64);
}

/* Returns the smallest block of at least `bytes`, the lowest address among equals; NULL if there is none. */
static inline struct block *size_class_best_fit(const struct size_classes *size_classes, size_t bytes)
{
    return size_class_best_fit_from(size_classes, size_class_of(bytes), bytes);
}

#endif
