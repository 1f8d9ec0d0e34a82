#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# 1,000 random schedules of collectives; `make check` runs 50.
exec "$builddir/run-public" test-comm-random 1000
