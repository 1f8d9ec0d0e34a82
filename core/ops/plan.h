/* SPDX-License-Identifier: Apache-2.0 */
/* ops/plan.h: work that is only planned (memory/plan.h): what takes the place of kernels and copies. */
#ifndef CORE_OPS_PLAN_H
#define CORE_OPS_PLAN_H

#include "ctrt/plugin.h"
#include "device/device.h"
#include "memory/plan.h"

/* In place of a kernel of an asynchronous device: the operands are used, and that is all. */
ctrt_status plan_launch(const ctrt_call *call, const char *op);
/* Likewise in place of copies, and of fills (`from` NULL). */
ctrt_status plan_copy(const ctrt_view *to, const ctrt_view *from, const char *op);

/* In place of elements that a device gives the host. */
void plan_zeros(const ctrt_view *to);

/* Does the view show memory of a device whose work is only planned? */
bool plan_view(const ctrt_view *view);

#endif
