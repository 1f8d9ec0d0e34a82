/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/rules.c: the table of derivative rules, generated from ctrt/ops.def. If an op is differentiable there but
 * has no rule, the library does not link. */
#include "autograd/rule.h"

#define ENTRY_yes(name) [OP_##name] = &rule_##name,
#define ENTRY_no(name)
const struct grad_rule *const grad_rules[OP_COUNT] = {
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) ENTRY_##gradient(name)
#include "ctrt/ops.def"
#undef CTRT_OP
};
