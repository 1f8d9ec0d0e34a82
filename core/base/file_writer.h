/* SPDX-License-Identifier: Apache-2.0 */
/* base/file_writer.h: writes one file as a whole.
 *
 * A regular file, or a new one, is written under a temporary name in the same folder, synced and renamed: readers see
 * the old contents or the new ones, and a failed or interrupted write leaves the old file. If only the last step fails,
 * syncing the folder, the new file is in place, but a crash of the system may bring the old one back. The new file keeps
 * the permissions and access control list of the file that it replaces, and its owner and group as far as the process
 * may set them. Its other hard links keep the old contents. A file that the process may not write is not replaced.
 *
 * Symbolic links at the end of the path are followed and stay, except a link of another user in a folder with the
 * sticky bit that everybody may write to (EACCES). Anything else that exists at the path (a pipe, a terminal, a device)
 * is opened and written to in place, and so are /dev/stdout, /dev/stderr and /dev/fd/N, which mean descriptors of this
 * process. A pipe whose reader has gone raises SIGPIPE, as with write(); where the program ignores SIGPIPE, it is
 * CTRT_ERR_IO.
 *
 * Errors: CTRT_ERR_IO. One thread uses a writer at a time; two writers may write the same path,
 * and the last one to close wins. */
#ifndef CORE_BASE_FILE_WRITER_H
#define CORE_BASE_FILE_WRITER_H

#include <limits.h>

#include "ctrt/base.h"

struct file_writer {
    const char *path;                   /* the caller's, for messages; must live until file_writer_close */
    int folder;                         /* of the two files below; -1: written in place */
    char name[PATH_MAX], temporary[NAME_MAX + 1];
    int fd;
    bool borrowed;                      /* fd is a descriptor of the process, which stays open */
};

/* On success file_writer_close is due. */
ctrt_status file_writer_open(struct file_writer *writer, const char *path);
ctrt_status file_writer_write(struct file_writer *writer, const void *bytes, size_t size);
/* Ends the writing. With `status` CTRT_OK the file is synced and put in place; otherwise it is discarded and `status`
 * returned. */
ctrt_status file_writer_close(struct file_writer *writer, ctrt_status status);

#endif
