/* SPDX-License-Identifier: Apache-2.0 */
/* memory/account.c: the slow half of counting. */
#include "memory/account.h"

/* The thread's end: whoever comes next may own what it owned. */
static void disown_all(struct thread_state *state)
{
    struct account *account = state->memory;
    state->memory = NULL;
    while (account != NULL) {
        struct account *next = account->next_owned;
        atomic_store_explicit(&account->owner, NULL, memory_order_release);
        account = next;
    }
}

__attribute__((constructor)) static void account_start(void)
{
    thread_on_exit(disown_all);
}

bool account_claim(struct account *account)
{
    struct thread_state *nobody = NULL;
    if (atomic_load_explicit(&account->owner, memory_order_relaxed) != NULL)
        return false;
    /* A thread whose end nobody would notice must not own anything: its successor at the same address would
     * be taken for it. */
    thread_register();
    if (!thread_state.registered
        || !atomic_compare_exchange_strong_explicit(&account->owner, &nobody, &thread_state,
                                                    memory_order_acquire, memory_order_relaxed))
        return false;
    account->next_owned = thread_state.memory;
    thread_state.memory = account;
    return true;
}

static void raise_to(_Atomic int64_t *peak, int64_t value)
{
    int64_t seen = account_load(peak);
    while (value > seen
           && !atomic_compare_exchange_weak_explicit(peak, &seen, value, memory_order_relaxed,
                                                     memory_order_relaxed))
        continue;
}

void account_add_shared(struct account *account, int64_t bytes)
{
    struct account_cells *shared = &account->shared;
    int64_t allocated = atomic_fetch_add_explicit(&shared->allocated, bytes, memory_order_relaxed) + bytes;
    atomic_fetch_add_explicit(&shared->allocations, 1, memory_order_relaxed);
    raise_to(&shared->peak, allocated + account_load(&account->own.allocated));
}

uint64_t account_allocated(const struct account *account)
{
    int64_t sum = account_load(&account->own.allocated) + account_load(&account->shared.allocated);
    return sum > 0 ? (uint64_t)sum : 0;
}

uint64_t account_peak(const struct account *account)
{
    int64_t peak = MAX(account_load(&account->own.peak), account_load(&account->shared.peak));
    return MAX((uint64_t)MAX(peak, 0), account_allocated(account));
}

void account_reset_peak(struct account *account)
{
    int64_t now = (int64_t)account_allocated(account);
    account_store(&account->own.peak, now);
    account_store(&account->shared.peak, now);
}
