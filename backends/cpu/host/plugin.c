/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/plugin.c: the plugin table of the CPU backend. */
#include "cpu.h"
#include "internal.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

const ctrt_host *cpu_host;

static const ctrt_backend backend = {
    .size = sizeof(ctrt_backend),
    .device = &cpu_device_table,
    .memory = &cpu_memory_table,
    .kernels = &cpu_kernel_table,
    .default_memory = "caching",
};

static int32_t probe(char *reason, size_t reason_bytes)
{
    if (reason_bytes)
        reason[0] = '\0';
    return 1;                   /* always available; any accelerator is preferred */
}

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .name = "cpu", .table = &backend,
      .probe = probe },
};

/* May be called again; then reads the parameters and builds the kernel table anew. */
static ctrt_status init(const ctrt_host *host)
{
    cpu_host = host;
    ctrt_status status = cpu_isa_init();
    if (!status)
        status = cpu_threads_init();
    if (!status)
        status = cpu_limits_init();
    if (!status)
        status = cpu_numa_init();
    if (!status)
        status = cpu_pages_init();
    if (!status)
        status = cpu_gemm_init();
    if (!status)
        status = cpu_kernels_init();
    return status;
}

static const ctrt_plugin plugin = {
    .size = sizeof(ctrt_plugin),
    .abi_major = CTRT_PLUGIN_ABI_MAJOR,
    .abi_minor = CTRT_PLUGIN_ABI_MINOR,
    .name = "backend-cpu",
    .version = PACKAGE_VERSION,
    .description = "the host's processor",
    .components = components,
    .component_count = sizeof components / sizeof components[0],
    .component_stride = sizeof components[0],
    .init = init,
};

const ctrt_plugin *ctrt_plugin_v1(uint32_t host_abi_major, uint32_t host_abi_minor)
{
    (void)host_abi_major, (void)host_abi_minor;
    return &plugin;
}
