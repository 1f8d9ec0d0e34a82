/* SPDX-License-Identifier: Apache-2.0 */
/* list.c: completes rows with what ctrt/ops.def says about their op. */
#include "suite.h"

enum {
    DTYPES_ALL = ALL, DTYPES_NUMBERS = NUMBERS, DTYPES_FLOATS = FLOATS,
    FLAGS_no = 0, FLAGS_yes = GRAD,
    RESULT_NONE = SAME, RESULT_KEEP = SAME, RESULT_PROMOTE = SAME, RESULT_TO_FLOAT = TO_FLOAT, RESULT_COMPARE = TO_BOOL,
    RESULT_TO_BOOL = TO_BOOL, RESULT_TO_I64 = TO_I64, RESULT_SUM = SUM_RULE
};

#define FORM_UNARY_no(name)   .inputs = 1, .kernel = #name, .unary = ctrt_##name
#define FORM_UNARY_yes(name)  FORM_UNARY_no(name), .unary_ = ctrt_##name##_
#define FORM_BINARY_no(name)  .inputs = 2, .kernel = #name, .binary = ctrt_##name, .scalar = ctrt_##name##_scalar
#define FORM_BINARY_yes(name) FORM_BINARY_no(name), .binary_ = ctrt_##name##_, .scalar_ = ctrt_##name##_scalar_
#define FORM_OWN_no(name)     .inputs = 0, .kernel = #name
#define FORM_GRAPH_no(name)   .inputs = 0

static const struct check_op listed[] = {
#define CTRT_OP(op, form, promotion, dtype_set, numbers, autocast, in_place, gradient, text)  \
    { .name = #op, .dtypes = DTYPES_##dtype_set, .flags = FLAGS_##gradient,         \
      .result = (enum result_rule)RESULT_##promotion, FORM_##form##_##in_place(op) },
#include "ctrt/ops.def"
#undef CTRT_OP
};

/* The variants of elementwise ops: odd sizes, so that vector loops have a tail, and operands that broadcast. */
static const struct variant one_operand[] = {
    { "", NORMAL, .in = { S(2, 3, 5) } },
    { "", NORMAL, .in = { S(7, 9) } },
    { "", ZERO_SIZE, .in = { S(0) } },
    { "", ZERO_SIZE, .in = { S(3, 0, 2) } },
    { "", ZERO_DIM, .in = { S0 } },
    { "", LARGE, .in = { S(5003) } },
    { "", LARGE, .in = { S(257, 263) } },
    { "", SPECIAL, .in = { S(13) } },
};
static const struct variant two_operands[] = {
    { "alike", NORMAL, .in = { S(2, 3, 5), S(2, 3, 5) } },
    { "rows", NORMAL, .in = { S(4, 1, 5), S(3, 1) } },
    { "row", NORMAL, .in = { S(6, 5), S(5) } },
    { "scalar left", NORMAL, .in = { S0, S(2, 3) } },
    { "scalar right", NORMAL, .in = { S(2, 3), S(1, 1) } },
    { "", ZERO_SIZE, .in = { S(0), S(0) } },
    { "broadcast", ZERO_SIZE, .in = { S(3, 0, 2), S(1, 2) } },
    { "", ZERO_DIM, .in = { S0, S0 } },
    { "", LARGE, .in = { S(5003), S(5003) } },
    { "row", LARGE, .in = { S(257, 263), S(263) } },
    { "", SPECIAL, .in = { S(169), S(169) } },
};

static void copy_form(struct check_op *op, const struct check_op *row)
{
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
}

bool op_has_kernels(const char *name)
{
    for (int k = 0; k < COUNT_OF(listed); k++)
        if (strcmp(name, listed[k].name) == 0)
            return listed[k].kernel != NULL;
    return false;
}

void op_complete(struct check_op *op)
{
    for (int k = 0; op->kernel == NULL && k < COUNT_OF(listed); k++) {
        if (strcmp(op->name, listed[k].name) != 0)
            continue;
        if (op->dtypes == 0)
            op->dtypes = listed[k].dtypes;
        op->flags |= listed[k].flags;
        op->result = listed[k].result;
        if (listed[k].inputs > 0)
            copy_form(op, &listed[k]);
    }
    while (op->inputs < MAX_INPUTS && (op->in[op->inputs].kind || op->in[op->inputs].lo < op->in[op->inputs].hi))
        op->inputs++;
    if (op->outputs == 0)
        op->outputs = 1;
    if (op->kernel == NULL)
        op->kernel = op->name;
    if (op->variants == NULL) {
        op->variants = op->inputs == 1 ? one_operand : two_operands;
        op->variant_count = op->inputs == 1 ? COUNT_OF(one_operand) : COUNT_OF(two_operands);
    }
}
