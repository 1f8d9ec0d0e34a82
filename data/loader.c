/* SPDX-License-Identifier: Apache-2.0 */
/* data/loader.c: the loader: its options, its batches, its place. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE                     /* sched_getaffinity */
#endif
#include "data/loader.h"

#include <inttypes.h>
#include <sched.h>
#include <unistd.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "ctrt/ops.h"
#include "data/fork_server.h"
#include "device/device.h"
#include "tensor/scope.h"

#define PREFETCH 2                      /* prefetch_factor 0 */
#define HELD     2                      /* slots for batches that the program has: the current and the previous one */

/* ---- options ---- */

static ctrt_status conflict(const char *a, const char *b)
{
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_new: %s and %s exclude each other", a, b);
}

static ctrt_status check_conflicts(const ctrt_loader_options *o, const ctrt_dataset *dataset)
{
    const char *sampler = o->sampler != NULL ? "sampler" : "batch_sampler";
    const bool any = o->sampler != NULL || o->batch_sampler != NULL;
    if (dataset_is_stream(dataset) && (any || o->shuffle))
        return conflict("a stream", o->shuffle ? "shuffle" : sampler);
    if (any && o->shuffle)
        return conflict(sampler, "shuffle");
    if (o->batch_sampler != NULL && o->sampler != NULL)
        return conflict("batch_sampler", "sampler");
    if (o->batch_sampler != NULL && (o->batch_size != 0 || o->drop_last))
        return conflict("batch_sampler", o->batch_size != 0 ? "batch_size" : "drop_last");
    if (o->batch_size == CTRT_NO_BATCH && o->drop_last)
        return conflict("batch_size = CTRT_NO_BATCH", "drop_last");
    return CTRT_OK;
}

static ctrt_status check_numbers(const ctrt_loader_options *o)
{
    if (o->workers < 0 || o->workers > 4096)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_new: workers is %d; expected 0 to 4096", o->workers);
    if (o->prefetch_factor < 0 || o->prefetch_factor > 4096)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_new: prefetch_factor is %d; expected 1 to 4096, or 0 for "
                         "%d", o->prefetch_factor, PREFETCH);
    if (!(o->timeout >= 0))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_new: timeout is %g; expected seconds, or 0 for none",
                         o->timeout);
    if (o->batch_size < 0 && o->batch_size != CTRT_NO_BATCH)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_new: batch_size is %" PRId64 "; expected at least 1, or "
                         "CTRT_NO_BATCH", o->batch_size);
    if (o->restarts < 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_new: restarts is %d; expected 0 or more", o->restarts);
    if (o->worker_kind < CTRT_WORKERS_AUTO || o->worker_kind > CTRT_WORKERS_THREADS)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_new: worker_kind is %d", o->worker_kind);
    return CTRT_OK;
}

/* Whether the options point to data of this process, which the fork server lacks. */
static bool has_user_data(const ctrt_loader_options *o)
{
    return o->collate_user != NULL || o->worker_init_user != NULL;
}

static ctrt_status check_workers(const ctrt_loader_options *o, const ctrt_dataset *dataset)
{
    const struct { bool set; const char *name; } alone[] = {
        { o->timeout > 0, "timeout" }, { o->prefetch_factor > 0, "prefetch_factor" },
        { o->persistent_workers, "persistent_workers" }, { o->any_order, "any_order" }, { o->restarts > 0, "restarts" },
        { o->worker_kind != CTRT_WORKERS_AUTO, "worker_kind" }
    };
    for (size_t i = 0; o->workers == 0 && i < COUNT_OF(alone); i++)
        if (alone[i].set)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_new: %s without workers; set workers to at least 1",
                             alone[i].name);
    if (o->worker_kind == CTRT_WORKERS_THREADS && dataset_is_stream(dataset))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "loader_new: a stream is read by one thread at a time; use worker "
                         "processes");
    if (o->worker_kind == CTRT_WORKERS_THREADS && o->restarts > 0)
        return conflict("CTRT_WORKERS_THREADS", "restarts");
    if (o->worker_kind != CTRT_WORKERS_SERVER)
        return CTRT_OK;
    if (!fork_server_alive())
        return ctrt_fail(CTRT_ERR_STATE, "loader_new: the fork server does not run; call ctrt_fork_server_start first "
                         "in main");
    if (has_user_data(o))
        return conflict("CTRT_WORKERS_SERVER", "collate_user or worker_init_user, a pointer into this process");
    if (dataset->open == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "loader_new: the fork server cannot open \"%s\"; create the dataset with "
                         "ctrt_dataset_open, or use CTRT_WORKERS_FORK", dataset->functions.name);
    return CTRT_OK;
}

