/* SPDX-License-Identifier: Apache-2.0 */
/* stream/stream.h: streams for the layers above: their queues, and the ordering of their work.
 *
 * Each stream numbers the pieces of work put on it: 1, 2, 3... A *timepoint* names one piece of work of one stream. A
 * stream's *clock* holds, for every other stream, the number up to which that stream's work is done before the next
 * work here; waiting for a stream also merges its clock (vector clocks: Mattern 1989, Fidge 1988). So one comparison
 * decides whether a piece of work is ordered before the next one on some stream, and no stream waits for the same work
 * twice.
 *
 * A stream's struct belongs to a queue of the backend and is never freed: a released stream is reused by the next
 * ctrt_stream_new of the same device and priority.
 *
 * A timepoint names the stream by its *slot*. When all slots are used, the slot of a released stream without pending
 * work is assigned to another stream, which continues the slot's numbering. So every timepoint of the slot's previous
 * stream is done, and a clock that covers the previous stream's work does not cover the new stream's work. The released
 * stream keeps its struct and its queue, because storages and memory policies may still refer to them, and gets a slot
 * again when it is reused. */
#ifndef CORE_STREAM_STREAM_H
#define CORE_STREAM_STREAM_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/thread.h"
#include "ctrt/stream.h"
#include "device/device.h"

#define STREAM_MAX   4096                   /* slots in a process */
#define STREAM_DROPS 8                      /* number of ranges of dropped work remembered for each stream */
#define STREAM_SITES 256                    /* number of label changes remembered for each stream */
#define STREAM_WORKS 1024                   /* number of last pieces of work whose name and backtrace are kept */
#define STREAM_ERROR_BYTES 1024

struct backtrace;                           /* base/backtrace.h */

struct clock {
    uint64_t *seen;                         /* indexed by slot; slots `count` and above have the value 0 */
    uint32_t count;
};

/* Whether a stream's results are valid. stream_set_state in stream_error.c changes it.
 *
 *   from            event                                                                          to
 *   USABLE          the backend or a wait reports a failure; stream_fail; a query fails; the       FAILED
 *                   stream's work uses results of a stream that has an error
 *   FAILED          the queue drops the work after the failure: it reports so, or a wait or a      BROKEN
 *                   query of the stream fails
 *   FAILED, BROKEN  ctrt_stream_reset has reset the queue; the queue is destroyed                  USABLE
 *
 * The first error is kept: a stream that is FAILED or BROKEN takes no other one. */
enum stream_state { STREAM_USABLE, STREAM_FAILED, STREAM_BROKEN, STREAM_STATES };

/* An error that stream_fail has left for the next thread that has the stream's lock. posted_set_state changes it.
 *
 *   from       event                                                                    to
 *   NONE       a thread calls stream_fail; other calls do nothing until the NONE below  WRITING
 *   WRITING    the same thread has written status and text                              ERROR
 *   ERROR      a thread with the lock has made it the stream's error, or dropped it     NONE */
enum posted_state { POSTED_NONE, POSTED_WRITING, POSTED_ERROR, POSTED_STATES };

struct ctrt_stream {
    atomic_int refs;                        /* number of handles; 0: released, can be reused */
    ctrt_device *device;
    void *queue;                            /* the backend's queue; NULL on a synchronous device */
    _Atomic uint32_t slot;                  /* stream_slot; changes only under `lock` and while there is no handle */
    int priority;
    _Atomic uint64_t id;                    /* a new value at each reuse */
    pthread_mutex_t lock;                   /* guards all members below except `done`, and enqueueing */
    uint64_t sequence;                      /* number of the last work put on the stream */
    struct clock clock;
    _Atomic uint64_t done;                  /* all work up to this number is known to be done */
    _Atomic uint64_t enqueued;              /* copy of `sequence` that can be read without the lock */
    _Atomic(enum stream_state) state;       /* changes under the lock, can be read without it */
    struct stream_error {                   /* if the stream is not STREAM_USABLE */
        ctrt_status status;
        uint64_t number;                    /* failures have numbers in the process */
        uint64_t from;                      /* number of the first work that the error may affect */
        uint64_t dropped_from;              /* STREAM_BROKEN: number of the first work that the queue has dropped, as
                                             * far as known */
        char text[STREAM_ERROR_BYTES];      /* not allocated, because memory may be what is missing */
    } error;
    /* status and text belong to the thread that has changed the state to POSTED_WRITING, until POSTED_ERROR */
    struct { _Atomic(enum posted_state) state; ctrt_status status; char text[STREAM_ERROR_BYTES]; } posted;
    uint64_t verified_to;                   /* the host has waited for all work up to this number without an error */
    uint64_t cleared_failure;               /* failures up to this number are not inherited: the last reset was later */
    uint64_t drops;                         /* number of resets of a broken stream; the last STREAM_DROPS follow */
    struct stream_drop { uint64_t from, to; ctrt_status status; } dropped[STREAM_DROPS];
    _Atomic(struct capture *) capture;      /* graph/capture.h: the capture that records the stream's work; NULL: the
                                             * work runs */
    atomic_uint cuts;                       /* number of cuts between parts of its captures: graph/graph_parts.c */
    const char *label;                      /* label of the last work: memory/label.h */
    /* ring of the last label changes: from work `from` on, the label is `label` */
    struct stream_site { uint64_t from; const char *label; } *sites;
    uint64_t site_count;
    /* ring indexed by work number; NULL: not recorded */
    struct stream_work { const char *name; const struct backtrace *backtrace; } *works;
    const char *op;                         /* the op of the last work; NULL: not known */
    struct stream_waits {                   /* stream_watch.c */
        _Atomic uint64_t count;             /* low half: threads that wait for the stream; high half: ended waits */
        _Atomic int32_t thread;             /* the thread that began to wait last */
        uint32_t ended;                     /* the rest belongs to the watching thread: the high half at `since`, */
        int64_t since, next;                /* when it saw the wait first (0: none), and what is logged next, in ns */
    } waits;
    ctrt_stream *next;                      /* the next stream in the device's list */
};

