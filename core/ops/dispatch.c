/* SPDX-License-Identifier: Apache-2.0 */
/* ops/dispatch.c: selection and execution of the kernel for an op and its operands.
 *
 * A device's kernels are sorted once into a table with one entry per op and dtype, highest score first. A call then
 * reads one entry. */
#include "ops/dispatch.h"

#include <pthread.h>

#include "base/host_alloc.h"
#include "base/lock.h"
#include "ctrt/ops.h"
#include "memory/pool.h"
#include "memory/block_table.h"
#include "ops/contract.h"
#include "ops/guard.h"
#include "ops/launch.h"

const struct op_info op_table[OP_COUNT] = {
#define yes   true
#define no    false
#define EXACT true
#define ROUND false
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) \
    { #name, FORM_##form, PROMOTION_##promotion, DTYPES_##dtypes, AUTOCAST_##autocast, numbers, gradient },
#include "ctrt/ops.def"
#undef CTRT_OP
#undef yes
#undef no
#undef EXACT
#undef ROUND
};

/* ---- the dispatch table ---- */

static uint16_t op_order[OP_COUNT];                     /* op ids sorted by name */
static pthread_once_t op_order_once = PTHREAD_ONCE_INIT;
LOCK_DEFINE(table_lock, LOCK_DISPATCH);

static int compare_ops(const void *a, const void *b)
{
    return strcmp(op_table[*(const uint16_t *)a].name, op_table[*(const uint16_t *)b].name);
}

static void op_order_init(void)
{
    for (int i = 0; i < OP_COUNT; i++)
        op_order[i] = (uint16_t)i;
    qsort(op_order, OP_COUNT, sizeof op_order[0], compare_ops);
}

static int compare_name(const void *name, const void *entry)
{
    return strcmp(name, op_table[*(const uint16_t *)entry].name);
}

int op_by_name(const char *name)
{
    pthread_once(&op_order_once, op_order_init);
    const uint16_t *found = bsearch(name, op_order, OP_COUNT, sizeof op_order[0], compare_name);
    return found ? *found : -1;
}

static const ctrt_kernel *kernel_at(const ctrt_kernel_table *table, size_t index)
{
    return (const ctrt_kernel *)((const char *)table->kernels + index * table->stride);
}

/* Returns whether a backend's kernel is valid and its op is known. The registry cannot validate this when it loads a
 * plugin, because the op names are defined in this layer (ctrt/ops.def). */
static bool kernel_usable(const ctrt_device *device, const ctrt_kernel *kernel)
{
    if (!CTRT_SLOT(kernel, run) || kernel->op == NULL) {
        log_message(CTRT_LOG_WARNING, "core", "%s: a kernel without op or code is ignored", device->name);
        return false;
    }
    return op_by_name(kernel->op) >= 0;
}

