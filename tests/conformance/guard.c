/* SPDX-License-Identifier: Apache-2.0 */
/* guard.c: `ctrt check --guard`. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "guard.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctrt/ctrt.h"

static struct guard_progress *progress;

/* ---- in the child ---- */

static void crashed(int number, siginfo_t *info, void *context)
{
    (void)context;
    progress->address = (uint64_t)(uintptr_t)info->si_addr;
    signal(number, SIG_DFL);
    raise(number);
}

/* The library logs each guarded call. */
static void note_call(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user;
    if (strcmp(component, "guard") == 0)
        snprintf(progress->call, sizeof progress->call, "%s", text);
    else if (level <= CTRT_LOG_WARNING)
        fprintf(stderr, "ctrt: %s: %s\n", component, text);
}

static void guard_child(const struct conformance_options *given)
{
    static const int signals[] = { SIGSEGV, SIGBUS };
    struct conformance_options options = *given;
    const struct sigaction action = { .sa_sigaction = crashed, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };
    const struct rlimit none = { 0, 0 };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &none);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &action, NULL);
    ctrt_log_set_callback(note_call, NULL);
    ctrt_log_set_level(CTRT_LOG_DEBUG);
    options.progress = progress;
    const int status = conformance_run(&options, NULL);
    progress->ended = true;
    _exit(status == 2 ? 2 : 0);
}

/* ---- in the parent ---- */

/* Describes the address relative to the operands of the call: "4 bytes after the end of input 0 f32[3]". */
static void guard_place_text(char *text, size_t bytes)
{
    uint64_t nearest = UINT64_MAX;
    snprintf(text, bytes, progress->address < 4096 ? GUARD_NULL : "an address that is not near an operand");
    for (const char *at = strchr(progress->call, ';'); at != NULL; at = strchr(at + 1, ';')) {
        char name[256];
        unsigned long long begin, end;
        if (sscanf(at, "; %255[^;] at 0x%llx-0x%llx", name, &begin, &end) < 1)
            continue;
        char *cut = strstr(name, " at 0x");
        if (cut == NULL || sscanf(cut, " at 0x%llx-0x%llx", &begin, &end) != 2)
            continue;
        *cut = '\0';
        const bool before = progress->address < begin;
        const uint64_t distance = before ? begin - progress->address : progress->address - end + 1;
        if (distance >= nearest || distance > 65536)
            continue;
        nearest = distance;
        snprintf(text, bytes, "byte %llu %s of %s", (unsigned long long)distance,
                 before ? "before the beginning" : "after the end", name);
    }
}

static void print_crash(int status, double seconds)
{
    char place[512];
    guard_place_text(place, sizeof place);
    progress->result.failed++;
    progress->kernels++;
    printf("not ok %d - %s\n", ++progress->number, progress->check);
    if (progress->expired)
        printf("#   did not end within %g s (--timeout); the next checks were not run\n", seconds);
    else if (WIFSIGNALED(status))
        printf("#   crashed with signal %d, %s, at %s\n", WTERMSIG(status), strsignal(WTERMSIG(status)), place);
    else
        printf("#   the process ended with status %d\n", WEXITSTATUS(status));
    printf("#   in the kernel of %s\n", progress->call[0] != '\0' ? progress->call : "no op");
    fflush(stdout);
}

/* Runs the suite once. Returns false if it cannot start. */
static bool guard_pass(const struct conformance_options *options, const char *place)
{
    if (setenv("CTRT_CHECK_GUARD", place, 1) != 0)
        return false;
    printf("# memory %s the operands of kernels is not mapped\n", place[0] == 'e' ? "after" : "before");
    progress->begun = 0;
    for (progress->ended = false; !progress->ended;) {
        progress->skip = progress->begun;
        progress->address = 0;
        progress->call[0] = progress->check[0] = '\0';
        fflush(NULL);
        int status = 0;
        const pid_t child = fork();
        if (child < 0) {
            perror("ctrt check: fork");
            return false;
        }
        if (child == 0)
            guard_child(options);
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            continue;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
            return false;
        if (progress->ended)
            return true;
        if (progress->begun == progress->skip) {
            fprintf(stderr, "ctrt check: the suite crashed before its first check\n");
            return false;
        }
        print_crash(status, options->seconds);
        if (progress->expired)
            return true;
    }
    return true;
}

/* Runs in a child, because the parent must not open a device before it forks. Exits with 0 if the device can be
 * guarded, 77 after a message if not, 2 if it cannot be opened. */
static void look(const char *device)
{
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    if (ctrt_device_get_properties(&properties, device) != CTRT_OK) {
        fprintf(stderr, "ctrt check: %s\n", ctrt_error_message());
        _exit(2);
    }
    if (properties.host_memory)
        _exit(0);
    printf("1..0 # SKIP the memory of %s is not memory of the host, so its kernels cannot run on guarded operands\n",
           device);
    fflush(stdout);
    _exit(77);
}

int guard_conformance(const struct conformance_options *options)
{
    int status = 0;
    progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED) {
        perror("ctrt check");
        return 2;
    }
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0)
        look(options->device != NULL ? options->device : "cpu");
    if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status))
        return 2;
    if (WEXITSTATUS(status) != 0)
        return WEXITSTATUS(status);
    if (!guard_pass(options, "end") || (!progress->expired && !guard_pass(options, "start")))
        return 2;
    printf("1..%d\n# %d passed, %d failed, %d skipped, %d failed as expected\n", progress->number,
           progress->result.passed, progress->result.failed, progress->result.skipped, progress->result.expected);
    if (progress->kernels == 0)
        printf("# nothing was checked: no check with a kernel of the device ran\n");
    return progress->result.failed > 0 || progress->kernels == 0 ? 1 : 0;
}
