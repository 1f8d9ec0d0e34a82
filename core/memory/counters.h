/* SPDX-License-Identifier: Apache-2.0 */
/* memory/counters.h: counts a device's blocks and bytes at low cost, independent of the number of threads.
 *
 * An atomic read-modify-write costs about as much as the rest of an allocation, and a shared counter does not scale. So
 * each thread has its own counters for each device that it uses, and no other thread writes them. The sum over all
 * threads is exact whenever no call is in progress. Memory may be allocated by one thread and freed by another; the
 * counters of the freeing thread then become negative, and the sum remains correct.
 *
 * Peaks. A sum can reach a maximum only just before a block is freed, so peaks are updated there, once for any sequence
 * of allocations. With one thread, peaks are exact. With several threads, each thread publishes its counters every
 * PUBLISH_CALLS calls or PUBLISH_BYTES bytes, and computes peaks from the published counters and its own; a peak may
 * then miss what other threads have not published yet.
 *
 * Windows. A peak is reported for a period of time: since the start or the last reset, since the beginning of a scope,
 * or since the metrics were last read. `peaks` holds the peaks since the latest beginning of any window. When a window
 * begins or ends, `peaks` is folded into all open windows. So windows may nest and overlap, at no cost in the hot
 * path. */
#ifndef CORE_MEMORY_COUNTERS_H
#define CORE_MEMORY_COUNTERS_H

#include <stdalign.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/thread.h"
#include "ctrt/plugin.h"

/* The metrics counted for the blocks of each size class. */
enum { ACCOUNT_COUNT, ACCOUNT_BYTES, ACCOUNT_REQUESTED, ACCOUNT_METRICS };
enum { ACCOUNT_LARGE, ACCOUNT_SMALL, ACCOUNT_CLASSES };     /* CTRT_POOL_LARGE - 1, CTRT_POOL_SMALL - 1 */
#define ACCOUNT_SMALL_MOST ((size_t)1 << 20)                /* largest block of the small class, in bytes */

/* The peaks: blocks by pool and metric, oversize blocks, memory allocated from the device by pool (count, bytes). */
enum {
    PEAK_BLOCKS = 0,
    PEAK_OVERSIZE = CTRT_POOLS * ACCOUNT_METRICS,
    PEAK_DRAWN,
    PEAKS = PEAK_DRAWN + CTRT_POOLS * 2
};
#define PEAK_OF(pool, metric)       (PEAK_BLOCKS + (pool) * ACCOUNT_METRICS + (metric))
#define PEAK_OF_DRAWN(pool, metric) (PEAK_DRAWN + (pool) * 2 + (metric))

typedef _Atomic int64_t account_cell;

/* The counters of one thread for one account. Other threads only publish them, under the lock. */
struct account_cells {
    struct account *account;                /* NULL: the device was closed; written under the lock */
    account_cell net[ACCOUNT_CLASSES][ACCOUNT_METRICS];     /* allocated minus freed */
    account_cell in[ACCOUNT_CLASSES][ACCOUNT_METRICS];      /* allocated in total */
    account_cell over_net, over_in;                         /* oversize blocks */
    account_cell seen[ACCOUNT_CLASSES][ACCOUNT_METRICS];    /* part of `net` that is published */
    /* Values of `net`, and the account's epoch, when the peaks were last updated. Below `top` and in the same epoch, no
     * peak can rise. */
    int64_t top[ACCOUNT_CLASSES][ACCOUNT_METRICS];
    uint32_t epoch;
    uint32_t rising;                        /* a peak may have risen since then */
    uint32_t calls;                         /* since counters were last published */
    uint64_t bytes;
    _Atomic uint32_t publishing;            /* sequence lock, incremented twice by each publish; odd while a thread
                                             * publishes */
    struct account_cells *next, *previous;  /* of the account */
};

struct account_window {
    int64_t peaks[PEAKS];
    struct account_window *next;
};

struct account {
    uint32_t index;                         /* index in each thread's table */
    _Atomic bool many;                      /* several threads have counters */
    _Atomic uint32_t epoch;                 /* incremented when the peaks are reset to 0 */
    _Atomic size_t oversize;                /* blocks of this size or more also count as oversize; SIZE_MAX: none */
    account_cell peaks[PEAKS];
    struct account_cells *threads;          /* this and the next two: under the lock */
    struct account_window *windows;         /* open windows; always with `life` */
    struct account_window life;
    /* Written by several threads. */
    alignas(64) account_cell published[ACCOUNT_CLASSES][ACCOUNT_METRICS];
    account_cell ended_in[ACCOUNT_CLASSES][ACCOUNT_METRICS];    /* of threads that have exited */
    account_cell ended_over_net, ended_over_in;
    /* Memory allocated from the device, and freed to it: ACCOUNT_COUNT and ACCOUNT_BYTES. */
    account_cell drawn_net[ACCOUNT_CLASSES][2], drawn_in[ACCOUNT_CLASSES][2];
};

/* Type of thread_state.memory: the thread's counters by account.index. */
struct account_table {
    uint32_t room;
    struct account_cells *at[];
};

#define PUBLISH_CALLS 64
#define PUBLISH_BYTES ((uint64_t)1 << 20)

void account_init(struct account *account);
/* Detaches the threads' counters from the account. No thread may use the account any more. */
void account_destroy(struct account *account);

/* Returns the thread's counters, which are created when the thread first uses the account. NULL: out of memory, or the
 * thread's exit could not be observed; the caller then uses the two functions below. */
