# The tests. All print TAP.
#
#   make check         the tests in TESTS; in a tree with sanitizers without TREE_TESTS, PLAIN_TESTS and the suites that
#                      run every cuda kernel
#   make check-long    LONG_TESTS: mutants, second devices, more seeds and policies; in the plain tree
#   make check-all     LONG_TESTS, then TESTS, in one run
#   make check-ptx     the cuda plugin as nvcc built it, on an interpreter of PTX (tests/ptx)
#   make check-tsan    TSAN_TESTS, in a tree with the thread sanitizer
#   make check-programs, make check-tsan-programs
#                      build the programs of `make check` and `make check-tsan`
#   make check-release the release archive by its Debian packages (packaging/local.mk)
#   make check-smoke   SMOKE_TESTS, which show that a build works; `make distcheck-smoke` runs them in the release
#                      archive
#
# A test in C is a file test-NAME.c with one TEST_MAIN (tests/unit/run.h). It is in one of these lists:
#
#   public_tests       link libctrt.so; for tests of the public API
#   internal_tests     link the objects of core/ and nn/, and include internal headers such as "memory/pool.h"
#   single_tests       separate programs, because they replace functions of the C library or of ctrt, or are copied
#
# All files of a list are linked into one program: run-public, run-internal, run-softcuda. By hand,
# `./run-internal test-device` runs one test, and `make check TESTS=tests/unit/test-device.c` runs it with its log. Each
# test runs in its own process. Multithreaded tests are also in TSAN_TESTS, which `make check-tsan` runs. While tests
# run, CTRT_PLUGIN_PATH is the build tree's plugins and other CTRT_ variables are unset; $srcdir and $builddir are the
# absolute paths of the source and build trees.

PUBLIC_LIBS       = libctrt.la -ldl -lm
INTERNAL_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/core -I$(top_srcdir) -I$(top_srcdir)/tests/unit -D_GNU_SOURCE
PUBLIC_CPPFLAGS   = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/tests -I$(top_srcdir)/tests/unit -D_GNU_SOURCE
INTERNAL_LIBS     = libctrt-core.la
TEST_RUNNER       = tests/unit/run.c tests/unit/run.h
# Compiling a test takes longer than running it, so tests are not optimised.
TEST_CFLAGS       = $(AM_CFLAGS) -O0
# Without libtool's wrapper scripts.
NO_WRAPPER        = $(AM_LDFLAGS) -no-install -Wl,-rpath,$(abs_top_builddir)/.libs

public_tests   =
internal_tests =
single_tests   =
TREE_TESTS     =
PLAIN_TESTS    =
TSAN_TESTS     =

# --- the tree itself -------------------------------------------------------------------------------------------------

TREE_TESTS += tests/descriptors.sh tests/headers.sh tests/layers.sh tests/macros.sh tests/names.sh tests/exports.sh \
              tests/versions.sh tests/abi/headers.sh
EXTRA_DIST += tests/cross-check tests/options.h tests/descriptors.sh tests/headers.sh tests/layers.sh tests/macros.sh \
              tests/names.sh tests/exports.sh tests/versions.sh \
              tests/installed.c tests/installed.sh tests/lib.sh tests/lsan.supp tests/run.sh tests/tsan.supp

# Reference data, and the scripts that create it.
EXTRA_DIST += \
    tests/reference/README.md tests/reference/autocast.txt tests/reference/make_autocast.py \
    tests/reference/can_cast.txt tests/reference/cases.py tests/reference/compare.py \
    tests/reference/compare_check.py tests/reference/compare_ctrt.py tests/reference/compare_known.py \
    tests/reference/compare_layout_table.py tests/reference/compare_nn.py tests/reference/compare_op_table.py \
    tests/reference/compare_ops.py tests/reference/compare_optim.py tests/reference/compare_programs.py \
    tests/reference/data.txt tests/reference/make_data.py \
    tests/reference/hooks.txt tests/reference/make_hooks.py tests/reference/make_nn.py tests/reference/make_ops.py \
    tests/reference/make_optim.py tests/reference/make_parallel.py tests/reference/parallel_buckets.txt \
    tests/reference/parallel_train.txt \
    tests/reference/make_printing.py tests/reference/make_promotion.py tests/reference/make_training.py \
    tests/reference/op_dtypes.txt tests/reference/ops_activation.txt tests/reference/ops_attention.txt \
    tests/reference/ops_cast.txt tests/reference/ops_conv.txt tests/reference/ops_elementwise.txt \
    tests/reference/ops_loss.txt tests/reference/ops_matmul.txt tests/reference/ops_norm.txt \
    tests/reference/ops_optimizer.txt tests/reference/ops_reduce.txt tests/reference/optim.txt \
    tests/reference/make_scaler.py tests/reference/scaler.txt \
    tests/reference/printing.txt tests/reference/promotion.txt tests/reference/ref.h tests/reference/ref_format.py \
    tests/reference/train_cnn_adamw.txt tests/reference/train_cnn_sgd.txt tests/reference/train_mlp_adamw.txt \
    tests/reference/train_mlp_sgd.txt tests/reference/train_transformer_adamw.txt \
    tests/reference/train_transformer_sgd.txt

