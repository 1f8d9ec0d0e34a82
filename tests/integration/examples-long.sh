#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The accuracies of examples.sh with another seed.
seeds=2 only_accuracies=yes
. "$srcdir/tests/integration/examples.sh"
