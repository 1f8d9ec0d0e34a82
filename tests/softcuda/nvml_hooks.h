/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/nvml_hooks.h: what the double of NVML asks the double of the driver, which need not be initialised for it. */
#ifndef SOFTCUDA_NVML_HOOKS_H
#define SOFTCUDA_NVML_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

/* A device of the hardware, whatever CUDA_VISIBLE_DEVICES says. */
struct softcuda_hardware {
    unsigned char uuid[16];
    char driver[32];
    int version;                    /* of CUDA */
    int major, minor, multiprocessors;
    unsigned bus;
    uint64_t memory, used;          /* bytes; used by this process */
    bool active;                    /* this process has a context there */
    bool busy;                      /* and work on it */
    uint32_t peers;                 /* bit by hardware number: whose memory it can use */
};

/* Of libcuda.so.1: how many there are; false: no such device. */
int softcuda_hardware_count(void);
bool softcuda_hardware(struct softcuda_hardware *out, int number);

#endif
