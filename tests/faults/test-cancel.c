/* SPDX-License-Identifier: Apache-2.0 */
/* test-cancel.c: no function of ctrt is a cancellation point.
 *
 * A thread with a pending cancellation runs the whole program of work.c. It must reach the end, where it is cancelled.
 * Then threads are cancelled at arbitrary times while others work. If a cancelled thread kept a lock, the others would
 * block until SIGALRM ends the process. */
#include <pthread.h>
#include <time.h>

#include "work.h"

static void *run_with_pending_cancellation(void *finished)
{
    pthread_cancel(pthread_self());
    for (int i = 0; i < WORK_PARTS; i++) {
        double result = 0;
        work->part = i;
        CHECK_OK(work_run(&result, i));
    }
    *(bool *)finished = true;
    pthread_testcancel();
    return NULL;
}

static void check_pending(const char *when)
{
    bool finished = false;
    pthread_t thread;
    void *end = NULL;
    REQUIRE_EQ(pthread_create(&thread, NULL, run_with_pending_cancellation, &finished), 0);
    pthread_join(thread, &end);
    CHECK(finished, "%s: the thread was cancelled in the middle of part \"%s\"", when, work_parts[work->part].name);
    CHECK(end == PTHREAD_CANCELED, "%s: the thread's cancellation was lost", when);
}

/* Runs parts until the thread is cancelled between two of them. */
static void *run_forever(void *unused)
{
    for (int i = 0;; i = (i + 1) % WORK_PARTS) {
        double result = 0;
        if (!work_parts[i].alone)
            CHECK_OK(work_run(&result, i));
        pthread_testcancel();
    }
    return unused;
}

static void cancel_at_any_time(void)
{
    for (int round = 0; round < 60; round++) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            REQUIRE_EQ(pthread_create(&threads[i], NULL, run_forever, NULL), 0);
        nanosleep(&(struct timespec){ 0, 100000L * (1 + round * 7 % 50) }, NULL);
        for (int i = 0; i < 2; i++) {
            pthread_cancel(threads[i]);
            pthread_join(threads[i], NULL);
        }
    }
}

TEST_MAIN
{
    static const char *const configurations[][3] = {
        { "CTRT_DEVICE=cpu" }, { "CTRT_DEVICE=sim:0", "CTRT_SIM=devices=1" },
        { "CTRT_DEVICE=sim:0", "CTRT_SIM=devices=1", "CTRT_MEMORY=spill+caching" },
    };
    if (!work_begin())
        return skip_rest("no folder for the test's files");
    for (int i = 0; i < 3; i++) {
        const char *const *settings = configurations[i];
        group("%s %s: no cancellation point, and a cancelled thread holds no lock", settings[0],
              settings[2] ? settings[2] : "");
        IN_CHILD(settings[0], settings[1], settings[2]) {
            check_pending("at first use");
            work_expect();
            check_pending("later");
            cancel_at_any_time();
            work_check(true, "afterwards");
        }
    }
    work_end();
    return done();
}
