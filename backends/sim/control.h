/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/control.h: lets tests read counters of simulated devices and inject faults.
 *
 * Not part of the plugin ABI and not installed. The table is the component "sim-control" (kind CTRT_COMPONENT_HOOK) of
 * backend-sim.so. A test without other access finds it as follows:
 *
 *     void *object = dlopen(path_of("backend-sim.so"), RTLD_NOW | RTLD_NOLOAD);       loaded by the library before
 *     ctrt_plugin_entry entry = dlsym(object, "ctrt_plugin_v1");
 *     const ctrt_plugin *plugin = entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
 *     ... the element of plugin->components whose name is "sim-control": its table is a sim_control.
 *
 * `device` is the backend's device index, not affected by CTRT_VISIBLE_DEVICES. The functions return CTRT_ERR_NO_DEVICE
 * if the device is not open. All functions are thread-safe. */
#ifndef CTRT_SIM_CONTROL_H
#define CTRT_SIM_CONTROL_H

#include "ctrt/plugin.h"

/* Counts since the device was opened. Operations are counted when they are requested, even if they fail or are dropped
 * later; allocations are counted when they succeed. Copies are indexed by enum ctrt_copy_kind. */
typedef struct sim_counters {
    size_t size;                            /* set by the caller */
    uint64_t allocs, frees;                 /* successful calls of alloc, free */
    uint64_t maps, unmaps;                  /* successful calls of map, unmap */
    uint64_t reserves, unreserves;
    uint64_t live_blocks;                   /* allocated blocks and mapped pages */
    uint64_t live_bytes, peak_bytes;        /* device memory in use */
    uint64_t host_allocs, host_frees, host_bytes;
    uint64_t bad_frees;                     /* frees of addresses that are not blocks */
    uint64_t copies[3], copy_bytes[3];
    uint64_t peer_copies, peer_bytes;       /* counted at the destination device */
    uint64_t fills, fill_bytes;
    uint64_t launches;                      /* kernel launches; per op: launches() */
    uint64_t waits, records, host_calls;
    uint64_t failures;                      /* work items that failed, not those dropped after a failure */
    uint64_t queues;                        /* current number, including the default queue */
    uint64_t threads;                       /* current number of worker threads */
} sim_counters;

typedef struct sim_control {
    size_t size;
    ctrt_status (*counters)(int device, sim_counters *out);
    /* Returns the number of launches of one op. */
    ctrt_status (*launches)(int device, const char *op, uint64_t *out);
    /* Adds faults, for example "alloc:3;op:add@57" (grammar: doc/sim.md). Their counts start at this call. */
    ctrt_status (*inject)(int device, const char *faults);
    /* Removes all faults and makes a lost device usable again. Failed queues remain failed until they are reset. */
    ctrt_status (*clear)(int device);
    ctrt_status (*set_latency)(int device, int64_t nanoseconds);
    ctrt_status (*set_bandwidth)(int device, uint64_t bytes_per_second);
    /* The copies and bytes of the link from device `from` to device `to`, since `to` was opened. */
    ctrt_status (*link)(int to, int from, uint64_t *copies, uint64_t *bytes);
} sim_control;

#endif
