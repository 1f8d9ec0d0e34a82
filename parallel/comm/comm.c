/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/comm.c: process groups: joining, splitting and leaving them. */
#include "parallel/comm/comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/array.h"
#include "base/param.h"
#include "base/strbuf.h"
#include "base/thread.h"
#include "device/launcher.h"
#include "parallel/comm/environment.h"
#include "parallel/comm/peers.h"
#include "parallel/store/own_address.h"
#include "parallel/store/store.h"
#include "registry/registry.h"

/* The engines that are used by default: in a job of an MPI launcher, and elsewhere (usual_engine). */
#define MPI_ENGINE   "mpi"
#define LOCAL_ENGINE "host"

static const ctrt_param engine_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_COMM", .type = CTRT_PARAM_STRING,
    .help = "engine of communicators: host, mpi, nccl, or another plugin of kind comm",
};
CORE_PARAM(engine_param);
static const ctrt_param timeout_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_COMM_TIMEOUT", .type = CTRT_PARAM_INT, .fallback = "600",
    .help = "seconds that a collective may take",
};
CORE_PARAM(timeout_param);

/* ---- creation ---- */

static ctrt_status read_timeout(double *out, double given)
{
    ctrt_param_value value;
    CTRT_TRY(param_read(&value, &timeout_param, "core"));
    *out = given > 0 ? given : (double)value.integer;
    if (given < 0 || *out <= 0 || *out > 1e9)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "comm_new: timeout is %g s, expected more than 0 and at most 1e9",
                         given != 0 ? given : *out);
    return CTRT_OK;
}

/* ---- joining ---- */

/* Every rank adds itself below `name` and so gets the number of the group: a name can be used again after all ranks
 * have joined. */
static ctrt_status choose_id(ctrt_comm *comm)
{
    int64_t joined = 0;
    char id[COMM_SHORT + 32], name[COMM_SHORT];
    CTRT_TRY(comm_add_joined(&joined, comm, 1));
    snprintf(id, sizeof id, "%s/%" PRId64, comm_shorten(name, comm->group.name), (joined - 1) / comm->group.size);
    return comm_set_id(comm, id);
}

static ctrt_status use_engine(ctrt_comm *comm, const char *name)
{
    const struct component *component;
    CTRT_TRY(registry_use(&component, CTRT_COMPONENT_COMM, name));
    comm->engine = component->table;
    comm->engine_name = component->name;
    return CTRT_OK;
}

static ctrt_status join_processes(ctrt_comm *comm)
{
    CTRT_TRY(choose_id(comm));
    CTRT_TRY(comm_members_exchange(comm));
    CTRT_TRY(comm_connect(comm, NULL, NULL, -1));
    return comm->group.elastic && comm->group.rank == 0 ? comm_publish_current(comm) : CTRT_OK;
}

/* The engine of a communicator of processes if neither the program nor CTRT_COMM names one. A launcher other than
 * torchrun, whose variables take precedence, provides MPI. The engines are not asked, because loading all of them would
 * also load the libraries that they use. */
static const char *usual_engine(const struct rank_environment *environment)
{
    const bool mpi = environment->launcher != NULL && strcmp(environment->launcher, "torchrun") != 0;
    return mpi ? MPI_ENGINE : LOCAL_ENGINE;
}

/* Opens a store on rank 0, whose address the engine's bootstrap function copies to the other ranks. If rank 0 fails, it
 * copies "", so that the others do not wait. */
static ctrt_status bootstrap_store(ctrt_comm *comm)
{
    char address[ENVIRONMENT_STORE_BYTES] = "", name[65] = "", host[OWN_ADDRESS_BYTES];
    int32_t rank, size;
    ctrt_status status = CTRT_OK;
    if (comm->group.rank == 0) {
        (void)gethostname(name, sizeof name - 1);
        own_address(host, name);
        snprintf(address, sizeof address, strchr(host, ':') != NULL ? "tcp://[%s]:0" : "tcp://%s:0", host);
        status = environment_open_store(&comm->store, address, 0, comm->timeout);
        snprintf(address, sizeof address, "%s", status == CTRT_OK ? ctrt_store_address(comm->store) : "");
    }
    CTRT_TRY(comm->engine->bootstrap(&rank, &size, address, sizeof address));
    if (comm->group.rank == 0)
        return status;
    if (address[0] == '\0')
        return ctrt_fail(CTRT_ERR_COMM, "rank 0 could not serve a key-value store");
    if (rank != comm->group.rank || size != comm->group.size)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "this process is rank %d of %d, but the engine %s counts it as rank %d of %d; set CTRT_STORE, "
                         "or MASTER_ADDR and MASTER_PORT, or start one job only", comm->group.rank, comm->group.size,
                         comm->engine_name, (int)rank, (int)size);
    return environment_open_store(&comm->store, address, rank, comm->timeout);
}

