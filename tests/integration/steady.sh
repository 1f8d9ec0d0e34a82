#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In steady state a training loop on the cpu makes no system calls, so 20 and 60 steps make the same number. Uses one
# thread, because idle threads sleep and wake.
. "$srcdir/tests/lib.sh"
name="40 more training steps make no system call"
# Not libtool's wrapper, whose shell reads pipes with a varying number of system calls.
program=$builddir/test-steady
if [ -x "$builddir/.libs/test-steady" ]; then
    "$program" 1 >/dev/null                     # the wrapper relinks the program at its first run
    program=$builddir/.libs/test-steady
    LD_LIBRARY_PATH=$builddir/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi
OMP_NUM_THREADS=1 CTRT_NUM_THREADS=1
export OMP_NUM_THREADS CTRT_NUM_THREADS
log=$(mktemp -d) || exit 99
trap 'rm -rf "$log"' EXIT

# calls STEPS: prints the number of system calls.
calls() {
    strace -f -c -o "$log/$1" "$program" "$1" >"$log/out" 2>&1 && awk '$NF == "total" { print $4 }' "$log/$1"
}
if ! command -v strace >/dev/null 2>&1; then
    skip "$name" "there is no strace"
elif grep -q '__[atu]*san_init' "$program"; then
    skip "$name" "sanitizers make system calls of their own"
else
    # The program's start makes a few more calls at times, so a difference must occur three times.
    for attempt in 1 2 3; do
        few=$(calls 20) more=$(calls 60)
        [ "$few" != "$more" ] || break
    done
    if grep -q -i 'ptrace\|not permitted' "$log/out"; then
        skip "$name" "strace may not trace here: $(head -1 "$log/out")"
    elif [ -n "$few" ] && [ "$few" = "$more" ]; then
        ok "$name ($few in all)"
    else
        not_ok "$name" "20 steps make $few, 60 make $more
$(cat "$log/out"; diff "$log/20" "$log/60")"
    fi
fi
finish
