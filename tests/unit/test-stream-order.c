/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the order of work on several streams and devices, also for memory that is reused, parts of one tensor,
 * gradients, threads and training. The simulated devices delay each piece of work, so that missing synchronization
 * gives wrong results. */
#include "calls.h"
#include "sims.h"
#include "dryrun_models.h"

#define N 1000

/* Fills a tensor on one stream and sums it on another, without a wait by the program unless `waits`. */
static double fill_and_sum(ctrt_device *device, ctrt_stream *side, bool waits)
{
    CTRT_AUTO(tensor) x = full(0, N, device), sum = NULL;
    CTRT_AUTO(stream) first = default_stream(device);
    double value = -1;
    CHECK_OK(ctrt_add_scalar_(x, ctrt_float(3)));
    if (waits)
        CHECK_OK(ctrt_stream_wait(side, first));
    ON_STREAM(side, ctrt_sum(&sum, x, CTRT_ALL_DIMS));
    ON_STREAM(side, ctrt_item(&value, sum));
    return value;
}

SIM_TEST(default_order, "a tensor filled on one stream and read on another is correct by default",
         "CTRT_SIM=devices=1,jitter=60us,seed=3")
{
    CTRT_AUTO(stream) side = new_stream(device);
    int wrong = 0;
    for (int i = 0; i < 1000; i++)
        wrong += fill_and_sum(device, side, false) != 3 * N;
    CHECK(wrong == 0, "%d of 1000 runs were wrong", wrong);
    CHECK_EQ(ctrt_race_count(), 0);
}

#ifndef __SANITIZE_THREAD__             /* it reports the intended race too */
SIM_TEST(manual_order, "the program must synchronize the streams", "CTRT_STREAM_ORDER=manual",
         "CTRT_SIM=devices=1,latency=2ms")
{
    CTRT_AUTO(stream) side = new_stream(device);
    const uint64_t before = sim_read(0).waits;
    fill_and_sum(device, side, false);
    CHECK_EQ(sim_read(0).waits, before);
    CHECK_OK(ctrt_device_synchronize(device));
    for (int i = 0; i < 20; i++)
        CHECK_EQ(fill_and_sum(device, side, true), 3 * N);
}
#endif

SIM_TEST(one_stream, "on one stream nothing waits and nothing is recorded", "CTRT_SIM=devices=1")
{
    CTRT_AUTO(tensor) x = full(1, N, device), y = full(2, N, device);
    const sim_counters before = sim_read(0);
    for (int i = 0; i < 50; i++)
        CHECK_OK(ctrt_add(&y, x, y));
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_EQ(sim_read(0).waits, before.waits);
    CHECK_EQ(sim_read(0).records, before.records);
    CHECK_EQ(sim_read(0).allocs, before.allocs);
}

/* ---- memory ---- */

/* Reads a tensor on `reader` after other work, releases it, allocates a tensor of the same size on the default stream
 * and writes it first on `writer`. */
static void reuse(ctrt_device *device, ctrt_stream *reader, ctrt_stream *writer, bool at_once, const char *streams)
{
    const int64_t n = 1 << 20;
    CTRT_AUTO(tensor) x = full(7, n, device), busy = full(1, N, device), y = NULL, copy = NULL;
    CHECK_OK(ctrt_device_synchronize(device));
    const double start = clock_seconds();
    for (int i = 0; i < 4; i++)
        ON_STREAM(reader, ctrt_add_scalar_(busy, ctrt_float(1)));
    ON_STREAM(reader, ctrt_clone(&copy, x));
    const void *place = ctrt_tensor_data(x);
    ctrt_tensor_release(&x);
    CHECK_OK(ctrt_empty(&y, CTRT_SHAPE(n), CTRT_F32, device));
    ON_STREAM(writer, ctrt_fill_(y, ctrt_float(3)));
    const double enqueued = clock_seconds() - start;
    if (at_once) {
        CHECK(ctrt_tensor_data(y) == place, "%s: the block was not reused at once", streams);
        CHECK(enqueued < 0.045, "%s: the host waited: 90 ms of work were enqueued in %g s", streams, enqueued);
    }
    CHECK(total(copy) == 7.0 * (double)n, "%s: written before it was read: sum %g", streams, total(copy));
    CHECK(total(y) == 3.0 * (double)n, "%s: the new tensor's sum is %g", streams, total(y));
}

