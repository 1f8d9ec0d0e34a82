/* SPDX-License-Identifier: Apache-2.0 */
/* contract.c: finds the plugin, runs each check in a child process with a time limit, and prints TAP. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "contract_report.h"
#include "ctrt/comm_plugin.h"
#include "junit.h"

static const struct contract_kind *const kinds[] = {
    &contract_backend, &contract_memory, &contract_comm, &contract_strategy, &contract_image,
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

struct contract_target contract_target;

struct report *report;
void (*contract_ends)(void);

/* ---- in the child ---- */

static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread char own_step[512];             /* report->step may be that of another thread or process */
static __thread uint64_t failures_seen;         /* of contract_failure.count, when the step began */
#define NO_MESSAGE "no call has failed"

/* The first thread that ends the check decides its outcome. The others wait for the end of the process. */
static _Noreturn void end_check(enum outcome outcome, const char *format, va_list list)
{
    pthread_mutex_lock(&report_lock);
    if (report->outcome == NO_OUTCOME) {
        vsnprintf(report->text, sizeof report->text, format, list);
        memcpy(report->step, own_step, sizeof own_step);
    }
    __atomic_store_n(&report->outcome, outcome, __ATOMIC_RELEASE);
    if (contract_ends != NULL) {
        pthread_mutex_unlock(&report_lock);
        contract_ends();
    }
    _exit(outcome == FAILED);
}

void contract_fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    end_check(FAILED, format, list);
}

void contract_skip(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    end_check(SKIPPED, format, list);
}

void contract_step(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(own_step, sizeof own_step, format, list);
    va_end(list);
    if (report->outcome == NO_OUTCOME)          /* else another process has failed, and its step is reported */
        memcpy(report->step, own_step, sizeof own_step);
    failures_seen = contract_failure.count;
    if (contract_target.calls_library)
        (void)ctrt_fail(CTRT_ERR_STATE, NO_MESSAGE);
}

/* A plugin that is linked with libctrt may set the message by ctrt_fail as well as by host->fail. */
static void message_of_library(ctrt_status status)
{
    const char *text = ctrt_error_message();
    if (!contract_target.calls_library || contract_failure.count > failures_seen || strcmp(text, NO_MESSAGE) == 0)
        return;
    contract_failure.status = status;
    contract_failure.count++;
    snprintf(contract_failure.text, sizeof contract_failure.text, "%s", text);
}

void contract_ok(ctrt_status status)
{
    if (status == CTRT_OK)
        return;
    message_of_library(status);
    const char *why = contract_failure.status == status ? contract_failure.text
                                                        : "no message: host->fail was not called";
    contract_fail("returned %d, '%s' (%s)", (int)status, ctrt_status_string(status), why);
}

void contract_refused(ctrt_status status, ctrt_status wanted)
{
    message_of_library(status);
    const bool reported = contract_failure.count > failures_seen && contract_failure.status == status;
    EXPECT(status != CTRT_OK, "returned CTRT_OK, but has to fail");
    EXPECT(status < 0, "returned %d, which is not a status", (int)status);
    EXPECT(reported, "returned '%s' without a message: host->fail was not called with this status",
           ctrt_status_string(status));
    EXPECT(contract_failure.text[0] != '\0', "the message of '%s' is empty", ctrt_status_string(status));
    EXPECT(wanted == CTRT_OK || status == wanted, "returned '%s' (%s), expected '%s'", ctrt_status_string(status),
           contract_failure.text, ctrt_status_string(wanted));
}

void contract_sleep(int milliseconds)
{
    struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000L };
    while (nanosleep(&time, &time) != 0 && errno == EINTR)
        continue;
}

/* The folder of the files of a check. `group`: its process group. */
static void folder_of(char path[256], int group)
{
    const char *temporary = getenv("TMPDIR");
    snprintf(path, 256, "%.200s/ctrt-contract.%d", temporary != NULL ? temporary : "/tmp", group);
}

