/* SPDX-License-Identifier: Apache-2.0 */
/* memory/history.h: the ring of what happened to a device's memory. Notes of it are made through live.h. */
#ifndef CORE_MEMORY_HISTORY_H
#define CORE_MEMORY_HISTORY_H

#include "memory/live.h"

#define HISTORY_ENTRIES 65536               /* unless somebody says otherwise */

/* Microseconds since 1970. */
uint64_t history_now(void);
/* The same to some milliseconds, for a fifth of the cost: when a live block was taken, where nobody keeps a history. */
uint64_t history_about_now(void);
/* The event `number`, if it is still there, belongs to `op`. */
void history_name(struct device_memory *memory, uint64_t number, const char *op);
/* A ring of that many entries, empty; 0: none. CTRT_ERR_OUT_OF_MEMORY leaves what there was. */
ctrt_status history_resize(struct device_memory *memory, size_t entries);

/* live.c: turns the table of live blocks on or off, and the history. */
ctrt_status live_watch(struct device_memory *memory, bool state, size_t entries);

#endif
