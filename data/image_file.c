/* SPDX-License-Identifier: Apache-2.0 */
/* data/image_file.c: reads image files, with plugins for all formats but PPM and PGM. */
#include <stdatomic.h>
#include <strings.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "ctrt/image_plugin.h"
#include "ctrt/ops.h"
#include "data/image.h"
#include "data/mapped_file.h"
#include "device/device.h"
#include "registry/registry.h"

/* The formats that are recognized. `magic` is at byte `at` of the file. `name`: the plugin's name; "" for pnm.c. */
static struct format {
    const char *name, *magic;
    size_t at, length;
    const ctrt_image_codec *_Atomic codec;      /* NULL: not looked up yet */
} formats[] = {
    { "", "P5", 0, 2, NULL },
    { "", "P6", 0, 2, NULL },
    { "jpeg", "\xff\xd8\xff", 0, 3, NULL },
    { "png", "\x89PNG\r\n\x1a\n", 0, 8, NULL },
    { "webp", "WEBP", 8, 4, NULL },
    { "tiff", "II*\0", 0, 4, NULL },
    { "tiff", "MM\0*", 0, 4, NULL },
    { "bmp", "BM", 0, 2, NULL },
};

static ctrt_status find_format(struct format **out, const struct mapped_file *file)
{
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        struct format *f = &formats[i];
        if (file->size >= f->at + f->length && memcmp(file->bytes + f->at, f->magic, f->length) == 0) {
            *out = f;
            return CTRT_OK;
        }
    }
    char begin[40] = "nothing";
    for (size_t i = 0; i < MIN(file->size, 8); i++)
        snprintf(begin + 3 * i, sizeof begin - 3 * i, "%02x ", file->bytes[i]);
    return ctrt_fail(CTRT_ERR_FORMAT, "no known image format: the file begins with %s; expected PPM, PGM, JPEG, PNG, "
                     "WebP, TIFF or BMP", begin);
}

static ctrt_status find_codec(const ctrt_image_codec **out, struct format *format)
{
    *out = atomic_load_explicit(&format->codec, memory_order_acquire);
    if (*out != NULL)
        return CTRT_OK;
    const struct component *component = NULL;
    CTRT_TRY(ctrt_context(registry_use(&component, CTRT_COMPONENT_IMAGE, format->name),
                          "the format %s needs the plugin image-%s", format->name, format->name));
    *out = component->table;
    atomic_store_explicit(&format->codec, *out, memory_order_release);
    return CTRT_OK;
}

/* Copies the pixels so that the image is upright. Of the orientations (Exif 2.32, 4.6.4), 2 to 4 are mirrored or
 * rotated by 180 degrees; 5 to 8 also have rows and columns exchanged. */
static ctrt_status turn_upright(ctrt_image *image, int orientation)
{
    const bool columns = orientation >= 5, from_bottom = orientation == 3 || orientation == 4 || orientation == 6
                                                         || orientation == 7;
    const bool from_right = orientation == 2 || orientation == 3 || orientation >= 7;
    const int64_t height = image->height, width = image->width;
    const unsigned char *from = image->pixels;
    unsigned char *rgb = host_alloc((size_t)(height * width * 3)), *to = rgb;
    ALLOC_CHECK(rgb, (size_t)(height * width * 3), "the pixels of an image");
    for (int64_t y = 0; y < (columns ? width : height); y++)
        for (int64_t x = 0; x < (columns ? height : width); x++, to += 3) {
            const int64_t row = columns ? x : y, column = columns ? y : x;
            const int64_t at = (from_bottom ? height - 1 - row : row) * width
                               + (from_right ? width - 1 - column : column);
            memcpy(to, from + 3 * at, 3);
        }
    host_free(image->pixels);
    *image = ctrt_image_hwc(rgb, CTRT_U8, columns ? width : height, columns ? height : width, 3);
    return CTRT_OK;
}

static ctrt_status image_file_decode(ctrt_image *out, const struct mapped_file *file, const ctrt_image_options *options)
{
    struct format *format = NULL;
    const ctrt_image_codec *codec = NULL;
    ctrt_image_info info = { .size = sizeof info, .bits = 8 };
    int bits = 8;
    CTRT_TRY(find_format(&format, file));
    if (format->name[0] != '\0') {
        CTRT_TRY(find_codec(&codec, format));
        CTRT_TRY(codec->describe(&info, file->bytes, file->size));
    } else {
        CTRT_TRY(pnm_decode(NULL, &info.height, &info.width, &bits, file->bytes, file->size));
        info.bits = bits;
    }
    if (info.bits > 8 && !options->reduce_depth)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "values of %d bits; images have 8. Set options.reduce_depth (of "
                         "ctrt_image_options) to read them with 8 bits", info.bits);
    if (info.height < 1 || info.width < 1 || info.height > IMAGE_MAX_PIXELS / info.width)
        return ctrt_fail(CTRT_ERR_FORMAT, "an image of %lldx%lld (width x height); the largest has %lld pixels",
                         (long long)info.width, (long long)info.height, (long long)IMAGE_MAX_PIXELS);
    const size_t bytes = (size_t)(info.height * info.width * 3);
    unsigned char *rgb = host_alloc(bytes);
    ALLOC_CHECK(rgb, bytes, "the pixels of an image");
    ctrt_status status = codec != NULL
                             ? codec->decode(rgb, &info, file->bytes, file->size)
                             : pnm_decode(rgb, &info.height, &info.width, &bits, file->bytes, file->size);
    if (status != CTRT_OK) {
        host_free(rgb);
        return status;
    }
    *out = ctrt_image_hwc(rgb, CTRT_U8, info.height, info.width, 3);
    const int orientation = options->exif_orientation ? exif_orientation(file->bytes, file->size) : 1;
    if (orientation == 1)
        return CTRT_OK;
    status = turn_upright(out, orientation);
    if (status != CTRT_OK)
        host_free(rgb);
    return status;
}

