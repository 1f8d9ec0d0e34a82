/* SPDX-License-Identifier: Apache-2.0 */
/* ops/guard.c: runs kernels on copies of their operands next to memory that is not mapped (CTRT_CHECK_GUARD). */
#define _GNU_SOURCE
#include "ops/guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/host_alloc.h"
#include "base/param.h"
#include "ctrt/stream.h"
#include "stream/stream.h"
#include "tensor/shape.h"

static const ctrt_param guard_param = {
    sizeof guard_param, "CTRT_CHECK_GUARD", CTRT_PARAM_ENUM, "no", "no|end|start",
    "runs kernels of devices in host memory on copies of their operands that end, or start, where memory is not mapped",
};
CORE_PARAM(guard_param);

enum guard_place { GUARD_NO, GUARD_END, GUARD_START };
static _Atomic(enum guard_place) guard_place;

enum { PATTERN = 0xa5, WORKSPACE_ALIGNMENT = 64 };

/* A copy of an operand. */
struct guarded {
    const ctrt_view *original;              /* NULL: the workspace */
    ctrt_view view;
    char *base, *data;                      /* the mapping; the first byte of the operand in it */
    const char *from;                       /* the first byte of the original */
    size_t mapped, bytes;                   /* of the mapping without the guard; of the operand */
    size_t page;
    const struct guarded *shares;           /* the same memory as this operand */
};

ctrt_status guard_wanted(bool *out, const ctrt_device *device)
{
    ctrt_param_value value;
    CTRT_TRY(param_read(&value, &guard_param, "core"));
    atomic_store(&guard_place, (enum guard_place)value.integer);
    *out = value.integer != GUARD_NO && device_host_memory(device) && !CTRT_SLOT(device->backend, layout);
    return CTRT_OK;
}

/* ---- mappings ---- */

/* Maps memory for `bytes` bytes at a multiple of `alignment`. */
static ctrt_status guard_map(struct guarded *g, size_t bytes, size_t alignment)
{
    g->page = (size_t)sysconf(_SC_PAGESIZE);
    g->bytes = bytes;
    g->mapped = (bytes + g->page - 1) / g->page * g->page;
    char *whole = mmap(NULL, g->mapped + g->page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED)
        return out_of_memory(g->mapped + g->page, "a guarded operand");
    const bool end = atomic_load(&guard_place) == GUARD_END;
    g->base = end ? whole : whole + g->page;
    g->data = end ? g->base + (g->mapped - bytes) / alignment * alignment : g->base;
    memset(g->base, PATTERN, g->mapped);
    return mprotect(end ? whole + g->mapped : whole, g->page, PROT_NONE) == 0
               ? CTRT_OK : ctrt_fail(CTRT_ERR_INTERNAL, "a guarded operand: mprotect fails");
}

static void guard_unmap(const struct guarded *g)
{
    if (g->base != NULL)
        munmap(atomic_load(&guard_place) == GUARD_END ? g->base : g->base - g->page, g->mapped + g->page);
}

static ctrt_status guard_copy(struct guarded *all, int i, const ctrt_view *view)
{
    struct guarded *g = &all[i];
    const size_t element = dtype_bytes(view->dtype);
    int64_t low = 0, high = 0;
    *g = (struct guarded){ .original = view, .view = *view };
    for (int d = 0; d < view->ndim && !(view->flags & CTRT_VIEW_HOST_SCALAR) && view->numel > 0; d++)
        *(view->strides[d] < 0 ? &low : &high) += (view->shape[d] - 1) * view->strides[d];
    if (view->numel == 0)
        return CTRT_OK;
    g->from = (const char *)view->data + low * (int64_t)element;
    g->bytes = (size_t)(high - low + 1) * element;
    for (int k = 0; k < i && g->shares == NULL; k++)        /* an operand that is input and output is one operand */
        if (all[k].base != NULL && all[k].from == g->from && all[k].bytes == g->bytes)
            g->shares = &all[k];
    if (g->shares == NULL) {
        CTRT_TRY(guard_map(g, g->bytes, element));
        memcpy(g->data, g->from, g->bytes);
    }
    g->view.data = (g->shares != NULL ? g->shares->data : g->data) - low * (int64_t)element;
    return CTRT_OK;
}

/* ---- reports ---- */

