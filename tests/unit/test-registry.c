/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins: valid ones are found by name, invalid ones are refused with a reason, and the listing has the state of each
 * file; their init functions run in several threads, call each other, and fork. */
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include "calls.h"
#include "base/base.h"
#include "base/param.h"
#include "child.h"
#include "device/internal.h"
#include "ctrt/device.h"
#include "ctrt/tensor.h"
#include "folder.h"
#include "registry/internal.h"

#define QUIET "CTRT_LOG=error"          /* suppresses the warnings about refused plugins */

static const struct component *component;       /* result of the last use() */

static ctrt_status use(const char *backend)
{
    return registry_use(&component, CTRT_COMPONENT_BACKEND, backend);
}

/* Checks and returns the listing's entry whose path ends with `file`. */
static ctrt_plugin_info check_listed(const char *file, const char *state, const char *reason)
{
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    for (size_t i = 0; ctrt_plugin_list(&info, i) == CTRT_OK; i++) {
        const size_t length = strlen(info.file), tail = strlen(file);
        if (length < tail || strcmp(info.file + length - tail, file) != 0)
            continue;
        CHECK(strcmp(info.state, state) == 0 && strstr(info.reason, reason) != NULL,
              "%s: %s, reason \"%s\"; expected %s, \"%s\"", file, info.state, info.reason, state, reason);
        return info;
    }
    FAIL("%s is not listed", file);
}

/* Finds the listed parameter. Returns false if there is none. */
static bool param_listed(ctrt_param_info *info, const char *name)
{
    for (size_t i = 0; ctrt_param_get_info(info, i) == CTRT_OK; i++)
        if (strcmp(info->name, name) == 0)
            return true;
    return false;
}

/* ---- invalid plugins ---- */

/* backend-NAME.so; those called probe are listed as absent, the others as refused. */
static const struct bad_plugin { const char *name, *reason; } bad_plugins[] = {
    { "null", "returned NULL" }, { "small-size", "wrong size: struct ctrt_plugin has 8 bytes" },
    { "large-size", "wrong size: struct ctrt_plugin" }, { "cut-size", "wrong size: struct ctrt_plugin" },
    { "major", "built for plugin ABI 2.0, this library supports 1." }, { "no-name", "no name" },
    { "no-components", "no components" }, { "null-components", "no components" }, { "many", "the maximum of 64" },
    { "stride", "wrong stride: components are 12 bytes apart" }, { "odd-stride", "wrong stride" },
    { "component-size", "wrong size: struct ctrt_component has 4 bytes" }, { "kind", "kind 77 is unknown" },
    { "bad-name", "lower-case letter" }, { "null-name", "lower-case letter" }, { "no-table", "no table" },
    { "table-size", "required slot device is missing" }, { "zero-table", "its table has 0 bytes" },
    { "null-device", "required slot device is missing or NULL" },
    { "null-slot", "struct ctrt_device_table: required slot open is missing or NULL" },
    { "short-slot", "required slot close is missing" },
    { "null-memory", "struct ctrt_memory_table: required slot alloc" }, { "probe-no", "no device node /dev/actor0" },
    { "probe-silent", "without a reason" }, { "noplugin", "does not export ctrt_plugin_v1" },
    { "nextabi", "built for plugin ABI 2, this library supports 1" },
    { "static-tls", "static-tls" }, { "headless", "backend-headless.so" },           /* messages of dlopen */
    { "truncated", "truncated" }, { "empty", "backend-empty.so" }, { "text", "backend-text.so" },
    { "folder", "not a regular file" },
};

