# The CPU backend, backend-cpu.so. Sources and headers of backends/cpu/, in alphabetical order.
backend_cpu_sources =
backend_cpu_sources += \
    backends/cpu/cgroup.c backends/cpu/cpu.h backends/cpu/device.c backends/cpu/families.def backends/cpu/internal.h \
    backends/cpu/isa.c backends/cpu/kernels.c backends/cpu/limits.c backends/cpu/memory.c backends/cpu/numa.c \
    backends/cpu/numa.h backends/cpu/pages.c backends/cpu/pinned.c backends/cpu/plugin.c backends/cpu/threads.c
backend_cpu_sources += \
    backends/cpu/blas.c backends/cpu/conv.c backends/cpu/conv.h backends/cpu/conv_body.h backends/cpu/conv_builtin.c \
    backends/cpu/gemm.h backends/cpu/gemm_builtin.c backends/cpu/gemm_drive.h backends/cpu/gemm_path.c \
    backends/cpu/half_pick.c backends/cpu/index.c backends/cpu/matmul.c backends/cpu/onednn.c backends/cpu/onednn.h \
    backends/cpu/onednn_api.h backends/cpu/onednn_conv.c backends/cpu/onednn_product.c backends/cpu/pick.h \
    backends/cpu/product.h backends/cpu/product_builtin.c backends/cpu/scratch.c backends/cpu/scratch.h

# Files that are compiled once per instruction set (variant.h).
backend_cpu_variant_sources =
backend_cpu_variant_sources += \
    backends/cpu/compare.c backends/cpu/convert.h backends/cpu/copy.c backends/cpu/divide.c backends/cpu/drive.c \
    backends/cpu/drive.h backends/cpu/elementwise.c backends/cpu/extreme.c backends/cpu/gradient.c backends/cpu/math.c \
    backends/cpu/math_f32.h backends/cpu/random.c backends/cpu/range.c backends/cpu/reduce.c backends/cpu/reduce.h \
    backends/cpu/reduce_fold.h backends/cpu/reduce_ops.c backends/cpu/unary.c backends/cpu/variant.h
backend_cpu_variant_sources += \
    backends/cpu/batch_norm.c backends/cpu/batch_norm_body.h backends/cpu/gemm_body.h backends/cpu/gemm_loops.c \
    backends/cpu/half.c backends/cpu/half.h backends/cpu/layer_norm_body.h backends/cpu/norm.c \
    backends/cpu/norm_body.h backends/cpu/optim.c backends/cpu/optim_body.h backends/cpu/pool.c \
    backends/cpu/pool_body.h backends/cpu/softmax.c backends/cpu/softmax_body.h backends/cpu/transpose.h \
    backends/cpu/vec.h backends/cpu/vmath.h

# ISO C semantics, except that math functions need not set errno and operations need not trap; otherwise loops that use
# them would not be vectorised.
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
