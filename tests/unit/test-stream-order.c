/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the order of work on several streams: correct by default, reported with CTRT_STREAM_ORDER=check; reuse of
 * memory, gradients and threads. The simulated devices delay each piece of work by a random time, so that missing
 * synchronization gives wrong results. */
#include "sims.h"

#define N 1000

/* A program without synchronization: fills a tensor on one stream and sums it on another. `fixed` adds the missing
 * wait. */
static double wrong_program(ctrt_device *device, ctrt_stream *side, bool fixed)
{
    CTRT_AUTO(tensor) x = NULL, sum = NULL;
    CTRT_AUTO(stream) first = NULL;
    double value = -1;
    CHECK_OK(ctrt_stream_current(&first, device));
    CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(N), CTRT_F32, device));
    CHECK_OK(ctrt_fill_(x, ctrt_float(0)));
    CHECK_OK(ctrt_add_scalar_(x, ctrt_float(3)));
    if (fixed)
        CHECK_OK(ctrt_stream_wait(side, first));
    CHECK_OK(ctrt_stream_push(side));
    CHECK_OK(ctrt_sum(&sum, x, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&value, sum));
    CHECK_OK(ctrt_stream_pop());
    return value;
}

static void test_wrong_program(void)
{
    group("a tensor filled on one stream and read on another is correct by default");
    IN_CHILD("CTRT_SIM=devices=1,jitter=60us,seed=3") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) side = NULL;
        int wrong = 0;
        CHECK_OK(ctrt_stream_new(&side, device, 0));
        for (int i = 0; i < 1000; i++)
            wrong += wrong_program(device, side, false) != 3 * N;
        CHECK(wrong == 0, "%d of 1000 runs were wrong", wrong);
        CHECK(ctrt_race_count() == 0, "races were reported in the default mode");
    }
    CHILD_END;
#ifdef __SANITIZE_THREAD__
    printf("# not run: an intended race, which ThreadSanitizer reports too\n");
    return;
#endif
    group("with CTRT_STREAM_ORDER=manual the program must synchronize the streams");
    IN_CHILD("CTRT_SIM=devices=1,latency=2ms", "CTRT_STREAM_ORDER=manual") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) side = NULL;
        CHECK_OK(ctrt_stream_new(&side, device, 0));
        const uint64_t before = sim_read(0).waits;
        wrong_program(device, side, false);
        CHECK(sim_read(0).waits == before, "the library added waits");
        CHECK_OK(ctrt_device_synchronize(device));
        for (int i = 0; i < 20; i++)
            CHECK(wrong_program(device, side, true) == 3 * N, "wrong result with a wait by the program, run %d", i);
    }
    CHILD_END;
    group("with CTRT_STREAM_ORDER=check a missing wait is reported");
    IN_CHILD("CTRT_SIM=devices=1,jitter=60us", "CTRT_STREAM_ORDER=check", "CTRT_LOG=error") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) side = NULL;
        CHECK_OK(ctrt_stream_new(&side, device, 0));
        for (int i = 0; i < 20; i++)
            CHECK(wrong_program(device, side, true) == 3 * N, "wrong result in run %d", i);
        CHECK(ctrt_race_count() == 0, "%llu reports of a correct program", (unsigned long long)ctrt_race_count());
        wrong_program(device, side, false);
        CHECK(ctrt_race_count() == 1, "%llu reports", (unsigned long long)ctrt_race_count());
        CHECK_OK(ctrt_device_synchronize(device));
        wrong_program(device, side, true);
        CHECK(ctrt_race_count() == 1, "%llu reports after the wait was added", (unsigned long long)ctrt_race_count());
    }
    CHILD_END;
}

static char told[2000];

static void listen(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)level;
    if (strcmp(component, "stream") == 0)
        snprintf(told, sizeof told, "%s", text);
}

