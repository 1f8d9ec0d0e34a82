#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `ctrt check --contract`: the plugins of this tree and the correct test plugins pass, and each defect of the test
# plugins (tests/plugins/broken_*.c) is found by the check that is meant to find it.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=$(cd "${builddir:-$srcdir}" && pwd) || exit 1
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"
# Without libtool's script, whose start takes longer than most checks.
tool=$builddir/ctrt
libraries=
if [ -x "$builddir/.libs/ctrt" ]; then
    tool=$builddir/.libs/ctrt
    libraries=$builddir/.libs:
fi
LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir -m 755 "$work/plugins" "$work/files"
TMPDIR=$work/files
export TMPDIR
cp "$builddir/.libs/broken_backend.so" "$work/plugins/backend-broken.so" &&
    cp "$builddir/.libs/broken_memory.so" "$work/plugins/memory-broken.so" &&
    cp "$builddir/.libs/broken_comm.so" "$work/plugins/comm-broken.so" &&
    cp "$builddir/.libs/broken_strategy.so" "$work/plugins/strategy-broken.so" &&
    cp "$builddir/.libs/broken_image.so" "$work/plugins/image-bmp.so" || exit 1
# comm-broken calls these.
for file in plugins-built/comm-host.so softcuda-plugins/comm-nccl.so; do
    [ ! -e "$builddir/$file" ] || cp "$builddir/$file" "$work/plugins" || exit 1
done

# The template of a strategy, as outside of this tree.
${CC:-cc} -O1 -fPIC -shared -I"$srcdir/include" "$srcdir/templates/strategy/plugin.c" -L"$builddir/.libs" -lctrt \
    -o "$work/plugins/strategy-template.so" 2>"$work/one"
result $? "the template of a strategy can be compiled" "$(cat "$work/one")"

# keeps: reads lines SETTINGS;ARGUMENTS;PLUGIN. With these variables, the plugin has to pass these checks; a plugin that
# is not built is skipped. Six run at a time.
keeps() {
    n=0
    cat >"$work/plugins.list"
    while IFS=';' read -r settings arguments plugin; do
        # shellcheck disable=SC2086
        [ ! -e "$plugin" ] || env $settings "$tool" check --contract --timeout 60 $arguments "$plugin" \
            >"$work/kept.$n" 2>&1 &
        n=$((n + 1))
        [ $((n % 6)) -ne 0 ] || wait
    done <"$work/plugins.list"
    wait
    n=0
    while IFS=';' read -r settings arguments plugin; do
        what="${plugin##*/} keeps the contract${arguments:+, $arguments}"
        case $settings in *CTRT_*) what="$what, CTRT_${settings##*CTRT_}" ;; esac
        if [ -e "$plugin" ]; then
            grep -q '^# [1-9][0-9]* passed, 0 failed' "$work/kept.$n"
            result $? "$what" "$(grep -v '^ok' "$work/kept.$n")"
        else
            skip "$what" "it is not built"
        fi
        n=$((n + 1))
    done <"$work/plugins.list"
}

# finds KIND [NAME [SETTINGS ARGUMENTS]]: reads lines DEFECT CHECK [MESSAGE]; with the defect, CHECK has to fail, with a
# line that contains MESSAGE. NAME: of the plugin. SETTINGS: variables.
# Runs twelve checks at a time, because most of them wait.
finds() {
    n=0
    cat >"$work/defects"
    while read -r defect name message; do
        limit=9
        [ "$message" != "did not end" ] || limit=1
        # shellcheck disable=SC2086
        env ${3:-} CTRT_BROKEN="$defect" "$tool" check --contract --timeout $limit --op "$name" ${4:-} \
            "$work/plugins/$1-${2:-broken}.so" >"$work/found.$n" 2>&1 &
        n=$((n + 1))
        [ $((n % 12)) -ne 0 ] || wait
    done <"$work/defects"
    wait
    n=0
    while read -r defect name message; do
        grep -q "^not ok [0-9]* - $name\$" "$work/found.$n" && grep -q "$message" "$work/found.$n"
        result $? "$1: $name finds the defect $defect" "$(cat "$work/found.$n")"
        n=$((n + 1))
    done <"$work/defects"
}

