# Example programs; each builds outside this tree with pkg-config alone. They are part of the archive, and
# tests/installed.sh builds them against the installed tree.
EXTRA_DIST += \
    examples/CMakeLists.txt examples/Makefile examples/meson.build examples/data/README.md examples/data/digits.csv \
    examples/digits.c examples/ensemble.c examples/gpt.c examples/hogwild.c examples/loader.c examples/multi.c \
    examples/resnet.c

# A backend, which tests/integration/opencl.sh builds.
EXTRA_DIST += \
    examples/opencl/Makefile examples/opencl/README.md examples/opencl/args.h examples/opencl/cl/common.cl \
    examples/opencl/cl/elementwise.cl examples/opencl/cl/extreme.cl examples/opencl/cl/index.cl \
    examples/opencl/cl/loss.cl examples/opencl/cl/norm.cl examples/opencl/cl/optim.cl examples/opencl/cl/pad.cl \
    examples/opencl/cl/pool.cl examples/opencl/cl/product.cl examples/opencl/cl/random.cl \
    examples/opencl/cl/reduce.cl examples/opencl/cl/rows.cl examples/opencl/conv.c examples/opencl/device.c \
    examples/opencl/discovery.c examples/opencl/driver.c examples/opencl/driver.def examples/opencl/elementwise.c \
    examples/opencl/elementwise.def examples/opencl/events.c examples/opencl/index.c examples/opencl/kernels.c \
    examples/opencl/launch.c examples/opencl/memory.c examples/opencl/norm.c examples/opencl/opencl.h \
    examples/opencl/optim.c examples/opencl/plugin.c examples/opencl/pool.c examples/opencl/product.c \
    examples/opencl/product.h examples/opencl/queue.c examples/opencl/queue.h examples/opencl/random.c \
    examples/opencl/reduce.c examples/opencl/rows.c