# --- programs in C ---------------------------------------------------------------------------------------------------

EXTRA_DIST += \
    tests/unit/autograd_check.h tests/unit/block_module.h tests/unit/caching_reference.h tests/unit/calls.h \
    tests/unit/capture_check.h tests/unit/child.h tests/unit/comm_bodies.h tests/unit/comm_job.h \
    tests/unit/comm_values.h tests/unit/cuda_compare.h tests/unit/cuda_discovery.h tests/unit/data_check.h \
    tests/unit/dataset_files.h \
    tests/unit/dryrun_models.h \
    tests/unit/fake_pool.h tests/unit/file_tree.h tests/unit/folder.h tests/unit/forbid.h tests/unit/log_kept.h \
    tests/unit/memory_checks.h tests/unit/memory_host.h tests/unit/multi_block.h tests/unit/multi_check.h \
    tests/unit/loss_check.h tests/unit/loss_train.h tests/unit/nccl_job.h tests/unit/parallel_check.h \
    tests/unit/pipeline_check.h tests/unit/rank_check.h \
    tests/unit/share_check.h tests/unit/sharded_check.h tests/unit/sims.h tests/unit/small_net.h \
    tests/unit/soft_begin.h tests/unit/spill_check.h tests/unit/store_check.h tests/unit/strategy_check.h tests/unit/tap.h tests/unit/tensors.h

# Tensors, ops, autograd, modules.
public_tests += \
    tests/unit/test-autocast.c \
    tests/unit/test-autograd.c tests/unit/test-autograd-edges.c tests/unit/test-autograd-growth.c \
    tests/unit/test-autograd-hooks.c tests/unit/test-autograd-inplace.c tests/unit/test-autograd-rules.c \
    tests/unit/test-autograd-threads.c tests/unit/test-checkpoint.c tests/unit/test-checkpoint-files.c \
    tests/unit/test-create.c tests/unit/test-dlpack.c tests/unit/test-grad-scaler.c tests/unit/test-inf-watch.c \
    tests/unit/test-nn.c tests/unit/test-nn-layers.c \
    tests/unit/test-ops.c tests/unit/test-ops-reference.c tests/unit/test-optim.c \
    tests/unit/test-view.c
internal_tests += \
    tests/unit/test-contracts.c tests/unit/test-convert.c tests/unit/test-dtype.c tests/unit/test-format.c \
    tests/unit/test-optim-kinds.c tests/unit/test-progress.c
TSAN_TESTS += tests/unit/test-autocast.c tests/unit/test-autograd-threads.c

# Ready datasets and transforms.
public_tests   += tests/unit/test-datasets.c tests/unit/test-image-files.c tests/unit/test-transforms.c
internal_tests += tests/unit/test-pixels.c

# Process groups.
internal_tests += tests/unit/test-rank-environment.c tests/unit/test-store.c tests/unit/test-store-clients.c
TSAN_TESTS     += tests/unit/test-store.c tests/unit/test-store-clients.c

# Devices, memory, the plugin registry, with test plugins that a test copies under the names that it needs.
core_tests = \
    tests/unit/test-counters.c tests/unit/test-block-table.c tests/unit/test-base.c tests/unit/test-device.c \
    tests/unit/test-memory.c tests/unit/test-registry.c tests/unit/test-registry-files.c
internal_tests += $(core_tests)
single_tests   += tests/unit/test-counters-peaks.c tests/unit/test-registry-faults.c
TSAN_TESTS     += $(core_tests) tests/unit/test-counters-peaks.c tests/unit/test-registry-faults.c
check_LTLIBRARIES += plugin_by_name.la nextabi.la static-tls.la noplugin.la
plugin_by_name_la_SOURCES    = tests/plugins/plugin_by_name.c
plugin_by_name_la_LDFLAGS    = $(PLUGIN_LDFLAGS) -rpath /nowhere
nextabi_la_SOURCES    = tests/plugins/nextabi.c
nextabi_la_LDFLAGS    = $(PLUGIN_LDFLAGS) -rpath /nowhere
static_tls_la_SOURCES = tests/plugins/static-tls.c
static_tls_la_LDFLAGS = $(PLUGIN_LDFLAGS) -rpath /nowhere
noplugin_la_SOURCES = tests/plugins/noplugin.c
noplugin_la_CFLAGS  = $(AM_CFLAGS) -fvisibility=default
noplugin_la_LDFLAGS = $(PLUGIN_LDFLAGS) -rpath /nowhere

if PLUGIN_CPU
public_tests   += tests/unit/test-bad-input.c tests/unit/test-cpu-math.c tests/unit/test-struct-size.c
internal_tests += tests/unit/test-alloc-failure.c tests/unit/test-cpu-blocked.c tests/unit/test-cpu-kernels.c \
                  tests/unit/test-cpu-limits.c tests/unit/test-cpu-memory.c tests/unit/test-pressure.c
TSAN_TESTS     += tests/unit/test-cpu-memory.c tests/unit/test-pressure.c

single_tests += tests/unit/test-cpu-threads.c
TSAN_TESTS   += tests/unit/test-cpu-threads.c

