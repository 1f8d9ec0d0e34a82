/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory of the cuda backend (CTRT_CUDA_POOL) on the software driver, which detects unordered uses of
 * memory. Tests waits between streams, trimming of the pool, graph capture, devices without pools, and a failure of
 * each driver function that the pool calls. */
#include "soft_begin.h"

#include "child.h"
#include "tensors.h"

#define ORDERED "CTRT_CUDA_POOL=yes", "CTRT_MEMORY=direct"
#define MIB     ((int64_t)1 << 18)          /* floats */

static const struct softcuda_control *soft;
static char logged[512];

static void keep_log(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)level, (void)component, (void)user;
    snprintf(logged, sizeof logged, "%s", text);
}

static ctrt_device *open_device(void)
{
    ctrt_device *device = NULL;
    CHECK_OK(ctrt_device_get(&device, "cuda:0"));
    soft = soft_control();
    return device;
}

/* Runs a chain of ops with temporaries on `device`; *value is 40. */
static ctrt_status chain(double *value, ctrt_device *device)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CTRT_TRY(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_float(1), CTRT_F32, device));
    for (int i = 0; i < 10; i++) {
        CTRT_TRY(ctrt_add_scalar(&y, x, ctrt_float(3)));
        CTRT_TRY(ctrt_add_scalar(&x, y, ctrt_float(0.9)));
    }
    CTRT_TRY(ctrt_mean(&x, x, CTRT_ALL_DIMS));
    return ctrt_item(value, x);
}

static void check_chain(const char *what, ctrt_device *device)
{
    double value = 0;
    if (CHECK_OK(chain(&value, device)))
        CHECK(value > 39.999 && value < 40.001, "%s: the result is %g, expected 40", what, value);
}

static void close_clean(const char *what)
{
    CHECK_OK(ctrt_shutdown());
    CHECK(soft->live_bytes(0) == 0, "%s: %llu bytes of the device were not freed", what,
          (unsigned long long)soft->live_bytes(0));
    CHECK(soft->live_handles("pool") == 0, "%s: %llu pools were not destroyed", what,
          (unsigned long long)soft->live_handles("pool"));
}

static int64_t waits(void)
{
    return soft->calls("cuStreamSynchronize") + soft->calls("cuEventSynchronize") + soft->calls("cuCtxSynchronize");
}

static void test_order(void)
{
    group("blocks are allocated from and freed to the pool in stream order, without host waits");
    IN_CHILD("SOFTCUDA=devices=1,memory=64m,streams=error,late=200us", ORDERED) {
        ctrt_tensor *x = NULL, *y = NULL;
        ctrt_device *device = open_device();
        check_chain("first", device);
        const int64_t waited = waits(), allocs = soft->calls("cuMemAllocFromPoolAsync"), others = soft->calls("cuMemAlloc");
        CHECK_OK(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_float(1), CTRT_F32, device));
        for (int i = 0; i < 50; i++) {
            CHECK_OK(ctrt_exp(&y, x));
            CHECK_OK(ctrt_log(&x, y));
        }
        CHECK(waits() == waited, "the host waited %d times", (int)(waits() - waited));
        CHECK(soft->calls("cuMemAllocFromPoolAsync") == allocs + 101 && soft->calls("cuMemAlloc") == others,
              "%d blocks from the pool, %d other blocks", (int)(soft->calls("cuMemAllocFromPoolAsync") - allocs),
              (int)(soft->calls("cuMemAlloc") - others));
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&y);
        close_clean("order");
    }
    CHILD_END;

    group("a block allocated on one stream, written on a second and freed on a third is ordered on the device");
    IN_CHILD("SOFTCUDA=devices=1,memory=64m,streams=error,late=500us,free=strict", ORDERED) {
        ctrt_device *device = open_device();
        ctrt_stream *a = NULL, *b = NULL;
        double value = 0;
        CHECK_OK(ctrt_stream_new(&a, device, 0));
        CHECK_OK(ctrt_stream_new(&b, device, 0));
        for (int i = 0; i < 20; i++) {
            ctrt_tensor *x = NULL, *y = NULL;
            CHECK_OK(ctrt_stream_push(i % 2 == 0 ? a : b));
            CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(1 << 16), CTRT_F32, device));        /* written on another stream */
            CHECK_OK(ctrt_stream_pop());
            CHECK_OK(ctrt_fill_(x, ctrt_float(i)));
            CHECK_OK(ctrt_stream_push(i % 2 == 0 ? b : a));
            CHECK_OK(ctrt_sum(&y, x, CTRT_ALL_DIMS));
            ctrt_tensor_release(&x);
            CHECK_OK(ctrt_stream_pop());
            CHECK_OK(ctrt_item(&value, y));
            CHECK(value == i * 65536.0, "the sum is %g, expected %g", value, i * 65536.0);
            ctrt_tensor_release(&y);
        }
        CHECK(soft->faults() == 0, "a fault in the software driver: %s", soft->fault_text());
        ctrt_stream_release(&a);
        ctrt_stream_release(&b);
        close_clean("streams");
    }
    CHILD_END;
}

