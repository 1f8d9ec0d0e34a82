/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/opening.c: the first step of a collective, in which all ranks get the signatures of all ranks.
 *
 * On one machine: through shared memory, see window.c.
 * comm->gathers: an all-gather of blocks by Bruck's algorithm, in ceil(log2(world)) rounds. A rank that has the blocks
 * of d ranks, from its own upward, sends them to the rank d below it, and receives d more from above. Larger groups: an
 * MPI_Iallreduce of a hash of the signature; if hashes differ, the blocks are also exchanged. */
#include "engine.h"

/* ---- what is exchanged ---- */

bool mpi_small(const struct mpi_comm *comm, const ctrt_comm_call *call)
{
    return call->bytes <= comm->inline_bytes / (size_t)host_parts(comm->world, call);
}

/* In shared memory, each rank reads the blocks of all ranks. Of messages, the last one has the blocks of up to half of
 * the ranks. */
void mpi_opening_limits(struct mpi_comm *comm)
{
    if (comm->machines == 1) {
        const size_t each = 4 * MPI_WINDOW_INLINE / (size_t)comm->world;
        comm->inline_bytes = each > MPI_WINDOW_INLINE ? MPI_WINDOW_INLINE : each < 256 ? 256 : each;
        return;
    }
    const size_t share = MPI_EAGER / ((size_t)comm->world / 2 + (comm->world == 1)) / 16 * 16;
    const size_t limit = share > sizeof(struct mpi_block) + 128 ? share - sizeof(struct mpi_block) : 128;
    comm->inline_bytes = comm->gathers ? limit : 0;
    comm->opening_bytes = (size_t)comm->world * (sizeof(struct mpi_block) + comm->inline_bytes);
}

static size_t block_bytes(const struct mpi_block *block)
{
    return sizeof *block + ((block->bytes + 15) & ~(size_t)15);
}

/* ---- the exchange ---- */

/* Finds the blocks in the buffer, which has those of rank, rank + 1 and so on. Fails if they are not blocks. */
static ctrt_status find_blocks(struct mpi_comm *comm, size_t *end, int from, int to)
{
    for (int i = from; i < to; i++) {
        const struct mpi_block *block = (const struct mpi_block *)(comm->opening + *end);
        if (*end + sizeof *block > comm->opening_bytes || block->bytes > comm->opening_bytes - *end - sizeof *block)
            return ctrt_fail(CTRT_ERR_COMM, "rank %d has sent a malformed message", (comm->rank + i) % comm->world);
        comm->blocks[(comm->rank + i) % comm->world] = block;
        *end += block_bytes(block);
    }
    return CTRT_OK;
}

static ctrt_status mpi_opening_exchange(struct mpi_comm *comm, const ctrt_comm_call *call, const void *data,
                                        size_t bytes)
{
    const int world = comm->world;
    struct mpi_batch batch = { .comm = comm, .call = call, .arriving = true };
    struct mpi_block *own = (struct mpi_block *)comm->opening;
    size_t end = 0;
    mpi_block_fill(own, call, data, bytes);
    CTRT_TRY(find_blocks(comm, &end, 0, 1));
    for (int have = 1; have < world; have *= 2) {
        const int more = have < world - have ? have : world - have;
        const char *const after = (const char *)comm->blocks[(comm->rank + more) % world];
        const size_t filled = more == have ? end : (size_t)(after - comm->opening);
        /* The receiver does not know the size; MPI allows larger buffers. */
        CTRT_TRY(mpi_receive(&batch, comm->opening + end, comm->opening_bytes - end, (comm->rank + have) % world,
                             TAG_OPENING));
        CTRT_TRY(mpi_send(&batch, comm->opening, filled, (comm->rank - have + world) % world, TAG_OPENING));
        CTRT_TRY(mpi_finish(&batch));
        CTRT_TRY(find_blocks(comm, &end, have, have + more));
    }
    return CTRT_OK;
}

/* A 62-bit hash (FNV-1a of words), which can be negated. */
static int64_t hash_of(const ctrt_comm_signature *signature)
{
    uint64_t words[sizeof *signature / sizeof(uint64_t)], hash = 0xcbf29ce484222325;
    memcpy(words, signature, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        hash = (hash ^ words[i]) * 0x100000001b3;
        hash ^= hash >> 29;
    }
    return (int64_t)(hash >> 2);
}

static ctrt_status compare_hashes(bool *equal, struct mpi_comm *comm, const ctrt_comm_call *call)
{
    int64_t *const hashes = comm->hashes;
    hashes[0] = hash_of(&call->signature);
    hashes[1] = -hashes[0];
    MPI_WAIT(comm, call, allreduce, hashes, hashes, 2, CTRT_I64, CTRT_COMM_MAX);
    *equal = hashes[0] == -hashes[1];
    return CTRT_OK;
}

ctrt_status mpi_open(struct mpi_comm *comm, const ctrt_comm_call *call, const void *data, size_t bytes)
{
    bool equal = false;
    if (comm->machines != 1 && !comm->gathers)
        CTRT_TRY(compare_hashes(&equal, comm, call));
    if (equal)
        return CTRT_OK;
    CTRT_TRY(comm->machines == 1 ? mpi_window_exchange(comm, call, data, bytes)
             : mpi_opening_exchange(comm, call, data, bytes));
    for (int rank = 0; rank < comm->world; rank++)
        if (memcmp(&comm->blocks[rank]->signature, &call->signature, sizeof call->signature) != 0)
            return host_mismatch(comm->config, call->state, (const void *const *)comm->blocks);
    return CTRT_OK;
}
