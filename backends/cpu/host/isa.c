/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/host/isa.c: selects the instruction set of the kernels. */
#include "internal.h"

#include <stdlib.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

static enum cpu_isa chosen;
static size_t last_cache = (size_t)32 << 20;

enum cpu_isa cpu_isa(void)
{
    return chosen;
}

size_t cpu_stream_bytes(void)
{
    return last_cache;
}

/* Reads the size of the last-level cache of one processor from /sys, because sysconf reports the sum over the whole
 * package on some machines. Ignores sizes over 64 MiB, because so many processors share such a cache that one process
 * cannot use all of it. */
static size_t cache_size(void)
{
    char text[32], *unit = NULL;
    if (!cpu_read_file("/sys/devices/system/cpu/cpu0/cache/index3/size", text, sizeof text))
        return (size_t)32 << 20;
    size_t size = strtoul(text, &unit, 10);                             /* e.g. "32768K" */
    size <<= *unit == 'K' ? 10 : *unit == 'M' ? 20 : 0;
    return size < ((size_t)1 << 20) || size > ((size_t)64 << 20) ? (size_t)32 << 20 : size;
}

/* Returns the best instruction set that processor, operating system and build support. */
static enum cpu_isa best(void)
{
    enum cpu_isa isa = CPU_ISA_BASELINE;
#if defined(__x86_64__)
    __builtin_cpu_init();
#ifdef CTRT_CPU_AVX2
    unsigned eax, ebx, ecx = 0, edx;        /* clang 14 has no __builtin_cpu_supports("f16c") */
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")
                && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
    if (avx2)
        isa = CPU_ISA_AVX2;
#ifdef CTRT_CPU_AVX512
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        isa = CPU_ISA_AVX512;
#endif
#endif
#endif
    return isa;
}

ctrt_status cpu_isa_init(void)
{
    static const ctrt_param param = {
        .size = sizeof(ctrt_param), .name = "CTRT_CPU_ISA", .type = CTRT_PARAM_ENUM, .fallback = "auto",
        .words = "auto|baseline|avx2|avx512",
        .help = "best instruction set that the CPU backend's kernels may use",
    };
    ctrt_param_value value;
    CTRT_TRY(cpu_host->param(&value, &param));
    enum cpu_isa can = best(), wanted = value.integer > 0 ? (enum cpu_isa)(value.integer - 1) : can;
    if (wanted > can)
        cpu_host->log(CTRT_LOG_WARNING, "backend-cpu",
                      "CTRT_CPU_ISA=%s is not supported by this processor or this build; the setting can only select a "
                      "lower level", value.text);
    last_cache = cache_size();
    chosen = wanted < can ? wanted : can;
    return CTRT_OK;
}