/* Logs kernels of ops that do not exist. They would never be called, so the op would run on the cpu or fail. */
static void kernels_check_names(const ctrt_device *device, const ctrt_kernel_table *table)
{
    static const ctrt_kernel_table *checked[64];        /* guarded by table_lock; each table is checked once */
    static size_t count;
    const char *names[OP_COUNT];
    for (size_t i = 0; i < count; i++)
        if (checked[i] == table)
            return;
    if (count < COUNT_OF(checked))
        checked[count++] = table;
    for (int op = 0; op < OP_COUNT; op++)
        names[op] = op_table[op].name;
    for (size_t i = 0; i < table->count; i++) {
        const char *op = kernel_at(table, i)->op;
        if (op == NULL || op_by_name(op) >= 0)
            continue;
        const char *nearest = nearest_word(op, names, OP_COUNT);
        log_message(CTRT_LOG_WARNING, "core", "%s: kernel %zu is of the op \"%s\", which does not exist, and is never "
                    "called; %s%s%s", device->type, i, op, nearest != NULL ? "did you mean " : "`ctrt ops` lists them",
                    nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
    }
}

/* Calls `visit` for each usable kernel of the device, those of overlays first. */
static void kernels_for_each(ctrt_device *device, void (*visit)(const ctrt_kernel *, void *), void *argument)
{
    const ctrt_kernel_table *tables[COUNT_OF(device->overlays) + 1];
    int count = 0;
    for (size_t i = 0; i < COUNT_OF(device->overlays) && device->overlays[i]; i++)
        tables[count++] = device->overlays[i];
    if (CTRT_SLOT(device->backend, kernels))
        tables[count++] = device->backend->kernels;
    for (int t = 0; t < count; t++)
        for (size_t i = 0; i < tables[t]->count; i++)
            if (kernel_usable(device, kernel_at(tables[t], i)))
                visit(kernel_at(tables[t], i), argument);
}

static void count_kernel(const ctrt_kernel *kernel, void *argument)
{
    *(size_t *)argument += (size_t)__builtin_popcountll(kernel->dtypes & (CTRT_DTYPE_BIT(DTYPE_COUNT) - 2));
}

struct entry_build {
    struct dispatch_entry *entries;
    const ctrt_kernel **next;           /* next free element in the array of kernel pointers */
    bool counting;
};

static void place_kernel(const ctrt_kernel *kernel, void *argument)
{
    struct entry_build *build = argument;
    int op = op_by_name(kernel->op);
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++) {
        if (!(kernel->dtypes & CTRT_DTYPE_BIT(dtype)))
            continue;
        struct dispatch_entry *entry = &build->entries[op * DTYPE_COUNT + dtype];
        if (build->counting) {
            entry->count++;
            continue;
        }
        const ctrt_kernel **kernels = (const ctrt_kernel **)entry->kernels;
        int i = entry->count++;
        for (; i > 0 && kernels[i - 1]->score < kernel->score; i--)
            kernels[i] = kernels[i - 1];
        kernels[i] = kernel;
    }
}

static bool calls_checked;              /* CTRT_CHECK_CALLS; set before the first table is published */

static bool calls_guarded;              /* CTRT_CHECK_GUARD; likewise */

/* In the place of a kernel's `run` if calls are checked. */
static ctrt_status run_checked(const ctrt_call *call)
{
    CTRT_TRY(contract_check(call));
    return call->kernel->run(call);
}

static ctrt_status table_build(struct dispatch_entry **out, ctrt_device *device)
{
    bool checked = false;
    CTRT_TRY(contract_wanted(&checked));
    bool guarded = false;
    CTRT_TRY(guard_wanted(&guarded, device));
    if (guarded && !calls_guarded)
        calls_guarded = true;
    if (calls_checked != checked)           /* written once, because other threads read it without the lock */
        calls_checked = checked;
    const size_t entry_count = (size_t)OP_COUNT * DTYPE_COUNT;
    size_t kernel_count = 0;
    for (size_t i = 0; i < COUNT_OF(device->overlays) && device->overlays[i] != NULL; i++)
        kernels_check_names(device, device->overlays[i]);
    if (CTRT_SLOT(device->backend, kernels))
        kernels_check_names(device, device->backend->kernels);
    kernels_for_each(device, count_kernel, &kernel_count);

    const size_t bytes = entry_count * sizeof(struct dispatch_entry) + kernel_count * sizeof(ctrt_kernel *);
    struct dispatch_entry *entries = host_calloc(bytes);
    ALLOC_CHECK(entries, bytes, "the table of kernels");

    struct entry_build build = { .entries = entries, .next = (const ctrt_kernel **)(entries + entry_count),
                                 .counting = true };
    kernels_for_each(device, place_kernel, &build);
    for (size_t i = 0; i < entry_count; i++) {
        entries[i].kernels = build.next;
        build.next += entries[i].count;
        entries[i].count = 0;
    }
    build.counting = false;
    kernels_for_each(device, place_kernel, &build);

    for (size_t i = 0; i < entry_count; i++) {
        if (entries[i].count == 0)
            continue;
        const ctrt_kernel *best = entries[i].kernels[0];
        entries[i].flags = best->flags;
        /* On an asynchronous device every call must go through launch_kernel. */
        if (!CTRT_SLOT(best, accepts) && !CTRT_SLOT(best, workspace) && !device_asynchronous(device) && !guarded)
            entries[i].run = calls_checked ? run_checked : best->run;
    }
    *out = entries;
    return CTRT_OK;
}

