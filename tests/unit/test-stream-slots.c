/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the reuse of stream slots: a process has 4096, and a new stream must not inherit anything from the stream that
 * had its slot before. */
#include "calls.h"
#include "sims.h"

#define N 4096

enum { SLOTS = 4096, CYCLES = SANITIZED ? 6000 : 20000 };

static ctrt_stream *held[SLOTS];

/* Fills all slots with live streams of the cpu in held[], then releases `unused` of them. Returns the number held. */
static int hold_all_but(int unused)
{
    int count = 0;
    while (count < SLOTS && ctrt_stream_new(&held[count], cpu_device(), 0) == CTRT_OK)
        count++;
    CHECK_FAILS(ctrt_stream_new(&held[SLOTS - 1], cpu, 0), CTRT_ERR_STATE, "there are already 4096 streams");
    for (int i = 0; i < unused; i++)
        ctrt_stream_release(&held[--count]);
    return count;
}

static void release_held(int count)
{
    for (int i = 0; i < count; i++)
        ctrt_stream_release(&held[i]);
}

SIM_TEST(many, "slots are reused: thousands of streams of two devices and five priorities in four slots",
         "CTRT_SIM=devices=2,jitter=20us")
{
    ctrt_device *devices[2] = { device, sim_open("sim:1") };
    const int count = hold_all_but(4);
    CTRT_AUTO(stream) earlier = NULL;
    ctrt_tensor *x[2] = { full(0, 64, devices[0]), full(0, 64, devices[1]) };
    int adds[2] = { 0 };
    uint64_t id = 0;
    bool fine = true;
    for (int i = 0; i < CYCLES && fine; i++) {
        CTRT_AUTO(stream) s = NULL;
        const int d = i % 3 == 0;
        ctrt_status status = ctrt_stream_new(&s, devices[d], i % 5 - 2);
        if (status == CTRT_ERR_STATE) {     /* on a busy machine, released streams may still have pending work */
            CHECK_OK(ctrt_device_synchronize(devices[0]));
            CHECK_OK(ctrt_device_synchronize(devices[1]));
            status = ctrt_stream_new(&s, devices[d], i % 5 - 2);
        }
        fine = CHECK(status == CTRT_OK, "stream %d: %s", i, ctrt_error_message());
        fine &= CHECK(ctrt_stream_id(s) > id, "stream %d has the id of an earlier one", i);
        fine &= CHECK(ctrt_stream_priority(s) == i % 5 - 2 && ctrt_stream_device(s) == devices[d],
                      "stream %d has priority %d or a wrong device", i, ctrt_stream_priority(s));
        id = ctrt_stream_id(s);
        if (i % 20 < 2 && fine) {                       /* each of these streams waits for the one before it */
            ON_STREAM(s, ctrt_add_scalar_(x[d], ctrt_float(1)));
            adds[d]++;
            if (earlier != NULL)
                CHECK_OK(ctrt_stream_wait(s, earlier));
            ctrt_stream_release(&earlier);
            earlier = ctrt_stream_retain(s);
        }
        if (i % 200 == 1)
            fine &= CHECK(total(x[d]) == 64.0 * adds[d], "stream %d: the sum is %g", i, total(x[d]));
    }
    for (int d = 0; d < 2; d++) {
        CHECK(sim_read(d).queues < 200, "sim:%d has %d queues", d, (int)sim_read(d).queues);
        ctrt_tensor_release(&x[d]);
    }
    release_held(count);
}

/* Enqueues nine ops on a new tensor on `s` and records the event after them. `reader` waits for `s`. */
static ctrt_tensor *work_on(ctrt_stream *s, int64_t n, ctrt_event *event, ctrt_stream *reader)
{
    CHECK_OK(ctrt_stream_push(s));
    ctrt_tensor *x = full(7, n, ctrt_stream_device(s));
    for (int i = 0; i < 9; i++)
        CHECK_OK(ctrt_add_scalar_(x, ctrt_float(0)));
    OK(ctrt_event_record(event, s), ctrt_stream_pop(), ctrt_stream_wait(reader, s));
    return x;
}

/* Writes a tensor on `t` and reads it on `reader`, which waits for the stream that had the slot of `t` before. */
static ctrt_tensor *write_and_read(ctrt_stream *t, ctrt_stream *reader)
{
    CTRT_AUTO(tensor) z = NULL;
    CHECK_OK(ctrt_stream_push(t));
    ctrt_tensor *y = full(2, N, ctrt_stream_device(t));
    OK(ctrt_add_scalar_(y, ctrt_float(1)), ctrt_stream_pop());
    ON_STREAM(reader, ctrt_neg(&z, y));
    CHECK(total(z) == -3 * N, "y was read before it was written: the sum is %g", total(z));
    return y;
}

