# softcuda: a CUDA driver in software, with cuBLAS, cuDNN, NCCL and NVML, for tests; not installed. See README.md.
#
# `make softcuda` builds it in tests/softcuda of the build tree. Tests use it with
# LD_LIBRARY_PATH=$(abs_builddir)/tests/softcuda.

softcuda_driver = \
    tests/softcuda/block.c tests/softcuda/copy.c tests/softcuda/device.c tests/softcuda/driver.c \
    tests/softcuda/fiber.c tests/softcuda/graph.c tests/softcuda/kernel.c tests/softcuda/memory.c \
    tests/softcuda/options.c tests/softcuda/order.c tests/softcuda/space.c tests/softcuda/stream.c \
    tests/softcuda/vmm.c tests/softcuda/warp.c
softcuda_headers = \
    tests/softcuda/api.h tests/softcuda/block.h tests/softcuda/control.h tests/softcuda/device.h \
    tests/softcuda/device_half.h tests/softcuda/driver.h tests/softcuda/entry.def tests/softcuda/library.h \
    tests/softcuda/nccl_soft.h tests/softcuda/nvml_hooks.h tests/softcuda/runner.h tests/softcuda/test-kernels.h
softcuda_blas = tests/softcuda/blas.c tests/softcuda/dnn.c tests/softcuda/nccl.c tests/softcuda/nccl_comm.c
EXTRA_DIST += $(softcuda_driver) $(softcuda_blas) tests/softcuda/nvml.c $(softcuda_headers) tests/softcuda/README.md \
    tests/softcuda/watch.c tests/softcuda/test-kernels.cu

if SOFTCUDA
soft = tests/softcuda
SOFTCUDA_FLAGS = -fPIC -fvisibility=hidden -I$(top_srcdir)/tests/softcuda

# Instruments every memory access of a kernel with a call (watch.c). Optimizations that merge or vectorize accesses are
# off, so that the alignment of each access is checked as written.
SOFTCUDA_WATCH = `case "\`$(CXX_FOR_TESTS) --version\`" in \
    *clang*) echo -fno-vectorize -fno-slp-vectorize -mllvm -asan-instrumentation-with-call-threshold=0 \
        -mllvm -asan-stack=0 -mllvm -asan-globals=0 ;; \
    *) echo --param asan-instrumentation-with-call-threshold=0 --param asan-stack=0 --param asan-globals=0 \
        -fno-store-merging -fno-tree-vectorize -fno-tree-slp-vectorize -fno-tree-loop-distribute-patterns ;; esac`
SOFTCUDA_KERNEL = $(CXX_FOR_TESTS) -x c++ -std=gnu++17 -g1 -O1 -Wall -Wextra -Wno-unknown-pragmas -ffp-contract=off \
    -DCTRT_SOFTCUDA $(SOFTCUDA_FLAGS) -DSOFTCUDA_WATCH -fsanitize=kernel-address,bounds $(SOFTCUDA_WATCH)
SOFTCUDA_LINK = -L$(soft) -l:libcuda.so.1 -Wl,-rpath,'$$ORIGIN' -Wl,-z,defs

softcuda_driver_objects = $(softcuda_driver:.c=.soft.o)
softcuda_kernel_objects = $(cuda_kernels:.cu=.soft.o)
softcuda_blas_objects   = $(softcuda_blas:.c=.soft.o)
softcuda_libraries      = $(soft)/libcuda.so.1 $(soft)/libsoftkernels.so $(soft)/test-kernels.so \
                          $(soft)/libcublas.so.13 $(soft)/libcublasLt.so.13 $(soft)/libcudnn.so.9 $(soft)/libnccl.so.2 \
                          $(soft)/libnvidia-ml.so.1 $(soft)/cuda12/libcublasLt.so.12 $(soft)/lacking/libcublasLt.so.13

softcuda: $(softcuda_libraries)
check_DATA += $(softcuda_libraries)
SUFFIXES += .c .cu .soft.o
.c.soft.o:
	$(AM_V_CC)$(MKDIR_P) $(@D) && $(CC) -std=gnu11 $(WARN_CFLAGS) -Wno-missing-prototypes $(OPT_CFLAGS) \
	    $(SOFTCUDA_FLAGS) $(SANITIZE_FLAGS) $(CFLAGS) -c -o $@ $<
.cu.soft.o:
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(SOFTCUDA_KERNEL) -I$(top_srcdir)/backends/cuda/kernels -c -o $@ $<
$(softcuda_driver_objects) $(softcuda_blas_objects): $(softcuda_headers)
$(softcuda_kernel_objects): $(softcuda_headers) $(cuda_kernel_headers)
# watch.c is linked into libraries of kernels, and is built without sanitizers.
$(soft)/watch.soft.o: tests/softcuda/watch.c tests/softcuda/block.h
	$(AM_V_CC)$(MKDIR_P) $(@D) && $(CC) -std=gnu11 -g $(WARN_CFLAGS) -O2 -DSOFTCUDA_WATCH $(SOFTCUDA_FLAGS) \
	    -c -o $@ $(top_srcdir)/tests/softcuda/watch.c
