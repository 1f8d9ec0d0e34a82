# The cuda backend: backend-cuda.so. Sources and headers of backends/cuda/, in alphabetical order.
#
# The host side is C and builds everywhere: tests run it over a driver in software (tests/softcuda). The kernels, one family a .cu file, are
# compiled by nvcc into fat binaries that the plugin contains; without nvcc there is no plugin to install.
backend_cuda_sources = \
    backends/cuda/attention.c backends/cuda/attention_args.h backends/cuda/binary.c backends/cuda/capture.c backends/cuda/compare.c \
    backends/cuda/conv.c backends/cuda/conv.h backends/cuda/conv_args.h \
    backends/cuda/conv_builtin.c backends/cuda/conv_product.c backends/cuda/copy.c backends/cuda/copy_args.h backends/cuda/counted.h \
    backends/cuda/cublaslt.c backends/cuda/cublaslt_api.h backends/cuda/cuda.h backends/cuda/cudnn.c backends/cuda/cudnn_api.h \
    backends/cuda/device.c backends/cuda/discovery.c backends/cuda/discovery.h backends/cuda/divide.c backends/cuda/divide_args.h \
    backends/cuda/driver.c backends/cuda/driver.def backends/cuda/driver_api.h backends/cuda/elementwise.c backends/cuda/elementwise.h \
    backends/cuda/elementwise_args.h backends/cuda/events.c backends/cuda/families.def backends/cuda/gradient.c backends/cuda/images.c \
    backends/cuda/images.def backends/cuda/images.h backends/cuda/index.c backends/cuda/index_args.h \
    backends/cuda/index_sort.c backends/cuda/index_sort.h backends/cuda/index_sort_args.h backends/cuda/kernel_error.h \
    backends/cuda/kernels.c backends/cuda/launch.c backends/cuda/library.c backends/cuda/library.h backends/cuda/loss.c backends/cuda/loss_args.h \
    backends/cuda/math.c backends/cuda/matmul.c \
    backends/cuda/matmul_args.h backends/cuda/memory.c backends/cuda/norm.c backends/cuda/norm_args.h backends/cuda/nvml.c \
    backends/cuda/nvml_api.h backends/cuda/optim.c backends/cuda/optim_args.h backends/cuda/options.c backends/cuda/options.h \
    backends/cuda/ordered.c backends/cuda/pages.c backends/cuda/peers.c backends/cuda/plugin.c backends/cuda/pool.c backends/cuda/pool_args.h backends/cuda/product.h \
    backends/cuda/queue.c backends/cuda/random.c backends/cuda/random_args.h backends/cuda/range.c backends/cuda/range_args.h \
    backends/cuda/reason.c backends/cuda/reduce.c backends/cuda/reduce_args.h backends/cuda/row.c backends/cuda/row.h backends/cuda/row_args.h \
    backends/cuda/share.c backends/cuda/softmax.c backends/cuda/softmax_args.h backends/cuda/tuning.c backends/cuda/tuning.h \
    backends/cuda/unary.c backends/cuda/visible.c

# In the order of images.def.
cuda_kernels = \
    backends/cuda/unary.cu backends/cuda/binary.cu backends/cuda/reduce.cu backends/cuda/extreme.cu backends/cuda/math.cu \
    backends/cuda/gradient.cu backends/cuda/divide.cu backends/cuda/compare.cu backends/cuda/copy.cu backends/cuda/cast.cu \
    backends/cuda/range.cu backends/cuda/random.cu backends/cuda/softmax.cu backends/cuda/attention.cu \
    backends/cuda/attention_backward.cu backends/cuda/matmul.cu backends/cuda/conv.cu backends/cuda/loss.cu \
    backends/cuda/norm.cu backends/cuda/batch_norm.cu backends/cuda/pool.cu backends/cuda/index.cu \
    backends/cuda/index_sort.cu backends/cuda/optim.cu
