/* SPDX-License-Identifier: Apache-2.0 */
/* Transforms of images: torchvision's results (tests/reference/data.txt), views, random parts, bad arguments. */
#include <math.h>

#include "../options.h"
#include "calls.h"
#include "reference/ref.h"
#include "tensors.h"

enum { C = 3, H = 9, W = 11, PIXELS = C * H * W };

static struct ref_file *ref;
static unsigned char bytes[PIXELS], hwc[PIXELS];        /* the image of the reference, in both layouts */
static float floats[PIXELS];
static ctrt_image image;                                /* a view of `bytes` */

static void load_image(void)
{
    const struct ref_record *record = ref_find(ref, "image");
    REQUIRE(record != NULL && record->numel == PIXELS, "no image in data.txt");
    for (int i = 0; i < PIXELS; i++) {
        bytes[i] = (unsigned char)record->i[i];
        floats[i] = bytes[i];
        hwc[i % (H * W) * C + i / (H * W)] = bytes[i];
    }
    image = ctrt_image_chw(bytes, CTRT_U8, C, H, W);
}

TEST(resize, "resize: the results of torchvision, in f32, u8 and both layouts")
{
    static const struct { int height, width, antialias; } cases[] = {
        { 9, 11, 0 }, { 9, 11, 1 }, { 4, 5, 0 }, { 4, 5, 1 }, { 3, 20, 0 }, { 3, 20, 1 }, { 14, 16, 0 }, { 14, 16, 1 },
        { 1, 1, 0 },  { 1, 1, 1 },
    };
    EACH(c, cases) {
        static float got[C * 14 * 20];
        static unsigned char small[C * 14 * 20], mirrored[C * 14 * 20];
        const struct ref_record *want = ref_find(ref, "resize/%dx%d/%d", c->height, c->width, c->antialias);
        const ctrt_image from = ctrt_image_chw(floats, CTRT_F32, C, H, W);
        const ctrt_image pixelwise = ctrt_image_hwc(hwc, CTRT_U8, H, W, C);
        const ctrt_image out = ctrt_image_chw(got, CTRT_F32, C, c->height, c->width);
        const ctrt_image out_u8 = ctrt_image_chw(small, CTRT_U8, C, c->height, c->width);
        ctrt_image from_mirrored, out_mirrored = ctrt_image_hwc(mirrored, CTRT_U8, c->height, c->width, C);
        REQUIRE_TRUE(want != NULL && want->numel <= (int64_t)COUNT(got));
        CHECK_OK(ctrt_image_resize(&out, &from, c->antialias));
        CHECK_OK(ctrt_image_resize(&out_u8, &pixelwise, c->antialias));
        CHECK_OK(ctrt_image_hflip(&from_mirrored, &pixelwise));
        CHECK_OK(ctrt_image_hflip(&out_mirrored, &out_mirrored));
        CHECK_OK(ctrt_image_resize(&out_mirrored, &from_mirrored, c->antialias));
        for (int i = 0; i < want->numel; i++) {
            const int plane = c->height * c->width;
            CHECK_NEAR(got[i], want->f[i], 2e-4);
            CHECK_NEAR(small[i], want->f[i], 0.5 + 1e-4);
            CHECK_NEAR(mirrored[i % plane * C + i / plane], want->f[i], 0.5 + 1e-4);
        }
    }
}

/* Wider images than that of the reference, for the loops that process several pixels at a time: all layouts and
 * directions give the values of the plain loops below. */
