/* SPDX-License-Identifier: Apache-2.0 */
/* registry/dl.c: validates a plugin file and loads it with dlopen.
 *
 * dlopen accepts only paths and resolves them itself. If the file's permissions were validated (file_permissions.c),
 * dl.c passes /proc/self/fd/FOLDER/NAME, where FOLDER is the descriptor of the validated directory, so that renaming or
 * replacing a directory after the validation has no effect. The path contains the directory's descriptor and not the
 * file's descriptor, for three reasons:
 * - $ORIGIN in the plugin's run path is then that directory. The descriptor remains open until the process ends,
 *   because the loader also expands $ORIGIN when the plugin loads a library later.
 * - The loader does not open a path again that it has loaded before. Descriptor numbers are reused after close, so
 *   /proc/self/fd/FILE could be the path of a plugin that was loaded earlier. For the same reason each directory has a
 *   unique path (kept_path).
 * - dladdr and error messages contain the file's name.
 * After loading, the name of the loaded object is set to the plugin's own path, for dladdr, debuggers and symbolizers.
 *
 * Without /proc, dl.c passes the plain path. This is safe because file_permissions.c has checked that only root and the
 * user can change the directories above the file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <locale.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "registry/internal.h"

void (*validated_hook)(void);

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Directories of loaded plugins. Their descriptors remain open. */
static struct cached_folder { int fd; dev_t dev; ino_t ino; } kept[4 * MAX_FOLDERS];
static size_t kept_count;

/* Returns the entry of the directory `fd`, adding one if necessary. Takes ownership of `fd`, and closes it if the entry
 * already has an open descriptor of the same directory. Returns NULL if fstat fails or the table is full. */
static struct cached_folder *cache_folder(int fd)
{
    struct stat facts, now;
    struct cached_folder *folder = kept;
    if (fstat(fd, &facts) != 0) {
        close(fd);
        return NULL;
    }
    while (folder < kept + kept_count && (folder->dev != facts.st_dev || folder->ino != facts.st_ino))
        folder++;
    if (folder == kept + COUNT_OF(kept)) {
        close(fd);
        return NULL;
    }
    /* The entry's descriptor is checked, because the program may have closed it and reused its number. */
    const bool known = folder < kept + kept_count;
    if (known && folder->fd != fd && fstat(folder->fd, &now) == 0 && same_file(&now, &facts))
        close(fd);
    else
        *folder = (struct cached_folder){ fd, facts.st_dev, facts.st_ino };
    kept_count += !known;
    return folder;
}

/* Writes the path of `name` in the directory. The path of the n-th directory has n slashes before the name, so that
 * paths of different directories differ even if the program closed a descriptor and its number was reused. */
static void kept_path(char *path, size_t capacity, const struct cached_folder *folder, const char *name)
{
    char slashes[COUNT_OF(kept) + 1];
    memset(slashes, '/', sizeof slashes);
    snprintf(path, capacity, "/proc/self/fd/%d%.*s%s", folder->fd, (int)(folder - kept + 1), slashes, name);
}

/* Writes the path to pass to dlopen for the validated file. Returns a result. */
static int loader_path(char *path, size_t capacity, struct plugin_file *file, struct checked_file *validated,
                       char *reason, size_t bytes)
{
    struct stat facts, seen;
    snprintf(path, capacity, "%s", file->path);
    if (validated->folder < 0)
        return VALIDATE_OK;
    const struct cached_folder *folder = cache_folder(validated->folder);
    validated->folder = -1;
    if (folder == NULL)
        return VALIDATE_OK;
    kept_path(path, capacity, folder, strrchr(file->path, '/') + 1);
    if (fstat(validated->file, &facts) != 0)
        return validate_errno(errno, "file", file->path, reason, bytes);
    if (stat(path, &seen) != 0) {
        if (error_is_transient(errno))
            return validate_errno(errno, "file", file->path, reason, bytes);
        snprintf(path, capacity, "%s", file->path);
    } else if (!same_file(&facts, &seen)) {
        snprintf(reason, bytes, "file %s was replaced while it was validated", file->path);
        return EAGAIN;
    }
    return VALIDATE_OK;
}

/* Finds out why the loader could not map the file. Returns ENOMEM, or VALIDATE_REFUSED if the file cannot be mapped as
 * executable at all (for example a file system mounted with noexec). */
