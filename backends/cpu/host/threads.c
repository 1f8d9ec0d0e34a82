/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/threads.c: the number of threads, and the parallel loop.
 *
 * The thread pool is OpenMP's, because oneDNN and most BLAS libraries also use it; two pools would compete for the
 * processors. GCC's libgomp keeps one pool for each thread that opens parallel regions. After a fork, the child has the
 * pool's data structures but not its threads, and a parallel region would wait for them forever. Therefore the forking
 * thread releases its pool before the fork (omp_pause_resource_all of OpenMP 5.0), and parent and child each start a
 * new pool when they need one. If that is not possible (fork inside a parallel region), the child uses one thread.
 * LLVM's libomp starts its pool again in the child by itself. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static int threads_wanted = 1;          /* set at init */

/* Returns the number of processors in the affinity mask. The mask may be larger than cpu_set_t. */
static int affinity_count(void)
{
    for (int size = CPU_SETSIZE; size <= (1 << 20); size *= 2) {
        cpu_set_t *mask = CPU_ALLOC((size_t)size);
        if (!mask)
            break;
        size_t bytes = CPU_ALLOC_SIZE((size_t)size);
        int failed = sched_getaffinity(0, bytes, mask), why = errno;
        int count = failed ? 0 : CPU_COUNT_S(bytes, mask);
        CPU_FREE(mask);
        if (!failed)
            return count;
        if (why != EINVAL)
            break;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int cpu_allowed_processors(void)
{
    int count = affinity_count();
    double quota = cpu_cgroup_cpus();
    if (quota > 0 && quota < count)
        count = (int)quota;             /* rounded down, because a loop would wait for a suspended thread */
    return count > 0 ? count : 1;
}

#ifdef _OPENMP
static bool fork_broke_pool;            /* true in a child whose parent could not release its pool */
static _Thread_local bool had_pool;     /* a parallel region was opened since the last release of the pool */
static _Thread_local bool pause_failed;
/* Threads of this thread's pool, including the caller; 0 before the first parallel region. Teams are never smaller than
 * the pool, because libgomp would end the remaining threads and start new ones later. */
static _Thread_local int team_size;
static _Thread_local bool team_limited;     /* the last attempt to enlarge the pool could not start all threads */
static _Thread_local int calls_to_retry;    /* while team_limited: calls of team_of before the next attempt */
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;    /* held while threads for a pool are started */

static void before_fork(void)
{
    pause_failed = false;
#ifndef __clang__       /* libomp holds its locks during a fork, so a call of it would wait forever */
    if (had_pool || omp_in_parallel())
        pause_failed = omp_pause_resource_all(omp_pause_soft) != 0;
#endif
    if (!pause_failed) {
        had_pool = false;
        team_size = 0;
        team_limited = false;
    }
}

static void after_fork_in_child(void)
{
    pthread_mutex_init(&starting, NULL);    /* a thread that held the mutex does not exist in the child */
    if (pause_failed) {
        fork_broke_pool = true;
        omp_set_num_threads(1);         /* for libraries that open parallel regions of their own */
    }
}

static size_t stack_bytes;              /* stack size of libgomp's threads in bytes; 0: the system's default */

/* Parses the stack size that libgomp reads when it is loaded: a number and a unit, B, K (the default), M or G. */
static size_t read_stack_size(void)
{
    static const char units[] = "bkmg";
    const char *text = getenv("OMP_STACKSIZE");
    unsigned long long number = 0;
    char unit = 'k';
    if (text == NULL)
        text = getenv("GOMP_STACKSIZE");
    if (text == NULL || sscanf(text, "%llu %c", &number, &unit) < 1)
        return 0;
    const char *found = strchr(units, tolower((unsigned char)unit));
    return found != NULL && number <= SIZE_MAX >> 30 ? (size_t)number << 10 * (found - units) : 0;
}
#endif

ctrt_status cpu_threads_init(void)
{
    static const ctrt_param param = {
        .size = sizeof(ctrt_param), .name = "CTRT_NUM_THREADS", .type = CTRT_PARAM_INT,
        .help = "threads of the CPU backend; unset: as many as affinity mask and cgroup quota allow",
    };
    ctrt_param_value value;
    ctrt_status status = cpu_host->param(&value, &param);
    if (status)
        return status;
    if (value.text && (value.integer < 1 || value.integer > 4096))
        return cpu_host->fail(CTRT_ERR_INVALID_ARGUMENT,
                              "CTRT_NUM_THREADS is \"%s\"; it must be 1 to 4096", value.text);
    threads_wanted = value.text ? (int)value.integer : cpu_allowed_processors();
#ifdef _OPENMP
    stack_bytes = read_stack_size();
    static atomic_flag registered = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&registered) && pthread_atfork(before_fork, NULL, after_fork_in_child) != 0)
        return cpu_host->fail(CTRT_ERR_OUT_OF_MEMORY, "cpu: no memory to register for fork");
#else
    threads_wanted = 1;
#endif
    return CTRT_OK;
}

#ifdef _OPENMP
/* libgomp ends the process if it cannot start a thread or allocate memory for it (RLIMIT_NPROC, a cgroup's limit,
 * RLIMIT_AS). Therefore pool_grow first starts the missing threads itself, all at the same time, and then enlarges the
 * pool by as many as could be started. The limits must allow twice the number of threads, because libgomp ends threads
 * when a region is smaller than the one before, and the kernel still counts the ended threads while the next region
 * starts new ones. The mutex `starting` admits one caller at a time, so that two callers do not count the same free
 * capacity. */
