/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which plugin files are trusted, and which folders are searched for plugins. */
#include <dlfcn.h>
#include <signal.h>
#include <sys/types.h>

#include "child.h"
#include "folder.h"
#include "registry/internal.h"

#define QUIET "CTRT_LOG=error"          /* refused files log warnings, and there are many here */

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
    { "above/folder/backend-fake.so", 0755, -1, -1, "above/folder/backend-fake.so", NULL },
    { "above/folder/backend-fake.so", 0757, -1, -1, "above/folder/backend-fake.so",
      "file ROOT/above/folder/backend-fake.so can be written by all users" },
    { "above/folder/backend-fake.so", 0775, -1, 0, "above/folder/backend-fake.so",
      "can be written by group 0 (mode 775)" },
    { "above", 0775, -1, 0, "above/folder/backend-fake.so", "folder ROOT/above can be written by group 0" },
    { "above/folder/backend-fake.so", 0775, -1, 4321, "above/folder/backend-fake.so", "can be written by group 4321" },
    { "above/folder/backend-fake.so", -1, 4321, -1, "above/folder/backend-fake.so", "belongs to user 4321" },
    { "above/folder", 0777, -1, -1, "above/folder/backend-fake.so",
      "folder ROOT/above/folder can be written by all users" },
    { "above/folder", 01777, -1, -1, "above/folder/backend-fake.so",
      "folder ROOT/above/folder can be written by all users" },
    { "above/folder", 0775, -1, 4321, "above/folder/backend-fake.so",
      "folder ROOT/above/folder can be written by group 4321" },
    { "above/folder", -1, 4321, -1, "above/folder/backend-fake.so", "folder ROOT/above/folder belongs to user 4321" },
    { "above", 0777, -1, -1, "above/folder/backend-fake.so", "folder ROOT/above can be written by all users" },
    { "above", 01777, -1, -1, "above/folder/backend-fake.so", NULL },
    { "above", -1, 4321, -1, "above/folder/backend-fake.so", "folder ROOT/above belongs to user 4321" },
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
    { "other", 0755, -1, -1, "above/folder/backend-fake.so/backend-fake.so", "Not a directory" },
};

/* Returns `text` with "ROOT" replaced by `root`. */
static const char *with_root(const char *text, const char *root)
{
    static char words[512];
    const char *at = strstr(text, "ROOT");
    snprintf(words, sizeof words, "%.*s%s%s", at != NULL ? (int)(at - text) : 0, text, at != NULL ? root : "",
             at != NULL ? at + 4 : text);
    return words;
}

static void make_trust_tree(const char *root)
{
    char command[4096];
    snprintf(command, sizeof command,
             "cd '%s' && mkdir -p above/folder other && ln -s ../above/folder/backend-fake.so "
             "other/backend-link.so && ln -s '%s/above/folder' other/folder-link && ln -s ../above other/above-link && "
             "ln -s ../above "
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
        group("trust: %s mode %04o owner %d group %d, path %s", c->what, (unsigned)(c->mode >= 0 ? c->mode : 0),
              c->owner, c->group, c->path);
        CHECK(!needs_root || lchown(what, (uid_t)c->owner, (gid_t)c->group) == 0, "lchown failed");
        CHECK(c->mode < 0 || chmod(what, (mode_t)c->mode) == 0, "chmod failed");
        reason[0] = '\0';
        const bool well = trusted(path, true, user, reason, sizeof reason);
        CHECK(well == (c->words == NULL), "%s: %s", well ? "trusted" : "refused", reason);
        const char *words = c->words != NULL ? with_root(c->words, root) : "";
        CHECK(strstr(reason, words) != NULL, "the reason lacks \"%s\": %s", words, reason);
        if (strstr(c->path, "circle") == NULL && strstr(c->path, "nothing") == NULL && strstr(c->path, ".so/") == NULL)
            CHECK(trusted(path, false, user, reason, sizeof reason), "not trusted without strict checks: %s", reason);
        if (user == 0)
            CHECK(lchown(what, before.st_uid, before.st_gid) == 0, "lchown failed");
        if (!S_ISLNK(before.st_mode))
            chmod(what, before.st_mode & 07777);
    }
    folder_remove(root);
}

static char swap_from[200], swap_aside[200], swap_in[200];

/* Replaces the checked folder by another. */
static void swap_folders(void)
{
    CHECK(rename(swap_from, swap_aside) == 0 && rename(swap_in, swap_from) == 0, "rename failed");
}

