/* SPDX-License-Identifier: Apache-2.0 */
/* memory_stats/segments.c: lists the segments and blocks of a policy. */
#include "memory_stats/segments.h"

#include <stdlib.h>

#include "base/array.h"
#include "memory/policy.h"
#include "memory_stats/stats.h"

struct segment_list {
    ctrt_memory_piece *pieces;
    size_t count, capacity;
    bool failed;
};

/* Called with the policy's locks held. */
static void segments_visit(const ctrt_memory_piece *piece, void *argument)
{
    struct segment_list *list = argument;
    list->failed = list->failed || !ARRAY_GROW(list->pieces, list->capacity, list->count);
    if (list->failed)
        return;
    ctrt_memory_piece *copy = &list->pieces[list->count++];
    memset(copy, 0, sizeof *copy);
    memcpy(copy, piece, MIN(piece->size, sizeof *copy));
}

/* A segment with its blocks: `count` entries from index `from`. Runs are sorted by the segment's address. */
struct segments_run {
    size_t from, count;
    uintptr_t address;
};

static int compare_runs(const void *a, const void *b)
{
    const struct segments_run *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address;
}

static bool segments_sort(struct segment_list *list)
{
    size_t runs = 0;
    for (size_t i = 0; i < list->count; i++)
        runs += list->pieces[i].segment;
    HOST_AUTO struct segments_run *order = host_alloc(runs * sizeof *order);
    ctrt_memory_piece *sorted = order != NULL ? host_alloc(list->count * sizeof *sorted) : NULL;
    if (sorted == NULL)
        return false;
    size_t run = 0, to = 0;
    for (size_t i = 0; i < list->count; i++) {
        if (list->pieces[i].segment)
            order[run++] = (struct segments_run){ i, 0, (uintptr_t)list->pieces[i].address };
        if (run > 0)
            order[run - 1].count++;
    }
    qsort(order, runs, sizeof *order, compare_runs);
    for (size_t i = 0; i < runs; i++)
        for (size_t k = 0; k < order[i].count; k++)
            sorted[to++] = list->pieces[order[i].from + k];
    host_free(list->pieces);
    list->pieces = sorted;
    list->count = to;
    return true;
}

static int compare_addresses(const void *a, const void *b)
{
    const ctrt_memory_piece *x = a, *y = b;
    return (uintptr_t)x->address < (uintptr_t)y->address ? -1 : (uintptr_t)x->address > (uintptr_t)y->address;
}

/* If the top policy moves memory, copies the names of blocks from its list to the lowest policy's list, because the
 * lowest policy has no names. */
static bool name_moving(struct segment_list *list, const struct policy_layer *top)
{
    struct segment_list moving = { 0 };
    size_t blocks = 0;
    top->policy->walk(top->state, segments_visit, &moving);
    for (size_t i = 0; i < moving.count; i++)
        if (!moving.pieces[i].segment)
            moving.pieces[blocks++] = moving.pieces[i];
    if (blocks > 0)
        qsort(moving.pieces, blocks, sizeof moving.pieces[0], compare_addresses);
    for (size_t i = 0; blocks > 0 && i < list->count; i++) {
        ctrt_memory_piece *piece = &list->pieces[i];
        const ctrt_memory_piece *found = bsearch(piece, moving.pieces, blocks, sizeof *piece, compare_addresses);
        if (!piece->segment && piece->block_state == CTRT_BLOCK_ACTIVE && found != NULL)
            piece->name = found->name;
    }
    host_free(moving.pieces);
    return !moving.failed;
}

bool segments_list(ctrt_memory_piece **out, size_t *count, struct device_memory *memory)
{
    *out = NULL;
    *count = 0;
    if (memory->policy_count == 0)           /* the device was closed */
        return true;
    const struct policy_layer *lowest = memory->policies[memory->policy_count - 1];
    struct segment_list list = { 0 };
    if (!CTRT_SLOT(lowest->policy, walk))
        return true;
    lowest->policy->walk(lowest->state, segments_visit, &list);
    const struct policy_layer *top = memory->policies[0];
    const bool moves = memory->moves && top != lowest && CTRT_SLOT(top->policy, walk);
    if (list.failed || !segments_sort(&list) || (moves && !name_moving(&list, top))) {
        host_free(list.pieces);
        return false;
    }
    *out = list.pieces;
    *count = list.count;
    return true;
}

static void note_largest(const ctrt_memory_piece *piece, void *argument)
{
    uint64_t *largest = argument;
    if (!piece->segment && piece->block_state != CTRT_BLOCK_ACTIVE && piece->bytes > *largest)
        *largest = piece->bytes;
}

bool segments_largest_free(uint64_t *bytes, struct device_memory *memory)
{
    ctrt_memory_policy_stats stats;
    *bytes = 0;
    if (memory->policy_count == 0)
        return false;
    const struct policy_layer *lowest = memory->policies[memory->policy_count - 1];
    if (stats_of_policy(&stats, memory) && stats.largest_free > 0) {
        *bytes = stats.largest_free;
        return true;
    }
    if (!CTRT_SLOT(lowest->policy, walk))
        return false;
    lowest->policy->walk(lowest->state, note_largest, bytes);
    return true;
}
