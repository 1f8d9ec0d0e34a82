/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/block_table.c: the table of allocated blocks. */
#include "memory_stats/block_table.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "memory_stats/history.h"
#include "memory_stats/owners.h"
#include "registry/registry.h"
#include "stream/stream.h"

#define SHARDS 16

/* A hash table with linear probing. Removed entries leave a tombstone until the table is rebuilt. One pointer refers to
 * the table and its size, so that the child of a fork that interrupted another thread's update sees both or none. */
struct block_map {
    size_t capacity, used;                  /* a power of 2; used entries, including tombstones */
    struct block_entry at[];
};

struct block_table {
    struct block_map *shards[SHARDS];
};

/* Spin locks of the shards, shared by all devices, held only for one access to a table. An atomic exchange costs half
 * as much as a mutex. */
static struct { _Alignas(64) atomic_bool taken; } locks[SHARDS];
static const char gone;

static void locks_init(void)
{
    for (int i = 0; i < SHARDS; i++)
        atomic_init(&locks[i].taken, false);
}

static inline bool shard_try(int shard)
{
    return !atomic_exchange_explicit(&locks[shard].taken, true, memory_order_acquire);
}

static inline void shard_lock(int shard)
{
    while (unlikely(!shard_try(shard)))
        sched_yield();
}

static inline void shard_unlock(int shard)
{
    atomic_store_explicit(&locks[shard].taken, false, memory_order_release);
}

__attribute__((constructor)) static void block_table_start(void)
{
    pthread_atfork(NULL, NULL, locks_init);
}

static uint64_t hash_of(const void *address)
{
    return (((uintptr_t)address >> 6) * 0x9e3779b97f4a7c15u) >> 12;
}

static int shard_of(const void *address)
{
    return (int)(hash_of(address) % SHARDS);
}

/* Returns the entry of `address`, else the first unused one for it. NULL: the table is full. */
static struct block_entry *place_of(struct block_map *table, const void *address)
{
    struct block_entry *free_place = NULL;
    size_t mask = table->capacity - 1;
    for (size_t i = 0, at = hash_of(address) / SHARDS; i < table->capacity; i++, at++) {
        struct block_entry *block = &table->at[at & mask];
        if (block->address == address)
            return block;
        if (block->address == NULL)
            return free_place != NULL ? free_place : block;
        if (block->address == &gone && free_place == NULL)
            free_place = block;
    }
    return free_place;
}

/* Makes room for one more entry. Returns false if memory runs out. */
static bool table_ready(struct block_map **table)
{
    struct block_map *old = *table;
    if (old != NULL && 4 * (old->used + 1) <= 3 * old->capacity)
        return true;
    size_t live = 0;
    for (size_t i = 0; old != NULL && i < old->capacity; i++)
        live += old->at[i].address != NULL && old->at[i].address != &gone;
    size_t capacity = 64;
    while (capacity < 2 * (live + 1))
        capacity *= 2;
    struct block_map *fresh = calloc(1, sizeof *fresh + capacity * sizeof fresh->at[0]);
    if (fresh == NULL)
        return false;
    fresh->capacity = capacity;
    fresh->used = live;
    for (size_t i = 0; old != NULL && i < old->capacity; i++)
        if (old->at[i].address != NULL && old->at[i].address != &gone)
            *place_of(fresh, old->at[i].address) = old->at[i];
    *table = fresh;
    free(old);
    return true;
}

/* ---- description of an address, called in signal handlers ---- */

struct said {
    char *text;
    size_t capacity, used;
};

static void say(struct said *said, const char *words)
{
    while (*words != '\0' && said->used + 1 < said->capacity)
        said->text[said->used++] = *words++;
}

static bool describe_in(struct said *said, const struct block_map *table, const char *address)
{
    for (size_t i = 0; i < table->capacity; i++) {
        const struct block_entry *block = &table->at[i];
        const char *begin = block->address;
        if (begin == NULL || begin == &gone || address < begin || address >= begin + block->bytes)
            continue;
        say(said, block->op != NULL ? "the result of " : "a tensor");
        say(said, block->op != NULL ? block->op : "");
        if (block->label != NULL && block->label[0] != '\0' && strcmp(block->label, OWNER_UNKNOWN) != 0) {
            say(said, " in ");
            say(said, block->label);
        }
        said->text[said->used] = '\0';
        return true;
    }
    return false;
}

/* Skips shards that are locked, because the interrupted thread may hold the lock. */
static bool block_table_describe(char *text, size_t bytes, const void *address)
{
    struct said said = { text, bytes, 0 };
    const ctrt_stream *stream;
    bool found = false;
    for (uint32_t slot = 0; slot < STREAM_MAX && !found && (stream = stream_at(slot)) != NULL; slot++) {
        const struct device_memory *memory = stream->device != NULL ? stream->device->memory : NULL;
        if (memory == NULL || stream->queue == NULL || stream != stream->device->stream || memory->blocks == NULL)
            continue;
        for (int shard = 0; shard < SHARDS && !found; shard++) {
            if (!shard_try(shard))
                continue;
            const struct block_map *table = memory->blocks->shards[shard];
            found = table != NULL && describe_in(&said, table, address);
            shard_unlock(shard);
        }
    }
    return found;
}

__attribute__((constructor)) static void block_table_hook(void)
{
    registry_describe = block_table_describe;
}

/* ---- allocation and free ---- */

