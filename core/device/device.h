/* SPDX-License-Identifier: Apache-2.0 */
/* device/device.h: the struct of an open device, for the layers above. */
#ifndef CORE_DEVICE_DEVICE_H
#define CORE_DEVICE_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/base.h"
#include "ctrt/device.h"
#include "ctrt/plugin.h"

struct device_memory;                       /* memory/pool.h */
struct pinned;                              /* memory/pinned_cache.h */
struct dispatch_entry;                      /* ops/dispatch.h */
struct launch_ops;                          /* ops/launch.h */

struct ctrt_device {
    char name[48];                          /* "cuda:1"; "cpu" */
    char type[32];
    int ordinal;                            /* index after masking; 0 for the cpu */
    uint32_t flags;                         /* CTRT_DEVICE_* */
    const ctrt_backend *backend;
    void *handle;                           /* the backend's handle, from device->open */
    struct ctrt_stream *stream;             /* the default stream (stream.h) */
    struct ctrt_stream *streams;            /* all streams, newest first; guarded by streams_lock of stream.c */
    void **events;                          /* free backend events, for reuse; guarded by streams_lock */
    size_t event_count, event_capacity;
    _Atomic(struct pinned *) pinned;        /* cache of pinned host memory (memory/pinned_cache.h) */
    uint32_t number;                        /* index among all devices opened by this process, from 0 */
    _Atomic(uint8_t *) peers;               /* indexed by the other device's number: whether direct copies work
                                             * (ops/peers.c) */
    struct device_memory *memory;           /* memory policy and statistics */
    _Atomic(struct dispatch_entry *) dispatch;     /* kernels by op and dtype; built at first use by ops/dispatch.c */
    const struct launch_ops *launch;        /* how work is enqueued; replaced during a dry run */
    atomic_int captures, graphs;            /* running captures, existing graphs; counted on the home device only */
    const ctrt_kernel_table
        *overlays[4]; /* kernel tables that extend this backend, best first; NULL-terminated */
    pthread_mutex_t generator_lock;         /* guards the random number generator's state (ops/random.c) */
    uint64_t seed, seed_offset;
    bool seeded;
    pid_t owner;                            /* process that opened the device; 0: closed */
    _Atomic uint32_t events_held;           /* number of existing ctrt_event handles */
    _Atomic uint32_t memory_registered;     /* number of regions of host memory that pinned_register has pinned */
    _Atomic uint64_t synchronizations;      /* number of times the host waited for work of the device; counted on the
                                             * home device only */
    int physical;                           /* the backend's own device index */
    /* A backend can extend another one (ctrt_backend.base). Its devices are aliases: they share memory, streams and
     * handle with the base backend's device, their home, and have additional kernels of their own. */
    ctrt_device *home;                      /* the home device of an alias; the device itself otherwise */
    ctrt_device *names, *next_name;         /* the aliases of a home device */
    uint8_t float_default;                  /* default dtype of new floating-point tensors; 0: the process default */
    bool cpu;                               /* see device_is_cpu */
};

/* Counts one wait of the host for work of `device`. */
static inline void device_count_wait(ctrt_device *device)
{
    atomic_fetch_add_explicit(&device->home->synchronizations, 1, memory_order_relaxed);
}

/* The device that owns the memory and streams of `device`. */
static inline ctrt_device *device_home(ctrt_device *device)
{
    return device->home;
}

/* Returns whether the host can use the device's memory at any time, because work is done when its call returns:
 * lifecycle/open.c clears the flag of asynchronous devices. */
static inline bool device_host_memory(const ctrt_device *device)
{
    return device->flags & CTRT_DEVICE_HOST_MEMORY;
}

/* Returns whether it is the device of device_cpu. Only this device has tensors in memory that the program, the library
 * or another device has allocated; code that needs only a property uses the functions above. */
static inline bool device_is_cpu(const ctrt_device *device)
{
    return device->cpu;
}

/* Returns whether the device has members over which it distributes tensors (ctrt/layout.h). */
static inline bool device_distributes(const ctrt_device *device)
{
    return CTRT_SLOT(device->backend, layout) != 0;
}

/* The process ID of this process, updated in the child of a fork. */
extern pid_t device_process;

/* False after ctrt_shutdown, and in a forked child for a device that the parent opened, unless the device uses host
 * memory. */
static inline bool device_usable(const ctrt_device *device)
{
    return device->owner == device_process || device_host_memory(device);
}
/* The `owner` of a placeholder device that is used by tensors whose scope has ended. */
#define DEVICE_ENDED ((pid_t)-1)
/* Fails with CTRT_ERR_FORKED, or with CTRT_ERR_STATE if the device was closed or is the placeholder of an ended
 * scope. */
ctrt_status device_fail_forked(const ctrt_device *device);
static inline ctrt_status device_check(const ctrt_device *device)
{
    return likely(device_usable(device)) ? CTRT_OK : device_fail_forked(device);
}

/* utilization.c: lists other processes that have memory on the open device, largest amount first. Returns how many were
 * listed; 0 when the processes are unknown. Takes no lock of the library. */
size_t device_other_processes(ctrt_process *list, size_t capacity, const ctrt_device *device);

/* slots.c: reads the free and the total bytes of the backend's device. CTRT_ERR_NOT_SUPPORTED, without a message, if
 * the backend does not report them; CTRT_ERR_PLUGIN if the sizes are not possible. */
ctrt_status slot_memory_info(const ctrt_device *device, uint64_t *free_bytes, uint64_t *total);

/* Returns `device` in *out or, if it is NULL, the default device. */
ctrt_status device_or_default(ctrt_device **out, ctrt_device *device);
/* Returns the CPU device, opened at first use. It is used for the CPU fallback, for host copies and for 0-dim
 * operands. */
ctrt_status device_cpu(ctrt_device **out);
/* Returns the thread's current device of the best accelerator type; CTRT_ERR_NO_DEVICE without an accelerator. */
ctrt_status device_accelerator(ctrt_device **out);
/* Calls `visit` for every open device. */
void device_for_each(void (*visit)(ctrt_device *device, void *argument), void *argument);

#endif
