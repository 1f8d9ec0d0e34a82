/* SPDX-License-Identifier: Apache-2.0 */
/* memory/owners.h: live blocks added up by who took them. */
#ifndef CORE_MEMORY_OWNERS_H
#define CORE_MEMORY_OWNERS_H

#include "memory/live.h"

struct text;

#define OWNER_UNKNOWN "(not watched)"

/* Largest first, with what is not watched, so that bytes add up to what is allocated. *out is new and the caller's;
 * false without memory. */
bool owners_of(ctrt_memory_owner **out, size_t *count, struct device_memory *memory);
/* A JSON array of the first `most` of them. */
void owners_json(struct text *text, const ctrt_memory_owner *owners, size_t count, size_t most);
/* "encoder (matmul)" into label[128]. */
const char *owner_label(char label[128], const ctrt_memory_owner *owner);

#endif