void contract_path(char path[256], int number)
{
    struct stat found;
    folder_of(path, getpgrp());
    EXPECT(mkdir(path, 0700) == 0 || (lstat(path, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid()),
           "%s cannot be created", path);
    snprintf(path + strlen(path), 256 - strlen(path), "/%d.%d", (int)getpid(), number);
}

int contract_fork(void (*body)(void))
{
    const pid_t child = fork();
    EXPECT(child >= 0, "fork: %s", strerror(errno));
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        body();
        _exit(0);
    }
    return child;
}

static void child_ended(int status, bool killed)
{
    if (report->outcome != NO_OUTCOME)
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    if (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return;
    if (status == 0)
        return;
    memcpy(own_step, report->step, sizeof own_step);    /* of the child */
    EXPECT(!WIFSIGNALED(status), "a child process crashed with signal %d, %s", WTERMSIG(status),
           strsignal(WTERMSIG(status)));
    EXPECT(WEXITSTATUS(status) == 0, "a child process exited with status %d", WEXITSTATUS(status));
}

void contract_join(int child)
{
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    child_ended(status, false);
}

bool contract_ended(int child, bool killed)
{
    int status = 0;
    if (waitpid(child, &status, WNOHANG) != child)
        return false;
    child_ended(status, killed);
    return true;
}

struct thread {
    pthread_t id;
    void (*body)(int);
    int number;
};

static void *thread_run(void *argument)
{
    const struct thread *thread = argument;
    thread->body(thread->number);
    return NULL;
}

void contract_in_threads(void (*body)(int), int count)
{
    struct thread threads[16];
    for (int i = 0; i < count; i++) {
        threads[i] = (struct thread){ .body = body, .number = i };
        EXPECT(pthread_create(&threads[i].id, NULL, thread_run, &threads[i]) == 0, "no thread can be started");
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i].id, NULL);
}

static atomic_bool forks_end;
static void (*fork_child)(void), (*fork_work)(int);

static void fork_or_work(int number)
{
    while (number > 0 && !atomic_load(&forks_end))
        fork_work(number);
    for (int i = 0; number == 0 && i < 30; i++)
        contract_join(contract_fork(fork_child));
    atomic_store(&forks_end, true);
}

extern void __asan_init(void) __attribute__((weak));

void contract_fork_among(void (*child)(void), void (*work)(int number))
{
    if (__asan_init != NULL)
        contract_skip("with AddressSanitizer, whose allocator may be locked in a forked child");
    fork_child = child;
    fork_work = work;
    contract_in_threads(fork_or_work, 4);
}

const char *contract_kind_word(ctrt_component_kind kind)
{
    for (int k = 0; k < KINDS; k++)
        if (kinds[k]->kind == kind)
            return kinds[k]->word;
    return "";
}

/* ---- bytes ---- */

static unsigned char byte_at(size_t i, unsigned seed)
{
    const uint32_t mixed = ((uint32_t)i + seed * 40503u) * 2654435761u;
    return (unsigned char)(mixed >> 24);
}

void contract_pattern(void *memory, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)memory)[i] = byte_at(i, seed);
}

void contract_expect_pattern(const void *memory, size_t bytes, unsigned seed, const char *what)
{
    const unsigned char *at = memory;
    for (size_t i = 0; i < bytes; i++)
        EXPECT(at[i] == byte_at(i, seed), "%s: byte %zu of %zu is 0x%02x, expected 0x%02x", what, i, bytes, at[i],
               byte_at(i, seed));
}

void contract_expect_bytes(const void *memory, size_t bytes, int byte, const char *what)
{
    const unsigned char *at = memory;
    for (size_t i = 0; i < bytes; i++)
        EXPECT(at[i] == byte, "%s: byte %zu of %zu is 0x%02x, expected 0x%02x", what, i, bytes, at[i], byte);
}

void *contract_alloc(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes > 0 ? bytes : 1) != 0)
        contract_skip("the host has no %zu bytes", bytes);
    return memory;
}

size_t contract_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%lu", &pages) != 1)
        pages = 0;
    if (file != NULL)
        fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- loading ---- */

static const ctrt_component *component_at(const ctrt_plugin *plugin, size_t i)
{
    return (const ctrt_component *)((const char *)plugin->components + i * plugin->component_stride);
}

