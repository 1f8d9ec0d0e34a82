/* SPDX-License-Identifier: Apache-2.0 */
/* contract_comm_failure.c: checks of communication engines whose ranks differ, do not arrive, end, stop, abort or fork,
 * and of what a group leaves behind. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract_ranks.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds, of groups whose time limit passes. A launcher may start more ranks than there are processors, and devices
 * may need time to begin. */
#define LIMIT (contract_target.ranks > 0 || engine_enqueues() ? 2 : 0.5)
#define SOON  1.5                               /* within which run returns after poll can fail */

ctrt_status reduce_zeros(struct group *group, int64_t count)
{
    struct buffer buffer;
    buffer_new(&buffer, group->device, CTRT_F32, count);
    buffer_fill(&buffer, 0);
    contract_step("rank %d of %d: all_reduce of %lld elements", group->rank, group->world, (long long)count);
    ctrt_status status = group_run(group, &(struct request){
        .collective = CTRT_COLLECTIVE_ALL_REDUCE, .dtype = CTRT_F32, .count = count, .root = -1, .send = &buffer,
        .receive = &buffer });
    if (status == CTRT_OK)
        buffer_expect_bytes(&buffer, 0, "all_reduce of zeros");
    buffer_free(&buffer);
    return status;
}

/* The call has failed with what poll returned. */
static void expect_polled(const struct group *group, ctrt_status status)
{
    contract_refused(status, CTRT_ERR_COMM);
    EXPECT(strstr(contract_failure.text, "poll: ") != NULL, "returned not the error of poll, but: %s",
           contract_failure.text);
    EXPECT(group->waiters[0].pause < SOON, "poll was not called for %.1f s", group->waiters[0].pause);
}

/* ---- signatures that differ ---- */

static const struct difference {
    const char *what;
    ctrt_collective collective;
    ctrt_dtype dtype;
    int64_t count;
    ctrt_comm_op op;
    int root;
} differences[] = {                             /* first the call of most ranks */
    { "nothing", CTRT_COLLECTIVE_REDUCE, CTRT_F32, 1000, CTRT_COMM_SUM, 0 },
    { "the count", CTRT_COLLECTIVE_REDUCE, CTRT_F32, 1001, CTRT_COMM_SUM, 0 },
    { "a large count", CTRT_COLLECTIVE_REDUCE, CTRT_F32, 200001, CTRT_COMM_SUM, 0 },
    { "the dtype", CTRT_COLLECTIVE_REDUCE, CTRT_I32, 1000, CTRT_COMM_SUM, 0 },
    { "the reduction", CTRT_COLLECTIVE_REDUCE, CTRT_F32, 1000, CTRT_COMM_MAX, 0 },
    { "the root", CTRT_COLLECTIVE_REDUCE, CTRT_F32, 1000, CTRT_COMM_SUM, 1 },
    { "the collective", CTRT_COLLECTIVE_ALL_REDUCE, CTRT_F32, 1000, CTRT_COMM_SUM, -1 },
};
enum { DIFFERENCES = sizeof differences / sizeof differences[0] };

static void mismatch_of(const struct rank *rank, int number)
{
    const struct difference *d = &differences[rank->number == 1 ? number : 0];
    struct group group;
    struct buffer send, receive;
    char name[32];
    double *zeros = contract_alloc((size_t)d->count * sizeof *zeros);
    memset(zeros, 0, (size_t)d->count * sizeof *zeros);
    snprintf(name, sizeof name, "mismatch%d", number);
    group_open(&group, rank, name, NULL, 0, 8);
    buffer_new(&send, group.device, d->dtype, d->count);
    buffer_new(&receive, group.device, d->dtype, d->count);
    buffer_set(&send, zeros);
    const bool receives = d->collective == CTRT_COLLECTIVE_ALL_REDUCE || rank->number == d->root;
    contract_step("rank %d of %d: on rank 1 %s differs", rank->number, rank->count, differences[number].what);
    ctrt_status status = group_run(&group, &(struct request){
        .collective = d->collective, .dtype = d->dtype, .op = d->op, .count = d->count, .root = d->root, .send = &send,
        .receive = receives ? &receive : NULL });
    contract_refused(status, CTRT_ERR_STATE);
    EXPECT(group.mismatches > 0 && strstr(contract_failure.text, "mismatch: ") != NULL,
           "returned not the result of mismatch, but: %s", contract_failure.text);
    buffer_expect_bytes(&receive, 0x5a, "`receive` after a mismatch");
    for (int i = 0; i < rank->count; i++) {
        const struct difference *wanted = &differences[i == 1 ? number : 0];
        const ctrt_comm_signature *seen = &group.seen[i];
        EXPECT(seen->sequence == 0
                   || (seen->sequence == 1 && seen->count == (uint64_t)wanted->count && seen->root == wanted->root
                       && seen->dtype == wanted->dtype && seen->collective == wanted->collective
                       && seen->op == wanted->op),
               "mismatch got a signature of rank %d that is not that of its call", i);
    }
    EXPECT(group.seen[1].sequence != 0 || rank->number == 1, "mismatch did not get the signature of rank 1");
    atomic_store(&board->alarm, false);
    buffer_free(&send), buffer_free(&receive);
    free(zeros);
    group_close(&group);
}

