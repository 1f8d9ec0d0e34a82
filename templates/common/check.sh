#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check.sh FOLDER: tests the plugin and the program `try` that were built in FOLDER. `make check`, `ctest` and
# `meson test` run it. The steps are in steps.sh. Variables: CTRT, the command ctrt, if it is not that of pkg-config;
# OPS and CHECKS, patterns of the ops and of the checks of the contract that are checked (all).
set -eu
source=$(cd "$(dirname "$0")" && pwd)
cd "$1"
: "${CTRT:=$(${PKG_CONFIG:-pkg-config} --variable=prefix ctrt)/bin/ctrt}"
CTRT_PLUGIN_PATH=$PWD${CTRT_PLUGIN_PATH:+:$CTRT_PLUGIN_PATH}
export CTRT_PLUGIN_PATH
# check ARGUMENT...: `ctrt check`, of which only the first failures and the last line are printed; check.log has all.
check() {
    echo "ctrt check $*"
    status=0
    "$CTRT" check "$@" >check.log 2>&1 || status=$?
    # A mistake may fail hundreds of checks.
    if [ "$status" -ne 0 ]; then
        grep -v '^ok ' check.log | awk 'NR <= 40; { last = $0 } END { if (NR > 40) print last }'
    else
        tail -n 1 check.log
    fi
    return "$status"
}
# equal_ranks COMMAND...: runs the program on two ranks, which have to print the same parameters.
equal_ranks() {
    "$CTRT" run -n 2 --no-prefix "$@" >ranks.log 2>&1 || { cat ranks.log; return 1; }
    cat ranks.log
    [ "$(grep '^parameters' ranks.log | sort | uniq -c | awk '{ print $1 }')" = 2 ] ||
        { echo "the ranks have different parameters"; return 1; }
}
. "$source/steps.sh"
