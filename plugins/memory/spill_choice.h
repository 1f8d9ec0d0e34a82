/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/spill_choice.h: which blocks leave. */
#ifndef CTRT_MEMORY_SPILL_CHOICE_H
#define CTRT_MEMORY_SPILL_CHOICE_H

#include "spill.h"

/* Takes blocks that nobody holds off the list of age, linked by `after`, so that `bytes` more may fit for `queue`; NULL: there is
 * none. */
struct block *spill_choose(struct list *here, size_t bytes, const void *queue);

#endif
