/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins: honest ones are found by name, lying ones refused with a reason, and each file's fate is listed. */
#include <pthread.h>
#include <sys/types.h>

#include "base/param.h"
#include "child.h"
#include "ctrt/device.h"
#include "folder.h"
#include "registry/internal.h"

#define QUIET "CTRT_LOG=error"          /* refusals are warned of, and here there are many */

/* The listing's row of that file (by the end of its path); false when there is none. */
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
    { "backend-major.so", "major", "refused", "built for plugin ABI 2.0, this library speaks 1." },
    { "backend-no-name.so", "no-name", "refused", "no name" },
    { "backend-no-components.so", "no-components", "refused", "no components" },
    { "backend-null-components.so", "null-components", "refused", "no components" },
    { "backend-many.so", "many", "refused", "more than the 64" },
    { "backend-stride.so", "stride", "refused", "wrong stride: components are 12 bytes apart" },
    { "backend-odd-stride.so", "odd-stride", "refused", "wrong stride" },
    { "backend-component-size.so", "component-size", "refused", "wrong size: struct ctrt_component has 4 bytes" },
    { "backend-kind.so", "kind", "refused", "kind 77 is not known" },
    { "backend-bad-name.so", "bad-name", "refused", "lower-case letter" },
    { "backend-null-name.so", "null-name", "refused", "lower-case letter" },
    { "backend-no-table.so", "no-table", "refused", "no table" },
    { "backend-table-size.so", "table-size", "refused", "required slot device is missing" },
    { "backend-zero-table.so", "zero-table", "refused", "its table says it has 0 bytes" },
    { "backend-null-device.so", "null-device", "refused", "required slot device is missing or NULL" },
    { "backend-null-slot.so", "null-slot", "refused", "struct ctrt_device_table: required slot open is missing or NULL" },
    { "backend-short-slot.so", "short-slot", "refused", "required slot close is missing" },
    { "backend-null-memory.so", "null-memory", "refused", "struct ctrt_memory_table: required slot alloc" },
    { "backend-probe-no.so", "probe-no", "absent", "no device node /dev/actor0" },
    { "backend-probe-silent.so", "probe-silent", "absent", "without a reason" },
    { "backend-stranger.so", "stranger", "refused", "does not export ctrt_plugin_v1" },
    { "backend-later.so", "later", "refused", "built for plugin ABI 2, this library speaks 1" },
    { "backend-truncated.so", "truncated", "refused", "truncated" },
    { "backend-headless.so", "headless", "refused", "backend-headless.so" },           /* dlopen's own text */
    { "backend-empty.so", "empty", "refused", "backend-empty.so" },
    { "backend-text.so", "text", "refused", "backend-text.so" },
    { "backend-folder.so", "folder", "refused", "not a regular file" },
};

static char *folder_of_lies(void)
{
    char *folder = folder_new(), path[4096];
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        const char *from = strcmp(lies[i].asked, "stranger") == 0 ? "stranger" : strcmp(lies[i].asked, "later") == 0 ? "later" : "actor";
        if (strcmp(lies[i].asked, "folder") != 0)
            folder_copy(folder, lies[i].file, built_path(from), -1);
    }
    struct stat facts;
    stat(built_path("actor"), &facts);
    folder_copy(folder, "backend-truncated.so", built_path("actor"), facts.st_size / 8);
    folder_copy(folder, "backend-headless.so", built_path("actor"), 40);
    folder_copy(folder, "backend-empty.so", built_path("actor"), 0);
    folder_text(folder, "backend-text.so", "This is no shared object, whatever its name says; it goes on for more than sixty-four bytes.\n");
    snprintf(path, sizeof path, "%s/backend-folder.so", folder);
    mkdir(path, 0755);
    folder_actor(folder, "backend-fake");
    return folder;
}

