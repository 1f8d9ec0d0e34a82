/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the devices of the cuda backend with a software driver and a software NVML (tests/softcuda): queries before
 * CUDA is initialized, fork, which devices get a context, and usage values. Tests stream-ordered memory
 * (CTRT_CUDA_POOL): waits between streams, trimming of the pool, graph capture and devices without pools.
 * test-cuda-faults.c tests a failure of each driver function. */
#include <pthread.h>

#include "../options.h"
#include "log_kept.h"
#include "soft_begin.h"

#define INITS()    calls("cuInit")
#define CONTEXTS() calls("cuDevicePrimaryCtxRetain")

/* Copies 64 Ki values to the device and back. */
static ctrt_status copy_there_and_back(const char *name, double *sum)
{
    CTRT_AUTO(tensor) x = NULL;
    TRY(ctrt_device_get(&gpu, name));
    TRY(ctrt_device_get(&cpu, "cpu"));
    TRY(ctrt_full(&x, CTRT_SHAPE(1 << 16), ctrt_float(0.5), CTRT_F32, cpu));
    TRY(ctrt_to_device(&x, x, gpu));
    TRY(ctrt_to_device(&x, x, cpu));
    TRY(ctrt_sum(&x, x, CTRT_ALL_DIMS));
    return ctrt_item(sum, x);
}

/* Checks that the device works. */
static void use(const char *name)
{
    double sum = 0;
    if (CHECK_OK(copy_there_and_back(name, &sum)))
        CHECK(sum == 32768, "%s: the sum is %g, expected 32768", name, sum);
}

TEST(questions, "count, properties, usage and links do not initialize CUDA, so a forked child can use it")
{
    IN_SOFT_CHILD("SOFTCUDA=devices=3,memory=64m") {
        ctrt_device_properties facts = CTRT_DEVICE_PROPERTIES;
        ctrt_usage usage = CTRT_USAGE;
        ctrt_link link = CTRT_LINK;
        const char *why = "?";
        CHECK(ctrt_is_available("cuda", &why) && why[0] == '\0', "not available: %s", why);
        CHECK_EQ(ctrt_device_count("cuda"), 3);
        CHECK_OK(ctrt_device_get_properties(&facts, "cuda:2"));
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:1"));
        CHECK_OK(ctrt_device_get_link(&link, "cuda:0", "cuda:1"));
        CHECK_EQ(link.direct, 1);
        CHECK_EQ(INITS(), 0);
        CHECK_EQ(CONTEXTS(), 0);
        for (int i = 0; i < 2; i++)
            IN_FORK {
                use(i == 0 ? "cuda:2" : "cuda:0");
            }
        CHECK_EQ(INITS(), 0);
        use("cuda:1");
        CHECK_EQ(INITS(), 1);
    }

    group("fork after use: the child gets an error, and the parent still works");
    IN_SOFT_CHILD("SOFTCUDA=devices=2,memory=64m") {
        use("cuda:0");
        char words[64];
        snprintf(words, sizeof words, "process %d ", (int)getpid());
        IN_FORK {
            ctrt_device *device = NULL;
            ctrt_device_properties facts = CTRT_DEVICE_PROPERTIES;
            CHECK_FAILS(ctrt_device_get(&device, "cuda:0"), CTRT_ERR_FORKED, words);
            CHECK_FAILS(ctrt_device_get(&device, "cuda:1"), CTRT_ERR_FORKED, words);
            CHECK_EQ(ctrt_device_count("cuda"), 2);
            CHECK_OK(ctrt_device_get_properties(&facts, "cuda:1"));
        }
        use("cuda:0");
        use("cuda:1");
    }
}

static atomic_bool enough;

static void *ask_all_the_time(void *unused)
{
    while (!atomic_load(&enough)) {
        ctrt_usage usage = CTRT_USAGE;
        ctrt_device_properties facts = CTRT_DEVICE_PROPERTIES;
        (void)ctrt_device_count("cuda");
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK_OK(ctrt_device_get_properties(&facts, "cuda:1"));
    }
    return unused;
}

TEST(threads, "fork while other threads query devices: the children can query too")
{
    if (!forks_beside_threads())
        return;
    IN_CHILD("SOFTCUDA=devices=2,memory=64m") {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&threads[i], NULL, ask_all_the_time, NULL) == 0, "cannot create a thread");
        for (int i = 0; i < 40; i++)
            IN_FORK {
                ctrt_usage usage = CTRT_USAGE;
                alarm(120);
                CHECK_OK(ctrt_device_get_usage(&usage, "cuda:1"));
                if (i % 8 == 0)
                    use("cuda:1");
            }
        atomic_store(&enough, true);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    }
}

