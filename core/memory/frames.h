/* SPDX-License-Identifier: Apache-2.0 */
/* memory/frames.h: from where memory was taken: return addresses of the calls, each stack kept once.
 *
 * Noting costs a walk over the stack, about a microsecond; names are looked up only when somebody reads. Needs backtrace(3) of the C library;
 * without it there are no stacks. */
#ifndef CORE_MEMORY_FRAMES_H
#define CORE_MEMORY_FRAMES_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define FRAMES_DEPTH  24                    /* innermost calls of a stack */
#define FRAMES_STACKS 65536                 /* different ones; what comes later has none */

struct text;

struct frames {
    struct frames *next;                    /* of its bucket */
    uint32_t number;                        /* from 1 */
    int count;
    void *at[];                             /* return addresses, innermost first */
};

/* Does anybody want them? */
extern atomic_bool frames_wanted;
/* Before they are wanted first: loads what the walk needs, which must not happen in the middle of an allocation. */
void frames_prepare(void);

/* The calling thread's stack, without this function and its caller; valid until the process ends. NULL: there is none to be had. */
const struct frames *frames_here(void);
/* [{"name": "ctrt_add", "filename": "/usr/lib/libctrt.so.0", "line": 0, "offset": 4660}, ...]: offset in the file, as addr2line takes
 * it; the name is "" where the file does not export it. */
void frames_json(struct text *text, const struct frames *frames);

#endif