#define RETRY_AFTER 1024                /* calls of team_of before a limited pool tries to grow again */
#define HEADROOM    ((size_t)256 << 10) /* bytes that libgomp may allocate for a team */

struct started { pthread_mutex_t *gate; pthread_t thread; pid_t tid; };

static void *wait_for_gate(void *argument)
{
    struct started *self = argument;
    self->tid = (pid_t)syscall(SYS_gettid);
    pthread_mutex_lock(self->gate);
    pthread_mutex_unlock(self->gate);
    return NULL;
}

/* Waits until the kernel no longer counts a joined thread against the limit on processes, which happens shortly after
 * pthread_join returns; waits at most 50 ms. */
static void wait_until_gone(pid_t tid)
{
    for (int i = 0; i < 500 && syscall(SYS_tgkill, getpid(), tid, 0) == 0; i++)
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

static bool headroom(void)
{
    void *block = malloc(HEADROOM);
    __asm__ volatile("" : "+r"(block));          /* keeps the compiler from removing malloc and free */
    free(block);
    return block != NULL;
}

/* Returns how many of `count` additional threads can run at the same time. */
static int threads_that_start(int count)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    struct started *threads = malloc((size_t)count * sizeof *threads);
    pthread_attr_t attributes;
    int started = 0;
    if (threads == NULL)
        return 0;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_bytes); /* rejects 0 and too small sizes; the default remains */
    pthread_mutex_lock(&gate);
    for (; started < count; started++) {
        threads[started].gate = &gate;
        if (pthread_create(&threads[started].thread, &attributes, wait_for_gate, &threads[started]) != 0)
            break;
    }
    const bool enough = headroom();
    pthread_mutex_unlock(&gate);
    pthread_attr_destroy(&attributes);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i].thread, NULL);
    for (int i = 0; i < started; i++)
        wait_until_gone(threads[i].tid);
    free(threads);
    return enough ? started : 0;
}

static void pool_grow(int wanted)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    const int now = team_size > 0 ? team_size : 1, pool = now - 1;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&starting);
    const int threads = pool + threads_that_start(2 * (wanted - 1) - pool);
    team_size = threads / 2 > pool ? 1 + threads / 2 : now;
    if (team_size > now) {
        had_pool = true;
#pragma omp parallel num_threads(team_size)
        {
        }
    }
    pthread_mutex_unlock(&starting);
    pthread_setcancelstate(cancel, NULL);
    team_limited = team_size < wanted;
    calls_to_retry = RETRY_AFTER;
    if (team_limited && !atomic_flag_test_and_set(&warned))
        cpu_host->log(
            CTRT_LOG_WARNING, "backend-cpu",
            "only %d of %d threads can be started (a limit on processes, memory or addresses?); %d are used",
            team_size, wanted, team_size);
}

/* Returns the team size to use for `wanted` threads, which is the size of the pool; enlarges the pool if it is smaller.
 * Must be called outside parallel regions. */
static int team_of(int wanted)
{
    if (wanted > team_size && (!team_limited || --calls_to_retry <= 0))
        pool_grow(wanted);
    return team_size;
}

/* Returns the number of threads that the parameters and OpenMP's limit (OMP_THREAD_LIMIT, an enclosing teams region)
 * allow for a parallel region. */
static int threads_allowed(void)
{
    const int limit = omp_get_thread_limit(), count = threads_wanted < limit ? threads_wanted : limit;
    return count > 1 && !fork_broke_pool ? count : 1;
}
#endif

int cpu_thread_count(void)
{
#ifdef _OPENMP
    const int count = threads_allowed();
    return team_limited && team_size < count ? team_size : count;
#else
    return 1;
#endif
}

bool cpu_threads_limited(void)
{
#ifdef _OPENMP
    const int count = threads_allowed();
    return count > 1 && !omp_in_parallel() && team_of(count) < count;
#else
    return false;
#endif
}

int cpu_threads_enter(void)
{
#ifdef _OPENMP
    int before = omp_get_max_threads(), count = cpu_thread_count();
    if (before != count)
        omp_set_num_threads(count);
    had_pool |= count > 1;
    return before;
#else
    return 1;
#endif
}

void cpu_threads_leave(int before)
{
#ifdef _OPENMP
    if (omp_get_max_threads() != before && !fork_broke_pool)
        omp_set_num_threads(before);
#else
    (void)before;
#endif
}

void cpu_parallel_for(int64_t count, int64_t grain, void (*body)(void *argument, int64_t begin, int64_t end),
                      void *argument)
{
    if (count <= 0)
        return;
#ifdef _OPENMP
    if (count > grain && !omp_in_parallel()) {
        int64_t pieces = (count + grain - 1) / grain;
        int threads = threads_allowed();        /* team_of may enlarge a limited pool, so do not use cpu_thread_count */
        if (threads > pieces)
            threads = (int)pieces;
        if (threads > 1)
            threads = team_of(threads);
        if (threads > 1) {
            had_pool = true;
#pragma omp parallel num_threads(threads)
            {
                int64_t team = omp_get_num_threads(), self = omp_get_thread_num();
                if (team > pieces)
                    team = pieces;
                int64_t share = (count + team - 1) / team;
                if (count >= 128 * team)
                    share = (share + 63) & ~(int64_t)63;        /* whole cache lines and whole vectors */
                int64_t begin = self * share, end = begin + share < count ? begin + share : count;
                if (begin < end)
                    body(argument, begin, end);
            }
            return;
        }
    }
#else
    (void)grain;
#endif
    body(argument, 0, count);
}
