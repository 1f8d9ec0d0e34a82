# Tests. `make check` runs everything in TESTS; each test prints TAP. A test in C is a block of this form:
#
#   check_PROGRAMS      += test-NAME
#   TESTS               += test-NAME
#   test_NAME_SOURCES    = tests/unit/NAME.c
#   test_NAME_LDADD      = $(PUBLIC_LIBS)              what a program links: libctrt.so; for tests of the public API
#
# or, for a test of something inside core/ or nn/ (it may include "core/...h"):
#
#   test_NAME_CPPFLAGS   = $(INTERNAL_CPPFLAGS)
#   test_NAME_LDADD      = $(INTERNAL_LIBS)
#
# A test that uses cmocka stands in the conditional of that name, says $(CMOCKA_CFLAGS) in its _CPPFLAGS and has exactly
# one cmocka group (TAP allows one plan). One that exercises threads is named in TSAN_TESTS too, which
# `make check-tsan` runs. While tests run, CTRT_PLUGIN_PATH is the build tree's plugins and other CTRT_ variables are
# unset; $srcdir, $builddir (both absolute) say where the files are.

PUBLIC_LIBS       = libctrt.la $(CMOCKA_LIBS)
INTERNAL_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/core -I$(top_srcdir) $(CMOCKA_CFLAGS)
INTERNAL_LIBS     = libctrt-core.la $(CMOCKA_LIBS)

TSAN_TESTS =

# --- the tree itself -------------------------------------------------------------------------------------------------

TESTS += tests/headers.sh tests/floors.sh tests/exports.sh
EXTRA_DIST += tests/headers.sh tests/floors.sh tests/exports.sh tests/installed.c tests/installed.sh tests/lib.sh \
              tests/lsan.supp tests/tsan.supp tests/unit/fake_check.h tests/unit/fake_host.h \
              tests/unit/sim_host.h tests/unit/sims.h

# What tests compare with, and the scripts that made it.
EXTRA_DIST += \
    tests/reference/README.md tests/reference/can_cast.txt tests/reference/cases.py \
    tests/reference/compare.py tests/reference/compare_check.py tests/reference/compare_ctrt.py \
    tests/reference/compare_known.py tests/reference/compare_layout_table.py tests/reference/compare_nn.py tests/reference/compare_op_table.py \
    tests/reference/compare_ops.py tests/reference/compare_optim.py tests/reference/compare_programs.py \
    tests/reference/make_nn.py tests/reference/make_ops.py tests/reference/make_printing.py \
    tests/reference/make_promotion.py tests/reference/make_training.py tests/reference/op_dtypes.txt \
    tests/reference/ops_activation.txt tests/reference/ops_attention.txt tests/reference/ops_cast.txt \
    tests/reference/ops_conv.txt tests/reference/ops_elementwise.txt tests/reference/ops_loss.txt \
    tests/reference/ops_matmul.txt tests/reference/ops_norm.txt tests/reference/ops_optimizer.txt \
    tests/reference/ops_reduce.txt tests/reference/printing.txt tests/reference/promotion.txt \
    tests/reference/ref.h tests/reference/ref_format.py tests/reference/train_cnn_adamw.txt tests/reference/train_cnn_sgd.txt \
    tests/reference/train_mlp_adamw.txt tests/reference/train_mlp_sgd.txt \
    tests/reference/train_transformer_adamw.txt tests/reference/train_transformer_sgd.txt

# --- unit ------------------------------------------------------------------------------------------------------------