#define REUSED  "memory that a stream still reads is written only after the read"
#define DELAYED "CTRT_SIM=devices=1,latency=15ms"

SIM_TEST(reused, REUSED, DELAYED, "CTRT_MEMORY=caching")
{
    const bool at_once = strcmp(ctrt_memory_policy_name(device), "caching") == 0;
    CTRT_AUTO(stream) first = default_stream(device), side = new_stream(device), third = new_stream(device);
    reuse(device, side, first, at_once, "read on another stream, written on the default one");
    reuse(device, first, side, at_once, "read on the default stream, written on another");
    reuse(device, third, side, at_once, "read on another stream, written on a third");
}
SIM_AGAIN(reused, REUSED, DELAYED, "CTRT_MEMORY=arena")
SIM_AGAIN(reused, REUSED, DELAYED, "CTRT_MEMORY=direct")

#define NO_EVENTS "when no event can be recorded, the host waits before memory is given back"
#define FAILING   "CTRT_SIM=devices=1,latency=1ms,poison=yes,fault=event:1+"

SIM_TEST(no_events, NO_EVENTS, FAILING, "CTRT_MEMORY=caching")
{
    CTRT_AUTO(tensor) busy = full(1, N, device);
    for (int i = 0; i < 5; i++) {
        CTRT_AUTO(tensor) x = full(7, 1 << 20, device), y = NULL, copy = NULL;
        for (int k = 0; k < 4; k++)
            CHECK_OK(ctrt_add_scalar_(busy, ctrt_float(1)));
        CHECK_OK(ctrt_clone(&copy, x));
        ctrt_tensor_release(&x);
        CHECK_OK(ctrt_memory_empty_cache(device));
        CHECK_OK(ctrt_empty(&y, CTRT_SHAPE(1 << 20), CTRT_F32, device));
        CHECK_EQ(total(copy), 7 << 20);
    }
}
SIM_AGAIN(no_events, NO_EVENTS, FAILING, "CTRT_MEMORY=arena")
SIM_AGAIN(no_events, NO_EVENTS, FAILING, "CTRT_MEMORY=direct")

SIM_TEST(record_stream, "ctrt_tensor_record_stream adds a stream to wait for and removes none",
         "CTRT_SIM=devices=1,latency=3ms")
{
    CTRT_AUTO(stream) writer = new_stream(device), recorded = new_stream(device), reader = new_stream(device);
    CTRT_AUTO(tensor) x = full(0, N, device), copy = NULL, nothing = NULL;
    for (int i = 0; i < 4; i++)
        ON_STREAM(writer, ctrt_add_scalar_(x, ctrt_float(1)));
    CHECK_OK(ctrt_tensor_record_stream(x, recorded));
    ON_STREAM(reader, ctrt_clone(&copy, x));
    CHECK_EQ(total(copy), 4 * N);
    CHECK_OK(ctrt_empty(&nothing, CTRT_SHAPE(0), CTRT_F32, device));
    CHECK_OK(ctrt_tensor_record_stream(nothing, recorded));
}

