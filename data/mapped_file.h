/* SPDX-License-Identifier: Apache-2.0 */
/* data/mapped_file.h: files that are mapped into memory for reading. */
#ifndef DATA_MAPPED_FILE_H
#define DATA_MAPPED_FILE_H

#include "ctrt/base.h"

struct mapped_file {
    char *path;                         /* a copy, for messages */
    const unsigned char *bytes;         /* NULL for an empty file */
    size_t size;
    int fd;
};

/* Maps the file. After success the caller calls mapped_file_close. CTRT_ERR_IO: not a regular file, or not readable;
 * the message begins with the path. */
ctrt_status mapped_file_open(struct mapped_file *out, const char *path);
/* Fails with CTRT_ERR_IO if the file has become shorter. Access to a mapped page after the end of the file raises
 * SIGBUS; therefore a dataset calls this before it reads a sample. */
ctrt_status mapped_file_check(const struct mapped_file *file);
/* Unmaps the file. No effect on a struct whose bytes are all 0. */
void mapped_file_close(struct mapped_file *file);

#endif