TEST(test_bad_plugins, "each invalid plugin is refused with a reason when it is requested, and listed with that reason")
{
    char *folder = FOLDER_OF("backend-fake"), file[64];
    struct stat built;
    EACH(c, bad_plugins) {
        const char *name = c->name;
        snprintf(file, sizeof file, "backend-%s.so", name);
        if (strcmp(name, "folder") != 0)
            folder_copy(folder, file, built_path(access(built_path(name), F_OK) == 0 ? name : "plugin_by_name"), -1);
    }
    stat(built_path("plugin_by_name"), &built);
    folder_copy(folder, "backend-truncated.so", built_path("plugin_by_name"), built.st_size / 8);
    folder_copy(folder, "backend-headless.so", built_path("plugin_by_name"), 40);
    folder_copy(folder, "backend-empty.so", built_path("plugin_by_name"), 0);
    folder_text(folder, "backend-text.so",
                "This is no shared object, whatever its name says; it goes on for more than sixty-four bytes.\n");
    mkdir(folder_join(folder, "backend-folder.so"), 0755);

    IN_CHILD(folder_path(folder, NULL), QUIET) {
        EACH(c, bad_plugins)
            CHECK_FAILS(use(c->name), CTRT_ERR_NOT_FOUND, c->reason);
        EACH(c, bad_plugins) {
            snprintf(file, sizeof file, "backend-%s.so", c->name);
            check_listed(file, strncmp(c->name, "probe", 5) == 0 ? "absent" : "refused", c->reason);
        }
        const ctrt_plugin_info info = check_listed("backend-fake.so", "ready", "");
        char line[200];
        snprintf(line, sizeof line, "%s %s of %s %s%s", info.kind, info.component, info.plugin, info.version,
                 info.reason);
        CHECK_STR(line, "backend fake of plugin_by_name 1");
    }
}

TEST(test_refused_at_first_use, "errors found at first use refuse the plugin permanently")
{
    static const struct { const char *name, *reason; } cases[] = {
        { "init-fails", "init failed: the driver is from another century" },
        { "init-silent", "init failed: init returned an error without" },
        { "kernel-run", "kernel 1 (abs): required slot run is NULL" },
        { "kernel-stride", "wrong stride: kernels are 16 bytes apart" },
        { "kernel-array", "count is 2, but kernels is NULL" }, { "init-itself", "looked up itself and got nothing" },
    };
    char *folder = FOLDER_OF("memory-policy-null", "backend-init-fails", "backend-init-silent", "backend-kernel-run",
                             "backend-kernel-stride", "backend-kernel-array", "backend-init-itself");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        EACH(c, cases) {
            CHECK_OK(registry_find(&component, CTRT_COMPONENT_BACKEND, c->name));
            CHECK_FAILS(use(c->name), CTRT_ERR_PLUGIN, c->reason);
            CHECK_FAILS(use(c->name), CTRT_ERR_NOT_FOUND, c->reason);
        }
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_MEMORY, "policy-null"), CTRT_ERR_NOT_FOUND,
                    "struct ctrt_memory_policy: required slot free");
        ctrt_device *device = NULL;
        CHECK_FAILS(ctrt_device_get(&device, "init-fails:0"), CTRT_ERR_NO_DEVICE, "the driver is from another century");
    }
}

/* This program contains the objects of the library and exports their functions, so the plugin calls them. */
TEST(test_own_library, "a plugin linked with libctrt.so is accepted in a program that exports the library's functions")
{
    IN_CHILD(folder_path(FOLDER_OF("strategy-single"), NULL), QUIET) {
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_STRATEGY, "single"));
    }
}