static void test_memory(void)
{
    group("cached pool memory is released when memory runs out and by ctrt_memory_empty_cache");
    IN_CHILD("SOFTCUDA=devices=1,memory=64m", ORDERED) {
        ctrt_tensor *a = NULL, *b = NULL;
        ctrt_device *device = open_device();
        ctrt_stream *side = NULL;
        const uint64_t before = soft->live_bytes(0);
        CHECK_OK(ctrt_stream_new(&side, device, 0));
        CHECK_OK(ctrt_empty(&a, CTRT_SHAPE(40 * MIB), CTRT_F32, device));
        CHECK_FAILS(ctrt_empty(&b, CTRT_SHAPE(40 * MIB), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, "cuda:0");
        CHECK_OK(ctrt_stream_push(side));
        CHECK_OK(ctrt_empty(&b, CTRT_SHAPE(10 * MIB), CTRT_F32, device));
        CHECK_OK(ctrt_stream_pop());
        ctrt_tensor_release(&b);
        ctrt_tensor_release(&a);
        const int64_t trims = soft->calls("cuMemPoolTrimTo");
        CHECK_OK(ctrt_empty(&a, CTRT_SHAPE(60 * MIB), CTRT_F32, device));
        ctrt_tensor_release(&a);
        CHECK(soft->calls("cuMemPoolTrimTo") >= trims, "fewer than %d trims", (int)trims);
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK(soft->live_bytes(0) >= before + 60 * (1 << 20), "the pool kept %llu bytes, less than 60 MiB",
              (unsigned long long)(soft->live_bytes(0) - before));
        CHECK_OK(ctrt_memory_empty_cache(device));
        CHECK(soft->live_bytes(0) == before, "%llu bytes were not released",
              (unsigned long long)(soft->live_bytes(0) - before));
        check_chain("after", device);
        ctrt_stream_release(&side);
        close_clean("memory");
    }
    CHILD_END;

    group("segments of caching come from the pool, expandable segments from mapped pages");
    for (int pages = 0; pages < 2; pages++)
        IN_CHILD("CTRT_CUDA_POOL=yes", pages ? "CTRT_MEMORY=caching:expandable=true" : "CTRT_MEMORY=caching", "SOFTCUDA=devices=1,streams=error") {
            ctrt_device *device = open_device();
            check_chain("caching", device);
            CHECK((soft->calls("cuMemAllocFromPoolAsync") > 0) != pages && (soft->calls("cuMemCreate") > 0) == pages, "%d from the pool, %d pages",
                  (int)soft->calls("cuMemAllocFromPoolAsync"), (int)soft->calls("cuMemCreate"));
            close_clean("caching");
        }
        CHILD_END;
}

static void check_all(ctrt_tensor *x, double want, const char *what)
{
    double low = 0, high = 0;
    CTRT_AUTO(tensor) y = NULL;
    if (CHECK_OK(ctrt_amin(&y, x, CTRT_ALL_DIMS, false)) && CHECK_OK(ctrt_item(&low, y)) && CHECK_OK(ctrt_amax(&y, x, CTRT_ALL_DIMS, false))
        && CHECK_OK(ctrt_item(&high, y)))
        CHECK(low == want && high == want, "%s: %g to %g, expected %g", what, low, high, want);
}

static void test_pieces(void)
{
    group("expandable segments map memory in chunks of 20 MiB and unmap chunks that are entirely free");
    IN_CHILD("CTRT_MEMORY=caching:expandable=true", "SOFTCUDA=devices=1,memory=1g") {
        static const struct { const char *what; int64_t creates, mib;
        } steps[] = {
            { "200 MiB", 10, 200 },
            { "two more blocks of 30 MiB", 13, 260 },
            { "the first of 30 MiB freed, which shares a chunk with the second", 13, 240 },
            { "30 MiB again, 10 of them in the shared chunk", 14, 260 },
            { "the 200 MiB freed", 14, 60 },
        };
        ctrt_tensor *x = NULL, *a = NULL, *b = NULL, *small = NULL;
        ctrt_device *device = open_device();
        CHECK_OK(ctrt_ones(&small, CTRT_SHAPE(4), CTRT_F32, device));       /* a chunk of the small pool */
        check_all(small, 1, "a small block");
        const int64_t creates = soft->calls("cuMemCreate"), bytes = (int64_t)soft->live_bytes(0);
        for (size_t i = 0; i < COUNT(steps); i++) {
            if (i == 0) {
                CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(200 * MIB), CTRT_F32, device));
            } else if (i == 1) {
                CHECK_OK(ctrt_full(&a, CTRT_SHAPE(30 * MIB), ctrt_float(2), CTRT_F32, device));
                CHECK_OK(ctrt_full(&b, CTRT_SHAPE(30 * MIB), ctrt_float(3), CTRT_F32, device));
            } else if (i == 3) {
                CHECK_OK(ctrt_full(&a, CTRT_SHAPE(30 * MIB), ctrt_float(4), CTRT_F32, device));
            } else {
                ctrt_tensor_release(i == 2 ? &a : &x);
                CHECK_OK(ctrt_memory_empty_cache(device));
            }
            const int64_t made = soft->calls("cuMemCreate") - creates, mib = ((int64_t)soft->live_bytes(0) - bytes) >> 20;
            CHECK(made == steps[i].creates && mib == steps[i].mib,
                  "%s: %d chunks created, %d MiB mapped; expected %d and %d", steps[i].what, (int)made, (int)mib,
                  (int)steps[i].creates, (int)steps[i].mib);
        }
        check_all(a, 4, "the first of 30 MiB");
        check_all(b, 3, "the second of 30 MiB");
        CHECK(soft->faults() == 0, "a fault in the software driver: %s", soft->fault_text());
        ctrt_tensor_release(&a);
        ctrt_tensor_release(&b);
        ctrt_tensor_release(&small);
        close_clean("pieces");
    }
    CHILD_END;
}

