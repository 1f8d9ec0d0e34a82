/* SPDX-License-Identifier: Apache-2.0 */
/* memory/counters.c: the slow paths of the counters: threads that start and exit, peaks, windows, sums. */
#include "memory/counters.h"

#include "base/lock.h"
#include "base/host_alloc.h"

LOCK_DEFINE(account_lock, LOCK_ACCOUNT);
static uint32_t next_index;

void account_init(struct account *account)
{
    memset(account, 0, sizeof *account);
    account->oversize = SIZE_MAX;
    account->windows = &account->life;
    lock_enter(&account_lock);
    account->index = next_index++;
    lock_leave(&account_lock);
}

void account_destroy(struct account *account)
{
    lock_enter(&account_lock);
    for (struct account_cells *cells = account->threads; cells != NULL; cells = cells->next)
        cells->account = NULL;
    account->threads = NULL;
    lock_leave(&account_lock);
}

/* ---- threads ---- */

static void fetch_add(account_cell *cell, int64_t value)
{
    if (value != 0)
        atomic_fetch_add_explicit(cell, value, memory_order_relaxed);
}

/* Adds what `cells` have counted since they were last published to `published`. Called by the owning thread, or under
 * the lock. If another thread is publishing these cells, returns immediately. The release ordering lets a reader that
 * sees a part of the update also see that `publishing` is odd. */
static void publish(struct account *account, struct account_cells *cells)
{
    uint32_t turn = atomic_load_explicit(&cells->publishing, memory_order_relaxed);
    if (turn % 2 == 1
        || !atomic_compare_exchange_strong_explicit(&cells->publishing, &turn, turn + 1, memory_order_acquire,
                                                    memory_order_relaxed))
        return;
    for (int class = 0; class < ACCOUNT_CLASSES; class++)
        for (int metric = 0; metric < ACCOUNT_METRICS; metric++) {
            int64_t hidden = account_load(&cells->net[class][metric]) - account_load(&cells->seen[class][metric]);
            if (hidden == 0)
                continue;
            atomic_fetch_add_explicit(&cells->seen[class][metric], hidden, memory_order_release);
            atomic_fetch_add_explicit(&account->published[class][metric], hidden, memory_order_release);
        }
    atomic_store_explicit(&cells->publishing, turn + 2, memory_order_release);
}

/* Called when the thread exits: adds its counters to those of the account. */
static void leave_all(struct thread_state *state)
{
    struct account_table *table = state->memory;
    state->memory = NULL;
    if (table == NULL)
        return;
    lock_enter(&account_lock);
    for (uint32_t i = 0; i < table->room; i++) {
        struct account_cells *cells = table->at[i];
        struct account *account = cells != NULL ? cells->account : NULL;
        if (account != NULL) {
            publish(account, cells);
            for (int class = 0; class < ACCOUNT_CLASSES; class++)
                for (int metric = 0; metric < ACCOUNT_METRICS; metric++)
                    fetch_add(&account->ended_in[class][metric], account_load(&cells->in[class][metric]));
            fetch_add(&account->ended_over_net, account_load(&cells->over_net));
            fetch_add(&account->ended_over_in, account_load(&cells->over_in));
            if (cells->next != NULL)
                cells->next->previous = cells->previous;
            *(cells->previous != NULL ? &cells->previous->next : &account->threads) = cells->next;
            if (account->threads == NULL || account->threads->next == NULL)
                atomic_store_explicit(&account->many, false, memory_order_relaxed);
        }
        free(cells);
    }
    lock_leave(&account_lock);
    free(table);
}

__attribute__((constructor)) static void account_start(void)
{
    thread_on_exit(leave_all);
}

/* Plain realloc, so that injected failures do not occur here; without a table, the thread counts in shared counters. */
static struct account_table *table_with(uint32_t index)
{
    struct account_table *table = thread_state.memory;
    uint32_t room = table != NULL ? table->room : 0;
    if (index < room)
        return table;
    uint32_t wanted = MAX(2 * room, MAX(index + 1, 8u));
    table = realloc(table, sizeof *table + wanted * sizeof table->at[0]);
    if (table == NULL)
        return NULL;
    memset(table->at + room, 0, (wanted - room) * sizeof table->at[0]);
    table->room = wanted;
    thread_state.memory = table;
    return table;
}

