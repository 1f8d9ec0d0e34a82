/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pressure.c: the thread that watches the kernel's memory pressure.
 *
 * Interface: Linux, Documentation/accounting/psi.rst. A process writes "some STALL WINDOW" (microseconds) to
 * /proc/pressure/memory or to a control group's memory.pressure and polls the descriptor. POLLPRI reports that tasks
 * were stalled for that long within a window, at most once per window. Without privileges a window must be a multiple
 * of two seconds, so the default window is two seconds. The thread watches both files, the machine's and the group's,
 * because the group may reach its limit while the machine has free memory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "memory/pressure.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/base.h"
#include "base/descriptor.h"
#include "base/lock.h"
#include "base/param.h"
#include "base/thread.h"
#include "device/device.h"
#include "memory/pinned_cache.h"
#include "memory/pool.h"

static const ctrt_param pressure_param = {
    sizeof pressure_param, "CTRT_MEMORY_PRESSURE", CTRT_PARAM_STRING, "off", NULL,
    "whether cached host memory is released when the kernel reports memory pressure: off, on, or on:some STALL WINDOW "
    "(microseconds)",
};
CORE_PARAM(pressure_param);
static const ctrt_param file_param = {
    sizeof file_param, "CTRT_MEMORY_PRESSURE_FILE", CTRT_PARAM_STRING, NULL, NULL,
    "the pressure file to watch, or a FIFO, in which each write counts as pressure; default: those of the control "
    "group and of the machine",
};
CORE_PARAM(file_param);

/* Atomic instead of a lock, because the watcher is started under the device lock and stopped at exit, and a fork may
 * happen at any time. */
enum { IDLE, STARTING, RUNNING, STOPPING };
static _Atomic int state;
_Atomic bool pressure_lost;
static _Atomic uint64_t trims;

#define MOST_SOURCES 2
static struct {
    pthread_t thread;
    int wake;                               /* eventfd that stops the thread */
    int count;
    struct pollfd sources[MOST_SOURCES];
    bool fifo[MOST_SOURCES];
} watcher = { .wake = -1, .sources = { { .fd = -1 }, { .fd = -1 } } };

uint64_t pressure_trims(void)
{
    return atomic_load(&trims);
}

/* ---- the parameter ---- */

ctrt_status pressure_parse(struct pressure_options *options, const char *text)
{
    static const char *const yes[] = { "on", "1", "yes", "true" }, *const no[] = { "off", "0", "no", "false" };
    *options = (struct pressure_options){ true, "some 150000 2000000" };
    for (size_t i = 0; i < COUNT_OF(yes); i++) {
        if (strcmp(text, yes[i]) == 0)
            return CTRT_OK;
        if (strcmp(text, no[i]) == 0) {
            options->watch = false;
            return CTRT_OK;
        }
    }
    char word[8];
    uint64_t stall, window;
    int end = 0;
    if (sscanf(text, "on:%7[a-z] %8" SCNu64 " %8" SCNu64 "%n", word, &stall, &window, &end) != 3 || text[end] != '\0'
        || (strcmp(word, "some") != 0 && strcmp(word, "full") != 0))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "CTRT_MEMORY_PRESSURE=%.64s: expected off, on, or as in \"on:some 150000 2000000\" (some or "
                         "full, microseconds "
                         "of stall, microseconds of window)", text);
    /* Limits of the kernel. */
    if (window < 500000 || window > 10000000 || stall == 0 || stall > window)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "CTRT_MEMORY_PRESSURE=%.64s: the window must be 500000 to 10000000 microseconds, and the "
                         "stall at most the window",
                         text);
    snprintf(options->trigger, sizeof options->trigger, "%s %" PRIu64 " %" PRIu64, word, stall, window);
    return CTRT_OK;
}

/* ---- files to watch ---- */

/* Returns whether the file is a kernel file that accepts triggers. Writing the trigger would overwrite any other
 * file. */
static bool is_kernel_file(int fd)
{
    struct statfs system;
    return fstatfs(fd, &system) == 0 && (system.f_type == PROC_SUPER_MAGIC || system.f_type == CGROUP2_SUPER_MAGIC);
}