static int mapping_result(int fd)
{
    void *page = mmap(NULL, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    if (page == MAP_FAILED)
        return error_is_transient(errno) ? ENOMEM : VALIDATE_REFUSED;
    munmap(page, 1);
    return ENOMEM;
}

/* Returns the errno value of a failed dlopen if the error is transient, else VALIDATE_REFUSED. The value is derived
 * from the text of the message, because dlopen does not set errno. Messages about a failed mmap do not contain the
 * error, so those cases are tested separately. */
static int loader_result(const char *text, int fd)
{
    static const int errors[] = { EMFILE, ENFILE, ENOMEM, EIO, EINTR, EAGAIN, ESTALE };
    for (size_t i = 0; i < COUNT_OF(errors); i++)
        if (strstr(text, strerror(errors[i])) != NULL)
            return errors[i];
    /* "cannot allocate memory in static TLS block": the block's size is fixed when the process starts. */
    if (strstr(text, "static TLS") != NULL)
        return VALIDATE_REFUSED;
    if (strstr(text, "failed to map segment") != NULL || strstr(text, "cannot map zero-fill pages") != NULL)
        return mapping_result(fd);
    /* "cannot create shared object descriptor", "cannot allocate dependency list": the loader has no memory. */
    return strcmp(text, "out of memory") == 0 || strstr(text, "cannot create ") != NULL
                   || strstr(text, "cannot allocate ") != NULL
               ? ENOMEM
               : VALIDATE_REFUSED;
}

/* Writes the loader's error message as the reason, with the plugin's own path instead of `path`. Returns the result.
 * Uses the "C" locale, in which messages are not translated, because loader_result compares them. */
static int validate_loader(const char *path, const struct plugin_file *file, int fd, char *reason, size_t bytes)
{
    const locale_t english = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(english);
    const char *text = dlerror();
    const bool of_file = text != NULL && strncmp(text, path, strlen(path)) == 0;
    snprintf(reason, bytes, "%s%s", of_file ? file->path : "",
             text == NULL ? "dlopen failed" : of_file ? text + strlen(path) : text);
    int result = loader_result(reason, fd);
    if (of_file && strstr(reason, "cannot open shared object file") != NULL && strstr(reason, strerror(ENOENT)) != NULL)
        result = ENOMEM;                /* the file existed when it was validated, see load */
    if (strncmp(reason, "libctrt.so", 10) == 0)
        snprintf(reason + strlen(reason), bytes - strlen(reason), ". %s", OTHER_LIBRARY);
    uselocale(before);
    freelocale(english);
    return result;
}

/* Sets the loader's name of the object to the plugin's path if the object was loaded through /proc. */
static void name_object(struct plugin_file *file, void *handle)
{
    struct link_map *object = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &object) != 0 || object == NULL
        || strncmp(object->l_name, "/proc/self/fd/", 14) != 0)
        return;
    file->loader_name = object->l_name;
    object->l_name = (char *)(uintptr_t)file->path;
}

static int dl_load_file(void **handle, struct plugin_file *file, struct checked_file *validated, char *reason,
                        size_t bytes)
{
    char path[4200];
    int result = elf_validate(validated->file, file->path, reason, bytes);
    if (result == VALIDATE_OK)
        result = loader_path(path, sizeof path, file, validated, reason, bytes);
    if (result != VALIDATE_OK)
        return result;
    if (validated_hook != NULL)
        validated_hook();
    /* Without memory for a path, glibc's loader says of a file, or of a library that it needs, that it does not exist.
     * A second attempt shows whether that is so. */
    for (int attempt = 0; attempt < 2; attempt++) {
        *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (*handle != NULL) {
            name_object(file, *handle);
            return VALIDATE_OK;
        }
        result = validate_loader(path, file, validated->file, reason, bytes);
        if (result != VALIDATE_REFUSED || strstr(reason, "cannot open shared object file") == NULL)
            break;
    }
    return result;
}

int dl_load(void **handle, struct plugin_file *file, char *reason, size_t bytes)
{
    struct checked_file validated;
    uid_t user;
    const bool strict = permissions_matter(&user);
    int result = open_checked(&validated, file->path, strict, user, reason, bytes);
    if (result != VALIDATE_OK)
        return result;
    result = dl_load_file(handle, file, &validated, reason, bytes);
    close(validated.file);
    if (validated.folder >= 0)
        close(validated.folder);
    return result;
}