if HAVE_CMOCKA
# The cpu's kernels, through a host table of the tests' own.
if PLUGIN_CPU
cpu_tests = test-cpu-conv test-cpu-index test-cpu-matmul test-cpu-norm test-cpu-optim test-cpu-softmax
cpu_tests += test-cpu-copy test-cpu-elementwise test-cpu-math test-cpu-random test-cpu-reduce test-cpu-threads
cpu_tests += test-cpu-limits test-cpu-memory
check_PROGRAMS += $(cpu_tests)
TESTS          += $(cpu_tests)
CPU_TEST_LIBS   = $(CMOCKA_LIBS)
test_cpu_conv_SOURCES     = tests/unit/test-cpu-conv.c
test_cpu_conv_CPPFLAGS    = $(INTERNAL_CPPFLAGS)
test_cpu_conv_LDADD       = $(CPU_TEST_LIBS)
test_cpu_index_SOURCES    = tests/unit/test-cpu-index.c
test_cpu_index_CPPFLAGS   = $(INTERNAL_CPPFLAGS)
test_cpu_index_LDADD      = $(CPU_TEST_LIBS)
test_cpu_matmul_SOURCES   = tests/unit/test-cpu-matmul.c
test_cpu_matmul_CPPFLAGS  = $(INTERNAL_CPPFLAGS)
test_cpu_matmul_LDADD     = $(CPU_TEST_LIBS)
test_cpu_norm_SOURCES     = tests/unit/test-cpu-norm.c
test_cpu_norm_CPPFLAGS    = $(INTERNAL_CPPFLAGS)
test_cpu_norm_LDADD       = $(CPU_TEST_LIBS)
test_cpu_optim_SOURCES    = tests/unit/test-cpu-optim.c
test_cpu_optim_CPPFLAGS   = $(INTERNAL_CPPFLAGS)
test_cpu_optim_LDADD      = $(CPU_TEST_LIBS)
test_cpu_softmax_SOURCES  = tests/unit/test-cpu-softmax.c
test_cpu_softmax_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_cpu_softmax_LDADD    = $(CPU_TEST_LIBS)
test_cpu_copy_SOURCES = tests/unit/test-cpu-copy.c
test_cpu_copy_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_cpu_copy_LDADD = $(CPU_TEST_LIBS)
test_cpu_elementwise_SOURCES = tests/unit/test-cpu-elementwise.c
test_cpu_elementwise_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_cpu_elementwise_LDADD = $(CPU_TEST_LIBS)
test_cpu_math_SOURCES = tests/unit/test-cpu-math.c
test_cpu_math_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_cpu_math_LDADD = $(CPU_TEST_LIBS)
test_cpu_random_SOURCES = tests/unit/test-cpu-random.c
test_cpu_random_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_cpu_random_LDADD = $(CPU_TEST_LIBS)
test_cpu_reduce_SOURCES = tests/unit/test-cpu-reduce.c
test_cpu_reduce_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_cpu_reduce_LDADD = $(CPU_TEST_LIBS)
test_cpu_threads_SOURCES = tests/unit/test-cpu-threads.c
test_cpu_threads_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_cpu_threads_LDADD = $(CPU_TEST_LIBS)
test_cpu_threads_LDFLAGS = $(AM_LDFLAGS) -export-dynamic
TSAN_TESTS += test-cpu-threads test-cpu-memory
test_cpu_memory_SOURCES = tests/unit/test-cpu-memory.c
test_cpu_memory_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_cpu_memory_LDADD = $(CPU_TEST_LIBS)
# The files that read /proc and /sys, with recorded ones.
test_cpu_limits_SOURCES = tests/unit/test-cpu-limits.c backends/cpu/host/cgroup.c backends/cpu/host/limits.c \
                          backends/cpu/host/numa.c backends/cpu/host/pages.c
test_cpu_limits_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_cpu_limits_LDADD = $(CPU_TEST_LIBS)
endif
endif

# What the cuda backend finds, over libraries of the test's own; and over the driver and the NVML in software (tests/softcuda).
cuda_discovery_tests = test-cuda-discovery test-cuda-reasons
check_PROGRAMS += $(cuda_discovery_tests)
TESTS          += $(cuda_discovery_tests)
EXTRA_DIST     += tests/unit/cuda_bed.h tests/unit/cuda_fake.h
CUDA_DISCOVERY  = backends/cuda/host/discovery.c backends/cuda/host/driver.c backends/cuda/host/reason.c \
                  backends/cuda/host/visible.c backends/cuda/libs/nvml.c
FAKE_LOADER     = -Ddlopen=fake_dlopen -Ddlsym=fake_dlsym -Ddlerror=fake_dlerror -Ddlclose=fake_dlclose -Ddlinfo=fake_dlinfo
test_cuda_discovery_SOURCES  = tests/unit/test-cuda-discovery.c $(CUDA_DISCOVERY)
test_cuda_discovery_CPPFLAGS = -I$(top_srcdir)/backends/cuda $(INTERNAL_CPPFLAGS) $(FAKE_LOADER)
test_cuda_discovery_LDADD    = $(INTERNAL_LIBS)
test_cuda_reasons_SOURCES    = tests/unit/test-cuda-reasons.c $(CUDA_DISCOVERY)
test_cuda_reasons_CPPFLAGS   = -I$(top_srcdir)/backends/cuda $(INTERNAL_CPPFLAGS) $(FAKE_LOADER)
test_cuda_reasons_LDADD      = $(INTERNAL_LIBS)
if SOFTCUDA
if PLUGIN_CPU
check_PROGRAMS += test-cuda-device
TESTS          += test-cuda-device
test_cuda_device_SOURCES  = tests/unit/test-cuda-device.c
test_cuda_device_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests -I$(top_srcdir)/tests/unit
test_cuda_device_LDADD    = $(PUBLIC_LIBS)
check_PROGRAMS += test-cuda-attention
TESTS          += test-cuda-attention
test_cuda_attention_SOURCES  = tests/unit/test-cuda-attention.c tests/unit/soft_begin.h
test_cuda_attention_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests -I$(top_srcdir)/tests/unit
test_cuda_attention_LDADD    = $(PUBLIC_LIBS) -lm
check_PROGRAMS += test-cuda-products
TESTS          += test-cuda-products
test_cuda_products_SOURCES  = tests/unit/test-cuda-products.c
test_cuda_products_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests -I$(top_srcdir)/tests/unit
test_cuda_products_LDADD    = $(PUBLIC_LIBS)
check_PROGRAMS += test-cuda-faults
TESTS          += test-cuda-faults
test_cuda_faults_SOURCES  = tests/unit/test-cuda-faults.c tests/unit/soft_begin.h
test_cuda_faults_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests -I$(top_srcdir)/tests/unit -D_GNU_SOURCE
test_cuda_faults_LDADD    = $(PUBLIC_LIBS)
check_PROGRAMS += test-cuda-libraries
TESTS          += test-cuda-libraries
test_cuda_libraries_SOURCES  = tests/unit/test-cuda-libraries.c tests/unit/soft_begin.h
test_cuda_libraries_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests -I$(top_srcdir)/tests/unit -D_GNU_SOURCE
test_cuda_libraries_LDADD    = $(PUBLIC_LIBS)
check_PROGRAMS += test-cuda-pool
TESTS          += test-cuda-pool
test_cuda_pool_SOURCES  = tests/unit/test-cuda-pool.c tests/unit/soft_begin.h
test_cuda_pool_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests -I$(top_srcdir)/tests/unit -D_GNU_SOURCE
test_cuda_pool_LDADD    = $(PUBLIC_LIBS)
check_PROGRAMS += test-cuda-elementwise
TESTS          += test-cuda-elementwise
test_cuda_elementwise_SOURCES  = tests/unit/test-cuda-elementwise.c tests/unit/soft_begin.h
test_cuda_elementwise_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests -I$(top_srcdir)/tests/unit
test_cuda_elementwise_LDADD    = $(PUBLIC_LIBS) -lm
endif
endif

