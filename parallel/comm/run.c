/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/run.c: runs the calls of a communicator, in the calling thread or in the threads of its lanes, and
 * copies tensors through host memory if the engine cannot reach their device. */
#include "base/thread.h"
#include "memory/hazard.h"
#include "parallel/comm/comm.h"
#include "registry/registry.h"
#include "tensor/pinned.h"

const unsigned lane_next[LANE_STATES] = {
    [LANE_IDLE] = STATE(LANE_RUNNING) | STATE(LANE_STOPPED),
    [LANE_RUNNING] = STATE(LANE_IDLE) | STATE(LANE_FAILING),
    [LANE_FAILING] = STATE(LANE_IDLE),
};

void comm_lane_set(struct comm_lane *lane, enum lane_state state, uint64_t number)
{
    STATE_CHECK(lane_next, lane->state, state);
    lane->state = state;
    lane->timer.number = number;
    if (state != LANE_RUNNING)
        pthread_cond_broadcast(&lane->timer.comm->changed);
}

/* ---- one call ---- */

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
static ctrt_status call_run_staged(ctrt_comm *comm, ctrt_comm_call *call)
{
    ctrt_tensor *const from = call->send_tensor, *const to = call->receive_tensor;
    CTRT_AUTO(tensor) send = NULL, receive = NULL;
    if (to != NULL)
        CTRT_TRY(pinned_like(&receive, to));
    if (from == to)
        send = ctrt_tensor_retain(receive);
    else if (from != NULL)
        CTRT_TRY(pinned_like(&send, from));
    const bool root_sends = call->signature.collective == CTRT_COLLECTIVE_BROADCAST;
    ctrt_tensor *const source = from != NULL ? from : root_sends ? to : NULL;
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
static ctrt_status order_tensor(ctrt_tensor *tensor, const void *address, bool writes)
{
    if (address == NULL || !device_asynchronous(tensor->device))
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
static ctrt_status call_run_enqueued(ctrt_comm *comm, const ctrt_comm_call *call)
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

/* All ranks decide equally, because all of them have to call the engine's alloc. */
static bool shares_memory(const ctrt_comm *comm)
{
    bool cpus = CTRT_SLOT(comm->engine, alloc) && CTRT_SLOT(comm->engine, free);
    if (cpus && (comm->engine->flags & CTRT_COMM_DEVICE_MEMORY))
        return true;
    for (int rank = 0; rank < comm->group.size && cpus; rank++)
        cpus = type_is_cpu(comm->group.members->list[rank].device);
    return cpus;
}

/* Runs a CTRT_COLLECTIVE_EMPTY: allocates call->bytes bytes and writes their address, or NULL for ordinary memory, to
 * the pointer at call->receive. */
static ctrt_status call_run_empty(ctrt_comm *comm, const ctrt_comm_call *call)
{
    void **address = call->receive;
    ctrt_comm_call barrier = *call;
    barrier.bytes = 0;
    barrier.receive = NULL;
    CTRT_TRY(comm->engine->run(comm->handle, &barrier));
    if (call->bytes == 0 || !shares_memory(comm))
        return CTRT_OK;
    ctrt_status status = comm->engine->alloc(comm->handle, address, call->bytes);
    if (status != CTRT_ERR_OUT_OF_MEMORY)
        return status;
    log_message(CTRT_LOG_WARNING, "comm", "rank %d of group %s uses memory that is not shared: %s", comm->group.rank,
                comm->group.name, ctrt_error_message());
    *address = NULL;
    return CTRT_OK;
}

static ctrt_status call_run(ctrt_comm *comm, ctrt_comm_call *call)
{
    call->queue = enqueues(comm) ? stream_here(comm->device)->queue : NULL;
    if (call->signature.collective == CTRT_COLLECTIVE_EMPTY)
        return call_run_empty(comm, call);
    call->send = ctrt_tensor_data(call->send_tensor);
    call->receive = ctrt_tensor_data(call->receive_tensor);
    if (!host_address(call->send_tensor) || !host_address(call->receive_tensor)) {
        if (!CTRT_SLOT(comm->engine, reaches_device) || !comm->engine->reaches_device(comm->handle, call))
            return call_run_staged(comm, call);
        if (enqueues(comm))
            return call_run_enqueued(comm, call);
        CTRT_TRY(order_tensor(call->send_tensor, call->send, false));
        CTRT_TRY(order_tensor(call->receive_tensor, call->receive, true));
    }
    CTRT_TRY(comm->engine->run(comm->handle, call));
    if (call->receive_tensor != NULL)
        tensor_bump_version(call->receive_tensor);
    return CTRT_OK;
}

/* Numbers the call and adds it to the flight record in `state`. The number is the same on all ranks, so it counts only
 * calls that are going to run. Requires the lock. */
static uint64_t call_add(ctrt_comm *comm, ctrt_comm_call *call, enum flight_state state)
{
    call->signature.sequence = call->peer < 0                ? ++comm->sequence
                               : call->receive_tensor != NULL ? ++comm->received[call->peer]
                                                              : ++comm->sent[call->peer];
    return flight_add(comm->record, &call->signature, call->peer, state);
}

/* Makes the communicator fail. The report waits for calls that run, so the lane is failing meanwhile. */
static ctrt_status lane_fail(struct comm_lane *lane, ctrt_status status, const char *error)
{
    ctrt_comm *comm = lane->timer.comm;
    pthread_mutex_lock(&comm->lock);
    comm_lane_set(lane, LANE_FAILING, lane->timer.number);
    pthread_mutex_unlock(&comm->lock);
    return comm_fail(comm, status, error);
}

/* Runs call `number` in the calling thread, in whose lane it runs. *tracked becomes true if the call is not complete
 * yet and comm/tracker.c records its end. `work` may be NULL. */
static ctrt_status lane_run(bool *tracked, struct comm_lane *lane, ctrt_comm_call *call, uint64_t number,
                            ctrt_work *work)
{
    ctrt_comm *comm = lane->timer.comm;
    call->state = &lane->timer;
    *tracked = false;
    const bool grad = ctrt_set_grad_enabled(false);
    ctrt_status status = call_run(comm, call);
    (void)ctrt_set_grad_enabled(grad);
    if (status == CTRT_OK && unlikely(enqueues(comm)))
        status = comm_track(tracked, lane, number, call->peer, work);
    if (likely(status == CTRT_OK))
        return CTRT_OK;
    if (capture_here(comm->device) != NULL)         /* nothing has been sent, so only the capture fails */
        return capture_abandon(comm->device, status);
    return lane_fail(lane, status, ctrt_error_message());
}

/* Makes the lane idle, and, unless the call is tracked, records the end of call `number`. */
static void lane_end(struct comm_lane *lane, const ctrt_comm_call *call, uint64_t number, ctrt_status status,
                     bool tracked)
{
    ctrt_comm *comm = lane->timer.comm;
    pthread_mutex_lock(&comm->lock);
    if (!tracked)
        flight_set(comm->record, number, status == CTRT_OK ? FLIGHT_DONE : FLIGHT_FAILED);
    if (!tracked && status == CTRT_OK)
        comm_count(comm, call->peer, lane == &comm->lanes.lane[LANE_RECEIVES]);
    comm_lane_set(lane, LANE_IDLE, 0);
    pthread_mutex_unlock(&comm->lock);
}

/* ---- lanes ---- */

/* Runs the call of `work` on the lane's stream, which is current. */
static void run_work(struct comm_lane *lane, ctrt_work *work)
{
    ctrt_comm *comm = lane->timer.comm;
    bool tracked = false;
    ctrt_status status = CTRT_OK;
    if (failure_known(&comm->failure))
        status = lane_fail(lane, CTRT_ERR_COMM, "another rank has failed");
    pthread_mutex_lock(&comm->lock);
    flight_set(comm->record, work->number, FLIGHT_RUNNING);
    pthread_mutex_unlock(&comm->lock);
    comm_timer_begin(&lane->timer);
    if (status == CTRT_OK && work->before != NULL) {
        status = ctrt_stream_wait_event(lane->stream, work->before);
        if (status != CTRT_OK)              /* the other ranks make the call, so the group has failed */
            status = lane_fail(lane, status, ctrt_error_message());
    }
    if (status == CTRT_OK)
        status = lane_run(&tracked, lane, &work->call, work->number, work);
    lane_end(lane, &work->call, work->number, status, tracked);
    if (status == CTRT_OK && work->event != NULL)
        status = ctrt_event_record(work->event, lane->stream);
    if (status != CTRT_OK)
        comm_work_fail(work, status, ctrt_error_message());
    comm_work_end(work);
}

static void *lane_thread(void *argument)
{
    struct comm_lane *lane = argument;
    ctrt_comm *comm = lane->timer.comm;
    cancel_disable();
    if (lane->stream != NULL)
        (void)ctrt_stream_push(lane->stream);
    pthread_mutex_lock(&comm->lock);
    for (;;) {
        while (lane->first == NULL ? lane->state != LANE_STOPPED : lane->state != LANE_IDLE)
            pthread_cond_wait(&comm->changed, &comm->lock);
        ctrt_work *work = lane->first;
        if (work == NULL)
            break;
        lane->first = work->next;
        comm_lane_set(lane, LANE_RUNNING, work->number);
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
    ctrt_device *device = lane->timer.comm->device;
    return device_asynchronous(device) && lane->stream == NULL ? ctrt_stream_new(&lane->stream, device, 0) : CTRT_OK;
}

/* Starts the lane's thread if it has none. The caller holds the lock. */
static ctrt_status lane_start(struct comm_lane *lane)
{
    ctrt_comm *comm = lane->timer.comm;
    if (lane->has_thread)
        return CTRT_OK;
    CTRT_TRY(lane_stream(lane));
    int error = thread_start(&lane->thread, lane_thread, lane);
    if (error != 0)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "group %s: cannot create a thread for background collectives: %s",
                         comm->group.name, strerror(error));
    lane->has_thread = true;
    return CTRT_OK;
}

void comm_lanes_end(ctrt_comm *comm, bool reset)
{
    for (int i = 0; i < LANES; i++) {
        struct comm_lane *lane = &comm->lanes.lane[i];
        pthread_mutex_lock(&comm->lock);
        while (lane->first != NULL || lane->state == LANE_RUNNING || lane->state == LANE_FAILING)
            pthread_cond_wait(&comm->changed, &comm->lock);
        const bool runs = lane->state == LANE_IDLE;
        if (runs)
            comm_lane_set(lane, LANE_STOPPED, 0);
        pthread_mutex_unlock(&comm->lock);
        if (runs && lane->has_thread)
            pthread_join(lane->thread, NULL);
        if (lane->stream != NULL && reset)
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
    ctrt_comm *comm = lane->timer.comm;
    ctrt_comm_call call = *given;
    uint64_t number = 0;
    CANCEL_DISABLED;
    pthread_mutex_lock(&comm->lock);
    const bool idle = lane->first == NULL && lane->state == LANE_IDLE;
    if (idle) {
        number = call_add(comm, &call, FLIGHT_RUNNING);
        comm_lane_set(lane, LANE_RUNNING, number);
    }
    pthread_mutex_unlock(&comm->lock);
    if (!idle)
        return false;
    comm_timer_begin(&lane->timer);
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
    ctrt_comm *comm = lane->timer.comm;
    pthread_mutex_lock(&comm->lock);
    *ran = lane->first == NULL && lane->state == LANE_IDLE;
    ctrt_status status = *ran ? lane_stream(lane) : CTRT_OK;
    if (*ran && status == CTRT_OK)
        status = ctrt_stream_push(lane->stream);
    if (*ran && status == CTRT_OK) {
        work->number = call_add(comm, &work->call, FLIGHT_QUEUED);
        comm_lane_set(lane, LANE_RUNNING, work->number);
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
    struct comm_lane *lane = &comm->lanes.lane[lane_of(call)];
    ctrt_status status = CTRT_OK;
    if (out == NULL && run_here(&status, lane, call))
        return status;
    CTRT_TRY(comm_work_new(&work, call, comm->device));
    if (device_asynchronous(comm->device))
        CTRT_TRY(create_events(work));
    bool ran = false;
    if (enqueues(comm) && call->peer < 0)
        CTRT_TRY(enqueue_here(&ran, lane, work));
    pthread_mutex_lock(&comm->lock);
    if (!ran)                               /* this rank has called ctrt_comm_shrink */
        status = lane->state == LANE_STOPPED ? failure_error(&comm->failure) : lane_start(lane);
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

