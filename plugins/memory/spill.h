/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/spill.h: a memory policy that moves device memory to the host when the device is full, and back when
 * it is used.
 *
 * A block has a name, which is an address that is unique while the block exists and cannot be accessed (spill_names.c),
 * and a place:
 *
 *   HERE      in device memory allocated from the source for the queue `home`; on the list `here`, oldest use first
 *   AWAY      its bytes are in pinned host memory, or it has no content; on the list `away`
 *   LEAVING   a thread is moving it to the host
 *   COMING    a thread is moving it to the device
 *
 * All copies run on the block's home queue, after the work of the other queues that used it. A queue that fails does
 * not execute its copies. Therefore a copy of the bytes is released only when another copy is known to be valid. Device
 * memory is freed after the copy to the host is known to have succeeded. Pinned memory is kept until the copy back to
 * the device is known to have succeeded. If the copy back failed, it is repeated. One lock guards lists, places and
 * counters; it is released during requests for device or pinned memory and during waits. */
#ifndef CTRT_MEMORY_SPILL_H
#define CTRT_MEMORY_SPILL_H

#include <pthread.h>
#include <stdatomic.h>

#include "source.h"

#define SPILL_GRANULE 512               /* sizes and names are multiples of this */
#define SPILL_CLASSES 320               /* eight between two powers of two, from 512 bytes up to 2^48 */

enum place { HERE, AWAY, LEAVING, COMING };

/* Pinned host memory, or pageable memory if pinned memory has run out and a block must leave the device. A copy may use
 * it until `fence` is done or, if no fence could be created (`unfenced`), until all work on `queue` is done. */
struct buffer {
    struct buffer *next;
    void *address;
    unsigned class;
    bool pageable;
    void *queue, *fence;
    bool unfenced;
};

struct block {                          /* the cookie */
    struct block *before, *after;       /* neighbours on one of the lists */
    void *name;
    unsigned class;                     /* size class of the name: the number of addresses that belong to the block */
    enum place place;
    size_t bytes;
    uint32_t uses;                      /* number of calls of use without unuse */
    bool written;                       /* true after the first use: the block has content */
    bool arrived;                       /* HERE, with a buffer: the copy to the device succeeded */
    bool copying;                       /* LEAVING: a copy to the host is in progress */
    ctrt_status outcome;                /* LEAVING: result so far */
    bool ahead;                         /* was prefetched and has not been used after that */
    bool follow;                        /* was moved to the device because it was used, so unuse may prefetch the next
                                         * block */
    uint64_t left;                      /* AWAY: sequence number of its move to the host */
    uint64_t used;                      /* HERE: time of the last use, in `clock` */
    void *address, *home;               /* HERE: address in device memory, and the queue that the memory belongs to */
    void **others;                      /* HERE: queues other than home that have used it since it is here */
    uint32_t other_count, other_capacity;
    struct buffer *buffer;              /* AWAY: the content, NULL: none. HERE: the buffer it was copied from, or
                                         * NULL */
};

struct list {
    struct block *first, *last;
};

struct spill {
    const ctrt_memory_source *source;
    struct spill *next;                 /* in the list of all policies, for fork handlers */
    bool moves;                         /* false: passes all requests through, because the device uses host memory or is
                                         * synchronous */
    bool forked;                        /* in a forked child, for a device of the parent: neither usable nor
                                         * consistent */
    /* Options. */
    size_t host_limit;                  /* limit of pinned bytes */
    bool prefetch;

