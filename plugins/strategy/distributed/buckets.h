/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/distributed/buckets.h: which gradients are reduced together. */
#ifndef DISTRIBUTED_BUCKETS_H
#define DISTRIBUTED_BUCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bucket_item {
    uint64_t bytes;
    int dtype;                              /* a bucket has gradients of one dtype */
};

/* Assigns items[n] to buckets, as PyTorch's DistributedDataParallel. Walks through the items in the order `order`
 * (NULL: 0, 1, ...) with one open bucket per dtype, and closes a bucket when it has reached the limit. The limit is
 * `first` bytes for the first bucket of a dtype and `cap` bytes for the others.
 *
 * Without `order` the list is reversed, because backward passes compute the last gradients first. Writes the items of
 * all buckets, one bucket after the other, to items_of[n] and the end of each bucket to ends[n], and returns the number
 * of buckets. -1: out of memory. */
long buckets_assign(size_t *items_of, size_t *ends, const struct bucket_item *items, size_t n, const size_t *order,
                    uint64_t first, uint64_t cap);

#endif
