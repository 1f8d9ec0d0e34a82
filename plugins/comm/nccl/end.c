/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/nccl/end.c: ends NCCL communicators. */
#include <stdlib.h>

#include "engine.h"

/* Seconds that a rank waits for the other ranks when it leaves a group, because NCCL may still read this rank's memory
 * for them. */
static const double CLOSE_SECONDS = 2;
/* How long an abort waits until it is complete. */
static const double ABORT_SECONDS = 0.5;
/* How long the thread waits for ncclCommRevoke before it aborts instead. */
static const double REVOKE_SECONDS = 2;

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

/* ---- failed groups ---- */

ctrt_status nccl_ending_new(struct nccl_ending **out, int world)
{
    *out = calloc(1, sizeof **out + (1 + 2 * (size_t)world) * sizeof(nccl_handle));
    if (*out == NULL)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a group of %d ranks", world);
    atomic_init(&(*out)->refs, 1);
    return CTRT_OK;
}

void nccl_ending_drop(struct nccl_ending *ending)
{
    if (ending != NULL && atomic_fetch_sub(&ending->refs, 1) == 1)
        free(ending);
}

/* Ends the operations of the communicator. Returns false if NCCL cannot do that; then the communicator must be aborted.
 */
static bool revoke(nccl_handle handle)
{
    const double until = nccl_now() + REVOKE_SECONDS;
    nccl_result result = nccl.revoke(handle, NCCL_REVOKE_PLAIN), asked = NCCL_OK;
    for (long pause = 5000; result == NCCL_IN_PROGRESS && asked == NCCL_OK && nccl_now() < until;) {
        nccl_pause(&pause);
        asked = nccl.async_error(handle, &result);
    }
    return asked == NCCL_OK && result == NCCL_OK;
}

static void *nccl_end_all(void *argument)
{
    struct nccl_ending *ending = argument;
    if (ending->revoking != NULL && revoke(ending->revoking))
        ending->revoked = ending->revoking;
    else if (ending->revoking != NULL)
        (void)nccl.abort(ending->revoking);
    ending->revoking = NULL;
    for (; ending->count > 0; ending->count--)
        (void)nccl.abort(ending->handles[ending->count - 1]);
    if (ending->child != NULL)              /* its parent has ended, so NCCL does not write this member any more */
        (void)nccl.abort(ending->child);
    ending->child = NULL;
    atomic_store(&ending->done, true);
    nccl_ending_drop(ending);
    return NULL;
}

static void await_end(const struct nccl_ending *ending, double until)
{
    long pause = 5000;
    while (!atomic_load(&ending->done) && nccl_now() < until)
        nccl_pause(&pause);
}

/* In a thread, because ncclCommAbort waits until the graphs with collectives of the communicator are destroyed, which
 * the calling thread may own. */
static void end_in_thread(struct nccl_ending *ending)
{
    pthread_t thread;
    atomic_store(&ending->done, false);
    atomic_fetch_add(&ending->refs, 1);
    if (pthread_create(&thread, NULL, nccl_end_all, ending) != 0) {
        (void)nccl_end_all(ending);
        return;
    }
    (void)pthread_detach(thread);
    await_end(ending, nccl_now() + ABORT_SECONDS);
}

static void take_handle(struct nccl_link *link, void *argument)
{
    struct nccl_ending *ending = argument;
    ending->handles[ending->count++] = link->handle;
    link->handle = NULL;
}

/* Revokes the communicator of the collectives if the remaining ranks may continue with it. Not after a capture,
 * because replays of a graph would wait without an end, whereas they end at once on an aborted communicator. */
void nccl_links_abort(void *state)
{
    struct nccl_group *group = state;
    pthread_mutex_lock(&group->lock);
    const bool first = !group->aborted;
    group->aborted = true;
    if (first && nccl_can_shrink(group->config) && !group->captured && !group->joining) {
        group->ending->revoking = group->all.handle;
        group->all.handle = NULL;
    }
    if (first)
        each_link(group, take_handle, group->ending);
    pthread_mutex_unlock(&group->lock);
    if (first)
        end_in_thread(group->ending);
}

void nccl_abort_revoked(struct nccl_group *group)
{
    struct nccl_ending *ending = group->ending;
    if (!group->aborted || !atomic_load(&ending->done) || ending->revoked == NULL)
        return;
    ending->handles[ending->count++] = ending->revoked;
    ending->revoked = NULL;
    end_in_thread(ending);
}

/* ---- leaving ---- */

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
           && nccl_now() < *(const double *)argument)
        nccl_pause(&pause);
    if (state == NCCL_OK)
        (void)nccl.destroy(link->handle);
    else
        (void)nccl.abort(link->handle);
    link->handle = NULL;
}

void nccl_links_close(struct nccl_group *group)
{
    double until = nccl_now() + CLOSE_SECONDS;
    each_link(group, finalize_link, NULL);
    each_link(group, close_link, &until);
    if (!group->aborted)
        return;
    await_end(group->ending, until);
    nccl_abort_revoked(group);
    await_end(group->ending, until);
}