TEST(test_alloc_without_address, NULL)
{
    char *folder = FOLDER_OF("backend-fake", "backend-alloc-null", "memory-policy-hollow", "memory-direct",
                             "memory-caching");
    static const struct { const char *setting, *device, *source; } cases[] = {
        { "CTRT_MEMORY=direct", "alloc-null:0", "backend alloc-null" },
        { "CTRT_MEMORY=caching", "alloc-null:0", "backend alloc-null" },
        { "CTRT_MEMORY=policy-hollow", "fake:0", "memory policy policy-hollow" },
        { "CTRT_MEMORY=direct+policy-hollow", "fake:0", "memory policy policy-hollow" },
    };
    EACH(c, cases) {
        group("alloc that returns success without an address: %s on %s", c->setting, c->device);
        IN_CHILD(folder_path(folder, NULL), QUIET, c->setting) {
            ctrt_device *device = NULL;
            ctrt_tensor *x = NULL;
            CHECK_OK(ctrt_device_get(&device, c->device));
            CHECK_FAILS(ctrt_empty(&x, CTRT_SHAPE(1000), CTRT_F32, device), CTRT_ERR_PLUGIN, c->source);
            CHECK_HAS(ctrt_error_message(), ": alloc returned success without an address for");
        }
    }
}

/* A slot of a table is present only if it is inside the table's size and not NULL. */
TEST(test_slots, "CTRT_SLOT")
{
    ctrt_memory_policy policy = { .size = sizeof policy }, *absent = NULL;
    CHECK_TRUE(!CTRT_SLOT(&policy, trim) && !CTRT_SLOT(absent, trim));
    policy.trim = (void (*)(void *))test_slots;
    CHECK_TRUE(CTRT_SLOT(&policy, trim));
    policy.size = offsetof(ctrt_memory_policy, trim) + sizeof policy.trim;
    CHECK(CTRT_SLOT(&policy, trim), "the last slot inside the size is reported as absent");
    policy.size--;
    CHECK(!CTRT_SLOT(&policy, trim), "a slot partly outside the size is reported as present");
}

/* ---- names, versions, parameters ---- */

TEST(test_names, "requesting a backend opens only the files of that name, and one of two components with one name is "
                 "used")
{
    /* The component of backend-other-name is called fake. */
    char *one = FOLDER_OF("backend-fake", "backend-other-name");
    char *two = FOLDER_OF("backend-fake", "backend-better", "memory-direct");
    IN_CHILD(folder_path(one, two)) {
        CHECK_OK(use("fake"));
        CHECK_HAS(component->file->path, one);
        int opened = 0;
        for (size_t i = 0; i < registry_file_count; i++)
            opened += registry_files[i]->plugin != NULL;
        CHECK_EQ(opened, 2);                    /* the two called backend-fake.so */
        CHECK_STR(ctrt_error_message(), "");
        check_listed("backend-other-name.so", "refused", "rename the file to backend-fake.so, or the component to");
        check_listed(folder_join(one, "backend-fake.so"), "loaded", "");
        check_listed(folder_join(two, "backend-fake.so"), "disabled", one);
    }
    group("the error for an unknown name lists the searched folders, known names and a suggestion");
    IN_CHILD(folder_path(one, two)) {
        const char *const parts[] = { "did you mean fake?", one, two, "better" };
        EACH(c, parts)
            CHECK_FAILS(use("fkae"), CTRT_ERR_NOT_FOUND, *c);
        CHECK_FAILS(use("../evil"), CTRT_ERR_INVALID_ARGUMENT, "not a name");
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_MEMORY, "cachign"), CTRT_ERR_NOT_FOUND, "known: direct");
        ctrt_plugin_info info = CTRT_PLUGIN_INFO;
        bool found = false;
        for (size_t i = 0; ctrt_plugin_list(&info, i) == CTRT_OK && !found; i++)
            found = strcmp(info.component, "fkae") == 0 && strcmp(info.state, "absent") == 0 && info.file[0] == '\0';
        CHECK(found, "the listing has no entry for the unknown name");
    }
}

CHILD_TEST(test_versions, "a plugin of a later minor version is accepted, and an overlay adds kernels to its backend",
           folder_path(FOLDER_OF("backend-grown", "backend-probe-long", "backend-fake", "kernels-fake-extra"), NULL))
{
    CHECK_OK(use("grown"));
    CHECK_OK(use("grown-too"));
    CHECK_OK(use("probe-long"));
    CHECK_EQ(strlen(component->reason), 255);       /* the probe does not terminate its reason */
    const ctrt_kernel_table *tables[3] = { NULL };
    size_t count = 0;
    CHECK_OK(registry_overlays(tables, &count, 3, "fake"));
    CHECK(count == 1 && tables[0] != NULL && tables[0]->count == 2, "fake has no overlay");
    CHECK_OK(registry_overlays(tables, &count, 3, "grown"));
    CHECK_EQ(count, 0);
}

