/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/pieces.c: collectives through the arena.
 *
 * Data passes in pieces. In each step a rank copies piece k to its slot, reduces its share of piece k-1 from the slots
 * of all ranks into the result area, and copies piece k-2 from there; then a barrier. Without a result area, piece k-1
 * is taken from the slots in the second step. A slot is written again two steps later, after the barrier that follows
 * its last read. Pieces are counted over all collectives, so that the next collective begins with the other slot, which
 * no rank reads any more: no barrier is necessary after the last step. */
#include "host.h"

/* Bytes of each part in a piece: also the distance of the parts in a slot. */
static size_t part_bytes(const struct host_comm *comm, const ctrt_comm_call *call)
{
    const int parts = host_parts(comm, call);
    return parts == 1 ? HOST_PIECE : HOST_PIECE / (size_t)parts / 64 * 64;
}

static size_t bytes_of(const ctrt_comm_call *call, size_t stride, uint32_t index)
{
    const size_t offset = index * stride, left = call->bytes - offset;
    return left < stride ? left : stride;
}

static void put(const struct host_comm *comm, const ctrt_comm_call *call, size_t stride, uint32_t index)
{
    const char *given = host_given(comm, call);
    char *slot = host_slot(comm, comm->rank, comm->pieces + index);
    if (given == NULL)
        return;
    for (int part = 0; part < host_parts(comm, call); part++)
        memcpy(slot + (size_t)part * stride, given + (size_t)part * call->bytes + index * stride,
               bytes_of(call, stride, index));
}

static void slots(struct host_comm *comm, uint32_t index)
{
    for (int rank = 0; rank < comm->world; rank++)
        comm->from[rank] = host_slot(comm, rank, comm->pieces + index);
}

/* Reduces this rank's share of the piece. */
static void combine(struct host_comm *comm, const ctrt_comm_call *call, size_t stride, uint32_t index)
{
    const size_t element = ctrt_dtype_size((ctrt_dtype)call->signature.dtype);
    const size_t bytes = bytes_of(call, stride, index), lines = (bytes + 63) / 64, world = (size_t)comm->world;
    const size_t begin = lines * (size_t)comm->rank / world * 64, end = lines * ((size_t)comm->rank + 1) / world * 64;
    if (begin >= bytes || begin == end)
        return;
    for (int rank = 0; rank < comm->world; rank++)
        comm->from[rank] = host_slot(comm, rank, comm->pieces + index) + begin;
    host_reduction_of(&call->signature)(host_result(comm, comm->pieces + index) + begin,
                                        (const void *const *)comm->from, comm->world,
                                        ((end < bytes ? end : bytes) - begin) / element);
}

ctrt_status host_run_pieces(struct host_comm *comm, const ctrt_comm_call *call)
{
    const size_t stride = part_bytes(comm, call);
    const uint32_t count = (uint32_t)((call->bytes + stride - 1) / stride);
    /* For small data, and for two ranks, it is faster if each rank reduces everything: a barrier and a copy less. */
    const bool combines = host_reduces(call) && call->signature.collective != CTRT_COLLECTIVE_REDUCE_SCATTER
                          && call->bytes > HOST_SMALL && comm->world > 2;
    const uint32_t steps = count + (combines ? 1 : 0);
    for (uint32_t step = 1; step <= steps; step++) {
        if (step < count)
            put(comm, call, stride, step);
        if (!combines) {
            slots(comm, step - 1);
            host_take(comm, call, comm->from, stride, (step - 1) * stride, bytes_of(call, stride, step - 1));
        } else if (step <= count) {
            combine(comm, call, stride, step - 1);
        }
        if (combines && step >= 2 && call->receive != NULL)
            memcpy((char *)call->receive + (step - 2) * stride, host_result(comm, comm->pieces + step - 2),
                   bytes_of(call, stride, step - 2));
        if (step < steps)
            CTRT_TRY(host_barrier(comm, call->state));
    }
    comm->pieces += count;
    return CTRT_OK;
}

void host_put_first(struct host_comm *comm, const ctrt_comm_call *call)
{
    if (call->bytes > 0)
        put(comm, call, part_bytes(comm, call), 0);
}

void host_take(const struct host_comm *comm, const ctrt_comm_call *call, const char *const *from, size_t stride,
               size_t offset, size_t bytes)
{
    const size_t mine = (size_t)comm->rank * stride;
    char *to = call->receive;
    if (to == NULL)
        return;
    switch ((ctrt_collective)call->signature.collective) {
    case CTRT_COLLECTIVE_BROADCAST:
        if (comm->rank != call->signature.root)
            memcpy(to + offset, from[call->signature.root], bytes);
        break;
    case CTRT_COLLECTIVE_SCATTER:
        memcpy(to + offset, from[call->signature.root] + mine, bytes);
        break;
    case CTRT_COLLECTIVE_ALL_GATHER:
    case CTRT_COLLECTIVE_GATHER:
        for (int rank = 0; rank < comm->world; rank++)
            memcpy(to + (size_t)rank * call->bytes + offset, from[rank], bytes);
        break;
    case CTRT_COLLECTIVE_ALL_TO_ALL:
        for (int rank = 0; rank < comm->world; rank++)
            memcpy(to + (size_t)rank * call->bytes + offset, from[rank] + mine, bytes);
        break;
    case CTRT_COLLECTIVE_REDUCE_SCATTER:
        for (int rank = 0; rank < comm->world; rank++)
            comm->to[rank] = from[rank] + mine;
        host_reduction_of(&call->signature)(to + offset, (const void *const *)comm->to, comm->world,
                                            bytes / ctrt_dtype_size((ctrt_dtype)call->signature.dtype));
        break;
    case CTRT_COLLECTIVE_ALL_REDUCE:
    case CTRT_COLLECTIVE_REDUCE:
        host_reduction_of(&call->signature)(to + offset, (const void *const *)from, comm->world,
                                            bytes / ctrt_dtype_size((ctrt_dtype)call->signature.dtype));
        break;
    default:
        break;
    }
}
