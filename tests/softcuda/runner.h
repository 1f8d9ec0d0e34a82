/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/runner.h: runs the blocks of a kernel launch in the calling thread. */
#ifndef SOFTCUDA_RUNNER_H
#define SOFTCUDA_RUNNER_H

#include <stdbool.h>

#include "block.h"

enum runner_order { ORDER_FORWARD, ORDER_RANDOM };

struct launch {
    _Alignas(16) const struct softcuda_kernel *kernel;
    const struct softcuda_library *library;
    const void *arguments;
    size_t argument_bytes;
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    unsigned device;
    int order;                          /* enum runner_order: of threads and blocks */
};

/* The result of a launch. code: 0, or the result code that the driver reports. */
struct outcome {
    int code;
    char text[512];
    unsigned races;
};

void runner_launch(const struct launch *launch, struct outcome *outcome);
/* Frees the state of a thread that has run launches. Call before the thread exits. */
void runner_end_thread(void);

/* memory.c: whether a kernel on `device` may access memory outside its own device's blocks. If it may not, describes
 * the memory in `text`. */
bool runner_allowed(const void *address, size_t bytes, bool write, unsigned device, char *text, size_t text_bytes);

#endif
