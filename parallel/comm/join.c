/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/join.c: processes that join a group that exists already.
 *
 * Such a process reads the group's present epoch from the key NAME/current, adds a request to this epoch, and waits for
 * the list of ranks of the next epoch. If the list does not contain the process, it adds a request to that epoch. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"
#include "parallel/comm/peers.h"
#include "parallel/store/store.h"

/* Seconds between two checks for requests, and between two checks whether the group still exists. */
static const double LOOK_SECONDS = 0.2, EXISTS_SECONDS = 1;

/* ---- the group ---- */

ctrt_status ctrt_comm_joining(int *count, ctrt_comm *comm)
{
    int64_t requests = 0;
    NULL_CHECKS("comm_joining", count, comm);
    if (comm->process != comm_process())
        return comm_fail_forked("comm_joining");
    *count = comm->joining.count;
    if (!comm->group.elastic || comm->group.local || comm->group.rank != 0 || clock_after(0) < comm->joining.next_look)
        return CTRT_OK;
    comm->joining.next_look = clock_after(LOOK_SECONDS);
    CTRT_TRY(store_add_within(comm->store, comm_key(comm, "joins", -1), 0, &requests, comm_store_patience(comm)));
    comm->joining.count = (int32_t)requests;
    *count = comm->joining.count;
    return CTRT_OK;
}

/* ---- joining ---- */

/* Fails if all `size` ranks of the present epoch have left or are lost. */
static ctrt_status check_exists(ctrt_comm *comm, int size)
{
    static const char *const ends[] = { "left", "ended", "gone" };
    bool left = false;
    for (int rank = 0; rank < size; rank++) {
        bool ended = false;
        for (size_t i = 0; i < COUNT_OF(ends) && !ended; i++) {
            CTRT_TRY(comm_is_set(&ended, comm, ends[i], rank, 0));
            left = left || (ended && i == 0);
        }
        if (!ended)
            return CTRT_OK;
    }
    return ctrt_fail(CTRT_ERR_COMM, "group %s has %s before it admitted this process (CTRT_JOIN)", comm->group.name,
                     left ? "ended" : "lost all its ranks");
}

/* Waits for the group, and sets id and epoch of `comm` to those of its present epoch. *size: its number of ranks. */
static ctrt_status find_group(ctrt_comm *comm, int *size)
{
    char key[COMM_KEY];
    HOST_AUTO void *value = NULL;
    int at = 0;
    CTRT_TRY(ctrt_context(store_await(comm->store, comm_current_key(key, comm), &value, NULL, comm->timeout),
                          "no group %s that this process can join (CTRT_JOIN); its ranks need CTRT_ON_FAILURE=shrink",
                          comm->group.name));
    const bool valid = sscanf(value, "%d %d %n", &comm->group.epoch, size, &at) == 2 && at > 0 && comm->group.epoch >= 0
                       && *size > 0 && strlen((char *)value + at) < COMM_SHORT + 64;
    return valid ? comm_set_id(comm, (char *)value + at)
                 : ctrt_fail(CTRT_ERR_STATE, "the key %s of the store has a wrong value", key);
}

/* Adds a request to the present epoch. *number: the number of the request. */
static ctrt_status add_request(int64_t *number, ctrt_comm *comm)
{
    struct comm_member own = { .pid = 0 };
    comm_member_fill(&own, comm);
    CTRT_TRY(ctrt_store_add(comm->store, comm_key(comm, "joins", -1), 1, number));
    CTRT_TRY(comm_set_at_end(comm, "unjoin", (int)*number, ""));
    CTRT_TRY(comm_next_guard(comm, -(int32_t)*number, GUARD_SET));
    return ctrt_store_set(comm->store, comm_key(comm, "join", (int)*number), &own, sizeof own);
}

/* Removes what add_request has registered for the end of this process, after the request was granted or ignored.
 * GUARD_DROP: also the alarm in the next epoch. */
static void forget_request(ctrt_comm *comm, int64_t number, enum comm_guard guard)
{
    (void)comm_set_at_end(comm, "unjoin", (int)number, NULL);
    if (guard == GUARD_DROP)
        (void)comm_next_guard(comm, -(int32_t)number, guard);
}

/* Waits for the list of the next epoch. */
static ctrt_status await_list(struct comm_list **out, ctrt_comm *comm, int size, int64_t deadline)
{
    int64_t next_check = 0;
    for (;;) {
        CTRT_TRY(comm_list_read(out, comm, LOOK_SECONDS));
        if (*out != NULL)
            return CTRT_OK;
        if (clock_after(0) > deadline)
            return ctrt_fail(CTRT_ERR_COMM, "group %s did not admit this process (CTRT_JOIN) within %g s",
                             comm->group.name, comm->timeout);
        if (clock_after(0) < next_check)
            continue;
        next_check = clock_after(EXISTS_SECONDS);
        CTRT_TRY(check_exists(comm, size));
    }
}

/* Sets id and epoch of `comm` to those of the next epoch, which has not admitted this process. */
static ctrt_status follow_epoch(ctrt_comm *comm)
{
    char *id = NULL;
    CTRT_TRY(comm_next_name(&id, comm->group.id, comm->group.epoch));
    host_free(comm->group.id);
    comm->group.id = id;
    comm->group.epoch++;
    return CTRT_OK;
}

static ctrt_status await_admission(ctrt_comm **out, ctrt_comm *comm)
{
    const int64_t deadline = clock_after(comm->timeout);
    struct comm_list *list = NULL;
    int64_t number = 0;
    int size = 0;
    if (CTRT_SLOT(comm->engine, bootstrap))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the engine %s cannot connect a process that joins later (CTRT_JOIN), "
                         "because its launcher has not started it with the others", comm->engine_name);
    CTRT_TRY(find_group(comm, &size));
    for (;;) {
        int rank = -1;
        CTRT_TRY(add_request(&number, comm));
        ctrt_status status = await_list(&list, comm, size, deadline);
        for (int i = 0; status == CTRT_OK && i < list->size; i++)
            if (list->ranks[i].previous == -(int32_t)number)
                rank = i;
        forget_request(comm, number, status == CTRT_OK && rank >= 0 ? GUARD_SET : GUARD_DROP);
        if (status == CTRT_OK && rank >= 0)
            status = comm_list_connect(out, comm, list, rank);
        size = list != NULL ? list->size : 0;
        free(list);
        if (status != CTRT_OK || rank >= 0)
            return status;
        CTRT_TRY(follow_epoch(comm));
    }
}

ctrt_status comm_join(ctrt_comm **comm)
{
    ctrt_comm *fresh = NULL;
    ctrt_status status = await_admission(&fresh, *comm);
    if (status == CTRT_ERR_COMM && fresh != NULL)       /* a rank was lost while the group connected */
        status = ctrt_comm_shrink(&fresh, fresh);
    return comm_give(comm, fresh, status);
}
