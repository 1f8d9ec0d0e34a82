/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/rules.c: the table of derivatives, out of ops.def. An op that says `yes` there without a rule does not link. */
#include "autograd/rule.h"

#define ENTRY_yes(name) [OP_##name] = &rule_##name,
#define ENTRY_no(name)
const struct grad_rule *const grad_rules[OP_COUNT] = {
#define OP(name, inputs, family, promotion, differentiable, text) ENTRY_##differentiable(name)
#include "ops/ops.def"
#undef OP
};
