/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/conv_builtin.c: convolutions by this backend's own kernels (conv.cu). */
#include <string.h>

#include "conv.h"
#include "kernels/conv_args.h"
#include "host/fatbin.h"
#include "host/options.h"

/* Groups of fewer channels do not use tiles, but one thread per element. */
#define FEW 4

/* Indices of pixels and of taps have 31 bits. */
#define MOST ((int64_t)INT32_MAX)

static struct conv_divider divider_of(int64_t d)
{
    struct conv_divider out = { .divisor = d > 0 ? (uint32_t)d : 1 };   /* 1 for an empty dimension */
    cuda_divider(out.divisor, &out.magic, &out.shift);
    return out;
}

/* Strides of a dense tensor of shape [.., c, h, w]. `last`: channels-last, else contiguous. */
static void dense_strides(int64_t strides[4], bool last, int64_t c, int64_t h, int64_t w)
{
    strides[CONV_N] = c * h * w;
    strides[CONV_C] = last ? 1 : h * w;
    strides[CONV_H] = last ? w * c : w;
    strides[CONV_W] = last ? c : 1;
}

static bool conv_fits(const struct cuda_conv *v)
{
    const int64_t sides[] = { v->h + 2 * v->padding[0], v->w + 2 * v->padding[1], v->stride[0], v->stride[1],
                              v->padding[0], v->padding[1], v->dilation[0], v->dilation[1], v->n, v->c, v->o, v->kh,
                              v->kw };
    for (size_t i = 0; i < COUNT_OF(sides); i++)
        if (sides[i] > MOST / 2)
            return false;
    const int64_t image = v->h * v->w > v->oh * v->ow ? v->h * v->w : v->oh * v->ow;
    const int64_t wide = v->c > v->o ? v->c : v->o;
    return image <= MOST && v->kh * v->kw <= MOST && v->kh * v->kw * (wide / v->groups) <= MOST;
}

static bool is_few(const struct cuda_conv *v)
{
    const int64_t rows = v->pass == CUDA_CONV_INPUT_GRAD ? v->c / v->groups : v->o / v->groups;
    return rows < FEW && (v->groups > 1 || v->pass != CUDA_CONV_WEIGHT_GRAD);
}

static int64_t tiles_of(int64_t n)
{
    return (n + CONV_SIDE - 1) / CONV_SIDE;
}

/* Divides the pixels of a weight gradient into parts: enough parts to occupy the device, but each long enough that
 * storing its partial sums takes little time. Depends only on shapes, device and options, so that results are
 * reproducible. `whole`: a single part. */
static void cut_pixels(const struct cuda_device *device, const struct cuda_conv *v, bool whole, int64_t *part,
                       int64_t *parts)
{
    const int64_t pixels = v->n * v->oh * v->ow, weights = v->o * (v->c / v->groups) * v->kh * v->kw;
    const int64_t sum = v->dtype == CTRT_F64 ? 8 : 4;
    const int64_t blocks = tiles_of(v->o / v->groups) * tiles_of(v->c / v->groups * v->kh * v->kw) * v->groups;
    int64_t wanted = whole || is_few(v) ? 1 : 2 * (int64_t)device->processors / blocks;
    if (wanted > pixels / 512)
        wanted = pixels / 512;
    if (wanted > (int64_t)(cuda_options.workspace / (size_t)(weights * sum)))
        wanted = (int64_t)(cuda_options.workspace / (size_t)(weights * sum));
    if (wanted < 1)
        wanted = 1;
    if (wanted > 65535)
        wanted = 65535;
    *part = (pixels + wanted - 1) / wanted;
    *part = (*part + 7) / 8 * 8;
    *parts = *part > 0 ? (pixels + *part - 1) / *part : 1;
    if (*parts < 1)
        *parts = 1;
}

/* Returns the number of images per launch, limited by 31-bit pixel indices. */
static int64_t images_at_once(const struct cuda_conv *v)
{
    const int64_t image = v->pass == CUDA_CONV_INPUT_GRAD ? v->h * v->w : v->oh * v->ow;
    const int64_t images = MOST / (image > 0 ? image : 1);
    return images < v->n ? images : v->n > 0 ? v->n : 1;
}

