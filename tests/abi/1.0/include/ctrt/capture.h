/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_CAPTURE_H
#define CTRT_CAPTURE_H
#include "ctrt/stream.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_graph ctrt_graph;
CTRT_API ctrt_status ctrt_capture_begin(ctrt_device *device);
CTRT_API ctrt_status ctrt_capture_end(ctrt_graph **out, ctrt_device *device);
CTRT_API bool ctrt_capture_running(ctrt_device *device);
CTRT_API ctrt_status ctrt_capture_call(ctrt_device *device, ctrt_status (*function)(void *user), void *user,
                                       void (*destroy)(void *user));
CTRT_API ctrt_status ctrt_capture_replay(ctrt_graph *graph);
CTRT_API ctrt_graph *ctrt_graph_retain(ctrt_graph *graph);
CTRT_API void ctrt_graph_release(ctrt_graph **graph);
CTRT_API ctrt_device *ctrt_graph_device(const ctrt_graph *graph);
CTRT_API uint64_t ctrt_graph_memory(const ctrt_graph *graph);
CTRT_END_DECLS
#endif
