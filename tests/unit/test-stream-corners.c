/* SPDX-License-Identifier: Apache-2.0 */
/* Tests corner cases of streams: threads that write parts of one tensor, ctrt_tensor_record_stream, memory of every
 * policy, reuse of stream slots, propagation of errors, ordering by queries, fork with busy threads. */
#include "sims.h"

#define N 4096

struct job {
    ctrt_stream *stream;
    ctrt_tensor *part;
    double value;
    pthread_barrier_t *start;
};

static void *write_part(void *argument)
{
    struct job *job = argument;
    CHECK_OK(ctrt_stream_push(job->stream));
    pthread_barrier_wait(job->start);
    CHECK_OK(ctrt_fill_(job->part, ctrt_float(job->value)));
    CHECK_OK(ctrt_add_scalar_(job->part, ctrt_float(1)));
    CHECK_OK(ctrt_stream_pop());
    return NULL;
}

static void test_parts(void)
{
    group("two threads write parts of one tensor on two streams: a reader waits for both");
    IN_CHILD("CTRT_SIM=devices=1,latency=200us") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) a = NULL, b = NULL;
        int wrong = 0;
        CHECK_OK(ctrt_stream_new(&a, device, 0));
        CHECK_OK(ctrt_stream_new(&b, device, 0));
        for (int i = 0; i < 200; i++) {
            CTRT_AUTO(tensor) x = full(0, 2 * N, device), left = NULL, right = NULL;
            pthread_barrier_t start;
            pthread_t threads[2];
            pthread_barrier_init(&start, NULL, 2);
            CHECK_OK(ctrt_slice(&left, x, 0, 0, N, 1));
            CHECK_OK(ctrt_slice(&right, x, 0, N, 2 * N, 1));
            struct job jobs[2] = { { a, left, 1, &start }, { b, right, 2, &start } };
            for (int t = 0; t < 2; t++)
                pthread_create(&threads[t], NULL, write_part, &jobs[t]);
            for (int t = 0; t < 2; t++)
                pthread_join(threads[t], NULL);
            wrong += total(x) != 5 * N;
            pthread_barrier_destroy(&start);
        }
        CHECK(wrong == 0, "%d of 200 sums were wrong", wrong);
    }
    CHILD_END;
}

static void test_announced(void)
{
    group("ctrt_tensor_record_stream adds a stream to wait for and removes none");
    IN_CHILD("CTRT_SIM=devices=1,latency=3ms") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) s = NULL, r = NULL, t = NULL;
        CTRT_AUTO(tensor) x = full(0, N, device), copy = NULL;
        CHECK_OK(ctrt_stream_new(&s, device, 0));
        CHECK_OK(ctrt_stream_new(&r, device, 0));
        CHECK_OK(ctrt_stream_new(&t, device, 0));
        CHECK_OK(ctrt_stream_push(s));
        for (int i = 0; i < 4; i++)
            CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_tensor_record_stream(x, r));
        CHECK_OK(ctrt_stream_push(t));
        CHECK_OK(ctrt_clone(&copy, x));
        CHECK_OK(ctrt_stream_pop());
        CHECK(total(copy) == 4 * N, "the copy's sum is %g, expected 4 * 4096", total(copy));
        CTRT_AUTO(tensor) nothing = NULL;
        CHECK_OK(ctrt_empty(&nothing, CTRT_SHAPE(0), CTRT_F32, device));
        CHECK_OK(ctrt_tensor_record_stream(nothing, r));
    }
    CHILD_END;
}