TEST(wide, "copies and resizes of wide images in all layouts and directions")
{
    enum { HEIGHT = 37, WIDTH = 71, MOST = 4 * HEIGHT * WIDTH };
    static unsigned char from[MOST], to[MOST];
    static float planes[MOST], want[MOST];
    for (int i = 0; i < MOST; i++)
        from[i] = (unsigned char)((unsigned)i * 2654435761u >> 23);
    for (int channels = 1; channels <= 4; channels++)
        for (int layout = 0; layout < 16; layout++)
            for (int width = 1; width <= WIDTH; width += width < 20 ? 1 : 17) {
                const bool small = (layout & 8) != 0;
                const int64_t n = small ? (width + 2) / 3 : width, rows = small ? 13 : HEIGHT;
                ctrt_image in = layout & 1 ? ctrt_image_chw(from, CTRT_U8, channels, HEIGHT, width)
                                           : ctrt_image_hwc(from, CTRT_U8, HEIGHT, width, channels);
                const ctrt_image out = layout & 2 ? ctrt_image_chw(to, CTRT_U8, channels, rows, n)
                                                  : ctrt_image_hwc(to, CTRT_U8, rows, n, channels);
                const ctrt_image wide = ctrt_image_chw(planes, CTRT_F32, channels, HEIGHT, width),
                                 expected = ctrt_image_chw(want, CTRT_F32, channels, rows, n);
                if (layout & 4)
                    CHECK_OK(ctrt_image_hflip(&in, &in));
                for (int64_t c = 0; c < channels; c++)
                    for (int64_t y = 0; y < HEIGHT; y++)
                        for (int64_t x = 0; x < width; x++)
                            planes[(c * HEIGHT + y) * width + x] = ((unsigned char *)in.pixels)[
                                c * in.channel_stride + y * in.row_stride + x * in.column_stride];
                CHECK_OK(small ? ctrt_image_resize(&out, &in, true) : ctrt_image_copy(&out, &in, 0, 0, 0));
                CHECK_OK(small ? ctrt_image_resize(&expected, &wide, true) : ctrt_image_copy(&expected, &wide, 0, 0,
                    0));
                int wrong = 0;
                for (int64_t c = 0; c < channels; c++)
                    for (int64_t y = 0; y < rows; y++)
                        for (int64_t x = 0; x < n; x++)
                            wrong += to[c * out.channel_stride + y * out.row_stride + x * out.column_stride]
                                     != (unsigned char)lrintf(want[(c * rows + y) * n + x]);
                CHECK(wrong == 0, "%d channels, layout %d, width %d: %d wrong", channels, layout, width, wrong);
            }
}

/* Copies a view to `out` and returns whether it has the values of the reference. */
static bool same_as(const ctrt_image *view, const char *name)
{
    unsigned char out[PIXELS];
    const struct ref_record *want = ref_find(ref, "%s", name);
    const ctrt_image copy = ctrt_image_chw(out, CTRT_U8, view->channels, view->height, view->width);
    REQUIRE(want != NULL && want->numel == view->channels * view->height * view->width, "no %s", name);
    bool same = CHECK_OK(ctrt_image_copy(&copy, view, 0, 0, 0));
    for (int i = 0; i < want->numel; i++)
        same = same && out[i] == want->i[i];
    return same;
}

TEST(fixed, "crop, pad, normalise, grey: the results of torchvision")
{
    ctrt_image view;
    CHECK_OK(ctrt_image_center_crop(&view, &image, 4, 6));
    CHECK_TRUE(same_as(&view, "center_crop"));
    unsigned char padded[C * 8 * 8];
    view = ctrt_image_chw(padded, CTRT_U8, C, 8, 8);
    CHECK_OK(ctrt_image_copy(&view, &image, 1 - 4, 9 - 4, 7));
    CHECK_TRUE(same_as(&view, "pad_crop"));

    const float mean[] = { 0.485f, 0.456f, 0.406f }, std[] = { 0.229f, 0.224f, 0.225f };
    float normal[PIXELS];
    const struct ref_record *want = ref_find(ref, "normalize");
    const ctrt_image out = ctrt_image_chw(normal, CTRT_F32, C, H, W);
    const ctrt_image pixelwise = ctrt_image_hwc(hwc, CTRT_U8, H, W, C);
    CHECK_OK(ctrt_image_to_float(&out, &pixelwise, mean, std));
    for (int i = 0; i < PIXELS; i++)
        CHECK_NEAR(normal[i], want->f[i], 0);
    CHECK_OK(ctrt_image_to_float(&out, &image, NULL, NULL));
    CHECK_OK(ctrt_image_to_float(&out, &out, mean, std));   /* in place */
    for (int i = 0; i < PIXELS; i++)
        CHECK_NEAR(normal[i], want->f[i], 0);

    float rgb[3] = { 10, 20, 30 }, gray = 0;
    const ctrt_image pixel = ctrt_image_hwc(rgb, CTRT_F32, 1, 1, 3), one = ctrt_image_hwc(&gray, CTRT_F32, 1, 1, 1);
    CHECK_OK(ctrt_image_to_gray(&one, &pixel));
    CHECK_NEAR(gray, 18.15, 1e-5);
}

