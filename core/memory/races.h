/* SPDX-License-Identifier: Apache-2.0 */
/* memory/races.h: the race detector, CTRT_STREAM_ORDER=check.
 *
 * Keeps the uses of each storage on its streams, with the bytes that each one reads or writes, and reports two uses of
 * the same bytes, one of them a write, that no wait orders. The streams' clocks (device/stream.h) say what is
 * ordered. */
#ifndef CORE_MEMORY_RACES_H
#define CORE_MEMORY_RACES_H

#include "ctrt/plugin.h"
#include "memory/storage.h"

/* Starts the history of `storage`, before its first use is noted. `available_after`: work of the memory's previous
 * owner; the first write must be ordered after it; 0: none. If there is no memory for the history, uses of the storage
 * are not checked. */
void races_begin(struct storage *storage, stream_mark available_after);
/* Work `mark` on `stream` reads, or writes, the elements of the view: reports the races with earlier uses and adds the
 * use to the history. A view without dimensions and elements means the whole storage. */
void races_note(ctrt_stream *stream, const ctrt_view *view, bool writes, stream_mark mark);
/* Frees the history of a storage that is being freed. */
void races_end(struct storage *storage);

#endif
