/* SPDX-License-Identifier: Apache-2.0 */
/* dryrun/memory.c: dry runs: layers, statistics, beginning and end. */
#include "dryrun/memory.h"

#include "base/base.h"
#include "base/lock.h"
#include "base/host_alloc.h"
#include "base/strbuf.h"
#include "stream/fence.h"
#include "dryrun/blocks.h"
#include "dryrun/cleanup.h"
#include "dryrun/source.h"
#include "memory/policy.h"
#include "memory/label.h"
#include "tensor/tensor.h"

/* Where in the program the peak or the first failure occurred. */
struct dryrun_place {
    const void *address;                    /* of the block; NULL: there is no block whose op must be recorded */
    const char *op, *label;
};

/* Guards all dry runs and their cloned policies. It has the lowest level of the library's locks, because other locks
 * are taken under it; fork also takes it, so dry runs are consistent in the child. */
LOCK_DEFINE(dryrun_lock, LOCK_DRY_RUN);

void dryrun_enter(void)
{
    lock_enter(&dryrun_lock);
}

void dryrun_leave(void)
{
    lock_leave(&dryrun_lock);
}

/* One per device, created at its first dry run; guarded by the lock. */
struct dryrun {
    struct memory_layer left;               /* in the device's own memory: serves the blocks of ended dry runs */
    struct device_memory *real, *memory;    /* the device's own memory, and that of dry runs */
    struct dryrun_source source;            /* of `memory` */
    bool running, ending;                   /* ending: cleanup functions are running */
    bool copied;                            /* the policies are clones and contain the blocks from before */
    uint64_t number;                        /* dry runs so far */
    struct dryrun_blocks blocks;
    /* The state of the current dry run. */
    int64_t live, requested, peak;          /* bytes */
    struct dryrun_place at_peak, at_failure;
    ctrt_memory_prediction so_far;
};

/* ---- blocks ---- */

static const struct policy_layer *top(const struct dryrun *dryrun)
{
    return dryrun->memory->policies[0];
}

/* Removes the limits, so that the dry run continues after a failed allocation as if the device were larger. Returns
 * false if they were removed already. */
static bool lift(struct dryrun *dryrun, size_t bytes)
{
    if (!dryrun_source_lift(&dryrun->source))
        return false;
    dryrun->so_far.fits = false;
    dryrun->so_far.failed_bytes = bytes;
    dryrun->at_failure = (struct dryrun_place){ .label = label_here(), .op = thread_state.op };
    return true;
}

/* Allocates from the policy, retrying as pool_alloc does. */
static ctrt_status alloc_inner(struct dryrun *dryrun, ctrt_block *inner, size_t bytes, void *queue)
{
    const struct policy_layer *layer = top(dryrun);
    inner->address = NULL;
    ctrt_status status = layer->policy->alloc(layer->state, inner, bytes, queue);
    if (status == CTRT_ERR_OUT_OF_MEMORY) {
        pool_trim_policies(dryrun->memory);
        status = layer->policy->alloc(layer->state, inner, bytes, queue);
    }
    if (status == CTRT_ERR_OUT_OF_MEMORY && lift(dryrun, bytes))
        status = layer->policy->alloc(layer->state, inner, bytes, queue);
    return policy_check_address(status, inner->address, layer->name, bytes);
}

static void count_block(struct dryrun *dryrun, const struct dryrun_block *entry)
{
    dryrun->so_far.allocations++;
    dryrun->so_far.largest_request = MAX(dryrun->so_far.largest_request, entry->requested);
    dryrun->live += (int64_t)entry->inner.bytes;
    dryrun->requested += (int64_t)entry->requested;
    if (dryrun->live > dryrun->peak) {
        dryrun->peak = dryrun->live;
        dryrun->at_peak =
            (struct dryrun_place){ .address = entry->address, .label = label_here(), .op = thread_state.op };
    }
    if (!dryrun->so_far.fits && dryrun->at_failure.address == NULL)
        dryrun->at_failure.address = entry->address;
}

