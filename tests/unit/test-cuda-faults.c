/* SPDX-License-Identifier: Apache-2.0 */
/* Makes each function of the software CUDA driver fail once, while a device is opened and during a step. The failure
 * must give a status with a message, and the next step must be correct unless the device is lost. Also tests
 * out-of-memory errors, faulting kernels and replays. */
#include "soft_begin.h"

#define OUT_OF_MEMORY   2                   /* error codes of the CUDA driver */
#define UNKNOWN         999
#define ILLEGAL_ADDRESS 700

/* Runs allocations, copies in both directions, a captured op, a product, a reduction, streams and events. *value must
 * be 96. */
static ctrt_status step(double *value)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL, z = NULL, host = NULL;
    CTRT_AUTO(stream) side = NULL;
    CTRT_AUTO(graph) graph = NULL;
    TRY(ctrt_stream_new(&side, gpu, 0));
    TRY(ctrt_full(&host, CTRT_SHAPE(4, 4), ctrt_float(2), CTRT_F32, cpu));
    TRY(ctrt_to_device(&x, host, gpu));
    TRY(ctrt_zeros(&y, CTRT_SHAPE(4, 4), CTRT_F32, gpu));
    TRY(ctrt_capture_begin(gpu));
    ctrt_status status = ctrt_add_scalar_(y, ctrt_float(1));
    const ctrt_status ended = ctrt_capture_end(&graph, gpu);
    TRY(status);
    TRY(ended);
    TRY(ctrt_capture_replay(graph));
    TRY(ctrt_memory_empty_cache(gpu));
    TRY(ctrt_matmul(&z, x, y));
    TRY(ctrt_stream_push(side));                            /* every element of z is 8 */
    status = ctrt_sub_scalar_(z, ctrt_float(2));            /* every element is 6; runs on another stream */
    (void)ctrt_stream_pop();
    TRY(status);
    TRY(ctrt_sum(&z, z, CTRT_ALL_DIMS));
    return ctrt_item(value, z);
}

static bool recover(void)
{
    CTRT_AUTO(stream) stream = NULL;
    CHECK_OK(ctrt_stream_default(&stream, gpu));
    return ctrt_stream_reset(stream) == CTRT_OK;
}

static void check_step(const char *what)
{
    double value = 0;
    if (CHECK_OK(step(&value)))
        CHECK(value == 96, "%s: %g, expected 96", what, value);
}

/* These functions are not called again after a failure: a driver that cannot be initialized, or a device without a
 * UUID, stays unavailable. */
static bool stays_unavailable(const char *name)
{
    return strcmp(name, "cuInit") == 0 || strncmp(name, "cuDeviceGetUuid", 15) == 0
        || strncmp(name, "cuGetProcAddress", 16) == 0 || strcmp(name, "cuDriverGetVersion") == 0;
}

static void count_message(void *count, ctrt_log_level level, const char *component, const char *text)
{
    (void)component, (void)text;
    *(int *)count += level <= CTRT_LOG_WARNING;
}

static void one_fails(const char *name, int error, bool opening)
{
    const bool of_pool = strncmp(name, "cuMemPool", 9) == 0 || strncmp(name, "cuMemAllocFromPool", 18) == 0
                         || strncmp(name, "cuMemFreeAsync", 14) == 0;
    IN_CHILD(of_pool ? "CTRT_MEMORY=direct" : "CTRT_MEMORY=caching", of_pool ? "CTRT_CUDA_POOL=yes" : NULL) {
        static const char *const needed[] = { "cuMemAllocFromPoolAsync cuMemFreeAsync cuMemPoolTrimTo",
                                              "cuMemPoolCreate cuMemPoolSetAttribute" };
        double value = 0;
        int messages = 0;
        ctrt_log_set_callback(count_message, &messages);
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        if (opening) {
            (void)ctrt_is_available("cuda", NULL);          /* loads the driver */
            soft_load();
            soft->inject(name, soft->calls(name) + 1, error, false);
        }
        ctrt_status status = ctrt_device_get(&gpu, "cuda:0");
        if (status != CTRT_OK)
            CHECK(soft == NULL || (soft->live_bytes(0) == 0 && soft->live_handles("pool") == 0
                                   && soft->live_handles("stream") == 0),
                  "%s: memory, pools or streams of a device that did not open remain", name);
        if (status == CTRT_OK && !opening) {
            soft_load();
            check_step("before the fault");
            messages = 0;
            soft->inject(name, soft->calls(name) + 1, error, false);
        }
        if (status == CTRT_OK)
            status = step(&value);
        CHECK(status == CTRT_OK || strlen(ctrt_error_message()) > 10, "%s: status %d with the short message \"%s\"",
              name, (int)status, ctrt_error_message());
        CHECK(status != CTRT_OK || value == 96, "%s: %g, expected 96 or an error", name, value);
        CHECK(error != UNKNOWN || !of_pool || strstr(needed[opening], name) == NULL
              || (calls(name) > 0 && (status != CTRT_OK || messages > 0)),
              "%s was not called, or its failure was not reported", name);
        soft->inject_clear();
        if (status != CTRT_ERR_DEVICE_LOST && ctrt_device_get(&gpu, "cuda:0") != CTRT_OK)
            CHECK(opening && stays_unavailable(name), "%s: the device does not open after the fault: %s", name,
                  ctrt_error_message());
        else if (status != CTRT_ERR_DEVICE_LOST && recover())
            check_step(name);
        if (gpu != NULL && status != CTRT_ERR_DEVICE_LOST)
            close_clean(name);
    }
}

