/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the devices of the cuda backend with a software driver and a software NVML (tests/softcuda): queries before
 * CUDA is initialized, fork, which devices get a context, and usage values. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "child.h"
#include "soft_begin.h"
#include "tensors.h"

static const struct softcuda_control *soft;

/* Must run in a child process, before any other call of the library. */
static void find_control(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    soft = driver != NULL ? dlsym(driver, "softcuda_control") : NULL;
    if (!CHECK(soft != NULL, "no software driver: %s", dlerror()))
        exit(1);
}

#define INITS()    soft->calls("cuInit")
#define CONTEXTS() soft->calls("cuDevicePrimaryCtxRetain")

/* Copies 64 Ki values to the device and back. Returns whether they are correct. */
static bool use(const char *name)
{
    ctrt_device *device = NULL, *cpu = NULL;
    CTRT_AUTO(tensor) here = NULL, there = NULL, back = NULL, sum = NULL;
    double value = 0;
    if (ctrt_device_get(&device, name) != CTRT_OK || ctrt_device_get(&cpu, "cpu") != CTRT_OK)
        return false;
    return ctrt_full(&here, CTRT_SHAPE(1 << 16), ctrt_float(0.5), CTRT_F32, cpu) == CTRT_OK && ctrt_to_device(&there, here, device) == CTRT_OK
           && ctrt_to_device(&back, there, cpu) == CTRT_OK && ctrt_sum(&sum, back, CTRT_ALL_DIMS) == CTRT_OK && ctrt_item(&value, sum) == CTRT_OK
           && value == 32768;
}

/* Runs the block in a forked child of this process. */
#define FORKED                                              \
    do {                                                    \
        fflush(stdout);                                     \
        const pid_t forked_ = fork();                       \
        if (forked_ == 0) {                                 \
            tap_state.failed = 0;
#define FORKED_END                                          \
            fflush(stdout);                                 \
            _exit(tap_state.failed > 0);                    \
        }                                                   \
        child_join(forked_, __FILE__, __LINE__);            \
    } while (0)

static void test_questions(void)
{
    group("count, properties, usage and links do not initialize CUDA, so a forked child can use it");
    IN_CHILD("SOFTCUDA=devices=3,memory=64m") {
        ctrt_device_properties facts;
        ctrt_usage usage;
        ctrt_link link;
        const char *why = "?";
        find_control();
        CHECK(ctrt_is_available("cuda", &why) && why[0] == '\0', "not available: %s", why);
        CHECK(ctrt_device_count("cuda") == 3, "%d devices", ctrt_device_count("cuda"));
        CHECK_OK(ctrt_device_get_properties(&facts, "cuda:2"));
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:1"));
        CHECK_OK(ctrt_device_get_link(&link, "cuda:0", "cuda:1"));
        CHECK(link.direct == 1, "direct: %d", link.direct);
        CHECK(INITS() == 0 && CONTEXTS() == 0, "cuInit was called %d times, %d contexts were created", (int)INITS(),
              (int)CONTEXTS());
        for (int i = 0; i < 2; i++)
            FORKED {
                CHECK(use(i == 0 ? "cuda:2" : "cuda:0"), "%s", ctrt_error_message());
            }
            FORKED_END;
        CHECK(INITS() == 0, "cuInit was called in the parent");
        CHECK(use("cuda:1") && INITS() == 1, "%s", ctrt_error_message());
    }
    CHILD_END;

    group("fork after use: the child gets an error, and the parent still works");
    IN_CHILD("SOFTCUDA=devices=2,memory=64m") {
        find_control();
        CHECK(use("cuda:0"), "%s", ctrt_error_message());
        char words[64];
        snprintf(words, sizeof words, "process %d ", (int)getpid());
        FORKED {
            ctrt_device *device = NULL;
            ctrt_device_properties facts;
            CHECK_FAILS(ctrt_device_get(&device, "cuda:0"), CTRT_ERR_FORKED, words);
            CHECK_FAILS(ctrt_device_get(&device, "cuda:1"), CTRT_ERR_FORKED, words);
            CHECK(ctrt_device_count("cuda") == 2, "%d devices", ctrt_device_count("cuda"));
            CHECK_OK(ctrt_device_get_properties(&facts, "cuda:1"));
        }
        FORKED_END;
        CHECK(use("cuda:0") && use("cuda:1"), "%s", ctrt_error_message());
    }
    CHILD_END;

    group("without NVML the driver counts the devices");
    IN_CHILD("SOFTCUDA=devices=2,fail=nvmlInit_v2@1:9+") {
        ctrt_usage usage;
        find_control();
        CHECK(ctrt_device_count("cuda") == 2 && INITS() == 1, "%d devices, cuInit %d times", ctrt_device_count("cuda"), (int)INITS());
        CHECK(CONTEXTS() == 0, "the device count created a context");
        CHECK_FAILS(ctrt_device_get_usage(&usage, "cuda:0"), CTRT_ERR_BACKEND, "NVML does not tell its load (error 9)");
    }
    CHILD_END;
}

