#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The accuracies of examples.sh with more seeds.
seeds="2 3" only_accuracies=yes
. "$srcdir/tests/integration/examples.sh"