static void test_policies(const char *policy)
{
    group("memory that another stream still reads is written only after the read: %s", policy);
    char setting[64];
    snprintf(setting, sizeof setting, "CTRT_MEMORY=%s", policy);
    IN_CHILD("CTRT_SIM=devices=1,latency=1ms", setting) {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) reader = NULL, writer = NULL;
        CTRT_AUTO(tensor) busy = full(1, N, device);
        int wrong = 0;
        CHECK_OK(ctrt_stream_new(&reader, device, 0));
        CHECK_OK(ctrt_stream_new(&writer, device, 0));
        for (int i = 0; i < 10; i++) {
            CTRT_AUTO(tensor) x = full(7, 1 << 20, device), y = NULL, copy = NULL;
            CHECK_OK(ctrt_device_synchronize(device));
            CHECK_OK(ctrt_stream_push(reader));
            for (int k = 0; k < 4; k++)
                CHECK_OK(ctrt_add_scalar_(busy, ctrt_float(1)));
            CHECK_OK(ctrt_clone(&copy, x));
            CHECK_OK(ctrt_stream_pop());
            ctrt_tensor_release(&x);
            CHECK_OK(ctrt_empty(&y, CTRT_SHAPE(1 << 20), CTRT_F32, device));
            CHECK_OK(ctrt_stream_push(writer));
            CHECK_OK(ctrt_fill_(y, ctrt_float(3)));
            CHECK_OK(ctrt_stream_pop());
            wrong += total(copy) != 7.0 * (1 << 20);
        }
        CHECK(wrong == 0, "the source of %d of 10 copies was overwritten before the copy", wrong);
    }
    CHILD_END;
}

/* Memory is returned to the device only when no work uses it, even if no event can be recorded for that work. */
static void test_no_events(const char *policy)
{
    group("when no event can be recorded, the host waits instead: %s", policy);
    char setting[64];
    snprintf(setting, sizeof setting, "CTRT_MEMORY=%s", policy);
    IN_CHILD("CTRT_SIM=devices=1,latency=1ms,poison=yes,fault=event:1+", setting) {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) busy = full(1, N, device);
        int wrong = 0;
        for (int i = 0; i < 5; i++) {
            CTRT_AUTO(tensor) x = full(7, 1 << 20, device), y = NULL, copy = NULL;
            for (int k = 0; k < 4; k++)
                CHECK_OK(ctrt_add_scalar_(busy, ctrt_float(1)));
            CHECK_OK(ctrt_clone(&copy, x));
            ctrt_tensor_release(&x);
            CHECK_OK(ctrt_memory_empty_cache(device));
            CHECK_OK(ctrt_empty(&y, CTRT_SHAPE(1 << 20), CTRT_F32, device));
            wrong += total(copy) != 7.0 * (1 << 20);
        }
        CHECK(wrong == 0, "the memory of %d of 5 tensors was reused while it was read", wrong);
    }
    CHILD_END;
}

static void test_errors(void)
{
    group("an error reaches streams that wait for the failed work and pinned copies, not earlier work or new streams");
    IN_CHILD("CTRT_SIM=devices=1,latency=1ms") {
        ctrt_device *device = sim_open("sim:0"), *cpu = NULL;
        CTRT_AUTO(stream) s = NULL, a = NULL, b = NULL, again = NULL;
        CTRT_AUTO(tensor) x = full(1, 1, device), y = NULL, z = NULL, u = NULL, here = NULL;
        bool left = false;
        double value;
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        CHECK_OK(ctrt_stream_new(&s, device, 0));
        CHECK_OK(ctrt_stream_new(&a, device, 0));
        CHECK_OK(ctrt_stream_new(&b, device, 0));
        CHECK_OK(ctrt_stream_push(a));
        CHECK_OK(ctrt_neg(&y, x));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_wait(b, a));                   /* recorded before the failure */
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK_OK(sim->inject(0, "op:exp@1"));
        CHECK_OK(ctrt_stream_push(s));
        CHECK_OK(ctrt_exp(&z, x));
        CHECK_OK(ctrt_to_non_blocking(&here, z, cpu, &left));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_push(a));
        CHECK_OK(ctrt_neg(&u, z));
        CHECK_OK(ctrt_stream_pop());
        CHECK_FAILS(ctrt_stream_synchronize(a), CTRT_ERR_BACKEND, "exp");
        CHECK_OK(ctrt_stream_synchronize(b));
        CHECK(left, "ctrt_to_non_blocking was not asynchronous");
        CHECK_FAILS(ctrt_item(&value, here), CTRT_ERR_BACKEND, "exp");
        const ctrt_stream *was = s;
        ctrt_stream_release(&s);
        CHECK_OK(ctrt_stream_new(&again, device, 0));
        CHECK(again == was, "the new stream is not the released one");
        CHECK_OK(ctrt_stream_synchronize(again));
    }
    CHILD_END;
}

