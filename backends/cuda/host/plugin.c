/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/plugin.c: the plugin for NVIDIA GPUs. The driver and NVIDIA's libraries are loaded at run time:
 * doc/cuda.md. */
#include "discovery.h"
#include "options.h"

#include <stdio.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

const ctrt_host *cuda_host;

static const ctrt_backend backend = {
    .size = sizeof(ctrt_backend),
    .device = &cuda_device_table,
    .memory = &cuda_memory_table,
    .queue = &cuda_queue_table,
    .kernels = &cuda_kernel_table,
    .capture = &cuda_capture_table,
    .default_memory = "caching",
};

/* Must not initialise the driver: children that the process forks afterwards could not use CUDA. */
static int32_t probe(char *reason, size_t reason_bytes)
{
    return cuda_probe(reason, reason_bytes);
}

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .score = 0, .name = "cuda", .table = &backend,
      .probe = probe },
};

static ctrt_status init(const ctrt_host *host)
{
    cuda_host = host;
    ctrt_status status = cuda_options_init();
    if (status == CTRT_OK)
        status = cuda_discovery_init();
    return status == CTRT_OK ? cuda_kernels_init() : status;
}

static const ctrt_plugin plugin = {
    .size = sizeof(ctrt_plugin),
    .abi_major = CTRT_PLUGIN_ABI_MAJOR,
    .abi_minor = CTRT_PLUGIN_ABI_MINOR,
    .name = "backend-cuda",
    .version = PACKAGE_VERSION,
    .description = "NVIDIA GPUs",
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
