/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the loading and initialisation of plugins from several threads, from the init of other plugins, and with
 * concurrent forks. */
#include <pthread.h>
#include <time.h>

#include "base/param.h"
#include "child.h"
#include "ctrt/device.h"
#include "folder.h"
#include "registry/internal.h"

#define QUIET "CTRT_LOG=error"

static void *use_all(void *argument)
{
    (void)argument;
    const struct component *component;
    ctrt_plugin_info info;
    intptr_t failures = 0;
    failures += registry_use(&component, CTRT_COMPONENT_BACKEND, "fake") != CTRT_OK;
    failures += registry_use(&component, CTRT_COMPONENT_BACKEND, "better") != CTRT_OK;
    for (size_t i = 0; ctrt_plugin_list(&info, i) == CTRT_OK; i++)
        failures += info.state == NULL;
    failures += registry_use(&component, CTRT_COMPONENT_BACKEND, "init-fails") == CTRT_OK;
    return (void *)failures;
}

static void test_threads(void)
{
    char *folder = folder_new();
    folder_actor(folder, "backend-fake");
    folder_actor(folder, "backend-better");
    folder_actor(folder, "backend-init-fails");
    group("eight threads load plugins at the same time");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        pthread_t threads[8];
        for (int i = 0; i < 8; i++)
            pthread_create(&threads[i], NULL, use_all, NULL);
        for (int i = 0; i < 8; i++) {
            void *failures;
            pthread_join(threads[i], &failures);
            CHECK(failures == NULL, "thread %d: %ld failures", i, (long)(intptr_t)failures);
        }
    }
    CHILD_END;
    group("parameters of plugins that are not loaded yet can be set and listed");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        CHECK_OK(ctrt_param_set("CTRT_FAKE_DEVICES", "7"));
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
        int32_t count = 0;
        CHECK_OK(((const ctrt_backend *)component->table)->device->count(&count));
        CHECK(count == 7, "%d devices", (int)count);
        CHECK_FAILS(ctrt_param_set("CTRT_FAKE_DEVICE", "7"), CTRT_ERR_NOT_FOUND, "did you mean CTRT_FAKE_DEVICES?");
        CHECK_FAILS(ctrt_param_set("CTRT_FAKE_DEVICES", "8"), CTRT_ERR_STATE, "already in use");
        bool found = false;
        ctrt_param_info info;
        for (size_t i = 0; ctrt_param_get_info(&info, i) == CTRT_OK; i++)
            if (strcmp(info.name, "CTRT_FAKE_DEVICES") == 0)
                found = strcmp(info.value, "7") == 0 && strcmp(info.origin, "program") == 0 &&
                    strncmp(info.owner, "backend-", 8) == 0;
        CHECK(found, "CTRT_FAKE_DEVICES is not listed as set by the program");
    }
    CHILD_END;
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        CHECK_FAILS(ctrt_param_set("CTRT_FAKE_DEVICES", "many"), CTRT_ERR_INVALID_ARGUMENT,
                    "CTRT_FAKE_DEVICES=many: expected an integer");
        const struct component *component;
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "fake"));
    }
    CHILD_END;
    folder_remove(folder);
}

static void *use_ping(void *name)
{
    const struct component *component;
    return (void *)(intptr_t)registry_use(&component, CTRT_COMPONENT_BACKEND, name);
}

#define FORK_ROUNDS 40                      /* each round forks 100 us later than the one before */

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer must not report the parent's threads as leaked in a forked child. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "report_thread_leaks=0";
}
#endif

static void test_init(void)
{
    char *folder = folder_new();
    folder_actor(folder, "backend-fake");
    folder_actor(folder, "backend-init-thread");
    folder_actor(folder, "backend-init-slow");
    folder_actor(folder, "backend-init-ping");
    folder_actor(folder, "backend-init-pong");
    folder_actor(folder, "backend-init-short");
    folder_actor(folder, "backend-init-forks");
    folder_actor(folder, "backend-init-thread-forks");
    folder_actor(folder, "backend-needs-fork");
    folder_actor(folder, "backend-needs-fork-late");
    group("an init can start and join a thread that calls the host table");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        alarm(60);
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-thread"));
        CHECK(component->state == PLUGIN_LOADED, "state %d", (int)component->state);
    }
    CHILD_END;
    group("two plugins whose inits need each other fail without deadlock, from one thread and from two");
    for (int threads = 1; threads <= 2; threads++) {
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const struct component *component;
            pthread_t other;
            alarm(60);
            if (threads == 2)
                CHECK(pthread_create(&other, NULL, use_ping, "init-pong") == 0, "no thread");
            CHECK(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-ping") != CTRT_OK,
                  "init-ping loaded although it needs init-pong");
            void *status = NULL;
            if (threads == 2)
                CHECK(pthread_join(other, &status) == 0 && status != NULL,
                      "init-pong loaded although it needs init-ping");
        }
        CHILD_END;
    }
    group("a child forked during an init in another thread can use the plugin");
    for (int round = 0; round < FORK_ROUNDS && forks_beside_threads(); round++) {
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            pthread_t other;
            int status = 0;
            alarm(60);
            CHECK(pthread_create(&other, NULL, use_ping, "init-slow") == 0, "no thread");
            nanosleep(&(struct timespec){ 0, round * 100000 }, NULL);
            const pid_t child = fork();
            if (child == 0) {
                const struct component *component;
                _exit(!CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-slow")));
            }
            const pid_t ended = waitpid(child, &status, 0);
            CHECK(ended == child && status == 0, "round %d: child %d, waitpid gave %d, status %x", round, (int)child,
                  (int)ended, (unsigned)status);
            pthread_join(other, NULL);
        }
        CHILD_END;
    }
    static const char *const needing[] = { "needs-fork", "needs-fork-late" };
    for (size_t i = 0; i < sizeof needing / sizeof needing[0]; i++) {
        group("an init can fork while the init of %s waits for it", needing[i]);
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const struct component *component;
            pthread_t other;
            void *status = NULL;
            alarm(60);
            CHECK(pthread_create(&other, NULL, use_ping, "init-forks") == 0, "no thread");
            CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, needing[i]));
            CHECK(pthread_join(other, &status) == 0 && status == NULL, "init-forks failed");
        }
        CHILD_END;
    }
    for (int opened = 0; opened <= 1; opened++) {
        group("a thread that an init waits for can fork, %s",
              opened ? "while a device is opened" : "while the plugin is looked up");
        IN_CHILD(folder_path(folder, NULL), QUIET) {
            const struct component *component;
            alarm(20);
            if (opened)
                CHECK(ctrt_device_count("init-thread-forks") == 3, "%d devices",
                      ctrt_device_count("init-thread-forks"));
            else
                CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-thread-forks"));
        }
        CHILD_END;
    }
    group("an init that failed for a temporary reason is called again");
    IN_CHILD(folder_path(folder, NULL), QUIET) {
        const struct component *component;
        CHECK_FAILS(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-short"), CTRT_ERR_IO,
                    "no descriptor is left");
        CHECK_OK(registry_use(&component, CTRT_COMPONENT_BACKEND, "init-short"));
    }
    CHILD_END;
    folder_remove(folder);
}

TEST_MAIN
{
    test_threads();
    test_init();
    return done();
}