# Tensors that processes share. test-share-kill.c without ThreadSanitizer, because its users are processes.
public_tests += tests/unit/test-share.c tests/unit/test-share-kill.c
TSAN_TESTS   += tests/unit/test-share.c

# Loading data; a program without stdin, stdout and stderr.
public_tests += tests/unit/test-data.c
if PLUGIN_COMM_HOST
public_tests += tests/unit/test-descriptors.c
endif

if PLUGIN_SIM
# Simulated devices, streams, dry runs.
stream_tests  = \
    tests/unit/test-stream.c tests/unit/test-stream-errors.c tests/unit/test-stream-order.c \
    tests/unit/test-stream-races.c
parallel_tests = tests/unit/test-parallel.c tests/unit/test-replicate.c
if PLUGIN_STRATEGY_SINGLE
if PLUGIN_STRATEGY_DATA_PARALLEL
parallel_tests += tests/unit/test-parallel-strategies.c
if PLUGIN_STRATEGY_PIPELINE
parallel_tests += tests/unit/test-pipeline.c tests/unit/test-strategy-modes.c
# Without ThreadSanitizer: predictions, by dry runs and steps whose threads the tests above cover.
public_tests   += \
    tests/unit/test-module-states.c tests/unit/test-pipeline-placement.c tests/unit/test-strategy-auto.c
if PLUGIN_STRATEGY_DISTRIBUTED
parallel_tests += tests/unit/test-parallel-costs.c
if PLUGIN_STRATEGY_SHARDED
parallel_tests += tests/unit/test-loss-rows.c tests/unit/test-strategy-losses.c
# Without ThreadSanitizer: captures need CUDA; other modes and losses, by the threads of test-strategy-losses.c.
public_tests   += tests/unit/test-loss-captures.c tests/unit/test-loss-modes.c tests/unit/test-loss-parameters.c
endif
LONG_TESTS     += tests/integration/delays-long.sh
endif
endif
endif
endif
if PLUGIN_SIM_MULTI
parallel_tests += tests/unit/test-multi-layouts.c tests/unit/test-multi-mesh.c
# Without ThreadSanitizer: test-multi-layouts.c has the same threads, and oneDNN's convolutions start others.
public_tests   += tests/unit/test-multi-ops.c
endif
# Loading data, also to a device.
loader_tests  = tests/unit/test-loader.c tests/unit/test-loader-failures.c
public_tests += $(loader_tests)
TSAN_TESTS   += $(loader_tests)
public_tests += $(stream_tests) $(parallel_tests) \
    tests/unit/test-dryrun.c tests/unit/test-nn-devices.c tests/unit/test-scope.c tests/unit/test-shutdown.c \
    tests/unit/test-split.c tests/unit/test-utilization.c
internal_tests += tests/unit/test-pinned.c tests/unit/test-sim.c tests/unit/test-sim-fork.c \
    tests/unit/test-stream-states.c
TSAN_TESTS     += $(stream_tests) $(parallel_tests) tests/unit/test-pinned.c tests/unit/test-scope.c \
                  tests/unit/test-shutdown.c tests/unit/test-sim.c tests/unit/test-sim-fork.c \
                  tests/unit/test-stream-states.c

if PLUGIN_COMM_HOST
comm_tests    = tests/unit/test-comm.c tests/unit/test-comm-failure.c tests/unit/test-comm-report.c \
    tests/unit/test-comm-random.c tests/unit/test-comm-capture.c tests/unit/test-comm-shrink.c
internal_tests += tests/unit/test-comm-states.c
TSAN_TESTS   += tests/unit/test-comm-states.c
public_tests += tests/unit/test-comm-pull.c     # without ThreadSanitizer, because all ranks are processes
LONG_TESTS   += tests/integration/comm-random-long.sh
EXTRA_DIST   += tests/integration/comm-random-long.sh
if PLUGIN_STRATEGY_DATA_PARALLEL
comm_tests   += tests/unit/test-comm-traffic.c
endif
if PLUGIN_STRATEGY_SINGLE
if PLUGIN_STRATEGY_SHARDED
comm_tests   += tests/unit/test-sharded.c
# Without ThreadSanitizer: test-sharded.c has the same threads.
public_tests += tests/unit/test-sharded-costs.c tests/unit/test-sharded-uses.c
if PLUGIN_STRATEGY_DISTRIBUTED
# The two strategies with states whose changes are recorded.
comm_tests        += tests/unit/test-strategy-states.c
check_LTLIBRARIES += states-sharded.la states-distributed.la
STATES_CPPFLAGS = $(PLUGIN_CPPFLAGS) -D_GNU_SOURCE -I$(top_srcdir) -include $(top_srcdir)/tests/plugins/states.h
states_sharded_la_SOURCES      = $(strategy_sharded_sources) tests/plugins/states.c tests/plugins/states.h
states_sharded_la_CPPFLAGS     = $(STATES_CPPFLAGS)
states_sharded_la_LDFLAGS      = $(PLUGIN_LDFLAGS) -rpath /nowhere
states_sharded_la_LIBADD       = libctrt.la
states_distributed_la_SOURCES  = $(strategy_distributed_sources) tests/plugins/states.c tests/plugins/states.h
states_distributed_la_CPPFLAGS = $(STATES_CPPFLAGS)
states_distributed_la_LDFLAGS  = $(PLUGIN_LDFLAGS) -rpath /nowhere
states_distributed_la_LIBADD   = libctrt.la
endif
endif
if PLUGIN_STRATEGY_DISTRIBUTED
comm_tests   += tests/unit/test-comm-hooks.c tests/unit/test-distributed.c tests/unit/test-distributed-capture.c \
                tests/unit/test-survive.c
