/* SPDX-License-Identifier: Apache-2.0 */
/* device/current.h: the guard stack of a thread's current devices and streams. */
#ifndef CORE_DEVICE_CURRENT_H
#define CORE_DEVICE_CURRENT_H

#include <stdbool.h>
#include <stddef.h>

#include "ctrt/stream.h"

/* One entry of the guard stack: the state to restore at pop. */
struct guard {
    ctrt_device *pushed;            /* NULL: the push changed nothing */
    ctrt_device *before;
    ctrt_stream *stream;            /* the stream that was current on `pushed`; NULL: the default stream */
    void (*release)(ctrt_stream **stream);      /* of `stream`; NULL: pushed by ctrt_device_push */
};

/* Makes `device` current (NULL: no change) and pushes a guard with the previous state. *out is valid until the next
 * push. */
ctrt_status device_guard_push(struct guard **out, ctrt_device *device);
/* Returns the innermost guard of this thread; NULL if there is none. */
struct guard *device_guard_top(void);
/* Restores the state saved in `guard`, which must be the innermost one, and removes it. */
void device_guard_pop(struct guard *guard);

/* Returns the thread's buffer for the reason that ctrt_is_available returns, and its size; NULL when out of memory. */
char *device_why_buffer(size_t *bytes);

#endif
