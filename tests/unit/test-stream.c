/* SPDX-License-Identifier: Apache-2.0 */
/* Tests streams and events: the current stream, ordering, and asynchronous calls. Runs on simulated devices, whose
 * work takes a configured time. */
#include "sims.h"

#define SLOW "CTRT_SIM=devices=2,memory=64m,latency=30ms"

static void test_asynchronous(void)
{
    group("ops return before their work is done, and synchronize waits for it");
    IN_CHILD(SLOW) {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) x = full(1, 1000, device), y = NULL;
        CTRT_AUTO(stream) stream = NULL;
        bool idle = true;
        CHECK_OK(ctrt_device_synchronize(device));
        double start = seconds_now();
        CHECK_OK(ctrt_add(&y, x, x));
        CHECK_OK(ctrt_mul(&y, y, x));
        double put = seconds_now() - start;
        CHECK_OK(ctrt_stream_current(&stream, device));
        CHECK_OK(ctrt_stream_query(stream, &idle));
        CHECK(!idle, "the stream is idle before its work can be done");
        CHECK_OK(ctrt_stream_synchronize(stream));
        double done = seconds_now() - start;
        CHECK_OK(ctrt_stream_query(stream, &idle));
        CHECK(idle, "the stream is busy after synchronize");
        CHECK(done >= 0.058, "two ops of 30 ms took %.1f ms", done * 1e3);
        CHECK(put < 0.5 * done, "the enqueue took %.1f of %.1f ms", put * 1e3, done * 1e3);
        CHECK(total(y) == 2000, "the sum is %g, expected 2000", total(y));
    }
    CHILD_END;
}

static void test_handles(void)
{
    enum { MANY = 100 };
    group("live streams have different queues, and queues of released streams are reused");
    IN_CHILD("CTRT_SIM=devices=1") {
        ctrt_device *device = sim_open("sim:0");
        ctrt_stream *streams[MANY] = { NULL };
        const uint64_t before = sim_read(0).queues;
        for (int i = 0; i < MANY; i++) {
            CHECK_OK(ctrt_stream_new(&streams[i], device, i % 2 ? -1 : 0));
            for (int j = 0; j < i; j++)
                CHECK(ctrt_stream_id(streams[i]) != ctrt_stream_id(streams[j]) && streams[i] != streams[j],
                      "streams %d and %d share a queue", i, j);
            CHECK(ctrt_stream_device(streams[i]) == device, "stream %d is on another device", i);
            CHECK(ctrt_stream_priority(streams[i]) == (i % 2 ? -1 : 0), "the priority is %d",
                  ctrt_stream_priority(streams[i]));
        }
        const uint64_t queues = sim_read(0).queues, id = ctrt_stream_id(streams[7]);
        CHECK(queues == before + MANY, "%llu queues", (unsigned long long)queues);
        for (int i = 0; i < MANY; i++)
            ctrt_stream_release(&streams[i]);
        CHECK_OK(ctrt_stream_new(&streams[0], device, 0));
        CHECK(sim_read(0).queues == queues, "the queue of a released stream was not reused");
        CHECK(ctrt_stream_id(streams[0]) > id, "the new stream has the id of a released one");
        ctrt_stream_release(&streams[0]);
    }
    CHILD_END;
}

static ctrt_stream *current(ctrt_device *device)
{
    ctrt_stream *stream = NULL, *seen;
    CHECK_OK(ctrt_stream_current(&stream, device));
    seen = stream;
    ctrt_stream_release(&stream);
    return seen;
}

static void *look_at_current(void *device)
{
    return current(device);
}

