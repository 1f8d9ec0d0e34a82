/* SPDX-License-Identifier: Apache-2.0 */
/* test-faults.c: makes the n-th call of malloc, mmap, open, read, write, rename, pthread_create or dlopen fail, for n
 * from 1 until the program makes fewer than n calls.
 *
 * Cold: in a new process, so that the failure can hit initialisation. Warm: after a first pass. There must be no crash,
 * no hang and no exit; a call that fails must return a status and set a message; afterwards the same process must
 * compute correct results.
 *
 * Every n up to 8 and then a sample; with CTRT_FAULTS=full in the environment every n. With SHIM_TRACE=1 each failed
 * call prints its backtrace. */
#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>

#include "shim.h"
#include "work.h"

static const char *const kinds[] = { "none", "alloc", "mmap", "open", "read", "write", "rename", "thread", "dlopen" };

/* On sim only the kinds for which the device makes a difference. */
static const struct configuration {
    const char *name;
    const char *settings[3];
    unsigned kinds;
} configurations[] = {
    { "cpu", { "CTRT_DEVICE=cpu" }, ~0u },
    { "sim", { "CTRT_DEVICE=sim:0", "CTRT_SIM=devices=1" },
      1u << FAULT_ALLOC | 1u << FAULT_MMAP | 1u << FAULT_WRITE | 1u << FAULT_THREAD | 1u << FAULT_DLOPEN },
};

static void (*arm)(enum fault_kind kind, long n, bool forever);
static long (*disarm)(void);
static bool full;

/* One series of failures. */
struct series {
    const struct configuration *configuration;
    enum fault_kind kind;
    bool warm, forever;
};

/* Shared memory that the child writes and the parent reads after the child has ended, even by a signal. */
static struct shared {
    long n, counted;
    bool done;
    const char *when;
} *shared;

enum { FINE = 77, BAD };                /* exit codes of children; libraries that end the process use 0 or 1 */

static void check_or_exit(bool strict, const char *when)
{
    char text[64];
    shared->when = when;
    snprintf(text, sizeof text, "n = %ld, %s", shared->n, when);
    if (work_check(strict, text))
        return;
    fflush(stdout);
    _exit(BAD);
}

/* Runs with the failure injected and then without. */
static void disturb(const struct series *series)
{
    ctrt_device *device;
    CTRT_AUTO(stream) stream = NULL;
    alarm(120);
    shared->counted = shared->n;        /* remains if the child dies */
    arm(series->kind, shared->n, series->forever);
    check_or_exit(false, "with the failure");
    shared->counted = disarm();
    /* On an asynchronous device a failure leaves its stream in an error state, which a reset ends. */
    if (ctrt_device_get(&device, NULL) == CTRT_OK && ctrt_stream_default(&stream, device) == CTRT_OK)
        ctrt_stream_reset(stream);
    check_or_exit(true, "afterwards");
}

static const long most_n = 1000000;

static long next_n(long n, const struct series *series)
{
    const double growth = series->warm ? (series->forever ? 2 : 1.3) : series->forever ? 3 : 1.8;
    return full || n < 8 ? n + 1 : (long)((double)n * growth) + 1;
}

static pid_t child_begin(const struct configuration *configuration)
{
    fflush(stdout);
    work->part = -1;
    shared->when = "at first";
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_DUMPABLE, 0);          /* no core files */
    child_environment(configuration->settings);
    ctrt_log_set_callback(work_log, NULL);
    alarm(120);
    return 0;
}

/* Waits for the child and checks that it ended by itself. */
static bool check_child(pid_t pid)
{
    int status = -1;
    if (!CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "no child process"))
        return false;
    const char *part = work->part >= 0 ? work_parts[work->part].name : "between parts";
    if (WIFSIGNALED(status))
        return CHECK(false, "n = %ld, %s: %s in part \"%s\"", shared->n, shared->when,
                     WTERMSIG(status) == SIGALRM ? "hang" : strsignal(WTERMSIG(status)), part);
    if (WEXITSTATUS(status) == BAD)
        return CHECK(false, "n = %ld: failed checks, see above", shared->n);
    return CHECK(WEXITSTATUS(status) == FINE, "n = %ld, %s: the process was ended with code %d in part \"%s\"",
                 shared->n, shared->when, WEXITSTATUS(status), part);
}

/* Runs the failures of a series: cold with a child for each, warm in one child as long as it does not die. */
static void run_series(const struct series *series)
{
    group("%s: every failed call of kind %s, %s, %s", series->configuration->name, kinds[series->kind],
          series->warm ? "warm" : "cold", series->forever ? "from n on" : "once");
    shared->done = false;
    for (shared->n = 1; !shared->done && shared->n <= most_n; ) {
        pid_t pid = child_begin(series->configuration);
        if (pid == 0) {
            if (series->warm)
                check_or_exit(true, "at first");
            do {
                disturb(series);
                shared->done = shared->counted < shared->n;
                shared->n = next_n(shared->n, series);
            } while (series->warm && !shared->done && shared->n <= most_n);
            _exit(FINE);
        }
        if (!check_child(pid))
            shared->n = next_n(shared->n, series);
    }
}

TEST_MAIN
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return skip_rest("sanitizers interpose the same functions as the shim");
#endif
    *(void **)&arm = dlsym(RTLD_DEFAULT, "shim_arm");
    *(void **)&disarm = dlsym(RTLD_DEFAULT, "shim_disarm");
    if (arm == NULL || disarm == NULL) {
        char shim[4096];
        const char *build = getenv("builddir");
        snprintf(shim, sizeof shim, "%s/.libs/libfaults.so", build != NULL ? build : ".");
        if (getenv("LD_PRELOAD") != NULL)
            return skip_rest("the shim cannot be preloaded");
        setenv("LD_PRELOAD", shim, 1);
        execv("/proc/self/exe", argv);
        return 1;
    }
    full = getenv("CTRT_FAULTS") != NULL && strcmp(getenv("CTRT_FAULTS"), "full") == 0;
    shared = shared_memory(sizeof *shared);
    if (!work_begin())
        return skip_rest("no folder for the test's files");
    setenv("OMP_WAIT_POLICY", "passive", 0);
    EACH(c, configurations) {
        group("%s: without failures", c->name);
        CHILD_LOOP(child, c->settings, exit)
            work_expect();
        for (int i = 4; i < 4 * FAULT_KINDS; i++) {
            const struct series series = { c, (enum fault_kind)(i / 4), (i & 2) != 0, (i & 1) != 0 };
            if (c->kinds >> series.kind & 1)
                run_series(&series);
        }
    }
    work_end();
    return done();
}
