/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/control.h: what tests read of simulated devices, and do to them.
 *
 * No part of the plugin border and not installed. The table is the component "sim-control" (kind CTRT_COMPONENT_HOOK) of
 * backend-sim.so, so that a test that has no other way in finds it:
 *
 *     void *object = dlopen(path_of("backend-sim.so"), RTLD_NOW | RTLD_NOLOAD);       loaded by the library before
 *     ctrt_plugin_entry entry = dlsym(object, "ctrt_plugin_v1");
 *     const ctrt_plugin *plugin = entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
 *     ... the row of plugin->components whose name is "sim-control": its table is a sim_control.
 *
 * `device` is the index by which the backend counts (before CTRT_VISIBLE_DEVICES); it must be open, else CTRT_ERR_NO_DEVICE. All
 * may be called from any thread, at any time. */
#ifndef CTRT_SIM_CONTROL_H
#define CTRT_SIM_CONTROL_H

#include "ctrt/plugin.h"

/* Since the device was opened. All that was asked for counts, also what failed or was dropped later; allocations count when they
 * succeed. Copies by enum ctrt_copy_kind. */
typedef struct sim_counters {
    size_t size;                            /* set by the caller */
    uint64_t allocs, frees;                 /* alloc, free */
    uint64_t maps, unmaps;                  /* calls that mapped, unmapped */
    uint64_t reserves, unreserves;
    uint64_t live_blocks;                   /* of alloc, and mapped pages */
    uint64_t live_bytes, peak_bytes;        /* device memory in use */
    uint64_t host_allocs, host_frees, host_bytes;
    uint64_t bad_frees;                     /* of what was no block */
    uint64_t copies[3], copy_bytes[3];
    uint64_t peer_copies, peer_bytes;       /* counted at the device that receives */
    uint64_t fills, fill_bytes;
    uint64_t launches;                      /* kernels; per op: launches() */
    uint64_t waits, records, host_calls;
    uint64_t failures;                      /* pieces of work that failed; what was dropped behind them is not counted */
    uint64_t queues;                        /* now; the device's own is one */
    uint64_t threads;                       /* workers now */
} sim_counters;

/* Writes the name of what lies at `address` into text[bytes], terminated; returns false when it knows none. Called in a signal
 * handler: no locks, no allocation, no stdio. */
typedef bool (*sim_namer)(char *text, size_t bytes, const void *address);

typedef struct sim_control {
    size_t size;
    ctrt_status (*counters)(int device, sim_counters *out);
    /* Launches of one op. */
    ctrt_status (*launches)(int device, const char *op, uint64_t *out);
    /* Adds faults, "alloc:3;op:add@57" (doc/sim.md has the grammar); each counts from now on. */
    ctrt_status (*inject)(int device, const char *faults);
    /* Forgets all faults, and that the device was lost. Queues that failed stay so until they are reset. */
    ctrt_status (*clear)(int device);
    ctrt_status (*set_latency)(int device, int64_t nanoseconds);
    ctrt_status (*set_bandwidth)(int device, uint64_t bytes_per_second);
    /* Who can tell the tensor at an address, for the message of a host access; NULL: nobody. Process-wide. */
    void (*set_namer)(sim_namer namer);
} sim_control;

#endif
