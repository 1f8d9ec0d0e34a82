/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/owners.h: allocated bytes by owner, which is a label and an op. */
#ifndef CORE_MEMORY_STATS_OWNERS_H
#define CORE_MEMORY_STATS_OWNERS_H

#include "memory/block_table.h"

struct json;

/* Lists the owners, largest first. Blocks that are not in the table of allocated blocks form one owner, so that the sum
 * is what is allocated on the device. *out is new and the caller frees it. Returns false if memory runs out. */
bool owners_of(ctrt_memory_owner **out, size_t *count, struct device_memory *memory);
/* Adds the owners as an array. */
void owners_json(struct json *json, const char *key, const ctrt_memory_owner *owners, size_t count);
/* Writes "encoder (matmul)" to label[128], or returns a constant string. */
const char *owner_label(char label[128], const ctrt_memory_owner *owner);
/* Writes the label and op that allocated most of the device's memory in use, "encoder (matmul)". Returns false if there
 * is no record of any owner. */
bool owners_largest(char label[128], struct device_memory *memory);

#endif
