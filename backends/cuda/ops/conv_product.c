/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/conv_product.c: convolutions as matrix products by cuBLASLt, used where cuDNN is missing or does
 * not support the convolution. The speed of tensor cores outweighs the cost of writing each pixel once per kernel
 * position (im2col; Chellapilla et al. 2006).
 *
 *                        contiguous (a product for each image)          channels-last (one product)
 *     forward            y[O,P] = weight[O,T] patches[T,P]              y[P,O] = patches[P,T] weight[O,T]'
 *     input's gradient   dx[C,Q] = turned weight[C,S] patches[S,Q]      dx[Q,C] = patches[Q,S] weight[S,C]
 *     weight's gradient  dw[O,T] = turned dy[O,NP] patches[NP,T]        dw[O,T] = dy[P,O]' patches[P,T]
 *
 * P: pixels of y; Q: pixels of x; T: channels of x times kernel positions; S: channels of y times kernel positions; ':
 * transposed; turned: with dimensions 0 and 1 exchanged. Patches are written for as many images at a time as the
 * workspace can hold; a weight gradient needs the patches of all images at the same time. A 1 x 1 kernel with stride 1
 * and without padding needs no patches, because they would be equal to the data itself (x; in the input gradient,
 * dy). */
#include <string.h>

#include "conv.h"
#include "kernels/conv_args.h"
#include "host/fatbin.h"
#include "host/options.h"
#include "product.h"

#define ALIGNED(bytes) (((bytes) + 255) / 256 * 256)
#define LEAST 8                 /* minimum number of input and output channels; for fewer, the library is not faster */
#define MOST ((int64_t)INT32_MAX)

struct plan {
    bool back, weights, whole;              /* whole: the data is used in place of patches */
    int64_t pixels, taps;                   /* pixels of an image; elements of a patch */
    int64_t images;                         /* images per product */
    size_t patches, turned, library;        /* bytes of each part of the workspace */
};

/* Returns the product for `images` images, beginning with image `first`. */
static struct cuda_product product_of(const struct cuda_conv *v, const struct plan *plan, int64_t first, int64_t images,
                                      const char *patches, const char *turned)
{
    const int64_t bytes = cuda_dtype_bytes[v->dtype], in = v->c * v->h * v->w, out = v->o * v->oh * v->ow;
    const char *x = (const char *)v->x + first * in * bytes, *y = (const char *)v->y + first * out * bytes;
    const char *data = plan->whole ? (plan->back ? y : x) : patches;
    struct cuda_product p = { .dtype = v->dtype, .out = v->dtype, .batch = 1 };
    if (plan->weights) {
        p.m = v->o, p.n = plan->taps, p.k = images * plan->pixels, p.c = v->weight;
        p.a = v->channels_last ? y : turned;
        p.a_row = v->channels_last ? 1 : p.k;
        p.a_column = v->channels_last ? v->o : 1;
        p.b = data, p.b_row = plan->taps, p.b_column = 1;
    } else if (v->channels_last) {
        p.m = images * plan->pixels, p.n = plan->back ? v->c : v->o, p.k = plan->taps;
        p.a = data, p.a_row = plan->taps, p.a_column = 1;
        p.b = v->weight, p.b_row = plan->back ? v->c : 1, p.b_column = plan->back ? 1 : plan->taps;
        p.c = (void *)(uintptr_t)(plan->back ? x : y);
        p.bias = v->bias;
    } else {
        p.batch = images, p.m = plan->back ? v->c : v->o, p.n = plan->pixels, p.k = plan->taps;
        p.a = plan->back ? turned : v->weight, p.a_row = plan->taps, p.a_column = 1;
        p.b = data, p.b_batch = plan->taps * plan->pixels, p.b_row = plan->pixels, p.b_column = 1;
        p.c = (void *)(uintptr_t)(plan->back ? x : y);
        p.bias = v->bias, p.of_rows = true;
    }
    return p;
}

