/* SPDX-License-Identifier: Apache-2.0 */
/* memory/counters.c: the slow paths of the counters: threads that start and exit, peaks, windows, sums. */
#include "memory/counters.h"

#include "base/lock.h"
#include "base/host_alloc.h"

LOCK_DEFINE(counters_lock, LOCK_COUNTERS);
static uint32_t next_index;

void counters_init(struct counters *counters)
{
    memset(counters, 0, sizeof *counters);
    counters->oversize = SIZE_MAX;
    counters->windows = &counters->life;
    lock_enter(&counters_lock);
    counters->index = next_index++;
    lock_leave(&counters_lock);
}

void counters_destroy(struct counters *counters)
{
    lock_enter(&counters_lock);
    for (struct thread_counters *cells = counters->threads; cells != NULL; cells = cells->next)
        cells->counters = NULL;
    counters->threads = NULL;
    lock_leave(&counters_lock);
}

/* ---- threads ---- */

static void fetch_add(counter *cell, int64_t value)
{
    if (value != 0)
        atomic_fetch_add_explicit(cell, value, memory_order_relaxed);
}

/* Adds what `cells` have counted since they were last published to `published`. Called by the owning thread, or under
 * the lock. If another thread is publishing these cells, returns immediately. The release ordering lets a reader that
 * sees a part of the update also see that `publishing` is odd. */
static void publish(struct counters *counters, struct thread_counters *cells)
{
    uint32_t turn = atomic_load_explicit(&cells->publishing, memory_order_relaxed);
    if (turn % 2 == 1
        || !atomic_compare_exchange_strong_explicit(&cells->publishing, &turn, turn + 1, memory_order_acquire,
                                                    memory_order_relaxed))
        return;
    for (int class = 0; class < COUNTER_CLASSES; class++)
        for (int metric = 0; metric < COUNTER_METRICS; metric++) {
            int64_t hidden = counter_load(&cells->current[class][metric])
                             - counter_load(&cells->published[class][metric]);
            if (hidden == 0)
                continue;
            atomic_fetch_add_explicit(&cells->published[class][metric], hidden, memory_order_release);
            atomic_fetch_add_explicit(&counters->published[class][metric], hidden, memory_order_release);
        }
    atomic_store_explicit(&cells->publishing, turn + 2, memory_order_release);
}

/* Called when the thread exits: adds its counters to the device's totals of exited threads. */
static void counters_leave_all(struct thread_state *state)
{
    struct counter_table *table = state->memory;
    state->memory = NULL;
    if (table == NULL)
        return;
    lock_enter(&counters_lock);
    for (uint32_t i = 0; i < table->capacity; i++) {
        struct thread_counters *cells = table->at[i];
        struct counters *counters = cells != NULL ? cells->counters : NULL;
        if (counters != NULL) {
            publish(counters, cells);
            for (int class = 0; class < COUNTER_CLASSES; class++)
                for (int metric = 0; metric < COUNTER_METRICS; metric++)
                    fetch_add(&counters->exited_total[class][metric], counter_load(&cells->allocated[class][metric]));
            fetch_add(&counters->exited_oversize_net, counter_load(&cells->oversize_current));
            fetch_add(&counters->exited_oversize_total, counter_load(&cells->oversize_allocated));
            if (cells->next != NULL)
                cells->next->previous = cells->previous;
            *(cells->previous != NULL ? &cells->previous->next : &counters->threads) = cells->next;
            if (counters->threads == NULL || counters->threads->next == NULL)
                atomic_store_explicit(&counters->many, false, memory_order_relaxed);
        }
        free(cells);
    }
    lock_leave(&counters_lock);
    free(table);
}

__attribute__((constructor)) static void counters_start(void)
{
    thread_on_exit(counters_leave_all);
}

/* Plain realloc, so that injected failures do not occur here; without a table, the thread counts in shared counters. */
static struct counter_table *table_with(uint32_t index)
{
    struct counter_table *table = thread_state.memory;
    uint32_t capacity = table != NULL ? table->capacity : 0;
    if (index < capacity)
        return table;
    uint32_t wanted = MAX(2 * capacity, MAX(index + 1, 8u));
    table = realloc(table, sizeof *table + wanted * sizeof table->at[0]);
    if (table == NULL)
        return NULL;
    memset(table->at + capacity, 0, (wanted - capacity) * sizeof table->at[0]);
    table->capacity = wanted;
    thread_state.memory = table;
    return table;
}

