/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/size_class.c: see size_class.h. */
#include "caching.h"

static bool comes_before(const struct block *a, const struct block *b)
{
    return a->bytes < b->bytes || (a->bytes == b->bytes && a->address < b->address);
}

/* The block's priority in the treap. */
static uint32_t rank(const struct block *block)
{
    return (uint32_t)((uintptr_t)block->address >> 9) * 0x9e3779b1u;
}

void size_class_insert_slow(struct block **root, struct block *block)
{
    struct block **at = root;
    while (*at != NULL && rank(*at) >= rank(block))
        at = comes_before(block, *at) ? &(*at)->left : &(*at)->right;
    /* Split the subtree at this position into the blocks before and after `block`. */
    struct block *rest = *at, **low = &block->left, **high = &block->right;
    while (rest != NULL)
        if (comes_before(rest, block)) {
            *low = rest;
            low = &rest->right;
            rest = rest->right;
        } else {
            *high = rest;
            high = &rest->left;
            rest = rest->left;
        }
    *low = *high = NULL;
    *at = block;
}

void size_class_remove_slow(struct block **root, struct block *block)
{
    struct block **at = root;
    while (*at != block)
        at = comes_before(block, *at) ? &(*at)->left : &(*at)->right;
    struct block *a = block->left, *b = block->right;
    while (a != NULL && b != NULL)
        if (rank(a) >= rank(b)) {
            *at = a;
            at = &a->right;
            a = a->right;
        } else {
            *at = b;
            at = &b->left;
            b = b->left;
        }
    *at = a != NULL ? a : b;
}

/* Returns the first block of the first class that is not empty, searching from `class` on. */
static struct block *first_from(const struct size_classes *size_classes, unsigned class)
{
    unsigned word = class / 64;
    if (word >= SIZE_CLASS_WORDS)
        return NULL;
    uint64_t bits = size_classes->words[word] & ~(uint64_t)0 << class % 64;
    if (bits == 0) {
        uint64_t later = size_classes->filled & ~(uint64_t)1 << word;        /* words after this one */
        if (later == 0)
            return NULL;
        word = (unsigned)__builtin_ctzll(later);
        bits = size_classes->words[word];
    }
    struct block *block = size_classes->root[64 * word + (unsigned)__builtin_ctzll(bits)];
    while (block->left != NULL)
        block = block->left;
    return block;
}

struct block *size_class_best_fit_from(const struct size_classes *size_classes, unsigned class, size_t bytes)
{
    if (class >= SIZE_CLASSES_EXACT) {
        struct block *best = NULL;
        for (struct block *at = size_classes->root[class]; at != NULL;)
            if (at->bytes >= bytes) {
                best = at;
                at = at->left;
            } else {
                at = at->right;
            }
        if (best != NULL)
            return best;
        class++;
    }
    return first_from(size_classes, class);
}

struct block *size_class_next(const struct size_classes *size_classes, const struct block *block)
{
    unsigned class = size_class_of(block->bytes);
    struct block *next = NULL;
    for (struct block *at = size_classes->root[class]; at != NULL;)
        if (comes_before(block, at)) {
            next = at;
            at = at->left;
        } else {
            at = at->right;
        }
    return next != NULL ? next : first_from(size_classes, class + 1);
}

struct block *size_class_largest(const struct size_classes *size_classes)
{
    if (size_classes->filled == 0)
        return NULL;
    unsigned word = 63 - (unsigned)__builtin_clzll(size_classes->filled);
    struct block *block = size_classes->root[64 * word + 63 - (unsigned)__builtin_clzll(size_classes->words[word])];
    while (block->right != NULL)
        block = block->right;
    return block;
}
