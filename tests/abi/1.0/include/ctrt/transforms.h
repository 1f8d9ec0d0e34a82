/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_TRANSFORMS_H
#define CTRT_TRANSFORMS_H
#include "ctrt/data.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_image {
    void *pixels;
    ctrt_dtype dtype;
    int64_t channels, height, width;
    int64_t channel_stride, row_stride, column_stride;
} ctrt_image;
CTRT_API ctrt_image ctrt_image_chw(void *pixels, ctrt_dtype dtype, int64_t channels, int64_t height, int64_t width);
CTRT_API ctrt_image ctrt_image_hwc(void *pixels, ctrt_dtype dtype, int64_t height, int64_t width, int64_t channels);
typedef ctrt_status (*ctrt_image_function)(const ctrt_image *out, const ctrt_image *image, ctrt_sample_random *random,
                                           void *user);
CTRT_API ctrt_status ctrt_image_crop(ctrt_image *view, const ctrt_image *image, int64_t top, int64_t left,
                                     int64_t height, int64_t width);
CTRT_API ctrt_status ctrt_image_center_crop(ctrt_image *view, const ctrt_image *image, int64_t height, int64_t width);
CTRT_API ctrt_status ctrt_image_hflip(ctrt_image *view, const ctrt_image *image);
CTRT_API ctrt_status ctrt_image_vflip(ctrt_image *view, const ctrt_image *image);
CTRT_API ctrt_status ctrt_image_random_hflip(ctrt_image *view, const ctrt_image *image, double p,
                                             ctrt_sample_random *random);
CTRT_API ctrt_status ctrt_image_random_vflip(ctrt_image *view, const ctrt_image *image, double p,
                                             ctrt_sample_random *random);
typedef struct ctrt_random_crop_options {
    size_t initialized;
    double scale[2];
    double ratio[2];
} ctrt_random_crop_options;
#define CTRT_RANDOM_CROP_OPTIONS { sizeof(ctrt_random_crop_options), { 0.08, 1 }, { 3.0 / 4, 4.0 / 3 } }
CTRT_API ctrt_status ctrt_image_random_resized_crop(ctrt_image *view, const ctrt_image *image,
                                                    const ctrt_random_crop_options *options,
                                                    ctrt_sample_random *random);
CTRT_API ctrt_status ctrt_image_copy(const ctrt_image *out, const ctrt_image *image, int64_t top, int64_t left,
                                     double fill);
CTRT_API ctrt_status ctrt_image_random_crop(const ctrt_image *out, const ctrt_image *image, int64_t padding,
                                            double fill, ctrt_sample_random *random);
CTRT_API ctrt_status ctrt_image_resize(const ctrt_image *out, const ctrt_image *image, bool antialias);
CTRT_API ctrt_status ctrt_image_to_float(const ctrt_image *out, const ctrt_image *image, const float *mean,
                                         const float *std);
CTRT_API ctrt_status ctrt_image_to_gray(const ctrt_image *out, const ctrt_image *image);
CTRT_API ctrt_status ctrt_read_image(ctrt_tensor **out, const char *path, int channels);
CTRT_END_DECLS
#endif
