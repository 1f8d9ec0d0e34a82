/* SPDX-License-Identifier: Apache-2.0 */
/* ops/op.h: op ids and the table of op properties, generated from ops.def. */
#ifndef CORE_OPS_OP_H
#define CORE_OPS_OP_H

#include <stdbool.h>

enum op {
#define OP(name, inputs, family, promotion, differentiable, text) OP_##name,
#include "ops/ops.def"
#undef OP
    OP_COUNT
};

enum op_family {
    FAMILY_COPY, FAMILY_ELEMENTWISE, FAMILY_REDUCE, FAMILY_MATMUL, FAMILY_CONV, FAMILY_POOL, FAMILY_SOFTMAX,
    FAMILY_ATTENTION, FAMILY_NORM, FAMILY_INDEX, FAMILY_RANDOM, FAMILY_OPTIM, FAMILY_VIEW
};
enum op_promotion {
    PROMOTION_NONE, PROMOTION_KEEP, PROMOTION_PROMOTE, PROMOTION_TO_FLOAT, PROMOTION_COMPARE, PROMOTION_TO_BOOL,
    PROMOTION_TO_I64, PROMOTION_SUM
};

struct op_info {
    const char *name, *text;
    int inputs;
    enum op_family family;
    enum op_promotion promotion;
    bool differentiable;
};
extern const struct op_info op_table[OP_COUNT];         /* dispatch.c */

#endif