static atomic_bool enough;

static void *ask_all_the_time(void *unused)
{
    while (!atomic_load(&enough)) {
        ctrt_usage usage;
        ctrt_device_properties facts;
        (void)ctrt_device_count("cuda");
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK_OK(ctrt_device_get_properties(&facts, "cuda:1"));
    }
    return unused;
}

static void test_threads(void)
{
    group("fork while other threads query devices: the children can query too");
    if (!forks_beside_threads())
        return;
    IN_CHILD("SOFTCUDA=devices=2,memory=64m") {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&threads[i], NULL, ask_all_the_time, NULL) == 0, "cannot create a thread");
        for (int i = 0; i < 40; i++)
            FORKED {
                ctrt_usage usage;
                alarm(20);
                CHECK_OK(ctrt_device_get_usage(&usage, "cuda:1"));
                CHECK(i % 8 != 0 || use("cuda:1"), "%s", ctrt_error_message());
            }
            FORKED_END;
        atomic_store(&enough, true);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    }
    CHILD_END;
}

static void test_facts(void)
{
    group("properties are the same before and after a device is opened");
    IN_CHILD("SOFTCUDA=devices=2,memory=64m,sms=7,cc=8.0") {
        ctrt_device_properties before, after;
        memset(&before, 0, sizeof before);
        memset(&after, 0, sizeof after);
        find_control();
        CHECK_OK(ctrt_device_get_properties(&before, "cuda:1"));
        CHECK(use("cuda:0") && use("cuda:1"), "%s", ctrt_error_message());
        CHECK_OK(ctrt_device_get_properties(&after, "cuda:1"));
        CHECK(strcmp(before.name, after.name) == 0 && strcmp(before.uuid, after.uuid) == 0 && strcmp(before.pci, after.pci) == 0
              && strcmp(before.cpus, after.cpus) == 0, "%s %s %s %s; %s %s %s %s", before.name, before.uuid, before.pci, before.cpus, after.name,
              after.uuid, after.pci, after.cpus);
        CHECK(before.total_memory == after.total_memory && before.processors == 7 && after.processors == 7 && before.compute_major == 8
              && after.compute_major == 8 && before.clock_khz == after.clock_khz && before.ecc == after.ecc, "%llu, %llu bytes; %d, %d processors",
              (unsigned long long)before.total_memory, (unsigned long long)after.total_memory, before.processors, after.processors);
        CHECK(before.total_memory == 64 << 20, "%llu bytes", (unsigned long long)before.total_memory);
    }
    CHILD_END;

    group("CUDA_VISIBLE_DEVICES and CTRT_VISIBLE_DEVICES select and order devices by UUID");
    IN_CHILD("SOFTCUDA=devices=3", "CUDA_VISIBLE_DEVICES=2,0") {
        ctrt_device_properties facts;
        find_control();
        CHECK(ctrt_device_count("cuda") == 2, "%d devices", ctrt_device_count("cuda"));
        CHECK_OK(ctrt_device_get_properties(&facts, "cuda:0"));
        CHECK(strcmp(facts.pci, "0000:3b:00.0") == 0, "cuda:0 is %s", facts.pci);
        CHECK(use("cuda:0") && use("cuda:1"), "%s", ctrt_error_message());
        CHECK_OK(ctrt_device_get_properties(&facts, "cuda:1"));
        CHECK(strcmp(facts.pci, "0000:1b:00.0") == 0, "cuda:1 is %s", facts.pci);
    }
    CHILD_END;
    IN_CHILD("SOFTCUDA=devices=3", "CUDA_VISIBLE_DEVICES=GPU-81,GPU-70", "CTRT_VISIBLE_DEVICES=GPU-70") {
        ctrt_device_properties facts;
        CHECK(ctrt_device_count("cuda") == 1, "%d devices", ctrt_device_count("cuda"));
        CHECK_OK(ctrt_device_get_properties(&facts, "cuda:0"));
        CHECK(strcmp(facts.pci, "0000:2b:00.0") == 0 && use("cuda:0"), "cuda:0 is %s: %s", facts.pci, ctrt_error_message());
    }
    CHILD_END;

    group("hidden and unused devices get no context");
    IN_CHILD("SOFTCUDA=devices=4", "CUDA_VISIBLE_DEVICES=3,1,2") {
        ctrt_device_properties facts;
        find_control();
        for (int i = 0; i < 3; i++) {
            char name[16];
            snprintf(name, sizeof name, "cuda:%d", i);
            CHECK_OK(ctrt_device_get_properties(&facts, name));
        }
        CHECK(use("cuda:1"), "%s", ctrt_error_message());
        CHECK(CONTEXTS() == 1 && soft->context_active(1) && !soft->context_active(0) && !soft->context_active(2), "%d contexts", (int)CONTEXTS());
        CHECK(soft->live_bytes(0) == 0 && soft->live_bytes(2) == 0, "memory is in use on other devices");
    }
    CHILD_END;
}

