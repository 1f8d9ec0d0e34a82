/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/spill_move.c: moves blocks between device and host.
 *
 * The copy to the host and the freeing of the device memory are enqueued on the home queue of the memory, after the
 * home queue was made to wait for the other queues that used the block. Therefore the memory is returned to the source
 * in the order of that queue, as in any other program. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "spill.h"

#define WAIT_MS 2000                    /* maximum wait for other threads that use the memory */

/* ---- statistics ---- */

void spill_count_host(struct spill *self, const struct block *block, int sign)
{
    if (block->buffer == NULL)
        return;
    stat_add(&self->spilled, sign);
    stat_add(&self->spilled_bytes, sign * (int64_t)block->bytes);
}

void spill_count_device(struct spill *self, const struct block *block, int sign)
{
    self->here_bytes += (size_t)(sign * (int64_t)block->bytes);
    self->here_count += (size_t)(int64_t)sign;
    stat_add(&self->reserved, sign * (int64_t)block->bytes);
    if (self->here_bytes > self->ceiling)
        self->ceiling = self->here_bytes;
}

void host_add(struct spill *self, struct block *block)
{
    block->place = AWAY;
    if (block->left == 0)
        block->left = ++self->leavings;
    /* The list is sorted by `left`. A block whose move to the device failed has an old value, so it is not always
     * inserted at the end. */
    struct block *before = self->away.last;
    while (before != NULL && before->left > block->left)
        before = before->before;
    block->before = before;
    block->after = before != NULL ? before->after : self->away.first;
    *(before != NULL ? &before->after : &self->away.first) = block;
    *(block->after != NULL ? &block->after->before : &self->away.last) = block;
    self->away_count++;
    self->away_bytes += block->bytes;
}

void host_remove(struct spill *self, struct block *block)
{
    list_take(&self->away, block);
    self->away_count--;
    self->away_bytes -= block->bytes;
}

/* ---- waiting for other threads ---- */

/* The calling thread's uses, by policy: a copy between two devices uses two. If a thread exceeds MOST_HELD policies,
 * its further uses are not counted as stuck, so threads may wait for the timeout although no thread can free memory. */
#define MOST_HELD 16
static __thread struct { const struct spill *of; uint64_t uses; } held[MOST_HELD];

void spill_count_use(struct spill *self, int sign)
{
    int at = -1;
    for (int i = 0; i < MOST_HELD; i++) {
        if (held[i].uses > 0 && held[i].of == self) {
            held[i].uses += (uint64_t)(int64_t)sign;
            return;
        }
        at = held[i].uses == 0 ? i : at;
    }
    if (at >= 0 && sign > 0) {
        held[at].of = self;
        held[at].uses = 1;
    }
}

static uint64_t held_of(const struct spill *self)
{
    for (int i = 0; i < MOST_HELD; i++)
        if (held[i].uses > 0 && held[i].of == self)
            return held[i].uses;
    return 0;
}

void spill_notify(struct spill *self)
{
    atomic_fetch_add_explicit(&self->changes, 1, memory_order_relaxed);
    if (self->waiting > 0)
        pthread_cond_broadcast(&self->changed);
}

/* The uses of a waiting thread do not end while it waits, so count them as stuck, and wake the other waiting threads to
 * check that. */
static void wait_begin(struct spill *self)
{
    self->stuck += held_of(self);
    if (self->waiting++ > 0)
        pthread_cond_broadcast(&self->changed);
}

static void wait_end(struct spill *self)
{
    self->waiting--;
    self->stuck -= held_of(self);
}

void spill_wait_settled(struct spill *self, const struct block *block)
{
    if (block->place != LEAVING && block->place != COMING)
        return;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    wait_begin(self);
    while (block->place == LEAVING || block->place == COMING)
        pthread_cond_wait(&self->changed, &self->lock);
    wait_end(self);
    pthread_setcancelstate(cancel, NULL);
}

/* Waits for other threads; returns true if `changes` differs from `seen`, false on timeout or if no progress is
 * possible. Requires the lock. */
