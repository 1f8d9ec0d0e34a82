/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/transforms.h: images in host memory: reading image files, crop, flip, resize, normalise.
 *
 * The functions work on pixels and not on tensors, so that a dataset writes a sample directly into the batch. Crops and
 * flips copy nothing: their result is another view of the same pixels. Each random transform takes the random stream of
 * a sample (ctrt/data.h), so its result does not depend on the number of workers. A transform for training:
 *
 *     ctrt_image view;
 *     CTRT_TRY(ctrt_image_random_resized_crop(&view, image, NULL, random));
 *     CTRT_TRY(ctrt_image_random_hflip(&view, &view, 0.5, random));
 *     CTRT_TRY(ctrt_image_resize(&small, &view, true));
 *     CTRT_TRY(ctrt_image_to_float(out, &small, mean, std));
 *
 * The semantics are those of torchvision's functions of the same names. All functions are thread-safe.
 *
 * Errors of all functions: CTRT_ERR_INVALID_ARGUMENT for NULL, sizes below 1 and numbers out of range, CTRT_ERR_DTYPE
 * for other dtypes than u8 and f32, CTRT_ERR_SHAPE for sizes that do not fit together. */
#ifndef CTRT_TRANSFORMS_H
#define CTRT_TRANSFORMS_H

#include "ctrt/data.h"

CTRT_BEGIN_DECLS

/* A view of an image in memory that the caller owns: element (c, y, x) is at pixels[c * channel_stride + y *
 * row_stride + x * column_stride]. The strides count elements and may be negative. u8 pixels are 0 to 255. */
typedef struct ctrt_image {
    void *pixels;
    ctrt_dtype dtype;                   /* CTRT_U8 or CTRT_F32 */
    int64_t channels, height, width;
    int64_t channel_stride, row_stride, column_stride;
} ctrt_image;

/* Return a view of pixels without gaps: channel by channel, as in a tensor (C, H, W), or pixel by pixel, as image
 * files are decoded (H, W, C). */
CTRT_API ctrt_image ctrt_image_chw(void *pixels, ctrt_dtype dtype, int64_t channels, int64_t height, int64_t width);
CTRT_API ctrt_image ctrt_image_hwc(void *pixels, ctrt_dtype dtype, int64_t height, int64_t width, int64_t channels);

/* A transform of the program, for datasets of images: reads `image` and writes all elements of `out`, which has the
 * size and dtype that the dataset was created with. */
typedef ctrt_status (*ctrt_image_function)(const ctrt_image *out, const ctrt_image *image, ctrt_sample_random *random,
                                           void *user);

/* ---- views ------------------------------------------------------------------------------------------------------- */

/* Make *view the part of `image` that begins at row `top` and column `left`, or the image mirrored left to right or top
 * to bottom. `view` may be `image`. A crop that is not inside the image is CTRT_ERR_SHAPE. center_crop takes the
 * middle, as torchvision's for images that are large enough. */
CTRT_API ctrt_status ctrt_image_crop(ctrt_image *view, const ctrt_image *image, int64_t top, int64_t left,
                                     int64_t height, int64_t width);
CTRT_API ctrt_status ctrt_image_center_crop(ctrt_image *view, const ctrt_image *image, int64_t height, int64_t width);
CTRT_API ctrt_status ctrt_image_hflip(ctrt_image *view, const ctrt_image *image);
CTRT_API ctrt_status ctrt_image_vflip(ctrt_image *view, const ctrt_image *image);

/* Flip with probability `p`, which is 0 to 1; otherwise *view is `image`. */
CTRT_API ctrt_status ctrt_image_random_hflip(ctrt_image *view, const ctrt_image *image, double p,
                                             ctrt_sample_random *random);
CTRT_API ctrt_status ctrt_image_random_vflip(ctrt_image *view, const ctrt_image *image, double p,
                                             ctrt_sample_random *random);

/* Limits of a random part of an image. */
typedef struct ctrt_random_crop_options {
    size_t initialized;                 /* the size; CTRT_RANDOM_CROP_OPTIONS sets it */
    double scale[2];                    /* smallest and largest part of the area [0.08, 1] */
    double ratio[2];                    /* smallest and largest ratio of width to height [3/4, 4/3] */
} ctrt_random_crop_options;
#define CTRT_RANDOM_CROP_OPTIONS { sizeof(ctrt_random_crop_options), { 0.08, 1 }, { 3.0 / 4, 4.0 / 3 } }

/* Makes *view a part of random size, ratio and place: torchvision's RandomResizedCrop without its resize, which
 * ctrt_image_resize does. `options` NULL: the defaults. */
CTRT_API ctrt_status ctrt_image_random_resized_crop(ctrt_image *view, const ctrt_image *image,
                                                    const ctrt_random_crop_options *options,
                                                    ctrt_sample_random *random);

/* ---- pixels ------------------------------------------------------------------------------------------------------
 *
 * These write `out`, which must not overlap `image` unless noted, and has the same number of channels. */

/* Copies the part of `image` that has the size of `out` and begins at (top, left), which may be negative or reach over
 * the borders: pixels outside of the image are `fill` (0 to 255 for u8). The dtypes must be equal. */
CTRT_API ctrt_status ctrt_image_copy(const ctrt_image *out, const ctrt_image *image, int64_t top, int64_t left,
                                     double fill);
/* Copies a random part with the size of `out` of the image with `padding` more pixels of value `fill` on each side. */
CTRT_API ctrt_status ctrt_image_random_crop(const ctrt_image *out, const ctrt_image *image, int64_t padding,
                                            double fill, ctrt_sample_random *random);
/* Resizes to the size of `out`, bilinear with align_corners=False. With `antialias`, each result is a weighted mean of
 * all pixels that it covers, which matters when the size decreases (torchvision's default); without, of the four
 * nearest ones. The dtypes must be equal; u8 results are rounded. CTRT_ERR_OUT_OF_MEMORY. */
CTRT_API ctrt_status ctrt_image_resize(const ctrt_image *out, const ctrt_image *image, bool antialias);
/* Converts to f32: u8 pixels are divided by 255. Then, if `mean` and `std` are not NULL, subtracts mean[c] and divides
 * by std[c], which must not be 0. `out` is f32 and has the size of `image`; it may be `image` itself. */
CTRT_API ctrt_status ctrt_image_to_float(const ctrt_image *out, const ctrt_image *image, const float *mean,
                                         const float *std);
/* Converts three channels (red, green, blue) to one, of the same dtype: 0.299 R + 0.587 G + 0.114 B, for u8 with PIL's
 * rounding. An exception to the rule above: `out` has one channel. */
CTRT_API ctrt_status ctrt_image_to_gray(const ctrt_image *out, const ctrt_image *image);

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Reads an image file into a tensor u8 (channels, H, W) of the cpu, as torchvision.io.read_image. `channels`: 3 or 1.
 *
 * Formats: PPM and PGM (binary); JPEG and PNG by the plugins image-jpeg and image-png; others by
 * plugins of the program (ctrt/image_plugin.h). The format is recognized by the first bytes, not by the name. Errors:
 * CTRT_ERR_IO, CTRT_ERR_FORMAT (malformed or truncated), CTRT_ERR_NOT_SUPPORTED (values of 16 bits, which
 * ctrt_read_image_with can read with 8), CTRT_ERR_NOT_FOUND (no plugin for the format), each with the name of the
 * file. */
CTRT_API ctrt_status ctrt_read_image(ctrt_tensor **out, const char *path, int channels);

CTRT_END_DECLS

#endif
