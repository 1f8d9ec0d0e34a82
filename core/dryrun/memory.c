/* SPDX-License-Identifier: Apache-2.0 */
/* dryrun/memory.c: dry runs: blocks, statistics, beginning and end. */
#include "dryrun/memory.h"

#include <sys/mman.h>

#include "base/base.h"
#include "base/lock.h"
#include "base/host_alloc.h"
#include "base/ptr_map.h"
#include "base/strbuf.h"
#include "stream/fence.h"
#include "dryrun/source.h"
#include "memory/policy.h"
#include "memory_stats/label.h"

/* A block of a dry run. ctrt_block.cookie points to it. */
struct plan_block {
    uint64_t number;                        /* number of the dry run */
    ctrt_block inner;                       /* as the cloned policy returned it */
    size_t requested;
    void *queue;
    void *address;
    size_t mapped;
};

/* Where in the program the peak or the first failure occurred. */
struct plan_place {
    const void *address;                    /* of the block; NULL: there is no block whose op must be recorded */
    const char *op, *tag;
};

/* Guards all dry runs and their cloned policies. It has the lowest level of the library's locks, because other locks
 * are taken under it; fork takes it too, so in the child dry runs are consistent. */
LOCK_DEFINE(plan_lock, LOCK_PLAN);

void plan_enter(void)
{
    lock_enter(&plan_lock);
}

void plan_leave(void)
{
    lock_leave(&plan_lock);
}

/* One per device, created at its first dry run; guarded by the lock. */
struct plan {
    struct memory_layer left;               /* in the device's own memory: serves the blocks of ended dry runs */
    struct device_memory *real, *memory;    /* the device's own memory, and that of dry runs */
    struct plan_source source;              /* of `memory` */
    bool running, copied;                   /* copied: the policies are clones and contain the blocks from before */
    uint64_t number;                        /* dry runs so far */
    struct ptr_map blocks;                  /* items: pointers to the blocks */
    _Atomic size_t count;
    /* The state of the current dry run. */
    int64_t live, requested, peak;          /* bytes */
    struct plan_place at_peak, at_failure;
    ctrt_memory_prediction so_far;
};

/* ---- table of blocks; the caller holds the lock ---- */

/* Returns the item of the block. NULL: the block does not belong to a dry run. */
static struct plan_block **find(const struct plan *plan, const ctrt_block *block)
{
    struct plan_block **at = block->cookie != NULL ? ptr_map_find(&plan->blocks, block->cookie, sizeof *at) : NULL;
    return at != NULL && (*at)->address == block->address ? at : NULL;
}

static void block_free(struct plan_block *entry)
{
    munmap(entry->address, entry->mapped);
    host_free(entry);
}

static void drop(struct plan *plan, struct plan_block **at)
{
    struct plan_block *entry = *at;
    ptr_map_remove(&plan->blocks, at, sizeof *at);
    plan->count--;
    block_free(entry);
}

/* ---- blocks ---- */

static const struct policy_layer *top(const struct plan *plan)
{
    return plan->memory->policies[0];
}

/* Removes the limits, so that the dry run continues after a failed allocation as if the device were larger. Returns
 * false if they were removed already. */
static bool lift(struct plan *plan, size_t bytes)
{
    if (!plan_source_lift(&plan->source))
        return false;
    plan->so_far.fits = false;
    plan->so_far.failed_bytes = bytes;
    plan->at_failure = (struct plan_place){ .tag = label_here(), .op = thread_state.op };
    return true;
}

/* Allocates from the policy, retrying as pool_alloc does. */
static ctrt_status ask(struct plan *plan, ctrt_block *inner, size_t bytes, void *queue)
{
    const struct policy_layer *layer = top(plan);
    inner->address = NULL;
    ctrt_status status = layer->policy->alloc(layer->state, inner, bytes, queue);
    if (status == CTRT_ERR_OUT_OF_MEMORY) {
        pool_trim_policies(plan->memory);
        status = layer->policy->alloc(layer->state, inner, bytes, queue);
    }
    if (status == CTRT_ERR_OUT_OF_MEMORY && lift(plan, bytes))
        status = layer->policy->alloc(layer->state, inner, bytes, queue);
    return policy_check_address(status, inner->address, layer->name, bytes);
}