static void test_current(void)
{
    group("each thread has its own current streams; push and pop nest");
    IN_CHILD("CTRT_SIM=devices=2") {
        ctrt_device *d0 = sim_open("sim:0"), *d1 = sim_open("sim:1"), *now = NULL;
        CTRT_AUTO(stream) a = NULL, b = NULL, first = NULL;
        CHECK_OK(ctrt_stream_new(&a, d0, 0));
        CHECK_OK(ctrt_stream_new(&b, d1, 0));
        CHECK_OK(ctrt_stream_default(&first, d0));
        CHECK(current(d0) == first, "the current stream is not the default stream at the start");
        CHECK_OK(ctrt_stream_push(a));
        CHECK(current(d0) == a, "the pushed stream is not current");
        CHECK_OK(ctrt_stream_push(b));
        CHECK(current(d0) == a && current(d1) == b, "a push for another device changed this device's stream");
        CHECK_OK(ctrt_device_get_current(&now, "sim"));
        CHECK(now == d1, "the pushed stream's device is not current");
        CHECK_OK(ctrt_stream_push(NULL));
        CHECK(current(d0) == a, "a push of NULL changed the current stream");
        CHECK_FAILS(ctrt_device_pop(), CTRT_ERR_STATE, "ctrt_stream_push");
        pthread_t thread;
        void *seen = NULL;
        pthread_create(&thread, NULL, look_at_current, d0);
        pthread_join(thread, &seen);
        CHECK(seen == first, "the current stream of a new thread is not the default stream");
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_device_get_current(&now, "sim"));
        CHECK(now == d0 && current(d1) != b, "pop did not restore the device and the stream");
        CHECK_OK(ctrt_device_push(d1));
        CHECK_FAILS(ctrt_stream_pop(), CTRT_ERR_STATE, "ctrt_device_push");
        CHECK_OK(ctrt_device_pop());
        CHECK_OK(ctrt_stream_pop());
        CHECK(current(d0) == first, "the last pop did not restore the default stream");
        CHECK_FAILS(ctrt_stream_pop(), CTRT_ERR_STATE, "without");
        CHECK_OK(ctrt_stream_set_current(a));
        ctrt_stream_release(&a);                /* the thread still holds a reference */
        CHECK_OK(ctrt_stream_new(&a, d0, 0));
        CHECK(current(d0) != a, "a new stream is the same as the current one");
    }
    CHILD_END;
}

static void test_events(void)
{
    group("events: completion, elapsed time and invalid uses");
    IN_CHILD(SLOW) {
        ctrt_device *device = sim_open("sim:0"), *other = sim_open("sim:1");
        CTRT_AUTO(event) from = NULL, to = NULL, plain = NULL, foreign = NULL;
        CTRT_AUTO(stream) side = NULL;
        CTRT_AUTO(tensor) x = full(1, 10, device), y = NULL;
        double ms = -1;
        bool done = false;
        CHECK_OK(ctrt_event_new(&from, device, true));
        CHECK_OK(ctrt_event_new(&to, device, true));
        CHECK_OK(ctrt_event_new(&plain, device, false));
        CHECK_OK(ctrt_event_new(&foreign, other, true));
        CHECK_OK(ctrt_stream_new(&side, device, 0));
        CHECK_OK(ctrt_event_query(plain, &done));
        CHECK(done, "an event that was never recorded is not done");
        CHECK_OK(ctrt_event_synchronize(plain));
        CHECK_OK(ctrt_stream_wait_event(side, plain));
        CHECK_FAILS(ctrt_event_elapsed(&ms, from, to), CTRT_ERR_STATE, "not recorded");
        CHECK_FAILS(ctrt_event_elapsed(&ms, plain, to), CTRT_ERR_STATE, "without timing");
        CHECK_FAILS(ctrt_event_elapsed(&ms, from, foreign), CTRT_ERR_DEVICE, "sim:1");
        CHECK_FAILS(ctrt_event_record(foreign, side), CTRT_ERR_DEVICE, "sim:0");
        CHECK_OK(ctrt_event_record(from, NULL));
        CHECK_OK(ctrt_add(&y, x, x));
        CHECK_OK(ctrt_event_record(to, NULL));
        CHECK_FAILS(ctrt_event_elapsed(&ms, from, to), CTRT_ERR_STATE, "not completed");
        CHECK_OK(ctrt_event_query(to, &done));
        CHECK(!done, "the event is done before its work");
        CHECK_OK(ctrt_event_synchronize(to));
        CHECK_OK(ctrt_event_elapsed(&ms, from, to));
        CHECK(ms >= 29 && ms < 3000, "an op of 30 ms took %g ms", ms);
        CHECK_OK(ctrt_event_record(to, NULL));
        CHECK_OK(ctrt_stream_wait_event(side, to));
        CHECK_OK(ctrt_stream_synchronize(side));
    }
    CHILD_END;
}

