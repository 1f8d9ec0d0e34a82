/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/nvml_hooks.h: functions that nvml.c calls: of libcuda.so.1, where they work without cuInit, or of
 * tests/unit/cuda_discovery.h. */
#ifndef SOFTCUDA_NVML_HOOKS_H
#define SOFTCUDA_NVML_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

/* A hardware device, independent of CUDA_VISIBLE_DEVICES. */
struct softcuda_hardware {
    const char *name;
    char uuid[48];                  /* GPU-... */
    int major, minor, multiprocessors;
    unsigned bus;
    uint64_t memory, used;          /* bytes; used by this process */
    bool active;                    /* this process has a context on the device */
    bool busy;                      /* this process has pending work on the device */
    bool denied;                    /* this process may not open the device */
    unsigned long cpus[2];          /* bit mask of the near ones */
    enum { MIG_OFF, MIG_INSTANCE, MIG_EMPTY } mig;      /* in MIG mode, with instance 3 or without instances */
    unsigned char fabric;           /* state of the NVLink fabric */
    unsigned nvlink;                /* bus of the device that 4 NVLinks connect; 0: none, and all devices are peers */
};

/* Counts a call and returns an injected status, else 0. */
int softcuda_enter(const char *symbol);
/* The number of hardware devices, and the properties of one; false: no such device. */
int softcuda_hardware_count(void);
bool softcuda_hardware(struct softcuda_hardware *out, int number);

#endif
