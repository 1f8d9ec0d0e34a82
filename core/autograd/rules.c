/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/rules.c: the table of derivative rules, generated from ops.def. If an op is marked differentiable there
 * (`yes`) but has no rule, the library does not link. */
#include "autograd/rule.h"

#define ENTRY_yes(name) [OP_##name] = &rule_##name,
#define ENTRY_no(name)
const struct grad_rule *const grad_rules[OP_COUNT] = {
#define OP(name, inputs, family, promotion, differentiable, text) ENTRY_##differentiable(name)
#include "ops/ops.def"
#undef OP
};
