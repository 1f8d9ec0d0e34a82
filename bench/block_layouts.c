/* SPDX-License-Identifier: Apache-2.0 */
/* bench/block_layouts.c: prints the layouts in a transformer block with tensor parallelism, in the order in which the
 * ops run, forward and backward. block_layouts.py draws the output as doc/block-layouts.svg:
 *
 *     CTRT_SIM=devices=2 _build/bench-block-layouts | bench/block_layouts.py > doc/block-layouts.svg
 *
 * Each line has fields separated by tabs: the kind, then what it describes. `reduced` is the number of all_reduces, and
 * `others` of all other collectives, since the line before.
 *
 *     tensor NAME SHAPE LAYOUT reduced others         a result of the forward pass
 *     weight OP NAME SHAPE LAYOUT LAYOUT-OF-GRADIENT  a parameter
 *     grad NAME LAYOUT reduced others                 the complete gradient of a result, before it is propagated */
#include <ctrt/ctrt.h>
#include <ctrt/layout.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, TIME = 8, WIDTH = 32, HEADS = 4 };

#define SHARDED(d, g) { .kind = CTRT_LAYOUT_SHARDED, .dim = (d), .groups = (g) }

static struct weight {
    const char *op, *name;
    int64_t shape[2];                           /* shape[1] 0: one dimension */
    ctrt_layout layout;
    ctrt_tensor *tensor;
} weights[] = {
    { "ln1", "weight", { WIDTH }, { 0 }, NULL },
    { "ln1", "bias", { WIDTH }, { 0 }, NULL },
    { "qkv", "weight", { 3 * WIDTH, WIDTH }, SHARDED(0, 3), NULL },
    { "qkv", "bias", { 3 * WIDTH }, SHARDED(0, 3), NULL },
    { "proj", "weight", { WIDTH, WIDTH }, SHARDED(1, 1), NULL },
    { "proj", "bias", { WIDTH }, { 0 }, NULL },
    { "ln2", "weight", { WIDTH }, { 0 }, NULL },
    { "ln2", "bias", { WIDTH }, { 0 }, NULL },
    { "up", "weight", { 4 * WIDTH, WIDTH }, SHARDED(0, 1), NULL },
    { "up", "bias", { 4 * WIDTH }, SHARDED(0, 1), NULL },
    { "down", "weight", { WIDTH, 4 * WIDTH }, SHARDED(1, 1), NULL },
    { "down", "bias", { WIDTH }, { 0 }, NULL },
};
enum { WEIGHTS = sizeof weights / sizeof weights[0] };

static ctrt_device *device;
static ctrt_layout_counts last = CTRT_LAYOUT_COUNTS;

static void print_layout(ctrt_tensor *x, const char *end)
{
    ctrt_layout layout = { .kind = CTRT_LAYOUT_REPLICATED };
    if (ctrt_tensor_layout(&layout, x) != CTRT_OK)
        exit(1);
    if (layout.kind == CTRT_LAYOUT_SHARDED)
        printf("sharded %d %d%s", (int)layout.dim, (int)(layout.groups > 1 ? layout.groups : 1), end);
    else
        printf("%s%s", layout.kind == CTRT_LAYOUT_PARTIAL ? "partial" : "replicated", end);
}

static void print_shape(ctrt_tensor *x)
{
    for (int d = 0; d < ctrt_tensor_ndim(x); d++)
        printf("%s%lld", d > 0 ? ", " : "", (long long)ctrt_tensor_shape(x)[d]);
    printf("\t");
}

/* Ends a line with the collectives since the line before. */
static ctrt_status print_counts(void)
{
    ctrt_layout_counts now = CTRT_LAYOUT_COUNTS;
    CTRT_TRY(ctrt_layout_count(&now, device));
    printf("%d\t%d\n", (int)(now.all_reduce - last.all_reduce),
           (int)(now.all_gather + now.reduce_scatter + now.all_to_all - last.all_gather - last.reduce_scatter
                 - last.all_to_all));
    last = now;
    return CTRT_OK;
}

static ctrt_status on_gradient(void *name, ctrt_tensor **grad)
{
    printf("grad\t%s\t", (const char *)name);
    print_layout(*grad, "\t");
    return print_counts();
}

/* Prints the result of an op, and its gradient as soon as that is complete. */
static ctrt_status note(const char *name, ctrt_tensor *x)
{
    printf("tensor\t%s\t", name);
    print_shape(x);
    print_layout(x, "\t");
    CTRT_TRY(print_counts());
    return ctrt_tensor_add_hook(x, on_gradient, (void *)(uintptr_t)name, NULL);
}

