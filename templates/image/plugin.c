/* SPDX-License-Identifier: Apache-2.0 */
/* Decoder of image files, format `template`. The code reads uncompressed BMP files of 24 and 32 bits; replace it by
 * that of the format, perhaps by calls of a library.
 *
 * The library recognizes the formats bmp, jpeg, png, tiff and webp by their first bytes, and looks for the plugin
 * image-FORMAT. The contract is ctrt/image_plugin.h: the functions are called from several threads, so they have no
 * variables in common, and every file may be malformed. The plugin does not link with libctrt. */
#include <ctrt/image_plugin.h>

static const ctrt_host *host;           /* the library's functions for plugins; set by init */

/* What the header of a file says. */
struct header {
    int64_t width, height;
    uint64_t pixels, row;               /* offset of the first row; bytes of a row */
    int channels;
    bool top_down;
};

static uint32_t number_at(const unsigned char *file, size_t at, int bytes)
{
    uint32_t value = 0;
    for (int i = bytes; i-- > 0;)
        value = value << 8 | file[at + (size_t)i];
    return value;
}

/* Reads and validates the header, so that `decode` can use its numbers without further checks. */
static ctrt_status header_read(struct header *h, const unsigned char *file, size_t bytes)
{
    if (bytes < 54 || file[0] != 'B' || file[1] != 'M')
        return host->fail(CTRT_ERR_FORMAT, "no header of a BMP file: it has %zu bytes, and needs 54", bytes);
    const int32_t width = (int32_t)number_at(file, 18, 4), height = (int32_t)number_at(file, 22, 4);
    const uint32_t bits = number_at(file, 28, 2), compression = number_at(file, 30, 4);
    if (width <= 0 || height == 0 || height == INT32_MIN)
        return host->fail(CTRT_ERR_FORMAT, "a BMP file of %d x %d pixels", (int)width, (int)height);
    if ((bits != 24 && bits != 32) || compression != 0)
        return host->fail(CTRT_ERR_NOT_SUPPORTED, "a BMP file with %u bits and compression %u: only 24 and 32 bits "
                          "without compression are read", (unsigned)bits, (unsigned)compression);
    *h = (struct header){ .width = width, .height = height < 0 ? -(int64_t)height : height, .top_down = height < 0,
                          .channels = (int)bits / 8, .pixels = number_at(file, 10, 4) };
    h->row = ((uint64_t)h->width * (uint64_t)h->channels + 3) / 4 * 4;
    if (h->pixels > bytes || (bytes - h->pixels) / h->row < (uint64_t)h->height)
        return host->fail(CTRT_ERR_FORMAT, "the file is truncated: %zu bytes for %lld x %lld pixels", bytes,
                          (long long)h->width, (long long)h->height);
    return CTRT_OK;
}

/* Writes the size only, and opens nothing: the library calls it to allocate the memory for `decode`. */
static ctrt_status describe(ctrt_image_info *info, const void *file, size_t bytes)
{
    struct header h;
    CTRT_TRY(header_read(&h, file, bytes));
    info->width = h.width;
    info->height = h.height;
    return CTRT_OK;
}

/* Writes red, green and blue of all pixels, from the top. `info` is what describe wrote for this file. */
static ctrt_status decode(void *rgb, const ctrt_image_info *info, const void *file, size_t bytes)
{
    struct header h;
    unsigned char *out = rgb;
    (void)info;
    CTRT_TRY(header_read(&h, file, bytes));
    for (int64_t y = 0; y < h.height; y++) {
        const int64_t row = h.top_down ? y : h.height - 1 - y;
        const unsigned char *from = (const unsigned char *)file + h.pixels + (uint64_t)row * h.row;
        for (int64_t x = 0; x < h.width; x++, from += h.channels, out += 3)
            out[0] = from[2], out[1] = from[1], out[2] = from[0];
    }
    return CTRT_OK;
}

/* ---- the plugin ---- */

static const ctrt_image_codec codec = { .size = sizeof(ctrt_image_codec), .describe = describe, .decode = decode };

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_IMAGE, .name = "template", .table = &codec },
};

static ctrt_status init(const ctrt_host *lent)
{
    host = lent;
    return CTRT_OK;
}

CTRT_PLUGIN_DEFINE("image-template", "1.0", "decoder of template files", components, init)
