#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The command `ctrt`: usage, its output on devices, plugins and parameters, and that its JSON is valid.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
builddir=${builddir:-.}
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"

ctrt=$builddir/ctrt
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

# says DESCRIPTION STATUS WORDS COMMAND...: requires the exit status STATUS, and WORDS on stdout or stderr.
says() {
    what=$1 status=$2 words=$3
    shift 3
    output=$("$@" 2>&1 </dev/null)
    got=$?
    [ "$got" -eq "$status" ] && echo "$output" | grep -qF -- "$words"
    result $? "$what" "status $got, expected $status; expected \"$words\" in:
$output"
}

says "--version" 0 "plugin ABI 1." "$ctrt" --version
says "--help" 0 "commands:" "$ctrt" --help
says "no command is wrong usage" 2 "usage: ctrt" "$ctrt"
says "an unknown command is wrong usage" 2 'no command "inof"' "$ctrt" inof
says "info --help" 0 "--params" "$ctrt" info --help
says "an unknown option is wrong usage" 2 "usage: ctrt info" "$ctrt" info --such
says "an unexpected argument is wrong usage" 2 'unexpected argument "cpu"' "$ctrt" info cpu
says "plugins --help" 0 "--json" "$ctrt" plugins --help

if [ -f "$builddir/plugins-built/backend-cpu.so" ]; then
    says "info names the cpu" 0 "auto is cpu" "$ctrt" info
    says "info --memory shows the free memory" 0 ", free " "$ctrt" info --devices --memory
    says "info --load shows a table of each type" 0 "| ID | GPU | MEM |" "$ctrt" info --devices --load
    says "plugins shows the file" 0 "plugins-built/backend-cpu.so" "$ctrt" plugins
    says "plugins shows that a backend is disabled, and why" 0 "switched off by CTRT_BACKENDS=-cpu" \
        env CTRT_BACKENDS=-cpu "$ctrt" plugins
else
    skip "info names the cpu" "the cpu plugin is not built"
fi
says "a parameter set in the environment shows its origin" 0 "direct (environment; string, of core)" \
    env CTRT_MEMORY=direct "$ctrt" info --params

echo 'no plugin' >"$work/backend-broken.so"
says "a refused file is listed with its reason" 0 "refused" env CTRT_PLUGIN_PATH="$work" "$ctrt" plugins
says "without a device, info refers to the plugins" 0 "none can be used" \
    env CTRT_PLUGIN_PATH="$work" CTRT_BACKENDS=broken "$ctrt" info

# After an installed tree is moved, plugins are found relative to the library, or to the target of its symbolic link.
if [ -e "$builddir/.libs/ctrt" ] && [ -f "$builddir/plugins-built/memory-direct.so" ]; then
    mkdir -p "$work/moved/ctrt/1" "$work/links"
    cp "$builddir"/.libs/libctrt.so* "$work/moved/"
    cp "$builddir/plugins-built/memory-direct.so" "$work/moved/ctrt/1/"
    for library in "$work"/moved/libctrt.so*; do ln -s "$library" "$work/links/"; done
    for folder in moved links; do
        says "a moved tree finds its plugins: $folder" 0 "$work/moved/ctrt/1/memory-direct.so" \
            env -u CTRT_PLUGIN_PATH LD_LIBRARY_PATH="$work/$folder" "$builddir/.libs/ctrt" plugins
    done
else
    skip "a moved tree finds its plugins" "no shared library in this build"
fi

# --- JSON ------------------------------------------------------------------------------------------------------------

if command -v python3 >/dev/null; then
    cat >"$work/validate.py" <<'END'
import json, sys
known = json.load(sys.stdin)
for key in sys.argv[1:]:
    if key not in known:
        sys.exit("no key " + key)
for plugin in known.get("plugins", []):
    if plugin["state"] not in ("loaded", "ready", "absent", "disabled", "refused"):
        sys.exit("state " + plugin["state"])
