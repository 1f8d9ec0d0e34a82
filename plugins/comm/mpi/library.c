/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/library.c: finds libmpi, initialises and finalises MPI. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine.h"
#include "plugins/common/clock.h"

const ctrt_host *mpi_host;
const struct mpi_abi *mpi;

static const struct mpi_abi *const abis[] = { &mpi_abi_openmpi, &mpi_abi_mpich };
enum { ABIS = sizeof abis / sizeof abis[0] };

static const ctrt_param library_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_MPI_LIBRARY", .type = CTRT_PARAM_STRING,
    .help = "file of the MPI library: libmpi of Open MPI 4 or 5, or MPICH or a library with its ABI",
};
static const ctrt_param timeout_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_COMM_TIMEOUT", .type = CTRT_PARAM_INT, .fallback = "600",
    .help = "seconds that a collective may take",
};

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;      /* guards the loading and initialising */
static pthread_mutex_t call_lock = PTHREAD_MUTEX_INITIALIZER;
static bool serialized;                 /* MPI calls need call_lock */
static bool started;                    /* MPI is initialised */
static bool stuck;                      /* a thread waits in MPI_Init */
static bool forked;                     /* this process is a child of the one that initialised it */
struct mpi_exit mpi_exit;
/* Extensions that not all libraries have: of Open MPI, MPICH 4 and MVAPICH; of MPICH 4 and Cray MPICH. */
static int (*query_cuda_support)(void);
static int (*gpu_query_support)(int type, int *supported);

void mpi_lock(void)
{
    if (serialized)
        pthread_mutex_lock(&call_lock);
}

void mpi_unlock(void)
{
    if (serialized)
        pthread_mutex_unlock(&call_lock);
}

bool mpi_usable(void)
{
    int finalized = 1;
    return started && !forked && mpi->finalized(&finalized) == 0 && !finalized;
}

bool mpi_cuda_aware(void)
{
    enum { CUDA = 0 };                  /* MPIX_GPU_SUPPORT_CUDA */
    int supported = 0;
    mpi_lock();
    if (query_cuda_support != NULL)
        supported = query_cuda_support() == 1;
    else if (gpu_query_support != NULL && gpu_query_support(CUDA, &supported) != 0)
        supported = 0;
    mpi_unlock();
    return supported != 0;
}

/* ---- finding the library ---- */

