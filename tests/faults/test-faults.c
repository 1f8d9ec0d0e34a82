/* SPDX-License-Identifier: Apache-2.0 */
/* test-faults.c: makes the n-th call of malloc, mmap, open, read, write, rename, pthread_create or dlopen fail, for n
 * from 1 until the program makes fewer than n calls.
 *
 * Cold: in a new process, so that the failure can hit initialisation. Warm: after a first pass. There must be no crash,
 * no hang and no exit; a call that fails must return a status and set a message; afterwards the same process must
 * compute correct results.
 *
 * Without arguments: every n up to 16 and then a sample, which is smaller on a slow machine; with CTRT_FAULTS=full in
 * the environment every n. To run one case and print the backtrace of the failed call: SHIM_TRACE=1 test-faults
 * CONFIGURATION cold|warm KIND N [once|forever]. */
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#include "child.h"
#include "shim.h"
#include "work.h"

static const char *const kinds[] = { "none", "alloc", "mmap", "open", "read", "write", "rename", "thread", "dlopen" };

static const struct configuration {
    const char *name;
    const char *settings[4];
} configurations[] = {
    { "cpu", { "CTRT_DEVICE=cpu" } },
    { "sim", { "CTRT_DEVICE=sim:0", "CTRT_SIM=devices=1" } },
};
enum { CONFIGURATIONS = sizeof configurations / sizeof configurations[0] };

static shim_arm_function *arm;
static shim_disarm_function *disarm;
static const char *folder;
static bool full;
static double expected[WORK_PARTS];

/* Shared memory that the child writes and the parent reads after the child has ended, even by a signal. */
static struct shared {
    long n, counted;
    int part;                           /* the running part; -1: none */
    bool done, armed;
    char complaint[1024];
} *shared;

enum { FINE = 77, BAD };                /* exit codes of children; libraries that end the process use 0 or 1 */

__attribute__((format(printf, 1, 2), noreturn))
static void bad(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(shared->complaint, sizeof shared->complaint, format, list);
    va_end(list);
    _exit(BAD);
}

/* Runs all parts. With `strict` every part must succeed with the expected result; otherwise a part may fail with a
 * message, and the results of listings are not compared. */
static void pass(bool strict)
{
    for (int i = 0; i < WORK_PARTS; i++) {
        const struct work_part *part = &work_parts[i];
        double got = 0;
        shared->part = i;
        ctrt_status status = part->run(&got, folder);
        if (status != CTRT_OK && strict)
            bad("%s: %s: %s", part->name, ctrt_status_string(status), ctrt_error_message());
        if (status != CTRT_OK && ctrt_error_message()[0] == '\0')
            bad("%s: %s without a message", part->name, ctrt_status_string(status));
        if (status == CTRT_OK && (strict || !part->listing) &&
            !(fabs(got - expected[i]) <= 1e-4 * (1 + fabs(expected[i]))))
            bad("%s: got %.9g, expected %.9g", part->name, got, expected[i]);
        if (getenv("SHIM_TRACE") != NULL)
            fprintf(stderr, "# %s: %s%s%s\n", part->name, ctrt_status_string(status), status ? ": " : "",
                    status ? ctrt_error_message() : "");
    }
    shared->part = -1;
}

static void disturbed(enum fault_kind kind, long n, bool forever)
{
    shared->armed = true;
    arm(kind, n, forever);
    pass(false);
    shared->counted = disarm();
    shared->armed = false;
    /* On an asynchronous device a failure leaves its stream in an error state, which a reset ends. */
    ctrt_device *device;
    CTRT_AUTO(stream) stream = NULL;
    if (ctrt_device_get(&device, NULL) == CTRT_OK && ctrt_stream_default(&stream, device) == CTRT_OK)
        ctrt_stream_reset(stream);
}

static void quiet(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)level;
    if (getenv("SHIM_TRACE") != NULL)
        fprintf(stderr, "# log: %s: %s\n", component, text);
}

static pid_t child_begin(const struct configuration *configuration)
{
    fflush(stdout);
    shared->part = -1;
    shared->done = shared->armed = false;
    shared->complaint[0] = '\0';
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_DUMPABLE, 0);          /* no core files */
    child_environment(configuration->settings);
    ctrt_log_set_callback(quiet, NULL);
    return 0;
}

static bool child_fine(pid_t pid, const char *what)
{
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return CHECK(false, "%s: no child process", what);
    const char *part = shared->part >= 0 ? work_parts[shared->part].name : "between parts";
    if (WIFEXITED(status) && WEXITSTATUS(status) == BAD)
        return CHECK(false, "%s, n = %ld%s: %s", what, shared->n, shared->armed ? "" : ", afterwards",
                     shared->complaint);
    if (WIFSIGNALED(status))
        return CHECK(false, "%s, n = %ld%s: %s in part \"%s\"", what, shared->n, shared->armed ? "" : ", afterwards",
                     WTERMSIG(status) == SIGALRM ? "hang" : strsignal(WTERMSIG(status)), part);
    return CHECK(WEXITSTATUS(status) == FINE, "%s, n = %ld%s: the process was ended with code %d in part \"%s\"", what,
                 shared->n,
                 shared->armed ? "" : ", afterwards", WEXITSTATUS(status), part);
}

