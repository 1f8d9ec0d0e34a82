#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The examples. digits.c reaches its accuracies; examples-long.sh repeats only that, with more seeds. ensemble.c gives
# the same result on one and on four devices. gpt.c learns, and hogwild.c learns in four processes. multi.c trains the
# same network under every strategy. resnet.c trains on images from disk with worker processes. All report errors. The
# programs are built from examples/*.c by this tree's Makefile; tests/installed.sh builds them with pkg-config.
# A strategy of `ctrt new-plugin` is also built and compared here.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-.}
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
data=$srcdir/examples/data/digits.csv

# accuracy SEED: prints the two accuracies in hundredths of a percent, or nothing if digits fails.
accuracy() {
    "$builddir/example-digits" --data "$data" --seed "$1" >"digits.$1" 2>&1 </dev/null || return 1
    sed -n 's/.* gets \([0-9]*\)\.\([0-9]*\) % of .*/\1\2/p' "digits.$1" | tr '\n' ' '
}

# With sanitizers, which are slow, the short runs below are enough, and each strategy has one run of threads and one of
# processes, because the plain tree compares the bits of all.
seeds=${seeds-1}
epochs=2                                # of runs whose parameters are compared to the bit
losses=4                                # epochs of runs whose losses are compared
threads="4 single,1 data-parallel,2 data-parallel,3 data-parallel,4 data-parallel,1 pipeline,4 pipeline"
processes="1,2,3,4,3 sim,1 cpu sharded 3,2 cpu sharded 1,3 cpu sharded 2,4 cpu sharded 3,3 sim sharded 3"
steps="29 4 1,28 4 2,1 116 1"           # means; number; numbers of different parameters
if [ -n "${SANITIZE-}" ]; then
    seeds='' epochs=1 losses=1
    threads="4 data-parallel,4 pipeline"
    processes="3,3 sim sharded 3"
    steps="28 4 2"
fi
for seed in $seeds; do
    found=$(accuracy "$seed") || found=
    set -- $found
    name="digits, seed $seed: MLP at least 96.5 %, CNN at least 98 %"
    [ $# -eq 2 ] && [ "$1" -ge 9650 ] && [ "$2" -ge 9800 ]
    result $? "$name" "$(cat "digits.$seed")"
    check "digits, seed $seed: both checkpoints give the same results to the bit" "$(
        [ "$(grep -c 'read into a new network, gives the same results to the bit' "digits.$seed")" -eq 2 ] ||
            cat "digits.$seed")"
done
[ -z "${only_accuracies-}" ] || finish
check "the same seed gives the same network" "$(
    "$builddir/example-digits" --data "$data" --model cnn --epochs 1 --seed 5 >/dev/null 2>&1
    mv digits-cnn.safetensors one
    "$builddir/example-digits" --data "$data" --model cnn --epochs 1 --seed 5 >/dev/null 2>&1
    cmp one digits-cnn.safetensors 2>&1)"

# fails WORDS ARGUMENT...: digits must fail with an error that contains WORDS.
fails() {
    words=$1
    shift
    ! output=$("$builddir/example-digits" "$@" 2>&1 </dev/null) && echo "$output" | grep -qF -- "$words"
    result $? "digits $* fails with: $words" "$output"
}
fails usage --model rnn
fails usage --epochs -1
fails "cannot open nowhere" --data nowhere
fails "expected 64 pixels" --data /dev/null
fails "no such device" --device nosuch:0

# ensemble.c: the same accuracies on any number of devices, and more together than alone.
ensemble() { "$builddir/example-ensemble" --data "$data" "$@" 2>&1 </dev/null; }
if [ -n "${SANITIZE-}" ]; then
    check "the ensemble runs on two simulated devices" "$(
        CTRT_SIM=devices=2 ensemble --models 2 --device sim >ensemble.sim
        [ "$(grep -c 'on sim:[01] gets' ensemble.sim)" -eq 2 ] || cat ensemble.sim)"
