/* SPDX-License-Identifier: Apache-2.0 */
/* Makes each function of the software CUDA driver fail once, while a device is opened and during a step. The failure
 * must give a status with a message, and the next step must be correct unless the device is lost. Also tests
 * out-of-memory errors, faulting kernels, replays and indices out of range. */
#include "soft_begin.h"

#include "child.h"
#include "tensors.h"

#define OUT_OF_MEMORY   2                   /* error codes of the CUDA driver */
#define UNKNOWN         999
#define ILLEGAL_ADDRESS 700

static const struct softcuda_control *soft;

/* Runs allocations, copies in both directions, a product, a reduction, streams and events. *value must be 96. */
static ctrt_status step(double *value, ctrt_device *device)
{
    ctrt_tensor *x = NULL, *y = NULL, *z = NULL, *host = NULL;
    ctrt_stream *side = NULL;
    ctrt_device *cpu = NULL;
    ctrt_status status = ctrt_device_get(&cpu, "cpu");
    if (status == CTRT_OK)
        status = ctrt_stream_new(&side, device, 0);
    if (status == CTRT_OK)
        status = ctrt_full(&host, CTRT_SHAPE(4, 4), ctrt_float(2), CTRT_F32, cpu);
    if (status == CTRT_OK)
        status = ctrt_to_device(&x, host, device);
    if (status == CTRT_OK)
        status = ctrt_zeros(&y, CTRT_SHAPE(4, 4), CTRT_F32, device);
    if (status == CTRT_OK)
        status = ctrt_add_scalar_(y, ctrt_float(1));
    if (status == CTRT_OK)
        status = ctrt_matmul(&z, x, y);                 /* every element is 8 */
    if (status == CTRT_OK)
        status = ctrt_stream_push(side);
    if (status == CTRT_OK) {
        status = ctrt_sub_scalar_(z, ctrt_float(2));    /* every element is 6; runs on another stream */
        (void)ctrt_stream_pop();
    }
    if (status == CTRT_OK)
        status = ctrt_sum(&z, z, CTRT_ALL_DIMS);
    if (status == CTRT_OK)
        status = ctrt_item(value, z);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
    ctrt_tensor_release(&z);
    ctrt_tensor_release(&host);
    ctrt_stream_release(&side);
    return status;
}

static bool recover(ctrt_device *device)
{
    ctrt_stream *stream = NULL;
    CHECK_OK(ctrt_stream_default(&stream, device));
    const ctrt_status status = ctrt_stream_reset(stream);
    ctrt_stream_release(&stream);
    return status == CTRT_OK;
}

static void check_step(const char *what, ctrt_device *device)
{
    double value = 0;
    if (CHECK_OK(step(&value, device)))
        CHECK(value == 96, "%s: %g, expected 96", what, value);
}

/* ---- each function once ---- */

/* These functions are not called again after a failure: a driver that cannot be initialized, or a device without a
 * UUID, stays unavailable. */
static bool kept(const char *name)
{
    return strcmp(name, "cuInit") == 0 || strncmp(name, "cuDeviceGetUuid", 15) == 0 || strncmp(name, "cuGetProcAddress", 16) == 0 || strcmp(name, "cuDriverGetVersion") == 0;
}

static void one_fails(const char *name, int error, bool opening)
{
    IN_CHILD("CTRT_MEMORY=caching") {
        ctrt_device *device = NULL, *cpu = NULL;
        double value = 0;
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        if (opening) {
            /* This call loads the driver, so that faults can be injected before the device is opened. */
            (void)ctrt_is_available("cuda", NULL);
            soft = soft_control();
            if (soft == NULL || !soft->inject(name, soft->calls(name) + 1, error, false))
                exit(0);
        }
        ctrt_status status = ctrt_device_get(&device, "cuda:0");
        soft = soft_control();
        if (status == CTRT_OK && !opening) {
            check_step("before the fault", device);
            CHECK(soft->inject(name, soft->calls(name) + 1, error, false), "%s cannot be made to fail", name);
        }
        if (status == CTRT_OK)
            status = step(&value, device);
        CHECK(status == CTRT_OK || strlen(ctrt_error_message()) > 10, "%s: status %d with the short message \"%s\"",
              name, (int)status, ctrt_error_message());
        CHECK(status != CTRT_OK || value == 96, "%s: %g, expected 96 or an error", name, value);
        soft->inject_clear();
        if (status != CTRT_ERR_DEVICE_LOST && ctrt_device_get(&device, "cuda:0") != CTRT_OK)
            CHECK(opening && kept(name), "%s: the device does not open after the fault: %s", name,
                  ctrt_error_message());
        else if (status != CTRT_ERR_DEVICE_LOST && recover(device))
            check_step(name, device);
        if (device != NULL && status != CTRT_ERR_DEVICE_LOST) {
            CHECK_OK(ctrt_shutdown());
            CHECK(soft->live_bytes(0) == 0, "%s: %llu bytes of the device remain allocated", name,
                  (unsigned long long)soft->live_bytes(0));
        }
    }
    CHILD_END;
}

