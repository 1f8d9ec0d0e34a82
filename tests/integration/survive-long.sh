#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# survive.sh with 100 runs in which a rank is killed.
SURVIVE_KILLS=25 exec sh "$srcdir/tests/integration/survive.sh"
