/* SPDX-License-Identifier: Apache-2.0 */
/* base/ptr_map.h: a hash table of items that are found by a pointer.
 *
 * An item is a struct whose first member is its key, a pointer that is not NULL. All items of a table have the same
 * type, whose size is the parameter `item_bytes`. Adding and removing an item may move the others. A table of zeros is
 * empty. Not thread-safe. */
#ifndef CORE_BASE_PTR_MAP_H
#define CORE_BASE_PTR_MAP_H

#include "base/base.h"

struct ptr_map {
    char *items;                    /* `capacity` items with linear probing; unused ones are zero */
    size_t capacity, count;         /* capacity: 0 or a power of 2, at least twice the count */
    int shift;                      /* 64 - log2(capacity) */
};

static inline const void *ptr_map_key(const void *item)
{
    const void *key;
    memcpy(&key, item, sizeof key);
    return key;
}

/* Returns whether there is an item with this key. *place: the item, or else the unused one where it would be added. The
 * capacity must not be 0. */
static inline bool ptr_map_search(void **place, const struct ptr_map *map, const void *key, size_t item_bytes)
{
    size_t at = (uintptr_t)key * UINT64_C(0x9e3779b97f4a7c15) >> map->shift;    /* Knuth's multiplicative hash */
    for (;; at = (at + 1) & (map->capacity - 1)) {
        *place = map->items + at * item_bytes;
        if (ptr_map_key(*place) == key)
            return true;
        if (ptr_map_key(*place) == NULL)
            return false;
    }
}

/* Returns the item with this key, or NULL, also for the key NULL. */
static inline void *ptr_map_find(const struct ptr_map *map, const void *key, size_t item_bytes)
{
    void *item;
    return map->capacity > 0 && key != NULL && ptr_map_search(&item, map, key, item_bytes) ? item : NULL;
}

/* Doubles the capacity. Returns false if memory runs out; then the table is unchanged. */
bool ptr_map_enlarge(struct ptr_map *map, size_t item_bytes);

/* Returns the item with this key. Adds one if there is none; its other members are zero. NULL: out of memory. */
static inline void *ptr_map_add(struct ptr_map *map, const void *key, size_t item_bytes)
{
    void *item;
    if (likely(map->capacity > 0) && ptr_map_search(&item, map, key, item_bytes))
        return item;
    if (unlikely(2 * map->count >= map->capacity)) {
        if (!ptr_map_enlarge(map, item_bytes))
            return NULL;
        ptr_map_search(&item, map, key, item_bytes);
    }
    memcpy(item, &key, sizeof key);
    map->count++;
    return item;
}

void ptr_map_remove(struct ptr_map *map, void *item, size_t item_bytes);

/* Returns the item after `item` in the order of the table, the first one for NULL, NULL after the last one. */
void *ptr_map_next(const struct ptr_map *map, const void *item, size_t item_bytes);

/* Removes all items. Keeps the memory for later items, unless there is much more of it than these items used. */
void ptr_map_clear(struct ptr_map *map, size_t item_bytes);
/* Removes all items and frees the memory. */
void ptr_map_free(struct ptr_map *map);

#endif
