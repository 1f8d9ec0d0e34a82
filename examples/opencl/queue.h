/* SPDX-License-Identifier: Apache-2.0 */
/* queue.h: the slots of queues that events.c has. */
#ifndef QUEUE_H
#define QUEUE_H

#include "opencl.h"

ctrt_status queue_wait_event(void *device, void *queue, void *event);
ctrt_status queue_host_call(void *device, void *queue, void (*function)(void *), void *argument);
ctrt_status event_create(void *device, void **event, bool timing);
void event_destroy(void *device, void *event);
ctrt_status event_record(void *device, void *event, void *queue);
ctrt_status event_query(void *device, void *event, bool *done);
ctrt_status event_synchronize(void *device, void *event);
ctrt_status event_elapsed(void *device, void *from, void *to, double *milliseconds);

/* Enqueues a marker, whose event is complete when all work that is on the queue now is done. */
ctrt_status queue_mark(struct queue *queue, cl_event *event);
bool event_is_done(cl_event event);

#endif