SIM_TEST(many_readers, "twenty streams read one tensor: the host does not wait, a later write waits for all of them",
         "CTRT_SIM=devices=1,latency=100ms")
{
    enum { MANY = 20 };
    ctrt_stream *streams[MANY];
    ctrt_tensor *copies[MANY] = { NULL };
    CTRT_AUTO(tensor) x = full(2, N, device);
    const uint64_t queues = sim_read(0).queues;
    for (int i = 0; i < MANY; i++)
        streams[i] = new_stream(device);
    CHECK_EQ(sim_read(0).queues, queues + MANY);
    CHECK_OK(ctrt_device_synchronize(device));
    const double start = clock_seconds();
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < MANY; i++)
            ON_STREAM(streams[i], ctrt_add_scalar(&copies[i], x, ctrt_float(1)));
    const double enqueued = clock_seconds() - start;
    CHECK_OK(ctrt_fill_(x, ctrt_float(100)));
    for (int i = 0; i < MANY; i++) {
        CHECK(total(copies[i]) == 3 * N, "stream %d: the sum is %g", i, total(copies[i]));
        ctrt_tensor_release(&copies[i]);
        ctrt_stream_release(&streams[i]);
    }
    const double took = clock_seconds() - start;
    CHECK(enqueued < 0.5 * took, "enqueueing took %g s of %g s", enqueued, took);
}

/* ---- gradients ---- */

#define GRADIENTS    "backward runs on the streams of forward, gradients are ready on the caller's"
#define MANY_DELAYED "CTRT_SIM=devices=1,jitter=100us"

SIM_TEST(backward, GRADIENTS, "CTRT_STREAM_ORDER=auto", MANY_DELAYED, "CTRT_LOG=error")
{
    CTRT_AUTO(stream) s1 = new_stream(device), s2 = new_stream(device), first = default_stream(device);
    CTRT_AUTO(tensor) w = full(2, N, device), x = full(3, N, device), y = NULL, z = NULL, loss = NULL, grad = NULL;
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    CHECK_OK(ctrt_device_synchronize(device));
    for (int i = 0; i < 50; i++) {
        CHECK_OK(ctrt_stream_wait(s1, first));
        ON_STREAM(s1, ctrt_mul(&y, w, x));
        ON_STREAM(s1, ctrt_mul(&y, y, y));
        CHECK_OK(ctrt_stream_wait(s2, s1));
        ON_STREAM(s2, ctrt_add(&z, y, w));
        ON_STREAM(s2, ctrt_sum(&loss, z, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_stream_wait(first, s2));
        CHECK_OK(ctrt_backward(loss));                      /* with the default stream current */
        ctrt_tensor_assign(&grad, ctrt_tensor_grad(w));
        CHECK(total(grad) == (2 * 2 * 9 + 1) * N, "pass %d: %g", i, total(grad));      /* d (9 w^2 + w) */
        CHECK_OK(ctrt_tensor_set_grad(w, NULL));
    }
    CHECK_EQ(ctrt_race_count(), 0);
}
SIM_AGAIN(backward, GRADIENTS, "CTRT_STREAM_ORDER=manual", MANY_DELAYED, "CTRT_LOG=error")
SIM_AGAIN(backward, GRADIENTS, "CTRT_STREAM_ORDER=check", MANY_DELAYED, "CTRT_LOG=error")

/* ---- devices ---- */

#define COPIES "copies between devices are ordered without the host"

SIM_TEST(devices, COPIES, "CTRT_SIM=devices=3,jitter=50us,peers=all")
{
    ctrt_device *d1 = sim_open("sim:1"), *d2 = sim_open("sim:2");
    for (int i = 0; i < 50; i++) {
        CTRT_AUTO(tensor) x = full(i, N, device), y = NULL, z = NULL;
        CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
        CHECK_OK(ctrt_to_device(&y, x, d1));
        CHECK_OK(ctrt_fill_(x, ctrt_float(-1)));        /* waits, on the device, until x has been copied */
        CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(2)));
        CHECK_OK(ctrt_to_device(&z, y, d2));
        ctrt_tensor_release(&y);
        CHECK_OK(ctrt_to_device(&y, z, device));
        CHECK_OK(ctrt_add(&y, y, x));
        CHECK(total(y) == (2.0 * (i + 1) - 1) * N, "run %d: %g", i, total(y));
    }
    if (strstr(getenv("CTRT_SIM"), "peers=all") != NULL)
        CHECK(sim_read(1).peer_copies > 40, "copies went through the host");
}
SIM_AGAIN(devices, COPIES, "CTRT_SIM=devices=3,jitter=50us,peers=ring")
SIM_AGAIN(devices, COPIES, "CTRT_SIM=devices=3,jitter=50us,peers=none")

