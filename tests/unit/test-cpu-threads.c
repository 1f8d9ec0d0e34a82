/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the cpu backend's threads: their number (CTRT_NUM_THREADS, affinity mask), correct results, calls from
 * several threads, and fork() with work in the child and in the parent. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "calls.h"
#include "child.h"
#include "fake_host.h"

/* The sanitizers' allocators and thread registries do not work after a fork while another thread allocates or starts
 * threads. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

#define AUTO __attribute__((cleanup(fake_free))) fake_tensor

/* Computes a + a with n elements, in chunks of 32768, and its sum. Returns whether the result is correct. */
static bool work_on(int64_t n)
{
    static const int64_t one = 1;
    AUTO a = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n), out = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n),
         sum = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &one);
    const ctrt_reduce_attributes all = { sizeof all, 1 };
    for (int64_t i = 0; i < n; i++)
        ((float *)a.view.data)[i] = (float)(i % 8);
    return fake_run("add", CTRT_F32, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&a.view, &a.view), 2, NULL) == CTRT_OK
        && fake_run("sum", CTRT_F32, FAKE_VIEWS(&sum.view), 1, FAKE_VIEWS(&out.view), 1, &all) == CTRT_OK
        && *(float *)sum.view.data == 7.0f * (float)n;
}

static bool work(void) { return work_on(1 << 21); }
static bool little_work(void) { return work_on(4 * 32768); }

static bool multiply(void)
{
    static const int64_t shape[] = { 1, 64, 64 };
    AUTO a = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, shape), out = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, shape);
    for (int i = 0; i < 64 * 64; i++)
        ((float *)a.view.data)[i] = 1;
    return fake_run("matmul", CTRT_F32, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&a.view, &a.view), 2, NULL) == CTRT_OK
        && fake_get(&out.view, 0) == 64;
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

/* Runs `function`, which checks, in a child process. An alarm kills a child that hangs. */
static void in_child(void (*function)(void))
{
    IN_FORK {
        alarm(60);
        function();
    }
}

static void set_threads(const char *count)
{
    if (count)
        setenv("CTRT_NUM_THREADS", count, 1);
    else
        unsetenv("CTRT_NUM_THREADS");
    fake_load(NULL);
}

/* A thread that calls a function once or, with `repeat`, until it is stopped. */
struct caller {
    pthread_t thread;
    bool (*function)(void);
    bool repeat, good;
    atomic_bool stop, done;
};

static void *call(void *argument)
{
    struct caller *caller = argument;
    do
        caller->good &= caller->function();
    while (caller->repeat && !caller->stop);
    caller->done = true;
    return NULL;
}

static void caller_start(struct caller *caller, bool (*function)(void), bool repeat)
{
    caller->function = function;
    caller->repeat = repeat;
    caller->good = true;
    caller->stop = caller->done = false;
    REQUIRE_EQ(pthread_create(&caller->thread, NULL, call, caller), 0);
}

static bool caller_join(struct caller *caller)
{
    caller->stop = true;
    pthread_join(caller->thread, NULL);
    return CHECK(caller->good, "wrong results in another thread");
}

/* ---- number of threads: each case in its own process, because thread pools persist ---- */

static int *pool_threads;       /* in shared memory: threads that took part in the work of starts_three() */

/* Without OpenMP, the plugin has one thread always. */
static int threads_expected(int threads)
{
    return *pool_threads > 1 ? threads : 1;
}

/* Returns the number of threads that take part in the work, including this one. A sanitizer may have a thread of its
 * own. */
static int workers(void)
{
    int before = thread_count();
    CHECK_TRUE(work());
    return 1 + thread_count() - before;
}

static void starts_three(void)
{
    set_threads("3");
    *pool_threads = workers();
    CHECK_EQ(*pool_threads, threads_expected(3));
}

static void starts_one(void)
{
    set_threads("1");
    CHECK_EQ(workers(), 1);
}

static void pinned(void)
{
    cpu_set_t mask;
    CHECK_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    for (int cpu = 0, found = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &mask) && found++)
            CPU_CLR((size_t)cpu, &mask);
    CHECK_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
    set_threads(NULL);
    ctrt_device_info info = { .size = sizeof info };
    EQUALS((fake_backend->device->describe(0, &info), CTRT_OK), (info.processors, 1), (workers(), 1));
}

static void test_count(void)
{
    group("the number of threads follows CTRT_NUM_THREADS and the affinity mask");
    in_child(starts_three);
    in_child(starts_one);
    in_child(pinned);
}

/* Elementwise ops run first without threads, because thread creation fails, and then with threads. */
static void recovers(void)
{
    pthread_attr_t usual, too_large;
    set_threads("3");
    const int before = thread_count();
    EQUALS((pthread_getattr_default_np(&usual), 0), (pthread_getattr_default_np(&too_large), 0),
           (pthread_attr_setstacksize(&too_large, SIZE_MAX / 4 + 1), 0), (pthread_setattr_default_np(&too_large), 0));
    CHECK_TRUE(little_work());
    EQUALS((thread_count(), before), (pthread_setattr_default_np(&usual), 0));
    for (int i = 0; i < 1000; i++)
        CHECK_TRUE(little_work());
    CHECK_EQ(thread_count(), before + 2);
}

static void test_recovers(void)
{
    group("ops run without threads when none can be started, and use them later");
    if (threads_expected(3) == 3)
        in_child(recovers);
    else
        skip_group("built without OpenMP");
}

/* ---- fork ---- */

static void works_in_child(void)
{
    CHECK_EQ(workers(), threads_expected(2));           /* as many threads as before the fork */
    CHECK_TRUE(work());
}

