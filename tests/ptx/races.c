/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/races.c: the option races: accesses of shared memory by threads of a block that nothing orders.
 *
 * There is a record of the last writes and reads of each byte. Two accesses of a byte by different threads are ordered
 * if a barrier of the block is between them, or, for threads of one warp, a bar.warp.sync. One of two that are not must
 * not be a write, unless both are atomic, or are the same instruction of one warp. A copy by cp.async is a write from
 * its issue until its wait, and no access of its bytes may be between the two.
 *
 * Most accesses are of aligned words of 4 bytes, so a word has one record until a part of it is accessed. Then each of
 * its bytes has its own, until all of them are equal again. */
#include "machine.h"

#include <stdlib.h>

#define SEVERAL_WARPS 255
#define WORD          4

/* The threads that accessed bytes last, without an order between them. */
struct accesses {
    uint32_t epoch, sync;                   /* barriers of the block and syncs of the warp before the access */
    uint32_t lanes;                         /* of the warp */
    uint8_t warp;                           /* or SEVERAL_WARPS */
    bool atomic;
};

struct access_record {
    struct accesses write, read;
    uint32_t place;                         /* the instruction that wrote */
    uint32_t copying;                       /* the epoch in which a copy by cp.async began; 0: none is under way */
    bool is_split;                          /* of a word: its bytes have records */
};

/* The records of the words, then those of the bytes. */
struct access_record *ptx_records_new(size_t bytes)
{
    struct access_record *records = calloc(bytes / WORD + bytes, sizeof *records);
    if (records == NULL)
        abort();
    return records;
}

/* Whether accesses of the lanes are ordered with `a` neither by a barrier nor because one thread made all of them. */
static inline bool unordered(const struct accesses *a, const struct warp *w, uint32_t lanes)
{
    if (a->epoch != w->block->epoch)
        return false;
    return a->warp != w->number || (a->sync == w->syncs && ((a->lanes & ~lanes) != 0 || (lanes & (lanes - 1)) != 0));
}

static inline void add(struct accesses *a, const struct warp *w, uint32_t lanes, bool atomic)
{
    const bool now = a->epoch == w->block->epoch;
    if (!now || (a->warp == w->number && a->sync != w->syncs))
        *a = (struct accesses){ .epoch = w->block->epoch, .warp = (uint8_t)w->number, .atomic = true };
    else if (a->warp != w->number)
        a->warp = SEVERAL_WARPS;
    a->sync = w->syncs;
    a->lanes |= lanes;
    a->atomic &= atomic;
}

/* The accesses with which those of the lanes are not ordered, or NULL. */
static inline const struct accesses *conflict(const struct access_record *r, const struct warp *w, const struct insn *i,
                                              uint32_t lanes, enum shared_access access)
{
    const bool writes = access != READS;
    if (unordered(&r->write, w, lanes) && !(access == UPDATES && r->write.atomic)
        && !(writes && r->write.warp == w->number && r->place == (uint32_t)(uintptr_t)i))
        return &r->write;
    return writes && unordered(&r->read, w, lanes) ? &r->read : NULL;
}

static inline bool is_copied(const struct access_record *r, const struct warp *w, enum shared_access access)
{
    return r->copying != 0 && r->copying >= w->block->first_epoch && access != ENDS_COPY;
}

static __attribute__((noinline, noreturn)) void report(struct warp *w, const struct insn *i, uint32_t lanes,
                                                       const struct access_record *r, unsigned at,
                                                       enum shared_access access)
{
    static const char *const verbs[] = { "reads", "writes", "updates", "copies to", "completes a copy to" };
    const struct accesses *other = NULL;
    unsigned lane = (unsigned)__builtin_ctz(lanes);
    if (is_copied(r, w, access))
        ptx_fail(w, i, 719, "lane %u %s shared memory at %u, to which a copy is under way", lane, verbs[access], at);
    for (uint32_t m = lanes; other == NULL; m &= m - 1) {
        lane = (unsigned)__builtin_ctz(m);
        other = conflict(r, w, i, 1u << lane, access);
    }
    ptx_fail(w, i, 719, "lane %u %s shared memory at %u, which %s has %s since the last barrier", lane, verbs[access],
             at, other->warp == w->number ? "another lane" : "another warp",
             other == &r->write ? "written" : "read");
}

