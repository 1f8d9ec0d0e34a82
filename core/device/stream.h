/* SPDX-License-Identifier: Apache-2.0 */
/* device/stream.h: streams as floors above see them: their queues, and what is known of the order of their work.
 *
 * Each stream counts the pieces of work put on it: 1, 2, 3... A *mark* names one piece of work of one stream. A
 * stream's *clock* holds, for every other stream, the number up to which that stream's work is done before the next
 * work here; waiting for a stream also merges its clock (vector clocks: Mattern 1989, Fidge 1988). So one comparison
 * says whether a piece of work is ordered before the next one on some stream, and no work is waited for twice.
 *
 * A stream's struct belongs to a queue of the backend and is never freed: a released stream is reused by the next
 * ctrt_stream_new of the same device and priority.
 *
 * A mark names the stream by its *slot*. When all slots are used, the slot of a released stream without pending work
 * goes to another stream, which continues the slot's numbering. So every mark of the slot's previous stream is done,
 * and a clock that has seen the previous stream does not cover the new one's work. The released stream keeps its
 * struct and its queue, because storages and memory policies may still refer to them, and gets a slot again when it is
 * reused. */
#ifndef CORE_DEVICE_STREAM_H
#define CORE_DEVICE_STREAM_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/thread.h"
#include "ctrt/stream.h"
#include "device/device.h"

#define STREAM_MAX   4096                   /* in a process */
#define STREAM_FAILURES 8                   /* of a stream that are known after resets */
#define STREAM_SITES 256                    /* changes of the label that are kept for each stream */
#define STREAM_WORKS 1024                   /* last pieces of work of which name and calls are kept */

struct frames;                              /* memory/frames.h */

struct clock {
    uint64_t *seen;                         /* by slot; 0 from `count` on */
    uint32_t count;
};

struct ctrt_stream {
    atomic_int refs;                        /* handles; 0: released, can be reused */
    ctrt_device *device;
    void *queue;                            /* the backend's; NULL on a synchronous device */
    _Atomic uint32_t slot;                  /* stream_slot; changes under `lock`, without a handle */
    int priority;
    _Atomic uint64_t id;                    /* a new one at each reuse */
    pthread_mutex_t lock;                   /* for all below but `done`, and for putting work on the queue */
    uint64_t sequence;                      /* work put here so far */
    struct clock clock;
    _Atomic uint64_t done;                  /* up to here work is known to be done */
    _Atomic uint64_t put;                   /* `sequence`, to be read without the lock */
    ctrt_status error;                      /* sticky until reset */
    uint64_t error_at;                      /* number of the first work that may be concerned */
    uint64_t good;                          /* up to here work was waited for and had not failed */
    char *error_text;
    uint64_t broke_at;                      /* number of the first work that the queue itself dropped, as far as is known; 0: none since a reset */
    uint64_t resets;                        /* of those; the last ones: */
    struct stream_failure { uint64_t from, to; ctrt_status status; } failures[STREAM_FAILURES];
    uint64_t failure, forgiven;             /* number of the error; numbers up to which it does not inherit any more */
    _Atomic(struct capture *) capture;      /* memory/capture.h: its work is recorded, not run; NULL: it is not */
    const char *tag;                        /* of the last work: memory/tag.h */
    struct stream_site { uint64_t from; const char *tag; } *sites;      /* the last labels from which work on; a ring */
    uint64_t site_count;
    struct stream_work { const char *name; const struct frames *frames; } *works;   /* by number, a ring; NULL: none */
    ctrt_stream *next;                      /* of the device */
};

/* Index in the table of streams and in clocks. SLOT_NONE: the stream was released and another has its slot. */
#define SLOT_NONE (UINT32_MAX - 1)
static inline uint32_t stream_slot(const ctrt_stream *stream)
{
    return atomic_load_explicit(&stream->slot, memory_order_relaxed);
}

/* A mark: 12 bits of slot, 52 of number. 0: none. */
typedef uint64_t stream_mark;

static inline stream_mark mark_of(uint32_t slot, uint64_t sequence)
{
    return (uint64_t)slot << 52 | sequence;
}
static inline uint32_t mark_slot(stream_mark mark)
{
    return (uint32_t)(mark >> 52);
}
static inline uint64_t mark_sequence(stream_mark mark)
{
    return mark & (((uint64_t)1 << 52) - 1);
}

enum stream_order { ORDER_AUTO, ORDER_MANUAL, ORDER_CHECK };
/* CTRT_STREAM_ORDER, read when the first asynchronous device opens. */
extern enum stream_order stream_order_mode;
extern bool stream_launch_blocking;         /* CTRT_LAUNCH_BLOCKING */

/* Gives a device that is being opened its first stream; fails when an asynchronous backend's table lacks what it needs. */
ctrt_status stream_device_open(ctrt_device *device);
void stream_device_close(ctrt_device *device);

static inline bool device_asynchronous(const ctrt_device *device)
{
    return device->flags & CTRT_DEVICE_ASYNCHRONOUS;
}

/* The thread's current streams, by device number; absent: the default stream. */
struct stream_thread {
    uint32_t count;
    ctrt_stream *current[];
};

/* The calling thread's current stream of `device`. */
static inline ctrt_stream *stream_here(const ctrt_device *device)
{
    const struct stream_thread *own = thread_state.streams;
    if (likely(own == NULL || device->number >= own->count || own->current[device->number] == NULL))
        return device->stream;
    return own->current[device->number];
}

