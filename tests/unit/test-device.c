/* SPDX-License-Identifier: Apache-2.0 */
/* Tests device names, lists of visible devices, the selection of a device, the thread's current devices, and fork. The
 * backends are fake plugins, so no hardware is needed. */
#include <pthread.h>

#include "calls.h"
#include "base/base.h"
#include "child.h"
#include "ctrt/device.h"
#include "ctrt/memory.h"
#include "ctrt/ops.h"
#include "device/visible.h"
#include "folder.h"
#include "log_kept.h"
#include "registry/registry.h"

static const char *several;     /* backends fake (3 devices), better (score 200, 3 devices), unasked (score -1) */
static const char *fake_only;   /* backend fake */

static ctrt_device *get(const char *text)
{
    ctrt_device *device = NULL;
    CHECK_OK(ctrt_device_get(&device, text));
    return device;
}

/* Names of the device that `text` selects, of the current device of a type, and of the default device. */
static const char *selected(const char *text) { return ctrt_device_name(get(text)); }

static const char *current(const char *type)
{
    ctrt_device *device = NULL;
    CHECK_OK(ctrt_device_get_current(&device, type));
    return ctrt_device_name(device);
}

static const char *fallback(void)
{
    ctrt_device *device = NULL;
    CHECK_OK(ctrt_default_device(&device));
    return ctrt_device_name(device);
}

/* ---- names ---- */

TEST(test_names, "device names are parsed, and invalid ones are rejected with a reason")
{
    static const struct { const char *text, *type; int index; } good[] = {
        { "cpu", "cpu", -1 }, { "cpu:0", "cpu", 0 }, { "cuda", "cuda", -1 }, { "cuda:1", "cuda", 1 },
        { "cuda:10", "cuda", 10 }, { "nccl-multi:0", "nccl-multi", 0 }, { "sim2:7", "sim2", 7 },
        { "cuda:65535", "cuda", 65535 }, { "1", "better", 1 },          /* an index of the best accelerator */
        { "a234567890123456789012345678901:3", "a234567890123456789012345678901", 3 },
    };
    static const struct { const char *text, *words; } bad[] = {
        { "", "empty" }, { "cuda:", "missing" }, { ":1", "type is missing" }, { ":", "type is missing" },
        { "cuda:01", "leading zero" }, { "00", "leading zero" }, { "cuda:-1", "not a number" },
        { "cuda:+1", "not a number" }, { "cuda:1 ", "not a number" }, { "cuda:1:2", "not a number" },
        { "cuda: 1", "not a number" }, { "cuda:1.0", "not a number" }, { "fke:0x", "not a number" },
        { "gpu:0", "unknown device type gpu" }, { "gpu", "unknown device type gpu" },
        { "auto", "unknown device type auto" }, { "CUDA:0", "unknown device type" },
        { " cuda:1", "unknown device type" }, { "cuda,1", "unknown device type" }, { "-1", "unknown device type" },
        { "cu da", "unknown device type" }, { "cuda\n", "unknown device type" }, { "1cuda", "unknown device type" },
        { "1x", "unknown device type" }, { "cuda-", "unknown device type" }, { "\xff\xfe", "unknown device type" },
        { "cpu:1", "only cpu" }, { "cpu:65535", "only cpu" }, { "cuda:65536", "too large" },
        { "cuda:99999999999999999999", "too large" }, { "a2345678901234567890123456789012", "too long" },
    };
    /* fuzz-device-name checks that a name is printed as it was written, and that a bad one leaves the output alone. */
    IN_CHILD(folder_path(several, NULL)) {
        char text[48];
        ctrt_device_spec spec;
        EACH(c, good) {
            CHECK_OK(ctrt_device_parse(&spec, c->text));
            CHECK_STR(spec.type, c->type);
            CHECK_EQ(spec.index, c->index);
        }
        EACH(c, bad)
            CHECK_FAILS(ctrt_device_parse(&spec, c->text), CTRT_ERR_INVALID_ARGUMENT, c->words);
        spec = (ctrt_device_spec){ "cuda", 1 };
        CHECK_FAILS(ctrt_device_format(text, 6, &spec), CTRT_ERR_INVALID_ARGUMENT, "too small");
        CHECK_TRUE(strlen(text) < 6);
        spec.index = -2;
        CHECK_FAILS(ctrt_device_format(text, sizeof text, &spec), CTRT_ERR_INVALID_ARGUMENT, "-2");
        memset(spec.type, 'x', sizeof spec.type);
        spec.index = 0;
        CHECK_FAILS(ctrt_device_format(text, sizeof text, &spec), CTRT_ERR_INVALID_ARGUMENT, "not terminated");
    }
    IN_CHILD(folder_path(fake_only, NULL), "CTRT_BACKENDS=-fake") {
        ctrt_device_spec spec;
        CHECK_FAILS(ctrt_device_parse(&spec, "0"), CTRT_ERR_NO_DEVICE, "there is none");
    }
}

