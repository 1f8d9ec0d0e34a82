/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins: honest ones are found by name, lying ones refused with a reason, and each file's fate is listed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/types.h>

#include "base/param.h"
#include "child.h"
#include "ctrt/device.h"
#include "ctrt/tensor.h"
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
    { "backend-static-tls.so", "static-tls", "refused", "static-tls" },                /* dlopen's own text */
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

/* Judges `path` for `user`; `reason` says why not. */
static bool trusted(const char *path, bool strict, uid_t user, char *reason, size_t bytes)
{
    struct trusted_file opened;
    const bool well = trust_open(&opened, path, strict, user, reason, bytes) == JUDGED_WELL;
    if (opened.file >= 0)
        close(opened.file);
    if (opened.folder >= 0)
        close(opened.folder);
    return well;
}

/* Each case changes one thing of ROOT/above/folder/backend-fake.so, which is trusted otherwise. */
static const struct trust_case {
    const char *what;           /* below ROOT */
    int mode;                   /* -1: stays */
    int owner, group;           /* -1: stay; only root can change them */
    const char *path;           /* below ROOT */
    const char *words;          /* of the refusal; NULL: trusted */
} trust_cases[] = {
    { "above/folder/backend-fake.so", 0755, -1, -1, "above/folder/backend-fake.so", NULL },
    { "above/folder/backend-fake.so", 0757, -1, -1, "above/folder/backend-fake.so", "file ROOT/above/folder/backend-fake.so can be written by everybody" },
    { "above/folder/backend-fake.so", 0775, -1, 0, "above/folder/backend-fake.so", "can be written by group 0 (mode 775)" },
    { "above", 0775, -1, 0, "above/folder/backend-fake.so", "folder ROOT/above can be written by group 0" },
    { "above/folder/backend-fake.so", 0775, -1, 4321, "above/folder/backend-fake.so", "can be written by group 4321" },
    { "above/folder/backend-fake.so", -1, 4321, -1, "above/folder/backend-fake.so", "belongs to user 4321" },
    { "above/folder", 0777, -1, -1, "above/folder/backend-fake.so", "folder ROOT/above/folder can be written by everybody" },
    { "above/folder", 01777, -1, -1, "above/folder/backend-fake.so", "folder ROOT/above/folder can be written by everybody" },
    { "above/folder", 0775, -1, 4321, "above/folder/backend-fake.so", "folder ROOT/above/folder can be written by group 4321" },
    { "above/folder", -1, 4321, -1, "above/folder/backend-fake.so", "folder ROOT/above/folder belongs to user 4321" },
    { "above", 0777, -1, -1, "above/folder/backend-fake.so", "folder ROOT/above can be written by everybody" },
    { "above", 01777, -1, -1, "above/folder/backend-fake.so", NULL },
    { "above", -1, 4321, -1, "above/folder/backend-fake.so", "folder ROOT/above belongs to user 4321" },
    /* links: to the file, to its folder, to the folder above, and one that leaves a folder by ".." */
    { "above/folder", 0777, -1, -1, "other/backend-link.so", "folder ROOT/above/folder can be written" },
    { "other", 0777, -1, -1, "other/backend-link.so", "folder ROOT/other can be written" },
    { "other", 0755, -1, -1, "other/backend-link.so", NULL },
    { "above", 0777, -1, -1, "other/folder-link/backend-fake.so", "folder ROOT/above can be written" },
    { "other", 01777, -1, -1, "other/folder-link/backend-fake.so", NULL },
    { "other/above-link", -1, 4321, -1, "other/above-link/folder/backend-fake.so", NULL },      /* nobody else can replace it */
    { "other", 01777, -1, -1, "other/loose-link/folder/backend-fake.so", "entry ROOT/other/loose-link belongs to user 4321" },
    { "above", 0777, -1, -1, "other/above-link/../other/backend-link.so", "folder ROOT/above can be written" },
    { "other", 0755, -1, -1, "other/circle/backend-fake.so", "Too many levels of symbolic links" },
    { "other", 0755, -1, -1, "other/nothing/backend-fake.so", "No such file" },
    { "other", 0755, -1, -1, "above/folder/backend-fake.so/backend-fake.so", "Not a directory" },
};

/* "ROOT" in `text` replaced by `root`. */
static const char *with_root(const char *text, const char *root)
{
    static char words[512];
    const char *at = strstr(text, "ROOT");
    snprintf(words, sizeof words, "%.*s%s%s", at != NULL ? (int)(at - text) : 0, text, at != NULL ? root : "", at != NULL ? at + 4 : text);
    return words;
}

