/* SPDX-License-Identifier: Apache-2.0 */
/* sims.h: simulated devices for tests of the public API. Opens a device and the control table that reads its counters
 * and injects faults. */
#ifndef CTRT_TESTS_SIMS_H
#define CTRT_TESTS_SIMS_H

#include <dlfcn.h>
#include <pthread.h>

#include "backends/sim/control.h"
#include "child.h"
#include "folder.h"
#include "tensors.h"

static const sim_control *sim;
static void (*sim_opened)(ctrt_device *device);     /* if not NULL, run_sim calls it with sim:0 */

/* Opens `name` and finds the control table. If either fails, ends the child process with a failed check. */
static inline ctrt_device *sim_open(const char *name)
{
    ctrt_device *device = NULL;
    if (!CHECK_OK(ctrt_device_get(&device, name)))
        exit(1);
    if (sim == NULL) {
        const char *folder = getenv("CTRT_PLUGIN_PATH");
        char path[4096];
        snprintf(path, sizeof path, "%s/backend-sim.so", folder != NULL ? folder : "");
        void *object = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        const ctrt_plugin *(*entry)(uint32_t, uint32_t) = NULL;
        if (object != NULL)
            *(void **)&entry = dlsym(object, "ctrt_plugin_v1");
        const ctrt_plugin *plugin = entry != NULL ? entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR) : NULL;
        for (size_t i = 0; plugin != NULL && i < plugin->component_count; i++)
            if (strcmp(plugin->components[i].name, "sim-control") == 0)
                sim = plugin->components[i].table;
        if (!CHECK(sim != NULL, "no sim-control in %s: %s", path, dlerror()))
            exit(1);
    }
    return device;
}

static inline sim_counters sim_read(int device)
{
    sim_counters counters = { .size = sizeof counters };
    CHECK_OK(sim->counters(device, &counters));
    return counters;
}

static inline ctrt_stream *new_stream(ctrt_device *device)
{
    ctrt_stream *stream = NULL;
    CHECK_OK(ctrt_stream_new(&stream, device, 0));
    return stream;
}

static inline ctrt_stream *default_stream(ctrt_device *device)
{
    ctrt_stream *stream = NULL;
    CHECK_OK(ctrt_stream_default(&stream, device));
    return stream;
}

static inline ctrt_event *new_event(ctrt_device *device, bool timing)
{
    ctrt_event *event = NULL;
    CHECK_OK(ctrt_event_new(&event, device, timing));
    return event;
}

/* Returns the cpu, opened again if a shutdown has closed it, and stores it in `cpu`. */
static inline ctrt_device *cpu_device(void)
{
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    return cpu;
}

/* A group whose checks run in a child process with these settings, which end with NULL. */
static inline void run_sim(const char *what, void (*run)(ctrt_device *device), const char *const *settings)
{
    group("%s (%s %s)", what, settings[0], settings[1] != NULL ? settings[1] : "");
    CHILD_LOOP(child, settings, exit) {
        ctrt_device *device = sim_open("sim:0");
        if (sim_opened != NULL)
            sim_opened(device);
        run(device);
    }
}

/* A TEST (tap.h) in a child process with these settings, in which sim:0 is open. SIM_AGAIN repeats it with others.
 *
 *     SIM_TEST(copies, "copies are ordered", "CTRT_SIM=devices=2") { ... device ... }
 *     SIM_AGAIN(copies, "copies are ordered", "CTRT_SIM=devices=2,peers=none") */
#define SIM_TEST(function, ...)                                                                             \
    static void function(ctrt_device *device);                                                              \
    SIM_AGAIN(function, __VA_ARGS__)                                                                        \
    static void function(__attribute__((unused)) ctrt_device *device)
#define SIM_AGAIN(...)               SIM_RUN_AT(__LINE__, __VA_ARGS__)
#define SIM_RUN_AT(line, ...)        SIM_RUN(line, __VA_ARGS__)
#define SIM_RUN(line, function, what, ...)                                                                  \
    TEST(function##_##line, NULL)                                                                           \
    {                                                                                                       \
        run_sim(what, function, (const char *const[]){ __VA_ARGS__, NULL });                                    \
    }

/* A TEST (tap.h) in two child processes with these settings, with the cpu and with sim:0. */
#define BOTH_TEST(function, what, ...)                                                                      \
    static void function(ctrt_device *device);                                                              \
    CHILD_TEST(function##_on_cpu, "cpu: " what, __VA_ARGS__) { function(cpu_device()); }                    \
    CHILD_TEST(function##_on_sim, "sim:0: " what, __VA_ARGS__) { function(sim_open("sim:0")); }             \
    static void function(ctrt_device *device)

/* Makes a call that has to succeed while `stream` is the current stream of its device. */
#define ON_STREAM(stream, call)                                                 \
    do {                                                                        \
        CHECK_OK(ctrt_stream_push(stream));                                     \
        CHECK_OK(call);                                                         \
        CHECK_OK(ctrt_stream_pop());                                            \
    } while (0)

static inline ctrt_tensor *full(double value, int64_t n, ctrt_device *device)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_full(&x, CTRT_SHAPE(n), ctrt_float(value), CTRT_F32, device));
    return x;
}

#endif
