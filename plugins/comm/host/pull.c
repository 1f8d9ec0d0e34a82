/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/pull.c: large collectives between processes. Each rank reads the data that it needs from the
 * tensors of the other processes (process_vm_readv), as MPI libraries do for large messages.
 *
 * The kernel copies from tensor to tensor, without shared memory in between. The cache lines of shared memory would
 * pass from one processor's cache to the other's. If the processors share no cache, this takes several times as long as
 * reading the lines from memory.
 *
 * In an all_reduce, rank r reduces part r of the tensor, block by block. It copies the block of each other rank to its
 * scratch memory, which stays in its cache, and reduces the blocks in the order of the ranks. Then it copies the result
 * to the tensors of the other ranks (process_vm_writev), whose cache lines it still has. So each byte of each tensor is
 * read from memory once and written once, by one processor. The kernel copies 2 n (ranks-1)/ranks bytes per rank.
 *
 * A rank whose call fails must not return while another rank writes to its tensor, so host_dead waits until no rank
 * does (host_await_writers). */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "host.h"
#include "plugins/common/clock.h"

enum {
    SCRATCH = 2 << 20,                  /* bytes of scratch memory, which block_bytes() divides among the ranks */
    MAX_BLOCK = 1 << 20,
    MIN_BLOCK = 128 << 10,
    READ_BYTES = 8 << 20,               /* most bytes that are read between two polls */
    REDUCES_FROM = 64 << 10,            /* reductions of at most this many bytes are faster through the arena */
    BROADCASTS_FROM = 1 << 20,          /* the same for broadcasts */
    NOTICE_MS = 2000,                   /* the library notices within this time that a process has ended */
    WRITERS_MS = 500,                   /* limit of host_await_writers. A write of a block takes less than 1 ms unless
                                         * the process is stopped */
};

/* ---- access to other processes ---- */

/* `thread`: any thread of the process. */
static ssize_t read_process(pid_t thread, void *to, const void *from, size_t bytes)
{
    const struct iovec local = { to, bytes }, remote = { (void *)(uintptr_t)from, bytes };
    return process_vm_readv(thread, &local, 1, &remote, 1, 0);
}

static ssize_t write_process(pid_t thread, const void *from, void *to, size_t bytes)
{
    const struct iovec local = { (void *)(uintptr_t)from, bytes }, remote = { to, bytes };
    return process_vm_writev(thread, &local, 1, &remote, 1, 0);
}

/* Returns whether `thread` belongs to the process of the rank. Reads the rank's random token from the process and
 * compares it, because the number may denote another thread if the rank is in another PID namespace, or after the
 * thread has ended. The token is in the arena, and its address is that of the arena's mapping in the other process. If
 * the token cannot be read, errno says why; otherwise errno is 0. */
static bool thread_of_rank(pid_t thread, const struct host_rank *rank)
{
    uint64_t token[2] = { 0 };
    errno = 0;
    return read_process(thread, token, rank->probe, sizeof token) == sizeof token
           && memcmp(token, rank->token, sizeof token) == 0;
}

ctrt_status host_pull_publish(struct host_rank *own)
{
    if (getrandom(own->token, sizeof own->token, 0) != sizeof own->token)
        return ctrt_fail(CTRT_ERR_IO, "cannot read random numbers: %s", strerror(errno));
    own->probe = own->token;
    return CTRT_OK;
}

bool host_pull_allowed(const struct host_rank *rank)
{
    return thread_of_rank((pid_t)rank->pid, rank)
           && write_process((pid_t)rank->pid, rank->token, (void *)(uintptr_t)rank->probe, sizeof rank->token)
                  == sizeof rank->token;
}

/* ---- choice ---- */

bool host_pull_wanted(const struct host_comm *comm, const ctrt_comm_call *call)
{
    switch ((ctrt_collective)call->signature.collective) {
    case CTRT_COLLECTIVE_REDUCE:        /* ranks other than the root have no memory for their part of the result */
        return false;
    case CTRT_COLLECTIVE_BROADCAST:
        return comm->pulls && call->bytes > BROADCASTS_FROM;
    case CTRT_COLLECTIVE_ALL_REDUCE:
    case CTRT_COLLECTIVE_REDUCE_SCATTER:
        return comm->pulls && call->bytes > REDUCES_FROM;
    default:
        return comm->pulls && call->bytes > HOST_SMALL;
    }
}

static size_t block_bytes(const struct host_comm *comm)
{
    const size_t each = SCRATCH / (size_t)comm->world / 4096 * 4096;
    return each > MAX_BLOCK ? MAX_BLOCK : each < MIN_BLOCK ? MIN_BLOCK : each;
}

/* The test reads the first and the last byte of the data and of the result with process_vm_readv, because the kernel
 * cannot copy the memory that some drivers map. Programs mostly use the same tensors again, so the tensors of the last
 * call are not tested again. */
