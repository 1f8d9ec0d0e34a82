/* SPDX-License-Identifier: Apache-2.0 */
/* ops/plan.h: replacements for kernels and copies during a dry run, which predicts memory (memory/plan.h). */
#ifndef CORE_OPS_PLAN_H
#define CORE_OPS_PLAN_H

#include "ctrt/plugin.h"
#include "device/device.h"
#include "memory/plan.h"

/* Replaces the launch of a kernel on an asynchronous device: only accounts for the use of the operands' memory. */
ctrt_status plan_launch(const ctrt_call *call, const char *op);
/* The same for copies, and for fills (`from` is NULL). */
ctrt_status plan_copy(const ctrt_view *to, const ctrt_view *from, const char *op);

/* Replaces a copy from a device to the host: sets the host memory to zeros, unless `to` is itself dry-run memory. */
void plan_zeros(const ctrt_view *to);

/* Returns whether the view is in memory of a device with a dry run in progress. */
bool plan_view(const ctrt_view *view);

#endif
