/* SPDX-License-Identifier: Apache-2.0 */
/* base/file_writer.c: replaces a file atomically: a new file beside it, which is renamed at the end. */
#define _GNU_SOURCE                     /* O_PATH */
#include "base/file_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/base.h"
#include "base/descriptor.h"

#define MAX_LINKS 40                    /* the limit of the Linux kernel */

static ctrt_status failed(const char *what, const char *path, int error)
{
    return ctrt_fail(CTRT_ERR_IO, "cannot %s %.500s: %s", what, path, strerror(error));
}

/* ---- path resolution ---- */

/* Returns the number of the file descriptor that a path like /dev/fd/1 names, or -1 for other paths.
 *
 * A descriptor is used as it is even if it refers to a regular file, because other code of the program may continue to
 * write to that descriptor. */
static int descriptor_of(const char *path)
{
    static const char *const folders[] = { "/dev/fd/", "/proc/self/fd/" };
    if (strcmp(path, "/dev/stdout") == 0)
        return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0)
        return STDERR_FILENO;
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        const size_t length = strlen(folders[i]);
        int fd = -1, end = 0;
        if (strncmp(path, folders[i], length) == 0 && sscanf(path + length, "%9d%n", &fd, &end) == 1
            && path[length + (size_t)end] == '\0')
            return fd;
    }
    return -1;
}

/* Returns the directory part of `path`. Uses `buffer` (PATH_MAX bytes) for the result. */
static const char *folder_of(char *buffer, const char *path)
{
    snprintf(buffer, PATH_MAX, "%s", path);
    return dirname(buffer);
}

/* Applies the rule of the kernel setting fs.protected_symlinks, even where that setting is off. In a directory that is
 * sticky and writable by all users (/tmp), a symbolic link is followed only if its owner is the effective user or the
 * owner of the directory. Otherwise another user could choose which file is replaced. */
static bool link_trusted(const char *path, const struct stat *link)
{
    char buffer[PATH_MAX];
    struct stat folder;
    if (stat(folder_of(buffer, path), &folder) != 0)
        return false;
    return (folder.st_mode & (S_ISVTX | S_IWOTH)) != (S_ISVTX | S_IWOTH) || link->st_uid == geteuid()
           || link->st_uid == folder.st_uid;
}

/* Replaces the path of a symbolic link in `path` (PATH_MAX bytes) by the path of the link's target. `fd` is a
 * descriptor of the link and `about` its status. Returns 0 or an errno value. */
static int link_follow(char *path, int fd, const struct stat *about)
{
    char content[PATH_MAX], buffer[PATH_MAX];
    if (!link_trusted(path, about))
        return EACCES;
    const ssize_t length = readlinkat(fd, "", content, sizeof content - 1);
    if (length < 0)
        return errno;
    content[length] = '\0';
    const char *folder = folder_of(buffer, path);
    const int needed = content[0] == '/' ? snprintf(path, PATH_MAX, "%s", content)
                                         : snprintf(path, PATH_MAX, "%s/%s", folder, content);
    return needed < PATH_MAX ? 0 : ENAMETOOLONG;
}

/* Follows the symbolic links at the end of `path`. Writes the path of the file into `target` (PATH_MAX bytes) and the
 * file's status into `about`; st_mode is 0 if no file exists. Returns 0 or an errno value. */
static int path_resolve(char *target, struct stat *about, const char *path)
{
    if (snprintf(target, PATH_MAX, "%s", path) >= PATH_MAX)
        return ENAMETOOLONG;
    for (int links = 0; links <= MAX_LINKS; links++) {
        if (descriptor_of(target) >= 0)
            return 0;
        /* Owner and content are read through one descriptor, because the path could be replaced between two calls. */
        const int fd = fd_above_stdio(open(target, O_PATH | O_NOFOLLOW | O_CLOEXEC));
        if (fd < 0) {
            *about = (struct stat){ 0 };
            return errno == ENOENT ? 0 : errno;
        }
        int error = fstat(fd, about) != 0 ? errno : 0;
        const bool link = error == 0 && S_ISLNK(about->st_mode);
        if (link)
            error = link_follow(target, fd, about);
        close(fd);
        if (error != 0 || !link)
            return error;
    }
    return ELOOP;
}

