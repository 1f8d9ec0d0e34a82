/* SPDX-License-Identifier: Apache-2.0 */
/* contract_launch.c: checks of engines whose ranks a launcher has to start: `mpirun -n 4 ctrt check --contract mpi`.
 *
 * Each process of the launcher starts one child, which is a rank and runs all checks one after the other, because MPI
 * can be initialised only once in a process. The ranks share a file of rank 0. The process of rank 0 begins the checks,
 * applies the time limit and prints; the others wait, because many launchers end the job when a process ends. A rank
 * that has failed waits too. After a check has failed, the ranks cannot run the next ones. Only `init` runs in a
 * process of its own, as without a launcher, because the ranks have initialised the plugin. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "contract_ranks.h"
#include "contract_report.h"

/* The file that the ranks share. */
static struct job {
    atomic_int turn;                            /* number of the check that runs, from 1 */
    atomic_int over;                            /* the checks have ended: 1 + the exit status */
    atomic_int joined;                          /* processes that have mapped the file, two of each rank */
    struct board board;
    struct report reports[RANKS_MOST];
} *job;

/* What the child has found, in memory shared with its parent. */
static struct member {
    atomic_bool known;
    int32_t rank, size;
    char path[256];
} *member;

static pid_t child;
static jmp_buf skipped;
static const char *failed_check;

/* ---- in the child ---- */

static struct job *job_map(const char *path)
{
    const int file = open(path, O_RDWR | O_CLOEXEC);
    void *address = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    return address != MAP_FAILED ? address : NULL;
}

/* The end of a check that is skipped or has failed on this rank. */
static void check_ends(void)
{
    if (report->outcome == SKIPPED)
        longjmp(skipped, 1);
    for (;;)
        pause();
}

static void await_turn(int turn)
{
    while (atomic_load(&job->turn) < turn)
        contract_sleep(1);
}

static char own_path[256];

/* Before the checks, because the launcher may kill this process and its parent at any time afterwards. */
static void file_remove(void)
{
    unlink(own_path);
    *strrchr(own_path, '/') = '\0';
    rmdir(own_path);
}

