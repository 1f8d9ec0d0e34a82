/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/broken_memory.c: a correct memory policy, which CTRT_BROKEN=DEFECT breaks, to test that `ctrt check
 * --contract` finds the defect. tests/integration/contract.sh lists the defects with the check that has to find each.
 *
 * Each block is a block of the source. Freed ones are kept and used again on the same queue, for requests of at least
 * half of their size. With CTRT_BROKEN=moves and the defects moves_*, the policy has CTRT_MEMORY_MOVES, but moves
 * nothing. */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ctrt/plugin.h"

static const ctrt_host *host;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool broken(const char *defect)
{
    const char *text = getenv("CTRT_BROKEN");
    return text != NULL && strcmp(text, defect) == 0;
}

struct block {
    struct block *next;
    char *address;
    size_t bytes;
    void *queue, *fence;
    bool used, foreign;                 /* foreign: a copy of a block of the original, in a clone */
    const void *original;
    int uses;
};

struct policy {
    const ctrt_memory_source *source;
    struct block *blocks;
    ctrt_stat count, bytes;
    bool clone;
};

static void enter(void)
{
    if (!broken("unlocked"))
        pthread_mutex_lock(&lock);
}

static void leave(void)
{
    if (!broken("unlocked"))
        pthread_mutex_unlock(&lock);
}

static void count(ctrt_stat *stat, int64_t amount)
{
    stat->current += amount;
    *(amount < 0 ? &stat->freed : &stat->allocated) += amount < 0 ? -amount : amount;
    stat->peak = stat->current > stat->peak && !broken("peak_zero") ? stat->current : stat->peak;
}

static ctrt_status create(void **out, const ctrt_memory_source *source, const char *options)
{
    const bool early = broken("options_leak") || broken("options_any");
    struct policy *policy = early || options[0] == '\0' ? host->alloc(sizeof *policy) : NULL;
    if (options[0] != '\0' && !broken("options_any"))
        return broken("options_silent")
                   ? CTRT_ERR_INVALID_ARGUMENT
                   : host->fail(CTRT_ERR_INVALID_ARGUMENT, "broken has no options%s%s",
                                broken("options_vague") ? "" : ": ",
                                broken("options_vague") ? "" : options);
    if (policy == NULL && !broken("alloc_unchecked"))
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory");
    *policy = (struct policy){ .source = source };
    *out = policy;
    return CTRT_OK;
}

/* Returns the block to the source when the work that uses it is done. */
static void give_back(struct policy *policy, struct block *block)
{
    const ctrt_memory_source *source = policy->source;
    void *fence = NULL;
    if (!broken("early_free") && source->fence_new(source->state, &fence, block->queue) == CTRT_OK && fence != NULL) {
        (void)source->fence_wait(source->state, fence, NULL);
        source->fence_free(source->state, fence);
    }
    if (block->fence != NULL) {
        if (!broken("early_free"))
            (void)source->fence_wait(source->state, block->fence, NULL);
        if (!broken("fence_leak"))
            source->fence_free(source->state, block->fence);
    }
    if (!block->foreign && !broken("source_leak")) {
        const size_t bytes = broken("wrong_size") ? block->bytes + 1 : block->bytes;
        source->free(source->state, block->address, bytes, block->queue);
        count(&policy->count, broken("count_frees") ? 0 : -1);
        count(&policy->bytes, -(int64_t)block->bytes);
    }
    host->free(block);
}

static void release(struct policy *policy, bool all)
{
    for (struct block **at = &policy->blocks; *at != NULL;) {
        struct block *block = *at;
        if (block->used && !all) {
            at = &block->next;
            continue;
        }
        *at = block->next;
        give_back(policy, block);
    }
}

static void trim(void *state)
{
    if (broken("trim_nothing"))
        return;
    enter();
    release(state, broken("trim_used"));
    leave();
}

static void destroy(void *state)
{
    struct policy *policy = state;
    if (!broken("destroy_leak"))
        release(policy, policy->clone);
    if (!broken("own_leak"))
        host->free(policy);
}

static struct block *cached(struct policy *policy, size_t bytes, const void *queue)
{
    for (struct block *block = policy->blocks; block != NULL; block = block->next)
        if ((!block->used || (broken("overlap") && block->bytes >= 4096 && block->bytes < 8192))
            && block->bytes >= bytes && block->bytes / 2 <= bytes && (block->queue == queue || broken("other_queue")))
            return block;
    return NULL;
}

