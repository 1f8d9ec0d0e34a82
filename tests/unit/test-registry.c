/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins: valid ones are found by name, invalid ones are refused with a reason, and the listing has the state of each
 * file. */
#include <pthread.h>
#include <sys/types.h>

#include "base/param.h"
#include "child.h"
#include "ctrt/device.h"
#include "ctrt/tensor.h"
#include "folder.h"
#include "registry/internal.h"

#define QUIET "CTRT_LOG=error"          /* suppresses the warnings about refused plugins */

/* Finds the listing's entry whose path ends with `file`. Returns false when there is none. */
static bool row_of(ctrt_plugin_info *info, const char *file)
{
    for (size_t i = 0; ctrt_plugin_list(info, i) == CTRT_OK; i++) {
        size_t length = strlen(info->file), tail = strlen(file);
        if (length >= tail && strcmp(info->file + length - tail, file) == 0)
            return true;
    }
    return false;
}

static const struct lie { const char *file, *asked, *state, *reason; } lies[] = {
    { "backend-null.so", "null", "refused", "returned NULL" },
    { "backend-small-size.so", "small-size", "refused", "wrong size: struct ctrt_plugin has 8 bytes" },
    { "backend-large-size.so", "large-size", "refused", "wrong size: struct ctrt_plugin" },
    { "backend-cut-size.so", "cut-size", "refused", "wrong size: struct ctrt_plugin" },
    { "backend-major.so", "major", "refused", "built for plugin ABI 2.0, this library supports 1." },
    { "backend-no-name.so", "no-name", "refused", "no name" },
    { "backend-no-components.so", "no-components", "refused", "no components" },
    { "backend-null-components.so", "null-components", "refused", "no components" },
    { "backend-many.so", "many", "refused", "the maximum of 64" },
    { "backend-stride.so", "stride", "refused", "wrong stride: components are 12 bytes apart" },
    { "backend-odd-stride.so", "odd-stride", "refused", "wrong stride" },
    { "backend-component-size.so", "component-size", "refused", "wrong size: struct ctrt_component has 4 bytes" },
    { "backend-kind.so", "kind", "refused", "kind 77 is unknown" },
    { "backend-bad-name.so", "bad-name", "refused", "lower-case letter" },
    { "backend-null-name.so", "null-name", "refused", "lower-case letter" },
    { "backend-no-table.so", "no-table", "refused", "no table" },
    { "backend-table-size.so", "table-size", "refused", "required slot device is missing" },
    { "backend-zero-table.so", "zero-table", "refused", "its table has 0 bytes" },
    { "backend-null-device.so", "null-device", "refused", "required slot device is missing or NULL" },
    { "backend-null-slot.so", "null-slot", "refused",
      "struct ctrt_device_table: required slot open is missing or NULL" },
    { "backend-short-slot.so", "short-slot", "refused", "required slot close is missing" },
    { "backend-null-memory.so", "null-memory", "refused", "struct ctrt_memory_table: required slot alloc" },
    { "backend-probe-no.so", "probe-no", "absent", "no device node /dev/actor0" },
    { "backend-probe-silent.so", "probe-silent", "absent", "without a reason" },
    { "backend-stranger.so", "stranger", "refused", "does not export ctrt_plugin_v1" },
    { "backend-later.so", "later", "refused", "built for plugin ABI 2, this library supports 1" },
    { "backend-static-tls.so", "static-tls", "refused", "static-tls" },                /* the message of dlopen */
    { "backend-truncated.so", "truncated", "refused", "truncated" },
    { "backend-headless.so", "headless", "refused", "backend-headless.so" },           /* the message of dlopen */
    { "backend-empty.so", "empty", "refused", "backend-empty.so" },
    { "backend-text.so", "text", "refused", "backend-text.so" },
    { "backend-folder.so", "folder", "refused", "not a regular file" },
};

