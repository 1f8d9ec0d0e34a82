#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The suite on the interpreter of PTX detects errors that the software driver cannot see or that a GPU shows only now
# and then: the PTX in the plugin is changed, and checks that pass with the unchanged plugin must fail.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/ptx/ptx_lib.sh"
CTRT_LOG=error PTX=
export CTRT_LOG PTX

# detects WHAT EXPRESSION COMMAND...: the command passes, and fails after the expression of sed has changed the plugin.
# The expression must not change lengths.
passed=
detects() {
    what=$1 expression=$2
    shift 2
    if [ "$passed" != "$PTX $*" ]; then     # the command before, with the same options
        cp "$PTX_PLUGIN" "$work/plugins/backend-cuda.so"
        output=$("$@" 2>&1) || { not_ok "$what: the unchanged plugin" "$(echo "$output" | tail -n 10)"; return; }
        passed="$PTX $*"
    fi
    sed "$expression" "$PTX_PLUGIN" >"$work/changed"
    if [ "$(wc -c <"$work/changed")" -ne "$(wc -c <"$PTX_PLUGIN")" ] || cmp -s "$work/changed" "$PTX_PLUGIN"; then
        not_ok "$what: the change of the plugin" "$expression"
        return
    fi
    cp "$work/changed" "$work/plugins/backend-cuda.so"
    if output=$("$@" 2>&1); then not_ok "$what is not detected"; else
        ok "$what is detected: $(echo "$output" | grep -m 1 -E '^ptx: |^#.*(got|wrong)|^not ok' | cut -c 1-150)"
    fi
}

detects "a missing wait of cp.async" 's/cp\.async\.wait_all;/                 ;/' suite cuda:0 --op attention --tags f16
for op in softmax matmul attention; do
    detects "a missing barrier in $op" 's/bar\.sync 0;/          ;/' suite cuda:0 --op $op --tags f32
done
PTX=races
# In a kernel one barrier after another is removed. All of them are needed.
for kernel in attention_f16_64 matmul_f32_small; do
    barriers=$(sed -n "/\.entry $kernel(/,/^}/p" "$PTX_PLUGIN" | grep -ac 'bar\.sync 0;')
    [ "$barriers" -gt 0 ] || not_ok "$kernel has barriers"
    for n in $(seq "$barriers"); do
        dtype=${kernel#*_}
        detects "without barrier $n of $barriers in $kernel, a race" \
            "/\.entry $kernel(/,/^}/{/bar\.sync 0;/{x;s/^/+/;/^+\{$n\}\$/{x;s/bar\.sync 0;/          ;/;x};x}}" \
            suite cuda:0 --op "${kernel%%_*}" --tags "${dtype%%_*}"
    done
done
PTX=
detects "a shuffle whose mask lacks a lane" 's/\(mov\.u32 %r[0-9]*\), -1;/\1, -2;/' suite cuda:0 --op sum --tags f32
detects "an address behind an allocation" 's/mul\.wide\.s32 \(.*\), 4;/mul.wide.s32 \1, 8;/' \
    env CTRT_MEMORY=direct "$builddir/ctrt" check --device cuda:0 --op add --tags f32
stays_in_shared() { ! suite "$@" | grep '^ptx: .* shared address '; }
detects "an address before shared memory" 's/\(ld\.shared\.f32 .*\)+4\];/\1-4];/' \
    stays_in_shared cuda:0 --op softmax --tags f32
finish
