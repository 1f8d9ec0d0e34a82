/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/environment.h: the store of process groups that the environment names. */
#ifndef PARALLEL_ENVIRONMENT_H
#define PARALLEL_ENVIRONMENT_H

#include "ctrt/comm.h"

/* Writes the address of the store to out[ENVIRONMENT_STORE_BYTES]: the parameter CTRT_STORE, else tcp:// with
 * MASTER_ADDR and MASTER_PORT; "" if the environment names none. If torchrun's own store is on MASTER_PORT, the
 * address has the next port. */
#define ENVIRONMENT_STORE_BYTES 4096
ctrt_status environment_store(char *out);

/* Opens the store at `address` for the job of this process. Rank 0 serves it; if the address is in use, it must be by a
 * store of this job (store/job.h). `rank` -1: this process will get its number later. CTRT_ERR_STATE if another job
 * uses the store, or if another process is this rank. `seconds`: as in ctrt_store_open. The first store stays open
 * until the process ends, so that several groups can use it one after the other: if the server ended with one group,
 * ranks that have already joined the next group would lose their connections. A store at another address, of a later
 * call, is closed when its last reference is released. */
ctrt_status environment_open_store(ctrt_store **out, const char *address, int rank, double seconds);

#endif