/* Warns as DataLoader if there are more workers than processors (once), and if there is no device to pin memory for. */
static void loader_warn(ctrt_loader_options *o)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    cpu_set_t allowed;
    ctrt_device *device = NULL;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && o->workers > CPU_COUNT(&allowed)
        && !atomic_flag_test_and_set(&warned))
        log_message(CTRT_LOG_WARNING, "data", "the loader has %d workers, but the process may use %d processors; more "
                    "workers than these make it slower", o->workers, CPU_COUNT(&allowed));
    if (o->pin_memory && o->device == NULL && device_accelerator(&device) != CTRT_OK) {
        log_message(CTRT_LOG_WARNING, "data", "pin_memory has no effect, because there is no accelerator");
        o->pin_memory = false;
    }
}

/* ---- creation ---- */

static ctrt_status make_sampler(ctrt_sampler **out, const ctrt_loader_options *o, const ctrt_dataset *dataset)
{
    ctrt_sampler *sampler = ctrt_sampler_retain(o->sampler);
    ctrt_status status = CTRT_OK;
    if (dataset_is_stream(dataset))
        return CTRT_OK;
    if (o->batch_sampler != NULL || (sampler != NULL && sampler_forms_batches(sampler))) {
        *out = sampler != NULL ? sampler : ctrt_sampler_retain(o->batch_sampler);
        if (o->batch_sampler != NULL && !sampler_forms_batches(*out))
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_new: batch_sampler \"%s\" forms no batches",
                             (*out)->functions.name);
        if (sampler != NULL)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_new: sampler \"%s\" forms batches; pass it as "
                             "batch_sampler", sampler->functions.name);
        return CTRT_OK;
    }
    if (sampler == NULL)
        status = o->shuffle ? ctrt_sampler_random(&sampler, dataset->length, false, 0)
                            : ctrt_sampler_sequential(&sampler, dataset->length);
    if (status == CTRT_OK)
        status = ctrt_sampler_batch(out, sampler, o->batch_size, o->drop_last);
    ctrt_sampler_release(&sampler);
    return status;
}

/* Pins the memory of the batches. If that is not possible, batches are copied to pinned memory. */
static ctrt_status loader_pin(struct ctrt_loader *loader)
{
    ctrt_device *device = loader->options.device;
    if (!loader->copies)
        return CTRT_OK;
    if (device == NULL)
        CTRT_TRY(device_accelerator(&device));
    if (device_asynchronous(device) && ring_pin(loader->ring, device) != CTRT_OK)
        log_message(CTRT_LOG_INFO, "data", "batches are copied to pinned memory: %s", ctrt_error_message());
    return CTRT_OK;
}

