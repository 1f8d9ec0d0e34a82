/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/stream.c: streams and events, and the thread that executes work. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct work *first, **last = &first;
static unsigned long long enqueued, done;   /* numbers of works: tickets */
static bool started;
static atomic_int context_error;
static struct stream *streams;

static double milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static void release_timing(struct timing *t)
{
    if (t != NULL && atomic_fetch_sub(&t->references, 1) == 1)
        free(t);
}

static void run(struct work *w)
{
    const bool failed = atomic_load(&context_error) != 0;
    if (w->kind == RECORD)
        w->timing->when = milliseconds();
    if (w->kind == FREE_MEMORY)
        driver_release(w->to);
    if (failed)
        return;
    switch (w->kind) {
    case COPY:
        memmove(w->to, w->from, w->bytes);
        break;
    case FILL:
        memset(w->to, w->value, w->bytes);
        break;
    case LAUNCH:
        atomic_store(&w->launch.error, 0);
        atomic_store(&w->launch.next_block, 0);
        atomic_store(&context_error, ptx_run(&w->launch));
        if (atomic_load(&context_error) != 0)
            fprintf(stderr, "ptx: %s\n", w->launch.message);
        break;
    case CALL_HOST:
        w->function(w->argument);
        break;
    case RUN_GRAPH:
        graph_run(w->graph, run);
        break;
    default:
        break;
    }
}

