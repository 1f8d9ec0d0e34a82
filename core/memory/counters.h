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
enum { COUNTER_COUNT, COUNTER_BYTES, COUNTER_REQUESTED, COUNTER_METRICS };
enum { COUNTER_LARGE, COUNTER_SMALL, COUNTER_CLASSES };     /* CTRT_POOL_LARGE - 1, CTRT_POOL_SMALL - 1 */
#define COUNTER_SMALL_MOST ((size_t)1 << 20)                /* largest block of the small class, in bytes */

/* The peaks: blocks by pool and metric, oversize blocks, memory allocated from the device by pool (count, bytes). */
enum {
    PEAK_BLOCKS = 0,
    PEAK_OVERSIZE = CTRT_POOLS * COUNTER_METRICS,
    PEAK_RESERVED,
    PEAKS = PEAK_RESERVED + CTRT_POOLS * 2
};
#define PEAK_OF(pool, metric)       (PEAK_BLOCKS + (pool) * COUNTER_METRICS + (metric))
#define PEAK_OF_RESERVED(pool, metric) (PEAK_RESERVED + (pool) * 2 + (metric))

typedef _Atomic int64_t counter;

/* The counters of one thread for one device. Other threads only publish them, under the lock. */
struct thread_counters {
    struct counters *counters;              /* NULL: the device was closed; written under the lock */
    counter current[COUNTER_CLASSES][COUNTER_METRICS];      /* allocated minus freed */
    counter allocated[COUNTER_CLASSES][COUNTER_METRICS];    /* in total */
    counter oversize_current, oversize_allocated;           /* oversize blocks */
    counter published[COUNTER_CLASSES][COUNTER_METRICS];    /* part of `current` that is published */
    /* Values of `current`, and the counters' epoch, when the peaks were last updated. Below `at_peak` and in the same
     * epoch, no peak can rise. */
    int64_t at_peak[COUNTER_CLASSES][COUNTER_METRICS];
    uint32_t epoch;
    uint32_t settled;                       /* the epoch whose peaks include all of `current` */
    uint32_t calls;                         /* since counters were last published */
    uint64_t bytes;
    _Atomic uint32_t publishing;            /* sequence lock, incremented twice by each publish; odd while a thread
                                             * publishes */
    struct thread_counters *next, *previous;    /* of the same device */
};

struct peak_window {
    int64_t peaks[PEAKS];
    struct peak_window *next;
};

struct counters {
    uint32_t index;                         /* index in each thread's table */
    _Atomic bool many;                      /* several threads have counters */
    _Atomic uint32_t epoch;                 /* incremented when the peaks are reset to 0 */
    _Atomic size_t oversize;                /* blocks of this size or more also count as oversize; SIZE_MAX: none */
    counter peaks[PEAKS];
    struct thread_counters *threads;        /* this and the next two: under the lock */
    struct peak_window *windows;            /* open windows; always with `life` */
    struct peak_window life;
    /* Written by several threads. */
    alignas(64) counter published[COUNTER_CLASSES][COUNTER_METRICS];
    counter exited_total[COUNTER_CLASSES][COUNTER_METRICS];     /* of threads that have exited */
    counter exited_oversize_net, exited_oversize_total;
    /* Memory allocated from the device, and freed to it: COUNTER_COUNT and COUNTER_BYTES. */
    counter reserved_net[COUNTER_CLASSES][2], reserved_total[COUNTER_CLASSES][2];
};

/* Type of thread_state.memory: the thread's counters by counters.index. */
struct counter_table {
    uint32_t capacity;
    struct thread_counters *at[];
};

#define PUBLISH_CALLS 64
#define PUBLISH_BYTES ((uint64_t)1 << 20)

void counters_init(struct counters *counters);
/* Detaches the threads' counters from `counters`, which no thread may use any more. */
void counters_destroy(struct counters *counters);

/* Returns the thread's counters, which are created when the thread first uses the device. NULL: out of memory, or the
 * thread's exit could not be observed; the caller then uses the two functions below. */
struct thread_counters *counters_attach(struct counters *counters);
void counters_alloc_shared(struct counters *counters, size_t bytes, size_t requested);
void counters_free_shared(struct counters *counters, size_t bytes, size_t requested);
/* Raises the peaks to the values that this thread can see. */
void counters_update_peaks(struct counters *counters, struct thread_counters *mine);
void counters_publish(struct counters *counters, struct thread_counters *mine);

static inline int64_t counter_load(const counter *cell)
{
    return atomic_load_explicit(cell, memory_order_relaxed);
}

static inline void counter_store(counter *cell, int64_t value)
{
    atomic_store_explicit(cell, value, memory_order_relaxed);
}

/* For counters that only the calling thread writes. */
static inline void counter_add(counter *cell, int64_t value)
{
    counter_store(cell, counter_load(cell) + value);
}

static inline struct thread_counters *counters_here(struct counters *counters)
{
    struct counter_table *table = thread_state.memory;
    if (likely(table != NULL && counters->index < table->capacity && table->at[counters->index] != NULL))
        return table->at[counters->index];
    return counters_attach(counters);
}

static inline int counters_class(size_t bytes)
{
    return bytes <= COUNTER_SMALL_MOST ? COUNTER_SMALL : COUNTER_LARGE;
}