/* ---- visible devices ---- */

#define GPU0 "GPU-9942190a-aa31-4ff1-4aa9-c388d80f1f85"
#define GPU1 "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293"
#define GPU2 "GPU-e429a63e-c61c-4795-b757-5132caeb8e70"
#define GPU3 "GPU-eee1dfbc-0a0f-6ad8-5ff6-dc942a8b9d98"
static const char *const uuids[] = { GPU0, GPU1, GPU2, GPU3 };

TEST(test_visible_lists, "lists of visible devices")
{
    /* type NULL: visible_parse. count: of devices; -1 does not limit the indices. want NULL: an error. */
    static const struct { const char *list, *type; int count; const char *want; } cases[] = {
        /* PyTorch's test cases for CUDA_VISIBLE_DEVICES */
        { "0, 1, 2, -1, 3", NULL, -1, "0,1,2," }, { "0, 1, 2, 1", NULL, -1, "" },
        { "2, +3, -0, 5", NULL, -1, "2,3,0,5," },
        { "one,two,3,4", NULL, -1, "" }, { "4,3,two,one", NULL, -1, "4,3," }, { "1gpu2,2ampere", NULL, -1, "1,2," },
        /* indices */
        { NULL, NULL, 3, "0,1,2," }, { "", NULL, 3, "" }, { " ", NULL, 3, "" }, { "-1", NULL, 3, "" },
        { "0,2", NULL, 3, "0,2," }, { "2,0", NULL, 3, "2,0," }, { "3", NULL, 3, "" }, { "0,,1", NULL, 3, "0," },
        { "0,3,1", NULL, 3, "0," },                             /* a missing device ends the list */
        { ",0", NULL, 3, "" }, { "+", NULL, 3, "" }, { "99999999999999999999", NULL, 3, "" },
        { "1,99999999999999999999", NULL, 3, "1," }, { "0 1", NULL, 3, "0," }, { "2,1,0,", NULL, 3, "2,1,0," },
        /* UUIDs */
        { GPU0, NULL, 4, "0," }, { "GPU-9942190a", NULL, 4, "0," }, { GPU2 "," GPU0, NULL, 4, "2,0," },
        { "GPU-9", NULL, 4, "" }, { "GPU-9942190a,GPU-9", NULL, 4, "0," },      /* two UUIDs have the prefix GPU-9 */
        { "GPU-99," "GPU-9e," "GPU-e4", NULL, 4, "0,1,2," }, { "GPU-99,GPU-99", NULL, 4, "" },
        { "GPU-99,GPU-e4,GPU-9942190a", NULL, 4, "" },          /* the same device by another prefix */
        { "GPU-99,GPU-ffff,GPU-e4", NULL, 4, "0," },
        { "GPU-99,1", NULL, 4, "0," }, { "0,GPU-e4", NULL, 4, "0," },           /* UUIDs and indices cannot be mixed */
        { "MIG-99", NULL, 4, "" }, { "GPU-", NULL, 4, "" }, { "gpu-99", NULL, 4, "" },
        /* with types */
        { "cuda:0,cuda:2", "cuda", 4, "0,2," }, { "cuda:2, cuda:0", "cuda", 4, "2,0," },
        { "cuda:0,cuda:2", "sim", 4, "" }, { "cuda:1,sim:3,cuda:0", "sim", 4, "3," },
        { "cuda:1,sim", "sim", 4, "0,1,2,3," }, { "sim", "sim", 4, "0,1,2,3," }, { "sim", "cuda", 4, "" },
        { "cuda:1,cuda:1", "cuda", 4, "" }, { "cuda:1,cuda:9,cuda:2", "cuda", 4, "1," },
        { "cuda:1," GPU3, "cuda", 4, "1,3," }, { "0,2", "sim", 4, "0,2," }, { GPU1, "cuda", 4, "1," },
        { NULL, "cuda", 4, "0,1,2,3," }, { "", "cuda", 4, "" }, { "cuda:x", "cuda", 4, NULL },
        { "cuda:", "cuda", 4, NULL }, { "cuda:1,2", "cuda", 4, NULL }, { "cuda:1,:2", "cuda", 4, NULL },
    };
    int ids[16], few[2], count = 0;
    EACH(c, cases) {
        char got[256] = "";
        if (c->type == NULL)
            count = visible_parse(ids, 16, c->list, c->count, c->count == 4 ? uuids : NULL);
        else
            CHECK_FAILS(visible_select(ids, 16, &count, c->list, c->type, c->count, uuids),
                        c->want != NULL ? CTRT_OK : CTRT_ERR_INVALID_ARGUMENT, NULL);
        for (int n = 0; n < count; n++)
            sprintf(got + strlen(got), "%d,", ids[n]);
        if (c->want != NULL)
            CHECK_STR(got, c->want);
    }
    CHECK_EQ(visible_parse(few, 2, "0,1,2", 3, NULL), 2);
    CHECK_EQ(few[1], 1);
}

