/* SPDX-License-Identifier: Apache-2.0 */
/* device/current.h: what a thread keeps about devices. */
#ifndef CORE_DEVICE_CURRENT_H
#define CORE_DEVICE_CURRENT_H

#include <stddef.h>

/* The thread's room for a reason that ctrt_is_available hands out; NULL when memory is out. */
char *device_why_buffer(size_t *bytes);

#endif