static void *worker(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (first == NULL)
            pthread_cond_wait(&changed, &lock);
        struct work *w = first;
        first = w->next;
        if (first == NULL)
            last = &first;
        pthread_mutex_unlock(&lock);
        run(w);
        if (w->kind == LAUNCH)
            free(w->launch.parameters);
        if (w->kind == RUN_GRAPH)
            graph_release(w->graph);
        if (w->kind == RECORD)
            release_timing(w->timing);
        free(w->staging);
        free(w);
        pthread_mutex_lock(&lock);
        done++;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

static struct work *copy_of(const struct work *work)
{
    struct work *w = malloc(sizeof *w);
    if (w == NULL)
        abort();
    *w = *work;
    w->next = NULL;
    return w;
}

result driver_enqueue(struct stream *s, const struct work *work)
{
    if (s == NULL)
        return INVALID_HANDLE;              /* the default stream is not provided */
    if (atomic_load(&context_error) != 0)
        return atomic_load(&context_error);
    CAPTURES_LOCKED;
    if (s->capture != NULL) {
        if (s->capture->invalid)
            return CAPTURE_INVALIDATED;
        graph_append(s->capture, work);
        s->unjoined = true;
        s->captured = SIZE_MAX;
        return OK;
    }
    pthread_mutex_lock(&lock);
    if (!started) {
        pthread_t thread;
        started = pthread_create(&thread, NULL, worker, NULL) == 0;
        if (!started) {
            pthread_mutex_unlock(&lock);
            return OUT_OF_MEMORY;
        }
        pthread_detach(thread);
    }
    struct work *w = copy_of(work);
    *last = w;
    last = &w->next;
    s->ticket = ++enqueued;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return OK;
}

result driver_wait(unsigned long long ticket)
{
    pthread_mutex_lock(&lock);
    while (done < ticket)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return atomic_load(&context_error);
}

result driver_wait_all(void)
{
    pthread_mutex_lock(&lock);
    const unsigned long long ticket = enqueued;
    pthread_mutex_unlock(&lock);
    return driver_wait(ticket);
}

bool driver_done(unsigned long long ticket)
{
    pthread_mutex_lock(&lock);
    const bool is_done = done >= ticket;
    pthread_mutex_unlock(&lock);
    return is_done;
}

result driver_error(void)
{
    return atomic_load(&context_error);
}

result driver_unsafe(void)
{
    if (!capture_active(0))
        return atomic_load(&context_error);
    capture_invalidate_all();
    return CAPTURE_UNSUPPORTED;
}

/* ---- entry points ---- */

result stream_create(struct stream **out, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    struct stream *s = *out = calloc(1, sizeof **out);
    if (s == NULL)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    return driver_error();
}

result stream_destroy(struct stream *s)
{
    if (s == NULL)
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    struct stream **at = &streams;
    while (*at != NULL && *at != s)
        at = &(*at)->next;
    if (*at != NULL)
        *at = s->next;
    pthread_mutex_unlock(&lock);
    free(s);
    return OK;
}

/* Ends the capture in all its streams. Returns false if one of them has work for which the origin has not waited. */
bool stream_leave_capture(struct graph *g)
{
    bool joined = true;
    pthread_mutex_lock(&lock);
    for (struct stream *s = streams; s != NULL; s = s->next)
        if (s->capture == g) {
            joined &= !s->unjoined || s == g->origin;
            s->capture = NULL;
            s->unjoined = false;
        }
    pthread_mutex_unlock(&lock);
    return joined;
}

/* Returns true if the stream is being captured, and makes the capture invalid. */
static bool invalidate(struct stream *s)
{
    CAPTURES_LOCKED;
    if (s->capture != NULL)
        s->capture->invalid = true;
    return s->capture != NULL;
}

result stream_synchronize(struct stream *s)
{
    if (s == NULL)
        return INVALID_HANDLE;
    return invalidate(s) ? CAPTURE_UNSUPPORTED : driver_wait(s->ticket);
}

result stream_query(struct stream *s)
{
    if (s == NULL)
        return INVALID_HANDLE;
    if (invalidate(s))
        return CAPTURE_UNSUPPORTED;
    return driver_error() != 0 ? driver_error() : driver_done(s->ticket) ? OK : NOT_READY;
}

/* All work is executed in the order of enqueuing, so that only a capture has something to note. */
result stream_wait(struct stream *s, struct event *e, unsigned flags)
{
    (void)flags;
    if (s == NULL || e == NULL)
        return INVALID_HANDLE;
    CAPTURES_LOCKED;
    if (e->capture == 0)
        return invalidate(s) ? CAPTURE_ISOLATION : driver_error();
    struct graph *g = capture_find(e->capture);
    if (g == NULL)
        return CAPTURED_EVENT;
    if (s->capture != NULL && s->capture != g)
        return CAPTURE_ISOLATION;
    s->capture = g;
    s->unjoined = true;
    s->captured = SIZE_MAX;
    if (e->stream != s && e->stream->captured == e->ticket)
        e->stream->unjoined = false;
    return OK;
}

result launch_host(struct stream *s, void (*function)(void *), void *argument)
{
    return driver_enqueue(s, &(struct work){ .kind = CALL_HOST, .function = function, .argument = argument });
}

result event_create(struct event **out, unsigned flags)
{
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return OUT_OF_MEMORY;
    (*out)->times = (flags & 2) == 0;
    return driver_error();
}

result event_destroy(struct event *e)
{
    if (e == NULL)
        return INVALID_HANDLE;
    release_timing(e->timing);
    free(e);
    return OK;
}

result event_record(struct event *e, struct stream *s)
{
    if (e == NULL || s == NULL)
        return INVALID_HANDLE;
    CAPTURES_LOCKED;
    e->capture = s->capture != NULL ? s->capture->id : 0;
    e->stream = s;
    if (s->capture != NULL) {
        if (s->capture->invalid)
            return CAPTURE_INVALIDATED;
        e->ticket = s->captured = s->capture->count;
        return OK;
    }
    release_timing(e->timing);
    e->timing = malloc(sizeof *e->timing);
    if (e->timing == NULL)
        return OUT_OF_MEMORY;
    atomic_init(&e->timing->references, 2);
    const result r = driver_enqueue(s, &(struct work){ .kind = RECORD, .timing = e->timing });
    if (r != OK)
        release_timing(e->timing);
    e->ticket = s->ticket;
    return r;
}

result event_query(struct event *e)
{
    if (e == NULL)
        return INVALID_HANDLE;
    if (e->capture != 0)
        return CAPTURED_EVENT;
    return driver_error() != 0 ? driver_error() : driver_done(e->ticket) ? OK : NOT_READY;
}

result event_synchronize(struct event *e)
{
    if (e == NULL)
        return INVALID_HANDLE;
    return e->capture != 0 ? CAPTURED_EVENT : driver_wait(e->ticket);
}

result event_elapsed(float *milliseconds_out, struct event *from, struct event *to)
{
    if (from == NULL || to == NULL || from->timing == NULL || to->timing == NULL || !from->times || !to->times)
        return INVALID_HANDLE;
    if (!driver_done(from->ticket) || !driver_done(to->ticket))
        return NOT_READY;
    *milliseconds_out = (float)(to->timing->when - from->timing->when);
    return driver_error();
}

result context_synchronize(void)
{
    if (capture_active(-1)) {
        capture_invalidate_all();
        return CAPTURE_UNSUPPORTED;
    }
    return driver_wait_all();
}
