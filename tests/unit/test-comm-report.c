/* SPDX-License-Identifier: Apache-2.0 */
/* Reports on failures: which ranks they name as the cause, and which call they name. */
#include "comm_job.h"

/* ---- the cause ---- */

/* What happens: rank 0 waits in an all_reduce, or for a message from rank 1, and the others do not come. */
struct cause {
    bool message;
    int killed;                             /* the process of this rank ends; -1: none */
    bool named[3];                          /* ranks that the message of rank 0 names */
};
static const struct cause causes[] = {
    { false, -1, { [1] = true, [2] = true } },
    { false, 2, { [2] = true } },           /* rank 1 could still come */
    { false, 1, { [1] = true } },
    { true, -1, { [1] = true } },           /* the message does not need rank 2 */
    { true, 2, { [2] = true } },            /* the end of a process is the cause of any failure */
    { true, 1, { [1] = true } },
};

static void name_cause(struct rank *rank)
{
    const struct cause *cause = rank->argument;
    CTRT_AUTO(tensor) x = NULL;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(5), CTRT_F32, rank->device));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    if (rank->number == 0) {
        CTRT_AUTO(work) work = NULL;
        CHECK_OK(cause->message ? ctrt_comm_recv(&work, rank->comm, x, 1)
                                : ctrt_comm_all_reduce(&work, rank->comm, x, CTRT_COMM_SUM));
        atomic_store(&rank->board->step, 1);
        CHECK_EQ(ctrt_work_wait(work), CTRT_ERR_COMM);
        for (int other = 1; other < rank->size; other++) {
            char words[24];
            snprintf(words, sizeof words, " rank %d (", other);
            const bool named = strstr(ctrt_error_message(), words) != NULL;
            CHECK(named == cause->named[other], "%s, rank %d killed: rank %d is %snamed: %s",
                  cause->message ? "recv" : "all_reduce", cause->killed, other, named ? "" : "not ",
                  ctrt_error_message());
        }
        atomic_store(&rank->board->step, 2);
        return;
    }
    await(&rank->board->step, rank->number == cause->killed ? 1 : 2);
    if (rank->number == cause->killed)
        raise(SIGKILL);
}

/* ---- the call ---- */

/* The end of the line of `json` that begins with `key`, up to the second quotation mark; "null" without text. */
static void value_of(char out[128], const char *json, const char *key)
{
    const char *at = strstr(json, key);
    out[0] = '\0';
    if (CHECK(at != NULL, "no %s in %s", key, json))
        sscanf(at + strlen(key), at[strlen(key)] == '"' ? "\"%127[^\"]" : "%127[^,\n]", out);
}

/* Rank 3 begins an all_reduce that rank 0 waits in, and is killed. At this time ranks 1 and 2 come. If they come before
 * they learn of the failure, the call completes, and the next one fails. The error of each rank names the call that the
 * report has as pending, which has not completed on any rank. */
static void name_call(struct rank *rank)
{
    atomic_int *const completed = &rank->board->pids[8];       /* by any rank; an entry without a process */
    char *json = NULL, done[128], pending[128], words[160];
    int number = 0;
    ctrt_status status = CTRT_OK;
    CTRT_AUTO(tensor) x = NULL;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(5), CTRT_F32, rank->device));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    if (rank->number == 3) {
        CTRT_AUTO(work) work = NULL;
        CHECK_OK(ctrt_comm_all_reduce(&work, rank->comm, x, CTRT_COMM_MAX));
        sleep_seconds(0.05);
        atomic_store(&rank->board->step, 1);
        raise(SIGKILL);
    }
    if (rank->number > 0) {
        await(&rank->board->step, 1);
        sleep_seconds(1e-3 * *(const int *)rank->argument);
    }
    while (status == CTRT_OK)
        status = ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_MAX);
    CHECK_EQ(status, CTRT_ERR_COMM);
    CHECK_HAS(ctrt_error_message(), "rank 3 (");
    if (!CHECK_OK(ctrt_comm_report(&json, rank->comm)))
        return;
    value_of(done, json, "\n  \"completed\": ");
    value_of(pending, json, "\n  \"pending\": ");
    if (strcmp(pending, "null") == 0)
        snprintf(words, sizeof words, "group world has lost a rank");
    else
        snprintf(words, sizeof words, "%s of group world cannot complete", pending);
    CHECK(strstr(ctrt_error_message(), words) != NULL, "rank %d, completed: %s, pending: %s: %s",
          rank->number, done, pending, ctrt_error_message());
    if (sscanf(done, "%*s %d", &number) == 1)
        for (int old = atomic_load(completed); old < number && !atomic_compare_exchange_weak(completed, &old, number);)
            continue;
    atomic_fetch_add(&rank->board->arrived, 1);
    await(&rank->board->arrived, 2 * rank->size - 1);
    if (sscanf(pending, "%*s %d", &number) == 1)
        CHECK(number > atomic_load(completed), "rank %d waits in %s, another rank has completed %d", rank->number,
              pending, atomic_load(completed));
    free(json);
}

TEST_MAIN
{
    group("the ranks that a message names");
    IN_CHILD("CTRT_DEVICE=cpu")
        EACH(cause, causes)
            run_quiet(PROCESSES, 3, cause->killed < 0 ? 0.6 : 10, name_cause, cause, cause->killed);
    group("the call that a message names");
    IN_CHILD("CTRT_DEVICE=cpu")
        for (int delay = 0; delay < 32; delay += 4)
            run_quiet(PROCESSES, 4, 10, name_call, &delay, 3);
    return done();
}