built=$builddir/plugins-built
cuda=$builddir/softcuda-plugins/backend-cuda.so
soft="LD_LIBRARY_PATH=$libraries$builddir/tests/softcuda SOFTCUDA=devices=2,memory=64m"
ranks="LD_LIBRARY_PATH=$libraries$builddir/tests/softcuda SOFTCUDA=devices=4,memory=64m CTRT_NCCL_REGISTER=yes"
ranks="$ranks CTRT_PLUGIN_PATH=$builddir/softcuda-plugins"
keeps <<END
;;$work/plugins/backend-broken.so
CTRT_BROKEN=sync;;$work/plugins/backend-broken.so
CTRT_BROKEN=ordered;--op memory.ordered,queue.order;$work/plugins/backend-broken.so
CTRT_BROKEN=plain;--op tables,queue.order,queue.destroy,event.*,kernel.async;$work/plugins/backend-broken.so
;;$work/plugins/memory-broken.so
CTRT_BROKEN=moves;;$work/plugins/memory-broken.so
;;$built/backend-cpu.so
;;$built/backend-sim.so
$soft;;$cuda
$soft CTRT_CUDA_POOL=yes;--op memory.ordered;$cuda
$soft CTRT_CUDA_SHARE=yes;--op memory.share;$cuda
;;$built/memory-arena.so
;;$built/memory-caching.so
;--options expandable=true;$built/memory-caching.so
;--op content,order,full,stats,walk --options max_split=64m,gc=0.5;$built/memory-caching.so
;;$built/memory-direct.so
;;$built/memory-spill.so
;;$built/comm-host.so
$ranks;--device cuda --op tables,message,enqueued,poll_error,capture,derive.*,alloc*;$work/plugins/comm-nccl.so
;;$work/plugins/strategy-broken.so
CTRT_BROKEN=ranks;;$work/plugins/strategy-broken.so
;;$work/plugins/strategy-template.so
;;$built/strategy-single.so
;;$built/strategy-data-parallel.so
;;$built/strategy-pipeline.so
;;$built/strategy-distributed.so
;;$built/strategy-sharded.so
;;$work/plugins/image-bmp.so
;;$built/image-jpeg.so
;;$built/image-png.so
END

# What the command prints and returns. A plugin whose call crashes or does not return fails the check.
"$tool" check --contract --list >"$work/list" && grep -q '^backend *event.wait  *wait_event orders' "$work/list"
result $? "lists the checks" "$(cat "$work/list")"
"$tool" check --contract --op names "$work/plugins/memory-broken.so" >"$work/one" 2>&1
check "exit status 0 if the check passes" "$([ $? -eq 0 ] || cat "$work/one")"
CTRT_BROKEN=alloc_unchecked "$tool" check --contract --op host.memory --junit "$work/one.xml" \
    "$work/plugins/memory-broken.so" >"$work/one" 2>&1
[ $? -eq 1 ] && grep -q 'while call 1 of host->alloc fails: crashed with signal 11' "$work/one"
result $? "a crash is reported with what was called" "$(cat "$work/one")"
if command -v python3 >/dev/null; then
    check "JUnit XML of the contract" "$(python3 "$srcdir/tests/integration/junit.py" "$work/one.xml" failure \
        ctrt.contract.memory.host.memory 'fails: crashed with signal 11' 2>&1)"
fi
"$tool" check --contract quantum >"$work/one" 2>&1
[ $? -eq 2 ] && grep -q 'no plugin has a backend or an engine called quantum' "$work/one"
result $? "an unknown device is an error" "$(cat "$work/one")"

"$tool" check --contract "$builddir/.libs/mutant.so" >"$work/one" 2>&1
[ $? -eq 2 ] && grep -q 'of a kind that has checks; `ctrt check` without --contract checks kernels' "$work/one"
result $? "a kind without checks is an error" "$(cat "$work/one")"

