/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of asynchronous work: which streams report an error, what the message contains, and what works afterwards. */
#include "sims.h"

#define N 100

/* NULL if the C library has no backtrace function. */
extern int backtrace(void **addresses, int most) __attribute__((weak));

static void test_tagged(void)
{
    group("an asynchronous error names the op, is reported on its stream only, and can be reset");
    IN_CHILD("CTRT_SIM=devices=2") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) one = NULL, two = NULL;
        CTRT_AUTO(tensor) x = full(1, N, device), y = NULL, z = NULL, big = NULL;
        bool idle;
        double value = 0;
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK_OK(ctrt_stream_new(&one, device, 0));
        CHECK_OK(ctrt_stream_new(&two, device, 0));
        CHECK_OK(sim->inject(0, "op:exp@3"));
        CHECK_OK(ctrt_stream_push(two));
        for (int i = 0; i < 5; i++)
            CHECK_OK(ctrt_exp(&y, x));                      /* the third will fail asynchronously */
        CHECK_OK(ctrt_ones(&big, CTRT_SHAPE(1 << 20), CTRT_F32, device));      /* allocations do not report it */
        CHECK_FAILS(ctrt_stream_synchronize(two), CTRT_ERR_BACKEND, "exp");
        CHECK(strstr(ctrt_error_message(), "call 3") != NULL, "the message does not name the third call: %s",
              ctrt_error_message());
        CHECK_FAILS(ctrt_stream_synchronize(two), CTRT_ERR_BACKEND, "exp");    /* reported until the reset */
        CHECK_FAILS(ctrt_stream_query(two, &idle), CTRT_ERR_BACKEND, "exp");
        CHECK_FAILS(ctrt_sum(&z, y, CTRT_ALL_DIMS) != CTRT_OK ? CTRT_ERR_INTERNAL : ctrt_item(&value, z), CTRT_ERR_BACKEND, "exp");
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_push(one));
        CHECK_OK(ctrt_add(&z, x, x));
        CHECK(total(z) == 2 * N, "wrong sum on another stream");
        CHECK_OK(ctrt_stream_synchronize(one));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_reset(two));
        CHECK_OK(ctrt_stream_push(two));
        CHECK_OK(ctrt_add(&z, x, x));
        CHECK(total(z) == 2 * N, "wrong sum after the reset");
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_device_synchronize(device));
    }
    CHILD_END;
}

static void test_site(const char *watch, bool calls)
{
    group("an asynchronous error has the op's number, name, stream, module path and label%s",
          calls ? ", and the call site" : "");
    IN_CHILD("CTRT_SIM=devices=1", watch) {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) stream = NULL;
        CTRT_AUTO(tensor) x = NULL, y = NULL, z = NULL;
        CTRT_AUTO(module) net = NULL;
        ctrt_module *inner = NULL, *tanh = NULL;
        char where[64];
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(4, 4), CTRT_F32, device));
        CHECK_OK(ctrt_tanh_new(&tanh));
        CHECK_OK(ctrt_sequential_new(&inner, CTRT_MODULES(tanh)));
        CHECK_OK(ctrt_sequential_new(&net, CTRT_MODULES(inner)));
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK_OK(ctrt_stream_new(&stream, device, 0));
        CHECK_OK(ctrt_stream_push(stream));
        for (int i = 0; i < 56; i++)
            CHECK_OK(ctrt_neg(&y, x));
        CHECK_OK(sim->inject(0, "op:tanh@1"));
        CHECK_OK(ctrt_memory_label_push("epoch 3"));
        CHECK_OK(ctrt_forward(&z, net, x));
        CHECK_OK(ctrt_memory_label_pop());
        for (int i = 0; i < 2000; i++)                      /* more calls than are recorded */
            if (!calls)
                CHECK_OK(ctrt_neg(&y, x));
        snprintf(where, sizeof where, "stream %llu of sim:0", (unsigned long long)ctrt_stream_id(stream));
        CHECK_FAILS(ctrt_stream_synchronize(stream), CTRT_ERR_BACKEND, "tanh");
        const char *message = ctrt_error_message();
        CHECK(strstr(message, "call 57") && strstr(message, where) && strstr(message, "called in epoch 3/0.0"),
              "the message lacks the call, the stream or the label: %s", message);
        CHECK((strstr(message, " at ") != NULL && strstr(message, "run-public(") != NULL) == calls,
              "wrong presence of the call site: %s", message);
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_add(&z, x, x));
        CHECK(total(z) == 32, "the sum on another stream is %g, expected 32", total(z));
        CHECK_OK(ctrt_stream_reset(stream));
        CHECK_OK(ctrt_stream_synchronize(stream));
    }
    CHILD_END;
}

