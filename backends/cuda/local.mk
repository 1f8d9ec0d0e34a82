# The cuda backend: backend-cuda.so. host/ has devices, streams, memory and launches; ops/ the host functions of each op
# family; kernels/ the device code and its argument structs; libs/ cuBLASLt, cuDNN and NVML. Files in alphabetical order.
#
# The host code is C and builds on every machine; tests run it with a CUDA driver in software (tests/softcuda). nvcc
# compiles the kernels, one .cu file per family, to fat binaries, which are embedded in the plugin. Without nvcc, the
# plugin is built for tests only and not installed.
backend_cuda_sources = backends/cuda/host/async_alloc.c backends/cuda/host/capture.c backends/cuda/host/cuda.h \
    backends/cuda/host/device.c backends/cuda/host/diagnose.c backends/cuda/host/discovery.c \
    backends/cuda/host/discovery.h backends/cuda/host/driver.c backends/cuda/host/driver.def \
    backends/cuda/host/driver_api.h backends/cuda/host/events.c backends/cuda/host/fatbin.c \
    backends/cuda/host/fatbin.def backends/cuda/host/fatbin.h backends/cuda/host/ipc.c backends/cuda/host/launch.c \
    backends/cuda/host/memory.c backends/cuda/host/options.c backends/cuda/host/options.h backends/cuda/host/pages.c \
    backends/cuda/host/peers.c backends/cuda/host/plugin.c backends/cuda/host/queue.c backends/cuda/host/visible.c
backend_cuda_sources += backends/cuda/libs/cublaslt.c backends/cuda/libs/cublaslt_api.h backends/cuda/libs/cudnn.c \
    backends/cuda/libs/cudnn_api.h backends/cuda/libs/library.c backends/cuda/libs/library.h \
    backends/cuda/libs/nvml.c backends/cuda/libs/nvml_api.h backends/cuda/libs/tuning.c backends/cuda/libs/tuning.h
backend_cuda_sources += backends/cuda/ops/attention.c backends/cuda/ops/binary.c backends/cuda/ops/compare.c \
    backends/cuda/ops/conv.c backends/cuda/ops/conv.h backends/cuda/ops/conv_builtin.c \
    backends/cuda/ops/conv_product.c backends/cuda/ops/copy.c backends/cuda/ops/divide.c \
    backends/cuda/ops/elementwise.c backends/cuda/ops/elementwise.h backends/cuda/ops/families.def \
    backends/cuda/ops/gradient.c backends/cuda/ops/index.c backends/cuda/ops/index_sort.c \
    backends/cuda/ops/index_sort.h backends/cuda/ops/kernels.c backends/cuda/ops/loss.c backends/cuda/ops/math.c \
    backends/cuda/ops/matmul.c backends/cuda/ops/norm.c backends/cuda/ops/optim.c backends/cuda/ops/pool.c \
    backends/cuda/ops/product.h backends/cuda/ops/random.c backends/cuda/ops/range.c backends/cuda/ops/reduce.c \
    backends/cuda/ops/row.c backends/cuda/ops/row.h backends/cuda/ops/softmax.c backends/cuda/ops/unary.c
cuda_kernel_lists = backends/cuda/kernels/binary.def backends/cuda/kernels/compare.def \
    backends/cuda/kernels/divide.def backends/cuda/kernels/gradient.def backends/cuda/kernels/math.def \
    backends/cuda/kernels/unary.def
backend_cuda_sources += backends/cuda/kernels/attention_args.h backends/cuda/kernels/conv_args.h \
    backends/cuda/kernels/copy_args.h backends/cuda/kernels/divide_args.h backends/cuda/kernels/elementwise_args.h \
    backends/cuda/kernels/fast_div.h backends/cuda/kernels/index_args.h backends/cuda/kernels/index_sort_args.h \
    backends/cuda/kernels/kernel_error.h backends/cuda/kernels/loss_args.h backends/cuda/kernels/matmul_args.h \
    backends/cuda/kernels/norm_args.h backends/cuda/kernels/optim_args.h backends/cuda/kernels/pool_args.h \
    backends/cuda/kernels/random_args.h backends/cuda/kernels/range_args.h backends/cuda/kernels/reduce_args.h \
    backends/cuda/kernels/row_args.h backends/cuda/kernels/softmax_args.h $(cuda_kernel_lists)

# In the order of fatbin.def.
cuda_kernels = backends/cuda/kernels/unary.cu backends/cuda/kernels/binary.cu backends/cuda/kernels/reduce.cu \
    backends/cuda/kernels/extreme.cu backends/cuda/kernels/math.cu backends/cuda/kernels/gradient.cu \
    backends/cuda/kernels/divide.cu backends/cuda/kernels/compare.cu backends/cuda/kernels/copy.cu \
    backends/cuda/kernels/cast.cu backends/cuda/kernels/range.cu backends/cuda/kernels/random.cu \
    backends/cuda/kernels/softmax.cu backends/cuda/kernels/attention.cu backends/cuda/kernels/attention_backward.cu \
    backends/cuda/kernels/matmul.cu backends/cuda/kernels/conv.cu backends/cuda/kernels/loss.cu \
    backends/cuda/kernels/norm.cu backends/cuda/kernels/batch_norm.cu backends/cuda/kernels/pool.cu \
    backends/cuda/kernels/index.cu backends/cuda/kernels/index_sort.cu backends/cuda/kernels/optim.cu
