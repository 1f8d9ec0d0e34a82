/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/collective.c: the collectives, after the opening.
 *
 * Small calls have all data already. On one machine, the engine host runs the large ones. On several
 * machines, large copies are messages, which MPI also transfers between the memories of devices, and broadcasts and the
 * copies of large groups are MPI's non-blocking collectives. Large reductions are in the order of ranks: each rank gets
 * its part of the tensor from all ranks, reduces it and sends the result to all ranks, which moves as many bytes as
 * MPI's best algorithms. Groups without comm->gathers use MPI's reductions, except for f16 and bf16, which MPI does not
 * have. */
#include <stdlib.h>

#include "engine.h"

/* ---- copies ---- */

/* Sends part `to` of `send`, whose parts are send_stride bytes apart, to each rank, and receives a part from each rank;
 * last, its own. */
static ctrt_status all_to_all(struct mpi_comm *comm, const ctrt_comm_call *call, size_t send_stride)
{
    struct mpi_batch batch = { .comm = comm, .call = call };
    for (int k = 1; k <= comm->world; k++) {
        const int to = (comm->rank + k) % comm->world, from = (comm->rank - k + comm->world) % comm->world;
        const struct mpi_side sent = { (char *)call->send + (size_t)to * send_stride, call->bytes, to };
        const struct mpi_side received = { (char *)call->receive + (size_t)from * call->bytes, call->bytes, from };
        CTRT_TRY(mpi_exchange(&batch, &sent, &received, TAG_DATA));
    }
    return mpi_finish(&batch);
}

/* Gather or scatter: the root exchanges parts with the other ranks and, last, with itself. */
static ctrt_status root_to_all(struct mpi_comm *comm, const ctrt_comm_call *call, bool gather)
{
    struct mpi_batch batch = { .comm = comm, .call = call };
    const int root = call->signature.root;
    if (comm->rank != root) {
        CTRT_TRY(gather ? mpi_send(&batch, call->send, call->bytes, root, TAG_DATA)
                        : mpi_receive(&batch, call->receive, call->bytes, root, TAG_DATA));
        return mpi_finish(&batch);
    }
    for (int k = 1; k <= comm->world; k++) {
        const int rank = (root + k) % comm->world;
        const size_t at = (size_t)rank * call->bytes;
        const struct mpi_side sent = { (char *)call->send + (gather ? 0 : at),
                                       gather && rank != root ? 0 : call->bytes, rank };
        const struct mpi_side received = { (char *)call->receive + (gather ? at : 0),
                                           gather || rank == root ? call->bytes : 0, rank };
        CTRT_TRY(mpi_exchange(&batch, &sent, &received, TAG_DATA));
    }
    return mpi_finish(&batch);
}

ctrt_status mpi_broadcast(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    for (size_t at = 0; at < call->bytes; at += comm->most) {
        const size_t bytes = call->bytes - at < comm->most ? call->bytes - at : comm->most;
        MPI_WAIT(comm, call, bcast, (char *)call->receive + at, (int)bytes, call->signature.root);
    }
    return CTRT_OK;
}

enum { CHAIN_PIECE = 256 << 10 };

/* Each rank passes pieces on to the next one, from the root. If the ranks of a machine are in a row, each machine gets
 * the data once. */
static ctrt_status broadcast_chain(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    struct mpi_batch sends = { .comm = comm, .call = call };
    struct mpi_batch receives[2] = { { .comm = comm, .call = call }, { .comm = comm, .call = call } };
    const int root = call->signature.root, to = (comm->rank + 1) % comm->world;
    const int from = (comm->rank + comm->world - 1) % comm->world;
    char *const data = call->receive;
    size_t have = 0, bytes = 0;                     /* received before; of the piece that is being received */
    for (int i = 0; have < call->bytes; i++) {
        const size_t at = have + bytes, left = call->bytes - at, next = left < CHAIN_PIECE ? left : CHAIN_PIECE;
        if (comm->rank != root)
            CTRT_TRY(mpi_receive(&receives[i & 1], data + at, next, from, TAG_DATA));
        CTRT_TRY(mpi_finish(&receives[(i + 1) & 1]));
        if (to != root)
            CTRT_TRY(mpi_send(&sends, data + have, bytes, to, TAG_DATA));
        have = at;
        bytes = next;
    }
    return mpi_finish(&sends);
}

