#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sim.sh on the last of four simulated devices.
devices=sim:3
. "$srcdir/tests/integration/sim.sh"
