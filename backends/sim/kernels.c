/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/kernels.c: offers the cpu backend's kernels as kernels of the device. Each call is copied into a work
 * item. */
#include "sim.h"
#include "plugins/common/fork.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_kernel {
    ctrt_kernel base;                       /* the kernel of this backend; runs sim_run */
    const ctrt_kernel *cpu;
    atomic_bool ran;                        /* has run at least once */
};

ctrt_kernel_table sim_kernel_table = { .size = sizeof(ctrt_kernel_table), .stride = sizeof(struct sim_kernel) };

static struct sim_kernel *kernels;
static size_t kernel_count;
static const ctrt_kernel_table *cpu_table;
FORK_MUTEX(making)                      /* held by sim_kernels_ready */

static const struct { uint8_t bytes; const char *name; } dtypes[] = {
#define DTYPE(name, value, bytes, category, text, dlpack, safetensors, torch) [CTRT_##name] = { bytes, text },
#include "ctrt/dtype.def"
#undef DTYPE
};
#define DTYPES (sizeof dtypes / sizeof dtypes[0])

static const struct { ctrt_status status; const char *text; } statuses[] = {
#define STATUS(name, value, text) { CTRT_##name, text },
#include "ctrt/status.def"
#undef STATUS
};

size_t sim_kernel_count(void)
{
    return kernel_count;
}

const char *sim_kernel_op(size_t i)
{
    return kernels[i].base.op;
}

/* ---- calls as work items ---- */

struct kernel_work {
    struct sim_work work;
    ctrt_call call;
    const struct sim_kernel *kernel;
    bool fails;
    /* Followed by: pointers to views, views, elements of host scalars, attributes. */
};

/* Alignment in bytes of the elements of host scalars and of the attributes. */
#define UNIT ((size_t)16)

static size_t units(size_t bytes)
{
    return (bytes + UNIT - 1) / UNIT * UNIT;
}

/* Returns the dtype of the first operand, for messages. */
static const char *dtype_of(const ctrt_call *call)
{
    const ctrt_view *first = call->n_inputs > 0 ? call->inputs[0] : call->n_outputs > 0 ? call->outputs[0] : NULL;
    return first != NULL && first->dtype < DTYPES && dtypes[first->dtype].name
           ? dtypes[first->dtype].name : "?";
}

static const char *status_text(ctrt_status status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        if (statuses[i].status == status)
            return statuses[i].text;
    return "unknown status";
}

/* Computes the first byte that a view covers and the end of the bytes that it covers, relative to its data. */
static void extent(const ctrt_view *view, int64_t *low, int64_t *high)
{
    int64_t bytes = dtypes[view->dtype].bytes;
    *low = 0, *high = bytes;
    for (int d = 0; d < view->ndim; d++) {
        int64_t reach = (view->shape[d] - 1) * view->strides[d] * bytes;
        if (reach < 0)
            *low += reach;
        else
            *high += reach;
    }
}

/* Replaces the view's address by the worker's address of the same memory. */
static bool view_reach(struct sim_device *device, ctrt_view *view, char *why, size_t why_bytes)
{
    int64_t low, high;
    if (view->numel == 0 || view->flags & CTRT_VIEW_HOST_SCALAR)
        return true;
    extent(view, &low, &high);
    char *begin = sim_reach(device, (char *)view->data + low, (uint64_t)(high - low), why, why_bytes);
    view->data = begin != NULL ? begin - low : NULL;
    return begin != NULL;
}

static ctrt_status kernel_fails(struct sim_queue *queue, struct kernel_work *work, ctrt_status status, const char *why)
{
    return sim_work_fails(queue, &work->work, status, "%s (%s), call %llu: %s", work->kernel->base.op,
                          dtype_of(&work->call), (unsigned long long)work->work.sequence, why);
}

