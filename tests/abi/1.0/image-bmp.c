/* SPDX-License-Identifier: Apache-2.0 */
/* image-bmp.c: an image decoder for ABI 1.0: BMP with 24 bits per pixel. */
#include <ctrt/image_plugin.h>

static const ctrt_host *host;

static int32_t word(const uint8_t *at)
{
    return (int32_t)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}

static ctrt_status describe(ctrt_image_info *info, const void *file, size_t bytes)
{
    const uint8_t *head = file;
    if (bytes < 54 || word(head + 18) < 1 || word(head + 22) < 1)
        return host->fail(CTRT_ERR_FORMAT, "not a BMP file");
    if (head[28] != 24)
        return host->fail(CTRT_ERR_NOT_SUPPORTED, "a BMP file with %d bits per pixel", head[28]);
    info->width = word(head + 18);
    info->height = word(head + 22);
    return CTRT_OK;
}

static ctrt_status decode(void *rgb, const ctrt_image_info *info, const void *file, size_t bytes)
{
    const size_t row = ((size_t)info->width * 3 + 3) / 4 * 4, begin = (size_t)word((const uint8_t *)file + 10);
    uint8_t *out = rgb;
    if (bytes < begin || (bytes - begin) / row < (size_t)info->height)
        return host->fail(CTRT_ERR_FORMAT, "the BMP file is truncated");
    for (int64_t y = 0; y < info->height; y++)
        for (int64_t x = 0; x < info->width; x++, out += 3) {
            const uint8_t *pixel = (const uint8_t *)file + begin + (size_t)(info->height - 1 - y) * row + x * 3;
            out[0] = pixel[2], out[1] = pixel[1], out[2] = pixel[0];
        }
    return CTRT_OK;
}

static const ctrt_image_codec codec = { .size = sizeof(ctrt_image_codec), .describe = describe, .decode = decode };

static ctrt_status init(const ctrt_host *the_host)
{
    host = the_host;
    return CTRT_OK;
}

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_IMAGE, .name = "bmp", .table = &codec },
};
CTRT_PLUGIN_DEFINE("image-bmp", "1.0", "an image decoder for ABI 1.0", components, init)