static void test_each(int error, bool opening)
{
    group("each driver function fails once with error %d, %s", error,
          opening ? "from the opening of a device" : "during a step");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    soft = driver != NULL ? dlsym(driver, "softcuda_control") : NULL;
    if (!CHECK(soft != NULL, "no software driver: %s", dlerror()))
        return;
    int tried = 0;
    const char *name;
    for (int i = 0; (name = soft->name(i)) != NULL; i++) {
        /* Functions that describe an error must not fail at the same time. */
        if (strncmp(name, "cu", 2) != 0 || strncmp(name, "cublas", 6) == 0 || strncmp(name, "cuGetError", 10) == 0)
            continue;
        one_fails(name, error, opening);
        tried++;
    }
    CHECK(tried > 50, "only %d functions were tested", tried);
}

/* ---- out of memory, lost devices and deferred errors ---- */

static void test_memory(void)
{
    group("out of memory: the cache is freed, then an error is reported, and the device stays usable");
    IN_CHILD("SOFTCUDA=devices=1,memory=64m") {
        ctrt_device *device = NULL;
        ctrt_tensor *a = NULL, *b = NULL;
        CHECK_OK(ctrt_device_get(&device, "cuda:0"));
        CHECK_OK(ctrt_empty(&a, CTRT_SHAPE(40 << 18), CTRT_F32, device));          /* 40 MiB */
        CHECK_FAILS(ctrt_empty(&b, CTRT_SHAPE(40 << 18), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, "cuda:0");
        ctrt_tensor_release(&a);
        CHECK_OK(ctrt_empty(&b, CTRT_SHAPE(50 << 18), CTRT_F32, device));
        ctrt_tensor_release(&b);
        check_step("after the error", device);
    }
    CHILD_END;
}

static void test_captured_memory(void)
{
    group("out of memory in a capture does not free memory of recorded work");
    IN_CHILD("SOFTCUDA=devices=1,memory=64m", "CTRT_MEMORY=caching") {
        ctrt_device *device = NULL;
        ctrt_tensor *a = NULL, *b = NULL, *out = NULL, *sum = NULL;
        ctrt_graph *graph = NULL;
        double value = 0;
        CHECK_OK(ctrt_device_get(&device, "cuda:0"));
        CHECK_OK(ctrt_zeros(&out, CTRT_SHAPE(4), CTRT_F32, device));
        CHECK_OK(ctrt_capture_begin(device));
        CHECK_OK(ctrt_full(&a, CTRT_SHAPE(30 << 18), ctrt_float(1), CTRT_F32, device));
        ctrt_tensor_release(&a);
        const ctrt_status more = ctrt_full(&b, CTRT_SHAPE(40 << 18), ctrt_float(1), CTRT_F32, device);
        CHECK(more == CTRT_ERR_OUT_OF_MEMORY, "40 MiB after 30 MiB of recorded work: status %d", (int)more);
        CHECK_OK(ctrt_add_scalar_(out, ctrt_float(1)));
        if (ctrt_capture_end(&graph, device) == CTRT_OK) {
            CHECK_OK(ctrt_capture_replay(graph));
            CHECK_OK(ctrt_sum(&sum, out, CTRT_ALL_DIMS));
            CHECK_OK(ctrt_item(&value, sum));
        }
        ctrt_graph_release(&graph);
        ctrt_tensor_release(&b);
        CHECK_OK(ctrt_full(&b, CTRT_SHAPE(50 << 18), ctrt_float(1), CTRT_F32, device));
        ctrt_tensor_release(&b);
        ctrt_tensor_release(&sum);
        ctrt_tensor_release(&out);
        check_step("after the capture", device);
    }
    CHILD_END;
}

static void test_illegal(void)
{
    group("an illegal access in a kernel: every later call reports a lost device");
    IN_CHILD("CTRT_MEMORY=caching") {
        ctrt_device *device = NULL, *cpu = NULL;
        ctrt_tensor *x = NULL, *y = NULL, *z = NULL;
        double value = 0;
        CHECK_OK(ctrt_device_get(&device, "cuda:0"));
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        check_step("before the fault", device);
        soft = soft_control();
        soft->tell(false);
        CHECK_OK(ctrt_full(&x, CTRT_SCALAR_SHAPE, ctrt_float(1), CTRT_F32, device));
        soft->inject_kernel(NULL, 0, ILLEGAL_ADDRESS);
        (void)ctrt_exp(&y, x);
        CHECK_FAILS(ctrt_item(&value, y != NULL ? y : x), CTRT_ERR_DEVICE_LOST, "start it anew");
        CHECK_FAILS(ctrt_zeros(&z, CTRT_SHAPE(1 << 22), CTRT_F32, device), CTRT_ERR_DEVICE_LOST, "cuda:0");
        CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_DEVICE_LOST, "cuda:0");
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&y);
        CHECK_OK(ctrt_full(&x, CTRT_SCALAR_SHAPE, ctrt_float(5), CTRT_F32, cpu));  /* other devices still work */
        CHECK_OK(ctrt_item(&value, x));
        CHECK(value == 5, "the cpu's value is %g, expected 5", value);
        ctrt_tensor_release(&x);
    }
    CHILD_END;
}

