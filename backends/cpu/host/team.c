/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/team.c: the threads of parallel work, and how they wait.
 *
 * A waiting thread first spins, because a thread that sleeps in the kernel needs 5 to 50 us to continue. If other
 * programs use the processors, a spinning thread takes time from them and from its own team. Workers detect that by
 * comparing their processor time with the time during which they did not sleep. If more than a fifth is missing,
 * because other threads ran or the control group's quota was used up, spins are short for a while; they are also short
 * for a shorter while if the clock jumps during one. The caller's time is not measured, because the program may block
 * in it.
 *
 * A task that nobody has begun is run by the next thread of the team that has nothing to do, so a worker that does not
 * get a processor delays nobody. The division into tasks never depends on the load, so results do not either. If the
 * tasks are too short to be worth waking a worker, the next regions do not wake it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "team.h"
#include "internal.h"
#include "plugins/common/clock.h"
#include "plugins/common/fork.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* In nanoseconds. */
#define SPIN_LONG   2000000             /* bridges the serial parts of a training step */
#define SPIN_SHORT  10000               /* if other threads use the processor */
#define WINDOW      100000000           /* the time over which a worker's processor time is measured */
#define SHORT_FOR   1000000000          /* after such a window, or until the next one */
#define PREEMPTED   100000              /* between two reads of the clock: above interrupts, below time slices */
#define SHORT_AFTER 50000000            /* after a preemption */
#define WAKE_PAYS   25000               /* a task of this duration is worth waking a worker */

enum { IDLE = 0, OPEN = 1, ASLEEP = 2 };        /* bits of worker.state */

struct team_worker {
    /* OPEN: there is a task that no thread has begun. ASLEEP: the worker sleeps or is about to sleep until it is
     * woken. OPEN | ASLEEP: the task waits for any thread, and the worker was not woken. */
    _Alignas(64) _Atomic uint32_t state;
    struct team *team;
    pthread_t thread;
    int index;
    /* the worker's: since the time `window` it has slept for `slept`; its processor time at the start of the window;
     * spins are short until short_until */
    int64_t window, slept, used, short_until;
    bool woken;                         /* the following are the caller's: woken for the current region */
    int useless;                        /* how often in a row the worker was woken for a short task */
    int skip;                           /* regions left that do not wake the worker */
};

struct team {
    struct team_worker **workers;       /* [size - 1]; worker i runs task i + 1 */
    int size;
    bool limited;                       /* the last attempt to start all workers failed */
    int calls_to_retry;                 /* while limited: calls of cpu_team_grow before the next attempt */
    bool ends;
    /* the current region; read by workers after they have taken a task */
    cpu_task task;
    void *argument;
    int count;
    _Atomic int64_t short_until;        /* the caller's spins are short until this time */
    _Alignas(64) _Atomic uint32_t pending;      /* tasks that have not ended */
    _Atomic bool caller_sleeps;
    _Alignas(64) _Atomic uint32_t arrived;      /* at the barrier */
    _Atomic uint32_t barriers;          /* number of completed barriers */
    _Atomic uint32_t barrier_sleepers;
};

struct self {
    struct team *own;                   /* the team of which this thread is the caller */
    struct team *region;                /* the team in whose region this thread runs a task; NULL in nested regions */
    int count, index;                   /* of that region */
};
static _Thread_local struct self self;
static bool always_short;
static pthread_key_t at_exit;
static bool registered;

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void pause_thread(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("isb");            /* takes about as long as x86's pause; `yield` is a no-op on most processors */
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Called by a worker that has nothing to do: determines whether other threads use its processor. */
static void measure(struct team_worker *worker, int64_t time)
{
    const int64_t awake = time - worker->window - worker->slept;
    if (awake < WINDOW)
        return;
    const int64_t used = clock_now(CLOCK_THREAD_CPUTIME_ID), lost = awake - (used - worker->used);
    worker->short_until = worker->window != 0 && lost > awake / 5 ? time + SHORT_FOR : 0;
    atomic_store_explicit(&worker->team->short_until, worker->short_until, memory_order_relaxed);
    worker->window = time;
    worker->slept = 0;
    worker->used = used;
}

/* Waits until *word is not `value`, for at most about SPIN_LONG ns. Returns whether it is not. `worker`: the calling
 * worker, NULL in the caller. */
static bool spin(_Atomic uint32_t *word, uint32_t value, struct team *team, struct team_worker *worker)
{
    enum { CHECKS = 16 };               /* between two reads of the clock: about 1 us */
    int64_t end = 0, last = 0;
    for (;;) {
        for (int i = 0; i < CHECKS; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value)
                return true;
            pause_thread();
        }
        const int64_t time = clock_now(CLOCK_MONOTONIC);
        int64_t short_until = worker ? worker->short_until
                              : atomic_load_explicit(&team->short_until, memory_order_relaxed);
        if (end == 0) {
            if (worker)
                measure(worker, time);
            end = time + (always_short || time < short_until ? SPIN_SHORT : SPIN_LONG);
        } else if (time - last > PREEMPTED) {
            short_until = short_until > time + SHORT_AFTER ? short_until : time + SHORT_AFTER;
            if (worker)
                worker->short_until = short_until;
            else
                atomic_store_explicit(&team->short_until, short_until, memory_order_relaxed);
            return false;
        } else if (time > end) {
            return false;
        }
        last = time;
    }
}