static void test_report(void)
{
#ifdef __SANITIZE_THREAD__
    printf("# not run: an intended race, which ThreadSanitizer reports too\n");
    return;
#endif
    group("a report names both ops; concurrent reads, event waits and synchronization are not races");
    IN_CHILD("CTRT_SIM=devices=1", "CTRT_STREAM_ORDER=check") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) a = NULL, b = NULL;
        CTRT_AUTO(event) event = NULL;
        CTRT_AUTO(tensor) x = full(1, N, device), y = NULL, z = NULL;
        ctrt_log_set_callback(listen, NULL);
        CHECK_OK(ctrt_stream_new(&a, device, 0));
        CHECK_OK(ctrt_stream_new(&b, device, 0));
        CHECK_OK(ctrt_event_new(&event, device, false));
        CHECK_OK(ctrt_event_record(event, NULL));
        CHECK_OK(ctrt_stream_wait_event(a, event));
        CHECK_OK(ctrt_stream_wait_event(b, event));
        CHECK_OK(ctrt_stream_push(a));
        CHECK_OK(ctrt_exp(&y, x));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_push(b));
        CHECK_OK(ctrt_neg(&z, x));                          /* both streams read */
        CHECK(ctrt_race_count() == 0, "two concurrent reads were reported");
        CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));       /* b writes while a may still read */
        CHECK(ctrt_race_count() == 1, "%llu races were reported, expected 1", (unsigned long long)ctrt_race_count());
        CHECK(strstr(told, "add") && strstr(told, "exp") && strstr(told, "writes") && strstr(told, "reads") && strstr(told, "[1000]"),
              "%s", told);
        CHECK_OK(ctrt_stream_synchronize(a));
        CHECK_OK(ctrt_mul(&z, z, y));                       /* the host has waited for a */
        CHECK(ctrt_race_count() == 1, "%s", told);
        CHECK_OK(ctrt_stream_pop());
        ctrt_log_set_callback(NULL, NULL);
    }
    CHILD_END;
}

static void test_one_stream(void)
{
    group("on one stream nothing waits and nothing is recorded");
    IN_CHILD("CTRT_SIM=devices=1") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) x = full(1, N, device), y = full(2, N, device);
        const sim_counters before = sim_read(0);
        for (int i = 0; i < 50; i++)
            CHECK_OK(ctrt_add(&y, x, y));
        CHECK_OK(ctrt_device_synchronize(device));
        const sim_counters after = sim_read(0);
        CHECK(after.waits == before.waits && after.records == before.records, "%llu waits, %llu records",
              (unsigned long long)(after.waits - before.waits), (unsigned long long)(after.records - before.records));
        CHECK(after.allocs == before.allocs, "the device allocated memory %llu times",
              (unsigned long long)(after.allocs - before.allocs));
    }
    CHILD_END;
}

static void test_reuse(void)
{
    group("freed memory is reused at once, and written only after pending reads");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m,latency=20ms") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) side = NULL;
        CTRT_AUTO(tensor) x = NULL, sum = NULL, next = NULL;
        CHECK_OK(ctrt_stream_new(&side, device, 0));
        const int64_t n = 4 << 20;
        CHECK_OK(ctrt_full(&x, CTRT_SHAPE(n), ctrt_float(1), CTRT_F32, device));
        CHECK_OK(ctrt_stream_push(side));
        CHECK_OK(ctrt_sum(&sum, x, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_stream_pop());
        const void *place = ctrt_tensor_data(x);
        double start = seconds_now();
        ctrt_tensor_release(&x);
        CHECK_OK(ctrt_full(&next, CTRT_SHAPE(n), ctrt_float(7), CTRT_F32, device));
        CHECK(ctrt_tensor_data(next) == place, "the block was not reused at once");
        CHECK(seconds_now() - start < 0.035, "the host waited %g s", seconds_now() - start);
        double value = 0;
        CHECK_OK(ctrt_item(&value, sum));
        CHECK(value == (double)n, "the sum is %g: the memory was written while it was read", value);
        CHECK(total(next) == 7.0 * (double)n, "the new tensor has wrong values");
    }
    CHILD_END;
}

static void test_first_use_elsewhere(void)
{
    group("a reused block waits for its previous stream when another stream uses it first");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m,latency=20ms") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) side = NULL, third = NULL;
        CTRT_AUTO(tensor) x = NULL, sum = NULL, next = NULL;
        const int64_t n = 4 << 20;
        double value = 0;
        CHECK_OK(ctrt_stream_new(&side, device, 0));
        CHECK_OK(ctrt_stream_new(&third, device, 0));
        CHECK_OK(ctrt_full(&x, CTRT_SHAPE(n), ctrt_float(1), CTRT_F32, device));
        CHECK_OK(ctrt_sum(&sum, x, CTRT_ALL_DIMS));
        const void *place = ctrt_tensor_data(x);
        ctrt_tensor_release(&x);
        CHECK_OK(ctrt_empty(&next, CTRT_SHAPE(n), CTRT_F32, device));
        CHECK(ctrt_tensor_data(next) == place, "the block was not reused");
        CHECK_OK(ctrt_stream_push(side));
        CHECK_OK(ctrt_fill_(next, ctrt_float(7)));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_item(&value, sum));
        CHECK(value == (double)n, "the sum is %g: written by another stream while it was read", value);
        /* The same for a block with a fence, which was last read on a third stream. */
        CHECK_OK(ctrt_stream_push(third));
        CHECK_OK(ctrt_sum(&sum, next, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_stream_pop());
        ctrt_tensor_release(&next);
        CHECK_OK(ctrt_empty(&next, CTRT_SHAPE(n), CTRT_F32, device));
        CHECK_OK(ctrt_stream_push(side));
        CHECK_OK(ctrt_fill_(next, ctrt_float(9)));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_item(&value, sum));
        CHECK(value == 7.0 * (double)n, "the sum is %g for a block with a fence", value);
    }
    CHILD_END;
}

