/* SPDX-License-Identifier: Apache-2.0 */
/* base/descriptor.h: descriptors of the library are never 0, 1 or 2.
 *
 * A program that was started with one of them closed gets it from the next open(), and a line that anybody writes to
 * stderr would then go to the library's file or socket. Every descriptor that the library creates or receives is passed
 * through one of these functions at once; plugins call the first one through the host table. They keep O_CLOEXEC and
 * errno, and are thread-safe. */
#ifndef CORE_BASE_DESCRIPTOR_H
#define CORE_BASE_DESCRIPTOR_H

#include <dirent.h>
#include <stdio.h>

/* Returns `fd` if it is above 2 or negative. Otherwise closes it and returns a duplicate above 2 with FD_CLOEXEC, or -1
 * with errno. */
int fd_above_stdio(int fd);
/* The same for both descriptors of pipe2() or socketpair(), whose result is `result`. Returns 0, or -1 with errno and
 * both closed. */
int fds_above_stdio(int result, int fds[2]);
/* Like fopen(path, "re") and opendir(path). */
FILE *fopen_above_stdio(const char *path);
DIR *opendir_above_stdio(const char *path);

#endif
