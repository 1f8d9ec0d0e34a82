# ptx: an interpreter of PTX with a CUDA driver, which runs the cuda plugin as nvcc built it; not installed. See
# README.md.
#
# `make ptx` builds tests/ptx/libcuda.so.1 of the build tree. `PTX_PLUGIN=FILE make check-ptx` runs PTX_TESTS with the
# plugin of that file, by default this tree's.

ptx_sources = \
    tests/ptx/allocate.c tests/ptx/convert.c tests/ptx/decode.c tests/ptx/driver.c tests/ptx/float.c \
    tests/ptx/flow.c tests/ptx/graph.c tests/ptx/integer.c tests/ptx/kernel.c tests/ptx/memory.c tests/ptx/module.c \
    tests/ptx/operands.c tests/ptx/races.c tests/ptx/run.c tests/ptx/special.c tests/ptx/stream.c tests/ptx/warp.c
ptx_headers = tests/ptx/decode.h tests/ptx/driver.h tests/ptx/half.h tests/ptx/machine.h
ptx_objects = $(ptx_sources:.c=.ptx.o)
PTX_TESTS   = tests/ptx/orders.sh tests/ptx/single.sh tests/ptx/conformance.sh tests/ptx/mutations.sh
EXTRA_DIST += $(ptx_sources) $(ptx_headers) $(PTX_TESTS) tests/ptx/README.md tests/ptx/nvcc-cached \
    tests/ptx/ptx_lib.sh tests/ptx/unused.txt
CLEANFILES += $(ptx_objects) tests/ptx/libcuda.so.1

# For the processor of this machine, whatever CFLAGS are: speed matters, and the file is used here only. Every operation
# rounds once, in the current rounding mode.
PTX_CFLAGS = -std=gnu11 -D_GNU_SOURCE -O2 -g1 -ftree-vectorize -march=native -fno-strict-aliasing -fwrapv \
    -ffp-contract=off -fno-math-errno -frounding-math -fPIC -fvisibility=hidden $(WARN_CFLAGS)
SUFFIXES += .ptx.o
.c.ptx.o:
	$(AM_V_CC)$(MKDIR_P) $(@D) && $(CC) $(PTX_CFLAGS) -c -o $@ $<
$(ptx_objects): $(ptx_headers)
tests/ptx/libcuda.so.1: $(ptx_objects)
	$(AM_V_CCLD)$(CC) -shared -Wl,-soname,libcuda.so.1 -Wl,-z,defs -o $@ $(ptx_objects) -lm -lpthread
ptx: tests/ptx/libcuda.so.1

check-ptx: all tests/ptx/libcuda.so.1 backend-cuda-fp16.la
	PTX_PLUGIN="$${PTX_PLUGIN:-$(abs_builddir)/.libs/backend-cuda.so}" $(MAKE) $(AM_MAKEFLAGS) check \
	    TESTS='$(PTX_TESTS)' check_DATA= check_LTLIBRARIES= check_PROGRAMS='run-public test-train-reference'
.PHONY: ptx check-ptx