    pthread_mutex_t lock;
    pthread_cond_t changed;             /* a block arrived, left, was unused or was freed */
    struct list here, away, limbo;      /* limbo: freed blocks whose queues could not be made to wait; spill_free_limbo
                                         * tries again */
    struct block *names[SPILL_CLASSES]; /* free names, linked by `after` */
    char *names_from, *names_at, *names_end;
    struct buffer *buffers[SPILL_CLASSES];
    uint64_t clock, leavings;           /* last number of a use and of a move to the host */
    uint64_t last_back;                 /* `left` of the block that was moved to the device last */
    size_t here_bytes, away_bytes, pinned_bytes, away_count, here_count;
    size_t ceiling;                     /* known limit of the bytes that fit on the device */
    uint32_t leaving;                   /* number of blocks that are LEAVING */
    uint64_t in_use, stuck;             /* uses; uses by threads that wait for others */
    uint32_t waiting;                   /* number of waiting threads */
    _Atomic uint64_t changes;           /* number of times that a block arrived, left, was unused or was freed */
    /* Statistics. */
    uint64_t source_allocs, source_frees, rounds, out_count, out_bytes, back_count, back_bytes, ahead_count, hits;
    uint64_t logged_bytes;              /* log moves again when out_bytes reaches it */
    ctrt_stat reserved, spilled, spilled_bytes;
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

/* ---- names (spill_names.c); requires the lock, except to open and close ---- */

unsigned spill_class(size_t bytes);
size_t spill_class_bytes(unsigned class);
ctrt_status spill_names_open(struct spill *self);
void spill_names_close(struct spill *self);
ctrt_status spill_name_new(struct spill *self, struct block **out, size_t bytes);
void spill_name_free(struct spill *self, struct block *block);

/* ---- pinned memory (spill_pinned.c); the lock must not be held ---- */

/* Returns a buffer of at least `bytes`, which later work on `queue` may use. `must`: use pageable memory if pinned
 * memory runs out. */
ctrt_status spill_buffer_take(struct spill *self, struct buffer **out, size_t bytes, void *queue, bool must);
/* Records that all work on `queue` until now may use the buffer. On failure the buffer is `unfenced`: completion and
 * result of that work are unknown. */
ctrt_status spill_buffer_fence(struct spill *self, struct buffer *buffer, void *queue);
/* Makes `queue` wait for the work recorded by spill_buffer_fence. */
ctrt_status spill_buffer_order(struct spill *self, struct buffer *buffer, void *queue);
/* Adds the buffer to the free buffers. */
void spill_buffer_put(struct spill *self, struct buffer *buffer);
/* Frees all free buffers, after waiting for their copies. */
void spill_buffers_trim(struct spill *self);

/* ---- choice (spill_choice.c); requires the lock ---- */

/* Removes unused blocks from the list `here`, so that `bytes` more may fit for `queue`, and returns them linked by
 * `after`; NULL if no block is unused. */
struct block *spill_choose(struct list *here, size_t bytes, const void *queue);

/* ---- moving (spill_move.c); the lock must not be held, unless stated otherwise ---- */

/* Allocates device memory for `bytes` on `queue`, and moves other blocks to the host if necessary. `must`: the memory
 * is for an existing block; then the request does not fail because of a lack of pinned memory. Otherwise, no blocks
 * could be exchanged when the device and the pinned memory are both full. */
ctrt_status spill_make_space(struct spill *self, void **address, size_t bytes, void *queue, bool must);
/* Moves a block to the device. The caller has set its place to COMING and removed it from its list. `ahead`: only if no
 * other block has to leave. */
ctrt_status spill_move_back(struct spill *self, struct block *block, void *queue, bool ahead);
/* Frees the device memory of a block that is on no list. Returns false if the home queue cannot be made to wait for the
 * block's other queues now. */
bool spill_drop(struct spill *self, struct block *block, void *fence);
/* Tries to free the blocks in limbo again. */
void spill_free_limbo(struct spill *self);
/* Adds `sign` (1 or -1) to the calling thread's number of uses. Requires the lock. */
void spill_count_use(struct spill *self, int sign);
/* Waits until no other thread moves the block. Requires the lock. */
void spill_wait_settled(struct spill *self, const struct block *block);
void spill_notify(struct spill *self);
/* Reports whether the copy of a block that is HERE to the device succeeded. *known: false if that is not known yet.
 * Requires the lock. */
bool spill_arrived(struct spill *self, struct block *block, bool *known);
/* Makes the bytes of a block valid for later work on `queue`: waits for the result of the copy to the device, and
 * copies again if it failed. The caller has set the block's place to COMING and removed it from its list. */
ctrt_status spill_ensure_valid(struct spill *self, struct block *block, void *queue);
/* Counts a block that arrived (1) or whose device memory was freed (-1). Requires the lock. */
void spill_count_device(struct spill *self, const struct block *block, int sign);
/* Counts a block whose bytes are on the host now (1) or no longer (-1). Requires the lock. */
void spill_count_host(struct spill *self, const struct block *block, int sign);
void host_add(struct spill *self, struct block *block);
void host_remove(struct spill *self, struct block *block);

#endif