static void open_plugin(void)
{
    contract_step("loading the file");
    void *handle = dlopen(contract_target.file, RTLD_NOW | RTLD_LOCAL);
    EXPECT(handle != NULL, "%s", dlerror());
    ctrt_plugin_entry entry;
    void *symbol = dlsym(handle, "ctrt_plugin_v1");
    EXPECT(symbol != NULL, "it does not export ctrt_plugin_v1, so it is not a ctrt plugin");
    memcpy(&entry, &symbol, sizeof entry);
    contract_target.calls_library = dlsym(handle, "ctrt_device_count") != NULL;
    contract_step("ctrt_plugin_v1");
    const ctrt_plugin *plugin = entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    EXPECT(plugin != NULL, "returned NULL");
    EXPECT(CTRT_HAS(plugin, abi_minor) && plugin->abi_major == CTRT_PLUGIN_ABI_MAJOR, "it has another ABI version");
    EXPECT(CTRT_HAS(plugin, init) && plugin->components != NULL && plugin->component_count > 0
               && plugin->component_stride >= offsetof(ctrt_component, probe) + sizeof(void *),
           "struct ctrt_plugin is too short, or has no components");
    contract_target.plugin = plugin;
}

const char *contract_launcher(void)
{
    static char text[sizeof contract_target.file + 80];
    snprintf(text, sizeof text, "its launcher has to start the ranks: mpirun -n 4 ctrt check --contract %s",
             contract_target.file);
    return text;
}

void contract_load(ctrt_component_kind kind)
{
    char reason[256] = "no reason";
    open_plugin();
    for (size_t i = 0; i < contract_target.plugin->component_count && contract_target.component == NULL; i++)
        if (component_at(contract_target.plugin, i)->kind == kind)
            contract_target.component = component_at(contract_target.plugin, i);
    const ctrt_component *component = contract_target.component;
    EXPECT(component != NULL && component->table != NULL, "it has no table of this kind");
    if (contract_target.calls_library && kind == CTRT_COMPONENT_BACKEND)
        contract_skip("it calls libctrt, which initialises this backend with its own host table");
    contract_target.calls_library |= kind == CTRT_COMPONENT_COMM || kind == CTRT_COMPONENT_STRATEGY;
    contract_step("probe");
    if (CTRT_SLOT(component, probe) && component->probe(reason, sizeof reason) <= 0) {
        const bool launched_ranks = kind == CTRT_COMPONENT_COMM
                                    && CTRT_SLOT((const ctrt_comm_engine *)component->table, bootstrap);
        contract_skip("%s cannot be used here: %s%s%s", component->name, reason, launched_ranks ? "; " : "",
                      launched_ranks ? contract_launcher() : "");
    }
    /* Strategies are called through the library, which initialises them. */
    if (kind != CTRT_COMPONENT_STRATEGY && !contract_target.uninitialised && CTRT_SLOT(contract_target.plugin, init))
        CALL(contract_target.plugin->init(&contract_host), "init");
}

/* ---- in the parent ---- */

int report_fork(void)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit none = { 0, 0 };
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setrlimit(RLIMIT_CORE, &none);
    }
    return child;
}

void report_kill(int child)
{
    char path[256];
    kill(-child, SIGKILL);                      /* and the processes that the check has started */
    waitpid(child, NULL, 0);
    folder_of(path, child);
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder != NULL) {
        closedir(folder);
        rmdir(path);
    }
}

