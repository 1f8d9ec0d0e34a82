/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/rebuild.c: groups of an epoch after a loss, by ULFM (User Level Failure Mitigation).
 *
 * MPI_Comm_create_group fails on MPI_COMM_WORLD after a process has ended. MPIX_Comm_shrink creates a communicator of
 * the processes that MPI has not lost, and groups are then created from this communicator. All of these processes call
 * MPIX_Comm_shrink once in each epoch, before any step that may fail, so their calls match even if a process ends
 * meanwhile. The call waits for every process that still runs, even if that process never makes the call. It therefore
 * runs in a thread of its own, with a time limit. */
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"

/* The most seconds that MPIX_Comm_shrink may take; the group's time limit applies if it is shorter. */
static const double SHRINK_SECONDS = 30;

struct shrink {
    pthread_mutex_t lock;
    bool done, abandoned;
    int error;
};

/* Returns whether the call has ended. If it has not and `abandon` is true, the thread frees `shrink` later. */
static bool end_of(struct shrink *shrink, bool abandon)
{
    pthread_mutex_lock(&shrink->lock);
    const bool done = shrink->done;
    shrink->abandoned = abandon && !done;
    pthread_mutex_unlock(&shrink->lock);
    return done;
}

static void *run(void *argument)
{
    struct shrink *shrink = argument;
    const int error = mpi->shrink();
    pthread_mutex_lock(&shrink->lock);
    shrink->error = error;
    shrink->done = true;
    const bool abandoned = shrink->abandoned;
    pthread_mutex_unlock(&shrink->lock);
    if (abandoned)
        free(shrink);
    return NULL;
}

ctrt_status mpi_rebuild(const ctrt_comm_config *config)
{
    const double limit = config->timeout < SHRINK_SECONDS ? config->timeout : SHRINK_SECONDS;
    struct timespec now, begin;
    pthread_t thread;
    sigset_t all, before;
    if (!mpi->can_shrink())
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "this MPI library has no MPIX_Comm_shrink, so the other ranks cannot "
                         "continue when one is lost; this needs Open MPI 5 and mpirun --with-ft ulfm; on one machine, "
                         "`ctrt run` with the engine host also supports it");
    struct shrink *shrink = calloc(1, sizeof *shrink);
    if (shrink == NULL)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no memory for a group");
    mpi_set_rebuilt();
    pthread_mutex_init(&shrink->lock, NULL);
    sigfillset(&all);                       /* the program's handlers run in its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, NULL, run, shrink);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        free(shrink);
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no thread for MPIX_Comm_shrink");
    }
    pthread_detach(thread);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        usleep(500);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (end_of(shrink, false)) {
            const int result = shrink->error;
            free(shrink);
            return result == 0 ? CTRT_OK : mpi_failed("MPIX_Comm_shrink", result);
        }
    } while ((double)(now.tv_sec - begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - begin.tv_nsec) < limit);
    if (end_of(shrink, true))
        free(shrink);                       /* it has ended now, but other ranks may have exceeded their limit */
    mpi_give_up();
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "MPIX_Comm_shrink did not complete within %g s, because a process that "
                     "still runs does not call it; MPI can exclude only processes that have ended", limit);
}
