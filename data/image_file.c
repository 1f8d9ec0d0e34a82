/* SPDX-License-Identifier: Apache-2.0 */
/* data/image_file.c: reads image files, with plugins for all formats but PPM and PGM. */
#include <stdatomic.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "ctrt/image_plugin.h"
#include "ctrt/ops.h"
#include "data/image.h"
#include "data/mapped_file.h"
#include "registry/registry.h"

/* The formats that are recognized: `magic` is at byte `at` of the file. `name`: of the plugin; "" for pnm.c. */
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

static ctrt_status decode(ctrt_image *out, const struct mapped_file *file)
{
    struct format *format = NULL;
    const ctrt_image_codec *codec = NULL;
    ctrt_image_info info = { .size = sizeof info };
    CTRT_TRY(find_format(&format, file));
    if (format->name[0] != '\0') {
        CTRT_TRY(find_codec(&codec, format));
        CTRT_TRY(codec->describe(&info, file->bytes, file->size));
    } else {
        CTRT_TRY(pnm_decode(NULL, &info.height, &info.width, file->bytes, file->size));
    }
    if (info.height < 1 || info.width < 1 || info.height > IMAGE_MAX_PIXELS / info.width)
        return ctrt_fail(CTRT_ERR_FORMAT, "an image of %lldx%lld (width x height); the largest has %lld pixels",
                         (long long)info.width, (long long)info.height, (long long)IMAGE_MAX_PIXELS);
    const size_t bytes = (size_t)(info.height * info.width * 3);
    unsigned char *rgb = host_alloc(bytes);
    if (rgb == NULL)
        return out_of_memory(bytes, "the pixels of an image");
    const ctrt_status status = codec != NULL
                                   ? codec->decode(rgb, &info, file->bytes, file->size)
                                   : pnm_decode(rgb, &info.height, &info.width, file->bytes, file->size);
    if (status != CTRT_OK) {
        host_free(rgb);
        return status;
    }
    *out = ctrt_image_hwc(rgb, CTRT_U8, info.height, info.width, 3);
    return CTRT_OK;
}

ctrt_status image_file_read(ctrt_image *out, const char *path)
{
    struct mapped_file file = { 0 };
    CTRT_TRY(mapped_file_open(&file, path));
    const ctrt_status status = ctrt_context(decode(out, &file), "%.500s", path);
    mapped_file_close(&file);
    return status;
}

ctrt_status ctrt_read_image(ctrt_tensor **out, const char *path, int channels)
{
    if (out == NULL || path == NULL)
        return fail_null("read_image", out == NULL ? "out" : "path");
    if (channels != 1 && channels != 3)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "read_image: %d channels, expected 3 or 1", channels);
    ctrt_device *cpu = NULL;
    ctrt_image image = { 0 };
    CTRT_AUTO(tensor) tensor = NULL;
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    CTRT_TRY(image_file_read(&image, path));
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