/* Where memory for new work of this thread comes from: the current queue; NULL on a synchronous device. */
static inline void *stream_queue(const ctrt_device *device)
{
    return likely(!device_asynchronous(device)) ? NULL : stream_here(device)->queue;
}

/* Exchanges the thread's current stream of `device` and *stream, with the references (NULL: the default stream). */
ctrt_status stream_swap(ctrt_device *device, ctrt_stream **stream);

/* The stream of that slot. */
ctrt_stream *stream_at(uint32_t slot);
/* The id of the device's stream that has, or had last, that queue; 0: none. */
uint64_t stream_queue_id(const ctrt_device *device, const void *queue);

/* Is the marked work done before whatever `stream` does next? With the stream's lock held. */
static inline bool stream_covers(const ctrt_stream *stream, stream_mark mark)
{
    const uint32_t slot = mark_slot(mark);
    return slot == stream_slot(stream)
           || (slot < stream->clock.count && stream->clock.seen[slot] >= mark_sequence(mark));
}
static inline bool mark_done(stream_mark mark)
{
    return mark == 0 || atomic_load_explicit(&stream_at(mark_slot(mark))->done, memory_order_acquire) >= mark_sequence(mark);
}

/* CTRT_ERR_STATE: nothing can be waited for there, or be asked. */
ctrt_status stream_fail_captured(const ctrt_stream *stream);
/* `stream` is to wait for work of the capture `theirs` (NULL: for work that runs), number `id`, which began on `other`: joins it, or says why that
 * cannot be; *joins: it does, when the wait is on the queue. */
ctrt_status stream_may_wait(bool *joins, ctrt_stream *stream, struct capture *theirs, const ctrt_stream *other);
/* Is its work recorded instead of run? */
static inline bool stream_captured(const ctrt_stream *stream)
{
    return unlikely(atomic_load_explicit(&stream->capture, memory_order_relaxed) != NULL);
}

/* Makes `stream` wait, on the device, for all work that is on `other` now. With one that is being captured it joins the capture. */
ctrt_status stream_wait_for(ctrt_stream *stream, ctrt_stream *other);
/* Waits on the host; returns the stream's error. */
ctrt_status stream_synchronize(ctrt_stream *stream);
/* All work of the stream up to `sequence` is done, and of other streams what `seen`, its clock then, says. */
void stream_note_done(ctrt_stream *stream, uint64_t sequence, const uint64_t *seen, uint32_t count);
/* Something is on the queue that its stream does not know, a wait or a copy: counts as work, so that who comes after it is behind that. 0: it is
 * no stream's queue. */
stream_mark stream_note_wait(const ctrt_device *device, const void *queue);
/* After the host has waited, with what result, for work up to `sequence` of the stream, before which `seen` was its clock: notes what
 * is done now, and returns the stream's error. */
ctrt_status stream_waited(ctrt_stream *stream, ctrt_status status, uint64_t sequence, const uint64_t *seen, uint32_t count);
/* Waits on the host until the marked work is done; the stream's error when it failed, or comes behind what failed. */
ctrt_status stream_finish(stream_mark mark);

/* Of work that is done: CTRT_OK, or the failure for which its queue dropped it or what came before, even if the stream was reset since. Unlike its
 * error, says nothing of other streams' failures. */
ctrt_status stream_outcome(stream_mark mark);

/* Events of a device, kept for the next one that needs them. */
ctrt_status stream_event_take(void **event, ctrt_device *device);
void stream_event_put(void *event, ctrt_device *device);
/* Records an event behind all work on `stream`; *mark names the last of it, 0 when the stream has no slot. */
ctrt_status stream_event_record(void *event, ctrt_stream *stream, stream_mark *mark);

/* Makes room for `count` slots, so that the two below do not fail. */
bool clock_room(struct clock *clock, uint32_t count);
/* Raises clock->seen[slot] to `sequence`; false without memory. */
bool clock_raise(struct clock *clock, uint32_t slot, uint64_t sequence);
bool clock_merge(struct clock *to, const struct clock *from);

/* Counts one more piece of work, with the stream's lock held; the stream has a slot. */
static inline stream_mark stream_count_work(ctrt_stream *stream)
{
    atomic_store_explicit(&stream->put, ++stream->sequence, memory_order_release);
    if (unlikely(stream->works != NULL))
        stream->works[stream->sequence % STREAM_WORKS] = (struct stream_work){ 0 };
    return mark_of(stream_slot(stream), stream->sequence);
}

/* ---- from where work was put there: stream_site.c ---- */

/* With the lock held: the last counted work is the op `name` of a thread whose label is `tag`; `frames`: the calls, if
 * they are recorded. */
void stream_note_site(ctrt_stream *stream, const char *name, const char *tag, const struct frames *frames);
/* " in LABEL at CALL" of the stream's work with that number, as far as it is known; "" when nothing is. With the lock
 * held. */
void stream_site_text(char *text, size_t bytes, const ctrt_stream *stream, uint64_t sequence);
/* The same of marked work, with the op (where works are recorded) and the stream before it: "exp on stream 2 of sim:0
 * in encoder.0". */
void stream_work_text(char *text, size_t bytes, stream_mark mark);
/* memory/frames.c: the innermost call from outside the library, "train(step+0x1c)"; "" when there is none. */
void frames_place(char *text, size_t bytes, const struct frames *frames);

#endif
