/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/pieces.c: collectives through the arena.
 *
 * Data passes in pieces. In each step a rank copies piece k to its slot and takes its part of piece k-1 from the slots
 * of all ranks; then a barrier. The ranks share large reductions. In each step a rank copies piece k, without its
 * share, to its slot. It reduces its share of piece k-1 from its own data and the slots of the others into its result
 * and the result area. It copies the shares of the others of piece k-2 from there. So of n bytes a rank copies 2 n
 * (world-1)/world bytes and reduces n/world, and the pieces stay in the caches: memory is read and written once. A slot
 * is written again two steps later, after the barrier that follows its last read. Pieces are counted over all
 * collectives, so that the next collective begins with the other slot, which no rank reads any more: no barrier is
 * necessary after the last step. */
#include "host.h"

/* Bytes of each part in a piece: also the distance of the parts in a slot. */
static size_t part_bytes(const struct host_comm *comm, const ctrt_comm_call *call)
{
    const int parts = host_parts(comm->world, call);
    return parts == 1 ? HOST_PIECE : HOST_PIECE / (size_t)parts / 64 * 64;
}

static size_t bytes_of(const ctrt_comm_call *call, size_t stride, uint32_t index)
{
    const size_t offset = index * stride, left = call->bytes - offset;
    return left < stride ? left : stride;
}

/* For small data it is faster if each rank reduces everything: a barrier and a copy less. */
static bool shares(const struct host_comm *comm, const ctrt_comm_call *call)
{
    return host_shares(call) && call->bytes > (comm->world == 2 ? HOST_WHOLE : HOST_SMALL);
}

/* Copies `bytes` bytes except this rank's share. */
static void copy_others(const struct host_comm *comm, char *to, const char *from, size_t bytes)
{
    const struct host_range own = host_share(comm, comm->rank, bytes);
    memcpy(to, from, own.begin);
    memcpy(to + own.end, from + own.end, bytes - own.end);
}

static void host_pieces_put(const struct host_comm *comm, const ctrt_comm_call *call, size_t stride, uint32_t index)
{
    const char *given = host_given(comm->rank, call);
    const size_t bytes = bytes_of(call, stride, index);
    char *slot = host_slot(comm, comm->rank, comm->pieces + index);
    if (given == NULL)
        return;
    if (shares(comm, call)) {
        copy_others(comm, slot, given + index * stride, bytes);
        return;
    }
    for (int part = 0; part < host_parts(comm->world, call); part++)
        memcpy(slot + (size_t)part * stride, given + (size_t)part * call->bytes + index * stride, bytes);
}

static void slots(struct host_comm *comm, uint32_t index)
{
    for (int rank = 0; rank < comm->world; rank++)
        comm->from[rank] = host_slot(comm, rank, comm->pieces + index);
}

/* Reduces this rank's share of the piece. */
static void host_pieces_combine(struct host_comm *comm, const ctrt_comm_call *call, size_t stride, uint32_t index)
{
    const size_t offset = index * stride;
    const char *const to[] = {
        call->receive != NULL ? (char *)call->receive + offset : NULL, host_result(comm, comm->pieces + index),
    };
    slots(comm, index);
    comm->from[comm->rank] = (const char *)call->send + offset;
    host_reduce_range(comm, call, host_share(comm, comm->rank, bytes_of(call, stride, index)), to, 2);
}

ctrt_status host_run_pieces(struct host_comm *comm, const ctrt_comm_call *call, bool late)
{
    const size_t stride = part_bytes(comm, call);
    const uint32_t count = (uint32_t)((call->bytes + stride - 1) / stride);
    const bool combines = shares(comm, call);
    const uint32_t steps = count + (combines ? 1 : 0);
    if (late) {
        host_put_first(comm, call);
        CTRT_TRY(host_barrier(comm, call->state));
    }
    for (uint32_t step = 1; step <= steps; step++) {
        if (step < count)
            host_pieces_put(comm, call, stride, step);
        if (!combines) {
            slots(comm, step - 1);
            host_take(comm->rank, comm->world, call, comm->from, stride, (step - 1) * stride,
                      bytes_of(call, stride, step - 1));
        } else if (step <= count) {
            host_pieces_combine(comm, call, stride, step - 1);
        }
        if (combines && step >= 2 && call->receive != NULL)
            copy_others(comm, (char *)call->receive + (step - 2) * stride, host_result(comm, comm->pieces + step - 2),
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
        host_pieces_put(comm, call, part_bytes(comm, call), 0);
}

void host_take(int own, int world, const ctrt_comm_call *call, const char *const *from, size_t stride, size_t offset,
               size_t bytes)
{
    const size_t mine = (size_t)own * stride;
    const ctrt_collective collective = (ctrt_collective)call->signature.collective;
    const int root = call->signature.root;
    const void *in[world];
    char *to = call->receive;
    if (to == NULL)
        return;
    switch (collective) {
    case CTRT_COLLECTIVE_BROADCAST:
        if (own != root)
            memcpy(to + offset, from[root], bytes);
        break;
    case CTRT_COLLECTIVE_SCATTER:
        memcpy(to + offset, from[root] + mine, bytes);
        break;
    case CTRT_COLLECTIVE_ALL_GATHER:
    case CTRT_COLLECTIVE_GATHER:
        for (int rank = 0; rank < world; rank++)
            memcpy(to + (size_t)rank * call->bytes + offset, from[rank], bytes);
        break;
    case CTRT_COLLECTIVE_ALL_TO_ALL:
        for (int rank = 0; rank < world; rank++)
            memcpy(to + (size_t)rank * call->bytes + offset, from[rank] + mine, bytes);
        break;
    case CTRT_COLLECTIVE_REDUCE_SCATTER:
    case CTRT_COLLECTIVE_ALL_REDUCE:
    case CTRT_COLLECTIVE_REDUCE:
        for (int rank = 0; rank < world; rank++)
            in[rank] = from[rank] + (collective == CTRT_COLLECTIVE_REDUCE_SCATTER ? mine : 0);
        host_reduction_of(&call->signature)(to + offset, in, world,
                                            bytes / ctrt_dtype_size((ctrt_dtype)call->signature.dtype));
        break;
    default:
        break;
    }
}