static ctrt_status make_ring(struct ctrt_loader *loader, uint64_t seed)
{
    ctrt_loader_options *o = &loader->options;
    uint64_t budget = o->memory_budget, unused;
    ctrt_device *cpu = NULL;
    struct ring_header config = {
        .workers = o->workers, .depth = o->workers == 0 ? 1 : o->prefetch_factor,
        .pin = loader->copies,
        .largest_batch = loader->sampler == NULL ? o->batch_size : MAX(1, sampler_largest_batch(loader->sampler)),
        .batched = !loader->unbatched, .seed = seed, .pad_value = o->pad_value, .collate = o->collate,
        .collate_user = o->collate_user, .worker_init = o->worker_init, .worker_init_user = o->worker_init_user
    };
    config.slots = MAX(1, config.workers) * config.depth + HELD;
    if (budget == 0) {
        CTRT_TRY(device_cpu(&cpu));
        CTRT_TRY(ctrt_device_memory_info(cpu, &budget, &unused));
    }
    const bool processes = o->workers > 0 && o->worker_kind != CTRT_WORKERS_THREADS;
    CTRT_TRY(ring_new(&loader->ring, &config, loader->dataset, processes, budget, o->memory_budget != 0));
    if (o->worker_kind != CTRT_WORKERS_SERVER)
        ring_close(loader->ring);       /* fork() passes the mapping on */
    CTRT_TRY(loader_pin(loader));
    const size_t bytes = (size_t)config.slots * sizeof *loader->queue;
    loader->queue = host_alloc(bytes);
    ALLOC_CHECK(loader->queue, bytes, "a loader");
    if (o->workers == 0)
        return worker_begin(&loader->self, loader->ring->header, loader->dataset, 0);
    return team_new(&loader->team, loader->ring, loader->dataset, o->worker_kind, o->workers, o->quiet_workers);
}

static ctrt_status fill_in(struct ctrt_loader *loader, const ctrt_loader_options *given)
{
    ctrt_loader_options *o = &loader->options;
    *o = *given;
    loader_warn(o);
    loader->unbatched = o->batch_size == CTRT_NO_BATCH;
    if (o->batch_size <= 0)
        o->batch_size = 1;
    if (o->prefetch_factor == 0)
        o->prefetch_factor = PREFETCH;
    if (o->worker_kind == CTRT_WORKERS_AUTO)
        o->worker_kind = loader->dataset->open != NULL && !has_user_data(o) && fork_server_alive()
                             ? CTRT_WORKERS_SERVER : CTRT_WORKERS_FORK;
    uint64_t seed = o->seed, unused;
    if (o->device != NULL && device_is_cpu(o->device))
        o->device = NULL;
    if (seed == 0) {
        ctrt_device *cpu = NULL;
        CTRT_TRY(device_cpu(&cpu));
        CTRT_TRY(ctrt_generator_get(cpu, &seed, &unused));
    }
    loader->copies = o->device != NULL || o->pin_memory;
    if (o->device != NULL)
        CTRT_TRY(ctrt_stream_new(&loader->stream, o->device, 0));
    CTRT_TRY(make_sampler(&loader->sampler, o, loader->dataset));
    o->sampler = o->batch_sampler = NULL;
    return make_ring(loader, seed);
}

ctrt_status ctrt_loader_new(ctrt_loader **out, ctrt_dataset *dataset, const ctrt_loader_options *options)
{
    ctrt_loader_options own = CTRT_LOADER_OPTIONS;
    CANCEL_DISABLED;
    const ctrt_loader_options *const o = &own;
    if (out == NULL || dataset == NULL)
        return fail_null("loader_new", out == NULL ? "out" : "dataset");
    CTRT_TRY(struct_read(&own, sizeof own, options, "loader_new", "options"));
    CTRT_TRY(check_conflicts(o, dataset));
    CTRT_TRY(check_numbers(o));
    CTRT_TRY(check_workers(o, dataset));
    ctrt_loader *loader = host_calloc(sizeof *loader);
    ALLOC_CHECK(loader, sizeof *loader, "a loader");
    loader->dataset = ctrt_dataset_retain(dataset);
    loader->pid = getpid();
    loader->ticket = 1;
    ctrt_status status = fill_in(loader, o);
    if (status != CTRT_OK) {
        ctrt_loader_release(&loader);
        return status;
    }
    ctrt_loader_release(out);
    *out = loader;
    return CTRT_OK;
}

void ctrt_loader_release(ctrt_loader **loader)
{
    if (loader == NULL || *loader == NULL)
        return;
    CANCEL_DISABLED;
    ctrt_loader *old = *loader;
    const bool forked = old->pid != getpid();
    *loader = NULL;
    team_free(&old->team, forked);
    worker_end(&old->self);
    loader_drop_copies(old);
    ctrt_stream_release(&old->stream);
    ring_close(old->ring);              /* tensors may keep the memory itself */
    ring_release(old->ring);
    ctrt_sampler_release(&old->sampler);
    ctrt_dataset_release(&old->dataset);
    host_free(old->indices);
    host_free(old->queue);
    host_free(old->failure_text);
    host_free(old);
}

