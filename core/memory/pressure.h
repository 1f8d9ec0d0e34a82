/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pressure.h: gives cached host memory back when the kernel says that memory is short.
 *
 * CTRT_MEMORY_PRESSURE asks for it. One thread then sleeps in poll on the kernel's pressure stall information and, woken,
 * empties the caches of the open devices whose memory is the host's, and those of memory pinned for others. Off unless asked for: a library should not start a
 * thread that nobody expects, and a cache that is in use anyway comes back at once, at the price of its page faults. */
#ifndef CORE_MEMORY_PRESSURE_H
#define CORE_MEMORY_PRESSURE_H

#include <stdatomic.h>

#include "ctrt/base.h"

/* Called when a device of host memory opens. Starts the watcher where it is wanted and does not run; an error only for a
 * malformed parameter. Where there is nothing to watch that is logged once, at level info. */
ctrt_status pressure_start(void);

/* Ends the watcher and waits for it. Done at exit and before the library is unloaded. */
void pressure_stop(void);

/* The child of a fork has no watcher. It gets one when it first draws memory from a device: */
extern _Atomic bool pressure_lost;
void pressure_restart(void);
static inline void pressure_follow_fork(void)
{
    if (__builtin_expect(atomic_load_explicit(&pressure_lost, memory_order_relaxed), 0))
        pressure_restart();
}

/* For tests: how often the watcher emptied the caches. */
uint64_t pressure_trims(void);

/* What the parameter's text means: whether to watch, and the words for the kernel. Pure. */
struct pressure_wish {
    bool watch;
    char trigger[48];                       /* "some 150000 2000000" */
};
ctrt_status pressure_parse(struct pressure_wish *wish, const char *text);

#endif
