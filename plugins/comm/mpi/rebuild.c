/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/mpi/rebuild.c: groups of an epoch after a loss, by ULFM (User Level Failure Mitigation).
 *
 * MPI_Comm_create_group fails on MPI_COMM_WORLD after a process has ended. MPIX_Comm_shrink creates a communicator of
 * the processes that MPI has not lost, and groups are then created from this communicator. All of these processes call
 * MPIX_Comm_shrink once in each epoch, before any step that may fail, so their calls match even if a process ends
 * meanwhile. The call waits for every process that still runs, even if that process never makes the call. It therefore
 * has a time limit (bounded.c). */
#include "engine.h"

/* The most seconds that MPIX_Comm_shrink may take; the group's time limit applies if it is shorter. */
static const double SHRINK_SECONDS = 30;

static int shrink(void *data)
{
    (void)data;
    return mpi->shrink();
}

ctrt_status mpi_rebuild(const ctrt_comm_config *config)
{
    const double limit = config->timeout < SHRINK_SECONDS ? config->timeout : SHRINK_SECONDS;
    bool returned;
    int error = 0;
    if (!mpi->can_shrink())
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "this MPI library has no MPIX_Comm_shrink, so the other ranks cannot "
                         "continue when one is lost; this needs Open MPI 5 and mpirun --with-ft ulfm; on one machine, "
                         "`ctrt run` with the engine host also supports it");
    atomic_store(&mpi_exit.rebuilt, true);
    CTRT_TRY(mpi_bounded(&returned, &error, shrink, NULL, limit, NULL));
    if (!returned)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "MPIX_Comm_shrink did not complete within %g s, because a process "
                         "that still runs does not call it; MPI can exclude only processes that have ended", limit);
    return error == 0 ? CTRT_OK : mpi_failed("MPIX_Comm_shrink", error);
}
