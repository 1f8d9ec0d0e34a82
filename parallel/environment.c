/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/environment.c: reads the variables of torchrun, Open MPI, MPICH and Slurm. */
#define _GNU_SOURCE
#include "parallel/environment.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "base/param.h"
#include "base/thread.h"

static const ctrt_param store_param = {
    sizeof store_param, "CTRT_STORE", CTRT_PARAM_STRING, NULL, NULL,
    "address of the store of process groups: tcp://HOST:PORT or file://PATH; default: MASTER_ADDR and MASTER_PORT",
};
CORE_PARAM(store_param);

enum which { RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, VARIABLES };

/* A launcher is recognised by one of its variables for rank and size, or, `both`, by the two together. The second name
 * of a variable is used if the first is not set. torchrun comes first because srun and mpirun often start torchrun. In
 * a batch script of Slurm, outside of a job step, SLURM_PROCID is set and SLURM_STEP_NUM_TASKS is not. */
static const struct launcher {
    const char *name;
    bool both;
    const char *variables[VARIABLES][2];
} launchers[] = {
    { "torchrun", false, { { "RANK" }, { "WORLD_SIZE" }, { "LOCAL_RANK" }, { "LOCAL_WORLD_SIZE" } } },
    { "Open MPI", false, { { "OMPI_COMM_WORLD_RANK" }, { "OMPI_COMM_WORLD_SIZE" }, { "OMPI_COMM_WORLD_LOCAL_RANK" },
                           { "OMPI_COMM_WORLD_LOCAL_SIZE" } } },
    { "MPICH", false, { { "PMI_RANK" }, { "PMI_SIZE" }, { "MPI_LOCALRANKID", "PMI_LOCAL_RANK" },
                        { "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE" } } },
    { "Slurm", true, { { "SLURM_PROCID" }, { "SLURM_STEP_NUM_TASKS" }, { "SLURM_LOCALID" }, { NULL } } },
};

/* Returns a variable that is set and not empty, else NULL. */
static const char *variable(const char *name)
{
    const char *text = name != NULL ? secure_getenv(name) : NULL;
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static ctrt_status malformed(const char *name, const char *text, const char *wanted)
{
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the environment variable %s is \"%s\", expected %s", name, text,
                     wanted);
}

static ctrt_status fail_missing(const char *present, const char *missing)
{
    return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the environment variable %s is set, but %s is not", present, missing);
}

/* Reads decimal digits, a number of at most 9 digits. *rest: the text after them. */
static bool read_digits(int *out, const char **rest)
{
    const size_t digits = strspn(*rest, "0123456789");
    *out = digits > 0 && digits < 10 ? atoi(*rest) : 0;
    *rest += digits;
    return digits > 0 && digits < 10;
}

/* Reads the first variable of names[2] that is set. *name: its name; NULL if neither is set. */
static ctrt_status read_number(int *out, const char **name, const char *const names[2])
{
    for (int i = 0; i < 2; i++) {
        const char *text = variable(names[i]), *rest = text;
        *name = text != NULL ? names[i] : NULL;
        if (text == NULL)
            continue;
        return read_digits(out, &rest) && *rest == '\0' ? CTRT_OK : malformed(*name, text, "a number");
    }
    return CTRT_OK;
}