static void test_queries(void)
{
    group("no race is reported for work that a query has reported as done");
    IN_CHILD("CTRT_SIM=devices=1,latency=1ms", "CTRT_STREAM_ORDER=check", "CTRT_LOG=error") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) s = NULL, first = NULL;
        CTRT_AUTO(event) event = NULL;
        CTRT_AUTO(tensor) x = full(1, N, device), y = NULL;
        bool done = false;
        CHECK_OK(ctrt_stream_new(&s, device, 0));
        CHECK_OK(ctrt_stream_default(&first, device));
        CHECK_OK(ctrt_event_new(&event, device, false));
        CHECK_OK(ctrt_event_record(event, NULL));
        while (!done)
            CHECK_OK(ctrt_event_query(event, &done));
        CHECK_OK(ctrt_stream_push(s));
        CHECK_OK(ctrt_neg(&y, x));
        CHECK_OK(ctrt_stream_pop());
        CHECK(ctrt_race_count() == 0, "a race was reported after ctrt_event_query reported the event done");
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
        for (done = false; !done;)
            CHECK_OK(ctrt_stream_query(first, &done));
        CHECK_OK(ctrt_stream_push(s));
        CHECK_OK(ctrt_neg_(x));
        CHECK_OK(ctrt_stream_pop());
        CHECK(ctrt_race_count() == 0, "a race was reported after ctrt_stream_query reported the stream idle");
    }
    CHILD_END;
}

static void test_many_readers(void)
{
    enum { MANY = 20 };
    group("twenty streams read one tensor: the host does not wait, and a later write waits for all of them");
    IN_CHILD("CTRT_SIM=devices=1,latency=3ms") {
        ctrt_device *device = sim_open("sim:0");
        ctrt_stream *streams[MANY] = { NULL };
        ctrt_tensor *copies[MANY] = { NULL };
        CTRT_AUTO(tensor) x = full(2, N, device);
        for (int i = 0; i < MANY; i++)
            CHECK_OK(ctrt_stream_new(&streams[i], device, 0));
        CHECK_OK(ctrt_device_synchronize(device));
        const double start = seconds_now();
        for (int round = 0; round < 3; round++)
            for (int i = 0; i < MANY; i++) {
                CHECK_OK(ctrt_stream_push(streams[i]));
                CHECK_OK(ctrt_add_scalar(&copies[i], x, ctrt_float(1)));
                CHECK_OK(ctrt_stream_pop());
            }
        const double put = seconds_now() - start;
        CHECK_OK(ctrt_fill_(x, ctrt_float(100)));
        for (int i = 0; i < MANY; i++) {
            CHECK(total(copies[i]) == 3 * N, "stream %d: %g", i, total(copies[i]));
            ctrt_tensor_release(&copies[i]);
            ctrt_stream_release(&streams[i]);
        }
        CHECK(put < 0.5 * (seconds_now() - start), "enqueueing took %g s of %g s", put,
              seconds_now() - start);
    }
    CHILD_END;
}

/* ---- stream slots ---- */

enum { SLOTS = 4096, CYCLES = 20000 };

static ctrt_stream *held[SLOTS];

/* Fills all slots with live streams of the cpu in held[], then releases `room` of them. Returns the number held. */
static int hold_all_but(int room)
{
    ctrt_device *cpu = NULL;
    int count = 0;
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    while (count < SLOTS && ctrt_stream_new(&held[count], cpu, 0) == CTRT_OK)
        count++;
    CHECK_FAILS(ctrt_stream_new(&held[SLOTS - 1], cpu, 0), CTRT_ERR_STATE, "there are already 4096 streams");
    for (int i = 0; i < room; i++)
        ctrt_stream_release(&held[--count]);
    return count;
}