finds backend <<'END'
fork_unchecked fork.after did not end
fork_locked fork.threads alloc in a forked child: did not return
serial queue.concurrent did not end
host_call_now queue.host_call did not end
event_never event.query
name_upper names
capture_incomplete tables
probe_overflow probe
probe_crashes probe
probe_descriptor probe opened descriptors
probe_thread probe started threads
probe_lines probe one line
init_unchecked init crashed
init_status init
init_once init called before
accepts_reads kernel accepts of
name_other names has to be called backend-other.so
undeclared tables does not set CTRT_DEVICE_ASYNCHRONOUS
kernel_misspelt tables of op "adds", which does not exist
kernel_dtypes tables are no dtypes
count_negative describe returned CTRT_OK and -1 devices
count_silent describe no message
total_negative describe total_memory is -1
processors_negative describe processors is -4
open_null open returned CTRT_OK and no handle
open_silent open no message
free_negative memory.info
alloc_null memory.alloc returned CTRT_OK and no address
queue_null queue.create returned CTRT_OK and no queue
event_null event.unrecorded
run_silent kernel no message
any_index describe
describe_overflow describe
usage_overflow usage
close_leak open
free_above_total memory.info
descriptor descriptor
alloc_unchecked host.memory
record_leak host.memory
misaligned memory.alloc
overlap memory.alloc
full_silent memory.full
no_limit memory.full
leak memory.free
free_uncounted memory.free
copy_short memory.copy
copy_wide memory.copy
copy_late memory.copy
sync_returns memory.copy
sync_returns kernel
pinned_misaligned memory.pinned
unregister_unmaps memory.register
fill_zero memory.fill
fill_wide memory.fill
unmap_more memory.pages
peer_nothing memory.peer
import_copies memory.share
import_closes memory.share
kernel_wide kernel
kernel_clears kernel
kernel_twice kernel
close_early close work of the device has not ended
kernel_input kernel
kernel_static kernel.overlap
unlocked threads
count_opens fork.before
queue_leak queue.create
reorder queue.order
synchronize_returns queue.synchronize
synchronize_null queue.synchronize
query_idle queue.query
destroy_drops queue.destroy
host_call_thread queue.host_call
call_by_pointer kernel.async
scalar_by_pointer kernel.async
scalar_by_pointer capture.kernel
unrecorded_waits event.unrecorded
event_done event.query
event_returns event.synchronize
wait_nothing event.wait
wait_latest event.again
plain_latest event.again
elapsed_seconds event.elapsed
event_leak event.many
ordered_early memory.ordered
ordered_leak memory.ordered
fail_goes_on queue.failure
fail_silent queue.failure
fail_all queue.failure
fail_sequence queue.failure
fail_nameless queue.failure
reset_nothing queue.failure
capture_runs capture
capture_once capture
capture_origin capture
capture_unbegun capture
call_by_pointer capture.kernel
END
finds memory <<'END'
fork_locked fork did not end
name_long names
moves_incomplete names
options_any options
options_leak options
options_silent options
options_vague options
destroy_leak create
own_leak create
misaligned sizes
small sizes
alloc_silent sizes no message
round_overflow sizes
header content
overlap content
fence_lost order
fence_leak order
other_queue order
early_free order
eager order
wrong_size order
trim_nothing trim
trim_used trim
source_leak trim
failure_changed failure
failure_silent failure
failure_leak failure
alloc_unchecked host.memory
stats_overflow stats
reserved_used stats
cached_all stats
count_frees stats
peak_zero peaks
peak_stays peaks
walk_used walk
walk_gap walk
walk_active walk
clone_shares clone
clone_source clone
spare_trims spare
unlocked threads
moves_in_use moves
moves_loses moves
END
[ ! -e "$work/plugins/comm-host.so" ] || finds comm <<'END'
poll_never timeout did not end
poll_never abort did not end
poll_never alloc.missing did not end
create_hangs create.missing did not end
destroy_waits leave did not end
exit_waits fork
lock concurrent did not end
no_single sizes did not end
free_waits alloc did not end
alloc_alone alloc.full
name_upper names
run_missing tables
free_missing tables
flags_unknown tables
rank_dropped all_reduce
width all_reduce
average_sum all_reduce
overrun all_reduce
writes_input all_reduce
large_only reduce
min_max reduce_scatter
shift reduce_scatter
zero_refused broadcast
root_zero broadcast
broadcast_short broadcast
gather_reversed gather
gather_reversed all_gather
tail all_gather
scatter_first scatter
own_part all_to_all
barrier_nothing barrier
message_small message
returns_early order
group_name groups
rank_order groups
thread_static threads
reaches_null reaches_device
alloc_dirty alloc
alloc_same alloc
alloc_status alloc.full
mismatch_unreported mismatch
mismatch_own mismatch
mismatch_writes mismatch
dtype_unchecked mismatch
message_unchecked mismatch.message
poll_seldom timeout
poll_state timeout
poll_status dead
poll_message stopped
create_leaks create.missing
create_silent create.missing
poll_first complete
destroy_leak balance
own_leak balance
alloc_unchecked host.memory
END
if [ -e "$work/plugins/comm-nccl.so" ] && [ -e "$builddir/tests/softcuda/libnccl.so.2" ]; then
    finds comm broken "$ranks CTRT_BROKEN_ENGINE=nccl" '--device cuda' <<'END'