void report_ended(struct report *of, int status)
{
    if (of->outcome != NO_OUTCOME)
        return;
    if (WIFSIGNALED(status))
        snprintf(of->text, sizeof of->text, "crashed with signal %d, %s", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(of->text, sizeof of->text, "the process exited with status %d", WEXITSTATUS(status));
    of->outcome = FAILED;
}

/* Runs `body` in a child and stores what became of it in the report. */
static void run_in_child(void (*body)(const void *), const void *argument, double seconds)
{
    memset(report, 0, sizeof *report);
    const pid_t child = report_fork();
    if (child == 0) {
        body(argument);
        report->outcome = report->outcome == NO_OUTCOME ? PASSED : report->outcome;
        _exit(0);
    }
    if (child < 0) {
        report->outcome = FAILED;
        snprintf(report->text, sizeof report->text, "fork: %s", strerror(errno));
        return;
    }
    const double limit = seconds_now() + seconds;
    int status = 0;
    pid_t ended = 0;
    for (long pause = 100000; (ended = waitpid(child, &status, WNOHANG)) == 0 && seconds_now() < limit;
         pause = pause < 4000000 ? 2 * pause : pause)
        nanosleep(&(struct timespec){ 0, pause }, NULL);
    report_kill(child);
    if (ended != 0) {
        report_ended(report, status);
    } else if (report->outcome == NO_OUTCOME || report->outcome == PASSED) {
        report->outcome = FAILED;
        snprintf(report->text, sizeof report->text, "the check did not end within %g s", seconds);
    }
}

void report_run(const struct contract_kind *kind, const struct contract_check *check)
{
    if (kind->prepare != NULL && !contract_target.uninitialised)
        kind->prepare(contract_target.component->table, check->needs);
    report->step[0] = own_step[0] = '\0';
    check->run();
}

static void check_body(const void *argument)
{
    const void *const *both = argument;
    const struct contract_kind *kind = both[0];
    const struct contract_check *check = both[1];
    contract_target.uninitialised = (check->needs & NEEDS_NO_INIT) != 0;
    contract_load(kind->kind);
    report_run(kind, check);
}

static void look_body(const void *unused)
{
    (void)unused;
    open_plugin();
    for (size_t i = 0; i < contract_target.plugin->component_count; i++) {
        const ctrt_component *component = component_at(contract_target.plugin, i);
        report->kinds |= 1u << (component->kind & 31);
        if (component->kind == CTRT_COMPONENT_COMM)
            report->launched |= CTRT_SLOT((const ctrt_comm_engine *)component->table, bootstrap);
    }
}

/* Finds the file of the backend of a device, or of the engine of that name, as the library does. */
static void find_body(const void *device)
{
    const char *name = device;
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    for (int kind = 0; kind < 2; kind++)
        for (size_t k = 0; ctrt_plugin_list(&info, k) == CTRT_OK; k++)
            if (strcmp(info.kind, kind == 0 ? "backend" : "comm") == 0 && report->file[0] == '\0'
                && strlen(info.component) == strcspn(name, ":")
                && strncmp(info.component, name, strlen(info.component)) == 0)
                snprintf(report->file, sizeof report->file, "%s", info.file);
}

static bool launched;                           /* the checks run in several ranks, see contract_launch.c */
static int numbers[4];                          /* of checks, by outcome */
static struct junit junit;

void report_print(const struct contract_kind *kind, const struct contract_check *check)
{
    const char *name = check->name;
    static const enum junit_outcome outcomes[] = {
        [PASSED] = JUNIT_PASSED, [FAILED] = JUNIT_FAILED, [SKIPPED] = JUNIT_SKIPPED
    };
    const int number = ++numbers[NO_OUTCOME];
    char group[64], details[4096];
    numbers[report->outcome]++;
    for (char *at = report->text; *at != '\0'; at++)
        *at = *at == '\n' ? ' ' : *at;
    snprintf(group, sizeof group, "ctrt.contract.%s", kind->word);
    snprintf(details, sizeof details, "%s%s%s\nThe contract: %s\n", report->step,
             report->step[0] != '\0' ? ": " : "", report->text, check->sentence);
    junit_case(&junit, group, name, outcomes[report->outcome], report->outcome == FAILED ? details : report->text);
    if (report->outcome != FAILED) {
        printf(report->outcome == SKIPPED ? "ok %d - %s # SKIP %s\n" : "ok %d - %s\n", number, name, report->text);
        return;
    }
    printf("not ok %d - %s\n", number, name);
    for (const char *line = details; *line != '\0'; line += strcspn(line, "\n") + 1)
        printf("#   %.*s\n", (int)strcspn(line, "\n"), line);
    fflush(stdout);
}

bool report_selects(const struct contract_options *options, const struct contract_check *check)
{
    const char *at = options->pattern;
    char pattern[256];
    while (at != NULL) {
        const size_t length = strcspn(at, ",");
        snprintf(pattern, sizeof pattern, "%.*s", (int)length, at);
        if (fnmatch(pattern, check->name, 0) == 0)
            return true;
        at = at[length] != '\0' ? at + length + 1 : NULL;
    }
    return options->pattern == NULL;
}

static void run_table(const struct contract_options *options, const struct contract_kind *kind,
                      const struct contract_check *checks)
{
    for (const struct contract_check *check = checks; check->name != NULL; check++) {
        if (!report_selects(options, check))
            continue;
        if (options->list) {
            printf("%-10s %-20s %s\n", kind->word, check->name, check->sentence);
            continue;
        }
        if (launched && !(check->needs & NEEDS_NO_INIT))
            launch_await(options, check);
        else
            run_in_child(check_body, (const void *[]){ kind, check }, options->seconds);
        report_print(kind, check);
    }
}

/* Sets contract_target.file and .device. Returns false after a message. */
static bool find_plugin(const char *target, double seconds)
{
    char path[PATH_MAX];
    const size_t length = strlen(target);
    const bool file = strchr(target, '/') != NULL || (length > 3 && strcmp(target + length - 3, ".so") == 0);
    if (!file) {
        run_in_child(find_body, target, seconds);
        if (report->file[0] == '\0') {
            fprintf(stderr, "ctrt check: no plugin has a backend or an engine called %.*s\n",
                    (int)strcspn(target, ":"), target);
            return false;
        }
        const char *colon = strchr(target, ':');
        contract_target.device = colon != NULL ? atoi(colon + 1) : 0;
    }
    if (realpath(file ? target : report->file, path) == NULL) {
        perror(file ? target : report->file);
        return false;
    }
    snprintf(contract_target.file, sizeof contract_target.file, "%s", path);
    run_in_child(look_body, NULL, seconds);
    if (report->outcome == PASSED)
        return true;
    fprintf(stderr, "ctrt check: %s: %s\n", contract_target.file, report->text);
    return false;
}

int contract_run(const struct contract_options *options)
{
    uint32_t found = UINT32_MAX, known = 0;
    int rank = -1;
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED) {
        perror("ctrt check");
        return 2;
    }
    memset(numbers, 0, sizeof numbers);
    contract_target.rank_device = options->device != NULL ? options->device : "cpu";
    contract_target.options = options->memory_options != NULL ? options->memory_options : "";
    if (!options->list) {
        if (!find_plugin(options->target, options->seconds))
            return 2;
        found = report->kinds;
        rank = report->launched ? launch_begin(options, &contract_comm) : -1;
        if (rank < -1)
            return 2;
        if (rank > 0)
            return launch_end(0);
        launched = rank == 0;
        if (!junit_open(&junit, options->junit))
            return 2;
        printf("# the plugin ABI's contract, %s\n", contract_target.file);
    }
    for (int k = 0; k < KINDS; k++) {
        known |= 1u << kinds[k]->kind;
        for (int t = 0; found >> kinds[k]->kind & 1 && kinds[k]->checks[t] != NULL; t++)
            run_table(options, kinds[k], kinds[k]->checks[t]);
    }
    if (options->list)
        return 0;
    if ((found & known) == 0) {
        fprintf(stderr,
                "ctrt check: %s has no component of a kind that has checks%s\n", contract_target.file,
                found >> CTRT_COMPONENT_KERNELS & 1 ? "; `ctrt check` without --contract checks kernels" : "");
        return 2;
    }
    printf("1..%d\n# %d passed, %d failed, %d skipped\n", numbers[NO_OUTCOME], numbers[PASSED], numbers[FAILED],
           numbers[SKIPPED]);
    fflush(stdout);
    const int status = !junit_close(&junit, "ctrt check --contract") ? 2 : numbers[FAILED] > 0 || numbers[PASSED] == 0;
    return launched ? launch_end(status) : status;
}
