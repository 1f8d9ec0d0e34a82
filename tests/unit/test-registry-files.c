/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which plugin files are trusted, and which folders are searched for plugins. */
#include <dlfcn.h>
#include <signal.h>
#include <sys/types.h>

#include "base/base.h"
#include "child.h"
#include "folder.h"
#include "registry/internal.h"

#define QUIET "CTRT_LOG=error"          /* refused files log warnings, and there are many here */

static const struct component *component;       /* result of the last use() */

static ctrt_status use(const char *backend)
{
    return registry_use(&component, CTRT_COMPONENT_BACKEND, backend);
}

/* Path of the object that contains the component's table. */
static const char *loaded_from(void)
{
    Dl_info object = { 0 };
    return component != NULL && dladdr(component->table, &object) != 0 ? object.dli_fname : "nowhere";
}

/* Checks `path` for `user`; `reason` receives why it is not trusted. */
static bool trusted(const char *path, bool strict, uid_t user, char *reason, size_t bytes)
{
    struct checked_file opened;
    const bool well = open_checked(&opened, path, strict, user, reason, bytes) == VALIDATE_OK;
    if (opened.file >= 0)
        close(opened.file);
    if (opened.folder >= 0)
        close(opened.folder);
    return well;
}

/* Each case changes one property of ROOT/above/folder/backend-fake.so, which is trusted without the change. */
static const struct trust_case {
    const char *what;           /* path below ROOT */
    int mode;                   /* -1: unchanged */
    int owner, group;           /* -1: unchanged; only root can change them */
    const char *path;           /* path below ROOT */
    const char *words;          /* part of the reason; NULL: trusted */
} trust_cases[] = {
#define FILE_PATH "above/folder/backend-fake.so"
#define BY_ALL    " can be written by all users"
    { FILE_PATH, 0755, -1, -1, FILE_PATH, NULL }, { FILE_PATH, 0757, -1, -1, FILE_PATH, "file ROOT/" FILE_PATH BY_ALL },
    { FILE_PATH, 0775, -1, 0, FILE_PATH, "can be written by group 0 (mode 775)" },
    { FILE_PATH, 0775, -1, 4321, FILE_PATH, "can be written by group 4321" },
    { FILE_PATH, -1, 4321, -1, FILE_PATH, "belongs to user 4321" },
    { "above/folder", 0777, -1, -1, FILE_PATH, "folder ROOT/above/folder" BY_ALL },
    { "above/folder", 01777, -1, -1, FILE_PATH, "folder ROOT/above/folder" BY_ALL },
    { "above/folder", 0775, -1, 4321, FILE_PATH, "folder ROOT/above/folder can be written by group 4321" },
    { "above/folder", -1, 4321, -1, FILE_PATH, "folder ROOT/above/folder belongs to user 4321" },
    { "above", 0777, -1, -1, FILE_PATH, "folder ROOT/above" BY_ALL },
    { "above", 0775, -1, 0, FILE_PATH, "folder ROOT/above can be written by group 0" },
    { "above", 01777, -1, -1, FILE_PATH, NULL },
    { "above", -1, 4321, -1, FILE_PATH, "folder ROOT/above belongs to user 4321" },
    /* Links: to the file, to its folder, to the folder above, and a path that leaves a folder by ".." */
    { "above/folder", 0777, -1, -1, "other/backend-link.so", "folder ROOT/above/folder can be written" },
    { "other", 0777, -1, -1, "other/backend-link.so", "folder ROOT/other can be written" },
    { "other", 0755, -1, -1, "other/backend-link.so", NULL },
    { "above", 0777, -1, -1, "other/folder-link/backend-fake.so", "folder ROOT/above can be written" },
    { "other", 01777, -1, -1, "other/folder-link/backend-fake.so", NULL },
    /* User 4321 owns the link, but cannot replace it, because only root can write to the folder. */
    { "other/above-link", -1, 4321, -1, "other/above-link/folder/backend-fake.so", NULL },
    { "other", 01777, -1, -1, "other/loose-link/folder/backend-fake.so",
      "entry ROOT/other/loose-link belongs to user 4321" },
    { "above", 0777, -1, -1, "other/above-link/../other/backend-link.so", "folder ROOT/above can be written" },
    { "other", 0755, -1, -1, "other/circle/backend-fake.so", "Too many levels of symbolic links" },
    { "other", 0755, -1, -1, "other/nothing/backend-fake.so", "No such file" },
    { "other", 0755, -1, -1, FILE_PATH "/backend-fake.so", "Not a directory" },
};

