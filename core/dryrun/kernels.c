/* SPDX-License-Identifier: Apache-2.0 */
/* dryrun/kernels.c: dry runs, which predict the memory of a step. During a dry run, the device has another struct
 * device_memory, a dispatch table of kernels that do nothing, and launch functions that only count memory.
 *
 * That table holds copies of the device's kernels, with their flags, accepts and workspace but another `run`, so
 * operands are copied and workspaces are allocated as in a real run. Normal calls have no overhead for dry runs. */
#include "dryrun/memory.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "memory/storage.h"
#include "ops/dispatch.h"
#include "ops/launch.h"
#include "tensor/shape.h"

struct ctrt_dry_run {
    ctrt_dry_run *next;                     /* in the list `running` */
    ctrt_device *device;
    struct dryrun *memory;
    struct dispatch_entry *entries, *own;   /* dispatch table of the dry run, and that of the device */
    uint64_t seed, seed_offset;             /* state of the device's generator before the dry run */
    bool seeded;
    pthread_t thread;                       /* the thread that began the dry run */
    bool lost;                              /* in the child of a fork: ended, because `thread` does not exist there */
};

static ctrt_dry_run *running;               /* guarded by dryrun_enter */

/* ---- kernels that do nothing ---- */

/* Returns the address of the block that contains the view's elements. */
static const void *block_of(const ctrt_view *view)
{
    const struct storage *storage = view->owner;
    return storage != NULL ? storage->block.address : view->data;
}

static void name_views(struct dryrun *dryrun, const ctrt_view *const *views, uint32_t count, const char *op)
{
    for (uint32_t i = 0; i < count; i++)
        if (views[i] != NULL)
            dryrun_memory_name(dryrun, block_of(views[i]), op);
}

/* The `run` of every kernel during a dry run. Reports the op and the addresses of its operands to the dry run. */
static ctrt_status nothing_run(const ctrt_call *call)
{
    dryrun_enter();
    const ctrt_dry_run *dryrun = running;
    while (dryrun != NULL && dryrun->device->handle != call->device)
        dryrun = dryrun->next;
    struct dryrun *memory = dryrun != NULL ? dryrun->memory : NULL;
    dryrun_leave();
    if (memory == NULL || call->kernel == NULL)
        return CTRT_OK;
    name_views(memory, call->outputs, call->n_outputs, call->kernel->op);
    name_views(memory, call->inputs, call->n_inputs, call->kernel->op);
    dryrun_memory_name(memory, call->workspace, call->kernel->op);
    return CTRT_OK;
}

/* ---- operands of asynchronous devices ---- */

/* Returns the view's storage if the memory policy can move it, else NULL. */
static const struct storage *moving(const ctrt_view *view)
{
    const struct storage *storage = view != NULL && !(view->flags & CTRT_VIEW_HOST_SCALAR) ? view->owner : NULL;
    return storage != NULL && storage->ordered && storage->moves ? storage : NULL;
}

/* Calls pool_use for the memory of the views, in the order in which launch.c does, with `op` as the current op. Sets
 * *used to the number of views for which unuse_views must be called. */
static ctrt_status use_views(uint32_t *used, const ctrt_view *const *views, uint32_t count, const char *op)
{
    const char *before = thread_state.op;
    ctrt_status status = CTRT_OK;
    void *address;
    thread_state.op = op;
    for (*used = 0; *used < count && status == CTRT_OK; *used += status == CTRT_OK) {
        const struct storage *storage = moving(views[*used]);
        if (storage != NULL)
            status = pool_use(storage->device->memory, &storage->block, stream_queue(storage->device), &address);
    }
    thread_state.op = before;
    return status;
}

static void unuse_views(const ctrt_view *const *views, uint32_t used)
{
    for (uint32_t i = 0; i < used; i++) {
        const struct storage *storage = moving(views[i]);
        if (storage != NULL)
            pool_unuse(storage->device->memory, &storage->block, stream_queue(storage->device));
    }
}

/* The launch functions of a dry run. */
static ctrt_status dry_kernel(ctrt_call *call, ctrt_device *device)
{
    const char *op = call->kernel->op;
    uint32_t inputs, outputs = 0;
    CTRT_TRY(device_check(device));
    ctrt_status status = use_views(&inputs, call->inputs, call->n_inputs, op);
    if (status == CTRT_OK)
        status = use_views(&outputs, call->outputs, call->n_outputs, op);
    if (status == CTRT_OK)
        status = nothing_run(call);
    unuse_views(call->inputs, inputs);
    unuse_views(call->outputs, outputs);
    return status;
}

