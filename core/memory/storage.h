/* SPDX-License-Identifier: Apache-2.0 */
/* memory/storage.h: bytes on a device, shared by the tensors that view them.
 *
 * A storage is embedded in the tensor that made it (one allocation less); views refer to it. `refs` counts tensors; a
 * tensor that is gone while its embedded storage is still viewed keeps its struct alive (tensor.c). */
#ifndef CORE_MEMORY_STORAGE_H
#define CORE_MEMORY_STORAGE_H

#include <stdatomic.h>

#include "device/stream.h"
#include "memory/pool.h"

#define ORDER_READERS 8                     /* streams that read at a time without waiting for one another */

/* Who uses the bytes on which stream (order.h): the last writer, and the readers since. As long as the stream that they were taken on is
 * alone with them, its own lock, which it holds anyway when it puts work on its queue, guards the two marks that are enough then. Whoever
 * comes from another stream takes that lock once and makes them shared, for good. */
struct storage_uses {
    atomic_uint_least32_t owner;            /* slot of the stream that is alone; USES_SHARED: see below */
    atomic_bool locked;                     /* for the rest, when they are shared */
    bool mixed;                             /* not all of `readers` only read: who reads waits for all */
    uint32_t n_readers;
    stream_mark writer, readers[ORDER_READERS];     /* of the owner: its last write, its last use */
    struct accesses *_Atomic accesses;      /* races.h; NULL: none, or CTRT_STREAM_ORDER is not check */
};
#define USES_SHARED UINT32_MAX

struct storage {
    atomic_int refs;
    _Atomic uint32_t version;               /* in-place writes so far */
    ctrt_device *device;
    ctrt_block block;                       /* block.address is the data; cookie belongs to the policy */
    size_t bytes;                           /* as asked for; block.bytes is what was granted */
    void (*release)(struct storage *self);  /* NULL: the block goes back to the device's pool */
    void *user[2];                          /* for release */
    void (*home_release)(struct storage *self);     /* tensor.c: the struct that embeds this one may go */
    /* On an asynchronous device, and in pinned memory: */
    bool ordered;                           /* uses are noted; else `uses` is unspecified */
    bool moves;                             /* block.address only names the bytes; pool_use says where they are */
    ctrt_stream *stream;                    /* whose memory it is; NULL: the host's */
    struct capture *capture;                /* that made it (capture.h); NULL: none, the memory is the policy's */
    struct storage_uses uses;
};

/* Fills `self` with memory of `device`: refs 1, version 0. `bytes` may be 0. */
ctrt_status storage_init(struct storage *self, ctrt_device *device, size_t bytes);

static inline void storage_retain(struct storage *self)
{
    atomic_fetch_add_explicit(&self->refs, 1, memory_order_relaxed);
}

/* Makes a fresh storage one whose uses are noted. `stream`, whose memory it is, is alone with it (NULL: nobody's), and is not to be
 * overtaken from before `birth` (0: nothing is to be waited for). */
static inline void storage_order(struct storage *self, ctrt_stream *stream, stream_mark birth)
{
    self->ordered = true;
    self->stream = stream;
    self->capture = NULL;
    atomic_init(&self->uses.owner, stream != NULL ? stream_slot(stream) : USES_SHARED);
    atomic_init(&self->uses.locked, false);
    self->uses.mixed = false;
    self->uses.n_readers = 0;
    self->uses.writer = 0;
    self->uses.readers[0] = birth;
    atomic_init(&self->uses.accesses, NULL);
}

/* Gives the data back; the struct itself is its home's business. */
void storage_destroy(struct storage *self);

/* Drops one reference of a storage that is not, or no longer, the sole business of its tensor. */
static inline void storage_release(struct storage *self)
{
    if (atomic_fetch_sub_explicit(&self->refs, 1, memory_order_acq_rel) != 1)
        return;
    storage_destroy(self);
    self->home_release(self);
}

#endif