/* The load tests need root, because only a process of root or a set-user-ID process requires trusted files. */
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
    group("a folder replaced between check and load: the checked file is loaded, under its own path");
    IN_CHILD(folder_path(swap_from, NULL), QUIET) {
        const struct component *component = NULL;
        Dl_info object = { 0 };
        validated_hook = swap_folders;
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
        CHECK(component != NULL && dladdr(component->table, &object) != 0 && strcmp(object.dli_fname, path) == 0,
              "dladdr returns %s, expected %s", object.dli_fname, path);
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
            { CTRT_COMPONENT_BACKEND, "fake" }, { CTRT_COMPONENT_BACKEND, "better" },
            { CTRT_COMPONENT_MEMORY, "policy" },
        };
        for (size_t i = 0; i < 3; i++) {
            const struct component *component = NULL;
            Dl_info object = { 0 };
            CHECK_OK(registry_use(&component, all[i].kind, all[i].name));
            CHECK(dladdr(component->table, &object) != 0 && strcmp(object.dli_fname, component->file->path) == 0,
                  "%s is %s",
                  component->file->path, object.dli_fname);
        }
    }
    CHILD_END;
    folder_copy(two, "backend-fake.so", built_path("stranger"), -1);
    group("two files of one name are different objects, also when the program closed the first one's folder in "
          "between");
    IN_CHILD(QUIET) {
        struct plugin_file files[2] = { { .path = "" } };
        void *objects[2] = { NULL, NULL };
        char paths[2][200], reason[1024] = "";
        for (size_t i = 0; i < 2; i++) {
            snprintf(paths[i], sizeof paths[i], "%s/backend-fake.so", i == 0 ? one : two);
            files[i].path = paths[i];
            CHECK(dl_load(&objects[i], &files[i], reason, sizeof reason) == VALIDATE_OK, "%s", reason);
            for (int fd = 3; fd < 32; fd++)
                close(fd);
        }
        CHECK(objects[0] != objects[1], "both files gave the same object");
    }
    CHILD_END;
    folder_remove(one);
    folder_remove(two);
}

/* Another user swaps two folders while processes of root load plugins from them. */
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
    group("another user swaps folders below a writable folder: root loads neither");
    for (int i = 0; i < 30; i++) {
        IN_CHILD(path, QUIET) {
            const struct component *component;
            CHECK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake") == CTRT_ERR_NOT_FOUND,
                  "a plugin was loaded");
            CHECK(dlsym(RTLD_DEFAULT, "ctrt_plugin_v1") == NULL, "a plugin was loaded");
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

    /* User IDs after a change, and whether a plugin of user 4321 is loaded then. */
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
            if (setresuid(0, 0, 0) != 0)    /* LeakSanitizer cannot read a process that has two users */
                CHECK(ids[i].real != 0 && ids[i].saved != 0, "setresuid failed");
        }
        CHILD_END;
        CHECK(chown(folder, 0, 0) == 0 && chown(file, 0, 0) == 0, "chown failed");
    }

    if (user == 0) {
        chmod(file, 0666);
        group("as root, a plugin that all users can write is refused");
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const struct component *component;
            CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"), CTRT_ERR_NOT_FOUND,
                        "can be written by all users (mode 666)");
        }
        CHILD_END;
        chmod(file, 0755);
        if (chown(file, 4321, 4321) == 0) {
            group("as root, a plugin of another user is refused");
            IN_CHILD(folder_path(folder, NULL), QUIET) {
                const struct component *component;
                CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"), CTRT_ERR_NOT_FOUND,
                            "belongs to user 4321");
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
    group("missing and relative folders of the search path are reported, the others are searched");
    snprintf(setting, sizeof setting, "CTRT_PLUGIN_PATH=:relative:/no/such/folder:%s:%s", folder, folder);
    IN_CHILD(setting, QUIET) {
        const struct component *component;
        CHECK(chdir(folder) == 0, "chdir failed");
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "nothing"), CTRT_ERR_NOT_FOUND,
                    "/no/such/folder (no such folder)");
        CHECK(strstr(ctrt_error_message(), "relative (ignored: not an absolute path)"), "%s", ctrt_error_message());
        int files = 0;
        for (size_t i = 0; i < registry_file_count; i++)
            files += strcmp(registry_files[i]->stem, "backend-fake") == 0;
        CHECK(files == 1, "a folder that is on the path twice was read %d times", files);
    }
    CHILD_END;
    group("files without a plugin's name are ignored");
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
        CHECK(here == 1, "%zu files were treated as plugins", here);
        registry_leave();
    }
    CHILD_END;
    folder_remove(folder);
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
    const struct component *component;
    CHECK(chdir(folder) == 0, "chdir failed");
    registry_find(&component, CTRT_COMPONENT_BACKEND, "nothing");
    const char *words = search_words();
    CHECK(strstr(words, expected) != NULL && strstr(words, folder) == NULL, "%s, expected %s and not %s", words,
          expected, folder);
    return tap_state.failed > 0;
}

static void test_search_beside(void)
{
    char *one = folder_new(), *two = folder_new(), command[1024], real[4096], expected[4200];
    snprintf(command, sizeof command,
             "for d in '%s' '%s'; do mkdir -p $d/lib/ctrt/%u $d/ctrt/%u && : >$d/lib/p && : >$d/p || exit 1; done", one,
             two,
             CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MAJOR);
    CHECK(system(command) == 0, "%s", command);
    group("the plugin folder is found when the library's path is relative and the program calls chdir before the first "
          "use");
    snprintf(expected, sizeof expected, "%s/lib/ctrt/%u", realpath(one, real), CTRT_PLUGIN_ABI_MAJOR);
    IN_CHILD("CTRT_PLUGIN_PATH=") {
        search_as("lib/p", one, two, expected);
    }
    CHILD_END;
    group("a library path without a folder is not resolved in the working directory");
    IN_CHILD("CTRT_PLUGIN_PATH=") {
        search_as("p", two, one, search_installed_folder);
    }
    CHILD_END;
    folder_remove(one);
    folder_remove(two);
}

TEST_MAIN
{
    if (argc == 4 && strcmp(argv[1], "searched") == 0)
        return searched_after_chdir(argv[2], argv[3]);
    test_trust();
    test_search();
    test_search_beside();
    return done();
}
