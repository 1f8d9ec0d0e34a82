/* SPDX-License-Identifier: Apache-2.0 */
/* ops/inplace.h: checks for ops that write to an existing tensor. */
#ifndef CORE_OPS_INPLACE_H
#define CORE_OPS_INPLACE_H

#include "ops/op_common.h"

/* Returns CTRT_ERR_INVALID_ARGUMENT if several elements of self have the same address (an expanded tensor). */
ctrt_status inplace_check(const char *who, const ctrt_tensor *self);
/* Returns whether the two views may have bytes in common. Compares the address ranges that they span. */
bool views_overlap(const ctrt_view *a, const ctrt_view *b);

#endif
