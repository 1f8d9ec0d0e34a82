/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/plugin.c: the sim backend, simulated GPUs for machines without a GPU. Usage: doc/sim.md. */
#include "sim.h"

#include "config.h"

const ctrt_host *sim_host;

static const ctrt_backend backend = {
    .size = sizeof(ctrt_backend),
    .device = &sim_device_table,
    .memory = &sim_memory_table,
    .queue = &sim_queue_table,
    .kernels = &sim_kernel_table,
    .default_memory = "caching",
};

/* Because the score is negative, "auto" never selects a simulated device. */
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .score = -1, .name = "sim", .table = &backend },
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_HOOK, .score = -1, .name = "sim-control",
      .table = &sim_control_table },
};

/* Reads the options only to warn of malformed ones. They are read again each time devices are counted, described or
 * opened, so the program can change them until then. */
static ctrt_status init(const ctrt_host *host)
{
    struct sim_options options;
    sim_host = host;
    ctrt_status status = sim_kernels_init();
    if (status == CTRT_OK && sim_options_read(&options) != CTRT_OK)
        host->log(CTRT_LOG_WARNING, "backend-sim",
                  "CTRT_SIM or CTRT_SIM_FAULT is malformed: there are no simulated devices");
    return status;
}

CTRT_PLUGIN_DEFINE("backend-sim", PACKAGE_VERSION, "simulated devices", components, init)