/* Reserves addresses for a block. Host memory can be accessed, and pages are allocated when it is written. */
static void *place_new(const struct plan *plan, size_t bytes)
{
    const int access = device_host_memory(plan->real->device) ? PROT_READ | PROT_WRITE : PROT_NONE;
    void *place = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return place != MAP_FAILED ? place : NULL;
}

static void count_block(struct plan *plan, const struct plan_block *entry)
{
    plan->so_far.allocations++;
    plan->so_far.largest_request = MAX(plan->so_far.largest_request, entry->requested);
    plan->live += (int64_t)entry->inner.bytes;
    plan->requested += (int64_t)entry->requested;
    if (plan->live > plan->peak) {
        plan->peak = plan->live;
        plan->at_peak = (struct plan_place){ .address = entry->address, .tag = label_here(), .op = thread_state.op };
    }
    if (!plan->so_far.fits && plan->at_failure.address == NULL)
        plan->at_failure.address = entry->address;
}

static ctrt_status alloc_locked(struct plan *plan, ctrt_block *block, size_t bytes, void *queue)
{
    struct plan_block *entry = host_calloc(sizeof *entry);
    if (entry == NULL)
        return out_of_memory(sizeof *entry, "a block of a plan");
    ctrt_status status = ask(plan, &entry->inner, bytes, queue);
    if (status != CTRT_OK) {
        host_free(entry);
        return status;
    }
    if (entry->inner.fence != NULL) {       /* a dry run does not wait for work */
        fence_free(entry->inner.fence);
        entry->inner.fence = NULL;
    }
    entry->mapped = (bytes + 4095) / 4096 * 4096;
    entry->address = place_new(plan, entry->mapped);
    if (entry->address == NULL || ptr_map_add(&plan->blocks, entry, sizeof entry) == NULL) {
        top(plan)->policy->free(top(plan)->state, &entry->inner, queue);
        if (entry->address != NULL)
            block_free(entry);
        else
            host_free(entry);
        return out_of_memory(bytes, "addresses for a plan");
    }
    entry->number = plan->number;
    entry->requested = bytes;
    entry->queue = queue;
    plan->count++;
    count_block(plan, entry);
    *block = (ctrt_block){ .address = entry->address, .bytes = entry->inner.bytes, .cookie = entry };
    return CTRT_OK;
}

static ctrt_status plan_alloc(void *state, ctrt_block *block, size_t bytes, void *queue)
{
    struct plan *plan = state;
    plan_enter();
    ctrt_status status = alloc_locked(plan, block, bytes, queue);
    plan_leave();
    return status;
}

/* Reverts account_free for a block that the account never counted. */
static void uncount(struct account *account, size_t bytes, size_t requested)
{
    const int64_t change[ACCOUNT_METRICS] = { 1, (int64_t)bytes, (int64_t)requested };
    for (int metric = 0; metric < ACCOUNT_METRICS; metric++)
        atomic_fetch_add_explicit(&account->published[account_class(bytes)][metric], change[metric],
                                  memory_order_relaxed);
    if (bytes >= account->oversize)
        atomic_fetch_add_explicit(&account->ended_over_net, 1, memory_order_relaxed);
    /* Threads compare with `top` to detect a rising peak, and `top` does not hold after this change. */
    atomic_fetch_add_explicit(&account->epoch, 1, memory_order_relaxed);
}

/* Frees a block from before the dry run. *requested: its requested size, computed from the decrease of the account's
 * sum, which account_free has just updated. */
