/* SPDX-License-Identifier: Apache-2.0 */
/* data/transforms.c: crop, flip, copy, conversion to float and grey. Views never touch the pixels. */
#include <math.h>

#include "base/base.h"
#include "data/image.h"
#include "data/pixels.h"

static ctrt_image image_of(void *pixels, ctrt_dtype dtype, int64_t channels, int64_t height, int64_t width)
{
    return (ctrt_image){ .pixels = pixels, .dtype = dtype, .channels = channels, .height = height, .width = width };
}

ctrt_image ctrt_image_chw(void *pixels, ctrt_dtype dtype, int64_t channels, int64_t height, int64_t width)
{
    ctrt_image image = image_of(pixels, dtype, channels, height, width);
    image.channel_stride = height * width, image.row_stride = width, image.column_stride = 1;
    return image;
}

ctrt_image ctrt_image_hwc(void *pixels, ctrt_dtype dtype, int64_t height, int64_t width, int64_t channels)
{
    ctrt_image image = image_of(pixels, dtype, channels, height, width);
    image.channel_stride = 1, image.row_stride = width * channels, image.column_stride = channels;
    return image;
}

/* ---- checks ---- */

ctrt_status image_check(const char *function, const char *argument, const ctrt_image *image)
{
    if (image == NULL || image->pixels == NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %s%s is NULL", function, argument,
                         image != NULL ? "->pixels" : "");
    if (image->dtype != CTRT_U8 && image->dtype != CTRT_F32)
        return ctrt_fail(CTRT_ERR_DTYPE, "%s: %s has dtype %s, expected u8 or f32", function, argument,
                         ctrt_dtype_name(image->dtype));
    if (image->channels < 1 || image->height < 1 || image->width < 1 || image->channels > IMAGE_MAX_CHANNELS
        || image->height > IMAGE_MAX_SIDE || image->width > IMAGE_MAX_SIDE)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %s has %lld channels, height %lld and width %lld, expected 1 "
                         "to %d channels and sides of 1 to %d", function, argument, (long long)image->channels,
                         (long long)image->height, (long long)image->width, IMAGE_MAX_CHANNELS, IMAGE_MAX_SIDE);
    return CTRT_OK;
}

ctrt_status image_check_pair(const char *function, const ctrt_image *out, const ctrt_image *image)
{
    CTRT_TRY(image_check(function, "out", out));
    CTRT_TRY(image_check(function, "image", image));
    if (out->dtype != image->dtype)
        return ctrt_fail(CTRT_ERR_DTYPE, "%s: out is %s and image is %s, expected the same dtype", function,
                         ctrt_dtype_name(out->dtype), ctrt_dtype_name(image->dtype));
    if (out->channels != image->channels)
        return ctrt_fail(CTRT_ERR_SHAPE, "%s: out has %lld channels and image has %lld", function,
                         (long long)out->channels, (long long)image->channels);
    return CTRT_OK;
}

static ctrt_status check_same_size(const char *function, const ctrt_image *out, const ctrt_image *image)
{
    if (out->height == image->height && out->width == image->width)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_SHAPE, "%s: out is %lldx%lld (height x width) and image is %lldx%lld", function,
                     (long long)out->height, (long long)out->width, (long long)image->height, (long long)image->width);
}

/* ---- views ---- */

static ctrt_status check_view(const char *function, ctrt_image *view, const ctrt_image *image)
{
    return view == NULL ? fail_null(function, "view") : image_check(function, "image", image);
}

/* The address of element (0, y, x). */
static void *pixel_at(const ctrt_image *image, int64_t y, int64_t x)
{
    return (char *)image->pixels
           + (y * image->row_stride + x * image->column_stride) * (int64_t)ctrt_dtype_size(image->dtype);
}

static void crop(ctrt_image *view, const ctrt_image *image, int64_t top, int64_t left, int64_t height, int64_t width)
{
    void *pixels = pixel_at(image, top, left);
    *view = *image;
    view->pixels = pixels, view->height = height, view->width = width;
}