/* ---- tasks ---- */

/* Takes the worker's task if no thread has begun it. `state`: what the worker's state becomes, apart from OPEN. */
static bool team_take(struct team_worker *worker, uint32_t keep)
{
    uint32_t state = atomic_load_explicit(&worker->state, memory_order_relaxed);
    while (state & OPEN)
        if (atomic_compare_exchange_weak_explicit(&worker->state, &state, state & keep, memory_order_acq_rel,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void run_task(struct team *team, int index)
{
    self.region = team;
    self.count = team->count;
    self.index = index;
    team->task(team->argument, index, team->count);
    self.region = NULL;
    self.count = self.index = 0;
}

/* Runs tasks of the current region that no thread has begun, beginning with the last. Returns how many. Call only while
 * a task of the region has not been reported as ended. */
static uint32_t run_others(struct team *team)
{
    uint32_t count = 0;
    for (int i = team->count - 1; i > 0; i--) {
        struct team_worker *worker = team->workers[i - 1];
        if (!team_take(worker, ASLEEP))
            continue;
        run_task(team, i);
        count++;
    }
    return count;
}

static void *work(void *argument)
{
    struct team_worker *worker = argument;
    struct team *team = worker->team;
    for (;;) {
        while (!team_take(worker, 0)) {
            uint32_t idle = IDLE;
            if (spin(&worker->state, IDLE, team, worker)
                || !atomic_compare_exchange_strong(&worker->state, &idle, ASLEEP))
                continue;
            const int64_t begin = clock_now(CLOCK_MONOTONIC);
            while (atomic_load(&worker->state) == ASLEEP)
                futex_wait(&worker->state, ASLEEP);
            worker->slept += clock_now(CLOCK_MONOTONIC) - begin;
        }
        if (team->ends)
            return NULL;
        run_task(team, worker->index);
        const uint32_t ended = 1 + run_others(team);
        if (atomic_fetch_sub(&team->pending, ended) == ended && atomic_load(&team->caller_sleeps))
            futex_wake(&team->pending, 1);
    }
}

/* Makes the worker's task available. Returns whether the worker was asleep. */
static bool team_publish(struct team_worker *worker, bool concurrent)
{
    worker->woken = false;
    if (!concurrent && worker->skip > 0 && atomic_load_explicit(&worker->state, memory_order_relaxed) == ASLEEP) {
        worker->skip--;
        atomic_fetch_or(&worker->state, OPEN);
        return true;
    }
    if (atomic_exchange(&worker->state, OPEN) != ASLEEP)
        return false;
    worker->woken = true;
    futex_wake(&worker->state, 1);
    return true;
}

/* A thread that has ended its task has passed all points at which tasks wait for each other. So all tasks that it can
 * still take are begun by their own workers or by it. */
void cpu_team_run(int count, cpu_task task, void *argument, bool concurrent)
{
    struct team *team = self.own;
    if (count <= 1 || !team) {
        cpu_team_run_nested(task, argument);
        return;
    }
    team->task = task;
    team->argument = argument;
    team->count = count;
    atomic_store_explicit(&team->pending, (uint32_t)count, memory_order_relaxed);
    bool asleep = false;
    for (int i = 1; i < count; i++)
        asleep |= team_publish(team->workers[i - 1], concurrent);
    const int64_t begin = asleep ? clock_now(CLOCK_MONOTONIC) : 0;
    run_task(team, 0);
    const bool wake_pays = !asleep || clock_now(CLOCK_MONOTONIC) - begin >= WAKE_PAYS;
    const uint32_t ended = 1 + run_others(team);
    for (int i = 1; i < count && asleep; i++) {
        struct team_worker *worker = team->workers[i - 1];
        if (wake_pays) {
            worker->useless = worker->skip = 0;
        } else if (worker->woken) {
            worker->useless += worker->useless < 6;
            worker->skip = 1 << worker->useless;
        }
    }
    uint32_t pending = atomic_fetch_sub(&team->pending, ended) - ended;
    while (pending != 0) {
        if (!spin(&team->pending, pending, team, NULL)) {
            atomic_store(&team->caller_sleeps, true);
            while ((pending = atomic_load(&team->pending)) != 0)
                futex_wait(&team->pending, pending);
            atomic_store(&team->caller_sleeps, false);
        }
        pending = atomic_load_explicit(&team->pending, memory_order_acquire);
    }
}

int cpu_team_tasks(void)
{
    return self.count;
}

int cpu_team_index(void)
{
    return self.index;
}

void cpu_team_run_nested(cpu_task task, void *argument)
{
    const struct self before = self;
    self.region = NULL;
    self.count = 1;
    self.index = 0;
    task(argument, 0, 1);
    self.region = before.region;
    self.count = before.count;
    self.index = before.index;
}

void cpu_team_barrier(void)
{
    struct team *team = self.region;
    if (!team)
        return;
    const uint32_t barriers = atomic_load(&team->barriers);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == (uint32_t)team->count) {
        atomic_store(&team->arrived, 0);
        atomic_store(&team->barriers, barriers + 1);
        if (atomic_load(&team->barrier_sleepers) != 0)
            futex_wake(&team->barriers, INT_MAX);
        return;
    }
    if (spin(&team->barriers, barriers, team, NULL))
        return;
    atomic_fetch_add(&team->barrier_sleepers, 1);
    while (atomic_load(&team->barriers) == barriers)
        futex_wait(&team->barriers, barriers);
    atomic_fetch_sub(&team->barrier_sleepers, 1);
}

/* ---- starting and ending workers ---- */

#define RETRY_AFTER 1024                /* calls of cpu_team_grow before a limited team tries to grow again */

static void team_free(struct team *team)
{
    for (int i = 0; i < team->size - 1; i++)
        free(team->workers[i]);
    free(team->workers);
    free(team);
}

/* Ends the calling thread's workers. pthread_join is a cancellation point, so cancellation is disabled. */
static void team_end(void *argument)
{
    struct team *team = argument;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    self.own = NULL;
    team->ends = true;
    for (int i = 0; i < team->size - 1; i++)
        if (atomic_exchange(&team->workers[i]->state, OPEN) == ASLEEP)
            futex_wake(&team->workers[i]->state, 1);
    for (int i = 0; i < team->size - 1; i++)
        pthread_join(team->workers[i]->thread, NULL);
    team_free(team);
    pthread_setcancelstate(cancel, NULL);
}

void cpu_team_end(void)
{
    struct team *team = self.own;
    if (!team || self.count > 0)
        return;
    pthread_setspecific(at_exit, NULL);
    team_end(team);
}

static bool threads_possible = true;

/* The workers do not exist in the child, which starts its own when it needs them. ThreadSanitizer ends a process that
 * starts threads after a fork of a process with several. */
static void after_fork_in_child(void)
{
#ifdef __SANITIZE_THREAD__
    threads_possible = false;
#endif
    if (!self.own)
        return;
    pthread_setspecific(at_exit, NULL);
    team_free(self.own);
    self.own = NULL;
}
FORK_CHILD(after_fork_in_child)

bool cpu_team_init(bool crowded)
{
    always_short = crowded;
    if (!registered)
        registered = pthread_key_create(&at_exit, team_end) == 0;
    return registered;
}

static struct team *team_of_thread(void)
{
    if (self.own)
        return self.own;
    struct team *team = aligned_alloc(_Alignof(struct team), sizeof *team);
    if (!team)
        return NULL;
    memset(team, 0, sizeof *team);
    team->size = 1;
    if (pthread_setspecific(at_exit, team) != 0) {
        free(team);
        return NULL;
    }
    return self.own = team;
}

static bool start_worker(struct team *team)
{
    struct team_worker *worker = aligned_alloc(_Alignof(struct team_worker), sizeof *worker);
    if (!worker)
        return false;
    memset(worker, 0, sizeof *worker);
    worker->team = team;
    worker->index = team->size;
    if (pthread_create(&worker->thread, NULL, work, worker) != 0) {
        free(worker);
        return false;
    }
    team->workers[team->size++ - 1] = worker;
    return true;
}

static void start_workers(struct team *team, int wanted)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    struct team_worker **workers = realloc(team->workers, (size_t)(wanted - 1) * sizeof *workers);
    if (workers) {
        /* Signals of the process are handled by the program's own threads. */
        static const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT };
        sigset_t blocked, before;
        team->workers = workers;
        sigfillset(&blocked);
        for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
            sigdelset(&blocked, own[i]);
        pthread_sigmask(SIG_BLOCK, &blocked, &before);
        while (team->size < wanted && start_worker(team))
            continue;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    team->limited = team->size < wanted;
    team->calls_to_retry = RETRY_AFTER;
    if (team->limited && !atomic_flag_test_and_set(&warned))
        cpu_host->log(CTRT_LOG_WARNING, "backend-cpu",
                      "only %d of %d threads can be started (a limit on processes, memory or addresses?); %d are used",
                      team->size, wanted, team->size);
}

int cpu_team_size(void)
{
    return self.own ? self.own->size : 1;
}

int cpu_team_limit(void)
{
    return self.own && self.own->limited ? self.own->size : INT_MAX;
}

int cpu_team_grow(int wanted)
{
    if (wanted <= cpu_team_size() || !threads_possible)
        return cpu_team_size();
    struct team *team = team_of_thread();
    if (!team)
        return 1;
    if (!team->limited || --team->calls_to_retry <= 0)
        start_workers(team, wanted);
    return team->size;
}
