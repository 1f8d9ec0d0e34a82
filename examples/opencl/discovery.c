/* SPDX-License-Identifier: Apache-2.0 */
/* discovery.c: lists the devices of all OpenCL platforms.
 *
 * pocl and other platforms start threads when they are asked for their devices. A process that forks later would have
 * a child in which OpenCL does not work. So a child process asks; this process loads a platform only when a device is
 * opened. */
#define _POSIX_C_SOURCE 200809L
#include <ctrt/probe_plugin.h>
#include <stdio.h>
#include <string.h>

#include "opencl.h"

enum { PLATFORMS_MAX = 8, PATIENCE_MS = 30000 };

struct discovery found;

static uint64_t number(cl_device_id id, cl_device_info what, size_t bytes)
{
    uint64_t value = 0;
    return cl.clGetDeviceInfo(id, what, bytes, &value, NULL) == CL_SUCCESS ? value : 0;
}

/* Returns NULL, or why the device is not used. */
static const char *describe(struct device_facts *facts, cl_device_id id)
{
    char extensions[4096] = "";
    facts->memory = number(id, CL_DEVICE_GLOBAL_MEM_SIZE, 8);
    facts->largest = number(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, 8);
    facts->units = (int32_t)number(id, CL_DEVICE_MAX_COMPUTE_UNITS, 4);
    facts->clock_mhz = (int32_t)number(id, CL_DEVICE_MAX_CLOCK_FREQUENCY, 4);
    facts->is_cpu = (number(id, CL_DEVICE_TYPE, 8) & CL_DEVICE_TYPE_CPU) != 0;
    (void)cl.clGetDeviceInfo(id, CL_DEVICE_NAME, sizeof facts->name - 1, facts->name, NULL);
    (void)cl.clGetDeviceInfo(id, CL_DEVICE_VERSION, sizeof facts->version - 1, facts->version, NULL);
    (void)cl.clGetDeviceInfo(id, CL_DEVICE_EXTENSIONS, sizeof extensions - 1, extensions, NULL);
    if (!(number(id, CL_DEVICE_SVM_CAPABILITIES, 8) & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER))
        return "it has no shared virtual memory";
    return strstr(extensions, "cl_khr_fp64") != NULL ? NULL : "it has no f64 (cl_khr_fp64)";
}

/* Runs in the child. */
static void list(void *answer)
{
    struct discovery *all = answer;
    cl_platform_id platforms[PLATFORMS_MAX];
    cl_uint n_platforms = 0;
    const char *reason = driver_load();
    if (reason == NULL
        && (cl.clGetPlatformIDs(PLATFORMS_MAX, platforms, &n_platforms) != CL_SUCCESS || n_platforms == 0))
        reason = "there is no OpenCL platform";
    snprintf(all->reason, sizeof all->reason, "%s", reason != NULL ? reason : "no platform has a device");
    for (int p = 0; reason == NULL && p < (int)n_platforms && p < PLATFORMS_MAX; p++) {
        cl_device_id ids[DEVICES_MAX];
        cl_uint n = 0;
        if (cl.clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, DEVICES_MAX, ids, &n) != CL_SUCCESS)
            continue;
        for (int i = 0; i < (int)n && i < DEVICES_MAX && all->count < DEVICES_MAX; i++) {
            struct device_facts facts = { .platform = p, .ordinal = i };
            const char *unfit = describe(&facts, ids[i]);
            if (unfit == NULL)
                all->at[all->count++] = facts;
            else
                snprintf(all->reason, sizeof all->reason, "%s cannot be used: %s", facts.name, unfit);
        }
    }
}

void discover(void)
{
    char why[128];
    if (!ctrt_call_in_child(list, &found, sizeof found, PATIENCE_MS, why, sizeof why))
        snprintf(found.reason, sizeof found.reason, "the child that listed the devices %s", why);
}
