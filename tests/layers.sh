#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the order of the layers from the #include lines of every source file, and the width of its lines.
#
#   include < core < nn < share < parallel < data < tools, and inside core: base < registry < device < stream <
#   memory < memory_stats < graph < tensor < ops < dryrun < autograd. A file may include headers of its own layer or of
#   layers below it, so the folders have no cycle. Public headers include only public headers. Plugins and the plugin
#   template include ctrt/plugin.h, ctrt/image_plugin.h, the headers that these include, and their own folder; plugins
#   that link libctrt (the kinds comm and strategy, backends/multi) any public header. Tools and examples include public
#   headers and their own folder.
#   Includes from outside the tree (<stdio.h>, "config.h") are not checked, except in public headers, which may use
#   three C headers.
#
#   Lines of sources, scripts and tests have at most 120 columns, except in generated files (*.inc).
srcdir=${srcdir:-$(cd "$(dirname "$0")/.." && pwd)}
. "$srcdir/tests/lib.sh"
cd "$srcdir" || exit 1

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# violations DIRECTORY...: prints one line for every include that violates a rule.
violations() {
    find "$@" -type f \( -name '*.c' -o -name '*.h' -o -name '*.def' -o -name '*.inc' -o -name '*.cu' \
        -o -name '*.cuh' -o -name '*.cpp' \) ! -path '*/softcuda/*' 2>/dev/null | sort >"$work/files"
    ${AWK:-awk} -v list="$work/files" '
    # A folder of core that the order does not contain is an error.
    function unknown(path) {
        if (!(path in reported)) print path ":1: this folder of core is not in the order of layers"
        reported[path] = 1
        return 10
    }
    # The layer of a path: 0 for a public header, -1 for plugins, examples and tests.
    function layer(path,    part) {
        split(path, part, "/")
        if (part[1] == "include") return 0
        if (part[1] == "core") return part[2] in rank ? rank[part[2]] : unknown(path)
        if (part[1] in rank) return rank[part[1]]
        return -1
    }
    # The own folder of a file of a plugin, tool or example. Plugins of kind comm share one, and so do strategies.
    function own_folder(path,    part, n) {
        n = split(path, part, "/")
        if (part[1] == "plugins" && part[2] ~ /^(comm|strategy)$/) return part[1] "/" part[2]
        if (part[1] == "plugins" && n > 3) return part[1] "/" part[2] "/" part[3]
        if (part[1] == "backends") return part[1] "/" part[2]
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
            if (to == "" && name !~ /^(stddef|stdint|stdbool)\.h$/)
                report(from, line, name, "a public header may include only stddef.h, stdint.h and stdbool.h")
            return
        }
        if (to == "") return
        if (from ~ /^(backends|plugins|examples\/plugin-template)\//) {
            if (t == 0 && from ~ /^(plugins\/(comm|strategy)|backends\/multi)\//) return
            # The template contains a program that tests it, which is not a plugin.
            if (t == 0 && from ~ /^examples\// && !(is_plugin(from))) return
            if (t == 0 && !(to in plugin_headers))
                report(from, line, name, "a plugin may include only ctrt/plugin.h and the headers that it includes")
            else if (t != 0 && own_folder(to) != own_folder(from))
                report(from, line, name, "a plugin may include only its own folder")
            return
        }
        if (from ~ /^(tools|examples|tests\/conformance)\//) {
            if (t != 0 && own_folder(to) != own_folder(from))
                report(from, line, name, "this folder may include only public headers and its own")
            return
        }
        if (from ~ /^(tests|bench)\//) return
        if (t < 0) report(from, line, name, "the library must not include a plugin, an example or a test")
        else if (t > f) report(from, line, name, "that layer is above this one")
    }
    BEGIN {
        n = split("base registry device stream memory memory_stats graph tensor ops dryrun autograd", name, " ")
        for (i = 1; i <= n; i++) rank[name[i]] = 10 + i
        rank["nn"] = 30; rank["share"] = 35; rank["parallel"] = 40; rank["data"] = 45; rank["tools"] = 50
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
        for (i = 1; i <= m; i++) check_include(at[i], where[i], what[i], which[i])
        print m " includes in " count " files" > "/dev/stderr"
    }' 2>"$work/counted"
}

# wide_lines DIRECTORY...: prints the place of every line of more than 120 columns.
wide_lines() {
    find "$@" -type f \( -name '*.c' -o -name '*.h' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \
        -o -name '*.sh' -o -name '*.py' \) -exec ${AWK:-awk} \
        'length($0) > 120 { print FILENAME ":" FNR ": " length($0) " columns, expected at most 120" }' {} +
}

found=$(violations include core nn share parallel data backends plugins tools tests bench examples)
for area in include core nn share parallel data backends plugins tools examples tests; do
    [ -d "$area" ] || continue
    check "$area: includes respect the layers" "$(printf '%s\n' "$found" | grep "^$area/")"
done
echo "# $(cat "$work/counted")"
check "lines have at most 120 columns" \
    "$(wide_lines include core nn share parallel data backends plugins tools tests bench examples)"

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
broken plugins/memory/program.c       '#include "ctrt/ctrt.h"'
broken examples/plugin-template/mine.c '#include "ctrt/plugin.h"
#include "ctrt/ctrt.h"'
broken examples/plugin-template/try.c '#include "ctrt/ctrt.h"'
broken tools/peeks.c                  '#include "nn/module/module.h"'
want='backends/cpu/peeks.c
backends/cpu/program.c
core/base/low.c
core/device/knows.c
core/device/short.c
core/memory/report.c
core/tensor/up.c
examples/plugin-template/mine.c
include/ctrt/ctrt.h
plugins/comm/mine/peeks.c
plugins/memory/program.c
share/up.c
tools/peeks.c'
got=$(violations include core nn share parallel backends plugins tools examples | sed 's/:.*//' | sort)
broken nn/wide.c   "$(printf '/*%117s*/' '')"
broken tools/fits.c "$(printf '/*%116s*/' '')"
wide=$(wide_lines nn tools)
if [ "$wide" = 'nn/wide.c:1: 121 columns, expected at most 120' ]; then
    ok "a wide line is detected"
else
    not_ok "a wide line is detected" "found: $wide"
fi
if [ "$got" = "$want" ]; then
    ok "thirteen violations are detected"
else
    not_ok "thirteen violations are detected" "found:
$got"
fi
finish
