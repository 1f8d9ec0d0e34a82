/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_DATASETS_H
#define CTRT_DATASETS_H
#include "ctrt/transforms.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_image_options {
    size_t size;
    int64_t height, width;
    int channels;
    ctrt_dtype dtype;
    float mean[4], std[4];
    ctrt_image_function transform;
    void *user;
    bool reduce_depth, exif_orientation;
} ctrt_image_options;
#define CTRT_IMAGE_OPTIONS CTRT_SIZED_(ctrt_image_options)
CTRT_API ctrt_status ctrt_read_image_with(ctrt_tensor **out, const char *path, const ctrt_image_options *options);
CTRT_API ctrt_status ctrt_idx_dataset(ctrt_dataset **out, const char *images, const char *labels,
                                      const ctrt_image_options *options);
typedef enum ctrt_cifar_kind { CTRT_CIFAR10, CTRT_CIFAR100, CTRT_CIFAR100_COARSE } ctrt_cifar_kind;
CTRT_API ctrt_status ctrt_cifar_dataset(ctrt_dataset **out, const char *const *paths, int count, ctrt_cifar_kind kind,
                                        const ctrt_image_options *options);
CTRT_API ctrt_status ctrt_image_folder_dataset(ctrt_dataset **out, const char *folder,
                                               const ctrt_image_options *options);
CTRT_API const char *ctrt_image_folder_class(const ctrt_dataset *dataset, int64_t label);
CTRT_API const char *ctrt_image_folder_path(const ctrt_dataset *dataset, int64_t index);
typedef struct ctrt_csv_options {
    size_t size;
    char separator;
    bool header;
    int label;
    bool label_float;
    bool label_classes;
    bool missing_nan;
} ctrt_csv_options;
#define CTRT_CSV_OPTIONS CTRT_SIZED_(ctrt_csv_options)
CTRT_API ctrt_status ctrt_csv_dataset(ctrt_dataset **out, const char *path, const ctrt_csv_options *options);
CTRT_API const char *ctrt_csv_class(const ctrt_dataset *dataset, int64_t label);
CTRT_API ctrt_status ctrt_npy_dataset(ctrt_dataset **out, const char *const *names, const char *const *paths,
                                      int count);
CTRT_API ctrt_status ctrt_idx_arrays_dataset(ctrt_dataset **out, const char *const *names, const char *const *paths,
                                             int count);
CTRT_API ctrt_status ctrt_safetensors_dataset(ctrt_dataset **out, const char *path, const char *const *names,
                                              int count);
typedef struct ctrt_tokens_options {
    size_t size;
    int bytes;
    int64_t length;
    bool random;
    bool raw;
    int64_t stride;
    int64_t samples;
    int64_t vocabulary;
} ctrt_tokens_options;
#define CTRT_TOKENS_OPTIONS CTRT_SIZED_(ctrt_tokens_options)
CTRT_API ctrt_status ctrt_tokens_dataset(ctrt_dataset **out, const char *path, const ctrt_tokens_options *options);
CTRT_END_DECLS
#endif
