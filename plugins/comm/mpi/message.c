/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/message.c: send and recv. The first message has the signature and, if it is small, the data;
 * large data follows in further messages. The sender does not wait for an answer between them. */
#include <stdlib.h>

#include "engine.h"

ctrt_status mpi_message_send(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    struct mpi_batch batch = { .comm = comm, .call = call };
    struct mpi_block *block = comm->message[PATH_SENDS];
    const bool large = call->bytes > MPI_MESSAGE_INLINE;
    block->signature = call->signature;
    block->bytes = large ? 0 : call->bytes;
    if (block->bytes > 0)
        memcpy(block + 1, call->send, block->bytes);
    CTRT_TRY(mpi_send(&batch, block, sizeof *block + block->bytes, call->peer, TAG_MESSAGE));
    if (large)
        CTRT_TRY(mpi_send(&batch, call->send, call->bytes, call->peer, TAG_MESSAGE_DATA));
    return mpi_finish(&batch);
}

static ctrt_status report_mismatch(struct mpi_comm *comm, const ctrt_comm_call *call, const struct mpi_block *block)
{
    ctrt_comm_signature *signatures = calloc((size_t)comm->world, sizeof *signatures);
    if (signatures == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "the ranks called send and recv with different arguments");
    signatures[comm->rank] = call->signature;
    signatures[call->peer] = block->signature;
    ctrt_status status = comm->config->mismatch(call->state, signatures);
    free(signatures);
    return status;
}

ctrt_status mpi_message_receive(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    struct mpi_batch batch = { .comm = comm, .call = call, .arriving = true };
    struct mpi_block *block = comm->message[PATH_RECEIVES];
    CTRT_TRY(mpi_receive(&batch, block, sizeof *block + MPI_MESSAGE_INLINE, call->peer, TAG_MESSAGE));
    CTRT_TRY(mpi_finish(&batch));
    if (memcmp(&block->signature, &call->signature, sizeof call->signature) != 0)
        return report_mismatch(comm, call, block);
    batch.arriving = false;
    if (call->bytes > MPI_MESSAGE_INLINE) {
        CTRT_TRY(mpi_receive(&batch, call->receive, call->bytes, call->peer, TAG_MESSAGE_DATA));
        return mpi_finish(&batch);
    }
    if (call->bytes > 0)
        memcpy(call->receive, block + 1, call->bytes);
    return CTRT_OK;
}