/* Records the access of the word or byte at offset `at` of shared memory. */
static inline void record(struct warp *w, const struct insn *i, uint32_t lanes, struct access_record *r, unsigned at,
                          enum shared_access access)
{
    if (__builtin_expect(is_copied(r, w, access) || conflict(r, w, i, lanes, access) != NULL, 0))
        report(w, i, lanes, r, at, access);
    if (access == READS) {
        add(&r->read, w, lanes, false);
        return;
    }
    add(&r->write, w, lanes, access == UPDATES);
    r->place = (uint32_t)(uintptr_t)i;
    if (access >= BEGINS_COPY)
        r->copying = access == BEGINS_COPY ? w->block->epoch : 0;
}

static bool same_accesses(const struct accesses *a, const struct accesses *b, uint32_t epoch)
{
    if (a->epoch != epoch || b->epoch != epoch)
        return a->epoch != epoch && b->epoch != epoch;
    return a->sync == b->sync && a->lanes == b->lanes && a->warp == b->warp && a->atomic == b->atomic;
}

/* Records the access of `count` bytes of a word. */
static __attribute__((noinline)) void record_bytes(struct warp *w, const struct insn *i, uint32_t lanes,
                                                   struct access_record *word, unsigned at, unsigned count,
                                                   enum shared_access access)
{
    struct access_record *bytes = w->block->records + w->block->shared_room / WORD + at / WORD * WORD;
    if (!word->is_split)
        for (unsigned k = 0; k < WORD; k++)
            bytes[k] = *word;
    for (unsigned k = at % WORD; k < at % WORD + count; k++)
        record(w, i, lanes, &bytes[k], at / WORD * WORD + k, access);
    bool same = true;
    for (unsigned k = 1; k < WORD; k++)
        same = same && same_accesses(&bytes[0].write, &bytes[k].write, w->block->epoch)
               && same_accesses(&bytes[0].read, &bytes[k].read, w->block->epoch)
               && (bytes[0].write.epoch != w->block->epoch || bytes[0].place == bytes[k].place)
               && bytes[0].copying == bytes[k].copying;
    if (same)
        *word = bytes[0];
    word->is_split = !same;
}

static inline void record_all(struct warp *w, const struct insn *i, uint32_t lanes, const unsigned char *at,
                              unsigned bytes, enum shared_access access)
{
    struct block *b = w->block;
    if (at < b->shared || at >= b->shared + b->shared_bytes)
        return;
    unsigned offset = (unsigned)(at - b->shared);
    struct access_record *word = &b->records[offset / WORD];
    for (const unsigned end = offset + bytes; offset < end; offset += WORD, word++)
        if (bytes < WORD || word->is_split)
            record_bytes(w, i, lanes, word, offset, bytes < WORD ? bytes : WORD, access);
        else
            record(w, i, lanes, word, offset, access);
}

void ptx_record(struct warp *w, const struct insn *i, unsigned lane, const unsigned char *at, unsigned bytes,
                enum shared_access access)
{
    if (w->block->records != NULL)
        record_all(w, i, 1u << lane, at, bytes, access);
}

void ptx_record_reads(struct warp *w, const struct insn *i, uint32_t mask, unsigned char *const *at, unsigned bytes)
{
    while (mask != 0) {
        const unsigned lane = (unsigned)__builtin_ctz(mask);
        uint32_t lanes = 0;
        do {
            lanes |= mask & -mask;
            mask &= mask - 1;
        } while (mask != 0 && at[__builtin_ctz(mask)] == at[lane]);
        record_all(w, i, lanes, at[lane], bytes, READS);
    }
}

void ptx_record_writes(struct warp *w, const struct insn *i, uint32_t mask, unsigned char *const *at, unsigned bytes)
{
    EACH_LANE(record_all(w, i, 1u << l, at[l], bytes, WRITES));
}
