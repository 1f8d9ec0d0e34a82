/* SPDX-License-Identifier: Apache-2.0 */
/* memory/storage.h: reference-counted bytes on a device, shared by the tensors that view them.
 *
 * A storage is embedded in the tensor that created it, which saves an allocation; views refer to it. `refs` counts
 * tensors. If a tensor is released while its embedded storage is still viewed, its struct is not freed (tensor.c). */
#ifndef CORE_MEMORY_STORAGE_H
#define CORE_MEMORY_STORAGE_H

#include <stdatomic.h>

#include "memory/pool.h"
#include "stream/stream.h"

#define HAZARD_READERS 8                    /* streams that can read concurrently without waiting for one another */

/* Records which streams use the bytes (hazard.h): the last writer, and the readers since then. While only the stream on
 * which the memory was allocated uses the bytes, that stream's lock guards `writer` and readers[0], and no other field
 * is needed. The lock is held anyway while work is enqueued. The first access from another stream takes that lock once
 * and makes the record shared permanently. */
struct storage_uses {
    atomic_uint_least32_t owner;            /* slot of the only stream; USES_SHARED: `locked` guards the rest */
    atomic_bool locked;                     /* spin lock for the fields below, when they are shared */
    bool mixed;                             /* some of `readers` may have written, so a read must wait for all of
                                             * them */
    uint32_t n_readers;
    timepoint writer, readers[HAZARD_READERS];      /* with one stream: its last write, its last use */
    struct accesses *_Atomic accesses;      /* races.h; NULL: none, or CTRT_STREAM_ORDER is not check */
};
#define USES_SHARED UINT32_MAX

struct storage {
    atomic_int refs;
    _Atomic uint32_t version;               /* number of in-place writes so far */
    ctrt_device *device;
    ctrt_block block;                       /* block.address is the data; block.cookie belongs to the policy */
    size_t bytes;                           /* as requested; block.bytes is the granted size */
    void (*release)(struct storage *self);  /* frees the data; NULL: the block is freed to the device's pool */
    void *user[2];                          /* for use by `release` */
    void (*home_release)(struct storage *self);     /* tensor.c: called when the struct that embeds this one may be
                                                     * freed */
    /* For storages of asynchronous devices and in pinned memory: */
    bool ordered;                           /* uses are recorded; else `uses` is unspecified */
    bool moves;                             /* block.address is only a name; pool_use returns the address of the
                                             * bytes */
    ctrt_stream *stream;                    /* stream that the memory was allocated on; NULL: host memory */
    struct capture *capture;                /* capture that allocated the block (capture.h); NULL: allocated from the
                                             * policy */
    struct storage_uses uses;
};

/* The operations of a capture on storages: the capture allocates the memory of storages that are created on its
 * streams, and records the storages that its work uses (graph/capture.c). */
struct capture_ops {
    /* Frees the block of such a storage. `points`: all its uses. */
    void (*free)(struct storage *storage, const timepoint *points, int count);
    /* Records that captured work uses the storage. */
    void (*use)(struct capture *capture, struct storage *storage, bool writes);
};

/* The first member of struct graph_capture (capture_parts.h), which exists from the beginning of a capture until its
 * graph is released. */
struct capture {
    const struct capture_ops *ops;
};

/* Initializes `self` with `bytes` bytes of `device`, refs 1 and version 0. `bytes` may be 0. */
ctrt_status storage_init(struct storage *self, ctrt_device *device, size_t bytes);

static inline void storage_retain(struct storage *self)
{
    atomic_fetch_add_explicit(&self->refs, 1, memory_order_relaxed);
}

/* Starts recording the uses of a new storage. `stream`: the stream that the memory was allocated on (NULL: none). Other
 * streams must wait for timepoint `available_after` before first use (0: need not wait). */
static inline void storage_order(struct storage *self, ctrt_stream *stream, timepoint available_after)
{
    self->ordered = true;
    self->stream = stream;
    self->capture = NULL;
    atomic_init(&self->uses.owner, stream != NULL ? stream_slot(stream) : USES_SHARED);
    atomic_init(&self->uses.locked, false);
    self->uses.mixed = false;
    self->uses.n_readers = 0;
    self->uses.writer = 0;
    self->uses.readers[0] = available_after;
    atomic_init(&self->uses.accesses, NULL);
}

/* Frees the data. The struct itself is freed by its owner. */
void storage_destroy(struct storage *self);

/* The `release` of a storage without elements, whose `ordered` is false. user[0] points to an absent_use function,
 * user[1] is its argument (ctrt_tensor_new_absent). */
typedef ctrt_status absent_use(void *user);
void storage_absent_release(struct storage *self);
/* Fails with the error of the absent_use function. */
ctrt_status storage_absent_fail(const struct storage *self);
/* Fails if the storage has no elements. Call before elements are accessed without one of the functions of hazard.h. */
static inline ctrt_status storage_present(const struct storage *self)
{
    return likely(self->release != storage_absent_release) ? CTRT_OK : storage_absent_fail(self);
}

/* Drops one reference; the last one frees the data and the struct. Used once tensors besides the creating one may hold
 * references. */
static inline void storage_release(struct storage *self)
{
    if (atomic_fetch_sub_explicit(&self->refs, 1, memory_order_acq_rel) != 1)
        return;
    storage_destroy(self);
    self->home_release(self);
}

#endif