TEST(views, "views: crops and flips of crops and flips")
{
    unsigned char pixels[] = { 1, 2, 3, 4, 5, 6 }, out[6];
    ctrt_image view = ctrt_image_chw(pixels, CTRT_U8, 1, 2, 3);
    const ctrt_image copy = ctrt_image_chw(out, CTRT_U8, 1, 2, 2);
    CHECK_OK(ctrt_image_hflip(&view, &view));
    CHECK_OK(ctrt_image_crop(&view, &view, 0, 1, 2, 2));
    CHECK_OK(ctrt_image_vflip(&view, &view));
    CHECK_OK(ctrt_image_copy(&copy, &view, 0, 0, 0));
    CHECK(memcmp(out, (unsigned char[]){ 5, 4, 2, 1 }, 4) == 0, "%d %d %d %d", out[0], out[1], out[2], out[3]);
    CHECK_OK(ctrt_image_copy(&copy, &view, 100, INT64_MIN, 9));         /* nothing but fill */
    CHECK(memcmp(out, (unsigned char[]){ 9, 9, 9, 9 }, 4) == 0, "%d %d %d %d", out[0], out[1], out[2], out[3]);
}

TEST(random_parts, "random transforms: equal for equal streams, within their limits, with the right frequencies")
{
    int flips = 0, places[5][5] = { { 0 } };
    double areas = 0;
    unsigned char pixels[1] = { 1 }, out[3 * 3];
    const ctrt_image single = ctrt_image_chw(pixels, CTRT_U8, 1, 1, 1), part = ctrt_image_chw(out, CTRT_U8, 1, 3, 3);
    const int n = 1000;
    for (int i = 0; i < n; i++) {
        ctrt_sample_random random, again;
        ctrt_image view, same;
        ctrt_sample_random_start(&random, 3, 1, i);
        again = random;
        CHECK_OK(ctrt_image_random_resized_crop(&view, &image, NULL, &random));
        CHECK_OK(ctrt_image_random_resized_crop(&same, &image, NULL, &again));
        CHECK_TRUE(memcmp(&view, &same, sizeof view) == 0);
        const unsigned char *first = view.pixels;
        CHECK_TRUE(first >= bytes && first + (view.height - 1) * W + view.width <= bytes + H * W);
        areas += (double)(view.height * view.width) / (H * W);
        CHECK_OK(ctrt_image_random_hflip(&view, &image, 0.25, &random));
        flips += view.column_stride < 0;
        /* A 3x3 part of a 1x1 image with padding 3: the pixel is at one of 25 places of 5x5, visible at 9. */
        CHECK_OK(ctrt_image_random_crop(&part, &single, 3, 0, &random));
        for (int k = 0; k < 9; k++)
            places[k / 3][k % 3] += out[k];
    }
    CHECK_NEAR(areas / n, 0.489, 0.03);         /* the mean of torchvision's get_params for this size */
    CHECK_NEAR((double)flips / n, 0.25, 0.05);
    for (int k = 0; k < 9; k++)
        CHECK_NEAR((double)places[k / 3][k % 3] / n, 0.04, 0.025);
    /* No part of the area 1 has the ratio 4: the largest part in the middle is used. */
    ctrt_image view;
    ctrt_sample_random random;
    ctrt_sample_random_start(&random, 3, 1, 0);
    const ctrt_random_crop_options wide = *CROP(.scale = { 1, 1 }, .ratio = { 4, 4 });
    CHECK_OK(ctrt_image_random_resized_crop(&view, &image, &wide, &random));
    CHECK_EQ(view.height, 3);
    CHECK_EQ(view.width, 11);
    CHECK_EQ((const unsigned char *)view.pixels - bytes, 3 * W);
}

