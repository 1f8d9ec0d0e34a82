/* SPDX-License-Identifier: Apache-2.0 */
/* data/epoch.c: the order of a loader's epoch, and posting its batches to the workers. */
#include <inttypes.h>
#include <unistd.h>

#include "base/base.h"
#include "base/hash.h"
#include "base/host_alloc.h"
#include "data/loader.h"

/* How long workers may take to leave their batches before they are killed. */
#define LEAVE_NS 500000000

static ctrt_status compute_order(struct ctrt_loader *loader)
{
    ctrt_sampler *sampler = loader->sampler;
    if (sampler == NULL)
        return CTRT_OK;
    const int64_t length = ctrt_sampler_length(sampler), batches = ctrt_sampler_batches(sampler);
    if (length < 0 || batches < 0 || sampler_largest_batch(sampler) > loader->ring->header->largest_batch)
        return ctrt_fail(CTRT_ERR_STATE, "loader: sampler \"%s\" has %" PRId64 " indices in %" PRId64 " batches of up "
                         "to %" PRId64 "; the loader was created for up to %" PRId64, sampler->functions.name, length,
                         batches, sampler_largest_batch(sampler), loader->ring->header->largest_batch);
    if (loader->indices == NULL || length != loader->length || batches != loader->batches) {
        const size_t bytes = (size_t)(length + batches + 1) * sizeof(int64_t);
        int64_t *indices = host_alloc(bytes);
        ALLOC_CHECK(indices, bytes, "the order of an epoch");
        host_free(loader->indices);
        loader->indices = indices;
        loader->sizes = indices + length;
        loader->length = length;
        loader->batches = batches;
    }
    CTRT_TRY(ctrt_context(ctrt_sampler_order(loader->indices, loader->sizes, sampler, loader->ring->header->seed,
                                             loader->epoch), "loader, epoch %" PRIu64, loader->epoch));
    const int64_t samples = loader->dataset->length;
    for (int64_t i = 0; i < length; i++)
        if (loader->indices[i] < 0 || loader->indices[i] >= samples)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader: index %" PRId64 " of sampler \"%s\" is not one of the "
                             "%" PRId64 " samples of \"%s\"", loader->indices[i], sampler->functions.name, samples,
                             loader->dataset->functions.name);
    return CTRT_OK;
}

/* A stream without a start function has one epoch. */
static ctrt_status check_stream(struct ctrt_loader *loader)
{
    const ctrt_dataset_functions *functions = &loader->dataset->functions;
    if (!dataset_is_stream(loader->dataset) || functions->start != NULL)
        return CTRT_OK;
    if (loader->only_begun && loader->epoch != loader->only_epoch)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "loader: epoch %" PRIu64 ": the stream \"%s\" has no start function, "
                         "so it has one epoch", loader->epoch, functions->name);
    loader->only_begun = true;
    loader->only_epoch = loader->epoch;
    return CTRT_OK;
}

ctrt_status loader_begin_epoch(struct ctrt_loader *loader)
{
    CTRT_TRY(check_stream(loader));
    CTRT_TRY(compute_order(loader));
    const int64_t first = loader->resume;
    loader->position = loader->sampler == NULL ? first * loader->ring->header->largest_batch : 0;
    for (int64_t b = 0; loader->sampler != NULL && b < first && b < loader->batches; b++)
        loader->position += loader->sizes[b];
    loader->posted = loader->taken = first;
    loader->ended = false;
    if (loader->team.count > 0 && !team_running(&loader->team))
        CTRT_TRY(team_start(&loader->team));
    loader->begun = true;
    if (loader->team.count > 0)
        loader_post(loader);
    return CTRT_OK;
}

static int free_slot(struct ctrt_loader *loader, int worker)
{
    const struct ring_header *header = loader->ring->header;
    int found = -1;
    for (int slot = 0; slot < header->slots; slot++)
        if (ring_slot_free(loader->ring, slot)) {
            /* Prefer memory that this worker has mapped already. */
            if (ring_slot(header, slot)->worker == worker)
                return slot;
            found = slot;
        }
    return found;
}

/* The worker of the next batch: by turns, or in any order the one with the fewest tasks. */
static int next_worker(const struct ctrt_loader *loader)
{
    const int count = loader->team.count;
    if (count == 0 || !loader->options.any_order)
        return count == 0 ? 0 : (int)(loader->posted % count);
    int best = 0;
    uint32_t fewest = UINT32_MAX;
    for (int id = 0; id < count; id++) {
        struct ring_worker *worker = ring_worker(loader->ring->header, id);
        const uint32_t tasks = atomic_load(&worker->posted) - atomic_load(&worker->taken);
        if (tasks < fewest) {
            fewest = tasks;
            best = id;
        }
    }
    return best;
}

