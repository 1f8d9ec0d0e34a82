/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/capture.h: a step of work, recorded once and replayed at one stroke.
 *
 * Between ctrt_capture_begin and _end, what the thread puts on its current stream of the device is recorded instead of run; replaying puts all
 * of it there again, on the same memory. The host's share of a step (shapes, checks, dispatch, autograd) is paid once: on a GPU small steps
 * become several times faster.
 *
 *     run the step a few times                      (so that gradients, buffers and optimizer state exist)
 *     ctrt_capture_begin(device);
 *     ... forward, backward, optimizer step, reading x and y, writing loss ...
 *     ctrt_capture_end(&graph, device);
 *     for each batch: ctrt_copy_(x, batch) ... ctrt_capture_replay(graph) ... ctrt_item(&value, loss)
 *
 * What is recorded is the work, with its addresses and numbers:
 *  - tensors that the step reads stay where they are (the graph keeps them); give them new values with ctrt_copy_;
 *  - tensors that it makes and that are still held when the capture ends get new values at each replay; all other memory of the step is
 *    reused within it, and belongs to the graph until that is released;
 *  - numbers of the host stay what they were: factors, branches, shapes. Three are taken anew at each replay: the place of the device's generator,
 *    so that random numbers are those of a step that is not captured; an optimizer's learning rate (ctrt_optimizer_set_lr); its count of steps.
 *    Optimizers live as long as their graphs; their state must exist before (take a step first);
 *  - nothing may wait for the stream: ctrt_item, copies to the host and ctrt_stream_synchronize fail with CTRT_ERR_STATE;
 *  - parameters that have no gradient then are never stepped by replays; those that have are stepped together, so that their counts of steps must
 *    stay equal. What replaces tensors (ctrt_module_to) leaves the graph with the old ones; ctrt_optimizer_load writes into them;
 *  - of an optimizer over several devices only what is on the captured one is replayed.
 *
 * What a capture writes has no values before the first replay. A call that fails is not in the recording: release the graph of a step that did not come
 * to its end.
 *
 * What is refused leaves the capture open: ctrt_capture_end is due all the same, says what made the recording worthless (memory that ran out, say),
 * and afterwards all is as without a capture. */
#ifndef CTRT_CAPTURE_H
#define CTRT_CAPTURE_H

#include "ctrt/stream.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_graph ctrt_graph;

/* Begins to record the calling thread's current stream of `device` (NULL: the default device), after all work of the device is done. One
 * capture a device. No other thread may use the stream until its end (the default stream is every thread's): what it puts there is recorded too. A
 * thread that ends before leaves its stream captured. Other streams of the device join it by waiting for it (ctrt_stream_wait, ctrt_stream_wait_event) before they use its results,
 * until it ends.
 * Errors: CTRT_ERR_NOT_SUPPORTED where the backend cannot, CTRT_ERR_STATE when the stream is being captured already, the device's own error. */
CTRT_API ctrt_status ctrt_capture_begin(ctrt_device *device);
/* Ends the capture that the thread began; *out (NULL or a graph, by the assignment rule) becomes its graph. On an error there is none. Errors:
 * CTRT_ERR_STATE without a capture, the first error that recording met, the backend's. */
CTRT_API ctrt_status ctrt_capture_end(ctrt_graph **out, ctrt_device *device);
/* Is the calling thread's current stream of `device` (NULL: the default device) being captured? */
CTRT_API bool ctrt_capture_running(ctrt_device *device);

/* Puts the recorded work on the calling thread's current stream of the graph's device, behind what other streams still do to the tensors that
 * it uses. Replays of one graph run one after another. Errors: CTRT_ERR_STATE on a stream that is being captured, the backend's. */
CTRT_API ctrt_status ctrt_capture_replay(ctrt_graph *graph);

CTRT_API ctrt_graph *ctrt_graph_retain(ctrt_graph *graph);
/* Drops the reference and nulls the variable. The last one waits for replays that run. Tensors made in the capture stay valid. */
CTRT_API void ctrt_graph_release(ctrt_graph **graph);
CTRT_API ctrt_device *ctrt_graph_device(const ctrt_graph *graph);
/* Bytes of device memory that the graph keeps for itself. */
CTRT_API uint64_t ctrt_graph_memory(const ctrt_graph *graph);

CTRT_END_DECLS

#endif
