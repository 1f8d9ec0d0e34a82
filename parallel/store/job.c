/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/store/job.c: the job that a store belongs to, and its ranks. */
#define _GNU_SOURCE
#include "parallel/store/job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "base/param.h"
#include "parallel/store/store.h"

#define ID_KEY "ctrt-job/id"
#define ANY    "*"

/* How long a rank waits for a process that has the same number, which may be ending. */
static const double TAKEN_SECONDS = 1;

static const ctrt_param job_param = {
    sizeof job_param, "CTRT_JOB", CTRT_PARAM_STRING, NULL, NULL,
    "identity of the job, the same for its ranks and different for other jobs; default: the launcher's number",
};
CORE_PARAM(job_param);

static _Atomic uint64_t process_token;

LOCK_IN_CHILD(process_token_forget)
{
    atomic_store(&process_token, 0);
}

/* Returns a random number of this process. */
static uint64_t token(void)
{
    uint64_t none = 0, fresh = 0;
    while (atomic_load(&process_token) == 0) {
        if (getrandom(&fresh, sizeof fresh, 0) != sizeof fresh)
            fresh = (uint64_t)store_now() ^ (uint64_t)getpid() << 40;
        none = 0;
        atomic_compare_exchange_strong(&process_token, &none, fresh);
    }
    return atomic_load(&process_token);
}

static ctrt_status read_given(const char **out)
{
    ctrt_param_value value = { 0 };
    CTRT_TRY(param_read(&value, &job_param, "core"));
    *out = value.text != NULL && value.text[0] != '\0' ? value.text : NULL;
    if (*out != NULL && (strlen(*out) >= LAUNCHER_JOB_BYTES || strcmp(*out, ANY) == 0))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_JOB is \"%.140s\", expected a text of 1 to %d bytes other "
                         "than \"" ANY "\"", *out, LAUNCHER_JOB_BYTES - 1);
    return CTRT_OK;
}

ctrt_status job_read(struct job *out)
{
    struct rank_environment environment;
    const char *given = NULL;
    CTRT_TRY(launcher_read(&environment));
    CTRT_TRY(read_given(&given));
    out->unique = launcher_job(out->id, &environment) || given != NULL;
    out->rank = environment.launcher != NULL ? environment.rank : -1;
    if (given != NULL)
        snprintf(out->id, sizeof out->id, "%s", given);
    return CTRT_OK;
}

static void rank_key(char key[48], int rank)
{
    snprintf(key, 48, "ctrt-job/rank/%d", rank);
}

/* Sets *holder to the value of the key after this process has tried to set it to `own`, if the key was `before`. */
static ctrt_status store_job_exchange(char holder[160], ctrt_store *store, const char *key, const char *before,
                                      const char *own)
{
    HOST_AUTO void *value = NULL;
    CTRT_TRY(ctrt_store_compare_set(store, key, before, before != NULL ? strlen(before) : 0, own, strlen(own), &value,
                                    NULL));
    snprintf(holder, 160, "%s", value != NULL ? (const char *)value : "");
    return CTRT_OK;
}

/* Sets *taken to whether another process has the rank; `holder` is that one, if the store knows it. */
static ctrt_status claim_once(bool *taken, char holder[160], ctrt_store *store, int rank)
{
    char key[48], own[160], host[65] = "";
    holder[0] = '\0';
    if (store->kind->reserve != NULL)
        return *taken = !store->kind->reserve(store, rank), CTRT_OK;
    (void)gethostname(host, sizeof host - 1);
    rank_key(key, rank);
    snprintf(own, sizeof own, "%016" PRIx64 " (%s, process %d)", token(), host, (int)getpid());
    CTRT_TRY(store_job_exchange(holder, store, key, NULL, own));
    if (holder[0] == '\0')                  /* a process with this rank has ended */
        CTRT_TRY(store_job_exchange(holder, store, key, "", own));
    *taken = strncmp(holder, own, 17) != 0;
    return CTRT_OK;
}

static ctrt_status claim_rank(ctrt_store *store, int rank)
{
    const int64_t deadline = store_deadline(TAKEN_SECONDS);
    int64_t pause = 10000000;
    char key[48], holder[160];
    bool taken = true, supported = false;
    do
        CTRT_TRY(claim_once(&taken, holder, store, rank));
    while (taken && store_sleep(&pause, 100000000, deadline));
    if (taken)
        return ctrt_fail(CTRT_ERR_STATE, "rank %d of this job is connected already%.110s, or another job has the same "
                         "store. Give each job its own MASTER_PORT", rank, strlen(holder) > 16 ? holder + 16 : "");
    if (!store->kind->detects_disconnect)
        return CTRT_OK;
    rank_key(key, rank);
    CTRT_TRY(store_set_at_disconnect(&supported, store, key, "", 0));
    store->claimed = rank + 1;
    return CTRT_OK;
}

ctrt_status store_job_serve(ctrt_store *store, const struct job *job)
{
    const char *given = NULL;
    if (job == NULL)
        CTRT_TRY(read_given(&given));
    const char *id = job != NULL ? job->id : given != NULL ? given : ANY;
    if (job != NULL && job->rank >= 0)      /* before the clients, which wait for the identity */
        CTRT_TRY(claim_rank(store, job->rank));
    return ctrt_store_set(store, ID_KEY, id, strlen(id));
}

ctrt_status store_job_join(ctrt_store *store, const struct job *job, bool replaces_server, double seconds)
{
    HOST_AUTO void *value = NULL;
    CTRT_TRY(store_await(store, ID_KEY, &value, NULL, seconds));
    const bool any = strcmp(value, ANY) == 0, same = strcmp(value, job->id) == 0;
    if (!any && (!same || (replaces_server && !job->unique)))
        return ctrt_fail(CTRT_ERR_STATE, "the store belongs to %s job (%.127s; this process: %s). Give each job its "
                         "own MASTER_PORT%s", same ? "an equal" : "another", (const char *)value, job->id,
                         job->unique ? "" : ", or set CTRT_JOB to another text in each");
    return job->rank >= 0 ? claim_rank(store, job->rank) : CTRT_OK;
}

void store_job_leave(ctrt_store *store)
{
    char key[48];
    if (store->claimed == 0 || atomic_load(&store->ended))
        return;
    rank_key(key, store->claimed - 1);
    store->claimed = 0;
    (void)store_set_within(store, key, "", 0, 1);
}