static void make_trust_tree(const char *root)
{
    char command[4096];
    snprintf(command, sizeof command,
             "cd '%s' && mkdir -p above/folder other && ln -s ../above/folder/backend-fake.so "
             "other/backend-link.so && ln -s '%s/above/folder' other/folder-link && ln -s ../above other/above-link && ln -s ../above "
             "other/loose-link && ln -s circle other/circle",
             root, root);
    CHECK(system(command) == 0, "%s", command);
    snprintf(command, sizeof command, "%s/above/folder", root);
    folder_actor(command, "backend-fake");
}

static void test_trust_paths(void)
{
    char *root = folder_new(), loose[4096], reason[512];
    const uid_t user = geteuid();
    make_trust_tree(root);
    snprintf(loose, sizeof loose, "%s/other/loose-link", root);
    CHECK(user != 0 || lchown(loose, 4321, 4321) == 0, "lchown failed");
    for (size_t i = 0; i < sizeof trust_cases / sizeof trust_cases[0]; i++) {
        const struct trust_case *c = &trust_cases[i];
        char what[4200], path[4200];
        struct stat before;
        snprintf(what, sizeof what, "%s/%s", root, c->what);
        snprintf(path, sizeof path, "%s/%s", root, c->path);
        const bool needs_root = c->owner >= 0 || c->group >= 0 || strstr(c->path, "loose") != NULL;
        if ((user != 0 && needs_root) || lstat(what, &before) != 0)
            continue;
        group("trust: %s mode %04o owner %d group %d, asked for %s", c->what, (unsigned)(c->mode >= 0 ? c->mode : 0), c->owner, c->group, c->path);
        CHECK(!needs_root || lchown(what, (uid_t)c->owner, (gid_t)c->group) == 0, "lchown failed");
        CHECK(c->mode < 0 || chmod(what, (mode_t)c->mode) == 0, "chmod failed");
        reason[0] = '\0';
        const bool well = trusted(path, true, user, reason, sizeof reason);
        CHECK(well == (c->words == NULL), "%s: %s", well ? "trusted" : "refused", reason);
        const char *words = c->words != NULL ? with_root(c->words, root) : "";
        CHECK(strstr(reason, words) != NULL, "the reason lacks \"%s\": %s", words, reason);
        if (strstr(c->path, "circle") == NULL && strstr(c->path, "nothing") == NULL && strstr(c->path, ".so/") == NULL)
            CHECK(trusted(path, false, user, reason, sizeof reason), "without need: %s", reason);
        if (user == 0)
            CHECK(lchown(what, before.st_uid, before.st_gid) == 0, "lchown failed");
        if (!S_ISLNK(before.st_mode))
            chmod(what, before.st_mode & 07777);
    }
    folder_remove(root);
}

static char swap_from[200], swap_aside[200], swap_in[200];

/* Puts another folder in the place of the judged one. */
static void swap_folders(void)
{
    CHECK(rename(swap_from, swap_aside) == 0 && rename(swap_in, swap_from) == 0, "rename failed");
}