# Simulated devices, likewise.
if HAVE_CMOCKA
if PLUGIN_CPU
if PLUGIN_SIM
sim_tests       = test-sim test-sim-faults test-sim-process test-sim-threads
check_PROGRAMS += $(sim_tests)
TESTS          += $(sim_tests)
TSAN_TESTS     += $(sim_tests)
test_sim_SOURCES  = tests/unit/test-sim.c
test_sim_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_sim_LDADD    = $(CPU_TEST_LIBS)
test_sim_faults_SOURCES   = tests/unit/test-sim-faults.c
test_sim_faults_CPPFLAGS  = $(INTERNAL_CPPFLAGS)
test_sim_faults_LDADD     = $(CPU_TEST_LIBS)
test_sim_process_SOURCES  = tests/unit/test-sim-process.c
test_sim_process_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_sim_process_LDADD    = $(CPU_TEST_LIBS)
test_sim_threads_SOURCES  = tests/unit/test-sim-threads.c
test_sim_threads_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_sim_threads_LDADD    = $(CPU_TEST_LIBS)
plan_tests      = test-plan test-plan-memory test-scope test-shutdown test-split test-utilization
check_PROGRAMS += $(plan_tests)
TESTS          += $(plan_tests)
TSAN_TESTS     += test-scope test-shutdown
EXTRA_DIST     += tests/unit/plan_models.h
test_plan_SOURCES   = tests/unit/test-plan.c
test_plan_CPPFLAGS  = $(AM_CPPFLAGS) -I$(top_srcdir)
test_plan_LDADD     = $(PUBLIC_LIBS)
test_plan_memory_SOURCES  = tests/unit/test-plan-memory.c
test_plan_memory_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_plan_memory_LDADD    = $(INTERNAL_LIBS)
test_scope_SOURCES  = tests/unit/test-scope.c
test_scope_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
test_scope_LDADD    = $(PUBLIC_LIBS)
test_shutdown_SOURCES  = tests/unit/test-shutdown.c
test_shutdown_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
test_shutdown_LDADD    = $(PUBLIC_LIBS)
test_split_SOURCES  = tests/unit/test-split.c
test_split_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
test_split_LDADD    = $(PUBLIC_LIBS) -lm
test_utilization_SOURCES  = tests/unit/test-utilization.c
test_utilization_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
test_utilization_LDADD    = $(PUBLIC_LIBS)
stream_tests    = test-stream test-stream-corners test-stream-errors test-stream-order test-stream-races test-stream-train test-pinned
check_PROGRAMS += $(stream_tests)
TESTS          += $(stream_tests)
TSAN_TESTS     += $(stream_tests)
test_stream_SOURCES         = tests/unit/test-stream.c
test_stream_CPPFLAGS        = $(AM_CPPFLAGS) -I$(top_srcdir)
test_stream_LDADD           = $(PUBLIC_LIBS)
test_stream_corners_SOURCES  = tests/unit/test-stream-corners.c
test_stream_corners_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
test_stream_corners_LDADD    = $(PUBLIC_LIBS)
test_stream_errors_SOURCES  = tests/unit/test-stream-errors.c
test_stream_errors_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
test_stream_errors_LDADD    = $(PUBLIC_LIBS)
test_stream_order_SOURCES   = tests/unit/test-stream-order.c
test_stream_order_CPPFLAGS  = $(AM_CPPFLAGS) -I$(top_srcdir)
test_stream_order_LDADD     = $(PUBLIC_LIBS)
test_stream_races_SOURCES   = tests/unit/test-stream-races.c
test_stream_races_CPPFLAGS  = $(AM_CPPFLAGS) -I$(top_srcdir)
test_stream_races_LDADD     = $(PUBLIC_LIBS)
test_stream_train_SOURCES   = tests/unit/test-stream-train.c
test_stream_train_CPPFLAGS  = $(AM_CPPFLAGS) -I$(top_srcdir)
test_stream_train_LDADD     = $(PUBLIC_LIBS)
test_pinned_SOURCES         = tests/unit/test-pinned.c
test_pinned_CPPFLAGS        = $(INTERNAL_CPPFLAGS)
test_pinned_LDADD           = $(INTERNAL_LIBS)
test_workspace_SOURCES      = tests/unit/test-workspace.c
test_workspace_CPPFLAGS     = $(INTERNAL_CPPFLAGS)
test_workspace_LDADD        = $(INTERNAL_LIBS)
if PLUGIN_MEMORY_CACHING
check_PROGRAMS += test-account-sim test-workspace
TESTS          += test-account-sim test-workspace
TSAN_TESTS     += test-account-sim
test_account_sim_SOURCES  = tests/unit/test-account-sim.c tests/unit/sims.h
test_account_sim_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
test_account_sim_LDADD    = $(PUBLIC_LIBS)
endif
if PLUGIN_MEMORY_SPILL
if PLUGIN_MEMORY_CACHING
if PLUGIN_MEMORY_DIRECT
spill_tests     = test-spill test-spill-faults test-spill-threads test-spill-values
if PLUGIN_MEMORY_ARENA
spill_tests    += test-spill-parts
endif
check_PROGRAMS += $(spill_tests)
TESTS          += $(spill_tests)
TSAN_TESTS     += test-spill test-spill-threads test-spill-values
test_spill_SOURCES  = tests/unit/test-spill.c tests/unit/sims.h
test_spill_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
test_spill_LDADD    = $(PUBLIC_LIBS)
test_spill_faults_SOURCES  = tests/unit/test-spill-faults.c tests/unit/sims.h
test_spill_faults_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
test_spill_faults_LDADD    = $(PUBLIC_LIBS)
test_spill_parts_SOURCES  = tests/unit/test-spill-parts.c
test_spill_parts_LDADD    = $(PUBLIC_LIBS)
test_spill_values_SOURCES  = tests/unit/test-spill-values.c tests/unit/sims.h
test_spill_values_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
test_spill_values_LDADD    = $(PUBLIC_LIBS)
test_spill_threads_SOURCES  = tests/unit/test-spill-threads.c tests/unit/sims.h
test_spill_threads_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
test_spill_threads_LDADD    = $(PUBLIC_LIBS)
endif
endif
endif
endif
endif
endif

