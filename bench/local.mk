# Measurements; built by `make bench`, never by `make`. Each is run beside a peer by bench/compare.sh.
EXTRA_PROGRAMS += bench-overhead bench-train
bench_overhead_SOURCES = bench/overhead.c bench/timing.h
bench_overhead_LDADD   = libctrt.la
bench_train_SOURCES    = bench/train.c bench/timing.h
bench_train_LDADD      = libctrt.la

bench: all bench-overhead bench-train
.PHONY: bench

CLEANFILES += bench-overhead bench-train
EXTRA_DIST += bench/compare.sh bench/peers/build.sh bench/peers/overhead_torch.cpp bench/peers/train_torch.cpp