/* Returns the number of partial weight gradients that are stored in the workspace: the parts of all launches. Returns 0
 * if there is only one, which is the result. */
static int64_t partials_of(const struct cuda_device *device, const struct cuda_conv *v, bool whole)
{
    int64_t part, parts, partials = 0;
    struct cuda_conv some = *v;
    const int64_t at_once = images_at_once(v);
    for (int64_t first = 0; first < v->n; first += at_once) {
        some.n = v->n - first < at_once ? v->n - first : at_once;
        cut_pixels(device, &some, whole, &part, &parts);
        partials += parts;
    }
    return partials > 1 ? partials : 0;
}

size_t cuda_conv_builtin_workspace(const struct cuda_device *device, const struct cuda_conv *v)
{
    if (v->pass != CUDA_CONV_WEIGHT_GRAD || !conv_fits(v))
        return 0;
    const size_t sum = v->dtype == CTRT_F64 ? 8 : 4;
    return (size_t)partials_of(device, v, false) * (size_t)(v->o * (v->c / v->groups) * v->kh * v->kw) * sum;
}

void cuda_conv_args(struct conv_args *out, const struct cuda_conv *v)
{
    const bool back = v->pass == CUDA_CONV_INPUT_GRAD;
    const int64_t c = v->c / v->groups, o = v->o / v->groups, channels = back ? o : c, mine = back ? c : o;
    const int64_t height = back ? v->h : v->oh, width = back ? v->w : v->ow;
    struct conv_args args = {
        .x = v->x, .weight = v->weight, .y = v->y, .bias = v->bias,
        .n = (int32_t)v->n, .c = (int32_t)c, .h = (int32_t)v->h, .w = (int32_t)v->w, .o = (int32_t)o,
        .kh = (int32_t)v->kh, .kw = (int32_t)v->kw,
        .oh = (int32_t)v->oh, .ow = (int32_t)v->ow, .groups = (int32_t)v->groups,
        .stride = { (int32_t)v->stride[0], (int32_t)v->stride[1] },
        .padding = { (int32_t)v->padding[0], (int32_t)v->padding[1] },
        .dilation = { (int32_t)v->dilation[0], (int32_t)v->dilation[1] },
        .by_plane = divider_of(v->kh * v->kw), .by_kw = divider_of(v->kw), .by_channels = divider_of(channels),
        .by_image = divider_of(height * width), .by_row = divider_of(width),
        .by_stride = { divider_of(v->stride[0]), divider_of(v->stride[1]) }, .by_mine = divider_of(mine),
        .image = fast_div_of(height * width), .all = fast_div_of(mine * v->groups),
        .parts = 1, .weights = v->o * c * v->kh * v->kw,
    };
    dense_strides(args.x_strides, v->channels_last, v->c, v->h, v->w);
    dense_strides(args.y_strides, v->channels_last, v->o, v->oh, v->ow);
    dense_strides(args.w_strides, v->channels_last, c, v->kh, v->kw);
    *out = args;
}

static ctrt_status conv_launch(const ctrt_call *call, const struct cuda_conv *v, bool few, struct conv_args *args)
{
    static const char *const variants[] = { "dense", "dense_last", "few", "few_last" };
    const int variant = 2 * few + v->channels_last;
    const bool back = v->pass == CUDA_CONV_INPUT_GRAD, weights = v->pass == CUDA_CONV_WEIGHT_GRAD;
    struct cuda_shape shape = { .block = CONV_THREADS };
    if (few) {
        const int64_t items = weights ? args->weights
                                      : (int64_t)args->n * (back ? v->c * v->h * v->w : v->o * v->oh * v->ow);
        shape.grid[0] = weights ? (unsigned)(items < MOST ? items : MOST)
                                : cuda_blocks(call->device, items, CONV_THREADS);
        return cuda_launch(call, v->dtype, variant, variants[variant], shape, args);
    }
    const int64_t channels = tiles_of(back ? args->c : args->o);
    const int64_t others = tiles_of(weights ? (int64_t)args->c * args->kh * args->kw
                                            : (int64_t)args->n * (back ? v->h * v->w : v->oh * v->ow));
    /* Rows of the tiles: with channels-last data, pixels in forward and input gradient; in all other cases,
     * channels. */
    args->tiles = channels * others;
    args->tiles_across = v->channels_last && !weights ? channels : others;
    if (args->tiles * v->groups > MOST)
        return cuda_host->fail(CTRT_ERR_NOT_SUPPORTED, "%s is too large for the built-in kernel: %lld tiles",
                               call->kernel->op, (long long)(args->tiles * v->groups));
    shape.grid[0] = (unsigned)(args->tiles * v->groups);
    shape.grid[1] = 1;
    shape.grid[2] = (unsigned)args->parts;
    return cuda_launch(call, v->dtype, variant, variants[variant], shape, args);
}