static char *folder_of_lies(void)
{
    char *folder = folder_new(), path[4096];
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        const char *from = strcmp(lies[i].asked, "stranger") == 0     ? "stranger"
                           : strcmp(lies[i].asked, "later") == 0      ? "later"
                           : strcmp(lies[i].asked, "static-tls") == 0 ? "static-tls"
                                                                      : "actor";
        if (strcmp(lies[i].asked, "folder") != 0)
            folder_copy(folder, lies[i].file, built_path(from), -1);
    }
    struct stat facts;
    stat(built_path("actor"), &facts);
    folder_copy(folder, "backend-truncated.so", built_path("actor"), facts.st_size / 8);
    folder_copy(folder, "backend-headless.so", built_path("actor"), 40);
    folder_copy(folder, "backend-empty.so", built_path("actor"), 0);
    folder_text(folder, "backend-text.so",
                "This is no shared object, whatever its name says; it goes on for more than sixty-four bytes.\n");
    snprintf(path, sizeof path, "%s/backend-folder.so", folder);
    mkdir(path, 0755);
    folder_actor(folder, "backend-fake");
    return folder;
}

static void test_lies(void)
{
    char *folder = folder_of_lies();
    group("each invalid plugin is refused with a reason when it is requested");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
            ctrt_status status = registry_use(&component, CTRT_COMPONENT_BACKEND, lies[i].asked);
            CHECK(status == CTRT_ERR_NOT_FOUND, "%s: status %d: %s", lies[i].file, (int)status, ctrt_error_message());
            CHECK(strstr(ctrt_error_message(), lies[i].reason) != NULL, "%s: the reason lacks \"%s\": %s", lies[i].file,
                  lies[i].reason,
                  ctrt_error_message());
        }
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
    }
    CHILD_END;
    group("the listing has the state and the reason of each plugin");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
            ctrt_plugin_info info;
            if (!CHECK(row_of(&info, lies[i].file), "%s is not listed", lies[i].file))
                continue;
            CHECK(strcmp(info.state, lies[i].state) == 0, "%s: state %s, expected %s", lies[i].file, info.state,
                  lies[i].state);
            CHECK(strstr(info.reason, lies[i].reason) != NULL, "%s: reason \"%s\" lacks \"%s\"", lies[i].file,
                  info.reason, lies[i].reason);
        }
        ctrt_plugin_info fake;
        CHECK(row_of(&fake, "backend-fake.so") && strcmp(fake.state, "ready") == 0 && strcmp(fake.reason, "") == 0
                  && strcmp(fake.kind, "backend") == 0 && strcmp(fake.component, "fake") == 0
                  && strcmp(fake.plugin, "actor") == 0 && strcmp(fake.version, "1") == 0,
              "wrong entry of backend-fake.so: %s, %s, %s, %s", fake.state, fake.reason, fake.kind, fake.component);
        CHECK_FAILS(ctrt_plugin_list(&fake, 100000), CTRT_ERR_NOT_FOUND, "no plugin with that index");
        CHECK_FAILS(ctrt_plugin_list(NULL, 0), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    }
    CHILD_END;
    folder_remove(folder);
}

static void test_late_refusals(void)
{
    char *folder = folder_new();
    static const struct { const char *name, *reason; } late[] = {
        { "init-fails", "init failed: the driver is from another century" },
        { "init-silent", "init failed: init returned an error without" },
        { "kernel-run", "kernel 1 (abs): required slot run is NULL" },
        { "kernel-stride", "wrong stride: kernels are 16 bytes apart" },
        { "kernel-array", "count is 2, but kernels is NULL" }, { "init-itself", "looked up itself and got nothing" },
    };
    for (size_t i = 0; i < 6; i++) {
        char stem[64];
        snprintf(stem, sizeof stem, "backend-%s", late[i].name);
        folder_actor(folder, stem);
    }
    folder_actor(folder, "memory-policy-null");
    group("errors found at first use refuse the plugin permanently");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        for (size_t i = 0; i < 6; i++) {
            CHECK_OK(registry_find(&component, CTRT_COMPONENT_BACKEND, late[i].name));
            CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, late[i].name), CTRT_ERR_PLUGIN,
                        late[i].reason);
            CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, late[i].name), CTRT_ERR_NOT_FOUND,
                        late[i].reason);
        }
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_MEMORY, "policy-null"), CTRT_ERR_NOT_FOUND,
                    "struct ctrt_memory_policy: required slot free");
        ctrt_device *device = NULL;
        CHECK_FAILS(ctrt_device_get(&device, "init-fails:0"), CTRT_ERR_NO_DEVICE, "the driver is from another century");
    }
    CHILD_END;
    folder_remove(folder);
}

