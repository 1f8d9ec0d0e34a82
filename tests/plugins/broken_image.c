/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/broken_image.c: a correct decoder of BMP images of 24 bits, which CTRT_BROKEN=DEFECT breaks, to test
 * that `ctrt check --contract` finds the defect. tests/integration/contract.sh lists the defects with the check that
 * has to find each. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctrt/image_plugin.h"

enum { HEADER = 54 };

static const ctrt_host *host;

static bool broken(const char *defect)
{
    const char *text = getenv("CTRT_BROKEN");
    return text != NULL && strcmp(text, defect) == 0;
}

static ctrt_status malformed(const char *what)
{
    if (broken("silent"))
        return CTRT_ERR_FORMAT;
    return host->fail(broken("status") ? CTRT_ERR_BACKEND : CTRT_ERR_FORMAT, broken("empty_message") ? "" : "%s", what);
}

static int64_t number(const unsigned char *file, size_t at, int bytes)
{
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint32_t)file[at + (size_t)i] << 8 * i;
    return bytes == 4 ? (int32_t)value : (int64_t)value;
}

static ctrt_status describe(ctrt_image_info *info, const void *contents, size_t bytes)
{
    const unsigned char *file = contents;
    if (!broken("header_unchecked") && bytes < HEADER)
        return malformed("no header");
    if (file[0] != 'B' || file[1] != 'M')
        return malformed("no BMP file");
    if (number(file, 28, 2) != 24 || number(file, 30, 4) != 0 || number(file, 10, 4) != HEADER)
        return host->fail(CTRT_ERR_NOT_SUPPORTED, "not 24 bits");
    info->width = number(file, 18, 4);
    info->height = number(file, 22, 4);
    if (broken("swapped")) {
        const int64_t width = info->width;
        info->width = info->height, info->height = width;
    }
    if (!broken("size_unchecked") && (info->width <= 0 || info->height <= 0))
        return malformed("no pixels");
    if (broken("bits"))
        info->bits = 24;
    if (broken("beyond_info"))
        info->bits = 8;
    if (broken("writes_file"))
        ((unsigned char *)file)[6] = 1;
    return CTRT_OK;
}

static unsigned char static_row[3 * 8192];

static ctrt_status decode(void *rgb, const ctrt_image_info *info, const void *contents, size_t bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pid_t owner;
    const unsigned char *file = contents;
    const int64_t row = 3 * info->width, padded = broken("padding") ? row : (row + 3) / 4 * 4;
    unsigned char *out = rgb;
    if (!broken("pixels_unchecked") && (int64_t)bytes - HEADER < padded * info->height) {
        if (broken("failure_leak"))
            (void)host->alloc(100);
        if (broken("truncated_grey")) {
            memset(rgb, 128, (size_t)(row * info->height));
            return CTRT_OK;
        }
        return malformed("truncated");
    }
    unsigned char *line = broken("static_row") ? static_row : host->alloc((size_t)row + 1);
    if (line == NULL && !broken("alloc_unchecked"))
        return host->fail(broken("alloc_status") ? CTRT_ERR_FORMAT : CTRT_ERR_OUT_OF_MEMORY, "no memory for a row");
    if (broken("process") && owner != 0 && owner != getpid())
        pthread_mutex_lock(&lock), pthread_mutex_lock(&lock);
    owner = getpid();
    for (int64_t y = 0; y < info->height; y++) {
        const int64_t from = broken("upside_down") ? y : info->height - 1 - y;
        for (int64_t i = 0; i < row; i++)
            line[i] = file[HEADER + from * padded + (broken("bgr") ? i : i / 3 * 3 + 2 - i % 3)];
        if (broken("static_row"))
            usleep(1);
        memcpy(out + y * row, line, (size_t)row);
    }
    if (broken("over_read"))
        line[0] = file[bytes];
    if (broken("over_write"))
        out[row * info->height] = 0;
    if (broken("last_column"))
        memset(out + row - 3, 0, 3);
    if (!broken("leak") && !broken("static_row"))
        host->free(line);
    if (broken("library_leak"))
        memset(malloc(40000), 1, 40000);
    return CTRT_OK;
}

static ctrt_status init(const ctrt_host *functions)
{
    host = functions;
    return CTRT_OK;
}

static ctrt_image_codec codec = { .size = sizeof codec, .describe = describe, .decode = decode };

static ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_IMAGE, .name = "bmp", .table = &codec },
};

__attribute__((constructor)) static void begin(void)
{
    if (broken("name_other"))
        components[0].name = "bitmap";
    if (broken("decode_missing"))
        codec.decode = NULL;
}

CTRT_PLUGIN_DEFINE("image-bmp", "1.0", "BMP images, with a defect, for tests", components, init)
