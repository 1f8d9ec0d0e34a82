/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/variant.h: for files that are compiled once per instruction set.
 *
 * A file listed in backend_cpu_variant_sources (local.mk) is compiled for the baseline, AVX2 and AVX-512, each time
 * with CPU_VARIANT defined and with the compiler flags of that instruction set. Everything in such a file is static,
 * except names declared with CPU_NAME. A family exports its kernel table with CPU_KERNELS; kernels.c takes the best
 * table that this processor can run, so a kernel's run() never selects a version at run time. */
#ifndef CTRT_CPU_VARIANT_H
#define CTRT_CPU_VARIANT_H

#include <stdint.h>
#include <string.h>

#include "body.h"
#include "vec.h"

#ifndef CPU_VARIANT
#define CPU_VARIANT baseline
#endif

#define CPU_NAME_PASTE(name, variant)  name##_##variant
#define CPU_NAME_EXPAND(name, variant) CPU_NAME_PASTE(name, variant)
#define CPU_NAME(name)                 CPU_NAME_EXPAND(name, CPU_VARIANT)

#define CPU_KERNELS(family, array)                                                                                \
    extern const struct cpu_kernels CPU_NAME(cpu_##family##_kernels);                                             \
    const struct cpu_kernels CPU_NAME(cpu_##family##_kernels) = { array, sizeof(array) / sizeof((array)[0]) }

#endif
