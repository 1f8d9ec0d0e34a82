/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/host/plugin.c: registers the engine `host`. */
#include "config.h"
#include "host.h"

static ctrt_status init(const ctrt_host *host)
{
    host_init(host);
    return CTRT_OK;
}

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_COMM, .name = "host", .table = &host_engine },
};

CTRT_PLUGIN_DEFINE("comm-host", PACKAGE_VERSION, "communicators: threads and processes of one machine", components,
                   init)
