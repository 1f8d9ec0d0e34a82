/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/broken_backend.c: a correct backend of asynchronous devices in host memory, which CTRT_BROKEN=DEFECT
 * breaks, to test that `ctrt check --contract` finds the defect. tests/integration/contract.sh lists the defects with
 * the check that has to find each. One lock guards everything; each queue has a thread. A graph is a list of work. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ctrt/plugin.h"

enum { DEVICES = 2, PAGE = 1 << 16, FROM_FILE = 1 << 20 };
#define MEMORY ((size_t)64 << 20)

static const ctrt_host *host;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, running = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static bool broken(const char *defect)
{
    const char *text = getenv("CTRT_BROKEN");
    return text != NULL && strcmp(text, defect) == 0;
}

/* ---- the device ---- */

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
    int fd;
};

static pid_t counted;

static ctrt_status device_count(int32_t *count)
{
    counted = counted == 0 ? getpid() : counted;
    *count = DEVICES;
    return CTRT_OK;
}

static ctrt_status bad_index(int32_t index)
{
    return host->fail(CTRT_ERR_NO_DEVICE, "broken:%d: there are %d devices", (int)index, DEVICES);
}

static ctrt_status device_describe(int32_t index, ctrt_device_info *info)
{
    ctrt_device_info facts = { .size = info->size, .name = "a device with defects", .total_memory = MEMORY,
                               .flags = CTRT_DEVICE_ASYNCHRONOUS, .numa_node = -1, .ecc = -1 };
    if ((index < 0 || index >= DEVICES) && !broken("any_index"))
        return bad_index(index);
    memcpy(info, &facts, info->size < sizeof facts && !broken("describe_overflow") ? info->size : sizeof facts);
    return CTRT_OK;
}

static ctrt_status device_usage(int32_t index, ctrt_device_usage *usage)
{
    (void)index;
    ctrt_device_usage facts = { .size = usage->size, .total_memory = MEMORY, .busy = -1, .memory_busy = -1 };
    memcpy(usage, &facts, usage->size < sizeof facts && !broken("usage_overflow") ? usage->size : sizeof facts);
    return CTRT_OK;
}

static ctrt_status device_open(void **out, int32_t index)
{
    if (index < 0 || index >= DEVICES)
        return bad_index(index);
    if (broken("count_opens") && counted != getpid())
        return host->fail(CTRT_ERR_FORKED, "the driver was initialised before the fork");
    struct device *device = host->alloc(sizeof *device);
    if (device == NULL && !broken("alloc_unchecked"))
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for the device");
    *device = (struct device){ .process = getpid(), .index = index, .fd = -1 };
    if (broken("descriptor"))
        device->fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    *out = device;
    return CTRT_OK;
}

static ctrt_status usable(const struct device *device)
{
    if (device->process != getpid() && !broken("fork_unchecked"))
        return host->fail(CTRT_ERR_FORKED, "broken:%d was opened before the fork", (int)device->index);
    return CTRT_OK;
}

static ctrt_status memory_info(void *handle, uint64_t *unused, uint64_t *total)
{
    const struct device *device = handle;
    *unused = MEMORY - device->used + (broken("free_above_total") ? MEMORY : 0);
    *total = MEMORY;
    return usable(device);
}

/* ---- memory ---- */

static char *map_file(struct device *device, size_t bytes, int fd)
{
    struct block *block = host->alloc(sizeof *block);
    char *address = block != NULL && fd >= 0
        ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, broken("import_copies") ? MAP_PRIVATE : MAP_SHARED, fd,
               0) : MAP_FAILED;
    if (address == MAP_FAILED) {
        host->free(block);
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    *block = (struct block){ .next = device->files, .address = address, .bytes = bytes, .fd = fd };
    device->files = block;
    return address;
}

