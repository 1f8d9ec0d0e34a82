/* SPDX-License-Identifier: Apache-2.0 */
/* ops/guard.h: runs kernels on copies of their operands next to memory that is not mapped (CTRT_CHECK_GUARD). */
#ifndef CORE_OPS_GUARD_H
#define CORE_OPS_GUARD_H

#include "device/device.h"

/* Whether kernels of the device run guarded: CTRT_CHECK_GUARD is set, and its memory is host memory. Read when a
 * device's dispatch table is built. */
ctrt_status guard_wanted(bool *out, const ctrt_device *device);

/* Copies each operand of the call, from its first to its last element, to the end of a mapping of its own, followed by
 * memory that is not mapped (CTRT_CHECK_GUARD=end), or to the beginning, after such memory (start). Then calls `run` on
 * the copies, and copies the outputs back. A kernel that reads or writes beyond crashes; the debug log, component
 * "guard", has a line for each call with the addresses of its operands. A write into the rest of a mapping is
 * CTRT_ERR_PLUGIN. The workspace is guarded too. Waits for the device before and after the call. */
ctrt_status guard_run(ctrt_call *call, ctrt_device *device, ctrt_status (*run)(ctrt_call *call, ctrt_device *device));

#endif
