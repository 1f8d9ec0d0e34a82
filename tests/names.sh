#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that the library (core, nn, share, parallel, data) does not name plugins. A string that is the name of a
# backend, memory policy, communication engine or strategy of this tree makes the library depend on that plugin, so
# that no other plugin can replace it. The library should ask for a property of the plugin or the device instead.
# Comments and names inside of longer strings, such as messages, are not checked.
srcdir=${srcdir:-$(cd "$(dirname "$0")/.." && pwd)}
. "$srcdir/tests/lib.sh"
cd "$srcdir" || exit 1

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# FILE NAME REASON
cat >"$work/allowed" <<'END'
core/device/parse.c cuda       suggested for the words gpu and nvidia, if the type is known
core/memory/policy.h caching   POOL_POLICY, the policy of captured graphs
core/memory/policy.h direct    PLAIN_POLICY, for backends that name no policy
core/ops/copy.c cpu            the function ctrt_cpu in a message
core/registry/registry.h cpu   CPU_TYPE, the type of the host's processors
core/tensor/dlpack.c cuda      DLPack's device types
parallel/comm/comm.c host           LOCAL_ENGINE, the usual engine
parallel/comm/comm.c mpi            MPI_ENGINE, the usual engine in jobs of an MPI launcher
parallel/comm/report.c host    a key of a report: the machine
parallel/strategy/strategy.c single     the default of CTRT_STRATEGY
END

# plugin_names: prints the names of the components of the tree, one per line.
plugin_names() {
    find backends plugins -name '*.c' -exec ${AWK:-awk} '
        /CTRT_COMPONENT_(BACKEND|MEMORY|COMM|STRATEGY)/ { kind = FNR }
        kind && FNR <= kind + 2 && match($0, /\.name = "[a-z0-9-]+"/) {
            print substr($0, RSTART + 9, RLENGTH - 10)
            kind = 0
        }' {} + | sort -u
}

# named DIRECTORY...: prints "FILE NAME LINE" for every string in the code that is a name in $work/names.
named() {
    find "$@" -type f \( -name '*.c' -o -name '*.h' -o -name '*.def' \) -exec ${AWK:-awk} -v list="$work/names" '
        BEGIN { while ((getline name < list) > 0) known[name] = 1 }
        FNR == 1 { comment = 0 }
        {
            line = $0
            code = ""
            while (line != "") {
                if (comment) {
                    if (!(at = index(line, "*/"))) break
                    line = substr(line, at + 2)
                    comment = 0
                } else if ((at = index(line, "/*"))) {
                    code = code substr(line, 1, at - 1)
                    line = substr(line, at + 2)
                    comment = 1
                } else {
                    code = code line
                    break
                }
            }
            while (match(code, /"[a-z0-9-]+"/)) {
                name = substr(code, RSTART + 1, RLENGTH - 2)
                if (name in known) print FILENAME, name, FNR
                code = substr(code, RSTART + RLENGTH)
            }
        }' {} +
}

plugin_names >"$work/names"
check "plugins are found in the tree" "$(for name in cpu sim caching direct host mpi single sharded; do
    grep -qx "$name" "$work/names" || echo "$name is missing"
done)"
named core nn share parallel data | sort >"$work/found"
check "the library names no plugin" "$(${AWK:-awk} -v list="$work/allowed" '
    BEGIN { while ((getline line < list) > 0) { split(line, word, " "); allowed[word[1] " " word[2]] = 1 } }
    !(($1 " " $2) in allowed) { print $1 ":" $3 ": \"" $2 "\"" }' "$work/found")"
check "every exception is needed" "$(while read -r file name reason; do
    grep -q "^$file $name " "$work/found" || echo "$file does not name $name any more"
done <"$work/allowed")"

# The check must be able to fail, and must not take comments and messages for names.
mkdir "$work/core" && cd "$work" || exit 1
cat >core/code.c <<'END'
/* "cpu" */ if (strcmp(type, "cpu") == 0)
    fail("use cpu");                    /* or
 * "sim" */
    f("other", "sharded");
END
check "names in code are detected" "$(named core >got
    printf 'core/code.c cpu 1\ncore/code.c sharded 4\n' | diff - got)"
finish
