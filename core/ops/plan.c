/* SPDX-License-Identifier: Apache-2.0 */
/* ops/plan.c: predicting the memory of a step: the device gets the memory of a plan, and a table of kernels that do nothing.
 *
 * The rows of that table are the device's own, with their flags, accepts and workspace, so that layouts are mended and workspaces taken
 * as in earnest; only run is another. So normal calls pay nothing for plans. */
#include "ops/plan.h"

#include "base/base.h"
#include "base/memory.h"
#include "memory/storage.h"
#include "ops/dispatch.h"
#include "tensor/shape.h"

struct ctrt_memory_plan {
    ctrt_memory_plan *next;                 /* of those that are running */
    ctrt_device *device;
    struct plan *memory;
    struct op_cell *cells, *own;            /* the plan's, the device's */
    uint64_t seed, seed_offset;
    bool seeded;
};

static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;
static ctrt_memory_plan *running;

static void after_fork_in_child(void)
{
    pthread_mutex_init(&running_lock, NULL);
}

__attribute__((constructor)) static void plan_start(void)
{
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

/* ---- kernels that do nothing ---- */

static void name_views(struct plan *plan, const ctrt_view *const *views, uint32_t count, const char *op)
{
    for (uint32_t i = 0; i < count; i++)
        if (views[i] != NULL)
            plan_memory_name(plan, views[i]->data, op);
}

/* In place of every kernel. Tells the plan who works with which memory. */
static ctrt_status nothing_run(const ctrt_call *call)
{
    pthread_mutex_lock(&running_lock);
    const ctrt_memory_plan *plan = running;
    while (plan != NULL && plan->device->handle != call->device)
        plan = plan->next;
    struct plan *memory = plan != NULL ? plan->memory : NULL;
    pthread_mutex_unlock(&running_lock);
    if (memory == NULL || call->row == NULL)
        return CTRT_OK;
    name_views(memory, call->outputs, call->n_outputs, call->row->op);
    name_views(memory, call->inputs, call->n_inputs, call->row->op);
    plan_memory_name(memory, call->workspace, call->row->op);
    return CTRT_OK;
}

/* Memory is used in the order of the views, as launch_row does it. */
ctrt_status plan_launch(const ctrt_call *call, ctrt_device *device)
{
    const uint32_t count = call->n_inputs + call->n_outputs;
    void *queue = stream_queue(device), *address;
    ctrt_status status = CTRT_OK;
    uint32_t used = 0;
    for (; used < count && status == CTRT_OK; used++) {
        const ctrt_view *view = used < call->n_inputs ? call->inputs[used] : call->outputs[used - call->n_inputs];
        const struct storage *storage = view != NULL && !(view->flags & CTRT_VIEW_HOST_SCALAR) ? view->owner : NULL;
        if (storage != NULL && storage->ordered && storage->moves)
            status = pool_use(storage->device->memory, &storage->block, queue, &address);
    }
    if (status == CTRT_OK)
        status = nothing_run(call);
    else
        used--;
    for (uint32_t i = 0; i < used; i++) {
        const ctrt_view *view = i < call->n_inputs ? call->inputs[i] : call->outputs[i - call->n_inputs];
        const struct storage *storage = view != NULL && !(view->flags & CTRT_VIEW_HOST_SCALAR) ? view->owner : NULL;
        if (storage != NULL && storage->ordered && storage->moves)
            pool_unuse(storage->device->memory, &storage->block, queue);
    }
    return status;
}

void plan_zeros(const ctrt_view *to)
{
    if (plan_view(to))
        return;
    size_t before, bytes = view_span(to, &before);
    memset((char *)to->data - before, 0, bytes);
}

bool plan_view(const ctrt_view *view)
{
    const struct storage *storage = view->owner;
    return storage != NULL && plan_running(storage->device);
}

/* ---- the table ---- */

static const ctrt_kernel *copy_row(ctrt_kernel *row, const ctrt_kernel *from)
{
    memset(row, 0, sizeof *row);
    memcpy(row, from, MIN(from->size, sizeof *row));
    row->size = sizeof *row;
    row->run = nothing_run;
    return row;
}

/* One block: cells, pointers to rows, rows. */
static ctrt_status cells_copy(struct op_cell **out, const struct op_cell *own)
{
    const size_t cell_count = (size_t)OP_COUNT * CTRT_DTYPE_COUNT;
    size_t rows = 0;
    for (size_t i = 0; i < cell_count; i++)
        rows += own[i].count;
    const size_t bytes = cell_count * sizeof *own + rows * (sizeof(ctrt_kernel *) + sizeof(ctrt_kernel));
    struct op_cell *cells = memory_alloc(bytes);
    if (cells == NULL)
        return out_of_memory(bytes, "the kernels of a plan");
    const ctrt_kernel **pointer = (const ctrt_kernel **)(cells + cell_count);
    ctrt_kernel *row = (ctrt_kernel *)(pointer + rows);
    for (size_t i = 0; i < cell_count; i++) {
        cells[i] = own[i];
        cells[i].run = own[i].run != NULL ? nothing_run : NULL;
        cells[i].rows = pointer;
        for (uint16_t r = 0; r < own[i].count; r++)
            *pointer++ = copy_row(row++, own[i].rows[r]);
    }
    *out = cells;
    return CTRT_OK;
}

/* ---- the generator ---- */

static void generator_keep(ctrt_memory_plan *plan)
{
    ctrt_device *device = plan->device;
    pthread_mutex_lock(&device->generator_lock);
    plan->seed = device->seed;
    plan->seed_offset = device->seed_offset;
    plan->seeded = device->seeded;
    pthread_mutex_unlock(&device->generator_lock);
}

static void generator_restore(const ctrt_memory_plan *plan)
{
    ctrt_device *device = plan->device;
    pthread_mutex_lock(&device->generator_lock);
    device->seed = plan->seed;
    device->seed_offset = plan->seed_offset;
    device->seeded = plan->seeded;
    pthread_mutex_unlock(&device->generator_lock);
}

/* ---- public ---- */

ctrt_status ctrt_memory_plan_begin(ctrt_memory_plan **out, ctrt_device *device)
{
    if (out == NULL)
        return fail_null("memory_plan_begin", "out");
    CTRT_TRY(device_or_default(&device, device));
    if (!device_usable(device))
        return device_fail_forked(device);
    if (*out != NULL)
        CTRT_TRY(ctrt_memory_plan_end(NULL, out));
    ctrt_memory_plan *plan = memory_zeroed(sizeof *plan);
    if (plan == NULL)
        return out_of_memory(sizeof *plan, "a plan");
    plan->device = device;
    ctrt_status status = dispatch_cells(&plan->own, device);
    if (status == CTRT_OK)
        status = cells_copy(&plan->cells, plan->own);
    if (status == CTRT_OK)
        status = plan_memory_begin(&plan->memory, device);
    if (status != CTRT_OK) {
        memory_free(plan->cells);
        memory_free(plan);
        return status;
    }
    generator_keep(plan);
    atomic_store_explicit(&device->cells, plan->cells, memory_order_release);
    pthread_mutex_lock(&running_lock);
    plan->next = running;
    running = plan;
    pthread_mutex_unlock(&running_lock);
    *out = plan;
    return CTRT_OK;
}

ctrt_status ctrt_memory_plan_set_limit(ctrt_memory_plan *plan, uint64_t bytes)
{
    if (plan == NULL)
        return fail_null("memory_plan_set_limit", "plan");
    plan_memory_limit(plan->memory, bytes);
    return CTRT_OK;
}

bool ctrt_memory_plan_fits(const ctrt_memory_plan *plan)
{
    return plan != NULL && plan_memory_fits(plan->memory);
}

ctrt_status ctrt_memory_plan_end(ctrt_memory_prediction *out, ctrt_memory_plan **plan)
{
    if (plan == NULL || *plan == NULL)
        return fail_null("memory_plan_end", "plan");
    ctrt_memory_plan *ended = *plan;
    *plan = NULL;
    pthread_mutex_lock(&running_lock);
    for (ctrt_memory_plan **at = &running; *at != NULL; at = &(*at)->next)
        if (*at == ended) {
            *at = ended->next;
            break;
        }
    pthread_mutex_unlock(&running_lock);
    atomic_store_explicit(&ended->device->cells, ended->own, memory_order_release);
    generator_restore(ended);
    plan_memory_end(out, ended->memory);
    memory_free(ended->cells);
    memory_free(ended);
    return CTRT_OK;
}

void ctrt_memory_plan_release(ctrt_memory_plan **plan)
{
    if (plan != NULL && *plan != NULL)
        (void)ctrt_memory_plan_end(NULL, plan);
}