ctrt_status dispatch_table(struct dispatch_entry **out, ctrt_device *device)
{
    struct dispatch_entry *entries = atomic_load_explicit(&device->dispatch, memory_order_acquire);
    if (likely(entries != NULL)) {
        *out = entries;
        return CTRT_OK;
    }
    CTRT_TRY(device_check(device));
    lock_enter(&table_lock);
    ctrt_status status = CTRT_OK;
    entries = atomic_load_explicit(&device->dispatch, memory_order_acquire);
    if (entries == NULL) {
        if (CTRT_SLOT(device->backend, kernels) && CTRT_SLOT(device->backend->kernels, prepare))
            status = SLOT_CALL(device->type, "prepare", device->backend->kernels->prepare(device->handle));
        for (size_t i = 0; i < COUNT_OF(device->overlays) && device->overlays[i] != NULL && status == CTRT_OK; i++)
            if (CTRT_SLOT(device->overlays[i], prepare))
                status = device->overlays[i]->prepare(device->handle);
        if (status == CTRT_OK)
            status = table_build(&entries, device);
        if (status == CTRT_OK)
            atomic_store_explicit(&device->dispatch, entries, memory_order_release);
    }
    lock_leave(&table_lock);
    if (status == CTRT_OK)
        *out = entries;
    return ctrt_context(status, "preparing the kernels of %s", device->name);
}

/* ---- one call ---- */

/* The operands of a call in the layout that one kernel requires. A view that the kernel does not support is replaced by
 * a contiguous one, for which memory is allocated after the kernel has accepted the call. */
struct prepared {
    const ctrt_view **inputs, **outputs;
    ctrt_view *replaced;                    /* contiguous replacements, one element per operand */
    ctrt_block *blocks;                     /* memory of the replacements; address NULL for operands without one */
    int replaced_count;
};

static bool layout_fits(const ctrt_view *view, uint32_t kernel_flags, bool all_channels_last)
{
    if (view == NULL || (view->flags & (CTRT_VIEW_CONTIGUOUS | CTRT_VIEW_HOST_SCALAR))
        || (kernel_flags & CTRT_KERNEL_STRIDED))
        return !(all_channels_last && view != NULL && view->ndim == 4 && !(view->flags & CTRT_VIEW_CHANNELS_LAST)
                 && !(kernel_flags & CTRT_KERNEL_STRIDED));
    return all_channels_last && (view->flags & CTRT_VIEW_CHANNELS_LAST);
}

/* Returns whether every 4-dim operand is channels-last and the kernel supports that. Sets *strictly if one of the
 * operands is not contiguous as well. */
static bool is_channels_last(uint32_t kernel_flags, const ctrt_view *const *views, int count, bool *strictly)
{
    if (!(kernel_flags & CTRT_KERNEL_CHANNELS_LAST))
        return false;
    for (int i = 0; i < count; i++) {
        if (views[i] == NULL || views[i]->ndim != 4)
            continue;
        if (!(views[i]->flags & CTRT_VIEW_CHANNELS_LAST))
            return false;
        if (!(views[i]->flags & CTRT_VIEW_CONTIGUOUS))
            *strictly = true;
    }
    return true;
}

static bool is_input(const ctrt_view *output, const ctrt_view *const *inputs, int n_inputs)
{
    for (int i = 0; i < n_inputs; i++)
        if (inputs[i] == output)
            return true;
    return false;
}

