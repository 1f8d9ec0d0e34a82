/* SPDX-License-Identifier: Apache-2.0 */
/* data/resize.c: bilinear resizing, first across and then down, four rows and four channels at a time (pixels.h).
 *
 * Each result is a weighted mean of a range of pixels, by a triangle around its position in the source (align_corners
 * false: centres of pixels are at 0.5, 1.5, ...). The triangle reaches one source pixel to each side, or with
 * antialias, when the size decreases, as many as the ratio of the sizes. At the borders the weights are scaled to a sum
 * of 1, which for the narrow triangle gives what clamping the position gives. (PyTorch: interpolate, mode bilinear,
 * antialias.) */
#include <math.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "data/image.h"
#include "data/pixels.h"

/* The weights of the results along one direction: result i is the sum of weights[i * most + k] * source[first[i] + k]
 * for k < count[i]. */
struct taps {
    int64_t most;
    int64_t *first, *count;
    float *weights;
};

static int64_t most_taps(double scale, bool antialias)
{
    return (int64_t)ceil(antialias && scale > 1 ? scale : 1) * 2 + 1;
}

/* The triangle: 1 at its middle, 0 from a distance of 1. */
static double triangle(double distance)
{
    const double weight = 1 - fabs(distance);
    return weight > 0 ? weight : 0;
}

static void taps_compute(struct taps *taps, int64_t from, int64_t to, bool antialias)
{
    const double scale = (double)from / (double)to, support = antialias && scale > 1 ? scale : 1;
    for (int64_t i = 0; i < to; i++) {
        const double centre = scale * ((double)i + 0.5);
        const int64_t first = MAX((int64_t)(centre - support + 0.5), 0);
        const int64_t end = MIN((int64_t)(centre + support + 0.5), from);
        float *weights = taps->weights + i * taps->most;
        double sum = 0;
        taps->first[i] = first;
        taps->count[i] = MIN(end - first, taps->most);
        for (int64_t k = 0; k < taps->count[i]; k++)
            sum += triangle(((double)(first + k) - centre + 0.5) / support);
        for (int64_t k = 0; k < taps->count[i]; k++)
            weights[k] = (float)(triangle(((double)(first + k) - centre + 0.5) / support) / sum);
    }
}

/* Gives all results the same number of taps, by weights of 0, which saves mispredicted branches. */
static void taps_equalize(struct taps *taps, int64_t n)
{
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++)
        most = MAX(most, taps->count[i]);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = taps->count[i]; k < most; k++)
            taps->weights[i * taps->most + k] = 0;
        taps->count[i] = most;
    }
}

/* In bytes, of cells and rows of the ring: the size of a cell, so that none lies in two cache lines. */
#define ALIGNMENT (CELL * sizeof(float))

/* The state of one resizing: the taps of both directions, and buffers. */
struct resizing {
    const ctrt_image *out, *image;
    struct taps across, down;
    float *cells;               /* [image->width + across.most][CELL]; the last have weights of 0 */
    float *ring;                /* [slots][stride]: rows of the new width, of 4 channels; row y is in slot y % slots */
    int64_t slots, stride;      /* slots: a multiple of CELL_ROWS */
    const float **rows;         /* [down.most] */
    void *line;                 /* [stride] floats or bytes */
};

/* Converts channels `c` to `c` + `channels` - 1 of row `y` to floats, as row `r` of the cells. */
static void widen_row(const struct resizing *z, int64_t c, int channels, int64_t y, int r)
{
    const ctrt_image *image = z->image;
    const int64_t start = c * image->channel_stride + y * image->row_stride, step = image->column_stride,
                  width = image->width, next = image->channel_stride;
    float *cells = z->cells + r * CELL_CHANNELS;
    for (int k = 0; k < channels; k++, cells++)
        if (image->dtype == CTRT_U8) {
            const unsigned char *from = (const unsigned char *)image->pixels + start + k * next;
            for (int64_t x = 0; x < width; x++)
                cells[x * CELL] = (float)from[x * step];
        } else {
            const float *from = (const float *)image->pixels + start + k * next;
            for (int64_t x = 0; x < width; x++)
                cells[x * CELL] = from[x * step];
        }
}

/* Computes rows `y` to `y` + 3 of the ring. */
static void resize_rows(const struct resizing *z, int64_t c, int channels, int64_t y)
{
    const ctrt_image *image = z->image;
    const bool whole = image->dtype == CTRT_U8 && image->channel_stride == 1 && channels >= 3;
    const unsigned char *bytes[CELL_ROWS];
    float *rows[CELL_ROWS];
    for (int r = 0; r < CELL_ROWS; r++) {
        const int64_t from = MIN(y + r, image->height - 1);
        if (whole)
            bytes[r] = (const unsigned char *)image->pixels + c + from * image->row_stride;
        else
            widen_row(z, c, channels, from, r);
        rows[r] = z->ring + (y + r) % z->slots * z->stride;
    }
    if (whole)
        pixels_widen(z->cells, bytes, image->column_stride, channels, image->width);
    pixels_across(rows, z->cells, z->across.first, z->across.count, z->across.weights, z->across.most, z->out->width);
}

