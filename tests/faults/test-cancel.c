/* SPDX-License-Identifier: Apache-2.0 */
/* test-cancel.c: no function of ctrt is a cancellation point.
 *
 * A thread with a pending cancellation runs the whole program of work.c. It must reach the end, where it is cancelled.
 * Then threads are cancelled at arbitrary times while others work. If a cancelled thread kept a lock, the others would
 * block until SIGALRM ends the process. */
#include <math.h>
#include <pthread.h>

#include "child.h"
#include "work.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static char folder[] = "/tmp/ctrt-cancel-XXXXXX";
static double expected[WORK_PARTS];

static void run_all(double *results)
{
    for (int i = 0; i < WORK_PARTS; i++)
        CHECK_OK(work_parts[i].run(&results[i], folder));
}

static void same_results(const char *who)
{
    double results[WORK_PARTS] = { 0 };
    run_all(results);
    for (int i = 0; i < WORK_PARTS; i++)
        CHECK(fabs(results[i] - expected[i]) <= 1e-4 * (1 + fabs(expected[i])), "%s: %s gives %g, expected %g", who,
              work_parts[i].name, results[i], expected[i]);
}

struct job {
    int part;                           /* -1: all */
    bool finished;
};

static void *with_pending_cancellation(void *argument)
{
    struct job *job = argument;
    double result = 0;
    pthread_cancel(pthread_self());
    for (int i = 0; i < WORK_PARTS; i++)
        if (job->part < 0 || job->part == i)
            CHECK_OK(work_parts[i].run(&result, folder));
    job->finished = true;
    pthread_testcancel();
    return NULL;
}

static void pending(int part)
{
    struct job job = { .part = part };
    pthread_t thread;
    void *end = NULL;
    if (!CHECK(pthread_create(&thread, NULL, with_pending_cancellation, &job) == 0, "no thread"))
        return;
    pthread_join(thread, &end);
    const char *name = part < 0 ? "the first pass" : work_parts[part].name;
    CHECK(job.finished, "%s: the thread was cancelled in the middle of a call", name);
    CHECK(end == PTHREAD_CANCELED, "%s: the thread's cancellation was lost", name);
}

/* Runs parts until the thread is cancelled between two of them. */
static void *forever(void *argument)
{
    double result;
    for (;;) {
        for (int i = *(int *)argument; i < WORK_PARTS; i++) {
            result = 0;
            CHECK_OK(work_parts[i].run(&result, folder));
            pthread_testcancel();
        }
    }
    return NULL;
}

static void cancelled_at_any_time(void)
{
    for (int round = 0; round < 60; round++) {
        pthread_t threads[2];
        int first[2] = { 0, 0 };
        for (int i = 0; i < 2; i++)
            if (!CHECK(pthread_create(&threads[i], NULL, forever, &first[i]) == 0, "no thread"))
                return;
        const struct timespec moment = { 0, 100000L * (1 + round * 7 % 50) };
        nanosleep(&moment, NULL);
        pthread_cancel(threads[0]);
        pthread_join(threads[0], NULL);
        pthread_cancel(threads[1]);
        pthread_join(threads[1], NULL);
    }
}

TEST_MAIN
{
    static const char *const configurations[][3] = {
        { "CTRT_DEVICE=cpu" }, { "CTRT_DEVICE=sim:0", "CTRT_SIM=devices=1" },
        { "CTRT_DEVICE=sim:0", "CTRT_SIM=devices=1", "CTRT_MEMORY=spill+caching" },
    };
    if (mkdtemp(folder) == NULL)
        return skip_rest("no folder for the test's files");
    setenv("CTRT_NUM_THREADS", "2", 1);
    for (size_t i = 0; i < COUNT(configurations); i++) {
        group("%s %s: no cancellation point, and a cancelled thread holds no lock", configurations[i][0],
              configurations[i][2] ? configurations[i][2] : "");
        IN_CHILD(configurations[i][0], configurations[i][1], configurations[i][2]) {
            alarm(20);
            pending(-1);
            run_all(expected);
            for (int part = 0; part < WORK_PARTS; part++)
                pending(part);
            cancelled_at_any_time();
            same_results("afterwards");
        }
        CHILD_END;
    }
    work_clean(folder);
    rmdir(folder);
    return done();
}