/* Sets the operands in `p` to views that the kernel supports, and counts those that are replaced. */
static void prepare_layouts(struct prepared *p, const ctrt_kernel *kernel, const struct op_call *call)
{
    const ctrt_view *const *inputs = call->inputs, *const *outputs = call->outputs;
    const int n_inputs = call->n_inputs, n_outputs = call->n_outputs;
    const uint32_t flags = kernel->flags;
    bool strictly = false;
    bool channels_last = is_channels_last(flags, inputs, n_inputs, &strictly)
                         && is_channels_last(flags, outputs, n_outputs, &strictly) && strictly;
    int replaced = 0;
    for (int i = 0; i < n_inputs + n_outputs; i++) {
        const ctrt_view *view = i < n_inputs ? inputs[i] : outputs[i - n_inputs];
        const ctrt_view **place = i < n_inputs ? &p->inputs[i] : &p->outputs[i - n_inputs];
        *place = view;
        /* Output 0 may alias an input only if the kernel has CTRT_KERNEL_INPLACE. If another output aliases an input,
         * the op is defined that way and every kernel supports it. */
        const bool in_place = i == n_inputs && view != NULL && is_input(view, inputs, n_inputs);
        if (layout_fits(view, flags, channels_last) && (!in_place || (flags & CTRT_KERNEL_INPLACE)))
            continue;
        view_contiguous(&p->replaced[i], view, NULL);
        *place = &p->replaced[i];
        replaced++;
    }
    /* An operand that is input and output stays one operand if the kernel supports that. */
    for (int o = 0; replaced && (flags & CTRT_KERNEL_INPLACE) && o < n_outputs; o++)
        for (int i = 0; i < n_inputs; i++)
            if (outputs[o] != NULL && outputs[o] == inputs[i])
                p->outputs[o] = p->inputs[i];
    p->replaced_count = replaced;
}

/* Allocates the replacements and copies the inputs to them. */
static ctrt_status prepare_memory(struct prepared *p, const struct op_call *call)
{
    ctrt_device *device = call->device;
    for (int i = 0; i < call->n_inputs + call->n_outputs; i++) {
        ctrt_view *view = &p->replaced[i];
        bool used = i < call->n_inputs ? p->inputs[i] == view : p->outputs[i - call->n_inputs] == view;
        if (!used || view->numel == 0)
            continue;
        CTRT_TRY(pool_alloc_fixed(device->memory, &p->blocks[i], (size_t)view->numel * dtype_bytes(view->dtype),
                                  stream_queue(device), &view->data, true));
        if (i < call->n_inputs)
            CTRT_TRY(kernel_copy(view, device, call->inputs[i], device));
    }
    return CTRT_OK;
}

/* Allocates the workspace of a call. After a failure the kernel may request a smaller one, so only the last failure is
 * reported: if the kernel requests no less than before, the allocation is repeated with reporting enabled. */
static ctrt_status alloc_workspace(ctrt_block *workspace, ctrt_call *invocation, ctrt_device *device)
{
    const ctrt_kernel *kernel = invocation->kernel;
    size_t bytes = 0;
    CTRT_TRY(SLOT_CALL(device->type, "workspace of a kernel", kernel->workspace(invocation, &bytes)));
    while (bytes > 0) {
        const char *before = thread_state.op;
        thread_state.op = kernel->op;
        const size_t wanted = bytes;
        ctrt_status status = pool_alloc_fixed(device->memory, workspace, wanted, stream_queue(device),
                                              &invocation->workspace, false);
        invocation->workspace_bytes = wanted;
        const bool give_up = status == CTRT_ERR_OUT_OF_MEMORY
            && (kernel->workspace(invocation, &bytes) != CTRT_OK || bytes >= wanted);
        if (give_up)
            status = pool_alloc_fixed(device->memory, workspace, wanted, stream_queue(device), &invocation->workspace,
                                      true);
        thread_state.op = before;
        if (status == CTRT_OK)
            break;
        if (give_up || status != CTRT_ERR_OUT_OF_MEMORY)
            return ctrt_context(status, "workspace");
        invocation->workspace_bytes = 0;
    }
    return CTRT_OK;
}

