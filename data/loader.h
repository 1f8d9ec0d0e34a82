/* SPDX-License-Identifier: Apache-2.0 */
/* data/loader.h: the representation of a loader. */
#ifndef DATA_LOADER_H
#define DATA_LOADER_H

#include "ctrt/stream.h"
#include "data/ring.h"
#include "data/sampler.h"
#include "data/team.h"

struct ctrt_loader {
    ctrt_dataset *dataset;
    ctrt_sampler *sampler;              /* forms the batches; NULL for a stream */
    ctrt_loader_options options;        /* with the defaults in place of 0; its samplers are not retained */
    bool unbatched;                     /* batch_size was CTRT_NO_BATCH */
    int pid;                            /* the process that created the loader */
    struct ring *ring;
    struct team team;
    struct worker self;                 /* without workers: reads the samples in the calling thread */
    int restarts;                       /* workers that were replaced */
    ctrt_status failure;                /* not CTRT_OK: a worker died, with `failure_text` */
    char *failure_text;

    uint64_t epoch;
    bool begun;                         /* the members of the epoch are valid */
    int64_t *indices, *sizes;           /* its order */
    int64_t length, batches;            /* indices and batches of the order */
    bool only_begun;                    /* a stream without a start function has begun its only epoch, `only_epoch` */
    uint64_t only_epoch;
    int64_t resume;                     /* the first batch to read, if the epoch has not begun */
    int64_t posted, position;           /* batches and samples that were given to workers */
    int64_t taken;                      /* batches that left the queue */
    bool ended;                         /* the stream has no more samples */
    uint64_t ticket;                    /* of the next batch */

    int *queue, queued;                 /* slots that were posted, in the order of the batches */

    ctrt_stream *stream;                /* for copies to the device */
    bool copies;                        /* to a device, or to pinned memory */
    ctrt_tensor *host[CTRT_MAX_FIELDS];         /* a batch in pinned memory, whose copy failed and is tried again */
    ctrt_tensor *ahead[CTRT_MAX_FIELDS];        /* a batch whose copy has been enqueued */
    bool has_host, has_ahead;
};

/* Fails if the loader is NULL or of another process. */
ctrt_status loader_usable(const struct ctrt_loader *loader, const char *function);

/* epoch.c: computes the order, starts the workers and posts the first batches. */
ctrt_status loader_begin_epoch(struct ctrt_loader *loader);
/* Posts batches while workers and slots are free. Does not block. */
void loader_post(struct ctrt_loader *loader);
/* Drops all batches that were not returned; the workers leave them. Forgets a failure. */
void loader_leave_epoch(struct ctrt_loader *loader);
uint64_t loader_fingerprint(const struct ctrt_loader *loader);
uint64_t dataset_fingerprint(const ctrt_dataset *dataset);     /* of its length and fields */

/* Releases the batches in `host` and `ahead`. */
void loader_drop_copies(struct ctrt_loader *loader);

/* take.c: takes the next batch from the workers and writes its tensors to `fields`, by overwriting them. *found: false
 * at the end of the epoch or, if `block` is false, if the batch is not ready or has an error. If a tensor cannot be
 * created, the batch stays where it is. */
ctrt_status loader_take(struct ctrt_loader *loader, ctrt_tensor **fields, bool *found, bool block);

#endif
