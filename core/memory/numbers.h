/* SPDX-License-Identifier: Apache-2.0 */
/* memory/numbers.h: numbers of the host that recorded work reads anew at each replay: places of generators, learning rates, counts of steps.
 *
 * They lie in memory of the capture's device. Before the graph is put on a stream, whoever owns them writes them to the host's image of that
 * memory, and a copy of it goes ahead of the graph. There are several images, so that the host need not wait for the copy before. */
#ifndef CORE_MEMORY_NUMBERS_H
#define CORE_MEMORY_NUMBERS_H

#include "device/stream.h"

struct numbers;                             /* of one capture; NULL: none */

struct number_source {
    ctrt_status (*fill)(void *state, void *numbers);        /* for the next replay; on an error nothing has happened */
    void (*undo)(void *state);              /* that replay came to nothing */
    void (*release)(void *state);
};

#define NUMBERS_ROOM ((size_t)1024)         /* bytes of one piece of device memory; an owner has some of one */

/* Where `bytes` more are on the device; NULL: there is no room, numbers_new first. With the place goes `state`, until numbers_free. */
const void *numbers_place(struct numbers *list, size_t bytes, const struct number_source *source, void *state);
/* More room: `memory`, NUMBERS_ROOM bytes of the device's, which the caller frees when all is over. With no lock held: without memory the program's
 * own function may be called. */
ctrt_status numbers_new(struct numbers **out, ctrt_device *device, void *memory);
void numbers_link(struct numbers **list, struct numbers *more);
/* The state that numbers_place was given with this source; NULL: it was not. */
void *numbers_find(const void **where, const struct numbers *list, const struct number_source *source);

/* A replay: waits until there are images that no copy reads; then, with the stream's lock held, writes all numbers and puts the copies on the
 * stream, which on an error have not happened; and says how far the copies and the graph reach, and whether that is there. */
void numbers_ready(const struct numbers *list);
ctrt_status numbers_put(struct numbers *list, const ctrt_stream *stream);
void numbers_sent(struct numbers *list, stream_mark mark, bool replayed);

/* When no replay runs any more. */
void numbers_free(struct numbers *list);

#endif
