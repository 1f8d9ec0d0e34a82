/* SPDX-License-Identifier: Apache-2.0 */
/* memory/history.h: the ring buffer of a device's memory events. Events are added through block_table.h. */
#ifndef CORE_MEMORY_HISTORY_H
#define CORE_MEMORY_HISTORY_H

#include "memory/block_table.h"

#define HISTORY_ENTRIES 65536               /* default */

/* Microseconds since 1970. */
uint64_t history_now(void);
/* Like history_now, with a resolution of some milliseconds, at a fifth of the cost. Used for the time of an allocation
 * when no history is recorded. */
uint64_t history_about_now(void);
/* Sets op and label of event `number`, if the ring still contains it. NULL: unchanged. */
void history_name(struct device_memory *memory, uint64_t number, const char *op, const char *label);
/* Replaces the ring by an empty one of that many entries; 0: no ring. CTRT_ERR_OUT_OF_MEMORY leaves the old ring. */
ctrt_status history_resize(struct device_memory *memory, size_t entries);

/* block_table.c: turns the table of allocated blocks on or off (`state`), and sets the size of the history. */
ctrt_status block_table_watch(struct device_memory *memory, bool state, size_t entries);

#endif
