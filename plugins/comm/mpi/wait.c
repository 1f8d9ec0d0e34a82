/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/wait.c: starting requests and waiting for them. */
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"
#include "plugins/common/clock.h"

ctrt_status mpi_failed(const char *function, int error)
{
    char text[512];
    mpi->error_string(error, text);
    return ctrt_fail(CTRT_ERR_COMM, "%s of %s failed: %s", function, mpi->name, text);
}

ctrt_status mpi_incomplete(struct mpi_comm *comm, ctrt_status status)
{
    atomic_store(&comm->incomplete, true);
    atomic_store(&mpi_exit.gave_up, true);
    return status;
}

/* ---- waiting ---- */

enum { LOOK = 5000000, SLEEP = 2000000 };   /* nanoseconds */
static const int64_t SLEEP_DATA = 1000000000;

ctrt_status mpi_pause(struct mpi_pause *pause, ctrt_status (*poll)(void *state), void *state)
{
    const int64_t now = clock_now(CLOCK_MONOTONIC);
    if (pause->begin == 0) {
        pause->begin = now;
        pause->next = now + LOOK;
    }
    if (now >= pause->next) {
        pause->next = now + LOOK;
        if (poll != NULL)
            CTRT_TRY(poll(state));
    }
    const int64_t waited = now - pause->begin;
    if (waited < pause->spin)
        return CTRT_OK;
    if (waited < (pause->data ? SLEEP_DATA : SLEEP))
        sched_yield();
    else
        usleep(waited < 50 * SLEEP ? 50 : waited < 500 * SLEEP ? 200 : 1000);
    return CTRT_OK;
}

double mpi_paused(const struct mpi_pause *pause)
{
    return pause->begin > 0 ? 1e-9 * (double)(clock_now(CLOCK_MONOTONIC) - pause->begin) : 0;
}

static ctrt_status mpi_wait_word(struct mpi_comm *comm, const ctrt_comm_call *call, mpi_handle *requests, int count,
                                 bool data)
{
    struct mpi_pause pause = { .spin = comm->spin, .data = data };
    for (int at = 0, tests = 1; at < count; tests++) {
        int done = 0;
        const int error = mpi->test(&requests[at], &done);
        if (error != 0)
            return mpi_incomplete(comm, mpi_failed("MPI_Test", error));
        if (done) {
            at++;
        } else if (tests % 16 == 0) {
            const ctrt_status status = mpi_pause(&pause, comm->config->poll, call->state);
            if (status != CTRT_OK)
                return mpi_incomplete(comm, status);
        }
    }
    return CTRT_OK;
}

ctrt_status mpi_wait(struct mpi_comm *comm, const ctrt_comm_call *call, mpi_handle request)
{
    return mpi_wait_word(comm, call, &request, 1, true);
}

/* ---- batches ---- */

ctrt_status mpi_finish(struct mpi_batch *batch)
{
    const int count = batch->count;
    batch->count = 0;
    return mpi_wait_word(batch->comm, batch->call, batch->requests, count, !batch->arriving);
}

/* Makes room for two requests. */
static ctrt_status reserve(struct mpi_batch *batch)
{
    return batch->count + 2 <= MPI_REQUESTS ? CTRT_OK : mpi_finish(batch);
}

/* The receiver of a block does not know its size, so a block is one message. */
static size_t largest_message(const struct mpi_batch *batch, size_t bytes, int tag)
{
    return tag == TAG_OPENING || tag == TAG_MESSAGE ? bytes : batch->comm->most;
}

/* Starts to send or to receive the piece at byte `at` of a side, if there is one. */
static ctrt_status piece_start(struct mpi_batch *batch, const struct mpi_side *side, size_t at, int tag, bool sends)
{
    const size_t most = largest_message(batch, side->bytes, tag);
    const mpi_handle comm = batch->comm->handle;
    mpi_handle *const request = &batch->requests[batch->count];
    char *const data = (char *)side->data + at;
    if (at >= side->bytes)
        return CTRT_OK;
    const int bytes = (int)(side->bytes - at < most ? side->bytes - at : most);
    const int error = sends ? mpi->isend(data, bytes, side->rank, tag, comm, request)
                            : mpi->irecv(data, bytes, side->rank, tag, comm, request);
    if (error != 0)
        return mpi_incomplete(batch->comm, mpi_failed(sends ? "MPI_Isend" : "MPI_Irecv", error));
    batch->count++;
    return CTRT_OK;
}

static ctrt_status pieces_start(struct mpi_batch *batch, const struct mpi_side *side, int tag, bool sends)
{
    for (size_t at = 0; at < side->bytes; at += largest_message(batch, side->bytes, tag)) {
        CTRT_TRY(reserve(batch));
        CTRT_TRY(piece_start(batch, side, at, tag, sends));
    }
    return CTRT_OK;
}

ctrt_status mpi_send(struct mpi_batch *batch, const void *data, size_t bytes, int to, int tag)
{
    return pieces_start(batch, &(struct mpi_side){ (void *)(uintptr_t)data, bytes, to }, tag, true);
}

ctrt_status mpi_receive(struct mpi_batch *batch, void *data, size_t bytes, int from, int tag)
{
    return pieces_start(batch, &(struct mpi_side){ data, bytes, from }, tag, false);
}

ctrt_status mpi_exchange(struct mpi_batch *batch, const struct mpi_side *send, const struct mpi_side *receive, int tag)
{
    for (size_t at = 0; at < send->bytes || at < receive->bytes; at += batch->comm->most) {
        CTRT_TRY(reserve(batch));
        CTRT_TRY(piece_start(batch, receive, at, tag, false));
        CTRT_TRY(piece_start(batch, send, at, tag, true));
    }
    return CTRT_OK;
}