/* Forward runs on s1 and s2; backward is called while the default stream is current. */
static void backward_over_streams(const char *how)
{
    ctrt_device *device = sim_open("sim:0");
    CTRT_AUTO(stream) s1 = NULL, s2 = NULL, first = NULL;
    CTRT_AUTO(tensor) w = full(2, N, device), x = full(3, N, device), y = NULL, z = NULL, loss = NULL, grad = NULL;
    CHECK_OK(ctrt_stream_new(&s1, device, 0));
    CHECK_OK(ctrt_stream_new(&s2, device, 0));
    CHECK_OK(ctrt_stream_default(&first, device));
    CHECK_OK(ctrt_tensor_require_grad(w, true));
    CHECK_OK(ctrt_device_synchronize(device));
    for (int i = 0; i < 50; i++) {
        CHECK_OK(ctrt_stream_wait(s1, first));
        CHECK_OK(ctrt_stream_push(s1));
        CHECK_OK(ctrt_mul(&y, w, x));
        CHECK_OK(ctrt_mul(&y, y, y));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_wait(s2, s1));
        CHECK_OK(ctrt_stream_push(s2));
        CHECK_OK(ctrt_add(&z, y, w));
        CHECK_OK(ctrt_sum(&loss, z, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_wait(first, s2));
        CHECK_OK(ctrt_backward(loss));                      /* with the default stream current */
        ctrt_tensor_assign(&grad, ctrt_tensor_grad(w));
        CHECK(total(grad) == (2 * 2 * 9 + 1) * N, "%s, pass %d: %g", how, i, total(grad));      /* d (9 w^2 + w) */
        CHECK_OK(ctrt_tensor_set_grad(w, NULL));
    }
    CHECK(ctrt_race_count() == 0, "%llu races", (unsigned long long)ctrt_race_count());
}

static void test_backward(void)
{
    group("backward runs on the streams of forward, and gradients are ready on the caller's stream");
    IN_CHILD("CTRT_SIM=devices=1,jitter=100us")
        backward_over_streams("auto");
    CHILD_END;
    IN_CHILD("CTRT_SIM=devices=1,jitter=100us", "CTRT_STREAM_ORDER=manual")
        backward_over_streams("manual");
    CHILD_END;
    IN_CHILD("CTRT_SIM=devices=1,jitter=100us", "CTRT_STREAM_ORDER=check", "CTRT_LOG=error")
        backward_over_streams("check");
    CHILD_END;
}

static void test_devices(const char *peers)
{
    group("copies between devices, peers=%s, are ordered without the host", peers);
    char setting[100];
    snprintf(setting, sizeof setting, "CTRT_SIM=devices=3,jitter=50us,peers=%s", peers);
    IN_CHILD(setting) {
        ctrt_device *d0 = sim_open("sim:0"), *d1 = sim_open("sim:1"), *d2 = sim_open("sim:2");
        for (int i = 0; i < 50; i++) {
            CTRT_AUTO(tensor) x = full(i, N, d0), y = NULL, z = NULL;
            CHECK_OK(ctrt_add_scalar_(x, ctrt_float(1)));
            CHECK_OK(ctrt_to_device(&y, x, d1));
            CHECK_OK(ctrt_fill_(x, ctrt_float(-1)));        /* waits, on the device, until x has been copied */
            CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(2)));
            CHECK_OK(ctrt_to_device(&z, y, d2));
            ctrt_tensor_release(&y);
            CHECK_OK(ctrt_to_device(&y, z, d0));
            CHECK_OK(ctrt_add(&y, y, x));
            CHECK(total(y) == (2.0 * (i + 1) - 1) * N, "run %d: %g", i, total(y));
        }
        if (strcmp(peers, "all") == 0)
            CHECK(sim_read(1).peer_copies > 40, "copies went through the host");
    }
    CHILD_END;
}

