/* SPDX-License-Identifier: Apache-2.0 */
/* memory/live.h: which blocks live, who took them, and what happened to them.
 *
 * While a device is watched each of its blocks has an entry in a hash table by address, in shards with locks of
 * their own. Asynchronous devices are watched from the start, others when somebody asks. */
#ifndef CORE_MEMORY_LIVE_H
#define CORE_MEMORY_LIVE_H

#include "memory/pool.h"
#include "memory/tag.h"

struct frames;                              /* frames.h */

/* What happened; the names of PyTorch's history. */
enum history_action {
    HISTORY_ALLOC, HISTORY_FREE_REQUESTED, HISTORY_FREE_COMPLETED, HISTORY_SEGMENT_ALLOC, HISTORY_SEGMENT_FREE,
    HISTORY_SEGMENT_MAP, HISTORY_SEGMENT_UNMAP, HISTORY_OOM, HISTORY_SNAPSHOT, HISTORY_ANNOTATE, HISTORY_ACTIONS
};

struct history_event {
    uint64_t number;                        /* from 1 */
    uint64_t time;                          /* microseconds since 1970 */
    const char *tag, *op;                   /* kept or static; op NULL: not known. ANNOTATE: tag is the remark */
    const void *address;
    size_t bytes;                           /* of the block; OOM: asked for */
    uint64_t room;                          /* OOM: free on the device */
    const void *queue;
    enum history_action action;
    const struct frames *frames;            /* who called; NULL: not known (frames.h) */
};

struct live_block {
    const void *address;                    /* NULL: free slot; live_gone: was used */
    size_t bytes, requested;
    const char *tag, *op;                   /* op NULL: not known */
    const void *queue;
    uint64_t time, number;                  /* of its event; 0: none */
    const struct frames *frames;            /* likewise; NULL: none */
};

/* Reads CTRT_MEMORY_HISTORY, once; watches the device if it has to be. */
ctrt_status live_init(struct device_memory *memory);
void live_destroy(struct device_memory *memory);

void live_alloc(struct device_memory *memory, const ctrt_block *block, size_t requested, const void *queue);
void live_free(struct device_memory *memory, const ctrt_block *block, size_t requested, const void *queue);
void live_segment(struct device_memory *memory, enum history_action action, const void *address, size_t bytes,
                  const void *queue);
/* The outputs of a call that are not inputs too are results of `op` (static), where nobody knows better. */
void live_name_outputs(struct device_memory *memory, const ctrt_view *const *outputs, int n_outputs,
                       const ctrt_view *const *inputs, int n_inputs, const char *op);

/* Copies of all entries, in order of addresses, as a new array that the caller frees; NULL and 0 when there are none,
 * false without memory. */
bool live_list(struct live_block **out, size_t *count, struct device_memory *memory);

/* Puts an event into the ring of a device whose history is on, and gives it its number. */
void history_note(struct device_memory *memory, struct history_event *event);
static inline bool history_on(const struct device_memory *memory)
{
    return atomic_load_explicit(&memory->history_on, memory_order_relaxed);
}
/* Copies of all events, oldest first, as above; *lost: how many were overwritten. */
bool history_list(struct history_event **out, size_t *count, uint64_t *lost, struct device_memory *memory);
const char *history_action_name(enum history_action action);

#endif