bool mpi_by_messages(const struct mpi_comm *comm, const ctrt_comm_call *call)
{
    if (comm->machines == 1 || mpi_small(comm, call))
        return false;
    switch ((ctrt_collective)call->signature.collective) {
    case CTRT_COLLECTIVE_BROADCAST:     /* with fewer pieces than ranks, MPI's tree is faster than a chain */
        return comm->cuda && call->bytes >= (size_t)comm->world * CHAIN_PIECE;
    case CTRT_COLLECTIVE_ALL_GATHER:    /* MPI_Iallgather of Open MPI 4 takes up to three times as long */
    case CTRT_COLLECTIVE_GATHER:
    case CTRT_COLLECTIVE_SCATTER:
    case CTRT_COLLECTIVE_ALL_TO_ALL:
        return call->bytes > comm->most || (comm->gathers && call->bytes >= MPI_EAGER);
    default:
        return false;
    }
}

static ctrt_status run_copy(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    const bool messages = mpi_by_messages(comm, call);
    const int bytes = messages ? 0 : (int)call->bytes, root = call->signature.root;
    switch ((ctrt_collective)call->signature.collective) {
    case CTRT_COLLECTIVE_BROADCAST:
        return messages ? broadcast_chain(comm, call) : mpi_broadcast(comm, call);
    case CTRT_COLLECTIVE_ALL_GATHER:
        if (messages)
            return all_to_all(comm, call, 0);
        MPI_WAIT(comm, call, allgather, call->send, call->receive, bytes);
        return CTRT_OK;
    case CTRT_COLLECTIVE_ALL_TO_ALL:
        if (messages)
            return all_to_all(comm, call, call->bytes);
        MPI_WAIT(comm, call, alltoall, call->send, call->receive, bytes);
        return CTRT_OK;
    case CTRT_COLLECTIVE_GATHER:
        if (messages)
            return root_to_all(comm, call, true);
        MPI_WAIT(comm, call, gather, call->send, call->receive, bytes, root);
        return CTRT_OK;
    case CTRT_COLLECTIVE_SCATTER:
        if (messages)
            return root_to_all(comm, call, false);
        MPI_WAIT(comm, call, scatter, call->send, call->receive, bytes, root);
        return CTRT_OK;
    default:
        return CTRT_OK;
    }
}

/* ---- reductions in the order of ranks ---- */

enum { PIECE = 256 << 10 };             /* bytes of one rank's part that are exchanged at once */

/* A tensor is cut into parts, one per rank, and a part into pieces. */
struct split {
    size_t element;                     /* bytes */
    size_t count, part;                 /* elements of the tensor and of a part; the last parts may be shorter */
    size_t pieces, piece;               /* number; elements */
};

static size_t split_begin(const struct split *split, int rank, size_t piece)
{
    const size_t at = (size_t)rank * split->part + piece * split->piece;
    return at < split->count ? at : split->count;
}

static size_t split_length(const struct split *split, int rank, size_t piece)
{
    size_t end = (piece + 1) * split->piece < split->part ? (piece + 1) * split->piece : split->part;
    end += (size_t)rank * split->part;
    end = end < split->count ? end : split->count;
    const size_t begin = split_begin(split, rank, piece);
    return end > begin ? end - begin : 0;
}

ctrt_status mpi_reserve_scratch(struct mpi_comm *comm, size_t bytes)
{
    if (bytes <= comm->scratch_bytes)
        return CTRT_OK;
    free(comm->scratch);
    comm->scratch_bytes = 0;
    comm->scratch = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    if (comm->scratch == NULL)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "the engine mpi needs %zu bytes of host memory", bytes);
    comm->scratch_bytes = bytes;
    return CTRT_OK;
}

static char *slot(const struct mpi_comm *comm, size_t piece, int rank)
{
    return comm->scratch + ((piece & 1) * (size_t)comm->world + (size_t)rank) * PIECE;
}