static void test_names(void)
{
    char *one = folder_new(), *two = folder_new();
    folder_actor(one, "backend-fake");
    folder_actor(one, "backend-other-name");            /* its component is called fake and has score 50 */
    folder_actor(two, "backend-fake");
    folder_actor(two, "backend-better");
    folder_plugin(two, "memory-direct");
    group("requesting a backend opens only the files of that name");
    IN_CHILD(folder_path(one, two)) {
        const struct component *component;
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
        CHECK(strstr(component->file->path, one) != NULL, "fake was loaded from %s", component->file->path);
        int opened = 0;
        for (size_t i = 0; i < registry_file_count; i++)
            opened += registry_files[i]->plugin != NULL;
        CHECK(opened == 2, "%d files were opened, expected the two called backend-fake.so", opened);
        CHECK(ctrt_error_message()[0] == '\0', "a successful call set the message: %s", ctrt_error_message());
    }
    CHILD_END;
    group("of two components with one name one is used, and the reason of the other names it");
    IN_CHILD(folder_path(one, two)) {
        ctrt_plugin_info info;
        CHECK(row_of(&info, "backend-other-name.so") && strcmp(info.state, "disabled") == 0
                  && strstr(info.reason, "duplicate name") != NULL && strstr(info.reason, "score 50") != NULL,
              "backend-other-name.so is %s, reason: %s", info.state, info.reason);
        char path[512];
        snprintf(path, sizeof path, "%s/backend-fake.so", two);
        CHECK(row_of(&info, path) && strcmp(info.state, "disabled") == 0 && strstr(info.reason, one) != NULL,
              "the second backend-fake.so is %s, reason: %s", info.state, info.reason);
        snprintf(path, sizeof path, "%s/backend-fake.so", one);
        CHECK(row_of(&info, path) && strcmp(info.state, "ready") == 0, "the first backend-fake.so is %s, reason: %s",
              info.state, info.reason);
    }
    CHILD_END;
    group("the error for an unknown name lists the searched folders, known names and a suggestion");
    IN_CHILD(folder_path(one, two)) {
        const struct component *component;
        ctrt_plugin_info info;
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "fkae"), CTRT_ERR_NOT_FOUND, "did you mean fake?");
        CHECK(strstr(ctrt_error_message(), one) && strstr(ctrt_error_message(), two) &&
              strstr(ctrt_error_message(), "better"),
              "the message lacks a folder or a known name: %s", ctrt_error_message());
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "../evil"), CTRT_ERR_INVALID_ARGUMENT,
                    "not a name");
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_MEMORY, "cachign"), CTRT_ERR_NOT_FOUND, "known: direct");
        bool found = false;
        for (size_t i = 0; ctrt_plugin_list(&info, i) == CTRT_OK; i++)
            found = found || (strcmp(info.component, "fkae") == 0 && strcmp(info.state, "absent") == 0 &&
                              strcmp(info.file, "") == 0);
        CHECK(found, "the listing has no entry for the unknown name");
    }
    CHILD_END;
    folder_remove(one);
    folder_remove(two);
}

static void test_versions(void)
{
    char *folder = folder_new();
    folder_actor(folder, "backend-grown");
    folder_actor(folder, "backend-probe-long");
    folder_actor(folder, "backend-fake");
    folder_actor(folder, "kernels-fake-extra");
    group("a plugin of a later minor version with larger structs is accepted");
    IN_CHILD(folder_path(folder, NULL)) {
        const struct component *component;
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "grown"));
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "grown-too"));
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "probe-long"));
        CHECK(strlen(component->reason) == 255, "an unterminated reason has %zu characters, expected 255",
              strlen(component->reason));
    }
    CHILD_END;
    group("an overlay adds kernels to its backend only");
    IN_CHILD(folder_path(folder, NULL)) {
        const ctrt_kernel_table *tables[3] = { NULL };
        size_t count = 0;
        CHECK_OK(registry_overlays(tables, &count, 3, "fake"));
        CHECK(count == 1 && tables[0] != NULL && tables[0]->count == 2, "fake has no overlay");
        CHECK_OK(registry_overlays(tables, &count, 3, "grown"));
        CHECK(count == 0, "grown has an overlay");
    }
    CHILD_END;
    folder_remove(folder);
}