void block_table_alloc(struct device_memory *memory, const ctrt_block *block, size_t requested, const void *queue)
{
    struct block_entry entry = { block->address, block->bytes, requested, label_here(), thread_state.op, queue,
                                history_about_now(), 0, NULL };
    if (history_on(memory)) {
        entry.time = history_now();
        struct history_event event = { 0, entry.time, entry.label, entry.op, entry.address, entry.bytes, 0, queue,
                                       HISTORY_ALLOC, NULL };
        history_note(memory, &event);
        entry.number = event.number;
        entry.backtrace = event.backtrace;
    }
    int shard = shard_of(block->address);
    shard_lock(shard);
    struct block_map **table = &memory->blocks->shards[shard];
    if (pool_watched(memory) && table_ready(table)) {
        struct block_entry *place = place_of(*table, block->address);
        (*table)->used += place->address == NULL;
        *place = entry;
    }
    shard_unlock(shard);
}

/* Removes the entry and copies it to *out. Without an entry, *out is unchanged. */
static void take(struct block_entry *out, struct device_memory *memory, const void *address)
{
    int shard = shard_of(address);
    shard_lock(shard);
    struct block_map *table = memory->blocks->shards[shard];
    struct block_entry *place = table != NULL ? place_of(table, address) : NULL;
    if (place != NULL && place->address == address) {
        *out = *place;
        place->address = &gone;
    }
    shard_unlock(shard);
}

void block_table_free(struct device_memory *memory, const ctrt_block *block, size_t requested, const void *queue)
{
    struct block_entry entry = { block->address, block->bytes, requested, OWNER_UNKNOWN, NULL, queue, 0, 0, NULL };
    take(&entry, memory, block->address);
    if (!history_on(memory))
        return;
    /* Attribute the free to the block's owner, not to the freeing thread. */
    struct history_event event = { 0, history_now(), entry.label, entry.op, entry.address,
                                   entry.bytes, 0, entry.queue, HISTORY_FREE_REQUESTED, NULL };
    history_note(memory, &event);
    event.action = HISTORY_FREE_COMPLETED;
    history_note(memory, &event);
}

void block_table_segment(struct device_memory *memory, enum history_action action, const void *address, size_t bytes,
                         const void *queue)
{
    struct history_event event = { 0, 0, label_here(), thread_state.op, address, bytes, 0, queue, action, NULL };
    if (!history_on(memory))
        return;
    event.time = history_now();
    history_note(memory, &event);
}

/* Sets `op` for the block at `address`, if the block has none. */
static void name_block(struct device_memory *memory, const void *address, const char *op)
{
    uint64_t number = 0;
    int shard = shard_of(address);
    if (!pool_watched(memory))
        return;
    shard_lock(shard);
    struct block_map *table = memory->blocks->shards[shard];
    struct block_entry *place = table != NULL ? place_of(table, address) : NULL;
    if (place != NULL && place->address == address && place->op == NULL) {
        place->op = op;
        number = place->number;
    }
    shard_unlock(shard);
    if (number != 0)
        history_name(memory, number, op);
}

void block_table_name_outputs(struct device_memory *memory, const ctrt_view *const *outputs, int n_outputs,
                              const ctrt_view *const *inputs, int n_inputs, const char *op)
{
    for (int o = 0; o < n_outputs; o++) {
        bool fresh = outputs[o] != NULL && outputs[o]->data != NULL;
        for (int i = 0; i < n_inputs && fresh; i++)
            fresh = inputs[i] == NULL || inputs[i]->data != outputs[o]->data;
        if (fresh)
            name_block(memory, outputs[o]->data, op);
    }
}

/* ---- listing ---- */

static int compare(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct block_entry *)a)->address;
    uintptr_t y = (uintptr_t)((const struct block_entry *)b)->address;
    return x < y ? -1 : x > y;
}

bool block_table_list(struct block_entry **out, size_t *count, struct device_memory *memory)
{
    size_t capacity = 0, n = 0;
    *out = NULL;
    *count = 0;
    if (memory->blocks == NULL)
        return true;
    for (int shard = 0; shard < SHARDS; shard++)
        shard_lock(shard);
    for (int shard = 0; shard < SHARDS; shard++)
        capacity += memory->blocks->shards[shard] != NULL ? memory->blocks->shards[shard]->used : 0;
    struct block_entry *list = malloc(MAX(capacity, 1) * sizeof *list);
    for (int shard = 0; shard < SHARDS && list != NULL; shard++) {
        const struct block_map *table = memory->blocks->shards[shard];
        for (size_t i = 0; table != NULL && i < table->capacity; i++)
            if (table->at[i].address != NULL && table->at[i].address != &gone)
                list[n++] = table->at[i];
    }
    for (int shard = SHARDS - 1; shard >= 0; shard--)
        shard_unlock(shard);
    if (list == NULL)
        return false;
    qsort(list, n, sizeof *list, compare);
    *out = list;
    *count = n;
    return true;
}

static void forget_all(struct device_memory *memory)
{
    for (int shard = 0; shard < SHARDS; shard++) {
        shard_lock(shard);
        free(memory->blocks->shards[shard]);
        memory->blocks->shards[shard] = NULL;
        shard_unlock(shard);
    }
}

/* ---- switching on and off ---- */

ctrt_status block_table_watch(struct device_memory *memory, bool state, size_t entries)
{
    if (memory->blocks == NULL && state) {
        struct block_table *blocks = host_calloc(sizeof *blocks);
        if (blocks == NULL)
            return out_of_memory(sizeof *blocks, "the table of live blocks");
        memory->blocks = blocks;
    }
    CTRT_TRY(history_resize(memory, entries));
    if (pool_watched(memory) == state)
        return CTRT_OK;
    if (state)
        forget_all(memory);
    atomic_store(&memory->watched, state);
    if (!state)
        forget_all(memory);
    return CTRT_OK;
}

void block_table_destroy(struct device_memory *memory)
{
    (void)history_resize(memory, 0);
    if (memory->blocks == NULL)
        return;
    atomic_store(&memory->watched, false);
    forget_all(memory);
    host_free(memory->blocks);
    memory->blocks = NULL;
}