static void mismatch_body(struct rank *rank)
{
    for (int i = 1; i < DIFFERENCES; i++)
        mismatch_of(rank, i);
}

static void need_comparison(void)
{
    if (engine_enqueues())
        contract_skip("it enqueues collectives, so it compares no signatures");
}

static void check_mismatch(void)
{
    need_comparison();
    ranks_in_processes(RANKS, mismatch_body);
}

/* A message whose sizes differ. If the sender does not wait for the receiver, a later call fails. */
static void message_mismatch_body(struct rank *rank)
{
    struct group group;
    struct buffer buffer;
    ctrt_status status = CTRT_OK;
    const bool sends = rank->number == 0;
    group_open(&group, rank, "message", NULL, 0, 8);
    buffer_new(&buffer, group.device, CTRT_I32, 10 + rank->number);
    buffer_set(&buffer, (double[11]){ 0 });
    for (int i = 0; i < 64 && status == CTRT_OK; i++) {
        contract_step("%s of %d elements; the other rank passes %d", sends ? "send" : "recv", 10 + rank->number,
                      11 - rank->number);
        status = group_run(&group, &(struct request){
            .collective = sends ? CTRT_COLLECTIVE_SEND : CTRT_COLLECTIVE_RECV, .dtype = CTRT_I32,
            .count = buffer.count, .root = 1 - rank->number, .send = sends ? &buffer : NULL,
            .receive = sends ? NULL : &buffer });
        EXPECT(status != CTRT_OK || sends, "returned CTRT_OK");
    }
    EXPECT(status != CTRT_OK, "64 calls returned CTRT_OK");
    if (strstr(ctrt_error_message(), "poll: ") == NULL)         /* the other rank may have ended after its error */
        contract_refused(status, CTRT_ERR_STATE);
    atomic_store(&board->alarm, true);          /* as the library does */
    group_close(&group);
}

static void check_message_mismatch(void)
{
    need_comparison();
    ranks_in_processes(2, message_mismatch_body);
}

/* ---- ranks that do not arrive ---- */

static void late_body(struct rank *rank)
{
    struct group group;
    group_open(&group, rank, "late", NULL, 0, LIMIT);
    group_barrier(&group);
    if (rank->number == rank->count - 1) {
        ranks_await(&board->step, rank->count - 1);
        const ctrt_status status = reduce_zeros(&group, 100000);
        EXPECT(status != CTRT_OK, "returned CTRT_OK after the other ranks had failed");
    } else {
        const double begin = seconds_now();
        expect_polled(&group, reduce_zeros(&group, 100000));
        EXPECT(seconds_now() - begin < LIMIT + SOON, "returned %.1f s after the time limit had passed",
               seconds_now() - begin - LIMIT);
        atomic_fetch_add(&board->step, 1);
    }
    group_close(&group);
}

static void same_late_body(struct rank *rank)
{
    struct group group;
    group_open(&group, rank, "same late", NULL, 0, LIMIT);
    group_barrier(&group);
    if (rank->number < rank->count - 1) {
        expect_polled(&group, reduce_zeros(&group, 100000));
        atomic_fetch_add(&board->step, 1);
    }
    ranks_await(&board->step, rank->count - 1);
    group_close(&group);
}

