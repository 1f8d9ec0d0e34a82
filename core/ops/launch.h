/* SPDX-License-Identifier: Apache-2.0 */
/* ops/launch.h: enqueues kernels, copies and fills on the thread's current stream of an asynchronous device.
 *
 * Each function makes the stream wait for conflicting accesses to the operands on other streams, enqueues the work and
 * records its accesses. Errors of work already enqueued may be reported later, by launch_finish. */
#ifndef CORE_OPS_LAUNCH_H
#define CORE_OPS_LAUNCH_H

#include "memory/hazard.h"
#include "tensor/tensor.h"

/* A copy of `bytes` bytes by the device, from `from` to `to`. The copied range begins `before` bytes before element 0
 * of both views. */
struct launch_copy {
    const ctrt_view *to, *from;
    size_t before, bytes;
    enum ctrt_copy_kind kind;
    ctrt_device *from_device;               /* for copies between devices: the device of `from`; else NULL */
    bool wait;                              /* return when the copy is done */
};

/* How work is enqueued: launch_direct (upcalls.h), or, during a dry run, functions that only count the memory
 * (dryrun/kernels.c). */
struct launch_ops {
    ctrt_status (*kernel)(ctrt_call *call, ctrt_device *device);
    ctrt_status (*copy)(const struct launch_copy *copy, ctrt_device *device);
    ctrt_status (*fill)(const ctrt_view *to, ctrt_device *device, int byte, size_t bytes);
};

/* Enqueues the kernel call->kernel on an asynchronous device. Sets the queue and the sequence number in *call. */
static inline ctrt_status launch_kernel(ctrt_call *call, ctrt_device *device)
{
    return device->launch->kernel(call, device);
}

/* Enqueues a copy on `device`; for copies between devices that is the device of `to`. A synchronous device copies
 * before the call returns. */
static inline ctrt_status launch_copy(const struct launch_copy *copy, ctrt_device *device)
{
    return device->launch->copy(copy, device);
}

/* Enqueues a fill of `bytes` bytes, beginning at element 0 of `to`, with the value `byte`. A synchronous device fills
 * before the call returns. */
static inline ctrt_status launch_fill(const ctrt_view *to, ctrt_device *device, int byte, size_t bytes)
{
    return device->launch->fill(to, device, byte, bytes);
}

/* Waits for the thread's current stream of `device`. Returns the stream's error. */
ctrt_status launch_finish(ctrt_device *device);

#endif