/* Returns `text` with "ROOT" replaced by `root`. */
static const char *with_root(const char *text, const char *root)
{
    static char words[512];
    const char *at = strstr(text, "ROOT");
    if (at == NULL)
        return text;
    snprintf(words, sizeof words, "%.*s%s%s", (int)(at - text), text, root, at + 4);
    return words;
}

static void make_trust_tree(const char *root)
{
    char command[4096];
    snprintf(command, sizeof command,
             "cd '%s' && mkdir -p above/folder other && ln -s ../above/folder/backend-fake.so other/backend-link.so && "
             "ln -s '%s/above/folder' other/folder-link && ln -s ../above other/above-link && "
             "ln -s ../above other/loose-link && ln -s circle other/circle", root, root);
    CHECK(system(command) == 0, "%s", command);
    folder_copy(root, FILE_PATH, built_path("plugin_by_name"), -1);
}

TEST(test_trust_paths, NULL)
{
    char *root = folder_new(), reason[512];
    const uid_t user = geteuid();
    make_trust_tree(root);
    CHECK(user != 0 || lchown(folder_join(root, "other/loose-link"), 4321, 4321) == 0, "lchown failed");
    EACH(c, trust_cases) {
        const char *what = folder_join(root, c->what), *path = folder_join(root, c->path);
        struct stat before;
        const bool needs_root = c->owner >= 0 || c->group >= 0 || strstr(c->path, "loose") != NULL;
        if ((user != 0 && needs_root) || lstat(what, &before) != 0)
            continue;
        group("trust: %s mode %04o owner %d group %d, path %s", c->what, (unsigned)(c->mode >= 0 ? c->mode : 0),
              c->owner, c->group, c->path);
        CHECK(!needs_root || lchown(what, (uid_t)c->owner, (gid_t)c->group) == 0, "lchown failed");
        CHECK(c->mode < 0 || chmod(what, (mode_t)c->mode) == 0, "chmod failed");
        reason[0] = '\0';
        CHECK(trusted(path, true, user, reason, sizeof reason) == (c->words == NULL), "wrong result: %s", reason);
        CHECK_HAS(reason, with_root(c->words != NULL ? c->words : "", root));
        if (strstr(c->path, "circle") == NULL && strstr(c->path, "nothing") == NULL && strstr(c->path, ".so/") == NULL)
            CHECK(trusted(path, false, user, reason, sizeof reason), "not trusted without strict checks: %s", reason);
        if (user == 0)
            CHECK(lchown(what, before.st_uid, before.st_gid) == 0, "lchown failed");
        if (!S_ISLNK(before.st_mode))
            chmod(what, before.st_mode & 07777);
    }
}

/* Two folders with different files called backend-fake.so: a plugin, and an object that is none. */
static char *root_folder, good_folder[200], other_folder[200], aside_folder[200];

static void make_two_folders(void)
{
    root_folder = folder_new();
    snprintf(good_folder, sizeof good_folder, "%s/plugins", root_folder);
    snprintf(other_folder, sizeof other_folder, "%s/other", root_folder);
    snprintf(aside_folder, sizeof aside_folder, "%s/aside", root_folder);
    CHECK(mkdir(good_folder, 0755) == 0 && mkdir(other_folder, 0755) == 0, "mkdir failed");
    folder_actor(good_folder, "backend-fake");
    folder_copy(other_folder, "backend-fake.so", built_path("noplugin"), -1);
}

