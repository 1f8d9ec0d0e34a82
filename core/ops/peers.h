/* SPDX-License-Identifier: Apache-2.0 */
/* ops/peers.h: direct copies between devices (peer access). */
#ifndef CORE_OPS_PEERS_H
#define CORE_OPS_PEERS_H

#include "device/device.h"

/* Returns whether direct copies from the memory of `from` to that of `to` work. Queries the backend and, at the first
 * call, copies a test pattern and reads it back. If the pattern arrives changed, a warning is logged and the result is
 * false permanently. */
bool peers_work(ctrt_device *to, ctrt_device *from);

#endif
