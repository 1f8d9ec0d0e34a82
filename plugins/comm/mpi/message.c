/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/message.c: send and recv. A first message, of MPI or, on one machine, in shared memory, has the
 * signature and the data. If the data is large, further messages of MPI have it. A small message does not wait for the
 * receiver, except in shared memory for that of the fourth message before. */
#include "engine.h"

bool mpi_message_large(const struct mpi_comm *comm, const ctrt_comm_call *call)
{
    return comm->message_block > 0 ? !mpi_window_fits(comm, call) : call->bytes > MPI_MESSAGE_INLINE;
}

ctrt_status mpi_message_send(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    struct mpi_batch batch = { .comm = comm, .call = call };
    struct mpi_block *block = comm->message[PATH_SENDS];
    const size_t bytes = mpi_message_large(comm, call) ? 0 : call->bytes;
    if (comm->message_block > 0) {
        CTRT_TRY(mpi_window_send(comm, call, bytes));
    } else {
        mpi_block_fill(block, call, call->send, bytes);
        CTRT_TRY(mpi_send(&batch, block, sizeof *block + bytes, call->peer, TAG_MESSAGE));
    }
    if (mpi_message_large(comm, call))
        CTRT_TRY(mpi_send(&batch, call->send, call->bytes, call->peer, TAG_MESSAGE_DATA));
    return mpi_finish(&batch);
}

ctrt_status mpi_message_receive(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    struct mpi_batch batch = { .comm = comm, .call = call, .arriving = true };
    const struct mpi_block *block = comm->message[PATH_RECEIVES];
    if (comm->message_block > 0) {
        CTRT_TRY(mpi_window_receive(&block, comm, call));
    } else {
        CTRT_TRY(mpi_receive(&batch, comm->message[PATH_RECEIVES], sizeof *block + MPI_MESSAGE_INLINE, call->peer,
                             TAG_MESSAGE));
        CTRT_TRY(mpi_finish(&batch));
    }
    if (memcmp(&block->signature, &call->signature, sizeof call->signature) != 0)
        return host_message_mismatch(comm->config, call, &block->signature, &call->signature);
    if (call->bytes > 0 && !mpi_message_large(comm, call))
        memcpy(call->receive, block + 1, call->bytes);
    if (comm->message_block > 0)
        mpi_window_taken(comm, call);
    batch.arriving = false;
    if (!mpi_message_large(comm, call))
        return CTRT_OK;
    CTRT_TRY(mpi_receive(&batch, call->receive, call->bytes, call->peer, TAG_MESSAGE_DATA));
    return mpi_finish(&batch);
}
