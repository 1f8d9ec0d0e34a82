/* SPDX-License-Identifier: Apache-2.0 */
/* device/launcher.h: reads the environment variables that launchers set for the ranks of a program. */
#ifndef CORE_DEVICE_LAUNCHER_H
#define CORE_DEVICE_LAUNCHER_H

#include <stdbool.h>

#include "ctrt/types.h"

struct rank_environment {
    int rank, size, local_rank, local_size;
    const char *launcher;               /* "torchrun", "Open MPI", "MPICH", "Slurm"; NULL: no launcher, rank 0 of 1 */
    const char *rank_variable;          /* "RANK"; NULL: no launcher */
};

/* Reads the rank and size from the environment. If variables of several launchers are set, the first launcher in the
 * order above takes precedence. Without variables for the local rank and size, all ranks are assumed to be on one
 * machine. CTRT_ERR_INVALID_ARGUMENT if a variable is malformed or missing; the message names it. Like getenv, not safe
 * while another thread changes the environment. */
ctrt_status launcher_read(struct rank_environment *out);

/* Writes an identity of the job, which is the same for all of its ranks, to out[LAUNCHER_JOB_BYTES]: the launcher's
 * number of the job. Returns false if the launcher gives it none; then jobs of the same size have the same identity. */
#define LAUNCHER_JOB_BYTES 128
bool launcher_job(char *out, const struct rank_environment *environment);

/* Returns the value of a variable, or NULL if the variable is not set or empty. */
const char *launcher_variable(const char *name);
/* Reads a number of 1 to 9 decimal digits at *rest, and advances *rest to the text after all digits. Returns false if
 * there are no digits or more than 9. */
bool launcher_digits(int *out, const char **rest);
/* Both return CTRT_ERR_INVALID_ARGUMENT with a message. launcher_malformed: the variable `name` has the value `text`,
 * but `wanted` is expected. launcher_missing: the variable `present` is set, so `missing` must be set as well. */
ctrt_status launcher_malformed(const char *name, const char *text, const char *wanted);
ctrt_status launcher_missing(const char *present, const char *missing);

#endif
