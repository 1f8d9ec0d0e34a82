# The cpu backend: backend-cpu.so. Sources and headers of backends/cpu/, in alphabetical order.
backend_cpu_sources =

# Correct as C says, but with errno and traps left alone, so that loops become vectors.
CPU_KERNEL_CFLAGS = -O3 -fno-math-errno -fno-trapping-math

if PLUGIN_CPU
plugin_LTLIBRARIES += backend-cpu.la
backend_cpu_la_SOURCES  = $(backend_cpu_sources)
backend_cpu_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) $(ONEDNN_CPPFLAGS)
backend_cpu_la_CFLAGS   = $(PLUGIN_CFLAGS) $(OPENMP_CFLAGS) $(CPU_KERNEL_CFLAGS)
backend_cpu_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
endif

# For kernels that are compiled once per instruction set (see configure.ac: CPU_AVX2_CFLAGS, CPU_AVX512_CFLAGS), add a
# noinst convenience library per set, with those flags, to backend_cpu_la_LIBADD.
