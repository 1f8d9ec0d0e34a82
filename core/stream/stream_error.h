/* SPDX-License-Identifier: Apache-2.0 */
/* stream/stream_error.h: asynchronous errors, for the files of this folder.
 *
 * The functions require the stream's lock, unless the comment says otherwise. */
#ifndef CORE_STREAM_STREAM_ERROR_H
#define CORE_STREAM_STREAM_ERROR_H

#include "stream/stream.h"

extern const unsigned stream_state_next[], posted_state_next[];     /* tables of base/states.h */

/* The only functions that change `state` and `posted.state`. posted_set_state needs no lock, and returns false if the
 * state is not `from`. */
void stream_set_state(ctrt_stream *stream, enum stream_state to);
bool posted_set_state(ctrt_stream *stream, enum posted_state from, enum posted_state to);

/* Makes `status`, with the thread's message, the error of a usable stream, for all work from `from` on (0: all work not
 * verified yet). Of a stream with an error the first one is kept. */
void stream_set_error(ctrt_stream *stream, ctrt_status status, uint64_t from);
/* The stream's queue has dropped the work from `from` on. Requires that the stream has an error. */
void stream_set_broken(ctrt_stream *stream, uint64_t from);
/* Appends to the thread's message where the failed work was enqueued. `from` 0: the work is one of those not verified
 * yet. Returns `status`. */
ctrt_status stream_add_site(const ctrt_stream *stream, ctrt_status status, uint64_t from);
/* Makes the error of stream_fail the stream's error. */
void stream_take_posted(ctrt_stream *stream);
/* Asks the backend for a failure, after stream_take_posted. */
void stream_find_error(ctrt_stream *stream);
/* A wait for the queue or a query of it has returned `status`, with the thread's message, so the queue drops work. */
void stream_queue_failed(ctrt_stream *stream, ctrt_status status);
/* Returns the stream's error with a message that names the stream; CTRT_OK if the stream is usable. */
ctrt_status stream_error(const ctrt_stream *stream);
/* Makes the stream usable, without asking the backend. */
void stream_clear_error(ctrt_stream *stream);
/* Copies errors of streams whose results the stream's work uses. Requires that the caller holds no stream lock. */
void stream_inherit_errors(ctrt_stream *stream);

/* Locks two streams, lower address first, so that two threads that lock the same streams do not deadlock. */
void stream_lock_both(ctrt_stream *a, ctrt_stream *b);
void stream_unlock_both(ctrt_stream *a, ctrt_stream *b);

#endif