static void test_inherited(void)
{
    group("an error is reported to streams that use results of the failed stream, and to no others");
    IN_CHILD("CTRT_SIM=devices=2,latency=2ms") {
        ctrt_device *device = sim_open("sim:0"), *other = sim_open("sim:1");
        CTRT_AUTO(stream) side = NULL, third = NULL;
        CTRT_AUTO(tensor) x = full(1, N, device), y = NULL, z = NULL, far = NULL;
        CHECK_OK(ctrt_stream_new(&side, device, 0));
        CHECK_OK(ctrt_stream_new(&third, device, 0));
        CHECK_OK(ctrt_to_device(&far, x, other));           /* sets up the link between the devices */
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK_OK(sim->inject(0, "op:neg@1"));
        CHECK_OK(ctrt_stream_push(side));
        CHECK_OK(ctrt_neg(&y, x));
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_stream_push(third));
        CHECK_OK(ctrt_add(&z, x, x));
        CHECK(total(z) == 2 * N, "wrong sum on an independent stream");
        CHECK_OK(ctrt_stream_pop());
        CHECK_OK(ctrt_add(&z, y, y));                       /* on the default stream, after the failed stream */
        CHECK_OK(ctrt_to_device(&far, z, other));           /* on another device, after the default stream */
        CTRT_AUTO(tensor) here = NULL;
        ctrt_device *cpu = NULL;
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        CHECK_FAILS(ctrt_to_device(&here, far, cpu), CTRT_ERR_BACKEND, "neg");
        CHECK_FAILS(ctrt_to_device(&here, z, cpu), CTRT_ERR_BACKEND, "neg");
        CTRT_AUTO(stream) first = NULL, there = NULL;
        CHECK_OK(ctrt_stream_default(&first, device));
        CHECK_OK(ctrt_stream_default(&there, other));
        CHECK_OK(ctrt_stream_reset(first));
        CHECK_OK(ctrt_stream_reset(there));
        CHECK_OK(ctrt_stream_reset(side));
        CHECK_OK(ctrt_add(&z, x, x));
        CHECK(total(z) == 2 * N, "wrong sum after the reset of all streams");
        CHECK_OK(ctrt_to_device(&far, z, other));
        CHECK(total(far) == 2 * N, "wrong sum on the other device after the reset");
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK_OK(ctrt_device_synchronize(other));
    }
    CHILD_END;
}

static void test_blocking(void)
{
    group("CTRT_LAUNCH_BLOCKING=1: the failing call returns the error");
    IN_CHILD("CTRT_SIM=devices=1,latency=5ms", "CTRT_LAUNCH_BLOCKING=1") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) x = full(1, N, device), y = NULL;
        CTRT_AUTO(stream) stream = NULL;
        double start = seconds_now();
        CHECK_OK(ctrt_add(&y, x, x));
        CHECK(seconds_now() - start >= 0.0045, "the call returned before its work was complete");
        CHECK_OK(sim->inject(0, "op:exp@2"));
        CHECK_OK(ctrt_exp(&y, x));
        CHECK_FAILS(ctrt_exp(&y, x), CTRT_ERR_BACKEND, "exp");
        CHECK_OK(ctrt_stream_current(&stream, device));
        CHECK_OK(ctrt_stream_reset(stream));
        CHECK_OK(ctrt_exp(&y, x));
    }
    CHILD_END;
}

