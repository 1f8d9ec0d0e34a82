/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm_run.c: runs the calls of a communicator, in the calling thread or in the threads of its lanes, and
 * copies tensors through host memory if the engine cannot reach their device. */
#include <signal.h>
#include <time.h>

#include "base/lock.h"
#include "base/thread.h"
#include "parallel/comm.h"
#include "tensor/pinned.h"

int64_t comm_clock(double seconds)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec + (int64_t)(seconds * 1e9);
}

void comm_lane_begin(struct comm_lane *lane)
{
    atomic_store(&lane->polled, comm_clock(0));
    atomic_store(&lane->deadline, comm_clock(lane->comm->timeout));
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

static ctrt_status run_call(ctrt_comm *comm, ctrt_comm_call *call)
{
    if (call->signature.collective == CTRT_COLLECTIVE_EMPTY)
        return comm_run_empty(comm, call);
    if (!comm->direct && (!host_address(call->send_tensor) || !host_address(call->receive_tensor)))
        return run_staged(comm, call);
    call->send = ctrt_tensor_data(call->send_tensor);
    call->receive = ctrt_tensor_data(call->receive_tensor);
    CTRT_TRY(comm->engine->run(comm->handle, call));
    if (call->receive_tensor != NULL)
        tensor_bump_version(call->receive_tensor);
    return CTRT_OK;
}

/* Runs the call of `work` in the calling thread, which has made the lane busy. */
static void run_work(struct comm_lane *lane, ctrt_work *work)
{
    ctrt_comm *comm = lane->comm;
    ctrt_status status = comm_check(comm);
    pthread_mutex_lock(&comm->lock);
    lane->number = work->number;
    flight_set(comm->record, work->number, FLIGHT_RUNNING);
    pthread_mutex_unlock(&comm->lock);
    comm_lane_begin(lane);
    work->call.state = lane;
    if (status == CTRT_OK && work->before != NULL)
        status = ctrt_stream_wait_event(lane->stream, work->before);
    if (status == CTRT_OK) {
        bool grad = ctrt_set_grad_enabled(false);
        status = run_call(comm, &work->call);
        ctrt_set_grad_enabled(grad);
        if (status != CTRT_OK)
            status = comm_fail(comm, status, ctrt_error_message());
    }
    if (status == CTRT_OK && work->event != NULL)
        status = ctrt_event_record(work->event, lane->stream);
    pthread_mutex_lock(&comm->lock);
    flight_set(comm->record, work->number, status == CTRT_OK ? FLIGHT_DONE : FLIGHT_FAILED);
    lane->number = 0;
    pthread_mutex_unlock(&comm->lock);

    ctrt_tensor_release(&work->call.send_tensor);
    ctrt_tensor_release(&work->call.receive_tensor);
    pthread_mutex_lock(&work->lock);
    work->status = status;
    if (status != CTRT_OK)
        work->error = host_strdup(ctrt_error_message());
    work->done = true;
    pthread_cond_broadcast(&work->changed);
    pthread_mutex_unlock(&work->lock);
}

/* ---- lanes ---- */

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
        lane->busy = false;
        pthread_cond_broadcast(&comm->changed);
    }
    pthread_mutex_unlock(&comm->lock);
    if (lane->stream != NULL)
        (void)ctrt_stream_pop();
    return NULL;
}

/* Starts the lane's thread if it has none. The caller holds the lock. */
static ctrt_status lane_start(struct comm_lane *lane)
{
    ctrt_comm *comm = lane->comm;
    if (lane->has_thread)
        return CTRT_OK;
    if (asynchronous(comm->device) && lane->stream == NULL)
        CTRT_TRY(ctrt_stream_new(&lane->stream, comm->device, 0));
    int error = comm_thread_start(&lane->thread, lane_thread, lane);
    if (error != 0)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "group %s: no thread for background collectives: %s", comm->name,
                         strerror(error));
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
        ctrt_stream_release(&lane->stream);
    }
}

static int lane_of(const ctrt_comm_call *call)
{
    if (call->peer < 0)
        return LANE_COLLECTIVES;
    return call->receive_tensor != NULL ? LANE_RECEIVES : LANE_SENDS;
}

static ctrt_status work_new(ctrt_work **out, const ctrt_comm_call *call, ctrt_device *device)
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

/* Whether a call without work can run in the calling thread. True stays true, because only this thread adds calls. */
static bool idle(struct comm_lane *lane)
{
    pthread_mutex_lock(&lane->comm->lock);
    const bool result = lane->first == NULL && !lane->busy;
    pthread_mutex_unlock(&lane->comm->lock);
    return result;
}

static ctrt_status create_events(ctrt_work *work)
{
    CTRT_TRY(ctrt_event_new(&work->before, work->device, false));
    CTRT_TRY(ctrt_event_new(&work->event, work->device, false));
    return ctrt_event_record(work->before, NULL);
}

ctrt_status comm_submit(ctrt_work **out, ctrt_comm *comm, const ctrt_comm_call *call)
{
    CANCEL_DISABLED;
    CTRT_AUTO(work) work = NULL;
    struct comm_lane *lane = &comm->lanes[lane_of(call)];
    CTRT_TRY(work_new(&work, call, comm->device));
    const bool here = out == NULL && idle(lane);
    if (!here && asynchronous(comm->device))
        CTRT_TRY(create_events(work));
    pthread_mutex_lock(&comm->lock);
    ctrt_status status = out != NULL ? lane_start(lane) : CTRT_OK;
    if (status != CTRT_OK) {
        pthread_mutex_unlock(&comm->lock);
        return status;
    }
    /* The number is the same on all ranks, so it counts only calls that are going to run. */
    ctrt_comm_signature *signature = &work->call.signature;
    signature->sequence = call->peer < 0                ? ++comm->sequence
                          : call->receive_tensor != NULL ? ++comm->received[call->peer]
                                                         : ++comm->sent[call->peer];
    work->number = flight_add(comm->record, signature, call->peer);
    if (here) {
        lane->busy = true;
    } else {
        ctrt_work *queued = work;
        atomic_fetch_add(&work->refs, 1);
        if (lane->first == NULL)
            lane->first = queued;
        else
            lane->last->next = queued;
        lane->last = queued;
        pthread_cond_broadcast(&comm->changed);
    }
    pthread_mutex_unlock(&comm->lock);

    if (here) {
        run_work(lane, work);
        pthread_mutex_lock(&comm->lock);
        lane->busy = false;
        pthread_cond_broadcast(&comm->changed);
        pthread_mutex_unlock(&comm->lock);
    }
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
    CANCEL_DISABLED;
    pthread_mutex_lock(&work->lock);
    while (!work->done)
        pthread_cond_wait(&work->changed, &work->lock);
    pthread_mutex_unlock(&work->lock);
    if (work->status != CTRT_OK)
        return ctrt_fail(work->status, "%s", work->error ? work->error : "");
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
    pthread_mutex_lock(&work->lock);
    *done = work->done;
    pthread_mutex_unlock(&work->lock);
    if (*done && work->status != CTRT_OK)
        return ctrt_fail(work->status, "%s", work->error ? work->error : "");
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
    ctrt_event_release(&gone->before);
    ctrt_event_release(&gone->event);
    pthread_mutex_destroy(&gone->lock);
    pthread_cond_destroy(&gone->changed);
    host_free(gone->error);
    host_free(gone);
}
