# SPDX-License-Identifier: Apache-2.0
# Writes from include/ctrt/ops.def the manual page ctrt-ops(7), or, with -v form=header, the declarations of the
# functions of elementwise ops with comments, for the reference of the API. kernels.awk writes the other page.
BEGIN {
    result["KEEP"] = result["PROMOTE"] = "same"; result["TO_FLOAT"] = "float"
    result["COMPARE"] = result["TO_BOOL"] = "bool"; result["TO_I64"] = "i64"
    result["SUM"] = "same, i64"; result["NONE"] = "varies"
    autocast["SAME"] = "same"; autocast["LOWER"] = "f16, bf16"; autocast["F32"] = "f32"
    autocast["F32GPU"] = "f32 (*)"
    operands["ALL"] = "all"; operands["NUMBERS"] = "no bool"; operands["FLOATS"] = "float"
    if (form == "header")
        print "/** @file\n * Elementwise ops, declared by ctrt/ops.h. ctrt-ops(7) lists their dtypes. */"
}

/^CTRT_OP\(/ {
    text = $0
    sub(/^[^"]*"/, "", text)
    sub(/"\)$/, "", text)
    split(substr($0, 9), column, /, */)         # see ops.def
    if (form == "header") {
        declare("ctrt_" column[1], column[2], column[7], text)
        next
    }
    gsub(/-/, "\\-", text)
    gsub(/\^/, "\\(ha", text)
    notes = (column[7] == "yes" ? "p" : "") (column[8] == "yes" ? "g" : "")
    rows[column[2]] = rows[column[2]] column[1] "\tT{\n" text "\nT}\t" operands[column[4]] "\t" result[column[3]] \
                      "\t" autocast[column[6]] "\t" notes "\n"
}

function declare(name, op_form, in_place, text) {
    if (op_form != "UNARY" && op_form != "BINARY")
        return
    unary = op_form == "UNARY"
    printf "/** %s. */\nctrt_status %s(ctrt_tensor **out, %s);\n", text, name,
        unary ? "ctrt_tensor *x" : "ctrt_tensor *a, ctrt_tensor *b"
    if (!unary)
        printf "/** %s, with a number as b. */\nctrt_status %s_scalar(%s);\n", text, name,
            "ctrt_tensor **out, ctrt_tensor *a, ctrt_scalar b"
    if (in_place == "yes")
        printf "/** %s, in place. */\nctrt_status %s_(ctrt_tensor *self%s);\n", text, name,
            unary ? "" : ", ctrt_tensor *other"
    if (in_place == "yes" && !unary)
        printf "/** %s, in place, with a number as b. */\nctrt_status %s_scalar_(%s);\n", text, name,
            "ctrt_tensor *self, ctrt_scalar other"
}

function table(form) {
    printf ".TS\n%s.\n_\nop\tcomputes\toperands\tresult\tautocast\t\n_\n%s.TE\n", "lb1 lx1 l1 l1 l1 l", rows[form]
}

END {
    if (form == "header")
        exit
    print "'\\\" t\n.\\\" SPDX-License-Identifier: Apache-2.0"
    print ".TH CTRT-OPS 7 \"\" \"ctrt\" \"ctrt\"\n.SH NAME\nctrt-ops \\- the ops of ctrt"
    print ".SH DESCRIPTION\n.ad l\n.nh"
    print "Each op of the library with what it computes, the dtypes of its operands, the dtype of its result,"
    print "the dtype of its floating operands under autocast (ctrt/amp.h); (*): on the cpu, the same dtype."
    print "The last column has p for ops with functions that work in place, and g for differentiable ones."
    print "A floating result of integers has the default floating dtype."
    print "Further rules and the functions of ops with arguments of their own are in the comments of"
    print ".IR ctrt/ops.h ."
    print ".SS One operand\n.nf\n.B ctrt_status ctrt_NAME(ctrt_tensor **out, ctrt_tensor *x);"
    print ".B ctrt_status ctrt_NAME_(ctrt_tensor *self);\\fR  for ops that work in place\n.fi"
    table("UNARY")
    print ".SS Two operands, which broadcast\n.nf"
    print ".B ctrt_status ctrt_NAME(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);"
    print ".B ctrt_status ctrt_NAME_scalar(ctrt_tensor **out, ctrt_tensor *a,"
    print ".B                              ctrt_scalar b);"
    print ".B ctrt_status ctrt_NAME_(ctrt_tensor *self, ctrt_tensor *other);\\fR"
    print ".B ctrt_status ctrt_NAME_scalar_(ctrt_tensor *self, ctrt_scalar other);\\fR\n.fi"
    print "The last two are for ops that work in place."
    table("BINARY")
    print ".SS Other ops that backends have kernels for\nThe names are those of"
    print ".BR ctrt_op_name ()."
    print "Functions of similar names are in ctrt/ops.h and ctrt/tensor.h."
    table("OWN")
    print ".SS Ops without kernels, in autograd graphs"
    table("GRAPH")
    print ".SH SEE ALSO\n.BR ctrt (7)"
}