/* Sends the other ranks their pieces, and receives this rank's pieces from them. */
static ctrt_status start_scatter(struct mpi_batch *batch, const struct split *split, size_t piece)
{
    struct mpi_comm *comm = batch->comm;
    const char *send = batch->call->send;
    for (int k = 1; k < comm->world; k++) {
        const int to = (comm->rank + k) % comm->world, from = (comm->rank - k + comm->world) % comm->world;
        const struct mpi_side sent = { (char *)send + split_begin(split, to, piece) * split->element,
                                       split_length(split, to, piece) * split->element, to };
        const struct mpi_side received = { slot(comm, piece, from),
                                           split_length(split, comm->rank, piece) * split->element, from };
        CTRT_TRY(mpi_exchange(batch, &sent, &received, TAG_DATA));
    }
    return CTRT_OK;
}

/* Where the result of this rank's piece is written. */
static char *result_of(const struct mpi_comm *comm, const ctrt_comm_call *call, const struct split *split, size_t piece)
{
    if (call->signature.collective == CTRT_COLLECTIVE_REDUCE_SCATTER)
        return (char *)call->receive + piece * split->piece * split->element;
    if (call->receive == NULL)
        return slot(comm, piece, comm->rank);
    return (char *)call->receive + split_begin(split, comm->rank, piece) * split->element;
}

static void reduce_piece(struct mpi_comm *comm, const ctrt_comm_call *call, const struct split *split, size_t piece)
{
    const size_t length = split_length(split, comm->rank, piece);
    for (int rank = 0; rank < comm->world; rank++)
        comm->inputs[rank] = rank != comm->rank
                                 ? slot(comm, piece, rank)
                                 : (const char *)call->send + split_begin(split, rank, piece) * split->element;
    if (length > 0)
        host_reduction_of(&call->signature)(result_of(comm, call, split, piece), comm->inputs, comm->world, length);
}

/* Sends the result of a piece to the ranks that need it, and receives their results. */
static ctrt_status start_results(struct mpi_batch *batch, const struct split *split, size_t piece)
{
    struct mpi_comm *comm = batch->comm;
    const ctrt_comm_call *call = batch->call;
    const int root = call->signature.root;
    if (call->signature.collective == CTRT_COLLECTIVE_REDUCE_SCATTER)
        return CTRT_OK;
    for (int k = 1; k < comm->world; k++) {
        const int to = (comm->rank + k) % comm->world, from = (comm->rank - k + comm->world) % comm->world;
        struct mpi_side sent = { .rank = to }, received = { .rank = from };
        if (root < 0 || root == to) {
            sent.data = result_of(comm, call, split, piece);
            sent.bytes = split_length(split, comm->rank, piece) * split->element;
        }
        if (root < 0 || root == comm->rank) {
            received.data = (char *)call->receive + split_begin(split, from, piece) * split->element;
            received.bytes = split_length(split, from, piece) * split->element;
        }
        CTRT_TRY(mpi_exchange(batch, &sent, &received, TAG_DATA));
    }
    return CTRT_OK;
}

/* While a piece is reduced, the next one and the results of the last one are transferred. All ranks start their
 * messages in the same order, so messages between two ranks match. */
static ctrt_status run_ordered(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    const size_t world = (size_t)comm->world;
    const bool equal_parts = call->signature.collective == CTRT_COLLECTIVE_REDUCE_SCATTER;
    struct split split = { .element = call->bytes / call->signature.count };
    split.count = call->signature.count * (equal_parts ? world : 1);
    split.part = equal_parts ? call->signature.count : ((split.count + world - 1) / world + 63) & ~(size_t)63;
    split.piece = PIECE / split.element;
    split.pieces = (split.part + split.piece - 1) / split.piece;
    CTRT_TRY(mpi_reserve_scratch(comm, 2 * world * PIECE));
    struct mpi_batch scatters[2] = { { .comm = comm, .call = call }, { .comm = comm, .call = call } };
    struct mpi_batch results = { .comm = comm, .call = call };
    CTRT_TRY(start_scatter(&scatters[0], &split, 0));
    for (size_t piece = 0; piece < split.pieces; piece++) {
        CTRT_TRY(mpi_finish(&scatters[piece & 1]));
        if (call->receive == NULL)
            CTRT_TRY(mpi_finish(&results));         /* they are sent from the slots that the next piece uses */
        if (piece + 1 < split.pieces)
            CTRT_TRY(start_scatter(&scatters[(piece + 1) & 1], &split, piece + 1));
        reduce_piece(comm, call, &split, piece);
        CTRT_TRY(mpi_finish(&results));
        CTRT_TRY(start_results(&results, &split, piece));
    }
    return mpi_finish(&results);
}