/* Overwrites a pinned tensor's memory without the library. */
static void poison(ctrt_tensor *x)
{
    memset(ctrt_tensor_data(x), 0xee, (size_t)ctrt_tensor_numel(x) * 4);
}

static void test_non_blocking(void)
{
    group("non-blocking copies");
    IN_CHILD(SLOW) {
        ctrt_device *device = sim_open("sim:0"), *cpu = NULL;
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        CTRT_AUTO(tensor) plain = full(3, 1000, cpu), pinned = NULL, there = NULL, back = NULL;
        bool left = true;
        CHECK_OK(ctrt_to_non_blocking(&there, plain, device, &left));
        CHECK(!left, "a copy from pageable memory was asynchronous");
        CHECK(!ctrt_tensor_is_pinned(plain), "pageable memory is reported as pinned");
        CHECK_OK(ctrt_pin_memory(&pinned, plain, device));
        CHECK(ctrt_tensor_is_pinned(pinned) && ctrt_tensor_device(pinned) == cpu,
              "the result of pin_memory is not pinned, or not on the cpu");
        CHECK_OK(ctrt_device_synchronize(device));
        double start = seconds_now();
        CHECK_OK(ctrt_to_non_blocking(&there, pinned, device, &left));
        CHECK(left && seconds_now() - start < 0.025, "a copy from pinned memory was synchronous: %g s",
              seconds_now() - start);
        /* A write must wait until the device has read the memory. */
        CHECK_OK(ctrt_zero_(pinned));
        CHECK(seconds_now() - start >= 0.028, "the memory was written while the device read it");
        CHECK(total(there) == 3000, "the device got %g", total(there));
        /* Released memory must not be reused before the copy is done. */
        CHECK_OK(ctrt_fill_(pinned, ctrt_float(5)));
        CHECK_OK(ctrt_to_non_blocking(&there, pinned, device, &left));
        ctrt_tensor_release(&pinned);
        CHECK_OK(ctrt_empty_pinned(&pinned, CTRT_SHAPE(1000), CTRT_F32, device));
        poison(pinned);
        CHECK(left && total(there) == 5000, "left %d, the device got %g", left, total(there));
        /* A copy to the host: reads of the result must wait. */
        start = seconds_now();
        CHECK_OK(ctrt_to_non_blocking(&back, there, cpu, &left));
        CHECK(left && ctrt_tensor_is_pinned(back), "a copy to the host was synchronous");
        CHECK(total(back) == 5000, "the sum is %g, expected 5000", total(back));
        CHECK_OK(ctrt_mul_scalar_(there, ctrt_float(2)));
        CHECK_OK(ctrt_copy_non_blocking_(back, there, &left));
        CHECK(left, "copy_non_blocking_ into pinned memory was synchronous");
        double value = 0;
        CTRT_AUTO(tensor) one = NULL;
        CHECK_OK(ctrt_narrow(&one, back, 0, 7, 1));
        CHECK_OK(ctrt_item(&value, one));
        CHECK(value == 10, "element 7 is %g, expected 10", value);
        CHECK_OK(ctrt_add(&back, back, back));
        CHECK(total(back) == 20000, "the sum is %g, expected 20000", total(back));
    }
    CHILD_END;
    group("without an accelerator the same calls work, and nothing is pinned");
    IN_CHILD("CTRT_BACKENDS=cpu") {
        ctrt_device *cpu = NULL;
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        CTRT_AUTO(tensor) x = full(1, 10, cpu), y = NULL;
        CTRT_AUTO(stream) stream = NULL, side = NULL;
        CTRT_AUTO(event) from = NULL, to = NULL;
        bool left = true, idle = false;
        double ms = -1;
        CHECK_OK(ctrt_pin_memory(&y, x, NULL));
        CHECK(!ctrt_tensor_is_pinned(y), "memory was pinned without an accelerator");
        CHECK_OK(ctrt_empty_pinned(&y, CTRT_SHAPE(3), CTRT_F32, NULL));
        CHECK_OK(ctrt_to_non_blocking(&y, x, cpu, &left));
        CHECK(!left, "the copy was asynchronous on a synchronous device");
        CHECK_OK(ctrt_stream_new(&side, cpu, 0));
        CHECK_OK(ctrt_stream_push(side));
        CHECK_OK(ctrt_stream_current(&stream, cpu));
        CHECK(stream == side, "the pushed stream is not current");
        CHECK_OK(ctrt_stream_query(stream, &idle));
        CHECK(idle, "the stream is busy");
        CHECK_OK(ctrt_event_new(&from, cpu, true));
        CHECK_OK(ctrt_event_new(&to, cpu, true));
        CHECK_OK(ctrt_event_record(from, NULL));
        CHECK_OK(ctrt_event_record(to, side));
        CHECK_OK(ctrt_event_elapsed(&ms, from, to));
        CHECK(ms >= 0 && ms < 1000, "the elapsed time is %g ms", ms);
        CHECK_OK(ctrt_stream_wait_event(side, to));
        CHECK_OK(ctrt_tensor_record_stream(x, side));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_synchronize(side));
    }
    CHILD_END;
}

