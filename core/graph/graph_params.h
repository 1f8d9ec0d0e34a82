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

struct numbers;                             /* of one capture; a linked list; NULL: none */

struct number_source {
    ctrt_status (*fill)(void *state, void *numbers);        /* writes the values for the next replay; on an error
                                                             * nothing has changed */
    void (*undo)(void *state);              /* that replay was not enqueued */
    void (*release)(void *state);
};

#define NUMBERS_ROOM ((size_t)1024)         /* bytes of one piece of device memory; the values of a source are within
                                             * one piece */

/* Reserves `bytes` for `source` and returns their device address. NULL: no room; call numbers_new and numbers_link
 * first. On success, `state` is owned by the list until numbers_free. */
const void *numbers_place(struct numbers *list, size_t bytes, const struct number_source *source, void *state);
/* Creates room in `memory`, NUMBERS_ROOM bytes on the device, which the caller frees after numbers_free. Call without
 * locks held, because running out of memory may call a callback of the program. */
ctrt_status numbers_new(struct numbers **out, ctrt_device *device, void *memory);
void numbers_link(struct numbers **list, struct numbers *more);
/* Returns the state that numbers_place got with this source, and its device address. NULL: there is none. */
void *numbers_find(const void **where, const struct numbers *list, const struct number_source *source);

/* The steps of a replay. numbers_ready waits until no copy reads the next images. numbers_put, called with the stream's
 * lock held, lets the sources write their values and enqueues the copies; on an error it undoes the values.
 * numbers_sent records `mark`, the last work that reads the images, and whether the graph was enqueued; if it was not,
 * it undoes the values. */
void numbers_ready(const struct numbers *list);
ctrt_status numbers_put(struct numbers *list, const ctrt_stream *stream);
void numbers_sent(struct numbers *list, stream_mark mark, bool replayed);

/* Releases all sources and frees the images. No replay may be running. */
void numbers_free(struct numbers *list);

#endif
