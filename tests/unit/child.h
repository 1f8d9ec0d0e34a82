/* SPDX-License-Identifier: Apache-2.0 */
/* child.h: checks that need a fresh process, because the library keeps the settings and plugins that it has loaded.
 * Uses tap.h.
 *
 *     IN_CHILD("CTRT_DEVICE=fake:1") {
 *         CHECK_OK(ctrt_device_get(&device, "auto"));
 *     }
 *
 * The parent must not have used the library before. */
#ifndef CTRT_TESTS_CHILD_H
#define CTRT_TESTS_CHILD_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tap.h"

static inline double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Sets each "NAME=value" of the NULL-terminated list in the environment. */
static inline void child_environment(const char *const *settings)
{
    for (; *settings != NULL; settings++) {
        char name[64];
        size_t length = strcspn(*settings, "=");
        snprintf(name, sizeof name, "%.*s", (int)length, *settings);
        setenv(name, *settings + length + 1, 1);
    }
}

/* Called in the parent: waits for the child and counts its result as one check. */
static inline void child_join(pid_t child, const char *file, int line)
{
    int status = 0;
    bool ended = child > 0 && waitpid(child, &status, 0) == child;
    tap_check(ended && WIFEXITED(status) && WEXITSTATUS(status) == 0, file, line, "the child process %s %d",
              !ended                ? "could not be started or waited for"
              : WIFSIGNALED(status) ? "was killed by signal"
                                    : "ended with failed checks, status",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* Returns whether this build supports a fork while other threads are busy; if not, skips the open group. Another
 * thread may hold a lock of AddressSanitizer's allocator at the fork, and the lock then stays locked in the child. */
static inline bool forks_beside_threads(void)
{
#ifdef __SANITIZE_ADDRESS__
    skip_group("AddressSanitizer's allocator does not support a fork while other threads are busy");
    return false;
#else
    return true;
#endif
}

/* Forks, and sets the environment in the child. Returns the result of fork(). */
static inline pid_t child_start(const char *const *settings)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        alarm(600);                         /* child_join reports a child that hangs */
        child_environment(settings);
        tap_state.failed = 0;
    }
    return child;
}

/* Called in the child: ends it with the result of its checks. */
__attribute__((noreturn))
static inline void child_end(void (*end)(int))
{
    fflush(stdout);
    end(tap_state.failed > 0);
    abort();
}

/* Calls `run` in `count` threads, with arguments that are `bytes` apart, and waits for their ends. */
static inline void in_threads(int count, void *(*run)(void *), void *arguments, size_t bytes)
{
    pthread_t threads[16];
    REQUIRE_TRUE(count <= 16);
    for (int i = 0; i < count; i++)
        REQUIRE_EQ(pthread_create(&threads[i], NULL, run, (char *)arguments + (size_t)i * bytes), 0);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

/* The bytes of addresses that this process uses, to which RLIMIT_AS applies. */
static inline uint64_t address_space(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    CHECK(file != NULL && fscanf(file, "%llu", &pages) == 1, "/proc/self/statm cannot be read");
    if (file != NULL)
        fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

#define CHILD_LOOP(child, settings, end)                                                                        \
    for (pid_t child = child_start(settings); child == 0 || (child_join(child, __FILE__, __LINE__), false); \
         child_end(end))
#define IN_CHILD(...) CHILD_LOOP(child_, ((const char *const[]){ __VA_ARGS__, NULL }), exit)
/* The same after the first use of the library; the child ends without the handlers of atexit(). */
#define IN_FORK       CHILD_LOOP(fork_, (const char *const[]){ NULL }, _exit)

/* A TEST (tap.h) in a child process with these settings. */
#define CHILD_TEST(function, what, ...)         \
    static void function(void);                 \
    TEST(function##_in_child, what)             \
    {                                           \
        IN_CHILD(__VA_ARGS__)                   \
            function();                         \
    }                                           \
    static void function(void)

#endif