/* Returns 0 or an errno. */
static int pressure_watch(const char *path, const char *trigger)
{
    struct stat facts;
    int fd = fd_above_stdio(open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC)), why = 0;
    if (fd < 0)
        return errno;
    bool fifo = fstat(fd, &facts) == 0 && S_ISFIFO(facts.st_mode);
    if (!fifo && !is_kernel_file(fd))
        why = EINVAL;
    else if (!fifo && write(fd, trigger, strlen(trigger) + 1) < 0)
        why = errno;
    if (why) {
        close(fd);
        return why;
    }
    watcher.sources[watcher.count] = (struct pollfd){ .fd = fd, .events = fifo ? POLLIN : POLLPRI };
    watcher.fifo[watcher.count++] = fifo;
    return 0;
}

/* The path of memory.pressure of this process's control group (cgroup v2). */
static bool group_file(char *path, size_t bytes)
{
    char line[1024];
    bool found = false;
    FILE *file = fopen_above_stdio("/proc/self/cgroup");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
        found = strncmp(line, "0::/", 4) == 0;
    if (file != NULL)
        fclose(file);
    if (!found)
        return false;
    line[strcspn(line, "\n")] = '\0';
    static const char *const mounts[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified" };
    for (size_t i = 0; i < COUNT_OF(mounts); i++) {
        if ((size_t)snprintf(path, bytes, "%s%s/memory.pressure", mounts[i], line + 3) < bytes
            && access(path, F_OK) == 0)
            return true;
    }
    return false;
}

static bool watch_all(const char *named, const char *trigger)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    static const char machine[] = "/proc/pressure/memory";
    char group[1200];
    int why = ENOENT;
    const char *last = named != NULL ? named : machine;
    if (named != NULL) {
        why = pressure_watch(named, trigger);
    } else {
        if (group_file(group, sizeof group))
            (void)pressure_watch(group, trigger);
        why = pressure_watch(machine, trigger);
    }
    if (watcher.count > 0)
        return true;
    if (atomic_flag_test_and_set(&said))
        return false;
    log_message(CTRT_LOG_INFO, "memory",
                "memory pressure is not watched: %s: %s%s", last, strerror(why),
                why == EINVAL
                    ? " (not a pressure file, or the window is not a multiple of 2 s, which needs privilege)"
                : why == EPERM   ? " (older kernels require privilege for it)"
                : why == ENOENT || why == EOPNOTSUPP
                    ? " (the kernel has no pressure stall information, or psi=0)" : "");
    return false;
}

/* ---- the thread ---- */

struct open_hosts {
    ctrt_device *list[16];
    int count;
    uint64_t given;
};

/* Trims pinned memory here, under the device lock, so that the device cannot be closed meanwhile; this does not wait
 * for work. Locks of policies must not be taken under the device lock, so devices with host memory, which stay open,
 * are only collected. */
static void pressure_visit(ctrt_device *device, void *argument)
{
    struct open_hosts *hosts = argument;
    if (device->memory == NULL || !device_usable(device))
        return;
    if (device_host_memory(device)) {
        if (hosts->count < (int)COUNT_OF(hosts->list))
            hosts->list[hosts->count++] = device;
        return;
    }
    uint64_t before = pinned_held(device);
    pinned_trim_idle(device);
    uint64_t after = pinned_held(device);
    hosts->given += before > after ? before - after : 0;
}

/* Frees cached host memory: memory pinned for devices, and caches of the policies of devices with host memory. */
static void pressure_empty_caches(void)
{
    struct open_hosts hosts = { .count = 0 };
    device_for_each(pressure_visit, &hosts);
    for (int i = 0; i < hosts.count; i++) {
        struct device_memory *memory = hosts.list[i]->memory;
        uint64_t before = counters_reserved_bytes(&memory->counters);
        pool_trim(memory);
        uint64_t after = counters_reserved_bytes(&memory->counters);
        hosts.given += before > after ? before - after : 0;
    }
    atomic_fetch_add(&trims, 1);
    log_message(CTRT_LOG_INFO, "memory", "memory pressure: %.1f MiB of cached memory released",
                (double)hosts.given / (1 << 20));
}

