/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/pull.c: large collectives of one machine: each rank reads what it needs from the tensors of the
 * other processes (process_vm_readv), as MPI libraries do for large messages.
 *
 * The kernel copies between the tensors, so data is not written to memory in between, whose lines would then pass from
 * one processor's cache to the other's. In an all_reduce, each rank reads its part of the tensors of the others in
 * blocks that stay in its cache, reduces it in the order of ranks, and reads the other parts of the result. So per rank
 * it copies 2 (ranks-1)/ranks n bytes of n and reduces n/ranks. */
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include "engine.h"

enum {
    BLOCK = 1 << 20,                    /* bytes that are reduced at once */
    AT_ONCE = 8 << 20,                  /* bytes between two polls */
    SHARE = 1 << 20,                    /* up to here, the engine host is faster in reductions and broadcast */
};

bool mpi_pulls(const struct mpi_comm *comm, const ctrt_comm_call *call)
{
    switch ((ctrt_collective)call->signature.collective) {
    case CTRT_COLLECTIVE_REDUCE:        /* ranks other than the root have no memory for their part of the result */
        return false;
    case CTRT_COLLECTIVE_BROADCAST:
    case CTRT_COLLECTIVE_ALL_REDUCE:
    case CTRT_COLLECTIVE_REDUCE_SCATTER:
        return comm->pulls && call->bytes > SHARE;
    default:
        return comm->pulls;
    }
}

void mpi_pull_publish(struct mpi_place *own)
{
    static _Atomic int64_t pid;
    atomic_store(&pid, getpid());
    own->pid = getpid();
    own->probe = (uint64_t)(uintptr_t)&pid;
}

static ssize_t read_process(int64_t pid, void *to, uint64_t from, size_t bytes)
{
    const struct iovec local = { to, bytes }, remote = { (void *)(uintptr_t)from, bytes };
    return process_vm_readv((pid_t)pid, &local, 1, &remote, 1, 0);
}

bool mpi_pull_allowed(const struct mpi_place *place)
{
    int64_t pid = 0;
    return read_process(place->pid, &pid, place->probe, sizeof pid) == sizeof pid && pid == place->pid;
}

/* Copies bytes [offset, offset + bytes) of the data that a rank contributes. */
static ctrt_status pull(const struct mpi_comm *comm, const ctrt_comm_call *call, int rank, size_t offset, void *to,
                        size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const size_t left = bytes - at, n = left < AT_ONCE ? left : AT_ONCE;
        const ssize_t got = read_process(comm->pids[rank], (char *)to + at, comm->addresses[rank] + offset + at, n);
        if (got <= 0)
            return ctrt_fail(CTRT_ERR_COMM, "cannot read the tensor of rank %d, process %lld: %s", rank,
                             (long long)comm->pids[rank], got == 0 ? "no data" : strerror(errno));
        at += (size_t)got;
        if (at < bytes)
            CTRT_TRY(comm->config->poll(call->state));
    }
    return CTRT_OK;
}

/* Copies the bytes of one part, at `offset` of the data of each rank, to the parts of `receive`. */
static ctrt_status pull_all(const struct mpi_comm *comm, const ctrt_comm_call *call, size_t offset)
{
    for (int k = 0; k < comm->world; k++) {
        const int rank = (comm->rank + k) % comm->world;
        char *to = (char *)call->receive + (size_t)rank * call->bytes;
        if (rank == comm->rank)
            memcpy(to, (const char *)call->send + offset, call->bytes);
        else
            CTRT_TRY(pull(comm, call, rank, offset, to, call->bytes));
    }
    return CTRT_OK;
}

/* Reduces bytes [begin, end) of the data of all ranks. own: that of this rank. */
static ctrt_status reduce(struct mpi_comm *comm, const ctrt_comm_call *call, const char *own, size_t begin, size_t end,
                          char *to)
{
    const size_t element = call->bytes / call->signature.count;
    CTRT_TRY(mpi_reserve_scratch(comm, (size_t)comm->world * BLOCK));
    for (size_t at = begin; at < end; at += BLOCK) {
        const size_t bytes = end - at < BLOCK ? end - at : BLOCK;
        for (int k = 0; k < comm->world; k++) {
            const int rank = (comm->rank + k) % comm->world;
            char *slot = comm->scratch + (size_t)rank * BLOCK;
            comm->inputs[rank] = k > 0 ? slot : own + at;
            if (k > 0)
                CTRT_TRY(pull(comm, call, rank, at, slot, bytes));
        }
        host_reduction_of(&call->signature)(to + (at - begin), comm->inputs, comm->world, bytes / element);
        CTRT_TRY(comm->config->poll(call->state));
    }
    return CTRT_OK;
}

static ctrt_status all_reduce(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    const size_t world = (size_t)comm->world, part = ((call->bytes + world - 1) / world + 63) & ~(size_t)63;
    char *const data = call->receive;
    for (size_t k = 0; k < world; k++) {
        const size_t rank = ((size_t)comm->rank + k) % world;
        const size_t begin = rank * part < call->bytes ? rank * part : call->bytes;
        const size_t end = begin + part < call->bytes ? begin + part : call->bytes;
        if (k > 0) {
            CTRT_TRY(pull(comm, call, (int)rank, begin, data + begin, end - begin));
        } else {
            CTRT_TRY(reduce(comm, call, data, begin, end, data + begin));
            CTRT_TRY(mpi_window_barrier(comm, call));
        }
    }
    return CTRT_OK;
}

const void *mpi_pull_data(const ctrt_comm_call *call, const void *given)
{
    if (call->signature.collective != CTRT_COLLECTIVE_ALL_REDUCE)
        return given;
    if (call->send != call->receive)
        memcpy(call->receive, call->send, call->bytes);
    return call->receive;
}

static ctrt_status run(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    const int root = call->signature.root;
    const size_t bytes = call->bytes, mine = (size_t)comm->rank * bytes;
    switch ((ctrt_collective)call->signature.collective) {
    case CTRT_COLLECTIVE_BROADCAST:
        return comm->rank == root ? CTRT_OK : pull(comm, call, root, 0, call->receive, bytes);
    case CTRT_COLLECTIVE_SCATTER:
        if (comm->rank != root)
            return pull(comm, call, root, mine, call->receive, bytes);
        memcpy(call->receive, (const char *)call->send + mine, bytes);
        return CTRT_OK;
    case CTRT_COLLECTIVE_GATHER:
        return comm->rank == root ? pull_all(comm, call, 0) : CTRT_OK;
    case CTRT_COLLECTIVE_ALL_GATHER:
        return pull_all(comm, call, 0);
    case CTRT_COLLECTIVE_ALL_TO_ALL:
        return pull_all(comm, call, mine);
    case CTRT_COLLECTIVE_REDUCE_SCATTER:
        return reduce(comm, call, call->send, mine, mine + bytes, call->receive);
    default:
        return all_reduce(comm, call);
    }
}

ctrt_status mpi_run_pull(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    for (int rank = 0; rank < comm->world; rank++)
        memcpy(&comm->addresses[rank], comm->blocks[rank] + 1, sizeof comm->addresses[rank]);
    CTRT_TRY(run(comm, call));
    /* The program may change or free its tensor when the call returns. */
    return mpi_window_barrier(comm, call);
}