static void test_replay(void)
{
    group("a failed replay does not advance the random generator");
    IN_CHILD("CTRT_MEMORY=caching") {
        static const char *const names[] = { "cuGraphLaunch", "cuMemcpyHtoDAsync_v2" };
        ctrt_device *device = NULL;
        ctrt_tensor *x = NULL;
        ctrt_graph *graph = NULL;
        float want[3][5], got[5];
        uint64_t before = 0, after = 0;
        CHECK_OK(ctrt_device_get(&device, "cuda:0"));
        soft = soft_control();
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(5), CTRT_F32, device));
        ctrt_manual_seed(3);
        for (int i = 0; i < 3; i++) {
            CHECK_OK(ctrt_uniform_(x, 0, 1));
            CHECK_OK(ctrt_to_host(want[i], sizeof want[i], x, CTRT_F32));
        }
        ctrt_manual_seed(3);
        CHECK_OK(ctrt_capture_begin(device));
        CHECK_OK(ctrt_uniform_(x, 0, 1));
        CHECK_OK(ctrt_capture_end(&graph, device));
        for (int i = 0; i < 3; i++) {
            if (i > 0) {
                CHECK_OK(ctrt_generator_get(device, NULL, &before));
                CHECK(soft->inject(names[i - 1], soft->calls(names[i - 1]) + 1, OUT_OF_MEMORY, false), "%s cannot be made to fail", names[i - 1]);
                CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_OUT_OF_MEMORY, "cuda:0");
                soft->inject_clear();
                CHECK_OK(ctrt_generator_get(device, NULL, &after));
                CHECK(after == before, "%s: the generator's offset changed from %llu to %llu", names[i - 1],
                      (unsigned long long)before, (unsigned long long)after);
            }
            CHECK_OK(ctrt_capture_replay(graph));
            CHECK_OK(ctrt_to_host(got, sizeof got, x, CTRT_F32));
            CHECK(memcmp(got, want[i], sizeof got) == 0, "replay %d: %g, expected %g", i, (double)got[0], (double)want[i][0]);
        }
        ctrt_graph_release(&graph);
        ctrt_tensor_release(&x);
        CHECK_OK(ctrt_shutdown());
        CHECK(soft->live_bytes(0) == 0, "%llu bytes of the device remain allocated",
              (unsigned long long)soft->live_bytes(0));
    }
    CHILD_END;
}

