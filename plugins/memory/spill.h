/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/spill.h: device memory that goes to the host when there is too little of it, and comes back when it is used.
 *
 * A block has a name, an address that nobody can read and that is its own while it lives (spill_names.c), and a place:
 *
 *   HERE      in device memory, drawn from the source for the queue `home`; on the list of age, the latest used last
 *   AWAY      its bytes are in pinned host memory, or it has none worth keeping; on the list of what is away
 *   LEAVING   a thread is moving it away
 *   COMING    a thread is bringing it back
 *
 * All copies run on the block's home queue, behind the work of the other queues that used it. No value is given up before another is
 * known to be good, because a queue that fails drops its copies: the memory of a block that leaves goes back when the host has seen the
 * copy succeed, and what was copied back keeps its pinned memory until that is seen, to be copied again if it was not.
 * One lock guards lists, places and counts; it is not held while the source is asked for memory, pinned memory, or to wait. */
#ifndef CTRT_MEMORY_SPILL_H
#define CTRT_MEMORY_SPILL_H

#include <pthread.h>
#include <stdatomic.h>

#include "source.h"

#define SPILL_GRANULE 512               /* sizes and names are multiples of this */
#define SPILL_CLASSES 320               /* eight to each doubling from 512 bytes on, up to 2^48 */

extern const ctrt_host *spill_host;

enum place { HERE, AWAY, LEAVING, COMING };

/* Pinned host memory, or pageable when it has run out and something must give way. A copy may still read or write it: until
 * `fence`, or, where none could be had, until all work on `queue`. */
struct buffer {
    struct buffer *next;
    void *address;
    unsigned class;
    bool pageable;
    void *queue, *fence;
    bool unfenced;
};

struct block {                          /* the cookie */
    struct block *before, *after;       /* on one of the lists */
    void *name;
    unsigned class;                     /* of the name: these bytes of names are the block's */
    enum place place;
    size_t bytes;
    uint32_t uses;                      /* between use and unuse */
    bool written;                       /* was ever used: there are bytes to keep */
    bool arrived;                       /* HERE, with a buffer: the copy back went well */
    bool copying;                       /* LEAVING: a copy to the host is under way */
    ctrt_status outcome;                /* LEAVING: so far */
    bool ahead;                         /* came before it was asked for, and was not used since */
    bool follow;                        /* came because it was used: at unuse the next one may come ahead */
    uint64_t left;                      /* AWAY: number of its leaving */
    uint64_t used;                      /* HERE: when last */
    void *address, *home;               /* HERE */
    void **others;                      /* HERE: queues besides home that used it since it came */
    uint32_t other_count, other_room;
    struct buffer *buffer;              /* AWAY: the bytes, NULL: none. HERE: where they came from, or NULL */
};

struct list {
    struct block *first, *last;
};

struct spill {
    const ctrt_memory_source *source;
    struct spill *next;                 /* of all, for forks */
    bool moves;                         /* else all is handed through: host memory, or a synchronous device */
    bool forked;                        /* of a parent's device, in the child of a fork: nothing here can be used, or is whole */
    /* Options. */
    size_t host_limit;                  /* pinned bytes */
    bool prefetch;

    pthread_mutex_t lock;
    pthread_cond_t changed;             /* a block arrived, left, was let go of or freed */
    struct list here, away, limbo;      /* limbo: freed, but its queues could not be asked to wait: spill_settle tries again */
    struct block *names[SPILL_CLASSES]; /* free ones, by `after` */
    char *names_from, *names_at, *names_end;
    struct buffer *buffers[SPILL_CLASSES];
    uint64_t clock, leavings;           /* last number of a use, of a leaving */
    uint64_t last_back;                 /* number of the leaving of what came back last */
    size_t here_bytes, away_bytes, pinned_bytes, away_count, here_count;
    size_t ceiling;                     /* bytes that fit here, as far as is known */
    uint32_t leaving;                   /* blocks that are */
    uint64_t in_use, stuck;             /* uses; uses of threads that wait for others */
    uint32_t waiting;                   /* threads */
    _Atomic uint64_t changes;           /* times that something arrived, left, was let go of or freed */
    /* Figures. */
    uint64_t source_allocs, source_frees, rounds, out_count, out_bytes, back_count, back_bytes, ahead_count, hits, told;
    ctrt_memory_stat reserved, spilled, spilled_bytes;
};

