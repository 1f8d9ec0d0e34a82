/* SPDX-License-Identifier: Apache-2.0 */
/* Tests streams and events: the current stream, ordering, asynchronous calls, and the reuse of stream slots. Runs on
 * simulated devices, whose work takes a configured time. */
#include "calls.h"
#include "memory_checks.h"
#include "sims.h"

/* Work takes long only while it is compared with the time of calls: LONG seconds, which these do not take on a busy
 * machine either. */
#define LONG 0.3
#define DEVICES "CTRT_SIM=devices=2,memory=64m"

static void take_long(bool on)
{
    CHECK_OK(sim->set_latency(0, on ? (int64_t)(LONG * 1e9) : 0));
}

static void *current(void *device)
{
    ctrt_stream *stream = NULL, *seen;
    CHECK_OK(ctrt_stream_current(&stream, device));
    seen = stream;
    ctrt_stream_release(&stream);
    return seen;
}

SIM_TEST(current_streams, "each thread has its own current streams; push and pop nest", "CTRT_SIM=devices=2")
{
    ctrt_device *d1 = sim_open("sim:1"), *now = NULL;
    CTRT_AUTO(stream) a = new_stream(device), b = new_stream(d1), first = default_stream(device);
    CHECK_TRUE(current(device) == first);
    CHECK_OK(ctrt_stream_push(a));
    CHECK_TRUE(current(device) == a);
    CHECK_OK(ctrt_stream_push(b));
    CHECK_TRUE(current(device) == a && current(d1) == b);
    CHECK_OK(ctrt_device_get_current(&now, "sim"));
    CHECK(now == d1, "the pushed stream's device is not current");
    CHECK_OK(ctrt_stream_push(NULL));
    CHECK(current(device) == a, "a push of NULL changed the current stream");
    CHECK_FAILS(ctrt_device_pop(), CTRT_ERR_STATE, "ctrt_stream_push");
    pthread_t thread;
    void *seen = NULL;
    pthread_create(&thread, NULL, current, device);
    pthread_join(thread, &seen);
    CHECK(seen == first, "the current stream of a new thread is not the default stream");
    CHECK_OK(ctrt_stream_pop());
    CHECK_OK(ctrt_stream_pop());
    CHECK_OK(ctrt_device_get_current(&now, "sim"));
    CHECK(now == device && current(d1) != b, "pop did not restore the device and the stream");
    CHECK_OK(ctrt_device_push(d1));
    CHECK_FAILS(ctrt_stream_pop(), CTRT_ERR_STATE, "ctrt_device_push");
    CHECK_OK(ctrt_device_pop());
    CHECK_OK(ctrt_stream_pop());
    CHECK(current(device) == first, "the last pop did not restore the default stream");
    CHECK_FAILS(ctrt_stream_pop(), CTRT_ERR_STATE, "without");
    CHECK_OK(ctrt_stream_set_current(a));
    ctrt_stream_release(&a);                /* the thread still holds a reference */
    a = new_stream(device);
    CHECK(current(device) != a, "a new stream is the same as the current one");
}

