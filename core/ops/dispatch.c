/* SPDX-License-Identifier: Apache-2.0 */
/* ops/dispatch.c: selection and execution of the kernel for an op and its operands.
 *
 * A device's kernels are sorted once into a table with one entry (cell) per op and dtype, highest score first. A call
 * then reads one entry. */
#include "ops/dispatch.h"

#include <pthread.h>

#include "base/host_alloc.h"
#include "ctrt/ops.h"
#include "memory/live.h"
#include "memory/pool.h"
#include "ops/launch.h"

const struct op_info op_table[OP_COUNT] = {
#define OP(name, inputs, family, promotion, differentiable, text) \
    { #name, text, inputs, FAMILY_##family, PROMOTION_##promotion, differentiable },
#define yes true
#define no  false
#include "ops/ops.def"
#undef yes
#undef no
#undef OP
};

/* ---- the dispatch table ---- */

static uint16_t op_order[OP_COUNT];                     /* op ids sorted by name */
static pthread_once_t op_order_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

/* The lock may have been held by a thread that does not exist in the child of a fork. Initializing it again is safe,
 * because a table is published only when it is complete. */
static void after_fork_in_child(void)
{
    pthread_mutex_init(&table_lock, NULL);
}

__attribute__((constructor)) static void dispatch_start(void)
{
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

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

/* Returns the id of the op `name`, or -1. */
static int op_by_name(const char *name)
{
    pthread_once(&op_order_once, op_order_init);
    const uint16_t *found = bsearch(name, op_order, OP_COUNT, sizeof op_order[0], compare_name);
    return found ? *found : -1;
}

/* Returns whether a kernel row is valid and its op is known. The registry cannot validate this when it loads a plugin,
 * because the op names are defined in this layer (ops.def). */
static bool row_usable(const ctrt_device *device, const ctrt_kernel *row)
{
    if (!CTRT_SLOT(row, run) || row->op == NULL) {
        log_message(CTRT_LOG_WARNING, "core", "%s: a kernel row without op or code is ignored", device->name);
        return false;
    }
    if (op_by_name(row->op) < 0) {
        log_message(CTRT_LOG_DEBUG, "core", "%s: kernel for unknown op \"%s\" is ignored", device->name, row->op);
        return false;
    }
    return true;
}

static const ctrt_kernel *row_at(const ctrt_kernel_table *table, size_t index)
{
    return (const ctrt_kernel *)((const char *)table->rows + index * table->stride);
}

/* Calls `visit` for each usable kernel of the device, those of overlays first. */
static void rows_for_each(ctrt_device *device, void (*visit)(const ctrt_kernel *row, void *argument), void *argument)
{
    const ctrt_kernel_table *tables[COUNT_OF(device->overlays) + 1];
    int count = 0;
    for (size_t i = 0; i < COUNT_OF(device->overlays) && device->overlays[i]; i++)
        tables[count++] = device->overlays[i];
    if (CTRT_SLOT(device->backend, kernels))
        tables[count++] = device->backend->kernels;
    for (int t = 0; t < count; t++)
        for (size_t i = 0; i < tables[t]->count; i++)
            if (row_usable(device, row_at(tables[t], i)))
                visit(row_at(tables[t], i), argument);
}

static void count_row(const ctrt_kernel *row, void *argument)
{
    *(size_t *)argument += (size_t)__builtin_popcount(row->dtypes & ~(1u << CTRT_DTYPE_DEFAULT));
}

struct entry_build {
    struct dispatch_entry *cells;
    const ctrt_kernel **next;           /* next free element in the array of kernel pointers */
    bool counting;
};

static void place_row(const ctrt_kernel *row, void *argument)
{
    struct entry_build *build = argument;
    int op = op_by_name(row->op);
    for (int dtype = 1; dtype < CTRT_DTYPE_COUNT; dtype++) {
        if (!(row->dtypes & CTRT_DTYPE_BIT(dtype)))
            continue;
        struct dispatch_entry *cell = &build->cells[op * CTRT_DTYPE_COUNT + dtype];
        if (build->counting) {
            cell->count++;
            continue;
        }
        const ctrt_kernel **rows = (const ctrt_kernel **)cell->rows;
        int i = cell->count++;
        for (; i > 0 && rows[i - 1]->score < row->score; i--)
            rows[i] = rows[i - 1];
        rows[i] = row;
    }
}

static ctrt_status table_build(struct dispatch_entry **out, ctrt_device *device)
{
    const size_t entry_count = (size_t)OP_COUNT * CTRT_DTYPE_COUNT;
    size_t row_count = 0;
    rows_for_each(device, count_row, &row_count);

    const size_t bytes = entry_count * sizeof(struct dispatch_entry) + row_count * sizeof(ctrt_kernel *);
    struct dispatch_entry *cells = host_calloc(bytes);
    if (cells == NULL)
        return out_of_memory(bytes, "the table of kernels");

    struct entry_build build = { .cells = cells, .next = (const ctrt_kernel **)(cells + entry_count), .counting = true };
    rows_for_each(device, place_row, &build);
    for (size_t i = 0; i < entry_count; i++) {
        cells[i].rows = build.next;
        build.next += cells[i].count;
        cells[i].count = 0;
    }
    build.counting = false;
    rows_for_each(device, place_row, &build);

    for (size_t i = 0; i < entry_count; i++) {
        if (cells[i].count == 0)
            continue;
        const ctrt_kernel *best = cells[i].rows[0];
        cells[i].flags = best->flags;
        /* On an asynchronous device every call must go through launch_row. */
        if (!CTRT_SLOT(best, accepts) && !CTRT_SLOT(best, workspace) && !device_asynchronous(device))
            cells[i].run = best->run;
    }
    *out = cells;
    return CTRT_OK;
}

ctrt_status dispatch_table(struct dispatch_entry **out, ctrt_device *device)
{
    struct dispatch_entry *cells = atomic_load_explicit(&device->cells, memory_order_acquire);
    if (likely(cells != NULL)) {
        *out = cells;
        return CTRT_OK;
    }
    if (!device_usable(device))
        return device_fail_forked(device);
    pthread_mutex_lock(&table_lock);
    ctrt_status status = CTRT_OK;
    cells = atomic_load_explicit(&device->cells, memory_order_acquire);
    if (cells == NULL) {
        if (CTRT_SLOT(device->backend, kernels) && CTRT_SLOT(device->backend->kernels, prepare))
            status = device->backend->kernels->prepare(device->handle);
        if (status == CTRT_OK)
            status = table_build(&cells, device);
        if (status == CTRT_OK)
            atomic_store_explicit(&device->cells, cells, memory_order_release);
    }
    pthread_mutex_unlock(&table_lock);
    if (status == CTRT_OK)
        *out = cells;
    return ctrt_context(status, "preparing the kernels of %s", device->name);
}

/* ---- one call ---- */

/* The operands of a call in the layout that one kernel requires. A view that the kernel does not support is replaced by
 * a contiguous one, for which memory is allocated after the kernel has accepted the call. */
struct prepared {
    const ctrt_view **inputs, **outputs;
    ctrt_view *replaced;                    /* contiguous replacements, one element per operand */
    ctrt_block *blocks;                     /* memory of the replacements; address NULL for operands without one */
    int n_inputs, n_outputs;
};

static bool layout_fits(const ctrt_view *view, uint32_t row_flags, bool all_channels_last)
{
    if (view == NULL || (view->flags & (CTRT_VIEW_CONTIGUOUS | CTRT_VIEW_HOST_SCALAR))
        || (row_flags & CTRT_KERNEL_STRIDED))
        return !(all_channels_last && view != NULL && view->ndim == 4 && !(view->flags & CTRT_VIEW_CHANNELS_LAST)
                 && !(row_flags & CTRT_KERNEL_STRIDED));
    return all_channels_last && (view->flags & CTRT_VIEW_CHANNELS_LAST);
}

/* Returns whether every 4-dim operand is channels-last and the kernel supports that. Sets *strictly if one of the
 * operands is not contiguous as well. */
static bool is_channels_last(uint32_t row_flags, const ctrt_view *const *views, int count, bool *strictly)
{
    if (!(row_flags & CTRT_KERNEL_CHANNELS_LAST))
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

/* Sets the operands in `p` to views that the kernel supports. Returns the number of replaced operands. */
static int prepare_layouts(struct prepared *p, const ctrt_kernel *row, const ctrt_view *const *inputs,
                           const ctrt_view *const *outputs)
{
    bool strictly = false;
    bool channels_last = is_channels_last(row->flags, inputs, p->n_inputs, &strictly)
                         && is_channels_last(row->flags, outputs, p->n_outputs, &strictly) && strictly;
    int replaced = 0;
    for (int i = 0; i < p->n_inputs + p->n_outputs; i++) {
        const ctrt_view *view = i < p->n_inputs ? inputs[i] : outputs[i - p->n_inputs];
        const ctrt_view **place = i < p->n_inputs ? &p->inputs[i] : &p->outputs[i - p->n_inputs];
        *place = view;
        /* Output 0 may alias an input only if the kernel has CTRT_KERNEL_INPLACE. If another output aliases an input,
         * the op is defined that way and every kernel supports it. */
        const bool in_place = i == p->n_inputs && view != NULL && is_input(view, inputs, p->n_inputs);
        if (layout_fits(view, row->flags, channels_last) && (!in_place || (row->flags & CTRT_KERNEL_INPLACE)))
            continue;
        view_contiguous(&p->replaced[i], view, NULL);
        *place = &p->replaced[i];
        replaced++;
    }
    /* An operand that is input and output stays one operand if the kernel supports that. */
    for (int o = 0; replaced && (row->flags & CTRT_KERNEL_INPLACE) && o < p->n_outputs; o++)
        for (int i = 0; i < p->n_inputs; i++)
            if (outputs[o] != NULL && outputs[o] == inputs[i])
                p->outputs[o] = p->inputs[i];
    return replaced;
}

static ctrt_status prepare_memory(struct prepared *p, ctrt_device *device, const ctrt_view *const *inputs)
{
    for (int i = 0; i < p->n_inputs + p->n_outputs; i++) {
        ctrt_view *view = &p->replaced[i];
        bool used = i < p->n_inputs ? p->inputs[i] == view : p->outputs[i - p->n_inputs] == view;
        if (!used || view->numel == 0)
            continue;
        CTRT_TRY(pool_alloc_fixed(device->memory, &p->blocks[i], (size_t)view->numel * dtype_bytes(view->dtype),
                                  stream_queue(device), &view->data, true));
        if (i < p->n_inputs)
            CTRT_TRY(kernel_copy(view, device, inputs[i], device));
    }
    return CTRT_OK;
}

/* Allocates the workspace of a call. After a failure the kernel may request a smaller one, so only the last failure is
 * reported: if the kernel requests no less than before, the allocation is repeated with reporting enabled. */
static ctrt_status alloc_workspace(ctrt_block *workspace, const ctrt_kernel *row, ctrt_call *call, ctrt_device *device)
{
    size_t bytes = 0;
    CTRT_TRY(row->workspace(call, &bytes));
    while (bytes > 0) {
        const char *before = thread_state.op;
        thread_state.op = row->op;
        const size_t wanted = bytes;
        ctrt_status status = pool_alloc_fixed(device->memory, workspace, wanted, stream_queue(device), &call->workspace,
                                              false);
        call->workspace_bytes = wanted;
        const bool give_up = status == CTRT_ERR_OUT_OF_MEMORY
            && (row->workspace(call, &bytes) != CTRT_OK || bytes >= wanted);
        if (give_up)
            status = pool_alloc_fixed(device->memory, workspace, wanted, stream_queue(device), &call->workspace, true);
        thread_state.op = before;
        if (status == CTRT_OK)
            break;
        if (give_up || status != CTRT_ERR_OUT_OF_MEMORY)
            return ctrt_context(status, "workspace");
        call->workspace_bytes = 0;
    }
    return CTRT_OK;
}

static ctrt_status run_row(const ctrt_kernel *row, ctrt_call *call, ctrt_device *device)
{
    ctrt_block workspace = { 0 };
    if (CTRT_SLOT(row, workspace))
        CTRT_TRY(alloc_workspace(&workspace, row, call, device));
    ctrt_status status = device_asynchronous(device) ? launch_row(row, call, device) : row->run(call);
    if (workspace.address != NULL)
        pool_free_fixed(device->memory, &workspace, call->workspace_bytes, stream_queue(device));
    return status;
}

/* Returns the first kernel of a dispatch entry that accepts the call, or NULL. Sets `call` and `p` for that kernel, and
 * *replaced to the number of operands that are to be replaced by copies. */
static const ctrt_kernel *choose_row(ctrt_call *call, struct prepared *p, int *replaced, const struct dispatch_entry *cell,
                                     ctrt_device *device, const ctrt_view *const *inputs,
                                     const ctrt_view *const *outputs, const void *attributes)
{
    for (int r = 0; r < cell->count; r++) {
        const ctrt_kernel *row = cell->rows[r];
        *replaced = prepare_layouts(p, row, inputs, outputs);
        *call = (ctrt_call){ .size = sizeof *call, .device = device->handle, .inputs = p->inputs, .outputs = p->outputs,
                             .n_inputs = (uint32_t)p->n_inputs, .n_outputs = (uint32_t)p->n_outputs,
                             .attributes = attributes, .row = row };
        if (!CTRT_SLOT(row, accepts) || row->accepts(call))
            return row;
    }
    return NULL;
}

/* Runs the first kernel of a dispatch entry that accepts the call. Sets *ran to whether there is one. */
static ctrt_status run_entry(bool *ran, const struct dispatch_entry *cell, struct prepared *p, ctrt_device *device,
                             const ctrt_view *const *inputs, const ctrt_view *const *outputs, const void *attributes)
{
    ctrt_call call;
    int replaced = 0;
    const ctrt_kernel *row = choose_row(&call, p, &replaced, cell, device, inputs, outputs, attributes);
    *ran = row != NULL;
    if (row == NULL)
        return CTRT_OK;
    ctrt_status status = replaced ? prepare_memory(p, device, inputs) : CTRT_OK;
    if (status == CTRT_OK)
        status = run_row(row, &call, device);
    for (int o = 0; replaced && o < p->n_outputs && status == CTRT_OK; o++)
        if (outputs[o] != p->outputs[o])
            status = kernel_copy(outputs[o], device, p->outputs[o], device);
    for (int i = 0; replaced && i < p->n_inputs + p->n_outputs; i++)
        if (p->blocks[i].address != NULL)
            pool_free_fixed(device->memory, &p->blocks[i],
                            (size_t)p->replaced[i].numel * dtype_bytes(p->replaced[i].dtype), stream_queue(device));
    return status;
}

bool kernel_available(enum op op, ctrt_dtype key, ctrt_device *device, const ctrt_view *const *inputs, int n_inputs,
                      const ctrt_view *const *outputs, int n_outputs, const void *attributes)
{
    struct dispatch_entry *cells;
    if (dispatch_table(&cells, device) != CTRT_OK)
        return false;
    const struct dispatch_entry *cell = &cells[(int)op * CTRT_DTYPE_COUNT + (int)key];
    if (cell->count == 0)
        return false;
    const ctrt_view *pointers[KERNEL_MAX_OPERANDS];
    ctrt_view replaced[KERNEL_MAX_OPERANDS];
    struct prepared p = { .n_inputs = n_inputs, .n_outputs = n_outputs, .inputs = pointers,
                          .outputs = pointers + n_inputs, .replaced = replaced };
    ctrt_call call;
    int count;
    return choose_row(&call, &p, &count, cell, device, inputs, outputs, attributes) != NULL;
}

/* Waits for asynchronous copies between devices and operands in pinned memory. */
static ctrt_status host_waits(const ctrt_view *const *inputs, int n_inputs, const ctrt_view *const *outputs,
                              int n_outputs)
{
    for (int i = 0; i < n_inputs + n_outputs; i++) {
        const ctrt_view *view = i < n_inputs ? inputs[i] : outputs[i - n_inputs];
        if (view != NULL && unlikely(view->flags & CTRT_VIEW_PINNED))
            CTRT_TRY(order_host(view, i >= n_inputs));
    }
    return CTRT_OK;
}

/* The general case: several candidates, workspaces, unsupported layouts, many operands, asynchronous devices. */
static ctrt_status call_slowly(enum op op, ctrt_dtype key, ctrt_device *device, const ctrt_view *const *inputs,
                               int n_inputs, const ctrt_view *const *outputs, int n_outputs, const void *attributes)
{
    struct dispatch_entry *cells;
    CTRT_TRY(dispatch_table(&cells, device));
    if (!device_asynchronous(device))
        CTRT_TRY(host_waits(inputs, n_inputs, outputs, n_outputs));
    const struct dispatch_entry *cell = &cells[(int)op * CTRT_DTYPE_COUNT + (int)key];
    bool ran = false;
    if (cell->count > 0) {
        const int count = n_inputs + n_outputs;
        const size_t bytes = (size_t)count * (sizeof(ctrt_view) + sizeof(ctrt_block) + sizeof(ctrt_view *));
        _Alignas(16) char few[KERNEL_MAX_OPERANDS * (sizeof(ctrt_view) + sizeof(ctrt_block) + sizeof(ctrt_view *))];
        char *room = count <= KERNEL_MAX_OPERANDS ? few : host_alloc(bytes);
        if (room == NULL)
            return out_of_memory(bytes, "operands");
        struct prepared p = { .n_inputs = n_inputs, .n_outputs = n_outputs };
        p.replaced = (ctrt_view *)room;
        p.blocks = (ctrt_block *)(p.replaced + count);
        p.inputs = (const ctrt_view **)(p.blocks + count);
        p.outputs = p.inputs + n_inputs;
        memset(p.blocks, 0, (size_t)count * sizeof *p.blocks);
        ctrt_status status = run_entry(&ran, cell, &p, device, inputs, outputs, attributes);
        if (room != few)
            host_free(room);
        if (ran)
            return status;
    }
    return fallback_call(op, key, device, inputs, n_inputs, outputs, n_outputs, attributes);
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

ctrt_status kernel_call(enum op op, ctrt_dtype key, ctrt_device *device, const ctrt_view *const *inputs, int n_inputs,
                        const ctrt_view *const *outputs, int n_outputs, const void *attributes)
{
    const struct dispatch_entry *cell = dispatch_find(device, op, key);
    /* Outputs allocated by an op front already carry its name; name the others here. */
    if (unlikely(pool_watched(device->memory)) && thread_state.op == NULL)
        live_name_outputs(device->memory, outputs, n_outputs, inputs, n_inputs, op_table[op].name);
    if (likely(cell != NULL && cell->run != NULL)
        && (n_inputs == 0 || inputs[0] != outputs[0] || (cell->flags & CTRT_KERNEL_INPLACE))
        && ((cell->flags & CTRT_KERNEL_STRIDED) || (all_plain(inputs, n_inputs) && all_plain(outputs, n_outputs)))
        && likely(none_pinned(inputs, n_inputs) && none_pinned(outputs, n_outputs))) {
        ctrt_call call = { .size = sizeof call, .device = device->handle, .inputs = inputs, .outputs = outputs,
                           .n_inputs = (uint32_t)n_inputs, .n_outputs = (uint32_t)n_outputs, .attributes = attributes,
                           .row = cell->rows[0] };
        return cell->run(&call);
    }
    return call_slowly(op, key, device, inputs, n_inputs, outputs, n_outputs, attributes);
}

/* ---- elementwise ops: merging of dimensions ---- */

/* Sorts the dimensions by decreasing stride of the output, the last view, and removes those of size 1. Then merges
 * adjacent dimensions wherever the strides of all views allow that. All views have the output's shape. */
static void merge_dims(ctrt_view *views, int count)
{
    ctrt_view *out = &views[count - 1];
    int order[CTRT_MAX_DIMS], n = 0;
    for (int d = 0; d < out->ndim; d++)
        if (out->shape[d] != 1)
            order[n++] = d;
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0; j--) {
            int64_t before = out->strides[order[j - 1]], after = out->strides[order[j]];
            if ((before < 0 ? -before : before) >= (after < 0 ? -after : after))
                break;
            int swap = order[j];
            order[j] = order[j - 1];
            order[j - 1] = swap;
        }

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

ctrt_status kernel_call_elementwise(enum op op, ctrt_dtype key, ctrt_device *device, const ctrt_view *const *inputs,
                                    int n_inputs, const ctrt_view *output, const void *attributes)
{
    if (output->numel == 0)
        return CTRT_OK;
    if (likely(all_plain(inputs, n_inputs) && (output->flags & CTRT_VIEW_CONTIGUOUS)))
        return kernel_call(op, key, device, inputs, n_inputs, &output, 1, attributes);

    ctrt_view merged[KERNEL_MAX_OPERANDS];
    const ctrt_view *pointers[KERNEL_MAX_OPERANDS];
    for (int i = 0; i < n_inputs; i++) {
        merged[i] = *inputs[i];
        pointers[i] = inputs[i] == output ? &merged[n_inputs] : &merged[i];
        if (inputs[i]->flags & CTRT_VIEW_HOST_SCALAR)
            for (int d = 0; d < output->ndim; d++)
                merged[i].strides[d] = 0;
    }
    merged[n_inputs] = *output;
    merge_dims(merged, n_inputs + 1);
    const ctrt_view *out = &merged[n_inputs];
    return kernel_call(op, key, device, pointers, n_inputs, &out, 1, attributes);
}

/* ---- public ---- */

ctrt_status ctrt_op_name(const char **out, size_t index)
{
    if (out == NULL)
        return fail_null("ctrt_op_name", "out");
    if (index >= OP_COUNT)
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "there are %d ops", OP_COUNT);
    *out = op_table[index].name;
    return CTRT_OK;
}

bool ctrt_op_supported(ctrt_device *device, const char *op, ctrt_dtype dtype)
{
    if (device == NULL || op == NULL || (int)dtype <= 0 || dtype >= CTRT_DTYPE_COUNT)
        return false;
    int id = op_by_name(op);
    struct dispatch_entry *cells;
    if (id < 0 || dispatch_table(&cells, device) != CTRT_OK)
        return false;
    return cells[id * CTRT_DTYPE_COUNT + (int)dtype].count > 0;
}
