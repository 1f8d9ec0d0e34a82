/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/threads.c: the number of threads, and the parallel loop. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"
#include "team.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

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
    static const ctrt_param param = {
        .size = sizeof(ctrt_param), .name = "CTRT_LOCAL_RANKS", .type = CTRT_PARAM_INT,
        .help = "ranks that divide the processors of this process; unset: as the launcher's variables say",
    };
    ctrt_param_value ranks;
    int count = affinity_count();
    double quota = cpu_cgroup_cpus();
    if (quota > 0 && quota < count)
        count = (int)quota + (quota > (int)quota);      /* one processor of 1.5 would leave a third unused */
    if (cpu_host->param(&ranks, &param) == CTRT_OK && ranks.integer > 1)
        count /= ranks.integer < count ? (int)ranks.integer : count;
    return count > 0 ? count : 1;
}

static _Thread_local bool single;       /* this thread runs kernels alone */
static int (*program_in_parallel)(void);    /* omp_in_parallel of the OpenMP library that the program uses, or NULL */

ctrt_status cpu_threads_init(void)
{
    static const ctrt_param param = {
        .size = sizeof(ctrt_param), .name = "CTRT_NUM_THREADS", .type = CTRT_PARAM_INT,
        .help = "threads of the CPU backend; unset: as many as affinity mask and cgroup quota allow",
    };
    ctrt_param_value value;
    CTRT_TRY(cpu_host->param(&value, &param));
    if (value.text && (value.integer < 1 || value.integer > 4096))
        return cpu_host->fail(CTRT_ERR_INVALID_ARGUMENT,
                              "CTRT_NUM_THREADS is \"%s\"; it must be 1 to 4096", value.text);
    threads_wanted = value.text ? (int)value.integer : cpu_allowed_processors();
    const double quota = cpu_cgroup_cpus();
    if (!cpu_team_init(threads_wanted > affinity_count() || (quota > 0 && quota < threads_wanted)))
        return cpu_host->fail(CTRT_ERR_OUT_OF_MEMORY, "cpu: no memory to register for fork and the end of threads");
    *(void **)&program_in_parallel = dlsym(RTLD_DEFAULT, "omp_in_parallel");
    return CTRT_OK;
}

void cpu_threads_single(bool on)
{
    single = on;
}

/* Returns the number of threads that a region may have which the calling thread starts now. */
static int threads_allowed(void)
{
    if (single || threads_wanted == 1 || cpu_team_tasks() > 0)
        return 1;
    return program_in_parallel && program_in_parallel() ? 1 : threads_wanted;
}

int cpu_thread_count(void)
{
    const int count = threads_allowed(), limit = cpu_team_limit();
    return count < limit ? count : limit;
}

bool cpu_threads_limited(void)
{
    const int count = threads_allowed();
    return count > 1 && cpu_team_grow(count) < count;
}

/* A loop of which each task runs one range. */
struct loop {
    void (*body)(void *argument, int64_t begin, int64_t end);
    void *argument;
    int64_t count, share;
};

static void run_range(void *argument, int index, int tasks)
{
    const struct loop *loop = argument;
    const int64_t begin = index * loop->share;
    const int64_t end = begin + loop->share < loop->count ? begin + loop->share : loop->count;
    (void)tasks;
    if (begin < end)
        loop->body(loop->argument, begin, end);
}

void cpu_parallel_for(int64_t count, int64_t grain, void (*body)(void *argument, int64_t begin, int64_t end),
                      void *argument)
{
    if (count <= 0)
        return;
    if (count > grain) {
        const int64_t pieces = cpu_divide_up(count, grain);
        int threads = threads_allowed();
        if (threads > pieces)
            threads = (int)pieces;
        if (threads > 1) {
            const int size = cpu_team_grow(threads);
            threads = size < threads ? size : threads;
        }
        if (threads > 1) {
            struct loop loop = { .body = body, .argument = argument, .count = count };
            loop.share = cpu_divide_up(count, threads);
            if (count >= 128 * (int64_t)threads)
                loop.share = (loop.share + 63) & ~(int64_t)63;  /* whole cache lines and whole vectors */
            cpu_team_run(threads, run_range, &loop, false);
            return;
        }
    }
    body(argument, 0, count);
}