static void no_message_body(struct rank *rank)
{
    struct group group;
    struct buffer buffer;
    group_open(&group, rank, "no message", NULL, 0, LIMIT);
    if (rank->number == 0) {
        buffer_new(&buffer, group.device, CTRT_F32, 10);
        contract_step("rank 0: recv of a message that rank 1 does not send");
        ctrt_status status = group_run(&group, &(struct request){
            .collective = CTRT_COLLECTIVE_RECV, .dtype = CTRT_F32, .count = 10, .root = 1, .receive = &buffer });
        contract_refused(status, CTRT_ERR_COMM);
        EXPECT(strstr(contract_failure.text, "poll: ") != NULL, "returned not the error of poll, but: %s",
               contract_failure.text);
        atomic_fetch_add(&board->step, 1);
    }
    ranks_await(&board->step, 1);
    group_close(&group);
}

static void check_timeout(void)
{
    ranks_in_processes(RANKS, same_late_body);
    ranks_in_processes(RANKS, late_body);
    ranks_in_processes(2, no_message_body);
}

/* The engine may close them in a thread. A rank of a launcher that serves the store has some for the other ranks. */
static void expect_files(int before)
{
    int files = contract_files();
    for (const double limit = seconds_now() + SOON; files > before && seconds_now() < limit; files = contract_files())
        contract_sleep(5);
    EXPECT(files <= before || (contract_target.ranks > 0 && contract_target.rank == 0),
           "%d descriptors were not closed", files - before);
}

static void missing_body(struct rank *rank)
{
    struct group group;
    if (rank->number == rank->count - 1) {
        ranks_await(&board->step, rank->count - 1);
        return;
    }
    char name[32];
    snprintf(name, sizeof name, "alone%d", rank->number);       /* so that what the engine opens once is open */
    group_open(&group, rank, name, (int[]){ rank->number }, 1, 15);
    group_close(&group);
    const long blocks = contract_host_blocks();
    const int files = contract_files();
    ctrt_status status = group_create(&group, rank, "missing", NULL, 0, LIMIT);
    contract_refused(status, CTRT_ERR_COMM);
    EXPECT(strstr(contract_failure.text, "poll: ") != NULL, "returned not the error of poll, but: %s",
           contract_failure.text);
    EXPECT(contract_host_blocks() <= blocks, "%ld blocks of host->alloc were not freed",
           contract_host_blocks() - blocks);
    if (!engine_enqueues())                     /* NCCL keeps what late ranks need to connect */
        expect_files(files);
    atomic_fetch_add(&board->step, 1);
}

static void check_missing(void)
{
    ranks_in_processes(RANKS, missing_body);
}

/* As the library's thread that watches the time limit of enqueued collectives. */
static void *limit_thread(void *group)
{
    while (!atomic_load(&board->alarm))
        contract_sleep(1);
    group_abort(group);
    return NULL;
}

static void alloc_missing_body(struct rank *rank)
{
    struct group group;
    void *address = NULL;
    group_open(&group, rank, "alloc missing", NULL, 0, LIMIT);
    group_barrier(&group);
    if (rank->number < rank->count - 1) {
        pthread_t thread;
        if (engine_enqueues())
            EXPECT(pthread_create(&thread, NULL, limit_thread, &group) == 0, "no thread can be started");
        contract_step("rank %d of %d: alloc, which the last rank does not call", rank->number, rank->count);
        const ctrt_status status = group_alloc(&group, &address, 100000);
        /* If not, it needs no other rank, or it waited on its stream until the abort. */
        if (status != CTRT_OK || (address != NULL && !atomic_load(&group.aborted))) {
            contract_refused(status, CTRT_ERR_COMM);
            EXPECT(strstr(contract_failure.text, "poll: ") != NULL, "returned not the error of poll, but: %s",
                   contract_failure.text);
        }
        atomic_store(&board->alarm, true);
        if (engine_enqueues())
            pthread_join(thread, NULL);
        atomic_fetch_add(&board->step, 1);
    }
    ranks_await(&board->step, rank->count - 1);
    group_close(&group);
}

static void check_alloc_missing(void)
{
    if (!CTRT_SLOT(contract_engine, alloc))
        contract_skip("it has no alloc");
    ranks_in_processes(RANKS, alloc_missing_body);
}

/* ---- ranks that end, stop, abort ---- */

static int delay;                               /* milliseconds, until the last rank is killed */

static void *kill_thread(void *unused)
{
    (void)unused;
    contract_sleep(delay);
    kill(getpid(), SIGKILL);
    return NULL;
}

