/* SPDX-License-Identifier: Apache-2.0 */
/* memory/block_table.h: the table of allocated blocks and their owners, and the events of the memory history.
 *
 * While a device is watched, each of its blocks has an entry in a hash table by address, which is divided into shards
 * with a lock each. Asynchronous devices are watched from the start, other devices on request. */
#ifndef CORE_MEMORY_BLOCK_TABLE_H
#define CORE_MEMORY_BLOCK_TABLE_H

#include "memory/pool.h"
#include "memory/label.h"

struct backtrace;                           /* base/backtrace.h */

/* The names are those of PyTorch's memory history. */
enum history_action {
    HISTORY_ALLOC, HISTORY_FREE_REQUESTED, HISTORY_FREE_COMPLETED, HISTORY_SEGMENT_ALLOC, HISTORY_SEGMENT_FREE,
    HISTORY_SEGMENT_MAP, HISTORY_SEGMENT_UNMAP, HISTORY_OOM, HISTORY_SNAPSHOT, HISTORY_ANNOTATE, HISTORY_ACTIONS
};

/* block_table_init reads CTRT_MEMORY_HISTORY once per process, and starts watching the device if required.
 * block_table_destroy frees the table and the history. */
ctrt_status block_table_init(struct device_memory *memory);
void block_table_destroy(struct device_memory *memory);

/* Called only while the device is watched (pool_watched). */
void block_table_alloc(struct device_memory *memory, const ctrt_block *block, size_t requested, const void *queue);
void block_table_free(struct device_memory *memory, const ctrt_block *block, size_t requested, const void *queue);
void block_table_segment(struct device_memory *memory, enum history_action action, const void *address, size_t bytes,
                         const void *queue);

struct history_event {
    uint64_t number;                        /* from 1 */
    uint64_t time;                          /* microseconds since 1970 */
    const char *label, *op;                 /* interned or static; op NULL: unknown. ANNOTATE: label is the text */
    const void *address;
    size_t bytes;                           /* of the block; OOM: requested */
    uint64_t free_bytes;                    /* OOM: free bytes on the device */
    const void *queue;
    enum history_action action;
    const struct backtrace *backtrace;      /* call stack; NULL: unknown (backtrace.h) */
};

#define OWNER_UNKNOWN "(not watched)"

struct block_entry {
    const void *address;                    /* key: base/ptr_map.h */
    size_t bytes, requested;
    const char *label, *op;                 /* op NULL: unknown */
    const void *queue;
    uint64_t time, number;                  /* number of its event in the history; 0: none */
    const struct backtrace *backtrace;      /* call stack; NULL: none */
};

/* Sets `op` (a static string) as the op of those outputs that are not also inputs and whose blocks have no op yet. */
void block_table_name_outputs(struct device_memory *memory, const ctrt_view *const *outputs, int n_outputs,
                              const ctrt_view *const *inputs, int n_inputs, const char *op);

/* Sets the label (an interned string) of the block at `address` and of the event of its allocation. No effect for an
 * address that is not in the table. */
void block_table_label(struct device_memory *memory, const void *address, const char *label);

/* Copies all entries, sorted by address, to a new array that the caller frees. No entries: NULL and 0. Returns false if
 * memory runs out. */
bool block_table_list(struct block_entry **out, size_t *count, struct device_memory *memory);

/* Appends an event to the device's history, if it is on, and sets event->number. */
void history_note(struct device_memory *memory, struct history_event *event);
static inline bool history_on(const struct device_memory *memory)
{
    return atomic_load_explicit(&memory->history_on, memory_order_relaxed);
}
/* Copies all events, oldest first, to a new array that the caller frees. *lost: number of overwritten events. Returns
 * false if memory runs out. */
bool history_list(struct history_event **out, size_t *count, uint64_t *lost, struct device_memory *memory);
const char *history_action_name(enum history_action action);

#endif
