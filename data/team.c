/* SPDX-License-Identifier: Apache-2.0 */
/* data/team.c: the workers of a loader, as processes or threads. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE                     /* pipe2, gettid, sigabbrev */
#endif
#include "data/team.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/descriptor.h"
#include "base/host_alloc.h"
#include "base/strbuf.h"
#include "data/fork_server.h"

#define STOP_MS    500                  /* time for processes to end by themselves */
#define TAIL_LINES 8

ctrt_status team_new(struct team *team, struct ring *ring, ctrt_dataset *dataset, ctrt_worker_kind kind, int count,
                     bool quiet)
{
    *team = (struct team){ .ring = ring, .dataset = dataset, .kind = kind, .quiet = quiet };
    if (count == 0)
        return CTRT_OK;
    team->members = host_calloc((size_t)count * sizeof *team->members);
    ALLOC_CHECK(team->members, (size_t)count * sizeof *team->members, "the workers of a loader");
    team->count = count;
    for (int id = 0; id < count; id++)
        team->members[id].error = -1;
    return CTRT_OK;
}

/* ---- stderr ---- */

#define ERRORS_AT_ONCE (1 << 20)        /* bytes; also the size of the pipe, the usual limit of the system */

static void keep_tail(struct member *member, const char *text, size_t length)
{
    if (length >= MEMBER_TAIL) {
        text += length - MEMBER_TAIL;
        length = MEMBER_TAIL;
    }
    const size_t kept = MIN(member->tail_length, MEMBER_TAIL - length);
    memmove(member->tail, member->tail + member->tail_length - kept, kept);
    memcpy(member->tail + kept, text, length);
    member->tail_length = kept + length;
}

/* Returns whether something was read. A worker that never stops writing must not hold the loader here, so at most
 * ERRORS_AT_ONCE bytes are read. */
static bool read_errors(const struct team *team, struct member *member)
{
    char text[16384];
    ssize_t got, all = 0;
    while (member->error >= 0 && all < ERRORS_AT_ONCE
           && ((got = read(member->error, text, sizeof text)) > 0 || (got < 0 && errno == EINTR))) {
        if (got < 0)
            continue;
        all += got;
        keep_tail(member, text, (size_t)got);
        for (ssize_t done = 0, n = 0; !team->quiet && done < got && n >= 0; done += n)
            n = write(STDERR_FILENO, text + done, (size_t)(got - done));
    }
    return all > 0;
}

bool team_read_errors(struct team *team)
{
    bool any = false;
    for (int id = 0; id < team->count; id++)
        any = read_errors(team, &team->members[id]) || any;
    return any;
}

static void close_errors(struct team *team, struct member *member)
{
    (void)read_errors(team, member);
    if (member->error >= 0)
        close(member->error);
    member->error = -1;
}

/* ---- start ---- */

static void *thread_main(void *argument)
{
    worker_run(argument);
    return NULL;
}

static ctrt_status worker_team_start_thread(struct team *team, int id)
{
    struct member *member = &team->members[id];
    CTRT_TRY(worker_begin(&member->worker, team->ring->header, team->dataset, id));
    const int error = thread_start(&member->thread, thread_main, &member->worker);
    if (error == 0)
        return CTRT_OK;
    worker_end(&member->worker);
    return ctrt_fail(CTRT_ERR_IO, "loader: cannot start thread %d of %d: %s", id, team->count, strerror(error));
}

static ctrt_status fail_start(const struct team *team, int id, const char *what)
{
    const int error = errno;
    struct rlimit files = { 0 };
    if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &files) == 0)
        return ctrt_fail(CTRT_ERR_IO, "loader: cannot %s worker %d of %d: %s; the limit (ulimit -n) is %llu, and each "
                         "worker needs one descriptor", what, id, team->count, strerror(error),
                         (unsigned long long)files.rlim_cur);
    return ctrt_fail(CTRT_ERR_IO, "loader: cannot %s worker %d of %d: %s", what, id, team->count, strerror(error));
}

