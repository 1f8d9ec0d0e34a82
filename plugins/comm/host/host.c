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

static const ctrt_host *library;

/* ---- joining and leaving ---- */

/* A waiting rank keeps its processor for this time, in which the others usually arrive, because sleeping and being
 * woken takes several microseconds. */
#define SPIN_NS 100000

/* Ranks spin only if there is a processor for each rank. Otherwise a spinning rank would delay the ranks for which it
 * waits. A launcher may have bound each process to a different processor, so the processors of all ranks are joined. */
static int64_t choose_spin(const struct host_comm *comm)
{
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int rank = 0; rank < comm->world; rank++)
        CPU_OR(&all, &all, &comm->header->ranks[rank].processors);
    return CPU_COUNT(&all) > 1 && CPU_COUNT(&all) >= comm->world ? SPIN_NS : 0;
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
    free(comm->scratch);
    free(comm);
}

/* Sets comm->pulls to the same value on all ranks. */
static ctrt_status agree_to_pull(struct host_comm *comm)
{
    for (int rank = 0; rank < comm->world && !atomic_load(&comm->header->unreadable); rank++)
        if (rank != comm->rank && !host_pull_allowed(&comm->header->ranks[rank]))
            atomic_store(&comm->header->unreadable, true);
    CTRT_TRY(host_barrier(comm, comm->config->state));
    comm->pulls = !atomic_load(&comm->header->unreadable);
    if (!comm->pulls && comm->rank == 0)
        library->log(CTRT_LOG_INFO, "comm-host", "group %s: the system does not let the processes access each other's "
                     "memory (process_vm_readv), so large tensors are copied through shared memory",
                     comm->config->name);
    return CTRT_OK;
}

static ctrt_status host_join(struct host_comm *comm)
{
    bool one_process = true, cpus = true;
    CTRT_TRY(host_arena_open(comm));
    struct host_rank *ranks = comm->header->ranks;
    ranks[comm->rank].pid = getpid();
    CTRT_TRY(host_pull_publish(&ranks[comm->rank]));
    if (sched_getaffinity(0, sizeof ranks->processors, &ranks[comm->rank].processors) != 0)
        CPU_ZERO(&ranks[comm->rank].processors);
    ranks[comm->rank].cpu = strcmp(ctrt_device_type(comm->config->device), "cpu") == 0;
    CTRT_TRY(host_barrier(comm, comm->config->state));
    for (int rank = 0; rank < comm->world; rank++) {
        one_process &= ranks[rank].pid == getpid();
        cpus &= ranks[rank].cpu;
    }
    comm->spin = choose_spin(comm);
    comm->mode = !one_process ? HOST_PROCESSES : cpus ? HOST_DIRECT : HOST_DEVICES;
    if (comm->mode == HOST_DEVICES) {
        atomic_store(&comm->header->devices, true);
        CTRT_TRY(host_devices_init(comm));
    } else if (comm->mode == HOST_PROCESSES) {
        CTRT_TRY(agree_to_pull(comm));
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
    comm->fd = -1;
    comm->joining = true;
    pthread_mutex_init(&comm->segments_lock, NULL);
    comm->from = calloc((size_t)config->world, sizeof *comm->from);
    comm->to = calloc((size_t)config->world, sizeof *comm->to);
    ctrt_status status = comm->from == NULL || comm->to == NULL
                             ? ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a group of %d ranks", config->world)
                             : host_join(comm);
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

void host_begin(struct host_comm *comm, const ctrt_comm_call *call)
{
    const size_t give_bytes = (size_t)host_parts(comm->world, call) * call->bytes;
    const size_t parts = call->signature.collective == CTRT_COLLECTIVE_ALL_GATHER
                                 || call->signature.collective == CTRT_COLLECTIVE_GATHER
                                 || call->signature.collective == CTRT_COLLECTIVE_ALL_TO_ALL ? (size_t)comm->world : 1;
    const bool small = host_small(comm, call), wanted = !small && host_pull_wanted(comm, call);
    struct host_entry entry = {
        .signature = call->signature,
        .give = host_place_of(comm, host_given(comm->rank, call), give_bytes),
        .receive = host_place_of(comm, call->receive, parts * call->bytes),
    };
    entry.pulls = wanted && host_pull_ready(comm, call, give_bytes, parts * call->bytes);
    entry.thread = entry.pulls ? gettid() : 0;
    entry.put = small || (comm->mode == HOST_PROCESSES && entry.give.segment == 0 && !entry.pulls);
    if (entry.put)
        host_put_first(comm, call);
    host_enter(comm, &entry);
}

ctrt_status host_finish(struct host_comm *comm, const ctrt_comm_call *call)
{
    const bool small = host_small(comm, call);
    bool late = false, pulls = true;
    if (call->bytes == 0)
        return CTRT_OK;
    if (!small && host_resolve(comm, host_shares(call)))
        return host_run_direct(comm, call);
    for (int rank = 0; rank < comm->world; rank++) {
        pulls &= host_entry(comm, rank)->pulls;
        late |= !host_entry(comm, rank)->put;
    }
    return pulls ? host_run_pull(comm, call) : host_run_pieces(comm, call, late);
}

static ctrt_status run_collective(struct host_comm *comm, const ctrt_comm_call *call)
{
    host_begin(comm, call);
    CTRT_TRY(host_arrive(comm, call));
    return host_finish(comm, call);
}

/* A list, so that leak checkers find the tensors reachable. */
static struct kept {
    struct kept *next;
    ctrt_tensor *tensors[2];
} *_Atomic kept_tensors;

void host_keep_tensors(const ctrt_comm_call *call)
{
    struct kept *kept = calloc(1, sizeof *kept);
    ctrt_tensor *const tensors[2] = { ctrt_tensor_retain(call->send_tensor), ctrt_tensor_retain(call->receive_tensor) };
    if (kept == NULL)
        return;
    memcpy(kept->tensors, tensors, sizeof tensors);
    kept->next = atomic_load(&kept_tensors);
    while (!atomic_compare_exchange_weak(&kept_tensors, &kept->next, kept))
        continue;
}

static ctrt_status host_run(void *state, const ctrt_comm_call *call)
{
    struct host_comm *comm = state;
    CTRT_TRY(host_check_alive(comm, call->state));
    if (call->peer >= 0)
        return call->receive_tensor != NULL ? host_recv(comm, call) : host_send(comm, call);
    if (call_reduces(call))
        CTRT_TRY(host_reduction_check(&call->signature));
    if (comm->mode == HOST_DEVICES)
        return host_run_devices(comm, call);
    const ctrt_status status = run_collective(comm, call);
    if (status != CTRT_OK && atomic_load(&comm->written))
        host_keep_tensors(call);
    return status;
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
    library = host;
    host_reductions_init();
    host_arena_init(host);
}
