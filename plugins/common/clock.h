/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/common/clock.h: clocks in nanoseconds. */
#ifndef CTRT_PLUGINS_COMMON_CLOCK_H
#define CTRT_PLUGINS_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

#endif