SIM_TEST(asynchronous, "ops return before their work is done; streams and events report its end and the elapsed time",
         DEVICES)
{
    CTRT_AUTO(event) from = new_event(device, true), to = new_event(device, true), plain = new_event(device, false);
    CTRT_AUTO(event) foreign = new_event(sim_open("sim:1"), true);
    CTRT_AUTO(stream) first = default_stream(device), side = new_stream(device);
    CTRT_AUTO(tensor) x = full(1, 1000, device), y = NULL;
    double ms = -1;
    bool done = false;
    CHECK_OK(ctrt_event_query(plain, &done));
    CHECK(done, "an event that was never recorded is not done");
    CHECK_OK(ctrt_event_synchronize(plain));
    CHECK_OK(ctrt_stream_wait_event(side, plain));
    CHECK_FAILS(ctrt_event_elapsed(&ms, from, to), CTRT_ERR_STATE, "not recorded");
    CHECK_FAILS(ctrt_event_elapsed(&ms, plain, to), CTRT_ERR_STATE, "without timing");
    CHECK_FAILS(ctrt_event_elapsed(&ms, from, foreign), CTRT_ERR_DEVICE, "sim:1");
    CHECK_FAILS(ctrt_event_record(foreign, side), CTRT_ERR_DEVICE, "sim:0");
    CHECK_OK(ctrt_device_synchronize(device));
    take_long(true);
    const double start = clock_seconds();
    CHECK_OK(ctrt_event_record(from, NULL));
    CHECK_OK(ctrt_add(&y, x, x));
    CHECK_OK(ctrt_mul(&y, y, x));
    CHECK_OK(ctrt_event_record(to, NULL));
    const double enqueued = clock_seconds() - start;
    CHECK_FAILS(ctrt_event_elapsed(&ms, from, to), CTRT_ERR_STATE, "not completed");
    CHECK_OK(ctrt_event_query(to, &done));
    CHECK(!done, "the event is done before its work");
    CHECK_OK(ctrt_stream_query(first, &done));
    CHECK(!done, "the stream is idle before its work is done");
    CHECK_OK(ctrt_event_synchronize(to));
    const double took = clock_seconds() - start;
    CHECK_OK(ctrt_stream_synchronize(first));
    CHECK_OK(ctrt_stream_query(first, &done));
    CHECK(done, "the stream is busy after synchronize");
    CHECK(took >= 1.95 * LONG, "two ops of %g s took %g s", LONG, took);
    CHECK(enqueued < 0.5 * took, "the enqueue took %.1f of %.1f ms", enqueued * 1e3, took * 1e3);
    CHECK_OK(ctrt_event_elapsed(&ms, from, to));
    CHECK(ms >= 1.95e3 * LONG && ms <= 1e3 * took + 1, "two ops of %g s took %g ms", LONG, ms);
    take_long(false);
    CHECK_OK(ctrt_event_record(to, NULL));
    CHECK_OK(ctrt_stream_wait_event(side, to));
    CHECK_OK(ctrt_stream_synchronize(side));
    CHECK_EQ(total(y), 2000);
}

SIM_TEST(non_blocking, "non-blocking copies", DEVICES)
{
    CTRT_AUTO(tensor) plain = full(3, 1000, cpu_device()), pinned = NULL, there = NULL, back = NULL, one = NULL;
    double value = 0;
    bool left = true;
    CHECK_OK(ctrt_to_non_blocking(&there, plain, device, &left));
    CHECK(!left, "a copy from pageable memory was asynchronous");
    CHECK_TRUE(!ctrt_tensor_is_pinned(plain));
    CHECK_OK(ctrt_pin_memory(&pinned, plain, device));
    CHECK_TRUE(ctrt_tensor_is_pinned(pinned) && ctrt_tensor_device(pinned) == cpu);
    CHECK_OK(ctrt_device_synchronize(device));
    take_long(true);
    const double start = clock_seconds();
    CHECK_OK(ctrt_to_non_blocking(&there, pinned, device, &left));
    const double enqueued = clock_seconds() - start;
    CHECK(left && enqueued < 0.9 * LONG, "a copy from pinned memory was synchronous: %g s", enqueued);
    CHECK_OK(ctrt_zero_(pinned));           /* a write must wait until the device has read the memory */
    CHECK(clock_seconds() - start >= 0.95 * LONG, "the memory was written while the device read it");
    take_long(false);
    CHECK_EQ(total(there), 3000);
    /* A copy to the host: reads of the result must wait. */
    CHECK_OK(ctrt_to_non_blocking(&back, there, cpu, &left));
    CHECK(left && ctrt_tensor_is_pinned(back), "a copy to the host was synchronous");
    CHECK_EQ(total(back), 3000);
    CHECK_OK(ctrt_mul_scalar_(there, ctrt_float(2)));
    CHECK_OK(ctrt_copy_non_blocking_(back, there, &left));
    CHECK(left, "copy_non_blocking_ into pinned memory was synchronous");
    CHECK_OK(ctrt_narrow(&one, back, 0, 7, 1));
    CHECK_OK(ctrt_item(&value, one));
    CHECK_EQ(value, 6);
    CHECK_OK(ctrt_add(&back, back, back));
    CHECK_EQ(total(back), 12000);
}

