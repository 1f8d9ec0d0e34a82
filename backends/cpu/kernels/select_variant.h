/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/select_variant.h: selects one of the versions of a symbol that CPU_NAME (variant.h) named. */
#ifndef CTRT_CPU_SELECT_VARIANT_H
#define CTRT_CPU_SELECT_VARIANT_H

#include "host/cpu.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#if defined(CTRT_CPU_AVX512)
#define CPU_SELECT_AVX512(name) cpu_isa() >= CPU_ISA_AVX512 ? &name##_avx512 :
#else
#define CPU_SELECT_AVX512(name)
#endif
#if defined(CTRT_CPU_AVX2)
#define CPU_SELECT_AVX2(name) cpu_isa() >= CPU_ISA_AVX2 ? &name##_avx2 :
#else
#define CPU_SELECT_AVX2(name)
#endif

/* Address of the best version of `name` that this processor can run. */
#define CPU_SELECT_VARIANT(name) (CPU_SELECT_AVX512(name) CPU_SELECT_AVX2(name) &name##_baseline)

#endif