static const char *variable(const char *name)
{
    const char *text = secure_getenv(name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* The process was started by an MPI launcher. *abi: the one whose libraries are tried first. */
static bool launched(int *abi)
{
    *abi = variable("OMPI_COMM_WORLD_SIZE") || variable("PMIX_RANK") ? 0 : 1;
    return *abi == 0 || variable("PMI_RANK") || variable("PMI_SIZE") || variable("PMI_FD") || variable("SLURM_STEP_ID");
}

static const struct mpi_abi *abi_of(void *library)
{
    for (int i = 0; i < ABIS; i++)
        if (abis[i]->symbol == NULL || dlsym(library, abis[i]->symbol) != NULL)
            return abis[i];
    return NULL;
}

/* Opens PREFIX/lib/SONAME, where the program that started this process is PREFIX/bin/NAME, because a process must use
 * the library of its launcher. */
static void *open_beside_launcher(const char *soname)
{
    char link[64], path[PATH_MAX + 128];
    snprintf(link, sizeof link, "/proc/%d/exe", (int)getppid());
    ssize_t length = readlink(link, path, PATH_MAX);
    for (int up = 0; up < 2 && length > 0; up++)
        while (length > 0 && path[--length] != '/')
            ;
    if (length <= 0)
        return NULL;
    snprintf(path + length, 128, "/lib/%s", soname);
    return access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
}

/* Modules of Open MPI use symbols of libmpi without linking it, hence RTLD_GLOBAL. */
static void *open_first(int first, bool loaded_only)
{
    for (int n = 0; n < ABIS; n++) {
        const struct mpi_abi *abi = abis[(first + n) % ABIS];
        for (int i = 0; i < 3 && abi->sonames[i] != NULL; i++) {
            void *library = loaded_only ? dlopen(abi->sonames[i], RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD)
                                        : open_beside_launcher(abi->sonames[i]);
            if (library == NULL && !loaded_only)
                library = dlopen(abi->sonames[i], RTLD_NOW | RTLD_GLOBAL);
            if (library != NULL)
                return library;
        }
    }
    return NULL;
}

/* Opens the MPI library that the program itself has loaded; NULL if it has none. */
static void *open_loaded(void)
{
    if (dlsym(RTLD_DEFAULT, "MPI_Init_thread") != NULL)
        return dlopen(NULL, RTLD_NOW);
    return open_first(0, true);
}

/* Opens the library and finds its functions. The caller holds start_lock. */
static ctrt_status mpi_load(void)
{
    ctrt_param_value given;
    const char *missing;
    int first;
    if (mpi != NULL)
        return CTRT_OK;
    if (mpi_host->param(&given, &library_param) != CTRT_OK)
        return CTRT_ERR_INVALID_ARGUMENT;
    (void)launched(&first);
    const bool named = given.text != NULL && given.text[0] != '\0';
    void *library = named ? dlopen(given.text, RTLD_NOW | RTLD_GLOBAL) : open_loaded();
    if (library == NULL && !named)
        library = open_first(first, false);
    if (library == NULL)
        return mpi_host->fail(CTRT_ERR_NOT_FOUND, named ? "CTRT_MPI_LIBRARY: %s"
                                                        : "no libmpi.so.40 (Open MPI 4 or 5), libmpi.so.12 or "
                                                          "libmpich.so.12 (MPICH) was found: %s", dlerror());
    const struct mpi_abi *found = abi_of(library);
    if (found == NULL || (missing = found->load(library)) != NULL)
        return mpi_host->fail(CTRT_ERR_NOT_SUPPORTED, "the MPI library has no %s", found ? missing : "known ABI");
    *(void **)&query_cuda_support = dlsym(library, "MPIX_Query_cuda_support");
    *(void **)&gpu_query_support = dlsym(library, "MPIX_GPU_query_support");
    mpi = found;
    return CTRT_OK;
}

int32_t mpi_probe(char *reason, size_t bytes)
{
    int first;
    const bool loaded = dlsym(RTLD_DEFAULT, "MPI_Init_thread") != NULL;
    if (!launched(&first) && !loaded) {
        snprintf(reason, bytes, "the process was not started by mpirun, mpiexec or srun");
        return 0;
    }
    if (!loaded && !variable("CTRT_MPI_LIBRARY") && open_first(first, true) == NULL
        && open_first(first, false) == NULL) {
        snprintf(reason, bytes, "no libmpi.so.40 (Open MPI), libmpi.so.12 or libmpich.so.12 (MPICH) was found");
        return 0;
    }
    reason[0] = '\0';
    return 1;
}

/* ---- initialising and finalising ---- */

double mpi_timeout(void)
{
    ctrt_param_value timeout;
    return mpi_host->param(&timeout, &timeout_param) == CTRT_OK && timeout.integer > 0 ? (double)timeout.integer : 600;
}

/* Seconds for which a process waits at its end for the others, if it ends early. */
enum { GRACE = 2 };

/* At the end of the process. MPI_Finalize may wait permanently for a process that does not call it, and mpirun ends all
 * processes when one ends without MPI_Finalize. Therefore a process waits here until all have arrived. If a process has
 * incomplete requests, for which MPI_Finalize could wait, no process calls it. Such a process waits only for a short
 * time, in which the others can write their reports. So does a process that has not left its groups, because the others
 * may be waiting for it in a collective, and find out about its end only when it ends. */
static void finalize(void)
{
    struct mpi_pause pause = { 0 };
    mpi_handle request;
    int done = 0;
    const bool incomplete = atomic_load(&mpi_exit.gave_up) || atomic_load(&mpi_exit.busy) > 0;
    const bool early = incomplete || atomic_load(&mpi_exit.groups) > 0;
    int64_t any_incomplete = incomplete;
    if (atomic_load(&mpi_exit.rebuilt) || !mpi_usable()
        || mpi->iallreduce(&any_incomplete, &any_incomplete, 1, CTRT_I64, CTRT_COMM_MAX, mpi->world(), &request) != 0)
        return;
    const double seconds = early ? GRACE : mpi_timeout();
    const int64_t end = clock_now(CLOCK_MONOTONIC) + (int64_t)(seconds * 1e9);
    while (mpi->test(&request, &done) == 0 && !done) {
        (void)mpi_pause(&pause, NULL, NULL);
        if (clock_now(CLOCK_MONOTONIC) > end)
            return;
    }
    if (done && !any_incomplete)
        (void)mpi->finalize();
}

/* Logs the first line of the library's version. */
static void log_version(void)
{
    char text[8192] = "";
    int length = 0;
    mpi->version(text, &length);
    text[strcspn(text, "\n")] = '\0';
    mpi_host->log(CTRT_LOG_INFO, "mpi", "%s, with the ABI of %s", text, mpi->name);
}

/* MPI_Init may take as long, also if the time limit of collectives is less: the processes start in it. */
static const double INIT_SECONDS = 10;

static int init_call(void *level)
{
    return mpi->init(level);
}

/* MPI_Init returns when all processes of the job have called it, so it never returns if one of them is missing. */
static ctrt_status init_bounded(int *out, double seconds)
{
    int error = 0, *level = calloc(1, sizeof *level);
    bool returned;
    if (level == NULL)
        return mpi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for MPI_Init");
    CTRT_TRY(mpi_bounded(&returned, &error, init_call, level, seconds, NULL));
    stuck = !returned;
    if (stuck)
        return mpi_host->fail(CTRT_ERR_COMM, "MPI_Init did not complete within %g s: a process of the job has not "
                              "called it, because it does not create a communicator, is stopped, or has not started",
                              seconds);
    *out = *level;
    free(level);
    return error == 0 ? CTRT_OK : mpi_host->fail(CTRT_ERR_COMM, "MPI_Init_thread: error %d", error);
}

static ctrt_status initialize(double seconds)
{
    int flag = 0, level = 0;
    if (stuck)
        return mpi_host->fail(CTRT_ERR_COMM, "MPI_Init still waits for other processes since an earlier call");
    CTRT_TRY(mpi_load());
    if (mpi->finalized(&flag) == 0 && flag)
        return mpi_host->fail(CTRT_ERR_STATE, "the program has called MPI_Finalize; MPI cannot be used any more");
    (void)mpi->initialized(&flag);
    if (!flag) {
        CTRT_TRY(init_bounded(&level, seconds > INIT_SECONDS ? seconds : INIT_SECONDS));
        (void)mpi->return_errors(mpi->world());
        atexit(finalize);
    } else {
        (void)mpi->query_thread(&level);
        if (level < MPI_LEVEL_MULTIPLE)
            mpi_host->log(CTRT_LOG_WARNING, "mpi", "the program has initialised MPI without MPI_THREAD_MULTIPLE; it "
                          "must not call MPI while collectives of ctrt run");
    }
    log_version();
    serialized = level < MPI_LEVEL_MULTIPLE;
    started = true;
    return CTRT_OK;
}

ctrt_status mpi_start(double seconds)
{
    pthread_mutex_lock(&start_lock);
    ctrt_status status = started ? CTRT_OK : initialize(seconds);
    pthread_mutex_unlock(&start_lock);
    if (status == CTRT_OK && forked)
        return mpi_host->fail(CTRT_ERR_STATE, "MPI cannot be used after fork");
    return status;
}

static void after_fork_in_child(void)
{
    forked = started;
}

void mpi_init_library(const ctrt_host *host)
{
    mpi_host = host;
    if (CTRT_SLOT(host, at_fork))
        (void)host->at_fork(NULL, NULL, after_fork_in_child);
}
