/* SPDX-License-Identifier: Apache-2.0 */
/* stream/fence.h: fences: work that must be done before a block of memory may be used again.
 *
 * A fence holds one event for each stream concerned. A NULL fence is done. */
#ifndef CORE_STREAM_FENCE_H
#define CORE_STREAM_FENCE_H

#include "stream/stream.h"

struct fence;

/* Adds all work that is on the streams of `points` now to *fence, which is NULL or an existing fence. If memory for the
 * fence or an event is not available, the calling thread waits for that stream instead. */
void fence_add(struct fence **fence, const timepoint *points, int count);
/* Implement the fence functions of ctrt_memory_source. `device`: the device of the queues. fence_new records the work
 * that is on `queue` now. fence_wait makes `queue` wait for the fence (NULL: the calling thread waits). fence_done
 * returns whether all work of the fence is done. fence_join merges two fences and consumes both. */
ctrt_status fence_new(void **fence, ctrt_device *device, void *queue);
ctrt_status fence_wait(void *fence, ctrt_device *device, void *queue);
bool fence_done(void *fence);
/* Returns whether the queue's stream is being captured. A captured queue cannot wait for work outside the capture. */
bool queue_captured(const ctrt_device *device, const void *queue);
ctrt_status fence_status(void *fence, bool *done);
void *fence_join(void *a, void *b);
void fence_free(void *fence);

#endif