struct account_cells *account_enter(struct account *account)
{
    /* Without an exit handler for the thread, its counts would be lost when it exits. */
    thread_register();
    struct account_table *table = thread_state.registered ? table_with(account->index) : NULL;
    struct account_cells *cells = table != NULL ? aligned_alloc(64, (sizeof *cells + 63) / 64 * 64) : NULL;
    if (cells == NULL)
        return NULL;
    memset(cells, 0, sizeof *cells);
    cells->account = account;
    lock_enter(&account_lock);
    /* The other threads may be idle from now on, and the only thread so far has published nothing while it was
     * alone. */
    for (struct account_cells *other = account->threads; other != NULL; other = other->next)
        publish(account, other);
    cells->next = account->threads;
    if (cells->next != NULL) {
        cells->next->previous = cells;
        atomic_store_explicit(&account->many, true, memory_order_relaxed);
        atomic_fetch_add_explicit(&account->epoch, 1, memory_order_relaxed);
    }
    account->threads = cells;
    lock_leave(&account_lock);
    table->at[account->index] = cells;
    return cells;
}

/* ---- peaks ---- */

static void raise_to(struct account *account, int peak, int64_t value)
{
    account_cell *cell = &account->peaks[peak];
    int64_t seen = account_load(cell);
    if (likely(value <= seen))
        return;
    if (!atomic_load_explicit(&account->many, memory_order_relaxed)) {
        account_store(cell, value);
        return;
    }
    while (value > seen
           && !atomic_compare_exchange_weak_explicit(cell, &seen, value, memory_order_relaxed,
                                                     memory_order_relaxed))
        continue;
}

/* Computes the current totals that are visible to the calling thread: the published counters plus the thread's own
 * unpublished ones. A thread that is registering may be publishing `mine`; it holds the lock. */
static void see(int64_t now[ACCOUNT_METRICS][ACCOUNT_CLASSES], struct account *account, struct account_cells *mine)
{
    for (;;) {
        const uint32_t turn = atomic_load_explicit(&mine->publishing, memory_order_acquire);
        if (unlikely(turn % 2 == 1)) {
            lock_enter(&account_lock);
            lock_leave(&account_lock);
            continue;
        }
        for (int class = 0; class < ACCOUNT_CLASSES; class++)
            for (int metric = 0; metric < ACCOUNT_METRICS; metric++)
                now[metric][class] = atomic_load_explicit(&account->published[class][metric], memory_order_acquire)
                                     - atomic_load_explicit(&mine->seen[class][metric], memory_order_acquire)
                                     + account_load(&mine->net[class][metric]);
        if (likely(atomic_load_explicit(&mine->publishing, memory_order_relaxed) == turn))
            return;
    }
}

void account_look(struct account *account, struct account_cells *mine)
{
    int64_t now[ACCOUNT_METRICS][ACCOUNT_CLASSES];
    const uint32_t epoch = atomic_load_explicit(&account->epoch, memory_order_relaxed);
    mine->rising = 0;
    /* With several threads, every update must be evaluated, so store an epoch that never matches. */
    mine->epoch = atomic_load_explicit(&account->many, memory_order_relaxed) ? ~epoch : epoch;
    for (int class = 0; class < ACCOUNT_CLASSES; class++)
        for (int metric = 0; metric < ACCOUNT_METRICS; metric++)
            mine->top[class][metric] = account_load(&mine->net[class][metric]);
    see(now, account, mine);
    for (int metric = 0; metric < ACCOUNT_METRICS; metric++) {
        raise_to(account, PEAK_OF(CTRT_POOL_ALL, metric), now[metric][ACCOUNT_LARGE] + now[metric][ACCOUNT_SMALL]);
        raise_to(account, PEAK_OF(CTRT_POOL_LARGE, metric), now[metric][ACCOUNT_LARGE]);
        raise_to(account, PEAK_OF(CTRT_POOL_SMALL, metric), now[metric][ACCOUNT_SMALL]);
    }
    if (unlikely(account->oversize != SIZE_MAX))
        raise_to(account, PEAK_OVERSIZE, account_load(&mine->over_net) + account_load(&account->ended_over_net));
}