static bool wait_for_others(struct spill *self, struct timespec *until, uint64_t seen)
{
    if (until->tv_sec == 0) {
        clock_gettime(CLOCK_REALTIME, until);
        until->tv_nsec += WAIT_MS % 1000 * 1000000;
        until->tv_sec += WAIT_MS / 1000 + until->tv_nsec / 1000000000;
        until->tv_nsec %= 1000000000;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    bool late = now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec);
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    wait_begin(self);
    while (!late && self->changes == seen && (self->leaving > 0 || self->in_use > self->stuck))
        late = pthread_cond_timedwait(&self->changed, &self->lock, until) == ETIMEDOUT;
    wait_end(self);
    pthread_setcancelstate(cancel, NULL);
    return !late && self->changes != seen;
}

/* ---- moving to the host ---- */

/* Makes the home queue wait for all work of the block's other queues. */
static ctrt_status order_others(struct spill *self, struct block *block)
{
    for (; block->other_count > 0; block->other_count--)
        CTRT_TRY(queue_follow(self->source, block->home, block->others[block->other_count - 1]));
    return CTRT_OK;
}

/* Waits for the last copy to or from the buffer and returns its result. */
static ctrt_status buffer_outcome(struct spill *self, struct buffer *buffer)
{
    bool known = true;
    if (buffer->fence != NULL)
        (void)self->source->fence_wait(self->source->state, buffer->fence, NULL);
    ctrt_status status = fence_outcome(self->source, buffer->fence, &known);
    return known ? status
                 : host->fail(CTRT_ERR_BACKEND, "spill: a copy on %s does not complete",
                                    self->source->device_name);
}

bool spill_arrived(struct spill *self, struct block *block, bool *known)
{
    *known = true;
    if (block->buffer != NULL && !block->arrived)
        block->arrived = fence_outcome(self->source, block->buffer->fence, known) == CTRT_OK && *known;
    return block->buffer == NULL || block->arrived;
}

static ctrt_status fail_copy(struct spill *self, const struct block *block, ctrt_status status)
{
    char why[384];
    snprintf(why, sizeof why, "%s", host->message());
    return host->fail(status,
                            "spill: %zu bytes cannot be moved from %s, because their queue failed: %s",
                            block->bytes, self->source->device_name, why);
}

/* Enqueues the copy of a LEAVING block to the host. If its last copy to the device failed, the host still has the valid
 * bytes and no copy is needed. */
static ctrt_status copy_out(struct spill *self, struct block *block, bool must)
{
    const ctrt_memory_source *source = self->source;
    struct buffer *buffer = block->buffer; /* the copy to the device precedes, on a queue for which home waits */
    if (buffer != NULL && !block->arrived && buffer_outcome(self, buffer) != CTRT_OK)
        return CTRT_OK;
    if (buffer == NULL)
        CTRT_TRY(spill_buffer_take(self, &buffer, block->bytes, block->home, must));
    block->buffer = buffer;
    block->arrived = true;                      /* the device memory is valid, even if this copy fails */
    block->copying = true;
    ctrt_status status = source->copy(source->state, buffer->address, block->address, block->bytes, CTRT_COPY_TO_HOST,
                                      block->home);
    const ctrt_status fenced = spill_buffer_fence(self, buffer, block->home);
    return status != CTRT_OK ? status : fenced;
}

/* Logs totals each time the amount has doubled. The lock must not be held, because the log handler may allocate
 * memory. */
static void log_moves(struct spill *self)
{
    pthread_mutex_lock(&self->lock);
    const bool first = self->logged_bytes == 0, due = self->out_bytes >= self->logged_bytes;
    const unsigned long long out = self->out_count, out_bytes = self->out_bytes, back = self->back_count,
                             back_bytes = self->back_bytes,
                             hits = self->hits, ahead = self->ahead_count;
    if (due)
        self->logged_bytes = 2 * self->out_bytes;
    pthread_mutex_unlock(&self->lock);
    if (due)
        host->log(first ? CTRT_LOG_INFO : CTRT_LOG_DEBUG, "memory",
                        "spill: %s has too little memory: so far %llu blocks, %llu bytes, were moved to the host, and "
                        "%llu blocks, %llu bytes, moved back; %llu of %llu prefetched blocks were used",
                        self->source->device_name, out, out_bytes,
                        back, back_bytes, hits, ahead);
}

/* Enqueues the move of a LEAVING block that is on no list. */
static void leave_begin(struct spill *self, struct block *block, bool must)
{
    block->copying = false;
    block->outcome = order_others(self, block);
    if (block->outcome == CTRT_OK && block->written)
        block->outcome = copy_out(self, block, must);
}

/* Completes the move: frees the device memory once the bytes are known to be on the host, otherwise keeps the block on
 * the device. */
