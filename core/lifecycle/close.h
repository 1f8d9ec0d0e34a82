/* SPDX-License-Identifier: Apache-2.0 */
/* lifecycle/close.h: closing a device, and opening it again. */
#ifndef CORE_LIFECYCLE_CLOSE_H
#define CORE_LIFECYCLE_CLOSE_H

#include "device/device.h"

/* Closes a device. Requires that it has no pending work, no memory in use and no handles except its own.
 * ctrt_device_get opens it again. */
void device_close(ctrt_device *device);
/* Opens a closed device again, in the same struct. Requires the device lock. */
ctrt_status device_reopen(ctrt_device *device);

#endif
