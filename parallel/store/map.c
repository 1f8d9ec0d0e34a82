/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/map.c: a hash table from keys to values, and the execution of requests. */
#include "parallel/store/map.h"

#include <sys/random.h>

#include "base/base.h"
#include "base/hash.h"
#include "base/host_alloc.h"

struct store_entry {
    struct store_entry *next;
    struct store_value *value;
    uint64_t hash;
    size_t key_bytes;
    char key[];
};

void store_map_init(struct store_map *map)
{
    memset(map, 0, sizeof *map);
    if (getrandom(&map->seed, sizeof map->seed, 0) != (ssize_t)sizeof map->seed)
        map->seed = (uintptr_t)map;
}

void store_map_clear(struct store_map *map)
{
    for (size_t i = 0; i < map->capacity; i++)
        for (struct store_entry *entry = map->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            store_value_release(entry->value);
            host_free(entry);
        }
    host_free(map->buckets);
    map->buckets = NULL;
    map->capacity = map->count = 0;
}

/* FNV-1a from a random start, followed by a multiplication that mixes its upper bits into the lower ones. */
uint64_t store_map_hash(const struct store_map *map, const char *key, size_t key_bytes)
{
    uint64_t hash = hash_bytes(map->seed, key, key_bytes);
    hash = (hash ^ hash >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* Returns the place of the pointer to the key's entry, or NULL. */
static struct store_entry **store_map_place(const struct store_map *map, const char *key, size_t key_bytes)
{
    if (map->capacity == 0)
        return NULL;
    const uint64_t hash = store_map_hash(map, key, key_bytes);
    struct store_entry **place = &map->buckets[hash & (map->capacity - 1)];
    for (; *place != NULL; place = &(*place)->next)
        if ((*place)->hash == hash && (*place)->key_bytes == key_bytes && memcmp((*place)->key, key, key_bytes) == 0)
            return place;
    return NULL;
}

struct store_value *store_map_find(const struct store_map *map, const char *key, size_t key_bytes)
{
    struct store_entry **place = store_map_place(map, key, key_bytes);
    return place != NULL ? (*place)->value : NULL;
}

static bool enlarge(struct store_map *map)
{
    const size_t capacity = map->capacity > 0 ? 2 * map->capacity : 64;
    struct store_entry **buckets = host_calloc(capacity * sizeof *buckets);
    if (buckets == NULL)
        return false;
    for (size_t i = 0; i < map->capacity; i++)
        for (struct store_entry *entry = map->buckets[i], *next; entry != NULL; entry = next) {
            struct store_entry **bucket = &buckets[entry->hash & (capacity - 1)];
            next = entry->next;
            entry->next = *bucket;
            *bucket = entry;
        }
    host_free(map->buckets);
    map->buckets = buckets;
    map->capacity = capacity;
    return true;
}

/* Sets the key to a copy of data[bytes]. */
static enum store_result set(struct store_map *map, const struct store_message *message, const void *data,
                             size_t bytes)
{
    if (bytes > STORE_MAP_BYTES - MIN(atomic_load(&map->bytes), STORE_MAP_BYTES))
        return STORE_FULL;
    struct store_entry **place = store_map_place(map, message->key, message->key_bytes);
    if (place == NULL && map->count >= STORE_MAP_KEYS)
        return STORE_FULL;
    if (place == NULL && map->count >= map->capacity && !enlarge(map))
        return STORE_NO_MEMORY;
    struct store_value *value = store_value_new(data, bytes, &map->bytes);
    if (value == NULL)
        return STORE_NO_MEMORY;
    if (place != NULL) {
        store_value_release((*place)->value);
        (*place)->value = value;
        return STORE_OK;
    }
    struct store_entry *entry = host_alloc(sizeof *entry + message->key_bytes);
    if (entry == NULL) {
        store_value_release(value);
        return STORE_NO_MEMORY;
    }
    entry->hash = store_map_hash(map, message->key, message->key_bytes);
    entry->value = value;
    entry->key_bytes = message->key_bytes;
    memcpy(entry->key, message->key, message->key_bytes);
    struct store_entry **bucket = &map->buckets[entry->hash & (map->capacity - 1)];
    entry->next = *bucket;
    *bucket = entry;
    map->count++;
    return STORE_OK;
}

/* Reads decimal text: an optional minus sign and digits. */
static bool parse_number(int64_t *out, const struct store_value *value)
{
    const bool negative = value->bytes > 0 && value->data[0] == '-';
    int64_t number = 0;
    if (value->bytes == negative)
        return false;
    for (size_t i = negative; i < value->bytes; i++) {
        const unsigned char digit = (unsigned char)(value->data[i] - '0');
        if (digit > 9 || __builtin_mul_overflow(number, 10, &number)
            || __builtin_sub_overflow(number, digit, &number))          /* downwards, because of INT64_MIN */
            return false;
    }
    return !__builtin_mul_overflow(number, negative ? 1 : -1, out);
}

static enum store_result store_map_add(struct store_map *map, const struct store_message *message,
                                       const struct store_value *present)
{
    int64_t number = 0, amount;
    char text[24];
    memcpy(&amount, message->value, sizeof amount);
    if (present != NULL && !parse_number(&number, present))
        return STORE_NOT_NUMBER;
    if (__builtin_add_overflow(number, amount, &number))
        return STORE_OVERFLOW;
    return set(map, message, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)number));
}

static bool expected(const struct store_message *message, const struct store_value *present)
{
    if (message->flags != STORE_EXPECTED || present == NULL)
        return message->flags != STORE_EXPECTED && present == NULL;
    return present->bytes == message->other_bytes
           && (present->bytes == 0 || memcmp(present->data, message->other, present->bytes) == 0);
}

enum store_result store_map_execute(struct store_value **value, bool *changed, struct store_map *map,
                                    const struct store_message *message)
{
    struct store_entry **place = store_map_place(map, message->key, message->key_bytes);
    struct store_entry *entry = place != NULL ? *place : NULL;
    struct store_value *present = entry != NULL ? entry->value : NULL;
    const bool writes = message->op == STORE_SET || message->op == STORE_ADD
                        || (message->op == STORE_COMPARE_SET && expected(message, present));
    enum store_result result = STORE_OK;
    *value = NULL;
    *changed = false;
    if (message->op == STORE_DELETE) {
        if (entry == NULL)
            return STORE_UNSET;
        *place = entry->next;
        map->count--;
        store_value_release(entry->value);
        host_free(entry);
        *changed = true;
        return STORE_OK;
    }
    if (writes)
        result = message->op == STORE_ADD ? store_map_add(map, message, present)
                                          : set(map, message, message->value, message->value_bytes);
    *changed = writes && result == STORE_OK;
    present = result == STORE_OK ? store_map_find(map, message->key, message->key_bytes) : NULL;
    if (result == STORE_OK && present == NULL)
        return STORE_UNSET;
    *value = present != NULL ? store_value_retain(present) : NULL;
    return result;
}