/* Simulates a copy, or a fill if `from` is NULL. */
static ctrt_status dry_transfer(const ctrt_view *to, const ctrt_view *from, const char *op)
{
    const ctrt_view *const views[] = { from, to };
    uint32_t used;
    ctrt_status status = use_views(&used, views, COUNT_OF(views), op);
    for (uint32_t i = 0; i < COUNT_OF(views) && status == CTRT_OK; i++) {
        const struct storage *storage = views[i] != NULL ? views[i]->owner : NULL;
        if (storage != NULL && dry_run_on(storage->device))
            dryrun_memory_name(dryrun_running_on(storage->device), block_of(views[i]), op);
    }
    unuse_views(views, used);
    return status;
}

static ctrt_status dry_copy(const struct launch_copy *copy, ctrt_device *device)
{
    CTRT_TRY(device_check(device));
    if (copy->kind == CTRT_COPY_TO_HOST)
        host_zeros(copy->to);
    return device_asynchronous(device) ? dry_transfer(copy->to, copy->from, "copy") : CTRT_OK;
}

static ctrt_status dry_fill(const ctrt_view *to, ctrt_device *device, int byte, size_t bytes)
{
    (void)byte, (void)bytes;
    CTRT_TRY(device_check(device));
    return device_asynchronous(device) ? dry_transfer(to, NULL, "fill") : CTRT_OK;
}

static const struct launch_ops launch_dry = { .kernel = dry_kernel, .copy = dry_copy, .fill = dry_fill };

/* Sets how work of the device and all its aliases is enqueued. */
static void launch_set(ctrt_device *device, const struct launch_ops *launch)
{
    device_home(device)->launch = launch;
    for (ctrt_device *name = device_home(device)->names; name != NULL; name = name->next_name)
        name->launch = launch;
}

/* ---- fork ---- */

/* In the child of a fork, only the dry runs of the thread that forked continue. The others end, because their threads
 * that would end them do not exist in the child. */
static void after_fork_in_child(void)
{
    for (ctrt_dry_run **at = &running, *dryrun; (dryrun = *at) != NULL;) {
        if (pthread_equal(dryrun->thread, pthread_self())) {
            at = &dryrun->next;
            continue;
        }
        *at = dryrun->next;
        dryrun->lost = true;
        atomic_store_explicit(&dryrun->device->dispatch, dryrun->own, memory_order_release);
        launch_set(dryrun->device, &launch_direct);
        dryrun_memory_abandon(dryrun->memory);
    }
}

/* Registered before the fork handlers of all plugins, so that it runs after them in the child, when the plugins' locks
 * are free. */
__attribute__((constructor)) static void dryrun_start(void)
{
    (void)lock_at_fork(NULL, NULL, after_fork_in_child);
}

/* ---- the dispatch table ---- */

static const ctrt_kernel *idle_copy(ctrt_kernel *copy, const ctrt_kernel *from)
{
    memset(copy, 0, sizeof *copy);
    memcpy(copy, from, MIN(from->size, sizeof *copy));
    copy->size = sizeof *copy;
    copy->run = nothing_run;
    return copy;
}

/* Copies a dispatch table into one allocation: the entries, the pointers to kernels, the kernels. */
static ctrt_status table_copy(struct dispatch_entry **out, const struct dispatch_entry *own)
{
    const size_t entry_count = (size_t)OP_COUNT * DTYPE_COUNT;
    size_t count = 0;
    for (size_t i = 0; i < entry_count; i++)
        count += own[i].count;
    const size_t bytes = entry_count * sizeof *own + count * (sizeof(ctrt_kernel *) + sizeof(ctrt_kernel));
    struct dispatch_entry *entries = host_alloc(bytes);
    ALLOC_CHECK(entries, bytes, "the kernels of a dry run");
    const ctrt_kernel **pointer = (const ctrt_kernel **)(entries + entry_count);
    ctrt_kernel *kernel = (ctrt_kernel *)(pointer + count);
    for (size_t i = 0; i < entry_count; i++) {
        entries[i] = own[i];
        entries[i].run = own[i].run != NULL ? nothing_run : NULL;
        entries[i].kernels = pointer;
        for (uint16_t k = 0; k < own[i].count; k++)
            *pointer++ = idle_copy(kernel++, own[i].kernels[k]);
    }
    *out = entries;
    return CTRT_OK;
}

