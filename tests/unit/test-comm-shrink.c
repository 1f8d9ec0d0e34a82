/* SPDX-License-Identifier: Apache-2.0 */
/* Tests ctrt_comm_shrink: groups of the remaining ranks after losses; their ranks, epochs and results of
 * collectives. */
#include "comm_job.h"

/* ---- lost ranks ---- */

enum loss_how {
    LEAVES,                                 /* the rank releases the communicator, which has not failed */
    FAILS,                                  /* the rank aborts the communicator, then releases it */
    STAYS,                                  /* no rank is lost; all ranks form a new group */
};

static const struct shrink_case {
    int size;
    enum loss_how how;
    const char *lost;                       /* digits: ranks that are lost at the same time */
    const char *later;                      /* digits: original ranks that are lost one after the other */
    bool split;                             /* the group is one of ctrt_comm_split */
} cases[] = {
    { .size = 2, .how = LEAVES, .lost = "1", .later = "" },
    { .size = 2, .how = LEAVES, .lost = "0", .later = "" },     /* the lowest rank */
    { .size = 4, .how = LEAVES, .lost = "2", .later = "" },
    { .size = 4, .how = FAILS, .lost = "1", .later = "" },
    { .size = 4, .how = FAILS, .lost = "0", .later = "" },
    { .size = 4, .how = LEAVES, .lost = "03", .later = "" },    /* two at once */
    { .size = 4, .how = FAILS, .lost = "12", .later = "" },
    { .size = 4, .how = FAILS, .lost = "", .later = "213" },    /* down to one rank */
    { .size = 3, .how = STAYS, .lost = "", .later = "" },
    { .size = 4, .how = LEAVES, .lost = "1", .later = "3", .split = true },
};

static bool has_digit(const char *text, int number)
{
    return strchr(text, '0' + number) != NULL;
}

/* Checks an all_reduce of number + 1: the sum over the ranks whose digit is not in `lost`. */
static ctrt_status sum_up(double *out, struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL;
    CTRT_TRY(ctrt_full(&x, CTRT_SHAPE(3000), ctrt_float(rank->number + 1), CTRT_F32, rank->device));
    CTRT_TRY(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CTRT_TRY(ctrt_select(&x, x, 0, 2999));
    return ctrt_item(out, x);
}

/* Checks the group of the ranks whose digit is not in `lost`. */
static void check_group(struct rank *rank, const char *lost, int epoch)
{
    char name[64];
    int size = 0, number = 0;
    double want = 0, sum = 0;
    for (int i = 0; i < rank->size; i++) {
        if (has_digit(lost, i))
            continue;
        number += i < rank->number;
        size++;
        want += i + 1;
    }
    CHECK_EQ(ctrt_comm_size(rank->comm), size);
    CHECK_EQ(ctrt_comm_rank(rank->comm), number);
    CHECK_EQ(ctrt_comm_epoch(rank->comm), epoch);
    if (CHECK_OK(sum_up(&sum, rank)))
        CHECK(sum == want, "without %s, rank %d has the sum %g, expected %g", lost, rank->number, sum, want);
    snprintf(name, sizeof name, "~%d", epoch);
    CHECK_HAS(ctrt_comm_name(rank->comm), epoch > 0 ? name : "");
}

/* If the digit of this rank is in `lost`, ends the rank; else forms the new group. Returns whether the rank remains. */
static bool lose(struct rank *rank, const char *lost, enum loss_how how)
{
    /* An abort would fail earlier collectives that other ranks have not completed. The barrier itself may fail. */
    if (how == FAILS)
        (void)ctrt_comm_barrier(rank->comm);
    if (has_digit(lost, rank->number)) {
        if (how == FAILS)
            ctrt_comm_abort(rank->comm, "this rank fails");
        ctrt_comm_release(&rank->comm);
        return false;
    }
    if (how != STAYS)
        CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, "");
    return CHECK_OK(ctrt_comm_shrink(&rank->comm, rank->comm));
}

