/* SPDX-License-Identifier: Apache-2.0 */
/* data/take.c: waits for the next batch of a loader and makes tensors of it. */
#include <inttypes.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/host_alloc.h"
#include "data/loader.h"
#include "device/device.h"
#include "memory/hazard.h"
#include "tensor/pinned.h"

/* A waiting loader checks the workers and their stderr this often; more often while they write much to stderr, because
 * a worker whose pipe is full waits for the loader. */
#define SLICE_NS      10000000
#define BUSY_SLICE_NS 200000

/* ---- tensors ---- */

/* A tensor over a slot was released. */
static void release_view(void *user, void *data)
{
    struct ring *ring = user;
    const struct ring_header *header = ring->header;
    const size_t at = (size_t)((char *)data - ((char *)header + header->data_base));
    atomic_fetch_sub(&ring->slot_refs[at / header->data_stride], 1);
    ring_release(ring);
}

/* A tensor over a slot of pinned memory was released. A device may still copy from it. */
static void release_pinned_view(struct storage *storage)
{
    struct ring *ring = storage->user[0];
    const int slot = (int)(intptr_t)storage->user[1];
    timepoint points[HAZARD_READERS + 1];
    if (device_usable(ring->pinned_for)) {
        const int count = hazard_timepoints(storage, points);
        pthread_mutex_lock(&ring->lock);
        fence_add(&ring->fences[slot], points, count);
        pthread_mutex_unlock(&ring->lock);
    }
    atomic_fetch_sub(&ring->slot_refs[slot], 1);
    ring_release(ring);
}

/* Whether the batch can be returned as a view: slots for the workers remain. */
static bool can_view(struct ctrt_loader *loader)
{
    int held = 0;
    for (int slot = 0; slot < loader->ring->header->slots; slot++)
        held += !ring_slot_free(loader->ring, slot);
    /* `held` includes the queue with this batch, and the batch that the program releases next. */
    return held - loader->queued <= 1;
}

static ctrt_status make_field(ctrt_tensor **out, struct ctrt_loader *loader, int number, int f, bool view)
{
    struct ring *ring = loader->ring;
    const struct ring_slot *slot = ring_slot(ring->header, number);
    const ctrt_field *field = ctrt_dataset_field(loader->dataset, f);
    /* A batch of one sample without the dimension of the batch. */
    const int skipped = !ring->header->batched && slot->ndim[f] > 0 && slot->shape[f][0] == 1;
    const ctrt_ints shape = ctrt_ints_of(slot->shape[f] + skipped, slot->ndim[f] - skipped);
    char *data = ring_data(ring->header, number, f);
    int64_t numel = 1;
    for (int d = 0; d < shape.count; d++)
        numel *= shape.values[d];
    if (view && ring->pinned_for != NULL && numel > 0) {
        CTRT_TRY(tensor_new_registered(out, data, shape.values, shape.count, field->dtype, release_pinned_view, ring,
                                       (void *)(intptr_t)number));
    } else if (loader->copies) {
        CTRT_TRY(ctrt_empty_pinned(out, shape, field->dtype, loader->options.device));
        memcpy(ctrt_tensor_data(*out), data, (size_t)numel * ctrt_dtype_size(field->dtype));
        return CTRT_OK;
    } else if (!view) {
        ctrt_device *cpu = NULL;
        CTRT_TRY(device_cpu(&cpu));
        return ctrt_from_data(out, data, numel, shape, field->dtype, cpu);
    } else {
        CTRT_TRY(ctrt_from_blob(out, data, shape, ctrt_ints_of(NULL, 0), field->dtype, release_view, ring));
    }
    atomic_fetch_add(&ring->slot_refs[number], 1);
    atomic_fetch_add(&ring->refs, 1);
    return CTRT_OK;
}

/* Makes the tensors of the slot, which belongs to them afterwards. If it fails, the slot is unchanged. */
static ctrt_status make_fields(ctrt_tensor **fields, struct ctrt_loader *loader, int number)
{
    const bool view = can_view(loader);
    const int count = loader->dataset->functions.field_count;
    ctrt_tensor *made[CTRT_MAX_FIELDS] = { NULL };
    ctrt_status status = CTRT_OK;
    for (int f = 0; f < count && status == CTRT_OK; f++)
        status = make_field(&made[f], loader, number, f, view);
    if (status == CTRT_OK)
        atomic_fetch_sub(&loader->ring->slot_refs[number], 1);
    for (int f = 0; f < count; f++) {
        if (status == CTRT_OK)
            fields[f] = made[f];
        else
            ctrt_tensor_release(&made[f]);
    }
    return status;
}

/* ---- waiting ---- */

static bool is_done(const struct ctrt_loader *loader, int at)
{
    return atomic_load_explicit(&ring_slot(loader->ring->header, loader->queue[at])->state, memory_order_acquire)
           == SLOT_DONE;
}

/* Returns the place in the queue of the batch to take: the first one, or in any order one that is done. */
static int next_place(const struct ctrt_loader *loader)
{
    for (int at = 0; loader->options.any_order && at < loader->queued; at++)
        if (is_done(loader, at))
            return at;
    return 0;
}