static void swap_folders(void)
{
    CHECK(rename(good_folder, aside_folder) == 0 && rename(other_folder, good_folder) == 0, "rename failed");
}

/* The load tests need root, because only a process of root or a set-user-ID process requires trusted files. */
static void test_trust_swap(void)
{
    make_two_folders();
    group("a folder replaced between check and load: the checked file is loaded, under its own path");
    IN_CHILD(folder_path(good_folder, NULL), QUIET) {
        const char *path = folder_join(good_folder, "backend-fake.so");
        validated_hook = swap_folders;
        CHECK_OK(use("fake"));
        CHECK_STR(loaded_from(), path);
    }

    make_two_folders();
    folder_actor(other_folder, "backend-better");
    folder_actor(good_folder, "memory-policy");
    group("plugins of two folders, loaded through descriptors, are different objects");
    IN_CHILD(folder_path(good_folder, other_folder), QUIET) {
        CHECK_OK(use("fake"));
        CHECK_STR(loaded_from(), component->file->path);
        CHECK_OK(use("better"));
        CHECK_STR(loaded_from(), component->file->path);
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_MEMORY, "policy"));
        CHECK_STR(loaded_from(), component->file->path);
    }
    group("two files of one name are different objects, also when the program closed the first one's folder in "
          "between");
    IN_CHILD(QUIET) {
        struct plugin_file files[2] = { { .path = "" } };
        void *objects[2] = { NULL, NULL };
        char reason[1024] = "";
        for (size_t i = 0; i < 2; i++) {
            files[i].path = folder_join(i == 0 ? good_folder : other_folder, "backend-fake.so");
            CHECK(dl_load(&objects[i], &files[i], reason, sizeof reason) == VALIDATE_OK, "%s", reason);
            for (int fd = 3; fd < 32; fd++)
                close(fd);
        }
        CHECK(objects[0] != objects[1], "both files gave the same object");
    }
}

/* Another user swaps two folders while processes of root load plugins from them. */
static void test_trust_race(void)
{
    make_two_folders();
    CHECK(chmod(root_folder, 0777) == 0, "chmod failed");
    fflush(stdout);
    const pid_t racer = fork();
    if (racer == 0) {
        if (setgid(4321) != 0 || setuid(4321) != 0)
            _exit(1);
        for (;;)
            if (rename(good_folder, aside_folder) == 0 && rename(other_folder, good_folder) == 0
                && rename(good_folder, other_folder) == 0)
                rename(aside_folder, good_folder);
    }
    group("another user swaps folders below a writable folder: root loads neither");
    for (int i = 0; i < 30; i++) {
        IN_CHILD(folder_path(good_folder, NULL), QUIET) {
            CHECK_FAILS(use("fake"), CTRT_ERR_NOT_FOUND, NULL);
            CHECK(dlsym(RTLD_DEFAULT, "ctrt_plugin_v1") == NULL, "a plugin was loaded");
        }
    }
    kill(racer, SIGKILL);
    waitpid(racer, NULL, 0);
}

/* The user IDs of a process, and whether it loads a plugin of user 4321. */
static void test_trust_users(void)
{
    static const struct { uid_t real, effective, saved; const char *refused; } cases[] = {
        { 0, 0, 0, "belongs to user 4321" }, { 0, 4321, 0, "" }, { 4321, 4321, 0, "" }, { 0, 4321, 4321, "" },
        { 4321, 4321, 4321, NULL },
    };
    char *folder = FOLDER_OF("backend-fake");
    const char *file = folder_join(folder, "backend-fake.so");
    CHECK(chown(folder, 4321, 4321) == 0 && chown(file, 4321, 4321) == 0, "chown failed");
    EACH(c, cases) {
        group("user 4321's plugin in a process with real, effective and saved user %u, %u, %u",
              (unsigned)c->real, (unsigned)c->effective, (unsigned)c->saved);
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            CHECK(setresuid(c->real, c->effective, c->saved) == 0, "setresuid failed");
            CHECK_FAILS(use("fake"), c->refused != NULL ? CTRT_ERR_NOT_FOUND : CTRT_OK, c->refused);
            if (setresuid(0, 0, 0) != 0)    /* LeakSanitizer cannot read a process that has two users */
                CHECK(c->real != 0 && c->saved != 0, "setresuid failed");
        }
    }
}

