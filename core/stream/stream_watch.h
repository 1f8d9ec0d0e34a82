/* SPDX-License-Identifier: Apache-2.0 */
/* stream/stream_watch.h: marks host waits for a stream, so that long ones are logged. */
#ifndef CORE_STREAM_STREAM_WATCH_H
#define CORE_STREAM_STREAM_WATCH_H

#include "stream/stream.h"

extern atomic_bool stream_watch_started;
/* Also sets the calling thread's id. */
void stream_watch_start(void);
/* Reads CTRT_WAIT_WARNING; called when an asynchronous device opens. */
ctrt_status stream_watch_prepare(void);
/* Ends the thread; the next wait starts it again. For ctrt_shutdown. */
void stream_watch_end(void);

/* Around each slot in which the host waits for the stream's work. Several threads may wait for one stream. */
static inline void stream_wait_begins(ctrt_stream *stream)
{
    if (unlikely(thread_state.id == 0 || !atomic_load_explicit(&stream_watch_started, memory_order_relaxed)))
        stream_watch_start();
    atomic_store_explicit(&stream->waits.thread, thread_state.id, memory_order_relaxed);
    atomic_fetch_add_explicit(&stream->waits.count, 1, memory_order_release);
}
static inline void stream_wait_ends(ctrt_stream *stream)
{
    atomic_fetch_add_explicit(&stream->waits.count, ((uint64_t)1 << 32) - 1, memory_order_relaxed);
}

#endif