void account_publish(struct account *account, struct account_cells *mine)
{
    mine->calls = 0;
    mine->bytes = 0;
    publish(account, mine);
    account_look(account, mine);
}

/* ---- threads without their own counters ---- */

static void add_shared(struct account *account, size_t bytes, size_t requested, int sign)
{
    const int64_t change[ACCOUNT_METRICS] = { sign, sign * (int64_t)bytes, sign * (int64_t)requested };
    int class = account_class(bytes);
    for (int metric = 0; metric < ACCOUNT_METRICS; metric++) {
        fetch_add(&account->published[class][metric], change[metric]);
        if (sign > 0)
            fetch_add(&account->ended_in[class][metric], change[metric]);
    }
    if (bytes >= account->oversize) {
        fetch_add(&account->ended_over_net, sign);
        fetch_add(&account->ended_over_in, sign > 0);
    }
}

void account_alloc_shared(struct account *account, size_t bytes, size_t requested)
{
    struct account_cells none = { 0 };
    add_shared(account, bytes, requested, 1);
    account_look(account, &none);
}

void account_free_shared(struct account *account, size_t bytes, size_t requested)
{
    add_shared(account, bytes, requested, -1);
}

/* ---- memory allocated from the device ---- */

void account_drawn(struct account *account, size_t bytes, int sign)
{
    const int64_t change[2] = { sign, sign * (int64_t)bytes };
    int class = account_class(bytes);
    for (int metric = 0; metric < 2; metric++) {
        int64_t now = atomic_fetch_add_explicit(&account->drawn_net[class][metric], change[metric],
                                                memory_order_relaxed) + change[metric];
        if (sign < 0)
            continue;
        fetch_add(&account->drawn_in[class][metric], change[metric]);
        raise_to(account, PEAK_OF_DRAWN(class + 1, metric), now);
        raise_to(account, PEAK_OF_DRAWN(CTRT_POOL_ALL, metric),
                 now + account_load(&account->drawn_net[1 - class][metric]));
    }
}

uint64_t account_drawn_bytes(const struct account *account)
{
    int64_t sum = account_load(&account->drawn_net[ACCOUNT_LARGE][ACCOUNT_BYTES])
                  + account_load(&account->drawn_net[ACCOUNT_SMALL][ACCOUNT_BYTES]);
    return sum > 0 ? (uint64_t)sum : 0;
}

/* ---- sums; the caller holds the lock ---- */

struct sums {
    int64_t current[PEAKS], in[PEAKS];
};

static void add_pool(struct sums *sums, int all, int pool, int64_t current, int64_t in)
{
    sums->current[all] += current;
    sums->in[all] += in;
    sums->current[pool] += current;
    sums->in[pool] += in;
}

static void add_up(struct sums *sums, const struct account *account)
{
    memset(sums, 0, sizeof *sums);
    for (int class = 0; class < ACCOUNT_CLASSES; class++) {
        for (int metric = 0; metric < ACCOUNT_METRICS; metric++) {
            int64_t current = account_load(&account->published[class][metric]);
            int64_t in = account_load(&account->ended_in[class][metric]);
            for (const struct account_cells *cells = account->threads; cells != NULL; cells = cells->next) {
                current += account_load(&cells->net[class][metric]) - account_load(&cells->seen[class][metric]);
                in += account_load(&cells->in[class][metric]);
            }
            add_pool(sums, PEAK_OF(CTRT_POOL_ALL, metric), PEAK_OF(class + 1, metric), current, in);
        }
        for (int metric = 0; metric < 2; metric++)
            add_pool(sums, PEAK_OF_DRAWN(CTRT_POOL_ALL, metric), PEAK_OF_DRAWN(class + 1, metric),
                     account_load(&account->drawn_net[class][metric]),
                     account_load(&account->drawn_in[class][metric]));
    }
    sums->current[PEAK_OVERSIZE] = account_load(&account->ended_over_net);
    sums->in[PEAK_OVERSIZE] = account_load(&account->ended_over_in);
    for (const struct account_cells *cells = account->threads; cells != NULL; cells = cells->next) {
        sums->current[PEAK_OVERSIZE] += account_load(&cells->over_net);
        sums->in[PEAK_OVERSIZE] += account_load(&cells->over_in);
    }
    for (int i = 0; i < PEAKS; i++)             /* a sum may be negative while threads are counting */
        sums->current[i] = MAX(sums->current[i], 0);
}