static void free_older(struct plan *plan, const ctrt_block *block, void *queue, size_t *requested)
{
    const int64_t left = (int64_t)account_current(&plan->memory->account, ACCOUNT_REQUESTED);
    *requested = (size_t)(plan->requested - left);
    plan->requested = left;
    plan->live -= (int64_t)block->bytes;
    ctrt_block plain = *block;
    plain.fence = NULL;
    if (plan->copied)
        top(plan)->policy->free(top(plan)->state, &plain, queue);
    else
        plan_source_return(&plan->source, block->bytes);     /* a policy that cannot be cloned is assumed to cache
                                                             * nothing */
}

static void plan_free(void *state, const ctrt_block *block, void *queue)
{
    struct plan *plan = state;
    size_t requested = 0;
    plan_enter();
    struct plan_block **at = find(plan, block);
    if (at != NULL && (*at)->number == plan->number) {
        plan->live -= (int64_t)block->bytes;
        plan->requested -= (int64_t)(*at)->requested;
        top(plan)->policy->free(top(plan)->state, &(*at)->inner, queue);
        drop(plan, at);
    } else if (at != NULL) {
        uncount(&plan->memory->account, block->bytes, (*at)->requested);
        drop(plan, at);
    } else {
        free_older(plan, block, queue, &requested);
    }
    plan_leave();
    if (at == NULL)
        (device_usable(plan->real->device) ? pool_free : pool_forget)(plan->real, block, requested, queue);
    else
        fence_free(block->fence);
}

static void plan_trim(struct memory_layer *layer, bool again)
{
    const struct plan *plan = layer->state;
    (void)again;
    plan_enter();
    if (plan->running)
        pool_trim_policies(plan->memory);
    plan_leave();
}

/* ---- policies that move memory ---- */

static bool policy_moves(const struct plan *plan)
{
    return CTRT_SLOT(top(plan)->policy, use) && CTRT_SLOT(top(plan)->policy, unuse) && plan->real->moves;
}

/* Returns the block under which the cloned policy allocated it. NULL: it is not a block of the cloned policy. */
static const ctrt_block *inner_of(const struct plan *plan, const ctrt_block *block)
{
    struct plan_block **at = find(plan, block);
    if (at == NULL)
        return plan->copied ? block : NULL;
    return (*at)->number == plan->number ? &(*at)->inner : NULL;
}

static ctrt_status plan_use(struct memory_layer *layer, const ctrt_block *block, void *queue, void **address,
                            bool report)
{
    struct plan *plan = layer->state;
    (void)report;
    ctrt_status status = CTRT_OK;
    void *nowhere;
    *address = block->address;
    plan_enter();
    const ctrt_block *inner = inner_of(plan, block);
    if (inner != NULL && policy_moves(plan))
        status = top(plan)->policy->use(top(plan)->state, inner, queue, &nowhere);
    if (status == CTRT_ERR_OUT_OF_MEMORY && lift(plan, block->bytes)) {
        plan->at_failure.address = block->address;      /* so that the failure is not attributed to a later block */
        status = top(plan)->policy->use(top(plan)->state, inner, queue, &nowhere);
    }
    plan_leave();
    return status;
}

static void plan_unuse(struct memory_layer *layer, const ctrt_block *block, void *queue)
{
    const struct plan *plan = layer->state;
    plan_enter();
    const ctrt_block *inner = inner_of(plan, block);
    if (inner != NULL && policy_moves(plan))
        top(plan)->policy->unuse(top(plan)->state, inner, queue);
    plan_leave();
}

/* ---- op names ---- */

static void name_place(struct plan_place *place, const void *address, const char *op)
{
    if (place->op == NULL && place->address == address)
        place->op = op;
}

void plan_memory_name(struct plan *plan, const void *address, const char *op)
{
    if (address == NULL)
        return;
    plan_enter();
    name_place(&plan->at_peak, address, op);
    name_place(&plan->at_failure, address, op);
    plan_leave();
}

/* ---- blocks of ended dry runs ---- */

static const struct memory_layer *below_left(const struct plan *plan)
{
    const struct memory_layer *layer = plan->left.below;
    while (layer->ops.alloc == NULL)
        layer = layer->below;
    return layer;
}