struct thread_counters *counters_attach(struct counters *counters)
{
    /* Without an exit handler for the thread, its counts would be lost when it exits. */
    thread_register();
    struct counter_table *table = thread_state.registered ? table_with(counters->index) : NULL;
    struct thread_counters *cells = table != NULL ? aligned_alloc(64, (sizeof *cells + 63) / 64 * 64) : NULL;
    if (cells == NULL)
        return NULL;
    memset(cells, 0, sizeof *cells);
    cells->counters = counters;
    lock_enter(&counters_lock);
    /* The other threads may be idle from now on, and the only thread so far has published nothing while it was
     * alone. */
    for (struct thread_counters *other = counters->threads; other != NULL; other = other->next)
        publish(counters, other);
    cells->next = counters->threads;
    if (cells->next != NULL) {
        cells->next->previous = cells;
        atomic_store_explicit(&counters->many, true, memory_order_relaxed);
        atomic_fetch_add_explicit(&counters->epoch, 1, memory_order_relaxed);
    }
    counters->threads = cells;
    lock_leave(&counters_lock);
    table->at[counters->index] = cells;
    return cells;
}

/* ---- peaks ---- */

static void raise_to(struct counters *counters, int peak, int64_t value)
{
    counter *cell = &counters->peaks[peak];
    int64_t seen = counter_load(cell);
    if (likely(value <= seen))
        return;
    if (!atomic_load_explicit(&counters->many, memory_order_relaxed)) {
        counter_store(cell, value);
        return;
    }
    while (value > seen
           && !atomic_compare_exchange_weak_explicit(cell, &seen, value, memory_order_relaxed,
                                                     memory_order_relaxed))
        continue;
}

/* Computes the current totals that are visible to the calling thread: the published counters plus the thread's own
 * unpublished ones. A thread that is registering may be publishing `mine`; it holds the lock. */
static void see(int64_t now[COUNTER_METRICS][COUNTER_CLASSES], struct counters *counters, struct thread_counters *mine)
{
    for (;;) {
        const uint32_t turn = atomic_load_explicit(&mine->publishing, memory_order_acquire);
        if (unlikely(turn % 2 == 1)) {
            lock_enter(&counters_lock);
            lock_leave(&counters_lock);
            continue;
        }
        for (int class = 0; class < COUNTER_CLASSES; class++)
            for (int metric = 0; metric < COUNTER_METRICS; metric++)
                now[metric][class] = atomic_load_explicit(&counters->published[class][metric], memory_order_acquire)
                                     - atomic_load_explicit(&mine->published[class][metric], memory_order_acquire)
                                     + counter_load(&mine->current[class][metric]);
        if (likely(atomic_load_explicit(&mine->publishing, memory_order_relaxed) == turn))
            return;
    }
}

void counters_update_peaks(struct counters *counters, struct thread_counters *mine)
{
    int64_t now[COUNTER_METRICS][COUNTER_CLASSES];
    const uint32_t epoch = atomic_load_explicit(&counters->epoch, memory_order_relaxed);
    mine->settled = epoch;
    /* With several threads, every update must be evaluated, so store an epoch that never matches. */
    mine->epoch = atomic_load_explicit(&counters->many, memory_order_relaxed) ? ~epoch : epoch;
    for (int class = 0; class < COUNTER_CLASSES; class++)
        for (int metric = 0; metric < COUNTER_METRICS; metric++)
            mine->at_peak[class][metric] = counter_load(&mine->current[class][metric]);
    see(now, counters, mine);
    for (int metric = 0; metric < COUNTER_METRICS; metric++) {
        raise_to(counters, PEAK_OF(CTRT_POOL_ALL, metric), now[metric][COUNTER_LARGE] + now[metric][COUNTER_SMALL]);
        raise_to(counters, PEAK_OF(CTRT_POOL_LARGE, metric), now[metric][COUNTER_LARGE]);
        raise_to(counters, PEAK_OF(CTRT_POOL_SMALL, metric), now[metric][COUNTER_SMALL]);
    }
    if (unlikely(counters->oversize != SIZE_MAX))
        raise_to(counters, PEAK_OVERSIZE,
                 counter_load(&mine->oversize_current) + counter_load(&counters->exited_oversize_net));
}

void counters_publish(struct counters *counters, struct thread_counters *mine)
{
    mine->calls = 0;
    mine->bytes = 0;
    publish(counters, mine);
    counters_update_peaks(counters, mine);
}

/* ---- threads without their own counters ---- */

static void add_shared(struct counters *counters, size_t bytes, size_t requested, int sign)
{
    const int64_t change[COUNTER_METRICS] = { sign, sign * (int64_t)bytes, sign * (int64_t)requested };
    int class = counters_class(bytes);
    for (int metric = 0; metric < COUNTER_METRICS; metric++) {
        fetch_add(&counters->published[class][metric], change[metric]);
        if (sign > 0)
            fetch_add(&counters->exited_total[class][metric], change[metric]);
    }
    if (bytes >= counters->oversize) {
        fetch_add(&counters->exited_oversize_net, sign);
        fetch_add(&counters->exited_oversize_total, sign > 0);
    }
}

