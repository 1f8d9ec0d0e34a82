/* SPDX-License-Identifier: Apache-2.0 */
/* device/current.h: what a thread keeps about devices. */
#ifndef CORE_DEVICE_CURRENT_H
#define CORE_DEVICE_CURRENT_H

#include <stdbool.h>
#include <stddef.h>

#include "ctrt/stream.h"

/* What a push found: the device that was current for that type (NULL: none was chosen), and the stream that was current on it. */
struct guard {
    ctrt_device *pushed;            /* NULL: the push changed nothing */
    ctrt_device *before;
    bool of_stream;                 /* ctrt_stream_push, else ctrt_device_push */
    ctrt_stream *stream;            /* NULL: the default one */
};

/* Makes `device` current (NULL: nothing) and remembers what was in *out, which lives until the next push. */
ctrt_status device_guard_push(struct guard **out, ctrt_device *device);
/* The innermost guard of this thread; NULL: none. */
struct guard *device_guard_top(void);
/* Restores what the innermost guard, `guard`, remembers. */
void device_guard_pop(struct guard *guard);

/* The thread's room for a reason that ctrt_is_available hands out; NULL when memory is out. */
char *device_why_buffer(size_t *bytes);

#endif
