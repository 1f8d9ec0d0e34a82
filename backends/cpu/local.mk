# The CPU backend, backend-cpu.so: host/ has the device, memory and threads; libs/ oneDNN and CBLAS; kernels/ the ops.
# Files in alphabetical order.
backend_cpu_sources = backends/cpu/host/cgroup.c backends/cpu/host/cpu.h backends/cpu/host/device.c \
    backends/cpu/host/internal.h backends/cpu/host/isa.c backends/cpu/host/limits.c backends/cpu/host/memory.c \
    backends/cpu/host/numa.c backends/cpu/host/numa.h backends/cpu/host/pages.c backends/cpu/host/pinned.c \
    backends/cpu/host/plugin.c backends/cpu/host/scratch.c backends/cpu/host/scratch.h backends/cpu/host/team.c \
    backends/cpu/host/team.h backends/cpu/host/threads.c
backend_cpu_sources += backends/cpu/libs/blas.c backends/cpu/libs/blocked.c backends/cpu/libs/blocked.h \
    backends/cpu/libs/gemm_path.c backends/cpu/libs/onednn.c backends/cpu/libs/onednn.h backends/cpu/libs/onednn_api.h backends/cpu/libs/onednn_conv.c \
    backends/cpu/libs/onednn_product.c backends/cpu/libs/openmp.c backends/cpu/libs/openmp.h
backend_cpu_sources += backends/cpu/kernels/body.h backends/cpu/kernels/body_end.h backends/cpu/kernels/conv.c \
    backends/cpu/kernels/conv.h backends/cpu/kernels/conv_body.h backends/cpu/kernels/conv_builtin.c \
    backends/cpu/kernels/each_float.h backends/cpu/kernels/each_integer.h backends/cpu/kernels/each_width.h \
    backends/cpu/kernels/families.def backends/cpu/kernels/gemm.h backends/cpu/kernels/gemm_builtin.c \
    backends/cpu/kernels/gemm_builtin_body.h backends/cpu/kernels/half_select.c backends/cpu/kernels/index.c \
    backends/cpu/kernels/index_body.h backends/cpu/kernels/kernels.c backends/cpu/kernels/matmul.c \
    backends/cpu/kernels/product.h backends/cpu/kernels/product_body.h backends/cpu/kernels/product_builtin.c \
    backends/cpu/kernels/select_variant.h

# Files that are compiled once per instruction set (variant.h).
backend_cpu_variant_sources = backends/cpu/kernels/amp.c backends/cpu/kernels/batch_norm.c \
    backends/cpu/kernels/batch_norm_body.h backends/cpu/kernels/clamp_body.h backends/cpu/kernels/compare.c \
    backends/cpu/kernels/convert.h backends/cpu/kernels/copy.c backends/cpu/kernels/copy_body.h \
    backends/cpu/kernels/divide.c backends/cpu/kernels/divide_body.h backends/cpu/kernels/divide_integer_body.h \
    backends/cpu/kernels/elementwise.c backends/cpu/kernels/elementwise_loop.c \
    backends/cpu/kernels/elementwise_loop.h backends/cpu/kernels/extreme.c backends/cpu/kernels/extreme_body.h \
    backends/cpu/kernels/extreme_types_body.h backends/cpu/kernels/gemm_body.h backends/cpu/kernels/gemm_loops.c \
    backends/cpu/kernels/gradient.c backends/cpu/kernels/half.c backends/cpu/kernels/half.h \
    backends/cpu/kernels/layer_norm_body.h backends/cpu/kernels/math.c backends/cpu/kernels/math_f32.h \
    backends/cpu/kernels/norm.c backends/cpu/kernels/norm_body.h backends/cpu/kernels/optim.c \
    backends/cpu/kernels/optim_body.h backends/cpu/kernels/pool.c backends/cpu/kernels/pool_body.h \
    backends/cpu/kernels/random.c backends/cpu/kernels/range.c backends/cpu/kernels/reduce.c \
    backends/cpu/kernels/reduce.h backends/cpu/kernels/reduce_ops.c backends/cpu/kernels/softmax.c \
    backends/cpu/kernels/softmax_body.h backends/cpu/kernels/strided_body.h backends/cpu/kernels/sum_body.h \
    backends/cpu/kernels/transpose.h backends/cpu/kernels/unary.c backends/cpu/kernels/variant.h \
    backends/cpu/kernels/vec.h backends/cpu/kernels/vmath.h backends/cpu/kernels/where_body.h

# ISO C semantics, except that math functions need not set errno and operations need not trap; otherwise loops that use
# them would not be vectorised.
CPU_CPPFLAGS      = $(PLUGIN_CPPFLAGS) -I$(top_srcdir)/backends/cpu
CPU_KERNEL_CFLAGS = $(KERNEL_OPT_CFLAGS) -fno-math-errno -fno-trapping-math

if PLUGIN_CPU
plugin_LTLIBRARIES += backend-cpu.la
backend_cpu_la_SOURCES  = $(backend_cpu_sources)
backend_cpu_la_CPPFLAGS = $(CPU_CPPFLAGS) $(ONEDNN_CPPFLAGS)
backend_cpu_la_CFLAGS   = $(PLUGIN_CFLAGS) $(CPU_KERNEL_CFLAGS)
backend_cpu_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
backend_cpu_la_LIBADD   = libcpu-baseline.la

noinst_LTLIBRARIES += libcpu-baseline.la
libcpu_baseline_la_SOURCES  = $(backend_cpu_variant_sources)
libcpu_baseline_la_CPPFLAGS = $(CPU_CPPFLAGS) -DCPU_VARIANT=baseline
libcpu_baseline_la_CFLAGS   = $(PLUGIN_CFLAGS) $(CPU_KERNEL_CFLAGS)

if CPU_AVX2
noinst_LTLIBRARIES += libcpu-avx2.la
backend_cpu_la_LIBADD += libcpu-avx2.la
libcpu_avx2_la_SOURCES  = $(backend_cpu_variant_sources)
libcpu_avx2_la_CPPFLAGS = $(CPU_CPPFLAGS) -DCPU_VARIANT=avx2
libcpu_avx2_la_CFLAGS   = $(PLUGIN_CFLAGS) $(CPU_KERNEL_CFLAGS) $(CPU_AVX2_CFLAGS)
endif

if CPU_AVX512
noinst_LTLIBRARIES += libcpu-avx512.la
backend_cpu_la_LIBADD += libcpu-avx512.la
libcpu_avx512_la_SOURCES  = $(backend_cpu_variant_sources)
libcpu_avx512_la_CPPFLAGS = $(CPU_CPPFLAGS) -DCPU_VARIANT=avx512
libcpu_avx512_la_CFLAGS   = $(PLUGIN_CFLAGS) $(CPU_KERNEL_CFLAGS) $(CPU_AVX512_CFLAGS)
endif
endif