static void write_line(const struct resizing *z, int64_t c, int channels, int64_t y)
{
    const ctrt_image *out = z->out;
    const int64_t width = out->width, step = out->column_stride;
    for (int k = 0; k < channels; k++) {
        const int64_t to = (c + k) * out->channel_stride + y * out->row_stride;
        if (out->dtype == CTRT_U8) {
            unsigned char *restrict bytes = (unsigned char *)out->pixels + to;
            const unsigned char *restrict line = (const unsigned char *)z->line + k;
            if (step == 1)
                pixels_plane4(bytes, line, width);
            else
                for (int64_t x = 0; x < width; x++)
                    bytes[x * step] = line[x * CELL_CHANNELS];
        } else {
            float *restrict floats = (float *)out->pixels + to;
            const float *restrict line = (const float *)z->line + k;
            for (int64_t x = 0; x < width; x++)
                floats[x * step] = line[x * CELL_CHANNELS];
        }
    }
}

static void resize_channels(const struct resizing *z, int64_t c, int channels)
{
    int64_t next = 0;                   /* the first row that was not computed; a multiple of CELL_ROWS */
    for (int64_t y = 0; y < z->out->height; y++) {
        const int64_t first = z->down.first[y], count = z->down.count[y];
        for (next = MAX(next, first / CELL_ROWS * CELL_ROWS); next < first + count; next += CELL_ROWS)
            resize_rows(z, c, channels, next);
        for (int64_t k = 0; k < count; k++)
            z->rows[k] = z->ring + (first + k) % z->slots * z->stride;
        pixels_down(z->line, z->rows, z->down.weights + y * z->down.most, count, z->stride, z->out->dtype == CTRT_U8);
        write_line(z, c, channels, y);
    }
}

ctrt_status ctrt_image_resize(const ctrt_image *out, const ctrt_image *image, bool antialias)
{
    CTRT_TRY(image_check_pair("image_resize", out, image));
    struct resizing z = {
        .out = out, .image = image,
        .across.most = most_taps((double)image->width / (double)out->width, antialias),
        .down.most = most_taps((double)image->height / (double)out->height, antialias),
    };
    z.slots = (z.down.most + 2 * CELL_ROWS - 1) / CELL_ROWS * CELL_ROWS;
    z.stride = (out->width * CELL_CHANNELS + CELL - 1) / CELL * CELL;
    /* Sides are below 2^24, but products of three of them may not fit. */
    const double bytes = ALIGNMENT + 8.0 * 2 * (double)(out->width + out->height) + 8.0 * (double)z.down.most
                         + 4.0 * ((double)z.across.most * (double)out->width
                                  + (double)z.down.most * (double)out->height
                                  + CELL * ((double)image->width + (double)z.across.most)
                                  + ((double)z.slots + 1) * (double)z.stride);
    HOST_AUTO char *memory = bytes < (double)PTRDIFF_MAX ? host_alloc((size_t)bytes) : NULL;
    ALLOC_CHECK(memory, bytes < (double)SIZE_MAX ? (size_t)bytes : SIZE_MAX, "resizing an image");
    z.cells = (float *)(void *)(memory + (ALIGNMENT - (uintptr_t)memory % ALIGNMENT));
    z.ring = z.cells + CELL * (image->width + z.across.most);
    z.line = z.ring + z.slots * z.stride;
    z.across.first = (int64_t *)(void *)((float *)z.line + z.stride);
    z.across.count = z.across.first + out->width;
    z.down.first = z.across.count + out->width;
    z.down.count = z.down.first + out->height;
    z.rows = (const float **)(void *)(z.down.count + out->height);
    z.across.weights = (float *)(void *)(z.rows + z.down.most);
    z.down.weights = z.across.weights + z.across.most * out->width;
    taps_compute(&z.across, image->width, out->width, antialias);
    taps_compute(&z.down, image->height, out->height, antialias);
    if (image->dtype == CTRT_U8)                /* floats may be infinite */
        taps_equalize(&z.across, out->width);
    /* Channels that a group lacks, and the end of a row of the ring, are computed and not used. */
    memset(z.cells, 0, (size_t)(z.ring + z.slots * z.stride - z.cells) * sizeof(float));
    for (int64_t c = 0; c < image->channels; c += CELL_CHANNELS)
        resize_channels(&z, c, (int)MIN(image->channels - c, CELL_CHANNELS));
    return CTRT_OK;
}
