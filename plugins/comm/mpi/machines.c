/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/machines.c: the ranks of one machine share memory.
 *
 * The ranks of each machine form a group of the engine host, whose code is part of this plugin. If all ranks are on one
 * machine, that group runs large collectives, and its memory has the windows of window.c. Otherwise all_reduce and
 * broadcast go through the first rank of each machine, its leader: an all_reduce reduces on each machine, then between
 * the leaders by MPI, then broadcasts on each machine. So a machine sends and receives the data once, and not once per
 * rank. */
#include <stdio.h>
#include <stdlib.h>

#include "engine.h"

static const ctrt_param machines_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_MPI_MACHINES", .type = CTRT_PARAM_INT, .fallback = "0",
    .help = "the ranks of the engine mpi behave as if they were on this many machines, in turn; 0: where they are; for "
            "tests",
};

ctrt_status mpi_machine_name(char *name, size_t bytes, int rank)
{
    ctrt_param_value pretended;
    CTRT_TRY(mpi_host->param(&pretended, &machines_param));
    const size_t length = strlen(name);
    if (pretended.integer > 0)
        snprintf(name + length, bytes - length, "#%lld", (long long)(rank % pretended.integer));
    return CTRT_OK;
}

/* ---- joining ---- */

/* Sets machine[rank], in the order of first ranks, and this rank's number on its machine. Returns the machines. */
static int find_machines(struct mpi_comm *comm, const struct mpi_place *places)
{
    int machines = 0;
    for (int rank = 0; rank < comm->world; rank++) {
        int other = 0;
        while (strcmp(places[other].machine, places[rank].machine) != 0)
            other++;
        comm->machine[rank] = other < rank ? comm->machine[other] : machines++;
        comm->local_number[rank] = 0;
        for (other = 0; other < rank; other++)
            comm->local_number[rank] += comm->machine[other] == comm->machine[rank];
    }
    for (int rank = 0; rank < comm->world; rank++)
        comm->local_world += comm->machine[rank] == comm->machine[comm->rank];
    return machines;
}

/* All ranks of the whole group have compared their signatures before. */
static ctrt_status local_mismatch(void *state, const ctrt_comm_signature *signatures)
{
    (void)state, (void)signatures;
    return ctrt_fail(CTRT_ERR_STATE, "the ranks of one machine called different collectives");
}

static ctrt_status create_local(struct mpi_comm *comm)
{
    ctrt_comm_config *config = &comm->local_config;
    *config = *comm->config;
    snprintf(comm->local_name, sizeof comm->local_name, "%s/machine-%d", comm->config->name, comm->machine[comm->rank]);
    config->name = comm->local_name;
    config->rank = comm->local_number[comm->rank];
    config->world = comm->local_world;
    config->mismatch = local_mismatch;
    CTRT_TRY(host_engine.create(&comm->local, config));
    const int64_t spin = ((struct host_comm *)comm->local)->spin;
    comm->spin = spin < comm->spin ? spin : comm->spin;
    return CTRT_OK;
}

/* Sets *all to whether `mine` is true on all ranks. */
static ctrt_status mpi_agree(bool *all, struct mpi_comm *comm, bool mine)
{
    const ctrt_comm_call call = { .state = comm->config->state };
    int64_t least = mine;
    MPI_WAIT(comm, &call, allreduce, &least, &least, 1, CTRT_I64, CTRT_COMM_MIN);
    *all = least != 0;
    return CTRT_OK;
}

static ctrt_status create_leaders(struct mpi_comm *comm, const struct mpi_place *places, int machines)
{
    struct mpi_comm *leaders = calloc(1, sizeof *leaders);
    int *ranks = calloc((size_t)machines, sizeof *ranks);
    comm->leaders = leaders;
    if (leaders != NULL)
        leaders->inputs = calloc((size_t)machines, sizeof *leaders->inputs);
    if (leaders == NULL || ranks == NULL || leaders->inputs == NULL) {
        free(ranks);
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a group of %d machines", machines);
    }
    leaders->config = comm->config;
    leaders->rank = comm->machine[comm->rank];
    leaders->world = machines;
    leaders->spin = comm->spin;
    leaders->most = comm->most;
    leaders->gathers = machines <= comm->ordered;
    for (int rank = comm->world - 1; rank >= 0; rank--)
        ranks[comm->machine[rank]] = places[rank].rank;
    ctrt_status status = mpi_create_group(leaders, ranks, "leaders");
    free(ranks);
    return status;
}

