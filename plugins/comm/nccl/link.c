/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/nccl/link.c: creates NCCL communicators and waits for them. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine.h"
#include "plugins/common/clock.h"

const double NCCL_STORE_SECONDS = 0.1;

double nccl_now(void)
{
    return 1e-9 * (double)clock_now(CLOCK_MONOTONIC);
}

void nccl_pause(long *nanoseconds)
{
    const struct timespec time = { .tv_nsec = *nanoseconds };
    nanosleep(&time, NULL);
    *nanoseconds = *nanoseconds < 500000 ? *nanoseconds * 2 : 1000000;
}

ctrt_status nccl_fail_aborted(void)
{
    return nccl_host->fail(CTRT_ERR_COMM, "the group has failed");
}

/* ---- waiting ---- */

const char *nccl_key(char path[320], const struct nccl_group *group, const char *name)
{
    snprintf(path, 320, "%s/%s", group->config->name, name);
    return path;
}

void nccl_publish_failure(const struct nccl_group *group)
{
    char path[320], reason[512];
    snprintf(reason, sizeof reason, "rank %d: %s", group->rank, ctrt_error_message());
    (void)ctrt_store_set(group->config->store, nccl_key(path, group, "nccl-failed"), reason, strlen(reason));
    (void)ctrt_fail(CTRT_ERR_COMM, "%s", strchr(reason, ':') + 2);
}

/* Fails if another rank could not join. */
static ctrt_status check_joining(const struct nccl_group *group)
{
    char path[320];
    void *reason = NULL;
    if (!group->joining
        || ctrt_store_get(group->config->store, nccl_key(path, group, "nccl-failed"), &reason, NULL, 0) != CTRT_OK)
        return CTRT_OK;
    const ctrt_status status = ctrt_fail(CTRT_ERR_COMM, "another rank could not join: %s", (const char *)reason);
    free(reason);
    return status;
}

/* A call on a non-blocking communicator runs in a thread that NCCL creates for it, and ends after about 20 us. A sleep
 * takes 50 us longer than it says (the timer slack of Linux). So for this time the caller only yields the processor. */
static const double SPIN_SECONDS = 200e-6;

ctrt_status nccl_settle(struct nccl_group *group, struct nccl_link *link, const char *what, nccl_result result,
                        void *state)
{
    long pause = 5000;
    const double begin = result == NCCL_IN_PROGRESS ? nccl_now() : 0;
    double next = begin + NCCL_STORE_SECONDS;
    while (result == NCCL_IN_PROGRESS) {
        CTRT_TRY(group->config->poll(state));
        if (group->joining && nccl_now() > next) {
            CTRT_TRY(check_joining(group));
            next = nccl_now() + NCCL_STORE_SECONDS;
        }
        if (nccl_now() - begin < SPIN_SECONDS)
            sched_yield();
        else
            nccl_pause(&pause);
        pthread_mutex_lock(&group->lock);
        const bool aborted = group->aborted || link->handle == NULL;
        const nccl_result asked = aborted ? NCCL_OK : nccl.async_error(link->handle, &result);
        pthread_mutex_unlock(&group->lock);
        if (aborted)
            return nccl_fail_aborted();
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

ctrt_status nccl_links_error(void *state)
{
    struct nccl_group *group = state;
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
    while ((status = ctrt_store_get(group->config->store, path, &value, &bytes, NCCL_STORE_SECONDS)) == CTRT_ERR_COMM
           || status == CTRT_ERR_NOT_FOUND) {
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
    (void)nccl_key(path, group, key);
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
    return aborted ? nccl_fail_aborted() : nccl_settle(group, link, "CommInitRankConfig", result, state);
}
