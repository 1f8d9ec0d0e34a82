# Sources and private headers of core/, layer by layer. Append in alphabetical order.

# base: status and messages, log, parameters, containers
libctrt_core_la_SOURCES += \
    core/base/array.c core/base/array.h core/base/backtrace.c core/base/backtrace.h core/base/base.h \
    core/base/bindings.c core/base/clock.h core/base/constants.def core/base/descriptor.c core/base/descriptor.h \
    core/base/dtype.c core/base/dtype.h core/base/edit_distance.c core/base/file_writer.c \
    core/base/file_writer.h core/base/hash.h core/base/host_alloc.c core/base/host_alloc.h core/base/intern.c \
    core/base/intern.h core/base/json.c core/base/json.h core/base/lock.c core/base/lock.h core/base/log.c \
    core/base/param.c core/base/param.h core/base/param_parse.c core/base/progress.c core/base/progress.h \
    core/base/ptr_map.c core/base/ptr_map.h core/base/sha256.c core/base/sha256.h core/base/slot.c \
    core/base/slot.h core/base/stack.c core/base/stack.h core/base/states.h core/base/status.c core/base/strbuf.c \
    core/base/strbuf.h core/base/struct_size.c core/base/thread.c core/base/thread.h core/base/utf8.h \
    core/base/version.c core/upcalls.h

# registry: plugins, components, selection
libctrt_core_la_SOURCES += \
    core/registry/child.c core/registry/dl.c core/registry/elf.c core/registry/file_permissions.c core/registry/host.c \
    core/registry/internal.h core/registry/load.c core/registry/registry.c core/registry/registry.h \
    core/registry/select.c core/registry/validate.c core/registry/whole.c

# device: opening and choosing devices, current devices
libctrt_core_la_SOURCES += \
    core/device/auto.c core/device/current.c core/device/current.h core/device/device.h core/device/get.c \
    core/device/internal.h core/device/launcher.c core/device/launcher.h core/device/parse.c \
    core/device/processor_share.c core/device/properties.c core/device/slots.c core/device/types.c \
    core/device/utilization.c core/device/visible.c core/device/visible.h

# stream: streams, events, fences
libctrt_core_la_SOURCES += \
    core/stream/event.c core/stream/fence.c core/stream/fence.h core/stream/stream.c core/stream/stream.h \
    core/stream/stream_error.c core/stream/stream_error.h core/stream/stream_site.c core/stream/stream_sync.c \
    core/stream/stream_watch.c core/stream/stream_watch.h

# memory: storages, their hazards, the layers and policies of a device's memory
libctrt_core_la_SOURCES += \
    core/memory/block_table.c core/memory/block_table.h core/memory/counters.c core/memory/counters.h \
    core/memory/device_memory.c core/memory/device_source.c core/memory/device_source.h core/memory/hazard.c \
    core/memory/hazard.h core/memory/history.c core/memory/history.h core/memory/label.c core/memory/label.h \
    core/memory/pinned_cache.c core/memory/pinned_cache.h core/memory/policy.c core/memory/policy.h \
    core/memory/pool.c core/memory/pool.h core/memory/pressure.c core/memory/pressure.h core/memory/quota.c \
    core/memory/quota.h core/memory/races.c core/memory/races.h core/memory/shared.c core/memory/shared.h \
    core/memory/storage.c core/memory/storage.h

# memory_stats: what the memory is used for: owners, snapshots, reports
libctrt_core_la_SOURCES += \
    core/memory_stats/metrics.c core/memory_stats/oom_report.c \
    core/memory_stats/owners.c core/memory_stats/owners.h core/memory_stats/peak_scope.c \
    core/memory_stats/segments.c core/memory_stats/segments.h core/memory_stats/snapshot.c \
    core/memory_stats/stats.c core/memory_stats/stats.h core/memory_stats/summary.c core/memory_stats/summary.h

# graph: capturing streams, replaying graphs
libctrt_core_la_SOURCES += \
    core/graph/capture.c core/graph/capture.h core/graph/capture_parts.h core/graph/graph.c \
    core/graph/graph_params.c core/graph/graph_params.h core/graph/graph_parts.c core/graph/graph_parts.h

# tensor: dtype, shape, view, creation, printing, DLPack
libctrt_core_la_SOURCES += \
    core/tensor/accessors.c core/tensor/create.c core/tensor/create.h core/tensor/dlpack.c core/tensor/dlpack.h \
    core/tensor/format.c core/tensor/format.h core/tensor/pinned.c core/tensor/pinned.h \
    core/tensor/promote.c core/tensor/replaced.h core/tensor/scope.c core/tensor/scope.h core/tensor/shape.c \
    core/tensor/shape.h core/tensor/share.c core/tensor/share.h core/tensor/tensor.c core/tensor/tensor.h

# ops: dispatch, the op functions of each family
libctrt_core_la_SOURCES += \
    core/ops/amp.c core/ops/amp.h core/ops/attention.c core/ops/attributes.h core/ops/autocast.c \
    core/ops/autocast.h core/ops/backward.h core/ops/cat.c core/ops/composite.c core/ops/contract.c \
    core/ops/contract.h core/ops/conv.c core/ops/copy.c \
    core/ops/copy_engine.c core/ops/create.c core/ops/dispatch.c core/ops/dispatch.h core/ops/elementwise.c \
    core/ops/elementwise.h core/ops/fallback.c core/ops/format.c core/ops/guard.c core/ops/guard.h \
    core/ops/index.c core/ops/inplace.c \
    core/ops/inplace.h core/ops/launch.c core/ops/launch.h core/ops/layout.c core/ops/loss_parts.h \
    core/ops/matmul.c core/ops/norm.c core/ops/op.h core/ops/op_common.c core/ops/op_common.h core/ops/op_run.c \
    core/ops/peers.c core/ops/peers.h core/ops/pinned.c core/ops/pool.c core/ops/random.c core/ops/reduce.c \
    core/ops/softmax.c core/ops/view.c

# lifecycle: opening and closing devices
libctrt_core_la_SOURCES += \
    core/lifecycle/close.c core/lifecycle/close.h core/lifecycle/open.c core/lifecycle/shutdown.c

# dryrun: predicting memory without running kernels
libctrt_core_la_SOURCES += \
    core/dryrun/blocks.c core/dryrun/blocks.h core/dryrun/cleanup.c core/dryrun/cleanup.h core/dryrun/kernels.c \
    core/dryrun/memory.c core/dryrun/memory.h core/dryrun/source.c core/dryrun/source.h

# autograd: tape, engine, the derivatives of each family
libctrt_core_la_SOURCES += \
    core/autograd/accumulate.c core/autograd/attention.c core/autograd/autograd_meta.c \
    core/autograd/autograd_meta.h core/autograd/conv.c core/autograd/copy.c core/autograd/cycle.c \
    core/autograd/elementwise.c core/autograd/elementwise_math.c core/autograd/engine.c core/autograd/engine.h \
    core/autograd/function.c core/autograd/grad.c core/autograd/grad_reduce_to.c core/autograd/graph_growth.c \
    core/autograd/graph_growth.h core/autograd/hooks.c core/autograd/hooks.h core/autograd/index.c \
    core/autograd/inplace.c core/autograd/inplace.h core/autograd/matmul.c \
    core/autograd/node.c core/autograd/node.h core/autograd/norm.c core/autograd/op_node.c core/autograd/pool.c \
    core/autograd/random.c core/autograd/reduce.c core/autograd/rule.h core/autograd/rules.c \
    core/autograd/softmax.c core/autograd/thread.c core/autograd/thread.h core/autograd/view.c \
    core/autograd/view_history.c