if PLUGIN_STRATEGY_DATA_PARALLEL
if PLUGIN_STRATEGY_PIPELINE
if PLUGIN_STRATEGY_SHARDED
comm_tests   += tests/unit/test-batch-norm-dtypes.c tests/unit/test-grad-scaler-ranks.c tests/unit/test-sync-batch-norm.c
# Without ThreadSanitizer: numbers and files, by code whose threads the tests above cover.
public_tests += tests/unit/test-canonical-data.c tests/unit/test-parallel-checkpoint.c \
                tests/unit/test-parallel-reference.c tests/unit/test-sharded-checkpoint.c tests/unit/test-training-checkpoint.c
endif
endif
endif
endif
endif
public_tests += $(comm_tests)
TSAN_TESTS   += $(comm_tests)
endif

if PLUGIN_MEMORY_CACHING
internal_tests += tests/unit/test-counters-sim.c
TSAN_TESTS     += tests/unit/test-counters-sim.c

# Failing system calls, system limits, and cancelled threads. With CTRT_FAULTS=full, test-faults lets every n-th call
# fail.
check_LTLIBRARIES    += libfaults.la
libfaults_la_SOURCES  = tests/faults/shim.c tests/faults/shim.h
libfaults_la_CPPFLAGS = $(AM_CPPFLAGS) -D_GNU_SOURCE
libfaults_la_LDFLAGS  = $(AM_LDFLAGS) -module -avoid-version -shared -rpath /nowhere
libfaults_la_LIBADD   = -ldl
public_tests         += tests/faults/test-faults.c tests/faults/test-limits.c

if PLUGIN_MEMORY_SPILL
public_tests += tests/faults/test-cancel.c
TSAN_TESTS   += tests/faults/test-cancel.c
if PLUGIN_MEMORY_DIRECT
public_tests += tests/unit/test-spill.c tests/unit/test-spill-faults.c
TSAN_TESTS   += tests/unit/test-spill.c
if PLUGIN_MEMORY_ARENA
internal_tests += tests/unit/test-spill-parts.c
endif
endif
endif
endif
endif
endif

# Memory policies on fake memory.
if PLUGIN_MEMORY_CACHING
if PLUGIN_MEMORY_DIRECT
if PLUGIN_MEMORY_ARENA
internal_tests += tests/unit/test-caching.c tests/unit/test-caching-model.c
TSAN_TESTS   += tests/unit/test-caching.c
endif
endif
endif

# The cuda backend: discovery with fake libraries, and devices with the driver and NVML in software (tests/softcuda).
single_tests += tests/unit/test-cuda-discovery.c
if SOFTCUDA
softcuda_tests = \
    tests/unit/test-cuda-attention.c tests/unit/test-cuda-device.c tests/unit/test-cuda-elementwise.c \
    tests/unit/test-cuda-faults.c tests/unit/test-cuda-products.c tests/unit/test-share-cuda.c
if PLUGIN_COMM_NCCL
softcuda_tests += tests/unit/test-nccl.c tests/unit/test-nccl-failures.c
if PLUGIN_NCCL_MULTI
softcuda_tests += tests/unit/test-nccl-multi.c
endif
endif
public_tests += $(softcuda_tests)
cuda_rows = tests/unit/test-cuda-rows.c         # run by tests/integration/cuda-rows.sh
endif

# Fuzz targets, each for one second or for CTRT_FUZZ_SECONDS.
internal_tests += \
    tests/fuzz/fuzz-data.c tests/fuzz/fuzz-device-name.c tests/fuzz/fuzz-memory-policy.c tests/fuzz/fuzz-param.c \
    tests/fuzz/fuzz-safetensors.c tests/fuzz/fuzz-store.c tests/fuzz/fuzz-visible.c

# Ten training steps compared with PyTorch's, on any device.
single_tests += tests/integration/test-train-reference.c

# ---- the programs ----

single_programs = test-counters-peaks test-cuda-discovery test-registry-faults test-train-reference
run_programs    = run-public run-internal run-softcuda $(single_programs) test-cpu-threads
check_PROGRAMS += run-public run-internal $(single_programs)
run_public_SOURCES = $(TEST_RUNNER) $(public_tests) $(cuda_rows) tests/faults/work.c tests/faults/work.h \
    tests/unit/bad-base.c tests/unit/bad-comm.c tests/unit/bad-data.c tests/unit/bad-datasets.c \
    tests/unit/bad-input.h tests/unit/bad-layout.c tests/unit/bad-nn.c tests/unit/bad-ops.c tests/unit/bad-parallel.c \
    tests/unit/bad-share.c tests/unit/bad-strategy.c tests/unit/bad-stream.c \
    tests/unit/bad-tensor.c