# The tensor floor.
tensor_tests = test-dtype test-promotion test-shape test-create test-convert test-format test-dlpack test-view test-cat \
               test-ops
check_PROGRAMS += $(tensor_tests)
TESTS          += $(tensor_tests)
EXTRA_DIST     += tests/unit/tap.h tests/unit/tensors.h tests/unit/toy.h
test_dtype_SOURCES      = tests/unit/test-dtype.c
test_dtype_CPPFLAGS     = $(INTERNAL_CPPFLAGS)
test_dtype_LDADD        = $(INTERNAL_LIBS)
test_promotion_SOURCES  = tests/unit/test-promotion.c
test_promotion_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_promotion_LDADD    = $(INTERNAL_LIBS)
test_shape_SOURCES      = tests/unit/test-shape.c
test_shape_CPPFLAGS     = $(INTERNAL_CPPFLAGS)
test_shape_LDADD        = $(INTERNAL_LIBS)
test_create_SOURCES     = tests/unit/test-create.c
test_create_LDADD       = $(PUBLIC_LIBS)
test_convert_SOURCES    = tests/unit/test-convert.c
test_convert_CPPFLAGS   = $(INTERNAL_CPPFLAGS)
test_convert_LDADD      = $(INTERNAL_LIBS)
test_dlpack_SOURCES     = tests/unit/test-dlpack.c
test_dlpack_CPPFLAGS    = $(INTERNAL_CPPFLAGS)
test_dlpack_LDADD       = $(PUBLIC_LIBS)
test_view_SOURCES       = tests/unit/test-view.c
test_view_LDADD         = $(PUBLIC_LIBS)
test_cat_SOURCES        = tests/unit/test-cat.c
test_cat_LDADD          = $(PUBLIC_LIBS)
test_ops_SOURCES        = tests/unit/test-ops.c
test_ops_LDADD          = $(PUBLIC_LIBS)
test_format_SOURCES     = tests/unit/test-format.c
test_format_CPPFLAGS    = $(INTERNAL_CPPFLAGS)
test_format_LDADD       = $(INTERNAL_LIBS)

# Autograd.
autograd_tests = test-autograd test-autograd-edges test-autograd-growth test-autograd-hooks test-autograd-inplace \
                 test-autograd-memory test-autograd-rules test-autograd-threads