/* Opens the store that the environment names. Without one, the processes of the engine's job find each other by its
 * bootstrap function. `rank`: as in environment_open_store. */
static ctrt_status open_store(ctrt_comm *comm, int rank)
{
    char address[ENVIRONMENT_STORE_BYTES];
    CTRT_TRY(environment_store(address));
    if (address[0] == '\0' && comm->group.size == 1)
        return ctrt_store_open(&comm->store, "local://ctrt-world", true, comm->timeout);
    if (address[0] == '\0' && CTRT_SLOT(comm->engine, bootstrap))
        return bootstrap_store(comm);
    if (address[0] == '\0')
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "%d ranks need a store: set CTRT_STORE, or MASTER_ADDR and MASTER_PORT, or start them with "
                         "`ctrt run`", comm->group.size);
    return environment_open_store(&comm->store, address, rank, comm->timeout);
}

/* Joins the group of `given`, whose defaults are those of the environment. On failure *out is a group to release. */
static ctrt_status new_process_rank(ctrt_comm **out, const ctrt_comm_options *given)
{
    struct rank_environment environment;
    ctrt_param_value engine;
    double timeout;
    bool elastic = false, joins = false;
    if (given->world_size < 0 || (given->world_size > 0 && (given->rank < 0 || given->rank >= given->world_size)))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "rank %d of %d", given->rank, given->world_size);
    CTRT_TRY(read_timeout(&timeout, given->timeout));
    CTRT_TRY(launcher_read(&environment));
    CTRT_TRY(param_read(&engine, &engine_param, "core"));
    CTRT_TRY(comm_read_modes(&elastic, &joins));
    const char *name = given->engine ? given->engine : engine.text ? engine.text : usual_engine(&environment);
    /* A rank that joins does not know its number yet, and does not serve the store. */
    const int size = joins ? 2 : given->world_size > 0 ? given->world_size : environment.size;
    const int rank = joins ? 1 : given->world_size > 0 ? given->rank : environment.rank;
    CTRT_TRY(comm_alloc(out, rank, size, given->name ? given->name : "world", timeout));
    ctrt_comm *comm = *out;
    comm->group.elastic = elastic;
    comm->join_deadline = clock_after(timeout);
    comm->device = given->device;
    comm->store = ctrt_store_retain(given->store);
    CTRT_TRY(use_engine(comm, name));
    if (comm->device == NULL)
        CTRT_TRY(ctrt_device_auto(&comm->device));
    if (comm->store == NULL)
        CTRT_TRY(open_store(comm, joins ? -1 : rank));
    return joins ? comm_join(out) : join_processes(comm);
}

ctrt_status ctrt_comm_new(ctrt_comm **out, const ctrt_comm_options *options)
{
    ctrt_comm_options given = CTRT_COMM_OPTIONS;
    ctrt_comm *comm = NULL;
    CANCEL_DISABLED;
    NULL_CHECK("comm_new", out);
    CTRT_TRY(struct_read(&given, sizeof given, options, "comm_new", "options"));
    const ctrt_status status = new_process_rank(&comm, &given);
    return ctrt_context(comm_give(out, comm, status), "comm_new");
}

/* ---- groups of this process ---- */

struct local_join {
    ctrt_comm *comm;
    pthread_t thread;
    bool started;
    ctrt_status status;
    char *error;
    atomic_int *failures;                   /* the number of ranks that have failed */
    bool first;                             /* this rank was the first one that failed */
};

static void *join_local(void *argument)
{
    struct local_join *join = argument;
    join->status = comm_connect(join->comm, NULL, NULL, -1);
    if (join->status != CTRT_OK) {
        join->error = host_strdup(ctrt_error_message());
        join->first = atomic_fetch_add(join->failures, 1) == 0;
        comm_alarm_siblings(join->comm, false);     /* ends the waits of the other ranks */
    }
    return NULL;
}