/* Returns true if the source reported pressure. Stops polling a source that has ended. */
static bool source_reported(int i)
{
    struct pollfd *source = &watcher.sources[i];
    short events = source->revents;
    char rest[256];
    if (events & (POLLERR | POLLHUP | POLLNVAL) && !(events & source->events)) {
        source->fd = -source->fd - 1;       /* poll ignores negative descriptors; close_all closes it */
        log_message(CTRT_LOG_INFO, "memory", "memory pressure: a source has ended and is no longer watched");
        return false;
    }
    if (!(events & source->events))
        return false;
    if (watcher.fifo[i])
        while (read(source->fd, rest, sizeof rest) > 0)
            continue;
    return true;
}

static void *watch_pressure(void *ignored)
{
    struct pollfd polled[MOST_SOURCES + 1];
    for (;;) {
        bool reported = false;
        memcpy(polled, watcher.sources, sizeof watcher.sources);
        polled[MOST_SOURCES] = (struct pollfd){ .fd = watcher.wake, .events = POLLIN };
        if (poll(polled, COUNT_OF(polled), -1) < 0 && errno != EINTR)
            return ignored;
        if (polled[MOST_SOURCES].revents)
            return ignored;
        memcpy(watcher.sources, polled, sizeof watcher.sources);
        for (int i = 0; i < watcher.count; i++)
            reported |= source_reported(i);
        if (reported)
            pressure_empty_caches();
    }
}

/* ---- start and stop ---- */

static void close_one(int *fd)
{
    if (*fd != -1)
        close(*fd < -1 ? -*fd - 1 : *fd);
    *fd = -1;
}

/* Async-signal-safe, because the child of a fork calls it. */
static void close_all(void)
{
    for (int i = 0; i < MOST_SOURCES; i++)
        close_one(&watcher.sources[i].fd);
    close_one(&watcher.wake);
    watcher.count = 0;
}

static void after_fork_in_child(void)
{
    if (atomic_load(&state) == IDLE)
        return;
    close_all();
    atomic_store(&state, IDLE);
    atomic_store(&pressure_lost, true);
}

static bool pressure_start_thread(void)
{
    watcher.wake = fd_above_stdio(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (watcher.wake < 0)
        return false;
    bool started = thread_start(&watcher.thread, watch_pressure, NULL) == 0;
    if (started)
        (void)pthread_setname_np(watcher.thread, "ctrt-pressure");
    return started;
}

ctrt_status pressure_start(void)
{
    CANCEL_DISABLED;
    static atomic_flag registered = ATOMIC_FLAG_INIT, failed = ATOMIC_FLAG_INIT;
    struct pressure_options options;
    ctrt_param_value value, file;
    CTRT_TRY(param_read(&value, &pressure_param, "core"));
    CTRT_TRY(param_read(&file, &file_param, "core"));
    CTRT_TRY(pressure_parse(&options, value.text));
    int idle = IDLE;
    if (!options.watch || !atomic_compare_exchange_strong(&state, &idle, STARTING))
        return CTRT_OK;
    if (!atomic_flag_test_and_set(&registered)) {
        (void)lock_at_fork(NULL, NULL, after_fork_in_child);
        atexit(pressure_stop);              /* registered late, so it runs before handlers registered earlier */
    }
    bool running = watch_all(file.text, options.trigger);
    if (running && !pressure_start_thread()) {
        running = false;
        if (!atomic_flag_test_and_set(&failed))
            log_message(CTRT_LOG_WARNING, "memory", "memory pressure is not watched: no thread could be started");
    }
    if (!running)
        close_all();
    atomic_store(&state, running ? RUNNING : IDLE);
    return CTRT_OK;
}

void pressure_restart(void)
{
    if (atomic_exchange(&pressure_lost, false))
        (void)pressure_start();             /* the parameters were valid before the fork */
}

void pressure_stop(void)
{
    CANCEL_DISABLED;
    int running = RUNNING;
    uint64_t one = 1;
    if (!atomic_compare_exchange_strong(&state, &running, STOPPING))
        return;
    if (write(watcher.wake, &one, sizeof one) == (ssize_t)sizeof one)
        pthread_join(watcher.thread, NULL);
    close_all();
    atomic_store(&state, IDLE);
}

__attribute__((destructor)) static void pressure_end(void)
{
    pressure_stop();
}