static void test_selection(void)
{
    char *folder = folder_new();
    folder_actor(folder, "backend-fake");
    folder_actor(folder, "backend-better");
    static const struct { const char *setting; ctrt_status fake, better; } cases[] = {
        { "CTRT_BACKENDS=", CTRT_OK, CTRT_OK },
        { "CTRT_BACKENDS=fake", CTRT_OK, CTRT_ERR_NO_DEVICE },
        { "CTRT_BACKENDS=fake,better", CTRT_OK, CTRT_OK },
        { "CTRT_BACKENDS=-fake", CTRT_ERR_NO_DEVICE, CTRT_OK },
        { "CTRT_BACKENDS= -fake , -better", CTRT_ERR_NO_DEVICE, CTRT_ERR_NO_DEVICE },
        { "CTRT_BACKENDS=fake,-fake", CTRT_ERR_NO_DEVICE, CTRT_ERR_NO_DEVICE },
        { "CTRT_BACKENDS=bettr", CTRT_ERR_INVALID_ARGUMENT, CTRT_ERR_INVALID_ARGUMENT },
        { "CTRT_BACKENDS=-bettr,fake", CTRT_ERR_INVALID_ARGUMENT, CTRT_ERR_INVALID_ARGUMENT },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        group("%s", cases[i].setting);
        IN_CHILD(folder_path(folder, NULL), cases[i].setting) {
            const struct component *component;
            const char *words = cases[i].fake == CTRT_ERR_INVALID_ARGUMENT ? "did you mean better?"
                              : cases[i].fake == CTRT_ERR_NO_DEVICE ? "switched off by CTRT_BACKENDS" : NULL;
            ctrt_status status = registry_use(&component, CTRT_COMPONENT_BACKEND, "fake");
            CHECK(status == cases[i].fake, "fake: status %d, message: %s", (int)status, ctrt_error_message());
            CHECK(words == NULL || strstr(ctrt_error_message(), words), "wrong message: %s", ctrt_error_message());
            status = registry_use(&component, CTRT_COMPONENT_BACKEND, "better");
            CHECK(status == cases[i].better, "better: status %d, message: %s", (int)status, ctrt_error_message());
            ctrt_plugin_info info;
            CHECK(row_of(&info, "backend-fake.so") && strcmp(info.state, cases[i].fake ? "disabled" : "loaded") == 0,
                  "backend-fake.so has state %s",
                  info.state);
        }
        CHILD_END;
    }
    folder_remove(folder);
}

