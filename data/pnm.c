/* SPDX-License-Identifier: Apache-2.0 */
/* data/pnm.c: PPM (P6) and PGM (P5) files: three numbers as text, then the values, of one byte each, or of two
 * (big-endian) if the largest is above 255. */
#include <math.h>

#include "base/base.h"
#include "data/image.h"

struct pnm_reader {
    const unsigned char *bytes;
    size_t size, at;
};

/* Reads a number after white space and comments. Returns -1 if there is none, or if it is too large. */
static int64_t pnm_read_number(struct pnm_reader *r)
{
    int64_t number = -1;
    for (; r->at < r->size; r->at++)
        if (r->bytes[r->at] == '#')
            while (r->at + 1 < r->size && r->bytes[r->at + 1] != '\n')
                r->at++;
        else if (strchr(" \t\r\n\v\f", r->bytes[r->at]) == NULL || r->bytes[r->at] == '\0')
            break;
    for (; r->at < r->size && r->bytes[r->at] >= '0' && r->bytes[r->at] <= '9'; r->at++) {
        number = MAX(number, 0) * 10 + (r->bytes[r->at] - '0');
        if (number > IMAGE_MAX_SIDE)
            return -1;
    }
    return number;
}

static unsigned char scale(int64_t value, int64_t most)
{
    return (unsigned char)lrint((double)MIN(value, most) * 255 / (double)most);
}

ctrt_status pnm_decode(unsigned char *rgb, int64_t *height, int64_t *width, int *bits, const void *file, size_t bytes)
{
    struct pnm_reader r = { .bytes = file, .size = bytes, .at = 2 };
    if (bytes < 2 || r.bytes[0] != 'P' || (r.bytes[1] != '5' && r.bytes[1] != '6'))
        return ctrt_fail(CTRT_ERR_FORMAT, "neither a PPM nor a PGM file");
    const char *format = r.bytes[1] == '6' ? "PPM" : "PGM";
    const int64_t channels = r.bytes[1] == '6' ? 3 : 1;
    *width = pnm_read_number(&r);
    *height = pnm_read_number(&r);
    const int64_t most = pnm_read_number(&r);
    if (*width < 1 || *height < 1 || most < 1 || most > 65535)
        return ctrt_fail(CTRT_ERR_FORMAT, "malformed %s header: expected width and height, 1 to %d, and the largest "
                         "value, 1 to 65535", format, IMAGE_MAX_SIDE);
    if (*width * *height > IMAGE_MAX_PIXELS)
        return ctrt_fail(CTRT_ERR_FORMAT, "an image of %lldx%lld (width x height); the largest has %lld pixels",
                         (long long)*width, (long long)*height, (long long)IMAGE_MAX_PIXELS);
    *bits = most > 255 ? 16 : 8;
    r.at++;                                         /* one white-space character ends the header */
    const int64_t count = *width * *height, value = *bits / 8;
    if (r.at > r.size || (uint64_t)(count * channels * value) > r.size - r.at)
        return ctrt_fail(CTRT_ERR_FORMAT, "truncated: a %s image of %lldx%lld (width x height) needs %lld bytes after "
                         "the header, the file has %zu", format, (long long)*width, (long long)*height,
                         (long long)(count * channels * value), r.at > r.size ? 0 : r.size - r.at);
    if (rgb == NULL)
        return CTRT_OK;
    unsigned char scaled[256];
    for (int v = 0; v < 256; v++)
        scaled[v] = scale(v, most);
    const unsigned char *from = r.bytes + r.at;
    for (int64_t i = 0; i < count; i++)
        for (int c = 0; c < 3; c++) {
            const unsigned char *at = from + (channels == 3 ? 3 * i + c : i) * value;
            rgb[3 * i + c] = value == 1 ? scaled[at[0]] : scale(at[0] << 8 | at[1], most);
        }
    return CTRT_OK;
}