static void test_lying_link(void)
{
    group("a peer link that returns wrong data is detected and not used");
    IN_CHILD("CTRT_SIM=devices=2,fault=link:0-1") {
        ctrt_device *d0 = sim_open("sim:0"), *d1 = sim_open("sim:1");
        ctrt_log_set_callback(listen, NULL);
        CTRT_AUTO(tensor) x = full(4, N, d0), y = NULL, z = NULL;
        CHECK_OK(ctrt_to_device(&y, x, d1));
        CHECK(total(y) == 4 * N, "the copy's sum is %g", total(y));
        CHECK_OK(ctrt_to_device(&z, y, d0));
        CHECK(total(z) == 4 * N, "the sum of the copy back is %g", total(z));
        CHECK(sim_read(1).peer_copies == 1, "%llu copies by the link", (unsigned long long)sim_read(1).peer_copies);
        CHECK(sim_read(0).peer_copies == 2, "the other direction does not use its link");
        ctrt_log_set_callback(NULL, NULL);
    }
    CHILD_END;
}

/* ---- threads ---- */

#define THREADS 8
#define DEVICES 4

static ctrt_tensor *shared_weight[DEVICES];

struct job {
    int number;
    bool right;
};

/* Each thread has a stream on each device and copies tensors between devices. All threads read shared_weight. */
static void *pass_around(void *argument)
{
    struct job *job = argument;
    ctrt_stream *streams[DEVICES] = { NULL };
    ctrt_device *devices[DEVICES];
    bool fine = true;
    for (int d = 0; d < DEVICES; d++) {
        char name[16];
        snprintf(name, sizeof name, "sim:%d", d);
        fine &= ctrt_device_get(&devices[d], name) == CTRT_OK && ctrt_stream_new(&streams[d], devices[d], 0) == CTRT_OK
                && ctrt_stream_set_current(streams[d]) == CTRT_OK;
    }
    for (int i = 0; i < 25 && fine; i++) {
        CTRT_AUTO(tensor) x = NULL;
        double value = 0;
        int d = (job->number + i) % DEVICES;
        fine &= ctrt_full(&x, CTRT_SHAPE(64), ctrt_float(job->number), CTRT_F32, devices[d]) == CTRT_OK;
        for (int hop = 0; hop < 4 && fine; hop++) {
            fine &= ctrt_add(&x, x, shared_weight[d]) == CTRT_OK;
            d = (d + 1 + job->number) % DEVICES;
            fine &= ctrt_to_device(&x, x, devices[d]) == CTRT_OK;
        }
        CTRT_AUTO(tensor) sum = NULL;
        fine = fine && ctrt_sum(&sum, x, CTRT_ALL_DIMS) == CTRT_OK && ctrt_item(&value, sum) == CTRT_OK;
        fine &= value == 64.0 * (job->number + 4);
    }
    for (int d = 0; d < DEVICES; d++)
        ctrt_stream_release(&streams[d]);
    job->right = fine;
    return NULL;
}

static void test_threads(void)
{
    group("8 threads, each with a stream on each of 4 devices");
    IN_CHILD("CTRT_SIM=devices=4,memory=32m,jitter=20us") {
        pthread_t threads[THREADS];
        struct job jobs[THREADS];
        for (int d = 0; d < DEVICES; d++) {
            char name[16];
            snprintf(name, sizeof name, "sim:%d", d);
            shared_weight[d] = full(1, 64, sim_open(name));
        }
        for (int t = 0; t < THREADS; t++) {
            jobs[t] = (struct job){ t, false };
            pthread_create(&threads[t], NULL, pass_around, &jobs[t]);
        }
        for (int t = 0; t < THREADS; t++) {
            pthread_join(threads[t], NULL);
            CHECK(jobs[t].right, "wrong result in thread %d", t);
        }
        for (int d = 0; d < DEVICES; d++) {
            ctrt_device *device = ctrt_tensor_device(shared_weight[d]);
            ctrt_tensor_release(&shared_weight[d]);
            CHECK(ctrt_memory_allocated(device) == 0, "%llu bytes remain allocated on %s",
                  (unsigned long long)ctrt_memory_allocated(device), ctrt_device_name(device));
        }
    }
    CHILD_END;
}

TEST_MAIN
{
    test_wrong_program();
    test_report();
    test_one_stream();
    test_reuse();
    test_first_use_elsewhere();
    test_backward();
    test_devices("all");
    test_devices("ring");
    test_devices("none");
    test_lying_link();
    test_threads();
    return done();
}
