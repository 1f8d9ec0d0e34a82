/* SPDX-License-Identifier: Apache-2.0 */
/* memory/account.h: counting a device's blocks, nearly free however many threads allocate.
 *
 * An atomic read-modify-write costs about as much as the rest of an allocation, and a shared counter does not
 * scale. So each thread has cells of its own for each device that it uses, which nobody else writes; a sum
 * over the threads is exact whenever no call is in flight. Memory may be allocated by one thread and freed by
 * another: one thread's cells then go below zero, the sum stays right.
 *
 * Peaks. A sum can only be at its highest just before a block is freed, so they are looked at there, once for
 * any run of allocations. With one thread they are exact. As soon as there are several, each publishes what
 * it holds every PUBLISH_CALLS calls or PUBLISH_BYTES bytes, and looks at what is published and its own: a peak
 * may then miss what other threads have not published yet.
 *
 * Windows. A peak is asked for since some moment: the start or the last reset, the beginning of a scope, the
 * last reading of the metrics. `peaks` holds those since the youngest such moment; when another one begins or
 * ends they are folded into all windows that are open. So windows nest and overlap as they like, and cost the
 * hot path nothing. */
#ifndef CORE_MEMORY_ACCOUNT_H
#define CORE_MEMORY_ACCOUNT_H

#include <stdalign.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/thread.h"
#include "ctrt/plugin.h"

/* What is counted of blocks, of each size class. */
enum { ACCOUNT_COUNT, ACCOUNT_BYTES, ACCOUNT_REQUESTED, ACCOUNT_METRICS };
enum { ACCOUNT_LARGE, ACCOUNT_SMALL, ACCOUNT_CLASSES };     /* CTRT_POOL_LARGE - 1, CTRT_POOL_SMALL - 1 */
#define ACCOUNT_SMALL_MOST ((size_t)1 << 20)                /* bytes of the largest block that is small */

/* The peaks: blocks by pool and metric, oversize blocks, what is drawn from the device by pool (count, bytes). */
enum {
    PEAK_BLOCKS = 0,
    PEAK_OVERSIZE = CTRT_POOLS * ACCOUNT_METRICS,
    PEAK_DRAWN,
    PEAKS = PEAK_DRAWN + CTRT_POOLS * 2
};
#define PEAK_OF(pool, metric)       (PEAK_BLOCKS + (pool) * ACCOUNT_METRICS + (metric))
#define PEAK_OF_DRAWN(pool, metric) (PEAK_DRAWN + (pool) * 2 + (metric))

typedef _Atomic int64_t account_cell;

/* One thread's. */
struct account_cells {
    struct account *account;                /* NULL: the device is gone; written under the lock */
    account_cell net[ACCOUNT_CLASSES][ACCOUNT_METRICS];     /* handed out less taken back */
    account_cell in[ACCOUNT_CLASSES][ACCOUNT_METRICS];      /* handed out, ever */
    account_cell over_net, over_in;                         /* oversize blocks */
    account_cell seen[ACCOUNT_CLASSES][ACCOUNT_METRICS];    /* how much of net is published */
    /* When the peaks were last looked at: what was held, and the account's epoch. Within both no peak can rise. */
    int64_t top[ACCOUNT_CLASSES][ACCOUNT_METRICS];
    uint32_t epoch;
    uint32_t rising;                        /* a peak may have risen since */
    uint32_t calls;                         /* since the last publishing */
    uint64_t bytes;
    _Atomic uint32_t publishing;            /* counts twice for each publishing: odd while somebody does */
    struct account_cells *next, *previous;  /* of the account */
};

struct account_window {
    int64_t peaks[PEAKS];
    struct account_window *next;
};

struct account {
    uint32_t index;                         /* place in each thread's table */
    _Atomic bool many;                      /* several threads count */
    _Atomic uint32_t epoch;                 /* of the peaks: counts how often they were begun anew */
    _Atomic size_t oversize;                /* blocks from here on count as oversize too; SIZE_MAX: none */
    account_cell peaks[PEAKS];
    struct account_cells *threads;          /* these three under the lock */
    struct account_window *windows;         /* the first is `life` */
    struct account_window life;
    /* What several threads write. */
    alignas(64) account_cell published[ACCOUNT_CLASSES][ACCOUNT_METRICS];
    account_cell ended_in[ACCOUNT_CLASSES][ACCOUNT_METRICS];    /* of threads that are gone */
    account_cell ended_over_net, ended_over_in;
    /* Drawn from the device and given back: ACCOUNT_COUNT and ACCOUNT_BYTES. */
    account_cell drawn_net[ACCOUNT_CLASSES][2], drawn_in[ACCOUNT_CLASSES][2];
};

/* What each thread finds in thread_state.memory. */
struct account_table {
    uint32_t room;
    struct account_cells *at[];
};

#define PUBLISH_CALLS 64
#define PUBLISH_BYTES ((uint64_t)1 << 20)

void account_init(struct account *account);
/* The threads' cells become theirs alone; nobody may use the account any more. */
void account_destroy(struct account *account);

/* The thread's cells, made at its first use of the account; NULL when there can be none. */
struct account_cells *account_enter(struct account *account);
void account_alloc_shared(struct account *account, size_t bytes, size_t requested);
void account_free_shared(struct account *account, size_t bytes, size_t requested);
/* Raises the peaks to what this thread sees. */
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

/* For the one who alone writes the cell. */
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

/* Counts one block handed out. */
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
    if (unlikely((count_now > top[ACCOUNT_COUNT]) | (bytes_now > top[ACCOUNT_BYTES]) | (requested_now > top[ACCOUNT_REQUESTED])
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

/* Counts one block taken back. */
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

/* Counts a segment drawn from the device (sign 1) or given back (-1). */
void account_drawn(struct account *account, size_t bytes, int sign);

/* ---- reading ---- */

struct account_figures {
    ctrt_memory_stat blocks[CTRT_POOLS][ACCOUNT_METRICS], oversize, drawn[CTRT_POOLS][2];
};

void account_read(struct account_figures *out, struct account *account);
/* One figure of all pools, without the lock when one thread counts. */
uint64_t account_current(struct account *account, int metric);
uint64_t account_drawn_bytes(const struct account *account);
/* All peaks become what is current. */
void account_reset_peaks(struct account *account);

/* Opens a window: its peaks begin as what is current. Closing leaves in it the peaks of its time. */
void account_window_open(struct account *account, struct account_window *window);
void account_window_close(struct account *account, struct account_window *window);
/* The peaks up to now into all open windows. */
void account_windows_update(struct account *account);
/* Reads the window and begins it anew, with no moment between. */
void account_window_turn(struct account *account, struct account_window *window, int64_t peaks[PEAKS]);

#endif
