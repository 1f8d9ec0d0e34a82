/* SPDX-License-Identifier: Apache-2.0 */
/* device/launcher.h: what the launcher of a program with several ranks has put into the environment. */
#ifndef CORE_DEVICE_LAUNCHER_H
#define CORE_DEVICE_LAUNCHER_H

#include <stdbool.h>

#include "ctrt/types.h"

struct rank_environment {
    int rank, size, local_rank, local_size;
    const char *launcher;               /* "torchrun", "Open MPI", "MPICH", "Slurm"; NULL: none, rank 0 of 1 */
};

/* Reads the rank and size from the environment. If several launchers have set variables, those of the first in the
 * order above count. Without variables for the local rank and size, all ranks are assumed to be on one machine.
 * CTRT_ERR_INVALID_ARGUMENT if a variable is malformed; the message names it.
 * Reads the environment like getenv. */
ctrt_status launcher_read(struct rank_environment *out);

/* Returns a variable that is set and not empty, else NULL. */
const char *launcher_variable(const char *name);
/* Reads decimal digits, a number of at most 9 digits. *rest: the text after them. */
bool launcher_digits(int *out, const char **rest);
/* Fails with CTRT_ERR_INVALID_ARGUMENT because of the text of a variable, or of one that should be set, too. */
ctrt_status launcher_malformed(const char *name, const char *text, const char *wanted);
ctrt_status launcher_missing(const char *present, const char *missing);

#endif
