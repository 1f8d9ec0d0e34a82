#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the order of the layers from the #include lines of every source file and from the symbols of the library's
# objects, and the width of the files' lines.
#
#   include < core < nn < share < parallel < data < tools, and inside core the order of the variable `order`. A file may
#   include headers of its own layer and of layers below it, so the folders have no cycle. It may use only symbols of
#   these layers, except those that core/upcalls.h declares, each of which has to be used. The same holds for the files
#   of a folder with a header that lists them after "Files call only functions of files above them in this list:".
#   Public headers include only public headers. Plugins and the plugin template include ctrt/plugin.h,
#   ctrt/image_plugin.h, ctrt/probe_plugin.h, the headers that these include, their own folder and plugins/common;
#   plugins that link libctrt (the kinds comm and strategy, backends/multi) any public header. Tools and examples
#   include public headers and their own folder, and two headers of core/base that include only those of C.
#   Includes from outside the tree (<stdio.h>, "config.h") are not checked, except in public headers, which may use
#   three C headers (probe_plugin.h: any).
#
#   Lines of sources, scripts and tests have at most 120 columns, except in generated files (*.inc).
srcdir=${srcdir:-$(cd "$(dirname "$0")/.." && pwd)}
builddir=$(cd "${builddir:-.}" && pwd)
. "$srcdir/tests/lib.sh"
cd "$srcdir" || exit 1

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

order="core/upcalls.h core/base core/registry core/device core/stream core/memory core/memory_stats core/graph \
    core/tensor core/ops core/lifecycle core/dryrun core/autograd nn share parallel data tools"
parts="core nn share parallel data"             # the folders of the library

