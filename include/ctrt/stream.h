/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/stream.h: streams (ordered queues of work on a device) and events.
 *
 * Work enqueued on one stream runs in order; work on different streams may overlap. Each thread has a current stream
 * per device, initially the device's default stream, and ops are enqueued there. ctrt orders streams automatically
 * where they share tensors. An op waits, on the device, for earlier work of other streams on its operands, and freed
 * memory is reused only after the work that used it. Most programs therefore never wait explicitly.
 * CTRT_STREAM_ORDER=manual leaves the ordering to the program, as PyTorch does. CTRT_STREAM_ORDER=check does the same
 * and reports each pair of accesses that is not ordered (ctrt_race_count).
 *
 * On a synchronous device (cpu) work is complete when the call returns. Streams and events also exist there, and are
 * always done, so that programs need no separate code path.
 *
 * A failure of work on the device is detected later. The error stays with its stream, names the op and the module or
 * label in which it was called, and is returned by ctrt_stream_synchronize, ctrt_stream_query,
 * ctrt_event_synchronize, ctrt_item and copies to the host that depend on it. Other streams continue.
 * ctrt_stream_reset makes the stream usable again.
 *
 * Where a function takes a stream or an event, NULL is CTRT_ERR_INVALID_ARGUMENT unless its comment says otherwise.
 * All functions are thread-safe. */
#ifndef CTRT_STREAM_H
#define CTRT_STREAM_H

#include "ctrt/tensor.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_stream ctrt_stream;
typedef struct ctrt_event ctrt_event;

/* ---- streams ---- */

/* Creates a stream on `device` (NULL: the default device). `priority`: lower runs first, 0 is normal; clamped to the
 * device's range. No two live streams share a queue of the device.
 *
 * On success *out owns one reference. Errors: CTRT_ERR_OUT_OF_MEMORY, CTRT_ERR_STATE if 4,096 streams are alive. */
CTRT_API ctrt_status ctrt_stream_new(ctrt_stream **out, ctrt_device *device, int priority);
/* Adds a reference and returns `stream`; NULL is returned unchanged. */
CTRT_API ctrt_stream *ctrt_stream_retain(ctrt_stream *stream);
/* Releases the reference in *stream and sets *stream to NULL. Work on the stream continues; the call does not wait. */
CTRT_API void ctrt_stream_release(ctrt_stream **stream);
CTRT_ARRAY_RELEASE_(stream)

/* Writes the default stream of `device` (NULL: the default device). On success *out owns one reference. */
CTRT_API ctrt_status ctrt_stream_default(ctrt_stream **out, ctrt_device *device);
/* Writes the calling thread's current stream of `device` (NULL: the default device). On success *out owns one
 * reference. */
CTRT_API ctrt_status ctrt_stream_current(ctrt_stream **out, ctrt_device *device);
/* Makes `stream` the calling thread's current stream of its device. */
CTRT_API ctrt_status ctrt_stream_set_current(ctrt_stream *stream);
/* Makes `stream` and its device current until the matching ctrt_stream_pop restores the previous stream and device.
 * Pairs nest, also with those of ctrt_device_push. With NULL the push changes nothing, but still needs its pop. */
CTRT_API ctrt_status ctrt_stream_push(ctrt_stream *stream);
/* Restores what the matching ctrt_stream_push replaced. CTRT_ERR_STATE without a matching push. */
CTRT_API ctrt_status ctrt_stream_pop(void);
/* ctrt_on_stream(stream) { ... } makes `stream` current in the following statement or block (ctrt/base.h). */
CTRT_BLOCK_LEAVE_(ctrt_on_stream_leave_, ctrt_stream_pop())
#define ctrt_on_stream(stream) CTRT_BLOCK_TRY_(ctrt_on_stream_leave_, ctrt_stream_push(stream))

/* Makes work enqueued on `stream` from now on wait for all work that is on `other` at this moment. Does not block
 * the caller. The streams may belong to different devices. */
CTRT_API ctrt_status ctrt_stream_wait(ctrt_stream *stream, ctrt_stream *other);
/* Like ctrt_stream_wait, for the work before the event's last record. Waiting for an event that was never recorded has
 * no effect. */
CTRT_API ctrt_status ctrt_stream_wait_event(ctrt_stream *stream, ctrt_event *event);
/* Blocks until all work on the stream is done. Returns the stream's error, if it has one. */
CTRT_API ctrt_status ctrt_stream_synchronize(ctrt_stream *stream);
/* Sets *idle to whether all work on the stream is done. Does not block. Returns the stream's error, if it is known
 * already. */
CTRT_API ctrt_status ctrt_stream_query(ctrt_stream *stream, bool *idle);
/* Clears the stream's error; work enqueued from now on runs. Returns CTRT_OK if there is no error,
 * CTRT_ERR_DEVICE_LOST if the device itself is lost, CTRT_ERR_NOT_SUPPORTED if its backend cannot recover. */
