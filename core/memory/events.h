/* SPDX-License-Identifier: Apache-2.0 */
/* memory/events.h: the events that a device's memory reports to the statistics of individual blocks and to the report
 * of failed allocations. Declared here because the allocator calls these functions; defined in memory_stats. */
#ifndef CORE_MEMORY_EVENTS_H
#define CORE_MEMORY_EVENTS_H

#include "memory/pool.h"

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

/* Reports that an allocation of `bytes` failed after all retries. `why`: the reason; may be the thread's error message.
 * Stores the report, calls the program's callback and sets the thread's error message. Returns CTRT_ERR_OUT_OF_MEMORY.
 * The caller holds no locks. */
ctrt_status oom_fail(struct device_memory *memory, size_t bytes, const char *why);
/* Like oom_fail, for pinned host memory that was requested for the device. */
ctrt_status oom_fail_pinned(struct device_memory *memory, size_t bytes, const char *why);
void oom_report_free(struct oom_report *report);

/* Writes the label and op that allocated most of the device's memory in use, "encoder (matmul)". Returns false if there
 * is no record of any owner. */
bool owners_largest(char label[128], struct device_memory *memory);

#endif
