/* SPDX-License-Identifier: Apache-2.0 */
/* plugin.c: the tables of the plugin. */
#include "opencl.h"

const ctrt_host *host;

static const ctrt_backend backend = {
    .size = sizeof(ctrt_backend),
    .device = &device_table,
    .memory = &memory_table,
    .queue = &queue_table,
    .kernels = &kernel_table,
    .default_memory = "caching",                /* clSVMAlloc is slow */
};

/* The score is below the others', so that the backend is used only if a program names it. */
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_BACKEND, .score = -50, .name = "opencl", .table = &backend,
      .probe = driver_probe },
};

/* Read with getenv where they are needed, because the probe runs before init; declared so that they are listed. */
static const ctrt_param params[] = {
    { sizeof(ctrt_param), "CTRT_OPENCL_LIBRARY", CTRT_PARAM_STRING, NULL, NULL,
      "the library to load instead of libOpenCL.so.1" },
    { sizeof(ctrt_param), "CTRT_OPENCL_OPTIONS", CTRT_PARAM_STRING, NULL, NULL,
      "more options for the OpenCL compiler, such as -cl-fast-relaxed-math" },
};

static void in_child(void)
{
    process_generation++;
}

static ctrt_status init(const ctrt_host *lent)
{
    ctrt_param_value value;
    host = lent;
    for (size_t i = 0; i < sizeof params / sizeof params[0]; i++)
        CTRT_TRY(host->param(&value, &params[i]));
    CTRT_TRY(host->at_fork(NULL, NULL, in_child));
    discover();
    return kernels_init();
}

CTRT_PLUGIN_DEFINE("backend-opencl", "1.0", "devices of OpenCL 2.0, such as pocl on CPUs", components, init)
