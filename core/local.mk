# Sources and private headers of core/, floor by floor. Append in alphabetical order.

# base: status and messages, log, parameters, containers
libctrt_core_la_SOURCES += \
    core/base/base.h core/base/keep.c core/base/keep.h core/base/lock.c core/base/lock.h core/base/log.c \
    core/base/memory.c core/base/memory.h core/base/nearest.c core/base/param.c core/base/param.h \
    core/base/param_parse.c core/base/status.c core/base/thread.c core/base/thread.h core/base/version.c

# registry: plugins, components, selection
libctrt_core_la_SOURCES +=

# device: device, stream, event
libctrt_core_la_SOURCES += \
    core/device/device.h

# memory: storage, allocator interface, accounting
libctrt_core_la_SOURCES += \
    core/memory/pool.h core/memory/storage.c core/memory/storage.h

# tensor: dtype, shape, view, creation, printing, DLPack
libctrt_core_la_SOURCES += \
    core/tensor/create.c core/tensor/create.h core/tensor/dlpack.c core/tensor/dlpack.h core/tensor/dtype.c \
    core/tensor/facts.c core/tensor/format.c core/tensor/format.h core/tensor/promote.c \
    core/tensor/shape.c core/tensor/shape.h core/tensor/tensor.c core/tensor/tensor.h

# ops: ops.def, dispatch, the front of each family
libctrt_core_la_SOURCES += \
    core/ops/attributes.h core/ops/backward.h core/ops/cat.c core/ops/composite.c core/ops/conv.c core/ops/copy.c \
    core/ops/create.c core/ops/dispatch.c core/ops/dispatch.h core/ops/elementwise.c core/ops/elementwise.h \
    core/ops/fallback.c core/ops/format.c core/ops/front.c core/ops/front.h core/ops/index.c core/ops/inplace.c core/ops/inplace.h \
    core/ops/matmul.c core/ops/norm.c core/ops/op.h core/ops/ops.def core/ops/pool.c core/ops/random.c \
    core/ops/reduce.c core/ops/softmax.c core/ops/transfer.c core/ops/view.c

# autograd: tape, engine, the derivatives of each family
libctrt_core_la_SOURCES +=