/* ---- lists ---- */

static inline void list_add(struct list *list, struct block *block)
{
    block->before = list->last;
    block->after = NULL;
    *(list->last != NULL ? &list->last->after : &list->first) = block;
    list->last = block;
}

static inline void list_take(struct list *list, struct block *block)
{
    *(block->before != NULL ? &block->before->after : &list->first) = block->after;
    *(block->after != NULL ? &block->after->before : &list->last) = block->before;
}

/* ---- names (spill_names.c), with the lock held where there is one ---- */

unsigned spill_class(size_t bytes);
size_t spill_class_bytes(unsigned class);
ctrt_status spill_names_open(struct spill *self);
void spill_names_close(struct spill *self);
ctrt_status spill_name_new(struct spill *self, struct block **out, size_t bytes);
void spill_name_free(struct spill *self, struct block *block);

/* ---- pinned memory (spill_pinned.c), without the lock ---- */

/* At least `bytes`, which work on `queue` may use from now on; `must`: pageable memory will do. */
ctrt_status spill_buffer_take(struct spill *self, struct buffer **out, size_t bytes, void *queue, bool must);
/* All work on `queue` up to now may use it. A failure: it cannot be known when that is done, and how. */
ctrt_status spill_buffer_fence(struct spill *self, struct buffer *buffer, void *queue);
/* `queue` waits for that. */
ctrt_status spill_buffer_order(struct spill *self, struct buffer *buffer, void *queue);
bool spill_buffer_idle(struct spill *self, struct buffer *buffer);
/* Back to the others. */
void spill_buffer_put(struct spill *self, struct buffer *buffer);
/* Gives back what nobody needs, waiting for copies. */
void spill_buffers_trim(struct spill *self);

/* ---- moving (spill_move.c), without the lock ---- */

/* Device memory for `bytes` on `queue`; others move away for it. `must`: for a block that exists already, so that pinned memory may not
 * be what it fails for. Else a device full of blocks and pinned memory full of others could not exchange any. */
ctrt_status spill_room(struct spill *self, void **address, size_t bytes, void *queue, bool must);
/* Brings a block back that the caller has marked COMING and taken off its list; `ahead`: only if nothing has to leave for it. */
ctrt_status spill_bring(struct spill *self, struct block *block, void *queue, bool ahead);
/* Gives the device memory of a block back that is on no list. False: nothing can make its queues wait now. */
bool spill_drop(struct spill *self, struct block *block, void *fence);
/* Tries the blocks in limbo again. */
void spill_settle(struct spill *self);
/* With the lock held: this thread has one use more (1) or less (-1). */
void spill_hold(struct spill *self, int sign);
/* With the lock held: until no other thread moves the block. */
void spill_settled(struct spill *self, const struct block *block);
void spill_changed(struct spill *self);
/* With the lock held, of a block HERE: did what was copied back arrive? *known: can that be said? */
bool spill_arrived(struct spill *self, struct block *block, bool *known);
/* The bytes of a block that the caller has marked COMING and taken off its list are what they should be, for work on `queue` from now on: waits
 * until that is known, and copies them once more if need be. */
ctrt_status spill_assure(struct spill *self, struct block *block, void *queue);
/* With the lock held: a block arrived, or its memory is gone. */
void spill_count_here(struct spill *self, const struct block *block, int sign);
/* With the lock held: the host has the bytes of a block from now on (1), or not any more (-1). */
void spill_count_away(struct spill *self, const struct block *block, int sign);
void spill_away_add(struct spill *self, struct block *block);
void spill_away_take(struct spill *self, struct block *block);

#endif
