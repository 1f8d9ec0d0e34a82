/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/environment.h: what the launcher of a program with several ranks has put into the environment. */
#ifndef PARALLEL_ENVIRONMENT_H
#define PARALLEL_ENVIRONMENT_H

#include "ctrt/comm.h"

struct rank_environment {
    int rank, size, local_rank, local_size;
    const char *launcher;               /* "torchrun", "Open MPI", "MPICH", "Slurm"; NULL: none, rank 0 of 1 */
};

/* Reads the variables of the first launcher in the order above that has set its own. Without variables for the local
 * rank and size, all ranks are assumed to be on one machine. CTRT_ERR_INVALID_ARGUMENT; the message names the variable.
 * Reads the environment like getenv. */
ctrt_status environment_read(struct rank_environment *out);

/* Writes the address of the store to out[ENVIRONMENT_STORE_BYTES]: the parameter CTRT_STORE, else tcp:// with
 * MASTER_ADDR and MASTER_PORT; "" if the environment names none. If torchrun's own store is on MASTER_PORT, the next
 * port. */
#define ENVIRONMENT_STORE_BYTES 4096
ctrt_status environment_store(char *out);

/* Opens the store of the environment. Rank 0 serves it, unless another process serves that address already. A process
 * keeps the store open until it ends, so that several groups can use it one after the other: a server that ended with
 * one group would end the connections of ranks that have joined the next one already. A later call with another address
 * opens a store that the process does not keep. */
ctrt_status environment_open_store(ctrt_store **out, const char *address, int rank, double seconds);

#endif
