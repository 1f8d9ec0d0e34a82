/* SPDX-License-Identifier: Apache-2.0 */
/* ops/peers.h: which devices can copy from one another. */
#ifndef CORE_OPS_PEERS_H
#define CORE_OPS_PEERS_H

#include "device/device.h"

/* Does copying straight from one device's memory to the other's work? Asked of the backend, and tried with a pattern that is read back
 * the first time: a link that delivers something else is never used, and told in the log. */
bool peers_work(ctrt_device *to, ctrt_device *from);

#endif
