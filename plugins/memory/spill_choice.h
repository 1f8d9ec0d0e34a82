/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/spill_choice.h: selection of the blocks to move to the host. */
#ifndef CTRT_MEMORY_SPILL_CHOICE_H
#define CTRT_MEMORY_SPILL_CHOICE_H

#include "spill.h"

/* Removes unused blocks from the list `here`, so that `bytes` more may fit for `queue`, and returns them linked by
 * `after`; NULL if no block is unused. */
struct block *spill_choose(struct list *here, size_t bytes, const void *queue);

#endif