/* ---- the random number generator ---- */

static void generator_save(ctrt_dry_run *dryrun)
{
    ctrt_device *device = device_home(dryrun->device);
    pthread_mutex_lock(&device->generator_lock);
    dryrun->seed = device->seed;
    dryrun->seed_offset = device->seed_offset;
    dryrun->seeded = device->seeded;
    pthread_mutex_unlock(&device->generator_lock);
}

static void generator_restore(const ctrt_dry_run *dryrun)
{
    ctrt_device *device = device_home(dryrun->device);
    pthread_mutex_lock(&device->generator_lock);
    device->seed = dryrun->seed;
    device->seed_offset = dryrun->seed_offset;
    device->seeded = dryrun->seeded;
    pthread_mutex_unlock(&device->generator_lock);
}

/* ---- public ---- */

ctrt_status ctrt_dry_run_begin(ctrt_dry_run **out, ctrt_device *device)
{
    NULL_CHECK("dry_run_begin", out);
    CTRT_TRY(device_or_default(&device, device));
    CTRT_TRY(device_check(device));
    if (*out != NULL)
        CTRT_TRY(ctrt_dry_run_end(NULL, out));
    ctrt_dry_run *dryrun = host_calloc(sizeof *dryrun);
    ALLOC_CHECK(dryrun, sizeof *dryrun, "a dry run");
    dryrun->device = device;
    dryrun->thread = pthread_self();
    dryrun_enter();
    ctrt_status status = dispatch_table(&dryrun->own, device);
    if (status == CTRT_OK)
        status = table_copy(&dryrun->entries, dryrun->own);
    if (status == CTRT_OK)
        status = dryrun_memory_begin(&dryrun->memory, device);
    if (status == CTRT_OK) {
        generator_save(dryrun);
        atomic_store_explicit(&device->dispatch, dryrun->entries, memory_order_release);
        launch_set(device, &launch_dry);
        dryrun->next = running;
        running = dryrun;
    }
    dryrun_leave();
    if (status != CTRT_OK) {
        host_free(dryrun->entries);
        host_free(dryrun);
        return status;
    }
    *out = dryrun;
    return CTRT_OK;
}

ctrt_status ctrt_dry_run_set_limit(ctrt_dry_run *dryrun, uint64_t bytes)
{
    NULL_CHECK("dry_run_set_limit", dryrun);
    dryrun_memory_limit(dryrun->memory, bytes);
    return CTRT_OK;
}

bool ctrt_dry_run_fits(const ctrt_dry_run *dryrun)
{
    return dryrun != NULL && dryrun_memory_fits(dryrun->memory);
}

bool ctrt_dry_run_active(ctrt_device *device)
{
    return (device != NULL || ctrt_default_device(&device) == CTRT_OK) && dry_run_on(device);
}

ctrt_status ctrt_dry_run_end(ctrt_memory_prediction *out, ctrt_dry_run **dryrun)
{
    if (dryrun == NULL || *dryrun == NULL)
        return fail_null("dry_run_end", "dryrun");
    CTRT_TRY(struct_check(out, "dry_run_end", "out"));
    ctrt_dry_run *ended = *dryrun;
    *dryrun = NULL;
    dryrun_enter();
    for (ctrt_dry_run **at = &running; *at != NULL; at = &(*at)->next)
        if (*at == ended) {
            *at = ended->next;
            break;
        }
    const bool lost = ended->lost;
    if (!lost) {
        atomic_store_explicit(&ended->device->dispatch, ended->own, memory_order_release);
        launch_set(ended->device, &launch_direct);
        generator_restore(ended);
        dryrun_memory_end(out, ended->memory);
    }
    dryrun_leave();
    const char *name = ended->device->name;
    host_free(ended->entries);
    host_free(ended);
    return lost ? ctrt_fail(CTRT_ERR_FORKED,
                            "dry_run_end: another thread of the parent process had begun the dry run for %s, which "
                            "ended with the fork", name) : CTRT_OK;
}

void ctrt_dry_run_release(ctrt_dry_run **dryrun)
{
    if (dryrun != NULL && *dryrun != NULL)
        (void)ctrt_dry_run_end(NULL, dryrun);
}
