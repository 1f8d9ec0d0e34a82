/* SPDX-License-Identifier: Apache-2.0 */
/* data/image_sample.c: from a decoded image to the sample of a dataset of images. */
#include "base/base.h"
#include "base/host_alloc.h"
#include "data/image.h"

ctrt_status image_options_check(ctrt_image_options *options, const char *what, int channels, int64_t height,
                                int64_t width)
{
    ctrt_image_options *o = options;
    o->height = o->height != 0 ? o->height : height;
    o->width = o->width != 0 ? o->width : width;
    o->dtype = o->dtype != CTRT_DTYPE_DEFAULT ? o->dtype : CTRT_F32;
    if (o->height < 1 || o->width < 1 || o->height > IMAGE_MAX_SIDE || o->width > IMAGE_MAX_SIDE)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: height %lld and width %lld of the samples: expected 1 to %d%s",
                         what, (long long)o->height, (long long)o->width, IMAGE_MAX_SIDE,
                         height == 0 ? "; a folder of images has no size of its own" : "");
    if (o->dtype != CTRT_F32 && o->dtype != CTRT_U8)
        return ctrt_fail(CTRT_ERR_DTYPE, "%s: samples of dtype %s, expected f32 or u8", what,
                         ctrt_dtype_name(o->dtype));
    if (channels != 0 && o->channels != 0 && o->channels != channels)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %d channels; the file's images have %d", what, o->channels,
                         channels);
    o->channels = channels != 0 ? channels : o->channels != 0 ? o->channels : 3;
    if (o->channels != 1 && o->channels != 3)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %d channels, expected 3 or 1", what, o->channels);
    for (int c = 0; c < o->channels; c++)
        if (o->std[0] != 0 && !(o->std[c] != 0))
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: std[%d] is 0", what, c);
    return CTRT_OK;
}

void image_fields(ctrt_field fields[2], const ctrt_image_options *options)
{
    fields[0] = (ctrt_field){ .name = "image", .dtype = options->dtype, .ndim = 3,
                              .shape = { options->channels, options->height, options->width } };
    fields[1] = (ctrt_field){ .name = "label", .dtype = CTRT_I64 };
}

/* Converts an image to a sample if the program has set no transform. */
static ctrt_status image_sample_convert(const ctrt_image *out, const ctrt_image *image,
                                        const ctrt_image_options *options)
{
    const bool normalise = options->std[0] != 0;
    const float *mean = normalise ? options->mean : NULL, *std = normalise ? options->std : NULL;
    if (image->height == out->height && image->width == out->width)
        return out->dtype == CTRT_U8 ? ctrt_image_copy(out, image, 0, 0, 0)
                                     : ctrt_image_to_float(out, image, mean, std);
    if (out->dtype == CTRT_U8)
        return ctrt_image_resize(out, image, true);
    const size_t bytes = (size_t)(out->channels * out->height * out->width);
    HOST_AUTO void *pixels = host_alloc(bytes);
    ALLOC_CHECK(pixels, bytes, "a resized image");
    const ctrt_image resized = ctrt_image_hwc(pixels, CTRT_U8, out->height, out->width, out->channels);
    CTRT_TRY(ctrt_image_resize(&resized, image, true));
    return ctrt_image_to_float(out, &resized, mean, std);
}

ctrt_status image_sample(ctrt_sample *sample, const ctrt_image_options *options, const ctrt_image *image)
{
    const ctrt_image out = ctrt_image_chw(sample->out[0], options->dtype, options->channels, options->height,
                                          options->width);
    return options->transform != NULL ? options->transform(&out, image, &sample->random, options->user)
                                      : image_sample_convert(&out, image, options);
}