TEST(test_visible_devices, NULL)
{
    /* The n-th device of a backend has 10 + n processors. */
    static const struct { const char *setting, *best; int count, hidden, processors[2]; } cases[] = {
        { "CTRT_VISIBLE_DEVICES=2,0", "better:0", 2, 1, { 12, 10 } },
        { "CTRT_VISIBLE_DEVICES=GPU-0a22", "better:0", 1, 2, { 11 } },
        { "CTRT_VISIBLE_DEVICES=fake:1,fake:2", "fake:0", 2, 1, { 11, 12 } },
        { "CTRT_VISIBLE_DEVICES=", NULL, 0, 3, { 0 } },
    };
    ctrt_device *device = NULL;
    EACH(c, cases) {
        group("%s renumbers the listed devices and hides the others", c->setting);
        IN_CHILD(folder_path(several, NULL), c->setting) {
            char name[16], words[80];
            CHECK_EQ(ctrt_device_count("fake"), c->count);
            for (int n = 0; n < c->count; n++) {
                ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
                snprintf(name, sizeof name, "fake:%d", n);
                CHECK_OK(ctrt_device_get_properties(&properties, name));
                CHECK_EQ(properties.processors, c->processors[n]);
                CHECK_STR(selected(name), name);
            }
            snprintf(name, sizeof name, "fake:%d", c->count);
            snprintf(words, sizeof words, "%d of 3 hidden by %s", c->hidden, c->setting);
            CHECK_FAILS(ctrt_device_get(&device, name), CTRT_ERR_NO_DEVICE, words);
            CHECK_EQ(ctrt_is_available("fake", NULL), c->count > 0);
            if (c->best != NULL)
                CHECK_STR(selected("auto"), c->best);
        }
    }
    IN_CHILD(folder_path(fake_only, NULL), "CTRT_VISIBLE_DEVICES=fake:one") {
        CHECK_FAILS(ctrt_device_get(&device, "fake"), CTRT_ERR_INVALID_ARGUMENT, "CTRT_VISIBLE_DEVICES=fake:one");
    }
}

/* ---- selection ---- */

