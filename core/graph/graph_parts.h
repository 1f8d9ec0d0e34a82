/* SPDX-License-Identifier: Apache-2.0 */
/* graph/graph_parts.h: the parts of a captured graph. A part is a graph of the backend, or a call of a host function
 * for work that the backend cannot record, for example a collective. A replay runs the parts in order. */
#ifndef CORE_GRAPH_GRAPH_PARTS_H
#define CORE_GRAPH_GRAPH_PARTS_H

#include "graph/capture_parts.h"

/* Ends the backend's graph and appends it to the capture's list. The caller holds the lock of the captured stream. */
ctrt_status graph_parts_end(struct graph_capture *capture);
/* Frees the backend's graphs and releases the states of the calls. No replay may be running. Does nothing in the child
 * of a fork. */
void graph_parts_free(struct graph_capture *capture);
/* Enqueues the parts on `stream`, and stops at the first error. The caller holds capture->lock; the function releases
 * the lock during each call. *point becomes the timepoint of the last enqueued work, and does not change if no work was
 * enqueued. */
ctrt_status graph_parts_replay(timepoint *point, struct graph_capture *capture, ctrt_stream *stream);

#endif
