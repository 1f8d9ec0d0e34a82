/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/spill_move.c: blocks leave device memory and come back.
 *
 * A copy to the host, and the giving back of the device memory, run on the queue that the memory belongs to, after that has been told
 * to wait for the other queues that used the block. The source thus gets memory back in the order of that queue, as from
 * any program. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "spill.h"
#include "spill_choice.h"

#define PATIENCE_MS 2000                /* for other threads that hold what is needed */

__thread uint64_t spill_held;

/* ---- counts ---- */

void spill_count_here(struct spill *self, const struct block *block, int sign)
{
    const int64_t bytes = sign * (int64_t)block->bytes;
    self->here_bytes += (size_t)bytes;
    self->here_count += (size_t)(int64_t)sign;
    self->reserved.current += bytes;
    *(sign > 0 ? &self->reserved.allocated : &self->reserved.freed) += (int64_t)block->bytes;
    if (self->reserved.current > self->reserved.peak)
        self->reserved.peak = self->reserved.current;
    if (self->here_bytes > self->ceiling)
        self->ceiling = self->here_bytes;
}

void spill_away_add(struct spill *self, struct block *block)
{
    block->place = AWAY;
    if (block->left == 0)
        block->left = ++self->leavings;
    /* By the number of leaving: one that came back in vain has an old one. */
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

void spill_away_take(struct spill *self, struct block *block)
{
    list_take(&self->away, block);
    self->away_count--;
    self->away_bytes -= block->bytes;
}

/* ---- threads that need one another ---- */

void spill_changed(struct spill *self)
{
    if (self->waiting > 0)
        pthread_cond_broadcast(&self->changed);
}

/* What this thread holds does not help those that wait for it. */
void spill_wait(struct spill *self)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    self->stuck += spill_held;
    self->waiting++;
    pthread_cond_broadcast(&self->changed);
    pthread_cond_timedwait(&self->changed, &self->lock, &until);
    self->waiting--;
    self->stuck -= spill_held;
}

/* With the lock held. True when another thread will let go of something, and has. */
static bool wait_for_others(struct spill *self, int64_t *deadline)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (*deadline == 0)
        *deadline = ms + PATIENCE_MS;
    if (ms >= *deadline || (self->leaving == 0 && self->in_use <= self->stuck + spill_held))
        return false;
    spill_wait(self);
    return true;
}

/* ---- away ---- */

/* The home queue waits for all that the others have to do with the block. */
static ctrt_status order_others(struct spill *self, struct block *block)
{
    const ctrt_memory_source *source = self->source;
    for (; block->other_count > 0; block->other_count--) {
        void *fence = NULL;
        ctrt_status status = source->fence_new(source->state, &fence, block->others[block->other_count - 1]);
        if (status != CTRT_OK)
            return status;
        fence_order(source, fence, block->home);
        if (fence != NULL)
            source->fence_free(source->state, fence);
    }
    return CTRT_OK;
}

/* The bytes of a block that is LEAVING are on their way to the host. */
static ctrt_status copy_out(struct spill *self, struct block *block, bool must)
{
    const ctrt_memory_source *source = self->source;
    struct buffer *buffer = block->buffer;      /* the copy that brought it was on the same queue */
    ctrt_status status = buffer != NULL ? CTRT_OK : spill_buffer_take(self, &buffer, block->bytes, block->home, must);
    if (status == CTRT_OK) {
        status = source->copy(source->state, buffer->address, block->address, block->bytes, CTRT_COPY_TO_HOST, block->home);
        spill_buffer_fence(self, buffer, block->home);
        if (status != CTRT_OK && block->buffer == NULL)
            spill_buffer_put(self, buffer);
    }
    if (status == CTRT_OK)
        block->buffer = buffer;
    return status;
}

/* Without the lock: whoever gets the log may ask for memory. */
static void tell(struct spill *self)
{
    pthread_mutex_lock(&self->lock);
    const bool first = self->told == 0, due = self->out_bytes >= self->told;
    const unsigned long long out = self->out_count, out_bytes = self->out_bytes, back = self->back_count, back_bytes = self->back_bytes,
                             hits = self->hits, ahead = self->ahead_count;
    if (due)
        self->told = 2 * self->out_bytes;
    pthread_mutex_unlock(&self->lock);
    if (due)
        spill_host->log(first ? CTRT_LOG_INFO : CTRT_LOG_DEBUG, "memory",
                        "spill: %s has too little memory: so far %llu blocks, %llu bytes, went to the host, and %llu blocks, %llu bytes, came "
                        "back; %llu of %llu that came ahead were of use", self->source->device_name, out, out_bytes, back, back_bytes, hits,
                        ahead);
}

/* Moves a block away that is LEAVING and on no list. */
static ctrt_status leave(struct spill *self, struct block *block, bool must)
{
    ctrt_status status = order_others(self, block);
    const bool copied = status == CTRT_OK && block->written;
    if (copied)
        status = copy_out(self, block, must);
    if (status == CTRT_OK)
        self->source->free(self->source->state, block->address, block->bytes, block->home);
    pthread_mutex_lock(&self->lock);
    self->leaving--;
    if (status == CTRT_OK) {
        block->address = NULL;
        block->ahead = false;
        self->source_frees++;
        self->out_count += copied;
        self->out_bytes += copied ? block->bytes : 0;
        block->left = 0;
        spill_count_here(self, block, -1);
        spill_away_add(self, block);
    } else {
        block->place = HERE;
        list_add(&self->here, block);
    }
    spill_changed(self);
    pthread_mutex_unlock(&self->lock);
    if (copied && status == CTRT_OK)
        tell(self);
    return status;
}