TEST(test_selection, NULL)
{
    char *folder = FOLDER_OF("backend-fake", "backend-better");
    static const struct { const char *setting; ctrt_status fake, better; } cases[] = {
        { "CTRT_BACKENDS=", CTRT_OK, CTRT_OK }, { "CTRT_BACKENDS=fake", CTRT_OK, CTRT_ERR_NO_DEVICE },
        { "CTRT_BACKENDS=fake,better", CTRT_OK, CTRT_OK }, { "CTRT_BACKENDS=-fake", CTRT_ERR_NO_DEVICE, CTRT_OK },
        { "CTRT_BACKENDS= -fake , -better", CTRT_ERR_NO_DEVICE, CTRT_ERR_NO_DEVICE },
        { "CTRT_BACKENDS=fake,-fake", CTRT_ERR_NO_DEVICE, CTRT_ERR_NO_DEVICE },
        { "CTRT_BACKENDS=bettr", CTRT_ERR_INVALID_ARGUMENT, CTRT_ERR_INVALID_ARGUMENT },
        { "CTRT_BACKENDS=-bettr,fake", CTRT_ERR_INVALID_ARGUMENT, CTRT_ERR_INVALID_ARGUMENT },
    };
    EACH(c, cases) {
        group("%s", c->setting);
        IN_CHILD(folder_path(folder, NULL), c->setting) {
            const char *words = c->fake == CTRT_ERR_INVALID_ARGUMENT ? "did you mean better?"
                              : c->fake == CTRT_ERR_NO_DEVICE ? "switched off by CTRT_BACKENDS" : NULL;
            CHECK_FAILS(use("fake"), c->fake, words);
            CHECK_FAILS(use("better"), c->better, NULL);
            check_listed("backend-fake.so", c->fake != CTRT_OK ? "disabled" : "loaded", "");
        }
    }
}

/* Sets *warned if the line is a warning about CTRT_FAKE_DEVICES that names both plugins that declare it. */
static void find_warning(void *warned, ctrt_log_level level, const char *from, const char *text)
{
    (void)from;
    if (level == CTRT_LOG_WARNING && strstr(text, "CTRT_FAKE_DEVICES") != NULL && strstr(text, "backend-fake") != NULL
        && strstr(text, "backend-init-thief") != NULL)
        *(bool *)warned = true;
}

