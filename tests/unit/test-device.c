/* SPDX-License-Identifier: Apache-2.0 */
/* Tests device names, lists of visible devices, the selection of a device, and the thread's current devices. The
 * backends are fake plugins, so no hardware is needed. */
#include <pthread.h>
#include <sys/wait.h>

#include "child.h"
#include "ctrt/device.h"
#include "ctrt/memory.h"
#include "device/visible.h"
#include "folder.h"
#include "registry/registry.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static char *folder; /* fake (3 devices), better (200, 3 devices), unasked (score -1), memory policies */
static char *fake_only;                 /* fake and memory policies */

/* ---- names ---- */

static void test_names(void)
{
    static const struct {
        const char *text, *type;
        int index;
    } good[] = {
        { "cpu", "cpu", -1 },
        { "cpu:0", "cpu", 0 },
        { "cuda", "cuda", -1 },
        { "cuda:0", "cuda", 0 },
        { "cuda:1", "cuda", 1 },
        { "cuda:10", "cuda", 10 },
        { "nccl-multi:0", "nccl-multi", 0 },
        { "sim2:7", "sim2", 7 },
        { "cuda:65535", "cuda", 65535 },
        { "a234567890123456789012345678901:3", "a234567890123456789012345678901", 3 },
    };
    static const struct {
        const char *text, *words;
    } bad[] = {
        { "", "empty" },
        { "cuda:", "missing" },
        { "cuda:01", "leading zero" },
        { "cuda:-1", "not a number" },
        { "cuda:+1", "not a number" },
        { "cuda:1 ", "not a number" },
        { " cuda:1", "unknown device type" },
        { "cuda:1:2", "not a number" },
        { "cuda: 1", "not a number" },
        { "cuda:1.0", "not a number" },
        { ":1", "type is missing" },
        { ":", "type is missing" },
        { "gpu:0", "unknown device type gpu" },
        { "gpu", "unknown device type gpu" },
        { "auto", "unknown device type auto" },
        { "CUDA:0", "unknown device type" },
        { "cuda,1", "unknown device type" },
        { "-1", "unknown device type" },
        { "cpu:1", "only cpu" },
        { "cpu:65535", "only cpu" },
        { "cuda:65536", "too large" },
        { "cuda:99999999999999999999", "too large" },
        { "cu da", "unknown device type" },
        { "cuda\n", "unknown device type" },
        { "1cuda", "unknown device type" },
        { "cuda-", "unknown device type" },
        { "\xff\xfe", "unknown device type" },
        { "a2345678901234567890123456789012", "too long" },
        { "00", "leading zero" },
    };
    group("device names are parsed and formatted to the same text");
    IN_CHILD(folder_path(fake_only, NULL)) {
        for (size_t i = 0; i < COUNT(good); i++) {
            ctrt_device_spec spec = { "?", 99 };
            char text[48];
            CHECK_OK(ctrt_device_parse(&spec, good[i].text));
            CHECK(strcmp(spec.type, good[i].type) == 0 && spec.index == good[i].index, "%s: %s, %d",
                  good[i].text, spec.type, spec.index);
            CHECK_OK(ctrt_device_format(text, sizeof text, &spec));
            CHECK(strcmp(text, good[i].text) == 0, "%s is printed as %s", good[i].text, text);
        }
    }
    CHILD_END;
    group("invalid device names are rejected with a reason, and the output is unchanged");
    IN_CHILD(folder_path(fake_only, NULL)) {
        for (size_t i = 0; i < COUNT(bad); i++) {
            ctrt_device_spec spec = { "before", 99 };
            ctrt_status status = ctrt_device_parse(&spec, bad[i].text);
            CHECK(status == CTRT_ERR_INVALID_ARGUMENT, "\"%s\": status %d, %s:%d", bad[i].text, (int)status,
                  spec.type, spec.index);
            CHECK(strstr(ctrt_error_message(), bad[i].words), "\"%s\": the message lacks \"%s\": %s",
                  bad[i].text, bad[i].words, ctrt_error_message());
            CHECK(strcmp(spec.type, "before") == 0 && spec.index == 99, "\"%s\" changed the output",
                  bad[i].text);
        }
        CHECK_FAILS(ctrt_device_parse(NULL, "cpu"), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
        ctrt_device_spec spec = { "cuda", 1 };
        char text[48];
        CHECK_FAILS(ctrt_device_parse(&spec, NULL), CTRT_ERR_INVALID_ARGUMENT, "text is NULL");
        CHECK_FAILS(ctrt_device_parse(&spec, "fke:0x"), CTRT_ERR_INVALID_ARGUMENT, NULL);
        CHECK_FAILS(ctrt_device_format(text, 6, &spec), CTRT_ERR_INVALID_ARGUMENT, "too small");
        CHECK(strlen(text) < 6, "a truncated text is not terminated");
        CHECK_FAILS(ctrt_device_format(text, 0, &spec), CTRT_ERR_INVALID_ARGUMENT, "too small");
        CHECK_FAILS(ctrt_device_format(NULL, 6, &spec), CTRT_ERR_INVALID_ARGUMENT, "NULL");
        spec.index = -2;
        CHECK_FAILS(ctrt_device_format(text, sizeof text, &spec), CTRT_ERR_INVALID_ARGUMENT, "-2");
        memset(spec.type, 'x', sizeof spec.type);
        spec.index = 0;
        CHECK_FAILS(ctrt_device_format(text, sizeof text, &spec), CTRT_ERR_INVALID_ARGUMENT, "not terminated");
    }
    CHILD_END;
    group("a number without a type is an index of the best accelerator");
    IN_CHILD(folder_path(folder, NULL)) {
        ctrt_device_spec spec;
        CHECK_OK(ctrt_device_parse(&spec, "1"));
        CHECK(strcmp(spec.type, "better") == 0 && spec.index == 1, "%s:%d", spec.type, spec.index);
    }
    CHILD_END;
    IN_CHILD(folder_path(fake_only, NULL), "CTRT_BACKENDS=-fake") {
        ctrt_device_spec spec;
        CHECK_FAILS(ctrt_device_parse(&spec, "0"), CTRT_ERR_NO_DEVICE, "there is none");
    }
    CHILD_END;
}

/* ---- visible devices ---- */

#define GPU0 "GPU-9942190a-aa31-4ff1-4aa9-c388d80f1f85"
#define GPU1 "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293"
#define GPU2 "GPU-e429a63e-c61c-4795-b757-5132caeb8e70"
#define GPU3 "GPU-eee1dfbc-0a0f-6ad8-5ff6-dc942a8b9d98"
static const char *const uuids[] = { GPU0, GPU1, GPU2, GPU3 };

static bool same(const int *ids, int count, const int *want, int wanted)
{
    return count == wanted && memcmp(ids, want, (size_t)count * sizeof *ids) == 0;
}

static const char *ids_text(const int *ids, int count)
{
    static char texts[2][256];
    static int next;
    char *text = texts[next++ % 2];
    size_t used = (size_t)sprintf(text, "[");
    for (int i = 0; i < count && used < 200; i++)
        used += (size_t)sprintf(text + used, i ? ",%d" : "%d", ids[i]);
    strcpy(text + used, "]");
    return text;
}

static void test_visible_lists(void)
{
    /* The first six are PyTorch's test cases for CUDA_VISIBLE_DEVICES. A count of -1 does not limit the numbers. */
    static const struct { const char *text; int count, want[6], wanted; } cases[] = {
        { "0, 1, 2, -1, 3", -1, { 0, 1, 2 }, 3 },
        { "0, 1, 2, 1", -1, { 0 }, 0 },
        { "2, +3, -0, 5", -1, { 2, 3, 0, 5 }, 4 },
        { "one,two,3,4", -1, { 0 }, 0 },
        { "4,3,two,one", -1, { 4, 3 }, 2 },
        { "1gpu2,2ampere", -1, { 1, 2 }, 2 },
        { NULL, 3, { 0, 1, 2 }, 3 },
        { "", 3, { 0 }, 0 },
        { " ", 3, { 0 }, 0 },
        { "-1", 3, { 0 }, 0 },
        { "0,2", 3, { 0, 2 }, 2 },
        { "2,0", 3, { 2, 0 }, 2 },
        { "0,3,1", 3, { 0 }, 1 },           /* a missing device ends the list */
        { "3", 3, { 0 }, 0 },
        { "0,,1", 3, { 0 }, 1 },
        { ",0", 3, { 0 }, 0 },
        { "+", 3, { 0 }, 0 },
        { "99999999999999999999", 3, { 0 }, 0 },
        { "1,99999999999999999999", 3, { 1 }, 1 },
        { "0 1", 3, { 0 }, 1 },
        { "2,1,0,", 3, { 2, 1, 0 }, 3 },
    };
    group("lists of visible devices: indices");
    for (size_t i = 0; i < COUNT(cases); i++) {
        int ids[16];
        int count = visible_parse(ids, 16, cases[i].text, cases[i].count, NULL);
        CHECK(same(ids, count, cases[i].want, cases[i].wanted), "\"%s\" gives %s, expected %s",
              cases[i].text ? cases[i].text : "(unset)", ids_text(ids, count),
              ids_text(cases[i].want, cases[i].wanted));
    }
    int few[2];
    CHECK(visible_parse(few, 2, "0,1,2", 3, NULL) == 2 && few[1] == 1,
          "a list of 3 devices did not fill an array of 2");

    static const struct { const char *text; int want[4], wanted; } named[] = {
        { GPU0, { 0 }, 1 },
        { "GPU-9942190a", { 0 }, 1 },
        { GPU2 "," GPU0, { 2, 0 }, 2 },
        { "GPU-9", { 0 }, 0 },                          /* ambiguous: two UUIDs have this prefix */
        { "GPU-9942190a,GPU-9", { 0 }, 1 },
        { "GPU-99," "GPU-9e," "GPU-e4", { 0, 1, 2 }, 3 },
        { "GPU-99,GPU-99", { 0 }, 0 },
        { "GPU-99,GPU-e4,GPU-9942190a", { 0 }, 0 },     /* the same device by another prefix */
        { "GPU-99,GPU-ffff,GPU-e4", { 0 }, 1 },
        { "GPU-99,1", { 0 }, 1 },                       /* UUIDs and indices cannot be mixed */
        { "0,GPU-e4", { 0 }, 1 },
        { "MIG-99", { 0 }, 0 },
        { "GPU-" , { 0 }, 0 },
        { "gpu-99", { 0 }, 0 },
    };
    group("lists of visible devices: UUIDs");
    for (size_t i = 0; i < COUNT(named); i++) {
        int ids[16];
        int count = visible_parse(ids, 16, named[i].text, 4, uuids);
        CHECK(same(ids, count, named[i].want, named[i].wanted), "\"%s\" gives %s, expected %s", named[i].text,
              ids_text(ids, count), ids_text(named[i].want, named[i].wanted));
    }

    static const struct { const char *text, *type; int want[4], wanted; ctrt_status status; } typed[] = {
        { "cuda:0,cuda:2", "cuda", { 0, 2 }, 2, CTRT_OK },
        { "cuda:2, cuda:0", "cuda", { 2, 0 }, 2, CTRT_OK },
        { "cuda:0,cuda:2", "sim", { 0 }, 0, CTRT_OK },
        { "cuda:1,sim:3,cuda:0", "sim", { 3 }, 1, CTRT_OK },
        { "cuda:1,sim", "sim", { 0, 1, 2, 3 }, 4, CTRT_OK },
        { "sim", "sim", { 0, 1, 2, 3 }, 4, CTRT_OK },
        { "sim", "cuda", { 0 }, 0, CTRT_OK },
        { "cuda:1,cuda:1", "cuda", { 0 }, 0, CTRT_OK },
        { "cuda:1,cuda:9,cuda:2", "cuda", { 1 }, 1, CTRT_OK },
        { "cuda:1," GPU3, "cuda", { 1, 3 }, 2, CTRT_OK },
        { "0,2", "sim", { 0, 2 }, 2, CTRT_OK },
        { GPU1, "cuda", { 1 }, 1, CTRT_OK },
        { NULL, "cuda", { 0, 1, 2, 3 }, 4, CTRT_OK },
        { "", "cuda", { 0 }, 0, CTRT_OK },
        { "cuda:x", "cuda", { 0 }, 0, CTRT_ERR_INVALID_ARGUMENT },
        { "cuda:", "cuda", { 0 }, 0, CTRT_ERR_INVALID_ARGUMENT },
        { "cuda:1,2", "cuda", { 0 }, 0, CTRT_ERR_INVALID_ARGUMENT },
        { "cuda:1,:2", "cuda", { 0 }, 0, CTRT_ERR_INVALID_ARGUMENT },
    };
    group("lists of visible devices that name types");
    for (size_t i = 0; i < COUNT(typed); i++) {
        int ids[16], count = 0;
        ctrt_status status = visible_select(ids, 16, &count, typed[i].text, typed[i].type, 4, uuids);
        CHECK(status == typed[i].status, "\"%s\": status %d: %s", typed[i].text ? typed[i].text : "(unset)",
              (int)status, ctrt_error_message());
        if (status == CTRT_OK)
            CHECK(same(ids, count, typed[i].want, typed[i].wanted), "\"%s\" gives %s for %s, expected %s",
                  typed[i].text ? typed[i].text : "(unset)", ids_text(ids, count), typed[i].type,
                  ids_text(typed[i].want, typed[i].wanted));
    }
}

static void test_visible_devices(void)
{
    group("CTRT_VISIBLE_DEVICES renumbers the listed devices and hides the others");
    IN_CHILD(folder_path(fake_only, NULL), "CTRT_VISIBLE_DEVICES=2,0") {
        ctrt_device *device = NULL;
        ctrt_device_properties facts;
        CHECK(ctrt_device_count("fake") == 2, "%d devices", ctrt_device_count("fake"));
        CHECK_OK(ctrt_device_get_properties(&facts, "fake:0"));
        CHECK(facts.processors == 12, "fake:0 has %d processors, expected 12, as the third device", facts.processors);
        CHECK_OK(ctrt_device_get_properties(&facts, "fake:1"));
        CHECK(facts.processors == 10, "fake:1 has %d processors, expected 10, as the first device", facts.processors);
        CHECK_FAILS(ctrt_device_get(&device, "fake:2"), CTRT_ERR_NO_DEVICE,
                    "1 of 3 hidden by CTRT_VISIBLE_DEVICES=2,0");
        CHECK_OK(ctrt_device_get(&device, "fake:1"));
        CHECK(strcmp(ctrt_device_name(device), "fake:1") == 0 && ctrt_device_index(device) == 1, "%s",
              ctrt_device_name(device));
    }
    CHILD_END;
    IN_CHILD(folder_path(fake_only, NULL), "CTRT_VISIBLE_DEVICES=GPU-0a22") {
        ctrt_device_properties facts;
        CHECK(ctrt_device_count("fake") == 1, "%d devices", ctrt_device_count("fake"));
        CHECK_OK(ctrt_device_get_properties(&facts, "fake:0"));
        CHECK(strcmp(facts.uuid, "GPU-0a22beef") == 0, "%s", facts.uuid);
    }
    CHILD_END;
    IN_CHILD(folder_path(fake_only, NULL), "CTRT_VISIBLE_DEVICES=") {
        const char *why;
        CHECK(ctrt_device_count("fake") == 0, "%d devices", ctrt_device_count("fake"));
        CHECK(!ctrt_is_available("fake", &why) && strstr(why, "3 of 3 hidden by CTRT_VISIBLE_DEVICES="), "%s",
              why);
    }
    CHILD_END;
    IN_CHILD(folder_path(folder, NULL), "CTRT_VISIBLE_DEVICES=fake:1,fake:2") {
        ctrt_device *device = NULL;
        CHECK(ctrt_device_count("fake") == 2 && ctrt_device_count("better") == 0, "%d and %d",
              ctrt_device_count("fake"), ctrt_device_count("better"));
        CHECK_OK(ctrt_device_get(&device, "auto"));
        CHECK(strcmp(ctrt_device_name(device), "fake:0") == 0,
              "auto selects %s, expected fake:0", ctrt_device_name(device));
    }
    CHILD_END;
    IN_CHILD(folder_path(fake_only, NULL), "CTRT_VISIBLE_DEVICES=fake:one") {
        ctrt_device *device = NULL;
        CHECK_FAILS(ctrt_device_get(&device, "fake"), CTRT_ERR_INVALID_ARGUMENT,
                    "CTRT_VISIBLE_DEVICES=fake:one");
    }
    CHILD_END;
}

/* ---- selection ---- */

static void test_choice(void)
{
    static const struct { const char *setting, *device, *words; ctrt_status status; } cases[] = {
        { "CTRT_DEVICE=", "better:0", NULL, CTRT_OK },
        { "CTRT_DEVICE=auto", "better:0", NULL, CTRT_OK },
        { "CTRT_DEVICE=fake:1", "fake:1", NULL, CTRT_OK },
        { "CTRT_DEVICE=fake", "fake:0", NULL, CTRT_OK },
        { "CTRT_DEVICE=2", "better:2", NULL, CTRT_OK },
        { "CTRT_DEVICE=unasked", "unasked:0", NULL, CTRT_OK },
        { "CTRT_BACKENDS=-better", "fake:0", NULL, CTRT_OK },
        { "CTRT_DEVICE=fkae", NULL, "did you mean fake?", CTRT_ERR_NO_DEVICE },
        { "CTRT_DEVICE=fake:01", NULL, "CTRT_DEVICE=fake:01", CTRT_ERR_INVALID_ARGUMENT },
        { "CTRT_DEVICE=fake:3", NULL, "3 visible devices of that type, fake:0 to fake:2", CTRT_ERR_NO_DEVICE },
        { "CTRT_DEVICE=gpu", NULL, "unknown device type gpu", CTRT_ERR_INVALID_ARGUMENT },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        group("automatic selection with %s", cases[i].setting);
        IN_CHILD(folder_path(folder, NULL), cases[i].setting) {
            ctrt_device *device = NULL, *again = NULL, *fallback = NULL;
            ctrt_status status = ctrt_device_get(&device, NULL);
            CHECK(status == cases[i].status, "status %d: %s", (int)status, ctrt_error_message());
            CHECK(status == CTRT_OK || strstr(ctrt_error_message(), cases[i].words),
                  "the message lacks \"%s\": %s", cases[i].words, ctrt_error_message());
            CHECK(status == CTRT_OK || device == NULL, "a failed call changed the output");
            if (status == CTRT_OK) {
                CHECK(strcmp(ctrt_device_name(device), cases[i].device) == 0, "%s", ctrt_device_name(device));
                CHECK_OK(ctrt_device_get(&again, cases[i].device));
                CHECK(again == device, "a second lookup gave another handle");
                CHECK_OK(ctrt_default_device(&fallback));
                CHECK(fallback == device, "the default device is %s", ctrt_device_name(fallback));
                CHECK(ctrt_is_available("auto", NULL), "auto is not available");
            }
        }
        CHILD_END;
    }
    group("automatic selection returns the error when the best device fails to open");
    IN_CHILD(folder_path(fake_only, NULL), "CTRT_FAKE_BROKEN=0") {
        ctrt_device *device = NULL;
        CHECK_FAILS(ctrt_device_auto(&device), CTRT_ERR_BACKEND, "opening fake:0: fake device 0 is lost");
        CHECK_OK(ctrt_device_get(&device, "fake:1"));
    }
    CHILD_END;
    group("the error for a device from CTRT_DEVICE that fails to open does not say \"selected by auto\"");
    IN_CHILD(folder_path(fake_only, NULL), "CTRT_FAKE_BROKEN=1", "CTRT_DEVICE=fake:1") {
        ctrt_device *device = NULL;
        CHECK_FAILS(ctrt_device_auto(&device), CTRT_ERR_BACKEND, "CTRT_DEVICE=fake:1: opening fake:1");
        CHECK(strstr(ctrt_error_message(), "selected by auto") == NULL, "%s", ctrt_error_message());
    }
    CHILD_END;
    group("without any backend: CTRT_ERR_NO_DEVICE with the reason");
    char *empty = folder_new();
    IN_CHILD(folder_path(empty, NULL)) {
        ctrt_device *device = NULL;
        const char *why;
        CHECK_FAILS(ctrt_device_auto(&device), CTRT_ERR_NO_DEVICE, "no device can be used");
        CHECK_FAILS(ctrt_device_get(&device, "cuda:0"), CTRT_ERR_NO_DEVICE,
                    "no file backend-cuda.so: searched ");
        CHECK(!ctrt_is_available("cuda", &why) && strstr(why, "backend-cuda.so"), "%s", why);
        CHECK(!ctrt_is_available(NULL, &why) && why[0] != '\0', "NULL is available");
        CHECK(!ctrt_is_available("", NULL), "an empty type is available");
        CHECK(ctrt_device_count("cuda") == 0 && ctrt_device_count(NULL) == 0 && ctrt_device_count("") == 0,
              "ctrt_device_count is not 0 for cuda, NULL or \"\"");
    }
    CHILD_END;
    folder_remove(empty);
    group("ctrt_is_available does not change the error message");
    IN_CHILD(folder_path(fake_only, NULL)) {
        ctrt_fail(CTRT_ERR_SHAPE, "what was there before");
        CHECK(!ctrt_is_available("nothing", NULL), "nothing is available");
        CHECK(strcmp(ctrt_error_message(), "what was there before") == 0, "%s", ctrt_error_message());
    }
    CHILD_END;
}

static void test_suggestions(void)
{
    char *types = folder_new();
    folder_text(types, "backend-cpu.so", "");
    static const struct { const char *name, *words; } cases[] = {
        { "gpu:0", "cuda" }, { "GPU", "cuda" }, { "accelerator", "cuda" }, { "none", NULL }, { "Cpu:0", "cpu" },
    };
    for (int with_cuda = 0; with_cuda < 2; with_cuda++) {
        group("the type suggested for an unknown device type, %s cuda", with_cuda ? "with" : "without");
        if (with_cuda)
            folder_text(types, "backend-cuda.so", "");
        IN_CHILD(folder_path(types, NULL)) {
            for (size_t i = 0; i < COUNT(cases); i++) {
                ctrt_device_spec spec;
                char words[64] = "did you mean ";
                const bool some = cases[i].words != NULL && (with_cuda || strcmp(cases[i].words, "cpu") == 0);
                CHECK(ctrt_device_parse(&spec, cases[i].name) == CTRT_ERR_INVALID_ARGUMENT, "%s is a device",
                      cases[i].name);
                if (some)
                    strcat(strcat(words, cases[i].words), "?");
                CHECK((strstr(ctrt_error_message(), words) != NULL) == some, "%s: %s", cases[i].name,
                      ctrt_error_message());
            }
        }
        CHILD_END;
    }
    folder_remove(types);
}

extern char **environ;

static char logged[4096];

static void keep_log(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)level, (void)component;
    strncat(logged, text, sizeof logged - strlen(logged) - 2);
    strcat(logged, "\n");
}

