# Plugins that are not backends: memory policies, engines of communicators, and parallel strategies. Each is a
# separate plugin.
EXTRA_DIST += plugins/common/clock.h plugins/common/file.h plugins/common/fork.h
# Of all policies.
memory_policy_sources = plugins/memory/policy.c plugins/memory/source.h
memory_caching_sources = plugins/memory/caching.c plugins/memory/caching.h plugins/memory/clone.c plugins/memory/expand.c \
                         plugins/memory/stats.c plugins/memory/grow.c plugins/memory/heap.c plugins/memory/options.c \
                         plugins/memory/options.h plugins/memory/settings.c plugins/memory/size_class.c plugins/memory/size_class.h \
                         plugins/memory/threads.c $(memory_policy_sources)
memory_direct_sources = plugins/memory/direct.c $(memory_policy_sources)
memory_arena_sources = plugins/memory/arena.c plugins/memory/options.c plugins/memory/options.h $(memory_policy_sources)
memory_spill_sources = plugins/memory/options.c plugins/memory/options.h plugins/memory/spill.c plugins/memory/spill.h \
                       plugins/memory/spill_choice.c plugins/memory/spill_move.c plugins/memory/spill_names.c \
                       plugins/memory/spill_pinned.c $(memory_policy_sources)

if PLUGIN_MEMORY_CACHING
plugin_LTLIBRARIES += memory-caching.la
memory_caching_la_SOURCES  = $(memory_caching_sources)
memory_caching_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
memory_caching_la_CFLAGS   = $(PLUGIN_CFLAGS)
memory_caching_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
endif

if PLUGIN_MEMORY_DIRECT
plugin_LTLIBRARIES += memory-direct.la
memory_direct_la_SOURCES  = $(memory_direct_sources)
memory_direct_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
memory_direct_la_CFLAGS   = $(PLUGIN_CFLAGS)
memory_direct_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
endif

if PLUGIN_MEMORY_ARENA
plugin_LTLIBRARIES += memory-arena.la
memory_arena_la_SOURCES  = $(memory_arena_sources)
memory_arena_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
memory_arena_la_CFLAGS   = $(PLUGIN_CFLAGS)
memory_arena_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
endif

if PLUGIN_MEMORY_SPILL
plugin_LTLIBRARIES += memory-spill.la
memory_spill_la_SOURCES  = $(memory_spill_sources)
memory_spill_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
memory_spill_la_CFLAGS   = $(PLUGIN_CFLAGS)
memory_spill_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
endif

# Engines of communicators call the public functions of libctrt.
comm_host_sources = plugins/comm/host/arena.c plugins/comm/host/devices.c plugins/comm/host/direct.c \
                    plugins/comm/host/host.c plugins/comm/host/host.h plugins/comm/host/message.c \
                    plugins/comm/host/pieces.c plugins/comm/host/pull.c plugins/comm/host/segments.c \
                    plugins/comm/host/wait.c
comm_mpi_sources = plugins/comm/mpi/abi.def plugins/comm/mpi/abi.h plugins/comm/mpi/abi_calls.h \
                   plugins/comm/mpi/abi_mpich.c plugins/comm/mpi/abi_mpich.def plugins/comm/mpi/abi_openmpi.c \
                   plugins/comm/mpi/abi_openmpi.def plugins/comm/mpi/bounded.c plugins/comm/mpi/collective.c \
                   plugins/comm/mpi/engine.c plugins/comm/mpi/engine.h plugins/comm/mpi/library.c \
                   plugins/comm/mpi/machines.c plugins/comm/mpi/message.c plugins/comm/mpi/opening.c plugins/comm/mpi/rebuild.c \
                   plugins/comm/mpi/wait.c plugins/comm/mpi/window.c

comm_nccl_sources = plugins/comm/nccl/api.h plugins/comm/nccl/collective.c plugins/comm/nccl/derive.c \
                    plugins/comm/nccl/end.c plugins/comm/nccl/engine.c plugins/comm/nccl/engine.h \
                    plugins/comm/nccl/library.c plugins/comm/nccl/link.c plugins/comm/nccl/memory.c

if PLUGIN_COMM_HOST
plugin_LTLIBRARIES += comm-host.la
comm_host_la_SOURCES  = plugins/comm/host/plugin.c
comm_host_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -D_GNU_SOURCE
comm_host_la_CFLAGS   = $(PLUGIN_CFLAGS)
comm_host_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
comm_host_la_LIBADD   = libcomm-host.la libctrt.la
endif

