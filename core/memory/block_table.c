/* SPDX-License-Identifier: Apache-2.0 */
/* memory/block_table.c: the table of allocated blocks. */
#include "memory/block_table.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "base/ptr_map.h"
#include "memory/history.h"
#include "registry/registry.h"
#include "stream/stream.h"

#define SHARDS 16

struct block_table {
    struct ptr_map shards[SHARDS];          /* items: struct block_entry, by address */
};

/* Spin locks of the shards, shared by all devices, held only for one access to a table. An atomic exchange costs half
 * as much as a mutex. */
static struct { _Alignas(64) atomic_bool taken; } locks[SHARDS];
static __thread int own_shard = -1;         /* the shard that the thread has locked */

static inline bool shard_try(int shard)
{
    return !atomic_exchange_explicit(&locks[shard].taken, true, memory_order_acquire);
}

static inline void shard_lock(int shard)
{
    while (unlikely(!shard_try(shard)))
        sched_yield();
    own_shard = shard;
}

static inline void shard_unlock(int shard)
{
    own_shard = -1;
    atomic_store_explicit(&locks[shard].taken, false, memory_order_release);
}

/* Locks all shards except one that the thread has locked already: a signal handler may fork. */
static void lock_all(void)
{
    for (int shard = 0; shard < SHARDS; shard++)
        while (shard != own_shard && !shard_try(shard))
            sched_yield();
}

static void unlock_all(void)
{
    for (int shard = SHARDS - 1; shard >= 0; shard--)
        if (shard != own_shard)
            atomic_store_explicit(&locks[shard].taken, false, memory_order_release);
}

/* fork() takes all locks, so in the child they are free and the tables are consistent. */
__attribute__((constructor)) static void block_table_start(void)
{
    (void)lock_at_fork(lock_all, unlock_all, unlock_all);
}

static int shard_of(const void *address)
{
    return (int)((((uintptr_t)address >> 6) * 0x9e3779b97f4a7c15u >> 12) % SHARDS);
}

/* ---- description of an address, called in signal handlers ---- */

struct block_table_message {
    char *text;
    size_t capacity, used;
};

static void append(struct block_table_message *message, const char *words)
{
    while (*words != '\0' && message->used + 1 < message->capacity)
        message->text[message->used++] = *words++;
}

static bool describe_in(struct block_table_message *message, const struct ptr_map *table, const char *address)
{
    for (const struct block_entry *block = NULL; (block = ptr_map_next(table, block, sizeof *block)) != NULL;) {
        const char *begin = block->address;
        if (address < begin || address >= begin + block->bytes)
            continue;
        append(message, block->op != NULL ? "the result of " : "a tensor");
        append(message, block->op != NULL ? block->op : "");
        if (block->label != NULL && block->label[0] != '\0' && strcmp(block->label, OWNER_UNKNOWN) != 0) {
            append(message, " in ");
            append(message, block->label);
        }
        message->text[message->used] = '\0';
        return true;
    }
    return false;
}

/* Skips shards that are locked, because the interrupted thread may hold the lock. */
static bool block_table_describe(char *text, size_t bytes, const void *address)
{
    struct block_table_message message = { text, bytes, 0 };
    const ctrt_stream *stream;
    bool found = false;
    for (uint32_t slot = 0; slot < STREAM_MAX && !found && (stream = stream_at(slot)) != NULL; slot++) {
        const struct device_memory *memory = stream->device != NULL ? stream->device->memory : NULL;
        if (memory == NULL || stream->queue == NULL || stream != stream->device->stream || memory->blocks == NULL)
            continue;
        for (int shard = 0; shard < SHARDS && !found; shard++) {
            if (!shard_try(shard))
                continue;
            found = describe_in(&message, &memory->blocks->shards[shard], address);
            atomic_store_explicit(&locks[shard].taken, false, memory_order_release);
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
    struct block_entry *place =
        pool_watched(memory) ? ptr_map_add(&memory->blocks->shards[shard], block->address, sizeof *place) : NULL;
    if (place != NULL)
        *place = entry;
    shard_unlock(shard);
}

/* Removes the entry and copies it to *out. Without an entry, *out is unchanged. */
static void block_table_take(struct block_entry *out, struct device_memory *memory, const void *address)
{
    int shard = shard_of(address);
    shard_lock(shard);
    struct block_entry *place = ptr_map_find(&memory->blocks->shards[shard], address, sizeof *place);
    if (place != NULL) {
        *out = *place;
        ptr_map_remove(&memory->blocks->shards[shard], place, sizeof *place);
    }
    shard_unlock(shard);
}

void block_table_free(struct device_memory *memory, const ctrt_block *block, size_t requested, const void *queue)
{
    struct block_entry entry = { block->address, block->bytes, requested, OWNER_UNKNOWN, NULL, queue, 0, 0, NULL };
    block_table_take(&entry, memory, block->address);
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

/* Sets `op` (NULL: none) for the block at `address`, if the block has none, and `label` (NULL: unchanged). */
static void name_block(struct device_memory *memory, const void *address, const char *op, const char *label)
{
    uint64_t number = 0;
    int shard = shard_of(address);
    if (!pool_watched(memory))
        return;
    shard_lock(shard);
    struct block_entry *place = ptr_map_find(&memory->blocks->shards[shard], address, sizeof *place);
    if (place != NULL && (place->op == NULL || label != NULL)) {
        place->op = place->op == NULL ? op : place->op;
        place->label = label != NULL ? label : place->label;
        number = place->number;
    }
    shard_unlock(shard);
    if (number != 0)
        history_name(memory, number, op, label);
}

void block_table_label(struct device_memory *memory, const void *address, const char *label)
{
    name_block(memory, address, NULL, label);
}

void block_table_name_outputs(struct device_memory *memory, const ctrt_view *const *outputs, int n_outputs,
                              const ctrt_view *const *inputs, int n_inputs, const char *op)
{
    for (int o = 0; o < n_outputs; o++) {
        bool fresh = outputs[o] != NULL && outputs[o]->data != NULL;
        for (int i = 0; i < n_inputs && fresh; i++)
            fresh = inputs[i] == NULL || inputs[i]->data != outputs[o]->data;
        if (fresh)
            name_block(memory, outputs[o]->data, op, NULL);
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
    size_t n = 0;
    *out = NULL;
    *count = 0;
    if (memory->blocks == NULL)
        return true;
    lock_all();
    for (int shard = 0; shard < SHARDS; shard++)
        n += memory->blocks->shards[shard].count;
    struct block_entry *list = host_alloc(MAX(n, 1) * sizeof *list), *next = list;
    for (int shard = 0; shard < SHARDS && list != NULL; shard++)
        for (const struct block_entry *block = NULL;
             (block = ptr_map_next(&memory->blocks->shards[shard], block, sizeof *block)) != NULL;)
            *next++ = *block;
    unlock_all();
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
        ptr_map_free(&memory->blocks->shards[shard]);
        shard_unlock(shard);
    }
}

/* ---- switching on and off ---- */

ctrt_status block_table_watch(struct device_memory *memory, bool state, size_t entries)
{
    if (memory->blocks == NULL && state) {
        struct block_table *blocks = host_calloc(sizeof *blocks);
        ALLOC_CHECK(blocks, sizeof *blocks, "the table of live blocks");
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
