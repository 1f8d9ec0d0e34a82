/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/image/png.c: PNG images by the simplified API of libpng, opened when the plugin is first looked at. */
#include <dlfcn.h>
#include <png.h>
#include <stdio.h>
#include <string.h>

#include "config.h"
#include "ctrt/image_plugin.h"

#define IHDR_DEPTH 24                   /* place of the bits of a value, in the first chunk (PNG, 11.2.1) */

static const ctrt_host *host;

/* The functions of the library. */
static struct {
    int (*begin)(png_imagep, png_const_voidp, size_t);
    int (*finish)(png_imagep, png_const_colorp, void *, png_int_32, void *);
    void (*free)(png_imagep);
} png;

/* Called once, before all other functions. */
static int32_t png_probe(char *reason, size_t bytes)
{
    void *library = dlopen(CTRT_PNG_SONAME, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL || (*(void **)&png.begin = dlsym(library, "png_image_begin_read_from_memory")) == NULL
        || (*(void **)&png.finish = dlsym(library, "png_image_finish_read")) == NULL
        || (*(void **)&png.free = dlsym(library, "png_image_free")) == NULL) {
        snprintf(reason, bytes, "%s", dlerror());
        return 0;
    }
    return 1;
}

static ctrt_status fail(png_image *image)
{
    png.free(image);
    return host->fail(CTRT_ERR_FORMAT, "%s (libpng)", image->message);
}

static ctrt_status png_describe(ctrt_image_info *info, const void *file, size_t bytes)
{
    png_image image = { .version = PNG_IMAGE_VERSION };
    if (!png.begin(&image, file, bytes))
        return fail(&image);
    info->height = image.height, info->width = image.width;
    if (info->size >= sizeof *info && ((const unsigned char *)file)[IHDR_DEPTH] == 16)
        info->bits = 16;
    png.free(&image);
    return CTRT_OK;
}

/* libpng would blend transparent pixels with a background. To drop the transparency, as PIL does, read it and leave it
 * out. Values of 16 bits are taken to be sRGB, as those of 8 bits. */
static ctrt_status png_decode(void *rgb, const ctrt_image_info *info, const void *file, size_t bytes)
{
    png_image image = { .version = PNG_IMAGE_VERSION };
    if (!png.begin(&image, file, bytes))
        return fail(&image);
    if (image.height != info->height || image.width != info->width) {
        png.free(&image);
        return host->fail(CTRT_ERR_FORMAT, "the PNG file has changed");
    }
    const bool transparent = (image.format & PNG_FORMAT_FLAG_ALPHA) != 0;
    const size_t pixels = (size_t)image.height * image.width;
    image.format = transparent ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB;
    image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
    unsigned char *rgba = transparent ? host->alloc(pixels * 4) : rgb, *out = rgb;
    if (rgba == NULL) {
        png.free(&image);
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "out of memory: %zu bytes for a PNG image", pixels * 4);
    }
    const bool complete = png.finish(&image, NULL, rgba, 0, NULL) != 0;
    for (size_t i = 0; complete && transparent && i < pixels; i++)
        memcpy(out + 3 * i, rgba + 4 * i, 3);
    if (transparent)
        host->free(rgba);
    return complete ? CTRT_OK : fail(&image);
}

static ctrt_status init(const ctrt_host *table)
{
    host = table;
    return CTRT_OK;
}

static const ctrt_image_codec codec = { .size = sizeof codec, .describe = png_describe, .decode = png_decode };
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_IMAGE, .name = "png", .table = &codec,
     .probe = png_probe },
};

CTRT_PLUGIN_DEFINE("image-png", PACKAGE_VERSION, "PNG images by libpng", components, init)