static ctrt_status alloc_locked(struct dryrun *dryrun, ctrt_block *block, size_t bytes, void *queue)
{
    struct dryrun_block *entry = NULL;
    ctrt_block inner = { 0 };
    CTRT_TRY(alloc_inner(dryrun, &inner, bytes, queue));
    if (inner.fence != NULL) {              /* a dry run does not wait for work */
        fence_free(inner.fence);
        inner.fence = NULL;
    }
    ctrt_status status = dryrun_block_add(&entry, &dryrun->blocks, &inner, bytes, dryrun->real->device);
    if (status != CTRT_OK) {
        top(dryrun)->policy->free(top(dryrun)->state, &inner, queue);
        return status;
    }
    entry->number = dryrun->number;
    entry->queue = queue;
    count_block(dryrun, entry);
    *block = (ctrt_block){ .address = entry->address, .bytes = inner.bytes, .cookie = entry };
    return CTRT_OK;
}

static ctrt_status dryrun_alloc(void *state, ctrt_block *block, size_t bytes, void *queue)
{
    struct dryrun *dryrun = state;
    dryrun_enter();
    ctrt_status status = alloc_locked(dryrun, block, bytes, queue);
    dryrun_leave();
    return status;
}

/* Frees a block from before the dry run. `entry`: of a counted block of an earlier dry run, else NULL. *requested: its
 * requested size, computed from the decrease of the counters' sum, which counters_free has just updated. */
static void free_older(struct dryrun *dryrun, const ctrt_block *block, const struct dryrun_block *entry, void *queue,
                       size_t *requested)
{
    const int64_t left = (int64_t)counters_current(&dryrun->memory->counters, COUNTER_REQUESTED);
    *requested = (size_t)(dryrun->requested - left);
    dryrun->requested = left;
    dryrun->live -= (int64_t)block->bytes;
    ctrt_block plain = *block;
    plain.fence = NULL;
    if (entry != NULL)
        dryrun_source_return(&dryrun->source, entry->mapped);
    else if (dryrun->copied)
        top(dryrun)->policy->free(top(dryrun)->state, &plain, queue);
    else
        dryrun_source_return(&dryrun->source, block->bytes); /* a policy that cannot be cloned is assumed to cache
                                                             * nothing */
}

static void dryrun_free(void *state, const ctrt_block *block, void *queue)
{
    struct dryrun *dryrun = state;
    size_t requested = 0;
    bool older = false;
    dryrun_enter();
    struct dryrun_block *entry = dryrun_block_find(&dryrun->blocks, block);
    if (entry != NULL && entry->number == dryrun->number) {
        dryrun->live -= (int64_t)block->bytes;
        dryrun->requested -= (int64_t)entry->requested;
        top(dryrun)->policy->free(top(dryrun)->state, &entry->inner, queue);
        dryrun_block_drop(&dryrun->blocks, entry);
    } else if (entry != NULL && !entry->counted) {
        dryrun_block_uncount(dryrun->memory, entry);
        dryrun_block_drop(&dryrun->blocks, entry);
    } else {
        older = true;
        free_older(dryrun, block, entry, queue, &requested);
    }
    dryrun_leave();
    if (older)
        (device_usable(dryrun->real->device) ? pool_free : pool_forget)(dryrun->real, block, requested, queue);
    else
        fence_free(block->fence);
}

static void dryrun_trim(struct memory_layer *layer, bool again)
{
    const struct dryrun *dryrun = layer->state;
    (void)again;
    dryrun_enter();
    if (dryrun->running)
        pool_trim_policies(dryrun->memory);
    dryrun_leave();
}

/* ---- policies that move memory ---- */

static bool policy_moves(const struct dryrun *dryrun)
{
    return CTRT_SLOT(top(dryrun)->policy, use) && CTRT_SLOT(top(dryrun)->policy, unuse) && dryrun->real->moves;
}

/* Returns the block under which the cloned policy allocated it. NULL: it is not a block of the cloned policy. */
static const ctrt_block *inner_of(const struct dryrun *dryrun, const ctrt_block *block)
{
    const struct dryrun_block *entry = dryrun_block_find(&dryrun->blocks, block);
    if (entry == NULL)
        return dryrun->copied ? block : NULL;
    return entry->number == dryrun->number ? &entry->inner : NULL;
}

