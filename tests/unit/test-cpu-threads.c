/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the cpu backend's threads: their number (CTRT_NUM_THREADS, affinity mask), correct results, calls from
 * several threads, and fork() with work in the child and in the parent. */
#include <dlfcn.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "calls.h"
#include "memory_checks.h"
#include "sims.h"

/* Computes a + a with n elements (a power of two), in chunks of 32768, and its sum. Returns whether the result is
 * correct. */
static bool work_on(int64_t n)
{
    CTRT_AUTO(tensor) a = NULL, sum = NULL;
    double value = 0;
    if (!CHECK_OK(ctrt_empty(&a, CTRT_SHAPE(n), CTRT_F32, cpu)))
        return false;
    float *values = ctrt_tensor_data(a);
    for (int i = 0; i < 8; i++)
        values[i] = (float)i;
    for (int64_t done = 8; done < n; done *= 2)         /* much faster than single elements, which are watched */
        memcpy(values + done, values, (size_t)done * sizeof *values);
    CHECK_OK(ctrt_add(&a, a, a));
    CHECK_OK(ctrt_sum(&sum, a, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&value, sum));
    return value == 7.0 * (double)n;
}

static bool work(void) { return work_on(1 << 21); }
static bool little_work(void) { return work_on(4 * 32768); }

static bool multiply(void)
{
    CTRT_AUTO(tensor) a = NULL;
    double value = 0;
    CHECK_OK(ctrt_ones(&a, CTRT_SHAPE(64, 64), CTRT_F32, cpu));
    CHECK_OK(ctrt_matmul(&a, a, a));
    CHECK_OK(ctrt_select(&a, a, 0, 0));
    CHECK_OK(ctrt_select(&a, a, 0, 0));
    CHECK_OK(ctrt_item(&value, a));
    return value == 64;
}

/* Returns the number of threads of this process. */
static int thread_count(void)
{
    return (int)folder_files("/proc/self/task") - 2;            /* without "." and ".." */
}