static ctrt_status start_process(struct team *team, int id)
{
    struct member *member = &team->members[id];
    int errors[2];
    if (fds_above_stdio(pipe2(errors, O_CLOEXEC), errors) != 0)
        return fail_start(team, id, "create a pipe for");
    fcntl(errors[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(errors[0], F_SETPIPE_SZ, ERRORS_AT_ONCE);       /* refused if the user has too many large pipes */
    atomic_store(&ring_worker(team->ring->header, id)->exit, 0);
    ctrt_status status = CTRT_OK;
    if (team->kind == CTRT_WORKERS_SERVER) {
        status = fork_server_start_worker(&member->pid, team->ring->fd, errors[1], team->dataset, id);
    } else {
        const int parent = getpid();
        const bool main_thread = syscall(SYS_gettid) == parent;
        member->pid = fork();
        if (member->pid == 0) {
            close(errors[0]);
            worker_process(team->ring->header, team->dataset, id, errors[1], parent, main_thread);
        }
        if (member->pid < 0)
            status = fail_start(team, id, "fork");
    }
    close(errors[1]);
    if (status != CTRT_OK) {
        member->pid = 0;
        close(errors[0]);
        return status;
    }
    member->error = errors[0];
    return CTRT_OK;
}

static ctrt_status worker_team_start(struct team *team, int id)
{
    struct member *member = &team->members[id];
    member->ended = false;
    member->tail_length = 0;
    atomic_store(&ring_worker(team->ring->header, id)->sample, -1);
    CTRT_TRY(team_of_processes(team) ? start_process(team, id) : worker_team_start_thread(team, id));
    member->running = true;
    return CTRT_OK;
}

ctrt_status team_start(struct team *team)
{
    ctrt_status status = CTRT_OK;
    for (int id = 0; id < team->count && status == CTRT_OK; id++) {
        struct ring_worker *shared = ring_worker(team->ring->header, id);
        atomic_store(&shared->taken, atomic_load(&shared->posted));
        status = worker_team_start(team, id);
    }
    if (status != CTRT_OK)
        team_stop(team);
    return status;
}

ctrt_status team_restart(struct team *team, int id)
{
    close_errors(team, &team->members[id]);
    team->members[id].running = false;
    return worker_team_start(team, id);
}

/* ---- end ---- */

bool team_has_ended(struct team *team, int id)
{
    struct member *member = &team->members[id];
    if (!member->running || member->ended)
        return member->ended;
    if (team->kind == CTRT_WORKERS_SERVER) {
        int64_t status = atomic_load(&ring_worker(team->ring->header, id)->exit);
        if (status == 0 && !fork_server_alive())
            status = 1 + SIGKILL;
        if (status == 0)
            return false;
        member->status = (int)(status - 1);
    } else {
        const pid_t found = waitpid(member->pid, &member->status, WNOHANG);
        if (found == 0 || (found < 0 && errno == EINTR))
            return false;
        if (found < 0)                  /* the program ignores SIGCHLD, or has waited for the process itself */
            member->status = -1;
    }
    member->ended = true;
    return true;
}

static void pause_ms(long ms)
{
    const struct timespec time = { .tv_nsec = ms * 1000000 };
    nanosleep(&time, NULL);
}

static bool all_ended(struct team *team)
{
    bool ended = true;
    for (int id = 0; id < team->count; id++)
        ended = (!team->members[id].running || team_has_ended(team, id)) && ended;
    return ended;
}

static void end_processes(struct team *team)
{
    for (int ms = 0; !all_ended(team); ms += 1 + ms / 8) {
        for (int id = 0; id < team->count && ms > STOP_MS; id++)
            if (team->members[id].running && !team->members[id].ended)
                kill(team->members[id].pid, SIGKILL);
        team_read_errors(team);         /* a worker that waits for space in its pipe cannot end */
        pause_ms(1 + (ms > STOP_MS ? 9 : ms / 8));
    }
}

void team_stop(struct team *team)
{
    if (team->count == 0)
        return;
    struct ring_header *header = team->ring->header;
    atomic_store(&header->stop, 1);
    for (int id = 0; id < team->count; id++)
        ring_wake(&ring_worker(header, id)->posted);
    if (team_of_processes(team))
        end_processes(team);
    for (int id = 0; id < team->count; id++) {
        struct member *member = &team->members[id];
        if (member->running && !team_of_processes(team)) {
            pthread_join(member->thread, NULL);
            worker_end(&member->worker);
        }
        close_errors(team, member);
        member->running = member->ended = false;
        member->pid = 0;
    }
    atomic_store(&header->stop, 0);
}

void team_free(struct team *team, bool forked)
{
    if (!forked)
        team_stop(team);
    for (int id = 0; forked && id < team->count; id++)
        if (team->members[id].error >= 0)
            close(team->members[id].error);
    host_free(team->members);
    *team = (struct team){ 0 };
}

/* ---- reports ---- */

/* Returns the beginning of the last lines of the worker's stderr. */
static const char *last_lines(const struct member *member, int *length)
{
    const char *end = member->tail + member->tail_length;
    while (end > member->tail && (end[-1] == '\n' || end[-1] == ' '))
        end--;
    const char *begin = end;
    for (int lines = 0; begin > member->tail; begin--)
        if (begin[-1] == '\n' && ++lines == TAIL_LINES)
            break;
    *length = (int)(end - begin);
    return begin;
}

static void describe_end(struct strbuf *text, const struct member *member)
{
    const int status = member->status;
    if (status != -1 && WIFSIGNALED(status)) {
        const int sig = WTERMSIG(status);
        strbuf_add(text, "was killed by signal %d (%s)", sig, strsignal(sig));
        if (sig == SIGKILL)
            strbuf_add(text, ", by the kernel if memory ran out,");
    } else if (status != -1 && WIFEXITED(status)) {
        strbuf_add(text, "exited with status %d", WEXITSTATUS(status));
    } else {
        strbuf_add(text, "ended");
    }
}

ctrt_status team_fail(struct team *team, int id, const struct ring_slot *slot, double seconds)
{
    struct member *member = &team->members[id];
    const struct ring_worker *shared = ring_worker(team->ring->header, id);
    const int64_t sample = atomic_load(&shared->sample);
    struct strbuf text = { 0 };
    char *message = NULL;
    int length = 0;
    (void)read_errors(team, member);
    strbuf_add(&text, "loader: worker %d ", id);
    if (member->pid != 0)
        strbuf_add(&text, "(process %d) ", member->pid);
    if (seconds > 0)
        strbuf_add(&text, "did not finish within the timeout of %g s", seconds);
    else
        describe_end(&text, member);
    if (sample >= 0)
        strbuf_add(&text, " while it read sample %" PRId64, sample);
    else
        strbuf_add(&text, " while it read no sample");
    strbuf_add(&text, " (batch %" PRId64 " of epoch %" PRIu64 "); to debug the dataset, use workers = 0", slot->batch,
               slot->epoch);
    const char *lines = last_lines(member, &length);
    if (length > 0)
        strbuf_add(&text, "; its last lines on stderr:\n%.*s", length, lines);
    else if (member->pid != 0)
        strbuf_add(&text, "; it wrote nothing to stderr");
    if (strbuf_finish(&message, &text, "a message") != CTRT_OK)
        return CTRT_ERR_OUT_OF_MEMORY;
    ctrt_status status = ctrt_fail(CTRT_ERR_IO, "%s", message);
    free(message);
    return status;
}
