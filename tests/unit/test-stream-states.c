/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the states of a stream's error (core/stream/stream.h): every legal change by an event, every illegal one by the
 * table and, in builds with assertions, by an abort. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "core/base/states.h"
#include "core/stream/stream_error.h"

#include "sims.h"

#define STATE_IS(stream, wanted) CHECK_EQ(stream_state(stream), wanted)

/* Fails the stream's work without a failure of the queue, as an engine of a communicator does. */
static void post(ctrt_stream *stream, const char *text)
{
    stream_fail(stream, ctrt_fail(CTRT_ERR_COMM, "%s", text));
}

/* Ends a stream_fail of another thread that has begun to write the error. */
static void *post_late(void *stream)
{
    const struct timespec pause = { .tv_nsec = 20000000 };
    nanosleep(&pause, NULL);
    posted_set_state(stream, POSTED_WRITING, POSTED_ERROR);
    return NULL;
}

SIM_TEST(posted, "USABLE to FAILED by stream_fail, which keeps the first error; FAILED to USABLE by the reset",
         "CTRT_SIM=devices=1")
{
    CTRT_AUTO(stream) stream = new_stream(device);
    STATE_IS(stream, STREAM_USABLE);
    post(stream, "the first");
    post(stream, "the second");
    STATE_IS(stream, STREAM_USABLE);
    CHECK_EQ(atomic_load(&stream->posted.state), POSTED_ERROR);
    CHECK_FAILS(ctrt_stream_synchronize(stream), CTRT_ERR_COMM, "the first");
    STATE_IS(stream, STREAM_FAILED);
    CHECK_EQ(atomic_load(&stream->posted.state), POSTED_NONE);
    post(stream, "the third");
    CHECK_FAILS(ctrt_stream_synchronize(stream), CTRT_ERR_COMM, "the first");
    CHECK_OK(ctrt_stream_reset(stream));
    STATE_IS(stream, STREAM_USABLE);
    CHECK_OK(ctrt_stream_synchronize(stream));
    CHECK_OK(stream_outcome(timepoint_of(stream_slot(stream), stream->sequence)));
}

SIM_TEST(inherited, "USABLE to FAILED by results of a broken stream; the queue is not broken", "CTRT_SIM=devices=1")
{
    CTRT_AUTO(stream) broken = new_stream(device), user = new_stream(device);
    CTRT_AUTO(tensor) x = full(1, 8, device), y = NULL;
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_OK(sim->inject(0, "op:exp@1"));
    ON_STREAM(broken, ctrt_exp(&y, x));
    ON_STREAM(user, ctrt_neg(&y, y));
    CHECK_FAILS(ctrt_stream_synchronize(user), CTRT_ERR_BACKEND, "exp");
    STATE_IS(user, STREAM_FAILED);
    STATE_IS(broken, STREAM_BROKEN);
    CHECK_OK(stream_outcome(timepoint_of(stream_slot(user), user->sequence)));
    CHECK_OK(ctrt_stream_reset(user));
    CHECK_OK(ctrt_stream_synchronize(user));
    STATE_IS(user, STREAM_USABLE);
}

SIM_TEST(broken, "USABLE and FAILED to BROKEN by a failure of the queue; BROKEN to USABLE by the reset",
         "CTRT_SIM=devices=1")
{
    for (int posted = 0; posted < 2; posted++) {
        CTRT_AUTO(stream) stream = new_stream(device);
        CTRT_AUTO(tensor) x = full(1, 8, device), y = NULL;
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK_OK(sim->inject(0, "op:exp@1"));
        if (posted) {
            post(stream, "before");
            CHECK_FAILS(ctrt_stream_synchronize(stream), CTRT_ERR_COMM, "before");
            STATE_IS(stream, STREAM_FAILED);
        }
        ON_STREAM(stream, ctrt_exp(&y, x));
        const timepoint point = timepoint_of(stream_slot(stream), stream->sequence);
        CHECK_FAILS(ctrt_stream_synchronize(stream), posted ? CTRT_ERR_COMM : CTRT_ERR_BACKEND,
                    posted ? "before" : "exp");
        STATE_IS(stream, STREAM_BROKEN);
        CHECK_TRUE(stream_outcome(point) != CTRT_OK);
        CHECK_OK(ctrt_stream_reset(stream));
        STATE_IS(stream, STREAM_USABLE);
        CHECK_FAILS(stream_outcome(point), posted ? CTRT_ERR_COMM : CTRT_ERR_BACKEND, "was reset");
        CHECK_OK(ctrt_stream_synchronize(stream));
    }
}

