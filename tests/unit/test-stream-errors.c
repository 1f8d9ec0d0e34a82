/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of asynchronous work: which streams report an error, what the message contains, and what works afterwards. */
#include "calls.h"
#include "sims.h"

#define N 100

/* NULL if the C library has no backtrace function. */
extern int backtrace(void **addresses, int most) __attribute__((weak));

SIM_TEST(one_stream, "an asynchronous error is reported on its stream only, in every call until the reset",
         "CTRT_SIM=devices=1")
{
    CTRT_AUTO(stream) one = new_stream(device), two = new_stream(device);
    CTRT_AUTO(tensor) x = full(1, N, device), y = NULL, z = NULL;
    bool idle;
    double value = 0;
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_OK(sim->inject(0, "op:exp@3"));
    CHECK_OK(ctrt_stream_push(two));
    for (int i = 0; i < 5; i++)
        CHECK_OK(ctrt_exp(&y, x));                      /* the third will fail asynchronously */
    CTRT_AUTO(tensor) big = full(1, 1 << 20, device);   /* allocations do not report it */
    CHECK_FAILS(ctrt_stream_synchronize(two), CTRT_ERR_BACKEND, "exp");
    CHECK_HAS(ctrt_error_message(), "call 3");
    CHECK_FAILS(ctrt_stream_synchronize(two), CTRT_ERR_BACKEND, "exp");
    CHECK_FAILS(ctrt_stream_query(two, &idle), CTRT_ERR_BACKEND, "exp");
    CHECK_OK(ctrt_sum(&z, y, CTRT_ALL_DIMS));
    CHECK_FAILS(ctrt_item(&value, z), CTRT_ERR_BACKEND, "exp");
    CHECK_OK(ctrt_stream_pop());
    ON_STREAM(one, ctrt_add(&z, x, x));
    CHECK_EQ(total(z), 2 * N);
    CHECK_OK(ctrt_stream_synchronize(one));
    CHECK_OK(ctrt_stream_reset(two));
    ON_STREAM(two, ctrt_add(&z, x, x));
    CHECK_EQ(total(z), 2 * N);
    CHECK_OK(ctrt_device_synchronize(device));
}

#define MESSAGE "an asynchronous error has the op's number, name, stream, module path, label and call site, if recorded"

SIM_TEST(message, MESSAGE, "CTRT_SIM=devices=1", "CTRT_MEMORY_HISTORY=state")
{
    const bool sites = strstr(getenv("CTRT_MEMORY_HISTORY"), "frames") != NULL;
    CTRT_AUTO(stream) stream = new_stream(device);
    CTRT_AUTO(tensor) x = full(1, N, device), y = NULL, z = NULL;
    CTRT_AUTO(module) net = NULL;
    ctrt_module *inner = NULL, *tanh = NULL;
    char where[64];
    CHECK_OK(ctrt_tanh_new(&tanh));
    CHECK_OK(ctrt_sequential_new(&inner, CTRT_MODULES(tanh)));
    CHECK_OK(ctrt_sequential_new(&net, CTRT_MODULES(inner)));
    CHECK_OK(ctrt_device_synchronize(device));
    for (int i = 0; i < 56; i++)
        ON_STREAM(stream, ctrt_neg(&y, x));
    CHECK_OK(sim->inject(0, "op:tanh@1"));
    CHECK_OK(ctrt_memory_label_push("epoch 3"));
    ON_STREAM(stream, ctrt_forward(&z, net, x));
    CHECK_OK(ctrt_memory_label_pop());
    for (int i = 0; i < 2000 && !sites; i++)            /* more calls than are recorded */
        ON_STREAM(stream, ctrt_neg(&y, x));
    snprintf(where, sizeof where, "stream %llu of sim:0", (unsigned long long)ctrt_stream_id(stream));
    CHECK_FAILS(ctrt_stream_synchronize(stream), CTRT_ERR_BACKEND, "tanh");
    const char *message = ctrt_error_message();
    CHECK_HAS(message, "call 57");
    CHECK_HAS(message, where);
    CHECK_HAS(message, "called in epoch 3/0.0");
    CHECK((strstr(message, " at ") != NULL && strstr(message, "run-public(") != NULL) == (sites && backtrace != NULL),
          "wrong presence of the call site: %s", message);
}
SIM_AGAIN(message, MESSAGE, "CTRT_SIM=devices=1", "CTRT_MEMORY_HISTORY=frames")

