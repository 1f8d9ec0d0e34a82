/* SPDX-License-Identifier: Apache-2.0 */
/* child.h: checks that want a fresh process, because the library keeps what it has read and loaded; on top of
 * tap.h.
 *
 *     IN_CHILD("CTRT_DEVICE=fake:1") {
 *         CHECK_OK(ctrt_device_get(&device, "auto"));
 *     }
 *     CHILD_END
 *
 * The parent must not have used the library before. */
#ifndef CTRT_TESTS_CHILD_H
#define CTRT_TESTS_CHILD_H

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

/* Sets "NAME=value" for each string up to NULL. */
static inline void child_environment(const char *const *settings)
{
    for (; *settings != NULL; settings++) {
        char name[64];
        size_t length = strcspn(*settings, "=");
        snprintf(name, sizeof name, "%.*s", (int)length, *settings);
        setenv(name, *settings + length + 1, 1);
    }
}

/* In the parent: waits for the child and counts its result as one check. */
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

/* Whether this build bears a fork beside busy threads; else the open group is skipped. The address sanitizer's own
 * allocator may be locked by one of them at the fork, and then stays so in the child. */
static inline bool forks_beside_threads(void)
{
#ifdef __SANITIZE_ADDRESS__
    skip_group("the address sanitizer's allocator does not bear a fork beside busy threads");
    return false;
#else
    return true;
#endif
}

#define IN_CHILD(...)                                                           \
    do {                                                                        \
        fflush(stdout);                                                         \
        pid_t child_ = fork();                                                  \
        if (child_ == 0) {                                                      \
            const char *const settings_[] = { __VA_ARGS__, NULL };              \
            child_environment(settings_);                                       \
            tap_state.failed = 0;

#define CHILD_END                                                               \
            fflush(stdout);                                                     \
            exit(tap_state.failed > 0);                                         \
        }                                                                       \
        child_join(child_, __FILE__, __LINE__);                                 \
    } while (0)

#endif