run_public_CPPFLAGS = $(PUBLIC_CPPFLAGS)
run_public_CFLAGS   = $(TEST_CFLAGS)
run_public_LDFLAGS  = $(NO_WRAPPER)
run_public_LDADD    = $(PUBLIC_LIBS)
# test-block-table expects its own functions in backtraces. Plugins that are linked with libctrt.so call the functions
# that this program exports, so it has all objects of the library; the loader looks for libctrt.so in an RPATH of the
# program, not in a RUNPATH.
run_internal_SOURCES  = $(TEST_RUNNER) $(internal_tests) tests/fuzz/driver.c tests/fuzz/fuzz.h
run_internal_CPPFLAGS = $(INTERNAL_CPPFLAGS)
run_internal_CFLAGS   = $(TEST_CFLAGS)
run_internal_LDFLAGS  = $(NO_WRAPPER) -export-dynamic -Wl,--disable-new-dtags \
    -Wl,--whole-archive,.libs/libctrt-core.a,--no-whole-archive
run_internal_LDADD    = $(INTERNAL_LIBS)
if PLUGIN_CPU
check_PROGRAMS += test-cpu-threads
# test-cpu-limits tests the code that reads /proc and /sys, with recorded files; test-cpu-blocked tests blocked.c.
run_internal_CPPFLAGS += -I$(top_srcdir)/backends/cpu
run_internal_SOURCES += \
    backends/cpu/host/cgroup.c backends/cpu/host/limits.c backends/cpu/host/numa.c backends/cpu/host/pages.c \
    backends/cpu/libs/blocked.c
endif
test_cpu_threads_SOURCES  = $(TEST_RUNNER) tests/unit/test-cpu-threads.c
test_cpu_threads_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_cpu_threads_CFLAGS   = $(TEST_CFLAGS)
test_cpu_threads_LDFLAGS  = $(NO_WRAPPER) -export-dynamic
test_cpu_threads_LDADD    = $(INTERNAL_LIBS)
test_counters_peaks_SOURCES    = $(TEST_RUNNER) tests/unit/test-counters-peaks.c
test_counters_peaks_CPPFLAGS   = $(INTERNAL_CPPFLAGS)
test_counters_peaks_CFLAGS     = $(TEST_CFLAGS)
test_counters_peaks_LDFLAGS    = $(NO_WRAPPER)
test_counters_peaks_LDADD      = $(INTERNAL_LIBS)
test_registry_faults_SOURCES  = $(TEST_RUNNER) tests/unit/test-registry-faults.c
test_registry_faults_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_registry_faults_CFLAGS   = $(TEST_CFLAGS)
test_registry_faults_LDFLAGS  = $(NO_WRAPPER)
test_registry_faults_LDADD    = $(INTERNAL_LIBS)
CUDA_DISCOVERY = backends/cuda/host/discovery.c backends/cuda/host/driver.c backends/cuda/host/diagnose.c \
    backends/cuda/host/visible.c backends/cuda/libs/nvml.c
FAKE_LOADER    = -Ddlopen=fake_dlopen -Ddlsym=fake_dlsym -Ddlerror=fake_dlerror -Ddlclose=fake_dlclose -Ddlinfo=fake_dlinfo
test_cuda_discovery_SOURCES  = $(TEST_RUNNER) tests/unit/test-cuda-discovery.c tests/softcuda/nvml.c $(CUDA_DISCOVERY)
test_cuda_discovery_CPPFLAGS = -I$(top_srcdir)/backends/cuda -I$(top_srcdir)/tests $(INTERNAL_CPPFLAGS) $(FAKE_LOADER)
test_cuda_discovery_CFLAGS   = $(TEST_CFLAGS) -Wno-missing-prototypes
test_cuda_discovery_LDFLAGS  = $(NO_WRAPPER) -export-dynamic
test_cuda_discovery_LDADD    = $(INTERNAL_LIBS)
# bench/gpu.sh installs these two for a machine with a GPU, so they need libtool's wrapper scripts.
test_train_reference_SOURCES  = $(TEST_RUNNER) tests/integration/test-train-reference.c
test_train_reference_CPPFLAGS = $(PUBLIC_CPPFLAGS)
test_train_reference_CFLAGS   = $(TEST_CFLAGS)
test_train_reference_LDADD    = $(PUBLIC_LIBS)
test_capture_SOURCES  = $(TEST_RUNNER) tests/integration/test-capture.c
test_capture_CPPFLAGS = $(PUBLIC_CPPFLAGS)
test_capture_CFLAGS   = $(TEST_CFLAGS)
test_capture_LDADD    = $(PUBLIC_LIBS)

# A training loop makes no system calls.
if PLUGIN_CPU
if PLUGIN_MEMORY_CACHING
check_PROGRAMS      += test-steady
# Not called steady.c, because automake would run steady.sh as the test of steady.c.
test_steady_SOURCES  = tests/integration/steady-loop.c
test_steady_LDADD    = libctrt.la
PLAIN_TESTS += tests/integration/steady.sh
endif
endif
EXTRA_DIST += tests/integration/steady.sh

# --- conformance -----------------------------------------------------------------------------------------------------