static void test_lies(void)
{
    char *folder = folder_of_lies();
    group("each lying plugin is refused, with its reason, when asked for");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
            ctrt_status status = registry_use(&component, CTRT_COMPONENT_BACKEND, lies[i].asked);
            CHECK(status == CTRT_ERR_NOT_FOUND, "%s: status %d: %s", lies[i].file, (int)status, ctrt_error_message());
            CHECK(strstr(ctrt_error_message(), lies[i].reason) != NULL, "%s: the reason lacks \"%s\": %s", lies[i].file, lies[i].reason,
                  ctrt_error_message());
        }
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
    }
    CHILD_END;
    group("the listing has each of them with state and reason");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
            ctrt_plugin_info info;
            if (!CHECK(row_of(&info, lies[i].file), "%s is not listed", lies[i].file))
                continue;
            CHECK(strcmp(info.state, lies[i].state) == 0, "%s: state %s, expected %s", lies[i].file, info.state, lies[i].state);
            CHECK(strstr(info.reason, lies[i].reason) != NULL, "%s: reason \"%s\" lacks \"%s\"", lies[i].file, info.reason, lies[i].reason);
        }
        ctrt_plugin_info fake;
        CHECK(row_of(&fake, "backend-fake.so") && strcmp(fake.state, "ready") == 0 && strcmp(fake.reason, "") == 0
              && strcmp(fake.kind, "backend") == 0 && strcmp(fake.component, "fake") == 0 && strcmp(fake.plugin, "actor") == 0
              && strcmp(fake.version, "1") == 0, "fake: %s, %s, %s, %s", fake.state, fake.reason, fake.kind, fake.component);
        CHECK_FAILS(ctrt_plugin_list(&fake, 100000), CTRT_ERR_NOT_FOUND, "no plugin of that index");
        CHECK_FAILS(ctrt_plugin_list(NULL, 0), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    }
    CHILD_END;
    folder_remove(folder);
}

static void test_late_refusals(void)
{
    char *folder = folder_new();
    static const struct { const char *name, *reason; } late[] = {
        { "init-fails", "init failed: the driver is from another century" }, { "init-silent", "init failed: init returned an error without" },
        { "kernel-run", "kernel 1 (abs): required slot run is NULL" }, { "kernel-stride", "wrong stride: kernels are 16 bytes apart" },
        { "kernel-rows", "2 rows are announced, but rows is NULL" }, { "init-itself", "looked up itself and got nothing" },
    };
    for (size_t i = 0; i < 6; i++) {
        char stem[64];
        snprintf(stem, sizeof stem, "backend-%s", late[i].name);
        folder_actor(folder, stem);
    }
    folder_actor(folder, "memory-policy-null");
    group("what comes out at first use is refused then, and stays so");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        for (size_t i = 0; i < 6; i++) {
            CHECK_OK(registry_find(&component, CTRT_COMPONENT_BACKEND, late[i].name));
            CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, late[i].name), CTRT_ERR_PLUGIN, late[i].reason);
            CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, late[i].name), CTRT_ERR_NOT_FOUND, late[i].reason);
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
    folder_actor(one, "backend-other-name");            /* its component is called fake, score 50 */
    folder_actor(two, "backend-fake");
    folder_actor(two, "backend-better");
    folder_plugin(two, "memory-direct");
    group("asking for a backend opens its file alone");
    IN_CHILD(folder_path(one, two)) {
        const struct component *component;
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
        CHECK(strstr(component->file->path, one) != NULL, "it came from %s", component->file->path);
        int opened = 0;
        for (size_t i = 0; i < registry_file_count; i++)
            opened += registry_files[i]->plugin != NULL;
        CHECK(opened == 2, "%d files were opened, expected the two called backend-fake.so", opened);
        CHECK(ctrt_error_message()[0] == '\0', "nothing failed, yet there is a message: %s", ctrt_error_message());
    }
    CHILD_END;
    group("of two components with one name one is used, and the other says for whom it stands back");
    IN_CHILD(folder_path(one, two)) {
        ctrt_plugin_info info;
        CHECK(row_of(&info, "backend-other-name.so") && strcmp(info.state, "disabled") == 0 && strstr(info.reason, "duplicate name") != NULL
              && strstr(info.reason, "score 50") != NULL, "%s: %s", info.state, info.reason);
        char path[512];
        snprintf(path, sizeof path, "%s/backend-fake.so", two);
        CHECK(row_of(&info, path) && strcmp(info.state, "disabled") == 0 && strstr(info.reason, one) != NULL, "%s: %s", info.state,
              info.reason);
        snprintf(path, sizeof path, "%s/backend-fake.so", one);
        CHECK(row_of(&info, path) && strcmp(info.state, "ready") == 0, "%s: %s", info.state, info.reason);
    }
    CHILD_END;
    group("an unknown name: where it was searched, what is known, what may be meant");
    IN_CHILD(folder_path(one, two)) {
        const struct component *component;
        ctrt_plugin_info info;
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "fkae"), CTRT_ERR_NOT_FOUND, "did you mean fake?");
        CHECK(strstr(ctrt_error_message(), one) && strstr(ctrt_error_message(), two) && strstr(ctrt_error_message(), "better"),
              "%s", ctrt_error_message());
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "../evil"), CTRT_ERR_INVALID_ARGUMENT, "no name");
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_MEMORY, "cachign"), CTRT_ERR_NOT_FOUND, "known: direct");
        bool found = false;
        for (size_t i = 0; ctrt_plugin_list(&info, i) == CTRT_OK; i++)
            found = found || (strcmp(info.component, "fkae") == 0 && strcmp(info.state, "absent") == 0 && strcmp(info.file, "") == 0);
        CHECK(found, "the listing lacks the name that was asked for in vain");
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
    group("a plugin of a later minor version, whose structs have grown");
    IN_CHILD(folder_path(folder, NULL)) {
        const struct component *component;
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "grown"));
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "grown-too"));
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "probe-long"));
        CHECK(strlen(component->reason) == 255, "an unterminated reason has %zu characters", strlen(component->reason));
    }
    CHILD_END;
    group("kernels laid over a backend");
    IN_CHILD(folder_path(folder, NULL)) {
        const ctrt_kernel_table *tables[3] = { NULL };
        CHECK(registry_overlays(tables, 3, "fake") == 1 && tables[0] != NULL && tables[0]->count == 2, "fake has no overlay");
        CHECK(registry_overlays(tables, 3, "grown") == 0, "grown has an overlay");
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
            CHECK(status == cases[i].fake, "fake: %d: %s", (int)status, ctrt_error_message());
            CHECK(words == NULL || strstr(ctrt_error_message(), words), "%s", ctrt_error_message());
            status = registry_use(&component, CTRT_COMPONENT_BACKEND, "better");
            CHECK(status == cases[i].better, "better: %d: %s", (int)status, ctrt_error_message());
            ctrt_plugin_info info;
            CHECK(row_of(&info, "backend-fake.so") && strcmp(info.state, cases[i].fake ? "disabled" : "loaded") == 0, "state %s",
                  info.state);
        }
        CHILD_END;
    }
    folder_remove(folder);
}