elif ensemble --models 4 --device cpu >ensemble.cpu; then
    ok "ensemble runs"
    check "the ensemble gets at least 95 %, and more than its models on average" "$(
        sed -n 's/^the ensemble of 4 gets \([0-9.]*\) % .* average, \([0-9.]*\) %$/\1 \2/p' ensemble.cpu |
            awk '$1 >= 95 && $1 > $2 { fine = 1 } END { if (!fine) print "it gets " $0 }')"
    CTRT_SIM=devices=4 ensemble --device sim >ensemble.sim
    check "the ensemble gets the same on four simulated devices" "$(
        [ "$(grep -c 'on sim:[0-3] gets' ensemble.sim)" -eq 4 ] || cat ensemble.sim
        sed 's/ on [^ ]* gets / gets /' ensemble.cpu >ensemble.want
        sed 's/ on [^ ]* gets / gets /' ensemble.sim | diff ensemble.want -)"
else
    not_ok "ensemble runs" "$(cat ensemble.cpu)"
fi
check "ensemble fails if a device is missing" "$(ensemble --device nosuch | grep -q 'nosuch' || echo 'no error')"

# hogwild.c: four processes train one network.
"$builddir/example-hogwild" --data "$data" --epochs 2 >hogwild 2>&1 </dev/null
check "hogwild: the loss of the shared network falls below half" "$(
    awk '/^before/ { a = $3 + 0 } /^after/ { b = $8 + 0 } END { exit !(b > 0 && 2 * b < a) }' hogwild || cat hogwild)"

# multi.c: one program, whose strategy the environment chooses. multi DEVICES STRATEGY ARGUMENT...
multi() {
    number=$1
    strategy=$2
    shift 2
    CTRT_DEVICE=sim CTRT_SIM=devices=$number CTRT_STRATEGY=$strategy \
        "$builddir/example-multi" --data "$data" "$@" 2>&1 </dev/null
}
# same_losses FILE: its losses are those of multi.single.
same_losses() {
    paste -d ' ' multi.single "$1" | awk -v epochs=$losses '$1 == "epoch" {
        d = $4 - $10; n++; if (d > 1e-3 || d < -1e-3) print "losses " $4 " and " $10 }
        END { if (n != epochs) print n " epochs" }'
}
multi 1 single --epochs $losses >multi.single
check "multi learns, and data-parallel prints the same losses" "$(
    awk -v least="$([ $losses = 1 ] && echo 0.1 || echo 0.85)" '$1 == "epoch" { last = $NF }
        END { if (!(last > least)) print "the last accuracy is " last }' multi.single
    multi 4 data-parallel --epochs $losses >multi.parallel
    same_losses multi.parallel)"
(export CTRT_CANONICAL=1; multi 1 single --epochs $epochs) >multi.want
echo "$threads" | tr ',' '\n' >table
while read -r setting; do
    check "multi gives the same parameters to the bit in canonical mode: $setting" "$(
        export CTRT_CANONICAL=1
        multi $setting --epochs $epochs >multi.got
        [ "$(grep -c '^parameters sha256 [0-9a-f]\{64\}$' multi.got)" -eq 1 ] || cat multi.got
        sed 1d multi.got >multi.rest
        sed 1d multi.want | diff - multi.rest)"
done <table
# ranks NUMBER [TYPE [STRATEGY [STAGE]]]: the strategy distributed, in processes on the cpu, or each on a device of the
# type; or another strategy.
ranks() {
    CTRT_DEVICE=${2:-cpu} CTRT_SIM=devices=4 CTRT_STRATEGY=${3:-distributed} CTRT_SHARDED_STAGE=${4:-3} \
        timeout 60 "$builddir/ctrt" run -n "$1" --no-prefix \
        "$builddir/example-multi" --data "$data" --epochs $epochs 2>&1 </dev/null
}
(export CTRT_CANONICAL=1 CTRT_DEVICE=cpu; "$builddir/example-multi" --data "$data" --epochs $epochs) >multi.want 2>&1
echo "$processes" | tr ',' '\n' >table
while read -r number; do
    check "multi gives the same parameters to the bit in canonical mode: processes of distributed, or: $number" "$(
        (export CTRT_CANONICAL=1; ranks $number) | sort >multi.got
        [ "$(grep -c "^$(tail -n 1 multi.want)\$" multi.got)" -eq "${number%% *}" ] || cat multi.want multi.got
        sed 1d multi.want | sort -u >multi.sorted
        sed '/^distributed on /d; /^sharded stage /d' multi.got | sort -u | diff multi.sorted -)"