enqueued_waits enqueued did not end
abort_missing tables
other_stream enqueued
enqueued_once capture
error_always poll_error
error_waits poll_error a call took
derive_none derive.split
derive_order derive.split
derive_ends derive.split
derive_shrunk derive.shrink
abort_nothing timeout of abort
alloc_same alloc
END
else
    skip "defects of engines whose ranks have devices" "softcuda was not built"
fi
finds strategy <<'END'
name_long names
flags_unknown tables
step_missing tables
weights_none train
loss_first train
last_part train
parameter_skipped train
step_undone train
weights_equal train.uneven
rest_dropped train.uneven
few_fails train.few
sum_as_mean loss.sum
divisor_lost loss.weights
divisor_lost loss.ignore
part_only loss.masked
weights_none loss.parameter
unused_zero parameters
frozen_zero parameters
tied_twice parameters
before_lost accumulate
no_sync_lost accumulate.no_sync
forward_first forward
forward_scaled forward
forward_detached forward
forward_trains forward.evaluate
failure_adds failure
failure_loses failure
failure_ok failure
failure_message failure
fails_forever failure
save_changes checkpoint
save_fails checkpoint
load_ignored checkpoint
load_hangs checkpoint did not end
inputs_first inputs
forward_one inputs ctrt_forward_n
inputs_null inputs
inputs_lost inputs
ranks_hook_twice hook
ranks_hook_unused hook
ranks_hook_last hook
ranks_hook_stage hook
ranks_hook_status hook
ranks_hook_stays hook
ranks_dead dead
canonical_ignored canonical
canonical_status canonical
describe_lines describe
steps_wrong describe
destroy_changes destroy
create_leaks destroy
create_descriptor destroy
estimate_first estimate
estimate_rows estimate
estimate_changes estimate
ranks_apart train
ranks_skip train
ranks_loss train
ranks_equal train.uneven
ranks_few train.few
ranks_silent failure did not end
END
finds image bmp <<'END'
process fork did not end
name_other names
decode_missing decode
swapped decode
padding decode
upside_down decode
bgr decode
last_column decode
bits decode
over_read decode
over_write decode
writes_file decode
beyond_info older
header_unchecked truncated
pixels_unchecked truncated
truncated_grey truncated
silent truncated
status truncated
empty_message truncated
header_unchecked malformed
size_unchecked damaged
static_row threads
leak balance
failure_leak balance
library_leak balance
alloc_unchecked host.memory
alloc_status host.memory
END

# A file of the decoder's author, of 2 x 2 pixels.
printf 'BM\106\0\0\0\0\0\0\0\066\0\0\0\050\0\0\0\2\0\0\0\2\0\0\0\1\0\030\0\0\0\0\0\020\0\0\0' >"$work/sample.bmp"
printf '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\377\0\0\377\377\377\0\0\0\0\377\0\377\0\0\0' >>"$work/sample.bmp"
for row in '|ok 1 - file' 'pixels_unchecked|decode of the truncated file of --options' \
    'decode_missing|required slots are describe and decode'; do
    defect=${row%%|*}
    CTRT_BROKEN=$defect "$tool" check --contract --op file --options "$work/sample.bmp" \
        "$work/plugins/image-bmp.so" >"$work/one" 2>&1
    check "a decoder with a file${defect:+, and the defect $defect}" \
        "$(grep -q -- "${row#*|}" "$work/one" || cat "$work/one")"
done
check "no check leaves files" "$(ls -A "$TMPDIR")"
finish
