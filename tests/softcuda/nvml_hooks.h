/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/nvml_hooks.h: functions of libcuda.so.1 that nvml.c calls. They work without cuInit. */
#ifndef SOFTCUDA_NVML_HOOKS_H
#define SOFTCUDA_NVML_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

/* A hardware device, independent of CUDA_VISIBLE_DEVICES. */
struct softcuda_hardware {
    char uuid[48];                  /* GPU-... */
    int major, minor, multiprocessors;
    unsigned bus;
    uint64_t memory, used;          /* bytes; used by this process */
    bool active;                    /* this process has a context on the device */
    bool busy;                      /* this process has pending work on the device */
};

/* Exported by libcuda.so.1: the number of hardware devices, and the properties of one; false: no such device. */
int softcuda_hardware_count(void);
bool softcuda_hardware(struct softcuda_hardware *out, int number);

#endif