SIM_TEST(fresh, "a stream that reuses a slot does not inherit the previous stream's ordering, errors or memory",
         "CTRT_SIM=devices=2,memory=64m,latency=3ms")
{
    const int64_t n = 1 << 20;
    ctrt_device *other = sim_open("sim:1");
    CTRT_AUTO(stream) reader = new_stream(other), s = NULL, t = NULL;
    CTRT_AUTO(event) event = new_event(device, false);
    CTRT_AUTO(tensor) z = NULL, copy = NULL;
    bool done = false;
    const int count = hold_all_but(1);
    s = new_stream(device);
    CTRT_AUTO(tensor) x = work_on(s, n, event, reader);
    const uint64_t id = ctrt_stream_id(s);
    ctrt_stream_release(&s);
    CHECK_OK(ctrt_stream_new(&t, other, 3));            /* waits for the work of s, which had the only free slot */
    CHECK(ctrt_stream_id(t) != id && ctrt_stream_device(t) == other,
          "the new stream has the id of the released one, or another device");
    CHECK_OK(ctrt_event_query(event, &done));
    CHECK(done, "the slot was reused before its work was done");
    CTRT_AUTO(tensor) y = write_and_read(t, reader);
    /* x was allocated on s. When x is freed, t, which has the slot of s, still reads x. */
    for (int i = 0; i < 4; i++)
        ON_STREAM(t, ctrt_add_scalar_(y, ctrt_float(1)));
    ON_STREAM(t, ctrt_to_device(&copy, x, other));
    const void *place = ctrt_tensor_data(x);
    ctrt_tensor_release(&x);
    ctrt_stream_release(&held[0]);
    s = new_stream(device);
    ON_STREAM(s, ctrt_full(&x, CTRT_SHAPE(n), ctrt_float(1), CTRT_F32, device));
    CHECK(ctrt_tensor_data(x) == place, "the freed block was not reused by a new stream of its device");
    CHECK(total(copy) == 7.0 * (double)n, "x was overwritten while t read it: the copy's sum is %g", total(copy));
    /* The event belongs to the slot's first stream, so that it must not get t's error. */
    CHECK_OK(sim->inject(1, "op:exp@1"));
    ON_STREAM(t, ctrt_exp(&z, y));
    CHECK_FAILS(ctrt_stream_synchronize(t), CTRT_ERR_BACKEND, "exp");
    OK(ctrt_event_synchronize(event), ctrt_event_query(event, &done));
    CHECK_EQ(total(x), n);
    release_held(count);
}

/* fake:0 gets a stream and then fails to open, because its memory size is unknown and its limit is 50 % of it. */
static void failed_open(bool last)
{
    group("a device fails to open after its stream got %s of the used slots", last ? "the last" : "the first");
    const char *folder = FOLDER_OF("backend-cpu", "backend-sim", "memory-caching", "backend-fake");
    IN_CHILD(folder_path(folder, NULL), "CTRT_SIM=devices=1,latency=3ms", "CTRT_FAKE_MEMORY=0",
             "CTRT_MEMORY_LIMIT=fake=50%") {
        ctrt_device *device = sim_open("sim:0"), *fake = NULL;
        CTRT_AUTO(stream) reader = new_stream(device), s = NULL, t = NULL;
        CTRT_AUTO(event) event = new_event(device, false);
        const int count = hold_all_but(0);
        ctrt_stream_release(&held[last ? count - 1 : 0]);
        s = new_stream(device);
        CTRT_AUTO(tensor) x = work_on(s, N, event, reader);
        CHECK_OK(ctrt_stream_synchronize(s));
        ctrt_stream_release(&s);
        CHECK_FAILS(ctrt_device_get(&fake, "fake:0"), CTRT_ERR_INVALID_ARGUMENT, "give a size");
        ON_STREAM(reader, ctrt_add_scalar_(x, ctrt_float(1)));      /* the last use of x refers to that slot */
        ctrt_stream_release(&held[1]);
        s = new_stream(device);                             /* the same stream in the slot of held[1] */
        CHECK_OK(ctrt_event_synchronize(event));
        CHECK_OK(ctrt_stream_new(&t, device, 3));           /* in the slot that fake:0's stream had */
        CTRT_AUTO(tensor) y = write_and_read(t, reader);
        CHECK_FAILS(ctrt_device_get(&fake, "fake:0"), CTRT_ERR_STATE, "there are already 4096 streams");
        CHECK_EQ(total(x), 8 * N);
        release_held(count);
    }
}

TEST(test_failed_open, NULL)
{
    failed_open(true);
    failed_open(false);
}

#ifndef __SANITIZE_THREAD__             /* one thread has no races */
CHILD_TEST(test_failed_opens, "a device that fails to open 5000 times uses up no stream slots",
           "CTRT_SIM=devices=1", "CTRT_MEMORY=nonsense", "CTRT_LOG=error")
{
    ctrt_device *device = NULL;
    for (int i = 0; i < 5000; i++)
        CHECK_FAILS(ctrt_device_get(&device, "sim:0"), CTRT_ERR_NOT_FOUND, "nonsense");
}
#endif

TESTS_MAIN
