/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/broken_comm.c: the engine `host`, or CTRT_BROKEN_ENGINE (comm-NAME.so in the folder of this plugin),
 * which CTRT_BROKEN=DEFECT breaks, to test that `ctrt check --contract` finds the defect. tests/integration/contract.sh
 * and mpi.sh list the defects with the check that has to find each. Without a defect, every call is passed on. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ctrt/comm_plugin.h"
#include "ctrt/ctrt.h"

static const ctrt_host *host;
static const ctrt_comm_engine *inner;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool broken(const char *defect)
{
    const char *text = getenv("CTRT_BROKEN");
    return text != NULL && strcmp(text, defect) == 0;
}

static void pause_for(int milliseconds)
{
    nanosleep(&(struct timespec){ milliseconds / 1000, milliseconds % 1000 * 1000000L }, NULL);
}

struct comm {
    const ctrt_comm_config *outer;
    ctrt_comm_config config;                    /* of the inner engine, with the functions below */
    void *inner;
    _Atomic double polled;
    bool joined;
    void *kept;                                 /* the last address of alloc */
};

/* ---- the functions of the inner engine's config, whose `state` is that of the outer one ---- */

static __thread struct comm *current;            /* the group of the call */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static ctrt_status poll_outer(void *state)
{
    struct comm *comm = current;
    if (broken("poll_never") || (broken("create_hangs") && !comm->joined))
        return CTRT_OK;
    if (broken("poll_seldom") && now() < comm->polled + 2.5)
        return CTRT_OK;
    comm->polled = now();
    ctrt_status status = comm->outer->poll(broken("poll_state") && comm->joined ? comm->outer->state : state);
    if (status != CTRT_OK && broken("poll_status"))
        return host->fail(CTRT_ERR_BACKEND, "poll: the engine broken has another status");
    if (status != CTRT_OK && broken("poll_message"))
        return host->fail(status, "another rank has failed");
    return status;
}

static ctrt_status poll_nothing(void *state)
{
    (void)state;
    return CTRT_OK;
}

static ctrt_status mismatch_outer(void *state, const ctrt_comm_signature *signatures)
{
    if (broken("mismatch_unreported"))
        return host->fail(CTRT_ERR_STATE, "the ranks differ");
    if (broken("mismatch_own")) {
        ctrt_comm_signature own[16] = { { 0 } };
        own[current->outer->rank] = signatures[current->outer->rank];
        return current->outer->mismatch(state, own);
    }
    return current->outer->mismatch(state, signatures);
}

/* ---- joining and leaving ---- */

static struct comm *first_comm;                 /* of the process */

static ctrt_status create(void **out, const ctrt_comm_config *config)
{
    struct comm *comm = host->alloc(sizeof *comm);
    if (comm == NULL && !broken("alloc_unchecked"))
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for a group");
    *comm = (struct comm){ .outer = config, .config = *config, .polled = now() };
    comm->config.poll = poll_outer;
    comm->config.mismatch = mismatch_outer;
    if (broken("rank_order"))
        comm->config.rank = config->world - 1 - config->rank;
    if (broken("no_single") && config->world == 1)
        pause_for(30000);
    current = comm;
    ctrt_status status = inner->create(&comm->inner, &comm->config);
    comm->joined = true;
    if (status == CTRT_OK) {
        if (first_comm == NULL)
            first_comm = comm;
        *out = comm;
        return CTRT_OK;
    }
    if (!broken("create_leaks"))
        host->free(comm);
    return broken("create_silent") ? CTRT_ERR_BACKEND : status;
}

/* A barrier that the library has not called. */
static void own_barrier(struct comm *comm)
{
    const ctrt_comm_call call = {
        .size = sizeof call, .peer = -1, .state = comm->outer->state,
        .signature = { .sequence = 1u << 30, .collective = CTRT_COLLECTIVE_BARRIER, .root = -1 },
    };
    comm->config.poll = poll_nothing;
    (void)inner->run(comm->inner, &call);
}

static void destroy(void *state)
{
    struct comm *comm = state;
    current = comm;
    if (broken("destroy_waits"))
        own_barrier(comm);
    if (!broken("destroy_leak"))
        inner->destroy(comm->inner);
    if (!broken("own_leak"))
        host->free(comm);
}

