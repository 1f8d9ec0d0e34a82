/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the devices of the cuda backend with a software driver and a software NVML (tests/softcuda): queries before
 * CUDA is initialized, fork, which devices get a context, and usage values. */
#include <pthread.h>

#include "soft_begin.h"

#define INITS()    calls("cuInit")
#define CONTEXTS() calls("cuDevicePrimaryCtxRetain")

/* Copies 64 Ki values to the device and back. */
static ctrt_status copy_there_and_back(const char *name, double *sum)
{
    CTRT_AUTO(tensor) x = NULL;
    TRY(ctrt_device_get(&gpu, name), ctrt_device_get(&cpu, "cpu"),
        ctrt_full(&x, CTRT_SHAPE(1 << 16), ctrt_float(0.5), CTRT_F32, cpu), ctrt_to_device(&x, x, gpu),
        ctrt_to_device(&x, x, cpu), ctrt_sum(&x, x, CTRT_ALL_DIMS));
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
        ctrt_device_properties facts;
        ctrt_usage usage;
        ctrt_link link;
        const char *why = "?";
        CHECK(ctrt_is_available("cuda", &why) && why[0] == '\0', "not available: %s", why);
        CHECK_EQ(ctrt_device_count("cuda"), 3);
        OK(ctrt_device_get_properties(&facts, "cuda:2"), ctrt_device_get_usage(&usage, "cuda:1"),
           ctrt_device_get_link(&link, "cuda:0", "cuda:1"));
        EQUALS((link.direct, 1), (INITS(), 0), (CONTEXTS(), 0));
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
            ctrt_device_properties facts;
            FAILS(FORKED, (ctrt_device_get(&device, "cuda:0"), words), (ctrt_device_get(&device, "cuda:1"), words));
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
        ctrt_usage usage;
        ctrt_device_properties facts;
        (void)ctrt_device_count("cuda");
        OK(ctrt_device_get_usage(&usage, "cuda:0"), ctrt_device_get_properties(&facts, "cuda:1"));
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
                ctrt_usage usage;
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
                ctrt_device_properties facts;
                const char *name = k == 0 ? "cuda:0" : "cuda:1";
                use(name);
                CHECK_OK(ctrt_device_get_properties(&facts, name));
                CHECK_STR(facts.pci, c->pci[k]);
            }
        }

    group("hidden and unused devices get no context");
    IN_SOFT_CHILD("SOFTCUDA=devices=4", "CUDA_VISIBLE_DEVICES=3,1,2") {
        ctrt_device_properties facts;
        OK(ctrt_device_get_properties(&facts, "cuda:0"), ctrt_device_get_properties(&facts, "cuda:2"));
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
        ctrt_usage usage;
        ctrt_process list[4];
        size_t count = 0;
        char *table = NULL;
        ctrt_device_spec picked;
        CTRT_AUTO(tensor) x = NULL;
        CHECK_OK(ctrt_show_utilization(&table, NULL, false));
        CHECK_STR(table, "| ID | GPU | MEM |\n------------------\n|  0 |  0% |  2% |\n|  1 |  0% | 50% |\n");
        CHECK_EQ(INITS(), 0);
        free(table);
        CHECK_OK(ctrt_pick_devices(&picked, &count, 1, &(ctrt_pick_options){ .order = CTRT_PICK_LAST }));
        EQUALS((count, 1), (picked.index, 0));
        CHECK_STR(picked.type, "cuda");
        OK(ctrt_device_get(&gpu, "cuda:0"), ctrt_empty(&x, CTRT_SHAPE(16 * MIB), CTRT_F32, gpu),
           ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK_TRUE(usage.used_memory >= 17 << 20);
        EQUALS((usage.used_memory + usage.free_memory, usage.total_memory), (usage.temperature, 30), (usage.power, 70),
               (usage.power_limit, 700), (usage.clock_khz, 345000), (usage.processes, 2));
        CHECK_OK(ctrt_device_get_processes(list, &count, 4, "cuda:0"));
        CHECK_EQ(count, 2);
        CHECK_TRUE(list[0].pid == getpid() && list[0].memory >= 16 << 20);
        CHECK_TRUE(list[1].pid == 77 && list[1].memory == 1 << 20);
        CHECK_OK(ctrt_device_get_processes(list, &count, 4, "cuda:1"));
        EQUALS((count, 1), (list[0].pid, 4242));
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

    group("a forked child initializes NVML itself");
    IN_SOFT_CHILD("SOFTCUDA=devices=1,memory=64m") {
        ctrt_usage usage;
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        IN_FORK {
            CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
            use("cuda:0");
            CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
            CHECK_EQ(usage.processes, 1);
        }
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK_EQ(usage.processes, 0);
    }

    group("shutdown frees all device memory, and the device can be opened again");
    IN_SOFT_CHILD("SOFTCUDA=devices=1,memory=64m") {
        ctrt_usage usage;
        use("cuda:0");
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK_TRUE(usage.used_memory > 0);
        CHECK_EQ(usage.processes, 1);
        OK(ctrt_shutdown(), ctrt_device_get_usage(&usage, "cuda:0"));
        EQUALS((usage.used_memory, 0), (usage.processes, 0));
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

TEST_MAIN
{
    unsetenv("CTRT_TEST_GPU");          /* use only the software driver */
    soft_begin(argv);
    return run_tests();
}
