/* SPDX-License-Identifier: Apache-2.0 */
/* Reads an image file with whatever decoder its format needs, and prints its size and the pixels in hexadecimal.
 *
 *   CTRT_PLUGIN_PATH=$PWD ./try FILE */
#include <ctrt/ctrt.h>
#include <stdio.h>

static ctrt_status show(const char *path)
{
    CTRT_AUTO(tensor) image = NULL;
    CTRT_TRY(ctrt_read_image(&image, path, 3));
    CTRT_TRY(ctrt_permute(&image, image, CTRT_DIMS(1, 2, 0)));
    CTRT_TRY(ctrt_contiguous(&image, image, CTRT_CONTIGUOUS_FORMAT));
    const unsigned char *pixels = ctrt_tensor_data(image);
    printf("%lld x %lld:", (long long)ctrt_tensor_size(image, 1), (long long)ctrt_tensor_size(image, 0));
    for (int64_t i = 0; i < ctrt_tensor_numel(image); i++)
        printf("%s%02x", i % 3 == 0 ? " " : "", pixels[i]);
    printf("\n");
    return CTRT_OK;
}

int main(int argc, char **argv)
{
    if (argc != 2 || show(argv[1]) != CTRT_OK) {
        fprintf(stderr, "%s\n", argc != 2 ? "usage: try FILE" : ctrt_error_message());
        return 1;
    }
    return 0;
}