/* ---- results ---- */

/* What a defect does to the call before the inner engine runs it, or to its result afterwards. */
static bool before_call(struct comm *comm, ctrt_comm_call *call)
{
    const uint32_t collective = call->signature.collective;
    const bool reduces = collective == CTRT_COLLECTIVE_ALL_REDUCE || collective == CTRT_COLLECTIVE_REDUCE
                         || collective == CTRT_COLLECTIVE_REDUCE_SCATTER;
    if (broken("barrier_nothing") && collective == CTRT_COLLECTIVE_BARRIER)
        return false;
    if (broken("rank_dropped") && reduces && call->signature.op == CTRT_COMM_SUM && comm->outer->rank == 1)
        memset((void *)call->send, 0, call->bytes);
    if (broken("width") && call->signature.dtype == CTRT_F64 && reduces)
        call->signature.dtype = CTRT_F32, call->signature.count *= 2;
    if (broken("average_sum") && reduces && call->signature.op == CTRT_COMM_AVERAGE)
        call->signature.op = CTRT_COMM_SUM;
    if (broken("min_max") && reduces && call->signature.op == CTRT_COMM_MIN)
        call->signature.op = CTRT_COMM_MAX;
    if (broken("root_zero") && call->peer < 0 && call->signature.root > 0)
        call->signature.root = 0;
    if (broken("dtype_unchecked") && reduces)
        call->signature.dtype = CTRT_F32;
    if (broken("message_unchecked") && call->peer >= 0)
        call->signature.count = 10, call->bytes = 40;
    if (broken("mismatch_writes") && call->receive != NULL && reduces)
        memset(call->receive, 0, call->bytes);
    if (broken("message_small") && call->peer >= 0 && call->bytes > 4)
        call->bytes -= 4;
    return true;
}

static void after_call(struct comm *comm, const ctrt_comm_call *call)
{
    const uint32_t collective = call->signature.collective;
    char *receive = call->receive;
    const size_t world = (size_t)comm->outer->world, rank = (size_t)comm->outer->rank, bytes = call->bytes;
    if (receive == NULL || bytes == 0)
        return;
    if (broken("overrun") && call->peer < 0)
        memset(receive + bytes, 0, 1);
    if (broken("writes_input") && collective == CTRT_COLLECTIVE_ALL_REDUCE)
        memcpy((void *)call->send, receive, bytes);
    if (broken("gather_reversed") && (collective == CTRT_COLLECTIVE_GATHER || collective == CTRT_COLLECTIVE_ALL_GATHER))
        for (size_t i = 0; i < bytes; i++) {
            const char first = receive[i];
            receive[i] = receive[(world - 1) * bytes + i];
            receive[(world - 1) * bytes + i] = first;
        }
    if (broken("scatter_first") && collective == CTRT_COLLECTIVE_SCATTER && call->send != NULL)
        memcpy(receive, call->send, bytes);
    if (broken("own_part") && collective == CTRT_COLLECTIVE_ALL_TO_ALL)
        memcpy(receive, (const char *)call->send + rank * bytes, bytes);
    if (broken("shift") && collective == CTRT_COLLECTIVE_REDUCE_SCATTER && bytes > 8)
        memmove(receive, receive + 8, bytes - 8);
    if (broken("tail") && bytes % 16 != 0)
        memset(receive + bytes / 16 * 16, 0, bytes % 16);
    if (broken("large_only") && bytes > 1 << 20)
        memset(receive + bytes / 2, 0, 64);
    if (broken("broadcast_short") && collective == CTRT_COLLECTIVE_BROADCAST && (int)rank != call->signature.root)
        memset(receive, 0, 1);
}

/* Runs the call on a stream that is not the calling thread's current one. */
static ctrt_status run_apart(struct comm *comm, const ctrt_comm_call *call)
{
    CTRT_AUTO(stream) stream = NULL;
    ctrt_status status = CTRT_OK;
    CTRT_TRY(ctrt_stream_new(&stream, comm->outer->device, 0));
    ctrt_on_stream(stream) status = inner->run(comm->inner, call);
    return status;
}

struct late {
    struct comm *comm;
    ctrt_comm_call call;
    char *copy;
};