static void release_held(int count)
{
    for (int i = 0; i < count; i++)
        ctrt_stream_release(&held[i]);
}

static void test_slots(void)
{
    group("slots are reused: 20,000 streams of two devices and five priorities in four slots");
    IN_CHILD("CTRT_SIM=devices=2,jitter=20us") {
        ctrt_device *devices[2] = { sim_open("sim:0"), sim_open("sim:1") };
        const int count = hold_all_but(4);
        CTRT_AUTO(stream) earlier = NULL;
        ctrt_tensor *x[2] = { full(0, 64, devices[0]), full(0, 64, devices[1]) };
        int wrong = 0, refused = 0, adds[2] = { 0 };
        for (int i = 0; i < CYCLES && refused == 0; i++) {
            CTRT_AUTO(stream) s = NULL;
            const int d = i % 3 == 0;
            ctrt_status status = ctrt_stream_new(&s, devices[d], i % 5 - 2);
            if (status == CTRT_ERR_STATE) {     /* on a busy machine, the released streams may still have pending work */
                CHECK_OK(ctrt_device_synchronize(devices[0]));
                CHECK_OK(ctrt_device_synchronize(devices[1]));
                status = ctrt_stream_new(&s, devices[d], i % 5 - 2);
            }
            if (status != CTRT_OK) {
                CHECK(++refused == 0, "stream %d: %s", i, ctrt_error_message());
                continue;
            }
            if (i % 20 < 2) {                               /* each of these streams waits for the one before it */
                CHECK_OK(ctrt_stream_push(s));
                CHECK_OK(ctrt_add_scalar_(x[d], ctrt_float(1)));
                CHECK_OK(ctrt_stream_pop());
                adds[d]++;
                if (earlier != NULL)
                    CHECK_OK(ctrt_stream_wait(s, earlier));
                ctrt_stream_release(&earlier);
                earlier = ctrt_stream_retain(s);
            }
            if (i % 200 == 1)
                wrong += total(x[d]) != 64.0 * adds[d];
        }
        CHECK(wrong == 0, "%d sums were wrong", wrong);
        ctrt_tensor_release(&x[0]);
        ctrt_tensor_release(&x[1]);
        release_held(count);
    }
    CHILD_END;
    group("a stream that reuses a slot does not inherit the previous stream's ordering, errors or memory");
    IN_CHILD("CTRT_SIM=devices=2,memory=64m,latency=3ms") {
        ctrt_device *device = sim_open("sim:0"), *other = sim_open("sim:1");
        CTRT_AUTO(stream) reader = NULL, s = NULL, t = NULL;
        CTRT_AUTO(event) event = NULL;
        CTRT_AUTO(tensor) x = NULL, y = NULL, z = NULL, copy = NULL;
        bool done = false;
        CHECK_OK(ctrt_stream_new(&reader, other, 0));
        CHECK_OK(ctrt_event_new(&event, device, false));
        const int count = hold_all_but(1);
        CHECK_OK(ctrt_stream_new(&s, device, 0));
        CHECK_OK(ctrt_stream_push(s));
        x = full(7, 1 << 20, device);
        for (int i = 0; i < 9; i++)
            CHECK_OK(ctrt_add_scalar_(x, ctrt_float(0)));
        CHECK_OK(ctrt_event_record(event, s));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_wait(reader, s));
        const uint64_t id = ctrt_stream_id(s);
        ctrt_stream_release(&s);
        CHECK_OK(ctrt_stream_new(&t, other, 3));            /* waits for the work of s, which had the only free slot */
        CHECK(ctrt_stream_id(t) != id && ctrt_stream_device(t) == other,
              "the new stream has the id of the released one, or another device");
        CHECK_OK(ctrt_event_query(event, &done));
        CHECK(done, "the slot was reused before its work was done");
        CHECK_OK(ctrt_stream_push(t));
        y = full(2, N, other);
        CHECK_OK(ctrt_add_scalar_(y, ctrt_float(1)));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_push(reader));                 /* reader waits for s, not for t */
        CHECK_OK(ctrt_neg(&z, y));
        CHECK_OK(ctrt_stream_pop());
        CHECK(total(z) == -3 * N, "y was read before it was written: the sum is %g", total(z));
        /* x was allocated on s. When x is freed, t, which has the slot of s, still reads x. */
        CHECK_OK(ctrt_stream_push(t));
        for (int i = 0; i < 4; i++)
            CHECK_OK(ctrt_add_scalar_(y, ctrt_float(1)));
        CHECK_OK(ctrt_to_device(&copy, x, other));
        CHECK_OK(ctrt_stream_pop());
        const void *place = ctrt_tensor_data(x);
        ctrt_tensor_release(&x);
        ctrt_stream_release(&held[0]);
        CHECK_OK(ctrt_stream_new(&s, device, 0));
        CHECK_OK(ctrt_stream_push(s));
        x = full(1, 1 << 20, device);
        CHECK(ctrt_tensor_data(x) == place, "the freed block was not reused by a new stream of its device");
        CHECK_OK(ctrt_stream_pop());
        CHECK(total(copy) == 7.0 * (1 << 20), "x was overwritten while t read it: the copy's sum is %g", total(copy));
        /* The event belongs to the slot's first stream, so that it must not get t's error. */
        CHECK_OK(sim->inject(1, "op:exp@1"));
        CHECK_OK(ctrt_stream_push(t));
        CHECK_OK(ctrt_exp(&z, y));
        CHECK_OK(ctrt_stream_pop());
        CHECK_FAILS(ctrt_stream_synchronize(t), CTRT_ERR_BACKEND, "exp");
        CHECK_OK(ctrt_event_synchronize(event));
        CHECK_OK(ctrt_event_query(event, &done));
        CHECK(total(x) == 1 << 20, "the sum on a stream that did not fail is %g", total(x));
        release_held(count);
    }
    CHILD_END;
}