check_PROGRAMS += $(autograd_tests)
TESTS          += $(autograd_tests)
TSAN_TESTS     += test-autograd-threads
EXTRA_DIST     += tests/unit/autograd_check.h tests/unit/gradcheck.h
test_autograd_SOURCES         = tests/unit/test-autograd.c
test_autograd_LDADD           = $(PUBLIC_LIBS)
test_autograd_edges_SOURCES   = tests/unit/test-autograd-edges.c
test_autograd_edges_LDADD     = $(PUBLIC_LIBS)
test_autograd_growth_SOURCES  = tests/unit/test-autograd-growth.c
test_autograd_growth_LDADD    = $(PUBLIC_LIBS)
test_autograd_hooks_SOURCES   = tests/unit/test-autograd-hooks.c
test_autograd_hooks_LDADD     = $(PUBLIC_LIBS)
test_autograd_inplace_SOURCES = tests/unit/test-autograd-inplace.c
test_autograd_inplace_LDADD   = $(PUBLIC_LIBS)
test_autograd_memory_SOURCES  = tests/unit/test-autograd-memory.c
test_autograd_memory_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_autograd_memory_LDADD    = $(INTERNAL_LIBS)
test_autograd_rules_SOURCES   = tests/unit/test-autograd-rules.c
test_autograd_rules_LDADD     = $(PUBLIC_LIBS)
test_autograd_threads_SOURCES = tests/unit/test-autograd-threads.c
test_autograd_threads_LDADD   = $(PUBLIC_LIBS)

# Modules, optimizers, checkpoints.
nn_tests = test-nn test-nn-devices test-nn-layers test-nn-memory test-optim test-checkpoint test-checkpoint-files
check_PROGRAMS += $(nn_tests)
TESTS          += $(nn_tests)
test_nn_SOURCES         = tests/unit/test-nn.c
test_nn_LDADD           = $(PUBLIC_LIBS)
test_nn_devices_SOURCES  = tests/unit/test-nn-devices.c
test_nn_devices_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_nn_devices_LDADD    = $(INTERNAL_LIBS)
test_nn_layers_SOURCES  = tests/unit/test-nn-layers.c
test_nn_layers_LDADD    = $(PUBLIC_LIBS)
test_nn_memory_SOURCES  = tests/unit/test-nn-memory.c
test_nn_memory_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_nn_memory_LDADD    = $(INTERNAL_LIBS)
test_optim_SOURCES      = tests/unit/test-optim.c
test_optim_LDADD        = $(PUBLIC_LIBS)
test_checkpoint_SOURCES = tests/unit/test-checkpoint.c
test_checkpoint_LDADD   = $(PUBLIC_LIBS)
test_checkpoint_files_SOURCES = tests/unit/test-checkpoint-files.c
test_checkpoint_files_LDADD   = $(PUBLIC_LIBS)

# The floors below tensors: on test plugins, which a test copies under the names of the roles that they play.
core_tests = test-account test-account-live test-account-peaks test-base test-device test-device-fork test-memory test-registry \
             test-registry-faults test-registry-files test-registry-init
check_LTLIBRARIES += actor.la later.la static-tls.la stranger.la
actor_la_SOURCES    = tests/plugins/actor.c
actor_la_LDFLAGS    = $(PLUGIN_LDFLAGS) -rpath /nowhere
later_la_SOURCES    = tests/plugins/later.c
later_la_LDFLAGS    = $(PLUGIN_LDFLAGS) -rpath /nowhere
static_tls_la_SOURCES = tests/plugins/static-tls.c
static_tls_la_LDFLAGS = $(PLUGIN_LDFLAGS) -rpath /nowhere
stranger_la_SOURCES = tests/plugins/stranger.c
stranger_la_CFLAGS  = $(AM_CFLAGS) -fvisibility=default
stranger_la_LDFLAGS = $(PLUGIN_LDFLAGS) -rpath /nowhere
check_PROGRAMS += $(core_tests)
TESTS          += $(core_tests)
TSAN_TESTS     += $(core_tests)
EXTRA_DIST     += tests/unit/child.h tests/unit/folder.h
test_account_SOURCES       = tests/unit/test-account.c
test_account_CPPFLAGS      = $(INTERNAL_CPPFLAGS)
test_account_LDADD         = $(INTERNAL_LIBS)
test_account_peaks_SOURCES  = tests/unit/test-account-peaks.c
test_account_peaks_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_account_peaks_LDADD    = $(INTERNAL_LIBS)
test_account_live_SOURCES  = tests/unit/test-account-live.c
test_account_live_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_account_live_LDADD    = $(INTERNAL_LIBS)
test_account_live_LDFLAGS  = -export-dynamic
test_base_SOURCES      = tests/unit/test-base.c
test_base_CPPFLAGS     = $(INTERNAL_CPPFLAGS)
test_base_LDADD        = $(INTERNAL_LIBS)
test_device_SOURCES    = tests/unit/test-device.c
test_device_CPPFLAGS   = $(INTERNAL_CPPFLAGS)
test_device_LDADD      = $(INTERNAL_LIBS)
test_device_fork_SOURCES  = tests/unit/test-device-fork.c
test_device_fork_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_device_fork_LDADD    = $(INTERNAL_LIBS)
test_memory_SOURCES    = tests/unit/test-memory.c
test_memory_CPPFLAGS   = $(INTERNAL_CPPFLAGS)
test_memory_LDADD      = $(INTERNAL_LIBS)
test_registry_SOURCES  = tests/unit/test-registry.c
test_registry_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_registry_LDADD    = $(INTERNAL_LIBS)
test_registry_faults_SOURCES  = tests/unit/test-registry-faults.c
test_registry_faults_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_registry_faults_LDADD    = $(INTERNAL_LIBS)
test_registry_files_SOURCES   = tests/unit/test-registry-files.c
test_registry_files_CPPFLAGS  = $(INTERNAL_CPPFLAGS)
test_registry_files_LDADD     = $(INTERNAL_LIBS)
test_registry_init_SOURCES    = tests/unit/test-registry-init.c
test_registry_init_CPPFLAGS   = $(INTERNAL_CPPFLAGS)
test_registry_init_LDADD      = $(INTERNAL_LIBS)