static ctrt_status kernel_run(struct sim_queue *queue, struct sim_work *base)
{
    struct kernel_work *work = (struct kernel_work *)base;
    struct sim_device *device = queue->device;
    ctrt_call *call = &work->call;
    char why[256], reason[192];
    if (work->fails) {
        snprintf(why, sizeof why, "failed by fault %s", base->fault);
        return kernel_fails(queue, work, CTRT_ERR_BACKEND, why);
    }
    uint32_t count = call->n_inputs + call->n_outputs;
    ctrt_view *const *views = (ctrt_view *const *)call->inputs;
    for (uint32_t i = 0; i < count; i++) {
        /* An output that is also an input was already translated as an input. */
        bool again = false;
        for (uint32_t k = 0; i >= call->n_inputs && k < call->n_inputs && !again; k++)
            again = views[k] == views[i];
        if (views[i] == NULL || again || view_reach(device, views[i], reason, sizeof reason))
            continue;
        snprintf(why, sizeof why, "%s %u: %s", i < call->n_inputs ? "input" : "output",
                 i < call->n_inputs ? i : i - call->n_inputs, reason);
        return kernel_fails(queue, work, CTRT_ERR_BACKEND, why);
    }
    if (call->workspace_bytes > 0) {
        call->workspace = sim_reach(device, call->workspace, call->workspace_bytes, reason, sizeof reason);
        if (call->workspace == NULL) {
            snprintf(why, sizeof why, "workspace: %s", reason);
            return kernel_fails(queue, work, CTRT_ERR_BACKEND, why);
        }
    }
    /* Otherwise a kernel would start a thread per processor in each worker. */
    if (CTRT_SLOT(cpu_table, single_thread))
        cpu_table->single_thread(true);
    ctrt_status status = work->kernel->cpu->run(call);
    /* The kernel may have loaded a library whose exit handler frees resources that kernels use. All work must be
     * complete before that. Exit handlers run in reverse order of registration, so this one is registered after the
     * kernel's first run. */
    if (!atomic_exchange_explicit(&((struct sim_kernel *)(uintptr_t)work->kernel)->ran, true, memory_order_relaxed))
        atexit(sim_stop_at_exit);
    if (status == CTRT_OK)
        return CTRT_OK;
    snprintf(why, sizeof why, "%s", CTRT_SLOT(sim_host, message) ? sim_host->message() : status_text(status));
    return kernel_fails(queue, work, status, why);
}

/* Copies the views of `from`. An output that is the same view as an input remains so. */
static void copy_views(struct kernel_work *work, const ctrt_call *from, const ctrt_view **pointers, ctrt_view *views,
                       char *scalars)
{
    uint32_t like = 0;                                  /* in-place operands are in the order of the inputs */
    for (uint32_t i = 0; i < from->n_inputs + from->n_outputs; i++) {
        const ctrt_view *view = i < from->n_inputs ? from->inputs[i] : from->outputs[i - from->n_inputs];
        if (view == NULL)
            continue;
        uint32_t same = from->n_inputs;
        for (uint32_t k = 0; i >= from->n_inputs && k < from->n_inputs && same == from->n_inputs; k++)
            if (from->inputs[(like + k) % from->n_inputs] == view)
                same = (like + k) % from->n_inputs;
        if (same < from->n_inputs) {
            pointers[i] = pointers[same];
            like = same + 1;
            continue;
        }
        views[i] = *view;
        views[i].owner = NULL;
        pointers[i] = &views[i];
        if (view->flags & CTRT_VIEW_HOST_SCALAR && view->numel > 0) {
            memcpy(scalars + i * UNIT, view->data, dtypes[view->dtype].bytes);
            views[i].data = scalars + i * UNIT;
        }
    }
    work->call.inputs = pointers;
    work->call.outputs = pointers + from->n_inputs;
}

static struct kernel_work *call_copy(const ctrt_call *from, const struct sim_kernel *kernel)
{
    const size_t count = from->n_inputs + from->n_outputs;
    const size_t attributes = from->attributes != NULL ? *(const size_t *)from->attributes : 0;
    const size_t pointers_at = units(sizeof(struct kernel_work)),
        views_at = pointers_at + units(count * sizeof(ctrt_view *));
    const size_t scalars_at = views_at + units(count * sizeof(ctrt_view)), attributes_at = scalars_at + count * UNIT;
    char *memory = sim_work_new(attributes_at + units(attributes), kernel->base.op);
    if (memory == NULL)
        return NULL;
    struct kernel_work *work = (struct kernel_work *)memory;
    work->kernel = kernel;
    work->call = (ctrt_call){ .size = sizeof(ctrt_call), .n_inputs = from->n_inputs, .n_outputs = from->n_outputs,
                              .workspace = from->workspace, .workspace_bytes = from->workspace_bytes,
                              .kernel = kernel->cpu };
    copy_views(work, from, (const ctrt_view **)(memory + pointers_at), (ctrt_view *)(memory + views_at),
               memory + scalars_at);
    if (from->attributes != NULL)
        work->call.attributes = memcpy(memory + attributes_at, from->attributes, attributes);
    return work;
}