static void test_cannot(void)
{
    group("CTRT_CUDA_POOL=yes fails without driver support, and CTRT_CUDA_SHARE=yes overrides it with a warning");
    IN_CHILD("SOFTCUDA=devices=1,pools=no", ORDERED) {
        ctrt_device *device = NULL;
        CHECK_FAILS(ctrt_device_get(&device, "cuda:0"), CTRT_ERR_NOT_SUPPORTED, "CTRT_CUDA_POOL=yes, but the driver has no pools of memory there");
    }
    CHILD_END;
    IN_CHILD("SOFTCUDA=devices=1", ORDERED, "CTRT_CUDA_SHARE=yes") {
        ctrt_log_set_callback(keep_log, NULL);
        ctrt_device *device = open_device();
        CHECK(strstr(logged, "CTRT_CUDA_SHARE=yes wins over CTRT_CUDA_POOL=yes") != NULL, "the log has \"%s\"", logged);
        check_chain("shared", device);
        CHECK(soft->calls("cuMemPoolCreate") == 0 && soft->calls("cuMemAllocFromPoolAsync") == 0, "a pool was used");
    }
    CHILD_END;
    IN_CHILD("SOFTCUDA=devices=1", "CTRT_MEMORY=direct") {
        ctrt_device *device = open_device();
        check_chain("plain", device);
        CHECK(soft->calls("cuMemPoolCreate") == 0 && soft->calls("cuMemAlloc") > 0,
              "a pool was used without CTRT_CUDA_POOL");
    }
    CHILD_END;
}