END
    # json DESCRIPTION KEYS COMMAND...
    json() {
        what=$1 keys=$2
        shift 2
        check "$what" "$("$@" </dev/null 2>&1 | python3 "$work/validate.py" $keys 2>&1)"
    }
    json "info --json" "version devices plugins parameters plugin_search_path default_device" "$ctrt" info --json
    json "info --json --load" "devices links" "$ctrt" info --json --devices --load
    json "info --json --params" "version parameters" "$ctrt" info --json --params
    json "plugins --json" "plugins" "$ctrt" plugins --json
    # Quotes, backslashes, control characters and bytes that are not UTF-8.
    CTRT_MEMORY=$(printf 'a"b\\c\td\377e\303\244\355\240\200f') && export CTRT_MEMORY
    json "info --json with a value that has to be escaped" "parameters" "$ctrt" info --json --params
    unset CTRT_MEMORY
    json "info --json with a refused file" "plugins" env CTRT_PLUGIN_PATH="$work" "$ctrt" info --json
else
    skip "info --json" "no python3 to parse it"
fi

# --- coverage --------------------------------------------------------------------------------------------------------

says "ops --help has the coverage" 0 "--coverage" "$ctrt" ops --help
says "coverage in an unknown format is wrong usage" 2 "usage: ctrt ops" "$ctrt" ops --coverage --format xml
says "coverage of two devices is wrong usage" 2 "usage: ctrt ops" "$ctrt" ops --coverage cpu cpu
says "coverage of an unknown device is an error" 1 "no backend called quantum" "$ctrt" ops --coverage quantum
says "coverage of a file that is no plugin is an error" 1 "ctrt ops: $work/backend-broken.so is refused" \
    "$ctrt" ops --coverage "$work/backend-broken.so"
if [ -f "$builddir/plugins-built/backend-cpu.so" ] && command -v python3 >/dev/null; then
    says "coverage into a file that cannot be created is an error" 1 "none/page: No such file" \
        "$ctrt" ops --coverage -o "$work/none/page"
    says "coverage into a full disk is an error" 1 "No space left" "$ctrt" ops --coverage --format html -o /dev/full
    says "coverage of the cpu" 0 "    0  c  cpu: runs on the cpu" "$ctrt" ops --coverage
    says "coverage as a page" 0 "" "$ctrt" ops --coverage --format html -o "$work/page.html" \
        "$builddir/plugins-built/backend-cpu.so"
    "$ctrt" ops --coverage --format json cpu >"$work/coverage.json" 2>&1
    cat >"$work/coverage.py" <<'END'
import collections, json, re, sys
page, coverage = open(sys.argv[1]).read(), json.load(open(sys.argv[2]))
inner = json.loads(re.search('type="application/json">(.*?)</script>', page, re.S).group(1))
if inner != coverage:
    print("the page has other data")
if re.search("(src|href)=|url\\(|https?:", page):
    print("the page refers to another file")
ops = {op["op"]: op for op in coverage["ops"]}
if ops["add"]["dtypes"]["f32"] != "native" or ops["softmax"]["dtypes"]["i64"] != "undefined" or "view" in ops:
    print(ops["add"], ops["softmax"])
counted = collections.Counter(path for op in coverage["ops"] for path in op["dtypes"].values())
if any(counted[path["path"]] != path["count"] for path in coverage["paths"]):
    print(counted, coverage["paths"])
END
    check "the page contains what the JSON says, and needs no other file" \
        "$(python3 "$work/coverage.py" "$work/page.html" "$work/coverage.json" 2>&1)"
else
    skip "coverage" "the cpu plugin is not built, or no python3"
fi

# The manual page must have every command.
check "every command is in ctrt(1)" "$("$ctrt" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p' | while read -r command; do
    grep -q "^\.B ctrt $command" "$srcdir/doc/ctrt.1" || echo "$command is not in the synopsis"
done)"
finish