static void test_trust(void)
{
    char *folder = folder_new(), file[4096], reason[512];
    folder_actor(folder, "backend-fake");
    snprintf(file, sizeof file, "%s/backend-fake.so", folder);
    uid_t user = geteuid();
    gid_t group_id = getegid();
    group("who runs with more rights than others trusts only what others cannot write");
    CHECK(trust_judge(file, true, user, group_id, reason, sizeof reason), "%s", reason);
    chmod(file, 0757);
    CHECK(!trust_judge(file, true, user, group_id, reason, sizeof reason) && strstr(reason, "written by everybody"), "%s", reason);
    CHECK(trust_judge(file, false, user, group_id, reason, sizeof reason), "%s", reason);
    chmod(file, 0775);
    CHECK(trust_judge(file, true, user, group_id, reason, sizeof reason), "own group: %s", reason);
    if (group_id != 0)
        CHECK(!trust_judge(file, true, user, group_id + 1, reason, sizeof reason) && strstr(reason, "written by group"), "%s", reason);
    chmod(file, 0755);
    if (user != 0)
        CHECK(!trust_judge(file, true, user + 1, group_id, reason, sizeof reason) && strstr(reason, "belongs to user"), "%s", reason);
    chmod(folder, 0777);
    CHECK(!trust_judge(file, true, user, group_id, reason, sizeof reason) && strstr(reason, "folder"), "%s", reason);
    chmod(folder, 01777);
    CHECK(!trust_judge(file, true, user, group_id, reason, sizeof reason) && strstr(reason, "folder"), "sticky: %s", reason);
    chmod(folder, 0755);
    CHECK(!trust_judge("/nowhere/backend-fake.so", true, user, group_id, reason, sizeof reason) && strstr(reason, "No such file"), "%s",
          reason);
    char *other = folder_new(), link_path[4096];
    snprintf(link_path, sizeof link_path, "%s/backend-link.so", other);
    CHECK(symlink(file, link_path) == 0, "symlink failed");
    chmod(folder, 0777);
    CHECK(!trust_judge(link_path, true, user, group_id, reason, sizeof reason) && strstr(reason, folder), "through a link: %s", reason);
    chmod(folder, 0755);
    folder_remove(other);

    if (user == 0) {
        chmod(file, 0666);
        group("as root, a plugin that everybody can write is refused");
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const struct component *component;
            CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"), CTRT_ERR_NOT_FOUND, "can be written by everybody (mode 666)");
        }
        CHILD_END;
        chmod(file, 0755);
        if (chown(file, 4321, 4321) == 0) {
            group("as root, a plugin of somebody else is refused");
            IN_CHILD(folder_path(folder, NULL), QUIET) {
                const struct component *component;
                CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"), CTRT_ERR_NOT_FOUND, "belongs to user 4321");
            }
            CHILD_END;
        }
    }
    folder_remove(folder);
}

