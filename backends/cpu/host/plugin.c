/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/plugin.c: the plugin table of the CPU backend. */
#include "cpu.h"
#include "internal.h"

#include "config.h"

const ctrt_host *cpu_host;

static const ctrt_backend backend = {
    .size = sizeof(ctrt_backend),
    .device = &cpu_device_table,
    .memory = &cpu_memory_table,
    .kernels = &cpu_kernel_table,
    .default_memory = "caching",
};

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .name = "cpu", .table = &backend },
};

/* May be called again; each call reads the parameters and builds the kernel table again. */
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

CTRT_PLUGIN_DEFINE("backend-cpu", PACKAGE_VERSION, "the host's processor", components, init)
