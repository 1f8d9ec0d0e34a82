/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_check.h: lists of devices for tests of ctrt/parallel.h, and comparisons of tensors on any device.
 *
 * The tests run on simulated devices. With CTRT_TEST_DEVICES=cuda they run on devices of that type instead. */
#ifndef CTRT_TESTS_PARALLEL_CHECK_H
#define CTRT_TESTS_PARALLEL_CHECK_H

#include <math.h>

#include "sims.h"

#define MOST 4

/* Device numbers of the type under test; -1: the cpu. */
static const struct device_list {
    const char *name;
    int n, devices[MOST];
} device_lists[] = {
    { "cpu", 1, { -1 } },
    { "one", 1, { 0 } },
    { "two", 2, { 0, 1 } },
    { "three, in another order", 3, { 2, 0, 1 } },
    { "four", 4, { 0, 1, 2, 3 } },
    { "one twice", 2, { 1, 1 } },
    { "the cpu first", 3, { -1, 0, 1 } },
    { "the cpu last", 3, { 0, 1, -1 } },
    { "three times the cpu", 3, { -1, -1, -1 } },
};

static inline const char *tested_type(void)
{
    const char *type = getenv("CTRT_TEST_DEVICES");
    return type != NULL ? type : "sim";
}

static inline ctrt_device *numbered(int number)
{
    char name[32];
    ctrt_device *device = NULL;
    snprintf(name, sizeof name, number < 0 ? "cpu" : "%s:%d", tested_type(), number);
    if (!CHECK_OK(ctrt_device_get(&device, name)))
        exit(1);
    return device;
}

/* Writes the devices 0 to 3. */
static inline void four(ctrt_device *devices[MOST])
{
    for (int i = 0; i < MOST; i++)
        devices[i] = numbered(i);
}

/* Writes the devices of the list. Returns false if the machine has too few. */
static inline bool list_devices(ctrt_device *devices[MOST], const struct device_list *list)
{
    for (int i = 0; i < list->n; i++)
        if (list->devices[i] >= ctrt_device_count(tested_type()))
            return false;
    for (int i = 0; i < list->n; i++)
        devices[i] = numbered(list->devices[i]);
    return true;
}

/* Tests that use simulated devices start with this, in a child process. */
#define SIMS "CTRT_SIM=devices=4,memory=32m,jitter=20us,poison=yes", "CTRT_NUM_THREADS=1"

/* Opens the cpu and the first four simulated devices. */
static inline void sims_begin(void)
{
    static const char *const names[MOST] = { "sim:0", "sim:1", "sim:2", "sim:3" };
    (void)cpu_device();
    for (int i = 0; i < MOST && i < ctrt_device_count("sim"); i++)
        (void)sim_open(names[i]);
}

/* Creates an f32 tensor with the values 1, 2, 3, ... times `factor` on `device`. */
static inline ctrt_tensor *ramp(ctrt_ints shape, double factor, ctrt_device *device)
{
    float values[512];
    int64_t numel = 1;
    ctrt_tensor *x = NULL;
    for (int d = 0; d < shape.count; d++)
        numel *= shape.values[d];
    for (int i = 0; i < 512; i++)
        values[i] = (float)((i + 1) * factor);
    REQUIRE_TRUE(numel <= 512);
    CHECK_OK(ctrt_from_data(&x, values, numel, shape, CTRT_F32, device));
    return x;
}

/* Counts log lines of the component "parallel". */
static int warnings;
static inline void count_warnings(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user, (void)text;
    warnings += level <= CTRT_LOG_WARNING && strcmp(component, "parallel") == 0;
}

/* A loss without targets: the mean of the output. */
static inline ctrt_status mean_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                    void *user)
{
    (void)inputs, (void)count, (void)user;
    return ctrt_mean(loss, output, CTRT_ALL_DIMS);
}

typedef ctrt_status (*net_function)(ctrt_module **out, ctrt_device *device);

static inline ctrt_module *original(net_function make, ctrt_device *device)
{
    ctrt_module *module = NULL;
    ctrt_manual_seed(7);
    CTRT_AUTO(module) here = NULL;              /* on the cpu, so that all devices have the same values */
    CHECK_OK(make(&here, cpu));
    CHECK_OK(ctrt_module_copy(&module, here, device));
    return module;
}

static inline ctrt_module *parallel(ctrt_module *module, const char *strategy, ctrt_device *const *devices, int n)
{
    ctrt_module *net = NULL;
    if (!CHECK_OK(ctrt_parallel_new(&net, module, strategy, devices, n)))
        tap_stop();
    return net;
}

#endif