/* The tests of loading need root, because only root's process mistrusts. */
static void test_trust_swap(void)
{
    if (geteuid() != 0)
        return;
    char *root = folder_new(), path[4300];
    snprintf(swap_from, sizeof swap_from, "%s/plugins", root);
    snprintf(swap_aside, sizeof swap_aside, "%s/aside", root);
    snprintf(swap_in, sizeof swap_in, "%s/evil", root);
    CHECK(mkdir(swap_from, 0755) == 0 && mkdir(swap_in, 0755) == 0, "mkdir failed");
    folder_actor(swap_from, "backend-fake");
    folder_copy(swap_in, "backend-fake.so", built_path("stranger"), -1);
    snprintf(path, sizeof path, "%s/backend-fake.so", swap_from);
    group("a folder that is replaced between judging and loading: the judged file is loaded, under its own name");
    IN_CHILD(folder_path(swap_from, NULL), QUIET) {
        const struct component *component = NULL;
        Dl_info object = { 0 };
        trust_judged_hook = swap_folders;
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
        CHECK(component != NULL && dladdr(component->table, &object) != 0 && strcmp(object.dli_fname, path) == 0,
              "dladdr names it %s, expected %s", object.dli_fname, path);
    }
    CHILD_END;
    folder_remove(root);

    char *one = folder_new(), *two = folder_new();
    folder_actor(one, "backend-fake");
    folder_actor(two, "backend-better");
    folder_actor(one, "memory-policy");
    group("plugins of two folders, loaded through descriptors, are different objects");
    IN_CHILD(folder_path(one, two), QUIET) {
        static const struct { ctrt_component_kind kind; const char *name; } all[] = {
            { CTRT_COMPONENT_BACKEND, "fake" }, { CTRT_COMPONENT_BACKEND, "better" }, { CTRT_COMPONENT_MEMORY, "policy" },
        };
        for (size_t i = 0; i < 3; i++) {
            const struct component *component = NULL;
            Dl_info object = { 0 };
            CHECK_OK(registry_use(&component, all[i].kind, all[i].name));
            CHECK(dladdr(component->table, &object) != 0 && strcmp(object.dli_fname, component->file->path) == 0, "%s is %s",
                  component->file->path, object.dli_fname);
        }
    }
    CHILD_END;
    folder_copy(two, "backend-fake.so", built_path("stranger"), -1);
    group("two files of one name are different objects, also when the program closed the first one's folder in between");
    IN_CHILD(QUIET) {
        struct plugin_file files[2] = { { .path = "" } };
        void *objects[2] = { NULL, NULL };
        char paths[2][200], reason[1024] = "";
        for (size_t i = 0; i < 2; i++) {
            snprintf(paths[i], sizeof paths[i], "%s/backend-fake.so", i == 0 ? one : two);
            files[i].path = paths[i];
            CHECK(dl_load(&objects[i], &files[i], reason, sizeof reason) == JUDGED_WELL, "%s", reason);
            for (int fd = 3; fd < 32; fd++)
                close(fd);
        }
        CHECK(objects[0] != objects[1], "the second file is the first object");
    }
    CHILD_END;
    folder_remove(one);
    folder_remove(two);
}

/* Another user swaps two folders for as long as root's processes load from there. */
static void test_trust_race(void)
{
    if (geteuid() != 0)
        return;
    char *root = folder_new(), inner[200], good[220], evil[220], path[300];
    snprintf(inner, sizeof inner, "%s/theirs", root);
    snprintf(good, sizeof good, "%s/plugins", inner);
    snprintf(evil, sizeof evil, "%s/evil", inner);
    snprintf(path, sizeof path, "CTRT_PLUGIN_PATH=%s", good);
    CHECK(mkdir(inner, 0755) == 0 && mkdir(good, 0755) == 0 && mkdir(evil, 0755) == 0, "mkdir failed");
    folder_actor(good, "backend-fake");
    folder_copy(evil, "backend-fake.so", built_path("stranger"), -1);
    CHECK(chmod(inner, 0777) == 0, "chmod failed");
    fflush(stdout);
    const pid_t racer = fork();
    if (racer == 0) {
        char aside[220];
        snprintf(aside, sizeof aside, "%s/aside", inner);
        if (setgid(4321) != 0 || setuid(4321) != 0)
            _exit(1);
        for (;;)
            if (rename(good, aside) == 0 && rename(evil, good) == 0 && rename(good, evil) == 0)
                rename(aside, good);
    }
    group("another user swaps folders under a writable ancestor: root loads neither");
    for (int i = 0; i < 30; i++) {
        IN_CHILD(path, QUIET) {
            const struct component *component;
            CHECK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake") == CTRT_ERR_NOT_FOUND, "loaded");
            CHECK(dlsym(RTLD_DEFAULT, "ctrt_plugin_v1") == NULL, "loaded");
        }
        CHILD_END;
    }
    kill(racer, SIGKILL);
    waitpid(racer, NULL, 0);
    folder_remove(root);
}

static void test_trust(void)
{
    char *folder = folder_new(), file[4096];
    folder_actor(folder, "backend-fake");
    snprintf(file, sizeof file, "%s/backend-fake.so", folder);
    const uid_t user = geteuid();
    test_trust_paths();
    test_trust_swap();
    test_trust_race();

    /* IDs after a change, and whether a plugin of user 4321 is loaded then. */
    static const struct { uid_t real, effective, saved; bool loaded; } ids[] = {
        { 0, 0, 0, false },       { 0, 4321, 0, false },      { 4321, 4321, 0, false },
        { 0, 4321, 4321, false }, { 4321, 4321, 4321, true },
    };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0] && user == 0; i++) {
        group("user 4321's plugin in a process with real, effective and saved user %u, %u, %u", (unsigned)ids[i].real,
              (unsigned)ids[i].effective, (unsigned)ids[i].saved);
        CHECK(chown(folder, 4321, 4321) == 0 && chown(file, 4321, 4321) == 0, "chown failed");
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const struct component *component;
            CHECK(setresuid(ids[i].real, ids[i].effective, ids[i].saved) == 0, "setresuid failed");
            const bool loaded = registry_use(&component, CTRT_COMPONENT_BACKEND, "fake") == CTRT_OK;
            CHECK(loaded == ids[i].loaded, "%s: %s", loaded ? "loaded" : "refused", ctrt_error_message());
        }
        CHILD_END;
        CHECK(chown(folder, 0, 0) == 0 && chown(file, 0, 0) == 0, "chown failed");
    }

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

