/* SPDX-License-Identifier: Apache-2.0 */
/* bench/transforms.c: transforms of an image of 500 x 375 pixels of 3 bytes, pixel by pixel as a decoder writes it.
 * peers/transforms_torch.py measures the same with torchvision; compare.sh runs both in turns. */
#include <ctrt/ctrt.h>
#include <ctrt/datasets.h>

#include "check.h"
#include "timing.h"

enum { HEIGHT = 375, WIDTH = 500, SIDE = 224 };

static unsigned char source[HEIGHT * WIDTH * 3], bytes[HEIGHT * WIDTH * 3], small[SIDE * SIDE * 3];
static float floats[SIDE * SIDE * 3];
static ctrt_image photo, photo_chw, small_hwc, small_chw, small_float;

/* A part of 400 x 300, mirrored, with 224 x 224 pixels, channel by channel. */
static void crop_flip_resize(void *argument)
{
    ctrt_image view;
    (void)argument;
    check(ctrt_image_crop(&view, &photo, 40, 60, 300, 400));
    check(ctrt_image_hflip(&view, &view));
    check(ctrt_image_resize(&small_chw, &view, true));
}

static void resize(void *argument)
{
    (void)argument;
    check(ctrt_image_resize(&small_chw, &photo, true));
}

static void to_float(void *argument)
{
    static const float mean[] = { 0.485f, 0.456f, 0.406f }, std[] = { 0.229f, 0.224f, 0.225f };
    check(ctrt_image_to_float(&small_float, argument, mean, std));
}

static void to_chw(void *argument)
{
    (void)argument;
    check(ctrt_image_copy(&photo_chw, &photo, 0, 0, 0));
}

int main(void)
{
    for (int i = 0; i < HEIGHT * WIDTH * 3; i++)
        source[i] = (unsigned char)(i * 2654435761u >> 24);
    photo = ctrt_image_hwc(source, CTRT_U8, HEIGHT, WIDTH, 3);
    photo_chw = ctrt_image_chw(bytes, CTRT_U8, 3, HEIGHT, WIDTH);
    small_hwc = ctrt_image_hwc(small, CTRT_U8, SIDE, SIDE, 3);
    small_chw = ctrt_image_chw(small, CTRT_U8, 3, SIDE, SIDE);
    small_float = ctrt_image_chw(floats, CTRT_F32, 3, SIDE, SIDE);
    timing_report("crop_flip_resize_224", crop_flip_resize, NULL);
    timing_report("resize_224", resize, NULL);
    timing_report("to_float_normalize_hwc_224", to_float, &small_hwc);
    timing_report("to_float_normalize_chw_224", to_float, &small_chw);
    timing_report("hwc_to_chw_375x500", to_chw, NULL);
    return 0;
}