/* Runs `function`, which checks, in a child process. An alarm kills a child that hangs. */
static void in_child(void (*function)(void))
{
    IN_FORK {
        alarm(120);
        function();
    }
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

/* ---- number of threads ---- */


/* Returns the number of threads that take part in the work, including this one. A sanitizer may have a thread of its
 * own. */
static int workers(void)
{
    int before = thread_count();
    CHECK_TRUE(work());
    return 1 + thread_count() - before;
}

/* A TEST in its own process, because thread pools persist. `skipped`: the reason why it is skipped, or NULL. */
#define PROCESS_TEST(function, what, skipped, ...)  \
    static void function(void);                     \
    TEST(function##_in_child, what)                 \
    {                                               \
        const char *const reason = (skipped);       \
        if (reason != NULL)                         \
            skip_group(reason);                     \
        else                                        \
            IN_CHILD(__VA_ARGS__)                   \
                function();                         \
    }                                               \
    static void function(void)
#ifdef __SANITIZE_THREAD__
#define NOT_COUNTED "ThreadSanitizer starts threads of its own"
#else
#define NOT_COUNTED NULL
#endif
#define NOT_SANITIZED (SANITIZED ? "a fork while other threads run" : NULL)

PROCESS_TEST(starts_three, "CTRT_NUM_THREADS=3 starts two threads", NOT_COUNTED, "CTRT_NUM_THREADS=3")
{
    cpu_device();
    CHECK_EQ(workers(), 3);
}

PROCESS_TEST(starts_one, "CTRT_NUM_THREADS=1 starts none", NULL, "CTRT_NUM_THREADS=1")
{
    cpu_device();
    CHECK_EQ(workers(), 1);
}

PROCESS_TEST(pinned, "the number of threads follows the affinity mask", NULL, NULL)
{
    cpu_set_t mask;
    CHECK_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    for (int cpu = 0, found = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &mask) && found++)
            CPU_CLR((size_t)cpu, &mask);
    CHECK_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
    cpu_device();
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    CHECK_OK(ctrt_device_get_properties(&properties, "cpu"));
    CHECK_EQ(properties.processors, 1);
    CHECK_EQ(workers(), 1);
}

/* Elementwise ops run first without threads, because thread creation fails, and then with threads. */
PROCESS_TEST(recovers, "ops run without threads when none can be started, and use them later",
             NULL, "CTRT_NUM_THREADS=3")
{
    pthread_attr_t usual, too_large;
    cpu_device();
    const int before = thread_count();
    CHECK_EQ(pthread_getattr_default_np(&usual), 0);
    CHECK_EQ(pthread_getattr_default_np(&too_large), 0);
    CHECK_EQ(pthread_attr_setstacksize(&too_large, SIZE_MAX / 4 + 1), 0);
    CHECK_EQ(pthread_setattr_default_np(&too_large), 0);
    CHECK_TRUE(little_work());
    CHECK_EQ(thread_count(), before);
    CHECK_EQ(pthread_setattr_default_np(&usual), 0);
    for (int i = 0; i < 1000; i++)
        CHECK_TRUE(little_work());
    CHECK_EQ(thread_count(), before + 2);
}

/* Waits until the process has `count` threads. The kernel lists a thread for some microseconds after it is joined. */
static bool threads_become(int count)
{
    for (int i = 0; i < 10000 && thread_count() != count; i++)
        usleep(100);
    return CHECK_EQ(thread_count(), count);
}

static void shuts_down(int workers)
{
#ifdef __SANITIZE_THREAD__              /* it starts threads of its own */
    (void)workers;
    CHECK_OK(ctrt_shutdown());
#else
    const int before = thread_count();
    CHECK_OK(ctrt_shutdown());
    threads_become(before - workers);
#endif
}

static void does_work(void) { CHECK_TRUE(work()); }
static void shuts_down_in_child(void) { shuts_down(0); }

static bool works_and_shuts_down(void) { return work() && CHECK_OK(ctrt_shutdown()) && work(); }

PROCESS_TEST(shutdown_ends_threads, "ctrt_shutdown ends the calling thread's workers, and later ops start new ones",
             NULL, "CTRT_NUM_THREADS=3")
{
    cpu_device();
    shuts_down(0);                                      /* before the first parallel work */
    for (int i = 0; i < 20; i++) {
        CHECK_TRUE(i % 2 ? work() : multiply() && little_work());
        if (i % 4 == 0)
            usleep(5000);                               /* the workers sleep instead of spinning */
        if (i == 10)
            in_child(shuts_down_in_child);              /* which has no workers */
        shuts_down(2);
    }
    shuts_down(0);                                      /* after the end of the workers */
    in_child(does_work);
}

PROCESS_TEST(shutdown_in_a_thread, "ctrt_shutdown in a thread keeps the workers of another, idle thread", NULL,
             "CTRT_NUM_THREADS=2")
{
    struct caller caller;
    cpu_device();
    for (int i = 0; i < 10; i++) {
        CHECK_TRUE(work());
        caller_start(&caller, works_and_shuts_down, false);
        caller_join(&caller);
    }
    shuts_down(1);
}

/* ---- fork ---- */

static void works_in_child(void)
{
#ifndef __SANITIZE_THREAD__             /* it cannot start threads in the child of a multithreaded program */
    CHECK_EQ(workers(), 2);             /* as many threads as before the fork */
#endif
    CHECK_TRUE(work());
}

static void works_in_grandchild(void)
{
    CHECK_TRUE(work());
    in_child(works_in_child);
}

PROCESS_TEST(forks, "ops run in a forked child and then in the parent", NULL, "CTRT_NUM_THREADS=2")
{
    cpu_device();
    CHECK_TRUE(work());                                 /* creates the thread pool */
    for (int i = 0; i < 5; i++) {
        in_child(works_in_child);
        CHECK_TRUE(work());                             /* the parent's pool still works */
    }
    in_child(works_in_grandchild);
    CHECK_TRUE(work());
}

PROCESS_TEST(forks_without_descriptors, "fork while all descriptors are in use", NULL, "CTRT_NUM_THREADS=2")
{
    int taken[64], count = 0;
    cpu_device();
    CHECK_TRUE(work());
    struct rlimit limit;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 32;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (count < 64 && (taken[count] = dup(2)) >= 0)
        count++;
    CHECK_TRUE(count < 64);
    in_child(does_work);
    CHECK_TRUE(work());
    while (count > 0)
        close(taken[--count]);
}

/* oneDNN's regions run with the backend's threads, so libgomp starts none. Four images in two threads. */
PROCESS_TEST(convolves, "a convolution by oneDNN starts no threads of its own", NOT_COUNTED, "CTRT_NUM_THREADS=2",
             "CTRT_CPU_GEMM=onednn")
{
    CTRT_AUTO(tensor) x = NULL, w = NULL, y = NULL, first = NULL;
    cpu_device();
    const int before = thread_count();
    CHECK_OK(ctrt_randn(&x, CTRT_SHAPE(4, 16, 32, 32), CTRT_F32, cpu));
    CHECK_OK(ctrt_randn(&w, CTRT_SHAPE(16, 16, 3, 3), CTRT_F32, cpu));
    for (int i = 0; i < 50; i++) {
        CHECK_OK(ctrt_conv2d(&y, x, w, NULL, NULL));
        CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
        if (i == 0)
            CHECK_OK(ctrt_clone(&first, y));
        double one = 0, other = 1;
        CHECK_OK(ctrt_item(&one, first));
        CHECK_OK(ctrt_item(&other, y));
        CHECK_EQ(one, other);
    }
    CHECK_EQ(thread_count(), before + 1);
}

/* A worker that gets no processor, here because all threads share one with two others, must not change results. */
PROCESS_TEST(crowded, "threads that share one processor with other programs compute the same", NULL,
             "CTRT_NUM_THREADS=4")
{
    cpu_set_t one;
    pid_t others[2];
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    for (int i = 0; i < 2; i++)
        if ((others[i] = fork()) == 0)
            for (prctl(PR_SET_PDEATHSIG, SIGKILL);;)
                continue;
    cpu_device();
    for (int i = 0; i < 100; i++)
        CHECK_TRUE(little_work());
    for (int i = 0; i < 2; i++) {
        kill(others[i], SIGKILL);
        waitpid(others[i], NULL, 0);
    }
}

/* That thread's pool does not exist in the child, and the child's own pool must not wait for it. */
PROCESS_TEST(forks_beside_work, "fork while another thread works", NULL, "CTRT_NUM_THREADS=2")
{
    struct caller caller;
    cpu_device();
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

PROCESS_TEST(forks_beside_start, "fork while another thread starts its pool", NOT_SANITIZED, "CTRT_NUM_THREADS=8")
{
    struct caller caller;
    cpu_device();
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
static void *onednn;                        /* creates_later: the library, whose symbols are global */

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

PROCESS_TEST(opens, "fork while oneDNN is loaded", NOT_SANITIZED, "CTRT_NUM_THREADS=2", "CTRT_CPU_GEMM=onednn")
{
    cpu_device();
    at_opening = during_opening;
    CHECK_TRUE(multiply());
    if (opened)
        caller_join(&second);
    else
        printf("# not tested: built without oneDNN\n");
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

PROCESS_TEST(creates_later, "a product whose oneDNN primitive could not be created for lack of memory gets one later",
             NULL, "CTRT_NUM_THREADS=2", "CTRT_CPU_GEMM=onednn")
{
    cpu_device();
    creations_to_fail = 1;
    for (int i = 0; i < 3; i++)
        CHECK_TRUE(multiply());
    if (onednn != NULL)
        CHECK_EQ(creations, 2);
}

PROCESS_TEST(many_callers, "several threads call parallel ops", NULL, "CTRT_NUM_THREADS=2")
{
    struct caller callers[4];
    cpu_device();
    for (int i = 0; i < 4; i++)
        caller_start(&callers[i], work, false);
    for (int i = 0; i < 4; i++)
        caller_join(&callers[i]);
}

TEST_MAIN
{
    return run_tests();
}
