/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/lanes.c: calls: their threads, handles, time limits and numbers; forks of the process. */
#include "base/lock.h"
#include "base/thread.h"
#include "parallel/comm/comm.h"
#include "parallel/store/store.h"
#include "stream/stream.h"

/* How long the first failure waits for running calls. */
static const int64_t SETTLE_NS = 200000000;

/* ---- forks ---- */

static atomic_uint forks;

LOCK_IN_CHILD(comm_count_fork)
{
    atomic_fetch_add(&forks, 1);
}

unsigned comm_process(void)
{
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

ctrt_status comm_fail_forked(const char *function)
{
    return ctrt_fail(CTRT_ERR_FORKED, "%s: this process was forked after the communicator had been created; create "
                     "another one in this process", function);
}

/* ---- lanes ---- */

/* The coarse clock is up to 10 ms late, and reading it takes a fifth of the time. */
void comm_timer_begin(struct comm_timer *timer)
{
    const int64_t now = clock_now(CLOCK_MONOTONIC_COARSE);
    atomic_store_explicit(&timer->polled, now, memory_order_relaxed);
    atomic_store_explicit(&timer->deadline, now + (int64_t)(timer->comm->timeout * 1e9), memory_order_relaxed);
}

void comm_count(ctrt_comm *comm, int peer, bool receives)
{
    if (peer < 0)
        comm->completed++;
    else
        comm->messages[peer + (receives ? comm->group.size : 0)]++;
}

void comm_lanes_settle(ctrt_comm *comm)
{
    const struct timespec limit = store_timespec(clock_now(CLOCK_REALTIME) + SETTLE_NS);
    bool waits = true;
    pthread_mutex_lock(&comm->lock);
    for (int lane = 0; lane < LANES; lane++)
        while (waits && comm->lanes.lane[lane].state == LANE_RUNNING)
            waits = pthread_cond_timedwait(&comm->changed, &comm->lock, &limit) == 0;
    pthread_mutex_unlock(&comm->lock);
}

/* ---- works ---- */

ctrt_status comm_work_new(ctrt_work **out, const ctrt_comm_call *call, ctrt_device *device)
{
    ctrt_work *work = host_calloc(sizeof *work);
    ALLOC_CHECK(work, sizeof *work, "a collective");
    atomic_init(&work->refs, 1);
    work->process = comm_process();
    work->call = *call;
    work->device = device;
    ctrt_tensor_retain(call->send_tensor);
    ctrt_tensor_retain(call->receive_tensor);
    pthread_mutex_init(&work->lock, NULL);
    pthread_cond_init(&work->changed, NULL);
    *out = work;
    return CTRT_OK;
}

void comm_work_fail(ctrt_work *work, ctrt_status status, const char *error)
{
    pthread_mutex_lock(&work->lock);
    if (work->status == CTRT_OK) {
        work->status = status;
        work->error = host_strdup(error);
    }
    pthread_mutex_unlock(&work->lock);
}

void comm_work_end(ctrt_work *work)
{
    ctrt_tensor_release(&work->call.send_tensor);
    ctrt_tensor_release(&work->call.receive_tensor);
    pthread_mutex_lock(&work->lock);
    work->done = true;
    pthread_cond_broadcast(&work->changed);
    pthread_mutex_unlock(&work->lock);
}

ctrt_status ctrt_work_wait(ctrt_work *work)
{
    NULL_CHECK("work_wait", work);
    if (work->process != comm_process())
        return comm_fail_forked("work_wait");
    if (work->captured != NULL)
        return work->captured->wait(work);
    CANCEL_DISABLED;
    pthread_mutex_lock(&work->lock);
    while (!work->done)
        pthread_cond_wait(&work->changed, &work->lock);
    const ctrt_status status = work->status;
    pthread_mutex_unlock(&work->lock);
    if (status != CTRT_OK)
        return ctrt_fail(status, "%s", work->error ? work->error : "");
    if (work->event == NULL)
        return CTRT_OK;
    CTRT_AUTO(stream) stream = NULL;
    CTRT_TRY(ctrt_stream_current(&stream, work->device));
    return ctrt_stream_wait_event(stream, work->event);
}

ctrt_status ctrt_work_query(ctrt_work *work, bool *done)
{
    NULL_CHECKS("work_query", work, done);
    if (work->process != comm_process())
        return comm_fail_forked("work_query");
    if (work->captured != NULL)
        return ctrt_fail(CTRT_ERR_STATE, "work_query: the collective was recorded in a capture, so it has no work of "
                         "its own");
    pthread_mutex_lock(&work->lock);
    *done = work->done;
    const ctrt_status status = work->status;
    pthread_mutex_unlock(&work->lock);
    if (*done && status != CTRT_OK)
        return ctrt_fail(status, "%s", work->error ? work->error : "");
    return *done && work->event != NULL ? ctrt_event_query(work->event, done) : CTRT_OK;
}

void ctrt_work_release(ctrt_work **work)
{
    if (work == NULL || *work == NULL)
        return;
    ctrt_work *gone = *work;
    *work = NULL;
    if (atomic_fetch_sub(&gone->refs, 1) != 1 || gone->process != comm_process())
        return;
    ctrt_tensor_release(&gone->call.send_tensor);
    ctrt_tensor_release(&gone->call.receive_tensor);
    if (gone->captured != NULL)
        gone->captured->release(gone->captured);
    ctrt_event_release(&gone->before);
    ctrt_event_release(&gone->event);
    pthread_mutex_destroy(&gone->lock);
    pthread_cond_destroy(&gone->changed);
    host_free(gone->error);
    host_free(gone);
}
