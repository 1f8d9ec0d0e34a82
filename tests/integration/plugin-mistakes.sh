#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the library and `ctrt` say about mistakes in plugins: tests/plugins/broken_backend.c with each defect that
# programs can meet. contract.sh has the checks of `ctrt check --contract`.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-$srcdir}
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"
ctrt=$builddir/ctrt

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir -m 755 "$work/plugins"
cp "$builddir/.libs/broken_backend.so" "$work/plugins/backend-broken.so" || exit 1
for plugin in memory-direct memory-caching backend-cpu; do
    cp "$builddir/plugins-built/$plugin.so" "$work/plugins/" 2>/dev/null
done
export CTRT_PLUGIN_PATH=$work/plugins CTRT_PROBE_TIMEOUT=20
unset CTRT_PROBE

# finds DEFECT COMMAND...: reads lines of which each must be a part of the output.
finds() {
    defect=$1
    shift
    CTRT_BROKEN=$defect "$@" >"$work/out" 2>&1
    code=$?
    missing=
    while IFS= read -r line; do
        grep -qF -e "$line" "$work/out" || missing="$missing
missing: $line"
    done
    [ "$code" -lt 124 ] || missing="$missing
exit status $code"
    check "$defect: ${*#"$builddir"/}" "${missing:+$missing
$(cat "$work/out")}"
}

# ---- a probe that crashes: listed, with all other plugins ----

# The cpu is not built in every configuration.
others=
[ ! -e "$work/plugins/backend-cpu.so" ] || others='ready     backend  cpu'
for row in 'probe_crashes|crashed with SIGSEGV in its probe' 'probe_abort|crashed with SIGABRT in its probe' \
    'probe_exit|ended with status 3 in its probe'; do
    finds "${row%%|*}" "$ctrt" plugins <<END
