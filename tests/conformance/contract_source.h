/* SPDX-License-Identifier: Apache-2.0 */
/* contract_source.h: a memory source for the checks of policies.
 *
 * The source counts allocations, enforces a capacity and models order exactly: a use of memory is a piece of work on a
 * queue, a bit of a mask. The mask `known` of a queue is the work that its later work is ordered after: its own work,
 * and that of fences for which it waits. Each use of an address is compared with the earlier uses of the address, which
 * have to be in that mask. After 64 pieces of work the model assumes that the device is idle, and begins the next
 * epoch. */
#ifndef CTRT_CONTRACT_SOURCE_H
#define CTRT_CONTRACT_SOURCE_H

#include "contract.h"

enum { QUEUES = 3, REGIONS = 1024, USES = 256 };
#define QUEUE(i) ((void *)(intptr_t)((i) + 1))

struct source {
    ctrt_memory_source source;                  /* also with pages */
    size_t capacity, used;
    uint64_t allocs, frees;
    long fences, ranges;                        /* that exist; ranges: reserved */
    ctrt_status fails;                          /* status of the next alloc */
    bool no_frees;                              /* a free is wrong now */
    bool readable;                              /* else an access by the host crashes */
    bool forgotten;                             /* memory is not real: of a clone */
    struct region { char *address; size_t bytes; } regions[REGIONS];
    /* the model of order */
    uint64_t known[QUEUES], host, last;         /* last: number of pieces of work */
    unsigned epoch;
    struct use { char *address; size_t bytes; uint64_t work; } uses[USES];
    int use_count;
};

/* `moves`: for a policy that moves blocks; its memory is readable, and free is ordered on the queue. */
void source_init(struct source *s, size_t capacity, uint32_t device_flags, bool moves);
/* Returns the memory of the source that contains the first of these bytes; NULL if not all are allocated. */
struct region *source_region(struct source *s, const char *address, size_t bytes);
/* Work on a queue uses the memory. Fails the check if that is not ordered after the earlier uses. */
void source_use(struct source *s, const char *address, size_t bytes, int queue);
/* Returns a fence for the work of `mask`. */
void *source_fence(struct source *s, uint64_t mask);
/* Makes the queue, or NULL: the host, wait for the fence, and frees the fence. */
void source_finish(struct source *s, void *fence, void *queue);

#endif
