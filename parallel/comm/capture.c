/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/capture.c: records collectives in captures of streams (ctrt/capture.h), for engines that cannot be
 * captured themselves (without CTRT_COMM_CAPTURES).
 *
 * A collective is recorded as a call of a host function (capture_call). So each replay runs it as the program does: it
 * gets a number, an entry in the flight record, a comparison of signatures and a time limit. A collective with a work
 * handle runs in the thread of a lane, while the replay enqueues the work that was recorded after it. ctrt_work_wait is
 * recorded as a second call.
 *
 * The graph owns references to the communicator and the tensors. The memory of the tensors is not reused within the
 * captured step, because the collective of a replay may still use it while later work runs. */
#include "memory/hazard.h"
#include "parallel/comm/comm.h"
#include "tensor/tensor.h"

struct captured_call {
    struct comm_captured base;
    atomic_int refs;                        /* owned by the work handle and by the calls in the graph */
    struct capture *capture;                /* only compared, because the capture may have ended */
    const char *who;                        /* the public function, for messages */
    ctrt_comm *comm;                        /* owned */
    ctrt_comm_call call;                    /* its tensors are owned, and not part of autograd graphs */
    bool waits;                             /* called without a work handle, so the call waits */
    ctrt_work *running;                     /* the collective of the current replay; owned; NULL: none */
};

static void captured_drop(void *state)
{
    struct captured_call *captured = state;
    if (captured == NULL || atomic_fetch_sub(&captured->refs, 1) != 1)
        return;
    ctrt_tensor_release(&captured->call.send_tensor);
    ctrt_tensor_release(&captured->call.receive_tensor);
    ctrt_comm_release(&captured->comm);
    host_free(captured);
}

/* ---- replays ---- */

static ctrt_status collective_run(void *state)
{
    struct captured_call *captured = state;
    CTRT_TRY(ctrt_context(comm_check(captured->comm), "%s", captured->who));
    return ctrt_context(comm_submit(captured->waits ? NULL : &captured->running, captured->comm, &captured->call), "%s",
                        captured->who);
}

/* Waits also for a collective without a recorded ctrt_work_wait, so that it ends before the next replay begins. */
static ctrt_status collective_finish(void *state)
{
    struct captured_call *captured = state;
    if (captured->running == NULL)
        return CTRT_OK;
    const ctrt_status status = ctrt_work_wait(captured->running);
    ctrt_work_release(&captured->running);
    return status;
}

static ctrt_status captured_wait_run(void *state)
{
    const struct captured_call *captured = state;
    return ctrt_work_wait(captured->running);
}

static const struct graph_call collective_call = {
    .run = collective_run, .finish = collective_finish, .release = captured_drop,
};
static const struct graph_call wait_call = { .run = captured_wait_run, .release = captured_drop };

/* ---- recording ---- */

/* Makes each replay wait for other work on the tensor, and later work wait for the replay. Returns a new handle of the
 * tensor. */
static ctrt_status tensor_use(ctrt_tensor **out, ctrt_tensor *tensor, bool writes)
{
    if (tensor == NULL)
        return CTRT_OK;
    CTRT_TRY(hazard_before(stream_here(tensor->device), &tensor->view, writes, "a collective", NULL));
    return ctrt_detach(out, tensor);
}

/* ctrt_work_wait. */
static ctrt_status captured_wait(const ctrt_work *work)
{
    struct captured_call *captured = (struct captured_call *)work->captured;
    struct capture *capture = capture_here(work->device);
    if (capture == NULL || capture != captured->capture)
        return ctrt_fail(CTRT_ERR_STATE, "work_wait: the collective was recorded in a capture, so it has no work of "
                         "its own to wait for; wait for it within the capture, on a captured stream");
    atomic_fetch_add(&captured->refs, 1);
    return ctrt_context(capture_call(capture, &wait_call, captured), "work_wait");
}

static ctrt_status captured_new(struct captured_call **out, ctrt_comm *comm, const char *who,
                                const ctrt_comm_call *call, struct capture *capture)
{
    struct captured_call *captured = host_calloc(sizeof *captured);
    ALLOC_CHECK(captured, sizeof *captured, "a collective in a capture");
    captured->base = (struct comm_captured){ .wait = captured_wait, .release = captured_drop };
    atomic_init(&captured->refs, 1);
    captured->capture = capture;
    captured->who = who;
    captured->comm = ctrt_comm_retain(comm);
    captured->call = *call;
    captured->call.send_tensor = captured->call.receive_tensor = NULL;
    ctrt_status status = tensor_use(&captured->call.send_tensor, call->send_tensor, false);
    if (status == CTRT_OK && call->receive_tensor == call->send_tensor) {
        captured->call.receive_tensor = ctrt_tensor_retain(captured->call.send_tensor);
        if (call->receive_tensor != NULL)
            status = hazard_before(stream_here(comm->device), &call->receive_tensor->view, true, "a collective", NULL);
    } else if (status == CTRT_OK) {
        status = tensor_use(&captured->call.receive_tensor, call->receive_tensor, true);
    }
    if (status == CTRT_OK)
        *out = captured;
    else
        captured_drop(captured);
    return status;
}

ctrt_status comm_capture(ctrt_work **out, ctrt_comm *comm, const char *who, const ctrt_comm_call *call,
                         struct capture *capture)
{
    struct captured_call *captured = NULL;
    ctrt_work *work = NULL;
    CTRT_TRY(captured_new(&captured, comm, who, call, capture));
    captured->waits = out == NULL;
    ctrt_status status = out != NULL ? comm_work_new(&work, &captured->call, comm->device) : CTRT_OK;
    if (status == CTRT_OK && work != NULL) {
        atomic_fetch_add(&captured->refs, 1);
        work->captured = &captured->base;
    }
    if (status == CTRT_OK)
        status = capture_call(capture, &collective_call, captured);
    else
        captured_drop(captured);
    if (status != CTRT_OK) {
        ctrt_work_release(&work);
        return status;
    }
    if (call->receive_tensor != NULL)
        tensor_bump_version(call->receive_tensor);
    if (out != NULL) {
        ctrt_work_release(out);
        *out = work;
    }
    return CTRT_OK;
}
