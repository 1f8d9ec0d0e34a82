/* SPDX-License-Identifier: Apache-2.0 */
/* folder.h: temporary folders for tests, and copies of test plugins and built plugins under other names. */
#ifndef CTRT_TESTS_FOLDER_H
#define CTRT_TESTS_FOLDER_H

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Path of a built file: "plugin_by_name.so" (the test plugins) or, for a name with a dash, a plugin of the library. */
static inline const char *built_path(const char *name)
{
    static char path[4096];
    const char *builddir = getenv("builddir");
    snprintf(path, sizeof path, "%s/.libs/%s.so", builddir != NULL ? builddir : ".", name);
    return path;
}

/* Returns the number of entries in the folder, including "." and "..". */
static inline size_t folder_files(const char *folder)
{
    size_t count = 0;
    DIR *dir = opendir(folder);
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count;
}

static struct { char names[64][128]; int count; pid_t owner; } folders;

static inline void folder_remove(const char *folder)
{
    char command[4096];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0)
        fprintf(stderr, "cannot remove %s\n", folder);
}

static inline void folders_remove(void)
{
    for (int i = 0; i < folders.count && folders.owner == getpid(); i++)
        folder_remove(folders.names[i]);
}

/* Creates a folder under $TMPDIR. It is removed when the process that created the first one exits. */
static inline char *folder_new(void)
{
    char *folder = folders.names[folders.count++];
    const char *parent = getenv("TMPDIR");
    if (folders.count == 1) {
        folders.owner = getpid();
        atexit(folders_remove);
    }
    snprintf(folder, sizeof folders.names[0], "%s/ctrt-test-XXXXXX",
             parent != NULL && strlen(parent) < 96 ? parent : "/tmp");
    if (folders.count == 64 || mkdtemp(folder) == NULL || chmod(folder, 0755) != 0) {
        perror(folder);
        exit(99);
    }
    return folder;
}

/* Returns "FOLDER/NAME" in one of 32 buffers, which all threads share. */
static inline const char *folder_join(const char *folder, const char *name)
{
    static char paths[32][4096];
    static atomic_uint used;
    char *path = paths[used++ % 32];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Returns the number of bytes read from the file, 0 if it cannot be opened. */
static inline size_t folder_read(void *bytes, size_t capacity, const char *path)
{
    FILE *file = fopen(path, "rb");
    const size_t size = file != NULL ? fread(bytes, 1, capacity, file) : 0;
    if (file != NULL)
        fclose(file);
    return size;
}

/* Returns the number of lines of the file that contain `word`, -1 if it cannot be opened. */
static inline int folder_lines(const char *path, const char *word)
{
    char line[1024];
    int count = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return -1;
    while (fgets(line, sizeof line, file) != NULL)
        count += strstr(line, word) != NULL;
    fclose(file);
    return count;
}

/* Copies at most `bytes` bytes (-1: all) of file `from` to folder/name. */
static inline void folder_copy(const char *folder, const char *name, const char *from, long bytes)
{
    const char *path = folder_join(folder, name);
    FILE *in = fopen(from, "rb"), *out = fopen(path, "wb");
    if (in == NULL || out == NULL) {
        fprintf(stderr, "cannot copy %s to %s\n", from, path);
        exit(99);
    }
    for (int c; bytes != 0 && (c = getc_unlocked(in)) != EOF; bytes -= bytes > 0)
        putc_unlocked(c, out);
    fclose(in);
    fclose(out);
    chmod(path, 0755);
}

static inline void folder_copy_so(const char *folder, const char *stem, const char *from)
{
    char name[128];
    snprintf(name, sizeof name, "%s.so", stem);
    folder_copy(folder, name, built_path(from), -1);
}

/* Copies the test plugin to folder/STEM.so. The stem (KIND-ROLE) selects the role of the plugin. */
static inline void folder_actor(const char *folder, const char *stem)
{
    folder_copy_so(folder, stem, "plugin_by_name");
}

/* Creates a folder with the plugins of these stems: built plugins, and copies of the test plugin for other stems. */
#define FOLDER_OF(...) folder_of((const char *const[]){ __VA_ARGS__, NULL })
static inline char *folder_of(const char *const *stems)
{
    char *folder = folder_new();
    for (; *stems != NULL; stems++)
        folder_copy_so(folder, *stems, access(built_path(*stems), F_OK) == 0 ? *stems : "plugin_by_name");
    return folder;
}

static inline void folder_text(const char *folder, const char *name, const char *text)
{
    FILE *out = fopen(folder_join(folder, name), "wb");
    if (out != NULL) {
        fputs(text, out);
        fclose(out);
    }
}

/* Returns "CTRT_PLUGIN_PATH=a:b"; b may be NULL. */
static inline const char *folder_path(const char *a, const char *b)
{
    static char settings[8][4096];
    static int used;
    char *setting = settings[used++ % 8];
    snprintf(setting, sizeof settings[0], "CTRT_PLUGIN_PATH=%s%s%s", a, b != NULL ? ":" : "", b != NULL ? b : "");
    return setting;
}

#endif