if PLUGIN_COMM_MPI
plugin_LTLIBRARIES += comm-mpi.la
comm_mpi_la_SOURCES  = $(comm_mpi_sources)
comm_mpi_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -D_GNU_SOURCE
comm_mpi_la_CFLAGS   = $(PLUGIN_CFLAGS)
comm_mpi_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
comm_mpi_la_LIBADD   = libcomm-host.la libctrt.la -ldl
endif

if PLUGIN_COMM_NCCL
plugin_LTLIBRARIES += comm-nccl.la
comm_nccl_la_SOURCES  = $(comm_nccl_sources)
comm_nccl_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -D_GNU_SOURCE
comm_nccl_la_CFLAGS   = $(PLUGIN_CFLAGS)
comm_nccl_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
comm_nccl_la_LIBADD   = libctrt.la -ldl
endif

# The engine host without its registration. The engine mpi uses it between the processes of one machine.
noinst_LTLIBRARIES += libcomm-host.la
libcomm_host_la_SOURCES  = $(comm_host_sources)
libcomm_host_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -D_GNU_SOURCE
libcomm_host_la_CFLAGS   = $(PLUGIN_CFLAGS)
libcomm_host_la_LIBADD   = libcomm-reduce.la

# Sums and other reductions of arrays in host memory, for any engine. Compiled once per instruction set.
noinst_LTLIBRARIES += libcomm-reduce.la
libcomm_reduce_la_SOURCES  = plugins/comm/reduce.h plugins/comm/reduce_table.c
libcomm_reduce_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
libcomm_reduce_la_CFLAGS   = $(PLUGIN_CFLAGS)
libcomm_reduce_la_LIBADD   = libcomm-reduce-baseline.la
noinst_LTLIBRARIES += libcomm-reduce-baseline.la
libcomm_reduce_baseline_la_SOURCES  = plugins/comm/reduce.c
libcomm_reduce_baseline_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -DHOST_VARIANT=baseline
libcomm_reduce_baseline_la_CFLAGS   = $(PLUGIN_CFLAGS) $(CPU_KERNEL_CFLAGS)
if CPU_AVX2
noinst_LTLIBRARIES += libcomm-reduce-avx2.la
libcomm_reduce_la_LIBADD += libcomm-reduce-avx2.la
libcomm_reduce_avx2_la_SOURCES  = plugins/comm/reduce.c
libcomm_reduce_avx2_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -DHOST_VARIANT=avx2
libcomm_reduce_avx2_la_CFLAGS   = $(PLUGIN_CFLAGS) $(CPU_KERNEL_CFLAGS) $(CPU_AVX2_CFLAGS)
endif

# Parallel strategies call them too.
strategy_single_sources = plugins/strategy/common.c plugins/strategy/common.h plugins/strategy/single/single.c
strategy_data_parallel_sources = plugins/strategy/common.c plugins/strategy/common.h \
    plugins/strategy/data-parallel/data_parallel.c plugins/strategy/data-parallel/data_parallel.h \
    plugins/strategy/data-parallel/reduce.c plugins/strategy/data-parallel/replicas.c \
    plugins/strategy/data-parallel/sync.c plugins/strategy/data-parallel/workers.c
# Of the strategies with one part of the batch per rank.
strategy_ranks_sources = plugins/strategy/common.c plugins/strategy/common.h \
    plugins/strategy/ranks/canonical.c plugins/strategy/ranks/exchange.c plugins/strategy/ranks/gradients.c \
    plugins/strategy/ranks/ranks.c plugins/strategy/ranks/ranks.h plugins/strategy/ranks/states.h \
    plugins/strategy/ranks/verify.c plugins/strategy/ranks/weights.c
strategy_distributed_sources = \
    plugins/strategy/distributed/buckets.c plugins/strategy/distributed/buckets.h \
    plugins/strategy/distributed/capture.c plugins/strategy/distributed/distributed.c \
    plugins/strategy/distributed/distributed.h plugins/strategy/distributed/hooks.c \
    plugins/strategy/distributed/powersgd.c plugins/strategy/distributed/reduce.c \
    plugins/strategy/distributed/share.c plugins/strategy/distributed/survive.c $(strategy_ranks_sources)