static void test_search(void)
{
    char *folder = folder_new(), setting[8192];
    folder_actor(folder, "backend-fake");
    group("the search path: what is missing or relative is told, the rest is used");
    snprintf(setting, sizeof setting, "CTRT_PLUGIN_PATH=:relative:/no/such/folder:%s:%s", folder, folder);
    IN_CHILD(setting, QUIET) {
        const struct component *component;
        CHECK(chdir(folder) == 0, "chdir failed");
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "nothing"), CTRT_ERR_NOT_FOUND, "/no/such/folder (no such folder)");
        CHECK(strstr(ctrt_error_message(), "relative (ignored: not an absolute path)"), "%s", ctrt_error_message());
        int files = 0;
        for (size_t i = 0; i < registry_file_count; i++)
            files += strcmp(registry_files[i]->stem, "backend-fake") == 0;
        CHECK(files == 1, "the folder that stands on the path twice was read %d times", files);
    }
    CHILD_END;
    group("files that are not called like a plugin are left alone");
    folder_text(folder, "backend-.so", "");
    folder_text(folder, "Backend-x.so", "");
    folder_text(folder, "backend-x.so.1", "");
    folder_text(folder, "backend-X.so", "");
    folder_text(folder, "libx.so", "");
    folder_text(folder, ".so", "");
    folder_text(folder, "wrong-kind.so", "");
    IN_CHILD(folder_path(folder, NULL)) {
        registry_enter();
        CHECK_OK(search_files());
        size_t here = 0;
        for (size_t i = 0; i < registry_file_count; i++)
            here += strcmp(registry_files[i]->folder, folder) == 0;
        CHECK(here == 1, "%zu files were taken for plugins", here);
        registry_leave();
    }
    CHILD_END;
    folder_remove(folder);
}

static void *use_all(void *argument)
{
    (void)argument;
    const struct component *component;
    ctrt_plugin_info info;
    intptr_t failures = 0;
    failures += registry_use(&component, CTRT_COMPONENT_BACKEND, "fake") != CTRT_OK;
    failures += registry_use(&component, CTRT_COMPONENT_BACKEND, "better") != CTRT_OK;
    for (size_t i = 0; ctrt_plugin_list(&info, i) == CTRT_OK; i++)
        failures += info.state == NULL;
    failures += registry_use(&component, CTRT_COMPONENT_BACKEND, "init-fails") == CTRT_OK;
    return (void *)failures;
}

static void test_threads(void)
{
    char *folder = folder_new();
    folder_actor(folder, "backend-fake");
    folder_actor(folder, "backend-better");
    folder_actor(folder, "backend-init-fails");
    group("eight threads at once");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        pthread_t threads[8];
        for (int i = 0; i < 8; i++)
            pthread_create(&threads[i], NULL, use_all, NULL);
        for (int i = 0; i < 8; i++) {
            void *failures;
            pthread_join(threads[i], &failures);
            CHECK(failures == NULL, "thread %d: %ld failures", i, (long)(intptr_t)failures);
        }
    }
    CHILD_END;
    group("parameters of plugins that are not loaded yet can be set and listed");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        CHECK_OK(ctrt_param_set("CTRT_FAKE_DEVICES", "7"));
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
        int32_t count = 0;
        CHECK_OK(((const ctrt_backend *)component->table)->device->count(&count));
        CHECK(count == 7, "%d devices", (int)count);
        CHECK_FAILS(ctrt_param_set("CTRT_FAKE_DEVICE", "7"), CTRT_ERR_NOT_FOUND, "did you mean CTRT_FAKE_DEVICES?");
        CHECK_FAILS(ctrt_param_set("CTRT_FAKE_DEVICES", "8"), CTRT_ERR_STATE, "used already");
        bool found = false;
        ctrt_param_info info;
        for (size_t i = 0; ctrt_param_get_info(&info, i) == CTRT_OK; i++)
            if (strcmp(info.name, "CTRT_FAKE_DEVICES") == 0)
                found = strcmp(info.value, "7") == 0 && strcmp(info.origin, "program") == 0 && strncmp(info.owner, "backend-", 8) == 0;
        CHECK(found, "CTRT_FAKE_DEVICES is not listed as set by the program");
    }
    CHILD_END;
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        CHECK_FAILS(ctrt_param_set("CTRT_FAKE_DEVICES", "many"), CTRT_ERR_INVALID_ARGUMENT, "CTRT_FAKE_DEVICES=many: expected a whole number");
        const struct component *component;
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
    }
    CHILD_END;
    folder_remove(folder);
}

int main(void)
{
    test_lies();
    test_late_refusals();
    test_names();
    test_versions();
    test_selection();
    test_trust();
    test_search();
    test_threads();
    return done();
}
