/* SPDX-License-Identifier: Apache-2.0 */
/* memory/capture.h: the memory of streams that are being captured (ctrt/capture.h), and the tensors that captured work
 * uses. */
#ifndef CORE_MEMORY_CAPTURE_H
#define CORE_MEMORY_CAPTURE_H

#include "ctrt/capture.h"
#include "memory/numbers.h"
#include "memory/storage.h"

struct capture;                             /* exists from the beginning of a capture until its graph is released */

/* Allocates the memory of a storage that is created while its stream is being captured. The memory remains the
 * capture's after the capture has ended (storage->capture). */
ctrt_status capture_storage(struct storage *storage, struct capture *capture, size_t bytes, void *queue);
/* Frees the memory of such a storage. `marks`: all its uses. */
void capture_storage_free(struct storage *storage, const stream_mark *marks, int count);

/* Allocates memory for one piece of work. Returns false if the queue is not being captured; the caller then allocates
 * from the policy. Else *status is the result. Without `report`, running out of memory is not reported and does not
 * make the capture fail. */
bool capture_alloc_fixed(ctrt_status *status, struct device_memory *memory, ctrt_block *block, size_t bytes,
                         void *queue, bool report);
/* Returns false if the block was not allocated by capture_alloc_fixed. */
bool capture_free_fixed(const ctrt_block *block);

/* Records that work on a captured stream uses the storage. */
void capture_note(struct capture *capture, struct storage *storage, bool writes);
/* Returns CTRT_ERR_STATE if the thread's current stream of the device is being captured, and makes the capture fail.
 * The message is "a capture runs on cuda:0, and WHY". */
ctrt_status capture_refuse(const ctrt_device *device, const char *why);
/* Makes the capture fail with `status` and the thread's current message. Only the first error is kept. */
void capture_fail(struct capture *capture, ctrt_status status);

/* Returns the capture of the thread's current stream of `device`. NULL: the stream is not being captured. */
static inline struct capture *capture_here(const ctrt_device *device)
{
    return likely(!device_asynchronous(device))
               ? NULL
               : atomic_load_explicit(&stream_here(device)->capture, memory_order_acquire);
}

/* capture_numbers reserves `bytes` (at most NUMBERS_ROOM) of device memory for an op that is being captured; `source`
 * fills them at each replay. *where: their address. The capture owns `state` afterwards, also on an error.
 * capture_numbers_of returns the state that the capture already has for that source, or NULL. */
ctrt_status capture_numbers(const void **where, struct capture *capture, size_t bytes,
                            const struct number_source *source, void *state);
void *capture_numbers_of(const void **where, struct capture *capture, const struct number_source *source);

#endif
