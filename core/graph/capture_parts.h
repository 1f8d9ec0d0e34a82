/* SPDX-License-Identifier: Apache-2.0 */
/* graph/capture_parts.h: declarations shared by capture.c (memory and uses of a capture), graph_parts.c (graphs of the
 * backend and calls between them) and graph.c (begin, end, replay). */
#ifndef CORE_GRAPH_CAPTURE_PARTS_H
#define CORE_GRAPH_CAPTURE_PARTS_H

#include "graph/capture.h"
#include "memory/policy.h"
#include "memory/pool.h"

struct segment {
    struct segment *next;
    ctrt_block block;                       /* allocated from the device's policy */
    size_t bytes;
};

/* A storage that the graph's work uses. The entry owns a reference, except to a storage that the capture itself
 * allocated; that storage removes its entry when it is freed. */
struct use {
    struct storage *storage;
    bool writes;
};

/* The whole of a capture. Lower layers use struct capture (memory/storage.h) only. */
struct graph_capture {
    struct capture base;
    atomic_int refs;                        /* owned by the graph and by storages that the capture allocated */
    struct graph_capture *next;             /* in the list of running captures */
    struct device_memory *memory;
    ctrt_stream *stream;                    /* where the capture began; NULL: it has ended */
    void *queue;                            /* of that stream */
    struct policy_layer *layer;
    ctrt_memory_source source;              /* the layer's memory source */
    pthread_mutex_t lock;                   /* guards all fields below */
    struct segment *segments;
    uint64_t bytes;                         /* total of the segments */
    timepoint *points;                      /* one per stream: work outside the capture on results that were freed,
                                             * which must be done before their memory is written again */
    size_t point_count, point_capacity;
    struct ptr_map uses;                    /* items: struct use, by storage */
    struct graph_params *params;
    struct graph_part *parts, *last;        /* not guarded: written by the capturing thread only */
    uint64_t counted;                       /* work that is in finished parts: graph_parts.c */
    timepoint *recorded;                    /* the last timepoint of each captured stream */
    size_t recorded_count, recorded_capacity;
    ctrt_status failed;
    char *text;
};

static inline struct graph_capture *graph_capture_of(struct capture *capture)
{
    return (struct graph_capture *)capture;
}

/* Creates a capture over `stream`; the caller owns one reference. */
ctrt_status capture_new(struct graph_capture **out, ctrt_stream *stream);
void capture_drop(struct graph_capture *capture);
/* Makes the capture fail with `status` and the thread's current message. Only the first error is kept. */
void capture_fail(struct graph_capture *capture, ctrt_status status);
/* Called when the stream has begun to be captured. */
void capture_begun(struct graph_capture *capture);
/* Add to and remove from the list of running captures. */
void capture_enlist(struct graph_capture *capture);
void capture_delist(struct graph_capture *capture);
/* Releases the storages that existed before the capture, the graph parameters and the parts. No replay may be running.
 * Does nothing in the child of a fork. */
void capture_release_uses(struct graph_capture *capture);

#endif