strategy_sharded_sources = \
    plugins/strategy/sharded/checkpoint.c plugins/strategy/sharded/gather.c plugins/strategy/sharded/group.c \
    plugins/strategy/sharded/hooks.c plugins/strategy/sharded/reduce.c plugins/strategy/sharded/sharded.c \
    plugins/strategy/sharded/sharded.h $(strategy_ranks_sources)
strategy_pipeline_sources = plugins/strategy/common.c plugins/strategy/common.h \
    plugins/strategy/pipeline/divide.c plugins/strategy/pipeline/measure.c plugins/strategy/pipeline/pipeline.c \
    plugins/strategy/pipeline/pipeline.h plugins/strategy/pipeline/place.c \
    plugins/strategy/pipeline/run.c plugins/strategy/pipeline/run.h plugins/strategy/pipeline/stage.c \
    plugins/strategy/pipeline/step.c

if PLUGIN_STRATEGY_SINGLE
plugin_LTLIBRARIES += strategy-single.la
strategy_single_la_SOURCES  = $(strategy_single_sources)
strategy_single_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
strategy_single_la_CFLAGS   = $(PLUGIN_CFLAGS)
strategy_single_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
strategy_single_la_LIBADD   = libctrt.la
endif

if PLUGIN_STRATEGY_DATA_PARALLEL
plugin_LTLIBRARIES += strategy-data-parallel.la
strategy_data_parallel_la_SOURCES  = $(strategy_data_parallel_sources)
strategy_data_parallel_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
strategy_data_parallel_la_CFLAGS   = $(PLUGIN_CFLAGS)
strategy_data_parallel_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
strategy_data_parallel_la_LIBADD   = libctrt.la
endif

if PLUGIN_STRATEGY_DISTRIBUTED
plugin_LTLIBRARIES += strategy-distributed.la
strategy_distributed_la_SOURCES  = $(strategy_distributed_sources)
strategy_distributed_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -D_GNU_SOURCE
strategy_distributed_la_CFLAGS   = $(PLUGIN_CFLAGS)
strategy_distributed_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
strategy_distributed_la_LIBADD   = libctrt.la
endif

if PLUGIN_STRATEGY_SHARDED
plugin_LTLIBRARIES += strategy-sharded.la
strategy_sharded_la_SOURCES  = $(strategy_sharded_sources)
strategy_sharded_la_CPPFLAGS = $(PLUGIN_CPPFLAGS) -D_GNU_SOURCE
strategy_sharded_la_CFLAGS   = $(PLUGIN_CFLAGS)
strategy_sharded_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
strategy_sharded_la_LIBADD   = libctrt.la
endif

if PLUGIN_STRATEGY_PIPELINE
plugin_LTLIBRARIES += strategy-pipeline.la
strategy_pipeline_la_SOURCES  = $(strategy_pipeline_sources)
strategy_pipeline_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
strategy_pipeline_la_CFLAGS   = $(PLUGIN_CFLAGS)
strategy_pipeline_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
strategy_pipeline_la_LIBADD   = libctrt.la
endif

# Decoders of images.
image_jpeg_sources = plugins/image/jpeg.c
image_png_sources  = plugins/image/png.c

if PLUGIN_IMAGE_JPEG
plugin_LTLIBRARIES += image-jpeg.la
image_jpeg_la_SOURCES  = $(image_jpeg_sources)
image_jpeg_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
image_jpeg_la_CFLAGS   = $(PLUGIN_CFLAGS)
image_jpeg_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
image_jpeg_la_LIBADD   = -ldl
endif

if PLUGIN_IMAGE_PNG
plugin_LTLIBRARIES += image-png.la
image_png_la_SOURCES  = $(image_png_sources)
image_png_la_CPPFLAGS = $(PLUGIN_CPPFLAGS)
image_png_la_CFLAGS   = $(PLUGIN_CFLAGS)
image_png_la_LDFLAGS  = $(PLUGIN_LDFLAGS)
image_png_la_LIBADD   = -ldl
endif

# libtool links plugins that use libctrt again when they are installed, with the installed libctrt.
# The variable hides the rule from automake, which would replace its own one.
install_plugins = install-pluginLTLIBRARIES
$(install_plugins): install-libLTLIBRARIES