TEST(test_choice, NULL)
{
    ctrt_device *device = NULL;
    static const struct { const char *setting, *device, *words; ctrt_status status; } cases[] = {
        { "CTRT_DEVICE=", "better:0", "", CTRT_OK }, { "CTRT_DEVICE=auto", "better:0", "", CTRT_OK },
        { "CTRT_DEVICE=fake:2", "fake:2", "", CTRT_OK }, { "CTRT_DEVICE=fake", "fake:0", "", CTRT_OK },
        { "CTRT_DEVICE=2", "better:2", "", CTRT_OK }, { "CTRT_DEVICE=unasked", "unasked:0", "", CTRT_OK },
        { "CTRT_BACKENDS=-better", "fake:0", "", CTRT_OK },
        { "CTRT_DEVICE=fkae", NULL, "did you mean fake?", CTRT_ERR_NO_DEVICE },
        { "CTRT_DEVICE=fake:01", NULL, "CTRT_DEVICE=fake:01", CTRT_ERR_INVALID_ARGUMENT },
        { "CTRT_DEVICE=fake:3", NULL, "3 visible devices of that type, fake:0 to fake:2", CTRT_ERR_NO_DEVICE },
        { "CTRT_DEVICE=gpu", NULL, "unknown device type gpu", CTRT_ERR_INVALID_ARGUMENT },
        { "CTRT_DEVICE=fake:1", NULL, "CTRT_DEVICE=fake:1: opening fake:1", CTRT_ERR_BACKEND },
        { "CTRT_FAKE_BROKEN=0", NULL, "opening better:0: fake device 0 is lost", CTRT_ERR_BACKEND },
    };
    EACH(c, cases) {
        group("automatic selection with %s; devices with index 1 do not open", c->setting);
        IN_CHILD(folder_path(several, NULL), "CTRT_FAKE_BROKEN=1", c->setting) {
            if (c->status == CTRT_OK) {
                CHECK_STR(selected(NULL), c->device);
                CHECK_STR(fallback(), c->device);
                CHECK_TRUE(ctrt_is_available("auto", NULL));
            } else {
                CHECK_FAILS(ctrt_device_auto(&device), c->status, c->words);
                CHECK((strstr(ctrt_error_message(), "selected by auto") != NULL)
                      == (strncmp(c->setting, "CTRT_DEVICE", 11) != 0), "%s", ctrt_error_message());
                CHECK(device == NULL, "a failed call changed the output");
                CHECK_OK(ctrt_device_get(&device, "fake:2"));
            }
        }
    }
    group("without any backend: CTRT_ERR_NO_DEVICE with the reason");
    char *empty = folder_new();
    IN_CHILD(folder_path(empty, NULL)) {
        const char *why;
        CHECK_FAILS(ctrt_device_auto(&device), CTRT_ERR_NO_DEVICE, "no device can be used");
        CHECK_FAILS(ctrt_device_get(&device, "cuda:0"), CTRT_ERR_NO_DEVICE, "no file backend-cuda.so: searched ");
        ctrt_fail(CTRT_ERR_SHAPE, "what was there before");
        CHECK_TRUE(!ctrt_is_available("cuda", &why));
        CHECK_HAS(why, "backend-cuda.so");
        CHECK_STR(ctrt_error_message(), "what was there before");
        CHECK_EQ(ctrt_device_count("cuda"), 0);
    }
}

TEST(test_suggestions, NULL)
{
    char *types = folder_new();
    static const struct { const char *name, *without_cuda, *with_cuda; } cases[] = {
        { "gpu:0", NULL, "did you mean cuda?" }, { "GPU", NULL, "did you mean cuda?" },
        { "accelerator", NULL, "did you mean cuda?" }, { "none", NULL, NULL },
        { "Cpu:0", "did you mean cpu?", "did you mean cpu?" },
    };
    folder_text(types, "backend-cpu.so", "");
    for (int with_cuda = 0; with_cuda < 2; with_cuda++) {
        group("the type suggested for an unknown device type, %s cuda", with_cuda ? "with" : "without");
        if (with_cuda)
            folder_text(types, "backend-cuda.so", "");
        IN_CHILD(folder_path(types, NULL)) {
            EACH(c, cases) {
                ctrt_device_spec spec;
                const char *words = with_cuda ? c->with_cuda : c->without_cuda;
                CHECK_FAILS(ctrt_device_parse(&spec, c->name), CTRT_ERR_INVALID_ARGUMENT, words);
                CHECK_TRUE(words != NULL || strstr(ctrt_error_message(), "did you mean") == NULL);
            }
        }
    }
}