static void dead_body(struct rank *rank)
{
    struct group group;
    pthread_t thread;
    ctrt_status status = CTRT_OK;
    group_open(&group, rank, "dead", NULL, 0, 10);
    group_barrier(&group);
    if (rank->number == rank->count - 1) {
        atomic_store(&board->killed[rank->number], true);
        if (delay == 0)
            kill(getpid(), SIGKILL);
        EXPECT(pthread_create(&thread, NULL, kill_thread, NULL) == 0, "no thread can be started");
    }
    while (status == CTRT_OK)
        status = reduce_zeros(&group, delay % 2 == 0 ? 100 : 200000);
    if (rank->number == rank->count - 1)        /* another rank has seen the end of this one */
        for (;;)
            contract_sleep(1000);
    expect_polled(&group, status);
    group_close(&group);
}

static void check_dead(void)
{
    if (contract_target.ranks > 0)
        contract_skip("the launcher ends the job when a rank is killed");
    for (delay = 0; delay < 40; delay = delay * 2 + 7)
        ranks_in_processes(RANKS, dead_body);
}

static void stopped_body(struct rank *rank)
{
    struct group group;
    group_open(&group, rank, "stopped", NULL, 0, LIMIT);
    group_barrier(&group);
    if (rank->number == rank->count - 1) {
        kill(getpid(), SIGSTOP);
        const ctrt_status status = reduce_zeros(&group, 200000);
        EXPECT(status != CTRT_OK, "returned CTRT_OK after the other ranks had failed");
    } else {
        expect_polled(&group, reduce_zeros(&group, 200000));
        group_close(&group);
        if (atomic_fetch_add(&board->step, 1) == rank->count - 2)
            kill(board->pids[rank->count - 1], SIGCONT);
        return;
    }
    group_close(&group);
}

static void check_stopped(void)
{
    ranks_in_processes(RANKS, stopped_body);
}

static void abort_after(struct group *group)
{
    contract_sleep(60);
    atomic_store(&board->alarm, true);
    group_abort(group);
}

static void *abort_thread(void *group)
{
    abort_after(group);
    return NULL;
}

/* As the library does: each rank that runs a collective gets the abort in another thread. */
static void abort_body(struct rank *rank)
{
    struct group group;
    pthread_t thread;
    group_open(&group, rank, "abort", NULL, 0, 15);
    group_barrier(&group);
    if (rank->number == rank->count - 1) {
        abort_after(&group);
    } else {
        const double begin = seconds_now();
        EXPECT(pthread_create(&thread, NULL, abort_thread, &group) == 0, "no thread can be started");
        const ctrt_status status = reduce_zeros(&group, 200000);
        contract_refused(status, CTRT_ERR_COMM);
        EXPECT(seconds_now() - begin < 0.06 + SOON, "run returned %.1f s after the abort",
               seconds_now() - begin - 0.06);
        pthread_join(thread, NULL);
    }
    group_close(&group);
}

static void check_abort(void)
{
    ranks_in_processes(RANKS, abort_body);
}

/* A rank that has completed a collective makes poll fail at once, while others may still wait in it. */
static void complete_body(struct rank *rank)
{
    struct group group;
    char name[32];
    for (int n = 0; n < 30; n++) {
        snprintf(name, sizeof name, "complete%d", n);
        group_open(&group, rank, name, NULL, 0, 10);
        if (n % rank->count == rank->number)
            contract_sleep(15);
        contract_ok(reduce_zeros(&group, n % 2 == 0 ? 100 : 200000));
        atomic_store(&board->alarm, true);
        group_close(&group);
        atomic_store(&board->counts[rank->number], n + 1);
        for (int i = 0; i < rank->count; i++)
            ranks_await(&board->counts[i], n + 1);
        atomic_store(&board->alarm, false);
        atomic_fetch_add(&board->step, 1);
        ranks_await(&board->step, (n + 1) * rank->count);
    }
}

static void check_complete(void)
{
    if (engine_enqueues())
        contract_skip("it enqueues collectives, so poll is not called for them");
    ranks_in_processes(RANKS, complete_body);
}

/* ---- leaving ---- */

static void leave_body(struct rank *rank)
{
    struct group group;
    atomic_store(&board->quiet, true);
    group_open(&group, rank, "leave", NULL, 0, 10);
    contract_ok(reduce_zeros(&group, 100));
    contract_ok(reduce_zeros(&group, 200000));
    ranks_await(&board->step, rank->number);    /* one rank after the other */
    group_close(&group);
    atomic_fetch_add(&board->step, 1);
}

static void check_leave(void)
{
    ranks_in_processes(RANKS, leave_body);
}

