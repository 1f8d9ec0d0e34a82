/* SPDX-License-Identifier: Apache-2.0 */
/* broken_backend.h: declarations of the backend with defects: broken_backend.c has the device and its memory,
 * broken_queue.c the queues, events, kernels and graphs. */
#ifndef CTRT_BROKEN_BACKEND_H
#define CTRT_BROKEN_BACKEND_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "ctrt/plugin.h"

extern const ctrt_host *broken_host;
extern pthread_mutex_t broken_lock;             /* guards everything */

/* Whether CTRT_BROKEN is that defect. */
static inline bool broken(const char *defect)
{
    const char *text = getenv("CTRT_BROKEN");
    return text != NULL && strcmp(text, defect) == 0;
}

/* The devices are synchronous with CTRT_BROKEN=sync and the defects sync_*. */
static inline bool broken_synchronous(void)
{
    const char *text = getenv("CTRT_BROKEN");
    return text != NULL && strncmp(text, "sync", 4) == 0 && (text[4] == '\0' || text[4] == '_');
}

struct block {
    struct block *next;
    char *address;
    size_t bytes;
    int fd;
};

struct device {
    pid_t process;
    int32_t index;
    size_t used;
    struct block *files;                /* blocks of at least FROM_FILE bytes, which other processes can map */
    struct queue *queues;
    void *standard;                     /* queue of a synchronous device */
    int fd;
};

struct point {                          /* a point in a queue's work */
    int references;
    bool done;
    double time;
};

struct event {
    struct point *point;
    struct graph *graph;                /* recorded in this capture */
};

enum kind { FILL, COPY, CALL, RECORD, WAIT, KERNEL };
struct work {
    struct work *next;
    enum kind kind;
    char *to;
    const char *from;
    size_t bytes;
    int byte;
    void (*function)(void *);
    struct point *point;
    struct event *event;                /* wait_latest */
    uint64_t sequence;
    ctrt_call call;
    ctrt_view views[3];
    const ctrt_view *pointers[3];
    const ctrt_view *given[3];          /* call_by_pointer */
    float number;                       /* of a CTRT_VIEW_HOST_SCALAR */
};

struct queue {
    struct queue *next;
    struct device *device;
    pthread_t thread;
    struct work *first;
    uint64_t put, completed, failed_at;
    bool ends;
    ctrt_status failed;
    char text[128];
    struct graph *graph;                /* of the capture */
};

struct graph {
    struct work *first;
    struct queue *origin;
    int replays;
};

ctrt_status broken_usable(const struct device *device);
/* Enqueues a copy of the work, or adds it to the graph that captures the queue. queue NULL: on the device's standard
 * queue, for which the function waits. */
ctrt_status broken_enqueue(struct device *device, struct queue *queue, const struct work *values);
ctrt_status broken_run(const ctrt_call *call);
extern ctrt_queue_table broken_queue_table;
extern ctrt_capture_table broken_capture_table;

#endif