/* fake:0 gets a stream and then fails to open, because its memory size is unknown and its limit is 50 % of it. */
static void test_failed_open(bool last)
{
    group("a device fails to open after its stream got %s of the used slots", last ? "the last" : "the first");
    const char *folder = folder_new();
    folder_plugin(folder, "backend-cpu");
    folder_plugin(folder, "backend-sim");
    folder_plugin(folder, "memory-caching");
    folder_actor(folder, "backend-fake");
    IN_CHILD(folder_path(folder, NULL), "CTRT_SIM=devices=1,latency=3ms", "CTRT_FAKE_MEMORY=0",
             "CTRT_MEMORY_LIMIT=fake=50%") {
        ctrt_device *device = sim_open("sim:0"), *fake = NULL;
        CTRT_AUTO(stream) reader = NULL, s = NULL, t = NULL;
        CTRT_AUTO(event) event = NULL;
        CTRT_AUTO(tensor) x = NULL, y = NULL, z = NULL;
        CHECK_OK(ctrt_stream_new(&reader, device, 0));
        CHECK_OK(ctrt_event_new(&event, device, false));
        const int count = hold_all_but(0);
        ctrt_stream_release(&held[last ? count - 1 : 0]);
        CHECK_OK(ctrt_stream_new(&s, device, 0));
        CHECK_OK(ctrt_stream_push(s));
        x = full(7, N, device);
        for (int i = 0; i < 9; i++)
            CHECK_OK(ctrt_add_scalar_(x, ctrt_float(0)));
        CHECK_OK(ctrt_event_record(event, s));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_wait(reader, s));
        CHECK_OK(ctrt_stream_synchronize(s));
        ctrt_stream_release(&s);
        CHECK_FAILS(ctrt_device_get(&fake, "fake:0"), CTRT_ERR_INVALID_ARGUMENT, "give a size");
        CHECK_OK(ctrt_stream_push(reader));
        CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));       /* the last use of x refers to that slot */
        CHECK_OK(ctrt_stream_pop());
        ctrt_stream_release(&held[1]);
        CHECK_OK(ctrt_stream_new(&s, device, 0));           /* the same stream in the slot of held[1] */
        CHECK_OK(ctrt_event_synchronize(event));
        CHECK_OK(ctrt_stream_new(&t, device, 3));           /* in the slot that fake:0's stream had */
        CHECK_OK(ctrt_stream_push(t));
        y = full(2, N, device);
        CHECK_OK(ctrt_add_scalar_(y, ctrt_float(1)));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_push(reader));                 /* reader waits for s, not for t */
        CHECK_OK(ctrt_neg(&z, y));
        CHECK_OK(ctrt_stream_pop());
        CHECK(total(z) == -3 * N, "y was read before it was written: the sum is %g", total(z));
        CHECK_FAILS(ctrt_device_get(&fake, "fake:0"), CTRT_ERR_STATE, "there are already 4096 streams");
        CHECK(total(x) == 8 * N, "the sum is %g", total(x));
        release_held(count);
    }
    CHILD_END;
    folder_remove(folder);
}

