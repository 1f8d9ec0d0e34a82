/* SPDX-License-Identifier: Apache-2.0 */
/* ops/contract.h: checks that calls of kernels have the form that ctrt/contracts.def describes. */
#ifndef CORE_OPS_CONTRACT_H
#define CORE_OPS_CONTRACT_H

#include "ctrt/plugin.h"

/* Whether calls are checked (CTRT_CHECK_CALLS). Read when a device's dispatch table is built. */
ctrt_status contract_wanted(bool *out);

/* Checks the call of the kernel call->kernel: the number of operands, their shapes, dtypes and layouts, and the
 * attributes, and logs that the kernel runs. CTRT_ERR_INTERNAL with a message that contains the operand and what the
 * contract says. */
ctrt_status contract_check(const ctrt_call *call);

/* Logs at the level `debug` which kernel "runs" or "refuses" a call: "relu f32: kernel 0x7f12 of score 10 runs".
 * tests/conformance/kernels.c reads this line. */
void contract_log(const ctrt_kernel *kernel, ctrt_dtype key, const char *what);

#endif
