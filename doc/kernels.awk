# SPDX-License-Identifier: Apache-2.0
# Writes from include/ctrt/ops.def and include/ctrt/contracts.def, in this order, the manual page ctrt-kernels(7): the
# comment at the head of contracts.def, which explains the notation, and its rows.
BEGIN {
    keys["ALL"] = "all dtypes"; keys["NUMBERS"] = "all but bool"; keys["FLOATS"] = "floating"
    print ".\\\" SPDX-License-Identifier: Apache-2.0\n.TH CTRT-KERNELS 7 \"\" \"ctrt\" \"ctrt\"\n.SH NAME"
    print "ctrt-kernels \\- what the kernels of a backend get and compute\n.SH DESCRIPTION\n.nf"
}

function escaped(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    gsub(/\^/, "\\(ha", text)
    gsub(/`/, "\\(ga", text)
    gsub(/'/, "\\(aq", text)
    return text
}

/^CTRT_OP\(/ {
    split(substr($0, 9), column, /, */)
    if (column[2] == "UNARY" || column[2] == "BINARY")
        members[column[2]] = members[column[2]] " " column[1]
    key[column[1]] = keys[column[3] == "TO_FLOAT" ? "FLOATS" : column[4]]
}
FILENAME !~ /contracts.def$/ { next }

/^ \*\/|^#/ { next }
/^( \*|\/\* The)/ && !found {
    line = $0
    sub(/^..? ?/, "", line)
    sub(/ \*\/$/, "", line)
    print escaped(line)
    next
}

# A row ends with `")`; strings that follow each other are one.
/^CTRT_/ { row = ""; found = 1 }
found && NF {
    row = row " " $0
    if ($0 !~ /"\)$/)
        next
    gsub(/" +"/, "", row)
    split(row, string, "\"")
    sub(/^ CTRT_[A-Z]*\(/, "", string[1])
    split(string[1], column, /, */)
    if (row ~ /^ CTRT_LAYOUT/)
        layouts = layouts ".TP\n" column[1] "\n" escaped(string[2]) "\n"
    else if (row ~ /^ CTRT_ATTRIBUTE/)
        attributes = attributes (column[1] == last ? "" : ".SS ctrt_" column[1] "_attributes\n") \
                     ".TP\n" column[2] (column[4] > 1 ? "[" column[4] "]" : "") "  " column[3] \
                     (column[5] == "ANY" ? "" : ", at least " column[5]) (column[6] == "ANY" ? "" : ", at most " column[6]) \
                     "\n" escaped(string[2]) "\n"
    else
        contracts = contracts ".TP\n.B " column[1] "\n" escaped(string[2]) "\n.br\n" \
                    (members[column[1]] ? "for" members[column[1]] : key[column[1]]) "; " column[2] \
                    (column[3] == "none" ? "" : "; ctrt_" column[3] "_attributes") "\n" \
                    (string[4] ? ".br\n" escaped(string[4]) "\n" : "")
    last = column[1]
}

END {
    print ".fi\n.SH LAYOUTS\n.ad l\n.nh\n" layouts ".SH CONTRACTS\nOperands, dtypes of the key, layout, attributes."
    print contracts ".SH ATTRIBUTES\n" attributes ".SH SEE ALSO\n.BR ctrt (1),\n.BR ctrt\\-ops (7)"
}