void counters_alloc_shared(struct counters *counters, size_t bytes, size_t requested)
{
    struct thread_counters none = { 0 };
    add_shared(counters, bytes, requested, 1);
    counters_update_peaks(counters, &none);
}

void counters_free_shared(struct counters *counters, size_t bytes, size_t requested)
{
    add_shared(counters, bytes, requested, -1);
}

/* ---- memory allocated from the device ---- */

void counters_count_segment(struct counters *counters, size_t bytes, int sign)
{
    const int64_t change[2] = { sign, sign * (int64_t)bytes };
    int class = counters_class(bytes);
    for (int metric = 0; metric < 2; metric++) {
        int64_t now = atomic_fetch_add_explicit(&counters->reserved_net[class][metric], change[metric],
                                                memory_order_relaxed) + change[metric];
        if (sign < 0)
            continue;
        fetch_add(&counters->reserved_total[class][metric], change[metric]);
        raise_to(counters, PEAK_OF_RESERVED(class + 1, metric), now);
        raise_to(counters, PEAK_OF_RESERVED(CTRT_POOL_ALL, metric),
                 now + counter_load(&counters->reserved_net[1 - class][metric]));
    }
}

uint64_t counters_reserved_bytes(const struct counters *counters)
{
    int64_t sum = counter_load(&counters->reserved_net[COUNTER_LARGE][COUNTER_BYTES])
                  + counter_load(&counters->reserved_net[COUNTER_SMALL][COUNTER_BYTES]);
    return sum > 0 ? (uint64_t)sum : 0;
}

/* ---- sums; the caller holds the lock ---- */

struct sums {
    int64_t current[PEAKS], allocated[PEAKS];
};

static void add_pool(struct sums *sums, int all, int pool, int64_t current, int64_t allocated)
{
    sums->current[all] += current;
    sums->allocated[all] += allocated;
    sums->current[pool] += current;
    sums->allocated[pool] += allocated;
}

static void counters_add_up(struct sums *sums, const struct counters *counters)
{
    memset(sums, 0, sizeof *sums);
    for (int class = 0; class < COUNTER_CLASSES; class++) {
        for (int metric = 0; metric < COUNTER_METRICS; metric++) {
            int64_t current = counter_load(&counters->published[class][metric]);
            int64_t allocated = counter_load(&counters->exited_total[class][metric]);
            for (const struct thread_counters *cells = counters->threads; cells != NULL; cells = cells->next) {
                current += counter_load(&cells->current[class][metric])
                           - counter_load(&cells->published[class][metric]);
                allocated += counter_load(&cells->allocated[class][metric]);
            }
            add_pool(sums, PEAK_OF(CTRT_POOL_ALL, metric), PEAK_OF(class + 1, metric), current, allocated);
        }
        for (int metric = 0; metric < 2; metric++)
            add_pool(sums, PEAK_OF_RESERVED(CTRT_POOL_ALL, metric), PEAK_OF_RESERVED(class + 1, metric),
                     counter_load(&counters->reserved_net[class][metric]),
                     counter_load(&counters->reserved_total[class][metric]));
    }
    sums->current[PEAK_OVERSIZE] = counter_load(&counters->exited_oversize_net);
    sums->allocated[PEAK_OVERSIZE] = counter_load(&counters->exited_oversize_total);
    for (const struct thread_counters *cells = counters->threads; cells != NULL; cells = cells->next) {
        sums->current[PEAK_OVERSIZE] += counter_load(&cells->oversize_current);
        sums->allocated[PEAK_OVERSIZE] += counter_load(&cells->oversize_allocated);
    }
    for (int i = 0; i < PEAKS; i++)             /* a sum may be negative while threads are counting */
        sums->current[i] = MAX(sums->current[i], 0);
}

/* Folds the peaks since the last fold, and the current sums, into all windows. A window that begins now starts with the
 * sums. The order matters while other threads count: a thread that frees a block after the epoch changed updates the
 * peaks first; a block that is not freed before that is in the sums. */
static void counters_fold(struct sums *sums, struct counters *counters)
{
    int64_t peaks[PEAKS];
    for (int i = 0; i < PEAKS; i++)
        peaks[i] = atomic_exchange_explicit(&counters->peaks[i], 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&counters->epoch, 1, memory_order_seq_cst);
    counters_add_up(sums, counters);
    for (int i = 0; i < PEAKS; i++)
        for (struct peak_window *window = counters->windows; window != NULL; window = window->next)
            window->peaks[i] = MAX(window->peaks[i], MAX(peaks[i], sums->current[i]));
}

/* ---- windows ---- */

