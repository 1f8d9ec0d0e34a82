/* SPDX-License-Identifier: Apache-2.0 */
/* memory/capture_parts.h: for the two files that captures are made of: capture.c, what one has; graph.c, its beginning, its end and replays. */
#ifndef CORE_MEMORY_CAPTURE_PARTS_H
#define CORE_MEMORY_CAPTURE_PARTS_H

#include "memory/capture.h"
#include "memory/policy.h"
#include "memory/pool.h"

struct segment {
    struct segment *next;
    ctrt_block block;                       /* of the device's policy */
    size_t bytes;
};

/* A storage that existed before holds a reference; one that the capture made does not, and leaves the table when it dies. */
struct use {
    struct storage *storage;
    bool writes;
};

struct capture {
    atomic_int refs;                        /* the graph's, and those of storages that it made */
    struct capture *next;                   /* of the captures that run */
    struct device_memory *memory;
    ctrt_stream *stream;                    /* where it began; NULL: it has ended */
    void *queue;                            /* of that */
    struct memory_layer *layer;
    ctrt_memory_source source;              /* of the layer */
    pthread_mutex_t lock;                   /* for all below */
    struct segment *segments;
    uint64_t bytes;                         /* of the segments */
    stream_mark *marks;                     /* of work outside on results that have died: before their memory is written again; one a stream */
    size_t mark_count, mark_room;
    struct use *uses;                       /* a hash table by storage */
    size_t use_count, use_room;             /* count: places taken, with those that are empty again */
    struct numbers *numbers;
    stream_mark *recorded;                  /* the last number of each captured stream */
    size_t recorded_count;
    ctrt_status failed;
    char *text;
};

extern const char capture_gone;             /* the place of a storage that has died */

static inline bool capture_use_lives(const struct use *use)
{
    return use->storage != NULL && use->storage != (const void *)&capture_gone;
}

/* One reference is the caller's. */
ctrt_status capture_new(struct capture **out, ctrt_stream *stream);
void capture_drop(struct capture *capture);
/* Into the list of captures that run, and out of it. */
void capture_enlist(struct capture *capture);
void capture_delist(struct capture *capture);
/* Lets go of what existed before and of numbers, when no replay runs any more. In the child of a fork all of it stays as it is. */
void capture_release_uses(struct capture *capture);

#endif