/* `reported`: a stream that uses the failed result has returned the error before the others use the result. */
static void test_spread(bool reported)
{
    group("an error is reported to streams and pinned copies that use its result, not to earlier work or others%s",
          reported ? ", also after another stream has reported it" : "");
    IN_CHILD("CTRT_SIM=devices=2,latency=2ms") {
        ctrt_device *device = sim_open("sim:0"), *other = sim_open("sim:1");
        CTRT_AUTO(stream) failed = new_stream(device), user = new_stream(device), earlier = new_stream(device);
        CTRT_AUTO(stream) first = default_stream(device), far_first = default_stream(other);
        CTRT_AUTO(tensor) x = full(1, N, device), y = NULL, z = NULL, far = NULL, pinned = NULL, here = NULL;
        bool left = false;
        CHECK_OK(ctrt_to_device(&far, x, other));           /* sets up the link between the devices */
        ON_STREAM(user, ctrt_neg(&y, x));
        CHECK_OK(ctrt_stream_wait(earlier, user));          /* recorded before the failure */
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK_OK(sim->inject(0, "op:exp@1"));
        ON_STREAM(failed, ctrt_exp(&y, x));
        ON_STREAM(failed, ctrt_to_non_blocking(&pinned, y, cpu_device(), &left));
        ON_STREAM(user, ctrt_neg(&z, y));
        if (reported)
            CHECK_FAILS(ctrt_stream_synchronize(user), CTRT_ERR_BACKEND, "exp");
        CHECK_OK(ctrt_add(&z, y, y));                       /* on the default stream */
        CHECK_OK(ctrt_to_device(&far, z, other));           /* on another device, after the default stream */
        CHECK_FAILS(ctrt_to_device(&here, far, cpu), CTRT_ERR_BACKEND, "exp");
        CHECK_FAILS(ctrt_to_device(&here, z, cpu), CTRT_ERR_BACKEND, "exp");
        CHECK_FAILS(ctrt_stream_synchronize(user), CTRT_ERR_BACKEND, "exp");
        CHECK_FAILS(ctrt_clone(&here, pinned), CTRT_ERR_BACKEND, "exp");
        CHECK_EQ(left, true);
        CHECK_OK(ctrt_stream_synchronize(earlier));
        CHECK_OK(ctrt_stream_reset(first));
        CHECK_OK(ctrt_stream_reset(far_first));
        CHECK_OK(ctrt_stream_reset(user));
        CHECK_OK(ctrt_add(&z, x, x));
        CHECK_OK(ctrt_to_device(&far, z, other));
        CHECK_EQ(total(far), 2 * N);
        CHECK_OK(ctrt_device_synchronize(other));
        ctrt_tensor_release(&y);
        ctrt_tensor_release(&pinned);
        const ctrt_stream *was = failed;
        ctrt_stream_release(&failed);
        failed = new_stream(device);
        CHECK(failed == was, "the new stream is not the released one");
        CHECK_OK(ctrt_stream_synchronize(failed));
        CHECK_OK(ctrt_device_synchronize(device));
    }
}

SIM_TEST(blocking, "CTRT_LAUNCH_BLOCKING=1: the failing call returns the error",
         "CTRT_SIM=devices=1,latency=5ms", "CTRT_LAUNCH_BLOCKING=1")
{
    CTRT_AUTO(tensor) x = full(1, N, device), y = NULL;
    CTRT_AUTO(stream) first = default_stream(device);
    const double start = clock_seconds();
    CHECK_OK(ctrt_add(&y, x, x));
    CHECK(clock_seconds() - start >= 0.0045, "the call returned before its work was complete");
    CHECK_OK(sim->inject(0, "op:exp@2"));
    CHECK_OK(ctrt_exp(&y, x));
    CHECK_FAILS(ctrt_exp(&y, x), CTRT_ERR_BACKEND, "exp");
    CHECK_OK(ctrt_stream_reset(first));
    CHECK_OK(ctrt_exp(&y, x));
}

/* Ops of x [100] or [1, 100] and the i64 tensor n, whose value is not valid. */
#define DATA_ERROR(name, call)                                                                          \
    static ctrt_status name##_of(ctrt_tensor **y, __attribute__((unused)) ctrt_tensor *x, ctrt_tensor *n)   \
    {                                                                                                   \
        return call;                                                                                    \
    }