TEST(bad, "bad arguments")
{
    unsigned char out_bytes[PIXELS];
    float out_floats[PIXELS];
    const ctrt_image u8 = ctrt_image_chw(out_bytes, CTRT_U8, C, H, W);
    const ctrt_image gray = ctrt_image_chw(out_bytes, CTRT_U8, 1, H, W);
    const ctrt_image f32 = ctrt_image_chw(out_floats, CTRT_F32, C, H, W);
    const ctrt_image whole = ctrt_image_chw(out_bytes, CTRT_I32, C, H, W);
    const ctrt_image empty = ctrt_image_chw(out_bytes, CTRT_U8, C, 0, W), none = ctrt_image_chw(NULL, CTRT_U8, C, H, W);
    const ctrt_image small = ctrt_image_chw(out_floats, CTRT_F32, C, 2, 2);
    ctrt_image view;
    ctrt_sample_random random;
    ctrt_sample_random_start(&random, 1, 0, 0);
    CHECK_FAILS(ctrt_image_resize(&f32, &image, true), CTRT_ERR_DTYPE, "out is f32 and image is u8");
    CHECK_FAILS(ctrt_image_resize(&whole, &image, true), CTRT_ERR_DTYPE, "i32, expected u8 or f32");
    CHECK_FAILS(ctrt_image_to_float(&u8, &image, NULL, NULL), CTRT_ERR_DTYPE, "expected f32");
    CHECK_FAILS(ctrt_image_resize(&gray, &image, true), CTRT_ERR_SHAPE, "out has 1 channels and image has 3");
    CHECK_FAILS(ctrt_image_to_float(&small, &image, NULL, NULL), CTRT_ERR_SHAPE,
                "out is 2x2 (height x width) and image is 9x11");
    CHECK_FAILS(ctrt_image_to_gray(&u8, &image), CTRT_ERR_SHAPE, "out has 3 channels");
    CHECK_FAILS(ctrt_image_crop(&view, &image, 5, 0, 5, 1), CTRT_ERR_SHAPE,
                "at row 5, column 0 is not inside an image of 9x11");
    CHECK_FAILS(ctrt_image_crop(&view, &image, 0, -1, 5, 1), CTRT_ERR_SHAPE, "not inside");
    CHECK_FAILS(ctrt_image_crop(&view, &image, INT64_MAX, 0, 5, 1), CTRT_ERR_SHAPE, "not inside");
    CHECK_FAILS(ctrt_image_center_crop(&view, &image, 10, 10), CTRT_ERR_SHAPE, "image_center_crop");
    CHECK_FAILS(ctrt_image_random_crop(&u8, &gray, 0, 0, &random), CTRT_ERR_SHAPE, "channels");
    CHECK_FAILS(ctrt_image_resize(&empty, &image, true), CTRT_ERR_INVALID_ARGUMENT, "height 0");
    CHECK_FAILS(ctrt_image_resize(NULL, &image, true), CTRT_ERR_INVALID_ARGUMENT, "out is NULL");
    CHECK_FAILS(ctrt_image_resize(&none, &image, true), CTRT_ERR_INVALID_ARGUMENT, "pixels");
    CHECK_FAILS(ctrt_image_crop(&view, &image, 0, 0, 0, 1), CTRT_ERR_INVALID_ARGUMENT, "height 0");
    CHECK_FAILS(ctrt_image_hflip(NULL, &image), CTRT_ERR_INVALID_ARGUMENT, "view is NULL");
    CHECK_FAILS(ctrt_image_random_hflip(&view, &image, 1.5, &random), CTRT_ERR_INVALID_ARGUMENT, "p is 1.5");
    CHECK_FAILS(ctrt_image_random_vflip(&view, &image, 0.5, NULL), CTRT_ERR_INVALID_ARGUMENT, "random is NULL");
    CHECK_FAILS(ctrt_image_copy(&u8, &image, 0, 0, 256), CTRT_ERR_INVALID_ARGUMENT, "fill is 256");
    CHECK_FAILS(ctrt_image_to_float(&f32, &image, (float[3]){ 0 }, (float[3]){ 1 }), CTRT_ERR_INVALID_ARGUMENT,
                "std[1] is 0");
    CHECK_FAILS(ctrt_image_random_crop(&u8, &image, -1, 0, &random), CTRT_ERR_INVALID_ARGUMENT, "padding is -1");
    CHECK_FAILS(ctrt_image_random_resized_crop(&view, &image, CROP(.scale = { 2, 1 }), &random),
                CTRT_ERR_INVALID_ARGUMENT, "scale 2 to 1");
}

TEST_MAIN
{
    ref = ref_load("data.txt");
    REQUIRE(ref != NULL, "no data.txt");
    load_image();
    const int failed = run_tests();
    ref_free(ref);
    return failed;
}