static ctrt_status memory_alloc(void *handle, void **address, size_t bytes)
{
    struct device *device = handle;
    static char *racing, shared[64];
    ctrt_status status = usable(device);
    if (status != CTRT_OK)
        return status;
    char *found = NULL;
    const size_t offset = broken("misaligned") ? 32 : 0;
    pthread_mutex_lock(&lock);
    if (bytes <= MEMORY - device->used || (broken("no_limit") && bytes <= 2 * MEMORY)) {
        if (bytes >= FROM_FILE) {
            const int fd = host->descriptor(memfd_create("broken", MFD_CLOEXEC));
            found = ftruncate(fd, (off_t)bytes) == 0 ? map_file(device, bytes, fd) : NULL;
        } else if (broken("overlap") && bytes < 64) {
            found = (char *)(((uintptr_t)shared + 63) & ~(uintptr_t)63);
        } else {
            found = aligned_alloc(64, (bytes + 127) / 64 * 64);
        }
    }
    device->used += found != NULL ? bytes : 0;
    pthread_mutex_unlock(&lock);
    if (broken("unlocked") && bytes == 1000 && found != NULL) {
        racing = found;
        usleep(2000);
        found = racing;
    }
    if (found == NULL)
        return broken("full_silent") ? CTRT_ERR_OUT_OF_MEMORY
                                     : host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no %zu bytes", bytes);
    *address = found + (bytes < FROM_FILE ? offset : 0);
    return CTRT_OK;
}

static void memory_free(void *handle, void *address, size_t bytes)
{
    struct device *device = handle;
    if (device->process != getpid())
        return;
    pthread_mutex_lock(&lock);
    device->used -= broken("free_uncounted") ? 0 : bytes;
    struct block **at = &device->files;
    while (*at != NULL && (*at)->address != address)
        at = &(*at)->next;
    struct block *block = *at;
    if (block != NULL && !broken("leak")) {
        *at = block->next;
        munmap(block->address, block->bytes);
        close(block->fd);
        host->free(block);
    } else if (block == NULL && !broken("misaligned") && !broken("overlap") && !broken("unlocked")) {
        free(address);
    }
    pthread_mutex_unlock(&lock);
}

static ctrt_status host_alloc(void *device, void **address, size_t bytes)
{
    (void)device;
    char *found = bytes < SIZE_MAX / 4 ? aligned_alloc(64, (bytes + 127) / 64 * 64) : NULL;
    if (found == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no %zu bytes of host memory", bytes);
    *address = found + (broken("pinned_misaligned") ? 8 : 0);
    return CTRT_OK;
}

static void host_free(void *device, void *address, size_t bytes)
{
    (void)device, (void)bytes;
    free((char *)address - (broken("pinned_misaligned") ? 8 : 0));
}

static bool can_access_peer(void *device, void *peer)
{
    return device != peer;
}

static ctrt_status export_memory(void *handle, void *address, size_t bytes, int *fd)
{
    struct device *device = handle;
    (void)bytes;
    for (struct block *block = device->files; block != NULL; block = block->next)
        if (block->address == address)
            *fd = host->descriptor(fcntl(block->fd, F_DUPFD_CLOEXEC, 3));
    return CTRT_OK;
}

static ctrt_status import_memory(void *device, void **address, size_t bytes, int fd)
{
    *address = map_file(device, bytes, broken("import_closes") ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 3));
    ((struct device *)device)->used += bytes;
    if (broken("import_closes"))
        close(fd);
    return *address != NULL ? CTRT_OK : host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no address");
}

static ctrt_status reserve(void *device, void **address, size_t bytes)
{
    (void)device;
    *address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *address != MAP_FAILED ? CTRT_OK : host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no addresses");
}

static void unreserve(void *device, void *address, size_t bytes)
{
    (void)device;
    munmap(address, bytes);
}

static ctrt_status map(void *device, void *address, size_t bytes)
{
    (void)device;
    mprotect(address, bytes, PROT_READ | PROT_WRITE);
    return CTRT_OK;
}