/* ---- opening ---- */

/* Opens a pipe, a terminal or a device for writing in place. */
static ctrt_status open_in_place(struct file_writer *writer, const char *target)
{
    struct stat about;
    do /* open of a pipe waits for a reader */
        writer->fd = fd_above_stdio(open(target, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW));
    while (writer->fd < 0 && errno == EINTR);
    if (writer->fd < 0)
        return failed("open", writer->path, errno);
    if (fstat(writer->fd, &about) == 0 && !S_ISREG(about.st_mode))
        return CTRT_OK;
    /* A regular file has replaced the device since path_resolve. Writing in place would overwrite a part of it. */
    close(writer->fd);
    return failed("write to", writer->path, ESTALE);
}

/* Copies the access control list of the file at `target` to `fd`. Removes the list of `fd` if `target` has none.
 * Returns false if the list cannot be read or set. */
static bool acl_keep(int fd, const char *target)
{
    static const char name[] = "system.posix_acl_access";
    char acl[4096];
    const ssize_t size = lgetxattr(target, name, acl, sizeof acl);
    if (size >= 0)
        return fsetxattr(fd, name, acl, (size_t)size, 0) == 0;
    if (errno != ENODATA && errno != ENOTSUP)
        return false;
    fremovexattr(fd, name);                 /* a list inherited from the directory; fails if there is none */
    return true;
}

/* Copies the attributes of the old file at `target` to `fd`: permissions, access control list and, if the process may
 * set them, owner and group. Returns 0 or an errno value.
 *
 * If the group or the list cannot be copied, the group permissions are set to those of others, because the old group
 * permissions applied to another group or, with an access control list, were the mask of that list. */
static int attributes_keep(int fd, const char *target, const struct stat *old)
{
    struct stat now;
    mode_t mode = old->st_mode & 0777;
    if (fstat(fd, &now) != 0)
        return errno;
    if ((now.st_uid != old->st_uid || now.st_gid != old->st_gid) && fchown(fd, old->st_uid, old->st_gid) != 0
        && now.st_gid != old->st_gid && fchown(fd, (uid_t)-1, old->st_gid) != 0)
        mode &= ~(mode_t)070 | (mode & 007) << 3;
    if (!acl_keep(fd, target))
        mode &= ~(mode_t)070 | (mode & 007) << 3;
    return fchmod(fd, mode) != 0 ? errno : 0;
}

/* Opens the directory of `target`. Later calls use this descriptor, so that a change of the working directory has no
 * effect. O_PATH is for directories that are writable but not readable. */
static int folder_open(const char *target)
{
    char buffer[PATH_MAX];
    const char *folder = folder_of(buffer, target);
    const int fd = fd_above_stdio(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return fd < 0 && errno == EACCES ? fd_above_stdio(open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC)) : fd;
}

/* Creates and opens the temporary file. Its name is the target's name, truncated to NAME_MAX, plus ".tmp-PID-N".
 * Returns 0 or an errno value. */
