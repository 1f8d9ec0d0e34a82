/* SPDX-License-Identifier: Apache-2.0 */
/* share_check.h: what the kernel says about the memory and the descriptors of this process. Uses tap.h. */
#ifndef CTRT_TESTS_SHARE_CHECK_H
#define CTRT_TESTS_SHARE_CHECK_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "tap.h"

/* The inode of the shared memory at an address, from /proc/self/maps; 0: other memory. NULL: of any address. */
static inline unsigned long inode_of(const void *address)
{
    char line[512];
    unsigned long from, to, inode, found = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && found == 0 && fgets(line, sizeof line, maps) != NULL)
        if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &from, &to, &inode) == 3
            && strstr(line, "/memfd:ctrt-share") != NULL
            && (address == NULL || (from <= (unsigned long)address && (unsigned long)address < to)))
            found = inode;
    if (maps != NULL)
        fclose(maps);
    return found;
}

/* The number of mappings of shared memory. */
static inline int mappings(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "/memfd:ctrt-share") != NULL;
    if (maps != NULL)
        fclose(maps);
    return count;
}

static inline int open_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

#endif