static void shrink(struct rank *rank)
{
    const struct shrink_case *c = rank->argument;
    char lost[16];
    int epoch = 0;
    ctrt_comm *old = NULL;
    if (c->split)
        CHECK_OK(ctrt_comm_split(&rank->comm, rank->comm, 0, rank->number));
    check_group(rank, "", 0);
    snprintf(lost, sizeof lost, "%s", c->lost);
    if (c->how == STAYS)
        old = ctrt_comm_retain(rank->comm);
    if (*lost != '\0' || c->how == STAYS) {
        if (!lose(rank, lost, c->how))
            return;
        check_group(rank, lost, ++epoch);
    }
    for (const char *at = c->later; *at != '\0'; at++) {
        const char now[2] = { *at, '\0' };
        if (!lose(rank, now, c->how))
            return;
        strcat(lost, now);
        check_group(rank, lost, ++epoch);
    }
    if (old == NULL)
        return;
    CHECK_FAILS(ctrt_comm_barrier(old), CTRT_ERR_COMM, "has called comm_shrink");
    ctrt_comm *again = NULL;
    CHECK_FAILS(ctrt_comm_shrink(&again, old), CTRT_ERR_STATE, "has gone on to epoch 1 already");
    ctrt_comm_release(&old);
}

/* ---- the report and the ranks of the epoch before ---- */

static void reported(struct rank *rank)
{
    static const int previous[] = { 0, 2 };
    char *json = NULL;
    CHECK_EQ(ctrt_comm_previous_rank(rank->comm, 2), 2);
    if (!lose(rank, "1", FAILS))
        return;
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    for (int i = 0; i < 2; i++)
        CHECK_EQ(ctrt_comm_previous_rank(rank->comm, i), previous[i]);
    CHECK_EQ(ctrt_comm_previous_rank(rank->comm, 2), -1);
    if (CHECK_OK(ctrt_comm_report(&json, rank->comm))) {
        CHECK_HAS(json, "\"epoch\": 1");
        CHECK_HAS(json, "\"changes\": [{\"epoch\":1,\"size\":2,\"lost\":[{\"rank\":1,\"host\":");
        CHECK_HAS(json, "\"joined\":[]}]");
    }
    free(json);
}

/* ---- a rank that comes too late ---- */

static void late(struct rank *rank)
{
    if (rank->number == 2) {
        await(&rank->board->step, 2);
        CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, "");
        CHECK_FAILS(ctrt_comm_shrink(&rank->comm, rank->comm), CTRT_ERR_COMM,
                    "rank 2 of group");
        CHECK_HAS(ctrt_error_message(), "is excluded: it did not answer in time, and the ranks 0, 1 went on");
        CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, "");
        return;
    }
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, "did not complete within 0.5 s");
    if (CHECK_OK(ctrt_comm_shrink(&rank->comm, rank->comm)))
        check_group(rank, "2", 1);
    atomic_fetch_add(&rank->board->step, 1);
}

/* ---- processes that are killed ---- */

/* Kills the process after the list of the next epoch has been set, while the other ranks connect their group. */
static void *kill_at_list(void *argument)
{
    struct rank *rank = argument;
    (void)ctrt_store_get(rank->store, "world/0/next", NULL, NULL, 20);
    raise(SIGKILL);
    return NULL;
}

/* Calls ctrt_comm_shrink after each failure until a collective succeeds. */
static void go_on(struct rank *rank)
{
    double sum = 0;
    ctrt_status status = CTRT_ERR_COMM;
    for (int i = 0; i < 4 && status == CTRT_ERR_COMM; i++)
        if (CHECK_OK(ctrt_comm_shrink(&rank->comm, rank->comm)))
            status = sum_up(&sum, rank);
    CHECK(status == CTRT_OK, "rank %d: %s", rank->number, ctrt_error_message());
}

/* Rank 1 leaves, and rank `argument` is killed while the remaining ranks rebuild the group. */
static void rebuild(struct rank *rank)
{
    const int killed = *(const int *)rank->argument;
    if (rank->number == 1) {
        ctrt_comm_release(&rank->comm);
        return;
    }
    pthread_t thread;
    if (rank->number == killed)
        REQUIRE(pthread_create(&thread, NULL, kill_at_list, rank) == 0, "no thread");
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, "");
    go_on(rank);
    if (rank->number == killed)
        pthread_join(thread, NULL);
    CHECK_EQ(ctrt_comm_size(rank->comm), 2);
    CHECK(ctrt_comm_epoch(rank->comm) >= 2, "epoch %d", ctrt_comm_epoch(rank->comm));
}