static ctrt_status left_alloc(void *state, ctrt_block *block, size_t bytes, void *queue)
{
    const struct memory_layer *below = below_left(state);
    return below->ops.alloc(below->state, block, bytes, queue);
}

static void left_free(void *state, const ctrt_block *block, void *queue)
{
    struct plan *plan = state;
    struct plan_block **at = NULL;
    if (plan->count > 0) {
        plan_enter();
        at = find(plan, block);
        if (at != NULL) {
            uncount(&plan->real->account, block->bytes, (*at)->requested);
            drop(plan, at);
        }
        plan_leave();
    }
    if (at == NULL)
        below_left(plan)->ops.free(below_left(plan)->state, block, queue);
    else
        fence_free(block->fence);
}

static bool is_left(const struct memory_layer *layer, const ctrt_block *block)
{
    const struct plan *plan = layer->state;
    if (plan->count == 0)
        return false;
    plan_enter();
    struct plan_block **at = find(plan, block);
    const bool left = at != NULL && !(plan->running && (*at)->number == plan->number);
    plan_leave();
    return left;
}

static ctrt_status left_use(struct memory_layer *layer, const ctrt_block *block, void *queue, void **address,
                            bool report)
{
    if (is_left(layer, block))
        return ctrt_fail(CTRT_ERR_STATE,
                         "a tensor on %s was made in a plan and has no memory; release the tensors made between "
                         "ctrt_memory_plan_begin and ctrt_memory_plan_end", layer->memory->device->name);
    return layer_use(layer->below, block, queue, address, report);
}

static const char *left_busy(const struct memory_layer *layer)
{
    const struct plan *plan = layer->state;
    return plan->count > 0 ? "tensors made in a plan still exist" : NULL;
}

static void left_destroy(struct memory_layer *layer)
{
    struct plan *plan = layer->state;
    for (struct plan_block **at = NULL; (at = ptr_map_next(&plan->blocks, at, sizeof *at)) != NULL;)
        block_free(*at);
    ptr_map_free(&plan->blocks);
    pool_destroy(plan->memory);
    host_free(plan);
}

static const struct memory_ops left_ops = { .alloc = left_alloc, .free = left_free, .use = left_use,
                                            .imaginary = is_left, .busy = left_busy, .destroy = left_destroy };
/* While no blocks of ended dry runs exist, the layer does nothing, so that allocations do not pass through it. */
static const struct memory_ops left_ops_idle = { .imaginary = is_left, .busy = left_busy, .destroy = left_destroy };

static void left_update(struct plan *plan)
{
    plan->left.ops = plan->count > 0 ? left_ops : left_ops_idle;
    memory_layers_changed(plan->real);
}

/* Returns the layer for blocks of ended dry runs. NULL: the device had no dry run. */
static struct memory_layer *left_layer(const struct device_memory *memory)
{
    struct memory_layer *layer = atomic_load_explicit(&memory->top, memory_order_acquire);
    while (layer != NULL && layer->ops.destroy != left_destroy)
        layer = layer->below;
    return layer;
}

bool plan_left(const struct device_memory *memory, const ctrt_block *block)
{
    const struct memory_layer *layer = left_layer(memory);
    return layer != NULL && is_left(layer, block);
}

/* ---- statistics ---- */

static void add(account_cell *cell, int64_t value)
{
    atomic_fetch_add_explicit(cell, value, memory_order_relaxed);
}

