/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/map.h: the keys and values of a store, and the execution of requests on them. Not thread-safe. */
#ifndef PARALLEL_STORE_MAP_H
#define PARALLEL_STORE_MAP_H

#include "parallel/store/message.h"

/* Limits of one store. */
#define STORE_MAP_BYTES ((size_t)1 << 30)           /* of all values */
#define STORE_MAP_KEYS  ((size_t)1 << 20)

struct store_entry;

struct store_map {
    struct store_entry **buckets;       /* lists of entries with the same hash modulo `capacity` */
    size_t capacity, count;
    uint64_t seed;                      /* of the hash, so that a client cannot choose keys that collide */
    _Atomic size_t bytes;               /* of all values, including replaced ones that are still in use */
};

void store_map_init(struct store_map *map);
/* Removes all entries. All values that the map returned must have been released. */
void store_map_clear(struct store_map *map);

/* Returns a hash of the key. */
uint64_t store_map_hash(const struct store_map *map, const char *key, size_t key_bytes);
/* Returns the key's value without a new reference, NULL if the key is not set. */
struct store_value *store_map_find(const struct store_map *map, const char *key, size_t key_bytes);

/* Executes STORE_SET, GET (which does not wait), ADD, COMPARE_SET or DELETE. *value: a new reference to the value that
 * the key has afterwards, NULL if it is not set or the request fails. *changed: whether the key was set or removed. */
enum store_result store_map_execute(struct store_value **value, bool *changed, struct store_map *map,
                                    const struct store_message *message);

#endif