/* ---- MPI's reductions ---- */

void mpi_divide(void *data, uint32_t dtype, size_t count, int by)
{
    for (size_t i = 0; i < count && dtype == CTRT_F32; i++)
        ((float *)data)[i] /= (float)by;
    for (size_t i = 0; i < count && dtype == CTRT_F64; i++)
        ((double *)data)[i] /= by;
}

/* For bool, SUM is a logical or, which is the maximum, and PRODUCT a logical and, which is the minimum. */
static int native_op(const ctrt_comm_signature *signature)
{
    if (signature->dtype != CTRT_BOOL)
        return (int)signature->op;
    return signature->op == CTRT_COMM_SUM || signature->op == CTRT_COMM_MAX ? CTRT_COMM_MAX : CTRT_COMM_MIN;
}

static ctrt_status reduce_native(struct mpi_comm *comm, const ctrt_comm_call *call, const void *send, void *receive,
                                 size_t count, int root)
{
    const ctrt_comm_signature *signature = &call->signature;
    const size_t element = call->bytes / signature->count, most = comm->most / element;
    for (size_t at = 0; at < count; at += most) {
        const int n = (int)(count - at < most ? count - at : most);
        const char *from = (const char *)send + at * element;
        char *to = receive ? (char *)receive + at * element : NULL;
        if (root < 0)
            MPI_WAIT(comm, call, allreduce, from, to, n, (int)signature->dtype, native_op(signature));
        else
            MPI_WAIT(comm, call, reduce, from, to, n, (int)signature->dtype, native_op(signature), root);
    }
    return CTRT_OK;
}

static ctrt_status run_native(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    const ctrt_comm_signature *signature = &call->signature;
    const size_t count = signature->count;
    if (signature->collective != CTRT_COLLECTIVE_REDUCE_SCATTER)
        CTRT_TRY(reduce_native(comm, call, call->send, call->receive, count, signature->root));
    else if (call->bytes <= comm->most)
        MPI_WAIT(comm, call, reduce_scatter, call->send, call->receive, (int)count, (int)signature->dtype,
                 native_op(signature));
    else
        for (int rank = 0; rank < comm->world; rank++)
            CTRT_TRY(reduce_native(comm, call, (const char *)call->send + (size_t)rank * call->bytes,
                                   rank == comm->rank ? call->receive : NULL, count, rank));
    if (signature->op == CTRT_COMM_AVERAGE && call->receive != NULL)
        mpi_divide(call->receive, signature->dtype, count, comm->world);
    return CTRT_OK;
}

ctrt_status mpi_reduce(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    const bool half = call->signature.dtype == CTRT_F16 || call->signature.dtype == CTRT_BF16;
    return comm->gathers || half ? run_ordered(comm, call) : run_native(comm, call);
}

/* ---- any collective ---- */

ctrt_status mpi_collective(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    const bool small = mpi_small(comm, call);
    const void *data = host_given(comm->rank, call);
    const size_t bytes = data != NULL ? (size_t)host_parts(comm->world, call) * call->bytes : 0;
    if (comm->world == 1) {
        if (call->bytes > 0)
            host_take(0, 1, call, (const char *const[]){ data }, call->bytes, 0, call->bytes);
        return CTRT_OK;
    }
    const bool local = !small && comm->machines == 1;
    if (local)
        host_begin(comm->local, call);
    const ctrt_status status = mpi_open(comm, call, data, small ? bytes : 0);
    if (status != CTRT_OK)              /* ranks that arrive later must not write to this rank's tensors */
        return local ? host_dead(comm->local, status) : status;
    if (call->signature.collective == CTRT_COLLECTIVE_BARRIER || call->bytes == 0)
        return CTRT_OK;
    if (small) {
        for (int rank = 0; rank < comm->world; rank++)
            comm->inputs[rank] = comm->blocks[rank] + 1;
        host_take(comm->rank, comm->world, call, (const char *const *)comm->inputs, call->bytes, 0, call->bytes);
        return CTRT_OK;
    }
    if (local)
        return host_finish(comm->local, call);
    if (mpi_through_leaders(comm, call))
        return mpi_run_leaders(comm, call);
    if (!call_reduces(call))
        return run_copy(comm, call);
    return mpi_reduce(comm, call);
}