/* Index in the table of streams and in clocks. SLOT_NONE: the stream was released and its slot belongs to another
 * stream. */
#define SLOT_NONE (UINT32_MAX - 1)
static inline uint32_t stream_slot(const ctrt_stream *stream)
{
    return atomic_load_explicit(&stream->slot, memory_order_relaxed);
}

static inline enum stream_state stream_state(const ctrt_stream *stream)
{
    return atomic_load_explicit(&stream->state, memory_order_acquire);
}
static inline bool stream_failed(const ctrt_stream *stream)
{
    return stream_state(stream) != STREAM_USABLE;
}

/* A timepoint: 12 bits of slot, 52 bits of work number. 0: none. */
typedef uint64_t timepoint;

static inline timepoint timepoint_of(uint32_t slot, uint64_t sequence)
{
    return (uint64_t)slot << 52 | sequence;
}
static inline uint32_t timepoint_slot(timepoint point)
{
    return (uint32_t)(point >> 52);
}
static inline uint64_t timepoint_sequence(timepoint point)
{
    return point & (((uint64_t)1 << 52) - 1);
}

enum stream_order { ORDER_AUTO, ORDER_MANUAL, ORDER_CHECK };
/* CTRT_STREAM_ORDER, read when the first asynchronous device opens. */
extern enum stream_order stream_order_mode;
extern bool stream_launch_blocking;         /* CTRT_LAUNCH_BLOCKING */

static inline bool device_asynchronous(const ctrt_device *device)
{
    return device->flags & CTRT_DEVICE_ASYNCHRONOUS;
}

/* The thread's current streams, indexed by device number; if absent or NULL, the default stream is current. */
struct stream_thread {
    uint32_t count;
    ctrt_stream *current[];
};

/* Returns the calling thread's current stream of `device`. */
static inline ctrt_stream *stream_here(const ctrt_device *device)
{
    const struct stream_thread *own = thread_state.streams;
    if (likely(own == NULL || device->number >= own->count || own->current[device->number] == NULL))
        return device->stream;
    return own->current[device->number];
}

/* Returns the queue for which this thread allocates memory: the current stream's; NULL on a synchronous device. */
static inline void *stream_queue(const ctrt_device *device)
{
    return likely(!device_asynchronous(device)) ? NULL : stream_here(device)->queue;
}

/* The device's streams. Open creates the default stream of a device that is being opened; CTRT_ERR_PLUGIN if the queue
 * table of an asynchronous backend lacks a required function. Close is for a device that failed to open. Shut destroys
 * all backend queues and events of a device that is being closed; reopen creates new queues for all its streams. Held
 * returns the number of its streams that are held by the program or by other threads. */
ctrt_status stream_device_open(ctrt_device *device);
void stream_device_close(ctrt_device *device);
void stream_device_shut(ctrt_device *device);
ctrt_status stream_device_reopen(ctrt_device *device);
uint32_t stream_device_held(ctrt_device *device);

/* Exchanges the thread's current stream of `device` and *stream, including the references (NULL: the default
 * stream). */
ctrt_status stream_swap(ctrt_device *device, ctrt_stream **stream);

/* Returns the stream that has `slot`; NULL if the slot was never assigned. */
ctrt_stream *stream_at(uint32_t slot);
/* Returns the id of the device's stream that has `queue` (if the stream was released, its last id); 0: none. */
uint64_t stream_queue_id(const ctrt_device *device, const void *queue);

/* Reports whether the work at `point` is done before the next work on `stream`. Requires the stream's lock. */
static inline bool stream_covers(const ctrt_stream *stream, timepoint point)
{
    const uint32_t slot = timepoint_slot(point);
    return slot == stream_slot(stream)
           || (slot < stream->clock.count && stream->clock.seen[slot] >= timepoint_sequence(point));
}
/* Returns whether the stream's error may affect the work at `point`. */
bool timepoint_failed(timepoint point);
static inline bool timepoint_done(timepoint point)
{
    return point == 0
           || atomic_load_explicit(&stream_at(timepoint_slot(point))->done, memory_order_acquire)
                  >= timepoint_sequence(point);
}

