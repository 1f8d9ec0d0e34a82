# Benchmarks; built by `make bench`, not by `make`. bench/compare.sh runs one in turns with a program to compare with.
EXTRA_PROGRAMS += bench-memory bench-memory-trace bench-overhead bench-startup bench-train
bench_memory_SOURCES   = bench/memory.c bench/check.h
bench_memory_LDADD     = libctrt.la
bench_memory_trace_SOURCES = bench/memory_trace.c bench/check.h
bench_memory_trace_LDADD   = libctrt.la
bench_overhead_SOURCES = bench/overhead.c bench/check.h bench/timing.h
bench_overhead_LDADD   = libctrt.la
bench_startup_SOURCES  = bench/startup.c
bench_startup_LDADD    = libctrt.la
EXTRA_PROGRAMS += bench-smallstep
bench_smallstep_SOURCES = bench/smallstep.c bench/check.h bench/timing.h
bench_smallstep_LDADD   = libctrt.la
bench_train_SOURCES    = bench/train.c bench/check.h bench/timing.h bench/transformer.h
bench_train_LDADD      = libctrt.la
EXTRA_PROGRAMS    += bench-data
bench_data_SOURCES = bench/data.c bench/check.h bench/timing.h
bench_data_LDADD   = libctrt.la
CLEANFILES        += bench-data
EXTRA_DIST        += bench/peers/data_torch.py bench/results/2026-11-data.md
EXTRA_PROGRAMS       += bench-hostmem
bench_hostmem_SOURCES = bench/hostmem.c
bench_hostmem_LDADD   = libctrt.la
EXTRA_PROGRAMS    += bench-comm
bench_comm_SOURCES = bench/comm.c bench/timing.h
bench_comm_LDADD   = libctrt.la
CLEANFILES        += bench-comm
EXTRA_PROGRAMS           += bench-comm-growth
bench_comm_growth_SOURCES = bench/comm_growth.c bench/timing.h
bench_comm_growth_LDADD   = libctrt.la
CLEANFILES               += bench-comm-growth
EXTRA_DIST               += bench/results/2026-11-nccl-host.md
EXTRA_DIST               += bench/comm_growth.py bench/results/2026-11-comm.md bench/results/2026-11-comm-growth.txt
EXTRA_PROGRAMS        += bench-comm-mpi
bench_comm_mpi_SOURCES = bench/comm_mpi.c bench/timing.h
bench_comm_mpi_LDADD   = libctrt.la -ldl
CLEANFILES            += bench-comm-mpi
# tests/integration/gpu-script.sh also runs this program.
check_PROGRAMS         += bench-comm-nccl
bench_comm_nccl_SOURCES = bench/comm_nccl.c bench/timing.h
bench_comm_nccl_LDADD   = libctrt.la -ldl
EXTRA_PROGRAMS            += bench-distributed
bench_distributed_SOURCES  = bench/distributed.c bench/timing.h
bench_distributed_LDADD    = libctrt.la
CLEANFILES                += bench-distributed
EXTRA_DIST                += bench/peers/distributed_torch.py bench/results/2026-11-distributed.md

EXTRA_PROGRAMS       += bench-layouts
bench_layouts_SOURCES = bench/layouts.c bench/check.h bench/timing.h
bench_layouts_LDADD   = libctrt.la
CLEANFILES           += bench-layouts
EXTRA_DIST           += bench/layouts.sh bench/results/2026-11-layouts.md
EXTRA_PROGRAMS      += bench-scaler
bench_scaler_SOURCES = bench/scaler.c bench/check.h
bench_scaler_LDADD   = libctrt.la
CLEANFILES          += bench-scaler
EXTRA_DIST          += bench/results/2026-11-scaler.md
EXTRA_PROGRAMS             += bench-block-layouts
bench_block_layouts_SOURCES = bench/block_layouts.c
bench_block_layouts_LDADD   = libctrt.la
CLEANFILES                 += bench-block-layouts
EXTRA_DIST                 += bench/block_layouts.py

EXTRA_PROGRAMS     += bench-share
bench_share_SOURCES = bench/share.c bench/check.h bench/timing.h
bench_share_LDADD   = libctrt.la
CLEANFILES         += bench-share
EXTRA_DIST         += bench/peers/share_torch.py bench/results/2026-11-share.md

# tests/integration/gpu-script.sh also runs this program.
check_PROGRAMS    += bench-gpu
bench_gpu_SOURCES  = bench/gpu.c bench/gpu.h bench/gpu_direct.c bench/gpu_ops.c bench/gpu_overlap.c bench/gpu_smoke.c \
                     bench/gpu_steps.c bench/timing.h bench/transformer.h
bench_gpu_LDADD    = libctrt.la -ldl
EXTRA_DIST        += bench/gpu.sh bench/gpu_goals.sh bench/peers/gpu_torch.py bench/results/2026-11-kernels.md

bench: all bench-block-layouts bench-comm bench-comm-growth bench-comm-mpi bench-comm-nccl bench-data \
       bench-distributed bench-gpu bench-hostmem bench-layouts bench-memory bench-memory-trace bench-overhead \
       bench-parallel bench-share bench-smallstep bench-startup bench-train
.PHONY: bench

CLEANFILES += bench-memory bench-memory-trace bench-overhead bench-startup bench-train
CLEANFILES += bench-smallstep
EXTRA_DIST += bench/bookkeeping.sh bench/compare.sh bench/instructions.sh bench/peers/build.sh
EXTRA_DIST += bench/peers/overhead_torch.cpp bench/peers/train_torch.cpp
EXTRA_DIST += bench/competitors.sh bench/results/2026-11-competitors.md
EXTRA_DIST += bench/results/2026-11-bf16.md bench/results/2026-11-first.md bench/results/2026-11-memory.md \
              bench/results/2026-11-mpi.md bench/results/2026-11-streams.md
CLEANFILES += bench-hostmem
EXTRA_DIST += bench/results/2026-11-hostmem.md bench/results/2026-11-gpu.md \
              bench/results/2026-11-parallel.md bench/results/2026-11-sharded.md bench/results/2026-11-structure.md \
              bench/results/2026-11-tensor-parallel.md
EXTRA_PROGRAMS        += bench-parallel
bench_parallel_SOURCES = bench/parallel.c bench/timing.h
bench_parallel_LDADD   = libctrt.la
CLEANFILES            += bench-parallel
EXTRA_PROGRAMS          += bench-transforms
bench_transforms_SOURCES = bench/transforms.c bench/check.h bench/timing.h
bench_transforms_LDADD   = libctrt.la
CLEANFILES              += bench-transforms
EXTRA_DIST              += bench/peers/transforms_torch.py bench/results/2026-11-transforms.md
EXTRA_DIST              += bench/results/2026-11-opencl.md