CTRT_API ctrt_status ctrt_stream_reset(ctrt_stream *stream);

/* Writes the handle of the stream in the API of its device (cuda: a CUstream, which is also a cudaStream_t), for calls
 * of other libraries, and makes the device current in the calling thread for these calls (cuda: the primary context).
 * The handle is valid as long as the stream. Tensors that such calls use are declared by ctrt_tensor_record_stream.
 * CTRT_ERR_NOT_SUPPORTED if the device has no such handles. */
CTRT_API ctrt_status ctrt_stream_native(void **handle, ctrt_stream *stream);

/* Returns the stream's device; NULL for NULL. */
CTRT_API ctrt_device *ctrt_stream_device(const ctrt_stream *stream);
/* Returns a number that no other live stream of the process has; 0 for NULL only. */
CTRT_API uint64_t ctrt_stream_id(const ctrt_stream *stream);
/* Returns the stream's priority, clamped to the device's range; 0 for NULL. */
CTRT_API int ctrt_stream_priority(const ctrt_stream *stream);

/* ---- events ---- */

/* Creates an event on `device` (NULL: the default device). ctrt_event_elapsed requires `timing`. On success *out
 * owns one reference. */
CTRT_API ctrt_status ctrt_event_new(ctrt_event **out, ctrt_device *device, bool timing);
/* Adds a reference and returns `event`; NULL is returned unchanged. */
CTRT_API ctrt_event *ctrt_event_retain(ctrt_event *event);
/* Releases the reference in *event and sets *event to NULL. Does not wait. */
CTRT_API void ctrt_event_release(ctrt_event **event);

/* Makes the event stand for all work that is on `stream` now (NULL: the calling thread's current stream of the
 * event's device). Recording again replaces the previous record. CTRT_ERR_DEVICE if the stream belongs to another
 * device. */
CTRT_API ctrt_status ctrt_event_record(ctrt_event *event, ctrt_stream *stream);
/* Sets *done to whether the recorded work is done; true for an event that was never recorded. Does not block. */
CTRT_API ctrt_status ctrt_event_query(ctrt_event *event, bool *done);
/* Blocks until the recorded work is done. Returns the error of its stream, if it has one. */
CTRT_API ctrt_status ctrt_event_synchronize(ctrt_event *event);
/* Writes the time between two events of the same device in milliseconds. CTRT_ERR_STATE unless both were created
 * with timing, recorded and are done; CTRT_ERR_DEVICE if they belong to different devices; CTRT_ERR_NOT_SUPPORTED if
 * the backend has no clock. */
CTRT_API ctrt_status ctrt_event_elapsed(double *milliseconds, ctrt_event *from, ctrt_event *to);

/* ---- tensors and streams ---- */

/* Declares that work on `stream` which ctrt has not seen (a kernel of the program's own) uses the tensor's memory.
 * Ops on other streams, and the next user of the memory, wait for the work that is on `stream` now. With
 * CTRT_STREAM_ORDER=manual and =check only the memory's next user waits, as in PyTorch. No effect for synchronous
 * devices. */
CTRT_API ctrt_status ctrt_tensor_record_stream(ctrt_tensor *tensor, ctrt_stream *stream);

/* Like ctrt_to_device and ctrt_copy_, but the call returns before the copy is complete if the hardware can copy
 * asynchronously: between a device and pinned host memory. *asynchronous (may be NULL) receives whether the copy is
 * asynchronous; if not, it is complete. The source may be released or read immediately; ops that write to it wait. ctrt
 * functions that read a host tensor which is still being filled wait for the copy. */
CTRT_API ctrt_status ctrt_to_non_blocking(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device,
                                          bool *asynchronous);
CTRT_API ctrt_status ctrt_copy_non_blocking_(ctrt_tensor *self, ctrt_tensor *source, bool *asynchronous);

/* Writes a copy of a host tensor in pinned memory, which `device` (NULL: the best accelerator) copies fast and
 * asynchronously. Writes another reference to the tensor itself if its memory is pinned already or `device` is
 * synchronous. Memory that is pinned for one device of a backend is pinned for all of them. If the backend has no
 * pinned memory, the copy is in ordinary memory. CTRT_ERR_DEVICE if the tensor is not on the cpu. */
CTRT_API ctrt_status ctrt_pin_memory(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device);
/* Creates an uninitialised host tensor in pinned memory for `device`, as ctrt_pin_memory. */
CTRT_API ctrt_status ctrt_empty_pinned(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
/* Returns whether the tensor's storage is pinned host memory; false for NULL. */
CTRT_API bool ctrt_tensor_is_pinned(const ctrt_tensor *tensor);

/* Returns how many unordered accesses the race detector has reported (CTRT_STREAM_ORDER=check). Each is a warning in
 * the log that names both ops with their streams, labels and calls; only the first 50 are logged. */
CTRT_API uint64_t ctrt_race_count(void);

CTRT_END_DECLS

#endif