/* ---- batches ---- */

ctrt_status loader_usable(const struct ctrt_loader *loader, const char *function)
{
    NULL_CHECK(function, loader);
    if (loader->pid != getpid())
        return ctrt_fail(CTRT_ERR_FORKED, "%s: the loader belongs to process %d, from which this one was forked; "
                         "create a loader here", function, loader->pid);
    return CTRT_OK;
}

/* Enqueues the copy of the batch in `host`. */
static ctrt_status loader_copy_to_device(struct ctrt_loader *loader)
{
    const int count = loader->dataset->functions.field_count;
    CTRT_TRY(ctrt_stream_push(loader->stream));
    ctrt_status status = CTRT_OK;
    for (int f = 0; f < count && status == CTRT_OK; f++)
        status = ctrt_to_non_blocking(&loader->ahead[f], loader->host[f], loader->options.device, NULL);
    const ctrt_status popped = ctrt_stream_pop();
    CTRT_TRY(status);
    for (int f = 0; f < count; f++)
        ctrt_tensor_release(&loader->host[f]);
    loader->has_host = false;
    loader->has_ahead = true;
    return popped;
}

/* Takes the next batch and enqueues its copy to the device. */
static ctrt_status copy_ahead(struct ctrt_loader *loader, bool *found, bool block)
{
    struct scope *scope = scope_pause();        /* the batch outlives the program's current scope */
    ctrt_status status = CTRT_OK;
    *found = loader->has_host;
    if (!*found)
        status = loader_take(loader, loader->host, found, block);
    if (status == CTRT_OK && *found) {
        loader->has_host = true;
        status = loader_copy_to_device(loader);
    }
    scope_resume(scope);
    return status;
}

/* Orders the current stream after the copies, and later uses of the tensors' memory after its work. */
static ctrt_status order_after_copy(struct ctrt_loader *loader)
{
    ctrt_stream *current = NULL;
    CTRT_TRY(ctrt_stream_current(&current, loader->options.device));
    ctrt_status status = ctrt_stream_wait(current, loader->stream);
    for (int f = 0; f < loader->dataset->functions.field_count && status == CTRT_OK; f++)
        status = ctrt_tensor_record_stream(loader->ahead[f], current);
    ctrt_stream_release(&current);
    return status;
}

static ctrt_status next_on_device(struct ctrt_loader *loader, ctrt_tensor **fields, bool *found)
{
    bool next = false;
    *found = loader->has_ahead;
    if (!loader->has_ahead)
        CTRT_TRY(copy_ahead(loader, found, true));
    if (!*found)
        return CTRT_OK;
    CTRT_TRY(order_after_copy(loader));
    for (int f = 0; f < loader->dataset->functions.field_count; f++) {
        fields[f] = loader->ahead[f];
        loader->ahead[f] = NULL;
        if (thread_state.scope != NULL)
            scope_note(fields[f]);
    }
    loader->has_ahead = false;
    if (loader->team.count > 0 && copy_ahead(loader, &next, false) != CTRT_OK)
        log_message(CTRT_LOG_DEBUG, "data", "the next batch is not copied ahead: %s", ctrt_error_message());
    return CTRT_OK;
}

static void end_epoch(struct ctrt_loader *loader)
{
    loader->epoch++;
    loader->resume = 0;
    loader->begun = false;
    if (loader->options.persistent_workers)
        (void)loader_begin_epoch(loader);       /* the next call begins it again, and returns the error */
    else
        team_stop(&loader->team);
}