static ctrt_status keep_failure(struct ctrt_loader *loader, ctrt_status status)
{
    host_free(loader->failure_text);
    loader->failure_text = host_strdup(ctrt_error_message());
    loader->failure = status;
    return status;
}

/* Replaces the workers that died, or fails. */
static ctrt_status take_check_workers(struct ctrt_loader *loader)
{
    struct team *team = &loader->team;
    for (int at = 0; at < loader->queued; at++) {
        const struct ring_slot *slot = ring_slot(loader->ring->header, loader->queue[at]);
        if (is_done(loader, at) || !team_has_ended(team, slot->worker) || is_done(loader, at))
            continue;
        if (at > 0 && loader->restarts >= loader->options.restarts && !loader->options.any_order)
            continue;                   /* batches of other workers come first */
        ctrt_status status = team_fail(team, slot->worker, slot, 0);
        if (loader->restarts >= loader->options.restarts)
            return keep_failure(loader, status);
        loader->restarts++;
        log_message(CTRT_LOG_WARNING, "data", "%s; it is replaced (%d of %d restarts)", ctrt_error_message(),
                    loader->restarts, loader->options.restarts);
        status = team_restart(team, slot->worker);
        if (status != CTRT_OK)
            return keep_failure(loader, status);
    }
    return CTRT_OK;
}

static ctrt_status wait_for_batch(struct ctrt_loader *loader)
{
    struct ring_header *header = loader->ring->header;
    ctrt_status status = CTRT_OK;
    const double start = loader->options.timeout > 0 ? seconds_now() : 0;
    long slice = SLICE_NS;
    atomic_store(&header->waiting, 1);
    for (;;) {
        const uint32_t completed = atomic_load(&header->completed);
        if (is_done(loader, next_place(loader)))
            break;
        ring_wait(&header->completed, completed, slice);
        if (is_done(loader, next_place(loader)))
            break;
        if (team_of_processes(&loader->team)) {
            slice = team_read_errors(&loader->team) ? BUSY_SLICE_NS : SLICE_NS;
            if ((status = take_check_workers(loader)) != CTRT_OK)
                break;
        }
        if (loader->options.timeout > 0 && seconds_now() - start >= loader->options.timeout) {
            const struct ring_slot *slot = ring_slot(header, loader->queue[0]);
            status = team_fail(&loader->team, slot->worker, slot, loader->options.timeout);
            break;
        }
    }
    atomic_store(&header->waiting, 0);
    return status;
}

/* ---- the next batch ---- */

static ctrt_status slot_error(const struct ctrt_loader *loader, const struct ring_slot *slot)
{
    char sample[48] = "", worker[32] = "";
    if (slot->failed >= 0)
        snprintf(sample, sizeof sample, ", sample %" PRId64, slot->failed);
    if (loader->team.count > 0)
        snprintf(worker, sizeof worker, ", in worker %d", slot->worker);
    return ctrt_fail(slot->status, "loader: \"%s\", batch %" PRId64 " of epoch %" PRIu64 "%s%s: %s",
                     loader->dataset->functions.name, slot->batch, slot->epoch, sample, worker, slot->message);
}

/* Whether the stream's batch is left out: empty, or the last one with drop_last. Notes the end of the stream. */
static bool leave_out(struct ctrt_loader *loader, const struct ring_slot *slot)
{
    loader->ended = loader->ended || slot->ended;
    return slot->ended && (slot->count == 0 || (loader->options.drop_last
                                                && slot->count < loader->ring->header->largest_batch));
}

static void remove_from_queue(struct ctrt_loader *loader, int at)
{
    loader->queued--;
    memmove(loader->queue + at, loader->queue + at + 1, (size_t)(loader->queued - at) * sizeof *loader->queue);
}

ctrt_status loader_take(struct ctrt_loader *loader, ctrt_tensor **fields, bool *found, bool block)
{
    *found = false;
    loader_post(loader);
    while (loader->queued > 0) {
        int at = next_place(loader);
        if (!is_done(loader, at)) {
            if (!block)
                return CTRT_OK;
            if (loader->team.count == 0)
                worker_fill(&loader->self, ring_slot(loader->ring->header, loader->queue[0]));
            else
                CTRT_TRY(wait_for_batch(loader));
            at = next_place(loader);
        }
        const int number = loader->queue[at];
        const struct ring_slot *slot = ring_slot(loader->ring->header, number);
        if (slot->status != CTRT_OK && !block)
            return CTRT_OK;
        const bool left_out = slot->status == CTRT_OK && leave_out(loader, slot);
        *found = slot->status == CTRT_OK && !left_out;
        if (*found)
            CTRT_TRY(ctrt_context(make_fields(fields, loader, number), "loader"));
        ctrt_status status = slot->status == CTRT_OK ? CTRT_OK : slot_error(loader, slot);
        if (!*found)
            atomic_store(&loader->ring->slot_refs[number], 0);
        remove_from_queue(loader, at);
        if (left_out)
            continue;
        loader->taken++;
        if (loader->team.count > 0)
            loader_post(loader);
        return status;
    }
    return CTRT_OK;
}
