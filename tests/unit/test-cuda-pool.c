/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory of the cuda backend (CTRT_CUDA_POOL) on the software driver, which detects unordered uses of
 * memory. Tests waits between streams, trimming of the pool, graph capture and devices without pools.
 * test-cuda-faults.c tests a failure of each driver function that the pool calls. */
#include "log_kept.h"
#include "soft_begin.h"

#define ORDERED "CTRT_CUDA_POOL=yes", "CTRT_MEMORY=direct"

/* Runs a chain of ops with temporaries; *value is 40. */
static ctrt_status chain(double *value)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CTRT_TRY(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_float(1), CTRT_F32, gpu));
    for (int i = 0; i < 10; i++) {
        TRY(ctrt_add_scalar(&y, x, ctrt_float(3)), ctrt_add_scalar(&x, y, ctrt_float(0.9)));
    }
    CTRT_TRY(ctrt_mean(&x, x, CTRT_ALL_DIMS));
    return ctrt_item(value, x);
}

static void check_chain(const char *what)
{
    double value = 0;
    if (CHECK_OK(chain(&value)))
        CHECK(value > 39.999 && value < 40.001, "%s: the result is %g, expected 40", what, value);
}

static int64_t waits(void)
{
    return calls("cuStreamSynchronize") + calls("cuEventSynchronize") + calls("cuCtxSynchronize");
}

TEST(order, "blocks are allocated from and freed to the pool in stream order, without host waits")
{
    IN_CUDA_CHILD("SOFTCUDA=devices=1,memory=64m,streams=error,late=200us", ORDERED) {
        ctrt_tensor *x = NULL, *y = NULL;
        check_chain("first");
        const int64_t waited = waits(), allocs = calls("cuMemAllocFromPoolAsync"), others = calls("cuMemAlloc");
        CHECK_OK(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_float(1), CTRT_F32, gpu));
        for (int i = 0; i < 50; i++) {
            OK(ctrt_exp(&y, x), ctrt_log(&x, y));
        }
        EQUALS((waits(), waited), (calls("cuMemAllocFromPoolAsync"), allocs + 101), (calls("cuMemAlloc"), others));
        RELEASE(x, y);
        close_clean("order");
    }

    group("a block allocated on one stream, written on a second and freed on a third is ordered on the device");
    IN_CUDA_CHILD("SOFTCUDA=devices=1,memory=64m,streams=error,late=500us,free=strict", ORDERED) {
        ctrt_stream *a = NULL, *b = NULL;
        double value = 0;
        OK(ctrt_stream_new(&a, gpu, 0), ctrt_stream_new(&b, gpu, 0));
        for (int i = 0; i < 20; i++) {
            CTRT_AUTO(tensor) x = NULL, y = NULL;
            OK(ctrt_stream_push(i % 2 == 0 ? a : b), ctrt_empty(&x, CTRT_SHAPE(1 << 16), CTRT_F32, gpu),
               ctrt_stream_pop(), ctrt_fill_(x, ctrt_float(i)), ctrt_stream_push(i % 2 == 0 ? b : a),
               ctrt_sum(&y, x, CTRT_ALL_DIMS));
            ctrt_tensor_release(&x);
            OK(ctrt_stream_pop(), ctrt_item(&value, y));
            CHECK_EQ(value, i * 65536.0);
        }
        no_faults();
        ctrt_stream_release(&a);
        ctrt_stream_release(&b);
        close_clean("streams");
    }
}

TEST(memory, "cached pool memory is released when memory runs out and by ctrt_memory_empty_cache")
{
    IN_CUDA_CHILD("SOFTCUDA=devices=1,memory=64m", ORDERED) {
        ctrt_tensor *a = NULL, *b = NULL;
        ctrt_stream *side = NULL;
        const uint64_t before = soft->live_bytes(0);
        OK(ctrt_stream_new(&side, gpu, 0), ctrt_empty(&a, CTRT_SHAPE(40 * MIB), CTRT_F32, gpu));
        CHECK_FAILS(ctrt_empty(&b, CTRT_SHAPE(40 * MIB), CTRT_F32, gpu), CTRT_ERR_OUT_OF_MEMORY, "cuda:0");
        OK(ctrt_stream_push(side), ctrt_empty(&b, CTRT_SHAPE(10 * MIB), CTRT_F32, gpu), ctrt_stream_pop());
        RELEASE(b, a);
        CHECK_OK(ctrt_empty(&a, CTRT_SHAPE(60 * MIB), CTRT_F32, gpu));
        ctrt_tensor_release(&a);
        CHECK_OK(ctrt_device_synchronize(gpu));
        CHECK_TRUE(soft->live_bytes(0) >= before + (60 << 20));           /* the pool kept them */
        CHECK_OK(ctrt_memory_empty_cache(gpu));
        CHECK_EQ(soft->live_bytes(0), before);
        check_chain("after");
        ctrt_stream_release(&side);
        close_clean("memory");
    }

    group("segments of caching come from the pool, expandable segments from mapped pages");
    for (int pages = 0; pages < 2; pages++)
        IN_CUDA_CHILD("CTRT_CUDA_POOL=yes", pages ? "CTRT_MEMORY=caching:expandable=true" : "CTRT_MEMORY=caching",
                      "SOFTCUDA=devices=1,streams=error") {
            check_chain("caching");
            EQUALS((calls("cuMemAllocFromPoolAsync") > 0, !pages), (calls("cuMemCreate") > 0, pages));
            close_clean("caching");
        }
}

