/* SPDX-License-Identifier: Apache-2.0 */
/* conv.c: conv2d and its gradients as products of matrices (implicit GEMM), after padding the images.
 *
 *   conv2d        y[o, (n,y,x)]  = sum over (c,p,q) of w[o, (c,p,q)] * padded x[n, c, y sy + p dy, x sx + q dx]
 *   weight_grad   dw[o, (c,p,q)] = sum over (n,y,x) of dy[o, (n,y,x)] * the same
 *   input_grad    dx[c, (n,y,x)] = sum over (o,p,q) of w[o, c, p, q] * spread dy[n, o, y + (P-1-p) dy, x + (Q-1-q) dx]
 *
 * The spread dy has zeros between its elements if the stride is not 1, so that all offsets are sums of a part for the
 * row, the column and the summand, as cl/product.cl requires. */
#include <string.h>

#include "product.h"

/* The sizes of x[N,C,H,W], w[O,G,P,Q], y[N,O,Y,X], and of the images in the workspace: padded x, or dy if `spread`.
 * plane: elements of such an image; window: of a filter; each: filters of a group. */
struct sizes {
    int64_t n, c, h, w, o, g, p, q, y, x, groups, rows, columns, plane, window, each;
    bool spread;
    const ctrt_conv_attributes *conv;
};

static struct sizes sizes_of(const ctrt_call *call, const ctrt_view *x, const ctrt_view *w, const ctrt_view *y,
                             bool spread)
{
    const ctrt_conv_attributes *conv = call->attributes;
    struct sizes s = {
        .n = x->shape[0], .c = x->shape[1], .h = x->shape[2], .w = x->shape[3],
        .o = w->shape[0], .g = w->shape[1], .p = w->shape[2], .q = w->shape[3],
        .y = y->shape[2], .x = y->shape[3], .groups = conv->groups, .spread = spread, .conv = conv,
    };
    s.rows = spread ? s.h + (s.p - 1) * conv->dilation[0] : s.h + 2 * conv->padding[0];
    s.columns = spread ? s.w + (s.q - 1) * conv->dilation[1] : s.w + 2 * conv->padding[1];
    s.plane = s.rows * s.columns;
    s.window = s.g * s.p * s.q;
    s.each = s.o / s.groups;
    return s;
}

static bool is_padded(const struct sizes *s)
{
    const int64_t *stride = s->conv->stride;
    return s->rows != (s->spread ? s->y : s->h) || s->columns != (s->spread ? s->x : s->w)
           || (s->spread && (stride[0] != 1 || stride[1] != 1 || s->conv->padding[0] != 0 || s->conv->padding[1] != 0));
}

/* Bytes of the workspace: of the padded images. */
static ctrt_status padded_bytes(const ctrt_call *call, struct sizes s, size_t *bytes)
{
    *bytes = is_padded(&s) ? (size_t)(s.n * (s.spread ? s.o : s.c) * s.plane)
                                 * (size_t)dtype_bytes((ctrt_dtype)call->inputs[0]->dtype)
                           : 0;
    return CTRT_OK;
}

/* Offsets in padded x: of the elements of a window, and of the windows of all images. */
static struct axis axis_window(const struct sizes *s)
{
    const int64_t *dilation = s->conv->dilation;
    return axis_of(s->p, s->q, s->plane, dilation[0] * s->columns, dilation[1]);
}
static struct axis axis_images(const struct sizes *s)
{
    const int64_t *stride = s->conv->stride;
    return axis_of(s->y, s->x, s->c * s->plane, stride[0] * s->columns, stride[1]);
}

/* Pads x, or spreads dy, into the workspace; *images: the workspace, or the images themselves if there is nothing to
 * do. */
static ctrt_status pad(const ctrt_call *call, const struct sizes *s, const void **images)
{
    const ctrt_conv_attributes *conv = s->conv;
    const ctrt_dtype dtype = (ctrt_dtype)call->inputs[0]->dtype;
    struct pad_args a = { .planes = s->n * s->c, .h = s->h, .w = s->w, .to_h = s->rows, .to_w = s->columns,
                          .top = conv->padding[0], .left = conv->padding[1], .spread_y = 1, .spread_x = 1 };
    struct launch what = { .dtype = dtype, .out_dtype = dtype, .variant = 1, .file = "pad", .n_pointers = 2,
                           .pointers = { *images, call->workspace }, .args = &a, .args_bytes = sizeof a };
    if (!is_padded(s))
        return CTRT_OK;
    if (s->spread) {
        a.planes = s->n * s->o;
        a.h = s->y, a.w = s->x;
        a.top = (s->p - 1) * conv->dilation[0] - conv->padding[0];
        a.left = (s->q - 1) * conv->dilation[1] - conv->padding[1];
        a.spread_y = conv->stride[0], a.spread_x = conv->stride[1];
    }
    *images = call->workspace;
    what.groups = groups_for(call->device, a.planes, 4096 / (a.to_h * a.to_w + 1) + 1, &a.chunk);
    return launch(call, &what);
}

/* ---- conv2d: x, w, bias? -> y ---- */

static struct sizes forward_sizes(const ctrt_call *call)
{
    return sizes_of(call, call->inputs[0], call->inputs[1], call->outputs[0], false);
}

