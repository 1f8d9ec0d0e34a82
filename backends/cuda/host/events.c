/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/events.c: events, on top of the driver's events. */
#include "cuda.h"

ctrt_status cuda_event_create(void *handle, void **out, bool timing)
{
    struct cuda_device *device = handle;
    cu_event event = NULL;
    CTRT_TRY(cuda_enter(device));
    CTRT_TRY(cuda_check(device, cuda_driver.event_create(&event, timing ? 0 : CU_EVENT_DISABLE_TIMING),
                        "creating an event"));
    *out = event;
    return CTRT_OK;
}

/* The event may still be in use: cuEventDestroy defers the release until the event has completed. */
void cuda_event_destroy(void *handle, void *event)
{
    struct cuda_device *device = handle;
    if (event != NULL && !cuda_forked(device) && cuda_driver.context_set(device->context) == CU_OK)
        (void)cuda_driver.event_destroy(event);
}

ctrt_status cuda_event_record(void *handle, void *event, void *queue)
{
    struct cuda_device *device = handle;
    CTRT_TRY(cuda_enter(device));
    return cuda_check(device, cuda_driver.event_record(event, cuda_queue_of(device, queue)->stream),
                      "recording an event");
}

ctrt_status cuda_wait_event(void *handle, void *queue, void *event)
{
    struct cuda_device *device = handle;
    CTRT_TRY(cuda_enter(device));
    return cuda_check(device, cuda_driver.stream_wait(cuda_queue_of(device, queue)->stream, event, 0),
                      "waiting for an event");
}

ctrt_status cuda_event_query(void *handle, void *event, bool *done)
{
    struct cuda_device *device = handle;
    CTRT_TRY(cuda_enter(device));
    const cu_result result = cuda_driver.event_query(event);
    *done = result != CU_NOT_READY;
    return result == CU_NOT_READY ? CTRT_OK : cuda_check(device, result, "querying an event");
}

ctrt_status cuda_event_synchronize(void *handle, void *event)
{
    struct cuda_device *device = handle;
    CTRT_TRY(cuda_enter(device));
    return cuda_check(device, cuda_driver.event_synchronize(event), "waiting for an event");
}

ctrt_status cuda_event_elapsed(void *handle, void *from, void *to, double *milliseconds)
{
    struct cuda_device *device = handle;
    float value = 0;
    CTRT_TRY(cuda_enter(device));
    CTRT_TRY(cuda_check(device, cuda_driver.event_elapsed(&value, from, to), "the time between two events"));
    *milliseconds = value;
    return CTRT_OK;
}
