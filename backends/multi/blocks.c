/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/blocks.c: the logical addresses of blocks.
 *
 * Block number i begins at FIRST + i * SPACING. No memory can be mapped at these addresses, because user addresses have
 * at most 57 bits, so an access of the host by mistake faults. AArch64 ignores the upper 8 bits, so there it faults
 * because of bits 48 to 55, which are 0 in 256 of 65536 blocks only, and not in the first ones. The number of a block
 * is computed from an address within the block by one division. The table of blocks consists of chunks that are never
 * moved or freed, so a lookup needs no lock. */
#include "multi.h"
#include "plugins/common/fork.h"

#include <stdint.h>

#define FIRST    ((uintptr_t)1 << 62)
#define SHIFT    40                     /* SPACING is 1 TiB, the largest block */
#define CHUNK    4096
#define CHUNKS   512                    /* 2^21 blocks */

FORK_MUTEX(lock)
static struct multi_block *_Atomic *_Atomic chunks[CHUNKS];
static uint32_t *unused;                /* numbers of freed blocks */
static size_t unused_count, unused_capacity;
/* The numbers below this one have been used; the first of all has bit 48. */
static uint32_t used = ((uintptr_t)1 << 48) >> SHIFT;

struct multi_block *multi_block_of(const void *address)
{
    const uintptr_t place = (uintptr_t)address - FIRST;
    const uintptr_t number = place >> SHIFT;
    if ((uintptr_t)address < FIRST || number >= (uintptr_t)CHUNK * CHUNKS)
        return NULL;
    struct multi_block *_Atomic *chunk = atomic_load_explicit(&chunks[number / CHUNK], memory_order_acquire);
    return chunk != NULL ? atomic_load_explicit(&chunk[number % CHUNK], memory_order_acquire) : NULL;
}

/* Reserves room so that freeing every block later needs no memory. Requires the lock. */
static bool reserve(void)
{
    const uint32_t chunk = used / CHUNK;
    if (used >= unused_capacity) {
        const size_t capacity = unused_capacity + CHUNK;
        uint32_t *larger = multi_host->alloc(capacity * sizeof *larger);
        if (larger == NULL)
            return false;
        if (unused_count > 0)
            memcpy(larger, unused, unused_count * sizeof *larger);
        multi_host->free(unused);
        unused = larger;
        unused_capacity = capacity;
    }
    if (atomic_load_explicit(&chunks[chunk], memory_order_relaxed) != NULL)
        return true;
    struct multi_block *_Atomic *fresh = multi_host->alloc(CHUNK * sizeof *fresh);
    if (fresh == NULL)
        return false;
    memset((void *)fresh, 0, CHUNK * sizeof *fresh);
    atomic_store_explicit(&chunks[chunk], fresh, memory_order_release);
    return true;
}

/* Adds the block to the table and sets its address. Returns false without memory or after the last number. */
static bool enter(struct multi_block *block)
{
    uint32_t number = UINT32_MAX;
    pthread_mutex_lock(&lock);
    if (unused_count > 0)
        number = unused[--unused_count];
    else if (used < (uint32_t)CHUNK * CHUNKS && reserve())
        number = used++;
    if (number != UINT32_MAX) {
        block->address = (char *)(FIRST + ((uintptr_t)number << SHIFT));
        atomic_store_explicit(&atomic_load(&chunks[number / CHUNK])[number % CHUNK], block, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return number != UINT32_MAX;
}

ctrt_status multi_alloc(void *handle, void **address, size_t bytes)
{
    CTRT_TRY(multi_members_open(handle));
    if (bytes == 0 || bytes > (size_t)1 << SHIFT)
        return multi_host->fail(bytes == 0 ? CTRT_ERR_INVALID_ARGUMENT : CTRT_ERR_OUT_OF_MEMORY,
                                "%s: an allocation of %zu bytes; the largest has 1 TiB", multi_kind.name, bytes);
    struct multi_block *block = multi_host->alloc(sizeof *block);
    if (block == NULL)
        return multi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a block", multi_kind.name);
    memset(block, 0, sizeof *block);
    block->bytes = bytes;
    if (!enter(block)) {
        multi_host->free(block);
        return multi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for another block, or more than %d blocks",
                                multi_kind.name, CHUNK * CHUNKS);
    }
    *address = block->address;
    return CTRT_OK;
}

void multi_free(void *handle, void *address, size_t bytes)
{
    struct multi_block *block = multi_block_of(address);
    (void)handle;
    (void)bytes;
    if (block == NULL || block->address != address) {
        if (address != NULL)
            multi_host->log(CTRT_LOG_ERROR, multi_kind.name, "free of %p, which is not the start of a block", address);
        return;
    }
    const uint32_t number = (uint32_t)(((uintptr_t)address - FIRST) >> SHIFT);
    pthread_mutex_lock(&lock);
    atomic_store_explicit(&atomic_load(&chunks[number / CHUNK])[number % CHUNK], NULL, memory_order_release);
    unused[unused_count++] = number;
    pthread_mutex_unlock(&lock);
    multi_data_release(&block->data);
    multi_host->free(block);
}