TEST(test_params, NULL)
{
    char *conflict = FOLDER_OF("backend-fake", "backend-init-thief"), *absent = FOLDER_OF("backend-probe-no");
    char *valid = FOLDER_OF("backend-fake", "backend-better");
    ctrt_param_info info = CTRT_PARAM_INFO;
    static const struct { const char *first, *second, *setting; int32_t count; } orders[] = {
        { "fake", "init-thief", "CTRT_FAKE_DEVICES=", 3 }, { "init-thief", "fake", "CTRT_FAKE_DEVICES=", 3 },
        { "fake", "init-thief", "CTRT_FAKE_DEVICES=2", 2 }, { "init-thief", "fake", "CTRT_FAKE_DEVICES=2", 2 },
    };
    EACH(c, orders) {
        group("two plugins declare a parameter with different meanings, %s first, %s", c->first, c->setting);
        IN_CHILD(folder_path(conflict, NULL), c->setting) {
            bool warned = false;
            ctrt_log_set_callback(find_warning, &warned);
            const ctrt_status first = use(c->first), second = use(c->second);
            CHECK(warned, "no warning names both plugins");
            CHECK_EQ(ctrt_device_count("fake"), c->count);
            /* 2 is not an allowed value of init-thief's parameter. */
            const ctrt_status of_thief = strcmp(c->first, "fake") == 0 ? second : first;
            CHECK_EQ(of_thief, c->count == 3 ? CTRT_OK : CTRT_ERR_PLUGIN);
        }
    }
    group("parameters of a plugin without devices are listed");
    IN_CHILD(folder_path(absent, NULL), QUIET) {
        CHECK_TRUE(param_listed(&info, "CTRT_FAKE_DEVICES"));
        check_listed("backend-probe-no.so", "absent", "/dev/actor0");
    }
    group("parameters of plugins that are not loaded yet can be set and listed");
    IN_CHILD(folder_path(valid, NULL), QUIET) {
        CHECK_OK(ctrt_param_set("CTRT_FAKE_DEVICES", "7"));
        CHECK_OK(use("fake"));
        CHECK_EQ(ctrt_device_count("fake"), 7);
        CHECK_FAILS(ctrt_param_set("CTRT_FAKE_DEVICE", "7"), CTRT_ERR_NOT_FOUND, "did you mean CTRT_FAKE_DEVICES?");
        CHECK_FAILS(ctrt_param_set("CTRT_FAKE_DEVICES", "8"), CTRT_ERR_STATE, "already in use");
        if (CHECK_TRUE(param_listed(&info, "CTRT_FAKE_DEVICES"))) {
            CHECK_STR(info.value, "7");
            CHECK_STR(info.origin, "program");
            CHECK_STR(info.type, "int");
            CHECK_STR(info.help, "how many devices the fake backend has");
            CHECK_HAS(info.owner, "backend-");
        }
        CHECK_TRUE(param_listed(&info, "CTRT_GRAPH_GROWTH"));
        CHECK_STR(info.owner, "core");
        CHECK_STR(info.origin, "default");
        CHECK_OK(ctrt_param_set("CTRT_GRAPH_GROWTH", "9"));     /* listing a parameter does not read it */
    }
    IN_CHILD(folder_path(valid, NULL), QUIET) {
        CHECK_FAILS(ctrt_param_set("CTRT_FAKE_DEVICES", "many"), CTRT_ERR_INVALID_ARGUMENT,
                    "CTRT_FAKE_DEVICES=many: expected an integer");
        CHECK_OK(use("fake"));
    }
}

TEST(test_repeated, "a probe or an init that fails temporarily is called again")
{
    char *folder = FOLDER_OF("backend-probe-later", "backend-init-short", "backend-late-kernel", "backend-over");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        CHECK_FAILS(use("probe-later"), CTRT_ERR_IO, "no descriptor is left to look");
        CHECK_OK(use("probe-later"));
        CHECK_FAILS(use("init-short"), CTRT_ERR_IO, "no descriptor is left");
        CHECK_OK(use("init-short"));
    }
    group("a component that changed after its plugin was initialised is validated again, a base backend is missing");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        ctrt_param_info info = CTRT_PARAM_INFO;
        CHECK_TRUE(param_listed(&info, "CTRT_FAKE_DEVICES"));
        CHECK_FAILS(use("late-kernel"), CTRT_ERR_NOT_FOUND, "kernel 1 (abs): required slot run is NULL");
        check_listed("backend-over.so", "absent", "nobody");
    }
}

/* ---- threads and forks ---- */

static void *use_all(void *unused)
{
    const struct component *found;
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    CHECK_OK(registry_use(&found, CTRT_COMPONENT_BACKEND, "fake"));
    CHECK_OK(registry_use(&found, CTRT_COMPONENT_BACKEND, "better"));
    for (size_t i = 0; ctrt_plugin_list(&info, i) == CTRT_OK; i++)
        CHECK_TRUE(info.state != NULL);
    CHECK_TRUE(registry_use(&found, CTRT_COMPONENT_BACKEND, "init-fails") != CTRT_OK);
    return unused;
}