/* Plans the products. `limit`: maximum bytes for patches and the turned operand. Returns false if the convolution is
 * not supported. */
static bool conv_plan(struct plan *plan, struct cuda_device *device, const struct cuda_conv *v, size_t limit)
{
    const int64_t bytes = cuda_dtype_bytes[v->dtype];
    if (cuda_options.convolutions == CUDA_PATH_BUILTIN || cuda_options.products == CUDA_PATH_BUILTIN || v->groups != 1
        || v->c < LEAST || v->o < LEAST || v->h > MOST / 4 || v->w > MOST / 4 || v->kh > MOST || v->kw > MOST
        || v->padding[0] > MOST / 4 || v->padding[1] > MOST / 4)
        return false;
    *plan = (struct plan){ .back = v->pass == CUDA_CONV_INPUT_GRAD,
                           .weights = v->pass == CUDA_CONV_WEIGHT_GRAD,
                           .images = v->n };
    plan->pixels = plan->back ? v->h * v->w : v->oh * v->ow;
    plan->taps = (plan->back ? v->o : v->c) * v->kh * v->kw;
    /* Does not apply to the weight gradient of contiguous data, because it requires pixels as rows, but in that layout
     * they are columns. */
    plan->whole = v->kh == 1 && v->kw == 1 && v->stride[0] == 1 && v->stride[1] == 1 && v->padding[0] == 0
                  && v->padding[1] == 0 && (v->channels_last || !plan->weights);
    if (plan->pixels > MOST || plan->taps > MOST || v->kh * v->kw > MOST || v->n > MOST / plan->pixels)
        return false;
    if (!v->channels_last && plan->back)
        plan->turned = ALIGNED((size_t)(v->c * plan->taps * bytes));
    if (!v->channels_last && plan->weights)
        plan->turned = ALIGNED((size_t)(v->n * v->o * plan->pixels * bytes));
    if (!plan->whole) {
        int64_t one;
        if (__builtin_mul_overflow(plan->pixels, plan->taps * bytes, &one) || plan->turned >= limit)
            return false;
        const int64_t fits = (int64_t)(limit - plan->turned) / one;
        if (fits < 1 || (plan->weights && fits < v->n))
            return false;
        plan->images = fits < v->n ? fits : v->n;
        plan->patches = ALIGNED((size_t)(plan->images * one));
    }
    if (cuda_enter(device) != CTRT_OK || !cuda_lt_ready(device))
        return false;
    const int64_t rest = v->n % plan->images;
    for (int i = 0; i < 2; i++) {
        const int64_t images = i == 0 ? plan->images : rest;
        /* Pass NULL for the parts of the workspace, because their alignment is the same. */
        const struct cuda_product p = product_of(v, plan, 0, images > 0 ? images : plan->images, NULL, NULL);
        const size_t library = cuda_lt_workspace(device, &p);
        plan->library = library > plan->library ? library : plan->library;
    }
    return true;
}

static size_t needs(const struct plan *plan)
{
    return plan->patches + plan->turned + plan->library;
}

bool cuda_conv_product_workspace(struct cuda_device *device, const struct cuda_conv *v, size_t limit, size_t *bytes)
{
    struct plan plan;
    if (!conv_plan(&plan, device, v, limit))
        return false;
    *bytes = needs(&plan);
    return true;
}

/* ---- kernels ---- */

static const char *const patch_names[CUDA_DTYPES] = {
    [CTRT_F32] = "conv2d_patches_f32", [CTRT_F64] = "conv2d_patches_f64", [CTRT_F16] = "conv2d_patches_f16",
    [CTRT_BF16] = "conv2d_patches_bf16"
};
static const char *const turn_names[CUDA_DTYPES] = {
    [CTRT_F32] = "conv2d_turn_f32", [CTRT_F64] = "conv2d_turn_f64", [CTRT_F16] = "conv2d_turn_f16",
    [CTRT_BF16] = "conv2d_turn_bf16"
};