static void test_replayed_index(void)
{
    group("an index out of range in a replay fails only the stream of the replay");
    IN_CHILD("CTRT_MEMORY=caching") {
        ctrt_device *device = NULL;
        ctrt_tensor *x = NULL, *index = NULL, *y = NULL, *sum = NULL;
        ctrt_stream *here = NULL, *there = NULL;
        ctrt_graph *graph = NULL;
        int64_t places[3] = { 0, 3, 1 };
        double value = 0;
        CHECK_OK(ctrt_device_get(&device, "cuda:0"));
        CHECK_OK(ctrt_stream_default(&here, device));
        CHECK_OK(ctrt_stream_new(&there, device, 0));
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(5, 3), CTRT_F32, device));
        CHECK_OK(ctrt_from_data(&index, places, 3, CTRT_SHAPE(3), CTRT_I64, device));
        CHECK_OK(ctrt_capture_begin(device));
        CHECK_OK(ctrt_index_select(&y, x, 0, index));
        CHECK_OK(ctrt_sum(&sum, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_capture_end(&graph, device));
        for (int round = 0; round < 3; round++) {
            places[1] = round == 1 ? 1000 : 3;
            CHECK_OK(ctrt_from_host_(index, places, 3, CTRT_I64));
            CHECK_OK(ctrt_stream_push(there));
            CHECK_OK(ctrt_capture_replay(graph));
            if (round == 1) {
                CHECK_FAILS(ctrt_stream_synchronize(there), CTRT_ERR_INVALID_ARGUMENT, "a replay: index_select");
                CHECK(strstr(ctrt_error_message(), "index 1000 (element 1) is out of range [0, 5)") != NULL, "%s", ctrt_error_message());
                CHECK_OK(ctrt_stream_reset(there));
            } else if (CHECK_OK(ctrt_item(&value, sum))) {
                CHECK(value == 9, "round %d: %g, expected 9", round, value);
            }
            CHECK_OK(ctrt_stream_pop());
            CHECK_OK(ctrt_stream_synchronize(here));
        }
        CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(ctrt_item(&value, sum));
        ctrt_graph_release(&graph);
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&y);
        ctrt_tensor_release(&sum);
        ctrt_tensor_release(&index);
        ctrt_stream_release(&here);
        ctrt_stream_release(&there);
        CHECK_OK(ctrt_shutdown());
    }
    CHILD_END;
}

static void test_index(void)
{
    group("an index out of range is reported with op, element, value and range");
    IN_CHILD("CTRT_MEMORY=caching") {
        ctrt_device *device = NULL;
        ctrt_tensor *x = NULL, *index = NULL, *y = NULL, *sum = NULL;
        ctrt_stream *stream = NULL;
        const int64_t places[3] = { 0, 7, 1 };
        double value = 0;
        CHECK_OK(ctrt_device_get(&device, "cuda:0"));
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(5, 3), CTRT_F32, device));
        CHECK_OK(ctrt_from_data(&index, places, 3, CTRT_SHAPE(3), CTRT_I64, device));
        CHECK_OK(ctrt_index_select(&y, x, 0, index));
        CHECK_OK(ctrt_sum(&sum, y, CTRT_ALL_DIMS));
        CHECK_FAILS(ctrt_item(&value, sum), CTRT_ERR_INVALID_ARGUMENT, "index_select");
        CHECK(strstr(ctrt_error_message(), "index 7 (element 1) is out of range [0, 5)") != NULL, "%s", ctrt_error_message());
        CHECK_FAILS(ctrt_item(&value, sum), CTRT_ERR_INVALID_ARGUMENT, "index_select");
        CHECK_OK(ctrt_stream_default(&stream, device));
        CHECK_OK(ctrt_stream_reset(stream));
        check_step("after the reset", device);
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&y);
        ctrt_tensor_release(&sum);
        ctrt_tensor_release(&index);
        ctrt_stream_release(&stream);
    }
    CHILD_END;
}

TEST_MAIN
{
    soft_begin(argv);
    if (getenv("CTRT_TEST_GPU") != NULL)
        skip_rest("faults can be injected only into the software driver");
    test_each(UNKNOWN, false);
    test_each(OUT_OF_MEMORY, false);
    test_each(UNKNOWN, true);
    test_memory();
    test_captured_memory();
    test_illegal();
    test_replay();
    test_index();
    test_replayed_index();
    return done();
}
