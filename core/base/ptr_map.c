/* SPDX-License-Identifier: Apache-2.0 */
/* base/ptr_map.c: a hash table of items that are found by a pointer. */
#include "base/ptr_map.h"

#include "base/host_alloc.h"

bool ptr_map_enlarge(struct ptr_map *map, size_t item_bytes)
{
    const struct ptr_map old = *map;
    map->capacity = old.capacity > 0 ? 2 * old.capacity : 16;
    map->shift = old.capacity > 0 ? old.shift - 1 : 64 - 4;
    map->items = map->capacity <= PTRDIFF_MAX / item_bytes ? host_calloc(map->capacity * item_bytes) : NULL;
    if (map->items == NULL) {
        *map = old;
        return false;
    }
    void *place;
    for (const void *item = NULL; (item = ptr_map_next(&old, item, item_bytes)) != NULL;) {
        ptr_map_search(&place, map, ptr_map_key(item), item_bytes);
        memcpy(place, item, item_bytes);
    }
    host_free(old.items);
    return true;
}

void ptr_map_remove(struct ptr_map *map, void *item, size_t item_bytes)
{
    const size_t mask = map->capacity - 1;
    size_t hole = (size_t)((char *)item - map->items) / item_bytes;
    memset(item, 0, item_bytes);
    map->count--;
    /* Adds the items after the hole again, so that a search for one of them does not stop at the hole. */
    for (size_t at = (hole + 1) & mask; ptr_map_key(map->items + at * item_bytes) != NULL; at = (at + 1) & mask) {
        void *from = map->items + at * item_bytes, *to;
        if (!ptr_map_search(&to, map, ptr_map_key(from), item_bytes)) {
            memcpy(to, from, item_bytes);
            memset(from, 0, item_bytes);
        }
    }
}

void *ptr_map_next(const struct ptr_map *map, const void *item, size_t item_bytes)
{
    char *end = map->items + map->capacity * item_bytes;
    char *at = item != NULL ? (char *)item + item_bytes : map->items;
    while (at < end && ptr_map_key(at) == NULL)
        at += item_bytes;
    return at < end ? at : NULL;
}

void ptr_map_clear(struct ptr_map *map, size_t item_bytes)
{
    if (map->capacity > 16 * (map->count + 16))
        ptr_map_free(map);
    else if (map->count > 0)
        memset(map->items, 0, map->capacity * item_bytes);
    map->count = 0;
}

void ptr_map_free(struct ptr_map *map)
{
    host_free(map->items);
    *map = (struct ptr_map){ 0 };
}
