# The cuda-fp16 backend: backend-cuda-fp16.so, an overlay of cuda.
backend_cuda_fp16_sources = backends/cuda-fp16/fp16.h backends/cuda-fp16/kernels.c backends/cuda-fp16/plugin.c

if PLUGIN_CUDA
plugin_LTLIBRARIES += backend-cuda-fp16.la
else
if SOFTCUDA
check_LTLIBRARIES += backend-cuda-fp16.la
else
EXTRA_LTLIBRARIES += backend-cuda-fp16.la
endif
endif
backend_cuda_fp16_la_SOURCES  = $(backend_cuda_fp16_sources)
backend_cuda_fp16_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
backend_cuda_fp16_la_CFLAGS   = $(PLUGIN_CFLAGS)
backend_cuda_fp16_la_LDFLAGS  = $(PLUGIN_LDFLAGS) $(cuda_nowhere)
