# Installed headers: <prefix>/include/ctrt/. tests/headers.sh tries each of them.
pkginclude_HEADERS += \
    include/ctrt/amp.h \
    include/ctrt/autograd.h \
    include/ctrt/base.h \
    include/ctrt/checkpoint.h \
    include/ctrt/comm.h \
    include/ctrt/comm_plugin.h \
    include/ctrt/ctrt.h \
    include/ctrt/contracts.def \
    include/ctrt/data.h \
    include/ctrt/datasets.h \
    include/ctrt/device.h \
    include/ctrt/dtype.def \
    include/ctrt/image_plugin.h \
    include/ctrt/layout.h \
    include/ctrt/memory.h \
    include/ctrt/nn.h \
    include/ctrt/ops.def \
    include/ctrt/ops.h \
    include/ctrt/op_plugin.h \
    include/ctrt/optim.h \
    include/ctrt/parallel.h \
    include/ctrt/plugin.h \
    include/ctrt/probe_plugin.h \
    include/ctrt/progress.h \
    include/ctrt/share.h \
    include/ctrt/split.h \
    include/ctrt/status.def \
    include/ctrt/capture.h \
    include/ctrt/strategy_plugin.h \
    include/ctrt/stream.h \
    include/ctrt/tensor.h \
    include/ctrt/training.h \
    include/ctrt/transforms.h \
    include/ctrt/types.h