CHILD_TEST(test_cpu_only, "without an accelerator the same calls work, and nothing is pinned", "CTRT_BACKENDS=cpu")
{
    CTRT_AUTO(tensor) x = full(1, 10, cpu_device()), y = NULL;
    CTRT_AUTO(stream) side = new_stream(cpu);
    CTRT_AUTO(event) from = new_event(cpu, true), to = new_event(cpu, true);
    bool left = true, idle = false;
    double ms = -1;
    CHECK_OK(ctrt_pin_memory(&y, x, NULL));
    CHECK_TRUE(!ctrt_tensor_is_pinned(y));
    CHECK_OK(ctrt_empty_pinned(&y, CTRT_SHAPE(3), CTRT_F32, NULL));
    CHECK_OK(ctrt_stream_push(side));
    CHECK_TRUE(current(cpu) == side);
    CHECK_OK(ctrt_event_record(from, NULL));
    CHECK_OK(ctrt_to_non_blocking(&y, x, cpu, &left));
    CHECK(!left, "the copy was asynchronous on a synchronous device");
    CHECK_OK(ctrt_event_record(to, side));
    CHECK_OK(ctrt_stream_query(side, &idle));
    CHECK_EQ(idle, true);
    CHECK_OK(ctrt_event_elapsed(&ms, from, to));
    CHECK(ms >= 0 && ms < 1000, "the elapsed time is %g ms", ms);
    CHECK_OK(ctrt_stream_wait_event(side, to));
    CHECK_OK(ctrt_tensor_record_stream(x, side));
    CHECK_OK(ctrt_stream_pop());
    CHECK_OK(ctrt_stream_synchronize(side));
}

SIM_TEST(in_forked_child, "in a forked child, devices of the parent give an error", "CTRT_SIM=devices=2")
{
    CTRT_AUTO(tensor) x = full(1, 10, device), y = NULL;
    CTRT_AUTO(stream) stream = new_stream(device);
    CTRT_AUTO(event) event = new_event(device, false);
    const uint64_t allocated = ctrt_memory_allocated(device), reserved = ctrt_memory_reserved(device);
    IN_FORK {
        ctrt_stream *fresh = NULL;
        bool idle;
        double value;
        CHECK_FAILS(ctrt_add(&y, x, x), CTRT_ERR_FORKED, "fork");
        CHECK(ctrt_item(&value, x) != CTRT_OK, "the child read a value of the parent's device");
        CHECK_FAILS(ctrt_stream_new(&fresh, device, 0), CTRT_ERR_FORKED, NULL);
        CHECK_FAILS(ctrt_stream_synchronize(stream), CTRT_ERR_FORKED, NULL);
        CHECK_FAILS(ctrt_stream_query(stream, &idle), CTRT_ERR_FORKED, NULL);
        CHECK_FAILS(ctrt_event_record(event, stream), CTRT_ERR_FORKED, NULL);
        CHECK_FAILS(ctrt_event_synchronize(event), CTRT_ERR_FORKED, NULL);
        CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_FORKED, NULL);
        CHECK_TRUE(ctrt_is_available("sim", NULL));
        ctrt_tensor_release(&x);                    /* updates only the child's statistics */
        CHECK_EQ(ctrt_memory_allocated(device), 0);
        CHECK_EQ(ctrt_memory_reserved(device), reserved);
    }
    CHECK_EQ(ctrt_memory_allocated(device), allocated);
    CHECK_EQ(total(x), 10);
}
SIM_AGAIN(in_forked_child, "the same with the policy direct", "CTRT_SIM=devices=2", "CTRT_MEMORY=direct")
SIM_AGAIN(in_forked_child, "the same with spill", "CTRT_SIM=devices=2", "CTRT_MEMORY=spill+direct")

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