static void works_in_grandchild(void)
{
    CHECK_TRUE(work());
    in_child(works_in_child);
}

static void test_fork(void)
{
    group("ops run in a forked child and then in the parent");
    set_threads("2");
    CHECK_TRUE(work());                                 /* creates the thread pool */
    for (int i = 0; i < 5; i++) {
        in_child(works_in_child);
        CHECK_TRUE(work());                             /* the parent's pool still works */
    }
    in_child(works_in_grandchild);
    CHECK_TRUE(work());
}

/* That thread's pool does not exist in the child, and the child's own pool must not wait for it. */
static void test_fork_beside_work(void)
{
    struct caller caller;
    group("fork while another thread works");
    set_threads("2");
    caller_start(&caller, work, true);
    for (int i = 0; i < 5; i++) {
        CHECK_TRUE(work());
        in_child(works_in_child);
    }
    caller_join(&caller);
}

/* Starts a thread, whose first work starts its pool. */
static bool start_pool(void)
{
    struct caller caller;
    caller_start(&caller, little_work, false);
    return caller_join(&caller);
}

static void does_little(void) { CHECK_TRUE(little_work()); }

static void test_fork_beside_start(void)
{
    struct caller caller;
    group("fork while another thread starts its pool");
    if (SANITIZED) {
        skip_group("a fork while other threads run");
        return;
    }
    set_threads("8");
    caller_start(&caller, start_pool, true);
    for (int i = 0; i < 40; i++)
        in_child(does_little);
    caller_join(&caller);
}

/* Fork while a thread loads oneDNN. The dlopen() below returns this program instead of the library. The program's
 * dnnl_version() calls at_opening and reports an unknown version. */
static void (*at_opening)(void);
static void (*in_version)(void);
static int creations_to_fail, creations;
static void *onednn;                        /* test_creation_without_memory: the library, whose symbols are global */

__attribute__((visibility("default"))) void *dlopen(const char *file, int flags)
{
    void *(*next)(const char *, int) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    if (creations_to_fail > 0 && file != NULL && strstr(file, "dnnl") != NULL)
        return (onednn = next(file, RTLD_NOW | RTLD_GLOBAL)) != NULL ? next(NULL, flags) : NULL;
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
    const void *(*real)(void) = NULL;
    if (onednn != NULL) {
        *(void **)&real = dlsym(onednn, "dnnl_version");
        return real();
    }
    void (*const hook)(void) = in_version;
    in_version = NULL;
    if (hook != NULL)
        hook();
    return zeros;
}

static struct caller second;
static bool opened;

static void multiplies(void) { CHECK_TRUE(multiply()); }

/* A second thread's product waits until the load of oneDNN has finished. A child created by fork loads oneDNN
 * itself. */
static void during_opening(void)
{
    caller_start(&second, multiply, false);
    usleep(200000);
    CHECK_TRUE(!second.done);
    opened = true;
    in_child(multiplies);
}

static void opens(void)
{
    setenv("CTRT_CPU_GEMM", "onednn", 1);
    set_threads("2");
    at_opening = during_opening;
    CHECK_TRUE(multiply());
    if (opened)
        caller_join(&second);
    else
        printf("# not tested: built without oneDNN\n");
}

static void test_fork_beside_load(void)
{
    group("fork while oneDNN is loaded");
    if (SANITIZED)
        skip_group("a fork while other threads run");
    else
        in_child(opens);
}

/* Between the backend and oneDNN 2, and oneDNN 3: the creation of the descriptor of a product. 1: out of memory. */
__attribute__((visibility("default"))) int dnnl_primitive_desc_create(void **, void *, void *, void *, void *);
int dnnl_primitive_desc_create(void **pd, void *a, void *b, void *c, void *d)
{
    int (*real)(void **, void *, void *, void *, void *) = NULL;
    *(void **)&real = dlsym(onednn, __func__);
    return ++creations <= creations_to_fail ? 1 : real(pd, a, b, c, d);
}

__attribute__((visibility("default"))) int dnnl_matmul_primitive_desc_create(void **, void *, void *, void *, void *,
                                                                            void *, void *);
int dnnl_matmul_primitive_desc_create(void **pd, void *a, void *b, void *c, void *d, void *e, void *f)
{
    int (*real)(void **, void *, void *, void *, void *, void *, void *) = NULL;
    *(void **)&real = dlsym(onednn, __func__);
    return ++creations <= creations_to_fail ? 1 : real(pd, a, b, c, d, e, f);
}

static void creates_later(void)
{
    setenv("CTRT_CPU_GEMM", "onednn", 1);
    set_threads("2");
    creations_to_fail = 1;
    for (int i = 0; i < 3; i++)
        CHECK_TRUE(multiply());
    if (onednn != NULL)
        CHECK_EQ(creations, 2);
}

static void test_creation_without_memory(void)
{
    group("a product whose oneDNN primitive could not be created for lack of memory gets one later");
    in_child(creates_later);
}

static void test_many_callers(void)
{
    struct caller callers[4];
    group("several threads call parallel ops");
    set_threads("2");
    for (int i = 0; i < 4; i++)
        caller_start(&callers[i], work, false);
    for (int i = 0; i < 4; i++)
        caller_join(&callers[i]);
}

TEST_MAIN
{
    pool_threads = mmap(NULL, sizeof *pool_threads, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE_TRUE(pool_threads != MAP_FAILED);
    fake_load(NULL);
    RUN_ALL(test_count, test_recovers, test_fork, test_fork_beside_work, test_fork_beside_start, test_fork_beside_load,
            test_many_callers, test_creation_without_memory);
    return done();
}
