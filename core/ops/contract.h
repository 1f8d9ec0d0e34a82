/* SPDX-License-Identifier: Apache-2.0 */
/* ops/contract.h: checks that calls of kernels have the form that ctrt/contracts.def describes. */
#ifndef CORE_OPS_CONTRACT_H
#define CORE_OPS_CONTRACT_H

#include "ctrt/plugin.h"

/* Whether calls are checked (CTRT_CHECK_CALLS). Read when a device's dispatch table is built. */
ctrt_status contract_wanted(bool *out);

/* Checks the call of the kernel call->kernel: the number of operands, their shapes, dtypes and layouts, and the
 * attributes. CTRT_ERR_INTERNAL with a message that contains the operand and what the contract says. */
ctrt_status contract_check(const ctrt_call *call);

#endif
