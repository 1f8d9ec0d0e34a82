/* SPDX-License-Identifier: Apache-2.0 */
/* ops/launch.h: enqueues kernels, copies and fills on the thread's current stream of an asynchronous device.
 *
 * Each function makes the stream wait for conflicting accesses to the operands on other streams, enqueues the work and
 * records its accesses. Errors of work already enqueued may be reported later, by launch_finish. */
#ifndef CORE_OPS_LAUNCH_H
#define CORE_OPS_LAUNCH_H

#include "memory/order.h"
#include "tensor/tensor.h"

/* Enqueues the kernel call->kernel. Sets the queue and the sequence number in *call. */
ctrt_status launch_kernel(ctrt_call *call, ctrt_device *device);

/* A copy of `bytes` bytes by the device, from `from` to `to`. The copied range begins `before` bytes before element 0
 * of both views. */
struct launch_copy {
    const ctrt_view *to, *from;
    size_t before, bytes;
    enum ctrt_copy_kind kind;
    ctrt_device *from_device;               /* for copies between devices: the device of `from`; else NULL */
};
/* Enqueues a copy on `device`; for copies between devices that is the device of `to`. */
ctrt_status launch_copy(const struct launch_copy *copy, ctrt_device *device);
/* Enqueues a fill of `bytes` bytes, from element 0 of `to` on, with the value `byte`. */
ctrt_status launch_fill(const ctrt_view *to, ctrt_device *device, int byte, size_t bytes);

/* Waits for the thread's current stream of `device`. Returns the stream's error. */
ctrt_status launch_finish(ctrt_device *device);

#endif
