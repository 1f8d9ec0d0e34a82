/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/spill.c: a memory policy for models larger than the device. The least recently used blocks are moved
 * to the host, and back when they are used. Requires another policy beneath it: CTRT_MEMORY=spill+caching. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "options.h"
#include "spill.h"

#include "config.h"
#include "plugins/common/fork.h"

static struct spill *all;               /* the policies of the process, for the fork handler; guarded by policy_lock */

/* ---- options ---- */

static const struct option options_known[] = {
    { "host", "a number of bytes as in 2g", OPTION_BYTES, .offset = offsetof(struct spill, host_limit) },
    { "prefetch", "1 or 0", OPTION_BOOL, .offset = offsetof(struct spill, prefetch) },
};

/* Half of the machine's memory. */
static size_t host_default(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (size_t)pages / 2 * (size_t)bytes : (size_t)1 << 30;
}

/* A policy must be beneath this one, because a backend frees memory immediately, even if work uses it. The source does
 * not report whether it is a policy, so check the parameter. */
static ctrt_status check_stack(void)
{
    static const ctrt_param memory = { sizeof memory, "CTRT_MEMORY", CTRT_PARAM_STRING, NULL, NULL, NULL };
    ctrt_param_value value;
    CTRT_TRY(host->param(&value, &memory));
    const char *at = value.text != NULL ? strstr(value.text, "spill") : NULL;
    if (at != NULL && strchr(at, '+') == NULL)
        return host->fail(CTRT_ERR_INVALID_ARGUMENT,
                          "spill requires another policy for the device's memory: CTRT_MEMORY=spill+caching");
    return CTRT_OK;
}

/* ---- creation and destruction ---- */

static ctrt_status spill_create(void **policy, const ctrt_memory_source *source, const char *options)
{
    struct spill *self = policy_alloc("spill", sizeof *self);
    if (self == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    self->source = source;
    self->host_limit = host_default();
    self->prefetch = true;
    self->moves = (source->device_flags & CTRT_DEVICE_ASYNCHRONOUS) && !(source->device_flags & CTRT_DEVICE_HOST_MEMORY)
                  && CTRT_SLOT(source, copy) && CTRT_SLOT(source, host_alloc) && CTRT_SLOT(source, host_free)
                  && CTRT_SLOT(source, fence_new);
    self->ceiling = source->total_bytes > 0 ? (size_t)source->total_bytes : SIZE_MAX;
    ctrt_status status = check_stack();
    if (status == CTRT_OK)
        status = options_read("spill", options_known, sizeof options_known / sizeof options_known[0], self, options);
    if (status == CTRT_OK && self->moves)
        status = spill_names_open(self);
    if (status != CTRT_OK) {
        host->free(self);
        return status;
    }
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, NULL);
    pthread_mutex_lock(&policy_lock);
    self->next = all;
    all = self;
    pthread_mutex_unlock(&policy_lock);
    *policy = self;
    return CTRT_OK;
}

static void spill_destroy(void *policy)
{
    struct spill *self = policy;
    pthread_mutex_lock(&policy_lock);
    struct spill **at = &all;
    while (*at != self)
        at = &(*at)->next;
    *at = self->next;
    pthread_mutex_unlock(&policy_lock);
    if (!self->forked) {
        spill_free_limbo(self);
        spill_buffers_trim(self);
    }
    spill_names_close(self);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    host->free(self);
}

/* The child cannot use the parent's devices. Blocks that other threads were moving keep their state: the child neither
 * waits for them nor frees anything. */
static void after_fork_in_child(void)
{
    for (struct spill *self = all; self != NULL; self = self->next) {
        pthread_mutex_init(&self->lock, NULL);
        pthread_cond_init(&self->changed, NULL);
        self->forked = self->moves;
    }
}
FORK_CHILD(after_fork_in_child)

static ctrt_status fail_forked(const struct spill *self)
{
    return host->fail(CTRT_ERR_FORKED, "spill: %s was opened before the fork", self->source->device_name);
}

/* ---- allocation and freeing ---- */

static ctrt_status spill_alloc(void *policy, ctrt_block *out, size_t bytes, void *queue)
{
    struct spill *self = policy;
    const size_t rounded = round_up(bytes, SPILL_GRANULE);
    if (rounded < bytes || rounded > (size_t)1 << 47)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "spill: %zu bytes are too many", bytes);
    if (!self->moves) {
        *out = (ctrt_block){ .bytes = rounded };
        return self->source->alloc(self->source->state, &out->address, rounded, queue);
    }
    if (self->forked)
        return fail_forked(self);
    struct block *block = NULL;
    void *address = NULL;
    CTRT_TRY(spill_make_space(self, &address, rounded, queue, false));
    pthread_mutex_lock(&self->lock);
    self->source_allocs++;
    const ctrt_status status = spill_name_new(self, &block, rounded);
    if (status == CTRT_OK) {
        block->address = address;
        block->home = queue;
        block->used = ++self->clock;
        list_add(&self->here, block);
        spill_count_device(self, block, 1);
    } else {
        self->source_frees++;
    }
    pthread_mutex_unlock(&self->lock);
    if (status != CTRT_OK) {
        self->source->free(self->source->state, address, rounded, queue);
        return status;
    }
    *out = (ctrt_block){ .address = block->name, .bytes = rounded, .cookie = block };
    return CTRT_OK;
}

