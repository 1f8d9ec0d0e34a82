/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/nccl/link.c: creates NCCL communicators, waits for them and ends them. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine.h"

/* Seconds that a rank waits for the other ranks when it leaves a group, because NCCL may still read this rank's memory
 * for them. */
static const double CLOSE_SECONDS = 2;
/* How long an abort waits until it is complete. */
static const double ABORT_SECONDS = 0.5;
/* Seconds that the engine waits for a key of the store before it calls poll and waits again. */
static const double STORE_SECONDS = 0.1;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Sleeps a little longer each time, up to 1 ms. */
static void pause_before_next(long *nanoseconds)
{
    const struct timespec time = { .tv_nsec = *nanoseconds };
    nanosleep(&time, NULL);
    *nanoseconds = *nanoseconds < 500000 ? *nanoseconds * 2 : 1000000;
}

static ctrt_status fail_aborted(void)
{
    return nccl_host->fail(CTRT_ERR_COMM, "the group has failed");
}

/* ---- waiting ---- */

static const char *failure_key(char path[320], const struct nccl_group *group)
{
    snprintf(path, 320, "%s/nccl-failed", group->config->name);
    return path;
}

void nccl_publish_failure(const struct nccl_group *group)
{
    char path[320], reason[512];
    snprintf(reason, sizeof reason, "rank %d: %s", group->rank, ctrt_error_message());
    (void)ctrt_store_set(group->config->store, failure_key(path, group), reason, strlen(reason));
    (void)ctrt_fail(CTRT_ERR_COMM, "%s", strchr(reason, ':') + 2);
}

/* Fails if another rank could not join. */
static ctrt_status check_joining(const struct nccl_group *group)
{
    char path[320];
    void *reason = NULL;
    if (!group->joining
        || ctrt_store_get(group->config->store, failure_key(path, group), &reason, NULL, CTRT_ZERO) != CTRT_OK)
        return CTRT_OK;
    const ctrt_status status = ctrt_fail(CTRT_ERR_COMM, "another rank could not join: %s", (const char *)reason);
    free(reason);
    return status;
}

ctrt_status nccl_settle(struct nccl_group *group, struct nccl_link *link, const char *what, nccl_result result,
                        void *state)
{
    long pause = 5000;
    double next = now() + STORE_SECONDS;
    while (result == NCCL_IN_PROGRESS) {
        CTRT_TRY(group->config->poll(state));
        if (group->joining && now() > next) {
            CTRT_TRY(check_joining(group));
            next = now() + STORE_SECONDS;
        }
        pause_before_next(&pause);
        pthread_mutex_lock(&group->lock);
        const bool aborted = group->aborted || link->handle == NULL;
        const nccl_result asked = aborted ? NCCL_OK : nccl.async_error(link->handle, &result);
        pthread_mutex_unlock(&group->lock);
        if (aborted)
            return fail_aborted();
        if (asked != NCCL_OK)
            return nccl_failed("CommGetAsyncError", asked);
    }
    return result == NCCL_OK ? CTRT_OK : nccl_failed(what, result);
}

static ctrt_status link_error(const struct nccl_link *link)
{
    nccl_result error = NCCL_OK;
    if (link->handle == NULL)
        return CTRT_OK;
    const nccl_result asked = nccl.async_error(link->handle, &error);
    if (asked != NCCL_OK)
        return nccl_failed("CommGetAsyncError", asked);
    return error == NCCL_OK || error == NCCL_IN_PROGRESS
               ? CTRT_OK : nccl_failed("CommGetAsyncError reports", error);
}

ctrt_status nccl_links_error(struct nccl_group *group)
{
    pthread_mutex_lock(&group->lock);
    ctrt_status status = link_error(&group->all);
    for (int rank = 0; rank < group->world && status == CTRT_OK; rank++) {
        status = link_error(&group->sends[rank]);
        if (status == CTRT_OK)
            status = link_error(&group->receives[rank]);
    }
    pthread_mutex_unlock(&group->lock);
    return status;
}

/* ---- creating ---- */

/* Creates NCCL's unique id and publishes it. If NCCL fails, publishes the error message instead, so that the other
 * ranks do not wait. The length of the value differs from that of an id, so the readers can distinguish the two. */
static ctrt_status publish_id(nccl_id *id, const struct nccl_group *group, const char *path)
{
    const nccl_result result = nccl.unique_id(id);
    if (result == NCCL_OK)
        return ctrt_store_set(group->config->store, path, id, sizeof *id);
    const ctrt_status status = nccl_failed("GetUniqueId", result);
    char reason[512];
    snprintf(reason, sizeof reason, "%s", ctrt_error_message());
    (void)ctrt_store_set(group->config->store, path, reason, strlen(reason) % sizeof *id != 0 ? strlen(reason)
                                                                                               : strlen(reason) + 1);
    return ctrt_fail(status, "%s", reason);
}

static ctrt_status read_id(nccl_id *id, const struct nccl_group *group, const char *path, void *state)
{
    void *value = NULL;
    size_t bytes = 0;
    ctrt_status status;
    while ((status = ctrt_store_get(group->config->store, path, &value, &bytes, STORE_SECONDS)) == CTRT_ERR_COMM) {
        CTRT_TRY(group->config->poll(state));
        CTRT_TRY(check_joining(group));
    }
    CTRT_TRY(status);
    if (bytes == sizeof *id)
        memcpy(id, value, sizeof *id);
    else
        status = ctrt_fail(CTRT_ERR_COMM, "another rank cannot create NCCL's unique id: %s", (const char *)value);
    free(value);
    return status;
}

