/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the cpu backend's threads: their number (CTRT_NUM_THREADS, affinity mask), correct results, calls from
 * several threads, and fork() with work in the child and in the parent. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <dirent.h>
#include <stdatomic.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_host.h"

#define COUNT (1 << 21)

/* The sanitizers' allocators and thread registries do not work after a fork while another thread allocates or starts
 * threads. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NOT_SANITIZED() do { skip_group("a fork while other threads run"); return; } while (0)
#else
#define NOT_SANITIZED() (void)0
#endif

/* Adds n elements, in chunks of 32768. Returns whether the result is correct. */
static bool add(int64_t n)
{
    fake_tensor a = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n), out = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n);
    memset(a.view.data, 0, (size_t)n * sizeof(float));
    ((float *)a.view.data)[n - 1] = 3;
    const bool good = fake_run("add", CTRT_F32, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&a.view, &a.view), 2, NULL)
                          == CTRT_OK
                      && ((float *)out.view.data)[0] == 0 && ((float *)out.view.data)[n - 1] == 6;
    fake_free(&a), fake_free(&out);
    return good;
}

/* Runs a large add and a large sum. Returns whether the result is correct. */
static bool work(void)
{
    static const int64_t n = COUNT, one = 1;
    fake_tensor a = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n), out = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n);
    fake_tensor sum = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &one);
    for (int64_t i = 0; i < n; i++)
        ((float *)a.view.data)[i] = (float)(i % 8);
    ctrt_reduce_attributes all = { sizeof all, 1 };
    bool good = fake_run("add", CTRT_F32, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&a.view, &a.view), 2, NULL) == CTRT_OK
                && fake_run("sum", CTRT_F32, FAKE_VIEWS(&sum.view), 1, FAKE_VIEWS(&out.view), 1, &all) == CTRT_OK
                && *(float *)sum.view.data == 7.0f * COUNT;
    fake_free(&a), fake_free(&out), fake_free(&sum);
    return good;
}

/* Returns the number of threads of this process according to /proc. */
static int thread_count(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks && (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    if (tasks)
        closedir(tasks);
    return count;
}

/* Runs `function` in a child process and returns its result, the exit status. An alarm kills a child that hangs. */
static int in_child(int (*function)(void))
{
    pid_t child = fork();
    REQUIRE_TRUE(child >= 0);
    if (child == 0) {
        alarm(60);
        _exit(function());
    }
    int status = 0;
    REQUIRE_EQ(waitpid(child, &status, 0), child);
    REQUIRE(!(WIFSIGNALED(status)), "the child ended by signal %d%s", WTERMSIG(status),
            WTERMSIG(status) == SIGALRM ? " (it hung)" : "");
    return WEXITSTATUS(status);
}

static void set_threads(const char *count)
{
    if (count)
        setenv("CTRT_NUM_THREADS", count, 1);
    else
        unsetenv("CTRT_NUM_THREADS");
    fake_load(NULL);
}

/* ---- number of threads: each case in its own process, because thread pools persist ---- */

static bool openmp;             /* whether the plugin was built with OpenMP */

/* Returns the number of threads that take part in the work, including this one. A sanitizer may have a thread of its
 * own. */
static int workers(void)
{
    int before = thread_count();
    return work() ? 1 + thread_count() - before : 100;
}

static int starts_three(void)
{
    set_threads("3");
    return workers();
}

static int starts_one(void)
{
    set_threads("1");
    return workers();
}

static int pinned(void)
{
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0)
        return 101;
    for (int cpu = 0, found = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &mask) && found++)
            CPU_CLR((size_t)cpu, &mask);
    if (sched_setaffinity(0, sizeof mask, &mask) != 0)
        return 102;
    set_threads(NULL);
    ctrt_device_info info = { .size = sizeof info };
    if (fake_backend->device->describe(0, &info) != CTRT_OK || info.processors != 1)
        return 103;
    return workers();
}

static void test_count(void)
{
    int three = in_child(starts_three);
    openmp = three != 1;
    if (!openmp)
        printf("# built without OpenMP: one thread always\n");
    REQUIRE_EQ(three, openmp ? 3 : 1);
    REQUIRE_EQ(in_child(starts_one), 1);
    REQUIRE_EQ(in_child(pinned), 1);
}

