/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/capture.h: graph capture: records a step of work once and replays it with one call.
 *
 * Between ctrt_capture_begin and ctrt_capture_end, the work that the thread enqueues on its current stream of the
 * device is recorded instead of run. A replay enqueues all of it again, on the same memory. The host's part of a step
 * (shapes, checks, dispatch, autograd) is needed only at the capture, which makes small steps several times faster on
 * a GPU.
 *
 *     run the step a few times                      (so that gradients, buffers and optimizer state exist)
 *     ctrt_capture_begin(device);
 *     ... forward, backward, optimizer step, reading x and y, writing loss ...
 *     ctrt_capture_end(&graph, device);
 *     for each batch: ctrt_copy_(x, batch) ... ctrt_capture_replay(graph) ... ctrt_item(&value, loss)
 *
 * The graph records the work with its addresses and values:
 *   - Tensors that the step reads keep their address, and the graph keeps their memory alive; write new values with
 *     ctrt_copy_.
 *   - Tensors that the step creates and that are still referenced when the capture ends receive new values at each
 *     replay. All other memory of the step is reused within it and belongs to the graph until the graph is released.
 *   - Host values (factors, branches, shapes) stay as recorded. Three are re-read at each replay: the offset of the
 *     device's random generator, so that random numbers are those of an uncaptured step; an optimizer's learning
 *     rate (ctrt_optimizer_set_lr); and its step count. The graph holds references to the optimizers that it steps.
 *     Their state must exist before the capture, so take a step first.
 *   - Nothing may wait for the stream: ctrt_item, copies to the host and ctrt_stream_synchronize fail with
 *     CTRT_ERR_STATE.
 *   - Replays never update parameters that had no gradient during the capture. Parameters that had one are updated
 *     together, so their step counts must stay equal. Functions that replace tensors (ctrt_module_to) leave the old
 *     ones in the graph; ctrt_optimizer_load writes into them.
 *   - Of an optimizer over several devices, only the part on the captured device is replayed.
 *   - Collectives (ctrt/comm.h) and functions of the program (ctrt_capture_call) are recorded as calls, which the host
 *     makes again in each replay. All other functions of the program run only during the capture.
 *
 * Tensors that a capture writes have no values before the first replay. A failed call is not recorded; if a step did
 * not complete, release its graph.
 *
 * A refused operation leaves the capture open. ctrt_capture_end must still be called; it reports what made the
 * recording unusable (for example, memory that ran out), and afterwards the state is as without a capture. */
#ifndef CTRT_CAPTURE_H
#define CTRT_CAPTURE_H

#include "ctrt/stream.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_graph ctrt_graph;

/* Starts to capture the calling thread's current stream of `device` (NULL: the default device), after all work of
 * the device is done. There is one capture per device. No other thread may use the stream until the capture ends
 * (the default stream is shared by all threads), because its work would also be recorded. If the thread exits before
 * the end, its stream remains captured. Other streams of the device join the capture by waiting for the captured stream
 * (ctrt_stream_wait, ctrt_stream_wait_event) before they use its results, until the capture ends.
 *
 * Errors: CTRT_ERR_NOT_SUPPORTED if the backend has no captures or the memory policy moves memory; CTRT_ERR_STATE if
 * the stream is being captured already or a dry run is active on the device; the device's own error. */
CTRT_API ctrt_status ctrt_capture_begin(ctrt_device *device);
/* Ends the capture that the calling thread began on `device`. *out (NULL or a graph, by the assignment rule of
 * ctrt/base.h) becomes its graph. On an error there is no graph. Errors: CTRT_ERR_STATE without a capture, the first
 * error during recording, the backend's errors. */
CTRT_API ctrt_status ctrt_capture_end(ctrt_graph **out, ctrt_device *device);
/* Returns whether the calling thread's current stream of `device` (NULL: the default device) is being captured. */
CTRT_API bool ctrt_capture_running(ctrt_device *device);

/* Records a call of `function` in the capture of the calling thread's current stream of `device` (NULL: the default
 * device). Each ctrt_capture_replay calls `function` in its own thread, after it has enqueued the work that was
 * recorded before this call, and before it enqueues later work. So `function` runs on the host before the earlier work
 * has ended. It may call functions of this library, whose work is enqueued at this place, but must not replay or
 * release the graph. If it fails, the replay ends with its error, and later work is not enqueued. The call divides the
 * recorded work: on all streams of the capture, work after the call waits for all work before it, and each part is a
 * separate graph of the backend. While ctrt_capture_call runs, no other thread may use a stream of the capture.
 *
 * `destroy` (NULL: none) is called with `user` when the graph is released, when the capture fails, or when this
 * function fails. Errors: CTRT_ERR_STATE if the stream is not being captured. Other errors make the capture fail. */
CTRT_API ctrt_status ctrt_capture_call(ctrt_device *device, ctrt_status (*function)(void *user), void *user,
                                       void (*destroy)(void *user));

/* Enqueues the recorded work on the calling thread's current stream of the graph's device, ordered after the work of
 * other streams on the tensors that it uses. Replays of one graph run one after another.
 *
 * If the graph has collectives, this function waits for the other ranks as the collectives do, and returns their error,
 * for example CTRT_ERR_COMM if a rank has ended or does not arrive, or if the communicator has failed before. After
 * such an error the work before the collective has been enqueued, and the work after it has not, so the optimizer makes
 * no step.
 *
 * Errors: CTRT_ERR_STATE on a stream that is being captured and while a dry run is active on the device; errors of
 * collectives and of recorded functions; errors of the backend. */
CTRT_API ctrt_status ctrt_capture_replay(ctrt_graph *graph);

/* Adds a reference and returns `graph`; NULL is returned unchanged. */
CTRT_API ctrt_graph *ctrt_graph_retain(ctrt_graph *graph);
/* Releases the reference in *graph and sets *graph to NULL. Releasing the last reference waits for running replays.
 * Tensors created in the capture stay valid. */
CTRT_API void ctrt_graph_release(ctrt_graph **graph);
/* Returns the device on which the graph was captured; NULL for NULL. */
CTRT_API ctrt_device *ctrt_graph_device(const ctrt_graph *graph);
/* Returns the device memory in bytes that the graph reserves; 0 for NULL. */
CTRT_API uint64_t ctrt_graph_memory(const ctrt_graph *graph);

CTRT_END_DECLS

#endif