static void test_usage(void)
{
    group("memory, processes and the utilization table as in nvidia-smi");
    IN_CHILD("SOFTCUDA=devices=2,memory=64m", "SOFTNVML_PROCESSES=1:4242:33554432,0:77:1048576", "CTRT_MEMORY=direct") {
        ctrt_usage usage;
        ctrt_process list[4];
        size_t count = 0;
        char *table = NULL;
        ctrt_device *device = NULL;
        CTRT_AUTO(tensor) x = NULL;
        find_control();
        CHECK_OK(ctrt_show_utilization(&table, NULL, false));
        const char *want = "| ID | GPU | MEM |\n------------------\n|  0 |  0% |  2% |\n|  1 |  0% | 50% |\n";
        CHECK(table != NULL && strcmp(table, want) == 0 && INITS() == 0, "%s", table);
        free(table);
        ctrt_device_spec free_one;
        CHECK_OK(ctrt_pick_devices(&free_one, &count, 1, &(ctrt_pick_options){ .order = CTRT_PICK_LAST }));
        CHECK(count == 1 && strcmp(free_one.type, "cuda") == 0 && free_one.index == 0, "%s:%d is free", free_one.type, free_one.index);
        CHECK_OK(ctrt_device_get(&device, "cuda:0"));
        CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(4 << 20), CTRT_F32, device));
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK(usage.used_memory >= 17 << 20 && usage.used_memory + usage.free_memory == usage.total_memory && usage.temperature == 30
              && usage.power == 70 && usage.power_limit == 700 && usage.clock_khz == 345000 && usage.processes == 2,
              "%llu of %llu, %d degrees, %g of %g W, %d kHz, %d processes", (unsigned long long)usage.used_memory, (unsigned long long)usage.total_memory,
              usage.temperature, usage.power, usage.power_limit, usage.clock_khz, usage.processes);
        CHECK_OK(ctrt_device_get_processes(list, &count, 4, "cuda:0"));
        CHECK(count == 2 && list[0].pid == getpid() && list[0].memory >= 16 << 20 && list[1].pid == 77 && list[1].memory == 1 << 20,
              "%zu: %d, %d", count, (int)list[0].pid, (int)list[1].pid);
        CHECK_OK(ctrt_device_get_processes(list, &count, 4, "cuda:1"));
        CHECK(count == 1 && list[0].pid == 4242, "%zu: %d", count, (int)list[0].pid);
    }
    CHILD_END;

    group("an out-of-memory error names the process with the most memory");
    IN_CHILD("SOFTCUDA=devices=1,memory=64m", "SOFTNVML_PROCESSES=0:99990077:1048576,0:99994242:33554432", "CTRT_MEMORY=direct") {
        ctrt_device *device = NULL;
        CTRT_AUTO(tensor) x = NULL;
        unsigned long long address;
        int (*alloc)(unsigned long long *, size_t) = NULL;
        char *report = NULL;
        find_control();
        *(void **)&alloc = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuMemAlloc_v2");
        CHECK_OK(ctrt_device_get(&device, "cuda:0"));
        CHECK_OK(ctrt_device_synchronize(device)); /* makes the device's context current in this thread */
        CHECK(alloc != NULL && alloc(&address, 40 << 20) == 0, "cuMemAlloc outside ctrt failed");
        CHECK_FAILS(ctrt_empty(&x, CTRT_SHAPE(8 << 20), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, "(most by process 99994242: 32.00 MiB)");
        CHECK_OK(ctrt_memory_last_oom(&report, device));
        CHECK(strstr(report, "\"processes\": [{\"pid\": 99994242, \"memory\": 33554432, \"name\": \"\"}, {\"pid\": 99990077,") != NULL, "%s", report);
        free(report);
    }
    CHILD_END;

    group("a forked child initializes NVML itself");
    IN_CHILD("SOFTCUDA=devices=1,memory=64m") {
        ctrt_usage usage;
        find_control();
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        FORKED {
            CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
            CHECK(use("cuda:0"), "%s", ctrt_error_message());
            CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
            CHECK(usage.processes == 1, "%d processes", usage.processes);
        }
        FORKED_END;
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK(usage.processes == 0, "%d processes", usage.processes);
    }
    CHILD_END;

    group("shutdown frees all device memory, and the device can be opened again");
    IN_CHILD("SOFTCUDA=devices=1,memory=64m") {
        ctrt_usage usage;
        find_control();
        CHECK(use("cuda:0"), "%s", ctrt_error_message());
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK(usage.used_memory > 0 && usage.processes == 1, "%llu bytes, %d processes", (unsigned long long)usage.used_memory, usage.processes);
        CHECK_OK(ctrt_shutdown());
        CHECK_OK(ctrt_device_get_usage(&usage, "cuda:0"));
        CHECK(usage.used_memory == 0 && usage.processes == 0 && !soft->context_active(0), "%llu bytes, %d processes",
              (unsigned long long)usage.used_memory, usage.processes);
        CHECK(use("cuda:0"), "%s", ctrt_error_message());
    }
    CHILD_END;
}