static void test_late_changes(void)
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
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int opened = 0; opened < 2; opened++) {
            group("a warning at most once when %s is set after devices were %s", cases[i].name,
                  opened ? "opened" : "counted");
            IN_CHILD(folder_path(fake_only, NULL)) {
                ctrt_device *device = NULL;
                ctrt_log_set_callback(keep_log, NULL);
                CHECK(ctrt_device_count("fake") == 3, "%d devices", ctrt_device_count("fake"));
                if (opened)
                    CHECK_OK(ctrt_device_get(&device, "fake:0"));
                CHECK(logged[0] == '\0', "%s", logged);
                setenv(cases[i].name, cases[i].value, 1);
                for (int again = 0; again < 2; again++)
                    CHECK(ctrt_device_count("fake") == 3, "%d devices", ctrt_device_count("fake"));
                const char *at = cases[i].words != NULL ? strstr(logged, cases[i].words) : NULL;
                CHECK((at != NULL) == (cases[i].words != NULL), "logged: %s", logged);
                CHECK(at == NULL || strstr(at + 1, cases[i].words) == NULL, "logged twice: %s", logged);
            }
            CHILD_END;
        }
    group("an open device is looked up without reading the environment, which another thread may be changing");
    IN_CHILD(folder_path(fake_only, NULL)) {
        ctrt_device *device = NULL, *again = NULL;
        char **before = environ;
        CHECK_OK(ctrt_device_get(&device, "fake:0"));
        environ = (char **)(uintptr_t)16;
        const ctrt_status status = ctrt_device_get(&again, "fake:0");
        environ = before;
        CHECK(status == CTRT_OK && again == device, "the lookup failed or gave another device");
    }
    CHILD_END;
    group("visible devices can be set after counting, until a device is opened");
    IN_CHILD(folder_path(fake_only, NULL)) {
        ctrt_device *device = NULL;
        CHECK(ctrt_device_count("fake") == 3, "%d devices", ctrt_device_count("fake"));
        CHECK_OK(ctrt_param_set("CTRT_VISIBLE_DEVICES", "2,0"));
        CHECK(ctrt_device_count("fake") == 2, "%d devices", ctrt_device_count("fake"));
        CHECK_OK(ctrt_param_set("CTRT_VISIBLE_DEVICES", "1"));
        CHECK(ctrt_device_count("fake") == 1, "%d devices", ctrt_device_count("fake"));
        CHECK_OK(ctrt_device_get(&device, "fake:0"));
        CHECK_FAILS(ctrt_param_set("CTRT_VISIBLE_DEVICES", "0"), CTRT_ERR_STATE, "already in use as \"1\"");
        CHECK(ctrt_device_count("fake") == 1, "%d devices", ctrt_device_count("fake"));
    }
    CHILD_END;
}

