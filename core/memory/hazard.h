/* SPDX-License-Identifier: Apache-2.0 */
/* memory/hazard.h: records which streams use a storage, and orders their accesses.
 *
 * A read waits for the last write; a write also waits for all reads after that write. If the earlier access is on the
 * same stream, or on a stream that this stream has waited for after the access, the check costs one comparison. With
 * CTRT_STREAM_ORDER=check no stream waits, and races.h reports the accesses that are not ordered by a wait. */
#ifndef CORE_MEMORY_HAZARD_H
#define CORE_MEMORY_HAZARD_H

#include "ctrt/plugin.h"
#include "memory/storage.h"

/* Call before work named `name` that reads or writes the view's data is enqueued on `stream`. *address: the current
 * address of the data (`address` may be NULL). The memory does not move until hazard_after, which must follow. */
ctrt_status hazard_before(ctrt_stream *stream, const ctrt_view *view, bool writes, const char *name, void **address);
/* Call after the work was enqueued as `point` (0: it was not enqueued, or hazard_note_alone has recorded it). */
void hazard_after(ctrt_stream *stream, const ctrt_view *view, bool writes, timepoint point);
/* Records the use while the stream's lock is still held for enqueuing, at almost no cost. Returns false if other
 * streams also use the storage; in that case hazard_after must record the use. */
bool hazard_note_alone(const ctrt_stream *stream, const ctrt_view *view, bool writes, timepoint point);

/* Records work that was enqueued without hazard_before and may have written the data. */
void hazard_note(const ctrt_view *view, timepoint point);

/* Call before the host reads or writes the view's data: waits for the copies of devices from and to pinned memory that
 * conflict. */
ctrt_status hazard_host(const ctrt_view *view, bool writes);

/* Returns whether only `stream`, on which the memory was allocated, has used the storage. */
bool hazard_alone(const struct storage *storage, const ctrt_stream *stream);
/* Stores all timepoints of the storage and returns their number. */
int hazard_timepoints(struct storage *storage, timepoint points[HAZARD_READERS + 1]);

#endif