static void test_each(int error, bool opening)
{
    const char *name;
    int tried = 0;
    group("each driver function fails once with error %d, %s", error,
          opening ? "from the opening of a device" : "during a step");
    for (int i = 0; soft_load() && (name = soft->name(i)) != NULL; i++) {
        /* Functions that describe an error must not fail at the same time. A capture ends also if its end fails, which
         * an injected failure prevents. */
        if (strncmp(name, "cu", 2) != 0 || strncmp(name, "cublas", 6) == 0 || strncmp(name, "cuGetError", 10) == 0
            || strcmp(name, "cuStreamEndCapture") == 0)
            continue;
        one_fails(name, error, opening);
        tried++;
    }
    CHECK(tried > 50, "only %d functions were tested", tried);
}

TEST(memory, "out of memory in a capture does not free memory of recorded work, and then the cache is freed")
{
    IN_CUDA_CHILD("SOFTCUDA=devices=1,memory=64m", "CTRT_MEMORY=caching") {
        CTRT_AUTO(tensor) a = NULL, b = NULL, out = NULL, sum = NULL;
        CTRT_AUTO(graph) graph = NULL;
        double value = 0;
        CHECK_OK(ctrt_zeros(&out, CTRT_SHAPE(4), CTRT_F32, gpu));
        CHECK_OK(ctrt_capture_begin(gpu));
        CHECK_OK(ctrt_full(&a, CTRT_SHAPE(30 * MIB), ctrt_float(1), CTRT_F32, gpu));
        ctrt_tensor_release(&a);
        CHECK_FAILS(ctrt_full(&b, CTRT_SHAPE(40 * MIB), ctrt_float(1), CTRT_F32, gpu), CTRT_ERR_OUT_OF_MEMORY,
                    "cuda:0");
        CHECK_OK(ctrt_add_scalar_(out, ctrt_float(1)));
        if (ctrt_capture_end(&graph, gpu) == CTRT_OK) {
            CHECK_OK(ctrt_capture_replay(graph));
            CHECK_OK(ctrt_sum(&sum, out, CTRT_ALL_DIMS));
            CHECK_OK(ctrt_item(&value, sum));
        }
        ctrt_graph_release(&graph);
        CHECK_OK(ctrt_full(&b, CTRT_SHAPE(50 * MIB), ctrt_float(1), CTRT_F32, gpu));
        ctrt_tensor_release(&b);
        check_step("after the capture");
    }
}

TEST(illegal, "an illegal access in a kernel: every later call reports a lost device")
{
    IN_CUDA_CHILD("CTRT_MEMORY=caching") {
        CTRT_AUTO(tensor) x = NULL, y = NULL, z = NULL;
        double value = 0;
        check_step("before the fault");
        CHECK_OK(ctrt_full(&x, CTRT_SCALAR_SHAPE, ctrt_float(1), CTRT_F32, gpu));
        soft->inject_kernel(ILLEGAL_ADDRESS);
        (void)ctrt_exp(&y, x);
        CHECK_FAILS(ctrt_item(&value, y != NULL ? y : x), CTRT_ERR_DEVICE_LOST, "restart the process");
        CHECK_FAILS(ctrt_zeros(&z, CTRT_SHAPE(1 << 22), CTRT_F32, gpu), CTRT_ERR_DEVICE_LOST, "cuda:0");
        CHECK_FAILS(ctrt_device_synchronize(gpu), CTRT_ERR_DEVICE_LOST, "cuda:0");
        CHECK_OK(ctrt_full(&x, CTRT_SCALAR_SHAPE, ctrt_float(5), CTRT_F32, cpu));  /* other devices still work */
        CHECK_OK(ctrt_item(&value, x));
        CHECK_EQ(value, 5.0);
    }
}

