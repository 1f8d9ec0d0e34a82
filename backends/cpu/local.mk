# The cpu backend: backend-cpu.so. Sources and headers of backends/cpu/, in alphabetical order.
backend_cpu_sources =
backend_cpu_sources += \
    backends/cpu/cgroup.c backends/cpu/cpu.h backends/cpu/device.c backends/cpu/families.def backends/cpu/internal.h \
    backends/cpu/isa.c backends/cpu/kernels.c backends/cpu/memory.c backends/cpu/plugin.c backends/cpu/threads.c

# Files that are compiled once per instruction set (variant.h).
backend_cpu_variant_sources =
backend_cpu_variant_sources += \
    backends/cpu/compare.c backends/cpu/convert.h backends/cpu/copy.c backends/cpu/divide.c backends/cpu/drive.c \
    backends/cpu/drive.h backends/cpu/elementwise.c backends/cpu/unary.c backends/cpu/variant.h

# Correct as C says, but with errno and traps left alone, so that loops become vectors.
CPU_KERNEL_CFLAGS = -O3 -fno-math-errno -fno-trapping-math

if PLUGIN_CPU
plugin_LTLIBRARIES += backend-cpu.la
backend_cpu_la_SOURCES  = $(backend_cpu_sources)
backend_cpu_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(ONEDNN_CPPFLAGS)
backend_cpu_la_CFLAGS   = $(PLUGIN_CFLAGS) $(OPENMP_CFLAGS) $(CPU_KERNEL_CFLAGS)
backend_cpu_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
backend_cpu_la_LIBADD   = libcpu-baseline.la

noinst_LTLIBRARIES += libcpu-baseline.la
libcpu_baseline_la_SOURCES  = $(backend_cpu_variant_sources)
libcpu_baseline_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -DCPU_VARIANT=baseline
libcpu_baseline_la_CFLAGS   = $(PLUGIN_CFLAGS) $(CPU_KERNEL_CFLAGS)

if CPU_AVX2
noinst_LTLIBRARIES += libcpu-avx2.la
backend_cpu_la_LIBADD += libcpu-avx2.la
libcpu_avx2_la_SOURCES  = $(backend_cpu_variant_sources)
libcpu_avx2_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -DCPU_VARIANT=avx2
libcpu_avx2_la_CFLAGS   = $(PLUGIN_CFLAGS) $(CPU_KERNEL_CFLAGS) $(CPU_AVX2_CFLAGS)
endif

if CPU_AVX512
noinst_LTLIBRARIES += libcpu-avx512.la
backend_cpu_la_LIBADD += libcpu-avx512.la
libcpu_avx512_la_SOURCES  = $(backend_cpu_variant_sources)
libcpu_avx512_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -DCPU_VARIANT=avx512
libcpu_avx512_la_CFLAGS   = $(PLUGIN_CFLAGS) $(CPU_KERNEL_CFLAGS) $(CPU_AVX512_CFLAGS)
endif
endif