static void test_lost(void)
{
    group("a lost device returns an error status, and other devices work");
    IN_CHILD("CTRT_SIM=devices=2") {
        ctrt_device *device = sim_open("sim:0"), *other = sim_open("sim:1");
        CTRT_AUTO(tensor) x = full(1, N, device), y = NULL, z = full(2, N, other);
        CTRT_AUTO(stream) stream = NULL;
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK_OK(sim->inject(0, "lost:2"));
        ctrt_status status = CTRT_OK;
        for (int i = 0; i < 4 && status == CTRT_OK; i++)
            status = ctrt_add(&y, x, x);
        if (status == CTRT_OK)
            status = ctrt_device_synchronize(device);
        CHECK(status == CTRT_ERR_DEVICE_LOST, "the status is %s (%s), expected device lost", ctrt_status_string(status),
              ctrt_error_message());
        CHECK_OK(ctrt_stream_default(&stream, device));
        status = ctrt_stream_reset(stream);
        CHECK(status == CTRT_ERR_DEVICE_LOST || status == CTRT_ERR_BACKEND, "a lost device was reset: %s", ctrt_status_string(status));
        CHECK(total(z) == 2 * N, "wrong sum on the other device");
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&y);
        CHECK(ctrt_memory_allocated(device) == 0, "%llu bytes were not freed",
              (unsigned long long)ctrt_memory_allocated(device));
    }
    CHILD_END;
}

/* Runs a training step on two streams. */
static ctrt_status step(ctrt_device *device, ctrt_stream *side, double *value)
{
    CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL, loss = NULL, grad = NULL;
    CTRT_TRY(ctrt_ones(&x, CTRT_SHAPE(8, 8), CTRT_F32, device));
    CTRT_TRY(ctrt_full(&w, CTRT_SHAPE(8, 8), ctrt_float(0.5), CTRT_F32, device));
    CTRT_TRY(ctrt_tensor_require_grad(w, true));
    CTRT_TRY(ctrt_matmul(&y, x, w));
    CTRT_TRY(ctrt_stream_push(side));
    ctrt_status status = ctrt_tanh(&y, y);
    ctrt_stream_pop();
    CTRT_TRY(status);
    CTRT_TRY(ctrt_mean(&loss, y, CTRT_ALL_DIMS));
    CTRT_TRY(ctrt_backward(loss));
    ctrt_tensor_assign(&grad, ctrt_tensor_grad(w));
    CTRT_TRY(ctrt_sum(&grad, grad, CTRT_ALL_DIMS));
    return ctrt_item(value, grad);
}

static void test_each(const char *what)
{
    group("a failure of the n-th %s, for every n, returns a status and leaks nothing, and the next step is correct",
          what);
    IN_CHILD("CTRT_SIM=devices=1,memory=64m") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(stream) side = NULL, first = NULL;
        double want = 0, value = 0;
        CHECK_OK(ctrt_stream_new(&side, device, 0));
        CHECK_OK(ctrt_stream_default(&first, device));
        CHECK_OK(step(device, side, &want));
        int failed = 0;
        for (int n = 1; n < 200; n++) {
            char fault[32];
            snprintf(fault, sizeof fault, "%s:%d", what, n);
            CHECK_OK(ctrt_memory_empty_cache(device));
            CHECK_OK(sim->inject(0, fault));
            ctrt_status status = step(device, side, &value);
            CHECK_OK(sim->clear(0));
            const bool ended = status == CTRT_OK;
            if (!ended) {
                failed++;
                CHECK(status == (strcmp(what, "op") == 0 ? CTRT_ERR_BACKEND : CTRT_ERR_OUT_OF_MEMORY),
                      "n = %d: the status is %s (%s)", n, ctrt_status_string(status), ctrt_error_message());
            }
            CHECK(!ended || value == want, "n = %d: the result is %g, expected %g", n, value, want);
            CHECK_OK(ctrt_stream_reset(side));
            CHECK_OK(ctrt_stream_reset(first));
            CHECK_OK(ctrt_device_synchronize(device));
            CHECK(ctrt_memory_allocated(device) == 0, "n = %d: %llu bytes were not freed", n,
                  (unsigned long long)ctrt_memory_allocated(device));
            CHECK_OK(step(device, side, &value));
            CHECK(value == want, "the step after n = %d: the result is %g, expected %g", n, value, want);
            if (ended && n > 3)
                break;
        }
        CHECK(strcmp(what, "op") != 0 || failed >= 6, "only %d ops failed", failed);
    }
    CHILD_END;
}

TEST_MAIN
{
    test_tagged();
    test_site("CTRT_MEMORY_HISTORY=state", false);
    if (backtrace != NULL)
        test_site("CTRT_MEMORY_HISTORY=frames", true);
    test_inherited();
    test_blocking();
    test_lost();
    test_each("op");
    test_each("alloc");
    return done();
}