static void epoch_fill_in(struct ctrt_loader *loader, struct ring_slot *slot, int worker)
{
    const struct ring_header *header = loader->ring->header;
    slot->worker = worker;
    slot->ticket = loader->ticket++;
    slot->epoch = loader->epoch;
    slot->batch = loader->posted++;
    slot->first = loader->position;
    slot->count = loader->sampler == NULL ? header->largest_batch : loader->sizes[slot->batch];
    slot->status = CTRT_OK;
    slot->failed = -1;
    if (loader->sampler != NULL)
        memcpy(slot->indices, loader->indices + slot->first, (size_t)slot->count * sizeof *slot->indices);
    loader->position += slot->count;
}

void loader_post(struct ctrt_loader *loader)
{
    const struct ring_header *header = loader->ring->header;
    const int most = MAX(1, loader->team.count) * header->depth;
    while (loader->queued < most && !loader->ended && (loader->sampler == NULL || loader->posted < loader->batches)) {
        const int id = next_worker(loader), number = free_slot(loader, id);
        struct ring_worker *worker = ring_worker(header, id);
        const uint32_t posted = atomic_load(&worker->posted);
        if (number < 0 || (loader->team.count > 0 && posted - atomic_load(&worker->taken) > (uint32_t)header->depth))
            return;
        struct ring_slot *slot = ring_slot(header, number);
        atomic_store(&loader->ring->slot_refs[number], 1);
        epoch_fill_in(loader, slot, id);
        atomic_store(&slot->state, SLOT_POSTED);
        loader->queue[loader->queued++] = number;
        if (loader->team.count == 0)
            continue;
        *ring_task(header, id, posted) = (struct ring_task){ .ticket = slot->ticket, .slot = (uint32_t)number };
        atomic_store(&worker->posted, posted + 1);
        if (atomic_load(&worker->sleeping))
            ring_wake(&worker->posted);
    }
}

/* Waits until the workers have left the batches of the queue; false if they do not. */
static bool workers_left(struct ctrt_loader *loader)
{
    struct ring_header *header = loader->ring->header;
    for (int64_t waited = 0; waited < LEAVE_NS; waited += 1000000) {
        bool left = true;
        for (int i = 0; i < loader->queued; i++)
            left = left && atomic_load(&ring_slot(header, loader->queue[i])->state) == SLOT_DONE;
        if (left)
            return true;
        team_read_errors(&loader->team);        /* a worker that waits for space in its pipe does not leave */
        for (int id = 0; id < loader->team.count; id++)
            if (team_has_ended(&loader->team, id))
                return false;
        ring_wait(&header->completed, atomic_load(&header->completed), 1000000);
    }
    return false;
}

void loader_drop_copies(struct ctrt_loader *loader)
{
    for (int f = 0; f < CTRT_MAX_FIELDS; f++) {
        ctrt_tensor_release(&loader->host[f]);
        ctrt_tensor_release(&loader->ahead[f]);
    }
    loader->has_host = loader->has_ahead = false;
}

void loader_leave_epoch(struct ctrt_loader *loader)
{
    if (team_running(&loader->team)) {
        atomic_store(&loader->ring->header->cancelled, loader->ticket);
        if (loader->failure != CTRT_OK || !workers_left(loader))
            team_stop(&loader->team);
    }
    for (int i = 0; i < loader->queued; i++)
        atomic_store(&loader->ring->slot_refs[loader->queue[i]], 0);
    loader_drop_copies(loader);
    loader->queued = 0;
    loader->begun = false;
    loader->failure = CTRT_OK;
    loader->restarts = 0;
}

static uint64_t fields_hash(uint64_t hash, const ctrt_dataset *dataset)
{
    for (int f = 0; f < dataset->functions.field_count; f++) {
        const ctrt_field *field = &dataset->functions.fields[f];
        hash = hash_bytes(hash, &field->dtype, sizeof field->dtype);
        hash = hash_bytes(hash, field->shape, (size_t)field->ndim * sizeof *field->shape);
    }
    return hash;
}

uint64_t loader_fingerprint(const struct ctrt_loader *loader)
{
    const ctrt_dataset *dataset = loader->dataset;
    const int64_t numbers[] = {
        dataset->length, dataset->functions.field_count, loader->ring->header->largest_batch,
        ctrt_sampler_length(loader->sampler), ctrt_sampler_batches(loader->sampler)
    };
    return fields_hash(hash_bytes(HASH_START, numbers, sizeof numbers), dataset);
}

uint64_t dataset_fingerprint(const ctrt_dataset *dataset)
{
    const int64_t numbers[] = { dataset->length, dataset->functions.field_count };
    return fields_hash(hash_bytes(HASH_START, numbers, sizeof numbers), dataset);
}