TEST(test_search, "missing and relative folders of the search path are reported, the others are searched")
{
    static const char *const ignored[] = {
        "backend-.so", "Backend-x.so", "backend-x.so.1", "backend-X.so", "libx.so", ".so", "wrong-kind.so",
    };
    char *folder = FOLDER_OF("backend-fake"), setting[8192];
    snprintf(setting, sizeof setting, "CTRT_PLUGIN_PATH=:relative:/no/such/folder:%s:%s", folder, folder);
    IN_CHILD(setting, QUIET) {
        CHECK(chdir(folder) == 0, "chdir failed");
        CHECK_OK(use("fake"));
        CHECK_FAILS(use("nothing"), CTRT_ERR_NOT_FOUND, "/no/such/folder (no such folder)");
        CHECK_HAS(ctrt_error_message(), "relative (ignored: not an absolute path)");
        int files = 0;
        for (size_t i = 0; i < registry_file_count; i++)
            files += strcmp(registry_files[i]->stem, "backend-fake") == 0;
        CHECK(files == 1, "a folder that is on the path twice was read %d times", files);
    }
    group("files without a plugin's name are ignored");
    EACH(c, ignored)
        folder_text(folder, *c, "");
    IN_CHILD(folder_path(folder, NULL)) {
        registry_enter();
        CHECK_OK(search_files());
        size_t here = 0;
        for (size_t i = 0; i < registry_file_count; i++)
            here += strcmp(registry_files[i]->folder, folder) == 0;
        CHECK(here == 1, "%zu files were treated as plugins", here);
        registry_leave();
    }
}

/* The loader knows this program, which contains the library, by argv[0]. Runs the program as `name` in folder `one`;
 * the program then changes to folder `two` before the first use and checks that `searched` was searched. */
static void search_as(const char *name, const char *one, const char *two, const char *searched)
{
    CHECK(chdir(one) == 0, "chdir failed");
    execl("/proc/self/exe", name, "test-registry-files", "searched", two, searched, (char *)NULL);
    CHECK(false, "execl failed");
}

static int searched_after_chdir(const char *folder, const char *expected)
{
    CHECK(chdir(folder) == 0, "chdir failed");
    registry_find(&component, CTRT_COMPONENT_BACKEND, "nothing");
    const char *words = search_words();
    CHECK(strstr(words, expected) != NULL && strstr(words, folder) == NULL, "%s, expected %s and not %s", words,
          expected, folder);
    return tap_state.failed > 0;
}

TEST(test_search_beside, NULL)
{
    char *one = folder_new(), *two = folder_new(), command[1024], real[4096], expected[4200];
    snprintf(command, sizeof command,
             "for d in '%s' '%s'; do mkdir -p $d/lib/ctrt/%u $d/ctrt/%u && : >$d/lib/p && : >$d/p || exit 1; done",
             one, two, CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MAJOR);
    CHECK(system(command) == 0, "%s", command);
    group("the plugin folder is found when the library's path is relative and the program calls chdir before the first "
          "use");
    snprintf(expected, sizeof expected, "%s/lib/ctrt/%u", realpath(one, real), CTRT_PLUGIN_ABI_MAJOR);
    IN_CHILD("CTRT_PLUGIN_PATH=") {
        search_as("lib/p", one, two, expected);
    }
    group("a library path without a folder is not resolved in the working directory");
    IN_CHILD("CTRT_PLUGIN_PATH=") {
        search_as("p", two, one, search_installed_folder);
    }
}

TEST_MAIN
{
    if (argc == 4 && strcmp(argv[1], "searched") == 0)
        return searched_after_chdir(argv[2], argv[3]);
    if (geteuid() == 0) {
        test_trust_swap();
        test_trust_race();
        test_trust_users();
    }
    return run_tests();
}
