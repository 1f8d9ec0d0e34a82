#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `ctrt memory`: accepted and rejected snapshots, and the page in a browser, whose sums must equal those of the file.
srcdir=${srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
. "$srcdir/tests/lib.sh"
. "$srcdir/tests/integration/checks.sh"
builddir=${builddir:-.}

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
ctrt="$builddir/ctrt"
"$builddir/memory-snapshot" "$work/good.json" 3000 2>"$work/err" ||
    { not_ok "a snapshot is written" "$(cat "$work/err")"; finish; exit; }
ok "a snapshot is written"

"$ctrt" memory "$work/good.json" -o "$work/page.html" 2>"$work/err" && [ -s "$work/page.html" ]
result $? "a page is written" "$(cat "$work/err")"
cp "$work/good.json" "$work/named.json"
"$ctrt" memory "$work/named.json" && cmp -s "$work/named.html" "$work/page.html"
result $? "without -o the page is in the folder of the snapshot" "$(ls "$work")"
"$ctrt" memory - -o - <"$work/good.json" | cmp -s - "$work/page.html"
result $? "standard input and output"
check "the page loads no other resource" \
    "$(grep -nE '(src|href)=|https?://|@import|fetch\(' "$work/page.html" | cut -c1-200)"
# The text </script> in the snapshot must not end the script element that contains the snapshot.
[ "$(grep -c '</script>' "$work/page.html")" = 2 ]
result $? "the snapshot cannot end its element" "$(grep -c '</script>' "$work/page.html") ends"

# refused WHAT WORDS COMMAND...: the tool must reject the output of COMMAND with WORDS and without writing a page.
refused() {
    what=$1 words=$2
    shift 2
    "$@" >"$work/bad.json"
    rm -f "$work/bad.html"
    if "$ctrt" memory "$work/bad.json" 2>"$work/err"; then
        not_ok "rejected: $what" "it was accepted"
    else
        grep -qF -- "$words" "$work/err" && [ ! -e "$work/bad.html" ]
        result $? "rejected: $what" "$(cat "$work/err")"
    fi
}
size=$(wc -c <"$work/good.json")
refused "an empty file" "it is empty" true
refused "half a file" "the file is truncated" head -c $((size / 2)) "$work/good.json"
refused "a little more than half of it" "the file is truncated" head -c $((size / 2 + 7)) "$work/good.json"
refused "a file without its end" "the file is truncated" head -c $((size - 3)) "$work/good.json"
refused "other JSON" "not a snapshot" echo '{"a": 1}'
refused "a list" "not a snapshot" echo '[]'
refused "text" "line 1: not JSON" echo 'hello'
refused "two in one file" "there is text after the end" awk '{ print } END { print "{}" }' "$work/good.json"
refused "a snapshot of another version" '"version" is missing or of another version' \
    sed 's/"version": 2/"version": 1/' "$work/good.json"
refused "a snapshot without segments" '"segments" is missing' sed 's/"segments": \[/"segmants": [/' "$work/good.json"
refused "a number that begins with 0" "a number with a leading zero" \
    echo '{"format": "ctrt memory snapshot", "x": 01}'
refused "an unknown escape" "an unknown escape" printf '{"format": "ctrt memory snapshot", "x": "\\q"}'
refused "a comma too many" "expected a string" printf '{"format": "ctrt memory snapshot",}'
refused "deep nesting" "too deeply nested" awk 'BEGIN { for (i = 0; i < 100000; i++) printf "[" }'
refused "a binary file" "not JSON" head -c 3000 "$ctrt"
! "$ctrt" memory "$work/absent.json" 2>"$work/err" && ! grep -qv 'absent.json: No such file' "$work/err"
result $? "the error for a missing file contains its name" "$(cat "$work/err")"
! "$ctrt" memory "$work/good.json" -o /nowhere/page.html 2>"$work/err" &&
    ! grep -qv '/nowhere/page.html: No such file' "$work/err"
result $? "the error for a missing folder contains its name" "$(cat "$work/err")"
"$ctrt" memory >/dev/null 2>&1
[ $? = 2 ]
result $? "no file is wrong usage"

browser=
for b in chromium chromium-browser google-chrome; do command -v $b >/dev/null 2>&1 && browser=$b && break; done
if [ -z "$browser" ]; then
    for what in "the page in a browser" "the search" "sums that differ" "a clock that was set back" \
        "no text of a snapshot becomes markup" "the page shows backtraces" "event 225000 of 450,000 can be reached" \
        "event 449999 of 450,000 can be reached" "a page of 100,000 events in a browser"; do
        skip "$what" "no chromium"
    done
    finish
fi
# dom PAGE: prints the page's DOM after its scripts have run.
dom() {
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" \
        --virtual-time-budget=20000 --dump-dom "file://$1" 2>/dev/null
}
json_stat() { sed -n "s/^ *\"$2\": \([0-9]*\),*}*,*\$/\1/p" "$1" | head -n 1; }
# agrees PAGE JSON WHAT: requires that the page's sums, which its title contains, equal the statistics of the snapshot.
agrees() {
    dom "$1" >"$work/dom.html"
    title=$(sed -n 's/.*<title>\([^<]*\)<\/title>.*/\1/p' "$work/dom.html" | head -n 1)
    want=$(json_stat "$2" allocated_bytes.all.current)
    [ -n "$want" ] && echo "$title" | grep -qE "^ctrt memory cpu: ok $want [0-9]+ [0-9]+ [1-9][0-9]*\$" &&
        grep -q 'sums agree: owners' "$work/dom.html"
    result $? "$3" "title \"$title\", expected $want bytes of owners"
}
agrees "$work/page.html" "$work/good.json" "the page in a browser: sums equal those of the file"
# A search in the page's address must find exactly the blocks with that label.
want=$(grep -c '"state": "active_allocated", "label": "decoder"' "$work/good.json")
dom "$work/page.html#q=decoder" >"$work/dom.html"
[ "$want" -gt 0 ] && grep -q "$want blocks match" "$work/dom.html"
result $? "the search finds the blocks of a label" \
    "expected $want, found $(grep -o '[0-9]* blocks match' "$work/dom.html")"
# The page must report a snapshot whose sums are wrong.
sed 's/"allocated_bytes.all.current": \([0-9]*\)/"allocated_bytes.all.current": 1\1/' \
    "$work/good.json" >"$work/wrong.json"
"$ctrt" memory "$work/wrong.json" -o "$work/wrong.html" && dom "$work/wrong.html" >"$work/dom.html"
grep -q 'sums differ: owners add up to' "$work/dom.html"
result $? "the page reports sums that differ" "$(grep -o '<title>[^<]*' "$work/dom.html")"
# A snapshot in which the clock was set back for some events.
awk '/"action": / && ++n > 500 && n < 700 { sub(/"time_us": 1/, "\"time_us\": ") } { print }' \
    "$work/good.json" >"$work/back.json"
"$ctrt" memory "$work/back.json" -o "$work/back.html"
if cmp -s "$work/back.json" "$work/good.json"; then
    not_ok "a clock that was set back" "the test did not change the snapshot"
else
    agrees "$work/back.html#axis=time" "$work/back.json" "a clock that was set back"
fi
# Text in the place of numbers: no content of the file may become an element of the page.
sed -e 's/"num_ooms": 0/"num_ooms": "<img alt=bad>"/' -e 's/"blocks": \([0-9][0-9]*\)}/"blocks": "<img alt=bad>"}/' \
    -e 's/"allocation.all.peak": [0-9]*/"allocation.all.peak": "<img alt=bad>"/' "$work/good.json" >"$work/evil.json"
"$ctrt" memory "$work/evil.json" -o "$work/evil.html" && dom "$work/evil.html" >"$work/dom.html"
grep -q '&lt;img alt=bad&gt;' "$work/dom.html" && ! sed 's/<script.*//' "$work/dom.html" | grep -q '<img'
result $? "no text of a snapshot becomes markup" "$(grep -o '.\{60\}<img.\{20\}' "$work/dom.html" | head -n 3)"
# Backtraces contain the names of the library's functions, which the search finds.
"$builddir/memory-snapshot" "$work/frames.json" 300 frames &&
    "$ctrt" memory "$work/frames.json" -o "$work/frames.html" &&
    dom "$work/frames.html#q=ctrt_empty" >"$work/dom.html"
want=$(grep -c '"state": "active_allocated"' "$work/frames.json")
if ! grep -q '"name": "ctrt_empty"' "$work/frames.json"; then
    skip "the page shows backtraces" "no frames in this build"
elif grep -q '^ctrt_empty  libctrt' "$work/dom.html" && grep -q "$want blocks match" "$work/dom.html"; then
    ok "the page shows backtraces"
else
    not_ok "the page shows backtraces" "expected $want blocks; $(grep -o '[0-9]* blocks match' "$work/dom.html")"
fi
# More events than fit into the maximum height of an element in a browser.
awk 'BEGIN {
    printf "{\"format\": \"ctrt memory snapshot\", \"version\": 2, \"library\": \"0\", \"device\": \"cpu\","
    printf "\"policy\": \"direct\", \"watch\": \"all\", \"time_us\": 9, \"total_bytes\": 0,"
    print "\"stats\": {\"allocated_bytes.all.current\": 0}, \"owners\": [], \"segments\": [], \"device_traces\": [["
    for (i = 0; i < 450000; i++) {
        printf "%s{\"action\":\"%s\",\"addr\":4096,\"size\":64,", i ? "," : "", i % 2 ? "free_completed" : "alloc"
        printf "\"stream\":0,\"time_us\":%d,\"label\":\"\",\"op\":\"\"}\n", i
    }
    print "]]}" }' >"$work/many.json"
"$ctrt" memory "$work/many.json" -o "$work/many.html"
for n in 225000 449999; do
    dom "$work/many.html#event=$n" >"$work/dom.html"
    grep -q "class=\"row\"[^>]*> *$n  *0\.$n s" "$work/dom.html"
    result $? "event $n of 450,000 can be reached" "$(grep -o 'class="row"[^>]*> *[0-9]*' "$work/dom.html" | head -n 3)"
done
"$builddir/memory-snapshot" "$work/large.json" 50000 && "$ctrt" memory "$work/large.json" -o "$work/large.html"
agrees "$work/large.html" "$work/large.json" "a page of 100,000 events in a browser"
finish