cuda_kernel_headers = backends/cuda/kernels/attention.cuh backends/cuda/kernels/attention_args.h \
    backends/cuda/kernels/attention_forward.cuh \
    backends/cuda/kernels/conv.cuh backends/cuda/kernels/conv_args.h backends/cuda/kernels/copy_args.h \
    backends/cuda/kernels/divide_args.h backends/cuda/kernels/elementwise.cuh backends/cuda/kernels/elementwise_args.h \
    backends/cuda/kernels/fast_div.h backends/cuda/kernels/functions.cuh backends/cuda/kernels/gemm.cuh \
    backends/cuda/kernels/index_args.h backends/cuda/kernels/index_sort_args.h backends/cuda/kernels/kernel.h \
    backends/cuda/kernels/kernel_error.h backends/cuda/kernels/loss_args.h $(cuda_kernel_lists) \
    backends/cuda/kernels/matmul_args.h backends/cuda/kernels/mma.cuh backends/cuda/kernels/norm.cuh \
    backends/cuda/kernels/norm_args.h backends/cuda/kernels/optim_args.h backends/cuda/kernels/pool_args.h \
    backends/cuda/kernels/random_args.h backends/cuda/kernels/range_args.h backends/cuda/kernels/reduce.cuh \
    backends/cuda/kernels/reduce_args.h backends/cuda/kernels/row.cuh backends/cuda/kernels/row_args.h \
    backends/cuda/kernels/softmax_args.h
EXTRA_DIST += $(cuda_kernels) $(cuda_kernel_headers)

CUDA_CPPFLAGS = $(PLUGIN_CPPFLAGS) -I$(top_srcdir)/backends/cuda -D_GNU_SOURCE

if PLUGIN_CUDA
plugin_LTLIBRARIES += backend-cuda.la
backend_cuda_la_CPPFLAGS = $(CUDA_CPPFLAGS) -I$(builddir) -DCUDA_FATBINS='"$(abs_builddir)/backends/cuda/kernels"'
cuda_fatbins             = $(cuda_kernels:.cu=.fatbin)
CLEANFILES              += $(cuda_fatbins) backends/cuda/kernels/fatbins-made.h
$(cuda_fatbins): $(cuda_kernel_headers)
# fatbin.c includes this header, so that fatbin.c is compiled again when a fat binary has changed.
# The object is named by a variable, because automake would replace its own rule by one with a literal target.
cuda_fatbin_source       = backends/cuda/host/backend_cuda_la-fatbin.c
cuda_fatbin_object       = $(cuda_fatbin_source:.c=.lo)
$(cuda_fatbin_object): backends/cuda/kernels/fatbins-made.h
backends/cuda/kernels/fatbins-made.h: $(cuda_fatbins)
	$(AM_V_at)echo '/* made by make, after the fat binaries */' >$@
NVCCFLAGS = -O3 -std=c++17 -Wno-deprecated-gpu-targets -diag-suppress 177
SUFFIXES += .cu .fatbin
.cu.fatbin:
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(NVCC) $(NVCCFLAGS) $(NVCC_ARCH) -fatbin -o $@ $<
else
# For the tests with the software driver only. libtool builds a shared object from a library that is not installed only
# if -rpath is given, so pass a fictitious path.
if SOFTCUDA
check_LTLIBRARIES += backend-cuda.la
else
EXTRA_LTLIBRARIES += backend-cuda.la
endif
backend_cuda_la_CPPFLAGS = $(CUDA_CPPFLAGS) -DCUDA_WITHOUT_FATBINS
cuda_nowhere             = -rpath /nowhere
endif
backend_cuda_la_SOURCES = $(backend_cuda_sources)
backend_cuda_la_CFLAGS  = $(PLUGIN_CFLAGS)
backend_cuda_la_LDFLAGS = $(PLUGIN_LDFLAGS) $(cuda_nowhere)

# --- tests with the CUDA driver in software ----------------------------------------------------------------------------

if SOFTCUDA
# All plugins, including those that are built for tests only.
softcuda-plugins/stamp: plugins-built/stamp backend-cuda.la backend-cuda-fp16.la
	$(AM_V_GEN)$(MKDIR_P) softcuda-plugins && chmod 755 softcuda-plugins && \
	cp plugins-built/*.so .libs/backend-cuda.so .libs/backend-cuda-fp16.so softcuda-plugins/ && \
	chmod 755 softcuda-plugins/*.so && : >$@
check_DATA += softcuda-plugins/stamp

check_PROGRAMS += test-capture

# Kernels for tests always contain the access checks of watch.c, whether or not the tree is built with sanitizers.
# Therefore the suites that run all kernels are only run in builds without sanitizers.
if !SANITIZE
TESTS      += tests/integration/cuda.sh tests/integration/cuda-libraries.sh tests/integration/cuda-ranks.sh \
              tests/integration/cuda-rows.sh
LONG_TESTS += tests/integration/cuda-examples.sh tests/integration/cuda-fp16.sh tests/integration/cuda-second.sh \
              tests/integration/gpu-script.sh
if PLUGIN_NCCL_MULTI
LONG_TESTS += tests/integration/nccl-multi-long.sh
endif
endif
endif
EXTRA_DIST += tests/integration/cuda.sh tests/integration/cuda-second.sh tests/integration/cuda-fp16.sh \
    tests/integration/cuda-ranks.sh tests/integration/cuda-rows.sh tests/integration/cuda-libraries.sh \
    tests/integration/cuda-examples.sh \
    tests/integration/gpu-script.sh tests/integration/cuda_lib.sh tests/integration/nccl-multi-long.sh