/* ---- room ---- */

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
    return spill_host->fail(CTRT_ERR_OUT_OF_MEMORY, "spill: no room for %zu bytes: blocks of %zu bytes are in use and cannot move, %zu bytes are "
                            "idle, %zu blocks of %zu bytes are away, %zu of %zu bytes of pinned memory are drawn; %s", bytes, held, idle,
                            away_count, away, pinned, self->host_limit, reason);
}

/* With the lock held: takes what should leave for `bytes` on `queue` off the list, linked by `after`. */
static struct block *take_victims(struct spill *self, size_t bytes, void *queue)
{
    struct block *victims = spill_choose(&self->here, bytes, queue);
    for (struct block *block = victims; block != NULL; block = block->after) {
        block->place = LEAVING;
        self->leaving++;
    }
    return victims;
}

ctrt_status spill_room(struct spill *self, void **address, size_t bytes, void *queue, bool must)
{
    const ctrt_memory_source *source = self->source;
    int64_t deadline = 0;
    ctrt_status status;
    if (source->total_bytes > 0 && bytes > source->total_bytes)
        return spill_host->fail(CTRT_ERR_OUT_OF_MEMORY, "spill: a block of %zu bytes is larger than all of %s, which has %llu; a block that is "
                                "used must be on the device whole", bytes, source->device_name, (unsigned long long)source->total_bytes);
    while ((status = source->alloc(source->state, address, bytes, queue)) == CTRT_ERR_OUT_OF_MEMORY) {
        char why[384];
        snprintf(why, sizeof why, "%s", spill_host->message());
        spill_settle(self);
        pthread_mutex_lock(&self->lock);
        self->rounds++;
        self->ceiling = self->here_bytes;
        struct block *victims = take_victims(self, bytes, queue);
        const bool wait = victims == NULL && wait_for_others(self, &deadline);
        pthread_mutex_unlock(&self->lock);
        if (victims == NULL && !wait)
            return fail_full(self, bytes, why);
        ctrt_status one = CTRT_OK;
        for (struct block *block = victims, *next; block != NULL; block = next) {
            next = block->after;
            ctrt_status here = leave(self, block, must);
            if (here != CTRT_OK)
                one = here;
        }
        if (one == CTRT_ERR_OUT_OF_MEMORY) {
            snprintf(why, sizeof why, "%s", spill_host->message());
            return fail_full(self, bytes, why);
        }
        if (one != CTRT_OK)
            return one;
    }
    if (status == CTRT_OK) {
        pthread_mutex_lock(&self->lock);
        self->source_allocs++;
        pthread_mutex_unlock(&self->lock);
    }
    return status;
}

/* ---- back ---- */

ctrt_status spill_bring(struct spill *self, struct block *block, void *queue, bool ahead)
{
    const ctrt_memory_source *source = self->source;
    void *address = NULL;
    ctrt_status status = ahead ? source->alloc(source->state, &address, block->bytes, queue)
                               : spill_room(self, &address, block->bytes, queue, true);
    struct buffer *buffer = block->buffer;
    if (status == CTRT_OK && buffer != NULL) {
        status = spill_buffer_order(self, buffer, queue);
        if (status == CTRT_OK)
            status = source->copy(source->state, address, buffer->address, block->bytes, CTRT_COPY_TO_DEVICE, queue);
        if (status == CTRT_OK)
            spill_buffer_fence(self, buffer, queue);
        else
            source->free(source->state, address, block->bytes, queue);
    }
    pthread_mutex_lock(&self->lock);
    if (status == CTRT_OK) {
        block->place = HERE;
        block->address = address;
        block->home = queue;
        block->other_count = 0;
        block->ahead = ahead;
        block->used = ++self->clock;
        self->source_allocs += ahead;
        self->ahead_count += ahead;
        self->back_count += buffer != NULL;
        self->back_bytes += buffer != NULL ? block->bytes : 0;
        spill_count_here(self, block, 1);
        list_add(&self->here, block);
    } else {
        if (ahead)
            self->ceiling = self->here_bytes;
        spill_away_add(self, block);
    }
    spill_changed(self);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* ---- freed ---- */

bool spill_drop(struct spill *self, struct block *block, void *fence)
{
    if (fence != NULL) {
        fence_order(self->source, fence, block->home);
        self->source->fence_free(self->source->state, fence);
    }
    if (order_others(self, block) != CTRT_OK)
        return false;
    self->source->free(self->source->state, block->address, block->bytes, block->home);
    return true;
}

void spill_settle(struct spill *self)
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
            spill_count_here(self, block, -1);
            spill_name_free(self, block);
        } else {
            list_add(&self->limbo, block);
        }
        pthread_mutex_unlock(&self->lock);
        if (gone)
            spill_buffer_put(self, buffer);
    }
}
