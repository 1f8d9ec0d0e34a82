/* SPDX-License-Identifier: Apache-2.0 */
/* device/device.h: an open device, as floors above see it. */
#ifndef CORE_DEVICE_DEVICE_H
#define CORE_DEVICE_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "ctrt/device.h"
#include "ctrt/plugin.h"

struct device_memory;                       /* memory/pool.h */
struct pinned;                              /* memory/pinned.h */
struct op_cell;                             /* ops/dispatch.h */

struct ctrt_device {
    char name[48];                          /* "cuda:1"; "cpu" */
    char type[32];
    int ordinal;                            /* index after masking; 0 for the cpu */
    uint32_t flags;                         /* CTRT_DEVICE_* */
    const ctrt_backend *backend;
    void *handle;                           /* what backend->device->open gave */
    struct ctrt_stream *stream;             /* the default stream (stream.h) */
    struct ctrt_stream *streams;            /* all, newest first; under the lock of stream.c */
    void **events;                          /* the backend's, for reuse; likewise */
    size_t event_count, event_room;
    _Atomic(struct pinned *) pinned;        /* memory/pinned.h */
    uint32_t number;                        /* among all devices that were opened, from 0 */
    _Atomic(uint8_t *) peers;               /* by number of the other device: does copying between the two work? (ops/peers.c) */
    struct device_memory *memory;           /* policy and accounting */
    _Atomic(struct op_cell *) cells; /* kernel rows by op and dtype; built at first use by ops/dispatch.c */
    const ctrt_kernel_table
        *overlays[4]; /* tables of kind `kernels` laid over this backend, best first; NULL-terminated */
    pthread_mutex_t generator_lock;         /* random numbers: ops/random.c */
    uint64_t seed, seed_offset;
    bool seeded;
    pid_t owner;                            /* process that opened it; 0: it was closed */
    _Atomic uint32_t events_held;           /* ctrt_event handles */
    _Atomic uint64_t synchronizations;      /* times that the host waited for work of the device; only the home's is used */
    int physical;                           /* index by which the backend knows it */
    /* A backend can stand over another one (ctrt_backend.base): its devices are names for those of that one, with their memory, streams and
     * handle and kernels of their own. */
    ctrt_device *home;                      /* whose these are; itself, but for such a device */
    ctrt_device *names, *next_name;         /* the other names of a home */
    uint8_t float_default;                  /* dtype of new tensors that are to have the default; 0: the process's */
};

/* Counts a wait of the host for work of the device. */
static inline void device_count_wait(ctrt_device *device)
{
    atomic_fetch_add_explicit(&device->home->synchronizations, 1, memory_order_relaxed);
}

/* Whose memory and streams the device has. */
static inline ctrt_device *device_home(ctrt_device *device)
{
    return device->home;
}

static inline bool device_host_memory(const ctrt_device *device)
{
    return device->flags & CTRT_DEVICE_HOST_MEMORY;
}

/* The process as this library knows it, kept up to date through fork. */
extern pid_t device_process;

/* False after ctrt_shutdown, and in the child of a fork for a device that was opened before it and cannot follow. */
static inline bool device_usable(const ctrt_device *device)
{
    return device->owner == device_process || device_host_memory(device);
}
/* The owner of the device that stands for none: where tensors are whose scope has ended. */
#define DEVICE_ENDED ((pid_t)-1)
/* CTRT_ERR_FORKED with its message, or CTRT_ERR_STATE for one that was closed, or is none. */
ctrt_status device_fail_forked(const ctrt_device *device);

/* memory/pool.c defines them: gives the device its policy and accounting. Declared here because devices open
 * below that floor. */
ctrt_status device_memory_create(ctrt_device *device);
void device_memory_destroy(ctrt_device *device);
/* For a device that is being closed: its policy ends, figures stay; and a policy for the device that is opened again. */
void device_memory_close(ctrt_device *device);
ctrt_status device_memory_reopen(ctrt_device *device);
/* Once, when the device is open and the lock is given back. */
void device_memory_opened(ctrt_device *device);

/* utilization.c: other processes that have memory on the open device, those with most first; returns how many, 0 when it is not known. Takes
 * no lock of the library's. */
size_t device_other_processes(ctrt_process *list, size_t room, const ctrt_device *device);

/* `device` or, for NULL, the default device. */
ctrt_status device_or_default(ctrt_device **out, ctrt_device *device);
/* The CPU: fallback, host copies, 0-dim operands. Opened at first use. */
ctrt_status device_cpu(ctrt_device **out);
/* The thread's current device of the best accelerator type; CTRT_ERR_NO_DEVICE without one. */
ctrt_status device_accelerator(ctrt_device **out);
/* Calls `visit` for every open device. */
void device_for_each(void (*visit)(ctrt_device *device, void *argument), void *argument);

/* Defined in ops/peers.c: false when direct copies from `from` to `to`, which are open, were tried and do not work. Tries them unless
 * work of one of them is captured or planned. */
bool device_link_works(ctrt_device *to, ctrt_device *from);

#endif
