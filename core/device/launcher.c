/* SPDX-License-Identifier: Apache-2.0 */
/* device/launcher.c: reads the variables of torchrun, Open MPI, MPICH and Slurm. */
#define _GNU_SOURCE
#include "device/launcher.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"

enum which { RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, VARIABLES };

/* A launcher is recognised if its variable for the rank or its variable for the size is set; with `both`, only if both
 * are set, because a batch script of Slurm has SLURM_PROCID also outside of a job step. The second name of a variable
 * is used if the first one is not set. torchrun comes first because srun and mpirun often start torchrun. */
static const struct launcher {
    const char *name;
    bool both;
    const char *variables[VARIABLES][2];
    const char *job[2];                 /* variables that together number the job */
    const char *unnumbered;             /* value of job[0] that several jobs can have */
} launchers[] = {
    { "torchrun", false, { { "RANK" }, { "WORLD_SIZE" }, { "LOCAL_RANK" }, { "LOCAL_WORLD_SIZE" } },
      { "TORCHELASTIC_RUN_ID" }, "none" },
    { "Open MPI", false, { { "OMPI_COMM_WORLD_RANK" }, { "OMPI_COMM_WORLD_SIZE" }, { "OMPI_COMM_WORLD_LOCAL_RANK" },
                           { "OMPI_COMM_WORLD_LOCAL_SIZE" } }, { "PMIX_NAMESPACE" }, NULL },
    { "MPICH", false, { { "PMI_RANK" }, { "PMI_SIZE" }, { "MPI_LOCALRANKID", "PMI_LOCAL_RANK" },
                        { "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE" } }, { "PMIX_NAMESPACE" }, NULL },
    { "Slurm", true, { { "SLURM_PROCID" }, { "SLURM_STEP_NUM_TASKS" }, { "SLURM_LOCALID" }, { NULL } },
      { "SLURM_JOB_ID", "SLURM_STEP_ID" }, NULL },
};

const char *launcher_variable(const char *name)
{
    const char *text = name != NULL ? secure_getenv(name) : NULL;
    return text != NULL && text[0] != '\0' ? text : NULL;
}

ctrt_status launcher_malformed(const char *name, const char *text, const char *wanted)
{
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the environment variable %s is \"%s\", expected %s", name, text,
                     wanted);
}

ctrt_status launcher_missing(const char *present, const char *missing)
{
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the environment variable %s is set, but %s is not; set both or "
                     "unset both", present, missing);
}

bool launcher_digits(int *out, const char **rest)
{
    const size_t digits = strspn(*rest, "0123456789");
    *out = digits > 0 && digits < 10 ? atoi(*rest) : 0;
    *rest += digits;
    return digits > 0 && digits < 10;
}

/* Reads the first variable of names[2] that is set. *name: the name of that variable; NULL if neither is set. */
static ctrt_status launcher_read_number(int *out, const char **name, const char *const names[2])
{
    for (int i = 0; i < 2; i++) {
        const char *text = launcher_variable(names[i]), *rest = text;
        *name = text != NULL ? names[i] : NULL;
        if (text == NULL)
            continue;
        return launcher_digits(out, &rest) && *rest == '\0' ? CTRT_OK : launcher_malformed(*name, text, "a number");
    }
    return CTRT_OK;
}

/* Reads the tasks of this node from a list such as "4(x2),3": nodes 0 and 1 have 4 tasks, node 2 has 3. */
static ctrt_status read_slurm_local_size(int *out, const char **name)
{
    static const char *const node_names[2] = { "SLURM_NODEID" };
    const char *text = launcher_variable("SLURM_STEP_TASKS_PER_NODE"), *rest = text, *node_name;
    int node = 0;
    *name = NULL;
    CTRT_TRY(launcher_read_number(&node, &node_name, node_names));
    if (text == NULL || node_name == NULL)
        return CTRT_OK;
    for (int tasks = 0, nodes = 1; launcher_digits(&tasks, &rest); node -= nodes, nodes = 1) {
        if (strncmp(rest, "(x", 2) == 0) {
            rest += 2;
            if (!launcher_digits(&nodes, &rest) || *rest++ != ')')
                break;
        }
        if (node < nodes) {
            *out = tasks;
            *name = "SLURM_STEP_TASKS_PER_NODE";
            return CTRT_OK;
        }
        if (*rest++ != ',')
            break;
    }
    return launcher_malformed("SLURM_STEP_TASKS_PER_NODE", text,
                              "the number of tasks on each node up to SLURM_NODEID, such as 4(x2),3");
}