extern char **environ;

TEST(test_late_changes, NULL)
{
    static const struct { const char *name, *value, *words; } cases[] = {
        { "CTRT_VISIBLE_DEVICES", "0", "CTRT_VISIBLE_DEVICES was changed after it was read" },
        { "CTRT_BACKENDS", "fake", "CTRT_BACKENDS was changed after it was read" },
        { "CTRT_FAKE_MEMORY", "1m", "CTRT_FAKE_MEMORY was changed after it was read" },
        { "CUDA_VISIBLE_DEVICE", "0", "did you mean CUDA_VISIBLE_DEVICES?" },
        { "CTRT_VISIBLE_DEVICE", "0", "did you mean CTRT_VISIBLE_DEVICES?" },
        { "CTRT_DEVICE", "fake:1", NULL },              /* not yet read */
        { "SOMETHING_ELSE", "0", NULL },
    };
    for (size_t i = 0; i < 2 * COUNT_OF(cases); i++) {
        const char *name = cases[i / 2].name, *words = cases[i / 2].words;
        const bool opened = i % 2;
        group("a warning at most once when %s is set after devices were %s", name, opened ? "opened" : "counted");
        IN_CHILD(folder_path(fake_only, NULL)) {
            log_keep(CTRT_LOG_WARNING);
            CHECK_EQ(ctrt_device_count("fake"), 3);
            if (opened)
                get("fake:0");
            CHECK_STR(logged, "");
            setenv(name, cases[i / 2].value, 1);
            for (int again = 0; again < 2; again++)
                CHECK_EQ(ctrt_device_count("fake"), 3);
            if (words != NULL)
                CHECK_EQ(count_of(logged, words), 1);
            else
                CHECK_STR(logged, "");
        }
    }
    group("visible devices can be set after counting, until a device is opened");
    IN_CHILD(folder_path(fake_only, NULL)) {
        CHECK_EQ(ctrt_device_count("fake"), 3);
        CHECK_OK(ctrt_param_set("CTRT_VISIBLE_DEVICES", "2,0"));
        CHECK_EQ(ctrt_device_count("fake"), 2);
        CHECK_OK(ctrt_param_set("CTRT_VISIBLE_DEVICES", "1"));
        CHECK_EQ(ctrt_device_count("fake"), 1);
        ctrt_device *const device = get("fake:0");
        CHECK_FAILS(ctrt_param_set("CTRT_VISIBLE_DEVICES", "0"), CTRT_ERR_STATE, "already in use as \"1\"");
        CHECK_EQ(ctrt_device_count("fake"), 1);
        /* The lookup of an open device does not read the environment, which another thread may be changing. */
        ctrt_device *again = NULL;
        char **before = environ;
        environ = (char **)(uintptr_t)16;
        const ctrt_status status = ctrt_device_get(&again, "fake:0");
        environ = before;
        CHECK(status == CTRT_OK && again == device, "the lookup failed or gave another device");
    }
}

CHILD_TEST(test_properties, "device properties, before and after opening the device", folder_path(several, NULL),
           "CTRT_FAKE_MEMORY=1m")
{
    static const char *const order[] = {
        "better:0", "better:1", "better:2", "fake:0", "fake:1", "fake:2", "unasked:0",
    };
    ctrt_device_properties p = CTRT_DEVICE_PROPERTIES;
    ctrt_device_spec spec;
    char text[400];
    CHECK_OK(ctrt_device_get_properties(&p, "fake:1"));
    snprintf(text, sizeof text, "%s, %s, %s: %lld bytes, %d.x, %d processors, %d kHz, node %d, ecc %d, %d %d",
             p.name, p.uuid, p.pci, (long long)p.total_memory, (int)p.compute_major, (int)p.processors,
             (int)p.clock_khz, (int)p.numa_node, (int)p.ecc, p.host_memory, p.asynchronous);
    CHECK_STR(text, "fake device 1 of fake, GPU-0a22beef, 0000:01:00.0: 1048576 bytes, 9.x, 11 processors, "
                    "1000000 kHz, node -1, ecc 1, 0 0");
    CHECK_FAILS(ctrt_device_get_properties(&p, "fake:3"), CTRT_ERR_NO_DEVICE, "fake:0 to fake:2");
    CHECK_FAILS(ctrt_device_get_properties(&p, "fake:-1"), CTRT_ERR_INVALID_ARGUMENT, "not a number");
    CHECK_OK(ctrt_device_get_properties(&p, NULL));
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        CHECK_OK(ctrt_device_list(&spec, i));
        CHECK_OK(ctrt_device_format(text, sizeof text, &spec));
        CHECK_STR(text, order[i]);
    }
    CHECK_FAILS(ctrt_device_list(&spec, 9), CTRT_ERR_NOT_FOUND, NULL);
    CHECK_STR(ctrt_device_type(get("fake:2")), "fake");
    CHECK_EQ(ctrt_device_index(get("fake:2")), 2);
}

