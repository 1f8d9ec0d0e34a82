/* SPDX-License-Identifier: Apache-2.0 */
/* list.c: completes rows with what ctrt/ops.def says about their op. */
#include "suite.h"

enum {
    DTYPES_ALL = ALL, DTYPES_NUMBERS = NUMBERS, DTYPES_FLOATS = FLOATS,
    FLAGS_no = 0, FLAGS_yes = GRAD,
    RESULT_NONE = SAME, RESULT_KEEP = SAME, RESULT_PROMOTE = SAME, RESULT_TO_FLOAT = TO_FLOAT, RESULT_COMPARE = TO_BOOL,
    RESULT_TO_BOOL = TO_BOOL, RESULT_TO_I64 = TO_I64, RESULT_SUM = SUM_RULE
};

#define FORM_UNARY_no(name)   .inputs = 1, .unary = ctrt_##name
#define FORM_UNARY_yes(name)  FORM_UNARY_no(name), .unary_ = ctrt_##name##_
#define FORM_BINARY_no(name)  .inputs = 2, .binary = ctrt_##name, .scalar = ctrt_##name##_scalar
#define FORM_BINARY_yes(name) FORM_BINARY_no(name), .binary_ = ctrt_##name##_, .scalar_ = ctrt_##name##_scalar_
#define FORM_OWN_no(name)     .inputs = 0
#define FORM_GRAPH_no(name)   .inputs = 0

static const struct check_op listed[] = {
#define CTRT_OP(op, form, promotion, dtype_set, numbers, in_place, gradient, text)  \
    { .name = #op, .dtypes = DTYPES_##dtype_set, .flags = FLAGS_##gradient,         \
      .result = (enum result_rule)RESULT_##promotion, FORM_##form##_##in_place(op) },
#include "ctrt/ops.def"
#undef CTRT_OP
};

void op_complete(struct check_op *op)
{
    for (size_t k = 0; op->kernel == NULL && k < sizeof listed / sizeof listed[0]; k++) {
        const struct check_op *row = &listed[k];
        if (strcmp(op->name, row->name) != 0)
            continue;
        if (op->dtypes == 0)
            op->dtypes = row->dtypes;
        op->flags |= row->flags;
        op->result = row->result;
        if (row->inputs == 0)
            return;
        op->inputs = row->inputs;
        op->unary = row->unary;
        op->unary_ = row->unary_;
        op->binary = row->binary;
        op->binary_ = row->binary_;
        op->scalar = row->scalar;
        op->scalar_ = row->scalar_;
        if ((op->flags & GRAD) && !(op->flags & FLAT))
            op->flags |= GRAD2;
        if (op->unary != NULL && op->result == TO_FLOAT)
            op->tolerance = MATH;
        return;
    }
}