ctrt_status ctrt_loader_next(ctrt_tensor **fields, bool *more, ctrt_loader *loader)
{
    if (fields == NULL || more == NULL)
        return fail_null("loader_next", fields == NULL ? "fields" : "more");
    CTRT_TRY(loader_usable(loader, "loader_next"));
    CANCEL_DISABLED;
    ctrt_tensor *made[CTRT_MAX_FIELDS] = { NULL };
    bool found = false;
    const int count = loader->dataset->functions.field_count;
    if (loader->failure != CTRT_OK)
        return ctrt_fail(loader->failure, "%s", loader->failure_text == NULL ? "loader: a worker died"
                                                                             : loader->failure_text);
    if (!loader->begun)
        CTRT_TRY(loader_begin_epoch(loader));
    if (team_of_processes(&loader->team))
        team_read_errors(&loader->team);
    CTRT_TRY(loader->options.device != NULL ? next_on_device(loader, made, &found)
                                            : loader_take(loader, made, &found, true));
    for (int f = 0; f < count; f++) {
        ctrt_tensor_release(&fields[f]);
        fields[f] = made[f];
    }
    *more = found;
    if (!found)
        end_epoch(loader);
    return CTRT_OK;
}

/* ---- the place ---- */

/* Batches of the epoch that the program has got. */
static int64_t returned(const struct ctrt_loader *loader)
{
    return loader->begun ? loader->taken - loader->has_host - loader->has_ahead : loader->resume;
}

ctrt_status ctrt_loader_set_epoch(ctrt_loader *loader, uint64_t epoch)
{
    CTRT_TRY(loader_usable(loader, "loader_set_epoch"));
    CANCEL_DISABLED;
    if (loader->epoch == epoch && returned(loader) == 0 && loader->failure == CTRT_OK)
        return CTRT_OK;                 /* its batches may be read ahead already */
    loader_leave_epoch(loader);
    loader->epoch = epoch;
    loader->resume = 0;
    return CTRT_OK;
}

ctrt_status ctrt_loader_get_state(ctrt_loader_state *out, ctrt_loader *loader)
{
    NULL_CHECK("loader_get_state", out);
    CTRT_TRY(loader_usable(loader, "loader_get_state"));
    if (loader->options.any_order && returned(loader) > 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "loader_get_state: with any_order the place in an epoch is not a "
                         "number of batches; call it between epochs");
    const ctrt_loader_state own = { .seed = loader->ring->header->seed, .epoch = loader->epoch,
                                    .batch = returned(loader), .fingerprint = loader_fingerprint(loader) };
    return struct_write(out, &own, sizeof own, "loader_get_state", "out");
}

ctrt_status ctrt_loader_restore(ctrt_loader *loader, const ctrt_loader_state *given)
{
    ctrt_loader_state own = CTRT_LOADER_STATE;
    if (given == NULL)
        return fail_null("loader_restore", "state");
    CTRT_TRY(loader_usable(loader, "loader_restore"));
    CTRT_TRY(struct_read(&own, sizeof own, given, "loader_restore", "state"));
    if (own.fingerprint != loader_fingerprint(loader))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_restore: the state is of a loader with another dataset, "
                         "sampler or batch size; this one has \"%s\" with %" PRId64 " samples in %" PRId64 " batches",
                         loader->dataset->functions.name, loader->dataset->length, ctrt_loader_length(loader));
    if (own.batch < 0 || (loader->sampler != NULL && own.batch > ctrt_sampler_batches(loader->sampler)))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "loader_restore: batch %" PRId64 " of %" PRId64, own.batch,
                         ctrt_loader_length(loader));
    CANCEL_DISABLED;
    loader_leave_epoch(loader);
    loader->ring->header->seed = own.seed;
    loader->epoch = own.epoch;
    loader->resume = own.batch;
    return CTRT_OK;
}

/* ---- properties ---- */

int64_t ctrt_loader_length(const ctrt_loader *loader)
{
    return loader == NULL ? 0 : loader->sampler == NULL ? -1 : ctrt_sampler_batches(loader->sampler);
}

ctrt_dataset *ctrt_loader_dataset(const ctrt_loader *loader)
{
    return loader == NULL ? NULL : loader->dataset;
}

uint64_t ctrt_loader_memory(const ctrt_loader *loader)
{
    return loader == NULL ? 0 : loader->ring->header->bytes;
}

int64_t ctrt_loader_worker_pid(const ctrt_loader *loader, int index)
{
    if (loader == NULL || index < 0 || index >= loader->team.count || !loader->team.members[index].running)
        return 0;
    return loader->team.members[index].pid;
}