static ctrt_tensor *weight(const char *op, const char *name)
{
    for (int i = 0; i < WEIGHTS; i++)
        if (strcmp(weights[i].op, op) == 0 && strcmp(weights[i].name, name) == 0)
            return weights[i].tensor;
    return NULL;
}

static ctrt_status norm(ctrt_tensor **y, const char *op, ctrt_tensor *x)
{
    CTRT_TRY(ctrt_layer_norm(y, x, CTRT_SHAPE(WIDTH), weight(op, "weight"), weight(op, "bias"), 1e-5));
    return note(op, *y);
}

static ctrt_status linear(ctrt_tensor **y, const char *op, ctrt_tensor *x)
{
    CTRT_TRY(ctrt_linear(y, x, weight(op, "weight"), weight(op, "bias")));
    return note(op, *y);
}

/* The heads of q, k and v are views of qkv, as in ctrt_multihead_attention_new. */
static ctrt_status attention(ctrt_tensor **y, ctrt_tensor *qkv)
{
    CTRT_AUTO(tensor) q = NULL, k = NULL, v = NULL;
    ctrt_tensor **heads[] = { &q, &k, &v };
    for (int i = 0; i < 3; i++) {
        CTRT_TRY(ctrt_narrow(heads[i], qkv, -1, i * WIDTH, WIDTH));
        CTRT_TRY(ctrt_reshape(heads[i], *heads[i], CTRT_SHAPE(BATCH, TIME, HEADS, WIDTH / HEADS)));
        CTRT_TRY(ctrt_transpose(heads[i], *heads[i], 1, 2));
    }
    CTRT_TRY(note("q", q));
    CTRT_TRY(ctrt_scaled_dot_product_attention(y, q, k, v, NULL, &CTRT_WITH(ctrt_attention_options, .causal = true)));
    CTRT_TRY(note("heads", *y));
    CTRT_TRY(ctrt_transpose(y, *y, 1, 2));
    CTRT_TRY(ctrt_reshape(y, *y, CTRT_SHAPE(BATCH, TIME, WIDTH)));
    return note("attention", *y);
}

static ctrt_status block(ctrt_tensor **y, ctrt_tensor *x)
{
    CTRT_AUTO(tensor) h = NULL, middle = NULL;
    CTRT_TRY(note("x", x));
    CTRT_TRY(norm(&h, "ln1", x));
    CTRT_TRY(linear(&h, "qkv", h));
    CTRT_TRY(attention(&h, h));
    CTRT_TRY(linear(&h, "proj", h));
    CTRT_TRY(ctrt_add(&middle, x, h));
    CTRT_TRY(note("add1", middle));
    CTRT_TRY(norm(&h, "ln2", middle));
    CTRT_TRY(linear(&h, "up", h));
    CTRT_TRY(ctrt_gelu(&h, h, true));
    CTRT_TRY(note("gelu", h));
    CTRT_TRY(linear(&h, "down", h));
    CTRT_TRY(ctrt_add(y, middle, h));
    return note("y", *y);
}

static ctrt_status run(void)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL, loss = NULL;
    CTRT_TRY(ctrt_device_get(&device, "sim-multi:0"));
    ctrt_manual_seed(1);
    for (int i = 0; i < WEIGHTS; i++) {
        struct weight *w = &weights[i];
        CTRT_TRY(ctrt_randn(&w->tensor, ctrt_ints_of(w->shape, w->shape[1] > 0 ? 2 : 1), CTRT_F32, device));
        CTRT_TRY(ctrt_tensor_distribute(w->tensor, &w->layout));
        CTRT_TRY(ctrt_tensor_require_grad(w->tensor, true));
    }
    CTRT_TRY(ctrt_randn(&x, CTRT_SHAPE(BATCH, TIME, WIDTH), CTRT_F32, device));
    CTRT_TRY(ctrt_tensor_require_grad(x, true));
    CTRT_TRY(ctrt_layout_count(&last, device));
    CTRT_TRY(block(&y, x));
    CTRT_TRY(ctrt_sum(&loss, y, CTRT_ALL_DIMS));
    CTRT_TRY(ctrt_backward(loss));
    for (int i = 0; i < WEIGHTS; i++) {
        printf("weight\t%s\t%s\t", weights[i].op, weights[i].name);
        print_shape(weights[i].tensor);
        print_layout(weights[i].tensor, "\t");
        print_layout(ctrt_tensor_grad(weights[i].tensor), "\n");
        ctrt_tensor_release(&weights[i].tensor);
    }
    return CTRT_OK;
}

int main(void)
{
    ctrt_status status = run();
    if (status == CTRT_OK)
        status = ctrt_shutdown();
    if (status != CTRT_OK)
        fprintf(stderr, "block_layouts: %s\n", ctrt_error_message());
    return status != CTRT_OK;
}
