/* SPDX-License-Identifier: Apache-2.0 */
/* mutant.c: slightly wrong kernels that override those of the cpu, to test that the conformance suite detects them.
 *
 * CTRT_MUTANT is a list of OP or OP:OUTPUT or OP@WAY, separated by commas; WAY is one of
 *   value     (the default) the last element of the result is slightly wrong
 *   strides   operands are read as if they were contiguous
 *   nan       NaN in the result becomes 0
 *   input     the first element of the first operand is changed
 *   flaky     every other call is slightly wrong
 *   large     results of more than 4000 elements are slightly wrong
 *   read_after, read_before     it reads the element after the last, or before the first, of a contiguous first operand
 *   write_after, write_before   it writes that element of a contiguous result
 *   refuse    the kernel returns CTRT_ERR_NOT_SUPPORTED
 *   none      no mistake
 * Ops for which the cpu has no kernel, because the core composes them, get one here (plain-attention.h).
 * Not installed; tests/conformance/mutants.sh copies it into the folder of the cpu plugin as kernels-cpu-mutant.so. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ctrt/plugin.h"
#include "plain-attention.h"

enum way { VALUE, STRIDES, NANS, INPUT, FLAKY, LARGE, READ_AFTER, READ_BEFORE, WRITE_AFTER, WRITE_BEFORE, REFUSE,
           NOTHING, WAYS };
static const char *const way_words[WAYS] = { "value", "strides", "nan", "input", "flaky", "large", "read_after",
                                             "read_before", "write_after", "write_before", "refuse", "none" };

enum { KERNELS = 512 };

static const ctrt_host *host;
static const ctrt_kernel *originals[KERNELS];
static struct mutation { enum way way; unsigned output, calls; } mutations[KERNELS];
static ctrt_kernel kernels[KERNELS];

/* ---- mistakes ---- */

static int64_t place_of(const ctrt_view *view, int64_t k)
{
    int64_t offset = 0;
    for (int d = view->ndim - 1; d >= 0; d--) {
        offset += k % view->shape[d] * view->strides[d];
        k /= view->shape[d];
    }
    return offset;
}

/* Changes an element by more than a correct kernel's rounding error, and by so little that a printed tensor looks
 * right. */
static void spoil(const ctrt_view *view, int64_t k)
{
    int64_t at = place_of(view, k);
    uint16_t *half = (uint16_t *)view->data + at;
    switch (view->dtype) {
    case CTRT_F32:  ((float *)view->data)[at] = ((float *)view->data)[at] * 1.001f + 1e-3f; break;
    case CTRT_F64:  ((double *)view->data)[at] = ((double *)view->data)[at] * 1.0001 + 1e-4; break;
    case CTRT_F16:  *half = (*half & 0x7fff) >= 0x7c00 ? *half : *half < 0x3000 ? 0x3400 : *half ^ 0x0100; break;
    case CTRT_BF16: *half = (*half & 0x7fff) >= 0x7f80 ? *half : *half < 0x3d00 ? 0x3e80 : *half ^ 0x0040; break;
    case CTRT_I16:  ((int16_t *)view->data)[at] ^= 1; break;
    case CTRT_I32:  ((int32_t *)view->data)[at] ^= 1; break;
    case CTRT_I64:  ((int64_t *)view->data)[at] ^= 1; break;
    default:        ((uint8_t *)view->data)[at] ^= 1; break;
    }
}

static void drop_nans(const ctrt_view *view)
{
    for (int64_t k = 0; k < view->numel; k++) {
        int64_t at = place_of(view, k);
        if (view->dtype == CTRT_F32 && isnan(((float *)view->data)[at]))
            ((float *)view->data)[at] = 0;
        if (view->dtype == CTRT_F64 && isnan(((double *)view->data)[at]))
            ((double *)view->data)[at] = 0;
    }
}

static ctrt_status run_flat(const ctrt_kernel *original, const ctrt_call *call)
{
    ctrt_view flat[8];
    const ctrt_view *inputs[8];
    ctrt_call changed = *call;
    for (uint32_t i = 0; i < call->n_inputs && i < 8; i++) {
        inputs[i] = call->inputs[i];
        if (inputs[i] == NULL || (inputs[i]->flags & CTRT_VIEW_HOST_SCALAR))
            continue;
        flat[i] = *inputs[i];
        for (int64_t d = flat[i].ndim - 1, stride = 1; d >= 0; stride *= flat[i].shape[d--])
            flat[i].strides[d] = stride;
        flat[i].flags |= CTRT_VIEW_CONTIGUOUS;
        inputs[i] = &flat[i];
    }
    changed.inputs = inputs;
    return original->run(&changed);
}

/* Accesses one byte of the element after the last, or before the first. */
static void stray(const ctrt_view *view, bool after, bool write)
{
    static const unsigned char bytes[] = {
#define DTYPE(name, value, size, ...) [value] = size,
#include "ctrt/dtype.def"
#undef DTYPE
    };
    const size_t size = bytes[view->dtype];
    volatile unsigned char *at = (unsigned char *)view->data + (after ? (size_t)view->numel * size : -size);
    static volatile unsigned char seen;
    if (!(view->flags & CTRT_VIEW_CONTIGUOUS) || view->numel == 0)
        return;
    if (write)
        *at = 0x77;
    else
        seen = *at;
    (void)seen;
}