bool host_pull_ready(struct host_comm *comm, const ctrt_comm_call *call, size_t give_bytes, size_t receive_bytes)
{
    const char *const data[2] = { host_given(comm->rank, call), call->receive };
    const size_t bytes[2] = { give_bytes, receive_bytes };
    bool tested = true;
    struct iovec remote[4];
    unsigned long count = 0;
    char read[4];
    if (call_reduces(call) && comm->scratch == NULL)
        comm->scratch = aligned_alloc(4096, (size_t)(comm->world - 1) * block_bytes(comm));
    if (call_reduces(call) && comm->scratch == NULL)
        return false;
    for (int i = 0; i < 2; i++) {
        tested &= comm->tested[i].address == data[i] && comm->tested[i].bytes == bytes[i];
        comm->tested[i].address = data[i];
        comm->tested[i].bytes = bytes[i];
        if (data[i] == NULL)
            continue;
        remote[count++] = (struct iovec){ (char *)(uintptr_t)data[i], 1 };
        remote[count++] = (struct iovec){ (char *)(uintptr_t)data[i] + bytes[i] - 1, 1 };
    }
    const struct iovec local = { read, count };
    if (tested || count == 0 || process_vm_readv(getpid(), &local, 1, remote, count, 0) == (ssize_t)count)
        return true;
    comm->tested[0].bytes = SIZE_MAX;
    return false;
}

/* ---- reading ---- */

static ctrt_status poll_group(struct host_comm *comm, const ctrt_comm_call *call)
{
    const ctrt_status status = comm->config->poll(call->state);
    return status == CTRT_OK ? CTRT_OK : host_dead(comm, status);
}

/* Returns the error of a failed copy. Calls poll before, for up to NOTICE_MS, because the library notices the end of a
 * process within this time, and its message says more about the rank. */
static ctrt_status access_failed(struct host_comm *comm, const ctrt_comm_call *call, const char *verb, int rank,
                                 int error)
{
    ctrt_status status = CTRT_OK;
    for (int ms = 0; status == CTRT_OK && ms < NOTICE_MS; ms += 10) {
        status = comm->config->poll(call->state);
        if (status == CTRT_OK)
            usleep(10000);
    }
    if (status == CTRT_OK)
        status = ctrt_fail(CTRT_ERR_COMM, "cannot %s the tensor of rank %d, process %lld: %s", verb, rank,
                           (long long)comm->header->ranks[rank].pid, error == 0 ? "no data" : strerror(error));
    return host_dead(comm, status);
}

/* Copies bytes from another rank. `from` is an address in the process of that rank. */
static ctrt_status pull(struct host_comm *comm, const ctrt_comm_call *call, int rank, void *to, const void *from,
                        size_t bytes)
{
    const pid_t thread = host_entry(comm, rank)->thread;
    for (size_t at = 0; at < bytes;) {
        const size_t left = bytes - at, n = left < READ_BYTES ? left : READ_BYTES;
        const ssize_t got = read_process(thread, (char *)to + at, (const char *)from + at, n);
        if (got <= 0)
            return access_failed(comm, call, "read", rank, got == 0 ? 0 : errno);
        at += (size_t)got;
        if (at < bytes)
            CTRT_TRY(poll_group(comm, call));
    }
    return CTRT_OK;
}

static const char *given_by(const struct host_comm *comm, int rank)
{
    return host_entry(comm, rank)->give.address;
}

/* Copies one part from each rank, at `offset` in its data, to the rank's part of `receive`. */
static ctrt_status pull_all(struct host_comm *comm, const ctrt_comm_call *call, size_t offset)
{
    for (int k = 0; k < comm->world; k++) {
        const int rank = (comm->rank + k) % comm->world;
        char *to = (char *)call->receive + (size_t)rank * call->bytes;
        if (rank == comm->rank)
            memcpy(to, (const char *)call->send + offset, call->bytes);
        else
            CTRT_TRY(pull(comm, call, rank, to, given_by(comm, rank) + offset, call->bytes));
    }
    return CTRT_OK;
}

/* ---- reductions ---- */

/* Reduces `bytes` bytes, at most one block, at `offset` in the data of all ranks, and writes the result to `to`. */
static ctrt_status reduce_block(struct host_comm *comm, const ctrt_comm_call *call, size_t offset, size_t bytes,
                                void *to)
{
    const void *in[comm->world];
    char *slot = comm->scratch;
    for (int k = 1; k < comm->world; k++, slot += block_bytes(comm)) {
        const int rank = (comm->rank + k) % comm->world;
        CTRT_TRY(pull(comm, call, rank, slot, given_by(comm, rank) + offset, bytes));
        in[rank] = slot;
    }
    in[comm->rank] = (const char *)call->send + offset;
    host_reduction_of(&call->signature)(to, in, comm->world,
                                        bytes / ctrt_dtype_size((ctrt_dtype)call->signature.dtype));
    return poll_group(comm, call);
}

