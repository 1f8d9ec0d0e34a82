/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: a program that uses most of the library, in parts, for tests that disturb it. */
#ifndef CTRT_TESTS_WORK_H
#define CTRT_TESTS_WORK_H

#include "ctrt/ctrt.h"

/* One part: opens what it needs, computes *result, releases everything. The result does not change from run to run. `folder` may be
 * written to. */
struct work_part {
    const char *name;
    ctrt_status (*run)(double *result, const char *folder);
    bool listing;                       /* the result is a list's length, which failures may make shorter */
};

extern const struct work_part work_parts[];
/* Removes the files that the parts have written. */
void work_clean(const char *folder);
enum { WORK_PARTS = 9 };

#endif