/* Connects the ranks, each in a thread, because an engine's create waits for all ranks. */
static ctrt_status connect_local(struct local_join *joins, int n)
{
    ctrt_status status = CTRT_OK;
    atomic_int failures = 0;
    for (int i = 0; i < n; i++) {
        joins[i].failures = &failures;
        int error = thread_start(&joins[i].thread, join_local, &joins[i]);
        joins[i].started = error == 0;
        if (error != 0 && status == CTRT_OK) {
            status = ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "comm_new_local: cannot create a thread for rank %d: %s", i,
                               strerror(error));
            for (int other = 0; other < n; other++)     /* ends the waits of the other ranks */
                (void)failure_alarm(&joins[other].comm->failure);
        }
    }
    for (int i = 0; i < n; i++)
        if (joins[i].started)
            pthread_join(joins[i].thread, NULL);
    for (int i = 0; i < n; i++) {
        if (joins[i].first && status == CTRT_OK)        /* the errors of the other ranks follow from this one */
            status = ctrt_fail(joins[i].status, "comm_new_local: rank %d: %s", i, joins[i].error ? joins[i].error : "");
        host_free(joins[i].error);
    }
    return status;
}

/* Creates rank `rank` of a group whose store is joins[0].comm's. */
static ctrt_status local_rank_new(struct local_join *joins, int rank, ctrt_device *const *devices, int n,
                                  const ctrt_comm_options *options, const char *id)
{
    const char *name = options->name ? options->name : "local";
    ctrt_comm **const out = &joins[rank].comm, *const first = joins[0].comm;
    CTRT_TRY(rank > 0 ? comm_alloc_like(out, first, rank, n, name) : comm_alloc(out, rank, n, name, options->timeout));
    ctrt_comm *comm = *out;
    comm->group.local = true;
    comm->device = devices[rank];
    CTRT_TRY(comm_set_id(comm, id));
    if (rank > 0) {                         /* the same list, because n lists would need n * n members */
        comm_members_release(comm->group.members);
        comm->group.members = first->group.members;
        atomic_fetch_add(&comm->group.members->refs, 1);
    } else {
        CTRT_TRY(use_engine(comm, options->engine ? options->engine : LOCAL_ENGINE));
        CTRT_TRY(ctrt_store_open(&comm->store, id, true, CTRT_DEFAULT_SECONDS));
    }
    comm_member_fill(&comm->group.members->list[rank], comm);
    return CTRT_OK;
}

ctrt_status ctrt_comm_new_local(ctrt_comm **out, ctrt_device *const *devices, int n, const ctrt_comm_options *options)
{
    static atomic_uint groups;
    ctrt_comm_options given = CTRT_COMM_OPTIONS;
    char id[64];
    CANCEL_DISABLED;
    NULL_CHECKS("comm_new_local", out, devices);
    if (n < 1 || n > 4096)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "comm_new_local: %d ranks, expected 1 to 4096", n);
    for (int i = 0; i < n; i++)
        if (devices[i] == NULL)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "comm_new_local: devices[%d] is NULL", i);
    CTRT_TRY(struct_read(&given, sizeof given, options, "comm_new_local", "options"));
    CTRT_TRY(read_timeout(&given.timeout, given.timeout));
    struct local_join *joins = host_calloc((size_t)n * sizeof *joins);
    ALLOC_CHECK(joins, (size_t)n * sizeof *joins, "a group");
    snprintf(id, sizeof id, "local://ctrt-group-%u", atomic_fetch_add(&groups, 1));
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < n && status == CTRT_OK; i++)
        status = local_rank_new(joins, i, devices, n, &given, id);
    if (status == CTRT_OK)
        status = connect_local(joins, n);
    for (int i = 0; i < n; i++)
        (void)comm_give(&out[i], joins[i].comm, status);
    host_free(joins);
    return status;
}

/* ---- splitting ---- */

/* The arguments of ctrt_comm_split that the ranks exchange. */
struct choice {
    int64_t color, key;
};

