/* SPDX-License-Identifier: Apache-2.0 */
/* registry/trust.c: may this file's code run in this process?
 *
 * Who runs as root, or with rights that the caller lacks (setuid, setgid, capabilities), opens a plugin only
 * when nobody but root and the user can have put it there: the file and its folder belong to root or the
 * user, and neither others nor a foreign group can write to them. Everybody else may open what they can read:
 * they could as well run it. */
#include "registry/internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

bool trust_needed(void)
{
    return geteuid() == 0 || getauxval(AT_SECURE) != 0;
}

static bool judge_one(const char *path, const char *what, uid_t user, gid_t group, char *reason, size_t bytes)
{
    struct stat facts;
    if (stat(path, &facts) != 0) {
        snprintf(reason, bytes, "%s %s: %s", what, path, strerror(errno));
        return false;
    }
    if (facts.st_uid != 0 && facts.st_uid != user) {
        snprintf(reason, bytes, "%s %s belongs to user %u, neither root nor the user who runs this (%u)",
                 what, path, (unsigned)facts.st_uid, (unsigned)user);
        return false;
    }
    if (facts.st_mode & S_IWOTH) {
        snprintf(reason, bytes, "%s %s can be written by everybody (mode %03o)", what, path,
                 (unsigned)(facts.st_mode & 07777));
        return false;
    }
    if ((facts.st_mode & S_IWGRP) && facts.st_gid != 0 && facts.st_gid != group) {
        snprintf(reason, bytes, "%s %s can be written by group %u (mode %03o)", what, path,
                 (unsigned)facts.st_gid, (unsigned)(facts.st_mode & 07777));
        return false;
    }
    return true;
}

/* The folder that `path` stands in, of a path that has a '/'. */
static bool judge_folder(const char *path, uid_t user, gid_t group, char *reason, size_t bytes)
{
    char folder[PATH_MAX];
    size_t length = (size_t)(strrchr(path, '/') - path);
    if (length >= sizeof folder)
        return false;
    memcpy(folder, path, length);
    folder[length] = '\0';
    return judge_one(length > 0 ? folder : "/", "folder", user, group, reason, bytes);
}

bool trust_judge(const char *path, bool strict, uid_t user, gid_t group, char *reason, size_t bytes)
{
    if (!strict)
        return true;
    char real[PATH_MAX];
    if (realpath(path, real) == NULL) {
        snprintf(reason, bytes, "file %s: %s", path, strerror(errno));
        return false;
    }
    /* A link leads elsewhere: both folders matter. */
    return judge_one(real, "file", user, group, reason, bytes) && judge_folder(real, user, group, reason, bytes)
        && judge_folder(path, user, group, reason, bytes);
}
