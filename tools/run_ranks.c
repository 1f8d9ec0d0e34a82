/* SPDX-License-Identifier: Apache-2.0 */
/* tools/run_ranks.c: starts the ranks of `ctrt run`, forwards signals to them, and waits for their ends.
 *
 * Each rank has a process group of its own, so that signals reach a rank's own children too. The kernel kills the ranks
 * if the launcher is killed (PR_SET_PDEATHSIG). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "run.h"

#define KILL_TIME     INT64_C(3000000000)       /* ns from SIGTERM to SIGKILL */
#define LOOK_TIME     INT64_C(500000000)        /* ns between two looks for ranks that were excluded */
#define STOPPED_TIME  INT64_C(5000000000)       /* see stopped_time */
#define LEFTOVER_TIME INT64_C(3000000000)       /* ns that the output of processes that ranks left behind is read */

static struct rank {
    pid_t pid;
    bool running;
    bool in_group;                      /* in the launcher's process group, see start_rank */
    int64_t stopped;                    /* since when it is known to be stopped by a signal; 0: it is not */
} *ranks;
static int rank_count, first_rank, running;
static bool failed, stopped;            /* stopped: a signal asked the launcher to end after the ends of all ranks */
static int exit_status;                 /* of the first failure */
/* With options->shrink: ranks that have ended with status 0; ranks that were lost; how often one was started again. */
static int succeeded, lost, restarted;
static int64_t next_look;               /* for ranks that the others have excluded */
static int forwarded;                   /* the last signal that asked the launcher to end */
static enum { NORMAL, GRACE, TERMINATED, KILLED } phase;
static int64_t deadline;                /* of the phase */

int64_t run_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- starting ---- */

static struct rlimit files_before;
static sigset_t signals_before;

struct start {
    char **program;
    pid_t launcher;
    int in, out, err;                   /* -1: the launcher's */
    int report;                         /* receives errno if the program cannot be started */
    bool in_group;
};

/* In the child. Other threads of the launcher may hold locks, so only functions that need none are called. */
__attribute__((noreturn)) static void exec_rank(const struct start *start)
{
    if (!start->in_group)
        setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != start->launcher)
        _exit(1);                       /* the launcher ended before prctl */
    if ((start->in < 0 || dup2(start->in, 0) == 0) && (start->out < 0 || dup2(start->out, 1) == 1)
        && (start->err < 0 || dup2(start->err, 2) == 2)) {
        setrlimit(RLIMIT_NOFILE, &files_before);
        sigprocmask(SIG_SETMASK, &signals_before, NULL);
        execvp(start->program[0], start->program);
    }
    const int error = errno;
    (void)!write(start->report, &error, sizeof error);
    _exit(127);
}

/* Starts the rank with index `local`. `null` is /dev/null. Returns 0 or an errno. A rank that reads from a terminal
 * stays in the launcher's process group, because the terminal stops background processes that read from it. */
static int start_rank(int local, const struct run_options *options, bool piped, int null)
{
    int out[2] = { -1, -1 }, err[2] = { -1, -1 }, report[2] = { -1, -1 }, error = 0;
    char prefix[16] = "";
    const int rank = first_rank + local;
    struct start start = { .program = options->program, .launcher = getpid(), .in = rank == 0 ? -1 : null };
    start.in_group = rank == 0 && isatty(0);
    if (options->prefix == 1)
        snprintf(prefix, sizeof prefix, "[%d] ", rank);
    run_set_number("RANK", rank);
    run_set_number("LOCAL_RANK", local);
    if ((piped && (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)) || pipe2(report, O_CLOEXEC) != 0
        || (piped && (!output_add(out[0], 1, local, prefix) || !output_add(err[0], 2, local, prefix))))
        return errno;
    start.out = out[1];
    start.err = err[1];
    start.report = report[1];
    const pid_t pid = fork();
    if (pid == 0)
        exec_rank(&start);
    if (pid < 0) {
        error = errno;
    } else {
        if (!start.in_group)
            setpgid(pid, pid);
        ranks[local] = (struct rank) { pid, true, start.in_group, 0 };
        running++;
    }
    close(report[1]);
    if (piped) {
        close(out[1]);
        close(err[1]);
    }
    if (pid > 0 && read(report[0], &error, sizeof error) < 0)
        error = errno;
    close(report[0]);
    return error;
}