static ctrt_status conv_add_parts(const ctrt_call *call, const struct cuda_conv *v, struct conv_args *args,
                                  int64_t partials)
{
    static const char *const names[CUDA_DTYPES] = {
        [CTRT_F32] = "conv2d_parts_f32", [CTRT_F64] = "conv2d_parts_f64", [CTRT_F16] = "conv2d_parts_f16",
        [CTRT_BF16] = "conv2d_parts_bf16"
    };
    static struct cuda_entry entries[CUDA_DTYPES];
    args->scratch = call->workspace;
    args->parts = (int32_t)partials;
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, args->weights, CONV_THREADS) },
                                      .block = CONV_THREADS };
    return cuda_launch_named(call, &cuda_fatbin_conv, &entries[v->dtype], names[v->dtype], shape, args);
}

ctrt_status cuda_conv_builtin(const ctrt_call *call, const struct cuda_conv *v)
{
    struct cuda_device *device = call->device;
    const int64_t bytes = cuda_dtype_bytes[v->dtype];
    if (!conv_fits(v))
        return cuda_host->fail(
            CTRT_ERR_NOT_SUPPORTED,
            "%s: %s: sides of more than 2^30, or an image or kernel of more than 2^31 places, are too large "
            "for the built-in kernel",
            device->name, call->kernel->op);
    const bool few = is_few(v), weights = v->pass == CUDA_CONV_WEIGHT_GRAD;
    /* The workspace may be smaller, if it was computed for a library that then did not support the convolution. */
    const bool whole = weights && call->workspace_bytes < cuda_conv_builtin_workspace(device, v);
    const int64_t partials = weights ? partials_of(device, v, whole) : 0, at_once = images_at_once(v);
    if (partials > 1 && whole)
        return cuda_host->fail(CTRT_ERR_INTERNAL, "%s: %s got %zu bytes of workspace", device->name, call->kernel->op,
                               call->workspace_bytes);
    struct conv_args args;
    cuda_conv_args(&args, v);
    char *scratch = partials > 1 ? call->workspace : NULL;
    ctrt_status status = CTRT_OK;
    /* Without images, one launch still writes zeros to the weight gradient. */
    for (int64_t first = 0; status == CTRT_OK && (first < v->n || (first == 0 && weights)); first += at_once) {
        struct cuda_conv some = *v;
        some.n = v->n - first < at_once ? v->n - first : at_once;
        args.n = (int32_t)some.n;
        args.x = (const char *)v->x + first * args.x_strides[CONV_N] * bytes;
        args.y = (const char *)v->y + first * args.y_strides[CONV_N] * bytes;
        args.out = weights ? v->weight : (void *)(uintptr_t)(v->pass == CUDA_CONV_INPUT_GRAD ? args.x : args.y);
        int64_t parts = 1;
        if (weights)
            cut_pixels(device, &some, whole, &args.part, &parts);
        args.parts = (int32_t)parts;
        args.scratch = scratch;
        status = conv_launch(call, v, few, &args);
        if (scratch != NULL)
            scratch += parts * args.weights * (v->dtype == CTRT_F64 ? 8 : 4);
    }
    if (status == CTRT_OK && partials > 1)
        status = conv_add_parts(call, v, &args, partials);
    return status;
}