static ctrt_status leave_end(struct spill *self, struct block *block)
{
    struct buffer *spoilt = NULL;
    const bool copied = block->copying;
    ctrt_status status = block->outcome;
    if (status == CTRT_OK && copied)
        status = buffer_outcome(self, block->buffer);
    if (status == CTRT_OK) {
        self->source->free(self->source->state, block->address, block->bytes, block->home);
    } else if (copied) {
        spoilt = block->buffer;
        block->buffer = NULL;
        status = status == CTRT_ERR_OUT_OF_MEMORY ? status : fail_copy(self, block, status);
    }
    pthread_mutex_lock(&self->lock);
    self->leaving--;
    if (status == CTRT_OK) {
        block->address = NULL;
        block->ahead = false;
        self->source_frees++;
        self->out_count += copied;
        self->out_bytes += copied ? block->bytes : 0;
        block->left = 0;
        spill_count_device(self, block, -1);
        spill_count_host(self, block, 1);
        host_add(self, block);
    } else {
        block->place = HERE;
        list_add(&self->here, block);
    }
    spill_notify(self);
    pthread_mutex_unlock(&self->lock);
    spill_buffer_put(self, spoilt);
    if (copied && status == CTRT_OK)
        log_moves(self);
    return status;
}

/* ---- allocation of device memory ---- */

static ctrt_status fail_full(struct spill *self, size_t bytes, const char *why)
{
    char reason[384];
    snprintf(reason, sizeof reason, "%s", why);
    pthread_mutex_lock(&self->lock);
    size_t held = 0, idle = 0;
    for (struct block *block = self->here.first; block != NULL; block = block->after)
        *(block->uses > 0 ? &held : &idle) += block->bytes;
    const size_t away = self->away_bytes, away_count = self->away_count, pinned = self->pinned_bytes;
    pthread_mutex_unlock(&self->lock);
    return host->fail(CTRT_ERR_OUT_OF_MEMORY,
                            "spill: no space for %zu bytes: blocks of %zu bytes are in use and cannot be moved, %zu "
                            "bytes are idle, %zu blocks of %zu bytes are on the host, %zu of %zu bytes of pinned "
                            "memory are allocated; %s",
                            bytes, held, idle, away_count, away, pinned, self->host_limit, reason);
}

/* Removes the blocks that should leave for `bytes` on `queue` from the list and returns them, linked by `after`.
 * Requires the lock. */
static struct block *take_victims(struct spill *self, size_t bytes, void *queue)
{
    struct block *victims = spill_choose(&self->here, bytes, queue);
    for (struct block *block = victims; block != NULL; block = block->after) {
        block->place = LEAVING;
        self->leaving++;
    }
    return victims;
}

ctrt_status spill_make_space(struct spill *self, void **address, size_t bytes, void *queue, bool must)
{
    const ctrt_memory_source *source = self->source;
    struct timespec until = { 0, 0 };
    size_t failures = 0;
    ctrt_status status;
    if (source->total_bytes > 0 && bytes > source->total_bytes)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY,
                                "spill: a block of %zu bytes is larger than %s, which has %llu; a block in use must be "
                                "entirely on the device", bytes, source->device_name,
                                (unsigned long long)source->total_bytes);
    for (;;) {
        const uint64_t seen = self->changes;    /* memory that is freed from here on may satisfy the request */
        status = source->alloc(source->state, address, bytes, queue);
        if (status != CTRT_ERR_OUT_OF_MEMORY)
            break;
        char why[384];
        snprintf(why, sizeof why, "%s", host->message());
        spill_free_limbo(self);
        pthread_mutex_lock(&self->lock);
        self->rounds++;
        self->ceiling = self->here_bytes;
        struct block *victims = take_victims(self, bytes, queue);
        const bool wait = victims == NULL && wait_for_others(self, &until, seen);
        pthread_mutex_unlock(&self->lock);
        if (victims == NULL && !wait)
            return fail_full(self, bytes, why);
        ctrt_status one = CTRT_OK;
        for (struct block *block = victims; block != NULL; block = block->after)
            leave_begin(self, block, must);
        for (struct block *block = victims, *next; block != NULL; block = next) {
            next = block->after;
            ctrt_status here = leave_end(self, block);
            if (here != CTRT_OK)
                one = here;
        }
        if (one == CTRT_ERR_OUT_OF_MEMORY) {    /* from leave_end, or from leave_begin if no later error replaced it */
            snprintf(why, sizeof why, "%s", host->message());
            return fail_full(self, bytes, why);
        }
        /* A failed queue copies nothing. Its blocks are now the last in the list, so that all other blocks are
         * tried. */
        pthread_mutex_lock(&self->lock);
        const bool vain = one != CTRT_OK && ++failures > self->here_count;
        pthread_mutex_unlock(&self->lock);
        if (vain)
            return one;
    }
    return status;
}