static inline void counters_maybe_publish(struct counters *counters, struct thread_counters *mine, size_t bytes)
{
    if (likely(!atomic_load_explicit(&counters->many, memory_order_relaxed)))
        return;
    mine->bytes += bytes;
    if (++mine->calls >= PUBLISH_CALLS || mine->bytes >= PUBLISH_BYTES)
        counters_publish(counters, mine);
}

/* Counts an allocated block. `bytes`: its size; `requested`: the size that was requested. */
static inline void counters_alloc(struct counters *counters, size_t bytes, size_t requested)
{
#ifdef CTRT_WITHOUT_COUNTERS                /* bench/bookkeeping.sh */
    return;
#endif
    struct thread_counters *mine = counters_here(counters);
    if (unlikely(mine == NULL)) {
        counters_alloc_shared(counters, bytes, requested);
        return;
    }
    int class = counters_class(bytes);
    const int64_t count_now = counter_load(&mine->current[class][COUNTER_COUNT]) + 1;
    const int64_t bytes_now = counter_load(&mine->current[class][COUNTER_BYTES]) + (int64_t)bytes;
    const int64_t requested_now = counter_load(&mine->current[class][COUNTER_REQUESTED]) + (int64_t)requested;
    counter_store(&mine->current[class][COUNTER_COUNT], count_now);
    counter_store(&mine->current[class][COUNTER_BYTES], bytes_now);
    counter_store(&mine->current[class][COUNTER_REQUESTED], requested_now);
    const int64_t *at_peak = mine->at_peak[class];
    const uint32_t epoch = atomic_load_explicit(&counters->epoch, memory_order_relaxed);
    if (unlikely((count_now > at_peak[COUNTER_COUNT]) | (bytes_now > at_peak[COUNTER_BYTES])
                 | (requested_now > at_peak[COUNTER_REQUESTED])
                 | (mine->epoch != epoch)))
        mine->settled = epoch - 1;
    counter_add(&mine->allocated[class][COUNTER_COUNT], 1);
    counter_add(&mine->allocated[class][COUNTER_BYTES], (int64_t)bytes);
    counter_add(&mine->allocated[class][COUNTER_REQUESTED], (int64_t)requested);
    if (unlikely(bytes >= atomic_load_explicit(&counters->oversize, memory_order_relaxed))) {
        counter_add(&mine->oversize_current, 1);
        counter_add(&mine->oversize_allocated, 1);
    }
    counters_maybe_publish(counters, mine, bytes);
}

/* Counts a freed block, with the sizes that counters_alloc got. */
static inline __attribute__((always_inline)) void counters_free(struct counters *counters, size_t bytes,
                                                                size_t requested)
{
#ifdef CTRT_WITHOUT_COUNTERS
    return;
#endif
    struct thread_counters *mine = counters_here(counters);
    if (unlikely(mine == NULL)) {
        counters_free_shared(counters, bytes, requested);
        return;
    }
    /* Not only a flag that the allocation has set, because a processor may load the epoch before other threads see the
     * block in `current`. A window that begins at this moment would then neither see the block nor have its peak. */
    if (unlikely(mine->settled != atomic_load_explicit(&counters->epoch, memory_order_relaxed)))
        counters_update_peaks(counters, mine);
    int class = counters_class(bytes);
    counter_add(&mine->current[class][COUNTER_COUNT], -1);
    counter_add(&mine->current[class][COUNTER_BYTES], -(int64_t)bytes);
    counter_add(&mine->current[class][COUNTER_REQUESTED], -(int64_t)requested);
    if (unlikely(bytes >= atomic_load_explicit(&counters->oversize, memory_order_relaxed)))
        counter_add(&mine->oversize_current, -1);
    counters_maybe_publish(counters, mine, bytes);
}

/* Reverts counters_free for a block that these counters never counted. */
void counters_undo_free(struct counters *counters, size_t bytes, size_t requested);
/* Sets `counters` to the values of `other`, and the peaks to the current values. No other thread may use `counters`. */
void counters_copy(struct counters *counters, struct counters *other);

/* Counts a segment that was allocated from the device (sign 1) or freed to it (-1). */
void counters_count_segment(struct counters *counters, size_t bytes, int sign);

/* ---- reading ---- */

struct counter_stats {
    ctrt_stat blocks[CTRT_POOLS][COUNTER_METRICS], oversize, reserved[CTRT_POOLS][2];
};

void counters_read(struct counter_stats *out, struct counters *counters);
/* The current value of one metric over all pools. */
uint64_t counters_current(struct counters *counters, int metric);
uint64_t counters_reserved_bytes(const struct counters *counters);
/* Sets all peaks to the current values. */
void counters_reset_peaks(struct counters *counters);

/* Opens a window, whose peaks start at the current values. After close, the window holds the peaks of its time. */
void peak_window_open(struct counters *counters, struct peak_window *window);
void peak_window_close(struct counters *counters, struct peak_window *window);
/* Folds the peaks so far into all open windows. */
void peak_windows_update(struct counters *counters);
/* Reads the peaks of the window and restarts it, atomically. */
void peak_window_restart(struct counters *counters, struct peak_window *window, int64_t peaks[PEAKS]);

#endif
