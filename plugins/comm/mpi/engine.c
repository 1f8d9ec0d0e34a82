/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/engine.c: the table of the engine `mpi`: joining and leaving groups. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "config.h"
#include "engine.h"

static const ctrt_param ordered_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_MPI_ORDERED", .type = CTRT_PARAM_INT, .fallback = "64",
    .help = "groups of the engine mpi with at most this many ranks reduce in the order of ranks, others as MPI does",
};
static const ctrt_param most_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_MPI_MOST", .type = CTRT_PARAM_BYTES, .fallback = "1g",
    .help = "largest number of bytes of one call of MPI; for tests",
};
static const ctrt_param cuda_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_MPI_CUDA", .type = CTRT_PARAM_ENUM, .fallback = "auto",
    .words = "auto|yes|no",
    .help = "the engine mpi passes memory of CUDA devices to MPI; auto: if MPI reports that it is CUDA-aware",
};
enum { CUDA_AUTO, CUDA_YES };

static ctrt_status init(const ctrt_host *host)
{
    host_init(host);
    mpi_init_library(host);
    return CTRT_OK;
}

/* ---- joining ---- */

/* How long the engine waits for a key before it calls poll; then it waits again. */
static const double STORE_SECONDS = 0.02;

static ctrt_status mpi_get(void *out, size_t bytes, const ctrt_comm_config *config, const char *key)
{
    void *value = NULL;
    size_t found = 0;
    ctrt_status status;
    /* CTRT_ERR_COMM: the store has not answered yet, or its server has ended, which poll reports. */
    while ((status = ctrt_store_get(config->store, key, &value, &found, STORE_SECONDS)) == CTRT_ERR_NOT_FOUND
           || status == CTRT_ERR_COMM) {
        CTRT_TRY(config->poll(config->state));
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    CTRT_TRY(status);
    const bool fits = found == bytes;
    if (fits)
        memcpy(out, value, bytes);
    free(value);
    return fits ? CTRT_OK : ctrt_fail(CTRT_ERR_STATE, "the key %s has %zu bytes, expected %zu", key, found, bytes);
}

/* places[world]: of all ranks, in order. Rank 0 collects and publishes them. */
static ctrt_status exchange_places(struct mpi_place *places, const ctrt_comm_config *config)
{
    char key[320];
    ctrt_param_value cuda;
    const size_t all = (size_t)config->world * sizeof *places;
    struct mpi_place *own = &places[config->rank];
    int rank, size;
    const int error = mpi->rank_size(mpi->world(), &rank, &size);
    if (error != 0)
        return mpi_failed("MPI_Comm_rank", error);
    (void)gethostname(own->machine, 63);
    CTRT_TRY(mpi_machine_name(own->machine, sizeof own->machine, config->rank));
    own->rank = rank;
    own->size = size;
    CTRT_TRY(mpi_host->param(&cuda, &cuda_param));
    own->cuda = strcmp(ctrt_device_type(config->device), "cuda") == 0
                && (cuda.integer == CUDA_YES || (cuda.integer == CUDA_AUTO && mpi_cuda_aware()));
    snprintf(key, sizeof key, "%s/mpi/%d", config->name, config->rank);
    if (config->rank != 0)
        CTRT_TRY(ctrt_store_set(config->store, key, own, sizeof *own));
    for (int other = 1; config->rank == 0 && other < config->world; other++) {
        snprintf(key, sizeof key, "%s/mpi/%d", config->name, other);
        CTRT_TRY(mpi_get(&places[other], sizeof *places, config, key));
    }
    snprintf(key, sizeof key, "%s/mpi", config->name);
    return config->rank == 0 ? ctrt_store_set(config->store, key, places, all) : mpi_get(places, all, config, key);
}

static ctrt_status mpi_check_places(const struct mpi_place *places, const ctrt_comm_config *config)
{
    for (int rank = 0; rank < config->world; rank++) {
        bool repeated = false;
        for (int other = 0; other < rank; other++)
            repeated |= places[other].rank == places[rank].rank;
        if (repeated || places[rank].size != places[0].size)
            return ctrt_fail(CTRT_ERR_COMM, "rank %d is rank %d of %d in MPI_COMM_WORLD, rank 0 is rank %d of %d: the "
                             "ranks were not started by one mpirun", rank, places[rank].rank, places[rank].size,
                             places[0].rank, places[0].size);
    }
    return CTRT_OK;
}

/* Waiting ranks keep the processor for a while, unless others need it. */
static int64_t choose_spin(const struct mpi_place *places, const ctrt_comm_config *config)
{
    cpu_set_t cpus;
    int here = 0;
    for (int rank = 0; rank < config->world; rank++)
        here += strcmp(places[rank].machine, places[config->rank].machine) == 0;
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 && sysconf(_SC_NPROCESSORS_ONLN) >= here ? 100000 : 0;
}

/* Tags distinguish groups that threads of one process create at the same time. */
static int tag_of(const char *name, const char *kind)
{
    uint32_t hash = 2166136261u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    for (; *kind != '\0'; kind++)
        hash = (hash ^ (unsigned char)*kind) * 16777619u;
    return (int)(hash % 32749);
}

struct create_group {
    mpi_handle handle;
    int world, tag;
    int ranks[];
};

static int create_group(void *data)
{
    struct create_group *create = data;
    return mpi->create_group(&create->handle, create->world, create->ranks, create->tag);
}

/* MPI_Comm_create_group waits for all ranks of the group. */
ctrt_status mpi_create_group(struct mpi_comm *comm, const int *ranks, const char *kind)
{
    const ctrt_comm_config *config = comm->config;
    const size_t bytes = (size_t)comm->world * sizeof *ranks;
    struct create_group *create = calloc(1, sizeof *create + bytes);
    bool returned;
    int error = 0;
    if (create == NULL)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a group");
    create->world = comm->world;
    create->tag = tag_of(config->name, kind);
    memcpy(create->ranks, ranks, bytes);
    CTRT_TRY(mpi_bounded(&returned, &error, create_group, create, config->timeout, config));
    if (!returned)
        return ctrt_fail(CTRT_ERR_COMM, "MPI_Comm_create_group did not complete within %g s", config->timeout);
    comm->handle = create->handle;
    free(create);
    if (error != 0)
        return mpi_failed("MPI_Comm_create_group", error);
    error = mpi->return_errors(comm->handle);
    return error == 0 ? CTRT_OK : mpi_failed("MPI_Comm_set_errhandler", error);
}

static ctrt_status opening_alloc(struct mpi_comm *comm)
{
    if (comm->opening_bytes > 0)
        comm->opening = calloc(1, comm->opening_bytes);
    return comm->opening_bytes == 0 || comm->opening ? CTRT_OK
                                                     : ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a group");
}

static ctrt_status connect_ranks(struct mpi_comm *comm, struct mpi_place *places, int *ranks)
{
    const ctrt_comm_config *config = comm->config;
    CTRT_TRY(exchange_places(places, config));
    CTRT_TRY(mpi_check_places(places, config));
    CTRT_TRY(config->poll(config->state));
    comm->spin = choose_spin(places, config);
    comm->cuda = true;
    for (int rank = 0; rank < config->world; rank++) {
        ranks[rank] = places[rank].rank;
        comm->cuda &= places[rank].cuda != 0;
    }
    CTRT_TRY(mpi_create_group(comm, ranks, ""));
    CTRT_TRY(mpi_machines_join(comm, places));
    mpi_opening_limits(comm);
    return opening_alloc(comm);
}

static ctrt_status comm_alloc(struct mpi_comm **out, const ctrt_comm_config *config)
{
    ctrt_param_value ordered, most;
    const size_t world = (size_t)config->world;
    CTRT_TRY(mpi_host->param(&ordered, &ordered_param));
    CTRT_TRY(mpi_host->param(&most, &most_param));
    struct mpi_comm *comm = calloc(1, sizeof *comm);
    *out = comm;
    if (comm != NULL) {
        comm->config = config;
        comm->rank = config->rank;
        comm->world = config->world;
        comm->ordered = ordered.integer;
        comm->gathers = config->world <= ordered.integer;
        comm->most = most.integer < 8 ? 8 : most.integer > 1 << 30 ? 1 << 30 : (size_t)most.integer & ~(size_t)7;
        comm->blocks = calloc(world, sizeof *comm->blocks);
        comm->inputs = calloc(world, sizeof *comm->inputs);
        comm->machine = calloc(world, sizeof *comm->machine);
        comm->local_number = calloc(world, sizeof *comm->local_number);
        comm->windows = calloc(world, sizeof *comm->windows);
        comm->taken = calloc(world, sizeof *comm->taken);
        for (int i = PATH_SENDS; i < PATHS; i++)
            comm->message[i] = calloc(1, sizeof(struct mpi_block) + MPI_MESSAGE_INLINE);
        if (comm->blocks && comm->inputs && comm->machine && comm->local_number && comm->windows && comm->taken
            && comm->message[PATH_SENDS] && comm->message[PATH_RECEIVES])
            return CTRT_OK;
    }
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a group of %d ranks", config->world);
}

/* A group with incomplete requests keeps its memory, see engine.h. MPI_Comm_free is collective by MPI's standard, but
 * does not wait for other ranks in Open MPI and MPICH. */
static void comm_free(struct mpi_comm *comm)
{
    if (comm == NULL)
        return;
    mpi_machines_leave(comm);
    comm_free(comm->leaders);
    if (atomic_load(&comm->incomplete))
        return;
    if (comm->handle != 0 && mpi_usable())
        (void)mpi->comm_free(comm->handle);
    for (int i = 0; i < PATHS; i++)
        free(comm->message[i]);
    free(comm->opening);
    free(comm->blocks);
    free(comm->inputs);
    free(comm->scratch);
    free(comm->machine);
    free(comm->local_number);
    free(comm->windows);
    free(comm->taken);
    free(comm);
}

static void mpi_destroy(void *state)
{
    comm_free(state);
    atomic_fetch_add(&mpi_exit.groups, -1);
}

static ctrt_status mpi_create(void **out, const ctrt_comm_config *config)
{
    struct mpi_comm *comm = NULL;
    CTRT_TRY(mpi_start(config->timeout));
    struct mpi_place *places = calloc((size_t)config->world, sizeof *places);
    int *ranks = calloc((size_t)config->world, sizeof *ranks);
    ctrt_status status = places && ranks ? comm_alloc(&comm, config)
                                         : ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a list of ranks");
    if (status == CTRT_OK && config->size >= sizeof *config && config->epoch > 0)
        status = mpi_rebuild(config);
    if (status == CTRT_OK && config->world > 1)
        status = connect_ranks(comm, places, ranks);
    free(places);
    free(ranks);
    if (status != CTRT_OK) {
        comm_free(comm);
        return status;
    }
    atomic_fetch_add(&mpi_exit.groups, 1);
    *out = comm;
    return CTRT_OK;
}

/* ---- running ---- */

/* Only for messages, because Open MPI does not document that non-blocking collectives accept device memory. */
static bool mpi_reaches_device(void *state, const ctrt_comm_call *call)
{
    const struct mpi_comm *comm = state;
    const bool has_addresses = (call->send_tensor == NULL || call->send != NULL)
                               && (call->receive_tensor == NULL || call->receive != NULL);
    return comm->cuda && has_addresses
           && (call->peer < 0 ? mpi_by_messages(comm, call) : mpi_message_large(comm, call));
}

/* Waits for the work of the current stream, because MPI has no streams, and makes the device's context current, which
 * MPI needs. Does nothing if the tensors are in host memory. */
static ctrt_status mpi_synchronize(const struct mpi_comm *comm, const ctrt_comm_call *call)
{
    const ctrt_tensor *any = call->send_tensor != NULL ? call->send_tensor : call->receive_tensor;
    CTRT_AUTO(stream) stream = NULL;
    if (!comm->cuda || any == NULL || ctrt_tensor_device(any) != comm->config->device)
        return CTRT_OK;
    mpi_host->log(CTRT_LOG_DEBUG, "mpi", "MPI transfers parts of %zu bytes in the memory of %s", call->bytes,
                  ctrt_device_name(comm->config->device));
    CTRT_TRY(ctrt_stream_current(&stream, comm->config->device));
    return ctrt_stream_synchronize(stream);
}

static ctrt_status run_call(struct mpi_comm *comm, const ctrt_comm_call *call)
{
    CTRT_TRY(mpi_synchronize(comm, call));
    if (call->peer < 0)
        return mpi_collective(comm, call);
    return call->receive_tensor != NULL ? mpi_message_receive(comm, call) : mpi_message_send(comm, call);
}

/* Whether the call needs no function of MPI. */
static bool in_shared_memory(const struct mpi_comm *comm, const ctrt_comm_call *call)
{
    return comm->machines == 1 && (call->peer < 0 || mpi_window_fits(comm, call));
}

static ctrt_status mpi_run(void *state, const ctrt_comm_call *call)
{
    struct mpi_comm *comm = state;
    ctrt_status status;
    if (atomic_load_explicit(&comm->dead, memory_order_acquire))
        return ctrt_fail(CTRT_ERR_COMM, "the group has failed");
    if (call->peer < 0 && call_reduces(call))
        CTRT_TRY(host_reduction_check(&call->signature));
    if (in_shared_memory(comm, call)) {
        status = run_call(comm, call);
    } else if (!mpi_usable()) {
        return ctrt_fail(CTRT_ERR_STATE, "MPI was finalised by the program");
    } else {
        atomic_fetch_add(&mpi_exit.busy, 1);
        status = run_call(comm, call);
        atomic_fetch_add(&mpi_exit.busy, -1);
    }
    if (status != CTRT_OK) {
        atomic_store_explicit(&comm->dead, true, memory_order_release);
        const struct host_comm *local = comm->local;
        if (atomic_load(&comm->incomplete) || (comm->leaders && atomic_load(&comm->leaders->incomplete))
            || (local && atomic_load(&local->written)))
            host_keep_tensors(call);
    }
    return status;
}

/* ---- memory that the ranks of one machine share ---- */

static ctrt_status mpi_alloc(void *state, void **address, size_t bytes)
{
    const struct mpi_comm *comm = state;
    *address = NULL;
    return comm->machines == 1 ? host_engine.alloc(comm->local, address, bytes) : CTRT_OK;
}

static void mpi_free(void *state, void *address)
{
    host_engine.free(((const struct mpi_comm *)state)->local, address);
}

/* ---- before there is a group ---- */

/* Waits for the request. Of a broadcast whose root does not come, the receiver's memory must remain valid. */
static ctrt_status bootstrap_wait(bool *complete, mpi_handle request, double seconds)
{
    struct mpi_pause pause = { 0 };
    int done = 0, error = 0;
    while (error == 0 && !done) {
        error = mpi->test(&request, &done);
        (void)mpi_pause(&pause, NULL, NULL);
        if (error == 0 && !done && mpi_paused(&pause) > seconds) {
            atomic_store(&mpi_exit.gave_up, true);
            return ctrt_fail(CTRT_ERR_COMM, "rank 0 has not sent the address of the store within %g s", seconds);
        }
    }
    *complete = true;
    return error == 0 ? CTRT_OK : mpi_failed("MPI_Ibcast", error);
}

static ctrt_status mpi_bootstrap(int32_t *rank, int32_t *size, void *data, size_t bytes)
{
    mpi_handle request;
    int at, n;
    bool complete = false;
    const double limit = mpi_timeout();
    CTRT_TRY(mpi_start(limit));
    char *copy = malloc(bytes);
    if (copy == NULL)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for the address of a store");
    memcpy(copy, data, bytes);
    int error = mpi->rank_size(mpi->world(), &at, &n);
    if (error == 0)
        error = mpi->ibcast(copy, (int)bytes, 0, mpi->world(), &request);
    ctrt_status status = error == 0 ? bootstrap_wait(&complete, request, limit) : mpi_failed("MPI_Ibcast", error);
    if (status == CTRT_OK)
        memcpy(data, copy, bytes);
    if (complete || error != 0)
        free(copy);
    CTRT_TRY(status);
    *rank = at;
    *size = n;
    return CTRT_OK;
}

static bool mpi_connects(int32_t world, int32_t hosts, int32_t processes)
{
    (void)hosts;
    return processes == world;
}

static const ctrt_comm_engine engine = {
    .size = sizeof(ctrt_comm_engine),
    .create = mpi_create,
    .destroy = mpi_destroy,
    .run = mpi_run,
    .reaches_device = mpi_reaches_device,
    .bootstrap = mpi_bootstrap,
    .connects = mpi_connects,
    .alloc = mpi_alloc,
    .free = mpi_free,
};

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_COMM, .name = "mpi", .table = &engine,
      .probe = mpi_probe },
};

CTRT_PLUGIN_DEFINE("comm-mpi", PACKAGE_VERSION, "communicators: processes that MPI connects", components, init)
