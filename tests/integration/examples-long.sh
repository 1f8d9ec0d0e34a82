#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# examples.sh with more seeds.
seeds="2 3"
. "$srcdir/tests/integration/examples.sh"