TEST(replay, "a failed replay does not advance the random generator")
{
    IN_CUDA_CHILD("CTRT_MEMORY=caching") {
        static const char *const names[] = { "cuGraphLaunch", "cuMemcpyHtoDAsync_v2" };
        ctrt_tensor *x = NULL;
        ctrt_graph *graph = NULL;
        float want[3][5], got[5];
        uint64_t before = 0, after = 0;
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(5), CTRT_F32, gpu));
        ctrt_manual_seed(3);
        for (int i = 0; i < 3; i++) {
            CHECK_OK(ctrt_uniform_(x, 0, 1));
            CHECK_OK(ctrt_to_host(want[i], sizeof want[i], x, CTRT_F32));
        }
        ctrt_manual_seed(3);
        CHECK_OK(ctrt_capture_begin(gpu));
        CHECK_OK(ctrt_uniform_(x, 0, 1));
        CHECK_OK(ctrt_capture_end(&graph, gpu));
        for (int i = 0; i < 3; i++) {
            if (i > 0) {
                const char *name = names[i - 1];
                CHECK_OK(ctrt_generator_get(gpu, NULL, &before));
                soft->inject(name, soft->calls(name) + 1, OUT_OF_MEMORY, false);
                CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_OUT_OF_MEMORY, "cuda:0");
                soft->inject_clear();
                CHECK_OK(ctrt_generator_get(gpu, NULL, &after));
                CHECK_EQ(after, before);
            }
            CHECK_OK(ctrt_capture_replay(graph));
            CHECK_OK(ctrt_to_host(got, sizeof got, x, CTRT_F32));
            CHECK(memcmp(got, want[i], sizeof got) == 0, "replay %d: %g, expected %g", i, (double)got[0],
                  (double)want[i][0]);
        }
        ctrt_graph_release(&graph);
        ctrt_tensor_release(&x);
        close_clean("replay");
    }

    group("an index out of range in a replay fails only the stream of the replay");
    IN_CUDA_CHILD("CTRT_MEMORY=caching") {
        CTRT_AUTO(tensor) x = NULL, index = NULL, y = NULL, sum = NULL;
        CTRT_AUTO(stream) here = NULL, there = NULL;
        CTRT_AUTO(graph) graph = NULL;
        int64_t places[3] = { 0, 3, 1 };
        double value = 0;
        CHECK_OK(ctrt_stream_default(&here, gpu));
        CHECK_OK(ctrt_stream_new(&there, gpu, 0));
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(5, 3), CTRT_F32, gpu));
        CHECK_OK(ctrt_from_data(&index, places, 3, CTRT_SHAPE(3), CTRT_I64, gpu));
        CHECK_OK(ctrt_capture_begin(gpu));
        CHECK_OK(ctrt_index_select(&y, x, 0, index));
        CHECK_OK(ctrt_sum(&sum, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_capture_end(&graph, gpu));
        for (int round = 0; round < 3; round++) {
            places[1] = round == 1 ? 1000 : 3;
            CHECK_OK(ctrt_from_host_(index, places, 3, CTRT_I64));
            CHECK_OK(ctrt_stream_push(there));
            CHECK_OK(ctrt_capture_replay(graph));
            if (round == 1) {
                CHECK_FAILS(ctrt_stream_synchronize(there), CTRT_ERR_INVALID_ARGUMENT, "a replay: index_select");
                CHECK_HAS(ctrt_error_message(), "index 1000 (element 1) is out of range [0, 5)");
                CHECK_OK(ctrt_stream_reset(there));
            } else if (CHECK_OK(ctrt_item(&value, sum))) {
                CHECK_EQ(value, 9.0);
            }
            CHECK_OK(ctrt_stream_pop());
            CHECK_OK(ctrt_stream_synchronize(here));
        }
        CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(ctrt_item(&value, sum));
    }
}

TEST_MAIN
{
    soft_begin(argv);
    if (getenv("CTRT_TEST_GPU") != NULL)
        return skip_rest("faults can be injected only into the software driver");
    test_each(UNKNOWN, false);
    test_each(OUT_OF_MEMORY, false);
    test_each(UNKNOWN, true);
    return run_tests();
}
