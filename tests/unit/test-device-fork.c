/* SPDX-License-Identifier: Apache-2.0 */
/* Tests devices and fork, also while other threads are inside the library. Uses fake backends. */
#include <pthread.h>
#include <sys/wait.h>

#include "child.h"
#include "ctrt/device.h"
#include "ctrt/memory.h"
#include "folder.h"
#include "registry/registry.h"

static char *folder;                    /* two fake backends and memory policies */
static char *fake_only;                 /* one fake backend and memory policies */

/* Runs the checks in a forked child of this process, which has already used the library. */
#define IN_FORK                                                                 \
    do {                                                                        \
        fflush(stdout);                                                         \
        pid_t fork_ = fork();                                                   \
        if (fork_ == 0) {                                                       \
            tap_state.failed = 0;

#define FORK_END                                                                \
            fflush(stdout);                                                     \
            _exit(tap_state.failed > 0);                                        \
        }                                                                       \
        child_join(fork_, __FILE__, __LINE__);                                  \
    } while (0)

static void test_fork(void)
{
    group("a forked child can use a device that the parent only counted");
    IN_CHILD(folder_path(fake_only, NULL)) {
        CHECK(ctrt_device_count("fake") == 3 && ctrt_is_available("fake", NULL),
              "the fake backend does not have 3 devices");
        IN_FORK
            ctrt_device *device = NULL;
            CHECK_OK(ctrt_device_get(&device, "fake:1"));
            CHECK_OK(ctrt_device_synchronize(device));
        FORK_END;
    }
    CHILD_END;
    group("a device opened before the fork gives an error in the child and works in the parent");
    IN_CHILD(folder_path(fake_only, NULL)) {
        ctrt_device *device = NULL, *other = NULL;
        CHECK_OK(ctrt_device_get(&device, "fake:0"));
        CHECK_OK(ctrt_set_default_device(device));
        IN_FORK
            uint64_t bytes;
            CHECK_FAILS(ctrt_device_get(&other, "fake:0"), CTRT_ERR_FORKED, "was opened by process");
            CHECK_FAILS(ctrt_device_set_current(device), CTRT_ERR_FORKED, "fake:0");
            CHECK_FAILS(ctrt_device_push(device), CTRT_ERR_FORKED, "fake:0");
            CHECK_FAILS(ctrt_device_synchronize(device), CTRT_ERR_FORKED, "fake:0");
            CHECK_FAILS(ctrt_device_memory_info(device, &bytes, &bytes), CTRT_ERR_FORKED, "fake:0");
            CHECK_FAILS(ctrt_default_device(&other), CTRT_ERR_FORKED, "fake:0");
            CHECK_FAILS(ctrt_memory_empty_cache(device), CTRT_ERR_FORKED, "fake:0");
            CHECK_OK(ctrt_device_get(&other, "fake:1"));
            CHECK(ctrt_is_available("fake", NULL), "not available in the child");
        FORK_END;
        CHECK_OK(ctrt_device_get(&other, "fake:0"));
        CHECK_OK(ctrt_device_synchronize(device));
    }
    CHILD_END;
    group("a device with host memory works in the forked child");
    IN_CHILD(folder_path(fake_only, NULL), "CTRT_FAKE_HOST=1") {
        ctrt_device *device = NULL;
        CHECK_OK(ctrt_device_get(&device, "fake:0"));
        IN_FORK
            CHECK_OK(ctrt_device_get(&device, "fake:0"));
            CHECK_OK(ctrt_device_set_current(device));
        FORK_END;
    }
    CHILD_END;
}

static void *forks(void *argument)
{
    (void)argument;
    intptr_t failures = 0;
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            ctrt_device *device = NULL;
            alarm(20); /* turns a deadlock into a failure */
            _exit(ctrt_device_get(&device, "fake:2") != CTRT_OK || !ctrt_is_available("better", NULL));
        }
        int status = 1;
        failures += child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)
                    || WEXITSTATUS(status) != 0;
    }
    return (void *)failures;
}

static void *opens(void *stop)
{
    ctrt_device *device = NULL;
    const char *why;
    while (!__atomic_load_n((bool *)stop, __ATOMIC_RELAXED)) {
        ctrt_device_get(&device, "fake:0");
        ctrt_is_available("nothing", &why);
        ctrt_param_info info;
        ctrt_param_get_info(&info, 3);
    }
    return NULL;
}

static void test_fork_threads(void)
{
    group("a fork while other threads are inside the library");
    if (!forks_beside_threads())
        return;
    IN_CHILD(folder_path(folder, NULL), "CTRT_FAKE_HOST=1") {
        static bool stop;
        pthread_t workers[3], forker;
        for (int i = 0; i < 3; i++)
            pthread_create(&workers[i], NULL, opens, &stop);
        pthread_create(&forker, NULL, forks, NULL);
        void *failures = NULL;
        pthread_join(forker, &failures);
        __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
        for (int i = 0; i < 3; i++)
            pthread_join(workers[i], NULL);
        CHECK(failures == NULL, "%ld of 20 children failed", (long)(intptr_t)failures);
    }
    CHILD_END;
}

TEST_MAIN
{
    search_installed_folder = "/nonexistent";       /* do not test an installed ctrt */
    folder = folder_new();
    fake_only = folder_new();
    folder_actor(folder, "backend-fake");
    folder_actor(folder, "backend-better");
    folder_actor(fake_only, "backend-fake");
    folder_plugin(folder, "memory-direct");
    folder_plugin(folder, "memory-caching");
    folder_plugin(fake_only, "memory-direct");
    folder_plugin(fake_only, "memory-caching");
    test_fork();
    test_fork_threads();
    folder_remove(folder);
    folder_remove(fake_only);
    return done();
}