static int temporary_create(struct file_writer *writer, mode_t mode)
{
    static atomic_uint counter;
    const int kept = (int)MIN(strlen(writer->name), sizeof writer->temporary - 41);
    do {
        snprintf(writer->temporary, sizeof writer->temporary, "%.*s.tmp-%ld-%u", kept, writer->name, (long)getpid(),
                 atomic_fetch_add(&counter, 1));
        writer->fd = fd_above_stdio(openat(writer->folder, writer->temporary,
                                           O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
    } while (writer->fd < 0 && (errno == EEXIST || errno == EINTR));
    return writer->fd < 0 ? errno : 0;
}

/* Opens a temporary file in the directory of `target`, which file_writer_close will rename. `old`: the status of the
 * file at `target`, st_mode 0 if there is none. On error the caller closes writer->folder. */
static ctrt_status file_writer_open_beside(struct file_writer *writer, const char *target, const struct stat *old)
{
    const bool exists = old->st_mode != 0;
    const char *slash = strrchr(target, '/');
    snprintf(writer->name, sizeof writer->name, "%s", slash != NULL ? slash + 1 : target);
    if (writer->name[0] == '\0')
        return failed("write to", writer->path, ENOENT);
    writer->folder = folder_open(target);
    if (writer->folder < 0)
        return failed("open the folder of", writer->path, errno);
    if (exists && faccessat(writer->folder, writer->name, W_OK, AT_EACCESS) != 0)
        return failed("write to", writer->path, errno);
    int error = temporary_create(writer, exists ? 0600 : 0666);
    if (error != 0)
        return failed("create a temporary file next to", writer->path, error);
    error = exists ? attributes_keep(writer->fd, target, old) : 0;
    if (error == 0)
        return CTRT_OK;
    unlinkat(writer->folder, writer->temporary, 0);
    close(writer->fd);
    return failed("set the permissions of a temporary file next to", writer->path, error);
}

ctrt_status file_writer_open(struct file_writer *writer, const char *path)
{
    char target[PATH_MAX];
    struct stat about = { 0 };
    *writer = (struct file_writer){ .path = path, .folder = -1, .fd = -1 };
    const int error = path_resolve(target, &about, path);
    if (error != 0)
        return failed("write to", path, error);
    writer->fd = descriptor_of(target);
    writer->borrowed = writer->fd >= 0;
    if (writer->borrowed)
        return CTRT_OK;
    if (S_ISDIR(about.st_mode))
        return failed("write to", path, EISDIR);
    if (about.st_mode != 0 && !S_ISREG(about.st_mode))
        return open_in_place(writer, target);
    const ctrt_status status = file_writer_open_beside(writer, target, &about);
    if (status != CTRT_OK && writer->folder >= 0)
        close(writer->folder);
    return status;
}

/* ---- writing ---- */

ctrt_status file_writer_write(struct file_writer *writer, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        const ssize_t put = write(writer->fd, at, size);
        if (put > 0) {
            at += put;
            size -= (size_t)put;
        } else if (put < 0 && errno == EAGAIN) {
            struct pollfd ready = { .fd = writer->fd, .events = POLLOUT };
            poll(&ready, 1, -1);
        } else if (put == 0 || errno != EINTR) {
            return failed("write to", writer->path, put == 0 ? ENOSPC : errno);
        }
    }
    return CTRT_OK;
}

/* ---- closing ---- */

/* Waits until the contents are on the disk. Returns 0 or an errno value; 0 also for pipes and file systems that do not
 * support fsync. */
static int sync_to_disk(int fd)
{
    int error;
    do
        error = fsync(fd) != 0 ? errno : 0;
    while (error == EINTR);
    return error == EINVAL || error == ENOTSUP || error == EROFS ? 0 : error;
}

/* Syncs the directory, because a rename is durable only after that. EBADF is ignored: fsync returns it for a directory
 * that was opened with O_PATH. */
static int folder_sync(int fd)
{
    const int error = sync_to_disk(fd);
    return error == EBADF ? 0 : error;
}

ctrt_status file_writer_close(struct file_writer *writer, ctrt_status status)
{
    int error = 0;
    if (status == CTRT_OK && !writer->borrowed && (error = sync_to_disk(writer->fd)) != 0)
        status = failed("sync", writer->path, error);
    if (!writer->borrowed && close(writer->fd) != 0 && errno != EINTR && status == CTRT_OK)
        status = failed("close", writer->path, errno);
    if (writer->folder < 0)
        return status;
    if (status == CTRT_OK && renameat(writer->folder, writer->temporary, writer->folder, writer->name) != 0)
        status = failed("rename the finished file to", writer->path, errno);
    if (status != CTRT_OK)
        unlinkat(writer->folder, writer->temporary, 0);
    else if ((error = folder_sync(writer->folder)) != 0)
        status = failed("sync the folder of", writer->path, error);
    close(writer->folder);
    return status;
}