DATA_ERROR(floor_divide, ctrt_floor_divide(y, n, n))
DATA_ERROR(remainder, ctrt_remainder(y, n, n))
DATA_ERROR(fmod, ctrt_fmod(y, n, n))
DATA_ERROR(index_select, ctrt_index_select(y, x, 0, n))
DATA_ERROR(gather, ctrt_gather(y, x, 0, n))
DATA_ERROR(embedding, ctrt_embedding(y, x, n, -1))
DATA_ERROR(cross_entropy, ctrt_cross_entropy(y, x, n, NULL))

static const struct data_error {
    const char *words;
    int64_t wrong;
    bool matrix;
    ctrt_status (*call)(ctrt_tensor **y, ctrt_tensor *x, ctrt_tensor *n);
} wrong_data[] = {
    { "floor_divide", 0, false, floor_divide_of }, { "remainder", 0, false, remainder_of },
    { "fmod", 0, false, fmod_of }, { "index 100", N, false, index_select_of }, { "index 100", N, false, gather_of },
    { "index 1 ", 1, true, embedding_of }, { "target[0] is 100", N, true, cross_entropy_of },
};

SIM_TEST(data_errors, "errors in the data of ops: the call returns them on the cpu, else the stream until its reset",
         "CTRT_SIM=devices=1")
{
    CTRT_AUTO(stream) first = default_stream(device);
    EACH(c, wrong_data) {
        CTRT_AUTO(tensor) x = full(1, N, device), here = full(1, N, cpu), n = NULL, n_here = NULL, y = NULL;
        CHECK_OK(ctrt_full(&n, CTRT_SHAPE(1), ctrt_int(c->wrong), CTRT_I64, device));
        CHECK_OK(ctrt_cpu(&n_here, n));
        if (c->matrix) {
            CHECK_OK(ctrt_unsqueeze(&x, x, 0));
            CHECK_OK(ctrt_unsqueeze(&here, here, 0));
        }
        CHECK_FAILS(c->call(&y, here, n_here), CTRT_ERR_INVALID_ARGUMENT, c->words);
        CHECK_OK(c->call(&y, x, n));
        CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_INVALID_ARGUMENT, c->words);
        CHECK_HAS(ctrt_error_message(), "until ctrt_stream_reset");
        CTRT_AUTO(tensor) other = full(1, 1 << 20, device);             /* an allocation does not report it */
        CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_INVALID_ARGUMENT, c->words);
        CHECK_OK(ctrt_stream_reset(first));
        CHECK_OK(ctrt_neg(&y, x));
        CHECK_OK(ctrt_device_synchronize(device));
    }
}

SIM_TEST(kernel, "an error that a kernel finds is reported with the kernel's status and message", "CTRT_SIM=devices=1")
{
    CTRT_AUTO(tensor) x = full(1, N, device), index = NULL, y = NULL;
    CHECK_OK(ctrt_full(&index, CTRT_SHAPE(1), ctrt_int(N), CTRT_I64, device));
    CHECK_OK(ctrt_index_select(&y, x, 0, index));
    CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_INVALID_ARGUMENT, "index_select: index 100 at");
    CHECK_HAS(ctrt_error_message(), "index_select (f32), call ");
}

