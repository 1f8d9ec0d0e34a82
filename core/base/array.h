/* SPDX-License-Identifier: Apache-2.0 */
/* base/array.h: growing arrays.
 *
 * An array is a pointer to its items (NULL while there are none), their count and the capacity: the number of items
 * that the allocation holds. It has less than 2^32 items, so that indices fit 32 bits. host_free frees the items. */
#ifndef CORE_BASE_ARRAY_H
#define CORE_BASE_ARRAY_H

#include "base/base.h"
#include "base/host_alloc.h"

/* Makes room for an item after the first `count`; `capacity` is a size_t variable. The items may move. Returns whether
 * there is space; without memory for more, the array is unchanged. */
#define ARRAY_GROW(items, capacity, count) \
    (likely((size_t)(count) < (capacity)) || array_enlarge(&(items), &(capacity), sizeof *(items)))

/* Like ARRAY_GROW, but returns a status. CTRT_ERR_OUT_OF_MEMORY: the message ends in `what`. */
#define ARRAY_RESERVE(items, capacity, count, what) \
    (ARRAY_GROW(items, capacity, count) ? CTRT_OK : out_of_memory(((capacity) + 1) * sizeof *(items), what))

/* Doubles the capacity. `items`: the address of the pointer to the items. */
bool array_enlarge(void *items, size_t *capacity, size_t item_bytes);

#endif
