#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# survive.sh with more runs in which a rank is killed: 32, or four times $SURVIVE_KILLS, at points that $SURVIVE_SEED
# determines.
SURVIVE_KILLS=${SURVIVE_KILLS:-8} exec sh "$srcdir/tests/integration/survive.sh"
