/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/environment.c: the store of process groups that the environment names. */
#define _GNU_SOURCE
#include "parallel/comm/environment.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "base/param.h"
#include "base/thread.h"
#include "device/launcher.h"
#include "parallel/store/store.h"
#include "parallel/store/job.h"

static const ctrt_param store_param = {
    sizeof store_param, "CTRT_STORE", CTRT_PARAM_STRING, NULL, NULL,
    "address of the store of process groups: tcp://HOST:PORT or file://PATH; default: MASTER_ADDR and MASTER_PORT",
};
CORE_PARAM(store_param);

ctrt_status environment_store(char *out)
{
    ctrt_param_value value = { 0 };
    CTRT_TRY(param_read(&value, &store_param, "core"));
    const char *host = launcher_variable("MASTER_ADDR"), *port = launcher_variable("MASTER_PORT"), *rest = port;
    const char *agent = launcher_variable("TORCHELASTIC_USE_AGENT_STORE");
    const bool given = value.text != NULL && value.text[0] != '\0';
    int number = 0, length;
    out[0] = '\0';
    if (!given && host == NULL && port == NULL)
        return CTRT_OK;
    if (given) {
        length = snprintf(out, ENVIRONMENT_STORE_BYTES, "%s", value.text);
    } else {
        if (host == NULL || port == NULL)
            return launcher_missing(host != NULL ? "MASTER_ADDR" : "MASTER_PORT",
                                    host != NULL ? "MASTER_PORT" : "MASTER_ADDR");
        if (!launcher_digits(&number, &rest) || *rest != '\0' || number < 1 || number > 65534)
            return launcher_malformed("MASTER_PORT", port, "a number from 1 to 65534");
        number += agent != NULL && strcmp(agent, "True") == 0;
        const bool brackets = strchr(host, ':') != NULL;
        length = snprintf(out, ENVIRONMENT_STORE_BYTES, "tcp://%s%s%s:%d", brackets ? "[" : "", host,
                          brackets ? "]" : "", number);
    }
    if (length >= ENVIRONMENT_STORE_BYTES)
        return launcher_malformed(given ? "CTRT_STORE" : "MASTER_ADDR", "(too long)", "a shorter address");
    return CTRT_OK;
}

LOCK_DEFINE_MUTEX(kept_lock);
static ctrt_store *kept_store;
static char *kept_address;

/* The child of a fork cannot use its parent's store, nor free it: another thread may have been changing it. */
LOCK_IN_CHILD(forget_kept_store)
{
    kept_store = NULL;
    kept_address = NULL;
}

/* How long rank 0 waits for a store whose address it cannot use itself. */
static const double OTHER_SERVER_SECONDS = 10;

/* Opens a store that another process serves. */
static ctrt_status join_store(ctrt_store **out, const char *address, const struct job *job, bool replaces_server,
                              double seconds)
{
    CTRT_AUTO(store) store = NULL;
    CTRT_TRY(store_open(&store, address, false, seconds));
    CTRT_TRY(ctrt_context(store_job_join(store, job, replaces_server, seconds), "%s", address));
    store_move(out, &store);
    return CTRT_OK;
}

static ctrt_status serve_or_join(ctrt_store **out, const char *address, int rank, double seconds)
{
    struct job job;
    CTRT_AUTO(store) store = NULL;
    CTRT_TRY(job_read(&job));
    if (rank < 0)                       /* it joins a group, with another number */
        job.rank = -1;
    if (rank != 0)
        return join_store(out, address, &job, false, seconds);
    const ctrt_status status = store_open(&store, address, true, seconds);
    if (status == CTRT_ERR_STATE)       /* in use: by the launcher, or by another job or program */
        return ctrt_context(join_store(out, address, &job, job.rank <= 0, MIN(seconds, OTHER_SERVER_SECONDS)),
                            "rank 0 cannot serve the store, because its address is in use, and the process there does "
                            "not serve this job");
    CTRT_TRY(status);
    CTRT_TRY(store_job_serve(store, &job));
    store_move(out, &store);
    return CTRT_OK;
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
    if (store != NULL)
        store_move(out, &store);
    return status;
}

ctrt_status ctrt_comm_environment(int *rank, int *size, int *local_rank, int *local_size)
{
    struct rank_environment found;
    CTRT_TRY(launcher_read(&found));
    int *const out[] = { rank, size, local_rank, local_size };
    const int values[] = { found.rank, found.size, found.local_rank, found.local_size };
    for (size_t i = 0; i < COUNT_OF(out); i++)
        if (out[i] != NULL)
            *out[i] = values[i];
    return CTRT_OK;
}
