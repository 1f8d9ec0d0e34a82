/* SPDX-License-Identifier: Apache-2.0 */
/* expected.c: the list of checks that are known to fail, per device type, with reasons.
 *
 * A row has a device type, a shell pattern for the check's name ("erf f64 *") and the reason. `unsupported` checks do
 * not run and are reported as skipped. `fails` checks run, and one that passes is an error, so that this list stays
 * correct. A file given with --expect adds rows: lines "unsupported PATTERN: REASON" or "fails PATTERN: REASON"; '#'
 * begins a comment. */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>

#include "suite.h"

struct row {
    const char *device;                 /* a device type; "*": any */
    enum expectation expectation;
    const char *checks, *reason;
};

static const struct row rows[] = {
    { "", EXPECT_PASS, "", "" },        /* matches no device; there are no known failures */
};

static struct row *loaded;
static size_t loaded_count;

static bool matches(const struct row *row, const char *device, const char *check)
{
    return (!strcmp(row->device, "*") || !strcmp(row->device, device)) && fnmatch(row->checks, check, 0) == 0;
}

enum expectation expected_of(const char *device, const char *check, const char **reason)
{
    for (size_t k = 0; k < loaded_count; k++)
        if (matches(&loaded[k], device, check)) {
            *reason = loaded[k].reason;
            return loaded[k].expectation;
        }
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
        if (matches(&rows[k], device, check)) {
            *reason = rows[k].reason;
            return rows[k].expectation;
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
    enum expectation expectation;
    if (!strncmp(line, "unsupported ", 12)) {
        expectation = EXPECT_UNSUPPORTED;
        line += 12;
    } else if (!strncmp(line, "fails ", 6)) {
        expectation = EXPECT_FAILURE;
        line += 6;
    } else {
        return false;
    }
    char *colon = strchr(line, ':');
    if (colon == NULL || colon == line || colon[1 + strspn(colon + 1, " \t")] == '\0')
        return false;
    *colon = '\0';
    struct row *more = realloc(loaded, (loaded_count + 1) * sizeof *more);
    char *checks = strdup(line), *reason = strdup(colon + 1 + strspn(colon + 1, " \t"));
    if (more != NULL)
        loaded = more;
    if (more == NULL || checks == NULL || reason == NULL) {
        free(checks);
        free(reason);
        return false;
    }
    loaded[loaded_count++] = (struct row){ "*", expectation, checks, reason };
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