static ctrt_status gather_choices(struct choice *all, ctrt_comm *comm, struct choice own)
{
    CTRT_AUTO(tensor) in = NULL, out = NULL;
    CTRT_TRY(ctrt_from_data(&in, &own, 2, CTRT_SHAPE(2), CTRT_I64, comm->device));
    CTRT_TRY(ctrt_empty(&out, CTRT_SHAPE(comm->group.size, 2), CTRT_I64, comm->device));
    CTRT_TRY(ctrt_comm_all_gather(NULL, comm, out, in));
    CTRT_TRY(ctrt_to_host(all, (size_t)comm->group.size * sizeof *all, out, CTRT_I64));
    return comm_check(comm);
}

/* Writes the ranks of `comm` with this rank's color, ordered by key, then by rank. Returns their number. */
static int ranks_of_color(int *ranks, const ctrt_comm *comm, const struct choice *all)
{
    int count = 0;
    for (int rank = 0; rank < comm->group.size; rank++) {
        if (all[rank].color != all[comm->group.rank].color)
            continue;
        int at = count++;
        for (; at > 0 && all[ranks[at - 1]].key > all[rank].key; at--)
            ranks[at] = ranks[at - 1];
        ranks[at] = rank;
    }
    return count;
}

static ctrt_status split_join(ctrt_comm **out, ctrt_comm *comm, const int *ranks, int count, int64_t color)
{
    int rank = 0;
    char name[256], parent[COMM_SHORT];
    while (ranks[rank] != comm->group.rank)
        rank++;
    snprintf(name, sizeof name, "%.100s.%d", comm->group.name, (int)color);
    CTRT_TRY(comm_alloc_like(out, comm, rank, count, name));
    snprintf(name, sizeof name, "%s/split-%" PRIu64 "-%d", comm_shorten(parent, comm->group.id), comm->splits,
             (int)color);
    CTRT_TRY(comm_set_id(*out, name));
    for (int i = 0; i < count; i++)
        (*out)->group.members->list[i] = comm->group.members->list[ranks[i]];
    return comm_connect(*out, comm, ranks, (int)color);
}

/* Connects the new groups. `ranks`: memory for the numbers of all ranks. If the engine derives groups, an error of one
 * rank is an error of all, because the engine needs all ranks of `comm`. */
static ctrt_status split_connect(ctrt_comm **out, ctrt_comm *comm, int *ranks, const struct choice *all)
{
    const int color = (int)all[comm->group.rank].color;
    const bool derives = CTRT_SLOT(comm->engine, derive);
    ctrt_status status = CTRT_OK;
    if (derives)
        comm_timer_begin(&comm->lanes.lane[LANE_COLLECTIVES].timer);
    if (color >= 0)
        status = split_join(out, comm, ranks, ranks_of_color(ranks, comm, all), color);
    else if (derives)
        status = comm->engine->derive(NULL, NULL, comm->handle, NULL, -1);
    return status != CTRT_OK && derives ? comm_fail(comm, status, ctrt_error_message()) : status;
}

ctrt_status ctrt_comm_split(ctrt_comm **out, ctrt_comm *comm, int color, int key)
{
    CANCEL_DISABLED;
    NULL_CHECKS("comm_split", out, comm);
    CTRT_TRY(ctrt_context(capture_refuse(comm->device, "groups cannot be split there; split them before the capture"),
                          "comm_split"));
    const size_t size = (size_t)comm->group.size, bytes = size * (sizeof(struct choice) + sizeof(int));
    ctrt_comm *fresh = NULL;
    struct choice *all = host_alloc(bytes);
    ALLOC_CHECK(all, bytes, "comm_split");
    ctrt_status status = gather_choices(all, comm, (struct choice){ color, key });
    if (status == CTRT_OK) {
        comm->splits++;
        status = split_connect(&fresh, comm, (int *)(all + size), all);
    }
    host_free(all);
    return ctrt_context(comm_give(out, fresh, status), "comm_split");
}

/* ---- properties ---- */

int ctrt_comm_rank(const ctrt_comm *comm)
{
    return comm ? comm->group.rank : -1;
}

int ctrt_comm_size(const ctrt_comm *comm)
{
    return comm ? comm->group.size : 0;
}

ctrt_device *ctrt_comm_device(const ctrt_comm *comm)
{
    return comm ? comm->device : NULL;
}

const char *ctrt_comm_engine_name(const ctrt_comm *comm)
{
    return comm ? comm->engine_name : NULL;
}

const char *ctrt_comm_name(const ctrt_comm *comm)
{
    return comm ? comm->group.name : NULL;
}
