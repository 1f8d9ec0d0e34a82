/* SPDX-License-Identifier: Apache-2.0 */
/* device/close.h: closing a device; used by memory/shutdown.c. */
#ifndef CORE_DEVICE_CLOSE_H
#define CORE_DEVICE_CLOSE_H

#include "device/device.h"

/* Closes a device. Requires that it has no pending work, no memory in use and no handles except its own.
 * ctrt_device_get opens it again. */
void device_close(ctrt_device *device);

#endif
