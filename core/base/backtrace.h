/* SPDX-License-Identifier: Apache-2.0 */
/* base/backtrace.h: call stacks of allocations: return addresses, with equal stacks stored once.
 *
 * Recording a stack costs about a microsecond; symbols are looked up only when a stack is printed. Needs backtrace(3)
 * of the C library; without it there are no stacks. */
#ifndef CORE_BASE_BACKTRACE_H
#define CORE_BASE_BACKTRACE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define FRAMES_DEPTH  24                    /* innermost calls that are stored */
#define FRAMES_STACKS 65536                 /* most distinct stacks that are stored; later ones are dropped */

struct json;

struct backtrace {
    struct backtrace *next;                 /* in the hash bucket */
    uint32_t number;                        /* from 1 */
    int count;
    void *at[];                             /* return addresses, innermost first */
};

/* True if call stacks must be recorded. */
extern atomic_bool backtrace_wanted;
/* Call before recording is turned on. Loads the library that backtrace(3) needs, which must not happen during an
 * allocation. */
void backtrace_prepare(void);

/* Returns the calling thread's stack, without this function and its caller; valid until the process ends. NULL: not
 * available. */
const struct backtrace *backtrace_here(void);
/* Adds [{"name": "ctrt_add", "filename": "/usr/lib/libctrt.so.0", "line": 0, "offset": 4660}, ...]. `offset` is
 * relative to the file, as addr2line expects; `name` is "" if the file does not export the symbol. */
void backtrace_json(struct json *json, const char *key, const struct backtrace *backtrace);
/* Formats the innermost call from outside the library, "train(step+0x1c)"; "" if there is
 * none. */
void backtrace_place(char *text, size_t bytes, const struct backtrace *backtrace);

#endif