struct account_cells *account_enter(struct account *account);
void account_alloc_shared(struct account *account, size_t bytes, size_t requested);
void account_free_shared(struct account *account, size_t bytes, size_t requested);
/* Raises the peaks to the values that this thread can see. */
void account_look(struct account *account, struct account_cells *mine);
void account_publish(struct account *account, struct account_cells *mine);

static inline int64_t account_load(const account_cell *cell)
{
    return atomic_load_explicit(cell, memory_order_relaxed);
}

static inline void account_store(account_cell *cell, int64_t value)
{
    atomic_store_explicit(cell, value, memory_order_relaxed);
}

/* For counters that only the calling thread writes. */
static inline void account_add(account_cell *cell, int64_t value)
{
    account_store(cell, account_load(cell) + value);
}

static inline struct account_cells *account_here(struct account *account)
{
    struct account_table *table = thread_state.memory;
    if (likely(table != NULL && account->index < table->room && table->at[account->index] != NULL))
        return table->at[account->index];
    return account_enter(account);
}

static inline int account_class(size_t bytes)
{
    return bytes <= ACCOUNT_SMALL_MOST ? ACCOUNT_SMALL : ACCOUNT_LARGE;
}

static inline void account_publish_now_and_then(struct account *account, struct account_cells *mine, size_t bytes)
{
    if (likely(!atomic_load_explicit(&account->many, memory_order_relaxed)))
        return;
    mine->bytes += bytes;
    if (++mine->calls >= PUBLISH_CALLS || mine->bytes >= PUBLISH_BYTES)
        account_publish(account, mine);
}

/* Counts an allocated block. `bytes`: its size; `requested`: the size that was requested. */
static inline void account_alloc(struct account *account, size_t bytes, size_t requested)
{
#ifdef CTRT_WITHOUT_ACCOUNTING              /* bench/bookkeeping.sh */
    return;
#endif
    struct account_cells *mine = account_here(account);
    if (unlikely(mine == NULL)) {
        account_alloc_shared(account, bytes, requested);
        return;
    }
    int class = account_class(bytes);
    const int64_t count_now = account_load(&mine->net[class][ACCOUNT_COUNT]) + 1;
    const int64_t bytes_now = account_load(&mine->net[class][ACCOUNT_BYTES]) + (int64_t)bytes;
    const int64_t requested_now = account_load(&mine->net[class][ACCOUNT_REQUESTED]) + (int64_t)requested;
    account_store(&mine->net[class][ACCOUNT_COUNT], count_now);
    account_store(&mine->net[class][ACCOUNT_BYTES], bytes_now);
    account_store(&mine->net[class][ACCOUNT_REQUESTED], requested_now);
    const int64_t *top = mine->top[class];
    if (unlikely((count_now > top[ACCOUNT_COUNT]) | (bytes_now > top[ACCOUNT_BYTES])
                 | (requested_now > top[ACCOUNT_REQUESTED])
                 | (mine->epoch != atomic_load_explicit(&account->epoch, memory_order_relaxed))))
        mine->rising = 1;
    account_add(&mine->in[class][ACCOUNT_COUNT], 1);
    account_add(&mine->in[class][ACCOUNT_BYTES], (int64_t)bytes);
    account_add(&mine->in[class][ACCOUNT_REQUESTED], (int64_t)requested);
    if (unlikely(bytes >= atomic_load_explicit(&account->oversize, memory_order_relaxed))) {
        account_add(&mine->over_net, 1);
        account_add(&mine->over_in, 1);
    }
    account_publish_now_and_then(account, mine, bytes);
}

/* Counts a freed block, with the sizes that account_alloc got. */
static inline __attribute__((always_inline)) void account_free(struct account *account, size_t bytes, size_t requested)
{
#ifdef CTRT_WITHOUT_ACCOUNTING
    return;
#endif
    struct account_cells *mine = account_here(account);
    if (unlikely(mine == NULL)) {
        account_free_shared(account, bytes, requested);
        return;
    }
    if (unlikely(mine->rising))
        account_look(account, mine);
    int class = account_class(bytes);
    account_add(&mine->net[class][ACCOUNT_COUNT], -1);
    account_add(&mine->net[class][ACCOUNT_BYTES], -(int64_t)bytes);
    account_add(&mine->net[class][ACCOUNT_REQUESTED], -(int64_t)requested);
    if (unlikely(bytes >= atomic_load_explicit(&account->oversize, memory_order_relaxed)))
        account_add(&mine->over_net, -1);
    account_publish_now_and_then(account, mine, bytes);
}

/* Counts a segment that was allocated from the device (sign 1) or freed to it (-1). */
void account_drawn(struct account *account, size_t bytes, int sign);

/* ---- reading ---- */

struct account_stats {
    ctrt_stat blocks[CTRT_POOLS][ACCOUNT_METRICS], oversize, drawn[CTRT_POOLS][2];
};

void account_read(struct account_stats *out, struct account *account);
/* The current value of one metric over all pools. */
uint64_t account_current(struct account *account, int metric);
uint64_t account_drawn_bytes(const struct account *account);
/* Sets all peaks to the current values. */
void account_reset_peaks(struct account *account);

/* Opens a window, whose peaks start at the current values. After close, the window holds the peaks of its time. */
void account_window_open(struct account *account, struct account_window *window);
void account_window_close(struct account *account, struct account_window *window);
/* Folds the peaks so far into all open windows. */
void account_windows_update(struct account *account);
/* Reads the peaks of the window and restarts it, atomically. */
void account_window_turn(struct account *account, struct account_window *window, int64_t peaks[PEAKS]);

#endif