TEST(facts, "CUDA_VISIBLE_DEVICES and CTRT_VISIBLE_DEVICES select and order devices by UUID")
{
    static const struct { const char *cuda, *ctrt; int count; const char *pci[2]; } lists[] = {
        { "CUDA_VISIBLE_DEVICES=2,0", NULL, 2, { "0000:3b:00.0", "0000:1b:00.0" } },
        { "CUDA_VISIBLE_DEVICES=GPU-81,GPU-70", "CTRT_VISIBLE_DEVICES=GPU-70", 1, { "0000:2b:00.0" } },
    };
    EACH(c, lists)
        IN_CHILD("SOFTCUDA=devices=3", c->cuda, c->ctrt) {
            CHECK_EQ(ctrt_device_count("cuda"), c->count);
            for (int k = 0; k < c->count; k++) {
                ctrt_device_properties facts = CTRT_DEVICE_PROPERTIES;
                const char *name = k == 0 ? "cuda:0" : "cuda:1";
                use(name);
                CHECK_OK(ctrt_device_get_properties(&facts, name));
                CHECK_STR(facts.pci, c->pci[k]);
            }
        }

    group("hidden and unused devices get no context");
    IN_SOFT_CHILD("SOFTCUDA=devices=4", "CUDA_VISIBLE_DEVICES=3,1,2") {
        ctrt_device_properties facts = CTRT_DEVICE_PROPERTIES;
        CHECK_OK(ctrt_device_get_properties(&facts, "cuda:0"));
        CHECK_OK(ctrt_device_get_properties(&facts, "cuda:2"));
        use("cuda:1");
        CHECK_EQ(CONTEXTS(), 1);
        CHECK_TRUE(soft->context_active(1) && !soft->context_active(0) && !soft->context_active(2));
        CHECK_EQ(soft->live_bytes(0) + soft->live_bytes(2), 0);
    }
}

TEST(usage, "memory, processes and the utilization table as in nvidia-smi")
{
    IN_SOFT_CHILD("SOFTCUDA=devices=2,memory=64m", "SOFTNVML_PROCESSES=1:4242:33554432,0:77:1048576",
                  "CTRT_MEMORY=direct") {
        ctrt_usage usage = CTRT_USAGE;
        ctrt_process list[4];
        size_t count = 0;
        char *table = NULL;
        ctrt_device_spec picked;
        CTRT_AUTO(tensor) x = NULL;
        CHECK_OK(ctrt_show_utilization(&table, NULL, false));
        CHECK_STR(table, "| ID | GPU | MEM |\n------------------\n|  0 |  0% |  2% |\n|  1 |  0% | 50% |\n");
        CHECK_EQ(INITS(), 0);
        free(table);
        CHECK_OK(ctrt_pick_devices(&picked, &count, 1, PICK(.order = CTRT_PICK_LAST)));
        CHECK_EQ(count, 1);
        CHECK_EQ(picked.index, 0);
        CHECK_STR(picked.type, "cuda");
        CHECK_OK(ctrt_device_get(&gpu, "cuda:0"));
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(16 * MIB), CTRT_F32, gpu));
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK_TRUE(usage.used_memory >= 17 << 20);
        CHECK_EQ(usage.used_memory + usage.free_memory, usage.total_memory);
        CHECK_EQ(usage.temperature, 30);
        CHECK_EQ(usage.power, 70);
        CHECK_EQ(usage.power_limit, 700);
        CHECK_EQ(usage.clock_khz, 345000);
        CHECK_EQ(usage.processes, 2);
        CHECK_OK(ctrt_device_get_processes(list, &count, 4, "cuda:0"));
        CHECK_EQ(count, 2);
        CHECK_TRUE(list[0].pid == getpid() && list[0].memory >= 16 << 20);
        CHECK_TRUE(list[1].pid == 77 && list[1].memory == 1 << 20);
        CHECK_OK(ctrt_device_get_processes(list, &count, 4, "cuda:1"));
        CHECK_EQ(count, 1);
        CHECK_EQ(list[0].pid, 4242);
    }

    group("an out-of-memory error names the process with the most memory");
    IN_SOFT_CHILD("SOFTCUDA=devices=1,memory=64m", "SOFTNVML_PROCESSES=0:99990077:1048576,0:99994242:33554432",
                  "CTRT_MEMORY=direct") {
        CTRT_AUTO(tensor) x = NULL;
        unsigned long long address;
        int (*alloc)(unsigned long long *, size_t) = NULL;
        char *report = NULL;
        *(void **)&alloc = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuMemAlloc_v2");
        CHECK_OK(ctrt_device_get(&gpu, "cuda:0"));
        CHECK_OK(ctrt_device_synchronize(gpu));         /* makes the device's context current in this thread */
        CHECK_TRUE(alloc != NULL && alloc(&address, 40 << 20) == 0);
        CHECK_FAILS(ctrt_empty(&x, CTRT_SHAPE(32 * MIB), CTRT_F32, gpu), CTRT_ERR_OUT_OF_MEMORY,
                    "(most by process 99994242: 32.00 MiB)");
        CHECK_OK(ctrt_memory_last_oom(&report, gpu));
        CHECK_HAS(report, "\"processes\": [\n    {\"pid\": 99994242, \"memory\": 33554432, \"name\": \"\"},\n    "
                          "{\"pid\": 99990077,");
        free(report);
    }

    group("a forked child initializes NVML itself; shutdown frees all memory, and the device can be opened again");
    IN_SOFT_CHILD("SOFTCUDA=devices=1,memory=64m") {
        ctrt_usage usage = CTRT_USAGE;
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        IN_FORK {
            CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
            use("cuda:0");
            CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
            CHECK_EQ(usage.processes, 1);
        }
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK_EQ(usage.processes, 0);
        use("cuda:0");
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK_TRUE(usage.used_memory > 0);
        CHECK_EQ(usage.processes, 1);
        CHECK_OK(ctrt_shutdown());
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK_EQ(usage.used_memory, 0);
        CHECK_EQ(usage.processes, 0);
        CHECK_TRUE(!soft->context_active(0));
        use("cuda:0");
    }
}