ctrt_status ctrt_image_crop(ctrt_image *view, const ctrt_image *image, int64_t top, int64_t left, int64_t height,
                            int64_t width)
{
    CTRT_TRY(check_view("image_crop", view, image));
    if (height < 1 || width < 1)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "image_crop: height %lld, width %lld: expected at least 1",
                         (long long)height, (long long)width);
    if (top < 0 || left < 0 || height > image->height || width > image->width || top > image->height - height
        || left > image->width - width)
        return ctrt_fail(CTRT_ERR_SHAPE, "image_crop: a part of %lldx%lld at row %lld, column %lld is not inside an "
                         "image of %lldx%lld; ctrt_image_copy pads", (long long)height, (long long)width,
                         (long long)top, (long long)left, (long long)image->height, (long long)image->width);
    crop(view, image, top, left, height, width);
    return CTRT_OK;
}

ctrt_status ctrt_image_center_crop(ctrt_image *view, const ctrt_image *image, int64_t height, int64_t width)
{
    CTRT_TRY(check_view("image_center_crop", view, image));
    /* rint rounds halves to even, as Python's round. */
    const double top = rint((double)(image->height - height) / 2), left = rint((double)(image->width - width) / 2);
    return ctrt_context(ctrt_image_crop(view, image, (int64_t)top, (int64_t)left, height, width), "image_center_crop");
}

ctrt_status ctrt_image_hflip(ctrt_image *view, const ctrt_image *image)
{
    CTRT_TRY(check_view("image_hflip", view, image));
    crop(view, image, 0, image->width - 1, image->height, image->width);
    view->column_stride = -view->column_stride;
    return CTRT_OK;
}

ctrt_status ctrt_image_vflip(ctrt_image *view, const ctrt_image *image)
{
    CTRT_TRY(check_view("image_vflip", view, image));
    crop(view, image, image->height - 1, 0, image->height, image->width);
    view->row_stride = -view->row_stride;
    return CTRT_OK;
}

typedef ctrt_status flip_function(ctrt_image *view, const ctrt_image *image);

static ctrt_status random_flip(const char *function, flip_function *flip, ctrt_image *view, const ctrt_image *image,
                               double p, ctrt_sample_random *random)
{
    CTRT_TRY(check_view(function, view, image));
    NULL_CHECK(function, random);
    if (!(p >= 0 && p <= 1))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: p is %g, expected 0 to 1", function, p);
    if (ctrt_sample_random_uniform(random) < p)
        return flip(view, image);
    *view = *image;
    return CTRT_OK;
}

ctrt_status ctrt_image_random_hflip(ctrt_image *view, const ctrt_image *image, double p, ctrt_sample_random *random)
{
    return random_flip("image_random_hflip", ctrt_image_hflip, view, image, p, random);
}

ctrt_status ctrt_image_random_vflip(ctrt_image *view, const ctrt_image *image, double p, ctrt_sample_random *random)
{
    return random_flip("image_random_vflip", ctrt_image_vflip, view, image, p, random);
}

/* Chooses the size of the part. Returns false if none of ten random sizes fits into the image; then it is the largest
 * part whose ratio is within the limits, in the middle. */
static bool random_size(int64_t *height, int64_t *width, const ctrt_image *image, const double scale[2],
                        const double ratio[2], ctrt_sample_random *random)
{
    const double area = (double)image->height * (double)image->width;
    const double low = log(ratio[0]), high = log(ratio[1]);
    for (int attempt = 0; attempt < 10; attempt++) {
        const double target = area * (scale[0] + (scale[1] - scale[0]) * ctrt_sample_random_uniform(random));
        const double aspect = exp(low + (high - low) * ctrt_sample_random_uniform(random));
        const double w = rint(sqrt(target * aspect)), h = rint(sqrt(target / aspect));
        if (w >= 1 && w <= (double)image->width && h >= 1 && h <= (double)image->height) {
            *width = (int64_t)w, *height = (int64_t)h;
            return true;
        }
    }
    const double whole = (double)image->width / (double)image->height;
    *width = image->width, *height = image->height;
    if (whole < ratio[0])
        *height = MIN(MAX((int64_t)rint((double)image->width / ratio[0]), 1), image->height);
    else if (whole > ratio[1])
        *width = MIN(MAX((int64_t)rint((double)image->height * ratio[1]), 1), image->width);
    return false;
}

