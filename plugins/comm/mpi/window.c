/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/window.c: openings and small messages through memory that the processes of one machine share.
 *
 * Each rank has a window that the others read. It contains two blocks for openings, of even and odd collectives, and
 * for each other rank MESSAGES blocks for messages to that rank, then, per sender, the number of messages that this
 * rank has read. A block is complete when `ready` is the number of its collective or message. No rank can be two
 * collectives ahead of another one, because every collective has an opening: so a block is written again when all have
 * read it. */
#include "engine.h"

enum { MESSAGES = 4 };                  /* messages from one rank to another one that have not been read */
enum { MESSAGE_BLOCK = 8192 + 64 };     /* largest bytes of such a block */
enum { TAKEN_BYTES = 64 };              /* distance of two counts of messages */

/* Waits until *word is at least `number`. */
static ctrt_status mpi_window_wait(struct mpi_comm *comm, const ctrt_comm_call *call, _Atomic uint64_t *word,
                                   uint64_t number)
{
    struct mpi_pause pause = { .spin = comm->spin };
    for (int i = 1; atomic_load_explicit(word, memory_order_acquire) < number; i++) {
        if (i > 100)
            host_relax();
        if (i % 200 == 0)
            CTRT_TRY(mpi_pause(&pause, comm->config->poll, call->state));
    }
    return CTRT_OK;
}

/* ---- openings ---- */

static struct mpi_block *opening_block(const struct mpi_comm *comm, int rank, uint64_t number)
{
    return (struct mpi_block *)(comm->windows[rank] + (number & 1) * MPI_WINDOW_BLOCK);
}

ctrt_status mpi_window_exchange(struct mpi_comm *comm, const ctrt_comm_call *call, const void *data, size_t bytes)
{
    const uint64_t number = call->signature.sequence;
    struct mpi_block *own = opening_block(comm, comm->rank, number);
    mpi_block_fill(own, call, data, bytes);
    atomic_store_explicit(&own->ready, number, memory_order_release);
    comm->blocks[comm->rank] = own;
    for (int i = 1; i < comm->world; i++) {
        const int rank = comm->rank + i < comm->world ? comm->rank + i : comm->rank + i - comm->world;
        struct mpi_block *block = opening_block(comm, rank, number);
        CTRT_TRY(mpi_window_wait(comm, call, &block->ready, number));
        comm->blocks[rank] = block;
    }
    return CTRT_OK;
}

/* ---- messages ---- */

void mpi_window_limits(struct mpi_comm *comm)
{
    const size_t each = (HOST_WINDOW - 2 * MPI_WINDOW_BLOCK) / (size_t)comm->world;
    const size_t share = each > TAKEN_BYTES ? (each - TAKEN_BYTES) / MESSAGES / 64 * 64 : 0;
    comm->message_block = share < 256 ? 0 : share < MESSAGE_BLOCK ? share : MESSAGE_BLOCK;
}

static struct mpi_block *message_block(const struct mpi_comm *comm, int from, int to, uint64_t number)
{
    return (struct mpi_block *)(comm->windows[from] + 2 * MPI_WINDOW_BLOCK
                                + ((size_t)to * MESSAGES + number % MESSAGES) * comm->message_block);
}

/* Number of messages that `to` has read from `from`. */
static _Atomic uint64_t *taken_count(const struct mpi_comm *comm, int from, int to)
{
    return (_Atomic uint64_t *)(comm->windows[to] + 2 * MPI_WINDOW_BLOCK
                                + (size_t)comm->world * MESSAGES * comm->message_block + (size_t)from * TAKEN_BYTES);
}

bool mpi_window_fits(const struct mpi_comm *comm, const ctrt_comm_call *call)
{
    return comm->message_block > 0 && call->bytes <= comm->message_block - sizeof(struct mpi_block);
}

ctrt_status mpi_window_send(struct mpi_comm *comm, const ctrt_comm_call *call, size_t bytes)
{
    const uint64_t number = call->signature.sequence;
    uint64_t *const seen = &comm->taken[call->peer];
    if (number > MESSAGES && *seen < number - MESSAGES) {
        _Atomic uint64_t *taken = taken_count(comm, comm->rank, call->peer);
        CTRT_TRY(mpi_window_wait(comm, call, taken, number - MESSAGES));
        *seen = atomic_load_explicit(taken, memory_order_acquire);      /* may be later than what the wait saw */
    }
    struct mpi_block *block = message_block(comm, comm->rank, call->peer, number);
    mpi_block_fill(block, call, call->send, bytes);
    atomic_store_explicit(&block->ready, number, memory_order_release);
    return CTRT_OK;
}

ctrt_status mpi_window_receive(const struct mpi_block **out, struct mpi_comm *comm, const ctrt_comm_call *call)
{
    struct mpi_block *block = message_block(comm, call->peer, comm->rank, call->signature.sequence);
    CTRT_TRY(mpi_window_wait(comm, call, &block->ready, call->signature.sequence));
    *out = block;
    return CTRT_OK;
}

void mpi_window_taken(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    atomic_store_explicit(taken_count(comm, call->peer, comm->rank), call->signature.sequence, memory_order_release);
}