TEST(reasons, "the reason for a missing device is reported, and auto selects the cpu")
{
    static const struct { const char *soft, *visible, *words; ctrt_status status; } cases[] = {
        { "SOFTCUDA=version=11040", "CUDA_DEVICE_ORDER=", "[driver-too-old]", CTRT_ERR_NOT_SUPPORTED },
        { "SOFTCUDA=devices=2", "CUDA_VISIBLE_DEVICES=-1", "[hidden] CUDA_VISIBLE_DEVICES=-1 hides all 2",
          CTRT_ERR_NO_DEVICE },
        { "SOFTCUDA=devices=1", "CUDA_DEVICE_ORDER=", "cuda:0: [busy]", CTRT_ERR_NO_DEVICE },
    };
    EACH(c, cases)
        IN_SOFT_CHILD(c->soft, c->visible) {
            ctrt_device *device = NULL;
            const char *why = "";
            const bool late = strstr(c->words, "[busy]") != NULL;
            if (late)
                soft->inject("cuDevicePrimaryCtxRetain", 1, 46, false);
            CHECK_EQ(ctrt_is_available("cuda", &why), late);
            CHECK(late || strstr(why, c->words) != NULL, "%s: why: %s", c->words, why);
            CHECK_FAILS(ctrt_device_get(&device, "cuda:0"), c->status, c->words);
            CHECK(device == NULL, "the failed call set the device");
            if (!late) {
                CHECK_EQ(ctrt_device_count("cuda"), 0);
                CHECK_OK(ctrt_device_auto(&device));
                CHECK_STR(ctrt_device_name(device), "cpu");
            }
        }
}

/* ---- stream-ordered memory; the software driver detects unordered uses ---- */

#define ORDERED "CTRT_CUDA_POOL=yes", "CTRT_MEMORY=direct"