/* "input 0 f32[3, 5]"; `i`: the number of the operand. */
static const char *guard_name(char text[256], const struct guarded *all, int i, const ctrt_call *call)
{
    char shape[SHAPE_TEXT_BYTES];
    const ctrt_view *view = all[i].original;
    const bool input = i < (int)call->n_inputs;
    if (view == NULL)
        snprintf(text, 256, "the workspace");
    else
        snprintf(text, 256, "%s %d %s%s", input ? "input" : "output", input ? i : i - (int)call->n_inputs,
                 ctrt_dtype_name(view->dtype), shape_text(shape, view->shape, view->ndim));
    return text;
}

static void log_call(const struct guarded *all, int count, const ctrt_call *call)
{
    char text[2048], name[256];
    int used = snprintf(text, sizeof text, "%s", call->kernel->op);
    for (int i = 0; i < count && used < (int)sizeof text; i++)
        if (all[i].base != NULL)
            used += snprintf(text + used, sizeof text - (size_t)used, "; %s at 0x%llx-0x%llx",
                             guard_name(name, all, i, call), (unsigned long long)(uintptr_t)all[i].data,
                             (unsigned long long)(uintptr_t)(all[i].data + all[i].bytes));
    log_message(CTRT_LOG_DEBUG, "guard", "%s", text);
}

static ctrt_status check_pattern(const struct guarded *all, int i, const ctrt_call *call)
{
    const struct guarded *g = &all[i];
    char name[256];
    for (size_t at = 0; at < g->mapped; at++) {
        const size_t before = (size_t)(g->data - g->base);
        if (at == before)
            at += g->bytes;
        if (at < g->mapped && (unsigned char)g->base[at] != PATTERN)
            return ctrt_fail(CTRT_ERR_PLUGIN, "the kernel of %s wrote %zu bytes %s of %s", call->kernel->op,
                             at < before ? before - at : at - before - g->bytes + 1,
                             at < before ? "before the beginning" : "after the end",
                             guard_name(name, all, i, call));
    }
    return CTRT_OK;
}

/* ---- calls ---- */

/* Copies the operands and sets the call's pointers to the copies. */
static ctrt_status guard_begin(struct guarded *all, const ctrt_view **pointers, ctrt_call *call)
{
    const int count = (int)(call->n_inputs + call->n_outputs);
    for (int i = 0; i < count; i++) {
        const ctrt_view *view = i < (int)call->n_inputs ? call->inputs[i] : call->outputs[i - (int)call->n_inputs];
        pointers[i] = NULL;
        if (view == NULL)
            continue;
        CTRT_TRY(guard_copy(all, i, view));
        pointers[i] = &all[i].view;
        for (int k = 0; k < i; k++)         /* the same view stays the same view */
            if (all[k].original == view)
                pointers[i] = pointers[k];
    }
    if (call->workspace != NULL && call->workspace_bytes > 0) {
        CTRT_TRY(guard_map(&all[count], call->workspace_bytes, WORKSPACE_ALIGNMENT));
        call->workspace = all[count].data;
    }
    call->inputs = pointers;
    call->outputs = pointers + call->n_inputs;
    return CTRT_OK;
}

/* Copies the outputs back. */
static ctrt_status guard_end(const struct guarded *all, int count, const ctrt_call *call)
{
    for (int i = 0; i < count; i++)
        if (all[i].base != NULL)
            CTRT_TRY(check_pattern(all, i, call));
    for (int i = (int)call->n_inputs; i < count - 1; i++) {
        const struct guarded *g = all[i].shares != NULL ? all[i].shares : &all[i];
        if (g->base != NULL)
            memcpy((char *)(uintptr_t)g->from, g->data, g->bytes);
    }
    return CTRT_OK;
}

ctrt_status guard_run(ctrt_call *call, ctrt_device *device, ctrt_status (*run)(ctrt_call *call, ctrt_device *device))
{
    const int count = (int)(call->n_inputs + call->n_outputs) + 1;
    if (device_asynchronous(device) && stream_captured(stream_here(device)))
        return run(call, device);           /* the copies would not exist in a replay */
    const size_t bytes = (size_t)count * (sizeof(struct guarded) + sizeof(ctrt_view *));
    HOST_AUTO struct guarded *all = host_calloc(bytes);
    ALLOC_CHECK(all, bytes, "guarded operands");
    ctrt_call guarded = *call;
    CTRT_TRY(ctrt_device_synchronize(device));
    ctrt_status status = guard_begin(all, (const ctrt_view **)(all + count), &guarded);
    if (status == CTRT_OK) {
        log_call(all, count, &guarded);
        status = run(&guarded, device);
    }
    if (status == CTRT_OK)
        status = ctrt_device_synchronize(device);
    if (status == CTRT_OK)
        status = guard_end(all, count, &guarded);
    for (int i = 0; i < count; i++)
        guard_unmap(&all[i]);
    return status;
}