static ctrt_status start_kernel(ctrt_call *invocation, ctrt_device *device)
{
    return device_asynchronous(device)
               ? launch_kernel(invocation, device)
               : SLOT_CALL(device->type, "run of a kernel", invocation->kernel->run(invocation));
}

static ctrt_status run_kernel(ctrt_call *invocation, ctrt_device *device)
{
    const ctrt_kernel *kernel = invocation->kernel;
    ctrt_block workspace = { 0 };
    if (unlikely(calls_checked))
        CTRT_TRY(contract_check(invocation));
    if (CTRT_SLOT(kernel, workspace))
        CTRT_TRY(alloc_workspace(&workspace, invocation, device));
    ctrt_status status = unlikely(calls_guarded) && device_host_memory(device) && !CTRT_SLOT(device->backend, layout)
        ? guard_run(invocation, device, start_kernel) : start_kernel(invocation, device);
    if (workspace.address != NULL)
        pool_free_fixed(device->memory, &workspace, invocation->workspace_bytes, stream_queue(device));
    return status;
}

/* Returns the first kernel of a dispatch entry that accepts the call, or NULL. Sets *invocation and *p for it. */
static const ctrt_kernel *choose_kernel(ctrt_call *invocation, struct prepared *p, const struct dispatch_entry *entry,
                                        const struct op_call *call)
{
    for (int k = 0; k < entry->count; k++) {
        const ctrt_kernel *kernel = entry->kernels[k];
        prepare_layouts(p, kernel, call);
        *invocation = (ctrt_call){ .size = sizeof *invocation, .device = call->device->handle, .inputs = p->inputs,
                                   .outputs = p->outputs, .n_inputs = (uint32_t)call->n_inputs,
                                   .n_outputs = (uint32_t)call->n_outputs, .attributes = call->attributes,
                                   .kernel = kernel };
        if (!CTRT_SLOT(kernel, accepts) || kernel->accepts(invocation))
            return kernel;
        if (unlikely(calls_checked))
            contract_log(kernel, call->key, "refuses");
    }
    return NULL;
}

/* Runs the first kernel of a dispatch entry that accepts the call. Sets *ran to whether there is one. */
static ctrt_status run_entry(bool *ran, const struct dispatch_entry *entry, struct prepared *p,
                             const struct op_call *call)
{
    ctrt_device *device = call->device;
    ctrt_call invocation;
    *ran = choose_kernel(&invocation, p, entry, call) != NULL;
    if (!*ran)
        return CTRT_OK;
    if (p->replaced_count == 0)
        return run_kernel(&invocation, device);
    ctrt_status status = prepare_memory(p, call);
    if (status == CTRT_OK)
        status = run_kernel(&invocation, device);
    for (int o = 0; o < call->n_outputs && status == CTRT_OK; o++)
        if (call->outputs[o] != p->outputs[o])
            status = kernel_copy(call->outputs[o], device, p->outputs[o], device);
    for (int i = 0; i < call->n_inputs + call->n_outputs; i++)
        if (p->blocks[i].address != NULL)
            pool_free_fixed(device->memory, &p->blocks[i],
                            (size_t)p->replaced[i].numel * dtype_bytes(p->replaced[i].dtype), stream_queue(device));
    return status;
}

bool kernel_available(const struct op_call *call)
{
    struct dispatch_entry *entries;
    if (dispatch_table(&entries, call->device) != CTRT_OK)
        return false;
    const struct dispatch_entry *entry = &entries[(int)call->op * DTYPE_COUNT + (int)call->key];
    if (entry->count == 0)
        return false;
    const ctrt_view *pointers[KERNEL_MAX_OPERANDS];
    ctrt_view replaced[KERNEL_MAX_OPERANDS];
    struct prepared p = { .inputs = pointers, .outputs = pointers + call->n_inputs, .replaced = replaced };
    ctrt_call invocation;
    return choose_kernel(&invocation, &p, entry, call) != NULL;
}