SIM_TEST(lost, "a lost device returns an error status in every call, and other devices work",
         "CTRT_SIM=devices=2,latency=2ms")
{
    ctrt_device *other = sim_open("sim:1");
    CTRT_AUTO(tensor) x = full(1, N, device), y = NULL, z = full(2, N, other), far = NULL, here = NULL;
    CTRT_AUTO(stream) first = default_stream(device), side = new_stream(device);
    uint64_t bytes;
    CHECK_OK(ctrt_to_device(&far, x, other));           /* sets up the link between the devices */
    CHECK_OK(ctrt_device_synchronize(device));
    CHECK_OK(sim->inject(0, "lost:2"));
    for (int i = 0; i < 4; i++) {
        const ctrt_status status = ctrt_add(&y, x, x);
        CHECK(status == CTRT_OK || status == CTRT_ERR_DEVICE_LOST, "op %d: %s", i, ctrt_status_string(status));
    }
    CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_DEVICE_LOST, "sim:0 is lost");
    CHECK_FAILS(ctrt_stream_synchronize(side), CTRT_ERR_DEVICE_LOST, "sim:0 is lost");
    CHECK_FAILS(ctrt_device_memory_info(device, &bytes, &bytes), CTRT_ERR_DEVICE_LOST, "lost");
    CHECK_FAILS(ctrt_zeros(&y, CTRT_SHAPE(8 << 20), CTRT_F32, device), CTRT_ERR_DEVICE_LOST, "lost");
    CHECK_FAILS(ctrt_to_device(&here, x, cpu_device()), CTRT_ERR_DEVICE_LOST, "lost");
    CHECK_FAILS(ctrt_to_device(&far, x, other), CTRT_ERR_DEVICE_LOST, "lost");
    CHECK_FAILS(ctrt_stream_reset(first), CTRT_ERR_DEVICE_LOST, "lost");
    CHECK_EQ(total(z), 2 * N);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
    CHECK_EQ(ctrt_memory_allocated(device), 0);
    CHECK_OK(sim->clear(0));
    CHECK_OK(ctrt_stream_reset(first));
    x = full(3, N, device);
    CHECK_EQ(total(x), 3 * N);
}

/* Runs a training step on two streams. */
static ctrt_status step(double *value, ctrt_device *device, ctrt_stream *side)
{
    CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL, loss = NULL, grad = NULL;
    TRY(ctrt_ones(&x, CTRT_SHAPE(8, 8), CTRT_F32, device));
    TRY(ctrt_full(&w, CTRT_SHAPE(8, 8), ctrt_float(0.5), CTRT_F32, device));
    TRY(ctrt_tensor_require_grad(w, true));
    TRY(ctrt_matmul(&y, x, w));
    TRY(ctrt_stream_push(side));
    ctrt_status status = ctrt_tanh(&y, y);
    ctrt_stream_pop();
    TRY(status);
    TRY(ctrt_mean(&loss, y, CTRT_ALL_DIMS));
    TRY(ctrt_backward(loss));
    ctrt_tensor_assign(&grad, ctrt_tensor_grad(w));
    CTRT_TRY(ctrt_sum(&grad, grad, CTRT_ALL_DIMS));
    return ctrt_item(value, grad);
}

/* Makes call n fail, for every n, and all later ones if `more` is "+". At least `least` steps have to fail. */
static void fail_each(ctrt_device *device, const char *what, const char *more, ctrt_status error, int least)
{
    CTRT_AUTO(stream) side = new_stream(device), first = default_stream(device);
    double want = 0, value = 0;
    int failed = 0;
    CHECK_OK(step(&want, device, side));
    bool reached = true;
    for (int n = 1; n < 200 && (reached || n <= 4); n++) {
        char fault[32];
        snprintf(fault, sizeof fault, "%s:%d%s", what, n, more);
        CHECK_OK(ctrt_memory_empty_cache(device));
        CHECK_OK(sim->inject(0, fault));
        const ctrt_status status = step(&value, device, side);
        CHECK_OK(sim->clear(0));
        reached = status != CTRT_OK;
        failed += reached;
        CHECK(reached ? status == error : value == want, "%s: %s, the result is %g", fault,
              ctrt_status_string(status), value);
        CHECK_OK(ctrt_stream_reset(side));
        CHECK_OK(ctrt_stream_reset(first));
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK(ctrt_memory_allocated(device) == 0, "%s: memory was not freed", fault);
        CHECK_OK(step(&value, device, side));
        CHECK(value == want, "the step after %s: the result is %g, expected %g", fault, value, want);
    }
    CHECK(failed >= least, "only %d steps failed", failed);
}

SIM_TEST(each, "a failure of call n, for every n, returns a status and leaks nothing, and the next step is correct",
         "CTRT_SIM=devices=1,memory=64m")
{
    fail_each(device, "op", "", CTRT_ERR_BACKEND, 6);
    fail_each(device, "alloc", "", CTRT_ERR_OUT_OF_MEMORY, 0);      /* the policy tries again */
    fail_each(device, "alloc", "+", CTRT_ERR_OUT_OF_MEMORY, 1);
}

TEST(test_errors_spread, NULL)
{
    test_spread(false);
    test_spread(true);
}

TESTS_MAIN