/* Completes an all_reduce after run has returned. */
static void *late_thread(void *argument)
{
    struct late *late = argument;
    pause_for(20);
    memcpy(late->call.receive, late->copy, late->call.bytes);
    free(late->copy);
    free(late);
    return NULL;
}

static ctrt_status run_late(struct comm *comm, const ctrt_comm_call *call)
{
    struct late *late = malloc(sizeof *late);
    pthread_t thread;
    *late = (struct late){ comm, *call, malloc(call->bytes) };
    late->call.receive = call->receive;
    ctrt_comm_call copied = *call;
    copied.receive = late->copy;
    const ctrt_status status = inner->run(comm->inner, &copied);
    pthread_create(&thread, NULL, late_thread, late);
    pthread_detach(thread);
    return status;
}

static struct comm *static_comm;                /* for the defect thread_static */
static ctrt_comm_call static_call;

static ctrt_status run(void *state, const ctrt_comm_call *outer)
{
    struct comm *comm = state;
    ctrt_comm_call call = *outer;
    if (broken("crash") && comm->outer->rank == 1)
        abort();
    if (broken("zero_refused") && call.bytes == 0 && call.signature.dtype != 0)
        return host->fail(CTRT_ERR_INVALID_ARGUMENT, "broken: no elements");
    static_comm = comm, static_call = call;
    current = comm;
    if (!before_call(comm, &call))
        return CTRT_OK;
    if (broken("lock"))
        pthread_mutex_lock(&lock);
    if (broken("thread_static")) {
        pause_for(1);
        call = static_call;
        current = comm = static_comm;
    }
    ctrt_status status;
    if (broken("returns_early") && call.signature.collective == CTRT_COLLECTIVE_ALL_REDUCE && call.bytes > 0)
        status = run_late(comm, &call);
    else if (broken("other_stream"))
        status = run_apart(comm, &call);
    else
        status = inner->run((broken("group_name") ? first_comm : comm)->inner, &call);
    if (broken("lock"))
        pthread_mutex_unlock(&lock);
    if (status == CTRT_OK && call.queue == NULL)
        after_call(comm, &call);
    if (status == CTRT_OK && broken("enqueued_waits"))
        status = ctrt_device_synchronize(comm->outer->device);
    if (status == CTRT_OK && broken("enqueued_once") && ctrt_capture_running(comm->outer->device))
        status = host->fail(CTRT_ERR_STATE, "broken: not in a capture");
    if (broken("poll_first") && status == CTRT_OK && call.peer < 0)
        status = poll_outer(call.state);
    return status;
}

static bool reaches_device(void *state, const ctrt_comm_call *call)
{
    if (broken("reaches_null"))
        return *(const volatile char *)call->send != 0;
    return inner->reaches_device(((struct comm *)state)->inner, call);
}

static ctrt_status bootstrap(int32_t *rank, int32_t *size, void *data, size_t bytes)
{
    return inner->bootstrap(rank, size, data, bytes);
}

static bool connects(int32_t world, int32_t hosts, int32_t processes)
{
    return inner->connects(world, hosts, processes);
}

/* ---- memory ---- */

static ctrt_status alloc(void *state, void **address, size_t bytes)
{
    struct comm *comm = state;
    current = comm;
    if (broken("alloc_alone") && comm->outer->rank == 0 && bytes > (size_t)1 << 40)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory");
    if (broken("alloc_alone"))
        bytes = bytes > (size_t)1 << 40 ? 64 : bytes;
    ctrt_status status = inner->alloc(comm->inner, address, bytes);
    if (status != CTRT_OK && broken("alloc_status"))
        return host->fail(CTRT_ERR_BACKEND, "broken: another status");
    if (status != CTRT_OK || *address == NULL)
        return status;
    if (broken("alloc_dirty"))
        memset(*address, 1, bytes);
    if (broken("alloc_same") && comm->kept != NULL)
        *address = comm->kept;
    comm->kept = *address;
    return CTRT_OK;
}

/* ---- with CTRT_COMM_ENQUEUES ---- */

static void abort_group(void *state)
{
    if (!broken("abort_nothing"))
        inner->abort(((struct comm *)state)->inner);
}