static ctrt_status sim_run(const ctrt_call *call)
{
    struct sim_device *device = call->device;
    const struct sim_kernel *kernel = CTRT_SLOT(call, kernel) ? (const struct sim_kernel *)call->kernel : NULL;
    CTRT_TRY(sim_usable(device));
    if (kernel < kernels || kernel >= kernels + kernel_count)
        return sim_host->fail(CTRT_ERR_INTERNAL, "%s: the call does not name one of the device's kernels",
                              device->name);
    /* Only the result of a copy can have a dtype that is not in the kernel's set. */
    if (call->n_outputs > 0 && call->outputs[0] != NULL && call->outputs[0]->dtype >= DTYPES)
        return sim_host->fail(CTRT_ERR_NOT_SUPPORTED, "%s: %s to the unknown dtype %u", device->name, kernel->base.op,
                              call->outputs[0]->dtype);
    struct kernel_work *work = call_copy(call, kernel);
    if (work == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    work->work.run = kernel_run;
    work->work.sequence = call->sequence;
    work->work.cost = sim_cost(device, 0);
    pthread_mutex_lock(&device->lock);
    work->fails = sim_fault_hits(device, SIM_FAULT_OP, kernel->base.op, work->work.fault);
    if (!work->fails)
        sim_work_check(device, &work->work);
    pthread_mutex_unlock(&device->lock);
    sim_count(&device->launches[kernel - kernels], 1);
    sim_count(&device->count.launches, 1);
    return sim_enqueue(sim_queue_of(device, call->queue), &work->work);
}

/* ---- kernels ---- */

static ctrt_status prepare(void *device)
{
    (void)device;
    return CTRT_SLOT(cpu_table, prepare) ? cpu_table->prepare(NULL) : CTRT_OK;
}

/* May be called again, and then rebuilds the kernels. Without a cpu backend there are no kernels and no devices. */
ctrt_status sim_kernels_init(void)
{
    const ctrt_backend *cpu = sim_host->backend("cpu");
    cpu_table = CTRT_SLOT(cpu, kernels) ? cpu->kernels : NULL;
    if (kernels != NULL)
        sim_host->free(kernels);
    kernels = NULL;
    kernel_count = 0;
    sim_kernel_table.count = 0;
    const size_t count = cpu_table != NULL ? cpu_table->count : 0;
    if (count == 0)
        return CTRT_OK;
    kernels = sim_host->alloc(count * sizeof *kernels);
    if (kernels == NULL)
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "sim: no memory for the table of %zu kernels", count);
    for (size_t i = 0; i < count; i++) {
        const ctrt_kernel *from = (const ctrt_kernel *)((const char *)cpu_table->kernels + i * cpu_table->stride);
        kernels[i] = (struct sim_kernel){ .cpu = from };
        kernels[i].base = (ctrt_kernel){ .size = sizeof(ctrt_kernel), .op = from->op,
                                        .dtypes = from->dtypes & (CTRT_DTYPE_BIT(DTYPES) - 1),
                                        .score = from->score, .flags = from->flags, .run = sim_run };
        /* These functions only inspect shapes, so the cpu's can be used unchanged. */
        kernels[i].base.accepts = CTRT_SLOT(from, accepts) ? from->accepts : NULL;
        kernels[i].base.workspace = CTRT_SLOT(from, workspace) ? from->workspace : NULL;
    }
    sim_kernel_table.kernels = &kernels[0].base;
    sim_kernel_table.count = count;
    sim_kernel_table.prepare = prepare;
    kernel_count = count;               /* set last: a child that is forked before this line rebuilds the kernels */
    return CTRT_OK;
}

/* The cpu backend may have been unusable temporarily (no memory, too many open files), so initialization is retried. */
ctrt_status sim_kernels_ready(void)
{
    pthread_mutex_lock(&making);
    const ctrt_status status = kernel_count > 0 ? CTRT_OK : sim_kernels_init();
    const bool there = kernel_count > 0;
    pthread_mutex_unlock(&making);
    if (status != CTRT_OK || there)
        return status;
    return sim_host->fail(CTRT_ERR_NOT_SUPPORTED,
                          "sim: simulated devices run the cpu's kernels, and the backend cpu cannot be used");
}