ctrt_status mpi_machines_join(struct mpi_comm *comm, const struct mpi_place *places)
{
    const int machines = find_machines(comm, places);
    bool all = true;
    if (machines == comm->world)
        return CTRT_OK;
    ctrt_status status = comm->local_world > 1 ? create_local(comm) : CTRT_OK;
    if (status != CTRT_OK)
        mpi_host->log(CTRT_LOG_INFO, "mpi", "the ranks of this machine share no memory: %s", ctrt_error_message());
    CTRT_TRY(mpi_agree(&all, comm, status == CTRT_OK));
    if (!all) {
        mpi_machines_leave(comm);
    } else if (machines > 1) {
        comm->machines = machines;
        if (comm->local_number[comm->rank] == 0)
            CTRT_TRY(create_leaders(comm, places, machines));
    } else {
        comm->machines = 1;
        for (int rank = 0; rank < comm->world; rank++)
            comm->windows[rank] = host_window(comm->local, rank);
        mpi_window_limits(comm);
    }
    return CTRT_OK;
}

void mpi_machines_leave(struct mpi_comm *comm)
{
    if (comm->local != NULL)
        host_engine.destroy(comm->local);
    comm->local = NULL;
}

/* ---- collectives of several machines ---- */

/* Runs a part of `call` in the group of this machine; `root` is a rank of it. */
static ctrt_status run_local(struct mpi_comm *comm, const ctrt_comm_call *call, ctrt_collective collective, int root)
{
    ctrt_comm_call part = *call;
    if (comm->local == NULL)
        return CTRT_OK;
    part.signature.collective = collective;
    part.signature.root = root;
    if (part.signature.op == CTRT_COMM_AVERAGE)
        part.signature.op = CTRT_COMM_SUM;
    if (collective == CTRT_COLLECTIVE_BROADCAST)
        part.send = NULL;
    else if (comm->local_number[comm->rank] != root)
        part.receive = NULL;
    return host_engine.run(comm->local, &part);
}

bool mpi_through_leaders(const struct mpi_comm *comm, const ctrt_comm_call *call)
{
    const ctrt_comm_signature *signature = &call->signature;
    const bool half = signature->dtype == CTRT_F16 || signature->dtype == CTRT_BF16;    /* would be rounded twice */
    return comm->machines > 1 && !mpi_by_messages(comm, call)
           && (signature->collective == CTRT_COLLECTIVE_BROADCAST
               || (signature->collective == CTRT_COLLECTIVE_ALL_REDUCE && !half));
}

ctrt_status mpi_run_leaders(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    ctrt_comm_call between = *call;
    if (call->signature.collective == CTRT_COLLECTIVE_BROADCAST) {
        const int root = call->signature.root;
        const bool here = comm->machine[root] == comm->machine[comm->rank];
        if (here)
            CTRT_TRY(run_local(comm, call, CTRT_COLLECTIVE_BROADCAST, comm->local_number[root]));
        between.signature.root = comm->machine[root];
        if (comm->leaders != NULL)
            CTRT_TRY(mpi_broadcast(comm->leaders, &between));
        return here ? CTRT_OK : run_local(comm, call, CTRT_COLLECTIVE_BROADCAST, 0);
    }
    if (comm->local == NULL && call->send != call->receive)
        memcpy(call->receive, call->send, call->bytes);
    CTRT_TRY(run_local(comm, call, CTRT_COLLECTIVE_REDUCE, 0));
    between.send = between.receive;
    if (between.signature.op == CTRT_COMM_AVERAGE)
        between.signature.op = CTRT_COMM_SUM;
    if (comm->leaders != NULL) {
        CTRT_TRY(mpi_reduce(comm->leaders, &between));
        if (call->signature.op == CTRT_COMM_AVERAGE)
            mpi_divide(call->receive, call->signature.dtype, call->signature.count, comm->world);
    }
    return run_local(comm, call, CTRT_COLLECTIVE_BROADCAST, 0);
}
