/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/strategy/allocate.h: host memory for the structures of strategies, which free() frees. */
#ifndef STRATEGY_ALLOCATE_H
#define STRATEGY_ALLOCATE_H

#include <stdlib.h>

#include "ctrt/ctrt.h"

/* CTRT_ERR_OUT_OF_MEMORY if `memory` is NULL. `bytes`: its size, for the message. */
static inline ctrt_status strategy_allocated(const void *memory, size_t bytes)
{
    return memory != NULL ? CTRT_OK : ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "out of host memory: %zu bytes for a list of "
                                                "the strategy", bytes);
}

/* Sets `pointer` to `count` elements that are zero, and to NULL on failure. A list without elements is not NULL. The
 * value is a ctrt_status. */
#define ALLOCATE(pointer, count)                                                            \
    strategy_allocated((pointer) = calloc((count) + ((count) == 0), sizeof *(pointer)),     \
                       (size_t)(count) * sizeof *(pointer))

#endif