/* The loader knows this program, which has the library in it, by argv[0]. Runs it as `name` in folder `one`, then changes to folder
 * `two` before the first use, which says whether ONE/lib/ctrt/1 was searched. */
static void search_as(const char *name, const char *one, const char *two, const char *searched)
{
    CHECK(chdir(one) == 0, "chdir failed");
    execl("/proc/self/exe", name, "searched", two, searched, (char *)NULL);
    CHECK(false, "execl failed");
}

static int searched_after_chdir(const char *folder, const char *expected)
{
    const struct component *component;
    CHECK(chdir(folder) == 0, "chdir failed");
    registry_find(&component, CTRT_COMPONENT_BACKEND, "nothing");
    const char *words = search_words();
    CHECK(strstr(words, expected) != NULL && strstr(words, folder) == NULL, "%s, expected %s and not %s", words, expected, folder);
    return tap_state.failed > 0;
}

static void test_search_beside(void)
{
    char *one = folder_new(), *two = folder_new(), command[1024], real[4096], expected[4200];
    snprintf(command, sizeof command,
             "for d in '%s' '%s'; do mkdir -p $d/lib/ctrt/%u $d/ctrt/%u && : >$d/lib/p && : >$d/p || exit 1; done", one, two,
             CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MAJOR);
    CHECK(system(command) == 0, "%s", command);
    group("a library that the loader knows by a relative path, and a program that changes its folder before the first use");
    snprintf(expected, sizeof expected, "%s/lib/ctrt/%u", realpath(one, real), CTRT_PLUGIN_ABI_MAJOR);
    IN_CHILD("CTRT_PLUGIN_PATH=") {
        search_as("lib/p", one, two, expected);
    }
    CHILD_END;
    group("a name without a folder is not looked up in the working directory");
    IN_CHILD("CTRT_PLUGIN_PATH=") {
        search_as("p", two, one, search_installed_folder);
    }
    CHILD_END;
    folder_remove(one);
    folder_remove(two);
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

static void *use_ping(void *name)
{
    const struct component *component;
    return (void *)(intptr_t)registry_use(&component, CTRT_COMPONENT_BACKEND, name);
}

static void test_init(void)
{
    char *folder = folder_new();
    folder_actor(folder, "backend-fake");
    folder_actor(folder, "backend-init-thread");
    folder_actor(folder, "backend-init-ping");
    folder_actor(folder, "backend-init-pong");
    folder_actor(folder, "backend-init-short");
    folder_actor(folder, "backend-init-forks");
    folder_actor(folder, "backend-init-thread-forks");
    folder_actor(folder, "backend-needs-fork");
    folder_actor(folder, "backend-needs-fork-late");
    group("init starts and joins a thread that uses the host");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        alarm(60);
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-thread"));
        CHECK(component->state == PLUGIN_LOADED, "state %d", (int)component->state);
    }
    CHILD_END;
    group("two plugins that need each other while they are initialised, from one thread and from two");
    for (int threads = 1; threads <= 2; threads++) {
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const struct component *component;
            pthread_t other;
            alarm(60);
            if (threads == 2)
                CHECK(pthread_create(&other, NULL, use_ping, "init-pong") == 0, "no thread");
            CHECK(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-ping") != CTRT_OK, "a plugin without what it needs");
            void *status = NULL;
            if (threads == 2)
                CHECK(pthread_join(other, &status) == 0 && status != NULL, "a plugin without what it needs");
        }
        CHILD_END;
    }
    group("a fork beside an init: the child can use the plugin");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip_group("the sanitizers do not bear a fork beside a thread that allocates");
#else
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        pthread_t other;
        int status = 0;
        alarm(60);
        CHECK(pthread_create(&other, NULL, use_ping, "init-thread") == 0, "no thread");
        const pid_t child = fork();
        if (child == 0) {
            const struct component *component;
            _exit(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-thread") != CTRT_OK);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0, "status %x", (unsigned)status);
        pthread_join(other, NULL);
    }
    CHILD_END;
#endif
    static const char *const needing[] = { "needs-fork", "needs-fork-late" };
    for (size_t i = 0; i < sizeof needing / sizeof needing[0]; i++) {
        group("an init forks while the init of %s waits for it", needing[i]);
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const struct component *component;
            pthread_t other;
            void *status = NULL;
            alarm(60);
            CHECK(pthread_create(&other, NULL, use_ping, "init-forks") == 0, "no thread");
            CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, needing[i]));
            CHECK(pthread_join(other, &status) == 0 && status == NULL, "init-forks failed");
        }
        CHILD_END;
    }
    for (int opened = 0; opened <= 1; opened++) {
        group("a thread that init waits for forks, %s",
              opened ? "while a device is opened" : "while the plugin is looked up");
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const struct component *component;
            alarm(20);
            if (opened)
                CHECK(ctrt_device_count("init-thread-forks") == 3, "%d devices", ctrt_device_count("init-thread-forks"));
            else
                CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-thread-forks"));
        }
        CHILD_END;
    }
    group("an init that lacked something for the moment is called again");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-short"), CTRT_ERR_IO, "no descriptor is left");
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-short"));
    }
    CHILD_END;
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
        { "CTRT_MEMORY=policy-hollow", "fake:0", "memory policy policy-hollow: alloc returned success without an address for" },
        { "CTRT_MEMORY=direct+policy-hollow", "fake:0", "memory policy policy-hollow: alloc returned success without an address for" },
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

