/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_STREAM_H
#define CTRT_STREAM_H
#include "ctrt/tensor.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_stream ctrt_stream;
typedef struct ctrt_event ctrt_event;
CTRT_API ctrt_status ctrt_stream_new(ctrt_stream **out, ctrt_device *device, int priority);
CTRT_API ctrt_stream *ctrt_stream_retain(ctrt_stream *stream);
CTRT_API void ctrt_stream_release(ctrt_stream **stream);
CTRT_ARRAY_RELEASE_(stream)
CTRT_API ctrt_status ctrt_stream_default(ctrt_stream **out, ctrt_device *device);
CTRT_API ctrt_status ctrt_stream_current(ctrt_stream **out, ctrt_device *device);
CTRT_API ctrt_status ctrt_stream_set_current(ctrt_stream *stream);
CTRT_API ctrt_status ctrt_stream_push(ctrt_stream *stream);
CTRT_API ctrt_status ctrt_stream_pop(void);
CTRT_BLOCK_LEAVE_(ctrt_on_stream_leave_, ctrt_stream_pop())
#define ctrt_on_stream(stream) CTRT_BLOCK_TRY_(ctrt_on_stream_leave_, ctrt_stream_push(stream))
CTRT_API ctrt_status ctrt_stream_wait(ctrt_stream *stream, ctrt_stream *other);
CTRT_API ctrt_status ctrt_stream_wait_event(ctrt_stream *stream, ctrt_event *event);
CTRT_API ctrt_status ctrt_stream_synchronize(ctrt_stream *stream);
CTRT_API ctrt_status ctrt_stream_query(ctrt_stream *stream, bool *idle);
CTRT_API ctrt_status ctrt_stream_reset(ctrt_stream *stream);
CTRT_API ctrt_status ctrt_stream_native(void **handle, ctrt_stream *stream);
CTRT_API ctrt_device *ctrt_stream_device(const ctrt_stream *stream);
CTRT_API uint64_t ctrt_stream_id(const ctrt_stream *stream);
CTRT_API int ctrt_stream_priority(const ctrt_stream *stream);
CTRT_API ctrt_status ctrt_event_new(ctrt_event **out, ctrt_device *device, bool timing);
CTRT_API ctrt_event *ctrt_event_retain(ctrt_event *event);
CTRT_API void ctrt_event_release(ctrt_event **event);
CTRT_API ctrt_status ctrt_event_record(ctrt_event *event, ctrt_stream *stream);
CTRT_API ctrt_status ctrt_event_query(ctrt_event *event, bool *done);
CTRT_API ctrt_status ctrt_event_synchronize(ctrt_event *event);
CTRT_API ctrt_status ctrt_event_elapsed(double *milliseconds, ctrt_event *from, ctrt_event *to);
CTRT_API ctrt_status ctrt_tensor_record_stream(ctrt_tensor *tensor, ctrt_stream *stream);
CTRT_API ctrt_status ctrt_to_non_blocking(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device,
                                          bool *asynchronous);
CTRT_API ctrt_status ctrt_copy_non_blocking_(ctrt_tensor *self, ctrt_tensor *source, bool *asynchronous);
CTRT_API ctrt_status ctrt_pin_memory(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device);
CTRT_API ctrt_status ctrt_empty_pinned(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API bool ctrt_tensor_is_pinned(const ctrt_tensor *tensor);
CTRT_API uint64_t ctrt_race_count(void);
CTRT_END_DECLS
#endif
