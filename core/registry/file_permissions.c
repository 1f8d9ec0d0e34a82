/* SPDX-License-Identifier: Apache-2.0 */
/* registry/file_permissions.c: checks the owners and permissions of a plugin file and of all folders above it.
 *
 * A process of root, or one with more privileges than its caller (setuid, setgid, capabilities), loads a plugin only if
 * no user except root and the effective user can change or replace the file. A process whose real or saved user id is
 * root trusts only root. Like sshd for its files, file_permissions.c checks every folder from "/" to the plugin, on the
 * given path and on the targets of symbolic links. Each folder must belong to root or the user, and neither others nor
 * the folder's group may have write permission. This also applies to root's group, because with an access control list
 * the group bits are the mask of that list. A folder above the plugin's own folder may be writable by others if it is
 * sticky (/tmp) and the next entry on the path belongs to root or the user, because then others can neither rename nor
 * replace that entry.
 *
 * The path is resolved only once, by one openat per entry, so that the checked file is the opened file. The loader then
 * opens the file through the descriptor of its folder (dl.c). */
#define _GNU_SOURCE
#include "registry/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/descriptor.h"

#define MAX_LINKS 40

struct permissions_walk {
    int at;                     /* descriptor of the current folder (O_PATH) */
    bool shared;                /* the current folder is writable by others, and sticky */
    uid_t user;                 /* trusted in addition to root */
    int links;                  /* number of symbolic links followed */
    char shown[PATH_MAX];       /* path of the current folder without a final '/', for messages */
    char rest[PATH_MAX];        /* remaining path, relative to the current folder */
    char *reason;               /* the caller's buffer for the reason, of `bytes` bytes */
    size_t bytes;
};

bool permissions_matter(uid_t *user)
{
    uid_t real, saved;
    getresuid(&real, user, &saved);
    /* A process whose real or saved id is root can get the effective id root again, and so can the plugin's code. */
    if (real == 0 || saved == 0)
        *user = 0;
    return *user == 0 || getauxval(AT_SECURE) != 0;
}

bool error_is_transient(int error)
{
    static const int errors[] = { EMFILE, ENFILE, ENOMEM, EIO, EINTR, EAGAIN, EBUSY, ENOBUFS, ESTALE, ETIMEDOUT };
    for (size_t i = 0; i < COUNT_OF(errors); i++)
        if (errors[i] == error)
            return true;
    return false;
}

int validate_errno(int error, const char *what, const char *path, char *reason, size_t bytes)
{
    snprintf(reason, bytes, "%s %s: %s", what, path, strerror(error));
    return error_is_transient(error) ? error : VALIDATE_REFUSED;
}

static bool trusted_owner(const struct permissions_walk *w, const struct stat *facts)
{
    return facts->st_uid == 0 || facts->st_uid == w->user;
}

