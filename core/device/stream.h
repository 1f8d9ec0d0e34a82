/* SPDX-License-Identifier: Apache-2.0 */
/* device/stream.h: streams as floors above see them: their queues, and what is known of the order of their work.
 *
 * Each stream counts the pieces of work put on it: 1, 2, 3... A *mark* names one piece of work of one stream. A stream's
 * *clock* says, of every other stream, up to where that one's work is done before whatever is put here next; waiting for a
 * stream takes its clock over too (vector clocks: Mattern 1989, Fidge 1988). So whether a piece of work is ordered before the next
 * one on some stream is a comparison, and nothing has to be waited for twice.
 *
 * A stream's struct belongs to a queue of the backend and is never freed: what the program lets go of serves the next
 * ctrt_stream_new, so marks stay meaningful, and there are never more queues than were needed at once. */
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
#define STREAM_NAMES 1024                   /* of a stream's last work that the detector of races can tell */

struct clock {
    uint64_t *seen;                         /* by slot; 0 from `count` on */
    uint32_t count;
};

struct ctrt_stream {
    atomic_int refs;                        /* handles; 0: waits for its next life */
    ctrt_device *device;
    void *queue;                            /* the backend's; NULL on a synchronous device */
    uint32_t slot;                          /* index among all streams of the process */
    int priority;
    _Atomic uint64_t id;                    /* of the present life */
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
    const char **names;                     /* of the last pieces of work, by number; CTRT_STREAM_ORDER=check only */
    ctrt_stream *next;                      /* of the device */
};

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

/* Is the marked work done before whatever `stream` does next? With the stream's lock held. */
static inline bool stream_covers(const ctrt_stream *stream, stream_mark mark)
{
    const uint32_t slot = mark_slot(mark);
    return slot == stream->slot || (slot < stream->clock.count && stream->clock.seen[slot] >= mark_sequence(mark));
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
void stream_note_done(const ctrt_stream *stream, uint64_t sequence, const uint64_t *seen, uint32_t count);
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
/* Records an event behind all work on `stream`; *mark names the last of it. */
ctrt_status stream_event_record(void *event, ctrt_stream *stream, stream_mark *mark);

/* Makes room for `count` slots, so that the two below do not fail. */
bool clock_room(struct clock *clock, uint32_t count);
/* Raises clock->seen[slot] to `sequence`; false without memory. */
bool clock_raise(struct clock *clock, uint32_t slot, uint64_t sequence);
bool clock_merge(struct clock *to, const struct clock *from);

/* Counts one more piece of work, with the stream's lock held. */
static inline stream_mark stream_count_work(ctrt_stream *stream)
{
    atomic_store_explicit(&stream->put, ++stream->sequence, memory_order_release);
    if (unlikely(stream->names != NULL))
        stream->names[stream->sequence % STREAM_NAMES] = NULL;
    return mark_of(stream->slot, stream->sequence);
}

/* For the detector of races: the op's name of a piece of work, "work" when it is not known any more. */
const char *stream_work_name(stream_mark mark);

#endif