static void test_fork(void)
{
    group("in a forked child, devices of the parent give an error");
    IN_CHILD("CTRT_SIM=devices=2") {
        CHECK(ctrt_device_count("sim") == 2, "%d devices, expected 2", ctrt_device_count("sim"));
        pid_t early = fork();
        if (early == 0) {
            ctrt_device *device = NULL;
            CTRT_AUTO(tensor) x = NULL;
            _exit(ctrt_device_get(&device, "sim:0") != CTRT_OK ||
                  ctrt_ones(&x, CTRT_SHAPE(3), CTRT_F32, device) != CTRT_OK
                  || ctrt_device_synchronize(device) != CTRT_OK);
        }
        child_join(early, __FILE__, __LINE__);
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) x = full(1, 10, device), y = NULL;
        CTRT_AUTO(stream) stream = NULL;
        CTRT_AUTO(event) event = NULL;
        CHECK_OK(ctrt_stream_new(&stream, device, 0));
        CHECK_OK(ctrt_event_new(&event, device, false));
        pid_t late = fork();
        if (late == 0) {
            ctrt_stream *fresh = NULL;
            bool idle;
            double value;
            int wrong = 0;
            wrong += ctrt_add(&y, x, x) != CTRT_ERR_FORKED;
            wrong += strstr(ctrt_error_message(), "fork") == NULL;
            wrong += ctrt_item(&value, x) == CTRT_OK;
            wrong += ctrt_stream_new(&fresh, device, 0) != CTRT_ERR_FORKED;
            wrong += ctrt_stream_synchronize(stream) != CTRT_ERR_FORKED;
            wrong += ctrt_stream_query(stream, &idle) != CTRT_ERR_FORKED;
            wrong += ctrt_event_record(event, stream) != CTRT_ERR_FORKED;
            wrong += ctrt_event_synchronize(event) != CTRT_ERR_FORKED;
            wrong += ctrt_device_synchronize(device) != CTRT_ERR_FORKED;
            wrong += !ctrt_is_available("sim", NULL);
            _exit(wrong);
        }
        child_join(late, __FILE__, __LINE__);
        CHECK(total(x) == 10, "the parent's device stopped working");
    }
    CHILD_END;
}

