# SPDX-License-Identifier: Apache-2.0
# Prints TAP, for tests written in sh. Sourced as `. "$srcdir/tests/lib.sh"`; a test calls ok, not_ok or skip for each
# check, and finish at its end.

tap_count=0
tap_failed=0
LC_ALL=C
export LC_ALL

ok() {
    tap_count=$((tap_count + 1))
    echo "ok $tap_count - $1"
}

# not_ok DESCRIPTION [DETAILS]: DETAILS may have many lines.
not_ok() {
    tap_count=$((tap_count + 1))
    tap_failed=$((tap_failed + 1))
    echo "not ok $tap_count - $1"
    [ -z "${2:-}" ] || printf '%s\n' "$2" | sed 's/^/#   /'
}

# skip DESCRIPTION REASON
skip() {
    tap_count=$((tap_count + 1))
    echo "ok $tap_count - $1 # SKIP $2"
}

# check DESCRIPTION DETAILS: passes if DETAILS is empty.
check() {
    if [ -z "$2" ]; then ok "$1"; else not_ok "$1" "$2"; fi
}

finish() {
    echo "1..$tap_count"
    [ "$tap_failed" -eq 0 ]
    exit
}
