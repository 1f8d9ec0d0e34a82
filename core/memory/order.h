/* SPDX-License-Identifier: Apache-2.0 */
/* memory/order.h: who uses a storage on which stream, and the order that follows from it.
 *
 * Reading waits for the last writer, writing also for all readers since. An earlier access on the same stream, or on
 * one that this stream has waited for since, costs a comparison. With CTRT_STREAM_ORDER=check nothing waits, and
 * races.h reports the accesses that no wait orders. */
#ifndef CORE_MEMORY_ORDER_H
#define CORE_MEMORY_ORDER_H

#include "ctrt/plugin.h"
#include "memory/storage.h"

/* Before work named `name` is put on `stream` that reads, or writes, what the view shows. *address: where the view's data really is.
 * Until order_after the memory stays where it is. */
ctrt_status order_before(ctrt_stream *stream, const ctrt_view *view, bool writes, const char *name, void **address);
/* After the work `mark` was put there (0: it was not, or is noted). */
void order_after(ctrt_stream *stream, const ctrt_view *view, bool writes, stream_mark mark);
/* Notes the work while the stream's lock is held still, which costs nothing; false: another stream uses the storage too, order_after has to. */
bool order_note_alone(const ctrt_stream *stream, const ctrt_view *view, bool writes, stream_mark mark);

/* Notes work that was put on a stream otherwise, and may have written. */
void order_note(const ctrt_view *view, stream_mark mark);

/* Before the host reads, or writes, what the view shows: waits for copies of devices from and to pinned memory. */
ctrt_status order_host(const ctrt_view *view, bool writes);

/* Has nobody but this stream, whose memory it is, used the storage? */
bool order_alone(const struct storage *storage, const ctrt_stream *stream);
/* All marks that a storage has; returns how many. */
int order_marks(struct storage *storage, stream_mark marks[ORDER_READERS + 1]);

#endif
