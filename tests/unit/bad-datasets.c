/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input to datasets.h and transforms.h, for test-bad-input.c. test-datasets.c and test-transforms.c check malformed
 * files and the other arguments. */
#include "bad-input.h"

void bad_datasets(void)
{
    static const char *const names[] = { "a", NULL };
    static const char path[] = "/nowhere/file";
    const char *const paths[] = { path, NULL };
    const ctrt_image_options options = { .size = sizeof(ctrt_image_options), .height = 1,
                                         .width = 1 }, decode = { .channels = 1 };
    const ctrt_tokens_options tokens = { .size = sizeof(ctrt_tokens_options), .length = 1 };
    ctrt_dataset *d = NULL;
    NULL_IN2(ctrt_idx_dataset, &d, path, NULL, NULL);
    NULL_IN2(ctrt_cifar_dataset, &d, paths, 1, CTRT_CIFAR10, NULL);
    NULL_IN3(ctrt_image_folder_dataset, &d, path, &options);
    NULL_IN2(ctrt_csv_dataset, &d, path, NULL);
    NULL_IN3(ctrt_npy_dataset, &d, names, paths, 1);
    NULL_IN2(ctrt_safetensors_dataset, &d, path, NULL, 0);
    NULL_IN3(ctrt_tokens_dataset, &d, path, &tokens);
    NULL_IN3(ctrt_idx_arrays_dataset, &d, names, paths, 1);
    NULLS1(ctrt_read_image, path, 3);
    NULL_IN3(ctrt_read_image_with, &out, path, &decode);
    BAD(INVALID_ARGUMENT, ctrt_read_image_with(&out, path, &options));
    BAD(IO, ctrt_idx_dataset(&d, path, NULL, NULL));
    BAD(IO, ctrt_cifar_dataset(&d, paths, 1, CTRT_CIFAR10, NULL));
    BAD(IO, ctrt_image_folder_dataset(&d, path, &options));
    BAD(IO, ctrt_csv_dataset(&d, path, NULL));
    BAD(IO, ctrt_npy_dataset(&d, names, paths, 1));
    BAD(IO, ctrt_safetensors_dataset(&d, path, NULL, 0));
    BAD(IO, ctrt_tokens_dataset(&d, path, &tokens));
    BAD(IO, ctrt_read_image(&out, path, 1));
    BAD(IO, ctrt_csv_dataset(&d, "/", NULL));
    BAD(INVALID_ARGUMENT, ctrt_cifar_dataset(&d, paths, 0, CTRT_CIFAR10, NULL));
    BAD(INVALID_ARGUMENT, ctrt_cifar_dataset(&d, paths, 1, (ctrt_cifar_kind)7, NULL));
    BAD(INVALID_ARGUMENT, ctrt_npy_dataset(&d, names, paths, 99));
    BAD(INVALID_ARGUMENT, ctrt_npy_dataset(&d, names + 1, paths, 1));
    BAD(INVALID_ARGUMENT, ctrt_safetensors_dataset(&d, path, names, -1));
    BAD(INVALID_ARGUMENT, ctrt_safetensors_dataset(&d, path, NULL, 1));
    BAD(INVALID_ARGUMENT, ctrt_read_image(&out, path, 2));
    FINE(d == NULL);
    FINE(ctrt_csv_class(NULL, 0) == NULL);
    FINE(ctrt_image_folder_class(NULL, 0) == NULL);
    FINE(ctrt_image_folder_path(NULL, 0) == NULL);
}

void bad_transforms(void)
{
    unsigned char pixels[12] = { 0 };
    ctrt_image image = ctrt_image_chw(pixels, CTRT_U8, 3, 2, 2), view = ctrt_image_hwc(pixels, CTRT_U8, 2, 2, 3);
    ctrt_sample_random random;
    ctrt_sample_random_start(&random, 1, 0, 0);
    FINE(ctrt_image_chw(NULL, CTRT_U8, 1, 1, 1).pixels == NULL);
    FINE(ctrt_image_hwc(NULL, CTRT_U8, 1, 1, 1).pixels == NULL);
    NULL_IN2(ctrt_image_crop, &view, &image, 0, 0, 1, 1);
    NULL_IN2(ctrt_image_center_crop, &view, &image, 1, 1);
    NULL_IN2(ctrt_image_hflip, &view, &image);
    NULL_IN2(ctrt_image_vflip, &view, &image);
    NULL_IN2(ctrt_image_random_hflip, &view, &image, 0.5, &random);
    NULL_IN2(ctrt_image_random_vflip, &view, &image, 0.5, &random);
    NULL_IN2(ctrt_image_random_resized_crop, &view, &image, NULL, &random);
    NULL_IN2(ctrt_image_copy, &view, &image, 0, 0, 0);
    NULL_IN2(ctrt_image_random_crop, &view, &image, 0, 0, &random);
    NULL_IN2(ctrt_image_resize, &view, &image, true);
    NULL_IN2(ctrt_image_to_float, &view, &image, NULL, NULL);
    NULL_IN2(ctrt_image_to_gray, &view, &image);
    BAD(INVALID_ARGUMENT, ctrt_image_random_hflip(&view, &image, 0.5, NULL));
    BAD(INVALID_ARGUMENT, ctrt_image_random_resized_crop(&view, &image, NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_image_random_crop(&view, &image, 0, 0, NULL));
    image.dtype = CTRT_I64;
    BAD(DTYPE, ctrt_image_hflip(&view, &image));
    BAD(DTYPE, ctrt_image_resize(&view, &image, true));
}
