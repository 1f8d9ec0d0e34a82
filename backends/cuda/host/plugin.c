/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/plugin.c: the plugin for NVIDIA GPUs. The driver and NVIDIA's libraries are loaded at run time:
 * doc/cuda.md. */
#include "discovery.h"
#include "options.h"

#include <stdio.h>

#include "config.h"

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

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .score = 0, .name = "cuda", .table = &backend,
      .probe = cuda_probe },
};

static ctrt_status init(const ctrt_host *host)
{
    cuda_host = host;
    ctrt_status status = cuda_options_init();
    if (status == CTRT_OK)
        status = cuda_discovery_init();
    return status == CTRT_OK ? cuda_kernels_init() : status;
}

CTRT_PLUGIN_DEFINE("backend-cuda", PACKAGE_VERSION, "NVIDIA GPUs", components, init)
