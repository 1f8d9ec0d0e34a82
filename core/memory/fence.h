/* SPDX-License-Identifier: Apache-2.0 */
/* memory/fence.h: work that must be done before memory may be used again: what a policy knows of streams.
 *
 * A fence holds an event for each stream concerned. NULL is a fence that is done. */
#ifndef CORE_MEMORY_FENCE_H
#define CORE_MEMORY_FENCE_H

#include "device/stream.h"

struct fence;

/* All work that is on the streams of `marks` now joins *fence (NULL at first). Without memory for that, or when an event cannot be
 * had, the caller waits instead. */
void fence_add(struct fence **fence, const stream_mark *marks, int count);
/* The slots of ctrt_memory_source that concern fences; `device` is where the queues are. */
ctrt_status fence_new(void **fence, ctrt_device *device, void *queue);
ctrt_status fence_wait(void *fence, ctrt_device *device, void *queue);
bool fence_done(void *fence);
/* Is that queue's work recorded instead of run? Then it cannot wait for what runs outside. */
bool queue_captured(const ctrt_device *device, const void *queue);
ctrt_status fence_status(void *fence, bool *done);
void *fence_join(void *a, void *b);
void fence_free(void *fence);

#endif