static int link_is_direct(const char *from, const char *to)
{
    ctrt_link link = CTRT_LINK;
    CHECK_OK(ctrt_device_get_link(&link, from, to));
    return link.direct;
}

SIM_TEST(broken_link, "a peer link that returns wrong data is detected when both devices are open, and not used",
         "CTRT_SIM=devices=2", "CTRT_SIM_FAULT=link:0-1", "CTRT_LOG=error")
{
    CHECK_EQ(link_is_direct("sim:0", "sim:1"), 1);
    ctrt_device *d1 = sim_open("sim:1");
    CHECK_EQ(link_is_direct("sim:0", "sim:1"), 0);
    CHECK_EQ(link_is_direct("sim:1", "sim:0"), 1);
    CTRT_AUTO(tensor) x = full(4, N, device), y = NULL, z = NULL;
    CHECK_OK(ctrt_to_device(&y, x, d1));
    CHECK_EQ(total(y), 4 * N);
    CHECK_OK(ctrt_to_device(&z, y, device));
    CHECK_EQ(total(z), 4 * N);
    CHECK_EQ(sim_read(1).peer_copies, 1);       /* only the copy that tests the link */
    CHECK_EQ(sim_read(0).peer_copies, 2);       /* the other direction uses its link */
}

/* ---- threads ---- */

struct part_job {
    ctrt_stream *stream;
    ctrt_tensor *part;
    double value;
    pthread_barrier_t *start;
};

static void *write_part(void *argument)
{
    struct part_job *job = argument;
    pthread_barrier_wait(job->start);
    ON_STREAM(job->stream, ctrt_fill_(job->part, ctrt_float(job->value)));
    ON_STREAM(job->stream, ctrt_add_scalar_(job->part, ctrt_float(1)));
    return NULL;
}

SIM_TEST(parts, "two threads write parts of one tensor on two streams: a reader waits for both",
         "CTRT_SIM=devices=1,latency=200us")
{
    CTRT_AUTO(stream) a = new_stream(device), b = new_stream(device);
    pthread_barrier_t start;
    int wrong = 0;
    pthread_barrier_init(&start, NULL, 2);
    for (int i = 0; i < 200; i++) {
        CTRT_AUTO(tensor) x = full(0, 2 * N, device), left = NULL, right = NULL;
        CHECK_OK(ctrt_slice(&left, x, 0, 0, N, 1));
        CHECK_OK(ctrt_slice(&right, x, 0, N, 2 * N, 1));
        struct part_job jobs[2] = { { a, left, 1, &start }, { b, right, 2, &start } };
        in_threads(2, write_part, jobs, sizeof *jobs);
        wrong += total(x) != 5 * N;
    }
    CHECK(wrong == 0, "%d of 200 sums were wrong", wrong);
}

enum { THREADS = 8, DEVICES = 4, STREAMS = 3, ROUNDS = 25 };

static ctrt_stream *shared_streams[DEVICES][STREAMS];
static ctrt_tensor *shared_weights[DEVICES];

/* Passes a tensor from device to device, on streams that all threads use and on new ones, and adds the device's weight
 * each time. Events and pinned memory are created and released meanwhile. */
