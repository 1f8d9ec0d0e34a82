/* SPDX-License-Identifier: Apache-2.0 */
/* memory/account.h: counting a device's blocks, for programs of one thread nearly free.
 *
 * An atomic read-modify-write costs about as much as the rest of an allocation. So the first thread that uses
 * the device owns one set of cells and updates it with plain loads and stores; all other threads share a
 * second set and use read-modify-write. Nobody ever writes the owner's cells but the owner, so nothing is
 * lost and nothing has to be handed over; a sum is exact whenever no call is in flight. Memory may be
 * allocated by one kind of thread and freed by the other: one set then goes below zero, the sum stays right.
 * When the owner ends, the next thread that comes takes its cells over.
 *
 * The peak is exact with one thread. With several, each updates the peak by the sum that it sees, which may
 * miss what another thread does at the same instant. */
#ifndef CORE_MEMORY_ACCOUNT_H
#define CORE_MEMORY_ACCOUNT_H

#include <stdalign.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/thread.h"

struct account_cells {
    _Atomic int64_t allocated, peak, allocations, frees;
};

struct account {
    _Atomic(struct thread_state *) owner;
    struct account_cells own;
    struct account *next_owned;             /* of the same thread; thread_state.memory is the first */
    alignas(64) struct account_cells shared;
};

/* True when this thread owns the account, now or already. */
bool account_claim(struct account *account);
void account_add_shared(struct account *account, int64_t bytes);

static inline int64_t account_load(const _Atomic int64_t *cell)
{
    return atomic_load_explicit(cell, memory_order_relaxed);
}

static inline void account_store(_Atomic int64_t *cell, int64_t value)
{
    atomic_store_explicit(cell, value, memory_order_relaxed);
}

static inline bool account_owned(const struct account *account)
{
    return atomic_load_explicit(&account->owner, memory_order_relaxed) == &thread_state;
}

/* Counts one block handed out. */
static inline void account_alloc(struct account *account, size_t bytes)
{
    if (unlikely(!account_owned(account)) && !account_claim(account)) {
        account_add_shared(account, (int64_t)bytes);
        return;
    }
    struct account_cells *own = &account->own;
    int64_t allocated = account_load(&own->allocated) + (int64_t)bytes;
    account_store(&own->allocated, allocated);
    account_store(&own->allocations, account_load(&own->allocations) + 1);
    int64_t total = allocated + account_load(&account->shared.allocated);
    if (total > account_load(&own->peak))
        account_store(&own->peak, total);
}

/* Counts one block taken back. */
static inline void account_free(struct account *account, size_t bytes)
{
    if (unlikely(!account_owned(account)) && !account_claim(account)) {
        atomic_fetch_sub_explicit(&account->shared.allocated, (int64_t)bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&account->shared.frees, 1, memory_order_relaxed);
        return;
    }
    struct account_cells *own = &account->own;
    account_store(&own->allocated, account_load(&own->allocated) - (int64_t)bytes);
    account_store(&own->frees, account_load(&own->frees) + 1);
}

uint64_t account_allocated(const struct account *account);
uint64_t account_peak(const struct account *account);
void account_reset_peak(struct account *account);

#endif