static void test_facts(void)
{
    group("device properties, before and after opening the device");
    IN_CHILD(folder_path(folder, NULL), "CTRT_FAKE_MEMORY=1m") {
        ctrt_device_properties facts;
        ctrt_device_spec spec;
        ctrt_device *device = NULL;
        uint64_t free_bytes = 0, total = 0;
        CHECK_OK(ctrt_device_get_properties(&facts, "fake:1"));
        CHECK(strcmp(facts.name, "fake device 1 of fake") == 0 && strcmp(facts.pci, "0000:01:00.0") == 0
                  && facts.total_memory == 1 << 20 && facts.compute_major == 9 && facts.processors == 11
                  && facts.clock_khz == 1000000 && facts.numa_node == -1 && facts.ecc == 1
                  && !facts.host_memory && !facts.asynchronous,
              "%s %s", facts.name, facts.pci);
        CHECK_FAILS(ctrt_device_get_properties(&facts, "fake:3"), CTRT_ERR_NO_DEVICE, "fake:0 to fake:2");
        CHECK_FAILS(ctrt_device_get_properties(&facts, "fake:-1"), CTRT_ERR_INVALID_ARGUMENT, "not a number");
        CHECK_FAILS(ctrt_device_get_properties(NULL, "fake:0"), CTRT_ERR_INVALID_ARGUMENT, "NULL");
        CHECK_OK(ctrt_device_get_properties(&facts, NULL));
        static const char *const order[] = { "better:0", "better:1", "better:2", "fake:0",
                                             "fake:1",   "fake:2",   "unasked:0" };
        for (size_t i = 0; i < COUNT(order); i++) {
            char text[48];
            CHECK_OK(ctrt_device_list(&spec, i));
            CHECK_OK(ctrt_device_format(text, sizeof text, &spec));
            CHECK(strcmp(text, order[i]) == 0, "the device %zu is %s, expected %s", i, text, order[i]);
        }
        CHECK_FAILS(ctrt_device_list(&spec, 9), CTRT_ERR_NOT_FOUND, NULL);
        CHECK_OK(ctrt_device_get(&device, "fake:2"));
        CHECK_OK(ctrt_device_memory_info(device, &free_bytes, &total));
        CHECK(free_bytes == 1 << 20 && total == 1 << 20, "%lu of %lu", (unsigned long)free_bytes,
              (unsigned long)total);
        CHECK_OK(ctrt_device_synchronize(device));
        CHECK(strcmp(ctrt_device_type(device), "fake") == 0 && ctrt_device_index(device) == 2, "%s",
              ctrt_device_type(device));
        CHECK(strcmp(ctrt_device_name(NULL), "(null)") == 0 && ctrt_device_index(NULL) == -1,
              "NULL has a name");
    }
    CHILD_END;
}

