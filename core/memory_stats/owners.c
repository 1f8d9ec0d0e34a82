/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/owners.c: allocated bytes by owner. */
#include "memory_stats/owners.h"

#include <stdlib.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/json.h"
#include "memory/block_table.h"

/* Labels are interned and ops are static, so equal ones usually have the same address; strings of plugins may not. */
static int by_name(const void *a, const void *b)
{
    const ctrt_memory_owner *x = a, *y = b;
    int order = x->label == y->label ? 0 : strcmp(x->label, y->label);
    return order != 0 || x->op == y->op ? order : strcmp(x->op, y->op);
}

static int by_bytes(const void *a, const void *b)
{
    const ctrt_memory_owner *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return by_name(a, b);
}

/* Merges adjacent entries of the same owner. Returns the new number of entries. */
static size_t owners_merge(ctrt_memory_owner *owners, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (kept > 0 && by_name(&owners[kept - 1], &owners[i]) == 0) {
            owners[kept - 1].bytes += owners[i].bytes;
            owners[kept - 1].requested += owners[i].requested;
            owners[kept - 1].blocks += owners[i].blocks;
        } else {
            owners[kept++] = owners[i];
        }
    }
    return kept;
}

bool owners_of(ctrt_memory_owner **out, size_t *count, struct device_memory *memory)
{
    HOST_AUTO struct block_entry *blocks = NULL;
    size_t n;
    uint64_t bytes = 0, requested = 0;
    if (!block_table_list(&blocks, &n, memory))
        return false;
    ctrt_memory_owner *owners = host_alloc((n + 1) * sizeof *owners);
    if (owners == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        owners[i] = (ctrt_memory_owner){
            .label = blocks[i].label, .op = blocks[i].op != NULL ? blocks[i].op : "", .bytes = blocks[i].bytes,
            .requested = blocks[i].requested, .blocks = 1,
        };
        bytes += blocks[i].bytes;
        requested += blocks[i].requested;
    }
    size_t watched = n;
    qsort(owners, n, sizeof *owners, by_name);
    n = owners_merge(owners, n);
    uint64_t all = counters_current(&memory->counters, COUNTER_BYTES);
    uint64_t all_requested = counters_current(&memory->counters, COUNTER_REQUESTED);
    uint64_t all_blocks = counters_current(&memory->counters, COUNTER_COUNT);
    if (all > bytes)
        owners[n++] = (ctrt_memory_owner){
            .label = OWNER_UNKNOWN, .op = "", .bytes = all - bytes,
            .requested = all_requested > requested ? all_requested - requested : 0,
            .blocks = all_blocks > watched ? all_blocks - watched : 0,
        };
    qsort(owners, n, sizeof *owners, by_bytes);
    *out = owners;
    *count = n;
    return true;
}

const char *owner_label(char label[128], const ctrt_memory_owner *owner)
{
    if (*owner->label == '\0' && *owner->op == '\0')
        return "(no label)";
    if (*owner->label == '\0' || *owner->op == '\0')
        snprintf(label, 128, "%.120s", *owner->label != '\0' ? owner->label : owner->op);
    else
        snprintf(label, 128, "%.90s (%.30s)", owner->label, owner->op);
    return label;
}

bool owners_largest(char label[128], struct device_memory *memory)
{
    HOST_AUTO ctrt_memory_owner *owners = NULL;
    size_t count = 0;
    char text[128];
    const bool known = owners_of(&owners, &count, memory) && count > 0;
    if (known)
        snprintf(label, 128, "%s", owner_label(text, &owners[0]));
    return known;
}

void owners_json(struct json *json, const char *key, const ctrt_memory_owner *owners, size_t count)
{
    json_begin(json, key, '[');
    for (size_t i = 0; i < count; i++) {
        json_begin(json, NULL, '{');
        json_add_string(json, "label", owners[i].label);
        json_add_string(json, "op", owners[i].op);
        json_add_uint(json, "bytes", owners[i].bytes);
        json_add_uint(json, "requested", owners[i].requested);
        json_add_uint(json, "blocks", owners[i].blocks);
        json_end(json, '}');
    }
    json_end(json, ']');
}

ctrt_status ctrt_memory_owners(ctrt_memory_owner **out, size_t *count, ctrt_device *device)
{
    struct device_memory *memory;
    if (out == NULL || count == NULL)
        return fail_null("memory_owners", out == NULL ? "out" : "count");
    CTRT_TRY(memory_get(&memory, device));
    if (!owners_of(out, count, memory))
        return out_of_memory(sizeof **out, "the list of owners");
    return CTRT_OK;
}
