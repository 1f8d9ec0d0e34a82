/* SPDX-License-Identifier: Apache-2.0 */
/* junit.h: writes the results of checks as JUnit XML, the format that CI systems read. Not thread-safe. */
#ifndef CONFORMANCE_JUNIT_H
#define CONFORMANCE_JUNIT_H

#include <stdbool.h>
#include <stdio.h>

enum junit_outcome { JUNIT_PASSED, JUNIT_FAILED, JUNIT_SKIPPED, JUNIT_OUTCOMES };

struct junit {                  /* all 0: results are not recorded, and the functions do nothing */
    const char *path;
    FILE *file, *cases;         /* the file, and the cases so far */
    char *text;                 /* of `cases` */
    size_t length;
    int count[JUNIT_OUTCOMES];
    double begun, last;         /* when the file was opened, and when the last case ended, in seconds */
};

/* Creates the file `path`; NULL: records nothing. Returns false after a message on stderr if that is not possible. */
bool junit_open(struct junit *junit, const char *path);

/* Adds a case whose time is that since the last one. `group` is its class, for example "ctrt.sim.reduce". `text` is why
 * it failed or was skipped; its first line is the message. Bytes that XML cannot contain are replaced by U+FFFD. */
void junit_case(struct junit *junit, const char *group, const char *name, enum junit_outcome outcome, const char *text);

/* Writes the file and closes it. Returns false after a message on stderr if that failed. */
bool junit_close(struct junit *junit, const char *suite);

#endif
