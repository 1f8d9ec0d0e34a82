/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/libs/blocked.h: copies between images [N,C,S] of f16 or bf16 and oneDNN's blocked layouts. */
#ifndef CTRT_CPU_BLOCKED_H
#define CTRT_CPU_BLOCKED_H

#include <stdbool.h>
#include <stdint.h>

/* Blocked images are [N, ceil(C / block), S, block]; channels from C are 0. */
struct cpu_blocked {
    int64_t n, channels, size;          /* size: S, elements of one channel */
    int64_t block;                      /* 8 or 16; 0: another layout */
    bool wide;                          /* the images are bf16, and the blocked ones f32 */
};

void cpu_blocked_from_images(const struct cpu_blocked *b, void *blocked, const void *images);
/* `wide` must be false. */
void cpu_blocked_to_images(const struct cpu_blocked *b, void *images, const void *blocked);

#endif