done <table
check "multi, distributed: one process runs all epochs" "$(
    ranks 1 >multi.got
    grep -q '^parameters sha256' multi.got || cat multi.got)"
check "multi, distributed: 3 processes audit their parameters, and have the same" "$(
    (export CTRT_AUDIT=7; ranks 3) >multi.got
    [ "$(grep '^parameters sha256' multi.got | uniq -c | awk '{ print $1 }')" = 3 ] || cat multi.got)"
check "multi prints the same losses under pipeline" "$(
    multi 4 pipeline --epochs $losses >multi.pipeline
    same_losses multi.pipeline)"
check "multi, auto: prints what it has chosen and why, and the same losses" "$(
    multi 4 auto --epochs $losses >multi.auto
    grep -q '^auto: single on sim:0; 4 devices, model .* of .* available, not decided' multi.auto || cat multi.auto
    same_losses multi.auto)"
check "multi, auto: two processes of a launcher choose distributed, and have the same parameters" "$(
    CTRT_DEVICE=cpu CTRT_STRATEGY=auto timeout 60 "$builddir/ctrt" run -n 2 --no-prefix \
        "$builddir/example-multi" --data "$data" --epochs $epochs >multi.auto 2>&1 </dev/null
    grep -q '^auto: distributed on cpu, rank 0 of 2 .*; 2 ranks, model ' multi.auto || cat multi.auto
    [ "$(grep '^parameters sha256' multi.auto | uniq -c | awk '{ print $1 }')" = 2 ] || cat multi.auto)"
check "multi fails for an unknown strategy" "$(multi 1 nosuch | grep -q 'no strategy called nosuch' || echo 'no error')"

# The strategy of `ctrt new-plugin`, with the name averaging, built with pkg-config alone. 2 epochs have 58 steps.
# averaging STEPS: runs multi on two ranks with a mean every STEPS steps.
averaging() {
    CTRT_PLUGIN_PATH=$PWD/template${CTRT_PLUGIN_PATH:+:$CTRT_PLUGIN_PATH} CTRT_STRATEGY=averaging AVERAGING_STEPS=$1 \
        CTRT_DEVICE=cpu CTRT_LOG=info timeout 60 "$builddir/ctrt" run -n 2 --no-prefix \
        "$builddir/example-multi" --data "$data" --epochs 2 2>&1 </dev/null
}
# means STEPS NUMBER HASHES: requires that many means on both ranks together, and different parameters.
means() {
    averaging "$1" >averaging.out
    [ "$(grep -c 'averaging: mean of 6 parameters' averaging.out)" -eq "$2" ] &&
        [ "$(grep '^parameters sha256' averaging.out | sort -u | wc -l)" -eq "$3" ] &&
        awk '$1 == "epoch" && $2 == 2 && $NF > 0.6 { fine = 1 } END { exit !fine }' averaging.out ||
        cat averaging.out
}
if command -v "${PKG_CONFIG:-pkg-config}" >/dev/null; then
    PKG_CONFIG_PATH=$(cd "$builddir" && pwd)/pkgconfig
    export PKG_CONFIG_PATH
    passes "a new strategy is made" "$builddir/ctrt" new-plugin averaging --kind strategy --folder template \
        --templates "$srcdir/templates"
    passes "it builds with pkg-config alone" env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL \
        ${MAKE:-make} -C template strategy-averaging.so CC="${CC:-cc}" CFLAGS="-O2 -Wall -Wextra -Werror"
    # With a mean at the last step, two ranks have the same parameters; two steps after a mean, they differ.
    echo "$steps" | tr ',' '\n' >table
    while read -r row; do
        check "averaging: a mean every ${row%% *} steps" "$(means $row)"
    done <table
    for permitted in 0 1; do
        check "auto compares averaging with the others: AVERAGING_AUTO=$permitted" "$(
            CTRT_PLUGIN_PATH=$PWD/template${CTRT_PLUGIN_PATH:+:$CTRT_PLUGIN_PATH} CTRT_STRATEGY=auto \
                AVERAGING_AUTO=$permitted CTRT_DEVICE=cpu timeout 60 "$builddir/ctrt" run -n 2 --no-prefix \
                "$builddir/example-multi" --data "$data" --epochs 1 >averaging.auto 2>&1 </dev/null
            [ $permitted = 1 ] && expected=averaging || expected=distributed
            [ "$(grep -c "^auto: $expected on cpu, rank [01] of 2" averaging.auto)" -ge 1 ] || cat averaging.auto)"
    done
    check "averaging refuses AVERAGING_STEPS=0" \
        "$(averaging 0 | grep -q 'expected a positive number' || echo 'no error')"