static ctrt_status reduce_scatter(struct host_comm *comm, const ctrt_comm_call *call)
{
    const size_t block = block_bytes(comm), mine = (size_t)comm->rank * call->bytes;
    for (size_t at = 0; at < call->bytes; at += block) {
        const size_t left = call->bytes - at;
        CTRT_TRY(reduce_block(comm, call, mine + at, left < block ? left : block, (char *)call->receive + at));
    }
    return CTRT_OK;
}

/* ---- all_reduce ---- */

/* Copies bytes to another rank's result. `to` is an address in the process of that rank. The other rank keeps the
 * tensor until this collective ends, or, after a failure, until it has marked the group as dead and then has seen that
 * `writing` of this rank is false. */
static ctrt_status push(struct host_comm *comm, const ctrt_comm_call *call, int rank, const void *from, void *to,
                        size_t bytes)
{
    struct host_rank *const own = &comm->header->ranks[comm->rank], *const other = &comm->header->ranks[rank];
    const pid_t thread = host_entry(comm, rank)->thread;
    ssize_t written;
    for (size_t at = 0; at < bytes; at += (size_t)written) {
        int error = ESRCH;
        written = -1;
        atomic_store(&own->writer, host_entry(comm, comm->rank)->thread);
        const bool alive = !atomic_load(&comm->header->dead);
        if (alive && thread_of_rank(thread, other)) {
            written = write_process(thread, (const char *)from + at, (char *)to + at, bytes - at);
            error = errno;
        }
        atomic_store_explicit(&own->writer, 0, memory_order_release);
        if (!alive)
            return host_dead(comm, ctrt_fail(CTRT_ERR_COMM, "another rank has failed"));
        if (written <= 0)
            return access_failed(comm, call, "write", rank, written == 0 ? 0 : error);
    }
    return CTRT_OK;
}

/* A thread that has ended does not write. One that this process may not access any more may still do so. */
static bool writes(const struct host_rank *rank)
{
    const pid_t thread = atomic_load(&rank->writer);
    return thread != 0 && (thread_of_rank(thread, rank) || (errno != 0 && errno != ESRCH));
}

bool host_await_writers(const struct host_comm *comm)
{
    const struct timespec pause = { .tv_nsec = 50000 };
    const int64_t end = clock_now(CLOCK_MONOTONIC) + WRITERS_MS * INT64_C(1000000);
    for (int rank = 0; rank < comm->world; rank++) {
        const struct host_rank *other = &comm->header->ranks[rank];
        while (rank != comm->rank && writes(other)) {
            if (clock_now(CLOCK_MONOTONIC) > end)
                return false;
            nanosleep(&pause, NULL);
        }
    }
    return true;
}

static ctrt_status all_reduce(struct host_comm *comm, const ctrt_comm_call *call)
{
    const struct host_range share = host_share(comm, comm->rank, call->bytes);
    const size_t block = block_bytes(comm);
    for (size_t at = share.begin; at < share.end; at += block) {
        const size_t bytes = share.end - at < block ? share.end - at : block;
        char *own = (char *)call->receive + at;
        CTRT_TRY(reduce_block(comm, call, at, bytes, own));
        for (int k = 1; k < comm->world; k++) {
            const int rank = (comm->rank + k) % comm->world;
            char *result = (char *)(uintptr_t)host_entry(comm, rank)->receive.address;
            CTRT_TRY(push(comm, call, rank, own, result + at, bytes));
        }
    }
    return CTRT_OK;
}

/* ---- any collective ---- */

static ctrt_status host_pull_run(struct host_comm *comm, const ctrt_comm_call *call)
{
    const int root = call->signature.root;
    const size_t mine = (size_t)comm->rank * call->bytes;
    switch ((ctrt_collective)call->signature.collective) {
    case CTRT_COLLECTIVE_BROADCAST:
        return comm->rank == root ? CTRT_OK
                                  : pull(comm, call, root, call->receive, given_by(comm, root), call->bytes);
    case CTRT_COLLECTIVE_SCATTER:
        if (comm->rank != root)
            return pull(comm, call, root, call->receive, given_by(comm, root) + mine, call->bytes);
        memcpy(call->receive, (const char *)call->send + mine, call->bytes);
        return CTRT_OK;
    case CTRT_COLLECTIVE_GATHER:
        return comm->rank == root ? pull_all(comm, call, 0) : CTRT_OK;
    case CTRT_COLLECTIVE_ALL_GATHER:
        return pull_all(comm, call, 0);
    case CTRT_COLLECTIVE_ALL_TO_ALL:
        return pull_all(comm, call, mine);
    case CTRT_COLLECTIVE_REDUCE_SCATTER:
        return reduce_scatter(comm, call);
    default:
        return all_reduce(comm, call);
    }
}

ctrt_status host_run_pull(struct host_comm *comm, const ctrt_comm_call *call)
{
    CTRT_TRY(host_pull_run(comm, call));
    /* The program may change or free its tensor when the call returns. */
    return host_barrier(comm, call->state);
}