ctrt_status nccl_link_open(struct nccl_group *group, struct nccl_link *link, const char *key, int rank, int world,
                           void *state)
{
    nccl_config config = {
        .size = sizeof config, .magic = NCCL_CONFIG_MAGIC, .version = NCCL_OLDEST, .blocking = 0,
        .cga_cluster_size = NCCL_UNSET, .min_ctas = NCCL_UNSET, .max_ctas = NCCL_UNSET, .split_share = NCCL_UNSET,
    };
    char path[320];
    nccl_id id;
    CTRT_AUTO(stream) stream = NULL;
    void *native;
    snprintf(path, sizeof path, "%s/%s", group->config->name, key);
    CTRT_TRY(rank == 0 ? publish_id(&id, group, path) : read_id(&id, group, path, state));
    /* NCCL uses the thread's current CUDA device, which ctrt_stream_native sets. */
    CTRT_TRY(ctrt_stream_current(&stream, group->config->device));
    CTRT_TRY(ctrt_stream_native(&native, stream));
    pthread_mutex_lock(&group->lock);
    const bool aborted = group->aborted;
    const nccl_result result = aborted ? NCCL_OK : nccl.init(&link->handle, world, id, rank, &config);
    link->rank = rank;
    link->world = world;
    pthread_mutex_unlock(&group->lock);
    return aborted ? fail_aborted() : nccl_settle(group, link, "CommInitRankConfig", result, state);
}

/* ---- ending ---- */

/* Calls `visit` for each link that has a communicator. */
static void each_link(struct nccl_group *group, void (*visit)(struct nccl_link *link, void *argument), void *argument)
{
    if (group->all.handle != NULL)
        visit(&group->all, argument);
    for (int rank = 0; rank < group->world; rank++) {
        if (group->sends[rank].handle != NULL)
            visit(&group->sends[rank], argument);
        if (group->receives[rank].handle != NULL)
            visit(&group->receives[rank], argument);
    }
}

/* Communicators that a thread aborts. The group and the thread have a reference each. */
struct nccl_aborts {
    atomic_int refs;
    atomic_bool done;
    int count;
    nccl_handle handles[];
};

static void aborts_drop(struct nccl_aborts *aborts)
{
    if (atomic_fetch_sub(&aborts->refs, 1) == 1)
        free(aborts);
}

static void *abort_all(void *argument)
{
    struct nccl_aborts *aborts = argument;
    for (int i = 0; i < aborts->count; i++)
        (void)nccl.abort(aborts->handles[i]);
    atomic_store(&aborts->done, true);
    aborts_drop(aborts);
    return NULL;
}

static void take_handle(struct nccl_link *link, void *argument)
{
    struct nccl_aborts *aborts = argument;
    aborts->handles[aborts->count++] = link->handle;
    link->handle = NULL;
}

static void abort_link(struct nccl_link *link, void *argument)
{
    (void)argument;
    (void)nccl.abort(link->handle);
    link->handle = NULL;
}

static void await_aborts(const struct nccl_group *group, double until)
{
    long pause = 5000;
    while (!atomic_load(&group->aborts->done) && now() < until)
        pause_before_next(&pause);
}

/* In a thread, because ncclCommAbort waits until the graphs with collectives of the communicator are destroyed, which
 * the calling thread may own. */
void nccl_links_abort(struct nccl_group *group)
{
    pthread_t thread;
    pthread_mutex_lock(&group->lock);
    group->aborted = true;
    struct nccl_aborts *aborts = group->aborts != NULL
        ? NULL : calloc(1, sizeof *aborts + (1 + 2 * (size_t)group->world) * sizeof(nccl_handle));
    if (aborts == NULL) {
        each_link(group, abort_link, NULL);
        pthread_mutex_unlock(&group->lock);
        return;
    }
    each_link(group, take_handle, aborts);
    atomic_init(&aborts->refs, 2);
    group->aborts = aborts;
    pthread_mutex_unlock(&group->lock);
    if (pthread_create(&thread, NULL, abort_all, aborts) != 0) {
        (void)abort_all(aborts);
        return;
    }
    (void)pthread_detach(thread);
    await_aborts(group, now() + ABORT_SECONDS);
}

static void finalize_link(struct nccl_link *link, void *argument)
{
    (void)argument;
    const nccl_result result = nccl.finalize(link->handle);
    link->finalizing = result == NCCL_OK || result == NCCL_IN_PROGRESS;
}

/* Frees a communicator; waits for ncclCommFinalize until the time *argument, a double, and then aborts instead. */
static void close_link(struct nccl_link *link, void *argument)
{
    nccl_result state = NCCL_IN_PROGRESS;
    long pause = 5000;
    while (link->finalizing && nccl.async_error(link->handle, &state) == NCCL_OK && state == NCCL_IN_PROGRESS
           && now() < *(const double *)argument)
        pause_before_next(&pause);
    if (state == NCCL_OK)
        (void)nccl.destroy(link->handle);
    else
        (void)nccl.abort(link->handle);
    link->handle = NULL;
}

void nccl_links_close(struct nccl_group *group)
{
    double until = now() + CLOSE_SECONDS;
    each_link(group, finalize_link, NULL);
    each_link(group, close_link, &until);
    if (group->aborts == NULL)
        return;
    await_aborts(group, until);
    aborts_drop(group->aborts);
}