static int refused(void)
{
    static const char *const wrong[] = { "0", "-1", "many", "5000" };
    for (int i = 0; i < 4; i++) {
        setenv("CTRT_NUM_THREADS", wrong[i], 1);
        char path[4096];
        const char *folder = getenv("CTRT_PLUGIN_PATH");
        snprintf(path, sizeof path, "%s/backend-cpu.so", folder ? folder : ".");
        void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        ctrt_plugin_entry entry = NULL;
        *(void **)&entry = dlsym(plugin, "ctrt_plugin_v1");
        host_error[0] = '\0';
        if (entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR)->init(&host_table) != CTRT_ERR_INVALID_ARGUMENT
            || !strstr(host_error, "CTRT_NUM_THREADS"))
            return i + 1;
    }
    return 0;
}

static void test_refused(void)
{
    REQUIRE_EQ(in_child(refused), 0);
}

/* ---- threads that cannot be started ---- */

/* Elementwise ops run first without threads, because thread creation fails, and then with threads. */
static int recovers(void)
{
    const int64_t n = 4 * 32768;
    pthread_attr_t usual, too_large;
    set_threads("3");
    const int before = thread_count();
    if (pthread_getattr_default_np(&usual) != 0 || pthread_getattr_default_np(&too_large) != 0
        || pthread_attr_setstacksize(&too_large, SIZE_MAX / 4 + 1) != 0 || pthread_setattr_default_np(&too_large) != 0)
        return 1;
    if (!add(n) || thread_count() != before)
        return 2;
    if (pthread_setattr_default_np(&usual) != 0)
        return 3;
    for (int i = 0; i < 2000; i++)
        if (!add(n))
            return 4;
    return thread_count() == before + 2 ? 0 : 5;
}

static void test_recovers(void)
{
    if (openmp)
        REQUIRE_EQ(in_child(recovers), 0);
    else
        skip_group("built without OpenMP");
}

/* ---- fork ---- */

static int works_in_child(void)
{
    if (workers() != (openmp ? 2 : 1))                  /* correct, and with as many threads as before */
        return 1;
    return work() && work() ? 0 : 2;
}

static int works_in_grandchild(void)
{
    return work() ? in_child(works_in_child) : 3;
}

static void test_fork(void)
{
    set_threads("2");
    REQUIRE_TRUE(work());                                /* creates the thread pool */
    for (int i = 0; i < 5; i++) {
        REQUIRE_EQ(in_child(works_in_child), 0);
        REQUIRE_TRUE(work());                            /* the parent's pool still works */
    }
    REQUIRE_EQ(in_child(works_in_grandchild), 0);
    REQUIRE_TRUE(work());
}

/* Fork while another thread of the program works. That thread's pool does not exist in the child, and the child's
 * own pool must not wait for it. */
static atomic_bool stop;
static void *keep_working(void *argument)
{
    bool *good = argument;
    while (!stop)
        *good &= work();
    return NULL;
}

static void test_fork_beside_work(void)
{
    bool good = true;
    pthread_t thread;
    set_threads("2");
    stop = false;
    REQUIRE_EQ(pthread_create(&thread, NULL, keep_working, &good), 0);
    for (int i = 0; i < 5; i++) {
        REQUIRE_TRUE(work());
        REQUIRE_EQ(in_child(works_in_child), 0);
    }
    stop = true;
    pthread_join(thread, NULL);
    REQUIRE_TRUE(good);
}

/* Fork while another thread starts the threads of its pool. */
static void *add_in_thread(void *argument)
{
    *(bool *)argument = add(8 * 32768);
    return NULL;
}

static void *keep_starting(void *argument)
{
    bool *good = argument;
    while (!stop) {
        pthread_t thread;
        bool fine = false;
        if (pthread_create(&thread, NULL, add_in_thread, &fine) == 0)
            pthread_join(thread, NULL);
        *good &= fine;
    }
    return NULL;
}

static int adds_in_child(void)
{
    return add(8 * 32768) ? 0 : 1;
}