# The suite as a library that uses only the public API, for `ctrt check`.
noinst_LTLIBRARIES += libconformance.la
libconformance_la_CFLAGS  = $(AM_CFLAGS) $(EXACT_CFLAGS)
libconformance_la_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
libconformance_la_SOURCES = \
    tests/conformance/array.c tests/conformance/attention.c tests/conformance/binary.c tests/conformance/compare.c \
    tests/conformance/conformance.h tests/conformance/contract.c tests/conformance/contract.h \
    tests/conformance/contract_backend.c tests/conformance/contract_blocks.c tests/conformance/contract_blocks.h \
    tests/conformance/contract_comm.c tests/conformance/contract_comm_device.c \
    tests/conformance/contract_comm_failure.c \
    tests/conformance/contract_host.c tests/conformance/contract_image.c \
    tests/conformance/contract_image.h tests/conformance/contract_image_files.c \
    tests/conformance/contract_kernel.c tests/conformance/contract_launch.c \
    tests/conformance/contract_memory.c tests/conformance/contract_plugin.c tests/conformance/contract_queue.c \
    tests/conformance/contract_ranks.c tests/conformance/contract_ranks.h tests/conformance/contract_report.h \
    tests/conformance/contract_source.c tests/conformance/contract_source.h \
    tests/conformance/contract_strategy.c tests/conformance/contract_strategy_hooks.c \
    tests/conformance/contract_training.c tests/conformance/contract_training.h \
    tests/conformance/conv.c tests/conformance/copy.c tests/conformance/expected.c \
    tests/conformance/forward.c tests/conformance/gradient.c tests/conformance/guard.c tests/conformance/guard.h \
    tests/conformance/index.c tests/conformance/inplace.c \
    tests/conformance/junit.c tests/conformance/junit.h tests/conformance/kernels.c \
    tests/conformance/list.c tests/conformance/matmul.c tests/conformance/norm.c tests/conformance/optim.c \
    tests/conformance/place.c tests/conformance/random.c tests/conformance/reduce.c tests/conformance/run.c \
    tests/conformance/softmax.c tests/conformance/suite.h tests/conformance/unary.c \
    tests/conformance/view.c tests/conformance/watch.c

# Kernels with deliberate errors, which the suite must detect.
check_LTLIBRARIES += mutant.la
mutant_la_SOURCES  = tests/plugins/mutant.c tests/plugins/plain-attention.h
mutant_la_LDFLAGS  = $(PLUGIN_LDFLAGS) -rpath /nowhere

# Plugins with defects, which the checks of the plugin ABI's contract must find.
check_LTLIBRARIES += broken_backend.la broken_comm.la broken_image.la broken_kernels.la broken_memory.la \
    broken_strategy.la
broken_backend_la_SOURCES = tests/plugins/broken_backend.c tests/plugins/broken_backend.h tests/plugins/broken_queue.c
broken_backend_la_LDFLAGS = $(PLUGIN_LDFLAGS) -rpath /nowhere
broken_comm_la_SOURCES    = tests/plugins/broken_comm.c
broken_comm_la_LDFLAGS    = $(PLUGIN_LDFLAGS) -rpath /nowhere
broken_comm_la_LIBADD     = libctrt.la
broken_image_la_SOURCES   = tests/plugins/broken_image.c
broken_image_la_LDFLAGS   = $(PLUGIN_LDFLAGS) -rpath /nowhere
broken_kernels_la_SOURCES = tests/plugins/broken_kernels.c
broken_kernels_la_LDFLAGS = $(PLUGIN_LDFLAGS) -rpath /nowhere
broken_memory_la_SOURCES  = tests/plugins/broken_memory.c
broken_memory_la_LDFLAGS  = $(PLUGIN_LDFLAGS) -rpath /nowhere
broken_strategy_la_SOURCES = tests/plugins/broken_strategy.c
broken_strategy_la_LDFLAGS = $(PLUGIN_LDFLAGS) -rpath /nowhere
broken_strategy_la_LIBADD  = libctrt.la
PLAIN_TESTS += tests/integration/contract.sh tests/integration/plugin-mistakes.sh
EXTRA_DIST += tests/integration/contract.sh tests/integration/plugin-mistakes.sh

# A backend outside of the tree, on pocl.
PLAIN_TESTS += tests/integration/opencl.sh
EXTRA_DIST  += tests/integration/opencl.sh

if PLUGIN_CPU
TESTS      += tests/conformance/cpu.sh tests/conformance/cpu-variants.sh
LONG_TESTS += tests/conformance/mutants.sh
endif
# The page of `ctrt memory`, in a browser if one is installed.
if PLUGIN_CPU
check_PROGRAMS += memory-snapshot
TESTS          += tests/integration/memory.sh
endif
EXTRA_DIST     += tests/integration/memory.sh
memory_snapshot_SOURCES = tests/integration/memory-snapshot.c
memory_snapshot_LDADD   = libctrt.la

