/* SPDX-License-Identifier: Apache-2.0 */
/* graph/graph_params.c: host values that a captured graph re-reads at each replay. */
#include "graph/graph_params.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "memory/pinned_cache.h"
#include "memory/storage.h"

#define IMAGES 64                           /* number of replays that the host may be ahead of the device */
#define PLACE  16                           /* alignment in bytes */

struct param {
    const struct graph_param_source *source;
    void *state;
    size_t at;                              /* offset in the image */
};

/* One piece of device memory and its host images. */
struct graph_params {
    struct graph_params *next;              /* pieces added earlier */
    ctrt_device *device;
    char *memory;                           /* on the device */
    char *images;                           /* IMAGES of GRAPH_PARAMS_BYTES bytes */
    size_t granted;                         /* bytes granted in pinned memory; 0: the images are in pageable memory */
    timepoint points[IMAGES];               /* by image: the last work that reads it */
    unsigned turn;
    size_t used, count;
    struct param list[GRAPH_PARAMS_BYTES / PLACE];
};

ctrt_status graph_params_new(struct graph_params **out, ctrt_device *device, void *memory)
{
    const size_t bytes = IMAGES * GRAPH_PARAMS_BYTES;
    struct graph_params *fresh = host_calloc(sizeof *fresh);
    ALLOC_CHECK(fresh, sizeof *fresh, "the parameters of a graph");
    void *images = NULL;
    ctrt_status status = CTRT_OK;
    if (pinned_available(device))
        status = pinned_alloc(&images, &fresh->granted, device, bytes);
    else if ((images = host_alloc(bytes)) == NULL)
        status = out_of_memory(bytes, "the parameters of a graph");
    if (status != CTRT_OK) {
        host_free(fresh);
        return status;
    }
    memset(images, 0, bytes);
    fresh->device = device;
    fresh->memory = memory;
    fresh->images = images;
    *out = fresh;
    return CTRT_OK;
}

void graph_params_link(struct graph_params **list, struct graph_params *more)
{
    more->next = *list;
    *list = more;
}

const void *graph_params_place(struct graph_params *list, size_t bytes, const struct graph_param_source *source,
                               void *state)
{
    bytes = (bytes + PLACE - 1) / PLACE * PLACE;
    if (list == NULL || list->used + bytes > GRAPH_PARAMS_BYTES)
        return NULL;
    const void *where = list->memory + list->used;
    list->list[list->count++] = (struct param){ source, state, list->used };
    list->used += bytes;
    return where;
}

void *graph_params_find(const void **where, const struct graph_params *list, const struct graph_param_source *source)
{
    for (; list != NULL; list = list->next)
        for (size_t i = 0; i < list->count; i++)
            if (list->list[i].source == source) {
                *where = list->memory + list->list[i].at;
                return list->list[i].state;
            }
    return NULL;
}

/* Undoes the first `count` values in reverse order, because a value may depend on one that was filled before it. */
static void undo(struct graph_params *list, size_t count)
{
    for (size_t i = count; i-- > 0;)
        list->list[i].source->undo(list->list[i].state);
}

static void undo_all(struct graph_params *list)
{
    for (; list != NULL; list = list->next)
        undo(list, list->count);
}

static ctrt_status fill_all(struct graph_params *list)
{
    if (list == NULL)
        return CTRT_OK;
    CTRT_TRY(fill_all(list->next));
    char *image = list->images + list->turn * GRAPH_PARAMS_BYTES;
    for (size_t i = 0; i < list->count; i++) {
        ctrt_status status = list->list[i].source->fill(list->list[i].state, image + list->list[i].at);
        if (unlikely(status != CTRT_OK)) {
            undo(list, i);
            undo_all(list->next);
            return status;
        }
    }
    return CTRT_OK;
}

void graph_params_ready(const struct graph_params *list)
{
    for (; list != NULL; list = list->next)
        (void)stream_finish(list->points[list->turn]);      /* after a failed copy, nothing reads the image any more */
}

ctrt_status graph_params_put(struct graph_params *list, const ctrt_stream *stream)
{
    ctrt_status status = CTRT_OK;
    CTRT_TRY(fill_all(list));
    for (struct graph_params *at = list; at != NULL && status == CTRT_OK; at = at->next)
        status = at->device->backend->memory->copy(at->device->handle, stream->queue, at->memory,
                                                   at->images + at->turn * GRAPH_PARAMS_BYTES, at->used,
                                                   CTRT_COPY_TO_DEVICE);
    if (status != CTRT_OK)
        undo_all(list);
    return status;
}

void graph_params_sent(struct graph_params *list, timepoint point, bool replayed)
{
    if (!replayed)
        undo_all(list);
    for (; list != NULL; list = list->next) {
        list->points[list->turn] = point;
        list->turn = (list->turn + 1) % IMAGES;
    }
}

void graph_params_free(struct graph_params *list)
{
    for (struct graph_params *next; list != NULL; list = next) {
        struct storage unused = { 0 };
        next = list->next;
        for (size_t i = 0; i < list->count; i++)
            list->list[i].source->release(list->list[i].state);
        if (list->granted > 0)
            pinned_free(list->device, list->images, list->granted, &unused);
        else
            host_free(list->images);
        host_free(list);
    }
}
