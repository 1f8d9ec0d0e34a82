/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/environment.h: what the launcher of a program with several ranks has put into the environment. */
#ifndef PARALLEL_ENVIRONMENT_H
#define PARALLEL_ENVIRONMENT_H

#include "ctrt/comm.h"

struct environment {
    int rank, size, local_rank, local_size;
    const char *launcher;               /* "torchrun", "Open MPI", "MPICH", "Slurm"; NULL: none, rank 0 of 1 */
    bool mpi;                           /* a launcher that can start MPI programs: any but torchrun */
};

/* Reads the variables of the first launcher in the order above that has set its own. Without variables for the local
 * rank and size, all ranks are assumed to be on one machine. CTRT_ERR_INVALID_ARGUMENT; the message names the variable.
 * Reads the environment like getenv. */
ctrt_status environment_read(struct environment *out);

/* Writes the address of the store to out[ENVIRONMENT_ADDRESS]: the parameter CTRT_STORE, else tcp:// with MASTER_ADDR and
 * MASTER_PORT; "" if the environment names none. If torchrun's own store is on MASTER_PORT, the next port. */
#define ENVIRONMENT_ADDRESS 4096
ctrt_status environment_address(char *out);

/* Opens the store of the environment for `rank` of `size`; rank 0 serves it. A process keeps it open until it ends, so
 * that several groups can use it one after the other: a server that ended with one group would end the connections of
 * ranks that have joined the next one already. A single rank gets a store in its process.
 *
 * On success *out owns a reference. CTRT_ERR_NOT_FOUND if the environment names no store; `environment` is for the
 * message. */
ctrt_status environment_store(ctrt_store **out, const struct environment *environment, int rank, int size,
                              double seconds);

#endif