/* Reads the tasks of this node from a list such as "4(x2),3": nodes 0 and 1 have 4 tasks, node 2 has 3. */
static ctrt_status read_slurm_local_size(int *out, const char **name)
{
    static const char *const node_names[2] = { "SLURM_NODEID" };
    const char *text = variable("SLURM_STEP_TASKS_PER_NODE"), *rest = text, *node_name;
    int node = 0;
    *name = NULL;
    CTRT_TRY(read_number(&node, &node_name, node_names));
    if (text == NULL || node_name == NULL)
        return CTRT_OK;
    for (int tasks = 0, nodes = 1; read_digits(&tasks, &rest); node -= nodes, nodes = 1) {
        if (strncmp(rest, "(x", 2) == 0) {
            rest += 2;
            if (!read_digits(&nodes, &rest) || *rest++ != ')')
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
    return malformed("SLURM_STEP_TASKS_PER_NODE", text, "numbers of tasks for each node, such as 4(x2),3");
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
        CTRT_TRY(read_number(&values[i], &names[i], launcher->variables[i]));
    if (launcher->variables[LOCAL_SIZE][0] == NULL)
        CTRT_TRY(read_slurm_local_size(&values[LOCAL_SIZE], &names[LOCAL_SIZE]));
    for (int i = 0; i < 2; i++)
        if (names[i] == NULL)
            return fail_missing(names[!i], launcher->variables[i][0]);
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
                                       launcher->name };
    return CTRT_OK;
}

ctrt_status environment_read(struct rank_environment *out)
{
    for (size_t i = 0; i < COUNT_OF(launchers); i++) {
        const bool rank = variable(launchers[i].variables[RANK][0]) != NULL;
        const bool size = variable(launchers[i].variables[SIZE][0]) != NULL;
        if (launchers[i].both ? rank && size : rank || size)
            return read_launcher(out, &launchers[i]);
    }
    *out = (struct rank_environment) { .size = 1, .local_size = 1 };
    return CTRT_OK;
}

ctrt_status environment_store(char *out)
{
    ctrt_param_value value = { 0 };
    CTRT_TRY(param_read(&value, &store_param, "core"));
    const char *host = variable("MASTER_ADDR"), *port = variable("MASTER_PORT"), *rest = port;
    const char *agent = variable("TORCHELASTIC_USE_AGENT_STORE");
    const bool given = value.text != NULL && value.text[0] != '\0';
    int number = 0, length;
    out[0] = '\0';
    if (!given && host == NULL && port == NULL)
        return CTRT_OK;
    if (given) {
        length = snprintf(out, ENVIRONMENT_STORE_BYTES, "%s", value.text);
    } else {
        if (host == NULL || port == NULL)
            return fail_missing(host != NULL ? "MASTER_ADDR" : "MASTER_PORT",
                                host != NULL ? "MASTER_PORT" : "MASTER_ADDR");
        if (!read_digits(&number, &rest) || *rest != '\0' || number < 1 || number > 65534)
            return malformed("MASTER_PORT", port, "a number from 1 to 65534");
        number += agent != NULL && strcmp(agent, "True") == 0;
        const bool brackets = strchr(host, ':') != NULL;
        length = snprintf(out, ENVIRONMENT_STORE_BYTES, "tcp://%s%s%s:%d", brackets ? "[" : "", host,
                          brackets ? "]" : "", number);
    }
    if (length >= ENVIRONMENT_STORE_BYTES)
        return malformed(given ? "CTRT_STORE" : "MASTER_ADDR", "(too long)", "a shorter address");
    return CTRT_OK;
}

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static ctrt_store *kept_store;
static char *kept_address;

/* The child of a fork cannot use its parent's store, nor free it: another thread may have been changing it. */
static void after_fork_in_child(void)
{
    pthread_mutex_init(&kept_lock, NULL);
    kept_store = NULL;
    kept_address = NULL;
}

__attribute__((constructor)) static void environment_start(void)
{
    (void)lock_at_fork(NULL, NULL, after_fork_in_child);
}

static ctrt_status serve_or_join(ctrt_store **out, const char *address, int rank, double seconds)
{
    const ctrt_status status = rank == 0 ? ctrt_store_open(out, address, true, seconds) : CTRT_ERR_STATE;
    return status == CTRT_ERR_STATE ? ctrt_store_open(out, address, false, seconds) : status;
}

ctrt_status environment_open_store(ctrt_store **out, const char *address, int rank, double seconds)
{
    ctrt_status status = CTRT_OK;
    CANCEL_DISABLED;
    pthread_mutex_lock(&kept_lock);
    if (kept_store == NULL) {
        status = serve_or_join(&kept_store, address, rank, seconds);
        kept_address = status == CTRT_OK ? host_strdup(address) : NULL;
    }
    const bool kept = status == CTRT_OK && kept_address != NULL && strcmp(kept_address, address) == 0;
    ctrt_store *store = kept ? ctrt_store_retain(kept_store) : NULL;
    pthread_mutex_unlock(&kept_lock);
    if (status == CTRT_OK && store == NULL)
        return serve_or_join(out, address, rank, seconds);
    if (store != NULL) {
        ctrt_store_release(out);
        *out = store;
    }
    return status;
}

ctrt_status ctrt_comm_environment(int *rank, int *size, int *local_rank, int *local_size)
{
    struct rank_environment found;
    CTRT_TRY(environment_read(&found));
    int *const out[] = { rank, size, local_rank, local_size };
    const int values[] = { found.rank, found.size, found.local_rank, found.local_size };
    for (size_t i = 0; i < COUNT_OF(out); i++)
        if (out[i] != NULL)
            *out[i] = values[i];
    return CTRT_OK;
}