# violations DIRECTORY...: prints one line for every include that violates a rule.
violations() {
    find "$@" -type f \( -name '*.c' -o -name '*.h' -o -name '*.def' -o -name '*.inc' -o -name '*.cu' \
        -o -name '*.cuh' -o -name '*.cpp' \) ! -path '*/softcuda/*' 2>/dev/null | sort >"$work/files"
    ${AWK:-awk} -v list="$work/files" -v order="$order" '
    # A folder of core that the order does not contain is an error.
    function unknown(path) {
        if (!(path in reported)) print path ":1: this folder of core is not in the order of layers"
        reported[path] = 1
        return 1
    }
    # The layer of a path: 0 for a public header, -1 for plugins, examples and tests.
    function layer(path,    part) {
        split(path, part, "/")
        if (part[1] == "include") return 0
        if (part[1] == "core") return (part[1] "/" part[2]) in rank ? rank[part[1] "/" part[2]] : unknown(path)
        if (part[1] in rank) return rank[part[1]]
        return -1
    }
    # The own folder of a file of a plugin, tool or example. Plugins of kind comm share one, and so do strategies.
    function own_folder(path,    part, n) {
        n = split(path, part, "/")
        if (part[1] == "plugins" && part[2] ~ /^(comm|common|strategy)$/) return part[1] "/" part[2]
        if (part[1] == "plugins" && n > 3) return part[1] "/" part[2] "/" part[3]
        if (part[1] ~ /^(backends|templates)$/) return part[1] "/" part[2]
        if (part[1] == "examples" && n > 2) return part[1] "/" part[2]
        if (part[1] == "tests") return part[1] "/" part[2]
        return part[1]
    }
    function normal(path) {                      # a/b/../c becomes a/c
        while (path ~ /[^\/.]+\/\.\.\//) sub(/[^\/.]+\/\.\.\//, "", path)
        gsub(/\/\.\//, "/", path)
        return path
    }
    # The file of the tree that an include names; "" if it is outside the tree.
    function resolve(from, name,    folder) {
        folder = from
        sub(/[^\/]*$/, "", folder)
        if (normal(folder name) in known) return normal(folder name)
        if (normal(name) in known) return normal(name)
        if (("include/" name) in known) return "include/" name
        if ((own_folder(from) "/" name) in known) return own_folder(from) "/" name
        if (("core/" name) in known) return "core/" name
        return ""
    }
    # Adds a header and the headers that it includes to plugin_headers.
    function add_plugin_header(path,    i, n, deps) {
        if (path in plugin_headers) return
        plugin_headers[path] = 1
        n = split(includes[path], deps, "\n")
        for (i = 1; i <= n; i++) if (deps[i] != "") add_plugin_header(deps[i])
    }
    # Whether a file includes plugin.h, directly or through a header that is not public.
    function is_plugin(path,    i, n, deps) {
        if (path == "include/ctrt/plugin.h") return 1
        if (path ~ /^include\// || path in visited) return 0
        visited[path] = 1
        n = split(includes[path], deps, "\n")
        for (i = 1; i <= n; i++) if (deps[i] != "" && is_plugin(deps[i])) { delete visited[path]; return 1 }
        delete visited[path]
        return 0
    }
    function report(from, line, name, why) { print from ":" line ": includes " name ": " why }
    function check_include(from, line, name, to,    f, t) {
        f = layer(from); t = layer(to)
        if (from ~ /^include\//) {
            if (to != "" && t != 0) report(from, line, name, "a public header may include only public headers")
            if (to == "" && from !~ /probe_plugin\.h$/ && name !~ /^(stddef|stdint|stdbool)\.h$/)
                report(from, line, name, "a public header may include only stddef.h, stdint.h and stdbool.h")
            return
        }
        if (to == "") return
        if (from ~ /^(backends|plugins|templates)\//) {
            if (t == 0 && from ~ /^((plugins|templates)\/(comm|strategy)|backends\/multi)\//) return
            # The templates contain programs that test them, which are not plugins.
            if (t == 0 && from ~ /^templates\// && !(is_plugin(from))) return
            if (t == 0 && !(to in plugin_headers))
                report(from, line, name, "a plugin may include only ctrt/plugin.h and the headers that it includes")
            else if (t != 0 && own_folder(to) != own_folder(from) && to !~ /^plugins\/common\//)
                report(from, line, name, "a plugin may include only its own folder and plugins/common")
            return
        }
        if (from ~ /^(tools|examples|tests\/conformance)\//) {
            if (to ~ /^core\/base\/(clock|utf8)\.h$/) return
            if (t != 0 && own_folder(to) != own_folder(from))
                report(from, line, name, "this folder may include only public headers and its own")
            return
        }
        if (from ~ /^(tests|bench)\//) return
        if (t < 0) report(from, line, name, "the library must not include a plugin, an example or a test")
        else if (t > f) report(from, line, name, "that layer is above this one")
    }
    BEGIN {
        n = split(order, name, " ")
        for (i = 1; i <= n; i++) rank[name[i]] = i
        while ((getline path < list) > 0) { known[path] = 1; files[++count] = path }
        for (i = 1; i <= count; i++) {
            line = 0
            while ((getline text < files[i]) > 0) {
                line++
                if (text !~ /^[ \t]*#[ \t]*include[ \t]*[<"]/) continue
                sub(/^[ \t]*#[ \t]*include[ \t]*[<"]/, "", text)
                sub(/[>"].*$/, "", text)
                to = resolve(files[i], text)
                m++
                at[m] = files[i]; where[m] = line; what[m] = text; which[m] = to
                if (to != "") includes[files[i]] = includes[files[i]] "\n" to
            }
            close(files[i])
        }
        add_plugin_header("include/ctrt/plugin.h")
        add_plugin_header("include/ctrt/image_plugin.h")
        add_plugin_header("include/ctrt/probe_plugin.h")
        for (i = 1; i <= m; i++) check_include(at[i], where[i], what[i], which[i])
        print m " includes in " count " files" > "/dev/stderr"
    }' 2>"$work/counted"
}

# calls SYMBOLS: prints one line for every symbol that an object uses although it is of a higher layer, or of a file
# below the own one in a list of files. SYMBOLS has a line "OBJECT: NAME TYPE..." for each symbol (nm -A -P).
calls() {
    grep -rls 'Files call only functions of files above them in this list:' $parts --include='*.h' >"$work/lists"
    ${AWK:-awk} -v order="$order" -v lists="$work/lists" '
    function exists(path,    line, found) {
        found = (getline line < path) >= 0
        close(path)
        return found
    }
    # The source of an object; "" if it exists no more.
    function source(object) {
        gsub(/:$|\.libs\/|libctrt_(core|search)_la-/, "", object)
        sub(/o$/, "c", object)
        if (!(object in known)) known[object] = exists(object) ? object : ""
        return known[object]
    }
    function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
    function layer(path,    part) {
        split(path, part, "/")
        return rank[part[1] == "core" ? part[1] "/" part[2] : part[1]]
    }
    # Reads the list of files in the first comment of a header.
    function read_list(header,    line, n, word) {
        listed[folder(header)] = header
        while ((getline line < header) > 0 && line !~ /^#/)
            if (line ~ /^ \*   [a-z_0-9]+\.c  /) {
                split(line, word, " ")
                place[folder(header) "/" word[2]] = ++n
            }
        close(header)
    }
    # Reads the names that core/upcalls.h declares.
    function read_upcalls(line, comment) {
        while ((getline line < "core/upcalls.h") > 0) {
            if (line ~ /^\/\*/) comment = 1
            if (!comment && (line ~ /^[A-Za-z].*\(/ || line ~ /^extern /)) {
                sub(/(\(.*|;)$/, "", line); sub(/.*[ *]/, "", line)
                upcall[line] = 1
            }
            if (line ~ /\*\//) comment = 0
        }
    }
    BEGIN {
        n = split(order, name, " ")
        for (i = 1; i <= n; i++) rank[name[i]] = i
        while ((getline header < lists) > 0) read_list(header)
        read_upcalls()
    }
    { from = source($1) }
    from == "" { next }
    $3 == "U" { file[++m] = from; symbol[m] = $2; next }
    $3 ~ /[A-Z]/ { defined[$2] = from }
    END {
        for (i = 1; i <= m; i++) {
            if (!(symbol[i] in defined)) continue
            from = file[i]; to = defined[symbol[i]]; header = listed[folder(from)]
            if (layer(to) > layer(from)) {
                if (symbol[i] in upcall) called[symbol[i]] = 1
                else print from ": uses " symbol[i] " of " to ": that layer is above this one (core/upcalls.h)"
            }
            if (folder(from) == folder(to) && header != "" && place[from] + 0 < place[to] + 0)
                print from ": uses " symbol[i] " of " to ": that file is below this one in the list of " header
        }
        for (from in known) {
            header = listed[folder(from)]
            if (known[from] != "" && header != "" && !(from in place)) print from ": is not in the list of " header
        }
        for (to in upcall) if (!(to in called)) print "core/upcalls.h: " to " is not called by a lower layer"
    }' "$1" | sort
}

# wide_lines DIRECTORY...: prints the place of every line of more than 120 columns.
wide_lines() {
    find "$@" -type f \( -name '*.c' -o -name '*.h' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \
        -o -name '*.sh' -o -name '*.py' \) -exec ${AWK:-awk} \
        'length($0) > 120 { print FILENAME ":" FNR ": " length($0) " columns, expected at most 120" }' {} +
}

found=$(violations include core nn share parallel data backends plugins tools tests bench examples templates)
for area in include core nn share parallel data backends plugins tools examples templates tests; do
    [ -d "$area" ] || continue
    check "$area: includes respect the layers" "$(printf '%s\n' "$found" | grep "^$area/")"
done
echo "# $(cat "$work/counted")"
(cd "$builddir" && find $parts \( -name 'libctrt_core_la-*.o' -o -name 'libctrt_search_la-*.o' \) \
    -exec ${NM:-nm} -A -P {} +) >"$work/symbols" 2>/dev/null
if [ -s "$work/symbols" ]; then
    check "calls respect the layers and the lists of files" "$(calls "$work/symbols")"
else
    skip "calls respect the layers and the lists of files" "the library is not built here"
fi
check "lines have at most 120 columns" \
    "$(wide_lines include core nn share parallel data backends plugins tools tests bench examples templates)"

if command -v python3 >/dev/null 2>&1; then
    check "doc/layers.svg shows the includes" \
        "$(python3 doc/layers.py | cmp -s - doc/layers.svg || echo "it is old; run: doc/layers.py >doc/layers.svg")"
else
    skip "doc/layers.svg shows the includes" "python3 is not installed"
fi

# The checks must be able to fail: a small tree in which each rule is violated once.
mkdir -p "$work/tree" && cd "$work/tree" || exit 1
broken() {
    mkdir -p "$(dirname "$1")"
    printf '%s\n' "$2" >"$1"
}
broken include/ctrt/plugin.h          '#include "ctrt/types.h"'
broken include/ctrt/types.h           '#include <stdint.h>'
broken include/ctrt/ctrt.h            '#include <stdio.h>'
broken core/base/low.c                '#include "core/ops/high.h"'
broken core/ops/high.h                '#include "../base/fine.h"'
broken core/device/short.c            '#include "ops/high.h"'
broken core/memory/report.c           '#include "memory_stats/report.h"'
broken core/memory_stats/report.h     '#include "base/fine.h"'
broken core/base/fine.h               '#include "ctrt/ctrt.h"'
broken core/tensor/up.c               '#include "nn/module/module.h"'
broken nn/module/module.h                    '#include "core/ops/high.h"'
broken share/up.c                     '#include "parallel/comm/comm.h"'
broken parallel/comm/comm.h                '#include "share/queue.h"'
broken share/queue.h                  '#include "nn/module/module.h"'
broken core/device/knows.c            '#include "backends/cpu/own.h"'
broken backends/cpu/own.h             '#include "ctrt/plugin.h"'
broken backends/cpu/peeks.c           '#include "core/base/fine.h"'
broken backends/cpu/program.c         '#include "ctrt/ctrt.h"'
broken plugins/comm/mine/uses.c       '#include "ctrt/ctrt.h"'
broken plugins/comm/mine/peeks.c      '#include "core/base/fine.h"'
broken plugins/common/shared.h        '#include "ctrt/plugin.h"'
broken plugins/common/peeks.h         '#include "plugins/memory/program.h"'
broken plugins/memory/shares.c        '#include "plugins/common/shared.h"'
broken plugins/memory/program.h       '#include "ctrt/plugin.h"'
broken plugins/memory/program.c       '#include "ctrt/ctrt.h"'
broken templates/backend/mine.c '#include "ctrt/plugin.h"
#include "ctrt/ctrt.h"'
broken templates/backend/try.c '#include "ctrt/ctrt.h"'
broken tools/peeks.c                  '#include "nn/module/module.h"'
want='backends/cpu/peeks.c
backends/cpu/program.c
core/base/low.c
core/device/knows.c
core/device/short.c
core/memory/report.c
core/tensor/up.c
include/ctrt/ctrt.h
plugins/comm/mine/peeks.c
plugins/common/peeks.h
plugins/memory/program.c
share/up.c
templates/backend/mine.c
tools/peeks.c'
broken core/upcalls.h '/* declared, and
 * not_this() */
enum op;
struct thing;
extern const struct thing above_table;
void above_declared(struct thing *thing);
const char *above_unused(int a,
                         void (*unused)(void));'
broken core/base/low.c ''
broken nn/high.c ''
broken parallel/pair/pair.h '/* Files call only functions of files above them in this list:
 *
 *   first.c   one
 *   second.c  two */'
broken parallel/pair/first.c ''
broken parallel/pair/second.c ''
broken parallel/pair/third.c ''
cat >"$work/fake" <<'END'
core/base/.libs/libctrt_core_la-low.o: above U
core/base/.libs/libctrt_core_la-low.o: above_declared U
core/base/.libs/libctrt_core_la-low.o: above_table U
core/base/.libs/libctrt_core_la-low.o: malloc U
core/base/.libs/libctrt_core_la-low.o: below T 0 10
core/base/.libs/libctrt_core_la-gone.o: above U
nn/.libs/libctrt_core_la-high.o: above T 0 10
nn/.libs/libctrt_core_la-high.o: above_declared T 10 10
nn/.libs/libctrt_core_la-high.o: above_table D 0 10
nn/.libs/libctrt_core_la-high.o: below U
parallel/pair/.libs/libctrt_core_la-first.o: one T 0 10
parallel/pair/.libs/libctrt_core_la-first.o: two U
parallel/pair/.libs/libctrt_core_la-second.o: two T 0 10
parallel/pair/.libs/libctrt_core_la-second.o: one U
parallel/pair/.libs/libctrt_core_la-third.o: three T 0 10
END
want_calls='core/base/low.c: uses above of nn/high.c: that layer is above this one (core/upcalls.h)
core/upcalls.h: above_unused is not called by a lower layer
pair/first.c: uses two of pair/second.c: that file is below this one in the list of pair/pair.h
pair/third.c: is not in the list of pair/pair.h'
got_calls=$(calls "$work/fake" | sed 's#parallel/pair#pair#g')
broken core/base/low.c                '#include "core/ops/high.h"'
got=$(violations include core nn share parallel backends plugins tools examples templates | sed 's/:.*//' | sort)
broken nn/wide.c   "$(printf '/*%117s*/' '')"
broken tools/fits.c "$(printf '/*%116s*/' '')"
wide=$(wide_lines nn tools)
if [ "$wide" = 'nn/wide.c:1: 121 columns, expected at most 120' ]; then
    ok "a wide line is detected"
else
    not_ok "a wide line is detected" "found: $wide"
fi
if [ "$got_calls" = "$want_calls" ]; then
    ok "a call upward, an entry without use and two faults of a list are detected"
else
    not_ok "a call upward, an entry without use and two faults of a list are detected" "found:
$got_calls"
fi
if [ "$got" = "$want" ]; then
    ok "fourteen violations are detected"
else
    not_ok "fourteen violations are detected" "found:
$got"
fi
finish
