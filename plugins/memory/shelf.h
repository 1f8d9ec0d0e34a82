/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/shelf.h: free blocks in the order of size, then address.
 *
 * A shelf holds one size (below 32 KiB) or a 32nd of a doubling; a bitmap says which shelves are not empty, so that
 * the next larger block is a few instructions away. What is on a shelf is a treap (Seidel and Aragon 1996), its
 * priorities hashed from the addresses: mostly it is one block, and when it is thousands nothing becomes slow. */
#ifndef CTRT_MEMORY_SHELF_H
#define CTRT_MEMORY_SHELF_H

#include <stddef.h>
#include <stdint.h>

#define GRANULE      ((size_t)512)              /* all sizes are multiples */
#define SHELF_EXACT  64
#define SHELF_STEPS  32
#define SHELF_WORDS  18
#define SHELF_COUNT  (64 * SHELF_WORDS)         /* the last one has all from 256 GiB on */

struct block;

struct shelves {
    uint64_t filled;                            /* bit w: words[w] is not 0 */
    uint64_t words[SHELF_WORDS];
    struct block *root[SHELF_COUNT];
};

void shelf_put(struct shelves *shelves, struct block *block);
void shelf_remove(struct shelves *shelves, struct block *block);
/* The smallest block of at least `bytes`, of equals the lowest; NULL when there is none. */
struct block *shelf_least(const struct shelves *shelves, size_t bytes);
/* The one after `block`; and the largest. */
struct block *shelf_next(const struct shelves *shelves, const struct block *block);
struct block *shelf_largest(const struct shelves *shelves);

#endif