static ctrt_status poll_error(void *state)
{
    struct comm *comm = state;
    if (broken("error_always"))
        return host->fail(CTRT_ERR_COMM, "broken: an error");
    if (broken("error_waits"))
        CTRT_TRY(ctrt_device_synchronize(comm->outer->device));
    return inner->poll_error(comm->inner);
}

static ctrt_status derive(void **out, const ctrt_comm_config *config, void *parent, const int32_t *ranks, int32_t color)
{
    struct comm *outer = parent, *comm = NULL;
    if (config == NULL && broken("derive_none"))
        return host->fail(CTRT_ERR_INVALID_ARGUMENT, "broken: no group");
    if (config == NULL)
        return inner->derive(NULL, NULL, outer->inner, NULL, color);
    if ((broken("derive_shrunk") && color < 0) || (comm = host->alloc(sizeof *comm)) == NULL)
        return host->fail(CTRT_ERR_BACKEND, "broken: no group without the rank that has ended");
    *comm = (struct comm){ .outer = config, .config = *config, .polled = now() };
    comm->config.poll = poll_outer;
    if (broken("derive_order"))
        comm->config.rank = config->world - 1 - config->rank;
    current = comm;
    const ctrt_status status = inner->derive(&comm->inner, &comm->config, outer->inner, ranks, color);
    comm->joined = true;
    *out = status == CTRT_OK ? comm : NULL;
    if (status != CTRT_OK)
        host->free(comm);
    if (broken("derive_ends") && color >= 0)
        inner->abort(outer->inner);
    return status;
}

static void free_memory(void *state, void *address)
{
    struct comm *comm = state;
    current = comm;
    if (broken("free_waits"))
        own_barrier(comm);
    inner->free(comm->inner, address);
}

/* ---- the plugin ---- */

static const char *inner_name(void)
{
    const char *name = getenv("CTRT_BROKEN_ENGINE");
    return name != NULL ? name : "host";
}

static ctrt_comm_engine engine = {
    .size = sizeof(ctrt_comm_engine), .create = create, .destroy = destroy, .run = run,
    .reaches_device = reaches_device, .connects = connects, .alloc = alloc, .free = free_memory,
};

static void end_of_process(void)
{
    if (first_comm != NULL)
        own_barrier(first_comm);
}

static ctrt_status init(const ctrt_host *table)
{
    char path[4096];
    Dl_info self;
    host = table;
    if (dladdr((void *)&engine, &self) == 0 || strrchr(self.dli_fname, '/') == NULL)
        return host->fail(CTRT_ERR_NOT_FOUND, "the folder of this plugin");
    snprintf(path, sizeof path, "%.*s/comm-%s.so", (int)(strrchr(self.dli_fname, '/') - self.dli_fname),
             self.dli_fname, inner_name());
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = handle != NULL ? dlsym(handle, "ctrt_plugin_v1") : NULL;
    if (symbol == NULL)
        return host->fail(CTRT_ERR_NOT_FOUND, "%s", dlerror());
    ctrt_plugin_entry entry;
    memcpy(&entry, &symbol, sizeof entry);
    const ctrt_plugin *plugin = entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    inner = plugin->components[0].table;
    engine.flags = inner->flags;
    engine.abort = CTRT_SLOT(inner, abort) ? abort_group : NULL;
    engine.poll_error = CTRT_SLOT(inner, poll_error) ? poll_error : NULL;
    engine.derive = CTRT_SLOT(inner, derive) ? derive : NULL;
    if (!CTRT_SLOT(inner, connects))
        engine.connects = NULL;
    if (broken("abort_missing"))
        engine.abort = NULL;
    if (broken("exit_waits"))
        atexit(end_of_process);
    if (broken("free_missing"))
        engine.free = NULL;
    if (broken("flags_unknown"))
        engine.flags = 1u << 20;
    if (broken("run_missing"))
        engine.size = offsetof(ctrt_comm_engine, run);
    return plugin->init(table);
}

static ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_COMM, .name = "broken", .table = &engine },
};

__attribute__((constructor)) static void begin(void)
{
    if (strcmp(inner_name(), "mpi") == 0)
        engine.bootstrap = bootstrap;
    if (broken("name_upper"))
        components[0].name = "Broken";
}

CTRT_PLUGIN_DEFINE("comm-broken", "1.0", "an engine with a defect, for tests", components, init)
