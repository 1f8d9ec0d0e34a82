/* SPDX-License-Identifier: Apache-2.0 */
/* data/resize.c: bilinear resizing, one direction after the other.
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
            sum += fmax(0, 1 - fabs(((double)(first + k) - centre + 0.5) / support));
        for (int64_t k = 0; k < taps->count[i]; k++)
            weights[k] = (float)(fmax(0, 1 - fabs(((double)(first + k) - centre + 0.5) / support)) / sum);
    }
}

/* Resizes the rows of `image` into rows[channel][y][x] of the new width. */
static void resize_rows(float *rows, const ctrt_image *image, const struct taps *taps, int64_t width)
{
    for (int64_t c = 0; c < image->channels; c++)
        for (int64_t y = 0; y < image->height; y++, rows += width) {
            const int64_t start = c * image->channel_stride + y * image->row_stride, step = image->column_stride;
            for (int64_t x = 0; x < width; x++) {
                const float *weights = taps->weights + x * taps->most;
                const int64_t at = start + taps->first[x] * step;
                float sum = 0;
                if (image->dtype == CTRT_U8)
                    for (int64_t k = 0; k < taps->count[x]; k++)
                        sum += weights[k] * (float)((const unsigned char *)image->pixels)[at + k * step];
                else
                    for (int64_t k = 0; k < taps->count[x]; k++)
                        sum += weights[k] * ((const float *)image->pixels)[at + k * step];
                rows[x] = sum;
            }
        }
}

/* Combines rows of the new width into the result. `line`: a buffer of one row. */
static void resize_columns(const ctrt_image *out, const float *rows, float *line, const struct taps *taps,
                           int64_t height)
{
    const int64_t width = out->width;
    for (int64_t c = 0; c < out->channels; c++, rows += height * width)
        for (int64_t y = 0; y < out->height; y++) {
            const int64_t to = c * out->channel_stride + y * out->row_stride;
            memset(line, 0, (size_t)width * sizeof *line);
            for (int64_t k = 0; k < taps->count[y]; k++) {
                const float weight = taps->weights[y * taps->most + k], *row = rows + (taps->first[y] + k) * width;
                for (int64_t x = 0; x < width; x++)
                    line[x] += weight * row[x];
            }
            for (int64_t x = 0; x < width; x++)
                if (out->dtype == CTRT_U8)      /* the weights are positive with sum 1, apart from rounding */
                    ((unsigned char *)out->pixels)[to + x * out->column_stride]
                        = (unsigned char)lrintf(fminf(line[x], 255));
                else
                    ((float *)out->pixels)[to + x * out->column_stride] = line[x];
        }
}

ctrt_status ctrt_image_resize(const ctrt_image *out, const ctrt_image *image, bool antialias)
{
    CTRT_TRY(image_check_pair("image_resize", out, image));
    struct taps across = { .most = most_taps((double)image->width / (double)out->width, antialias) };
    struct taps down = { .most = most_taps((double)image->height / (double)out->height, antialias) };
    /* Sides are below 2^24, but products of three of them may not fit. */
    const double bytes = 8.0 * 2 * (double)(out->width + out->height)
                         + 4.0 * ((double)(across.most + 1) * (double)out->width
                                  + (double)down.most * (double)out->height
                                  + (double)image->channels * (double)image->height * (double)out->width);
    char *memory = bytes < (double)PTRDIFF_MAX ? host_alloc((size_t)bytes) : NULL;
    if (memory == NULL)
        return out_of_memory(bytes < (double)SIZE_MAX ? (size_t)bytes : SIZE_MAX, "resizing an image");
    across.first = (int64_t *)(void *)memory;
    across.count = across.first + out->width;
    down.first = across.count + out->width;
    down.count = down.first + out->height;
    across.weights = (float *)(void *)(down.count + out->height);
    down.weights = across.weights + across.most * out->width;
    float *line = down.weights + down.most * out->height, *rows = line + out->width;
    taps_compute(&across, image->width, out->width, antialias);
    taps_compute(&down, image->height, out->height, antialias);
    resize_rows(rows, image, &across, out->width);
    resize_columns(out, rows, line, &down, image->height);
    host_free(memory);
    return CTRT_OK;
}
