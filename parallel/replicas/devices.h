/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/replicas/devices.h: checks of lists of devices, and copies of many tensors to another device. */
#ifndef PARALLEL_DEVICES_H
#define PARALLEL_DEVICES_H

#include "base/host_alloc.h"
#include "base/thread.h"
#include "ctrt/parallel.h"
#include "stream/stream.h"

/* Orders streams automatically until the end of the block, also with CTRT_STREAM_ORDER=manual: the program cannot put
 * its waits between the copies that a function makes on several devices. */
#define STREAMS_ORDERED \
    __attribute__((cleanup(streams_ordered_leave), unused)) const bool streams_ordered_before = streams_ordered_enter()
static inline bool streams_ordered_enter(void)
{
    const bool before = thread_state.order_auto;
    thread_state.order_auto = true;
    return before;
}
static inline void streams_ordered_leave(const bool *before)
{
    thread_state.order_auto = *before;
}

/* Returns CTRT_ERR_INVALID_ARGUMENT if n < 1 or a device is NULL: "replicate: devices[1] is NULL". */
static inline ctrt_status devices_check(const char *who, ctrt_device *const *devices, int n)
{
    if (n < 1)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: n is %d, expected at least 1", who, n);
    if (devices == NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: devices is NULL", who);
    for (int i = 0; i < n; i++)
        if (devices[i] == NULL)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: devices[%d] is NULL", who, i);
    return CTRT_OK;
}

/* Makes later work of the calling thread on `source` wait for the copies that read its memory and run on the current
 * stream of `destination`, as PyTorch's copies do. With automatic ordering, work that writes the memory waits
 * anyway. */
static inline ctrt_status streams_join(ctrt_device *source, ctrt_device *destination)
{
    if (stream_order_mode == ORDER_AUTO || device_home(source) == device_home(destination)
        || !device_asynchronous(source) || !device_asynchronous(destination))
        return CTRT_OK;
    return stream_wait_for(stream_here(source), stream_here(destination));
}

/* coalesce.c: copies tensors[count] of one device to devices[n] and writes the copy of tensor t on device i to out[i
 * * count + t]. All out are NULL on entry; on failure some are set. The copies are not recorded. Contiguous tensors
 * of one dtype are copied to other devices in groups of up to 10 MiB; each copy has its own version counter
 * nevertheless. */
ctrt_status coalesced_copy(ctrt_tensor **out, ctrt_tensor *const *tensors, size_t count, ctrt_device *const *devices,
                           int n);

/* coalesce.c: moves the gradients grads[count], of which some may be NULL, to `device` in such groups: releases and
 * replaces those that are on other devices. Recorded in grad mode. */
ctrt_status coalesced_move(ctrt_tensor **grads, size_t count, ctrt_device *device);

#endif
