/* SPDX-License-Identifier: Apache-2.0 */
/* conformance.h: runs the conformance suite on a device.
 *
 * Compares every op of ctrt/ops.h with a reference in float64 and int64, for every dtype and layout, and derivatives
 * with finite differences. Uses only the public API, so it can check the backend of any plugin. Prints TAP. */
#ifndef CTRT_CONFORMANCE_H
#define CTRT_CONFORMANCE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct conformance_options {
    const char *device;             /* "cpu", "sim:0"; NULL: cpu */
    const char *file;               /* the plugin that was named instead of the device; NULL: none */
    const char *op;                 /* only ops that match this shell pattern; NULL: all */
    const char *tags;               /* only checks with one of these words, separated by ','; NULL: all */
    const char *skip_tags;          /* no checks with one of these words; NULL: all */
    const char *expect_file;        /* more known failures, in the format of expected.c; NULL: none */
    uint64_t seed;                  /* of the random inputs */
    bool list;                      /* print the names of the checks, run none */
    double seconds;                 /* time limit of a check; more than 0 */
    bool fail_fast;                 /* run no check after one that failed */
    FILE *out;                      /* NULL: stdout */
    const char *junit;              /* a file for the results as JUnit XML as well; NULL: none */
    struct guard_progress *progress;        /* guard.h: continues there, and writes how far it comes; NULL: none */
};

struct conformance_result {
    int passed, failed, skipped, expected;      /* expected: known failures, which are not in `failed` */
};

/* Runs the suite. Returns 0 if nothing failed; 1 if a check failed, or none ran a kernel of the device; 2 if the suite
 * could not start (reported on stderr). `result` may be NULL. */
int conformance_run(const struct conformance_options *options, struct conformance_result *result);

#endif