# Cached memory is given back under pressure: on the cpu with the caching policy.
if PLUGIN_CPU
check_PROGRAMS += test-pressure
TESTS          += test-pressure
TSAN_TESTS     += test-pressure
test_pressure_SOURCES  = tests/unit/test-pressure.c
test_pressure_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_pressure_LDADD    = $(INTERNAL_LIBS)
endif

# A training loop asks the system for nothing.
if PLUGIN_CPU
if PLUGIN_MEMORY_CACHING
check_PROGRAMS      += test-steady
test_steady_SOURCES  = tests/integration/steady.c
test_steady_LDADD    = libctrt.la
TESTS               += tests/integration/steady.sh
endif
endif
EXTRA_DIST += tests/integration/steady.sh

# The memory policies alone, on memory that exists on paper.
if PLUGIN_MEMORY_CACHING
if PLUGIN_MEMORY_DIRECT
if PLUGIN_MEMORY_ARENA
caching_tests = test-caching test-caching-model test-caching-parts
check_PROGRAMS += $(caching_tests)
TESTS          += $(caching_tests)
TSAN_TESTS     += $(caching_tests)
test_caching_SOURCES       = tests/unit/test-caching.c
test_caching_LDADD         = $(PUBLIC_LIBS)
test_caching_model_SOURCES = tests/unit/test-caching-model.c
test_caching_model_LDADD   = $(PUBLIC_LIBS)
test_caching_parts_SOURCES = tests/unit/test-caching-parts.c
test_caching_parts_LDADD   = $(PUBLIC_LIBS)
endif
endif
endif
EXTRA_DIST += tests/unit/caching_reference.h tests/unit/memory_bed.h tests/unit/memory_host.h

# What PyTorch computes, case by case, and its result types.
check_PROGRAMS += test-ops-reference test-op-dtypes
TESTS          += test-ops-reference test-op-dtypes
test_ops_reference_SOURCES = tests/unit/test-ops-reference.c tests/unit/ops-reference-basic.c tests/unit/ops-reference-nn.c \
                             tests/unit/ops-reference.h
test_ops_reference_LDADD   = $(PUBLIC_LIBS)
test_op_dtypes_SOURCES     = tests/unit/test-op-dtypes.c
test_op_dtypes_LDADD       = $(PUBLIC_LIBS)

# Bad input to every public function; the list of them comes from the headers.
if PLUGIN_CPU
check_PROGRAMS += test-bad-input
TESTS          += test-bad-input
endif
test_bad_input_SOURCES = tests/unit/test-bad-input.c tests/unit/bad-base.c tests/unit/bad-input.h tests/unit/bad-nn.c tests/unit/bad-split.c tests/unit/bad-stream.c \
                         tests/unit/bad-ops.c tests/unit/bad-tensor.c
test_bad_input_LDADD   = $(PUBLIC_LIBS)

# Every allocation of a training step fails once.
if PLUGIN_CPU
check_PROGRAMS += test-alloc-failure
TESTS          += test-alloc-failure
endif
test_alloc_failure_SOURCES  = tests/unit/test-alloc-failure.c
test_alloc_failure_CPPFLAGS = $(INTERNAL_CPPFLAGS)
test_alloc_failure_LDADD    = $(INTERNAL_LIBS)

# --- faults ----------------------------------------------------------------------------------------------------------
# Calls of the system that fail, limits of the system, and cancelled threads. CTRT_FAULTS=full in the environment of test-faults, run by
# hand, tries every n.