ctrt_status ctrt_image_random_resized_crop(ctrt_image *view, const ctrt_image *image,
                                           const ctrt_random_crop_options *options, ctrt_sample_random *random)
{
    ctrt_random_crop_options own = CTRT_RANDOM_CROP_OPTIONS;
    CTRT_TRY(struct_read(&own, sizeof own, options, "image_random_resized_crop", "options"));
    const double *const scale = own.scale, *const ratio = own.ratio;
    CTRT_TRY(check_view("image_random_resized_crop", view, image));
    NULL_CHECK("image_random_resized_crop", random);
    if (!(scale[0] >= 0 && scale[0] <= scale[1] && scale[1] <= 1 && ratio[0] > 0 && ratio[0] <= ratio[1]
          && ratio[1] < 1e6))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "image_random_resized_crop: scale %g to %g, ratio %g to %g: "
                         "expected rising scales of 0 to 1 and rising ratios above 0", scale[0], scale[1], ratio[0],
                         ratio[1]);
    int64_t height, width;
    if (!random_size(&height, &width, image, scale, ratio, random)) {
        crop(view, image, (image->height - height) / 2, (image->width - width) / 2, height, width);
        return CTRT_OK;
    }
    const int64_t top = (int64_t)ctrt_sample_random_below(random, (uint64_t)(image->height - height + 1));
    const int64_t left = (int64_t)ctrt_sample_random_below(random, (uint64_t)(image->width - width + 1));
    crop(view, image, top, left, height, width);
    return CTRT_OK;
}

/* ---- pixels ---- */

static void transforms_fill_all(const ctrt_image *out, double value)
{
    const unsigned char byte = (unsigned char)lrint(value);
    for (int64_t c = 0; c < out->channels; c++)
        for (int64_t y = 0; y < out->height; y++) {
            const int64_t start = c * out->channel_stride + y * out->row_stride;
            for (int64_t x = 0; x < out->width; x++)
                if (out->dtype == CTRT_U8)
                    ((unsigned char *)out->pixels)[start + x * out->column_stride] = byte;
                else
                    ((float *)out->pixels)[start + x * out->column_stride] = (float)value;
        }
}

/* Copies `n` elements, `to_step` and `from_step` elements apart. */
static void copy_elements(void *to, int64_t to_step, const void *from, int64_t from_step, int64_t n, ctrt_dtype dtype)
{
    if (to_step == 1 && from_step == 1) {
        memcpy(to, from, (size_t)n * ctrt_dtype_size(dtype));
    } else if (dtype == CTRT_U8) {
        unsigned char *restrict bytes = to;
        const unsigned char *restrict source = from;
        for (int64_t i = 0; i < n; i++)
            bytes[i * to_step] = source[i * from_step];
    } else {
        float *restrict floats = to;
        const float *restrict source = from;
        for (int64_t i = 0; i < n; i++)
            floats[i * to_step] = source[i * from_step];
    }
}

/* The channels of a pixel are adjacent, and the pixels of a row too. */
static bool interleaved(const ctrt_image *image)
{
    return image->channel_stride == 1 && image->column_stride == image->channels;
}