cuda_kernel_headers = \
    backends/cuda/attention.cuh backends/cuda/attention_args.h backends/cuda/conv.cuh backends/cuda/conv_args.h \
    backends/cuda/copy_args.h backends/cuda/counted.h backends/cuda/divide_args.h \
    backends/cuda/elementwise.cuh backends/cuda/elementwise_args.h backends/cuda/functions.cuh backends/cuda/gemm.cuh \
    backends/cuda/index_args.h backends/cuda/index_sort_args.h backends/cuda/kernel.h backends/cuda/kernel_error.h backends/cuda/loss_args.h backends/cuda/matmul_args.h \
    backends/cuda/mma.cuh backends/cuda/norm.cuh backends/cuda/norm_args.h backends/cuda/optim_args.h backends/cuda/pool_args.h backends/cuda/random_args.h \
    backends/cuda/range_args.h backends/cuda/reduce.cuh backends/cuda/reduce_args.h backends/cuda/row.cuh backends/cuda/row_args.h \
    backends/cuda/softmax_args.h
EXTRA_DIST         += $(cuda_kernels) $(cuda_kernel_headers)

if PLUGIN_CUDA
plugin_LTLIBRARIES += backend-cuda.la
backend_cuda_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -D_GNU_SOURCE -I$(builddir) -DCUDA_IMAGES='"$(abs_builddir)/backends/cuda"'
cuda_fatbins             = $(cuda_kernels:.cu=.fatbin)
CLEANFILES              += $(cuda_fatbins) backends/cuda/images-made.h
$(cuda_fatbins): $(cuda_kernel_headers)
# images.c includes it, and so is compiled again when a fat binary is new.
BUILT_SOURCES           += backends/cuda/images-made.h
backends/cuda/images-made.h: $(cuda_fatbins)
	$(AM_V_at)echo '/* made by make, after the fat binaries */' >$@
NVCCFLAGS = -O3 -std=c++17 -Wno-deprecated-gpu-targets -diag-suppress 177
SUFFIXES += .cu .fatbin
.cu.fatbin:
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(NVCC) $(NVCCFLAGS) $(NVCC_ARCH) -fatbin -o $@ $<
else
# For tests alone: libtool makes a shared object of what has somewhere to go.
noinst_LTLIBRARIES += backend-cuda.la
backend_cuda_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -D_GNU_SOURCE
cuda_nowhere             = -rpath /nowhere
endif
backend_cuda_la_SOURCES = $(backend_cuda_sources)
backend_cuda_la_CFLAGS  = $(PLUGIN_CFLAGS)
backend_cuda_la_LDFLAGS = $(PLUGIN_LDFLAGS) $(cuda_nowhere)

# --- tests: everything that the cpu passes, over the driver in software ---------------------------------------------------

if SOFTCUDA
# All plugins, with those that are not built for installing.
softcuda-plugins/stamp: plugins-built/stamp backend-cuda.la backend-cuda-fp16.la
	$(AM_V_GEN)$(MKDIR_P) softcuda-plugins && chmod 755 softcuda-plugins && \
	cp plugins-built/*.so softcuda-plugins/ && cp .libs/backend-cuda.so .libs/backend-cuda-fp16.so softcuda-plugins/ && chmod 755 softcuda-plugins/*.so && : >$@
check_DATA += softcuda-plugins/stamp

check_PROGRAMS += test-capture

cuda_suites = tests/integration/cuda.sh tests/integration/cuda-second.sh tests/integration/cuda-fp16.sh tests/integration/cuda-rows.sh \
              tests/integration/cuda-libraries.sh tests/integration/cuda-examples.sh tests/integration/gpu-script.sh
TESTS += $(cuda_suites)
endif
EXTRA_DIST += tests/integration/cuda.sh tests/integration/cuda-second.sh tests/integration/cuda-fp16.sh tests/integration/cuda-rows.sh \
              tests/integration/cuda-libraries.sh tests/integration/cuda-examples.sh tests/integration/gpu-script.sh \
              tests/integration/cuda_lib.sh
