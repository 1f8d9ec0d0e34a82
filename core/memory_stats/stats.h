/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/stats.h: all memory statistics of a device, with PyTorch's names. */
#ifndef CORE_MEMORY_STATS_STATS_H
#define CORE_MEMORY_STATS_STATS_H

#include "memory/pool.h"

void stats_read(ctrt_memory_stats *out, struct device_memory *memory);

/* Returns the value of the `index`-th key in `stats`; see ctrt_memory_stat_key. */
int64_t stats_value(const ctrt_memory_stats *stats, size_t index);

/* Reads the policies' own statistics. Returns false if the lowest policy reports none. */
bool stats_of_policy(ctrt_memory_policy_stats *out, const struct device_memory *memory);

#endif