/* Copies an image of the same size. */
static void copy_all(const ctrt_image *out, const ctrt_image *image)
{
    const int64_t bytes = (int64_t)ctrt_dtype_size(out->dtype), next = out->channel_stride * bytes;
    const bool rows = interleaved(out) && interleaved(image);
    const bool split = out->dtype == CTRT_U8 && out->channels == 3 && out->column_stride == 1
                       && image->channel_stride == 1 && (image->column_stride == 3 || image->column_stride == -3);
    for (int64_t y = 0; y < out->height; y++) {
        unsigned char *to = (unsigned char *)out->pixels + y * out->row_stride * bytes;
        const unsigned char *from = (const unsigned char *)image->pixels + y * image->row_stride * bytes;
        if (rows)
            copy_elements(to, 1, from, 1, out->width * out->channels, out->dtype);
        else if (split)
            pixels_split3((unsigned char *const[]){ to, to + next, to + 2 * next }, from, out->width,
                          image->column_stride < 0);
        else
            for (int64_t c = 0; c < out->channels; c++)
                copy_elements(to + c * next, out->column_stride, from + c * image->channel_stride * bytes,
                              image->column_stride, out->width, out->dtype);
    }
}

ctrt_status ctrt_image_copy(const ctrt_image *out, const ctrt_image *image, int64_t top, int64_t left, double fill)
{
    CTRT_TRY(image_check_pair("image_copy", out, image));
    if (out->dtype == CTRT_U8 && !(fill >= 0 && fill <= 255))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "image_copy: fill is %g, expected 0 to 255", fill);
    top = MAX(MIN(top, IMAGE_MAX_SIDE), -IMAGE_MAX_SIDE);           /* further away there is only fill */
    left = MAX(MIN(left, IMAGE_MAX_SIDE), -IMAGE_MAX_SIDE);
    const int64_t y0 = MAX(top, 0), y1 = MIN(top + out->height, image->height);
    const int64_t x0 = MAX(left, 0), x1 = MIN(left + out->width, image->width);
    if (y1 - y0 < out->height || x1 - x0 < out->width)
        transforms_fill_all(out, fill);
    if (y0 < y1 && x0 < x1) {
        ctrt_image to, from;
        crop(&to, out, y0 - top, x0 - left, y1 - y0, x1 - x0);
        crop(&from, image, y0, x0, y1 - y0, x1 - x0);
        copy_all(&to, &from);
    }
    return CTRT_OK;
}

ctrt_status ctrt_image_random_crop(const ctrt_image *out, const ctrt_image *image, int64_t padding, double fill,
                                   ctrt_sample_random *random)
{
    CTRT_TRY(image_check_pair("image_random_crop", out, image));
    NULL_CHECK("image_random_crop", random);
    if (padding < 0 || padding > IMAGE_MAX_SIDE)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "image_random_crop: padding is %lld, expected 0 to %d",
                         (long long)padding, IMAGE_MAX_SIDE);
    const int64_t rows = image->height + 2 * padding - out->height, columns = image->width + 2 * padding - out->width;
    if (rows < 0 || columns < 0)
        return ctrt_fail(CTRT_ERR_SHAPE, "image_random_crop: a part of %lldx%lld is larger than the image of %lldx%lld "
                         "with %lld pixels of padding", (long long)out->height, (long long)out->width,
                         (long long)image->height, (long long)image->width, (long long)padding);
    const int64_t top = (int64_t)ctrt_sample_random_below(random, (uint64_t)rows + 1) - padding;
    const int64_t left = (int64_t)ctrt_sample_random_below(random, (uint64_t)columns + 1) - padding;
    return ctrt_context(ctrt_image_copy(out, image, top, left, fill), "image_random_crop");
}