/* Waits for asynchronous copies between devices and operands in pinned memory. */
static ctrt_status host_waits(const struct op_call *call)
{
    for (int i = 0; i < call->n_inputs + call->n_outputs; i++) {
        const ctrt_view *view = i < call->n_inputs ? call->inputs[i] : call->outputs[i - call->n_inputs];
        if (view != NULL && unlikely(view->flags & CTRT_VIEW_PINNED))
            CTRT_TRY(hazard_host(view, i >= call->n_inputs));
    }
    return CTRT_OK;
}

/* The general case: several candidates, workspaces, unsupported layouts, many operands, asynchronous devices. */
static ctrt_status kernel_run_general(const struct op_call *call)
{
    struct dispatch_entry *entries;
    CTRT_TRY(dispatch_table(&entries, call->device));
    if (!device_asynchronous(call->device))
        CTRT_TRY(host_waits(call));
    const struct dispatch_entry *entry = &entries[(int)call->op * DTYPE_COUNT + (int)call->key];
    bool ran = false;
    if (entry->count > 0) {
        const int count = call->n_inputs + call->n_outputs;
        const size_t bytes = (size_t)count * (sizeof(ctrt_view) + sizeof(ctrt_block) + sizeof(ctrt_view *));
        _Alignas(16) char few[KERNEL_MAX_OPERANDS * (sizeof(ctrt_view) + sizeof(ctrt_block) + sizeof(ctrt_view *))];
        char *memory = count <= KERNEL_MAX_OPERANDS ? few : host_alloc(bytes);
        ALLOC_CHECK(memory, bytes, "operands");
        struct prepared p = { .replaced = (ctrt_view *)memory };
        p.blocks = (ctrt_block *)(p.replaced + count);
        p.inputs = (const ctrt_view **)(p.blocks + count);
        p.outputs = p.inputs + call->n_inputs;
        memset(p.blocks, 0, (size_t)count * sizeof *p.blocks);
        ctrt_status status = run_entry(&ran, entry, &p, call);
        if (memory != few)
            host_free(memory);
        if (ran)
            return status;
    }
    return fallback_call(call);
}

/* Returns whether all operands have a layout that every kernel supports. */
static inline bool all_plain(const ctrt_view *const *views, int count)
{
    for (int i = 0; i < count; i++)
        if (views[i] != NULL && !(views[i]->flags & (CTRT_VIEW_CONTIGUOUS | CTRT_VIEW_HOST_SCALAR)))
            return false;
    return true;
}

static inline bool none_pinned(const ctrt_view *const *views, int count)
{
    for (int i = 0; i < count; i++)
        if (views[i] != NULL && (views[i]->flags & CTRT_VIEW_PINNED))
            return false;
    return true;
}

ctrt_status kernel_call(const struct op_call *call)
{
    const ctrt_view *const *inputs = call->inputs, *const *outputs = call->outputs;
    const int n_inputs = call->n_inputs, n_outputs = call->n_outputs;
    const struct dispatch_entry *entry = dispatch_find(call->device, call->op, call->key);
    /* Outputs allocated by an op function already carry its name; name the others here. */
    if (unlikely(pool_watched(call->device->memory)) && thread_state.op == NULL)
        block_table_name_outputs(call->device->memory, outputs, n_outputs, inputs, n_inputs, op_table[call->op].name);
    if (likely(entry != NULL && entry->run != NULL)
        && (n_inputs == 0 || inputs[0] != outputs[0] || (entry->flags & CTRT_KERNEL_INPLACE))
        && ((entry->flags & CTRT_KERNEL_STRIDED) || (all_plain(inputs, n_inputs) && all_plain(outputs, n_outputs)))
        && likely(none_pinned(inputs, n_inputs) && none_pinned(outputs, n_outputs)))
        return dispatch_run(entry, call->device, inputs, n_inputs, outputs, n_outputs, call->attributes);
    return kernel_run_general(call);
}

