/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/spill_names.c: names of blocks, which are addresses in a reserved range without memory.
 *
 * Reading at a name faults. A name is reused together with the block descriptor, within its size class, so that
 * allocating and freeing a name is a list operation. The range is large enough for the unused remainder of each
 * class. */
#include <sys/mman.h>

#include "spill.h"

#define RANGE ((size_t)1 << 40)
#define LEAST ((size_t)1 << 30)

unsigned spill_class(size_t bytes)
{
    if (bytes <= 8 * SPILL_GRANULE)
        return (unsigned)((bytes + SPILL_GRANULE - 1) / SPILL_GRANULE) - 1;
    const unsigned power = 63 - (unsigned)__builtin_clzll(bytes - 1);
    const size_t over = bytes - ((size_t)1 << power), step = (size_t)1 << (power - 3);
    return 8 + (power - 12) * 8 + (unsigned)((over + step - 1) / step) - 1;
}

size_t spill_class_bytes(unsigned class)
{
    if (class < 8)
        return (class + 1) * (size_t)SPILL_GRANULE;
    const unsigned power = 12 + (class - 8) / 8, eighth = (class - 8) % 8 + 1;
    return ((size_t)1 << power) + eighth * ((size_t)1 << (power - 3));
}

/* Reserves the range; a smaller one if the address space is limited. */
ctrt_status spill_names_open(struct spill *self)
{
    void *range = MAP_FAILED;
    size_t bytes = 2 * RANGE;
    while (range == MAP_FAILED && bytes > LEAST) {
        bytes /= 2;
        range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (range == MAP_FAILED)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY,
                          "spill: no address range of %zu bytes for the handles of blocks (ulimit -v)", bytes);
    self->names_from = self->names_at = range;
    self->names_end = self->names_from + bytes;
    return CTRT_OK;
}

void spill_names_close(struct spill *self)
{
    for (unsigned class = 0; class < SPILL_CLASSES; class++)
        for (struct block *block = self->names[class], *next; block != NULL; block = next) {
            next = block->after;
            host->free(block->others);
            host->free(block);
        }
    if (self->names_from != NULL)
        munmap(self->names_from, (size_t)(self->names_end - self->names_from));
}

static struct block *free_one(struct spill *self, unsigned class)
{
    struct block *block = self->names[class];
    if (block != NULL)
        self->names[class] = block->after;
    return block;
}

ctrt_status spill_name_new(struct spill *self, struct block **out, size_t bytes)
{
    const unsigned class = spill_class(bytes);
    const size_t whole = spill_class_bytes(class);
    struct block *block = free_one(self, class);
    if (block == NULL && whole <= (size_t)(self->names_end - self->names_at)) {
        block = policy_alloc("spill", sizeof *block);
        if (block == NULL)
            return CTRT_ERR_OUT_OF_MEMORY;
        block->name = self->names_at;
        block->class = class;
        self->names_at += whole;
    }
    /* The range is exhausted, so use a free name of a larger class. */
    for (unsigned larger = class + 1; block == NULL && larger < SPILL_CLASSES; larger++)
        block = free_one(self, larger);
    if (block == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY,
                          "spill: the address range of %zu bytes for the handles of blocks is used up",
                          (size_t)(self->names_end - self->names_from));
    block->bytes = bytes;
    block->place = HERE;
    block->uses = 0;
    block->written = block->ahead = block->follow = false;
    block->left = block->used = 0;
    block->address = block->home = NULL;
    block->other_count = 0;
    block->buffer = NULL;
    *out = block;
    return CTRT_OK;
}

void spill_name_free(struct spill *self, struct block *block)
{
    block->after = self->names[block->class];
    self->names[block->class] = block;
}