static ctrt_status conv2d_workspace(const ctrt_call *call, size_t *bytes)
{
    return padded_bytes(call, forward_sizes(call), bytes);
}

static ctrt_status conv2d_run(const ctrt_call *call)
{
    const struct sizes s = forward_sizes(call);
    const ctrt_view *bias = call->inputs[2];
    const void *x = call->inputs[0]->data;
    struct product_args args = {
        .m = s.each, .n = s.n * s.y * s.x, .k = s.window,
        .a_m = axis_plain(s.window), .a_k = axis_plain(1),
        .b_k = axis_window(&s),
        .b_n = axis_images(&s),
        .c_m = axis_plain(s.y * s.x), .c_n = axis_of(s.y, s.x, s.o * s.y * s.x, s.x, 1),
        .a_batch = axis_plain(s.each * s.window), .b_batch = axis_plain(s.g * s.plane),
        .c_batch = axis_plain(s.each * s.y * s.x),
        .bias_m = bias != NULL, .bias_batch = bias != NULL ? s.each : 0,
    };
    CTRT_TRY(pad(call, &s, &x));
    return product_launch(call, &args, call->inputs[1]->data, x, bias != NULL ? bias->data : NULL,
                          call->outputs[0]->data, s.groups);
}

/* ---- conv2d_weight_grad: dy, x -> dw ---- */

static struct sizes weight_sizes(const ctrt_call *call)
{
    return sizes_of(call, call->inputs[1], call->outputs[0], call->inputs[0], false);
}

static ctrt_status conv2d_weight_grad_workspace(const ctrt_call *call, size_t *bytes)
{
    return padded_bytes(call, weight_sizes(call), bytes);
}

static ctrt_status conv2d_weight_grad_run(const ctrt_call *call)
{
    const struct sizes s = weight_sizes(call);
    const void *x = call->inputs[1]->data;
    struct product_args args = {
        .m = s.each, .n = s.window, .k = s.n * s.y * s.x,
        .a_m = axis_plain(s.y * s.x), .a_k = axis_of(s.y, s.x, s.o * s.y * s.x, s.x, 1),
        .b_k = axis_images(&s),
        .b_n = axis_window(&s),
        .c_m = axis_plain(s.window), .c_n = axis_plain(1),
        .a_batch = axis_plain(s.each * s.y * s.x), .b_batch = axis_plain(s.g * s.plane),
        .c_batch = axis_plain(s.each * s.window),
    };
    CTRT_TRY(pad(call, &s, &x));
    return product_launch(call, &args, call->inputs[0]->data, x, NULL, call->outputs[0]->data, s.groups);
}

/* ---- conv2d_input_grad: dy, w -> dx ---- */

static struct sizes input_sizes(const ctrt_call *call)
{
    return sizes_of(call, call->outputs[0], call->inputs[1], call->inputs[0], true);
}

static ctrt_status conv2d_input_grad_workspace(const ctrt_call *call, size_t *bytes)
{
    return padded_bytes(call, input_sizes(call), bytes);
}

static ctrt_status conv2d_input_grad_run(const ctrt_call *call)
{
    const struct sizes s = input_sizes(call);
    const int64_t down = s.conv->dilation[0] * s.columns, right = s.conv->dilation[1];
    const void *dy = call->inputs[0]->data;
    struct product_args args = {
        .m = s.g, .n = s.n * s.h * s.w, .k = s.each * s.p * s.q,
        .a_m = axis_plain(s.p * s.q), .a_k = axis_of(s.p, s.q, s.g * s.p * s.q, s.q, 1),
        .b_k = axis_of(s.p, s.q, s.plane, -down, -right),
        .b_n = axis_of(s.h, s.w, s.o * s.plane, s.columns, 1),
        .c_m = axis_plain(s.h * s.w), .c_n = axis_of(s.h, s.w, s.c * s.h * s.w, s.w, 1),
        .a_batch = axis_plain(s.each * s.g * s.p * s.q), .b_batch = axis_plain(s.each * s.plane),
        .c_batch = axis_plain(s.g * s.h * s.w),
    };
    CTRT_TRY(pad(call, &s, &dy));
    const char *last = (const char *)dy
        + ((s.p - 1) * down + (s.q - 1) * right) * dtype_bytes((ctrt_dtype)call->inputs[0]->dtype);
    return product_launch(call, &args, call->inputs[1]->data, last, NULL, call->outputs[0]->data, s.groups);
}

#define CONV(name, types, defines_)                                                                                   \
    { .base = { .op = #name, .dtypes = (types), .run = name##_run, .workspace = name##_workspace },                   \
      .file = "product", .function = "product", .defines = defines_ }

static const struct kernel rows[] = {
    CONV(conv2d, BIT(F32) | BIT(F64), "#define PLAIN\n"),
    CONV(conv2d, BIT(F16) | BIT(BF16), NULL),
    CONV(conv2d_input_grad, BIT(F32) | BIT(F64), "#define PLAIN\n"),
    CONV(conv2d_input_grad, BIT(F16) | BIT(BF16), NULL),
    CONV(conv2d_weight_grad, BIT(F32) | BIT(F64), "#define PLAIN\n"),
    CONV(conv2d_weight_grad, BIT(F16) | BIT(BF16), NULL),
};
KERNELS(conv, rows);