/* ---- elementwise ops: merging of dimensions ---- */

/* Sorts the dimensions by decreasing stride of the output, the last view, and removes those of size 1. Then merges
 * adjacent dimensions wherever the strides of all views allow that. All views have the output's shape. */
static void dispatch_merge_dims(ctrt_view *views, int count)
{
    ctrt_view *out = &views[count - 1];
    int order[CTRT_MAX_DIMS];
    const int n = shape_order(order, out->shape, out->strides, out->ndim);
    int64_t shape[CTRT_MAX_DIMS];
    int64_t strides[KERNEL_MAX_OPERANDS][CTRT_MAX_DIMS];
    int dims = 0;
    for (int i = 0; i < n; i++) {
        int d = order[i];
        bool merge = dims > 0;
        for (int v = 0; v < count && merge; v++)
            merge = strides[v][dims - 1] == views[v].strides[d] * out->shape[d];
        if (merge) {
            shape[dims - 1] *= out->shape[d];
            for (int v = 0; v < count; v++)
                strides[v][dims - 1] = views[v].strides[d];
        } else {
            shape[dims] = out->shape[d];
            for (int v = 0; v < count; v++)
                strides[v][dims] = views[v].strides[d];
            dims++;
        }
    }
    for (int v = 0; v < count; v++) {
        uint16_t scalar = views[v].flags & CTRT_VIEW_HOST_SCALAR;
        views[v].ndim = (uint8_t)dims;
        for (int d = 0; d < dims; d++) {
            views[v].shape[d] = shape[d];
            views[v].strides[d] = strides[v][d];
        }
        if (scalar)
            continue;
        view_refresh(&views[v]);
    }
}

ctrt_status kernel_call_elementwise(const struct op_call *call)
{
    const ctrt_view *output = call->outputs[0];
    const int n_inputs = call->n_inputs;
    if (output->numel == 0)
        return CTRT_OK;
    if (likely(all_plain(call->inputs, n_inputs) && (output->flags & CTRT_VIEW_CONTIGUOUS)))
        return kernel_call(call);

    ctrt_view merged[KERNEL_MAX_OPERANDS];
    const ctrt_view *pointers[KERNEL_MAX_OPERANDS];
    for (int i = 0; i < n_inputs; i++) {
        const ctrt_view *input = call->inputs[i];
        merged[i] = *input;
        pointers[i] = input == output ? &merged[n_inputs] : &merged[i];
        if (input->flags & CTRT_VIEW_HOST_SCALAR)
            for (int d = 0; d < output->ndim; d++)
                merged[i].strides[d] = 0;
    }
    merged[n_inputs] = *output;
    dispatch_merge_dims(merged, n_inputs + 1);
    const ctrt_view *out = &merged[n_inputs];
    struct op_call merged_call = *call;
    merged_call.inputs = pointers;
    merged_call.outputs = &out;
    return kernel_call(&merged_call);
}

/* ---- public ---- */

ctrt_status ctrt_op_name(const char **out, size_t index)
{
    NULL_CHECK("op_name", out);
    if (index >= OP_COUNT)
        return fail_from(CTRT_ERR_NOT_FOUND, "op_name", "there are %d ops", OP_COUNT);
    *out = op_table[index].name;
    return CTRT_OK;
}

bool ctrt_op_supported(ctrt_device *device, const char *op, ctrt_dtype dtype)
{
    if (device == NULL || op == NULL || (int)dtype <= 0 || (int)dtype >= DTYPE_COUNT)
        return false;
    int id = op_by_name(op);
    struct dispatch_entry *entries;
    if (id < 0 || dispatch_table(&entries, device) != CTRT_OK)
        return false;
    return entries[id * DTYPE_COUNT + (int)dtype].count > 0;
}