/* ---- the thread's current devices ---- */

static void *current_in_thread(void *name)
{
    *(const char **)name = current("fake");
    return NULL;
}

TEST(test_current, "the current device: per thread, restored by guards")
{
    IN_CHILD(folder_path(fake_only, NULL)) {
        ctrt_device *now = NULL;
        CHECK_STR(selected("fake"), "fake:0");
        ctrt_device *const zero = get("fake:0"), *const one = get("fake:1"), *const two = get("fake:2");
        CHECK_OK(ctrt_device_set_current(one));
        CHECK_STR(selected("fake"), "fake:1");
        CHECK_FAILS(ctrt_device_get(&now, "fake:7"), CTRT_ERR_NO_DEVICE, NULL);
        CHECK_STR(current("fake"), "fake:1");

        const char *in_thread = NULL;
        in_threads(1, current_in_thread, &in_thread, 0);
        CHECK_STR(in_thread, "fake:0");

        CHECK_OK(ctrt_device_push(two));
        CHECK_OK(ctrt_device_push(NULL));
        CHECK_OK(ctrt_device_push(zero));
        CHECK_STR(current("fake"), "fake:0");
        CHECK_OK(ctrt_device_pop());
        CHECK_OK(ctrt_device_pop());
        CHECK_STR(current("fake"), "fake:2");
        CHECK_OK(ctrt_device_pop());
        CHECK_STR(current("fake"), "fake:1");
        CHECK_FAILS(ctrt_device_pop(), CTRT_ERR_STATE, "without a matching");
        for (int i = 0; i < 100; i++)
            CHECK_OK(ctrt_device_push(i % 2 ? two : NULL));
        for (int i = 0; i < 100; i++)
            CHECK_OK(ctrt_device_pop());
        CHECK_STR(current(NULL), "fake:1");             /* NULL: the best type */
        CHECK_FAILS(ctrt_device_get_current(&now, "fake:1"), CTRT_ERR_INVALID_ARGUMENT, "expected a device type");
    }
    group("a guard around the first use of a type does not set its current device");
    IN_CHILD(folder_path(several, NULL)) {
        ctrt_device *const fake = get("fake:2"), *const better = get("better:1");
        CHECK_OK(ctrt_device_push(fake));
        CHECK_OK(ctrt_device_push(better));
        CHECK_STR(selected("fake"), "fake:2");
        CHECK_OK(ctrt_device_pop());
        CHECK_OK(ctrt_device_pop());
        CHECK_STR(selected("fake"), "fake:0");
        CHECK_STR(selected("better"), "better:0");
        CHECK_OK(ctrt_set_default_device(fake));
        CHECK_STR(fallback(), "fake:2");
        CHECK_OK(ctrt_set_default_device(NULL));
        CHECK_STR(fallback(), "better:0");
    }
}

/* ---- fork ---- */