static void check_all(ctrt_tensor *x, double want, const char *what)
{
    double low = 0, high = 0;
    CTRT_AUTO(tensor) y = NULL;
    OK(ctrt_amin(&y, x, CTRT_ALL_DIMS, false), ctrt_item(&low, y), ctrt_amax(&y, x, CTRT_ALL_DIMS, false),
       ctrt_item(&high, y));
    CHECK(low == want && high == want, "%s: %g to %g, expected %g", what, low, high, want);
}

/* Checks what was created and mapped since the device had `creates` chunks and `bytes` bytes. */
static void check_chunks(int64_t creates, int64_t bytes, int chunks, int mib)
{
    const int made = (int)(calls("cuMemCreate") - creates),
        mapped = (int)(((int64_t)soft->live_bytes(0) - bytes) >> 20);
    CHECK(made == chunks && mapped == mib, "%d chunks created, %d MiB mapped; expected %d and %d", made, mapped,
          chunks, mib);
}

TEST(pieces, "expandable segments map memory in chunks of 20 MiB and unmap chunks that are entirely free")
{
    IN_CUDA_CHILD("CTRT_MEMORY=caching:expandable=true", "SOFTCUDA=devices=1,memory=1g") {
        CTRT_AUTO(tensor) x = NULL, a = NULL, b = NULL, small = NULL;
        CHECK_OK(ctrt_ones(&small, CTRT_SHAPE(4), CTRT_F32, gpu));       /* a chunk of the small pool */
        check_all(small, 1, "a small block");
        const int64_t creates = calls("cuMemCreate"), bytes = (int64_t)soft->live_bytes(0);
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(200 * MIB), CTRT_F32, gpu));
        check_chunks(creates, bytes, 10, 200);
        OK(ctrt_full(&a, CTRT_SHAPE(30 * MIB), ctrt_float(2), CTRT_F32, gpu),
           ctrt_full(&b, CTRT_SHAPE(30 * MIB), ctrt_float(3), CTRT_F32, gpu));
        check_chunks(creates, bytes, 13, 260);
        ctrt_tensor_release(&a);                                        /* shares a chunk with the other block */
        CHECK_OK(ctrt_memory_empty_cache(gpu));
        check_chunks(creates, bytes, 13, 240);
        CHECK_OK(ctrt_full(&a, CTRT_SHAPE(30 * MIB), ctrt_float(4), CTRT_F32, gpu));
        check_chunks(creates, bytes, 14, 260);
        ctrt_tensor_release(&x);
        CHECK_OK(ctrt_memory_empty_cache(gpu));
        check_chunks(creates, bytes, 14, 60);
        check_all(a, 4, "the first of 30 MiB");
        check_all(b, 3, "the second of 30 MiB");
        no_faults();
        RELEASE(a, b, small);
        close_clean("pieces");
    }
}

TEST(cannot, "CTRT_CUDA_POOL=yes fails without driver support, and CTRT_CUDA_SHARE=yes overrides it with a warning")
{
    IN_CHILD("SOFTCUDA=devices=1,pools=no", ORDERED) {
        CHECK_FAILS(ctrt_device_get(&gpu, "cuda:0"), CTRT_ERR_NOT_SUPPORTED,
                    "CTRT_CUDA_POOL=yes, but the driver has no memory pools on this device");
    }
    IN_CHILD("SOFTCUDA=devices=1", ORDERED, "CTRT_CUDA_SHARE=yes") {
        log_keep(CTRT_LOG_WARNING);
        if (soft_open("cuda:0")) {
            CHECK_HAS(logged, "CTRT_CUDA_SHARE=yes overrides CTRT_CUDA_POOL=yes");
            check_chain("shared");
            CHECK_EQ(calls("cuMemPoolCreate") + calls("cuMemAllocFromPoolAsync"), 0);
        }
    }
    IN_CUDA_CHILD("SOFTCUDA=devices=1", "CTRT_MEMORY=direct") {
        check_chain("plain");
        CHECK_EQ(calls("cuMemPoolCreate"), 0);
        CHECK_TRUE(calls("cuMemAlloc") > 0);
    }
}

TEST(captures, "captures allocate outside the pool, delay frees until the capture ends, and replay correctly")
{
    IN_CUDA_CHILD("SOFTCUDA=devices=1,memory=256m,streams=error", ORDERED) {
        ctrt_tensor *x = NULL, *y = NULL, *old = NULL;
        ctrt_graph *graph = NULL;
        double value = 0;
        OK(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_float(1), CTRT_F32, gpu),
           ctrt_full(&old, CTRT_SHAPE(MIB), ctrt_float(1), CTRT_F32, gpu));
        const int64_t frees = calls("cuMemFreeAsync");
        CHECK_OK(ctrt_capture_begin(gpu));
        ctrt_tensor_release(&old);
        CHECK_EQ(calls("cuMemFreeAsync"), frees);
        OK(ctrt_add_scalar(&y, x, ctrt_float(1)), ctrt_mul(&y, y, y), ctrt_capture_end(&graph, gpu));
        CHECK_EQ(calls("cuMemFreeAsync"), frees + 1);
        for (int i = 0; i < 3; i++) {
            OK(ctrt_fill_(x, ctrt_float(i)), ctrt_capture_replay(graph));
            CTRT_AUTO(tensor) sum = NULL;
            OK(ctrt_mean(&sum, y, CTRT_ALL_DIMS), ctrt_item(&value, sum));
            CHECK_EQ(value, (double)((i + 1) * (i + 1)));
            check_chain("between replays");
        }
        ctrt_tensor_release(&y);
        ctrt_graph_release(&graph);
        ctrt_tensor_release(&x);
        close_clean("capture");
    }
}

TEST_MAIN
{
    soft_begin(argv);
    if (getenv("CTRT_TEST_GPU") != NULL)
        return skip_rest("the counters of the software driver are not available");
    return run_tests();
}