static ctrt_status check_range(const char *name, int value, const char *size_name, int size)
{
    if (value < size)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the environment variable %s is %d, expected less than %s, which is %d",
                     name, value, size_name, size);
}

static ctrt_status read_launcher(struct rank_environment *out, const struct launcher *launcher)
{
    const char *names[VARIABLES];
    int values[VARIABLES] = { 0 };
    for (int i = 0; i < VARIABLES; i++)
        CTRT_TRY(launcher_read_number(&values[i], &names[i], launcher->variables[i]));
    if (launcher->variables[LOCAL_SIZE][0] == NULL)
        CTRT_TRY(read_slurm_local_size(&values[LOCAL_SIZE], &names[LOCAL_SIZE]));
    for (int i = 0; i < 2; i++)
        if (names[i] == NULL)
            return launcher_missing(names[!i], launcher->variables[i][0]);
    CTRT_TRY(check_range(names[RANK], values[RANK], names[SIZE], values[SIZE]));
    if (names[LOCAL_RANK] == NULL) {
        values[LOCAL_RANK] = values[RANK];
        values[LOCAL_SIZE] = values[SIZE];
    } else if (names[LOCAL_SIZE] == NULL) {
        names[LOCAL_SIZE] = names[SIZE];
        values[LOCAL_SIZE] = values[SIZE];
    }
    if (names[LOCAL_RANK] != NULL)
        CTRT_TRY(check_range(names[LOCAL_RANK], values[LOCAL_RANK], names[LOCAL_SIZE], values[LOCAL_SIZE]));
    *out = (struct rank_environment) { values[RANK], values[SIZE], values[LOCAL_RANK], values[LOCAL_SIZE],
                                       launcher->name, launcher->variables[RANK][0] };
    return CTRT_OK;
}

ctrt_status launcher_read(struct rank_environment *out)
{
    for (size_t i = 0; i < COUNT_OF(launchers); i++) {
        const bool rank = launcher_variable(launchers[i].variables[RANK][0]) != NULL;
        const bool size = launcher_variable(launchers[i].variables[SIZE][0]) != NULL;
        if (launchers[i].both ? rank && size : rank || size)
            return read_launcher(out, &launchers[i]);
    }
    *out = (struct rank_environment) { .size = 1, .local_size = 1 };
    return CTRT_OK;
}

bool launcher_job(char *out, const struct rank_environment *environment)
{
    const struct launcher *launcher = launchers;
    while (launcher < launchers + COUNT_OF(launchers) && environment->launcher != launcher->name)
        launcher++;
    const bool known = launcher < launchers + COUNT_OF(launchers);
    const char *first = launcher_variable(known ? launcher->job[0] : NULL);
    const char *second = launcher_variable(known ? launcher->job[1] : NULL);
    const bool numbered = first != NULL && (launcher->unnumbered == NULL || strcmp(first, launcher->unnumbered) != 0)
                          && (launcher->job[1] == NULL || second != NULL);
    if (numbered)
        snprintf(out, LAUNCHER_JOB_BYTES, "%.60s%s%.20s of %s", first, second != NULL ? "." : "",
                 second != NULL ? second : "", launcher->name);
    else
        snprintf(out, LAUNCHER_JOB_BYTES, "%d ranks without the number of a job", environment->size);
    return numbered;
}