$(soft)/libcuda.so.1: $(softcuda_driver_objects)
	$(AM_V_CCLD)$(CC) -shared $(SANITIZE_FLAGS) $(CFLAGS) -Wl,-soname,libcuda.so.1 -Wl,-rpath,'$$ORIGIN' -o $@ \
	    $(softcuda_driver_objects) -lpthread -ldl
SOFTCUDA_BLAS = $(AM_V_CCLD)$(MKDIR_P) $(@D) && $(CC) -shared $(SANITIZE_FLAGS) $(CFLAGS) -Wl,-soname,$(@F) -o $@
SOFTCUDA_BLAS_LIBS = -L$(soft) -l:libcuda.so.1 -Wl,-rpath,'$$ORIGIN:$$ORIGIN/..' -lm -lpthread -ldl
# In separate folders, for tests that add them to the library path: version 12, and a version without one function.
$(soft)/libcublas.so.13 $(soft)/libcublasLt.so.13 $(soft)/cuda12/libcublasLt.so.12: $(soft)/blas.soft.o \
    $(soft)/libcuda.so.1
	$(SOFTCUDA_BLAS) $(soft)/blas.soft.o $(SOFTCUDA_BLAS_LIBS)
$(soft)/lacking/libcublasLt.so.13: $(soft)/blas.soft.o $(soft)/libcuda.so.1
	@$(MKDIR_P) $(@D) && echo '{ local: cublasLtMatmulAlgoCheck; };' >$@.map
	$(SOFTCUDA_BLAS) $(soft)/blas.soft.o -Wl,--version-script,$@.map $(SOFTCUDA_BLAS_LIBS)
$(soft)/libcudnn.so.9: $(soft)/dnn.soft.o $(soft)/libcuda.so.1
	$(SOFTCUDA_BLAS) $(soft)/dnn.soft.o $(SOFTCUDA_BLAS_LIBS)
$(soft)/libnccl.so.2: $(soft)/nccl.soft.o $(soft)/nccl_comm.soft.o $(soft)/libcuda.so.1
	$(SOFTCUDA_BLAS) $(soft)/nccl.soft.o $(soft)/nccl_comm.soft.o $(SOFTCUDA_BLAS_LIBS)
$(soft)/nvml.soft.o: tests/softcuda/nvml_hooks.h
$(soft)/libnvidia-ml.so.1: $(soft)/nvml.soft.o $(soft)/libcuda.so.1
	$(AM_V_CCLD)$(CC) -shared $(SANITIZE_FLAGS) $(CFLAGS) -Wl,-soname,libnvidia-ml.so.1 -o $@ $(soft)/nvml.soft.o \
	    -L$(soft) -l:libcuda.so.1 -Wl,-rpath,'$$ORIGIN'
$(soft)/libsoftkernels.so: $(softcuda_kernel_objects) $(soft)/watch.soft.o $(soft)/libcuda.so.1
	$(AM_V_GEN)$(CXX_FOR_TESTS) -shared -o $@ $(softcuda_kernel_objects) $(soft)/watch.soft.o $(SOFTCUDA_LINK)
$(soft)/test-kernels.so: $(soft)/test-kernels.soft.o $(soft)/watch.soft.o $(soft)/libcuda.so.1
	$(AM_V_GEN)$(CXX_FOR_TESTS) -shared -o $@ $(soft)/test-kernels.soft.o $(soft)/watch.soft.o $(SOFTCUDA_LINK)
$(soft)/test-kernels.soft.o: $(softcuda_headers)
CLEANFILES += $(soft)/lacking/libcublasLt.so.13.map $(softcuda_libraries) $(softcuda_driver_objects) \
    $(softcuda_blas_objects) $(softcuda_kernel_objects) $(soft)/watch.soft.o $(soft)/test-kernels.soft.o \
    $(soft)/nvml.soft.o

# Tests of softcuda itself: one test program, in addition to those of libctrt (tests/local.mk).
softcuda_own_tests = tests/softcuda/test-softcuda-errors.c tests/softcuda/test-softcuda-facts.c
TESTS          += $(softcuda_own_tests)
check_PROGRAMS += run-softcuda
run_softcuda_SOURCES  = $(TEST_RUNNER) $(softcuda_own_tests) tests/softcuda/facts-backend.c tests/softcuda/facts.def
run_softcuda_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests/softcuda -I$(top_srcdir)/tests/unit $(CUDA_HEADERS) \
                        -D_GNU_SOURCE -DTEST_KERNELS='"$(abs_builddir)/tests/softcuda/test-kernels.so"'
run_softcuda_CFLAGS   = $(TEST_CFLAGS)
run_softcuda_LDFLAGS  = $(NO_WRAPPER) -Wl,-rpath,$(abs_builddir)/tests/softcuda
run_softcuda_LDADD    = $(soft)/libcuda.so.1
run_softcuda_DEPENDENCIES = $(softcuda_libraries)
endif
