/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/spill_choice.c: selection of the blocks to move to the host.
 *
 * The freed memory must be contiguous: a single block or a run of neighbours. Candidates are all runs of unused
 * neighbours that are large enough, first among the older half of the blocks, then among all. Of these, the run with
 * the fewest bytes to copy is selected, and among equals the least recently used one. Memory of the requesting queue is
 * preferred, because the underlying policy may reserve other queues' memory for them. If no run is large enough, the
 * oldest block is selected, and the caller tries again. */
#include <stdlib.h>

#include "spill.h"

struct spill_choice_candidate {
    struct block *block;
    size_t rank;                        /* by age; 0 is the oldest */
};

static int by_address(const void *a, const void *b)
{
    const struct spill_choice_candidate *x = a, *y = b;
    return x->block->address < y->block->address ? -1 : x->block->address > y->block->address;
}

struct spill_choice_run {
    size_t from, count, moved, rank;    /* rank: of the run's most recently used block */
};

/* Reports whether `a` and `b` can be parts of one run. A block in use ends a run, because the memory on both of its
 * sides is not contiguous. */
static bool joins(const struct spill_choice_candidate *a, const struct spill_choice_candidate *b)
{
    return (char *)a->block->address + a->block->bytes <= (char *)b->block->address && a->block->uses == 0
           && b->block->uses == 0;
}

/* Finds the best run among the blocks with a rank below `oldest`; if `queue` is not NULL, only of that queue. */
static bool best_run(struct spill_choice_run *best, const struct spill_choice_candidate *at, size_t count, size_t bytes,
                     size_t oldest, const void *queue)
{
    bool found = false;
    for (size_t i = 0; i < count; i++) {
        struct spill_choice_run run = { i, 0, 0, 0 };
        const char *begin = at[i].block->address;
        for (size_t k = i; k < count; k++) {
            const struct block *block = at[k].block;
            if (block->uses > 0 || at[k].rank >= oldest || (queue != NULL && block->home != queue)
                || (k > i && !joins(&at[k - 1], &at[k])))
                break;
            run.count++;
            run.moved += block->written ? block->bytes : 0;
            if (at[k].rank > run.rank)
                run.rank = at[k].rank;
            if (found && (run.moved > best->moved || (run.moved == best->moved && run.rank >= best->rank)))
                break;
            if ((size_t)((const char *)block->address + block->bytes - begin) >= bytes) {
                *best = run;
                found = true;
                break;
            }
        }
    }
    return found;
}

static struct block *take_oldest(struct list *here)
{
    for (struct block *block = here->first; block != NULL; block = block->after)
        if (block->uses == 0) {
            list_take(here, block);
            block->after = NULL;
            return block;
        }
    return NULL;
}

struct block *spill_choose(struct list *here, size_t bytes, const void *queue)
{
    size_t count = 0, idle = 0;
    for (struct block *block = here->first; block != NULL; block = block->after) {
        count++;
        idle += block->uses == 0;
    }
    if (idle == 0)
        return NULL;
    struct spill_choice_candidate *at = host->alloc(count * sizeof *at);
    if (at == NULL)
        return take_oldest(here);
    count = idle = 0;
    for (struct block *block = here->first; block != NULL; block = block->after)
        at[count++] = (struct spill_choice_candidate){ block, block->uses == 0 ? idle++ : 0 };
    qsort(at, count, sizeof *at, by_address);
    struct spill_choice_run run = { 0 };
    bool found = false;
    for (int pass = 0; pass < 4 && !found; pass++)
        found = best_run(&run, at, count, bytes, pass % 2 == 0 ? (idle + 1) / 2 : idle, pass < 2 ? queue : NULL);
    struct block *victims = NULL;
    for (size_t i = 0; found && i < run.count; i++) {
        struct block *block = at[run.from + i].block;
        list_take(here, block);
        block->after = victims;
        victims = block;
    }
    host->free(at);
    return victims != NULL ? victims : take_oldest(here);
}
