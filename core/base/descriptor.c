/* SPDX-License-Identifier: Apache-2.0 */
/* base/descriptor.c: moves descriptors above those of stdin, stdout and stderr. */
#define _GNU_SOURCE                     /* F_DUPFD_CLOEXEC */
#include "base/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static void close_keeping_errno(int fd)
{
    const int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
}

int fd_above_stdio(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close_keeping_errno(fd);
    return moved;
}

int fds_above_stdio(int result, int fds[2])
{
    if (result != 0)
        return result;
    fds[0] = fd_above_stdio(fds[0]);
    fds[1] = fd_above_stdio(fds[1]);
    if (fds[0] >= 0 && fds[1] >= 0)
        return 0;
    close_keeping_errno(fds[0]);
    close_keeping_errno(fds[1]);
    return -1;
}

FILE *fopen_above_stdio(const char *path)
{
    const int fd = fd_above_stdio(open(path, O_RDONLY | O_CLOEXEC));
    FILE *file = fd >= 0 ? fdopen(fd, "re") : NULL;
    if (file == NULL)
        close_keeping_errno(fd);
    return file;
}

DIR *opendir_above_stdio(const char *path)
{
    const int fd = fd_above_stdio(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL)
        close_keeping_errno(fd);
    return folder;
}