static void begin(struct peak_window *window, const struct sums *sums)
{
    memcpy(window->peaks, sums->current, sizeof window->peaks);
}

void peak_window_open(struct counters *counters, struct peak_window *window)
{
    struct sums sums;
    lock_enter(&counters_lock);
    counters_fold(&sums, counters);
    begin(window, &sums);
    window->next = counters->windows;
    counters->windows = window;
    lock_leave(&counters_lock);
}

void peak_windows_update(struct counters *counters)
{
    struct sums sums;
    lock_enter(&counters_lock);
    counters_fold(&sums, counters);
    lock_leave(&counters_lock);
}

void peak_window_restart(struct counters *counters, struct peak_window *window, int64_t peaks[PEAKS])
{
    struct sums sums;
    lock_enter(&counters_lock);
    counters_fold(&sums, counters);
    memcpy(peaks, window->peaks, sizeof window->peaks);
    begin(window, &sums);
    lock_leave(&counters_lock);
}

void peak_window_close(struct counters *counters, struct peak_window *window)
{
    struct sums sums;
    lock_enter(&counters_lock);
    counters_fold(&sums, counters);
    for (struct peak_window **at = &counters->windows; *at != NULL; at = &(*at)->next)
        if (*at == window) {
            *at = window->next;
            break;
        }
    lock_leave(&counters_lock);
}

void counters_reset_peaks(struct counters *counters)
{
    struct sums sums;
    lock_enter(&counters_lock);
    counters_fold(&sums, counters);
    begin(&counters->life, &sums);
    lock_leave(&counters_lock);
}

/* ---- reading ---- */

static ctrt_stat stat_of(const struct sums *sums, const struct counters *counters, int i)
{
    return (ctrt_stat){ .current = sums->current[i], .peak = counters->life.peaks[i],
                               .allocated = sums->allocated[i], .freed = sums->allocated[i] - sums->current[i] };
}

void counters_read(struct counter_stats *out, struct counters *counters)
{
    struct sums sums;
    lock_enter(&counters_lock);
    counters_fold(&sums, counters);
    for (int pool = 0; pool < CTRT_POOLS; pool++) {
        for (int metric = 0; metric < COUNTER_METRICS; metric++)
            out->blocks[pool][metric] = stat_of(&sums, counters, PEAK_OF(pool, metric));
        for (int metric = 0; metric < 2; metric++)
            out->reserved[pool][metric] = stat_of(&sums, counters, PEAK_OF_RESERVED(pool, metric));
    }
    out->oversize = stat_of(&sums, counters, PEAK_OVERSIZE);
    lock_leave(&counters_lock);
}

uint64_t counters_current(struct counters *counters, int metric)
{
    struct sums sums;
    lock_enter(&counters_lock);
    counters_add_up(&sums, counters);
    lock_leave(&counters_lock);
    return (uint64_t)sums.current[PEAK_OF(CTRT_POOL_ALL, metric)];
}

/* ---- corrections ---- */

void counters_undo_free(struct counters *counters, size_t bytes, size_t requested)
{
    const int64_t change[COUNTER_METRICS] = { 1, (int64_t)bytes, (int64_t)requested };
    for (int metric = 0; metric < COUNTER_METRICS; metric++)
        fetch_add(&counters->published[counters_class(bytes)][metric], change[metric]);
    if (bytes >= counters->oversize)
        fetch_add(&counters->exited_oversize_net, 1);
    /* Threads compare with `at_peak` to detect a rising peak, and `at_peak` does not hold after this change. */
    atomic_fetch_add_explicit(&counters->epoch, 1, memory_order_relaxed);
}

void counters_copy(struct counters *counters, struct counters *other)
{
    struct counter_stats want, have;
    counters->oversize = other->oversize;
    counters_read(&want, other);
    counters_read(&have, counters);
    for (int class = 0; class < COUNTER_CLASSES; class++) {
        for (int metric = 0; metric < COUNTER_METRICS; metric++) {
            const ctrt_stat *to = &want.blocks[class + 1][metric], *from = &have.blocks[class + 1][metric];
            fetch_add(&counters->published[class][metric], to->current - from->current);
            fetch_add(&counters->exited_total[class][metric], to->allocated - from->allocated);
        }
        for (int metric = 0; metric < 2; metric++) {
            const ctrt_stat *to = &want.reserved[class + 1][metric], *from = &have.reserved[class + 1][metric];
            fetch_add(&counters->reserved_net[class][metric], to->current - from->current);
            fetch_add(&counters->reserved_total[class][metric], to->allocated - from->allocated);
        }
    }
    fetch_add(&counters->exited_oversize_net, want.oversize.current - have.oversize.current);
    fetch_add(&counters->exited_oversize_total, want.oversize.allocated - have.oversize.allocated);
    counters_reset_peaks(counters);
}