/* ---- signals ---- */

/* `typed`: the terminal has sent the signal to the launcher's process group already. */
static void send_all(int signal, bool typed)
{
    for (int i = 0; i < rank_count; i++)
        if (ranks[i].running && !(typed && ranks[i].in_group))
            kill(ranks[i].in_group ? ranks[i].pid : -ranks[i].pid, signal);
}

static void enter(int next, double seconds)
{
    phase = next;
    deadline = run_now() + (int64_t)(seconds * 1e9);
}

static void handle_signal(const struct signalfd_siginfo *info)
{
    const int signal = (int)info->ssi_signo;
    const bool typed = info->ssi_code == SI_KERNEL;
    if (signal == SIGCHLD)
        return;
    if (signal == SIGTSTP) {
        send_all(SIGSTOP, typed);
        raise(SIGSTOP);
        send_all(SIGCONT, false);
        return;
    }
    if (signal == SIGUSR1 || signal == SIGUSR2) {
        send_all(signal, typed);
        return;
    }
    if (signal == SIGINT && forwarded == SIGINT && running > 0) {
        output_say("killing %d rank%s", running, running > 1 ? "s" : "");
        send_all(SIGKILL, false);
        phase = KILLED;
        return;
    }
    forwarded = signal;
    if (running == 0) {
        stopped = true;
        exit_status = exit_status != 0 ? exit_status : 128 + signal;
        return;
    }
    output_say("signal %d (%s) forwarded to %d rank%s%s", signal, strsignal(signal), running, running > 1 ? "s" : "",
               signal == SIGINT ? "; a second one kills" : "");
    send_all(signal, typed);
}

/* ---- the ends of ranks ---- */

/* The first failure starts the grace time of the other ranks. */
static void run_ranks_fail(int status, double grace)
{
    if (failed)
        return;
    failed = true;
    exit_status = status;
    if (phase == NORMAL)
        enter(GRACE, grace);
}

/* Starts the rank again, to join the others. */
static void restart(int local, const struct run_options *options)
{
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    restarted++;
    setenv("CTRT_JOIN", "yes", 1);
    const int error = null < 0 ? errno : start_rank(local, options, rank_count > 1 || options->prefix == 1, null);
    unsetenv("CTRT_JOIN");
    if (null >= 0)
        close(null);
    if (error != 0)
        output_say("cannot start %s again: %s", options->program[0], strerror(error));
    else
        output_say("rank %d is started again as process %d and joins the others", first_rank + local,
                   (int)ranks[local].pid);
}

/* A rank was lost and the others go on. Without others, the job has failed. */
static void lose(int local, const char *text, int status, const struct run_options *options)
{
    lost++;
    exit_status = exit_status != 0 ? exit_status : status;
    if (phase < TERMINATED)
        output_say("%s%s", text, running > 0 ? "; the others go on" : "");
    if (running > 0 && succeeded == 0 && phase == NORMAL && restarted < options->restarts)
        restart(local, options);
}

static void run_ranks_reap(int local, int status, const struct run_options *options)
{
    struct rank *rank = &ranks[local];
    char text[160];
    rank->running = false;
    running--;
    output_read(local);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        succeeded++;
        return;
    }
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (signal != 0)
        snprintf(text, sizeof text, "rank %d (process %d) was killed by signal %d (%s%s)", first_rank + local,
                 (int)rank->pid, signal, strsignal(signal), WCOREDUMP(status) ? ", core dumped" : "");
    else
        snprintf(text, sizeof text, "rank %d (process %d) exited with status %d", first_rank + local, (int)rank->pid,
                 WEXITSTATUS(status));
    if (options->shrink && forwarded == 0) {
        lose(local, text, signal != 0 ? 128 + signal : WEXITSTATUS(status), options);
        return;
    }
    /* The ends that the launcher's own signals cause are not reported. */
    if (phase < TERMINATED && (signal == 0 || signal != forwarded))
        output_say("%s", text);
    if (options->nodes > 1 && !failed)
        nodes_fail(text);
    run_ranks_fail(signal != 0 ? 128 + signal : WEXITSTATUS(status), options->grace);
}

