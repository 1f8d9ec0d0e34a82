/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/connect.c: creates communicators, connects their ranks, and releases them. */
#include "base/thread.h"
#include "parallel/comm/comm.h"
#include "parallel/store/store.h"

/* How long ranks that have joined may take to connect, at least. */
static const double CONNECT_SECONDS = 2;

ctrt_status comm_alloc(ctrt_comm **out, int rank, int size, const char *name, double timeout)
{
    ctrt_comm *comm = host_calloc(sizeof *comm);
    ALLOC_CHECK(comm, sizeof *comm, "a communicator");
    atomic_init(&comm->refs, 1);
    atomic_init(&comm->engine_refs, 1);
    atomic_init(&comm->watch.possible, UINT64_MAX);
    comm->process = comm_process();
    comm->group.rank = rank;
    comm->group.size = size;
    comm->timeout = timeout;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    failure_init(&comm->failure);
    comm->engine_name = "";
    comm->group.name = host_strdup(name);
    comm->group.members = comm_members_new(size);
    comm->sent = host_calloc(4 * (size_t)size * sizeof *comm->sent);
    comm->record = host_calloc(sizeof *comm->record);
    const bool complete = comm->group.name && comm->group.members && comm->sent && comm->record;
    if (complete) {
        comm->received = comm->sent + size;
        comm->messages = comm->received + size;
        flight_begin(comm->record);
    }
    for (int i = 0; i < LANES; i++)
        comm->lanes.lane[i].timer.comm = comm;
    comm->lanes.tracker.timer.comm = comm;
    *out = comm;
    return complete ? CTRT_OK : out_of_memory((size_t)size * sizeof(struct comm_member), "a communicator");
}

ctrt_status comm_alloc_like(ctrt_comm **out, const ctrt_comm *comm, int rank, int size, const char *name)
{
    CTRT_TRY(comm_alloc(out, rank, size, name, comm->timeout));
    (*out)->group.local = comm->group.local;
    (*out)->device = comm->device;
    (*out)->store = ctrt_store_retain(comm->store);
    (*out)->engine = comm->engine;
    (*out)->engine_name = comm->engine_name;
    return CTRT_OK;
}

void comm_drop(ctrt_comm *comm)
{
    if (atomic_fetch_sub_explicit(&comm->engine_refs, 1, memory_order_acq_rel) != 1)
        return;
    if (comm->handle != NULL)
        comm->engine->destroy(comm->handle);
    ctrt_store_release(&comm->store);
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->changed);
    host_free(comm->group.name);
    host_free(comm->group.id);
    host_free(comm->group.previous);
    host_free(comm->group.changes);
    comm_members_release(comm->group.members);
    host_free(comm->sent);
    host_free(comm->record);
    failure_destroy(&comm->failure);
    host_free(comm);
}

ctrt_status comm_give(ctrt_comm **out, ctrt_comm *fresh, ctrt_status status)
{
    ctrt_comm_release(status == CTRT_OK ? out : &fresh);
    if (status == CTRT_OK)
        *out = fresh;
    return status;
}

ctrt_comm *ctrt_comm_retain(ctrt_comm *comm)
{
    if (comm != NULL)
        atomic_fetch_add_explicit(&comm->refs, 1, memory_order_relaxed);
    return comm;
}

void ctrt_comm_release(ctrt_comm **comm)
{
    if (comm == NULL || *comm == NULL)
        return;
    CANCEL_DISABLED;
    ctrt_comm *gone = *comm;
    *comm = NULL;
    if (atomic_fetch_sub_explicit(&gone->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (gone->process != comm_process()) {      /* the parent's threads may have been changing the rest */
        ctrt_store_release(&gone->store);
        return;
    }
    struct error_text *error = error_set_aside();       /* the caller's, which the store's errors would replace */
    comm_lanes_end(gone, false);
    comm_tracker_end(gone);
    comm_unwatch(gone);
    comm_drop(gone);
    error_put_back(error);
}

ctrt_status comm_connect(ctrt_comm *comm, const ctrt_comm *parent, const int32_t *ranks, int color)
{
    struct comm_timer *timer = &comm->lanes.lane[LANE_COLLECTIVES].timer;
    (void)comm_group_change(comm, GROUP_JOINING, GROUP_CURRENT);
    CTRT_TRY(comm_members_check(comm));
    comm->config = (ctrt_comm_config){
        .size = sizeof comm->config, .rank = comm->group.rank, .world = comm->group.size, .name = comm->group.id,
        .device = comm->device, .store = comm->store, .timeout = comm->timeout,
        .state = timer, .poll = comm_poll, .mismatch = comm_mismatch, .epoch = comm->group.epoch,
        .elastic = comm->group.elastic,
    };
    comm_timer_begin(timer);
    if (comm->join_deadline != 0)           /* so that the parts of ctrt_comm_new do not take the time limit each */
        atomic_store(&timer->deadline,
                     MAX(comm->join_deadline, clock_after(MIN(comm->timeout, CONNECT_SECONDS))));
    /* Before `create`, so that a rank that ends while the others connect is noticed. */
    CTRT_TRY(comm_watch(comm));
    void *handle = NULL;
    const ctrt_status status = parent != NULL && CTRT_SLOT(comm->engine, derive)
                                   ? comm->engine->derive(&handle, &comm->config, parent->handle, ranks, color)
                                   : comm->engine->create(&handle, &comm->config);
    if (status != CTRT_OK)                  /* the group has failed on all ranks, so none waits for another to leave */
        return comm->group.local ? status : comm_fail(comm, status, ctrt_error_message());
    pthread_mutex_lock(&comm->lock);
    comm->handle = handle;
    pthread_mutex_unlock(&comm->lock);
    comm_leave_at_exit(comm);
    return CTRT_OK;
}