static ctrt_status mutate(const ctrt_call *call)
{
    struct mutation *mutation = &mutations[call->kernel - kernels];
    const ctrt_kernel *original = originals[call->kernel - kernels];
    ctrt_call its = *call;
    its.kernel = original;
    if (mutation->way == REFUSE)
        return host->fail(CTRT_ERR_NOT_SUPPORTED, "%s: rejected by the mutant", original->op);
    ctrt_status status = mutation->way == STRIDES ? run_flat(original, &its) : original->run(&its);
    if (status != CTRT_OK || mutation->output >= call->n_outputs)
        return status;
    const ctrt_view *out = call->outputs[mutation->output];
    if (out == NULL || out->numel == 0)
        return CTRT_OK;
    if (mutation->way == VALUE || (mutation->way == FLAKY && mutation->calls++ % 2)
        || (mutation->way == LARGE && out->numel > 4000))
        spoil(out, out->numel - 1);
    if (mutation->way == NANS)
        drop_nans(out);
    if (mutation->way == READ_AFTER || mutation->way == READ_BEFORE)
        stray(call->inputs[0], mutation->way == READ_AFTER, false);
    if (mutation->way == WRITE_AFTER || mutation->way == WRITE_BEFORE)
        stray(out, mutation->way == WRITE_AFTER, true);
    if (mutation->way == INPUT && call->n_inputs > 0 && !(call->inputs[0]->flags & CTRT_VIEW_HOST_SCALAR))
        spoil(call->inputs[0], 0);
    return CTRT_OK;
}

/* ---- kernels ---- */

static ctrt_kernel_table table = { .size = sizeof table, .kernels = kernels, .stride = sizeof(ctrt_kernel) };

/* Adds a wrong version of every kernel of `op`. */
static ctrt_status add(const ctrt_kernel_table *from, const char *op, struct mutation mutation)
{
    size_t before = table.count;
    for (size_t k = 0; k < from->count; k++) {
        const ctrt_kernel *kernel = (const ctrt_kernel *)((const char *)from->kernels + k * from->stride);
        if (strcmp(kernel->op, op) != 0)
            continue;
        if (table.count == KERNELS)
            return host->fail(CTRT_ERR_PLUGIN, "mutant: more than %d kernels", KERNELS);
        originals[table.count] = kernel;
        mutations[table.count] = mutation;
        memcpy(&kernels[table.count], kernel, kernel->size < sizeof *kernel ? kernel->size : sizeof *kernel);
        kernels[table.count].size = sizeof *kernel;
        kernels[table.count].score += 100000;
        kernels[table.count].run = mutate;
        table.count++;
    }
    if (table.count > before)
        return CTRT_OK;
    return from != &plain_table ? add(&plain_table, op, mutation)
                                : host->fail(CTRT_ERR_PLUGIN, "mutant: the cpu has no kernel '%s'", op);
}

static ctrt_status mutant_init(const ctrt_host *lent)
{
    static const ctrt_param param = {
        sizeof param, "CTRT_MUTANT", CTRT_PARAM_STRING, "", NULL,
        "ops with wrong kernels: OP, OP:OUTPUT or OP@WAY, separated by commas",
    };
    ctrt_param_value value;
    host = lent;
    ctrt_status status = host->param(&value, &param);
    const struct ctrt_backend *cpu = host->backend("cpu");
    if (status != CTRT_OK)
        return status;
    if (cpu == NULL || cpu->kernels == NULL)
        return host->fail(CTRT_ERR_PLUGIN, "mutant: there is no cpu");
    char words[1024], *rest = words;
    strncpy(words, value.text ? value.text : "", sizeof words - 1);
    words[sizeof words - 1] = '\0';
    for (char *op; status == CTRT_OK && (op = strsep(&rest, ",")) != NULL;) {
        struct mutation mutation = { VALUE, 0, 0 };
        char *way = strchr(op, '@'), *output = strchr(op, ':');
        if (*op == '\0')
            continue;
        if (way != NULL) {
            *way++ = '\0';
            while (mutation.way < WAYS && strcmp(way_words[mutation.way], way) != 0)
                mutation.way++;
            if (mutation.way == WAYS)
                return host->fail(CTRT_ERR_PLUGIN, "mutant: no way '%s'", way);
        }
        if (output != NULL) {
            *output++ = '\0';
            mutation.output = (unsigned)strtoul(output, NULL, 10);
        }
        status = add(cpu->kernels, op, mutation);
    }
    return status;
}

static const ctrt_kernels component_table = { .size = sizeof component_table, .kernels = &table };
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_KERNELS, .score = 100000, .name = "cpu",
      .table = &component_table },
};
CTRT_PLUGIN_DEFINE("kernels-cpu-mutant", "1", "the cpu's kernels, slightly wrong", components, mutant_init)
