/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/common/file.h: reads files of unknown size, such as those of /proc. */
#ifndef CTRT_PLUGINS_COMMON_FILE_H
#define CTRT_PLUGINS_COMMON_FILE_H

#include <errno.h>
#include <stddef.h>
#include <unistd.h>

/* Reads to the end of the file, at most `bytes` - 1 bytes, and appends a 0. Returns the number of bytes; 0 if `fd` is
 * negative. */
static inline size_t file_read(int fd, char *text, size_t bytes)
{
    size_t used = 0;
    ssize_t got = fd < 0 ? 0 : 1;
    while (used < bytes - 1 && (got > 0 || (got < 0 && errno == EINTR))) {
        got = read(fd, text + used, bytes - 1 - used);
        used += got > 0 ? (size_t)got : 0;
    }
    text[used] = '\0';
    return used;
}

#endif
