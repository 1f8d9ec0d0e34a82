/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/summary.h: memory statistics as text. */
#ifndef CORE_MEMORY_STATS_SUMMARY_H
#define CORE_MEMORY_STATS_SUMMARY_H

#include "ctrt/memory.h"

struct json;
struct strbuf;

/* Formats `bytes` in the unit that is suitable for `by`: " 768 KiB", ten characters. Returns `text`. */
const char *summary_size(char text[16], int64_t bytes, int64_t by);
/* Formats a count as summary_size does: " 750 K ". */
const char *summary_count(char text[16], int64_t count, int64_t by);
void summary_table(struct strbuf *text, const char *device, const ctrt_memory_stats *stats, bool abbreviated);
/* Adds "stats": {"allocation.all.current": 1, ...}. */
void summary_stats_json(struct json *json, const ctrt_memory_stats *stats);

#endif
