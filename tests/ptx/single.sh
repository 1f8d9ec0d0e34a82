#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# orders.sh with every lane alone between two instructions that synchronise lanes; then all ops in f32 with errors of
# approximate instructions.
order=single
. "$srcdir/tests/ptx/orders.sh"
