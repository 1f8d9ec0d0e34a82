/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/races.c: the option races: accesses of shared memory by threads of a block that nothing orders.
 *
 * Each byte has a record of its last writes and reads. Two accesses of a byte by different threads are ordered if a
 * barrier of the block is between them, or, for threads of one warp, a bar.warp.sync. One of two that are not must not
 * be a write, unless both are atomic, or are the same instruction of one warp. A copy by cp.async is a write from its
 * issue until its wait, and no access of its bytes may be between the two. */
#include "machine.h"

#include <stdlib.h>

#define SEVERAL_WARPS 255

/* The threads that accessed a byte last, without an order between them. */
struct accesses {
    uint32_t epoch, sync;                   /* barriers of the block and syncs of the warp before the access */
    uint32_t lanes, place;                  /* lanes of the warp; the instruction */
    uint8_t warp;                           /* or SEVERAL_WARPS */
    bool atomic;
};

struct access_record {
    struct accesses write, read;
    uint32_t copying;                       /* the epoch in which a copy by cp.async began; 0: none is under way */
};

struct access_record *ptx_records_new(size_t bytes)
{
    struct access_record *records = calloc(bytes, sizeof *records);
    if (records == NULL)
        abort();
    return records;
}

/* Whether the accesses `a` are neither by this thread alone nor before a barrier that orders them. */
static bool unordered(const struct accesses *a, const struct warp *w, unsigned lane)
{
    if (a->epoch != w->block->epoch)
        return false;
    return a->warp != w->number || (a->sync == w->syncs && (a->lanes & ~(1u << lane)) != 0);
}

static void add(struct accesses *a, const struct warp *w, const struct insn *i, unsigned lane, bool atomic)
{
    const bool now = a->epoch == w->block->epoch;
    if (!now || (a->warp == w->number && a->sync != w->syncs))
        *a = (struct accesses){ .epoch = w->block->epoch, .warp = (uint8_t)w->number, .atomic = true };
    else if (a->warp != w->number)
        a->warp = SEVERAL_WARPS;
    a->sync = w->syncs;
    a->lanes |= 1u << lane;
    a->place = (uint32_t)(uintptr_t)i;
    a->atomic &= atomic;
}

/* Who made the accesses, for a message. */
static const char *who(const struct accesses *a, const struct warp *w)
{
    return a->warp == w->number ? "another lane" : "another warp";
}

void ptx_record(struct warp *w, const struct insn *i, unsigned lane, const unsigned char *at, unsigned bytes,
                enum shared_access access)
{
    static const char *const verbs[] = { "reads", "writes", "updates", "copies to", "completes a copy to" };
    struct block *b = w->block;
    if (b->records == NULL || at < b->shared || at >= b->shared + b->shared_bytes)
        return;
    const bool writes = access != READS, atomic = access == UPDATES;
    struct access_record *r = b->records + (at - b->shared);
    for (unsigned k = 0; k < bytes; k++, r++) {
        const unsigned address = (unsigned)(at - b->shared) + k;
        const struct accesses *other = NULL;
        if (r->copying >= b->first_epoch && r->copying != 0 && access != ENDS_COPY)
            ptx_fail(w, i, 719, "lane %u %s shared memory at %u, to which a copy is under way", lane, verbs[access],
                     address);
        if (unordered(&r->write, w, lane) && !(atomic && r->write.atomic)
            && !(writes && r->write.warp == w->number && r->write.place == (uint32_t)(uintptr_t)i))
            other = &r->write;
        else if (writes && unordered(&r->read, w, lane))
            other = &r->read;
        if (other != NULL)
            ptx_fail(w, i, 719, "lane %u %s shared memory at %u, which %s has %s since the last barrier", lane,
                     verbs[access], address, who(other, w), other == &r->write ? "written" : "read");
        add(writes ? &r->write : &r->read, w, i, lane, atomic);
        if (access >= BEGINS_COPY)
            r->copying = access == BEGINS_COPY ? b->epoch : 0;
    }
}