/* Sets the counters of `account` to the values of `other`. */
static void account_follow(struct account *account, struct account *other)
{
    struct account_stats want, have;
    account->oversize = other->oversize;
    account_read(&want, other);
    account_read(&have, account);
    for (int class = 0; class < ACCOUNT_CLASSES; class++) {
        for (int metric = 0; metric < ACCOUNT_METRICS; metric++) {
            const ctrt_stat *to = &want.blocks[class + 1][metric], *from = &have.blocks[class + 1][metric];
            add(&account->published[class][metric], to->current - from->current);
            add(&account->ended_in[class][metric], to->allocated - from->allocated);
        }
        for (int metric = 0; metric < 2; metric++) {
            const ctrt_stat *to = &want.drawn[class + 1][metric], *from = &have.drawn[class + 1][metric];
            add(&account->drawn_net[class][metric], to->current - from->current);
            add(&account->drawn_in[class][metric], to->allocated - from->allocated);
        }
    }
    add(&account->ended_over_net, want.oversize.current - have.oversize.current);
    add(&account->ended_over_in, want.oversize.allocated - have.oversize.allocated);
    account_reset_peaks(account);
}

/* Counts the blocks that the dry run has not freed, and frees them to the cloned policies, which are destroyed next. */
static void count_left(struct plan *plan)
{
    for (struct plan_block **at = NULL; (at = ptr_map_next(&plan->blocks, at, sizeof *at)) != NULL;)
        if ((*at)->number == plan->number) {
            plan->so_far.left_blocks++;
            plan->so_far.left_bytes += (*at)->inner.bytes;
            top(plan)->policy->free(top(plan)->state, &(*at)->inner, (*at)->queue);
        }
}

/* ---- creation and end ---- */

/* The dry run is the bottom layer of its memory. */
static bool plan_owns(const struct memory_layer *layer, const ctrt_block *block)
{
    (void)layer, (void)block;
    return true;                            /* blocks from before the dry run are passed on to the device's memory */
}

static const char *plan_busy(const struct memory_layer *layer)
{
    (void)layer;
    return "a plan is running";
}

static const struct memory_ops plan_ops = { .alloc = plan_alloc, .free = plan_free, .use = plan_use,
                                            .unuse = plan_unuse, .trim = plan_trim, .imaginary = plan_owns,
                                            .busy = plan_busy };

static ctrt_status plan_new(struct plan **out, struct device_memory *real)
{
    struct plan *plan = host_calloc(sizeof *plan);
    struct device_memory *memory = aligned_alloc(64, sizeof *memory);
    if (plan == NULL || memory == NULL) {
        host_free(plan);
        free(memory);
        return out_of_memory(sizeof *plan + sizeof *memory, "a plan");
    }
    memset(memory, 0, sizeof *memory);
    account_init(&memory->account);
    account_window_open(&memory->account, &memory->scraped);
    memory->device = real->device;
    memory->dry_run = true;
    memory->fences = true;                  /* fences of blocks from before belong to the device's own memory */
    memory->moves = device_asynchronous(real->device);      /* so that pool_use detects blocks of ended dry runs */
    memory->bottom = (struct memory_layer){ .ops = plan_ops, .state = plan, .memory = memory };
    atomic_store(&memory->top, &memory->bottom);
    memory_layers_changed(memory);
    plan->real = real;
    plan->memory = memory;
    plan->left.ops = left_ops_idle;
    plan->left.state = plan;
    memory_push(real, &plan->left);
    *out = plan;
    return CTRT_OK;
}

/* Creates the device's policies, as clones in the same state if all of them can be cloned. */
static ctrt_status layers_build(struct plan *plan)
{
    struct device_memory *memory = plan->memory, *real = plan->real;
    const ctrt_memory_source *source = &memory->source;
    struct policy_spec specs[MEMORY_MAX_POLICIES];
    int count = real->policy_count;
    ctrt_status status = CTRT_OK;
    plan->copied = true;
    for (int i = 0; i < count; i++)
        plan->copied &= layer_copies(real->policies[i]);
    if (!plan->copied)
        CTRT_TRY(pool_policies(specs, &count, real->device));
    memory->policy_count = count;
    for (int i = count - 1; i >= 0 && status == CTRT_OK; i--) {
        status = plan->copied ? layer_copy(&memory->policies[i], real->policies[i], source)
                              : layer_create(&memory->policies[i], &specs[i], source);
        if (status == CTRT_OK)
            source = &memory->policies[i]->source;
    }
    if (status != CTRT_OK)
        pool_drop_policies(memory);
    return status;
}