ctrt_status image_file_read(ctrt_image *out, const char *path, const ctrt_image_options *options)
{
    struct mapped_file file = { 0 };
    CTRT_TRY(mapped_file_open(&file, path));
    const ctrt_status status = ctrt_context(image_file_decode(out, &file, options), "%.500s", path);
    mapped_file_close(&file);
    return status;
}

/* ---- decoders that are missing ---- */

static bool has_decoder(const char *name)
{
    const struct component *component = NULL;
    return name[0] == '\0' || registry_find(&component, CTRT_COMPONENT_IMAGE, name) == CTRT_OK;
}

ctrt_status image_file_lacks_decoder(const char **name, const char *path, const char *extension)
{
    static const struct { const char *extension, *name; } extensions[] = {
        { ".jpg", "jpeg" }, { ".jpeg", "jpeg" }, { ".png", "png" }, { ".ppm", "" },   { ".pgm", "" },
        { ".bmp", "bmp" },  { ".tif", "tiff" },  { ".tiff", "tiff" }, { ".webp", "webp" },
    };
    *name = "";
    for (size_t i = 0; i < COUNT_OF(extensions); i++)
        if (strcasecmp(extensions[i].extension, extension) == 0 && has_decoder(extensions[i].name))
            return CTRT_OK;
    struct mapped_file file = { 0 };
    struct format *format = NULL;
    CTRT_TRY(mapped_file_open(&file, path));
    ctrt_status status = ctrt_context(find_format(&format, &file), "%.500s", path);
    mapped_file_close(&file);
    if (status == CTRT_OK && !has_decoder(format->name))
        *name = format->name;
    return status;
}

/* ---- one image ---- */

ctrt_status ctrt_read_image(ctrt_tensor **out, const char *path, int channels)
{
    if (channels != 1 && channels != 3)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "read_image: %d channels, expected 3 or 1", channels);
    return ctrt_read_image_with(out, path, &CTRT_WITH(ctrt_image_options, .channels = channels));
}

ctrt_status ctrt_read_image_with(ctrt_tensor **out, const char *path, const ctrt_image_options *options)
{
    if (out == NULL || path == NULL || options == NULL)
        return fail_null("read_image", out == NULL ? "out" : path == NULL ? "path" : "options");
    ctrt_image_options own = CTRT_IMAGE_OPTIONS;
    CTRT_TRY(struct_read(&own, sizeof own, options, "read_image", "options"));
    options = &own;
    const int channels = options->channels != 0 ? options->channels : 3;
    if (channels != 1 && channels != 3)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "read_image: %d channels, expected 3 or 1", channels);
    if (options->height != 0 || options->width != 0 || options->transform != NULL || options->std[0] != 0
        || (options->dtype != CTRT_DTYPE_DEFAULT && options->dtype != CTRT_U8))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "read_image: only the options channels, reduce_depth and "
                         "exif_orientation can be set");
    ctrt_device *cpu = NULL;
    ctrt_image image = { 0 };
    CTRT_AUTO(tensor) tensor = NULL;
    CTRT_TRY(device_cpu(&cpu));
    CTRT_TRY(image_file_read(&image, path, options));
    /* Converts in place: no pixel is written before it was read. */
    const ctrt_image gray = ctrt_image_hwc(image.pixels, CTRT_U8, image.height, image.width, 1);
    ctrt_status status = channels == 1 ? ctrt_image_to_gray(&gray, &image) : CTRT_OK;
    if (status == CTRT_OK)
        status = ctrt_from_data(&tensor, image.pixels, image.height * image.width * channels,
                                CTRT_SHAPE(image.height, image.width, channels), CTRT_U8, cpu);
    host_free(image.pixels);
    if (status == CTRT_OK)
        status = ctrt_permute(&tensor, tensor, CTRT_DIMS(2, 0, 1));
    return status == CTRT_OK ? ctrt_contiguous(out, tensor, CTRT_CONTIGUOUS_FORMAT) : status;
}