/* Rank 2 is stopped, and continued after the other ranks have formed a new group. Its calls fail: it is excluded. */
static void stopped(struct rank *rank)
{
    if (rank->number == 2) {
        raise(SIGSTOP);
        while (ctrt_comm_error(rank->comm) == CTRT_OK)
            sleep_seconds(0.01);
        CHECK_FAILS(ctrt_comm_shrink(&rank->comm, rank->comm), CTRT_ERR_COMM, "is excluded");
        atomic_store(&rank->board->step, 1);
        return;
    }
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, "");
    if (CHECK_OK(ctrt_comm_shrink(&rank->comm, rank->comm)))
        check_group(rank, "2", 1);
    if (rank->number != 0)
        return;
    kill(atomic_load(&rank->board->pids[2]), SIGCONT);
    await(&rank->board->step, 1);
    CHECK_EQ(atomic_load(&rank->board->step), 1);
}

/* The key of the list has a wrong value, which another program has set. */
static void garbage(struct rank *rank)
{
    const char *value = rank->argument;
    if (rank->number == 0) {
        CHECK_OK(ctrt_store_set(rank->store, "world/0/next", value, strlen(value)));
        ctrt_comm_abort(rank->comm, "enough");
    } else {
        CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, "enough");
    }
    CHECK_FAILS(ctrt_comm_shrink(&rank->comm, rank->comm), CTRT_ERR_STATE,
                "the key world/0/next of the store has a wrong value");
}

/* Rank 0 serves the store, as under mpirun, and ends. */
static void served_by_rank(void)
{
    static const char *const no_settings[] = { NULL };
    struct board *board = board_new();
    pid_t children[2];
    snprintf(board->address, sizeof board->address, "tcp://127.0.0.1:%d", 20000 + (int)(getpid() % 10000));
    for (int i = 0; i < 2; i++) {
        children[i] = child_start(no_settings);
        if (children[i] != 0)
            continue;
        CTRT_AUTO(store) store = NULL;
        CTRT_AUTO(comm) comm = NULL;
        ctrt_device *cpu = NULL;
        ctrt_log_set_callback(no_log, NULL);
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        CHECK_OK(ctrt_store_open(&store, board->address, i == 0, 20));
        const ctrt_comm_options options = { .size = sizeof(ctrt_comm_options), .store = store, .device = cpu,
                                            .rank = i, .world_size = 2, .timeout = 20 };
        if (CHECK_OK(ctrt_comm_new(&comm, &options))) {
            if (i == 0)
                raise(SIGKILL);
            CHECK_FAILS(ctrt_comm_barrier(comm), CTRT_ERR_COMM, "");
            CHECK_FAILS(ctrt_comm_shrink(&comm, comm), CTRT_ERR_COMM, "because rank 0 has ended, which served the");
            CHECK_HAS(ctrt_error_message(), "start them with `ctrt run`");
        }
        ctrt_comm_release(&comm);
        ctrt_store_release(&store);
        child_end(exit);
    }
    child_join(children[1], __FILE__, __LINE__);
    waitpid(children[0], NULL, 0);
    munmap(board, sizeof *board);
}

/* ---- */

TEST_MAIN
{
    static const int killed[] = { 0, 2, 3 };
    static const char *const wrong[] = { "", "x", "Custard and more than a header" };
    for (int kind = 0; kind < TESTED_KINDS; kind++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            group("%s: %d ranks, case %zu: %s%s%s", kind_names[kind], cases[i].size, i, cases[i].lost, cases[i].later,
                  cases[i].split ? ", split" : "");
            IN_CHILD("CTRT_SIM=devices=4")
                run_quiet((enum kind)kind, cases[i].size, 20, shrink, &cases[i], -1);
        }
    group("the report, and ranks of the epoch before");
    IN_CHILD("CTRT_SIM=devices=4")
        run_quiet(ON_CPU, 3, 20, reported, NULL, -1);
    group("a rank that comes too late is excluded");
    IN_CHILD("CTRT_SIM=devices=4")
        run_quiet(ON_CPU, 3, 0.5, late, NULL, -1);
#ifndef __SANITIZE_THREAD__
    for (size_t i = 0; i < sizeof killed / sizeof killed[0]; i++) {
        group("rank %d is killed during the rebuild", killed[i]);
        IN_CHILD("CTRT_SIM=devices=4")
            run_quiet(PROCESSES, 4, 20, rebuild, &killed[i], killed[i]);
    }
    group("a stopped rank is excluded");
    IN_CHILD("CTRT_SIM=devices=4")
        run_quiet(PROCESSES, 3, 1, stopped, NULL, -1);
    group("garbage in the store");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        IN_CHILD("CTRT_SIM=devices=4")
            run_quiet(PROCESSES, 2, 20, garbage, wrong[i], -1);
    group("the rank that serves the store ends");
    IN_CHILD("CTRT_SIM=devices=4")
        served_by_rank();
#endif
    return done();
}
