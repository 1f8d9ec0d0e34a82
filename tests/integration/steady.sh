#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In steady state a training loop on the cpu makes no system calls, so 20 and 60 steps make the same number. Uses one
# thread, because idle OpenMP threads sleep and wake.
set -u
builddir=${builddir:-.}
echo 1..1
if ! command -v strace >/dev/null 2>&1; then
    echo "ok 1 - # SKIP there is no strace"
    exit 0
fi
for program in "$builddir/.libs/test-steady" "$builddir/test-steady"; do
    if grep -q '__[atu]*san_init' "$program" 2>/dev/null; then
        echo "ok 1 - # SKIP sanitizers make system calls of their own"
        exit 0
    fi
done
log=$(mktemp -d) || exit 99
trap 'rm -rf "$log"' EXIT
OMP_NUM_THREADS=1 CTRT_NUM_THREADS=1
export OMP_NUM_THREADS CTRT_NUM_THREADS
if ! "$builddir/test-steady" 1; then            # libtool's wrapper relinks the program at its first run
    echo "not ok 1 - training"
    exit 1
fi
# Not libtool's wrapper, whose shell reads pipes with a varying number of system calls.
program=$builddir/test-steady
if [ -x "$builddir/.libs/test-steady" ]; then
    program=$builddir/.libs/test-steady
    LD_LIBRARY_PATH=$builddir/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi
for steps in 20 60; do
    if ! strace -f -c -o "$log/$steps" "$program" $steps >"$log/out" 2>&1; then
        if grep -q -i 'ptrace\|not permitted' "$log/out"; then
            echo "ok 1 - # SKIP strace may not trace here: $(head -1 "$log/out")"
            exit 0
        fi
        sed 's/^/# /' "$log/out"
        echo "not ok 1 - training under strace"
        exit 1
    fi
done
few=$(awk '$NF == "total" { print $4 }' "$log/20") more=$(awk '$NF == "total" { print $4 }' "$log/60")
if [ -n "$few" ] && [ "$few" = "$more" ]; then
    echo "ok 1 - no system call in 40 more training steps ($few in all)"
else
    diff "$log/20" "$log/60" | sed 's/^/# /'
    echo "not ok 1 - 20 steps take $few system calls, 60 take $more"
    exit 1
fi
