/* SPDX-License-Identifier: Apache-2.0 */
/* conformance.h: runs the conformance suite on a device.
 *
 * Every op of ctrt/ops.h against a reference in float64 and int64, for every dtype and layout; derivatives
 * against finite differences. Stands on the public API alone, so it judges any backend that a plugin brings.
 * Prints TAP. */
#ifndef CTRT_CONFORMANCE_H
#define CTRT_CONFORMANCE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct conformance_options {
    const char *device;             /* "cpu", "sim:0"; NULL: cpu */
    const char *op;                 /* only ops that match this shell pattern; NULL: all */
    const char *tags;               /* only checks with one of these words, separated by ','; NULL: all */
    const char *skip_tags;          /* none of the checks with one of these words */
    const char *expect_file;        /* more exceptions, in the format that expected.c tells; NULL: none */
    uint64_t seed;                  /* of the inputs */
    bool list;                      /* print what would be checked, check nothing */
    FILE *out;                      /* NULL: stdout */
};

struct conformance_result {
    int passed, failed, skipped, expected;      /* expected: failures that were foreseen, with their reason */
};

/* Runs the suite. 0: nothing failed; 1: something did; 2: it could not begin (told on stderr). `result` may be
 * NULL. */
int conformance_run(const struct conformance_options *options, struct conformance_result *result);

#endif
