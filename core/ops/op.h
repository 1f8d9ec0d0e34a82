/* SPDX-License-Identifier: Apache-2.0 */
/* ops/op.h: op ids and the table of op properties, generated from ctrt/ops.def, which explains the properties. */
#ifndef CORE_OPS_OP_H
#define CORE_OPS_OP_H

#include <stdbool.h>
#include <stdint.h>

enum op {
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) OP_##name,
#include "ctrt/ops.def"
#undef CTRT_OP
    OP_COUNT
};

enum op_form { FORM_UNARY, FORM_BINARY, FORM_OWN, FORM_GRAPH };
enum op_promotion {
    PROMOTION_NONE, PROMOTION_KEEP, PROMOTION_PROMOTE, PROMOTION_TO_FLOAT, PROMOTION_COMPARE, PROMOTION_TO_BOOL,
    PROMOTION_TO_I64, PROMOTION_SUM
};
/* The dtype of floating operands under autocast; ops.def. */
enum op_autocast { AUTOCAST_SAME, AUTOCAST_LOWER, AUTOCAST_F32, AUTOCAST_F32GPU };
enum op_dtypes { DTYPES_ALL, DTYPES_NUMBERS, DTYPES_FLOATS };

struct op_info {
    const char *name;
    uint8_t form, promotion, dtypes, autocast;
    bool exact_numbers, differentiable;
};
extern const struct op_info op_table[OP_COUNT];         /* dispatch.c */

#endif