static ctrt_status dryrun_use(struct memory_layer *layer, const ctrt_block *block, void *queue, void **address,
                              bool report)
{
    struct dryrun *dryrun = layer->state;
    (void)report;
    ctrt_status status = CTRT_OK;
    void *nowhere;
    *address = block->address;
    dryrun_enter();
    const ctrt_block *inner = inner_of(dryrun, block);
    if (inner != NULL && policy_moves(dryrun))
        status = top(dryrun)->policy->use(top(dryrun)->state, inner, queue, &nowhere);
    if (status == CTRT_ERR_OUT_OF_MEMORY && lift(dryrun, block->bytes)) {
        dryrun->at_failure.address = block->address;    /* so that the failure is not attributed to a later block */
        status = top(dryrun)->policy->use(top(dryrun)->state, inner, queue, &nowhere);
    }
    dryrun_leave();
    return status;
}

static void dryrun_unuse(struct memory_layer *layer, const ctrt_block *block, void *queue)
{
    const struct dryrun *dryrun = layer->state;
    dryrun_enter();
    const ctrt_block *inner = inner_of(dryrun, block);
    if (inner != NULL && policy_moves(dryrun))
        top(dryrun)->policy->unuse(top(dryrun)->state, inner, queue);
    dryrun_leave();
}

/* ---- op names ---- */

static void name_place(struct dryrun_place *place, const void *address, const char *op)
{
    if (place->op == NULL && place->address == address)
        place->op = op;
}

void dryrun_memory_name(struct dryrun *dryrun, const void *address, const char *op)
{
    if (address == NULL)
        return;
    dryrun_enter();
    name_place(&dryrun->at_peak, address, op);
    name_place(&dryrun->at_failure, address, op);
    dryrun_leave();
}

/* ---- blocks of ended dry runs ---- */

static const struct memory_layer *below_left(const struct dryrun *dryrun)
{
    const struct memory_layer *layer = dryrun->left.below;
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
    struct dryrun *dryrun = state;
    bool left = false;
    if (dryrun->blocks.count > 0) {
        dryrun_enter();
        struct dryrun_block *entry = dryrun_block_find(&dryrun->blocks, block);
        left = entry != NULL;
        if (left) {
            dryrun_block_uncount(dryrun->real, entry);
            dryrun_block_drop(&dryrun->blocks, entry);
        }
        dryrun_leave();
    }
    if (!left)
        below_left(dryrun)->ops.free(below_left(dryrun)->state, block, queue);
    else
        fence_free(block->fence);
}

static bool is_left(const struct memory_layer *layer, const ctrt_block *block)
{
    const struct dryrun *dryrun = layer->state;
    if (dryrun->blocks.count == 0)
        return false;
    dryrun_enter();
    const struct dryrun_block *entry = dryrun_block_find(&dryrun->blocks, block);
    const bool left = entry != NULL && !(dryrun->running && entry->number == dryrun->number);
    dryrun_leave();
    return left;
}

static ctrt_status left_use(struct memory_layer *layer, const ctrt_block *block, void *queue, void **address,
                            bool report)
{
    if (is_left(layer, block))
        return ctrt_fail(CTRT_ERR_STATE,
                         "a tensor on %s was made in a dry run and has no memory; release the tensors made between "
                         "ctrt_dry_run_begin and ctrt_dry_run_end", layer->memory->device->name);
    return layer_use(layer->below, block, queue, address, report);
}

static const char *left_busy(const struct memory_layer *layer)
{
    const struct dryrun *dryrun = layer->state;
    return dryrun->blocks.count > 0 ? "tensors made in a dry run still exist" : NULL;
}

static void left_destroy(struct memory_layer *layer)
{
    struct dryrun *dryrun = layer->state;
    dryrun_blocks_free(&dryrun->blocks);
    pool_destroy(dryrun->memory);
    host_free(dryrun);
}

static const struct memory_ops left_ops = { .alloc = left_alloc, .free = left_free, .use = left_use,
                                            .is_predicted = is_left, .busy = left_busy, .destroy = left_destroy };
/* While no blocks of ended dry runs exist, the layer does nothing, so that allocations do not pass through it. */
static const struct memory_ops left_ops_idle = { .is_predicted = is_left, .busy = left_busy, .destroy = left_destroy };

static void left_update(struct dryrun *dryrun)
{
    dryrun->left.ops = dryrun->blocks.count > 0 ? left_ops : left_ops_idle;
    memory_layers_changed(dryrun->real);
}

/* Returns the layer for blocks of ended dry runs. NULL: the device had no dry run. */
static struct memory_layer *left_layer(const struct device_memory *memory)
{
    struct memory_layer *layer = atomic_load_explicit(&memory->top, memory_order_acquire);
    while (layer != NULL && layer->ops.destroy != left_destroy)
        layer = layer->below;
    return layer;
}