static void unmap(void *device, void *address, size_t bytes)
{
    (void)device;
    (void)!mmap(address, bytes + (broken("unmap_more") ? PAGE : 0), PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* ---- work ---- */

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

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void point_drop(struct point *point)
{
    if (point != NULL && --point->references == 0 && !broken("event_leak"))
        host->free(point);
}

static void append(struct work **list, struct work *work)
{
    while (*list != NULL)
        list = &(*list)->next;
    *list = work;
}

static ctrt_status enqueue(struct queue *queue, const struct work *values)
{
    struct work *work = host->alloc(sizeof *work);
    ctrt_status status = usable(queue->device);
    if (status != CTRT_OK || work == NULL) {
        host->free(work);
        return status != CTRT_OK ? status : host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for work");
    }
    *work = *values;
    work->next = NULL;
    if (work->kind == KERNEL)
        for (int i = 0; i < 3; i++)
            work->pointers[i] = &work->views[i];
    pthread_mutex_lock(&lock);
    if (queue->graph != NULL && !broken("capture_runs") && work->kind != RECORD && work->kind != WAIT) {
        append(&queue->graph->first, work);
    } else if (broken("reorder") && work->kind == FILL && queue->put % 3 == 0) {
        work->next = queue->first;
        queue->first = work;
        queue->put++;
    } else {
        append(&queue->first, work);
        queue->put++;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return CTRT_OK;
}

static float scratch[1 << 17];

static ctrt_status kernel_run(struct work *work)
{
    const ctrt_view *const *views = broken("call_by_pointer") ? work->given : work->pointers;
    const float *x = views[0]->data, *y = views[1]->data;
    float *out = views[2]->data;
    if (strcmp(work->call.kernel->op, "index_select") == 0) {
        const int64_t *index = views[1]->data;
        for (int64_t i = 0; i < views[1]->numel; i++)
            if (index[i] < 0 || index[i] >= views[0]->shape[1])
                return CTRT_ERR_INVALID_ARGUMENT;
        return CTRT_OK;
    }
    float *at = broken("kernel_static") ? scratch : out;
    for (int64_t i = 0; i < views[2]->numel; i++)
        at[i] = x[i] + y[i];
    if (at == scratch) {
        sched_yield();
        memcpy(out, scratch, (size_t)views[2]->numel * sizeof *out);
    }
    if (broken("kernel_wide"))
        out[views[2]->numel] = 0;
    if (broken("kernel_input"))
        ((float *)views[1]->data)[0] += 1;
    return CTRT_OK;
}

/* Runs work without the lock. */
static ctrt_status work_run(struct work *work)
{
    const size_t bytes = broken("copy_short")  ? work->bytes & ~(size_t)3
                         : broken("copy_wide") ? (work->bytes + 7) & ~(size_t)7
                                               : work->bytes;
    if (broken("serial"))
        pthread_mutex_lock(&running);
    ctrt_status status = CTRT_OK;
    switch (work->kind) {
    case FILL:
        memset(work->to, broken("fill_zero") ? 0 : work->byte,
               broken("fill_wide") ? (work->bytes + 3) & ~(size_t)3 : work->bytes);
        break;
    case COPY:   memmove(work->to, work->from, bytes); break;
    case CALL:   work->function(work->to); break;
    case KERNEL: status = kernel_run(work); break;
    default:     break;
    }
    if (broken("serial"))
        pthread_mutex_unlock(&running);
    return status;
}

static void queue_fail(struct queue *queue, const struct work *work, ctrt_status status)
{
    queue->failed = broken("fail_silent") ? CTRT_OK : status;
    queue->failed_at = broken("fail_sequence") ? 0 : work->sequence;
    snprintf(queue->text, sizeof queue->text, "%s failed", broken("fail_nameless") ? "work" : work->call.kernel->op);
    for (struct queue *q = queue->device->queues; q != NULL && broken("fail_all"); q = q->next)
        q->failed = status;
}

static void *worker(void *argument)
{
    struct queue *queue = argument;
    pthread_mutex_lock(&lock);
    while (queue->first != NULL || !queue->ends) {
        struct work *work = queue->first;
        if (work == NULL) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        queue->first = work->next;
        if (work->kind == RECORD && !broken("event_never")) {
            work->point->done = true;
            work->point->time = now();
        } else if (work->kind == WAIT && broken("wait_latest")) {
            while (work->event->point != NULL && !work->event->point->done)
                pthread_cond_wait(&changed, &lock);
        } else if (work->kind == WAIT) {
            while (!work->point->done)
                pthread_cond_wait(&changed, &lock);
        } else if (work->kind != RECORD && (queue->failed == CTRT_OK || broken("fail_goes_on"))) {
            pthread_mutex_unlock(&lock);
            const ctrt_status status = work_run(work);
            pthread_mutex_lock(&lock);
            if (status != CTRT_OK)
                queue_fail(queue, work, status);
        }
        point_drop(work->point);
        host->free(work);
        queue->completed++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- queues ---- */

static ctrt_status queue_create(void *handle, void **out, int32_t priority)
{
    struct device *device = handle;
    struct queue *queue = host->alloc(sizeof *queue);
    (void)priority;
    if (queue == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for a queue");
    *queue = (struct queue){ .device = device };
    if (pthread_create(&queue->thread, NULL, worker, queue) != 0) {
        host->free(queue);
        return host->fail(CTRT_ERR_BACKEND, "broken: no thread");
    }
    pthread_mutex_lock(&lock);
    queue->next = device->queues;
    device->queues = queue;
    pthread_mutex_unlock(&lock);
    *out = queue;
    return CTRT_OK;
}

static void queue_destroy(void *handle, void *object)
{
    struct device *device = handle;
    struct queue *queue = object;
    if (device->process != getpid())
        return;
    pthread_mutex_lock(&lock);
    queue->ends = true;
    for (struct work *work = queue->first; work != NULL && broken("destroy_drops"); work = work->next)
        work->kind = work->kind == FILL ? COPY : work->kind, work->bytes = 0;
    struct queue **at = &device->queues;
    while (*at != queue)
        at = &(*at)->next;
    *at = queue->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (broken("queue_leak"))
        return;
    pthread_join(queue->thread, NULL);
    host->free(queue);
}

static void device_close(void *handle)
{
    struct device *device = handle;
    if (device->process != getpid())
        return;
    while (device->queues != NULL)
        queue_destroy(device, device->queues);
    if (!broken("close_leak"))
        host->free(device);
}

static ctrt_status outcome(struct queue *queue, uint64_t *sequence)
{
    pthread_mutex_lock(&lock);
    const ctrt_status status = queue->failed;
    if (sequence != NULL)
        *sequence = queue->failed_at;
    pthread_mutex_unlock(&lock);
    return status == CTRT_OK ? CTRT_OK : host->fail(status, "%s", queue->text);
}

static ctrt_status synchronize(void *handle, void *object)
{
    struct device *device = handle;
    ctrt_status status = usable(device);
    if (status != CTRT_OK || broken("synchronize_returns") || (object == NULL && broken("synchronize_null")))
        return status;
    pthread_mutex_lock(&lock);
    for (struct queue *q = object != NULL ? object : device->queues; q != NULL; q = object != NULL ? NULL : q->next)
        while (q->completed < q->put)
            pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return object != NULL ? outcome(object, NULL) : CTRT_OK;
}

static ctrt_status query(void *handle, void *object, bool *idle)
{
    struct queue *queue = object;
    (void)handle;
    pthread_mutex_lock(&lock);
    *idle = queue->completed == queue->put || broken("query_idle");
    pthread_mutex_unlock(&lock);
    return outcome(queue, NULL);
}

static ctrt_status error(void *handle, void *queue, uint64_t *sequence)
{
    (void)handle;
    return outcome(queue, sequence);
}

static ctrt_status reset(void *handle, void *object)
{
    struct queue *queue = object;
    (void)synchronize(handle, queue);
    pthread_mutex_lock(&lock);
    queue->failed = broken("reset_nothing") ? queue->failed : CTRT_OK;
    pthread_mutex_unlock(&lock);
    return CTRT_OK;
}

static ctrt_status host_call(void *device, void *queue, void (*function)(void *), void *argument)
{
    (void)device;
    if (broken("host_call_now")) {
        function(argument);
        return CTRT_OK;
    }
    if (broken("host_call_thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, (void *(*)(void *))(void (*)(void))function, argument);
        return CTRT_OK;
    }
    return enqueue(queue, &(struct work){ .kind = CALL, .function = function, .to = argument });
}

static ctrt_status memory_copy(void *device, void *queue, void *to, const void *from, size_t bytes, int kind)
{
    static __thread struct work late;
    struct work work = { .kind = COPY, .to = to, .from = from, .bytes = bytes };
    (void)device;
    if (broken("copy_late") && late.bytes > 0) {
        const struct work before = late;
        late.bytes = 0;
        (void)enqueue(queue, &before);
    }
    if (broken("copy_late") && kind == CTRT_COPY_TO_DEVICE) {
        late = work;
        return CTRT_OK;
    }
    return enqueue(queue, &work);
}

static ctrt_status memory_fill(void *device, void *queue, void *address, int byte, size_t bytes)
{
    (void)device;
    return enqueue(queue, &(struct work){ .kind = FILL, .to = address, .byte = byte, .bytes = bytes });
}

static ctrt_status copy_peer(void *device, void *to, void *peer, const void *from, size_t bytes, void *queue)
{
    (void)device, (void)peer;
    return broken("peer_nothing") ? CTRT_OK
                                  : enqueue(queue, &(struct work){ .kind = COPY, .to = to, .from = from,
                                                                   .bytes = bytes });
}

/* ---- events ---- */

static ctrt_status event_create(void *device, void **out, bool timing)
{
    struct event *event = host->alloc(sizeof *event);
    (void)device, (void)timing;
    if (event == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for an event");
    *event = (struct event){ NULL, NULL };
    *out = event;
    return CTRT_OK;
}

static void event_destroy(void *device, void *object)
{
    struct event *event = object;
    (void)device;
    pthread_mutex_lock(&lock);
    point_drop(event->point);
    pthread_mutex_unlock(&lock);
    if (!broken("wait_latest"))
        host->free(event);
}

static ctrt_status event_record(void *device, void *object, void *queue)
{
    struct event *event = object;
    struct queue *on = queue;
    (void)device;
    event->graph = on->graph;
    if (on->graph != NULL)
        return CTRT_OK;
    struct point *point = host->alloc(sizeof *point);
    if (point == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for a record");
    *point = (struct point){ .references = 2 };
    ctrt_status status = enqueue(queue, &(struct work){ .kind = RECORD, .point = point });
    if (status != CTRT_OK) {
        if (!broken("record_leak"))
            host->free(point);
        return status;
    }
    pthread_mutex_lock(&lock);
    point_drop(event->point);
    event->point = point;
    pthread_mutex_unlock(&lock);
    return CTRT_OK;
}

static ctrt_status wait_event(void *device, void *queue, void *object)
{
    struct event *event = object;
    (void)device;
    if (event->graph != NULL)
        ((struct queue *)queue)->graph = event->graph;
    if (event->graph != NULL || event->point == NULL || broken("wait_nothing"))
        return CTRT_OK;
    pthread_mutex_lock(&lock);
    event->point->references++;
    pthread_mutex_unlock(&lock);
    ctrt_status status = enqueue(queue, &(struct work){ .kind = WAIT, .point = event->point, .event = event });
    if (status != CTRT_OK)
        event->point->references--;
    return status;
}

static ctrt_status event_query(void *device, void *object, bool *done)
{
    const struct event *event = object;
    (void)device;
    pthread_mutex_lock(&lock);
    *done = event->point != NULL ? event->point->done : !broken("unrecorded_waits");
    *done |= broken("event_done");
    pthread_mutex_unlock(&lock);
    return CTRT_OK;
}

static ctrt_status event_synchronize(void *device, void *object)
{
    const struct event *event = object;
    (void)device;
    pthread_mutex_lock(&lock);
    while (event->point != NULL && !event->point->done && !broken("event_returns"))
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return CTRT_OK;
}

static ctrt_status event_elapsed(void *device, void *from, void *to, double *milliseconds)
{
    (void)device;
    *milliseconds = (((struct event *)to)->point->time - ((struct event *)from)->point->time)
                    * (broken("elapsed_seconds") ? 1 : 1000);
    return CTRT_OK;
}

/* ---- captures ---- */

static ctrt_status capture_begin(void *device, void *object)
{
    struct queue *queue = object;
    struct graph *graph = host->alloc(sizeof *graph);
    (void)device;
    if (graph == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for a graph");
    *graph = (struct graph){ .origin = queue };
    queue->graph = graph;
    return CTRT_OK;
}

static ctrt_status capture_end(void *handle, void *object, void **out)
{
    struct device *device = handle;
    struct graph *graph = ((struct queue *)object)->graph;
    if (graph == NULL && !broken("capture_unbegun"))
        return host->fail(CTRT_ERR_STATE, "broken: nothing is captured");
    pthread_mutex_lock(&lock);
    for (struct queue *q = device->queues; q != NULL; q = q->next)
        if (q->graph == graph)
            q->graph = NULL;
    pthread_mutex_unlock(&lock);
    *out = graph;
    return CTRT_OK;
}

static ctrt_status capture_replay(void *device, void *object, void *queue)
{
    struct graph *graph = object;
    ctrt_status status = CTRT_OK;
    (void)device;
    if (graph->replays++ > 0 && broken("capture_once"))
        return CTRT_OK;
    for (const struct work *work = graph->first; work != NULL && status == CTRT_OK; work = work->next)
        status = enqueue(broken("capture_origin") ? (void *)graph->origin : queue, work);
    return status;
}

static void capture_destroy(void *device, void *object)
{
    struct graph *graph = object;
    (void)device;
    for (struct work *work = graph->first, *next; work != NULL; work = next) {
        next = work->next;
        host->free(work);
    }
    host->free(graph);
}

/* ---- kernels and tables ---- */

static ctrt_status run(const ctrt_call *call)
{
    struct work work = { .kind = KERNEL, .call = { .kernel = call->kernel }, .sequence = call->sequence };
    for (uint32_t i = 0; i < 3; i++) {
        work.given[i] = i < call->n_inputs ? call->inputs[i] : call->outputs[i - call->n_inputs];
        work.views[i] = *work.given[i];
    }
    return enqueue(call->queue, &work);
}

static const ctrt_kernel kernels[] = {
    { .size = sizeof(ctrt_kernel), .op = "add", .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .flags = CTRT_KERNEL_INPLACE,
      .run = run },
    { .size = sizeof(ctrt_kernel), .op = "index_select", .dtypes = CTRT_DTYPE_BIT(CTRT_F32), .run = run },
};
static const ctrt_kernel_table kernel_table = { sizeof kernel_table, kernels, 2, sizeof kernels[0], NULL, NULL, NULL };
static const ctrt_device_table device_table = {
    .size = sizeof device_table, .count = device_count, .describe = device_describe, .open = device_open,
    .close = device_close, .memory_info = memory_info, .usage = device_usage,
};
static const ctrt_memory_table memory_table = {
    .size = sizeof memory_table, .alloc = memory_alloc, .free = memory_free, .copy = memory_copy, .fill = memory_fill,
    .host_alloc = host_alloc, .host_free = host_free, .can_access_peer = can_access_peer, .copy_peer = copy_peer,
    .export_memory = export_memory, .import_memory = import_memory, .page_bytes = PAGE, .reserve = reserve,
    .unreserve = unreserve, .map = map, .unmap = unmap,
};
static const ctrt_queue_table queue_table = {
    .size = sizeof queue_table, .create = queue_create, .destroy = queue_destroy, .synchronize = synchronize,
    .query = query,
    .wait_event = wait_event, .host_call = host_call, .event_create = event_create, .event_destroy = event_destroy,
    .event_record = event_record, .event_query = event_query, .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed, .error = error, .reset = reset,
};
static ctrt_capture_table capture_table = {
    sizeof capture_table, capture_begin, capture_end, capture_replay, capture_destroy,
};
static const ctrt_backend backend = {
    .size = sizeof backend, .device = &device_table, .memory = &memory_table, .queue = &queue_table,
    .kernels = &kernel_table, .capture = &capture_table,
};

static int32_t probe(char *reason, size_t bytes)
{
    snprintf(reason, broken("probe_overflow") ? 12 : bytes, "it is in software");
    return 1;
}

static ctrt_component components[] = {
    { sizeof(ctrt_component), CTRT_COMPONENT_BACKEND, -100, "broken", &backend, probe },
};

static ctrt_status init(const ctrt_host *given)
{
    host = given;
    components[0].name = broken("name_upper") ? "Broken" : "broken";
    if (broken("capture_incomplete"))
        capture_table.destroy = NULL;
    return CTRT_OK;
}

CTRT_PLUGIN_DEFINE("backend-broken", "1.0", "a backend with defects", components, init)