static void test_capture(void)
{
    group("captures allocate outside the pool, delay frees until the capture ends, and replay correctly");
    IN_CHILD("SOFTCUDA=devices=1,memory=256m,streams=error", ORDERED) {
        ctrt_tensor *x = NULL, *y = NULL, *old = NULL;
        ctrt_graph *graph = NULL;
        ctrt_device *device = open_device();
        double value = 0;
        CHECK_OK(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_float(1), CTRT_F32, device));
        CHECK_OK(ctrt_full(&old, CTRT_SHAPE(MIB), ctrt_float(1), CTRT_F32, device));
        const int64_t frees = soft->calls("cuMemFreeAsync");
        CHECK_OK(ctrt_capture_begin(device));
        ctrt_tensor_release(&old);
        CHECK(soft->calls("cuMemFreeAsync") == frees, "a free was captured");
        CHECK_OK(ctrt_add_scalar(&y, x, ctrt_float(1)));
        CHECK_OK(ctrt_mul(&y, y, y));
        CHECK_OK(ctrt_capture_end(&graph, device));
        CHECK(soft->calls("cuMemFreeAsync") == frees + 1, "%d blocks were freed at the end of the capture",
              (int)(soft->calls("cuMemFreeAsync") - frees));
        for (int i = 0; i < 3; i++) {
            CHECK_OK(ctrt_fill_(x, ctrt_float(i)));
            CHECK_OK(ctrt_capture_replay(graph));
            CTRT_AUTO(tensor) sum = NULL;
            CHECK_OK(ctrt_mean(&sum, y, CTRT_ALL_DIMS));
            CHECK_OK(ctrt_item(&value, sum));
            CHECK(value == (i + 1) * (i + 1), "the replayed mean is %g, expected %d", value, (i + 1) * (i + 1));
            check_chain("between replays", device);
        }
        ctrt_tensor_release(&y);
        ctrt_graph_release(&graph);
        ctrt_tensor_release(&x);
        close_clean("capture");
    }
    CHILD_END;
}

/* ---- failures ---- */

static void one_fails(const char *name, bool opening)
{
    IN_CHILD("SOFTCUDA=devices=1,memory=64m", ORDERED) {
        ctrt_device *device = NULL;
        ctrt_tensor *x = NULL, *y = NULL;
        ctrt_graph *graph = NULL;
        double value = 0;
        ctrt_log_set_callback(keep_log, NULL);
        (void)ctrt_is_available("cuda", NULL);
        soft = soft_control();
        if (opening) {
            soft->inject(name, 1, 999, false);
            CHECK_FAILS(ctrt_device_get(&device, "cuda:0"), CTRT_ERR_BACKEND, "pool");
            CHECK(soft->live_bytes(0) == 0 && soft->live_handles("pool") == 0 && soft->live_handles("stream") == 0,
                  "%s: memory, pools or streams were not freed", name);
        }
        device = open_device();
        CHECK_OK(ctrt_full(&x, CTRT_SHAPE(16), ctrt_float(1), CTRT_F32, device));
        if (!opening)
            soft->inject(name, soft->calls(name) + 1, 999, false);
        (void)chain(&value, device);
        (void)ctrt_capture_begin(device);
        (void)ctrt_add_scalar(&y, x, ctrt_float(1));
        (void)ctrt_capture_end(&graph, device);
        ctrt_graph_release(&graph);
        ctrt_tensor_release(&y);
        (void)ctrt_memory_empty_cache(device);
        CHECK(opening || soft->calls(name) > 0, "%s was not called", name);
        CHECK(opening || ctrt_error_message()[0] != '\0' || logged[0] != '\0', "%s: no error message and no log line",
              name);
        soft->inject_clear();
        check_chain(name, device);
        ctrt_tensor_release(&x);
        CHECK_OK(ctrt_shutdown());
    }
    CHILD_END;
}

static void test_failures(void)
{
    static const char *const opening[] = { "cuMemPoolCreate", "cuMemPoolSetAttribute" };
    static const char *const later[] = { "cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemPoolTrimTo" };
    group("one failure of each pool function is reported, and later calls succeed");
    for (size_t i = 0; i < sizeof opening / sizeof opening[0]; i++)
        one_fails(opening[i], true);
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        one_fails(later[i], false);
}

TEST_MAIN
{
    soft_begin(argv);
    if (getenv("CTRT_TEST_GPU") != NULL)
        skip_rest("the counters of the software driver are not available");
    test_order();
    test_memory();
    test_pieces();
    test_cannot();
    test_capture();
    test_failures();
    return done();
}