/* ---- creation and end ---- */

bool dryrun_ending_made(const ctrt_tensor *tensor)
{
    if (!dry_run_on(tensor->device))
        return false;
    const struct dryrun *dryrun = dryrun_running_on(tensor->device);
    const struct dryrun_block *entry =
        dryrun->ending ? dryrun_block_find(&dryrun->blocks, &tensor->storage->block) : NULL;
    return entry != NULL && entry->number == dryrun->number;
}

/* Counts the blocks that the dry run has not freed, and frees them to the cloned policies, which are destroyed next. In
 * host memory, the blocks remain. */
static void count_left(struct dryrun *dryrun)
{
    for (struct dryrun_block *entry = NULL; (entry = dryrun_block_next(&dryrun->blocks, entry)) != NULL;)
        if (entry->number == dryrun->number) {
            dryrun->so_far.left_blocks++;
            dryrun->so_far.left_bytes += entry->inner.bytes;
            top(dryrun)->policy->free(top(dryrun)->state, &entry->inner, entry->queue);
            if (device_host_memory(dryrun->real->device))
                dryrun_block_count(dryrun->real, entry);
        }
}

/* The dry run is the bottom layer of its memory. */
static bool dryrun_owns(const struct memory_layer *layer, const ctrt_block *block)
{
    (void)layer, (void)block;
    return true;                            /* blocks from before the dry run are passed on to the device's memory */
}

static const char *dryrun_busy(const struct memory_layer *layer)
{
    (void)layer;
    return "a dry run is running";
}

static const struct memory_ops dryrun_ops = { .alloc = dryrun_alloc, .free = dryrun_free, .use = dryrun_use,
                                            .unuse = dryrun_unuse, .trim = dryrun_trim, .is_predicted = dryrun_owns,
                                            .busy = dryrun_busy };

static ctrt_status dryrun_new(struct dryrun **out, struct device_memory *real)
{
    struct dryrun *dryrun = host_calloc(sizeof *dryrun);
    struct device_memory *memory = aligned_alloc(64, sizeof *memory);
    if (dryrun == NULL || memory == NULL) {
        host_free(dryrun);
        free(memory);
        return out_of_memory(sizeof *dryrun + sizeof *memory, "a dry run");
    }
    memset(memory, 0, sizeof *memory);
    counters_init(&memory->counters);
    peak_window_open(&memory->counters, &memory->scraped);
    memory->device = real->device;
    memory->dry_run = true;
    memory->fences = true;                  /* fences of blocks from before belong to the device's own memory */
    memory->moves = device_asynchronous(real->device);      /* so that pool_use detects blocks of ended dry runs */
    memory->bottom = (struct memory_layer){ .ops = dryrun_ops, .state = dryrun, .memory = memory };
    atomic_store(&memory->top, &memory->bottom);
    memory_layers_changed(memory);
    dryrun->real = real;
    dryrun->memory = memory;
    dryrun->left.ops = left_ops_idle;
    dryrun->left.state = dryrun;
    memory_push(real, &dryrun->left);
    *out = dryrun;
    return CTRT_OK;
}

/* Creates the device's policies, as clones in the same state if all of them can be cloned. */
static ctrt_status layers_build(struct dryrun *dryrun)
{
    struct device_memory *memory = dryrun->memory, *real = dryrun->real;
    const ctrt_memory_source *source = &memory->source;
    struct policy_spec specs[MEMORY_MAX_POLICIES];
    int count = real->policy_count;
    ctrt_status status = CTRT_OK;
    dryrun->copied = true;
    for (int i = 0; i < count; i++)
        dryrun->copied &= layer_copies(real->policies[i]);
    if (!dryrun->copied)
        CTRT_TRY(pool_policies(specs, &count, real->device));
    memory->policy_count = count;
    for (int i = count - 1; i >= 0 && status == CTRT_OK; i--) {
        status = dryrun->copied ? layer_copy(&memory->policies[i], real->policies[i], source)
                              : layer_create(&memory->policies[i], &specs[i], source);
        if (status == CTRT_OK)
            source = &memory->policies[i]->source;
    }
    if (status != CTRT_OK)
        pool_drop_policies(memory);
    return status;
}