if PLUGIN_CPU
if PLUGIN_SIM
if PLUGIN_MEMORY_CACHING
check_LTLIBRARIES += libfaults.la
libfaults_la_SOURCES   = tests/faults/shim.c tests/faults/shim.h
libfaults_la_CPPFLAGS  = $(AM_CPPFLAGS) -D_GNU_SOURCE
libfaults_la_LDFLAGS   = $(AM_LDFLAGS) -module -avoid-version -shared -rpath /nowhere
libfaults_la_LIBADD    = -ldl
fault_tests            = test-faults test-limits
check_PROGRAMS        += $(fault_tests)
TESTS                 += $(fault_tests)
FAULT_CPPFLAGS         = $(AM_CPPFLAGS) -I$(top_srcdir)/tests/unit -D_GNU_SOURCE
FAULT_WORK             = tests/faults/work.c tests/faults/work.h
test_faults_SOURCES    = tests/faults/test-faults.c $(FAULT_WORK)
test_faults_CPPFLAGS   = $(FAULT_CPPFLAGS)
test_faults_LDADD      = $(PUBLIC_LIBS) -ldl -lm
test_limits_SOURCES    = tests/faults/test-limits.c $(FAULT_WORK)
test_limits_CPPFLAGS   = $(FAULT_CPPFLAGS)
test_limits_LDADD      = $(PUBLIC_LIBS) -lm
if PLUGIN_MEMORY_SPILL
check_PROGRAMS        += test-cancel
TESTS                 += test-cancel
TSAN_TESTS            += test-cancel
test_cancel_SOURCES    = tests/faults/test-cancel.c $(FAULT_WORK)
test_cancel_CPPFLAGS   = $(FAULT_CPPFLAGS)
test_cancel_LDADD      = $(PUBLIC_LIBS) -lm
endif
endif
endif
endif

# --- conformance -----------------------------------------------------------------------------------------------------

# The suite as a library, on the public API alone: for the program below and for `ctrt check`.
noinst_LTLIBRARIES += libconformance.la
libconformance_la_SOURCES = \
    tests/conformance/array.c tests/conformance/attention.c tests/conformance/binary.c tests/conformance/compare.c tests/conformance/conformance.h \
    tests/conformance/conv.c tests/conformance/copy.c tests/conformance/expected.c tests/conformance/forward.c \
    tests/conformance/gradient.c tests/conformance/index.c tests/conformance/inplace.c tests/conformance/matmul.c \
    tests/conformance/norm.c tests/conformance/optim.c tests/conformance/place.c tests/conformance/random.c \
    tests/conformance/reduce.c tests/conformance/run.c tests/conformance/softmax.c tests/conformance/suite.h \
    tests/conformance/unary.c tests/conformance/view.c

check_PROGRAMS += ctrt-conformance
ctrt_conformance_SOURCES = tests/conformance/main.c
ctrt_conformance_LDADD   = libconformance.la libctrt.la

# Kernels that are wrong on purpose: the suite has to notice.
check_LTLIBRARIES += mutant.la
mutant_la_SOURCES  = tests/plugins/mutant.c tests/plugins/plain-attention.h
mutant_la_LDFLAGS  = $(PLUGIN_LDFLAGS) -rpath /nowhere

if PLUGIN_CPU
TESTS += ctrt-conformance tests/conformance/mutants.sh
endif
# The page of `ctrt memory`, in a browser where there is one.
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
endif
EXTRA_DIST += tests/conformance/mutants.sh tests/integration/check.sh tests/integration/sim.sh

# --- abi -------------------------------------------------------------------------------------------------------------

check_PROGRAMS   += test-abi
TESTS            += test-abi tests/abi/abidiff.sh
test_abi_SOURCES  = tests/abi/test-abi.c
test_abi_CPPFLAGS = $(INTERNAL_CPPFLAGS) -I$(top_srcdir)/tests/unit
test_abi_LDADD    = $(INTERNAL_LIBS)
EXTRA_DIST       += tests/abi/abidiff.sh tests/abi/pin.py tests/abi/plugin-1.0.def tests/abi/plugin-1.0/ctrt/dtype.def \
                    tests/abi/plugin-1.0/ctrt/plugin.h tests/abi/plugin-1.0/ctrt/status.def \
                    tests/abi/plugin-1.0/ctrt/types.h tests/abi/surface.c

# --- fuzz ------------------------------------------------------------------------------------------------------------
# Each target for a second; CTRT_FUZZ_SECONDS in the environment of a program run by hand makes it longer.

fuzz_tests = fuzz-device-name fuzz-memory-policy fuzz-param fuzz-safetensors fuzz-visible
check_PROGRAMS += $(fuzz_tests)
TESTS          += $(fuzz_tests)
fuzz_device_name_SOURCES    = tests/fuzz/driver.c tests/fuzz/fuzz-device-name.c tests/fuzz/fuzz.h
fuzz_device_name_CPPFLAGS   = $(INTERNAL_CPPFLAGS)
fuzz_device_name_LDADD      = $(INTERNAL_LIBS)
fuzz_memory_policy_SOURCES  = tests/fuzz/driver.c tests/fuzz/fuzz-memory-policy.c tests/fuzz/fuzz.h
fuzz_memory_policy_CPPFLAGS = $(INTERNAL_CPPFLAGS)
fuzz_memory_policy_LDADD    = $(INTERNAL_LIBS)
fuzz_param_SOURCES          = tests/fuzz/driver.c tests/fuzz/fuzz-param.c tests/fuzz/fuzz.h
fuzz_param_CPPFLAGS         = $(INTERNAL_CPPFLAGS)
fuzz_param_LDADD            = $(INTERNAL_LIBS)
fuzz_safetensors_SOURCES    = tests/fuzz/driver.c tests/fuzz/fuzz-safetensors.c tests/fuzz/fuzz.h
fuzz_safetensors_CPPFLAGS   = $(INTERNAL_CPPFLAGS)
fuzz_safetensors_LDADD      = $(INTERNAL_LIBS)
fuzz_visible_SOURCES        = tests/fuzz/driver.c tests/fuzz/fuzz-visible.c tests/fuzz/fuzz.h
fuzz_visible_CPPFLAGS       = $(INTERNAL_CPPFLAGS)
fuzz_visible_LDADD          = $(INTERNAL_LIBS)