static void *pass_around(void *argument)
{
    const int number = *(int *)argument;
    CTRT_AUTO(tensor) x = full(number, 64, ctrt_tensor_device(shared_weights[0])), sum = NULL;
    double value = 0;
    for (int i = 0, d = 0; i < 4 * ROUNDS; i++) {
        const int next = (d + 1 + number % (DEVICES - 1)) % DEVICES;
        ctrt_device *device = ctrt_tensor_device(shared_weights[d]);
        CTRT_AUTO(stream) own = i % 8 == 0 ? new_stream(device) : NULL;
        CTRT_AUTO(event) event = new_event(device, false);
        CTRT_AUTO(tensor) pinned = NULL;
        bool left;
        CHECK_OK(ctrt_stream_push(own != NULL ? own : shared_streams[d][(i + number) % STREAMS]));
        CHECK_OK(ctrt_add(&x, x, shared_weights[d]));
        CHECK_OK(ctrt_event_record(event, NULL));
        CHECK_OK(ctrt_to_non_blocking(&pinned, x, cpu, &left));
        CHECK_OK(ctrt_event_synchronize(event));
        CHECK_OK(ctrt_to_device(&x, x, ctrt_tensor_device(shared_weights[next])));
        CHECK_OK(ctrt_stream_pop());
        d = next;
    }
    CHECK_OK(ctrt_sum(&sum, x, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&value, sum));
    CHECK_EQ(value, 64 * (number + 4 * ROUNDS));
    return NULL;
}

#define EIGHT "8 threads use streams of 4 devices"

SIM_TEST(threads, EIGHT, "CTRT_MEMORY=caching", "CTRT_SIM=devices=4,memory=32m,jitter=20us")
{
    static const char *const names[DEVICES] = { "sim:0", "sim:1", "sim:2", "sim:3" };
    int numbers[THREADS] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    cpu_device();
    for (int d = 0; d < DEVICES; d++) {
        shared_weights[d] = full(1, 64, sim_open(names[d]));
        for (int i = 0; i < STREAMS; i++)
            shared_streams[d][i] = new_stream(ctrt_tensor_device(shared_weights[d]));
    }
    in_threads(THREADS, pass_around, numbers, sizeof *numbers);
    for (int d = 0; d < DEVICES; d++) {
        ctrt_device *on = ctrt_tensor_device(shared_weights[d]);
        ctrt_tensor_release(&shared_weights[d]);
        CHECK_EQ(ctrt_memory_allocated(on), 0);
        CHECK_EQ(sim_read(d).failures, 0);
    }
}
SIM_AGAIN(threads, EIGHT, "CTRT_MEMORY=direct",
          "CTRT_SIM=devices=4,memory=32m,jitter=100us,latency=10us,bandwidth=1g")

/* ---- training ---- */

enum { STEPS = 6 };

#define TRAINING "training on simulated devices, with one stream and with three, has the same bits as on the cpu"

CHILD_TEST(training, TRAINING, "CTRT_SIM=devices=4,memory=32m,jitter=30us,poison=yes", "CTRT_NUM_THREADS=1")
{
    static const char *const names[] = { "cpu", "sim:0", "sim:3" };
    static const int which[] = { 4, 11 };       /* with dropout and AdamW, with convolutions and batch norm */
    for (size_t m = 0; m < COUNT(which); m++) {
        double want[STEPS] = { 0 }, got[STEPS];
        CHECK_OK(training_run(want, STEPS, &models[which[m]], cpu_device(), false));
        CHECK_TRUE(want[STEPS - 1] < want[0]);
        EACH(name, names) {
            ctrt_device *device = NULL;
            CHECK_OK(ctrt_device_get(&device, *name));
            for (int streams = 0; streams < 2; streams++) {
                CHECK_OK(training_run(got, STEPS, &models[which[m]], device, streams));
                for (int i = 0; i < STEPS; i++)
                    CHECK(got[i] == want[i], "%s on %s, streams %d: loss %d is %.9g, not %.9g", models[which[m]].name,
                          *name, streams, i, got[i], want[i]);
            }
            CHECK(ctrt_memory_allocated(device) == 0, "%s: memory was not freed", *name);
        }
    }
}

TESTS_MAIN