/* Sets the memory for the device and all its aliases. */
static void set_memory(ctrt_device *device, struct device_memory *memory)
{
    device->memory = memory;
    for (ctrt_device *name = device->names; name != NULL; name = name->next_name)
        name->memory = memory;
}

ctrt_status dryrun_memory_begin(struct dryrun **out, ctrt_device *device)
{
    device = device_home(device);
    struct device_memory *real = device->memory;
    if (real->dry_run)
        return ctrt_fail(CTRT_ERR_STATE, "dry_run_begin: a dry run for %s is already running", device->name);
    if (atomic_load(&device->captures) > 0)
        return ctrt_fail(CTRT_ERR_STATE, "dry_run_begin: a capture is running on %s (ctrt_capture_end)",
                         device->name);
    struct memory_layer *left = left_layer(real);
    struct dryrun *dryrun = left != NULL ? left->state : NULL;
    if (dryrun == NULL)
        CTRT_TRY(dryrun_new(&dryrun, real));
    struct device_memory *memory = dryrun->memory;
    left_update(dryrun);
    memcpy(memory->policy_name, real->policy_name, sizeof memory->policy_name);
    memory->total_bytes = real->total_bytes;
    counters_copy(&memory->counters, &real->counters);
    dryrun_source_begin(&dryrun->source, memory, real);
    CTRT_TRY(ctrt_context(layers_build(dryrun), "dry_run_begin"));
    dryrun->number++;
    dryrun->live = dryrun->peak = (int64_t)counters_current(&real->counters, COUNTER_BYTES);
    dryrun->requested = (int64_t)counters_current(&real->counters, COUNTER_REQUESTED);
    dryrun->at_peak = dryrun->at_failure = (struct dryrun_place){ .address = NULL };
    dryrun->so_far = (ctrt_memory_prediction){ .fits = true, .allocated_before = (uint64_t)dryrun->live,
                                             .reserved_before = counters_reserved_bytes(&real->counters) };
    dryrun->running = true;
    set_memory(device, memory);
    *out = dryrun;
    return CTRT_OK;
}

void dryrun_memory_end(ctrt_memory_prediction *out, struct dryrun *dryrun)
{
    struct device_memory *memory = dryrun->memory;
    ctrt_memory_prediction *found = &dryrun->so_far;
    struct counter_stats stats;
    counters_read(&stats, &memory->counters);
    dryrun_enter();
    found->peak_allocated = (uint64_t)stats.blocks[CTRT_POOL_ALL][COUNTER_BYTES].peak;
    found->peak_requested = (uint64_t)stats.blocks[CTRT_POOL_ALL][COUNTER_REQUESTED].peak;
    found->peak_reserved = (uint64_t)stats.reserved[CTRT_POOL_ALL][COUNTER_BYTES].peak;
    found->allocated_after = (uint64_t)stats.blocks[CTRT_POOL_ALL][COUNTER_BYTES].current;
    found->reserved_after = (uint64_t)stats.reserved[CTRT_POOL_ALL][COUNTER_BYTES].current;
    found->peak_op = dryrun->at_peak.op != NULL ? dryrun->at_peak.op : "";
    found->peak_label = dryrun->at_peak.label != NULL ? dryrun->at_peak.label : "";
    found->failed_op = dryrun->at_failure.op != NULL ? dryrun->at_failure.op : "";
    found->failed_label = dryrun->at_failure.label != NULL ? dryrun->at_failure.label : "";
    dryrun->ending = true;
    dryrun_cleanup_run();
    dryrun->ending = false;
    count_left(dryrun);
    dryrun->running = false;
    set_memory(dryrun->real->device, dryrun->real);
    pool_drop_policies(memory);
    left_update(dryrun);
    dryrun_leave();
    if (out != NULL)
        (void)struct_write(out, found, sizeof *found, "dry_run_end", "out");    /* has been checked */
}

void dryrun_memory_abandon(struct dryrun *dryrun)
{
    dryrun->running = false;
    set_memory(dryrun->real->device, dryrun->real);
    dryrun->memory->policy_count = 0;
    left_update(dryrun);
}

void dryrun_memory_limit(struct dryrun *dryrun, uint64_t bytes)
{
    dryrun->source.limit = bytes;
}

bool dryrun_memory_fits(struct dryrun *dryrun)
{
    return dryrun->so_far.fits;
}
