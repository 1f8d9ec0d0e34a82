/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: a program that uses most of the library, in parts, for tests with failures, limits and cancellation. */
#ifndef CTRT_TESTS_WORK_H
#define CTRT_TESTS_WORK_H

#include "ctrt/ctrt.h"

/* One part. `run` computes *result, the same in every run, and releases all its objects. It may write files into
 * `folder`. */
struct work_part {
    const char *name;
    ctrt_status (*run)(double *result, const char *folder);
    bool listing;                       /* the result is the length of a list, which failures may shorten */
};

extern const struct work_part work_parts[];
/* Removes the files that the parts have written. */
void work_clean(const char *folder);
enum { WORK_PARTS = 9 };

#endif