SIM_TEST(cleared, "FAILED and BROKEN to USABLE when the queue is destroyed", "CTRT_SIM=devices=1")
{
    ctrt_stream *stream = stream_here(device);
    CTRT_AUTO(tensor) x = full(1, 8, device), y = NULL;
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_OK(sim->inject(0, "op:exp@1"));
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_FAILS(ctrt_stream_synchronize(stream), CTRT_ERR_BACKEND, "exp");
    STATE_IS(stream, STREAM_BROKEN);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
    CHECK_FAILS(ctrt_shutdown(), CTRT_ERR_BACKEND, "exp");      /* the error of the work that it waits for */
    CHECK_TRUE(stream->queue == NULL);
    STATE_IS(stream, STREAM_USABLE);
    stream_set_state(stream, STREAM_FAILED);
    post(stream, "of a queue that is closed");
    stream_clear_error(stream);
    STATE_IS(stream, STREAM_USABLE);
    CHECK_EQ(atomic_load(&stream->posted.state), POSTED_NONE);
    pthread_t thread;                       /* an error that another thread is about to post */
    CHECK_TRUE(posted_set_state(stream, POSTED_NONE, POSTED_WRITING));
    pthread_create(&thread, NULL, post_late, stream);
    stream_clear_error(stream);
    pthread_join(thread, NULL);
    CHECK_EQ(atomic_load(&stream->posted.state), POSTED_NONE);
}

#ifdef CTRT_ASSERTIONS
/* Reports whether `change` aborts in a child process. */
static bool aborts(void (*change)(ctrt_stream *stream, unsigned from, unsigned to), unsigned from, unsigned to)
{
    static ctrt_stream stream;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        change(&stream, from, to);
        _exit(0);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}
#else
#define aborts(change, from, to) (!legal)
#endif

static __attribute__((unused)) void change_stream(ctrt_stream *stream, unsigned from, unsigned to)
{
    atomic_store(&stream->state, from);
    stream_set_state(stream, to);
}

static __attribute__((unused)) void change_posted(ctrt_stream *stream, unsigned from, unsigned to)
{
    posted_set_state(stream, from, to);
}

TEST(table, "a change is legal exactly if the comment lists it")
{
    static const bool stream_legal[STREAM_STATES][STREAM_STATES] = {
        [STREAM_USABLE][STREAM_FAILED] = true, [STREAM_FAILED][STREAM_BROKEN] = true,
        [STREAM_FAILED][STREAM_USABLE] = true, [STREAM_BROKEN][STREAM_USABLE] = true,
    };
    for (unsigned from = 0; from < STREAM_STATES; from++)
        for (unsigned to = 0; to < STREAM_STATES; to++) {
            const bool legal = stream_legal[from][to];
            CHECK(state_may_follow(stream_state_next, from, to) == legal && aborts(change_stream, from, to) == !legal,
                  "stream: from %u to %u: expected %s", from, to, legal ? "legal" : "illegal");
        }
    for (unsigned from = 0; from < POSTED_STATES; from++)
        for (unsigned to = 0; to < POSTED_STATES; to++) {
            const bool legal = to == (from + 1) % POSTED_STATES;
            CHECK(state_may_follow(posted_state_next, from, to) == legal && aborts(change_posted, from, to) == !legal,
                  "posted: from %u to %u: expected %s", from, to, legal ? "legal" : "illegal");
        }
}

TESTS_MAIN
