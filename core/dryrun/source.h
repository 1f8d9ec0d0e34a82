/* SPDX-License-Identifier: Apache-2.0 */
/* dryrun/source.h: fake memory source for dry runs: returns unique addresses and enforces the device's
 * capacity. */
#ifndef CORE_DRYRUN_SOURCE_H
#define CORE_DRYRUN_SOURCE_H

#include "memory/pool.h"

struct dryrun_source {
    struct device_memory *memory;           /* of the dry run */
    uint64_t limit;                         /* most bytes that may be allocated */
    uintptr_t next;                         /* address */
};

/* Makes memory->source such a source. Its bytes in use are those that `real` has allocated from the device, and its
 * free bytes are those that the device reports. */
void dryrun_source_begin(struct dryrun_source *source, struct device_memory *memory, struct device_memory *real);
/* Removes all limits. Returns false if there were none. */
bool dryrun_source_lift(struct dryrun_source *source);
/* Counts `bytes` as freed to the device, for a block that was not allocated from the dry run's policies. */
void dryrun_source_return(struct dryrun_source *source, size_t bytes);

#endif
