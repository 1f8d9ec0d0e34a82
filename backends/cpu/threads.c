/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/threads.c: how many threads, and the loop that uses them.
 *
 * The pool is OpenMP's, because oneDNN and most BLAS libraries use it too: one pool, never two that fight for the
 * processors. GCC's run-time library keeps a pool for each thread that opens parallel regions; after fork the child
 * inherits the list of its threads but not the threads, and would wait for them for ever. So the pool of the
 * forking thread is dismissed before the fork (OpenMP 5.0's omp_pause_resource_all joins it); parent and child each
 * start a new one when they next need it. Where that is not possible (fork inside a parallel region) the child
 * works in one thread. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static int threads_wanted = 1;          /* decided at init */

/* Processors of the affinity mask; machines may have more than cpu_set_t counts. */
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
        count = (int)quota;             /* rounded down: one thread too many is stopped in mid-loop by the quota */
    return count > 0 ? count : 1;
}

#ifdef _OPENMP
static atomic_int threads_proved;       /* 0: not tried, 1: a thread could be started, -1: could not */
static bool fork_broke_pool;            /* in a child whose parent could not dismiss its pool */
static _Thread_local bool had_pool;     /* this thread opened a parallel region since its pool was last dismissed */
static _Thread_local bool pause_failed;

static void before_fork(void)
{
    pause_failed = false;
    if (had_pool || omp_in_parallel())
        pause_failed = omp_pause_resource_all(omp_pause_soft) != 0;
    if (!pause_failed)
        had_pool = false;
}

static void after_fork_in_child(void)
{
    if (pause_failed) {
        fork_broke_pool = true;
        omp_set_num_threads(1);         /* for libraries that open parallel regions of their own */
    }
}
#endif

ctrt_status cpu_threads_init(void)
{
    static const ctrt_param param = {
        .size = sizeof(ctrt_param), .name = "CTRT_NUM_THREADS", .type = CTRT_PARAM_INT,
        .help = "threads of the cpu backend; unset: processors that affinity mask and cgroup quota allow",
    };
    ctrt_param_value value;
    ctrt_status status = cpu_host->param(&value, &param);
    if (status)
        return status;
    if (value.text && (value.integer < 1 || value.integer > 4096))
        return cpu_host->fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_NUM_THREADS is \"%s\"; it must be 1 to 4096", value.text);
    threads_wanted = value.text ? (int)value.integer : cpu_allowed_processors();
#ifdef _OPENMP
    static atomic_flag registered = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&registered) && pthread_atfork(before_fork, NULL, after_fork_in_child) != 0)
        return cpu_host->fail(CTRT_ERR_OUT_OF_MEMORY, "cpu: no memory to register for fork");
#else
    threads_wanted = 1;
#endif
    return CTRT_OK;
}

#ifdef _OPENMP
static void *nothing(void *argument)
{
    return argument;
}

/* libgomp ends the process when it cannot start a thread (a limit on processes): try it once beforehand. */
static bool threads_can_start(void)
{
    int proved = atomic_load_explicit(&threads_proved, memory_order_relaxed);
    if (proved == 0) {
        pthread_t thread;
        bool started = pthread_create(&thread, NULL, nothing, NULL) == 0;
        if (started)
            pthread_join(thread, NULL);
        else
            cpu_host->log(CTRT_LOG_WARNING, "backend-cpu", "no thread can be started (limit on processes?); working in one");
        proved = started ? 1 : -1;
        atomic_store_explicit(&threads_proved, proved, memory_order_relaxed);
    }
    return proved > 0;
}
#endif

int cpu_thread_count(void)
{
#ifdef _OPENMP
    const int limit = omp_get_thread_limit();       /* of the calling thread: OMP_THREAD_LIMIT, or a teams region around it */
    const int count = threads_wanted < limit ? threads_wanted : limit;
    return count > 1 && !fork_broke_pool && threads_can_start() ? count : 1;
#else
    return 1;
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

void cpu_parallel_for(int64_t count, int64_t grain, void (*body)(void *argument, int64_t begin, int64_t end), void *argument)
{
    if (count <= 0)
        return;
#ifdef _OPENMP
    if (count > grain && !omp_in_parallel()) {
        int64_t pieces = (count + grain - 1) / grain;
        int threads = cpu_thread_count();
        if (threads > pieces)
            threads = (int)pieces;
        if (threads > 1) {
            had_pool = true;
#pragma omp parallel num_threads(threads)
            {
                int64_t team = omp_get_num_threads(), self = omp_get_thread_num();
                int64_t share = (count + team - 1) / team;
                if (count >= 128 * team)
                    share = (share + 63) & ~(int64_t)63;        /* whole cache lines, whole vectors */
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