TESTS      += tests/integration/check.sh
if PLUGIN_SIM
TESTS      += tests/integration/sim.sh
if PLUGIN_SIM_MULTI
TESTS      += tests/integration/multi.sh
endif
LONG_TESTS += tests/integration/sim-second.sh
endif
EXTRA_DIST += tests/conformance/cpu.sh tests/conformance/cpu-variants.sh tests/conformance/mutants.sh \
    tests/integration/check.sh tests/integration/checks.sh tests/integration/junit.py tests/integration/multi.sh \
    tests/integration/sim.sh tests/integration/sim-second.sh

# --- abi -------------------------------------------------------------------------------------------------------------

if PLUGIN_CPU
PLAIN_TESTS += tests/abi/programs.sh
endif
EXTRA_DIST  += tests/abi/1.0 tests/abi/abi.py tests/abi/freeze.sh tests/abi/headers.sh tests/abi/programs.sh \
               tests/abi/structs.txt

# The engine mpi, under every MPI that is installed.
if PLUGIN_COMM_MPI
if PLUGIN_CPU
check_PROGRAMS += mpi-program
TESTS          += tests/integration/mpi.sh
endif
endif
EXTRA_DIST     += tests/integration/mpi.sh tests/integration/mpi-header.c
mpi_program_SOURCES = tests/integration/mpi-program.c
mpi_program_CPPFLAGS = $(PUBLIC_CPPFLAGS)
mpi_program_LDADD   = libctrt.la -ldl -lm

# --- integration -----------------------------------------------------------------------------------------------------

TESTS      += tests/integration/tool.sh
EXTRA_DIST += tests/integration/tool.sh
if PLUGIN_CPU
if PLUGIN_SIM
PLAIN_TESTS += tests/integration/new-plugin.sh
endif
endif
EXTRA_DIST += tests/integration/new-plugin.sh

# `ctrt run`.
check_PROGRAMS  += run-rank
TESTS           += tests/integration/run.sh
EXTRA_DIST      += tests/integration/run.sh
run_rank_SOURCES = tests/integration/run-rank.c
run_rank_LDADD   = libctrt.la
run_rank_LDFLAGS = $(NO_WRAPPER)

# Ranks that fail amid training, as processes of one machine and of two network namespaces.
if PLUGIN_CPU
if PLUGIN_COMM_HOST
if PLUGIN_STRATEGY_DISTRIBUTED
check_PROGRAMS   += fail-rank job-rank survive-rank
TESTS            += tests/integration/failures.sh
# Under AddressSanitizer the same code runs in failures.sh, run.sh and test-survive.
PLAIN_TESTS      += tests/integration/jobs.sh tests/integration/survive.sh
LONG_TESTS       += tests/integration/survive-long.sh
endif
endif
endif
EXTRA_DIST       += tests/integration/failures.sh tests/integration/jobs.sh tests/integration/survive.sh tests/integration/survive-long.sh
survive_rank_SOURCES = tests/integration/survive-rank.c
survive_rank_LDADD   = libctrt.la
survive_rank_LDFLAGS = $(NO_WRAPPER)
job_rank_SOURCES = tests/integration/job-rank.c
job_rank_LDADD   = libctrt.la
job_rank_LDFLAGS = $(NO_WRAPPER)
fail_rank_SOURCES = tests/integration/fail-rank.c
fail_rank_LDADD   = libctrt.la
fail_rank_LDFLAGS = $(NO_WRAPPER)

# Python: the example of doc/bindings.md, the wheel of bindings/python, and random cases against an installed PyTorch.
PLAIN_TESTS += tests/integration/python.sh
EXTRA_DIST  += tests/integration/python.sh tests/integration/python_package.py
# The crate of bindings/rust, where cargo is installed.
PLAIN_TESTS += tests/integration/rust.sh
EXTRA_DIST  += tests/integration/rust.sh
TESTS       += tests/integration/cxx.sh
EXTRA_DIST  += tests/integration/cxx.sh tests/integration/cxx-binding.cc tests/integration/cxx-program.cc

# Installs the tree, tests it, and uninstalls it.
LONG_TESTS += tests/integration/install.sh
EXTRA_DIST += tests/integration/install.sh

# Runs the examples.
check_PROGRAMS += example-digits example-ensemble example-gpt example-hogwild example-multi example-resnet
TESTS          += tests/integration/examples.sh
LONG_TESTS     += tests/integration/examples-long.sh
EXTRA_DIST     += tests/integration/delays-long.sh tests/integration/examples.sh tests/integration/examples-long.sh
example_digits_SOURCES = examples/digits.c
example_digits_LDADD   = $(PUBLIC_LIBS)
example_ensemble_SOURCES = examples/ensemble.c
example_ensemble_LDADD   = $(PUBLIC_LIBS)
example_gpt_SOURCES    = examples/gpt.c
example_gpt_LDADD      = $(PUBLIC_LIBS)
example_hogwild_SOURCES = examples/hogwild.c
example_hogwild_LDADD   = $(PUBLIC_LIBS)
example_multi_SOURCES  = examples/multi.c
example_multi_LDADD    = $(PUBLIC_LIBS)
example_resnet_SOURCES = examples/resnet.c
example_resnet_LDADD   = $(PUBLIC_LIBS)

# After the scripts, which take longer: if tests run in parallel, the last ones should be short. test-alloc-failure, an
# internal test, takes longest with sanitizers.
if !SANITIZE
TESTS += $(TREE_TESTS) $(PLAIN_TESTS)
endif
TESTS += $(internal_tests) $(single_tests) $(public_tests)

