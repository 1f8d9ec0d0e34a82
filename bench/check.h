/* SPDX-License-Identifier: Apache-2.0 */
/* bench/check.h: ends a program of this folder when a call of the library fails. */
#ifndef BENCH_CHECK_H
#define BENCH_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include <ctrt/base.h>

/* If `status` is an error, prints the error message and ends the program. */
static inline void check(ctrt_status status)
{
    if (status == CTRT_OK)
        return;
    fprintf(stderr, "bench: %s\n", ctrt_error_message());
    exit(1);
}

#endif