static void test_memory_lies(void)
{
    char *folder = folder_new();
    folder_actor(folder, "backend-fake");
    folder_actor(folder, "backend-alloc-null");
    folder_actor(folder, "memory-policy-hollow");
    folder_plugin(folder, "memory-direct");
    folder_plugin(folder, "memory-caching");
    static const struct { const char *setting, *device, *words; } cases[] = {
        { "CTRT_MEMORY=direct", "alloc-null:0", "backend alloc-null: alloc returned success without an address for" },
        { "CTRT_MEMORY=caching", "alloc-null:0", "backend alloc-null: alloc returned success without an address for" },
        { "CTRT_MEMORY=policy-hollow", "fake:0",
          "memory policy policy-hollow: alloc returned success without an address for" },
        { "CTRT_MEMORY=direct+policy-hollow", "fake:0",
          "memory policy policy-hollow: alloc returned success without an address for" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        group("alloc that returns success without an address: %s on %s", cases[i].setting, cases[i].device);
        IN_CHILD(folder_path(folder, NULL), QUIET, cases[i].setting) {
            ctrt_device *device = NULL;
            ctrt_tensor *x = NULL;
            CHECK_OK(ctrt_device_get(&device, cases[i].device));
            CHECK_FAILS(ctrt_empty(&x, CTRT_SHAPE(1000), CTRT_F32, device), CTRT_ERR_PLUGIN, cases[i].words);
        }
        CHILD_END;
    }
    folder_remove(folder);
}

static bool param_listed(const char *name)
{
    ctrt_param_info info;
    for (size_t i = 0; ctrt_param_get_info(&info, i) == CTRT_OK; i++)
        if (strcmp(info.name, name) == 0)
            return true;
    return false;
}

/* Sets *warned if the line is a warning about CTRT_FAKE_DEVICES that names both plugins that declare it. */
static void hear_owners(void *warned, ctrt_log_level level, const char *component, const char *text)
{
    (void)component;
    if (level == CTRT_LOG_WARNING && strstr(text, "CTRT_FAKE_DEVICES") != NULL && strstr(text, "backend-fake") != NULL
        && strstr(text, "backend-init-thief") != NULL)
        *(bool *)warned = true;
}

static void test_verdicts(void)
{
    char *folder = folder_new(), *absent = folder_new();
    folder_actor(folder, "backend-fake");
    folder_actor(folder, "backend-init-thief");
    folder_actor(folder, "backend-probe-later");
    folder_actor(folder, "backend-late-kernel");
    folder_actor(folder, "backend-over");
    folder_actor(absent, "backend-probe-no");
    static const struct { const char *first, *second, *devices; int32_t count; } orders[] = {
        { "fake", "init-thief", "CTRT_FAKE_DEVICES=", 3 }, { "init-thief", "fake", "CTRT_FAKE_DEVICES=", 3 },
        { "fake", "init-thief", "CTRT_FAKE_DEVICES=2", 2 }, { "init-thief", "fake", "CTRT_FAKE_DEVICES=2", 2 },
    };
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        group("two plugins declare a parameter with different meanings, %s first, %s", orders[i].first,
              orders[i].devices);
        IN_CHILD(folder_path(folder, NULL), orders[i].devices) {
            const struct component *component;
            bool warned = false;
            ctrt_log_set_callback(hear_owners, &warned);
            const ctrt_status first = registry_use(&component, CTRT_COMPONENT_BACKEND, orders[i].first);
            const ctrt_status second = registry_use(&component, CTRT_COMPONENT_BACKEND, orders[i].second);
            CHECK(warned, "no warning names both plugins");
            CHECK(ctrt_device_count("fake") == orders[i].count, "fake has %d devices", ctrt_device_count("fake"));
            /* 2 is not an allowed value of init-thief's parameter. */
            const ctrt_status of_thief = strcmp(orders[i].first, "fake") == 0 ? second : first;
            CHECK(of_thief == (orders[i].count == 3 ? CTRT_OK : CTRT_ERR_PLUGIN), "init-thief: status %d",
                  (int)of_thief);
        }
        CHILD_END;
    }
    group("a probe that fails temporarily is called again");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "probe-later"), CTRT_ERR_IO,
                    "no descriptor is left to look");
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "probe-later"));
    }
    CHILD_END;
    group("a component that changed after its plugin was initialised is validated again");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        CHECK(param_listed("CTRT_FAKE_DEVICES"), "CTRT_FAKE_DEVICES is not listed");
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "late-kernel"), CTRT_ERR_NOT_FOUND,
                    "kernel 1 (abs): required slot run is NULL");
    }
    CHILD_END;
    group("a backend whose underlying backend is missing is listed as absent");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        ctrt_plugin_info info;
        CHECK(row_of(&info, "backend-over.so") && strcmp(info.state, "absent") == 0 && strstr(info.reason, "nobody"),
              "backend-over.so is %s, reason: %s", info.state,
              info.reason);
    }
    CHILD_END;
    group("parameters of a plugin without devices are listed");
    IN_CHILD(folder_path(absent, NULL), QUIET) {
        ctrt_plugin_info info;
        CHECK(param_listed("CTRT_FAKE_DEVICES"), "CTRT_FAKE_DEVICES is not listed");
        CHECK(row_of(&info, "backend-probe-no.so") && strcmp(info.state, "absent") == 0 &&
              strstr(info.reason, "/dev/actor0"), "backend-probe-no.so is %s, reason: %s",
              info.state, info.reason);
    }
    CHILD_END;
    folder_remove(folder);
    folder_remove(absent);
}

TEST_MAIN
{
    test_lies();
    test_late_refusals();
    test_names();
    test_versions();
    test_selection();
    test_memory_lies();
    test_verdicts();
    return done();
}