# --- how tests are run -----------------------------------------------------------------------------------------------

TEST_EXTENSIONS = .c .sh
TAP_DRIVER      = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_DRIVER      = $(TAP_DRIVER)
C_LOG_DRIVER    = $(TAP_DRIVER)
SH_LOG_DRIVER   = $(TAP_DRIVER)
LOG_COMPILER    = $(SHELL) $(top_srcdir)/tests/limit.sh
C_LOG_COMPILER  = $(SHELL) $(top_srcdir)/tests/limit.sh $(SHELL) $(top_srcdir)/tests/run.sh
SH_LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/limit.sh $(SHELL)
EXTRA_DIST     += tests/limit.sh

# Two features of AddressSanitizer are disabled. With detect_stack_use_after_return, stack frames lose the alignment that
# 64-byte vectors need (GCC bug 110027). With intercept_tls_get_addr, the leak detector computes wrong addresses for the
# thread-local storage of libraries that were opened late, and crashes on oneDNN's.
AM_TESTS_ENVIRONMENT = \
    for v in `env | sed -n 's/^\(CTRT_[A-Za-z_]*\)=.*/\1/p'`; do unset $$v; done; \
    CTRT_PLUGIN_PATH='$(plugins_built)'; export CTRT_PLUGIN_PATH; \
    srcdir='$(abs_top_srcdir)'; builddir='$(abs_top_builddir)'; TEST_PROGRAMS='$(run_programs)'; export srcdir builddir TEST_PROGRAMS; \
    OMP_WAIT_POLICY=passive; export OMP_WAIT_POLICY; \
    CC='$(CC)'; CXX='$(CXX_FOR_TESTS)'; NM='$(NM_PROGRAM)'; READELF='$(READELF)'; AWK='$(AWK)'; \
    PKG_CONFIG='$(PKG_CONFIG)'; SANITIZE='$(SANITIZE_FLAGS)'; TEST_TIMEOUT='$(TEST_TIMEOUT)'; \
    export CC CXX NM READELF AWK PKG_CONFIG SANITIZE TEST_TIMEOUT; \
    ASAN_OPTIONS="detect_stack_use_after_return=0:intercept_tls_get_addr=0:$$ASAN_OPTIONS"; \
    UBSAN_OPTIONS="print_stacktrace=1:$$UBSAN_OPTIONS"; \
    LSAN_OPTIONS="suppressions=$(abs_top_srcdir)/tests/lsan.supp:print_suppressions=0:$$LSAN_OPTIONS"; \
    TSAN_OPTIONS="suppressions=$(abs_top_srcdir)/tests/tsan.supp:$$TSAN_OPTIONS"; \
    export ASAN_OPTIONS UBSAN_OPTIONS LSAN_OPTIONS TSAN_OPTIONS; \
    unset LD_PRELOAD LD_LIBRARY_PATH;

# Time limit of one test, in seconds.
TEST_TIMEOUT = 900

SMOKE_TESTS = $(TREE_TESTS) tests/integration/test-train-reference.c tests/integration/tool.sh \
              tests/unit/test-counters-peaks.c tests/unit/test-registry-faults.c
SMOKE       = TESTS='$(SMOKE_TESTS)' check_DATA= check_LTLIBRARIES='plugin_by_name.la' \
              check_PROGRAMS='test-counters-peaks test-registry-faults test-train-reference'

check-local: plugins-built/stamp

check-long: all
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(LONG_TESTS)'
check-all: all
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(LONG_TESTS) $(TESTS)'
check-smoke: all
	$(MAKE) $(AM_MAKEFLAGS) check $(SMOKE)
distcheck-smoke:
	$(MAKE) $(AM_MAKEFLAGS) distcheck $(SMOKE) \
	    AM_DISTCHECK_CONFIGURE_FLAGS="$(AM_DISTCHECK_CONFIGURE_FLAGS) --with-cpu-isa=baseline CFLAGS=-O0"

# Multithreaded tests, for a tree configured with --enable-sanitize=thread. GCC 12's ThreadSanitizer does not work with
# the address layouts of kernels with much randomisation, so setarch disables randomisation where it is allowed.
check-tsan check-tsan-programs: all
	@fixed=; if setarch -R true 2>/dev/null; then fixed='setarch -R'; fi; \
	if test -z '$(strip $(TSAN_TESTS))'; then echo 'TSAN_TESTS is empty'; exit 1; fi; \
	tests='$(TSAN_TESTS)'; test $@ = check-tsan || tests=; \
	$$fixed $(MAKE) $(AM_MAKEFLAGS) check TESTS="$$tests" check_DATA= \
	    check_PROGRAMS='$(filter run-% test-counters-peaks test-cpu-threads test-registry-faults,$(check_PROGRAMS))' \
	    check_LTLIBRARIES='$(filter-out mutant.la,$(check_LTLIBRARIES))'
check-programs: all
	$(MAKE) $(AM_MAKEFLAGS) check TESTS=

.PHONY: check-all check-long check-programs check-smoke check-tsan check-tsan-programs distcheck-smoke