static ctrt_stream *busy_stream;
static ctrt_tensor *busy_tensor;
static atomic_bool stop;

static void *keep_busy(void *unused)
{
    (void)unused;
    ctrt_stream_push(busy_stream);
    while (!atomic_load(&stop))
        ctrt_fill_(busy_tensor, ctrt_float(1));
    ctrt_stream_pop();
    return NULL;
}

static void test_fork(void)
{
    group("a child forked while streams are busy can release tensors");
    if (!forks_beside_threads())
        return;
#ifdef __SANITIZE_THREAD__
    skip_group("ThreadSanitizer ends the child of a multithreaded process when the child waits");
    return;
#endif
    IN_CHILD("CTRT_SIM=devices=1,latency=100us") {
        ctrt_device *device = sim_open("sim:0");
        int hung = 0;
        pthread_t thread;
        CHECK_OK(ctrt_stream_new(&busy_stream, device, 0));
        busy_tensor = full(1, N, device);
        pthread_create(&thread, NULL, keep_busy, NULL);
        for (int i = 0; i < 20; i++) {
            CTRT_AUTO(tensor) x = full(1, N, device), y = NULL;
            CHECK_OK(ctrt_stream_push(busy_stream));
            CHECK_OK(ctrt_neg(&y, x));
            CHECK_OK(ctrt_stream_pop());
            pid_t child = fork();
            if (child == 0) {
                alarm(20);
                ctrt_tensor_release(&x);
                _exit(0);
            }
            int status = 1;
            hung += waitpid(child, &status, 0) != child || !WIFEXITED(status);
        }
        atomic_store(&stop, true);
        pthread_join(thread, NULL);
        CHECK(hung == 0, "%d of 20 children hung", hung);
        CHECK_OK(ctrt_device_synchronize(device));
    }
    CHILD_END;
    group("a device that fails to open 5000 times uses up no stream slots");
    IN_CHILD("CTRT_SIM=devices=1", "CTRT_MEMORY=nonsense", "CTRT_LOG=error") {
        ctrt_device *device = NULL;
        ctrt_status status = CTRT_OK;
        for (int i = 0; i < 5000; i++)
            status = ctrt_device_get(&device, "sim:0");
        CHECK(status == CTRT_ERR_NOT_FOUND && strstr(ctrt_error_message(), "nonsense"), "%s", ctrt_error_message());
    }
    CHILD_END;
}

TEST_MAIN
{
    test_parts();
    test_announced();
    test_policies("caching");
    test_policies("arena");
    test_policies("direct");
    test_no_events("caching");
    test_no_events("arena");
    test_no_events("direct");
    test_errors();
    test_queries();
    test_many_readers();
    test_slots();
    test_failed_open(true);
    test_failed_open(false);
    test_fork();
    return done();
}
