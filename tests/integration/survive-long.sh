#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# More runs of survive.sh in which a rank is killed: 32, or four times $SURVIVE_KILLS, at points that $SURVIVE_SEED
# determines.
SURVIVE_ONLY=kills SURVIVE_KILLS=${SURVIVE_KILLS:-8} SURVIVE_SEED=${SURVIVE_SEED:-815} \
    exec sh "$srcdir/tests/integration/survive.sh"