static ctrt_status take(struct policy *policy, struct block **out, size_t bytes, void *queue, bool spare)
{
    const ctrt_memory_source *source = policy->source;
    if (broken("alloc_silent"))
        return CTRT_ERR_INTERNAL;
    struct block *block = host->alloc(sizeof *block);
    if (block == NULL && !broken("alloc_unchecked"))
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for a block");
    *block = (struct block){ .bytes = bytes, .queue = queue };
    const bool clones = policy->clone && broken("clone_source");
    static const ctrt_memory_source *first;
    first = policy->clone || first != NULL ? first : source;
    if (clones && first != NULL)
        source = first;
    ctrt_status status = source->alloc(source->state, (void **)&block->address, bytes, queue);
    if (status == CTRT_ERR_OUT_OF_MEMORY && (!spare || broken("spare_trims"))) {
        release(policy, false);
        status = source->alloc(source->state, (void **)&block->address, bytes, queue);
    }
    if (status != CTRT_OK) {
        if (!broken("failure_leak"))
            host->free(block);
        return broken("failure_changed") ? host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: the source failed")
               : broken("failure_silent") ? CTRT_ERR_INTERNAL : status;
    }
    block->next = policy->blocks;
    policy->blocks = block;
    count(&policy->count, 1);
    count(&policy->bytes, (int64_t)bytes);
    *out = block;
    return CTRT_OK;
}

static ctrt_status allocate(struct policy *policy, ctrt_block *out, size_t bytes, void *queue, bool spare)
{
    const size_t rounded = bytes <= SIZE_MAX / 4 || broken("round_overflow") ? (bytes + 511) / 512 * 512 : 0;
    if (rounded == 0 && !broken("round_overflow"))
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: %zu bytes are too many", bytes);
    enter();
    struct block *block = cached(policy, rounded, queue);
    if (broken("unlocked"))
        sched_yield();
    ctrt_status status = block == NULL ? take(policy, &block, rounded > 0 ? rounded : 512, queue, spare) : CTRT_OK;
    if (status == CTRT_OK) {
        block->used = true;
        *out = (ctrt_block){ .address = block->address + (broken("misaligned") ? 8 : 0), .cookie = block,
                             .fence = block->fence,
                             .bytes = broken("small") ? bytes / 2 : block->bytes };
        if (broken("fence_lost") && block->fence != NULL) {
            policy->source->fence_free(policy->source->state, block->fence);
            out->fence = NULL;
        }
        block->fence = NULL;
        if (broken("header") && (policy->source->device_flags & CTRT_DEVICE_HOST_MEMORY))
            for (struct block *b = policy->blocks; b != NULL; b = b->next)
                memset(b->address, 0, 1);
    }
    leave();
    return status;
}

static ctrt_status alloc(void *policy, ctrt_block *out, size_t bytes, void *queue)
{
    return allocate(policy, out, bytes, queue, false);
}

static ctrt_status alloc_spare(void *policy, ctrt_block *out, size_t bytes, void *queue)
{
    return allocate(policy, out, bytes, queue, true);
}

static void free_block(void *state, const ctrt_block *given, void *queue)
{
    struct policy *policy = state;
    struct block *block = given->cookie;
    (void)queue;
    enter();
    for (struct block *b = policy->blocks; policy->clone && b != NULL; b = b->next)
        if (b->original == given->cookie)
            block = b;
    block->used = false;
    block->fence = given->fence;
    if (broken("eager") && !policy->clone) {
        struct block **at = &policy->blocks;
        while (*at != block)
            at = &(*at)->next;
        *at = block->next;
        policy->source->free(policy->source->state, block->address, block->bytes, block->queue);
        count(&policy->count, -1);
        count(&policy->bytes, -(int64_t)block->bytes);
        if (block->fence != NULL)
            policy->source->fence_free(policy->source->state, block->fence);
        host->free(block);
    }
    leave();
}