static void spill_free(void *policy, const ctrt_block *given, void *queue)
{
    struct spill *self = policy;
    const ctrt_memory_source *source = self->source;
    struct block *block = given->cookie;
    if (!self->moves) {
        fence_finish(source, given->fence);
        source->free(source->state, given->address, given->bytes, queue);
        return;
    }
    if (self->forked)
        return;
    pthread_mutex_lock(&self->lock);
    spill_wait_settled(self, block);
    const bool here = block->place == HERE;
    struct buffer *buffer = block->buffer;
    if (here) {
        list_take(&self->here, block);
    } else {
        host_remove(self, block);
        spill_count_host(self, block, -1);
        block->buffer = NULL;
        spill_name_free(self, block);
    }
    pthread_mutex_unlock(&self->lock);
    if (!here && given->fence != NULL)
        source->fence_free(source->state, given->fence);        /* the move to the host has waited for that work */
    const bool gone = here && spill_drop(self, block, given->fence);
    if (!here || gone)
        spill_buffer_put(self, buffer);
    if (!here)
        return;
    pthread_mutex_lock(&self->lock);
    if (gone) {
        self->source_frees++;
        spill_count_device(self, block, -1);
        block->buffer = NULL;
        spill_name_free(self, block);
    } else {
        list_add(&self->limbo, block);
    }
    spill_notify(self);
    pthread_mutex_unlock(&self->lock);
}

/* ---- use ---- */

/* Records that `queue` uses the block from now on, and makes `queue` wait for the home queue: for the copy to the
 * device, and for the work of earlier users of the memory. Requires the lock, so that no other user of `queue` can run
 * in between. */
static ctrt_status note_queue(struct spill *self, struct block *block, void *queue)
{
    if (queue == block->home)
        return CTRT_OK;
    for (uint32_t i = 0; i < block->other_count; i++)
        if (block->others[i] == queue)
            return CTRT_OK;
    if (block->other_count == block->other_capacity) {
        const uint32_t capacity = block->other_capacity > 0 ? 2 * block->other_capacity : 4;
        void **larger = host->alloc(capacity * sizeof *larger);
        if (larger == NULL)
            return host->fail(CTRT_ERR_OUT_OF_MEMORY, "spill: out of host memory to record the uses of a block");
        if (block->other_count > 0)
            memcpy(larger, block->others, block->other_count * sizeof *larger);
        host->free(block->others);
        block->others = larger;
        block->other_capacity = capacity;
    }
    CTRT_TRY(queue_follow(self->source, queue, block->home));
    block->others[block->other_count++] = queue;
    return CTRT_OK;
}

static void count_use(struct spill *self, struct block *block)
{
    block->uses++;
    self->in_use++;
    spill_count_use(self, 1);
}

static void count_unuse(struct spill *self, struct block *block)
{
    block->uses--;
    self->in_use--;
    spill_count_use(self, -1);
    spill_notify(self);
}

/* Reports whether `queue` may use a block that is HERE without waiting for the result of the copy to the device. It may
 * if the copy succeeded, or if the copy is on the same queue, because later work on a failed queue also fails. Requires
 * the lock. */
static bool trusted(struct spill *self, struct block *block, const void *queue)
{
    bool known;
    return spill_arrived(self, block, &known) || (!known && block->buffer->queue == queue);
}

