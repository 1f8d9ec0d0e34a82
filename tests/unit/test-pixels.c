/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and resizes of images: all instruction sets that the processor has compute the same bits. */
#include "calls.h"
#include "data/pixels.h"
#include "tensors.h"

enum { SIDE = 71, MOST = 4 * SIDE * SIDE };

static unsigned char source[4 * MOST];
static unsigned char results[PIXELS_AVX512 + 1][4 * MOST];

/* A view of the pixels of `memory`, of the layout that the lowest bit of `layout` selects. */
static ctrt_image view_of(void *memory, ctrt_dtype dtype, int layout, int channels, int64_t height, int64_t width)
{
    return layout & 1 ? ctrt_image_chw(memory, dtype, channels, height, width)
                      : ctrt_image_hwc(memory, dtype, height, width, channels);
}

/* Resizes, or copies if the sizes are equal, with each instruction set, and compares the results. */
static void compare(ctrt_dtype dtype, int layout, int channels, int64_t from, int64_t to)
{
    ctrt_image in = view_of(source, dtype, layout, channels, 37, from);
    const size_t bytes = (dtype == CTRT_U8 ? 1 : sizeof(float)) * (size_t)(channels * (from == to ? 37 : 13) * to);
    if (layout & 4)
        CHECK_OK(ctrt_image_hflip(&in, &in));
    for (int isa = PIXELS_BASELINE; isa <= PIXELS_AVX512; isa++) {
        const ctrt_image out = view_of(results[isa], dtype, layout >> 1, channels, from == to ? 37 : 13, to);
        pixels_isa_limit = (enum pixels_isa)isa;
        memset(results[isa], 0xee, bytes);
        CHECK_OK(from == to ? ctrt_image_copy(&out, &in, 0, 0, 0) : ctrt_image_resize(&out, &in, true));
        CHECK(memcmp(results[isa], results[0], bytes) == 0, "%s, layout %d, %d channels, width %d to %d: instruction "
              "set %d differs", dtype == CTRT_U8 ? "u8" : "f32", layout, channels, (int)from, (int)to, isa);
    }
    pixels_isa_limit = PIXELS_AVX512;
}

TEST(same, "copies and resizes compute the same bits with all instruction sets")
{
    for (size_t i = 0; i < sizeof source / sizeof(float); i++) {
        const float value = (float)((unsigned)i * 2654435761u >> 8) / 65536;
        memcpy(source + i * sizeof value, &value, sizeof value);
    }
    for (int layout = 0; layout < 8; layout++)
        for (int channels = 1; channels <= 4; channels++)
            for (int64_t width = 1; width <= SIDE; width += width < 20 ? 1 : 17)
                for (int k = 0; k < 2; k++) {
                    const ctrt_dtype dtype = k == 0 ? CTRT_U8 : CTRT_F32;
                    compare(dtype, layout, channels, width, width);
                    compare(dtype, layout, channels, width, (width + 2) / 3 + (width == 1));
                    compare(dtype, layout, channels, width, width + 30);
                }
}

TEST_MAIN
{
    return run_tests();
}