static void test_fork_beside_start(void)
{
    NOT_SANITIZED();
    bool good = true;
    pthread_t thread;
    set_threads("8");
    stop = false;
    REQUIRE_EQ(pthread_create(&thread, NULL, keep_starting, &good), 0);
    for (int i = 0; i < 40; i++)
        REQUIRE_EQ(in_child(adds_in_child), 0);
    stop = true;
    pthread_join(thread, NULL);
    REQUIRE_TRUE(good);
}

/* Fork while a thread loads oneDNN. The dlopen() below returns this program instead of the library. The program's
 * dnnl_version() calls at_opening and reports an unknown version. */
static void (*at_opening)(void);
static void (*in_version)(void);

__attribute__((visibility("default"))) void *dlopen(const char *file, int flags)
{
    void *(*next)(const char *, int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    if (at_opening == NULL || file == NULL || strstr(file, "dnnl") == NULL)
        return next(file, flags);
    in_version = at_opening;
    at_opening = NULL;
    return next(NULL, flags);
}

__attribute__((visibility("default"))) const void *dnnl_version(void);
const void *dnnl_version(void)
{
    static const char zeros[256];
    void (*const hook)(void) = in_version;
    in_version = NULL;
    if (hook != NULL)
        hook();
    return zeros;
}

static bool multiply(void)
{
    static const int64_t shape[] = { 1, 64, 64 };
    fake_tensor a = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, shape), out = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, shape);
    for (int i = 0; i < 64 * 64; i++)
        ((float *)a.view.data)[i] = 1;
    const bool good = fake_run("matmul", CTRT_F32, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&a.view, &a.view), 2, NULL)
                          == CTRT_OK
                      && *(float *)out.view.data == 64;
    fake_free(&a), fake_free(&out);
    return good;
}

static pthread_t second;
static atomic_bool second_done;
static bool second_good;
static int opening_result = 105;

static void *multiply_in_thread(void *argument)
{
    *(bool *)argument = multiply();
    second_done = true;
    return NULL;
}

static int multiplies_in_child(void)
{
    return multiply() ? 0 : 1;
}

/* A second thread's product waits until the load of oneDNN has finished. A child created by fork loads oneDNN
 * itself. */
static void during_opening(void)
{
    if (pthread_create(&second, NULL, multiply_in_thread, &second_good) != 0)
        _exit(101);
    usleep(200000);
    opening_result = second_done ? 102 : in_child(multiplies_in_child);
}

static int opens(void)
{
    setenv("CTRT_CPU_GEMM", "onednn", 1);
    set_threads("2");
    at_opening = during_opening;
    if (!multiply())
        return 103;
    if (at_opening != NULL)
        return 100;
    pthread_join(second, NULL);
    return second_good ? opening_result : 104;
}

static void test_opening(void)
{
    NOT_SANITIZED();
    const int result = in_child(opens);
    if (result == 100)
        skip_group("built without oneDNN");
    else
        REQUIRE_EQ(result, 0);
}

static void *one_round(void *argument)
{
    *(bool *)argument = work();
    return NULL;
}

/* Several threads of the program call ops that are large enough to run in parallel. */
static void test_many_callers(void)
{
    pthread_t threads[4];
    bool good[4] = { false };
    set_threads("2");
    for (int i = 0; i < 4; i++)
        REQUIRE_EQ(pthread_create(&threads[i], NULL, one_round, &good[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        REQUIRE_TRUE(good[i]);
    }
}

TEST_MAIN
{
    fake_load(NULL);
    group("the number of threads follows CTRT_NUM_THREADS and the affinity mask");
    test_count();
    group("invalid values of CTRT_NUM_THREADS are rejected");
    test_refused();
    group("ops run without threads when none can be started, and use them later");
    test_recovers();
    group("ops run in a forked child and then in the parent");
    test_fork();
    group("fork while another thread works");
    test_fork_beside_work();
    group("fork while another thread starts its pool");
    test_fork_beside_start();
    group("fork while oneDNN is loaded");
    test_opening();
    group("several threads call parallel ops");
    test_many_callers();
    return done();
}