/* Converts one channel: (value - mean) / std. Each of the 256 values of a byte is computed once. */
static void to_float_u8(const ctrt_image *out, const ctrt_image *image, int64_t c, float mean, float std)
{
    float of_byte[256];
    for (int i = 0; i < 256; i++)
        of_byte[i] = ((float)i / 255 - mean) / std;
    for (int64_t y = 0; y < out->height; y++) {
        float *restrict to = (float *)out->pixels + c * out->channel_stride + y * out->row_stride;
        const unsigned char *restrict from
            = (const unsigned char *)image->pixels + c * image->channel_stride + y * image->row_stride;
        const int64_t step = out->column_stride, from_step = image->column_stride;
        if (step == 1)
            for (int64_t x = 0; x < out->width; x++)
                to[x] = of_byte[from[x * from_step]];
        else
            for (int64_t x = 0; x < out->width; x++)
                to[x * step] = of_byte[from[x * from_step]];
    }
}

static void to_float_f32(const ctrt_image *out, const ctrt_image *image, int64_t c, float mean, float std)
{
    for (int64_t y = 0; y < out->height; y++) {
        float *to = (float *)out->pixels + c * out->channel_stride + y * out->row_stride;
        const float *from = (const float *)image->pixels + c * image->channel_stride + y * image->row_stride;
        const int64_t step = out->column_stride, from_step = image->column_stride;
        for (int64_t x = 0; x < out->width; x++)
            to[x * step] = (from[x * from_step] - mean) / std;
    }
}

ctrt_status ctrt_image_to_float(const ctrt_image *out, const ctrt_image *image, const float *mean, const float *std)
{
    CTRT_TRY(image_check("image_to_float", "out", out));
    CTRT_TRY(image_check("image_to_float", "image", image));
    if (out->dtype != CTRT_F32 || out->channels != image->channels)
        return ctrt_fail(out->dtype != CTRT_F32 ? CTRT_ERR_DTYPE : CTRT_ERR_SHAPE, "image_to_float: out is %s with "
                         "%lld channels, expected f32 with %lld", ctrt_dtype_name(out->dtype),
                         (long long)out->channels, (long long)image->channels);
    CTRT_TRY(check_same_size("image_to_float", out, image));
    const bool normalise = mean != NULL && std != NULL;
    for (int64_t c = 0; c < out->channels; c++) {
        const float m = normalise ? mean[c] : 0, s = normalise ? std[c] : 1;
        if (s == 0)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "image_to_float: std[%lld] is 0", (long long)c);
        (image->dtype == CTRT_U8 ? to_float_u8 : to_float_f32)(out, image, c, m, s);
    }
    return CTRT_OK;
}

ctrt_status ctrt_image_to_gray(const ctrt_image *out, const ctrt_image *image)
{
    CTRT_TRY(image_check("image_to_gray", "out", out));
    CTRT_TRY(image_check("image_to_gray", "image", image));
    if (out->dtype != image->dtype)
        return ctrt_fail(CTRT_ERR_DTYPE, "image_to_gray: out is %s and image is %s", ctrt_dtype_name(out->dtype),
                         ctrt_dtype_name(image->dtype));
    if (out->channels != 1 || image->channels != 3)
        return ctrt_fail(CTRT_ERR_SHAPE, "image_to_gray: out has %lld channels and image %lld, expected 1 and 3",
                         (long long)out->channels, (long long)image->channels);
    CTRT_TRY(check_same_size("image_to_gray", out, image));
    const int64_t green = image->channel_stride, blue = 2 * green;
    for (int64_t y = 0; y < out->height; y++)
        for (int64_t x = 0; x < out->width; x++) {
            const int64_t to = y * out->row_stride + x * out->column_stride;
            if (out->dtype == CTRT_U8) {
                const unsigned char *p = pixel_at(image, y, x);
                ((unsigned char *)out->pixels)[to]
                    = (unsigned char)((p[0] * 19595u + p[green] * 38470u + p[blue] * 7471u + 0x8000u) >> 16);
            } else {
                const float *p = pixel_at(image, y, x);
                ((float *)out->pixels)[to] = 0.299f * p[0] + 0.587f * p[green] + 0.114f * p[blue];
            }
        }
    return CTRT_OK;
}