static bool writable_by_others(const struct stat *facts)
{
    return (facts->st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

static int bad_owner(struct permissions_walk *w, const char *what, const char *path, const struct stat *facts)
{
    snprintf(w->reason, w->bytes, "%s %s belongs to user %u, who is neither root nor the user of this process (%u)",
             what, path,
             (unsigned)facts->st_uid, (unsigned)w->user);
    return VALIDATE_REFUSED;
}

static int bad_mode(struct permissions_walk *w, const char *what, const char *path, const struct stat *facts)
{
    const unsigned mode = (unsigned)(facts->st_mode & 07777);
    if (facts->st_mode & S_IWOTH)
        snprintf(w->reason, w->bytes, "%s %s can be written by all users (mode %03o)", what, path, mode);
    else
        snprintf(w->reason, w->bytes, "%s %s can be written by group %u (mode %03o)", what, path,
                 (unsigned)facts->st_gid, mode);
    return VALIDATE_REFUSED;
}

static const char *shown(const struct permissions_walk *w)
{
    return w->shown[0] != '\0' ? w->shown : "/";
}

/* Makes `fd` the current folder and checks its owner and permissions. Takes ownership of `fd`. Returns a result. */
static int permissions_enter(struct permissions_walk *w, int fd, const struct stat *facts)
{
    if (w->at >= 0)
        close(w->at);
    w->at = fd;
    w->shared = writable_by_others(facts);
    if (!trusted_owner(w, facts))
        return bad_owner(w, "folder", shown(w), facts);
    return w->shared && !(facts->st_mode & S_ISVTX) ? bad_mode(w, "folder", shown(w), facts) : VALIDATE_OK;
}

static int enter_root(struct permissions_walk *w)
{
    struct stat facts;
    int fd = fd_above_stdio(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    w->shown[0] = '\0';
    if (fd < 0 || fstat(fd, &facts) != 0) {
        const int error = errno;
        if (fd >= 0)
            close(fd);
        return validate_errno(error, "folder", "/", w->reason, w->bytes);
    }
    return permissions_enter(w, fd, &facts);
}

/* Follows the symbolic link `fd`: prepends its target to the remaining path. Takes ownership of `fd`. Returns a
 * result. */
static int permissions_follow(struct permissions_walk *w, int fd, const char *path)
{
    char target[PATH_MAX], rest[PATH_MAX];
    const ssize_t length = readlinkat(fd, "", target, sizeof target - 1);
    const int error = length < 0 ? errno : ++w->links > MAX_LINKS ? ELOOP : 0;
    close(fd);
    if (error != 0)
        return validate_errno(error, "link", path, w->reason, w->bytes);
    target[length] = '\0';
    if (snprintf(rest, sizeof rest, "%s%s", target, w->rest) >= (int)sizeof rest)
        return validate_errno(ENAMETOOLONG, "link", path, w->reason, w->bytes);
    memcpy(w->rest, rest, sizeof rest);
    return target[0] == '/' ? enter_root(w) : VALIDATE_OK;
}

/* Opens the file `name` of the current folder for reading and checks the owner and permissions of the opened file. */
static int permissions_open_file(struct permissions_walk *w, int *out, const char *name, const char *path)
{
    struct stat facts;
    int fd = fd_above_stdio(openat(w->at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (fd < 0 || fstat(fd, &facts) != 0) {
        const int error = errno;
        if (fd >= 0)
            close(fd);
        return validate_errno(error, "file", path, w->reason, w->bytes);
    }
    int result = !trusted_owner(w, &facts)     ? bad_owner(w, "file", path, &facts)
                  : writable_by_others(&facts)  ? bad_mode(w, "file", path, &facts)
                                                : VALIDATE_OK;
    if (result == VALIDATE_OK && w->shared) {
        fstat(w->at, &facts);
        result = bad_mode(w, "folder", shown(w), &facts);
    }
    if (result == VALIDATE_OK)
        *out = fd;
    else
        close(fd);
    return result;
}

/* Writes the path of the entry `name` of `folder` into `path`. Resolves "." and ".." in the text, which is correct
 * because `folder` contains no symbolic links. Returns false if the path is too long. */
static bool append(char *path, size_t bytes, const char *folder, const char *name)
{
    const char *end = strcmp(name, "..") == 0 ? strrchr(folder, '/') : NULL;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return snprintf(path, bytes, "%.*s", end != NULL ? (int)(end - folder) : (int)strlen(folder), folder)
               < (int)bytes;
    return snprintf(path, bytes, "%s/%s", folder, name) < (int)bytes;
}

/* Resolves the remaining path from the current folder. If `file` is NULL, all entries must be folders; otherwise the
 * last entry must be a file, which is opened as *file. Returns a result. */
static int walk_on(struct permissions_walk *w, int *file)
{
    while (w->rest[strspn(w->rest, "/")] != '\0') {
        char name[NAME_MAX + 1], path[PATH_MAX];
        const char *from = w->rest + strspn(w->rest, "/");
        const size_t length = strcspn(from, "/");
        struct stat facts;
        if (length >= sizeof name)
            return validate_errno(ENAMETOOLONG, "entry", from, w->reason, w->bytes);
        memcpy(name, from, length);
        name[length] = '\0';
        if (!append(path, sizeof path, w->shown, name))
            return validate_errno(ENAMETOOLONG, "folder", shown(w), w->reason, w->bytes);
        memmove(w->rest, from + length, strlen(from + length) + 1);
        const int fd = fd_above_stdio(openat(w->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
        if (fd < 0 || fstat(fd, &facts) != 0) {
            const int error = errno;
            if (fd >= 0)
                close(fd);
            return validate_errno(error, file != NULL ? "file" : "folder", path, w->reason, w->bytes);
        }
        int result;
        if (w->shared && !trusted_owner(w, &facts)) {
            close(fd);
            return bad_owner(w, "entry", path, &facts);
        }
        if (S_ISLNK(facts.st_mode)) {
            result = permissions_follow(w, fd, path);
        } else if (S_ISDIR(facts.st_mode)) {
            memcpy(w->shown, path, sizeof path);
            result = permissions_enter(w, fd, &facts);
        } else {
            close(fd);
            if (file == NULL || w->rest[0] != '\0')
                return validate_errno(ENOTDIR, "file", path, w->reason, w->bytes);
            return permissions_open_file(w, file, name, path);
        }
        if (result != VALIDATE_OK)
            return result;
    }
    if (file == NULL)
        return VALIDATE_OK;
    snprintf(w->reason, w->bytes, "%s is not a regular file", shown(w));
    return VALIDATE_REFUSED;
}

static int open_validated(struct checked_file *out, struct permissions_walk *w, const char *path)
{
    const char *slash = strrchr(path, '/');
    int result = enter_root(w);
    if (result == VALIDATE_OK) {
        snprintf(w->rest, sizeof w->rest, "%.*s", (int)(slash - path), path);
        result = walk_on(w, NULL);
    }
    if (result == VALIDATE_OK && w->shared) {
        struct stat facts;
        fstat(w->at, &facts);
        return bad_mode(w, "folder", shown(w), &facts);
    }
    if (result != VALIDATE_OK)
        return result;
    const int folder = fcntl(w->at, F_DUPFD_CLOEXEC, 3);
    if (folder < 0)
        return validate_errno(errno, "folder", shown(w), w->reason, w->bytes);
    snprintf(w->rest, sizeof w->rest, "%s", slash + 1);
    result = walk_on(w, &out->file);
    if (result == VALIDATE_OK)
        out->folder = folder;
    else
        close(folder);
    return result;
}

int open_checked(struct checked_file *out, const char *path, bool strict, uid_t user, char *reason, size_t bytes)
{
    out->file = out->folder = -1;
    if (!strict) {
        out->file = fd_above_stdio(open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
        return out->file >= 0 ? VALIDATE_OK : validate_errno(errno, "file", path, reason, bytes);
    }
    if (path[0] != '/' || strlen(path) >= PATH_MAX)
        return validate_errno(EINVAL, "file", path, reason, bytes);
    struct permissions_walk w = { .at = -1, .user = user, .reason = reason, .bytes = bytes };
    const int result = open_validated(out, &w, path);
    if (w.at >= 0)
        close(w.at);
    return result;
}