/* Sets the memory for the device and all its aliases. */
static void give_memory(ctrt_device *device, struct device_memory *memory)
{
    device->memory = memory;
    for (ctrt_device *name = device->names; name != NULL; name = name->next_name)
        name->memory = memory;
}

ctrt_status plan_memory_begin(struct plan **out, ctrt_device *device)
{
    device = device_home(device);
    struct device_memory *real = device->memory;
    if (real->dry_run)
        return ctrt_fail(CTRT_ERR_STATE, "memory_plan_begin: a plan for %s is already running", device->name);
    if (atomic_load(&device->captures) > 0)
        return ctrt_fail(CTRT_ERR_STATE, "memory_plan_begin: a capture is running on %s (ctrt_capture_end)",
                         device->name);
    struct memory_layer *left = left_layer(real);
    struct plan *plan = left != NULL ? left->state : NULL;
    if (plan == NULL)
        CTRT_TRY(plan_new(&plan, real));
    struct device_memory *memory = plan->memory;
    left_update(plan);
    memcpy(memory->policy_name, real->policy_name, sizeof memory->policy_name);
    memory->total_bytes = real->total_bytes;
    account_follow(&memory->account, &real->account);
    plan_source_begin(&plan->source, memory, real);
    CTRT_TRY(ctrt_context(layers_build(plan), "memory_plan_begin"));
    plan->number++;
    plan->live = plan->peak = (int64_t)account_current(&real->account, ACCOUNT_BYTES);
    plan->requested = (int64_t)account_current(&real->account, ACCOUNT_REQUESTED);
    plan->at_peak = plan->at_failure = (struct plan_place){ .address = NULL };
    plan->so_far = (ctrt_memory_prediction){ .fits = true, .allocated_before = (uint64_t)plan->live,
                                             .reserved_before = account_drawn_bytes(&real->account) };
    plan->running = true;
    give_memory(device, memory);
    *out = plan;
    return CTRT_OK;
}

void plan_memory_end(ctrt_memory_prediction *out, struct plan *plan)
{
    struct device_memory *memory = plan->memory;
    ctrt_memory_prediction *found = &plan->so_far;
    struct account_stats stats;
    account_read(&stats, &memory->account);
    plan_enter();
    found->peak_allocated = (uint64_t)stats.blocks[CTRT_POOL_ALL][ACCOUNT_BYTES].peak;
    found->peak_requested = (uint64_t)stats.blocks[CTRT_POOL_ALL][ACCOUNT_REQUESTED].peak;
    found->peak_reserved = (uint64_t)stats.drawn[CTRT_POOL_ALL][ACCOUNT_BYTES].peak;
    found->allocated_after = (uint64_t)stats.blocks[CTRT_POOL_ALL][ACCOUNT_BYTES].current;
    found->reserved_after = (uint64_t)stats.drawn[CTRT_POOL_ALL][ACCOUNT_BYTES].current;
    found->peak_op = plan->at_peak.op != NULL ? plan->at_peak.op : "";
    found->peak_tag = plan->at_peak.tag != NULL ? plan->at_peak.tag : "";
    found->failed_op = plan->at_failure.op != NULL ? plan->at_failure.op : "";
    found->failed_tag = plan->at_failure.tag != NULL ? plan->at_failure.tag : "";
    count_left(plan);
    plan->running = false;
    give_memory(plan->real->device, plan->real);
    pool_drop_policies(memory);
    left_update(plan);
    plan_leave();
    if (out != NULL)
        *out = *found;
}

void plan_memory_abandon(struct plan *plan)
{
    plan->running = false;
    give_memory(plan->real->device, plan->real);
    plan->memory->policy_count = 0;
    left_update(plan);
}

void plan_memory_limit(struct plan *plan, uint64_t bytes)
{
    plan->source.limit = bytes;
}

bool plan_memory_fits(struct plan *plan)
{
    return plan->so_far.fits;
}