static void join(void)
{
    const ctrt_comm_engine *engine = contract_target.component->table;
    contract_path(own_path, 0);
    const int file = open(own_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT(file >= 0 && ftruncate(file, sizeof *job) == 0, "%s: %s", own_path, strerror(errno));
    memcpy(member->path, own_path, sizeof own_path);
    close(file);
    CALL(engine->bootstrap(&member->rank, &member->size, member->path, sizeof member->path), "bootstrap");
    contract_target.rank = member->rank, contract_target.ranks = member->size;
    if (member->size < 2)
        return;
    EXPECT(member->size <= RANKS_MOST, "there are %d ranks; the checks can run on %d", (int)member->size, RANKS_MOST);
    job = job_map(member->path);
    EXPECT(job != NULL, "the ranks share no memory: all have to be on one machine");
    if (member->rank != 0)
        file_remove();
}

static void run_check(const struct contract_kind *kind, const struct contract_check *check)
{
    if (setjmp(skipped) == 0)
        report_run(kind, check);
    if (report->outcome == NO_OUTCOME)
        __atomic_store_n(&report->outcome, PASSED, __ATOMIC_RELEASE);
}

static _Noreturn void rank_run(const struct contract_options *options, const struct contract_kind *kind)
{
    int turn = 0;
    contract_load(kind->kind);
    join();
    if (job == NULL) {
        atomic_store(&member->known, true);
        exit(0);
    }
    report = &job->reports[member->rank];
    board = &job->board;
    contract_ends = check_ends;
    atomic_store(&member->known, true);
    atomic_fetch_add(&job->joined, 1);
    if (member->rank == 0) {
        ranks_await(&job->joined, 2 * member->size);
        file_remove();
    }
    for (int t = 0; kind->checks[t] != NULL; t++)
        for (const struct contract_check *check = kind->checks[t]; check->name != NULL; check++) {
            if (!report_selects(options, check) || (check->needs & NEEDS_NO_INIT))
                continue;
            await_turn(++turn);
            run_check(kind, check);
        }
    while (!atomic_load(&job->over))
        contract_sleep(1);
    exit(0);                                    /* not _exit: the engine ends what it has initialised */
}

/* ---- in the process that the launcher has started ---- */

/* Whether the child has ended. */
static bool child_ended(void)
{
    int status = 0;
    if (child <= 0 || waitpid(child, &status, WNOHANG) != child)
        return child <= 0;
    report_kill(child);
    child = -1;
    report_ended(job != NULL ? &job->reports[member->rank] : report, status);
    return true;
}

int launch_begin(const struct contract_options *options, const struct contract_kind *kind)
{
    const double limit = seconds_now() + options->seconds;
    memset(report, 0, sizeof *report);
    member = mmap(NULL, sizeof *member, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (member == MAP_FAILED || (child = report_fork()) < 0) {
        perror("ctrt check");
        return -2;
    }
    if (child == 0)
        rank_run(options, kind);
    while (!atomic_load(&member->known) && !child_ended() && seconds_now() < limit)
        contract_sleep(1);
    if (atomic_load(&member->known) && member->size > 1 && (job = job_map(member->path)) != NULL) {
        atomic_fetch_add(&job->joined, 1);
        return member->rank;
    }
    const bool known = atomic_load(&member->known);
    if (child > 0)
        report_kill(child);
    if (known || report->outcome == SKIPPED)    /* alone, or the engine cannot be used here */
        return -1;
    fprintf(stderr, "ctrt check: the rank cannot join: %s: %s\n", report->step,
            report->text[0] != '\0' ? report->text : "it did not return within the time limit");
    return -2;
}

/* Stores the ranks in *report that have not ended the check, each with what it does. */
static void report_late(const char *name, double seconds)
{
    size_t used = 0;
    report->outcome = FAILED;
    for (int i = 0; i < member->size && used < sizeof report->text; i++)
        if (job->reports[i].outcome == NO_OUTCOME)
            used += (size_t)snprintf(report->text + used, sizeof report->text - used, "%srank %d did not end %s within "
                                     "%g s (%.200s)", used > 0 ? "; " : "", i, name, seconds, job->reports[i].step);
}

void launch_await(const struct contract_options *options, const struct contract_check *check)
{
    const double limit = seconds_now() + options->seconds;
    memset(report, 0, sizeof *report);
    if (failed_check != NULL) {
        report->outcome = SKIPPED;
        snprintf(report->text, sizeof report->text, "the ranks have ended, because %s has failed", failed_check);
        return;
    }
    for (int i = 0; i < member->size; i++)
        memset(&job->reports[i], 0, sizeof job->reports[i]);
    atomic_fetch_add(&job->turn, 1);
    for (int left = 1; left > 0 && report->outcome != FAILED; contract_sleep(1)) {
        left = 0;
        (void)child_ended();
        for (int i = 0; i < member->size && report->outcome != FAILED; i++) {
            const enum outcome outcome = __atomic_load_n(&job->reports[i].outcome, __ATOMIC_ACQUIRE);
            left += outcome == NO_OUTCOME;
            if (outcome == FAILED || outcome == SKIPPED)
                *report = job->reports[i];
        }
        if (left > 0 && report->outcome != FAILED && seconds_now() > limit)
            report_late(check->name, options->seconds);
    }
    if (report->outcome == NO_OUTCOME)
        report->outcome = PASSED;
    if (report->outcome == FAILED)
        failed_check = check->name;
}

int launch_end(int status)
{
    if (member->rank == 0)
        atomic_store(&job->over, 1 + status);
    while (!atomic_load(&job->over)) {
        (void)child_ended();
        contract_sleep(5);
    }
    status = atomic_load(&job->over) - 1;
    for (int n = 0; n < 1000 && failed_check == NULL && status == 0 && !child_ended(); n++)
        contract_sleep(5);
    if (child > 0)
        report_kill(child);
    return status;
}
