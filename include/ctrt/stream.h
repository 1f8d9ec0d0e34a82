/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/stream.h: ordered queues of work on a device, and events in them.
 *
 * Work put on one stream runs in order; work on different streams may overlap. Each thread has a current stream per
 * device, at first the device's default stream, and ops go there. ctrt orders streams by itself where tensors are
 * shared between them: an op waits, on the device, for what other streams still do to its operands, and memory is
 * handed out again only behind the work that used it. So most programs never wait by hand. CTRT_STREAM_ORDER=manual
 * leaves ordering to the program, as PyTorch does; CTRT_STREAM_ORDER=check does that and reports each access that
 * nothing orders (ctrt_race_count).
 *
 * On a synchronous device (cpu) work is done when the call returns; its streams and events exist, so that programs
 * need no second version, and are always done.
 *
 * Work that fails on the device is noticed later. The error stays with its stream, names the op and the module or
 * label it was called in, and is returned by ctrt_stream_synchronize, ctrt_stream_query, ctrt_event_synchronize,
 * ctrt_item and copies to the host that depend on it; other streams go on. ctrt_stream_reset makes the stream usable
 * again. All functions may be called from any thread. */
#ifndef CTRT_STREAM_H
#define CTRT_STREAM_H

#include "ctrt/tensor.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_stream ctrt_stream;
typedef struct ctrt_event ctrt_event;

/* ---- streams ---- */

/* Creates a stream on `device` (NULL: the default device). `priority`: lower runs first, 0 is normal; clamped to what the device
 * offers. No two live streams share a queue of the device. *out owns one reference afterwards. Errors: CTRT_ERR_OUT_OF_MEMORY,
 * CTRT_ERR_STATE when 4,096 streams live. */
CTRT_API ctrt_status ctrt_stream_new(ctrt_stream **out, ctrt_device *device, int priority);
CTRT_API ctrt_stream *ctrt_stream_retain(ctrt_stream *stream);
/* Drops the reference and nulls the variable. Work on the stream goes on; nothing waits. */
CTRT_API void ctrt_stream_release(ctrt_stream **stream);

/* The stream that `device` begins with; *out owns a reference. */
CTRT_API ctrt_status ctrt_stream_default(ctrt_stream **out, ctrt_device *device);
/* The calling thread's current stream of `device`; *out owns a reference. */
CTRT_API ctrt_status ctrt_stream_current(ctrt_stream **out, ctrt_device *device);
/* Makes `stream` the thread's current stream of its device. */
CTRT_API ctrt_status ctrt_stream_set_current(ctrt_stream *stream);
/* The same, and makes its device current, until the matching ctrt_stream_pop restores both. Pairs nest, and nest with
 * ctrt_device_push. NULL: changes nothing, but still needs its pop. */
CTRT_API ctrt_status ctrt_stream_push(ctrt_stream *stream);
/* CTRT_ERR_STATE without a matching push. */
CTRT_API ctrt_status ctrt_stream_pop(void);

/* Makes work put on `stream` from now on wait for all work that is on `other` at this moment. Does not block the caller. The
 * streams may belong to different devices. */
CTRT_API ctrt_status ctrt_stream_wait(ctrt_stream *stream, ctrt_stream *other);
/* The same for the work before the event's last record; an event that was never recorded makes nobody wait. */
CTRT_API ctrt_status ctrt_stream_wait_event(ctrt_stream *stream, ctrt_event *event);
/* Blocks until all work on the stream is done. Returns the stream's error, if it has one. */
CTRT_API ctrt_status ctrt_stream_synchronize(ctrt_stream *stream);
/* *idle: is all work done? Does not block. Returns the stream's error, if it is known by now. */
CTRT_API ctrt_status ctrt_stream_query(ctrt_stream *stream, bool *idle);
/* Forgets the stream's error; work put on it from now on runs. CTRT_ERR_DEVICE_LOST when the device itself is gone,
 * CTRT_ERR_NOT_SUPPORTED when its backend cannot recover. CTRT_OK without an error. */
CTRT_API ctrt_status ctrt_stream_reset(ctrt_stream *stream);

CTRT_API ctrt_device *ctrt_stream_device(const ctrt_stream *stream);
/* A number that no other live stream of the process has; 0 is never used. */
CTRT_API uint64_t ctrt_stream_id(const ctrt_stream *stream);
CTRT_API int ctrt_stream_priority(const ctrt_stream *stream);

/* ---- events ---- */

/* Creates an event on `device` (NULL: the default device). Only with `timing` can it be asked for elapsed time. */
CTRT_API ctrt_status ctrt_event_new(ctrt_event **out, ctrt_device *device, bool timing);
CTRT_API ctrt_event *ctrt_event_retain(ctrt_event *event);
CTRT_API void ctrt_event_release(ctrt_event **event);

/* The event stands for all work that is on `stream` now (NULL: the thread's current stream of its device). Recording anew moves
 * it. CTRT_ERR_DEVICE when the stream is another device's. */
CTRT_API ctrt_status ctrt_event_record(ctrt_event *event, ctrt_stream *stream);
/* *done: true also for an event that was never recorded. */
CTRT_API ctrt_status ctrt_event_query(ctrt_event *event, bool *done);
/* Blocks until the work is done; returns the error of its stream, if it has one. */
CTRT_API ctrt_status ctrt_event_synchronize(ctrt_event *event);
/* Milliseconds from one event to another of the same device. CTRT_ERR_STATE unless both were made with timing, recorded and are
 * done. */
CTRT_API ctrt_status ctrt_event_elapsed(double *milliseconds, ctrt_event *from, ctrt_event *to);

/* ---- tensors and streams ---- */

/* Notes that work on `stream` that ctrt has not seen (a kernel of the program's own) uses the tensor's memory: ops on
 * other streams, and whoever gets the memory next, wait for what is on `stream` now. With CTRT_STREAM_ORDER=manual and
 * =check only the memory's next user waits, as in PyTorch. */
CTRT_API ctrt_status ctrt_tensor_record_stream(ctrt_tensor *tensor, ctrt_stream *stream);

/* As ctrt_to_device and ctrt_copy_, but the caller does not wait where the hardware can copy by itself: between a device and
 * pinned host memory. *asynchronous (NULL allowed) says whether it was so; else the copy is complete. The source may be released or
 * read at once; ops that write to it wait. A host tensor that is still being filled makes whoever reads it through ctrt wait. */
CTRT_API ctrt_status ctrt_to_non_blocking(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device, bool *asynchronous);
CTRT_API ctrt_status ctrt_copy_non_blocking_(ctrt_tensor *self, ctrt_tensor *source, bool *asynchronous);

/* A copy of a host tensor in pinned memory (the tensor itself when it lies there already), which `device` (NULL: the best
 * accelerator) copies fast and without the caller. Host memory that is pinned for one device of a backend is so for all. On a device
 * without such memory, ordinary memory. */
CTRT_API ctrt_status ctrt_pin_memory(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device);
/* An uninitialised tensor in pinned memory. */
CTRT_API ctrt_status ctrt_empty_pinned(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API bool ctrt_tensor_is_pinned(const ctrt_tensor *tensor);

/* How many accesses the race detector has reported (CTRT_STREAM_ORDER=check). Each is a warning in the log that names
 * both ops, with their streams, labels and calls; the log has the first 50. */
CTRT_API uint64_t ctrt_race_count(void);

CTRT_END_DECLS

#endif