crashed   backend  broken
${row#*|}
$others
END
done
CTRT_PROBE_TIMEOUT=1 finds probe_hangs "$ctrt" plugins <<END
crashed   backend  broken
did not return within 1000 ms in its probe
$others
END
CTRT_PROBE=child finds probe_crashes "$ctrt" check broken <<'END'
backend broken cannot be used: crashed with SIGSEGV in its probe
END
CTRT_PROBE=child finds init_crashes "$ctrt" check --list broken <<'END'
init failed: crashed with SIGABRT in its init
END
CTRT_PROBE=here CTRT_BROKEN=probe_crashes "$ctrt" plugins >/dev/null 2>&1
check "CTRT_PROBE=here: the probe runs in the process" "$([ $? -gt 128 ] || echo "exit status $?")"

# The helper of ctrt/probe_plugin.h, also without CTRT_PROBE=child.
export CTRT_PROBE=here
finds child_works "$ctrt" plugins <<'END'
ready     backend  broken
asked in a child process
END
finds child_crashes "$ctrt" plugins <<'END'
absent    backend  broken
the vendor's functions, called in a child process: crashed with SIGSEGV
END
finds child_hangs "$ctrt" plugins <<'END'
absent    backend  broken
called in a child process: did not return within 300 ms
END
unset CTRT_PROBE

# ---- names ----

finds name_other "$ctrt" plugins <<'END'
refused
the file is named as the backend broken, but it has the backend other only
rename the file to backend-other.so, or the component to broken
END
mkdir -m 755 "$work/other"
cp "$builddir/.libs/mutant.so" "$work/other/kernels-fast-mutant.so"
CTRT_PLUGIN_PATH=$work/other finds "kernels with another backend's name" "$ctrt" plugins <<'END'
the file is named as kernels of the backend fast, but its component is cpu: a component of kind kernels has the name
END
CTRT_PLUGIN_PATH=. finds "a relative folder" "$ctrt" plugins <<'END'
  . (ignored: not an absolute path)
END
if [ -n "$others" ]; then
    export CTRT_FALLBACK=cpu
    finds kernel_misspelt "$ctrt" check --op relu --tags scalar,inplace broken <<'END'
broken: kernel 0 is of the op "adds", which does not exist, and is never called; did you mean add?
END
    check "the misspelt name is logged once" "$([ "$(grep -c 'did you mean' "$work/out")" -eq 1 ] || cat "$work/out")"
fi
finds kernel_dtypes "$ctrt" check --list broken <<'END'
kernel 0 (add): dtypes is 0x1000000000000002, whose bit 60 is no dtype
END

# ---- what slots return ----

CTRT_LOG=warning finds count_negative "$ctrt" info --devices <<'END'
backend broken: count returned CTRT_OK and -1 as the number of devices. It has to write 0 or more
END
finds count_silent "$ctrt" check --list broken <<'END'
backend broken: count returned -
without a message. It has to call host->fail before it returns a failure
END
finds total_negative "$ctrt" info --devices <<'END'
backend broken: describe returned CTRT_OK and -1 as total_memory
END
finds processors_negative "$ctrt" info --devices <<'END'
backend broken: describe returned CTRT_OK and -4 as processors
END
finds open_null "$ctrt" info --devices --memory <<'END'
backend broken: open returned CTRT_OK and NULL. It has to write a handle that is not NULL
END
finds open_silent "$ctrt" info --devices --memory <<'END'
backend broken: open returned -
without a message
END
finds open_positive "$ctrt" info --devices --memory <<'END'
backend broken: open returned 5, which is not a status
END
finds free_negative "$ctrt" info --devices --memory <<'END'
backend broken: memory_info returned CTRT_OK and -1 as the total bytes
END
finds queue_null "$ctrt" info --devices --memory <<'END'
backend broken: create of a queue returned CTRT_OK and NULL. It has to write a queue
END
if [ -n "$others" ]; then
    finds alloc_null "$ctrt" check --op add --tags inplace broken <<'END'
backend broken: alloc returned success without an address
END
    # Queues work on memory that the host can access: the library must not read it without a wait.
    finds host_memory "$ctrt" check --op 'add' --skip-tags gradient,gradient2 broken <<'END'
 0 failed
END
    CTRT_LOG=warning finds undeclared "$ctrt" info --devices --memory <<'END'
broken:0 has a queue table with create, but describe does not set CTRT_DEVICE_ASYNCHRONOUS
END
    finds run_silent "$ctrt" check --op add --tags inplace broken <<'END'
backend broken: run of a kernel returned -
without a message
END

    # A memory policy.
    cp "$builddir/.libs/broken_memory.so" "$work/plugins/memory-broken.so"
    export CTRT_MEMORY=broken:x=1
    finds options_silent "$ctrt" check --op add --tags inplace cpu <<'END'
memory policy broken: create returned -
without a message
END
    CTRT_MEMORY=broken
    finds alloc_silent "$ctrt" check --op add --tags inplace cpu <<'END'
memory policy broken: alloc returned -
without a message
END
    unset CTRT_MEMORY

    # ---- a wait that does not end ----
    export CTRT_WAIT_WARNING=1
    finds kernel_slow "$ctrt" check --op add --tags inplace --skip-tags f64,f16,bf16 broken <<'END'
has waited 1 s for stream
of broken:0
the last is
has waited 2 s for stream
END
    check "a wait is logged after 1, 2, 4 s" "$([ "$(grep -c 'has waited' "$work/out")" -eq 2 ] || cat "$work/out")"
    CTRT_WAIT_WARNING=0
    finds sync "$ctrt" check --op add --tags inplace broken <<'END'
0 failed
END

    # ---- kernels that never run, or do not return: ctrt check ----
    mkdir -m 755 "$work/kernels"
    kernels=$work/kernels/kernels-cpu-broken.so
    cp "$builddir/.libs/broken_kernels.so" "$kernels"
    for row in 'refuses|kernel 0, relu f32: `accepts` refused all' \
        'misspelt|kernel 0, relux f32: there is no such op; `ctrt ops` lists them' \
        'dtype|kernel 0, relu bool: no check called the op with these dtypes; `ctrt ops relu` has its dtypes' \
        'score|kernel 1, neg f32: in all' "none|none of the plugin's kernels (0) ran" \
        'init_fails|kernels-cpu-broken.so is refused: init failed: no kernels today'; do
        finds "${row%%|*}" "$ctrt" check --op '[nr]e[gl]*' "$kernels" <<END
- suite runs the kernels of kernels-cpu-broken.so
${row#*|}
 1 failed
END
    done
    finds "no defect" "$ctrt" check --op relu "$kernels" <<'END'
- suite runs the kernels of kernels-cpu-broken.so
 0 failed
END
    finds misspelt "$ctrt" check --op relu --tags f32 "$kernels" <<'END'
kernel 0, relux f32: there is no such op
 1 failed
END
    finds "checks without the kernel's dtype" "$ctrt" check --op relu --tags f64 "$kernels" <<'END'
kernel 0, relu f32: no check called the op with these dtypes
 1 failed
END
    finds hangs "$ctrt" check --op relu --timeout 1 "$kernels" <<'END'
not ok 1 - relu f32 contiguous
did not end within 1 s; the last call of a kernel: relu f32, score 1000
with more time, --timeout
 1 failed
END
    # The signal ends the command, so that a core file has the place of the crash.
    finds workspace sh -c '"$@" || exit 1' sh "$ctrt" check --op relu "$kernels" <<'END'
not ok 1 - relu f32 contiguous
crashed with signal 11
the last call of a kernel: relu f32, score 1000
call->workspace is one if the kernel has no slot `workspace`
 1 failed
END
    CTRT_PLUGIN_PATH=$work/plugins:$work/kernels finds workspace "$ctrt" check --guard --op relu --tags f32 cpu <<'END'
call->workspace is one if the kernel has no slot `workspace`
END
    CTRT_PLUGIN_PATH=$work/plugins:$work/kernels finds hangs "$ctrt" check --guard --op relu --timeout 1 cpu <<'END'
did not end within 1 s
in the kernel of relu
 1 failed
END
    CTRT_WAIT_WARNING=0 finds kernel_slow "$ctrt" check --op add --tags inplace --timeout 1 broken <<'END'
the last call of a kernel: add f32
END

    # ---- accesses outside of operands: ctrt check --guard ----
    unset CTRT_WAIT_WARNING CTRT_FALLBACK
    cp "$builddir/.libs/mutant.so" "$work/plugins/kernels-cpu-mutant.so"
    guard="$ctrt check --guard --op relu --tags forward --skip-tags f64,f16,bf16,i8,u8,i16,i32,i64,bool cpu"
    for row in 'read_after|after the end of input 0 f32' 'read_before|before the beginning of input 0 f32' \
        'write_after|after the end of output 0 f32' 'write_before|before the beginning of output 0 f32'; do
        # shellcheck disable=SC2086
        CTRT_MUTANT=relu@${row%%|*} finds "${row%%|*}" $guard <<END
not ok
${row#*|}
END
    done
    # shellcheck disable=SC2086
    CTRT_MUTANT=relu@write_before finds "a pattern finds writes in the same page" $guard <<'END'
the kernel of relu wrote 4 bytes before the beginning of output 0 f32
END
    # shellcheck disable=SC2086
    CTRT_MUTANT= finds "the cpu" $guard <<'END'
 0 failed
END
fi
CTRT_BROKEN= finds "devices without host memory" "$ctrt" check --guard broken <<'END'
1..0 # SKIP the memory of broken is not memory of the host
END
finish