static void reap_all(const struct run_options *options)
{
    for (int i = 0, status; i < rank_count; i++)
        if (ranks[i].running && waitpid(ranks[i].pid, &status, WNOHANG) == ranks[i].pid) {
            run_ranks_reap(i, status, options);
            if (running == 0 && lost > 0 && succeeded > 0)
                output_say("%d rank%s ended with status 0; lost: %d, started again: %d", succeeded,
                           succeeded > 1 ? "s" : "", lost, restarted);
        }
}

/* Writes the ranks that run, at most 10, for example "ranks 0, 2 have". */
static const char *list_running(char text[160])
{
    int length = snprintf(text, 160, running > 1 ? "ranks" : "rank"), listed = 0;
    for (int i = 0; i < rank_count && listed < 10; i++)
        if (ranks[i].running)
            length += snprintf(text + length, (size_t)(160 - length), "%s %d", listed++ > 0 ? "," : "", first_rank + i);
    snprintf(text + length, (size_t)(160 - length), "%s", running > 10 ? ", ... have" : running > 1 ? " have" : " has");
    return text;
}

/* Goes on to the next phase after its time. */
static void escalate(const struct run_options *options)
{
    char text[160];
    if (running == 0 || run_now() < deadline)
        return;
    if (phase == GRACE) {
        if (options->grace > 0)
            output_say("%s not ended within %g s; sending SIGTERM", list_running(text), options->grace);
        enter(TERMINATED, KILL_TIME / 1e9);
        send_all(SIGTERM, false);
        send_all(SIGCONT, false);
    } else if (phase == TERMINATED) {
        output_say("%s not ended within 3 s of SIGTERM; sending SIGKILL", list_running(text));
        phase = KILLED;
        send_all(SIGKILL, false);
    }
}

/* Time in ns after which a stopped rank is lost, if others have ended: the time limit of the ranks, at most
 * STOPPED_TIME. */
static int64_t stopped_time(void)
{
    const char *limit = getenv("CTRT_COMM_TIMEOUT");
    const double seconds = limit != NULL ? atof(limit) : 0;
    return seconds > 0 && seconds < STOPPED_TIME / 1e9 ? (int64_t)(seconds * 1e9) : STOPPED_TIME;
}

/* Whether a rank has been stopped by a signal for that time. */
static bool long_stopped(struct rank *rank)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)rank->pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *end = strrchr(text, ')');                   /* of the name, before the state */
    if (end == NULL || strlen(end) < 3 || end[2] != 'T')
        rank->stopped = 0;
    else if (rank->stopped == 0)
        rank->stopped = run_now();
    return rank->stopped != 0 && run_now() - rank->stopped >= stopped_time();
}

/* When the others have ended, a rank that they have excluded, because it is stopped or does not come, is ended too. So
 * is a rank that was stopped after its last collective, which the others have not noticed. */
static void end_excluded(const struct run_options *options)
{
    char host[65] = "", key[160];
    bool all = true;
    if (!options->shrink || running == 0 || succeeded == 0 || phase != NORMAL || run_now() < next_look)
        return;
    next_look = run_now() + LOOK_TIME;
    (void)gethostname(host, sizeof host - 1);
    for (int i = 0; i < rank_count; i++) {
        if (!ranks[i].running)
            continue;
        snprintf(key, sizeof key, "ctrt-run/excluded/%s/%d", host, (int)ranks[i].pid);
        const bool lost_now = long_stopped(&ranks[i]);          /* for each rank, because its time begins at a look */
        all &= lost_now || ctrt_store_get(options->served, key, NULL, NULL, 0) == CTRT_OK;
    }
    if (!all)
        return;
    output_say("%s been stopped, or excluded by the ranks that have ended; sending SIGTERM", list_running(key));
    enter(TERMINATED, KILL_TIME / 1e9);
    send_all(SIGTERM, false);
    send_all(SIGCONT, false);
}

/* ---- supervision ---- */

/* Ends reading the output of processes that ended ranks have left behind. */
static void end_leftovers(void)
{
    for (int i = 0; i < rank_count; i++)
        if (output_open(i)) {
            output_say("rank %d has left processes that keep its output open; they are killed", first_rank + i);
            if (!ranks[i].in_group)
                kill(-ranks[i].pid, SIGKILL);
            output_read(i);
        }
    output_close();
}