else
    skip "a new strategy" "no pkg-config"
fi

# gpt.c on a repetitive text: the loss falls below 1, and the sample contains a word of the text.
i=0
while [ $i -lt 200 ]; do
    echo "a line of text, then another"
    i=$((i + 1))
done >text
gpt_run="40 100"                        # steps and letters
[ -z "${SANITIZE-}" ] || gpt_run="2 10"
if "$builddir/example-gpt" text $gpt_run >gpt.out 2>&1; then
    ok "gpt runs"
    [ -n "${SANITIZE-}" ] || check "gpt learns" "$(awk '
        /^step .* loss / { for (i = 1; i < NF; i++) if ($i == "loss") last = $(i + 1) }
        END { if (!(last > 0 && last < 1)) print "the last loss is " last ", expected below 1" }' gpt.out)"
    [ -n "${SANITIZE-}" ] || check "gpt writes" "$(grep -q 'text' gpt.out || tail -n 3 gpt.out)"
else
    not_ok "gpt runs" "$(cat gpt.out)"
fi
check "gpt fails if its file is missing" "$("$builddir/example-gpt" nowhere 1 2>/dev/null && echo "it succeeded")"

# resnet.c: the losses do not depend on the number of workers, the network learns, and the sim device computes the same.
# With one thread, because the sums of oneDNN's bf16 convolutions depend on the number of threads, which is 1 on sim.
resnet() { CTRT_NUM_THREADS=1 CTRT_PROGRESS=lines "$builddir/example-resnet" --data shapes "$@" 2>&1 </dev/null; }
passes "resnet writes its images" "$builddir/example-resnet" --make-data shapes
resnet_epochs=2 others="0 cpu,2 sim"
[ -z "${SANITIZE-}" ] || { resnet_epochs=1 others="2 sim"; }
if resnet --device cpu --epochs $resnet_epochs >resnet.cpu; then
    ok "resnet runs with two workers under autocast"
    [ -n "${SANITIZE-}" ] || check "resnet gets at least 90 %" "$(awk '/ other images right/ { if ($1 >= 90) fine = 1 }
        END { if (!fine) print "it gets less" }' resnet.cpu; grep -q '^train 100% 60/60 ' resnet.cpu || cat resnet.cpu)"
    losses() { sed -n 's/.*, loss \([0-9.]*\)$/\1/p; s/ %.*right//p' "$1" | tail -n 2; }
    echo "$others" | tr ',' '\n' >table
    while read -r workers device; do
        resnet --device $device --workers $workers --epochs $resnet_epochs >resnet.other
        check "resnet with $workers workers on $device gives the same" "$(
            [ "$(losses resnet.other)" = "$(losses resnet.cpu)" ] || cat resnet.cpu resnet.other)"
    done <table
    printf 'P6 9 9 255\nxyz' >shapes/train/cross/000.ppm
    resnet --device cpu --epochs 1 >resnet.bad
    check "resnet reports a truncated image" \
        "$(grep -q 'shapes/train/cross/000.ppm: truncated' resnet.bad || cat resnet.bad)"
else
    not_ok "resnet runs" "$(cat resnet.cpu)"
fi
finish
