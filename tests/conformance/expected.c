/* SPDX-License-Identifier: Apache-2.0 */
/* expected.c: checks that are known to fail, from a file given with --expect: lines "unsupported PATTERN: REASON" or
 * "fails PATTERN: REASON" with a shell pattern for the check's name ("erf f64 *"); '#' begins a comment.
 *
 * `unsupported` checks do not run and are reported as skipped. `fails` checks run, and one that passes is an error, so
 * that the list stays correct. */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>

#include "suite.h"

struct row {
    enum expectation expectation;
    const char *checks, *reason;
};

static struct row *loaded;
static size_t loaded_count;

enum expectation expected_of(const char *check, const char **reason)
{
    for (size_t k = 0; k < loaded_count; k++)
        if (fnmatch(loaded[k].checks, check, 0) == 0) {
            *reason = loaded[k].reason;
            return loaded[k].expectation;
        }
    return EXPECT_PASS;
}

/* Reads one line of the file; returns false if it is malformed or memory runs out. */
static bool load_line(char *line)
{
    line[strcspn(line, "#\n")] = '\0';
    line += strspn(line, " \t");
    if (*line == '\0')
        return true;
    const bool unsupported = !strncmp(line, "unsupported ", 12);
    char *colon = strchr(line, ':');
    if (colon == NULL || (!unsupported && strncmp(line, "fails ", 6) != 0))
        return false;
    *colon++ = '\0';
    const char *checks = line + (unsupported ? 12 : 6), *reason = colon + strspn(colon, " \t");
    struct row *more = realloc(loaded, (loaded_count + 1) * sizeof *more);
    if (more != NULL)
        loaded = more;
    if (*checks == '\0' || *reason == '\0' || more == NULL || (checks = strdup(checks)) == NULL
        || (reason = strdup(reason)) == NULL)
        return false;
    loaded[loaded_count++] = (struct row){ unsupported ? EXPECT_UNSUPPORTED : EXPECT_FAILURE, checks, reason };
    return true;
}

bool expected_load(const char *path)
{
    FILE *in = fopen(path, "r");
    if (in == NULL) {
        fprintf(stderr, "conformance: cannot read %s: %s\n", path, strerror(errno));
        return false;
    }
    char line[1024];
    bool fine = true;
    for (int number = 1; fine && fgets(line, sizeof line, in) != NULL; number++)
        if (!(fine = load_line(line)))
            fprintf(stderr,
                    "conformance: %s:%d: expected 'unsupported PATTERN: REASON' or 'fails PATTERN: REASON'\n",
                    path, number);
    fclose(in);
    return fine;
}
