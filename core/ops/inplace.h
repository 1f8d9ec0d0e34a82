/* SPDX-License-Identifier: Apache-2.0 */
/* ops/inplace.h: checks that every op which writes an existing tensor needs. */
#ifndef CORE_OPS_INPLACE_H
#define CORE_OPS_INPLACE_H

#include "ops/front.h"

/* CTRT_ERR_INVALID_ARGUMENT when elements of self share memory (an expanded tensor). */
ctrt_status inplace_check(const char *who, const ctrt_tensor *self);
/* May the two views touch the same bytes? Compares the ranges that they span. */
bool views_overlap(const ctrt_view *a, const ctrt_view *b);

#endif