/* ---- moving to the device ---- */

/* Enqueues the copy from the block's buffer to `address`, and sets the buffer's fence to that copy. */
static ctrt_status copy_in(struct spill *self, struct block *block, void *address, void *queue)
{
    const ctrt_memory_source *source = self->source;
    CTRT_TRY(spill_buffer_order(self, block->buffer, queue));
    const ctrt_status status = source->copy(source->state, address, block->buffer->address, block->bytes,
                                            CTRT_COPY_TO_DEVICE, queue);
    const ctrt_status fenced = spill_buffer_fence(self, block->buffer, queue);
    return status != CTRT_OK ? status : fenced;
}

ctrt_status spill_ensure_valid(struct spill *self, struct block *block, void *queue)
{
    block->arrived = buffer_outcome(self, block->buffer) == CTRT_OK;
    if (block->arrived)
        return CTRT_OK;
    CTRT_TRY(order_others(self, block));
    CTRT_TRY(queue_follow(self->source, queue, block->home));
    CTRT_TRY(copy_in(self, block, block->address, queue));
    fence_order(self->source, block->buffer->fence, block->home);   /* the memory is ordered by the home queue */
    return CTRT_OK;
}

/* Allocates device memory for a block that is moved back to the device. */
static ctrt_status space_returned(struct spill *self, void **address, size_t bytes, void *queue, bool ahead)
{
    const ctrt_memory_source *source = self->source;
    if (!ahead)
        return spill_make_space(self, address, bytes, queue, true);
    return CTRT_SLOT(source, alloc_spare) ? source->alloc_spare(source->state, address, bytes, queue)
                                          : source->alloc(source->state, address, bytes, queue);
}

ctrt_status spill_move_back(struct spill *self, struct block *block, void *queue, bool ahead)
{
    void *address = NULL;
    ctrt_status status = space_returned(self, &address, block->bytes, queue, ahead);
    struct buffer *buffer = block->buffer;
    const bool allocated = status == CTRT_OK;
    if (allocated && buffer != NULL) {
        status = copy_in(self, block, address, queue);
        if (status != CTRT_OK)
            self->source->free(self->source->state, address, block->bytes, queue);
    }
    pthread_mutex_lock(&self->lock);
    self->source_allocs += allocated;
    if (status == CTRT_OK) {
        block->place = HERE;
        block->address = address;
        block->home = queue;
        block->other_count = 0;
        block->ahead = ahead;
        block->arrived = false;
        block->used = ++self->clock;
        self->ahead_count += ahead;
        self->back_count += buffer != NULL;
        self->back_bytes += buffer != NULL ? block->bytes : 0;
        spill_count_device(self, block, 1);
        spill_count_host(self, block, -1);
        list_add(&self->here, block);
    } else {
        self->source_frees += allocated;
        if (ahead)
            self->ceiling = self->here_bytes;
        host_add(self, block);
    }
    spill_notify(self);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* ---- freeing ---- */

bool spill_drop(struct spill *self, struct block *block, void *fence)
{
    fence_pass(self->source, fence, block->home);
    if (order_others(self, block) != CTRT_OK)
        return false;
    self->source->free(self->source->state, block->address, block->bytes, block->home);
    return true;
}

void spill_free_limbo(struct spill *self)
{
    pthread_mutex_lock(&self->lock);
    struct block *block = self->limbo.first;
    self->limbo = (struct list){ NULL, NULL };
    pthread_mutex_unlock(&self->lock);
    for (struct block *next; block != NULL; block = next) {
        next = block->after;
        const bool gone = spill_drop(self, block, NULL);
        struct buffer *buffer = block->buffer;
        pthread_mutex_lock(&self->lock);
        if (gone) {
            self->source_frees++;
            spill_count_device(self, block, -1);
            spill_name_free(self, block);
        } else {
            list_add(&self->limbo, block);
        }
        pthread_mutex_unlock(&self->lock);
        if (gone)
            spill_buffer_put(self, buffer);
    }
}