static void balance_body(struct rank *rank)
{
    struct group group;
    long blocks = 0;
    int files = 0;
    size_t space = 0;
    char name[32];
    for (int n = 0; n < 14; n++) {
        snprintf(name, sizeof name, "balance%d", n);
        group_open(&group, rank, name, NULL, 0, 10);
        contract_ok(reduce_zeros(&group, 200000));
        group_barrier(&group);
        group_close(&group);
        if (n == 3)
            blocks = contract_host_blocks(), files = contract_files(), space = contract_space();
    }
    contract_step("rank %d of %d: ten groups were created and destroyed", rank->number, rank->count);
    EXPECT(contract_host_blocks() <= blocks, "%ld blocks of host->alloc were not freed",
           contract_host_blocks() - blocks);
    expect_files(files);
    EXPECT(contract_space() < space + ((size_t)24 << 20), "%zu MiB of address space were not returned",
           (contract_space() - space) >> 20);
}

static void check_balance(void)
{
    ranks_in_processes(RANKS, balance_body);
}

/* ---- fork ---- */

static void fork_body(struct rank *rank)
{
    struct group group;
    group_open(&group, rank, "fork", NULL, 0, 10);
    contract_ok(reduce_zeros(&group, 100));
    if (rank->number == 0) {
        contract_step("rank 0 forks, and the child calls exit");
        const pid_t child = fork();
        if (child == 0)
            exit(0);                            /* runs what the plugin has registered for the end of the process */
        int status = 0;
        EXPECT(child > 0 && waitpid(child, &status, 0) == child, "fork");
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child crashed");
    }
    contract_ok(reduce_zeros(&group, 100));
    contract_ok(reduce_zeros(&group, 200000));
    group_close(&group);
}

static void check_fork(void)
{
    ranks_in_processes(RANKS, fork_body);
}

/* ---- host->alloc ---- */

static void memory_body(struct rank *rank)
{
    struct group group;
    long before = 0;
    char name[32];
    for (long n = -1; n < 100; n++) {
        snprintf(name, sizeof name, "memory%ld", n + 1);
        contract_host_fail(n > 0 ? n : 0);
        ctrt_status status = group_create(&group, rank, name, NULL, 0, 5);
        const bool created = status == CTRT_OK;
        if (created)
            status = reduce_zeros(&group, 1000);
        const bool failed = contract_host_failed();
        contract_step("while call %ld of host->alloc fails", n);
        EXPECT(status == CTRT_OK || failed, "create or run failed, although the host has memory");
        EXPECT(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "create or run returned '%s'",
               ctrt_status_string(status));
        contract_host_fail(0);
        if (created)
            group_close(&group);
        EXPECT(n <= 0 || contract_host_blocks() <= before, "%ld blocks of host->alloc were not freed",
               contract_host_blocks() - before);
        before = n <= 0 ? contract_host_blocks() : before;
        if (n > 0 && !failed)
            return;
    }
}

static void check_host_memory(void)
{
    ranks_in_processes(1, memory_body);
}

const struct contract_check contract_comm_failure_checks[] = {
    { "mismatch", check_mismatch, 0,
      "if signatures differ, each rank returns the result of `mismatch`, and `receive` is unchanged" },
    { "mismatch.message", check_message_mismatch, 0,
      "if the signatures of a message differ, both ranks return the result of `mismatch`, the sender perhaps later" },
    { "timeout", check_timeout, 0,
      "while run waits it calls poll about every 10 ms, with call->state, and returns its error" },
    { "create.missing", check_missing, 0, "while create waits it calls poll, and returns its error; nothing is left" },
    { "alloc.missing", check_alloc_missing, 0, "alloc waits like run: it calls poll, and returns its error" },
    { "dead", check_dead, 0, "if a rank has ended, at any time, run returns on the others with the error of poll" },
    { "stopped", check_stopped, 0, "run returns with the error of poll while the process of another rank is stopped" },
    { "abort", check_abort, 0, "when poll fails or `abort` is called in another thread, run returns soon" },
    { "complete", check_complete, 0,
      "data that has arrived comes first: a rank that has completed the collective may leave or abort at once" },
    { "leave", check_leave, 0, "destroy waits for other ranks only for a short time" },
    { "balance", check_balance, 0, "destroy frees memory, descriptors and address space of the group" },
    { "fork", check_fork, 0, "the child of a fork of a rank may end without effect on the group" },
    { "host.memory", check_host_memory, 0, "if host->alloc fails, the call fails with a message, and nothing is lost" },
    { NULL, NULL, 0, NULL },
};
