/* SPDX-License-Identifier: Apache-2.0 */
/* base/file_writer.h: replaces a file atomically.
 *
 * A new file and the replacement of a regular file are written under a temporary name in the same directory, synced and
 * renamed. Readers see either the old contents or the new contents, and a failed or interrupted write leaves the old
 * file unchanged. If only the last step fails (the sync of the directory), the new file is in place, but after a system
 * crash the old file may be there again. The new file has the permissions and the access control list of the file that
 * it replaces, and that file's owner and group if the process may set them. Other hard links to the old file keep the
 * old contents. A file without write permission for the process is not replaced.
 *
 * Symbolic links at the end of the path are followed and not replaced. A link of another user in a sticky directory
 * that is writable by all users is refused (EACCES). A file of another type at the path (pipe, terminal, device) is
 * opened and written in place. /dev/stdout, /dev/stderr and /dev/fd/N mean descriptors of this process, which are
 * also written in place. Writing to a pipe without a reader raises SIGPIPE, as write() does; if the program ignores
 * SIGPIPE, the result is CTRT_ERR_IO.
 *
 * Errors: CTRT_ERR_IO. Only one thread may use a writer at a time. Two writers may write the same path; the contents
 * of the writer that is closed last remain. */
#ifndef CORE_BASE_FILE_WRITER_H
#define CORE_BASE_FILE_WRITER_H

#include <limits.h>

#include "ctrt/base.h"

struct file_writer {
    const char *path;                   /* for messages; borrowed from the caller until file_writer_close */
    int folder;                         /* descriptor of the directory of the two files below; -1: written in place */
    char name[PATH_MAX], temporary[NAME_MAX + 1];
    int fd;
    bool borrowed;                      /* the program owns `fd`; file_writer_close does not close it */
};

/* Opens `path` for writing. After success the caller must call file_writer_close. */
ctrt_status file_writer_open(struct file_writer *writer, const char *path);
/* Writes `size` bytes. On error the caller still calls file_writer_close, with the error as `status`. */
ctrt_status file_writer_write(struct file_writer *writer, const void *bytes, size_t size);
/* Closes the writer. If `status` is CTRT_OK, syncs the file and renames it to its final name; otherwise discards the
 * temporary file and returns `status`. */
ctrt_status file_writer_close(struct file_writer *writer, ctrt_status status);

#endif