TEST(test_fork_busy, "a child forked while streams are busy can release tensors")
{
    if (!forks_beside_threads())
        return;
#ifdef __SANITIZE_THREAD__
    skip_group("ThreadSanitizer ends the child of a multithreaded process when the child waits");
    return;
#endif
    IN_CHILD("CTRT_SIM=devices=1,latency=100us") {
        ctrt_device *device = sim_open("sim:0");
        pthread_t thread;
        busy_stream = new_stream(device);
        busy_tensor = full(1, 4096, device);
        pthread_create(&thread, NULL, keep_busy, NULL);
        for (int i = 0; i < 20; i++) {
            CTRT_AUTO(tensor) x = full(1, 4096, device), y = NULL;
            ON_STREAM(busy_stream, ctrt_neg(&y, x));
            IN_FORK {
                ctrt_tensor_release(&x);
            }
        }
        atomic_store(&stop, true);
        pthread_join(thread, NULL);
        CHECK_OK(ctrt_device_synchronize(device));
    }
}

#define WAITS(call, count)                                                                                     \
    do {                                                                                                       \
        const uint64_t was = ctrt_device_synchronizations(device);                                             \
        CHECK_OK(call);                                                                                        \
        CHECK_EQ(ctrt_device_synchronizations(device) - was, count);                                           \
    } while (0)

SIM_TEST(waits_counted, "waits of the host are counted: item, copies to the host and synchronization",
         "CTRT_SIM=devices=1")
{
    CTRT_AUTO(stream) stream = new_stream(device);
    CTRT_AUTO(event) event = new_event(device, false);
    CTRT_AUTO(tensor) x = full(1, 1, device), y = NULL, here = NULL;
    double value = 0;
    CHECK_OK(ctrt_event_record(event, NULL));
    CHECK_OK(ctrt_device_synchronize(device));
    const uint64_t before = ctrt_device_synchronizations(device);
    WAITS(ctrt_add(&y, x, x), 0);
    WAITS(ctrt_item(&value, y), 1);
    WAITS(ctrt_to_device(&here, y, cpu_device()), 1);
    WAITS(ctrt_stream_synchronize(stream), 1);
    WAITS(ctrt_event_synchronize(event), 1);
    WAITS(ctrt_device_synchronize(device), 1);
    WAITS(ctrt_item(&value, here), 0);
    CHECK(ctrt_device_synchronizations(cpu) == 0, "waits for the cpu are counted");
    const char *text = metrics_as(CTRT_METRICS_JSON), *found = strstr(text, "\"sim:0\"");
    found = found != NULL ? strstr(found, "\"synchronizations_total\": ") : NULL;
    CHECK(found != NULL && strtoull(strchr(found, ':') + 1, NULL, 10) == before + 5, "%s", text);
    CHECK_HAS(metrics_as(CTRT_METRICS_PROMETHEUS), "ctrt_device_synchronizations_total{device=\"sim:0\"");
}

/* ---- stream slots: a process has 4096, and a new stream must not inherit anything from the one before it ---- */

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
    CHECK_OK(ctrt_event_record(event, s));
    CHECK_OK(ctrt_stream_pop());
    CHECK_OK(ctrt_stream_wait(reader, s));
    return x;
}

/* Writes a tensor on `t` and reads it on `reader`, which waits for the stream that had the slot of `t` before. */
static ctrt_tensor *write_and_read(ctrt_stream *t, ctrt_stream *reader)
{
    CTRT_AUTO(tensor) z = NULL;
    CHECK_OK(ctrt_stream_push(t));
    ctrt_tensor *y = full(2, N, ctrt_stream_device(t));
    CHECK_OK(ctrt_add_scalar_(y, ctrt_float(1)));
    CHECK_OK(ctrt_stream_pop());
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
    CHECK_OK(ctrt_event_synchronize(event));
    CHECK_OK(ctrt_event_query(event, &done));
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

TESTS_MAIN
