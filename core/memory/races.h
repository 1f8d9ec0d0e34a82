/* SPDX-License-Identifier: Apache-2.0 */
/* memory/races.h: the race detector, CTRT_STREAM_ORDER=check.
 *
 * Keeps the history of each storage: its uses by streams, with the bytes that each use reads or writes. Reports two
 * uses of the same bytes, at least one of them a write, that are not ordered by a wait. The streams' clocks
 * (stream/stream.h) determine the order. */
#ifndef CORE_MEMORY_RACES_H
#define CORE_MEMORY_RACES_H

#include "ctrt/plugin.h"
#include "memory/storage.h"

/* Starts the history of `storage`, before its first use is recorded. `available_after`: work of the memory's previous
 * owner; the first write must be ordered after it; 0: none. If memory for the history runs out, uses of the storage are
 * not checked. */
void races_begin(struct storage *storage, timepoint available_after);
/* Checks the use of a view by work `point` on `stream`, which reads or writes its elements: reports races with earlier
 * uses and adds the use to the history. A view with 0 dimensions and 0 elements means the whole storage. */
void races_note(ctrt_stream *stream, const ctrt_view *view, bool writes, timepoint point);
/* Frees the history of a storage that is being freed. */
void races_end(struct storage *storage);

#endif