static void test_reasons(void)
{
    static const struct { const char *soft, *visible, *words; ctrt_status status; } cases[] = {
        { "SOFTCUDA=version=11040", "CUDA_DEVICE_ORDER=", "[driver-too-old]", CTRT_ERR_NOT_SUPPORTED },
        { "SOFTCUDA=fail=nvmlInit_v2@1:18+;fail=cuInit@1:803", "CUDA_DEVICE_ORDER=", "[version-mismatch]", CTRT_ERR_NO_DEVICE },
        { "SOFTCUDA=fail=nvmlInit_v2@1:999+;fail=cuInit@1:802", "CUDA_DEVICE_ORDER=", "[not-ready]", CTRT_ERR_NO_DEVICE },
        { "SOFTCUDA=fail=nvmlInit_v2@1:999+;fail=cuInit@1:804", "CUDA_DEVICE_ORDER=", "[compat-refused]", CTRT_ERR_NO_DEVICE },
        { "SOFTCUDA=fail=nvmlInit_v2@1:999+;fail=cuInit@1:34", "CUDA_DEVICE_ORDER=", "[stub-library]", CTRT_ERR_NO_DEVICE },
        { "SOFTCUDA=devices=2", "CUDA_VISIBLE_DEVICES=-1", "[hidden] CUDA_VISIBLE_DEVICES=-1 hides all 2", CTRT_ERR_NO_DEVICE },
        { "SOFTCUDA=devices=2", "CUDA_VISIBLE_DEVICES=1,0,1", "[hidden] CUDA_VISIBLE_DEVICES=1,0,1 names a GPU twice", CTRT_ERR_NO_DEVICE },
        { "SOFTCUDA=devices=2", "CUDA_VISIBLE_DEVICES=GPU-ff", "[hidden] CUDA_VISIBLE_DEVICES=GPU-ff", CTRT_ERR_NO_DEVICE },
        { "SOFTCUDA=devices=1,fail=cuDevicePrimaryCtxRetain@1:46", "CUDA_DEVICE_ORDER=", "cuda:0: [busy]", CTRT_ERR_NO_DEVICE },
    };
    group("the reason for a missing device is reported, and auto selects the cpu");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        IN_CHILD(cases[i].soft, cases[i].visible) {
            ctrt_device *device = NULL;
            const char *why = "";
            const bool late = strstr(cases[i].words, "[busy]") != NULL;
            CHECK(ctrt_is_available("cuda", &why) == late, "%s: available", cases[i].words);
            CHECK(late || strstr(why, cases[i].words) != NULL, "%s: why: %s", cases[i].words, why);
            CHECK_FAILS(ctrt_device_get(&device, "cuda:0"), cases[i].status, cases[i].words);
            CHECK(device == NULL, "the failed call set the device");
            if (!late) {
                CHECK(ctrt_device_count("cuda") == 0, "%d devices", ctrt_device_count("cuda"));
                CHECK_OK(ctrt_device_auto(&device));
                CHECK(strcmp(ctrt_device_name(device), "cpu") == 0, "auto is %s", ctrt_device_name(device));
            }
        }
        CHILD_END;
}

TEST_MAIN
{
    unsetenv("CTRT_TEST_GPU");          /* use only the software driver */
    soft_begin(argv);
    test_questions();
    test_threads();
    test_facts();
    test_usage();
    test_reasons();
    return done();
}
