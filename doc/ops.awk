# SPDX-License-Identifier: Apache-2.0
# Writes the manual page ctrt-ops(7) from include/ctrt/ops.def.
BEGIN {
    result["KEEP"] = result["PROMOTE"] = "same"; result["TO_FLOAT"] = "float"
    result["COMPARE"] = result["TO_BOOL"] = "bool"; result["TO_I64"] = "i64"
    result["SUM"] = "same or i64"; result["NONE"] = "varies"
    autocast["SAME"] = "same"; autocast["LOWER"] = "f16, bf16"; autocast["F32"] = "f32"
    autocast["F32GPU"] = "f32; cpu: same"
    operands["ALL"] = "all"; operands["NUMBERS"] = "no bool"; operands["FLOATS"] = "float"
}

/^CTRT_OP\(/ {
    text = $0
    sub(/^[^"]*"/, "", text)
    sub(/"\)$/, "", text)
    gsub(/-/, "\\-", text)
    gsub(/\^/, "\\(ha", text)
    split(substr($0, 9), column, /, */)         # see ops.def
    row = column[1] "\tT{\n" text "\nT}\t" operands[column[4]] "\t" result[column[3]] "\t" autocast[column[6]]
    if (column[2] == "UNARY" || column[2] == "BINARY")
        row = row "\t" column[7]
    rows[column[2]] = rows[column[2]] row "\t" column[8] "\n"
}

function table(form, head) {
    printf ".TS\n%s.\n_\nop\tcomputes\toperands\tresult\tautocast%s\tgradient\n_\n%s.TE\n",
        (head == "" ? "lb lx l l l l" : "lb lx l l l l l"), head, rows[form]
}

END {
    print "'\\\" t\n.\\\" SPDX-License-Identifier: Apache-2.0"
    print ".TH CTRT-OPS 7 \"\" \"ctrt\" \"ctrt\"\n.SH NAME\nctrt-ops \\- the ops of ctrt"
    print ".SH DESCRIPTION\n.ad l\n.nh"
    print "Each op of the library with what it computes, the dtypes of its operands, the dtype of its result,"
    print "the dtype of its floating operands under autocast (ctrt/amp.h), and whether"
    print "it is differentiable (gradient) and has functions that work in place (place)."
    print "A floating result of integers has the default floating dtype."
    print "Further rules and the functions of ops with arguments of their own are in the comments of"
    print ".IR ctrt/ops.h ."
    print ".SS One operand\n.nf\n.B ctrt_status ctrt_NAME(ctrt_tensor **out, ctrt_tensor *x);"
    print ".B ctrt_status ctrt_NAME_(ctrt_tensor *self);\\fR  for ops that work in place\n.fi"
    table("UNARY", "\tplace")
    print ".SS Two operands, which broadcast\n.nf"
    print ".B ctrt_status ctrt_NAME(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);"
    print ".B ctrt_status ctrt_NAME_scalar(ctrt_tensor **out, ctrt_tensor *a, ctrt_scalar b);"
    print ".B ctrt_status ctrt_NAME_(ctrt_tensor *self, ctrt_tensor *other);\\fR  for ops that work in place"
    print ".B ctrt_status ctrt_NAME_scalar_(ctrt_tensor *self, ctrt_scalar other);\\fR  likewise\n.fi"
    table("BINARY", "\tplace")
    print ".SS Other ops that backends have kernels for\nThe names are those of"
    print ".BR ctrt_op_name ()."
    print "Functions of similar names are in ctrt/ops.h and ctrt/tensor.h."
    table("OWN", "")
    print ".SS Ops without kernels, in autograd graphs"
    table("GRAPH", "")
    print ".SH SEE ALSO\n.BR ctrt (7)"
}
