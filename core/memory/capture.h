/* SPDX-License-Identifier: Apache-2.0 */
/* memory/capture.h: streams whose work is recorded (ctrt/capture.h): their memory, and the tensors that they use. */
#ifndef CORE_MEMORY_CAPTURE_H
#define CORE_MEMORY_CAPTURE_H

#include "ctrt/capture.h"
#include "memory/numbers.h"
#include "memory/storage.h"

struct capture;                             /* one that runs, later the graph's */

/* Memory for a storage that is made while its stream is captured; it is the capture's also after that (storage->capture). */
ctrt_status capture_storage(struct storage *storage, struct capture *capture, size_t bytes, void *queue);
/* Such a storage dies; `marks`: all uses that it has. */
void capture_storage_free(struct storage *storage, const stream_mark *marks, int count);

/* Memory of one piece of work. False: the queue is not being captured, ask the policy. */
bool capture_alloc_fixed(ctrt_status *status, struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue, bool report);
/* False: the block is not a capture's. */
bool capture_free_fixed(const ctrt_block *block);

/* Work on the storage was put on a stream that is being captured. */
void capture_note(struct capture *capture, struct storage *storage, bool writes);
/* CTRT_ERR_STATE when the thread's current stream of the device is being captured: "a capture runs on cuda:0, and WHY". */
ctrt_status capture_refuse(const ctrt_device *device, const char *why);
/* The first error of the capture stays. */
void capture_fail(struct capture *capture, ctrt_status status);

/* The capture of the thread's current stream of `device`; NULL: none runs there. */
static inline struct capture *capture_here(const ctrt_device *device)
{
    return likely(!device_asynchronous(device)) ? NULL : atomic_load_explicit(&stream_here(device)->capture, memory_order_acquire);
}

/* For an op that is being captured: at most NUMBERS_ROOM bytes of device memory, in *where, that `source` fills anew at each replay. `state` is the
 * capture's from then on, also on an error. One that the same source has there already is found by capture_numbers_of. */
ctrt_status capture_numbers(const void **where, struct capture *capture, size_t bytes, const struct number_source *source, void *state);
void *capture_numbers_of(const void **where, struct capture *capture, const struct number_source *source);

#endif
