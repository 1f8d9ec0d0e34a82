/* SPDX-License-Identifier: Apache-2.0 */
/* device/close.h: for memory/release.c: a device goes back to its backend. */
#ifndef CORE_DEVICE_CLOSE_H
#define CORE_DEVICE_CLOSE_H

#include "device/device.h"

/* Streams that the program, or a thread other than this one, holds. */
uint32_t stream_device_held(ctrt_device *device);
/* Closes a device that has no work, no memory in use and no handles but its own. ctrt_device_get opens it again. */
void device_close(ctrt_device *device);

#endif