/* Is there a warning about CTRT_FAKE_DEVICES that names both of its owners? */
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
        group("two plugins declare a parameter with different meanings, %s first, %s", orders[i].first, orders[i].devices);
        IN_CHILD(folder_path(folder, NULL), orders[i].devices) {
            const struct component *component;
            bool warned = false;
            ctrt_log_set_callback(hear_owners, &warned);
            const ctrt_status first = registry_use(&component, CTRT_COMPONENT_BACKEND, orders[i].first);
            const ctrt_status second = registry_use(&component, CTRT_COMPONENT_BACKEND, orders[i].second);
            CHECK(warned, "no warning names both plugins");
            CHECK(ctrt_device_count("fake") == orders[i].count, "%d devices", ctrt_device_count("fake"));
            /* 2 is none of the words that init-thief declares. */
            const ctrt_status of_thief = strcmp(orders[i].first, "fake") == 0 ? second : first;
            CHECK(of_thief == (orders[i].count == 3 ? CTRT_OK : CTRT_ERR_PLUGIN), "init-thief: status %d", (int)of_thief);
        }
        CHILD_END;
    }
    group("a probe that cannot tell is asked again");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "probe-later"), CTRT_ERR_IO, "no descriptor is left to look");
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "probe-later"));
    }
    CHILD_END;
    group("a component that is asked again after its plugin was initialised is judged like the others");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        CHECK(param_listed("CTRT_FAKE_DEVICES"), "CTRT_FAKE_DEVICES is not listed");
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "late-kernel"), CTRT_ERR_NOT_FOUND,
                    "kernel 1 (abs): required slot run is NULL");
    }
    CHILD_END;
    group("a backend without the one that it stands over is listed as absent");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        ctrt_plugin_info info;
        CHECK(row_of(&info, "backend-over.so") && strcmp(info.state, "absent") == 0 && strstr(info.reason, "nobody"), "%s: %s", info.state,
              info.reason);
    }
    CHILD_END;
    group("parameters of a plugin whose devices are not there are listed");
    IN_CHILD(folder_path(absent, NULL), QUIET) {
        ctrt_plugin_info info;
        CHECK(param_listed("CTRT_FAKE_DEVICES"), "CTRT_FAKE_DEVICES is not listed");
        CHECK(row_of(&info, "backend-probe-no.so") && strcmp(info.state, "absent") == 0 && strstr(info.reason, "/dev/actor0"), "%s: %s",
              info.state, info.reason);
    }
    CHILD_END;
    folder_remove(folder);
    folder_remove(absent);
}

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "searched") == 0)
        return searched_after_chdir(arguments[2], arguments[3]);
    test_lies();
    test_late_refusals();
    test_names();
    test_versions();
    test_selection();
    test_trust();
    test_search();
    test_search_beside();
    test_threads();
    test_init();
    test_memory_lies();
    test_verdicts();
    return done();
}
