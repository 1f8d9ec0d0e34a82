/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/run.c: runs the calls of a communicator, in the calling thread or in the threads of its lanes, and
 * copies tensors through host memory if the engine cannot reach their device. */
#include <signal.h>

#include "base/lock.h"
#include "base/thread.h"
#include "memory/hazard.h"
#include "parallel/comm/enqueued.h"
#include "tensor/pinned.h"

/* The coarse clock is up to 10 ms late, and reading it takes a fifth of the time. */
void comm_lane_begin(struct comm_lane *lane)
{
    const int64_t now = clock_now(CLOCK_MONOTONIC_COARSE);
    atomic_store_explicit(&lane->polled, now, memory_order_relaxed);
    atomic_store_explicit(&lane->deadline, now + (int64_t)(lane->comm->timeout * 1e9), memory_order_relaxed);
}

int comm_thread_start(pthread_t *thread, void *(*function)(void *argument), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* ---- fork ---- */

static atomic_uint forks;

static void after_fork_in_child(void)
{
    atomic_fetch_add(&forks, 1);
}

__attribute__((constructor)) static void comm_start(void)
{
    (void)lock_at_fork(NULL, NULL, after_fork_in_child);
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

/* ---- one call ---- */

static bool asynchronous(const ctrt_device *device)
{
    return device->flags & CTRT_DEVICE_ASYNCHRONOUS;
}

static ctrt_status pinned_like(ctrt_tensor **out, ctrt_tensor *tensor)
{
    return tensor_new_pinned(out, tensor->view.shape, tensor->view.ndim, tensor_dtype(tensor), tensor->device);
}

static bool enqueues(const ctrt_comm *comm)
{
    return comm->engine->flags & CTRT_COMM_ENQUEUES;
}

static bool host_address(const ctrt_tensor *tensor)
{
    return tensor == NULL || (device_host_memory(tensor->device) && ctrt_tensor_data(tensor) != NULL);
}

/* Runs the call on copies in host memory. */
static ctrt_status run_staged(ctrt_comm *comm, ctrt_comm_call *call)
{
    ctrt_tensor *const from = call->send_tensor, *const to = call->receive_tensor;
    CTRT_AUTO(tensor) send = NULL, receive = NULL;
    if (to != NULL)
        CTRT_TRY(pinned_like(&receive, to));
    if (from == to)
        send = ctrt_tensor_retain(receive);
    else if (from != NULL)
        CTRT_TRY(pinned_like(&send, from));
    ctrt_tensor *const source = from != NULL                                        ? from
                                : call->signature.collective == CTRT_COLLECTIVE_BROADCAST ? to
                                                                                    : NULL;
    ctrt_tensor *const staged = from != NULL ? send : receive;
    if (source != NULL)
        CTRT_TRY(ctrt_to_host(staged->view.data, (size_t)source->view.numel * ctrt_dtype_size(tensor_dtype(source)),
                              source, tensor_dtype(source)));
    call->queue = NULL;
    call->send = send ? send->view.data : NULL;
    call->receive = receive ? receive->view.data : NULL;
    call->send_tensor = send;
    call->receive_tensor = receive;
    ctrt_status status = comm->engine->run(comm->handle, call);
    call->send_tensor = from;
    call->receive_tensor = to;
    if (status == CTRT_OK && to != NULL)
        status = ctrt_copy_(to, receive);
    return status;
}

/* Makes the current stream wait for earlier work on the tensor as if an op used it. If the tensor has no address, the
 * engine runs ops on it, and these ops order the streams. */
static ctrt_status order_streams(ctrt_tensor *tensor, const void *address, bool writes)
{
    if (address == NULL || !asynchronous(tensor->device))
        return CTRT_OK;
    ctrt_stream *stream = stream_here(tensor->device);
    CTRT_TRY(hazard_before(stream, &tensor->view, writes, "a collective", NULL));
    hazard_after(stream, &tensor->view, writes, 0);
    return CTRT_OK;
}

static ctrt_status before_enqueued(ctrt_stream *stream, ctrt_tensor *tensor, bool writes)
{
    return tensor != NULL ? hazard_before(stream, &tensor->view, writes, "a collective", NULL) : CTRT_OK;
}

/* Runs the call with an engine that enqueues it. The call is then work of the current stream, like an op. */
static ctrt_status run_enqueued(ctrt_comm *comm, const ctrt_comm_call *call)
{
    ctrt_tensor *const from = call->send_tensor, *const to = call->receive_tensor;
    ctrt_stream *stream = stream_here(comm->device);
    timepoint point = 0;
    CTRT_TRY(before_enqueued(stream, from, false));
    ctrt_status status = before_enqueued(stream, to, true);
    const bool both = status == CTRT_OK;
    if (both)
        status = comm->engine->run(comm->handle, call);
    if (status == CTRT_OK) {
        pthread_mutex_lock(&stream->lock);
        point = stream_count_work(stream);
        pthread_mutex_unlock(&stream->lock);
    }
    if (from != NULL)
        hazard_after(stream, &from->view, false, point);
    if (both && to != NULL)
        hazard_after(stream, &to->view, true, point);
    if (status == CTRT_OK && to != NULL)
        tensor_bump_version(to);
    return status;
}

static ctrt_status run_call(ctrt_comm *comm, ctrt_comm_call *call)
{
    call->queue = enqueues(comm) ? stream_here(comm->device)->queue : NULL;
    if (call->signature.collective == CTRT_COLLECTIVE_EMPTY)
        return comm_run_empty(comm, call);
    call->send = ctrt_tensor_data(call->send_tensor);
    call->receive = ctrt_tensor_data(call->receive_tensor);
    if (!host_address(call->send_tensor) || !host_address(call->receive_tensor)) {
        if (!CTRT_SLOT(comm->engine, reaches_device) || !comm->engine->reaches_device(comm->handle, call))
            return run_staged(comm, call);
        if (enqueues(comm))
            return run_enqueued(comm, call);
        CTRT_TRY(order_streams(call->send_tensor, call->send, false));
        CTRT_TRY(order_streams(call->receive_tensor, call->receive, true));
    }
    CTRT_TRY(comm->engine->run(comm->handle, call));
    if (call->receive_tensor != NULL)
        tensor_bump_version(call->receive_tensor);
    return CTRT_OK;
}

/* Numbers the call and adds it to the flight record. The number is the same on all ranks, so it counts only calls that
 * are going to run. The caller holds the lock. */
static uint64_t call_add(ctrt_comm *comm, ctrt_comm_call *call, enum flight_state state)
{
    call->signature.sequence = call->peer < 0                ? ++comm->sequence
                               : call->receive_tensor != NULL ? ++comm->received[call->peer]
                                                              : ++comm->sent[call->peer];
    return flight_add(comm->record, &call->signature, call->peer, state);
}

/* Runs call `number` in the calling thread, which has made the lane busy. *tracked becomes true if the call is not
 * complete yet and comm/enqueued.c records its end. `work` may be NULL. */
static ctrt_status lane_run(bool *tracked, struct comm_lane *lane, ctrt_comm_call *call, uint64_t number,
                            ctrt_work *work)
{
    call->state = lane;
    *tracked = false;
    const bool grad = ctrt_set_grad_enabled(false);
    ctrt_status status = run_call(lane->comm, call);
    (void)ctrt_set_grad_enabled(grad);
    if (status == CTRT_OK && unlikely(enqueues(lane->comm)))
        status = comm_enqueued_add(tracked, lane, number, call->peer, work);
    if (likely(status == CTRT_OK))
        return CTRT_OK;
    if (capture_here(lane->comm->device) != NULL)   /* nothing has been sent, so only the capture fails */
        return capture_abandon(lane->comm->device, status);
    pthread_mutex_lock(&lane->comm->lock);
    lane->failing = true;
    pthread_cond_broadcast(&lane->comm->changed);
    pthread_mutex_unlock(&lane->comm->lock);
    return comm_fail(lane->comm, status, ctrt_error_message());
}

void comm_count(ctrt_comm *comm, int peer, bool receives)
{
    if (peer < 0)
        comm->completed++;
    else
        comm->messages[peer + (receives ? comm->size : 0)]++;
}

/* Makes the lane idle, and, unless the call is tracked, records the end of call `number`. */
static void lane_end(struct comm_lane *lane, const ctrt_comm_call *call, uint64_t number, ctrt_status status,
                     bool tracked)
{
    ctrt_comm *comm = lane->comm;
    pthread_mutex_lock(&comm->lock);
    if (!tracked)
        flight_set(comm->record, number, status == CTRT_OK ? FLIGHT_DONE : FLIGHT_FAILED);
    if (!tracked && status == CTRT_OK)
        comm_count(comm, call->peer, lane == &comm->lanes[LANE_RECEIVES]);
    lane->number = 0;
    lane->busy = lane->failing = false;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

/* ---- lanes ---- */

void comm_work_fail(ctrt_work *work, ctrt_status status, const char *error)
{
    pthread_mutex_lock(&work->lock);
    if (work->status == CTRT_OK) {
        work->status = status;
        work->error = host_strdup(error);
    }
    pthread_mutex_unlock(&work->lock);
}

/* Runs the call of `work` on the lane's stream, which is current. */
static void run_work(struct comm_lane *lane, ctrt_work *work)
{
    ctrt_comm *comm = lane->comm;
    bool tracked = false;
    ctrt_status status = comm_check(comm);
    pthread_mutex_lock(&comm->lock);
    lane->number = work->number;
    flight_set(comm->record, work->number, FLIGHT_RUNNING);
    pthread_mutex_unlock(&comm->lock);
    comm_lane_begin(lane);
    if (status == CTRT_OK && work->before != NULL)
        status = ctrt_stream_wait_event(lane->stream, work->before);
    if (status == CTRT_OK)
        status = lane_run(&tracked, lane, &work->call, work->number, work);
    if (status == CTRT_OK && work->event != NULL)
        status = ctrt_event_record(work->event, lane->stream);
    lane_end(lane, &work->call, work->number, status, tracked);

    ctrt_tensor_release(&work->call.send_tensor);
    ctrt_tensor_release(&work->call.receive_tensor);
    if (status != CTRT_OK)
        comm_work_fail(work, status, ctrt_error_message());
    pthread_mutex_lock(&work->lock);
    work->done = true;
    pthread_cond_broadcast(&work->changed);
    pthread_mutex_unlock(&work->lock);
}

static void *lane_thread(void *argument)
{
    struct comm_lane *lane = argument;
    ctrt_comm *comm = lane->comm;
    cancel_disable();
    if (lane->stream != NULL)
        (void)ctrt_stream_push(lane->stream);
    pthread_mutex_lock(&comm->lock);
    for (;;) {
        while ((lane->first == NULL || lane->busy) && !lane->stop)
            pthread_cond_wait(&comm->changed, &comm->lock);
        ctrt_work *work = lane->first;
        if (work == NULL)
            break;
        lane->first = work->next;
        lane->busy = true;
        pthread_mutex_unlock(&comm->lock);
        run_work(lane, work);
        ctrt_work_release(&work);
        pthread_mutex_lock(&comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
    if (lane->stream != NULL)
        (void)ctrt_stream_pop();
    return NULL;
}

/* Creates the lane's stream if it has none. The caller holds the lock. */
static ctrt_status lane_stream(struct comm_lane *lane)
{
    return asynchronous(lane->comm->device) && lane->stream == NULL
               ? ctrt_stream_new(&lane->stream, lane->comm->device, 0) : CTRT_OK;
}

/* Starts the lane's thread if it has none. The caller holds the lock. */
static ctrt_status lane_start(struct comm_lane *lane)
{
    ctrt_comm *comm = lane->comm;
    if (lane->has_thread)
        return CTRT_OK;
    CTRT_TRY(lane_stream(lane));
    int error = comm_thread_start(&lane->thread, lane_thread, lane);
    if (error != 0)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "group %s: cannot create a thread for background collectives: %s",
                         comm->name, strerror(error));
    lane->has_thread = true;
    return CTRT_OK;
}

void comm_lanes_end(ctrt_comm *comm)
{
    for (int i = 0; i < LANES; i++) {
        struct comm_lane *lane = &comm->lanes[i];
        pthread_mutex_lock(&comm->lock);
        while (lane->first != NULL || lane->busy)
            pthread_cond_wait(&comm->changed, &comm->lock);
        lane->stop = true;
        pthread_cond_broadcast(&comm->changed);
        pthread_mutex_unlock(&comm->lock);
        if (lane->has_thread)
            pthread_join(lane->thread, NULL);
        lane->has_thread = false;
        if (lane->stream != NULL && comm->moves)
            (void)ctrt_stream_reset(lane->stream);
        ctrt_stream_release(&lane->stream);
    }
}

static int lane_of(const ctrt_comm_call *call)
{
    if (call->peer < 0)
        return LANE_COLLECTIVES;
    return call->receive_tensor != NULL ? LANE_RECEIVES : LANE_SENDS;
}

ctrt_status comm_work_new(ctrt_work **out, const ctrt_comm_call *call, ctrt_device *device)
{
    ctrt_work *work = host_calloc(sizeof *work);
    if (work == NULL)
        return out_of_memory(sizeof *work, "a collective");
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

static ctrt_status create_events(ctrt_work *work)
{
    CTRT_TRY(ctrt_event_new(&work->before, work->device, false));
    CTRT_TRY(ctrt_event_new(&work->event, work->device, false));
    return ctrt_event_record(work->before, NULL);
}

/* If no call is queued or runs in the lane, runs the call in the calling thread; returns false otherwise. This is the
 * fast path of small calls: it allocates nothing and takes the lock twice. */
static bool run_here(ctrt_status *status, struct comm_lane *lane, const ctrt_comm_call *given)
{
    ctrt_comm *comm = lane->comm;
    ctrt_comm_call call = *given;
    uint64_t number = 0;
    CANCEL_DISABLED;
    pthread_mutex_lock(&comm->lock);
    const bool idle = lane->first == NULL && !lane->busy;
    if (idle) {
        lane->busy = true;
        lane->number = number = call_add(comm, &call, FLIGHT_RUNNING);
    }
    pthread_mutex_unlock(&comm->lock);
    if (!idle)
        return false;
    comm_lane_begin(lane);
    bool tracked;
    *status = lane_run(&tracked, lane, &call, number, NULL);
    lane_end(lane, &call, number, *status, tracked);
    return true;
}

/* Runs the call of `work` in the calling thread on the lane's stream, if the lane's thread has no call. Engines that
 * enqueue need that: libraries such as NCCL require that all ranks enqueue the collectives of all communicators in the
 * same order, which is that of the program's calls. */
static ctrt_status enqueue_here(bool *ran, struct comm_lane *lane, ctrt_work *work)
{
    ctrt_comm *comm = lane->comm;
    pthread_mutex_lock(&comm->lock);
    *ran = lane->first == NULL && !lane->busy;
    ctrt_status status = *ran ? lane_stream(lane) : CTRT_OK;
    if (*ran && status == CTRT_OK)
        status = ctrt_stream_push(lane->stream);
    if (*ran && status == CTRT_OK) {
        lane->busy = true;
        work->number = call_add(comm, &work->call, FLIGHT_QUEUED);
    }
    pthread_mutex_unlock(&comm->lock);
    if (!*ran || status != CTRT_OK)
        return status;
    run_work(lane, work);
    return ctrt_stream_pop();
}

ctrt_status comm_submit(ctrt_work **out, ctrt_comm *comm, const ctrt_comm_call *call)
{
    CANCEL_DISABLED;
    CTRT_AUTO(work) work = NULL;
    struct comm_lane *lane = &comm->lanes[lane_of(call)];
    ctrt_status status = CTRT_OK;
    if (out == NULL && run_here(&status, lane, call))
        return status;
    CTRT_TRY(comm_work_new(&work, call, comm->device));
    if (asynchronous(comm->device))
        CTRT_TRY(create_events(work));
    bool ran = false;
    if (enqueues(comm) && call->peer < 0)
        CTRT_TRY(enqueue_here(&ran, lane, work));
    pthread_mutex_lock(&comm->lock);
    status = ran ? CTRT_OK : lane_start(lane);
    if (status == CTRT_OK && !ran) {
        work->number = call_add(comm, &work->call, FLIGHT_QUEUED);
        atomic_fetch_add(&work->refs, 1);
        if (lane->first == NULL)
            lane->first = work;
        else
            lane->last->next = work;
        lane->last = work;
        pthread_cond_broadcast(&comm->changed);
    }
    pthread_mutex_unlock(&comm->lock);
    CTRT_TRY(status);
    if (out == NULL)
        return ctrt_work_wait(work);
    ctrt_work_release(out);
    *out = work;
    work = NULL;
    return CTRT_OK;
}

/* ---- works ---- */

ctrt_status ctrt_work_wait(ctrt_work *work)
{
    if (work == NULL)
        return fail_null("work_wait", "work");
    if (work->process != comm_process())
        return comm_fail_forked("work_wait");
    if (work->captured != NULL)
        return comm_captured_wait(work);
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
    if (work == NULL || done == NULL)
        return fail_null("work_query", work == NULL ? "work" : "done");
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
    comm_captured_release(gone);
    ctrt_event_release(&gone->before);
    ctrt_event_release(&gone->event);
    pthread_mutex_destroy(&gone->lock);
    pthread_cond_destroy(&gone->changed);
    host_free(gone->error);
    host_free(gone);
}