# --- integration -----------------------------------------------------------------------------------------------------

TESTS      += tests/integration/tool.sh
EXTRA_DIST += tests/integration/tool.sh

# Ten training steps against PyTorch's; any device's name may be given.
check_PROGRAMS += test-train-reference
TESTS          += test-train-reference
test_train_reference_SOURCES = tests/integration/test-train-reference.c
test_train_reference_LDADD   = $(PUBLIC_LIBS)

# The example for bindings to other languages, where python3 is there.
TESTS      += tests/integration/bindings.sh
EXTRA_DIST += tests/integration/bindings.sh

# A few random cases against an installed PyTorch; skipped without one.
TESTS      += tests/integration/compare.sh
EXTRA_DIST += tests/integration/compare.sh

# DLPack with other libraries at the other end, where python3 has them.
TESTS      += tests/integration/dlpack.sh
EXTRA_DIST += tests/integration/dlpack.py tests/integration/dlpack.sh


# The examples, run.
check_PROGRAMS += example-digits example-gpt
TESTS          += tests/integration/examples.sh
EXTRA_DIST     += tests/integration/examples.sh
example_digits_SOURCES = examples/digits.c
example_digits_LDADD   = $(PUBLIC_LIBS)
example_gpt_SOURCES    = examples/gpt.c
example_gpt_LDADD      = $(PUBLIC_LIBS)


# --- how tests are run -----------------------------------------------------------------------------------------------

TEST_EXTENSIONS = .sh
TAP_DRIVER      = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_DRIVER      = $(TAP_DRIVER)
SH_LOG_DRIVER   = $(TAP_DRIVER)
LOG_COMPILER    = $(SHELL) $(top_srcdir)/tests/limit.sh
SH_LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/limit.sh $(SHELL)
EXTRA_DIST     += tests/limit.sh

# The address sanitizer without two of its habits. Frames kept after return lose the alignment that 64-byte vectors want
# (GCC bug 110027). Thread-local storage of libraries that were opened late is guessed wrongly, and the search for
# leaks crashes on oneDNN's; without the guess that storage is still found, through the thread's own table.
AM_TESTS_ENVIRONMENT = \
    for v in `env | sed -n 's/^\(CTRT_[A-Za-z_]*\)=.*/\1/p'`; do unset $$v; done; \
    CTRT_PLUGIN_PATH='$(plugins_built)'; export CTRT_PLUGIN_PATH; \
    srcdir='$(abs_top_srcdir)'; builddir='$(abs_top_builddir)'; export srcdir builddir; \
    CMOCKA_MESSAGE_OUTPUT=TAP; export CMOCKA_MESSAGE_OUTPUT; OMP_WAIT_POLICY=passive; export OMP_WAIT_POLICY; \
    CC='$(CC)'; CXX='$(CXX_FOR_TESTS)'; NM='$(NM_PROGRAM)'; READELF='$(READELF)'; AWK='$(AWK)'; \
    PKG_CONFIG='$(PKG_CONFIG)'; SANITIZE='$(SANITIZE_FLAGS)'; CTRT_TEST_TIMEOUT='$(TEST_TIMEOUT)'; \
    export CC CXX NM READELF AWK PKG_CONFIG SANITIZE CTRT_TEST_TIMEOUT; \
    ASAN_OPTIONS="detect_stack_use_after_return=0:intercept_tls_get_addr=0:$$ASAN_OPTIONS"; \
    UBSAN_OPTIONS="print_stacktrace=1:$$UBSAN_OPTIONS"; \
    LSAN_OPTIONS="suppressions=$(abs_top_srcdir)/tests/lsan.supp:print_suppressions=0:$$LSAN_OPTIONS"; \
    TSAN_OPTIONS="suppressions=$(abs_top_srcdir)/tests/tsan.supp:$$TSAN_OPTIONS"; \
    export ASAN_OPTIONS UBSAN_OPTIONS LSAN_OPTIONS TSAN_OPTIONS; \
    unset LD_PRELOAD LD_LIBRARY_PATH;

# Seconds that one test may take.
TEST_TIMEOUT = 900

check-local: plugins-built/stamp

# Tests of what is threaded; meant for a tree configured with --enable-sanitize=thread. GCC 12's thread sanitizer wants
# addresses that a kernel with much randomisation does not give, hence setarch where it is allowed.
check-tsan: all
	@fixed=; if setarch -R true 2>/dev/null; then fixed='setarch -R'; fi; \
	if test -z '$(strip $(TSAN_TESTS))'; then echo 'TSAN_TESTS is empty'; exit 1; fi; \
	$$fixed $(MAKE) $(AM_MAKEFLAGS) check TESTS='$(TSAN_TESTS)'

.PHONY: check-tsan
