/* SPDX-License-Identifier: Apache-2.0 */
#include "contract.h"
static const struct contract_check checks[] = { { NULL, NULL, 0, NULL } };
const struct contract_kind contract_strategy = { CTRT_COMPONENT_STRATEGY, "strategy", { checks }, NULL };