static void stats(void *state, ctrt_memory_policy_stats *out)
{
    struct policy *policy = state;
    ctrt_memory_policy_stats values = { .size = out->size };
    enter();
    values.segment[CTRT_POOL_ALL] = policy->count;
    values.reserved[CTRT_POOL_ALL] = policy->bytes;
    values.reserved_bytes = (uint64_t)policy->bytes.current;
    values.source_allocs = (uint64_t)policy->count.allocated;
    values.source_frees = (uint64_t)policy->count.freed;
    for (const struct block *block = policy->blocks; block != NULL; block = block->next) {
        values.cached_bytes += block->used && !broken("cached_all") ? 0 : block->bytes;
        values.reserved_bytes -= block->used || !broken("reserved_used") ? 0 : block->bytes;
    }
    leave();
    memcpy(out, &values, out->size < sizeof values && !broken("stats_overflow") ? out->size : sizeof values);
}

static void reset_peaks(void *state)
{
    struct policy *policy = state;
    enter();
    policy->count.peak = policy->count.current;
    policy->bytes.peak = broken("peak_stays") ? policy->bytes.peak : policy->bytes.current;
    leave();
}

static void walk(void *state, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument)
{
    const struct policy *policy = state;
    enter();
    for (const struct block *block = policy->blocks; block != NULL; block = block->next) {
        ctrt_memory_piece piece = { .size = sizeof piece, .segment = true, .address = block->address,
                                    .bytes = block->bytes,
                                    .queue = block->queue };
        if (!block->used && broken("walk_used"))
            continue;
        visit(&piece, argument);
        piece.segment = false;
        piece.bytes -= broken("walk_gap") ? 64 : 0;
        piece.block_state = block->used || broken("walk_active") ? CTRT_BLOCK_ACTIVE : CTRT_BLOCK_INACTIVE;
        visit(&piece, argument);
    }
    leave();
}

static ctrt_status clone(void *state, void **out, const ctrt_memory_source *source)
{
    struct policy *policy = state, *copy = NULL;
    ctrt_status status = create((void **)&copy, source, "");
    enter();
    if (status == CTRT_OK) {
        *copy = *policy;
        copy->source = source;
        copy->clone = true;
        copy->blocks = broken("clone_shares") ? policy->blocks : NULL;
    }
    for (struct block *block = policy->blocks; block != NULL && status == CTRT_OK && !broken("clone_shares");
         block = block->next) {
        struct block *twin = host->alloc(sizeof *twin);
        status = twin != NULL ? CTRT_OK : host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for a clone");
        if (twin != NULL) {
            *twin = *block;
            twin->next = copy->blocks;
            twin->original = block;
            twin->foreign = true;
            twin->fence = NULL;
            copy->blocks = twin;
        }
    }
    leave();
    *out = copy;
    return status;
}

static ctrt_status use(void *policy, const ctrt_block *given, void *queue, void **address)
{
    struct block *block = given->cookie;
    (void)policy;
    static const ctrt_memory_source *source;
    source = ((struct policy *)policy)->source;
    if (block->queue != queue) {
        void *fence = NULL;
        (void)source->fence_new(source->state, &fence, block->queue);
        (void)source->fence_wait(source->state, fence, queue);
        source->fence_free(source->state, fence);
    }
    *address = block->address;
    if (broken("moves_in_use") && block->uses++ > 0)
        *address = block->address + 512;
    if (broken("moves_loses"))
        memset(block->address, 0, 1);
    return CTRT_OK;
}

static void unuse(void *policy, const ctrt_block *block, void *queue)
{
    (void)policy, (void)queue;
    ((struct block *)block->cookie)->uses--;
}

/* ---- the plugin ---- */

static ctrt_memory_policy table = {
    .size = sizeof table, .create = create, .destroy = destroy, .alloc = alloc, .free = free_block,
    .flags = CTRT_MEMORY_FENCES, .trim = trim, .stats = stats, .walk = walk, .clone = clone, .alloc_spare = alloc_spare,
    .reset_peaks = reset_peaks,
};

static ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_MEMORY, .score = -100, .name = "broken", .table = &table },
};

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static ctrt_status init(const ctrt_host *given)
{
    host = given;
    const char *text = getenv("CTRT_BROKEN");
    if (text != NULL && strncmp(text, "moves", 5) == 0) {
        table.flags |= CTRT_MEMORY_MOVES;
        table.use = use;
        table.unuse = broken("moves_incomplete") ? NULL : unuse;
    }
    components[0].name = broken("name_long") ? "a-policy-with-a-name-of-many-letters" : "broken";
    return broken("fork_locked") ? CTRT_OK : host->at_fork(before_fork, after_fork, after_fork);
}

CTRT_PLUGIN_DEFINE("memory-broken", "1.0", "a memory policy with defects", components, init)