static unsigned clipped(int64_t n, int64_t most)
{
    return (unsigned)(n < most ? n : most);
}

static ctrt_status write_patches(const ctrt_call *call, const struct cuda_conv *v, const struct plan *plan,
                                 int64_t first, int64_t images, void *to)
{
    static struct cuda_entry entries[CUDA_DTYPES];
    const int64_t bytes = cuda_dtype_bytes[v->dtype];
    struct conv_args args;
    cuda_conv_args(&args, v);
    args.x = (const char *)v->x + first * v->c * v->h * v->w * bytes;
    args.y = (const char *)v->y + first * v->o * v->oh * v->ow * bytes;
    args.n = (int32_t)images;
    args.out = to;
    args.back = plan->back;
    args.by_taps = !v->channels_last && !plan->weights;
    args.last = v->channels_last;
    struct cuda_shape shape = { .block = CONV_THREADS };
    if (args.by_taps) {
        shape.grid[0] = clipped((images * plan->pixels + CONV_THREADS - 1) / CONV_THREADS, 4096);
        shape.grid[1] = clipped(plan->taps, 65535);
    } else {
        shape.block = plan->taps >= CONV_THREADS ? CONV_THREADS : (unsigned)(plan->taps + 31) / 32 * 32;
        shape.grid[0] = clipped(images * plan->pixels, MOST);
    }
    return cuda_launch_named(call, &cuda_fatbin_conv, &entries[v->dtype], patch_names[v->dtype], shape, &args);
}

/* Copies [a,b,c] as [b,a,c], so that channels of x (weight) or channels of y (dy) become dimension 0. */
static ctrt_status conv_turn(const ctrt_call *call, const struct cuda_conv *v, const struct plan *plan, void *to)
{
    static struct cuda_entry entries[CUDA_DTYPES];
    const int64_t a = plan->back ? v->o : v->n, b = plan->back ? v->c : v->o,
                  c = plan->back ? v->kh * v->kw : plan->pixels;
    const struct conv_turn_args args = { .from = plan->back ? v->weight : v->y, .to = to, .count = a * b * c, .b = b,
                                         .a = fast_div_of(a), .c = fast_div_of(c) };
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, args.count, CONV_THREADS) },
                                      .block = CONV_THREADS };
    return cuda_launch_named(call, &cuda_fatbin_conv, &entries[v->dtype], turn_names[v->dtype], shape, &args);
}

bool cuda_conv_product(const ctrt_call *call, const struct cuda_conv *v, ctrt_status *status)
{
    struct plan plan;
    if (!conv_plan(&plan, call->device, v, cuda_conv_workspace_limit(call->device)))
        return false;
    /* The workspace may have been computed for cuDNN, which then did not support the convolution. Then process as many
     * images at a time as fit; cuBLASLt gets the rest of the workspace. */
    if (needs(&plan) > call->workspace_bytes && !conv_plan(&plan, call->device, v, call->workspace_bytes))
        return false;
    char *patches = call->workspace, *turned = patches + plan.patches;
    ctrt_call product_call = *call;
    product_call.workspace = turned + plan.turned;
    product_call.workspace_bytes = call->workspace_bytes - plan.patches - plan.turned;
    *status = plan.turned > 0 ? conv_turn(call, v, &plan, turned) : CTRT_OK;
    for (int64_t first = 0; first < v->n && *status == CTRT_OK; first += plan.images) {
        const int64_t images = v->n - first < plan.images ? v->n - first : plan.images;
        if (!plan.whole)
            *status = write_patches(call, v, &plan, first, images, patches);
        const struct cuda_product p = product_of(v, &plan, first, images, patches, turned);
        /* The work enqueued so far is harmless: the caller's next implementation overwrites its results. */
        if (*status == CTRT_OK && !cuda_lt_product(&product_call, &p, status))
            return false;
    }
    return true;
}
