/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/plugin.c: the sim backend, simulated GPUs for machines without a GPU. Usage: doc/sim.md. */
#include "sim.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

const ctrt_host *sim_host;

static const ctrt_backend backend = {
    .size = sizeof(ctrt_backend),
    .device = &sim_device_table,
    .memory = &sim_memory_table,
    .queue = &sim_queue_table,
    .kernels = &sim_kernel_table,
    .default_memory = "caching",
};

static int32_t probe(char *reason, size_t reason_bytes)
{
    if (reason_bytes > 0)
        reason[0] = '\0';
    return 1;
}

/* Because the score is negative, "auto" never selects a simulated device. */
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .score = -1, .name = "sim", .table = &backend,
      .probe = probe },
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_HOOK, .score = -1, .name = "sim-control",
      .table = &sim_control_table },
};

/* Options are read whenever devices are counted, described or opened, so that the program can set them until then. */
static ctrt_status init(const ctrt_host *host)
{
    struct sim_options options;
    sim_host = host;
    ctrt_status status = sim_kernels_init();
    if (!status && sim_options_read(&options) != CTRT_OK)
        host->log(CTRT_LOG_WARNING, "backend-sim",
                  "CTRT_SIM or CTRT_SIM_FAULT is malformed: there are no simulated devices");
    return status;
}

static const ctrt_plugin plugin = {
    .size = sizeof(ctrt_plugin),
    .abi_major = CTRT_PLUGIN_ABI_MAJOR,
    .abi_minor = CTRT_PLUGIN_ABI_MINOR,
    .name = "backend-sim",
    .version = PACKAGE_VERSION,
    .description = "simulated devices",
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
