/* SPDX-License-Identifier: Apache-2.0 */
/* graph/capture.h: the memory of streams that are being captured (ctrt/capture.h), and the tensors that captured work
 * uses. */
#ifndef CORE_GRAPH_CAPTURE_H
#define CORE_GRAPH_CAPTURE_H

#include "ctrt/capture.h"
#include "graph/graph_params.h"
#include "memory/storage.h"

/* Returns CTRT_ERR_STATE if the thread's current stream of the device is being captured, and makes the capture fail.
 * The message is "a capture runs on cuda:0, and WHY". */
ctrt_status capture_refuse(const ctrt_device *device, const char *why);

/* If the thread's current stream of the device is being captured, makes the capture fail with `status` and the thread's
 * message. Returns `status`. */
ctrt_status capture_abandon(const ctrt_device *device, ctrt_status status);

/* Returns the capture of the thread's current stream of `device`. NULL: the stream is not being captured. */
static inline struct capture *capture_here(const ctrt_device *device)
{
    return likely(!device_asynchronous(device))
               ? NULL
               : atomic_load_explicit(&stream_here(device)->capture, memory_order_acquire);
}

/* capture_params reserves `bytes` (at most GRAPH_PARAMS_BYTES) of device memory for an op that is being captured;
 * `source` fills them at each replay. *where: their address. The capture owns `state` afterwards, also on an error.
 * capture_params_of returns the state that the capture already has for that source, or NULL. */
ctrt_status capture_params(const void **where, struct capture *capture, size_t bytes,
                           const struct graph_param_source *source, void *state);
void *capture_params_of(const void **where, struct capture *capture, const struct graph_param_source *source);

/* A call of a host function that a capture records between the work of its streams: a collective (parallel/), or a
 * function of the program. */
struct graph_call {
    /* Called by each replay, in its thread, after it has enqueued the work that was recorded before the call, and
     * before it enqueues later work. The thread holds no lock except that of the graph. May enqueue work on the
     * replaying stream. An error ends the replay. NULL: the graph only keeps `state`. */
    ctrt_status (*run)(void *state);
    /* Optional: called at the end of each replay that has called `run`, also if the replay fails. */
    ctrt_status (*finish)(void *state);
    void (*release)(void *state);           /* called when the graph is freed or the capture fails */
};

/* Records a call. `capture` is that of a current stream of the calling thread. The capture owns `state` afterwards,
 * also on an error. An error makes the capture fail. */
ctrt_status capture_call(struct capture *capture, const struct graph_call *call, void *state);

#endif
