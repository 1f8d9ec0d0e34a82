/* SPDX-License-Identifier: Apache-2.0 */
/* graph/graph_params.h: host values that a captured graph re-reads at each replay: offsets of random generators,
 * learning rates, step counts.
 *
 * The values are in memory of the capture's device. Before a graph is enqueued, the owners of the values write them to
 * a host image of that memory, and a copy of the image is enqueued before the graph. There are several images, so that
 * the host need not wait for the previous copy. */
#ifndef CORE_GRAPH_GRAPH_PARAMS_H
#define CORE_GRAPH_GRAPH_PARAMS_H

#include "stream/stream.h"

struct graph_params;                        /* of one capture; a linked list; NULL: none */

struct graph_param_source {
    ctrt_status (*fill)(void *state, void *params);         /* writes the values for the next replay; on an error
                                                             * nothing has changed */
    void (*undo)(void *state);              /* that replay was not enqueued */
    void (*release)(void *state);
};

#define GRAPH_PARAMS_BYTES ((size_t)1024)    /* bytes of one piece of device memory; the values of a source are within
                                             * one piece */

/* Reserves `bytes` for `source` and returns their device address. NULL: no space; call graph_params_new and
 * graph_params_link first. On success, `state` is owned by the list until graph_params_free. */
const void *graph_params_place(struct graph_params *list, size_t bytes, const struct graph_param_source *source,
                               void *state);
/* Creates parameters in `memory`, GRAPH_PARAMS_BYTES bytes on the device, which the caller frees after
 * graph_params_free. Call without locks held, because running out of memory may call a callback of the program. */
ctrt_status graph_params_new(struct graph_params **out, ctrt_device *device, void *memory);
void graph_params_link(struct graph_params **list, struct graph_params *more);
/* Returns the state that graph_params_place got with this source, and its device address. NULL: there is none. */
void *graph_params_find(const void **where, const struct graph_params *list, const struct graph_param_source *source);

/* The steps of a replay. graph_params_ready waits until no copy reads the next images. graph_params_put requires the
 * stream's lock. It lets the sources write their values and enqueues the copies; on an error it undoes the values.
 * graph_params_sent records `point`, the last work that reads the images, and whether the graph was enqueued; if it was
 * not, it undoes the values. */
void graph_params_ready(const struct graph_params *list);
ctrt_status graph_params_put(struct graph_params *list, const ctrt_stream *stream);
void graph_params_sent(struct graph_params *list, timepoint point, bool replayed);

/* Releases all sources and frees the images. No replay may be running. */
void graph_params_free(struct graph_params *list);

#endif
