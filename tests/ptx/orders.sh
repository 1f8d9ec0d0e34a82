#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# On the interpreter of PTX, with another order of blocks, warps and lanes, or with the option $order: the kernels
# that communicate through shared memory, shuffles and atomics, in the sizes of the comparisons with the cpu.
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/ptx/ptx_lib.sh"
with=${order:-reverse,races}
PTX=$with
export PTX
passes "rows, compared with the cpu" "$builddir/run-public" test-cuda-rows cuda:0
for op in attention matmul conv2d; do
    for tag in f32 f16; do
        conforms cuda:0 --op $op --tags $tag
    done
done
[ -n "${order:-}" ] || finish
with=ulp=2
PTX=$with
conforms cuda:0 --tags f32 --skip-tags gradient2
finish