TEST(test_fork, "a device opened before the fork gives an error in the child and works in the parent")
{
    IN_CHILD(folder_path(fake_only, NULL)) {
        ctrt_device *other = NULL;
        uint64_t bytes;
        CHECK_EQ(ctrt_device_count("fake"), 3);
        IN_FORK {                                       /* the parent has only counted the devices */
            CHECK_OK(ctrt_device_synchronize(get("fake:1")));
        }
        ctrt_device *const device = get("fake:0");
        CHECK_OK(ctrt_set_default_device(device));
        IN_FORK {
            CHECK_FAILS(ctrt_device_get(&other, "fake:0"), CTRT_ERR_FORKED, "was opened by process");
            CHECK_FAILS(ctrt_device_set_current(device), CTRT_ERR_FORKED, "fake:0");
            CHECK_FAILS(ctrt_device_push(device), CTRT_ERR_FORKED, "fake:0");
            CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_FORKED, "fake:0");
            CHECK_FAILS(ctrt_device_memory_info(device, &bytes, &bytes), CTRT_ERR_FORKED, "fake:0");
            CHECK_FAILS(ctrt_default_device(&other), CTRT_ERR_FORKED, "fake:0");
            CHECK_FAILS(ctrt_memory_empty_cache(device), CTRT_ERR_FORKED, "fake:0");
            get("fake:1");
            CHECK_TRUE(ctrt_is_available("fake", NULL));
        }
        CHECK_OK(ctrt_device_synchronize(get("fake:0")));
    }
    group("a device with host memory works in the forked child");
    IN_CHILD(folder_path(fake_only, NULL), "CTRT_FAKE_HOST=1") {
        get("fake:0");
        IN_FORK {
            CHECK_OK(ctrt_device_set_current(get("fake:0")));
        }
    }
}

static void *forks(void *unused)
{
    for (int i = 0; i < 20; i++) {
        IN_FORK {
            get("fake:2");
            CHECK_TRUE(ctrt_is_available("better", NULL));
        }
    }
    return unused;
}

static void *opens(void *stop)
{
    ctrt_device *device = NULL;
    ctrt_param_info info = CTRT_PARAM_INFO;
    const char *why;
    while (!__atomic_load_n((bool *)stop, __ATOMIC_RELAXED)) {
        ctrt_device_get(&device, "fake:0");
        ctrt_is_available("nothing", &why);
        ctrt_param_get_info(&info, 3);
    }
    return NULL;
}

TEST(test_fork_threads, "a fork while other threads are inside the library")
{
    if (!forks_beside_threads())
        return;
    IN_CHILD(folder_path(several, NULL), "CTRT_FAKE_HOST=1") {
        static bool stop;
        pthread_t workers[3], forker;
        for (int i = 0; i < 3; i++)
            pthread_create(&workers[i], NULL, opens, &stop);
        pthread_create(&forker, NULL, forks, NULL);
        pthread_join(forker, NULL);
        __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
        for (int i = 0; i < 3; i++)
            pthread_join(workers[i], NULL);
    }
}

TEST(test_host_numbers, "a 0-dim tensor is an operand on every device if the host can read it: of any such backend")
{
    const char *both = FOLDER_OF("backend-fake", "backend-cpu", "memory-direct", "memory-caching");
    for (int readable = 0; readable < 2; readable++)
        IN_CHILD(folder_path(both, NULL), readable ? "CTRT_FAKE_HOST=1" : "CTRT_FAKE_HOST=0") {
            CTRT_AUTO(tensor) number = NULL, x = NULL;
            double value = 0;
            ctrt_device *fake = get("fake:0");
            CHECK_OK(ctrt_from_data(&number, (float[]){ 3 }, 1, CTRT_SCALAR_SHAPE, CTRT_F32, fake));
            CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(1), CTRT_F32, get("cpu")));
            if (readable) {
                CHECK_OK(ctrt_mul(&x, x, number));
                CHECK_OK(ctrt_item(&value, x));
                CHECK_EQ(value, 3);
            } else {
                CHECK_FAILS(ctrt_mul(&x, x, number), CTRT_ERR_DEVICE, "operands are on different devices");
            }
        }
}

TEST_MAIN
{
    search_installed_folder = "/nonexistent";       /* ignore an installed ctrt */
    several = FOLDER_OF("backend-fake", "backend-better", "backend-unasked", "memory-direct", "memory-caching");
    fake_only = FOLDER_OF("backend-fake", "memory-direct", "memory-caching");
    return run_tests();
}