/* Waits until the ranks have ended and their output is written. */
static void supervise(const struct run_options *options, int signals, int event, struct pollfd *polls)
{
    bool ended = false, told = false;       /* told: of a failure on another node */
    int64_t end = 0;
    while (!stopped && (running > 0 || output_open(-1) || !output_written() || (event >= 0 && !nodes_done()))) {
        struct signalfd_siginfo info;
        char text[256];
        if (running == 0 && (!ended || !output_written()))
            end = run_now() + LEFTOVER_TIME;
        if (running == 0 && !ended && event >= 0)
            nodes_end();
        ended = running == 0;
        const bool looks = options->shrink && running > 0 && succeeded > 0 && phase == NORMAL;
        const bool timed = looks || (running > 0 ? phase == GRACE || phase == TERMINATED : output_open(-1));
        const int64_t left = ((looks ? next_look : running > 0 ? deadline : end) - run_now()) / 1000000 + 1;
        const size_t count = output_polls(polls);
        polls[count] = (struct pollfd) { .fd = signals, .events = POLLIN };
        polls[count + 1] = (struct pollfd) { .fd = event, .events = POLLIN };
        if (poll(polls, count + 2, !timed ? -1 : left < 0 ? 0 : left > 1000000 ? 1000000 : (int)left) < 0)
            continue;
        output_handle(polls);
        while (read(signals, &info, sizeof info) == sizeof info)
            handle_signal(&info);
        reap_all(options);
        if (event >= 0 && nodes_failure(text, sizeof text) && !failed && !told) {
            output_say("%s", text);
            told = true;
            if (!options->shrink)
                run_ranks_fail(1, options->grace);
        }
        end_excluded(options);
        escalate(options);
        if (ended && output_open(-1) && run_now() > end)
            end_leftovers();
    }
}

/* Starts all ranks. If one cannot be started, writes a message and kills the others. */
static void run_ranks_start_all(const struct run_options *options, bool piped)
{
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int error = null < 0 ? errno : 0;
    for (int i = 0; i < rank_count && error == 0; i++)
        error = start_rank(i, options, piped, null);
    if (null >= 0)
        close(null);
    if (error == 0)
        return;
    exit_status = error == ENOENT ? 127 : error == EACCES || error == ENOEXEC || error == EISDIR ? 126 : 1;
    output_say("cannot start %s: %s", options->program[0], strerror(error));
    failed = true;
    if (options->nodes > 1)
        nodes_fail("the program cannot be started");
    phase = KILLED;
    send_all(SIGKILL, false);
}

/* Blocks the signals that the launcher forwards, and returns a descriptor for them. Signals that were ignored when the
 * launcher started, for example SIGHUP by nohup, remain so in all processes. */
static int take_signals(void)
{
    static const int forward[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD };
    sigset_t set, blocked;
    struct sigaction action;
    signal(SIGCHLD, SIG_DFL);           /* if it is ignored, waitpid has no results */
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof forward / sizeof forward[0]; i++)
        if (sigaction(forward[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&set, forward[i]);
    blocked = set;
    sigaddset(&blocked, SIGPIPE);
    sigprocmask(SIG_BLOCK, &blocked, &signals_before);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

int ranks_run(const struct run_options *options)
{
    rank_count = options->ranks;
    first_rank = options->node * rank_count;
    /* Each rank needs two pipes and a connection to the store. */
    getrlimit(RLIMIT_NOFILE, &files_before);
    struct rlimit files = files_before;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);

    /* One rank without a prefix writes to the launcher's stdout and stderr itself. */
    const bool piped = rank_count > 1 || options->prefix == 1;
    const size_t pipes = piped ? 2 * ((size_t)rank_count + (size_t)options->restarts) : 0;
    struct pollfd *polls = calloc(pipes + 4, sizeof *polls);
    ranks = calloc((size_t)rank_count, sizeof *ranks);
    const int signals = take_signals();
    int event = -1;
    if (polls == NULL || ranks == NULL || !output_begin(pipes) || signals < 0) {
        perror("ctrt run");
        return 1;
    }
    if (options->nodes > 1 && (event = nodes_start()) < 0)
        return 1;
    run_ranks_start_all(options, piped);
    supervise(options, signals, event, polls);
    free(polls);
    free(ranks);
    close(signals);
    if (options->shrink && succeeded > 0 && !failed)
        exit_status = 0;
    return exit_status == 0 && output_error() != 0 ? 1 : exit_status;
}
