/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/nccl/derive.c: NCCL communicators that are created from those of another group (ctrt_comm_split,
 * ctrt_comm_shrink). Then NCCL finds the ranks through the connections of the parent, without a unique id.
 *
 * ncclCommSplit is collective over the parent. It fails on all ranks if it fails on one, because the parent has an
 * error afterwards, and the library makes the parent's group fail.
 *
 * ncclCommShrink follows ncclCommRevoke, which ends the operations of a failed group and keeps its communicator. It may
 * fail on some ranks only, for example if ncclCommRevoke has failed there. So the ranks agree through the store: each
 * one that has succeeded adds 1 to NAME/nccl-shrunk, and the last one sets NAME/nccl-shrink to "1". A rank that has
 * failed sets it to "0" instead, and all ranks then create a communicator with a new unique id. */
#include <stdio.h>
#include <stdlib.h>

#include "engine.h"

/* ---- split ---- */

ctrt_status nccl_link_split(struct nccl_group *child, struct nccl_group *parent, int color)
{
    struct nccl_ending *const ending = parent->ending;
    pthread_mutex_lock(&parent->lock);
    bool usable = !parent->aborted && parent->all.handle != NULL;
    const nccl_result result = usable ? nccl.split(parent->all.handle, color, child != NULL ? child->rank : 0,
                                                   &ending->child, NULL) : NCCL_OK;
    pthread_mutex_unlock(&parent->lock);
    if (!usable)
        return nccl_fail_aborted();
    CTRT_TRY(nccl_settle(parent, &parent->all, "CommSplit", result, parent->config->state));
    if (child == NULL)
        return CTRT_OK;
    pthread_mutex_lock(&parent->lock);
    usable = !parent->aborted;              /* otherwise the thread that aborts the parent frees the new one as well */
    if (usable) {
        child->all = (struct nccl_link){ .handle = ending->child, .rank = child->rank, .world = child->world };
        ending->child = NULL;
    }
    pthread_mutex_unlock(&parent->lock);
    if (!usable)
        return nccl_fail_aborted();
    return nccl_settle(child, &child->all, "CommSplit", NCCL_IN_PROGRESS, child->config->state);
}

/* ---- shrink ---- */

bool nccl_can_shrink(const ctrt_comm_config *config)
{
    return nccl.shrink != NULL && nccl.revoke != NULL && config->elastic && config->world > 1;
}

/* Waits up to `seconds` for the result of the agreement. Returns '1', '0', or 0 if there is none yet. */
static char agreed(const struct nccl_group *group, double seconds)
{
    char path[320];
    void *value = NULL;
    if (ctrt_store_get(group->config->store, nccl_key(path, group, "nccl-shrink"), &value, NULL, seconds) != CTRT_OK)
        return 0;
    const char result = *(const char *)value;
    free(value);
    return result;
}

/* *all: whether all ranks have succeeded; `own`: this one. */
static ctrt_status nccl_agree(bool *all, struct nccl_group *group, bool own)
{
    ctrt_store *const store = group->config->store;
    char path[320], result;
    int64_t count = 0;
    *all = false;
    if (own)
        CTRT_TRY(ctrt_store_add(store, nccl_key(path, group, "nccl-shrunk"), 1, &count));
    if (!own || count == group->world)
        CTRT_TRY(ctrt_store_set(store, nccl_key(path, group, "nccl-shrink"), own ? "1" : "0", 1));
    if (!own)
        return CTRT_OK;
    while ((result = agreed(group, NCCL_STORE_SECONDS)) == 0)
        CTRT_TRY(group->config->poll(group->config->state));
    *all = result == '1';
    return CTRT_OK;
}

/* Waits until the thread that aborts the parent has ended. Another thread may be about to start it. */
static ctrt_status await_revoked(const struct nccl_group *group, struct nccl_group *parent)
{
    for (long pause = 5000;;) {
        pthread_mutex_lock(&parent->lock);
        const bool aborted = parent->aborted;
        pthread_mutex_unlock(&parent->lock);
        if (aborted && atomic_load(&parent->ending->done))
            return CTRT_OK;
        CTRT_TRY(group->config->poll(group->config->state));
        nccl_pause(&pause);
    }
}

/* Calls ncclCommShrink, and waits for its end or until another rank has failed. *created: whether it has succeeded. */
static ctrt_status nccl_shrink(bool *created, struct nccl_group *group, struct nccl_group *parent, const int32_t *ranks)
{
    struct nccl_ending *const ending = parent->ending;
    const int lost = parent->world - group->world;
    *created = false;
    CTRT_TRY(await_revoked(group, parent));
    if (ending->revoked == NULL)
        return CTRT_OK;
    int *excluded = malloc((size_t)lost * sizeof *excluded);
    if (excluded == NULL)
        return CTRT_OK;
    for (int rank = 0, next = 0, n = 0; rank < parent->world; rank++) {
        if (next < group->world && ranks[next] == rank)
            next++;
        else
            excluded[n++] = rank;
    }
    nccl_result result = nccl.shrink(ending->revoked, excluded, lost, &ending->child, NULL, NCCL_SHRINK_PLAIN);
    free(excluded);                         /* NCCL has copied the list */
    double next = nccl_now() + NCCL_STORE_SECONDS;
    for (long pause = 5000; result == NCCL_IN_PROGRESS;) {
        CTRT_TRY(group->config->poll(group->config->state));
        if (nccl_now() > next) {
            if (agreed(group, 0) == '0')
                return CTRT_OK;
            next = nccl_now() + NCCL_STORE_SECONDS;
        }
        nccl_pause(&pause);
        const nccl_result asked = nccl.async_error(ending->revoked, &result);
        result = asked != NCCL_OK ? asked : result;
    }
    *created = result == NCCL_OK;
    if (!*created)
        nccl_host->log(CTRT_LOG_INFO, "nccl", "group %s: ncclCommShrink: %s (%d); the ranks connect again",
                       group->config->name, nccl.error_string(result), result);
    return CTRT_OK;
}

ctrt_status nccl_link_shrink(bool *done, struct nccl_group *group, struct nccl_group *parent, const int32_t *ranks)
{
    bool created = false;
    *done = false;
    if (!nccl_can_shrink(group->config) || (parent != NULL && parent->world == group->world))
        return CTRT_OK;
    ctrt_status status = parent != NULL ? nccl_shrink(&created, group, parent, ranks) : CTRT_OK;
    if (status == CTRT_OK)
        status = nccl_agree(done, group, created);
    if (*done) {
        group->all = (struct nccl_link){ .handle = parent->ending->child, .rank = group->rank, .world = group->world };
        parent->ending->child = NULL;
    } else if (parent != NULL) {
        nccl_abort_revoked(parent);
    }
    return status;
}
