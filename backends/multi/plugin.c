/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/plugin.c: the component of the backend sim-multi or nccl-multi. Compiled once for each, with the
 * macros MULTI_NAME, MULTI_BASE, MULTI_ENGINE, MULTI_PARAM and MULTI_EXAMPLE that local.mk defines. */
#include "multi.h"

#include "config.h"

const ctrt_host *multi_host;

static const ctrt_param members_param = {
    .size = sizeof(ctrt_param), .name = MULTI_PARAM, .type = CTRT_PARAM_STRING,
    .help = "members of the devices of " MULTI_NAME ", separated by commas, and by semicolons between devices: "
            MULTI_EXAMPLE "; or 2x4: two devices of four members each; default: all visible " MULTI_BASE " devices as "
            MULTI_NAME ":0",
};

const struct multi_kind multi_kind = {
    .name = MULTI_NAME, .base = MULTI_BASE, .engine = MULTI_ENGINE, .members = &members_param,
};

static const ctrt_backend backend = {
    .size = sizeof(ctrt_backend),
    .device = &multi_device_table,
    .memory = &multi_memory_table,
    .queue = &multi_queue_table,
    .kernels = &multi_kernel_table,
    .default_memory = "direct",
    .flags = CTRT_BACKEND_OWN_MEMORY,
    .layout = &multi_layout_table,
};

/* Because the score is negative, "auto" never selects the device. */
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .score = -1, .name = MULTI_NAME,
      .table = &backend },
};

static ctrt_status init(const ctrt_host *host)
{
    ctrt_param_value value;
    multi_host = host;
    (void)host->backend(MULTI_BASE);    /* loads the base backend; without its devices this backend has none */
    return host->param(&value, &members_param);
}

CTRT_PLUGIN_DEFINE("backend-" MULTI_NAME, PACKAGE_VERSION, "several devices of " MULTI_BASE " as one", components, init)
