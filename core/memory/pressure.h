/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pressure.h: frees cached host memory when the kernel reports memory pressure.
 *
 * Enabled by CTRT_MEMORY_PRESSURE. One thread waits in poll for the kernel's pressure stall information. On an event it
 * empties the caches of open devices whose memory is host memory, and the caches of memory pinned for other devices.
 * Off by default, because a library should not start a thread that the program does not expect, and because a cache in
 * use is refilled immediately, at the cost of page faults. */
#ifndef CORE_MEMORY_PRESSURE_H
#define CORE_MEMORY_PRESSURE_H

#include <stdatomic.h>

#include "ctrt/base.h"

/* Called when a device with host memory opens. Starts the watcher thread if it is enabled and not running. Returns an
 * error only for a malformed parameter. If nothing can be watched, that is logged once, at level info. */
ctrt_status pressure_start(void);

/* Stops the watcher thread and joins it. Called at exit and before the library is unloaded. */
void pressure_stop(void);

/* The child of a fork has no watcher thread. It starts one when it first allocates memory from a device. */
extern _Atomic bool pressure_lost;
void pressure_restart(void);
static inline void pressure_follow_fork(void)
{
    if (__builtin_expect(atomic_load_explicit(&pressure_lost, memory_order_relaxed), 0))
        pressure_restart();
}

/* For tests: number of times that the watcher emptied the caches. */
uint64_t pressure_trims(void);

/* The parsed parameter: whether to watch, and the trigger to write to the kernel. pressure_parse has no side
 * effects. */
struct pressure_options {
    bool watch;
    char trigger[48];                       /* "some 150000 2000000" */
};
ctrt_status pressure_parse(struct pressure_options *options, const char *text);

#endif
