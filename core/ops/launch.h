/* SPDX-License-Identifier: Apache-2.0 */
/* ops/launch.h: putting work on the thread's current stream: in order, noted, and with errors where they belong. */
#ifndef CORE_OPS_LAUNCH_H
#define CORE_OPS_LAUNCH_H

#include "memory/order.h"
#include "tensor/tensor.h"

/* Runs a row on an asynchronous device: waits for what other streams do to the operands, enqueues, notes the uses. */
ctrt_status launch_row(const ctrt_kernel *row, ctrt_call *call, ctrt_device *device);

/* `bytes` that the device copies itself, from what one view shows to what another shows, beginning `before` bytes in front of element 0
 * of both. */
struct launch_copy {
    const ctrt_view *to, *from;
    size_t before, bytes;
    enum ctrt_copy_kind kind;
    ctrt_device *from_device;               /* for copies between devices: where `from` is; else NULL */
};
ctrt_status launch_copy(const struct launch_copy *copy, ctrt_device *device);
ctrt_status launch_fill(const ctrt_view *to, ctrt_device *device, int byte, size_t bytes);

/* The host needs what the thread's current stream of `device` was given: waits, and returns the stream's error. */
ctrt_status launch_finish(ctrt_device *device);

#endif
