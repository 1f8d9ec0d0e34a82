/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/runner.h: runs a launch's blocks in the calling thread. */
#ifndef SOFTCUDA_RUNNER_H
#define SOFTCUDA_RUNNER_H

#include <stdbool.h>

#include "block.h"

enum runner_order { ORDER_FORWARD, ORDER_REVERSE, ORDER_RANDOM };

struct launch {
    const struct softcuda_kernel *kernel;
    const struct softcuda_library *library;
    const void *arguments;
    size_t argument_bytes;
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    unsigned device;
    enum runner_order order;            /* of threads and blocks */
};

/* What became of a launch. code: 0, or the driver's result that follows from it. */
struct outcome {
    int code;
    char text[512];
    unsigned races;
};

void runner_launch(const struct launch *launch, struct outcome *outcome);
/* Before a thread that ran launches ends. */
void runner_end_thread(void);

/* memory.c: is an access to something else than a block of the device good? Else what it hit is written to `text`. */
bool runner_allowed(const void *address, size_t bytes, bool write, unsigned device, char *text, size_t text_bytes);

#endif