/* ---- the thread's current devices ---- */

static void *current_in_thread(void *out)
{
    ctrt_device *device = NULL;
    if (ctrt_device_get_current(&device, "fake") == CTRT_OK)
        *(ctrt_device **)out = device;
    return NULL;
}

static void test_current(void)
{
    group("the current device: per thread, restored by guards");
    IN_CHILD(folder_path(fake_only, NULL)) {
        ctrt_device *zero = NULL, *one = NULL, *two = NULL, *now = NULL;
        CHECK_OK(ctrt_device_get(&now, "fake"));
        CHECK_OK(ctrt_device_get(&zero, "fake:0"));
        CHECK(now == zero, "a thread starts with %s", ctrt_device_name(now));
        CHECK_OK(ctrt_device_get(&one, "fake:1"));
        CHECK_OK(ctrt_device_get(&two, "fake:2"));
        CHECK_OK(ctrt_device_set_current(one));
        CHECK_OK(ctrt_device_get(&now, "fake"));
        CHECK(now == one, "after set_current(fake:1) fake is %s", ctrt_device_name(now));
        CHECK_FAILS(ctrt_device_set_current(NULL), CTRT_ERR_INVALID_ARGUMENT, "NULL");
        CHECK_FAILS(ctrt_device_get(&now, "fake:7"), CTRT_ERR_NO_DEVICE, NULL);
        CHECK_OK(ctrt_device_get_current(&now, "fake"));
        CHECK(now == one, "an error changed the current device to %s", ctrt_device_name(now));

        pthread_t thread;
        ctrt_device *other = NULL;
        pthread_create(&thread, NULL, current_in_thread, &other);
        pthread_join(thread, NULL);
        CHECK(other == zero, "a new thread starts with %s", ctrt_device_name(other));

        CHECK_OK(ctrt_device_push(two));
        CHECK_OK(ctrt_device_push(NULL));
        CHECK_OK(ctrt_device_push(zero));
        CHECK_OK(ctrt_device_get_current(&now, "fake"));
        CHECK(now == zero, "inside three guards: %s", ctrt_device_name(now));
        CHECK_OK(ctrt_device_pop());
        CHECK_OK(ctrt_device_pop());
        CHECK_OK(ctrt_device_get_current(&now, "fake"));
        CHECK(now == two, "inside one guard: %s", ctrt_device_name(now));
        CHECK_OK(ctrt_device_pop());
        CHECK_OK(ctrt_device_get_current(&now, "fake"));
        CHECK(now == one, "outside: %s", ctrt_device_name(now));
        CHECK_FAILS(ctrt_device_pop(), CTRT_ERR_STATE, "without a matching");
        for (int i = 0; i < 100; i++)
            CHECK_OK(ctrt_device_push(i % 2 ? two : NULL));
        for (int i = 0; i < 100; i++)
            CHECK_OK(ctrt_device_pop());
        CHECK_OK(ctrt_device_get_current(&now, NULL));
        CHECK(now == one, "the best type's current device is %s", ctrt_device_name(now));
        CHECK_FAILS(ctrt_device_get_current(&now, "fake:1"), CTRT_ERR_INVALID_ARGUMENT, "expected a device type");
        CHECK_FAILS(ctrt_device_get_current(NULL, "fake"), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    }
    CHILD_END;
    group("a guard around the first use of a type does not set its current device");
    IN_CHILD(folder_path(folder, NULL)) {
        ctrt_device *fake = NULL, *better = NULL, *now = NULL;
        CHECK_OK(ctrt_device_get(&fake, "fake:2"));
        CHECK_OK(ctrt_device_get(&better, "better:1"));
        CHECK_OK(ctrt_device_push(fake));
        CHECK_OK(ctrt_device_push(better));
        CHECK_OK(ctrt_device_get(&now, "fake"));
        CHECK(now == fake, "%s", ctrt_device_name(now));
        CHECK_OK(ctrt_device_pop());
        CHECK_OK(ctrt_device_pop());
        CHECK_OK(ctrt_device_get(&now, "fake"));
        CHECK(strcmp(ctrt_device_name(now), "fake:0") == 0, "%s", ctrt_device_name(now));
        CHECK_OK(ctrt_device_get(&now, "better"));
        CHECK(strcmp(ctrt_device_name(now), "better:0") == 0, "%s", ctrt_device_name(now));
        CHECK_OK(ctrt_set_default_device(fake));
        CHECK_OK(ctrt_default_device(&now));
        CHECK(now == fake, "the default is %s", ctrt_device_name(now));
        CHECK_OK(ctrt_set_default_device(NULL));
        CHECK_OK(ctrt_default_device(&now));
        CHECK(strcmp(ctrt_device_name(now), "better:0") == 0, "the default is %s", ctrt_device_name(now));
        CHECK_FAILS(ctrt_default_device(NULL), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    }
    CHILD_END;
}

TEST_MAIN
{
    search_installed_folder = "/nonexistent";       /* ignore an installed ctrt */
    folder = folder_new();
    fake_only = folder_new();
    folder_actor(folder, "backend-fake");
    folder_actor(folder, "backend-better");
    folder_actor(folder, "backend-unasked");
    folder_actor(fake_only, "backend-fake");
    folder_plugin(folder, "memory-direct");
    folder_plugin(folder, "memory-caching");
    folder_plugin(fake_only, "memory-direct");
    folder_plugin(fake_only, "memory-caching");
    test_names();
    test_visible_lists();
    test_visible_devices();
    test_choice();
    test_suggestions();
    test_late_changes();
    test_facts();
    test_current();
    folder_remove(folder);
    folder_remove(fake_only);
    return done();
}
