/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/no_memory.h: the error of all strategies for a failed malloc. */
#ifndef STRATEGY_NO_MEMORY_H
#define STRATEGY_NO_MEMORY_H

#include "ctrt/ctrt.h"

static inline ctrt_status no_memory(void)
{
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "out of host memory");
}

#endif