/* Captures the error output of a process that reads device memory from the host. */
static void test_forgotten_copy(void)
{
    group("a host access to device memory ends the process and names the op and label");
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe failed");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv("CTRT_SIM", "devices=1", 1);
        dup2(ends[1], STDERR_FILENO);
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) x = NULL, y = NULL;
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(4, 4), CTRT_F32, device));
        CHECK_OK(ctrt_memory_label_push("encoder.layer1"));
        CHECK_OK(ctrt_matmul(&y, x, x));
        CHECK_OK(ctrt_device_synchronize(device));
        _exit(*(volatile float *)ctrt_tensor_data(y) == 4 ? 0 : 0);
    }
    close(ends[1]);
    char text[4096];
    size_t used = 0;
    for (ssize_t got = 1; got > 0 && used + 1 < sizeof text; used += got > 0 ? (size_t)got : 0)
        got = read(ends[0], text + used, sizeof text - 1 - used);
    text[used] = '\0';
    close(ends[0]);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && !(WIFEXITED(status) && WEXITSTATUS(status) == 0),
          "the process did not end");
    CHECK(strstr(text, "host read memory of sim:0") && strstr(text, "matmul") && strstr(text, "encoder.layer1"), "%s",
          text);
}

static void test_waits_counted(void)
{
    group("waits of the host are counted: item, copies to the host and synchronization");
    IN_CHILD("CTRT_SIM=devices=1") {
        ctrt_device *device = sim_open("sim:0"), *cpu = NULL;
        CTRT_AUTO(stream) stream = NULL;
        CTRT_AUTO(event) event = NULL;
        CTRT_AUTO(tensor) x = full(1, 1, device), y = NULL, here = NULL;
        double value = 0;
        char *text = NULL;
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        CHECK_OK(ctrt_stream_new(&stream, device, 0));
        CHECK_OK(ctrt_event_new(&event, device, false));
        CHECK_OK(ctrt_event_record(event, NULL));
        CHECK_OK(ctrt_device_synchronize(device));
        const uint64_t before = ctrt_device_synchronizations(device);
#define WAITS(call, count)                                                                                     \
    do {                                                                                                       \
        const uint64_t was = ctrt_device_synchronizations(device);                                             \
        CHECK_OK(call);                                                                                        \
        CHECK(ctrt_device_synchronizations(device) - was == (count), "%s: %llu waits", #call,                  \
              (unsigned long long)(ctrt_device_synchronizations(device) - was));                               \
    } while (0)
        WAITS(ctrt_add(&y, x, x), 0);
        WAITS(ctrt_item(&value, y), 1);
        WAITS(ctrt_to_device(&here, y, cpu), 1);
        WAITS(ctrt_stream_synchronize(stream), 1);
        WAITS(ctrt_event_synchronize(event), 1);
        WAITS(ctrt_device_synchronize(device), 1);
        WAITS(ctrt_item(&value, here), 0);
        CHECK(ctrt_device_synchronizations(cpu) == 0, "waits for the cpu are counted");
        CHECK_OK(ctrt_memory_metrics(&text, CTRT_METRICS_JSON));
        const char *found = text != NULL ? strstr(text, "\"sim:0\"") : NULL;
        found = found != NULL ? strstr(found, "\"synchronizations_total\": ") : NULL;
        CHECK(found != NULL && strtoull(strchr(found, ':') + 1, NULL, 10) == before + 5, "%s", text);
        free(text);
        CHECK_OK(ctrt_memory_metrics(&text, CTRT_METRICS_PROMETHEUS));
        CHECK(text != NULL && strstr(text, "ctrt_device_synchronizations_total{device=\"sim:0\"") != NULL, "%s", text);
        free(text);
    }
    CHILD_END;
}

TEST_MAIN
{
    test_waits_counted();
    test_forgotten_copy();
    test_asynchronous();
    test_handles();
    test_current();
    test_events();
    test_non_blocking();
    test_fork();
    return done();
}