static ctrt_status spill_use(void *policy, const ctrt_block *given, void *queue, void **address)
{
    struct spill *self = policy;
    struct block *block = given->cookie;
    if (!self->moves) {
        *address = given->address;
        return CTRT_OK;
    }
    if (self->forked)
        return fail_forked(self);
    ctrt_status status = CTRT_OK;
    pthread_mutex_lock(&self->lock);
    while (status == CTRT_OK) {
        spill_wait_settled(self, block);
        const bool here = block->place == HERE;
        if (here && trusted(self, block, queue))
            break;
        if (here)
            list_take(&self->here, block);
        else
            host_remove(self, block);
        block->place = COMING;
        pthread_mutex_unlock(&self->lock);
        status = here ? spill_ensure_valid(self, block, queue) : spill_move_back(self, block, queue, false);
        pthread_mutex_lock(&self->lock);
        if (here) {
            block->place = HERE;
            list_add(&self->here, block);
            spill_notify(self);
        }
        block->follow |= !here && status == CTRT_OK;
    }
    if (status == CTRT_OK)
        status = note_queue(self, block, queue);
    if (status == CTRT_OK) {
        if (block->ahead) {
            self->hits++;
            block->ahead = false;
            block->follow = true;
        }
        count_use(self, block);
        block->written = true;
        block->used = ++self->clock;
        list_take(&self->here, block);
        list_add(&self->here, block);
        *address = block->address;
    }
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* Returns the block to prefetch, with place COMING; NULL if there is none or no room. Blocks that left one after the
 * other are usually needed again in the opposite order, by a backward pass, or in the same order, by the forward pass
 * of the next step. Requires the lock. */
static struct block *next_ahead(struct spill *self, struct block *block)
{
    const bool rising = block->left > self->last_back;
    self->last_back = block->left;
    struct block *next = rising ? self->away.first : self->away.last;
    while (next != NULL && (rising ? next->left <= block->left : next->left >= block->left))
        next = rising ? next->after : next->before;
    if (next == NULL || next->buffer == NULL || self->here_bytes > self->ceiling
        || next->bytes > self->ceiling - self->here_bytes)
        return NULL;
    host_remove(self, next);
    next->place = COMING;
    return next;
}

static void spill_unuse(void *policy, const ctrt_block *given, void *queue)
{
    struct spill *self = policy;
    struct block *block = given->cookie, *next = NULL;
    if (!self->moves || self->forked)
        return;
    pthread_mutex_lock(&self->lock);
    count_unuse(self, block);
    if (block->follow && self->prefetch)
        next = next_ahead(self, block);
    block->follow = false;
    pthread_mutex_unlock(&self->lock);
    if (next != NULL)
        (void)spill_move_back(self, next, queue, true); /* if it fails, the use moves the block */
}

/* ---- statistics ---- */

static void spill_trim(void *policy)
{
    struct spill *self = policy;
    if (!self->moves || self->forked)
        return;
    spill_free_limbo(self);
    spill_buffers_trim(self);
}

static void spill_stats(void *policy, ctrt_memory_policy_stats *out)
{
    struct spill *self = policy;
    ctrt_memory_policy_stats stats = { .size = out->size };
    pthread_mutex_lock(&self->lock);
    stats.reserved[CTRT_POOL_ALL] = self->reserved;
    stats.reserved_bytes = self->here_bytes;
    stats.source_allocs = self->source_allocs;
    stats.source_frees = self->source_frees;
    stats.retries = self->rounds;
    stats.spilled = self->spilled;
    stats.spilled_bytes = self->spilled_bytes;
    pthread_mutex_unlock(&self->lock);
    memcpy(out, &stats, out->size < sizeof stats ? out->size : sizeof stats);
}

static void spill_reset_peaks(void *policy)
{
    struct spill *self = policy;
    pthread_mutex_lock(&self->lock);
    stat_reset_peak(&self->reserved);
    stat_reset_peak(&self->spilled);
    stat_reset_peak(&self->spilled_bytes);
    pthread_mutex_unlock(&self->lock);
}

/* Blocks that are AWAY use no device memory and are not reported. */
static void spill_walk(void *policy, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument)
{
    struct spill *self = policy;
    if (self->forked)
        return;
    pthread_mutex_lock(&self->lock);
    for (const struct block *block = self->here.first; block != NULL; block = block->after) {
        ctrt_memory_piece piece = { .size = sizeof piece, .segment = true, .large = block->bytes > (size_t)1 << 20,
                                    .address = block->address, .bytes = block->bytes, .queue = block->home };
        visit(&piece, argument);
        piece.segment = false;
        piece.block_state = CTRT_BLOCK_ACTIVE;
        piece.name = block->name;
        visit(&piece, argument);
    }
    pthread_mutex_unlock(&self->lock);
}

/* ---- the plugin ---- */

static const ctrt_memory_policy policy = {
    .size = sizeof(ctrt_memory_policy),
    .create = spill_create,
    .destroy = spill_destroy,
    .alloc = spill_alloc,
    .free = spill_free,
    .flags = CTRT_MEMORY_FENCES | CTRT_MEMORY_MOVES,
    .trim = spill_trim,
    .stats = spill_stats,
    .reset_peaks = spill_reset_peaks,
    .walk = spill_walk,
    .use = spill_use,
    .unuse = spill_unuse,
};

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_MEMORY, .name = "spill", .table = &policy },
};

CTRT_PLUGIN_DEFINE("memory-spill", PACKAGE_VERSION,
                   "memory policy: moves idle blocks to the host if the device is full", components, policy_init)