/* Folds the peaks since the last fold, and the current sums, into all windows. A window that begins now starts with the
 * sums. The order matters while other threads count: for a block allocated after the epoch changed, the peak is updated
 * when the block is freed; a block allocated before and not yet freed is in the sums. */
static void fold(struct sums *sums, struct account *account)
{
    int64_t peaks[PEAKS];
    for (int i = 0; i < PEAKS; i++)
        peaks[i] = atomic_exchange_explicit(&account->peaks[i], 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&account->epoch, 1, memory_order_seq_cst);
    add_up(sums, account);
    for (int i = 0; i < PEAKS; i++)
        for (struct account_window *window = account->windows; window != NULL; window = window->next)
            window->peaks[i] = MAX(window->peaks[i], MAX(peaks[i], sums->current[i]));
}

/* ---- windows ---- */

static void begin(struct account_window *window, const struct sums *sums)
{
    memcpy(window->peaks, sums->current, sizeof window->peaks);
}

void account_window_open(struct account *account, struct account_window *window)
{
    struct sums sums;
    lock_enter(&account_lock);
    fold(&sums, account);
    begin(window, &sums);
    window->next = account->windows;
    account->windows = window;
    lock_leave(&account_lock);
}

void account_windows_update(struct account *account)
{
    struct sums sums;
    lock_enter(&account_lock);
    fold(&sums, account);
    lock_leave(&account_lock);
}

void account_window_turn(struct account *account, struct account_window *window, int64_t peaks[PEAKS])
{
    struct sums sums;
    lock_enter(&account_lock);
    fold(&sums, account);
    memcpy(peaks, window->peaks, sizeof window->peaks);
    begin(window, &sums);
    lock_leave(&account_lock);
}

void account_window_close(struct account *account, struct account_window *window)
{
    struct sums sums;
    lock_enter(&account_lock);
    fold(&sums, account);
    for (struct account_window **at = &account->windows; *at != NULL; at = &(*at)->next)
        if (*at == window) {
            *at = window->next;
            break;
        }
    lock_leave(&account_lock);
}

void account_reset_peaks(struct account *account)
{
    struct sums sums;
    lock_enter(&account_lock);
    fold(&sums, account);
    begin(&account->life, &sums);
    lock_leave(&account_lock);
}

/* ---- reading ---- */

static ctrt_stat stat_of(const struct sums *sums, const struct account *account, int i)
{
    return (ctrt_stat){ .current = sums->current[i], .peak = account->life.peaks[i],
                               .allocated = sums->in[i], .freed = sums->in[i] - sums->current[i] };
}

void account_read(struct account_stats *out, struct account *account)
{
    struct sums sums;
    lock_enter(&account_lock);
    fold(&sums, account);
    for (int pool = 0; pool < CTRT_POOLS; pool++) {
        for (int metric = 0; metric < ACCOUNT_METRICS; metric++)
            out->blocks[pool][metric] = stat_of(&sums, account, PEAK_OF(pool, metric));
        for (int metric = 0; metric < 2; metric++)
            out->drawn[pool][metric] = stat_of(&sums, account, PEAK_OF_DRAWN(pool, metric));
    }
    out->oversize = stat_of(&sums, account, PEAK_OVERSIZE);
    lock_leave(&account_lock);
}

uint64_t account_current(struct account *account, int metric)
{
    struct sums sums;
    lock_enter(&account_lock);
    add_up(&sums, account);
    lock_leave(&account_lock);
    return (uint64_t)sums.current[PEAK_OF(CTRT_POOL_ALL, metric)];
}
