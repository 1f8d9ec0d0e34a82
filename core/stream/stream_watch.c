/* SPDX-License-Identifier: Apache-2.0 */
/* stream/stream_watch.c: logs host waits for streams that take long, such as those for a kernel that never ends.
 *
 * A wait changes one counter of its stream and reads no clock. A thread, which the first wait starts, looks at the
 * counters a few times in the time after which a wait is logged: a stream whose counter has threads that wait, and no
 * wait that has ended since, has the same wait as before. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/param.h"
#include "stream/stream_watch.h"

static const ctrt_param warning_param = {
    sizeof warning_param, "CTRT_WAIT_WARNING", CTRT_PARAM_INT, "30", NULL,
    "seconds after which a wait for a stream is logged, and again after twice that time, and so on; 0: never",
};
CORE_PARAM(warning_param);

enum { LOOKS = 8 };                         /* of the thread, in the time of the parameter */

atomic_bool stream_watch_started;
static _Atomic int64_t warning_ns;          /* 0: no thread */
static bool watch_ends;                     /* guarded by watch_lock */
static pthread_t watch_thread;
static pthread_cond_t watch_changed = PTHREAD_COND_INITIALIZER;
LOCK_DEFINE_MUTEX(watch_lock);

LOCK_IN_CHILD(watch_in_child)
{
    atomic_store(&stream_watch_started, false);
    thread_state.id = 0;
    pthread_cond_init(&watch_changed, NULL);
}

static void watch_log(ctrt_stream *stream, int64_t waited)
{
    char site[512] = "";
    const char *op = NULL;
    const uint64_t done = atomic_load(&stream->done), enqueued = atomic_load(&stream->enqueued);
    /* A thread that resets the stream waits with the lock. */
    if (pthread_mutex_trylock(&stream->lock) == 0) {
        op = stream->op;
        stream_site_text(site, sizeof site, stream, stream->sequence);
        pthread_mutex_unlock(&stream->lock);
    }
    log_message(CTRT_LOG_WARNING, "core",
                "thread %d has waited %lld s for stream %llu of %s: of %llu pieces of work, %llu are known to be "
                "done; the last is %s%s. The device may be busy, or a kernel or an event may never end "
                "(CTRT_WAIT_WARNING)",
                (int)atomic_load(&stream->waits.thread), (long long)(waited / 1000000000),
                (unsigned long long)ctrt_stream_id(stream), stream->device->name, (unsigned long long)enqueued,
                (unsigned long long)done, op != NULL ? op : "not known", site);
}

static void watch_stream(ctrt_stream *stream, int64_t now)
{
    struct stream_waits *waits = &stream->waits;
    const uint64_t count = atomic_load_explicit(&waits->count, memory_order_acquire);
    const bool same = count >> 32 == waits->ended && waits->since != 0;
    if ((uint32_t)count == 0) {
        waits->since = 0;
    } else if (!same) {
        waits->ended = (uint32_t)(count >> 32);
        waits->since = now;
        waits->next = warning_ns;
    } else if (now - waits->since >= waits->next) {
        watch_log(stream, now - waits->since);
        waits->next *= 2;
    }
}

static void *watch_run(void *unused)
{
    (void)unused;
    cancel_disable();
    pthread_mutex_lock(&watch_lock);
    while (!watch_ends) {
        const int64_t next = clock_now(CLOCK_REALTIME) + warning_ns / LOOKS;
        const struct timespec until = { .tv_sec = (time_t)(next / 1000000000), .tv_nsec = (long)(next % 1000000000) };
        pthread_cond_timedwait(&watch_changed, &watch_lock, &until);
        pthread_mutex_unlock(&watch_lock);
        const int64_t now = clock_now(CLOCK_MONOTONIC);
        ctrt_stream *stream;
        for (uint32_t slot = 0; slot < STREAM_MAX && (stream = stream_at(slot)) != NULL; slot++)
            watch_stream(stream, now);
        pthread_mutex_lock(&watch_lock);
    }
    pthread_mutex_unlock(&watch_lock);
    return NULL;
}

ctrt_status stream_watch_prepare(void)
{
    ctrt_param_value value;
    CTRT_TRY(param_read(&value, &warning_param, "core"));
    if (value.integer < 0 || value.integer > 1000000)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "CTRT_WAIT_WARNING=%s: expected 0 to 1000000 seconds", value.text);
    atomic_store(&warning_ns, value.integer * 1000000000);
    return CTRT_OK;
}

void stream_watch_start(void)
{
    thread_state.id = (int32_t)syscall(SYS_gettid);
    pthread_mutex_lock(&watch_lock);
    /* Without the thread, waits are not logged. */
    if (!atomic_exchange(&stream_watch_started, true))
        watch_ends = warning_ns == 0 || thread_start(&watch_thread, watch_run, NULL) != 0;
    pthread_mutex_unlock(&watch_lock);
}

void stream_watch_end(void)
{
    pthread_mutex_lock(&watch_lock);
    const bool runs = atomic_load(&stream_watch_started) && !watch_ends;
    watch_ends = true;
    pthread_cond_broadcast(&watch_changed);
    pthread_mutex_unlock(&watch_lock);
    if (!runs)
        return;
    pthread_join(watch_thread, NULL);
    atomic_store(&stream_watch_started, false);
}
