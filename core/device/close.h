/* SPDX-License-Identifier: Apache-2.0 */
/* device/close.h: closing a device; used by memory/release.c. */
#ifndef CORE_DEVICE_CLOSE_H
#define CORE_DEVICE_CLOSE_H

#include "device/device.h"

/* Number of the device's streams that are held by the program or by other threads. */
uint32_t stream_device_held(ctrt_device *device);
/* Closes a device. Requires that it has no pending work, no memory in use and no handles but its own. ctrt_device_get
 * opens it again. */
void device_close(ctrt_device *device);

#endif