/* After this time in seconds, a third of the usual time limit of a test, the remaining kinds are tested with n = 1
 * only. A machine without other load needs less than 60 seconds. */
enum { TIME_FOR_SAMPLES = 300 };
static const long most_n = 1000000;

static bool late(void)
{
    static time_t begin;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (begin == 0)
        begin = now.tv_sec;
    return !full && now.tv_sec - begin > TIME_FOR_SAMPLES;
}

static long next_n(long n, double growth)
{
    if (late())
        return most_n + 1;
    return full || n < 16 ? n + 1 : (long)((double)n * growth) + 1;
}

static void cold(const struct configuration *configuration, enum fault_kind kind, long n, bool forever)
{
    char what[80];
    snprintf(what, sizeof what, "%s, cold, %s, %s", configuration->name, kinds[kind], forever ? "from n on" : "once");
    shared->n = n;
    pid_t pid = child_begin(configuration);
    if (pid == 0) {
        alarm(30);
        disturbed(kind, n, forever);
        pass(true);
        _exit(FINE);
    }
    child_fine(pid, what);
}

static void all_cold(const struct configuration *configuration, enum fault_kind kind, bool forever)
{
    for (long n = 1; n <= most_n; n = next_n(n, forever ? 2.2 : 1.4)) {
        shared->counted = n;            /* remains if the child dies */
        cold(configuration, kind, n, forever);
        if (shared->counted < n)
            break;
    }
}

/* Uses one child for all n, and starts a new one if it dies. */
static void all_warm(const struct configuration *configuration, enum fault_kind kind, bool forever, long first,
                     long last)
{
    char what[80];
    snprintf(what, sizeof what, "%s, warm, %s, %s", configuration->name, kinds[kind], forever ? "from n on" : "once");
    shared->n = first;
    shared->done = false;
    while (!shared->done && shared->n <= last) {
        pid_t pid = child_begin(configuration);
        if (pid == 0) {
            alarm(30);
            pass(true);
            do {
                alarm(30);
                shared->counted = shared->n;
                disturbed(kind, shared->n, forever);
                pass(true);
                shared->done = shared->counted < shared->n;
                shared->n = next_n(shared->n, forever ? 1.5 : 1.1);
            } while (!shared->done && shared->n <= last);
            _exit(FINE);
        }
        if (!child_fine(pid, what))
            shared->n = next_n(shared->n, 1.1);
    }
}

static void expect(const struct configuration *configuration)
{
    double *results = mmap(NULL, sizeof expected, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = child_begin(configuration);
    if (pid == 0) {
        alarm(30);
        for (int i = 0; i < WORK_PARTS; i++) {
            ctrt_status status = work_parts[i].run(&results[i], folder);
            if (status != CTRT_OK)
                bad("%s: %s", work_parts[i].name, ctrt_error_message());
        }
        _exit(FINE);
    }
    child_fine(pid, "without failures");
    memcpy(expected, results, sizeof expected);
    munmap(results, sizeof expected);
}

static int single(char **arguments)
{
    const struct configuration *configuration = NULL;
    enum fault_kind kind = FAULT_NONE;
    for (int i = 0; i < CONFIGURATIONS; i++)
        if (strcmp(configurations[i].name, arguments[1]) == 0)
            configuration = &configurations[i];
    for (int i = 1; i < FAULT_KINDS; i++)
        if (strcmp(kinds[i], arguments[3]) == 0)
            kind = (enum fault_kind)i;
    const long n = strtol(arguments[4], NULL, 10);
    const bool forever = arguments[5] != NULL && strcmp(arguments[5], "forever") == 0;
    if (configuration == NULL || kind == FAULT_NONE)
        return 2;
    expect(configuration);
    group("%s", configuration->name);
    if (strcmp(arguments[2], "cold") == 0)
        cold(configuration, kind, n, forever);
    else
        all_warm(configuration, kind, forever, n, n);
    return done();
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
    char template[] = "/tmp/ctrt-faults-XXXXXX";
    folder = mkdtemp(template);
    full = getenv("CTRT_FAULTS") != NULL && strcmp(getenv("CTRT_FAULTS"), "full") == 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (folder == NULL || shared == MAP_FAILED)
        return skip_rest("no folder or no memory for the test itself");
    setenv("CTRT_NUM_THREADS", "2", 1);
    setenv("OMP_WAIT_POLICY", "passive", 0);
    (void)late();                       /* the first call sets the start time */
    if (argc > 4)
        return single(argv);
    for (int c = 0; c < CONFIGURATIONS; c++) {
        group("%s: without failures", configurations[c].name);
        expect(&configurations[c]);
        for (int kind = 1; kind < FAULT_KINDS; kind++) {
            group("%s: every failed call of kind %s, cold", configurations[c].name, kinds[kind]);
            all_cold(&configurations[c], (enum fault_kind)kind, false);
            all_cold(&configurations[c], (enum fault_kind)kind, true);
            group("%s: every failed call of kind %s, warm", configurations[c].name, kinds[kind]);
            all_warm(&configurations[c], (enum fault_kind)kind, false, 1, most_n);
            all_warm(&configurations[c], (enum fault_kind)kind, true, 1, most_n);
        }
    }
    if (late())
        printf("# after %d seconds only n = 1 was tested\n", TIME_FOR_SAMPLES);
    work_clean(folder);
    rmdir(folder);
    return done();
}
