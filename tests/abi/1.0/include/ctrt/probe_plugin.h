/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_PROBE_PLUGIN_H
#define CTRT_PROBE_PLUGIN_H
#include "ctrt/types.h"
#ifdef _POSIX_C_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
CTRT_BEGIN_DECLS
static inline int64_t ctrt_child_clock_(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
static inline const char *ctrt_child_signal_(char text[16], int number)
{
    static const struct { int number; const char *name; } names[] = {
        { SIGSEGV, "SIGSEGV" }, { SIGABRT, "SIGABRT" }, { SIGBUS, "SIGBUS" }, { SIGFPE, "SIGFPE" },
        { SIGILL, "SIGILL" }, { SIGKILL, "SIGKILL" }, { SIGTERM, "SIGTERM" }, { SIGPIPE, "SIGPIPE" },
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].number == number)
            return names[i].name;
    snprintf(text, 16, "signal %d", number);
    return text;
}
static inline bool ctrt_child_read_(int fd, void *answer, size_t bytes, int64_t end, bool *late)
{
    size_t got = 0;
    *late = false;
    while (got < bytes) {
        struct pollfd wait = { fd, POLLIN, 0 };
        const int64_t left = end - ctrt_child_clock_();
        *late = left <= 0;
        if (*late)
            return false;
        if (poll(&wait, 1, left > 1000000 ? 1000000 : (int)left) <= 0)
            continue;
        const ssize_t n = read(fd, (char *)answer + got, bytes - got);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}
static inline bool ctrt_call_in_child(void (*function)(void *answer), void *answer, size_t bytes, int milliseconds,
                                      char *reason, size_t reason_bytes)
{
    int ends[2], status = 0;
    bool late = false;
    char copy[4096], signal_text[16];
    if (bytes > sizeof copy || pipe(ends) != 0) {
        snprintf(reason, reason_bytes, "cannot ask a child process: %s",
                 bytes > sizeof copy ? "its answer has more than 4096 bytes" : strerror(errno));
        return false;
    }
    memcpy(copy, answer, bytes);
    const pid_t child = fork();
    if (child == 0) {
        const char *at = copy;
        close(ends[0]);
        function(copy);
        for (size_t left = bytes; left > 0;) {
            const ssize_t n = write(ends[1], at, left);
            if (n <= 0)
                _exit(1);
            at += n;
            left -= (size_t)n;
        }
        _exit(0);
    }
    const int error = errno;
    close(ends[1]);
    const bool answered = child > 0
        && ctrt_child_read_(ends[0], copy, bytes, ctrt_child_clock_() + milliseconds, &late);
    close(ends[0]);
    if (child > 0) {
        if (late)
            kill(child, SIGKILL);
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            continue;
    }
    if (answered)
        memcpy(answer, copy, bytes);
    else if (child < 0)
        snprintf(reason, reason_bytes, "cannot start a child process: %s", strerror(error));
    else if (late)
        snprintf(reason, reason_bytes, "did not return within %d ms", milliseconds);
    else if (WIFSIGNALED(status))
        snprintf(reason, reason_bytes, "crashed with %s",
                 ctrt_child_signal_(signal_text, WTERMSIG(status)));
    else
        snprintf(reason, reason_bytes, "ended with status %d", WEXITSTATUS(status));
    return answered;
}
struct ctrt_child_probe_ {
    int32_t (*probe)(char *reason, size_t bytes);
    int32_t result;
    char reason[512];
};
static inline void ctrt_child_probe_run_(void *answer)
{
    struct ctrt_child_probe_ *own = (struct ctrt_child_probe_ *)answer;
    own->result = own->probe(own->reason, sizeof own->reason);
}
static inline int32_t ctrt_probe_in_child(int32_t (*probe)(char *reason, size_t bytes), char *reason, size_t bytes,
                                          int milliseconds)
{
    struct ctrt_child_probe_ own;
    char why[128];
    memset(&own, 0, sizeof own);
    own.probe = probe;
    if (ctrt_call_in_child(ctrt_child_probe_run_, &own, sizeof own, milliseconds, why, sizeof why))
        snprintf(reason, bytes, "%.511s", own.reason);
    else
        snprintf(reason, bytes, "the vendor's functions, called in a child process: %s", why);
    return own.result;
}
CTRT_END_DECLS
#endif
#endif
