/* SPDX-License-Identifier: Apache-2.0 */
/* file_tree.h: creates recorded files of /proc, /sys and /dev in a temporary folder, `tree`. */
#ifndef CTRT_TESTS_FILE_TREE_H
#define CTRT_TESTS_FILE_TREE_H

#include <stdbool.h>

#include "folder.h"

struct file {
    const char *path, *text;                    /* text NULL: a folder; "-> x": a symbolic link to x */
    int mode;                                   /* 0: 0666 */
};

static const char *tree;                        /* set to folder_new() */

/* Replaces the tree by these files, up to one without a path; NULL: by none. */
static void make_tree(const struct file *files)
{
    char path[1024];
    snprintf(path, sizeof path, "rm -rf %s/* %s/.dockerenv", tree, tree);
    if (system(path) != 0)
        exit(99);
    for (; files != NULL && files->path != NULL; files++) {
        snprintf(path, sizeof path, "%s%s", tree, files->path);
        for (char *slash = path + strlen(tree) + 1; (slash = strchr(slash, '/')) != NULL; *slash++ = '/') {
            *slash = '\0';
            (void)mkdir(path, 0755);
        }
        const bool link = files->text != NULL && strncmp(files->text, "-> ", 3) == 0;
        if (link || files->text == NULL) {
            if ((link ? symlink(files->text + 3, path) : mkdir(path, 0755)) != 0 && link)
                exit(99);
            continue;
        }
        FILE *out = fopen(path, "w");
        if (out == NULL)
            exit(99);
        fputs(files->text, out);
        fclose(out);
        chmod(path, files->mode != 0 ? (mode_t)files->mode : 0666);
    }
}

#endif
