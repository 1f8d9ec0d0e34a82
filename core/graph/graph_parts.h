/* SPDX-License-Identifier: Apache-2.0 */
/* graph/graph_parts.h: the parts of a graph: graphs of the backend, and between them calls of host functions, for work
 * that the backend cannot record, for example collectives. A replay goes through the parts in order. */
#ifndef CORE_GRAPH_GRAPH_PARTS_H
#define CORE_GRAPH_GRAPH_PARTS_H

#include "graph/capture_parts.h"

/* Ends the backend's graph and appends it to the capture's list. The caller holds the lock of the captured stream. */
ctrt_status graph_parts_end(struct graph_capture *capture);
/* Frees the backend's graphs, and releases the states of the calls. No replay may be running. Does nothing in the child
 * of a fork. */
void graph_parts_free(struct graph_capture *capture);
/* Enqueues the parts on `stream`. Stops at the first error. The caller holds capture->lock, which is released during
 * the calls. *point becomes the timepoint of the last work that was enqueued, and does not change if none
 * was. */
ctrt_status graph_parts_replay(timepoint *point, struct graph_capture *capture, ctrt_stream *stream);

#endif
