/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/device.c: the device table of the one device, cpu:0. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Copies the value of "key<spaces>: value" from /proc/cpuinfo to `out`. Returns false if the line or its
 * value is missing. */
static bool cpuinfo_value(char *out, size_t bytes, const char *key)
{
    char text[8192];                            /* enough for the first processor's entry */
    if (!cpu_read_file("/proc/cpuinfo", text, sizeof text))
        return false;
    size_t length = strlen(key);
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, key, length) != 0 || !strchr(" \t:", line[length]))
            continue;
        const char *value = strchr(line, ':');
        if (!value)
            continue;
        value += strspn(value, ": \t");
        snprintf(out, bytes, "%s", value);
        return *out != '\0';
    }
    return false;
}

static void processor_name(char *name, size_t bytes)
{
    struct utsname system;
    if (cpuinfo_value(name, bytes, "model name") || cpuinfo_value(name, bytes, "Model"))
        return;
    snprintf(name, bytes, "%s", uname(&system) == 0 ? system.machine : "cpu");
}

static int32_t clock_khz(void)
{
    char text[64];
    if (cpu_read_file("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", text, sizeof text))
        return (int32_t)strtol(text, NULL, 10);
    if (cpuinfo_value(text, sizeof text, "cpu MHz"))
        return (int32_t)(strtod(text, NULL) * 1000);
    return 0;
}

static ctrt_status count(int32_t *devices)
{
    *devices = 1;
    return CTRT_OK;
}

static ctrt_status describe_device(int32_t index, ctrt_device_info *info)
{
    if (index != 0)
        return cpu_host->fail(CTRT_ERR_NO_DEVICE, "cpu:%d: there is one cpu device, cpu:0", (int)index);
    ctrt_device_info facts = {
        .size = info->size,
        .total_memory = cpu_memory_total(),
        .processors = cpu_allowed_processors(),
        .clock_khz = clock_khz(),
        .numa_node = cpu_numa_node(),
        .flags = CTRT_DEVICE_HOST_MEMORY,
        .ecc = -1,
    };
    processor_name(facts.name, sizeof facts.name);
    memcpy(info, &facts, info->size < sizeof facts ? info->size : sizeof facts);
    return CTRT_OK;
}

static int the_device;          /* its address is the device handle; the device has no state */

static ctrt_status open_device(void **device, int32_t index)
{
    if (index != 0)
        return cpu_host->fail(CTRT_ERR_NO_DEVICE, "cpu:%d: there is one cpu device, cpu:0", (int)index);
    *device = &the_device;
    return CTRT_OK;
}

static void close_device(void *device)
{
    (void)device;
}

static ctrt_status memory_info(void *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    (void)device;
    struct cpu_memory_limits limits;
    cpu_memory_limits(&limits);
    if (limits.total == 0)
        return cpu_host->fail(CTRT_ERR_IO,
                              "cpu: /proc/meminfo cannot be read, and no other limit says how much memory there is");
    *free_bytes = limits.free;
    *total_bytes = limits.total;
    return CTRT_OK;
}

const ctrt_device_table cpu_device_table = {
    .size = sizeof(ctrt_device_table),
    .count = count,
    .describe = describe_device,
    .open = open_device,
    .close = close_device,
    .memory_info = memory_info,
};
