/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/host.c: the table of the engine `host`: joining and leaving groups, choice of the way to run a
 * call. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "host.h"

/* ---- joining and leaving ---- */

/* Ranks spin only if each has a processor. Otherwise a spinning rank would delay those for which it waits. */
static int choose_spins(int world)
{
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0)
        return 0;
    return CPU_COUNT(&cpus) > 1 && CPU_COUNT(&cpus) >= world ? 100 : 0;
}

static void host_destroy(void *state)
{
    struct host_comm *comm = state;
    if (comm == NULL)
        return;
    host_segments_end(comm);
    host_arena_close(comm);
    free(comm->from);
    free(comm->to);
    free(comm);
}

static ctrt_status join(struct host_comm *comm)
{
    bool one_process = true, cpus = true;
    CTRT_TRY(host_arena_open(comm));
    struct host_rank *ranks = comm->header->ranks;
    ranks[comm->rank].pid = getpid();
    ranks[comm->rank].cpu = strcmp(ctrt_device_type(comm->config->device), "cpu") == 0;
    CTRT_TRY(host_barrier(comm, comm->config->state));
    for (int rank = 0; rank < comm->world; rank++) {
        one_process &= ranks[rank].pid == getpid();
        cpus &= ranks[rank].cpu;
    }
    comm->mode = !one_process ? HOST_PROCESSES : cpus ? HOST_DIRECT : HOST_DEVICES;
    if (comm->mode == HOST_DEVICES) {
        atomic_store(&comm->header->devices, true);
        CTRT_TRY(host_devices_init(comm));
    }
    if (comm->fd >= 0)
        close(comm->fd);
    comm->fd = -1;
    return CTRT_OK;
}

static ctrt_status host_create(void **out, const ctrt_comm_config *config)
{
    char key[320];
    if (config->world > HOST_RANKS)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the engine host supports %d ranks, not %d", HOST_RANKS,
                         config->world);
    struct host_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a group");
    comm->config = config;
    comm->rank = config->rank;
    comm->world = config->world;
    comm->spins = choose_spins(config->world);
    comm->fd = -1;
    comm->joining = true;
    pthread_mutex_init(&comm->segments_lock, NULL);
    comm->from = calloc((size_t)config->world, sizeof *comm->from);
    comm->to = calloc((size_t)config->world, sizeof *comm->to);
    ctrt_status status = comm->from == NULL || comm->to == NULL
                             ? ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a group of %d ranks", config->world)
                             : join(comm);
    if (status == CTRT_OK) {
        comm->joining = false;
        *out = comm;
        return CTRT_OK;
    }
    char reason[512];
    snprintf(reason, sizeof reason, "rank %d: %s", comm->rank, ctrt_error_message());
    snprintf(key, sizeof key, "%s/host-failed", config->name);
    (void)ctrt_store_set(config->store, key, reason, strlen(reason) + 1);
    host_destroy(comm);
    return ctrt_fail(status, "%s", strchr(reason, ':') + 2);
}

/* ---- running ---- */

static ctrt_status run_collective(struct host_comm *comm, const ctrt_comm_call *call)
{
    const size_t give_bytes = (size_t)host_parts(comm, call) * call->bytes;
    const size_t parts = call->signature.collective == CTRT_COLLECTIVE_ALL_GATHER
                                 || call->signature.collective == CTRT_COLLECTIVE_GATHER
                                 || call->signature.collective == CTRT_COLLECTIVE_ALL_TO_ALL ? (size_t)comm->world : 1;
    const struct host_entry entry = {
        .signature = call->signature,
        .give = host_place_of(comm, host_given(comm, call), give_bytes),
        .receive = host_place_of(comm, call->receive, parts * call->bytes),
    };
    const bool small = give_bytes <= HOST_SMALL;
    if (small || (comm->mode == HOST_PROCESSES && entry.give.segment == 0))
        host_put_first(comm, call);
    CTRT_TRY(host_arrive(comm, call, &entry));
    if (call->bytes == 0)
        return CTRT_OK;
    if (!small && host_resolve(comm, host_shares(call)))
        return host_run_direct(comm, call);
    bool late = false;
    for (int rank = 0; rank < comm->world && !small; rank++)
        late |= host_entry(comm, rank)->give.segment != 0;
    return host_run_pieces(comm, call, late);
}

static ctrt_status host_run(void *state, const ctrt_comm_call *call)
{
    struct host_comm *comm = state;
    if (atomic_load(&comm->header->dead))
        return host_dead(comm, ctrt_fail(CTRT_ERR_COMM, "another rank has failed"));
    if (call->peer >= 0)
        return call->receive_tensor != NULL ? host_recv(comm, call) : host_send(comm, call);
    return comm->mode == HOST_DEVICES ? host_run_devices(comm, call) : run_collective(comm, call);
}

static bool host_reaches_device(void *state, const ctrt_comm_call *call)
{
    (void)call;
    return ((struct host_comm *)state)->mode == HOST_DEVICES;
}

static bool host_connects(int32_t world, int32_t hosts, int32_t processes)
{
    (void)processes;
    return hosts == 1 && world <= HOST_RANKS;
}

const ctrt_comm_engine host_engine = {
    .size = sizeof(ctrt_comm_engine),
    .create = host_create,
    .destroy = host_destroy,
    .run = host_run,
    .reaches_device = host_reaches_device,
    .connects = host_connects,
    .alloc = host_alloc,
    .free = host_free,
};

void host_init(const ctrt_host *host)
{
    host_reductions_init();
    host_arena_init(host);
}
