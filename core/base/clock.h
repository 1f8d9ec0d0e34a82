/* SPDX-License-Identifier: Apache-2.0 */
/* base/clock.h: points in time for time limits and durations. */
#ifndef CORE_BASE_CLOCK_H
#define CORE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Seconds of CLOCK_MONOTONIC. */
static inline double seconds_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Nanoseconds of CLOCK_MONOTONIC, `seconds` from now. */
static inline int64_t clock_after(double seconds)
{
    return clock_now(CLOCK_MONOTONIC) + (int64_t)(seconds * 1e9);
}

#endif