CHILD_TEST(test_threads, "eight threads load plugins at the same time",
           folder_path(FOLDER_OF("backend-fake", "backend-better", "backend-init-fails"), NULL), QUIET)
{
    in_threads(8, use_all, NULL, 0);
}

/* Uses a backend in a thread. join_use returns the status. */
static void *use_in_thread(void *name)
{
    const struct component *found;
    return (void *)(intptr_t)registry_use(&found, CTRT_COMPONENT_BACKEND, name);
}

static pthread_t start_use(const char *name)
{
    pthread_t thread;
    REQUIRE_EQ(pthread_create(&thread, NULL, use_in_thread, (void *)(uintptr_t)name), 0);
    return thread;
}

static ctrt_status join_use(pthread_t thread)
{
    void *status = NULL;
    pthread_join(thread, &status);
    return (ctrt_status)(intptr_t)status;
}

#define FORK_ROUNDS 40                      /* each round forks 100 us later than the one before */

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer must not report the parent's threads as leaked in a forked child. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "report_thread_leaks=0";
}
#endif

TEST(test_init, "an init can start and join a thread that calls the host table")
{
    char *folder = FOLDER_OF("backend-fake", "backend-init-thread", "backend-init-slow", "backend-init-ping",
                             "backend-init-pong", "backend-init-forks", "backend-init-thread-forks",
                             "backend-needs-fork", "backend-needs-fork-late");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        CHECK_OK(use("init-thread"));
        CHECK_EQ(component->state, PLUGIN_LOADED);
    }
    group("two plugins whose inits need each other fail without deadlock, from one thread and from two");
    for (int threads = 1; threads <= 2; threads++) {
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const pthread_t other = threads == 2 ? start_use("init-pong") : pthread_self();
            CHECK(use("init-ping") != CTRT_OK, "init-ping loaded although it needs init-pong");
            if (threads == 2)
                CHECK(join_use(other) != CTRT_OK, "init-pong loaded although it needs init-ping");
        }
    }
    group("a child forked during an init in another thread can use the plugin");
    for (int round = 0; round < FORK_ROUNDS && forks_beside_threads(); round++) {
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const pthread_t other = start_use("init-slow");
            nanosleep(&(struct timespec){ 0, round * 100000 }, NULL);
            IN_FORK
                CHECK_OK(use("init-slow"));
            join_use(other);
        }
    }
    static const char *const needing[] = { "needs-fork", "needs-fork-late" };
    EACH(c, needing) {
        group("an init can fork while the init of %s waits for it", *c);
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const pthread_t other = start_use("init-forks");
            CHECK_OK(use(*c));
            CHECK_OK(join_use(other));
        }
    }
    for (int opened = 0; opened <= 1; opened++) {
        group("a thread that an init waits for can fork, %s",
              opened ? "while a device is opened" : "while the plugin is looked up");
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            if (opened)
                CHECK_EQ(ctrt_device_count("init-thread-forks"), 3);
            else
                CHECK_OK(use("init-thread-forks"));
        }
    }
}

static void *waits_for_registry(void *has_devices)
{
    device_enter();
    atomic_store((atomic_bool *)has_devices, true);
    registry_enter();
    registry_leave();
    device_leave();
    return NULL;
}

TEST(test_fork_with_lock, "a probe can fork while a thread that holds another lock waits for the registry")
{
    IN_CHILD(QUIET) {
        pthread_t thread;
        atomic_bool has_devices = false;
        registry_enter();                       /* as during a probe */
        CHECK_EQ(pthread_create(&thread, NULL, waits_for_registry, &has_devices), 0);
        while (!atomic_load(&has_devices))
            nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
        IN_FORK {
            device_enter();
            registry_enter();
            registry_leave();
            device_leave();
            CHECK_OK(CTRT_OK);
        }
        registry_leave();
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
}

TESTS_MAIN