/* Runs a chain of ops with temporaries; *value is 40. */
static ctrt_status chain(double *value)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CTRT_TRY(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_float(1), CTRT_F32, gpu));
    for (int i = 0; i < 10; i++) {
        TRY(ctrt_add_scalar(&y, x, ctrt_float(3)));
        TRY(ctrt_add_scalar(&x, y, ctrt_float(0.9)));
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
            CHECK_OK(ctrt_exp(&y, x));
            CHECK_OK(ctrt_log(&x, y));
        }
        CHECK_EQ(waits(), waited);
        CHECK_EQ(calls("cuMemAllocFromPoolAsync"), allocs + 101);
        CHECK_EQ(calls("cuMemAlloc"), others);
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&y);
        close_clean("order");
    }

    group("a block allocated on one stream, written on a second and freed on a third is ordered on the device");
    IN_CUDA_CHILD("SOFTCUDA=devices=1,memory=64m,streams=error,late=500us,free=strict", ORDERED) {
        ctrt_stream *a = NULL, *b = NULL;
        double value = 0;
        CHECK_OK(ctrt_stream_new(&a, gpu, 0));
        CHECK_OK(ctrt_stream_new(&b, gpu, 0));
        for (int i = 0; i < 20; i++) {
            CTRT_AUTO(tensor) x = NULL, y = NULL;
            CHECK_OK(ctrt_stream_push(i % 2 == 0 ? a : b));
            CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(1 << 16), CTRT_F32, gpu));
            CHECK_OK(ctrt_stream_pop());
            CHECK_OK(ctrt_fill_(x, ctrt_float(i)));
            CHECK_OK(ctrt_stream_push(i % 2 == 0 ? b : a));
            CHECK_OK(ctrt_sum(&y, x, CTRT_ALL_DIMS));
            ctrt_tensor_release(&x);
            CHECK_OK(ctrt_stream_pop());
            CHECK_OK(ctrt_item(&value, y));
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
        CHECK_OK(ctrt_stream_new(&side, gpu, 0));
        CHECK_OK(ctrt_empty(&a, CTRT_SHAPE(40 * MIB), CTRT_F32, gpu));
        CHECK_FAILS(ctrt_empty(&b, CTRT_SHAPE(40 * MIB), CTRT_F32, gpu), CTRT_ERR_OUT_OF_MEMORY, "cuda:0");
        CHECK_OK(ctrt_stream_push(side));
        CHECK_OK(ctrt_empty(&b, CTRT_SHAPE(10 * MIB), CTRT_F32, gpu));
        CHECK_OK(ctrt_stream_pop());
        ctrt_tensor_release(&b);
        ctrt_tensor_release(&a);
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
            CHECK_EQ(calls("cuMemAllocFromPoolAsync") > 0, !pages);
            CHECK_EQ(calls("cuMemCreate") > 0, pages);
            close_clean("caching");
        }
}

static void check_all(ctrt_tensor *x, double want, const char *what)
{
    double low = 0, high = 0;
    CTRT_AUTO(tensor) y = NULL;
    CHECK_OK(ctrt_amin(&y, x, CTRT_ALL_DIMS, false));
    CHECK_OK(ctrt_item(&low, y));
    CHECK_OK(ctrt_amax(&y, x, CTRT_ALL_DIMS, false));
    CHECK_OK(ctrt_item(&high, y));
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
        CHECK_OK(ctrt_full(&a, CTRT_SHAPE(30 * MIB), ctrt_float(2), CTRT_F32, gpu));
        CHECK_OK(ctrt_full(&b, CTRT_SHAPE(30 * MIB), ctrt_float(3), CTRT_F32, gpu));
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
        ctrt_tensor_release(&a);
        ctrt_tensor_release(&b);
        ctrt_tensor_release(&small);
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
        CHECK_OK(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_float(1), CTRT_F32, gpu));
        CHECK_OK(ctrt_full(&old, CTRT_SHAPE(MIB), ctrt_float(1), CTRT_F32, gpu));
        const int64_t frees = calls("cuMemFreeAsync");
        CHECK_OK(ctrt_capture_begin(gpu));
        ctrt_tensor_release(&old);
        CHECK_EQ(calls("cuMemFreeAsync"), frees);
        CHECK_OK(ctrt_add_scalar(&y, x, ctrt_float(1)));
        CHECK_OK(ctrt_mul(&y, y, y));
        CHECK_OK(ctrt_capture_end(&graph, gpu));
        CHECK_EQ(calls("cuMemFreeAsync"), frees + 1);
        for (int i = 0; i < 3; i++) {
            CHECK_OK(ctrt_fill_(x, ctrt_float(i)));
            CHECK_OK(ctrt_capture_replay(graph));
            CTRT_AUTO(tensor) sum = NULL;
            CHECK_OK(ctrt_mean(&sum, y, CTRT_ALL_DIMS));
            CHECK_OK(ctrt_item(&value, sum));
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
    unsetenv("CTRT_TEST_GPU");          /* use only the software driver */
    soft_begin(argv);
    return run_tests();
}