/* Fails with CTRT_ERR_STATE, because work of a captured stream can be neither waited for nor queried. */
ctrt_status stream_fail_captured(const ctrt_stream *stream);
/* Makes `status`, with the calling thread's message, the error of the stream's incomplete work, unless the stream has
 * an error already. For work that the device completes although its result is invalid. Takes no lock, because a thread
 * that waits for this work may hold the stream's. */
void stream_fail(ctrt_stream *stream, ctrt_status status);
/* Checks whether `stream` may wait for work on `other` that belongs to the capture `theirs` (NULL: work that runs).
 * Fails with CTRT_ERR_STATE if it may not. Sets *joins if `stream` must join the capture after the wait is enqueued. */
ctrt_status stream_may_wait(bool *joins, ctrt_stream *stream, struct capture *theirs, const ctrt_stream *other);
/* Reports whether the stream's work is recorded by a capture instead of run. */
static inline bool stream_captured(const ctrt_stream *stream)
{
    return unlikely(atomic_load_explicit(&stream->capture, memory_order_relaxed) != NULL);
}

/* Makes `stream` wait, on the device, for all work that is on `other` now. If `other` is being captured, `stream` joins
 * the capture. */
ctrt_status stream_wait_for(ctrt_stream *stream, ctrt_stream *other);
/* Waits on the host for all work of the stream; returns the stream's error. */
ctrt_status stream_synchronize(ctrt_stream *stream);
/* Records that all work of the stream up to `sequence` is done, and the work of other streams up to `seen`, the
 * stream's clock when that work was enqueued (`count` entries). */
void stream_note_done(ctrt_stream *stream, uint64_t sequence, const uint64_t *seen, uint32_t count);
/* Counts work that was enqueued without a stream, such as a wait or a copy by a memory policy, so that later work is
 * ordered after it. Returns its timepoint; 0 if no stream has `queue`. */
timepoint stream_note_wait(const ctrt_device *device, const void *queue);
/* Called after the host has waited, with the result `status`, for the stream's work up to `sequence`; `seen` is the
 * stream's clock from before the wait (`count` entries). Records what is done now, and returns the stream's error. */
ctrt_status stream_waited(ctrt_stream *stream, ctrt_status status, uint64_t sequence, const uint64_t *seen,
                          uint32_t count);
/* Waits on the host until the work at `point` is done. Returns the stream's error if that work failed or comes after
 * work that failed. */
ctrt_status stream_finish(timepoint point);

/* Returns, for work that is done, CTRT_OK or the failure for which the queue dropped this work or work before it, even
 * if the stream was reset after that failure. Unlike the stream's error, ignores failures of other streams. */
ctrt_status stream_outcome(timepoint point);

/* Creates an event of the backend. */
ctrt_status stream_event_create(void **event, const ctrt_device *device, bool timing);
/* Take an event from the device's pool of backend events, and return one to it. */
ctrt_status stream_event_take(void **event, ctrt_device *device);
void stream_event_put(void *event, ctrt_device *device);
/* Records an event after all work on `stream`. *point is the timepoint of the last work, 0 if the stream has no
 * slot. */
ctrt_status stream_event_record(void *event, ctrt_stream *stream, timepoint *point);

/* Allocates `count` slots, so that the two functions below do not fail. Returns false when out of memory. */
bool clock_reserve(struct clock *clock, uint32_t count);
/* Raises clock->seen[slot] to `sequence`; returns false when out of memory. */
bool clock_raise(struct clock *clock, uint32_t slot, uint64_t sequence);
bool clock_merge(struct clock *to, const struct clock *from);

/* Counts one more piece of work. Requires the stream's lock and a stream that has a slot. */
static inline timepoint stream_count_work(ctrt_stream *stream)
{
    atomic_store_explicit(&stream->enqueued, ++stream->sequence, memory_order_release);
    if (unlikely(stream->works != NULL))
        stream->works[stream->sequence % STREAM_WORKS] = (struct stream_work){ 0 };
    return timepoint_of(stream_slot(stream), stream->sequence);
}

/* ---- where work was enqueued: stream_site.c ---- */

/* Records that the last counted work is the op `name`, called by a thread whose label is `label`; `backtrace`: the
 * backtrace, if recorded. Requires the stream's lock. */
void stream_note_site(ctrt_stream *stream, const char *name, const char *label, const struct backtrace *backtrace);
/* Formats " in LABEL at CALL" for the stream's work with that number, as far as known; "" if nothing is known. Requires
 * the stream's lock. */
void stream_site_text(char *text, size_t bytes, const ctrt_stream *stream, uint64_t sequence);
/* Formats the op of the work at `point` (if works are recorded), the stream and the text of stream_site_text: "exp on
 * stream 2 of sim:0 in encoder.0". */
void stream_work_text(char *text, size_t bytes, timepoint point);

#endif
