/* SPDX-License-Identifier: Apache-2.0 */
/* Corners of streams: threads in parts of one tensor, announced work, memory from every policy, lives of streams, who
 * inherits an error, what queries teach, forks beside busy threads. */
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
    group("two threads write parts of one tensor on two streams: who reads it is behind both");
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
    group("ctrt_tensor_record_stream adds to what is waited for, and takes nothing away");
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
        CHECK(total(copy) == 4 * N, "%g", total(copy));
        CTRT_AUTO(tensor) nothing = NULL;
        CHECK_OK(ctrt_empty(&nothing, CTRT_SHAPE(0), CTRT_F32, device));
        CHECK_OK(ctrt_tensor_record_stream(nothing, r));
    }
    CHILD_END;
}

static void test_policies(const char *policy)
{
    group("memory that another stream still reads is written behind it: %s", policy);
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
        CHECK(wrong == 0, "%d of 10 copies were written while they were made", wrong);
    }
    CHILD_END;
}

/* Memory goes back to the device only when nothing uses it, also where no event can tell when that is. */
static void test_no_events(const char *policy)
{
    group("no event can be recorded: the host waits instead: %s", policy);
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
        CHECK(wrong == 0, "memory of %d of 5 tensors was given away while it was read", wrong);
    }
    CHILD_END;
}

static void test_errors(void)
{
    group("who inherits an error: what came behind it, not what came before; no new stream does; pinned copies do");
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
        CHECK_OK(ctrt_stream_wait(b, a));                   /* before anything failed */
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
        CHECK(left, "not asynchronous");
        CHECK_FAILS(ctrt_item(&value, here), CTRT_ERR_BACKEND, "exp");
        const ctrt_stream *was = s;
        ctrt_stream_release(&s);
        CHECK_OK(ctrt_stream_new(&again, device, 0));
        CHECK(again == was, "the queue does not serve again");
        CHECK_OK(ctrt_stream_synchronize(again));
    }
    CHILD_END;
}

static void test_queries(void)
{
    group("what a query says is done needs no waiting: no race is reported");
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
        CHECK(ctrt_race_count() == 0, "after an event was done");
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
        for (done = false; !done;)
            CHECK_OK(ctrt_stream_query(first, &done));
        CHECK_OK(ctrt_stream_push(s));
        CHECK_OK(ctrt_neg_(x));
        CHECK_OK(ctrt_stream_pop());
        CHECK(ctrt_race_count() == 0, "after a stream was idle");
    }
    CHILD_END;
}

static void test_many_readers(void)
{
    enum { MANY = 20 };
    group("twenty streams read one tensor: the host waits for none, and who writes it then is behind all");
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
        CHECK(put < 0.5 * (seconds_now() - start), "putting the work there took %g of %g s", put,
              seconds_now() - start);
    }
    CHILD_END;
}

/* ---- slots: all but `room` belong to live streams of the cpu ---- */

enum { SLOTS = 4096, CYCLES = 20000 };

static ctrt_stream *held[SLOTS];

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
    group("released streams leave room: 20,000 over two devices and five priorities, where four can live at a time");
    IN_CHILD("CTRT_SIM=devices=2,jitter=20us") {
        ctrt_device *devices[2] = { sim_open("sim:0"), sim_open("sim:1") };
        const int count = hold_all_but(4);
        CTRT_AUTO(stream) earlier = NULL;
        ctrt_tensor *x[2] = { full(0, 64, devices[0]), full(0, 64, devices[1]) };
        int wrong = 0, refused = 0, adds[2] = { 0 };
        for (int i = 0; i < CYCLES && refused == 0; i++) {
            CTRT_AUTO(stream) s = NULL;
            const int d = i % 3 == 0;
            if (ctrt_stream_new(&s, devices[d], i % 5 - 2) != CTRT_OK) {
                CHECK(++refused == 0, "stream %d: %s", i, ctrt_error_message());
                continue;
            }
            if (i % 20 < 2) {                               /* what one stream writes the next one reads */
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
    group("a stream in another's slot: neither ordered, nor failed, nor freed in its place");
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
        CHECK_OK(ctrt_stream_new(&t, other, 3));            /* waits for the work of s, which has the only slot */
        CHECK(ctrt_stream_id(t) != id && ctrt_stream_device(t) == other, "another stream");
        CHECK_OK(ctrt_event_query(event, &done));
        CHECK(done, "the slot went on before its work was done");
        CHECK_OK(ctrt_stream_push(t));
        y = full(2, N, other);
        CHECK_OK(ctrt_add_scalar_(y, ctrt_float(1)));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_push(reader));                 /* has waited for s, not for t */
        CHECK_OK(ctrt_neg(&z, y));
        CHECK_OK(ctrt_stream_pop());
        CHECK(total(z) == -3 * N, "read before it was written: %g", total(z));
        /* x is memory of s and is read by the stream in the slot of s when it is freed. */
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
        CHECK(ctrt_tensor_data(x) == place, "the block went to another stream than its own");
        CHECK_OK(ctrt_stream_pop());
        CHECK(total(copy) == 7.0 * (1 << 20), "written while it was read: %g", total(copy));
        /* The event is of the slot's first stream. */
        CHECK_OK(sim->inject(1, "op:exp@1"));
        CHECK_OK(ctrt_stream_push(t));
        CHECK_OK(ctrt_exp(&z, y));
        CHECK_OK(ctrt_stream_pop());
        CHECK_FAILS(ctrt_stream_synchronize(t), CTRT_ERR_BACKEND, "exp");
        CHECK_OK(ctrt_event_synchronize(event));
        CHECK_OK(ctrt_event_query(event, &done));
        CHECK(total(x) == 1 << 20, "a stream that did not fail: %g", total(x));
        release_held(count);
    }
    CHILD_END;
}

/* fake:0 gets a stream and then does not open, because half of an unknown amount is no limit. */
static void test_failed_open(bool last)
{
    group("a device that does not open, after its stream got %s of the used slots", last ? "the last" : "the first");
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
        CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));       /* last used by work that is named by that slot */
        CHECK_OK(ctrt_stream_pop());
        ctrt_stream_release(&held[1]);
        CHECK_OK(ctrt_stream_new(&s, device, 0));           /* the same stream with the slot of held[1] */
        CHECK_OK(ctrt_event_synchronize(event));
        CHECK_OK(ctrt_stream_new(&t, device, 3));           /* the slot of the stream of fake:0 */
        CHECK_OK(ctrt_stream_push(t));
        y = full(2, N, device);
        CHECK_OK(ctrt_add_scalar_(y, ctrt_float(1)));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_push(reader));                 /* has waited for s, not for t */
        CHECK_OK(ctrt_neg(&z, y));
        CHECK_OK(ctrt_stream_pop());
        CHECK(total(z) == -3 * N, "read before it was written: %g", total(z));
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
    group("a child that is forked beside busy streams can let go of tensors");
    if (!forks_beside_threads())
        return;
#ifdef __SANITIZE_THREAD__
    skip_group("the thread sanitizer ends the child of a fork beside threads when it waits");
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
    group("a device that does not open leaves no stream behind");
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
